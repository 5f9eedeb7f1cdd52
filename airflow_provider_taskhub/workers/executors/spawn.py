"""Starting an executor's process: its session, its descriptors, its import path, and the wait for its end.

The subprocesses of ``asyncio`` are not used: before Python 3.13 their ``wait()`` returns only when every pipe is
closed. Processes that a dead executor leaves behind hold the pipes open, and they are killed only after the wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping

from airflow_provider_taskhub.workers.executors import process_session

_MODULE = "airflow_provider_taskhub.workers.executors.child.main"


class ChildProcess:
    """A running executor process.

    :param ended: its exit status, once it has been reaped. :param reader, writer: the socket to it.
    :param output: what it and its children write to their descriptors 1 and 2.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        output: asyncio.StreamReader,
    ) -> None:
        self.pid = process.pid
        self.reader = reader
        self.writer = writer
        self.output = output
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._reap, args=(process, loop), name=f"reap-{process.pid}", daemon=True).start()

    @property
    def alive(self) -> bool:
        """Not reaped yet: its pid is still its own."""
        return not self.ended.done()

    def close(self) -> None:
        self.writer.close()

    def _reap(self, process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop) -> None:
        code = process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is interested any more
            loop.call_soon_threadsafe(self._set_ended, code)

    def _set_ended(self, code: int) -> None:
        if not self.ended.done():
            self.ended.set_result(code)


async def launch(*, lock_fd: int | None, environment: Mapping[str, str] | None = None) -> ChildProcess:
    """Start an executor in a session of its own.

    :param lock_fd: a descriptor that it inherits. :param environment: its variables; None for this process's.
    :raises OSError: when the machine has no room for it.
    """
    ours, theirs = socket.socketpair()
    read, write = os.pipe()
    with theirs:
        try:
            process = _start(theirs.fileno(), write, lock_fd, os.environ if environment is None else environment)
        except BaseException:
            ours.close()
            os.close(read)
            raise
        finally:
            os.close(write)
    with contextlib.ExitStack() as undo:  # cancelled, nobody else knows of the process yet
        undo.callback(process.wait)
        undo.callback(process_session.kill, process.pid)
        undo.callback(ours.close)
        output = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(output), os.fdopen(read, "rb", 0)
        )
        undo.callback(transport.close)
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        undo.pop_all()
    return ChildProcess(process, reader, writer, output)


def _start(link: int, output: int, lock_fd: int | None, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        # -P: the current directory must not shadow modules that the host imports from elsewhere
        [sys.executable, "-P", "-m", _MODULE, str(link)],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=(link,) if lock_fd is None else (link, lock_fd),
        start_new_session=True,
        env={**environment, "PYTHONPATH": os.pathsep.join(import_path()), "PYTHONUNBUFFERED": "1"},
    )


def import_path() -> tuple[str, ...]:
    """Entries of this process's ``sys.path`` that a fresh interpreter of this environment would not have.

    They go into ``PYTHONPATH``, which PySpark's Python workers inherit: functions of the user's module can be used in
    UDFs.
    """
    own = tuple(
        os.path.join(prefix, "lib") for prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    )
    entries = [os.path.abspath(entry) for entry in sys.path]
    return tuple(dict.fromkeys(entry for entry in entries if not entry.startswith(own)))


def describe(code: int) -> str:
    """An exit status in words."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = f" ({signal.Signals(-code).name})"
    except ValueError:
        name = ""
    return f"was killed by signal {-code}{name}" + ("; likely out of memory" if -code == signal.SIGKILL else "")
