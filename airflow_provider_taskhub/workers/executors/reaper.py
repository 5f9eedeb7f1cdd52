"""The reaper: a small process beside a host (a worker's process). It kills the sessions of all executors after the host
has died.

It also lets a session stand still whose host does not renew the records of its attempts in time: the host itself may
be stopped, or blocked by user code that holds its GIL, and then another worker takes the attempts over.

An executor that sees its socket to the host closed kills itself and its children. It cannot do so while user code holds
its GIL, so the reaper does it from outside. Rejected: ``PR_SET_PDEATHSIG``. It kills only the first process of the
executor, and the children of that process run on (measured).

The reaper keeps the worker's lock file open until all executors have ended. So a worker that can take the lock knows
that no executor of the dead worker runs.
"""

from __future__ import annotations

import asyncio
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable

import structlog

from airflow_provider_taskhub.clock import SYSTEM_CLOCK
from airflow_provider_taskhub.workers.executors import process_session
from airflow_provider_taskhub.workers.executors.spawn import import_path

log = structlog.get_logger(__name__)

_AGAIN = "--again"
"""The argument of a reaper that follows another one."""
_RESTART = 1.0
"""Seconds between two starts of a reaper at least."""
_ROUNDS = 500
"""Largest number of times that the reaper kills the processes that still run, once every 20 ms. Then it ends anyway."""


class Reaper:
    """Starts the reaper process, and sends it the POSIX sessions to kill when the host dies, and to stop when it is
    blocked.

    :param lock_fd: descriptor of the worker's lock file, which the reaper process keeps open; None: the worker has no
        lock file.
    """

    def __init__(self, *, lock_fd: int | None) -> None:
        self._lock_fd = lock_fd
        self._sessions: dict[int, str] = {}
        """The newest line about each session."""
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0

    def start(self) -> None:
        """Start the reaper process.

        :raises OSError: if the machine cannot start another process.
        """
        self._started, again = SYSTEM_CLOCK.monotonic(), [] if self._process is None else [_AGAIN]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, *again],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=() if self._lock_fd is None else (self._lock_fd,),
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(import_path())},
            bufsize=0,
        )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)  # the event loop must not wait for the reaper
        for line in self._sessions.values():
            self._write(line)

    def watch(self, session: int) -> None:
        """Tell the reaper to kill this session (all processes of an executor) after the host has died."""
        self.stop_at(session, math.inf, kills=False)

    def stop_at(self, session: int, due: float, *, kills: bool) -> None:
        """Tell the reaper from when on a session must stand still. It goes on when ``due`` is in the future again.

        :param due: time of ``SYSTEM_CLOCK.monotonic``, in seconds; inf: the session does not stand still; -inf: it does
            already.
        :param kills: True: the session is killed at ``due``. False: it stands still.
        """
        line = self._sessions[session] = f"{'!' if kills else '+'}{session} {due}\n"
        self._send(line)

    def forget(self, session: int) -> None:
        """Tell the reaper not to kill this session, because all its processes have ended.

        The system may soon give the same session id to processes of another program.
        """
        self._sessions.pop(session, None)
        self._send(f"-{session} 0\n")

    async def close(self) -> None:
        """Close the reaper's input, and wait until the reaper has killed the remaining sessions and has ended."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
            await asyncio.to_thread(process.wait, 30)

    def _send(self, line: str) -> None:
        """Send a line. If the reaper is dead, or hangs so that its pipe has no room, start another one.

        The new one gets the newest lines of all sessions. It is started at most once a second, and an error is only
        logged: the attempts go on without a reaper.
        """
        if self._process is None:
            return
        try:
            if self._process.poll() is None and self._write(line):
                return
        except BrokenPipeError:
            pass
        now = SYSTEM_CLOCK.monotonic()
        if now - self._started < _RESTART:
            return
        self._process.kill()
        try:
            self.start()
        except OSError as error:
            log.warning("reaper_not_started", error=str(error))

    def _write(self, line: str) -> bool:
        assert self._process is not None
        assert self._process.stdin is not None
        return self._process.stdin.write(line.encode()) == len(line)


class Watched:
    """The sessions that the reaper process watches, from the lines of its host.

    :param again: whether another reaper has watched them before, and has perhaps stopped some. The first one lets no
        session go on that is new to it: its host may have stopped it since the line was written.
    :ivar sessions: for each session, the time from which it must stand still, and whether it is killed then.
    """

    def __init__(self, *, again: bool = False) -> None:
        self._again = again
        self.sessions: dict[int, tuple[float, bool]] = {}
        self._still: set[int] = set()

    def hear_all(self, lines: Iterable[str], now: float) -> None:
        """Note lines of the host. Only the newest one about each session counts: an older one could let a session go on
        that stands still since."""
        newest = {line[1:].split()[0]: line for line in lines}
        for line in newest.values():
            self.hear(line, now)

    def hear(self, line: str, now: float) -> None:
        """Note a line of the host. A session that stands still goes on if its time was put off."""
        session, due = int(line[1:].split()[0]), float(line[1:].split()[1])
        if line.startswith("-"):
            self.sessions.pop(session, None)
            self._still.discard(session)
            return
        stopped = session in self._still or (self._again and session not in self.sessions)
        self.sessions[session] = due, line.startswith("!")
        if due > now and stopped:
            self._still.discard(session)
            process_session.resume(session)

    def look(self, now: float) -> float | None:
        """Let the sessions stand still whose time has come, or kill them.

        :returns: seconds until the next look: at most 1, because a wait does not count the time for which the machine
            is suspended. None: only a line of the host makes one necessary.
        """
        waiting = {session: at for session, at in self.sessions.items() if session not in self._still}
        for session, (due, kills) in waiting.items():
            if due <= now:
                self._still.add(session)
                (process_session.kill if kills else process_session.stop)(session)
        left = min((due - now for due, _ in waiting.values() if due > now), default=math.inf)
        return None if left == math.inf else min(1.0, left)


def main() -> None:
    """Run the reaper process: watch the sessions that the host names until the host dies, then kill them."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watched, unread = Watched(again=_AGAIN in sys.argv), b""
    while True:
        ready, _, _ = select.select([0], [], [], watched.look(SYSTEM_CLOCK.monotonic()))
        if ready:
            data = os.read(0, 65536)
            if not data:
                break
            *lines, unread = (unread + data).split(b"\n")
            watched.hear_all((line.decode() for line in lines), SYSTEM_CLOCK.monotonic())
    for _ in range(_ROUNDS):
        killed = [process_session.kill(session) for session in watched.sessions]
        if not any(killed):
            return
        time.sleep(0.02)


if __name__ == "__main__":
    main()
