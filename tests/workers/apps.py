"""Activities for executors to run in tests: well-behaved ones, and every way to misbehave."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import pathlib
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from datetime import date

from airflow_provider_taskhub.activity import (
    activity_info,
    cancelled,
    check_cancelled,
    inlet,
    outlet,
    progress,
    save_state,
    saved_state,
)
from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.errors import OrchestrationError

app = App("tests", version="1")


@dataclass
class Job:
    year: int
    start: date


class Refused(Exception):
    """A user's own error that no retry can mend."""

    retryable = False


@app.activity
def greet(name: str) -> str:
    return f"Hello, {name}!"


@app.activity(record=True)
def keeps(values: list[object]) -> list[object]:
    """What was saved before each value was, and after the last one."""
    seen = [saved_state()]
    for value in values:
        save_state(value)
        seen.append(saved_state())
    return seen


@app.activity(record=True, clean_up=True)
def cleans_up(value: int) -> str:
    return f"{cancelled()} {saved_state()}"


@app.activity(record=True, clean_up=True)
async def cleans_up_on_the_loop(value: int) -> str:
    await asyncio.sleep(0)
    return f"{cancelled()} {saved_state()}"


@app.activity
def keeps_without_a_record(value: int) -> None:
    save_state(value)


@app.activity(record=True)
async def keeps_on_the_loop(value: int) -> None:
    save_state(value)


@app.activity(record=True)
async def keeps_in_a_thread(value: int) -> object:
    await asyncio.to_thread(save_state, value)
    return saved_state()


_KEPT: list[bytearray] = []


@app.activity
def keeps_memory(mebibytes: int) -> None:
    _KEPT.append(bytearray(os.urandom(1024)) * (1024 * mebibytes))


@app.activity
def nothing() -> None:
    return None


@app.activity
def typed(job: Job) -> dict[str, object]:
    return {"kind": type(job).__name__, "year": job.year + 1, "day": job.start}


@app.activity
def optional(name: str = "nobody") -> str:
    return name


@app.activity
async def asynchronous(text: str) -> str:
    await asyncio.sleep(0)
    return text + " " + threading.current_thread().name


_mark: ContextVar[str] = ContextVar("mark", default="none")


@app.activity
def mark(text: str) -> list[str | int]:
    before = _mark.get()
    _mark.set(text)
    return [before, threading.get_native_id()]


@app.activity
def info() -> dict[str, object]:
    known = activity_info()
    return {
        "instance": known.instance_id,
        "attempt": known.attempt,
        "key": known.idempotency_key,
        "name": known.name,
        "tags": dict(known.tags),
        "trace": [known.trace_parent, known.trace_state],
        "pid": os.getpid(),
    }


@app.activity
def report() -> str:
    progress(0.25, "a quarter")
    progress(7)
    progress(message="almost")
    return "done"


@app.activity(record=True)
def declaring(kind: str) -> str:
    inlet("s3://bucket/in")
    with ThreadPoolExecutor(1) as threads:  # a thread of the activity declares for it
        threads.submit(copy_context().run, outlet, "s3://bucket/out").result()
    if kind == "fail":
        raise RuntimeError("after the declaration")
    if kind == "wrong":
        outlet("monthly")
    return kind


@app.activity
def declaring_unrecorded() -> None:
    outlet("s3://bucket/out")


@app.activity
def fail(kind: str) -> None:
    if kind == "cause":
        try:
            raise KeyError("month")
        except KeyError as error:
            raise ValueError("no such column") from error
    if kind == "final":
        raise OrchestrationError("never again", retryable=False)
    if kind == "refused":
        raise Refused("no")
    if kind == "exit":
        sys.exit(3)
    if kind == "interrupt":
        raise KeyboardInterrupt("enough")
    raise RuntimeError("boom")


@app.activity
async def fail_async() -> None:
    sys.exit(4)


@app.activity
async def fail_beside() -> None:
    await asyncio.create_task(fail_async())


@app.activity
def unserialisable() -> object:
    return threading.Lock()


@app.activity
def large(size: int) -> str:
    return "x" * size


@app.activity
def crash(how: str) -> None:
    print("last words", flush=True)
    if how == "exit":
        os._exit(7)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "segfault":
        ctypes.string_at(0)


@app.activity
def crash_once(marker: str) -> str:
    path = pathlib.Path(marker)
    if not path.exists():
        path.touch()
        os._exit(9)
    return "survived"


def _wait(folder: str, name: str) -> None:
    """Tell the test that we are here, and wait for its word."""
    place = pathlib.Path(folder)
    (place / f"{name}.started").write_text(str(os.getpid()))
    while not (place / f"{name}.go").exists() and not cancelled():
        threading.Event().wait(0.01)


@app.activity
def meet(at: list[str]) -> str:
    folder, name = at
    _wait(folder, name)
    check_cancelled()
    return name


@app.activity
def stubborn(at: list[str]) -> None:
    """Deaf to its cancellation."""
    folder, name = at
    (pathlib.Path(folder) / f"{name}.started").write_text(str(os.getpid()))
    threading.Event().wait()


@app.activity
async def sleepy(at: list[str]) -> None:
    folder, name = at
    (pathlib.Path(folder) / f"{name}.started").write_text(str(os.getpid()))
    try:
        await asyncio.Event().wait()
    finally:
        (pathlib.Path(folder) / f"{name}.ended").touch()


@app.activity
def hold_gil(at: list[str]) -> str:
    """A C call that never lets go of the interpreter lock: PyDLL keeps it, CDLL would not."""
    folder, name = at
    (pathlib.Path(folder) / f"{name}.started").write_text(str(os.getpid()))
    ctypes.PyDLL(None).pause()
    return name


@app.activity
def children(at: list[str]) -> None:
    """Leaves a process in a group of its own, as PySpark's worker daemon does, and one that ignores SIGTERM."""
    folder, name = at
    code = "import os, time; os.setpgid(0, 0); print('apart', flush=True); time.sleep(600)"
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert other.stdout is not None
    other.stdout.readline()
    deaf = subprocess.Popen(
        [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"]
    )
    target = pathlib.Path(folder) / f"{name}.started"
    (pathlib.Path(folder) / "tmp").write_text(f"{os.getpid()} {other.pid} {deaf.pid}")
    (pathlib.Path(folder) / "tmp").rename(target)
    threading.Event().wait()


@app.activity
def talk(at: list[str]) -> str:
    """Every way to say something, twice, with another activity talking in between."""
    folder, name = at
    for turn in ("first", "second"):
        print(f"{name} {turn} stdout")
        sys.stderr.write(f"{name} {turn} stderr\n")
        logging.getLogger(name).warning("%s logging", turn)
        sys.stdout.buffer.write(f"{name} {turn} bytes\n".encode())
        with ThreadPoolExecutor(1) as pool:
            pool.submit(print, f"{name} {turn} thread").result()
        if turn == "first":
            _wait(folder, name)
    print(f"{name} unfinished", end="")
    return name


@app.activity
async def talk_async(name: str) -> None:
    print(f"{name} before")
    await asyncio.sleep(0)
    print(f"{name} after")


@app.activity
def chatter(lines: int) -> None:
    for number in range(lines):
        print(f"line {number:09d}")


@app.activity
def fork() -> int:
    """A forked process must not speak on its parent's socket."""
    pid = os.fork()
    if pid == 0:
        print("from the fork", flush=True)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@app.activity
def shell() -> None:
    subprocess.run(["sh", "-c", "echo from a subprocess"], check=True)


@app.activity
def environment() -> dict[str, str]:
    return dict(os.environ)
