"""Child processes of a demo: started with a log each, ended for certain.

Every child, and whatever it starts, inherits one environment variable with a mark of this run; the last sweep ends what
carries the mark, whoever its parent is by then. So a killed worker's Spark and Airflow's forks are found without
guessing by name, and a run that was itself killed is cleaned up by the next one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

import psutil

MARK = "TASKHUB_DEMO_RUN"
GRACE = 8.0
"""Seconds to end politely: a worker drains, Airflow's components reap their forks."""
LAST = 5.0
"""Seconds that the kernel may take to remove processes after SIGKILL."""


@dataclass(slots=True, kw_only=True)
class Child:
    """A process that was started here, the leader of a process group.

    :param expected: whether its end was asked for.
    """

    name: str
    log: Path
    process: subprocess.Popen[bytes]
    expected: bool = False

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def tail(self, lines: int = 25) -> str:
        """The last lines of its log."""
        return tail(self.log, lines)


class Processes:
    """A context manager: everything that was started in it has ended when it ends, also on Ctrl-C.

    :param folder: of the logs, and of the file that remembers the run's mark.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mark = uuid4().hex
        self.children: list[Child] = []

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        memory = self._folder / "mark"
        if memory.exists():  # a run that was killed could not clean up
            sweep(memory.read_text())
        memory.write_text(self._mark)
        os.environ[MARK] = self._mark
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends everything. A second Ctrl-C must not leave half of it behind, so it is not heard."""
        before = {
            number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }
        try:
            self.stop(self.children)
            sweep(self._mark)
        finally:
            os.environ.pop(MARK, None)
            (self._folder / "mark").unlink(missing_ok=True)
            for number, handler in before.items():
                signal.signal(number, handler)

    def start(self, name: str, command: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> Child:
        """Starts a program as the leader of a process group of its own, so that a terminal's Ctrl-C reaches us alone.

        :param env: beside this process's environment.
        """
        log = self._folder / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                env={**os.environ, **env},
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        child = Child(name=name, log=log, process=process)
        self.children.append(child)
        return child

    def ended(self) -> Child | None:
        """A child that ended although nobody asked it to."""
        return next((child for child in self.children if not child.expected and not child.alive), None)

    def kill(self, child: Child) -> list[psutil.Process]:
        """SIGKILL of this one process; what it had started is left to notice.

        :returns: its descendants at that moment.
        """
        child.expected = True
        try:
            offspring = list(psutil.Process(child.pid).children(recursive=True))
        except psutil.NoSuchProcess:
            offspring = []
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        child.process.wait()
        return offspring

    def stop(self, children: Iterable[Child]) -> None:
        """SIGTERM, a while, then SIGKILL to their groups; the last started goes first."""
        ending = [child for child in reversed(list(children)) if child.alive]
        for child in ending:
            child.expected = True
            with contextlib.suppress(ProcessLookupError):
                child.process.terminate()
        deadline = time.monotonic() + GRACE
        for child in ending:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.05, deadline - time.monotonic()))
        for child in ending:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            child.process.wait()


def marked(mark: str) -> list[psutil.Process]:
    """Processes of this user that were started under a mark; never this one."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                found.append(process)
    return found


def sweep(mark: str) -> None:
    """Ends whatever carries the mark. In rounds, since a dying process may still have been starting another."""
    for _ in range(3):
        left = marked(mark)
        if not left:
            return
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=LAST)


def tail(path: Path, lines: int = 25) -> str:
    """The last lines of a file, '' where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 65_536))
            return "\n".join(file.read().decode("utf-8", "replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""
