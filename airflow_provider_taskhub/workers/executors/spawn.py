"""Starts the process of an executor (its session, descriptors and import path), and waits for its end.

Rejected: the subprocesses of ``asyncio``. Before Python 3.13 their ``wait()`` returns only when every pipe is closed.
Children of a dead executor can keep the pipes open, and we kill these children only after the wait.
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

    :param process: the process; a thread waits for its end.
    :param reader: receiving side of the socket to the process.
    :param writer: sending side of the socket to the process.
    :param output: what the process and its children write to stdout and stderr (descriptors 1 and 2).
    :ivar ended: a future; its result is the exit status, once the process has ended and was reaped.
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
        """Whether the process was not reaped yet, so that its pid cannot belong to another process."""
        return not self.ended.done()

    def close(self) -> None:
        self.writer.close()

    def _reap(self, process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop) -> None:
        code = process.wait()
        with contextlib.suppress(RuntimeError):  # raised by a closed event loop; no task waits for the exit status then
            loop.call_soon_threadsafe(self._set_ended, code)

    def _set_ended(self, code: int) -> None:
        if not self.ended.done():
            self.ended.set_result(code)


async def launch(*, lock_fd: int | None, environment: Mapping[str, str] | None = None) -> ChildProcess:
    """Start an executor process in a new session.

    :param lock_fd: descriptor of the worker's lock file, which the process inherits; None: the worker has no lock file.
    :param environment: environment variables of the process; None: those of the current process.
    :raises OSError: if the machine cannot start another process.
    """
    host_end, child_end = socket.socketpair()
    read, write = os.pipe()
    with child_end:
        try:
            process = _start(child_end.fileno(), write, lock_fd, os.environ if environment is None else environment)
        except BaseException:
            host_end.close()
            os.close(read)
            raise
        finally:
            os.close(write)
    # If this task is cancelled below, no other code knows the process, so the process must be killed here.
    with contextlib.ExitStack() as undo:
        undo.callback(process.wait)
        undo.callback(process_session.kill, process.pid)
        undo.callback(host_end.close)
        output = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(output), os.fdopen(read, "rb", 0)
        )
        undo.callback(transport.close)
        reader, writer = await asyncio.open_unix_connection(sock=host_end)
        undo.pop_all()
    return ChildProcess(process, reader, writer, output)


def _start(link: int, output: int, lock_fd: int | None, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        # -P keeps the current directory out of sys.path: a file there could hide a module that the host has imported
        # from another folder.
        [sys.executable, "-P", "-m", _MODULE, str(link)],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=(link,) if lock_fd is None else (link, lock_fd),
        start_new_session=True,
        env={**environment, "PYTHONPATH": os.pathsep.join(import_path()), "PYTHONUNBUFFERED": "1"},
    )


def import_path() -> tuple[str, ...]:
    """Return the entries of this process's ``sys.path`` that a fresh interpreter of this environment would not have.

    The entries go into ``PYTHONPATH``. PySpark's Python workers inherit ``PYTHONPATH``, so UDFs can use functions of
    the user's module.
    """
    own = tuple(
        os.path.join(prefix, "lib") for prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    )
    entries = [os.path.abspath(entry) for entry in sys.path]
    return tuple(dict.fromkeys(entry for entry in entries if not entry.startswith(own)))


def describe(code: int) -> str:
    """Return an exit status in words, as the rest of a sentence that begins with "executor X".

    :param code: the exit status; a negative number means that this signal has killed the process.
    """
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = f" ({signal.Signals(-code).name})"
    except ValueError:
        name = ""
    return f"was killed by signal {-code}{name}" + ("; likely out of memory" if -code == signal.SIGKILL else "")
