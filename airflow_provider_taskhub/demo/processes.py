"""Starts the child processes of a demo, each with a log file, and ends all of them.

Every child process, and every process that a child starts, inherits an environment variable with the mark of this demo.
At the end the demo kills all processes with this mark. Thus it also finds Spark processes of a killed worker and forks
of Airflow, whose parent is gone. If a demo is killed itself, the next demo ends its processes.
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
"""Name of the environment variable with the mark."""
GRACE = 8.0
"""Seconds between SIGTERM and SIGKILL, in which a worker drains and Airflow's components end their forks."""
LAST = 5.0
"""Seconds to wait after SIGKILL until the kernel has removed the processes."""


@dataclass(slots=True, kw_only=True)
class DemoProcess:
    """A process that the demo has started. It is the leader of its own process group.

    :param name: the name of the process, to show to people.
    :param log: the file with the output of the process.
    :param process: the process.
    :param expected: True: the demo has ended the process itself.
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
        """Return the last lines of the process's log file. :param lines: the number of lines."""
        return tail(self.log, lines)


class Processes:
    """Starts processes, as a context manager. At the end of the block, also on Ctrl-C, all processes are ended.

    :param folder: the folder for the log files and for the file with the mark of this demo.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mark = uuid4().hex
        self.children: list[DemoProcess] = []

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        memory = self._folder / "mark"
        if memory.exists():  # an earlier demo was killed and could not end its processes
            sweep(memory.read_text())
        memory.write_text(self._mark)
        os.environ[MARK] = self._mark
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all processes. Ignore signals meanwhile, because a second Ctrl-C would leave processes behind."""
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

    def start(self, name: str, command: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> DemoProcess:
        """Start a program in its own process group, so that Ctrl-C in the terminal reaches only the demo itself.

        :param name: the name of the process and of its log file.
        :param command: the program and its arguments.
        :param env: environment variables in addition to those of this process.
        :param cwd: the working directory.
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
        child = DemoProcess(name=name, log=log, process=process)
        self.children.append(child)
        return child

    def ended(self) -> DemoProcess | None:
        """Return a process that has ended although the demo did not end it; None if there is none."""
        return next((child for child in self.children if not child.expected and not child.alive), None)

    def kill(self, child: DemoProcess) -> list[psutil.Process]:
        """Send SIGKILL to one process, and not to the processes that it has started.

        :param child: the process.
        :returns: all descendants that the process had before the kill.
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

    def stop(self, children: Iterable[DemoProcess]) -> None:
        """Send SIGTERM to processes, wait, and send SIGKILL to their process groups. The newest process comes first.

        :param children: the processes.
        """
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


def marked(mark: str, variable: str = MARK) -> list[psutil.Process]:
    """Return this user's processes that have a mark in their environment, without this process.

    :param mark: the mark.
    :param variable: the name of the environment variable with the mark.
    """
    found, deadline = [], time.monotonic() + LAST
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and _environment(process, deadline).get(variable) == mark:
                found.append(process)
    return found


def _environment(process: psutil.Process, deadline: float) -> Mapping[str, str]:
    """Return the environment of a process.

    Wait for it while the kernel loads the program: until then it is empty, and so are the arguments. A thread of the
    kernel has neither, and no program.

    :param deadline: monotonic time until which to wait.
    """
    found: dict[str, str] = process.environ()
    while not found and process.exe() and time.monotonic() < deadline:
        loaded = bool(process.cmdline())
        found = process.environ()
        if loaded:
            break
        time.sleep(0.01)
    return found


def sweep(mark: str) -> None:
    """Kill all processes with a mark. Search three times, because a process may start another before it ends."""
    for _ in range(3):
        left = marked(mark)
        if not left:
            return
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=LAST)


def tail(path: Path, lines: int = 25) -> str:
    """Return the last lines of a file, from its last 64 KiB; '' if the file does not exist."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 65_536))
            return "\n".join(file.read().decode("utf-8", "replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""
