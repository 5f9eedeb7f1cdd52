"""The reaper: a small process that kills the sessions of all executors after their host has died.

An executor that sees its socket to the host closed kills itself and its children. It cannot do so while user code holds
its GIL, so the reaper does it from outside. Rejected: ``PR_SET_PDEATHSIG``. It kills only the first process of the
executor, and the children of that process run on (measured).

The reaper keeps the worker's lock file open until all executors have ended. So a worker that can take the lock knows
that no executor of the dead worker runs.
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
"""Largest number of times that the reaper kills the processes that still run, once every 20 ms. Then it ends anyway."""


class Reaper:
    """Starts the reaper process, and sends it the ids of the POSIX sessions to kill when the host dies.

    :param lock_fd: descriptor of the worker's lock file, which the reaper process keeps open; None: the worker has no
        lock file.
    """

    def __init__(self, *, lock_fd: int | None) -> None:
        self._lock_fd = lock_fd
        self._sessions: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the reaper process.

        :raises OSError: if the machine cannot start another process.
        """
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
        """Tell the reaper to kill this session (all processes of an executor) after the host has died."""
        self._sessions.add(session)
        self._send(f"+{session}\n")

    def forget(self, session: int) -> None:
        """Tell the reaper not to kill this session, because all its processes have ended.

        The system may soon give the same session id to processes of another program.
        """
        self._sessions.discard(session)
        self._send(f"-{session}\n")

    async def close(self) -> None:
        """Close the reaper's input, and wait until the reaper has killed the remaining sessions and has ended."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
            await asyncio.to_thread(process.wait, 30)

    def _send(self, line: str) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            with contextlib.suppress(BrokenPipeError):
                self._write(line)
                return
        self.start()  # the reaper was killed from outside: start another reaper, which gets all sessions again

    def _write(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode())


def main() -> None:
    """Run the reaper process: read ``+SESSION`` and ``-SESSION`` lines until the host dies, then kill the sessions."""
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
