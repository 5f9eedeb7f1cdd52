"""Nothing stays behind: not on an error, not on Ctrl-C, not when a child starts others in sessions of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from airflow_provider_taskhub.demo import processes as module
from airflow_provider_taskhub.demo.processes import Processes, marked, tail
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.process

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]
# A child whose own child leaves its process group and does not mind SIGTERM: an executor, to a worker that is killed.
FOUNDER = [
    sys.executable,
    "-c",
    "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import signal, time; "
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)'], start_new_session=True); "
    "print(p.pid, flush=True); time.sleep(600)",
]


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def printed(path: Path, count: int) -> list[str]:
    def lines() -> list[str] | None:
        found = tail(path).splitlines()
        return found if len(found) >= count else None

    return until(f"{count} lines in {path.name}", lines)


def test_everything_ends_with_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE", 0.5)
    with Processes(tmp_path) as processes:
        sleeper = processes.start("sleeper", SLEEPER, env={}, cwd=tmp_path)
        founder = processes.start("founder", FOUNDER, env={}, cwd=tmp_path)
        offspring = int(max(printed(founder.log, 2), key=len))
        assert sleeper.alive
    assert not sleeper.alive
    assert not founder.alive
    assert gone(offspring)
    assert module.MARK not in os.environ


def test_what_a_killed_child_had_started_is_told_and_swept(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        founder = processes.start("founder", FOUNDER, env={}, cwd=tmp_path)
        printed(founder.log, 2)
        offspring = processes.kill(founder)
        assert [p.is_running() for p in offspring] == [True]
        assert processes.ended() is None  # its end was asked for
    assert gone(offspring[0].pid)


def test_an_end_that_nobody_asked_for_is_told(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        child = processes.start(
            "brief", [sys.executable, "-c", "print('last words'); raise SystemExit(3)"], env={}, cwd=tmp_path
        )
        child.process.wait(PATIENCE)
        assert processes.ended() is child
        assert child.tail() == "last words"


def test_a_run_that_was_killed_is_cleaned_up_by_the_next(tmp_path: Path) -> None:
    text = (
        "import sys; from pathlib import Path; from airflow_provider_taskhub.demo.processes import Processes\n"
        f"p = Processes(Path({str(tmp_path)!r})).__enter__()\n"
        f"print(p.start('sleeper', {SLEEPER!r}, env={{}}, cwd=Path('/')).pid, flush=True)\n"
        "import time; time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        left = int(first.stdout.readline())
        first.kill()
    assert not gone(left)
    with Processes(tmp_path):
        assert gone(left)


def test_a_process_whose_program_is_still_being_loaded_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its environment and its arguments are empty until the kernel has loaded the program."""

    class Starting:
        def __init__(self, pid: int, looks: int, *, exe: str = "/bin/sleep", environ: str | None = "mine") -> None:
            self.pid, self.looks, self._exe, self._environ = pid, looks, exe, environ

        def environ(self) -> dict[str, str]:
            self.looks -= 1
            return {} if self.looks >= 0 or self._environ is None else {module.MARK: self._environ}

        def exe(self) -> str:
            return self._exe

        def cmdline(self) -> list[str]:
            return ["sleep"] if self.looks <= 0 else []

    found = [Starting(-1, 3), Starting(-2, 1), Starting(-3, 0)]
    kernel, without = Starting(-4, 9, exe=""), Starting(-5, 0, environ=None)
    monkeypatch.setattr(module.psutil, "process_iter", lambda: iter([*found, kernel, without]))
    assert marked("mine") == found
    assert kernel.looks == 8, "a thread of the kernel is looked at once"
    assert without.looks == -2, "so is a program without an environment, and once more when it has its arguments"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_ctrl_c_does_not_stop_the_cleaning(tmp_path: Path, number: signal.Signals) -> None:
    text = (
        "import signal, time; from pathlib import Path; from airflow_provider_taskhub.demo import processes as m\n"
        "m.GRACE = 1.0\n"
        "signal.signal(signal.SIGTERM, signal.default_int_handler)\n"
        f"with m.Processes(Path({str(tmp_path)!r})) as p:\n"
        f"    c = p.start('founder', {FOUNDER!r}, env={{}}, cwd=Path('/'))\n"
        "    while len(c.tail().splitlines()) < 2: time.sleep(0.02)\n"
        "    print(p._mark, flush=True)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as it:
        assert it.stdout is not None
        mark = it.stdout.readline().strip()
        assert len(marked(mark)) == 2
        for _ in range(5):
            it.send_signal(number)
            time.sleep(0.1)
        it.wait(PATIENCE)
    assert marked(mark) == []


def test_sweep_never_ends_the_process_that_sweeps() -> None:
    text = (
        "import os; from airflow_provider_taskhub.demo import processes as m; "
        "m.sweep(os.environ[m.MARK]); print('here')"
    )
    env = {**os.environ, module.MARK: "mine"}
    done = subprocess.run(
        [sys.executable, "-c", text], env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.stdout == "here\n"
