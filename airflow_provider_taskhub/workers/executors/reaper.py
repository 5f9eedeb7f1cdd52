"""The reaper: a small process that kills the sessions of all executors after their host was killed.

An executor notices by itself that the socket to its host is closed, and ends with everything that it started, but not
while user code holds its GIL. Rejected: ``PR_SET_PDEATHSIG``. It kills only the first process of the executor, before
that process could kill its children: they stay (measured). The reaper keeps the incarnation's lock open until nothing
of the executors runs any more, so a worker that can take the lock may rely on that.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time

from airflow_provider_taskhub.workers.executors import process_session
from airflow_provider_taskhub.workers.executors.spawn import import_path

_ROUNDS = 500
"""How often the reaper kills what is left, every 20 ms. A process that cannot be killed must not keep it for ever."""


class Reaper:
    """The host's side: starts the process, and tells it which sessions there are.

    :param lock_fd: a descriptor that it keeps open for its life.
    """

    def __init__(self, *, lock_fd: int | None) -> None:
        self._lock_fd = lock_fd
        self._sessions: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """:raises OSError: when the machine has no room for it."""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=() if self._lock_fd is None else (self._lock_fd,),
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(import_path())},
            bufsize=0,
        )
        for session in self._sessions:
            self._write(f"+{session}\n")

    def watch(self, session: int) -> None:
        """Kill this session when the host is gone."""
        self._sessions.add(session)
        self._tell(f"+{session}\n")

    def forget(self, session: int) -> None:
        """Nothing of the session runs any more. Its number may soon belong to another session."""
        self._sessions.discard(session)
        self._tell(f"-{session}\n")

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
            await asyncio.to_thread(process.wait, 30)

    def _tell(self, line: str) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            with contextlib.suppress(BrokenPipeError):
                self._write(line)
                return
        self.start()  # somebody has killed it: start a new one, with all sessions

    def _write(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode())


def main() -> None:
    """The process: reads ``+SESSION`` and ``-SESSION`` lines until its host is gone."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sessions: set[int] = set()
    for line in sys.stdin:
        session = int(line[1:])
        if line.startswith("+"):
            sessions.add(session)
        else:
            sessions.discard(session)
    for _ in range(_ROUNDS):
        killed = [process_session.kill(session) for session in sessions]
        if not any(killed):
            return
        time.sleep(0.02)


if __name__ == "__main__":
    main()
