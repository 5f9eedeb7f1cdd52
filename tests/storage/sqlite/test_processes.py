"""Several real processes on one file: even shares, durability against SIGKILL, wake-up from outside, forks."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_provider_taskhub.errors import ConfigurationError, Unavailable
from airflow_provider_taskhub.storage.primitives import PutMessage
from airflow_provider_taskhub.storage.sqlite.shared_file import SharedFile
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore
from tests.waiting import PATIENCE, until

ROOT = Path(__file__).parents[3]
Process = subprocess.Popen[str]


@contextmanager
def contender(path: Path, queue: str, count: int | None, tasks: int) -> Iterator[Process]:
    """A running contender that waits for its start; killed at the end if it still runs.

    :param count: how many messages it puts; None: messages without end.
    """
    wanted = "endless" if count is None else str(count)
    command = [sys.executable, "-m", "tests.storage.sqlite.contender", str(path), queue, wanted, str(tasks)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: Process) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def start(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def finish(process: Process) -> list[str]:
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    return output.splitlines()


@pytest.mark.process
def test_no_process_starves_while_others_write_without_end(tmp_path: Path) -> None:
    """SQLite's own busy handler gave one process 15,245 puts and three others one each, in the same time."""
    path = tmp_path / "hub.db"
    with (
        contender(path, "one", None, 20) as first,
        contender(path, "two", None, 20) as second,
        contender(path, "three", None, 20) as third,
    ):
        processes = (first, second, third)  # all of them make the same new file
        assert [line(process) for process in processes] == ["ready"] * 3
        for process in processes:
            start(process)
        reached = [threading.Event() for _ in processes]
        for process, event in zip(processes, reached, strict=True):
            threading.Thread(target=read_until, args=(process, 500, event), daemon=True).start()
        until("500 puts of each process", lambda: all(event.is_set() for event in reached))
        assert [process.poll() for process in processes] == [None] * 3, "all of them still write"


def read_until(process: Process, puts: int, reached: threading.Event) -> None:
    """Read all that a contender prints, and tell when it has printed a number of puts."""
    assert process.stdout is not None
    for text in process.stdout:
        if text.strip() and int(text) >= puts:
            reached.set()


@pytest.mark.process
async def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "hub.db"
    with contender(path, "kept", None, 1) as process:
        assert line(process) == "ready"
        start(process)
        acknowledged = 0
        while acknowledged < 50:
            acknowledged = int(line(process))
        process.send_signal(signal.SIGKILL)
        assert process.stdout is not None
        rest = process.stdout.read()  # `communicate` would leave out what `line` has read ahead
        if complete := [int(text) for text in rest.split("\n")[:-1]]:
            acknowledged = complete[-1]
    async with SqliteStore(path) as store:
        count = await store.count("kept")
        assert acknowledged <= count <= acknowledged + 1  # the last put may be done without its answer being read
        texts = [message.text for message in await store.peek("kept")]
        assert texts == [str(number) for number in range(32)]
        await store.execute(PutMessage(queue="kept", text="after"))
        assert await store.count("kept") == count + 1


@pytest.fixture
def signals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """No look into the file without news finds anything: what wakes a waiter then is a signal."""
    monkeypatch.setattr(SharedFile, "_soon_visible", lambda self, names: [])


@pytest.mark.rows("D24")
@pytest.mark.usefixtures("signals_only")
@pytest.mark.process
async def test_a_put_of_another_process_wakes_a_waiter(tmp_path: Path) -> None:
    path = tmp_path / "hub.db"
    async with SqliteStore(path) as store:
        await store.create_queue("news")
        with contender(path, "news", 0, 1) as first:  # writes nothing: shows that the wait does not end by itself
            assert line(first) == "ready"
            assert await store.arrival(["news"], 0.05) == []
            start(first)
            await asyncio.to_thread(finish, first)
        with contender(path, "news", 3, 1) as second:
            assert line(second) == "ready"
            waiting = asyncio.ensure_future(store.arrival(["news"], 3600.0))
            for _ in range(5):
                assert await store.count("news") == 0
            assert not waiting.done()
            start(second)
            assert await asyncio.wait_for(waiting, PATIENCE) == ["news"]
            await asyncio.to_thread(finish, second)


@pytest.mark.process
async def test_a_stopped_process_holds_nobody_up(tmp_path: Path) -> None:
    """SIGSTOP outside a transaction: no turn is reserved for a process that does not run."""
    path = tmp_path / "hub.db"
    async with SqliteStore(path) as store:
        with contender(path, "q-1", 0, 1) as process:
            assert line(process) == "ready"
            process.send_signal(signal.SIGSTOP)
            for number in range(20):
                await asyncio.wait_for(store.execute(PutMessage(queue="q-1", text=str(number))), PATIENCE)
            process.send_signal(signal.SIGCONT)


@pytest.mark.process
async def test_stale_listeners_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "hub.db"
    code = (
        "import asyncio, os, signal, sys; from pathlib import Path;"
        "from airflow_provider_taskhub.storage.sqlite.store import SqliteStore\n"
        "async def main():\n"
        "    async with SqliteStore(Path(sys.argv[1])) as store:\n"
        "        await store.create_queue('news')\n"
        "        await store.arrival(['news'], 0.01)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code, str(path)], cwd=ROOT, check=False, timeout=PATIENCE
    )
    async with SqliteStore(path) as store:
        assert len(sockets(tmp_path)) == 1
        for _ in range(2):
            await store.execute(PutMessage(queue="news", text="x"))
        assert sockets(tmp_path) == []
        assert await store.arrival(["news"], 0) == ["news"]
        assert len(sockets(tmp_path)) == 1
    assert sockets(tmp_path) == []


def sockets(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_socket()]


@pytest.mark.usefixtures("signals_only")
async def test_a_long_path_gets_its_socket_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    path = folder / "hub.db"
    async with SqliteStore(path) as waiter, SqliteStore(path) as writer:
        await writer.create_queue("news")
        waiting = asyncio.ensure_future(waiter.arrival(["news"], 3600.0))
        for _ in range(5):
            assert await waiter.count("news") == 0
        assert not waiting.done()
        await writer.execute(PutMessage(queue="news", text="x"))
        assert await asyncio.wait_for(waiting, PATIENCE) == ["news"]
        assert sockets(folder) == []


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.process
async def test_a_forked_child_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    path = tmp_path / "hub.db"
    async with SqliteStore(path) as store:
        await store.create_queue("forked")
        child = os.fork()
        if child == 0:
            os._exit(_use_after_fork(store, path))
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        await store.execute(PutMessage(queue="forked", text="parent"))
        assert await store.count("forked") == 1


def _use_after_fork(store: SqliteStore, path: Path) -> int:
    """In the child: the inherited store refuses, and so does the same file; another file works."""

    async def check() -> int:
        try:
            await store.count("forked")
            return 1
        except Unavailable as error:
            if "fork" not in str(error):
                return 2
        try:
            async with SqliteStore(path):
                return 3
        except ConfigurationError as error:
            if "fork" not in str(error):
                return 4
        async with SqliteStore(path.with_name("own.db")) as own:
            await own.create_queue("forked")
            await own.execute(PutMessage(queue="forked", text="child"))
            return 0 if await own.count("forked") == 1 else 5

    asyncio._set_running_loop(None)
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(check())
    except BaseException:
        return 6
