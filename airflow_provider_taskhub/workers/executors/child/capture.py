"""Sends the output of each attempt (stdout, stderr, logging) to its own log, though all attempts share ``sys.stdout``.

Each line is sent to the host as soon as it is complete. Collecting several lines first was rejected: people need most
the lines that an attempt printed right before it crashed the executor, and only bytes in the socket survive the crash.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Buffer

_MAX_PARTIAL = 8 * 1024
"""Number of bytes of an incomplete line (a progress bar, for example) after which the line is sent as it is."""
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_current: ContextVar[AttemptLog] = ContextVar("taskhub_attempt_log")
ThreadWrapper = Callable[[Callable[[], Any]], Callable[[], Any]]
_thread_wrapper: ContextVar[ThreadWrapper] = ContextVar("taskhub_thread_wrapper")
_owner = os.getpid()
"""Pid of the executor. A process that user code forks has another pid and writes to the descriptor instead.

The locks and the socket of the log must be used by the executor's process only."""


class AttemptLog:
    """The log of one attempt inside the executor.

    :param send: called with complete lines, from the thread that writes them.
    :param limit: largest size of the log in bytes. Later output is dropped, and one last line says so.
    """

    def __init__(self, send: Callable[[bytes], None], limit: int) -> None:
        self._send = send
        self._limit = limit
        self._left = limit
        self._truncated = False
        self._lock = threading.RLock()
        self._partial = {"stdout": bytearray(), "stderr": bytearray()}
        self._open = True

    def write(self, stream: str, data: bytes) -> bool:
        """Add output of a stream, and send the lines that are complete.

        :param stream: "stdout" or "stderr".
        :returns: False if the attempt has ended, and nothing was added. Only a thread that the attempt has left running
            gets False.
        """
        with self._lock:
            if not self._open:
                return False
            partial = self._partial[stream]
            partial += data
            end = partial.rfind(b"\n") + 1
            if not end and len(partial) > _MAX_PARTIAL:
                end = len(partial)
            self._emit(partial, end)
            return True

    def flush(self, stream: str) -> None:
        """Send an incomplete line of a stream too, because user code has called ``flush``."""
        with self._lock:
            self._emit(self._partial[stream], len(self._partial[stream]))

    def close(self) -> None:
        """Send incomplete lines, and refuse later writes."""
        with self._lock:
            for partial in self._partial.values():
                if partial:
                    self._emit(partial + b"\n", len(partial) + 1)
                    partial.clear()
            self._open = False

    def _emit(self, partial: bytearray, end: int) -> None:
        if not end:
            return
        data = bytes(partial[:end])
        del partial[:end]
        if self._truncated:
            return
        if len(data) > self._left:
            data = data[: self._left] + f"\n[taskhub] log truncated after {self._limit:,} bytes\n".encode()
            self._truncated = True
        else:
            self._left -= len(data)
        self._send(data)


@contextmanager
def captured(log: AttemptLog) -> Iterator[None]:
    """Send the output of this thread or task to a log until the end of the ``with`` block; then close the log."""
    token = _current.set(log)
    try:
        yield
    finally:
        _current.reset(token)
        log.close()


@contextmanager
def threads_run_as(wrapper: ThreadWrapper) -> Iterator[None]:
    """Wrap each function that the attempt gives to a new thread or to a thread pool in the ``with`` block."""
    token = _thread_wrapper.set(wrapper)
    try:
        yield
    finally:
        _thread_wrapper.reset(token)


def _log() -> AttemptLog | None:
    """Return the log of the attempt that runs in this thread or task.

    None if there is no attempt, or if this process is one that user code has forked.
    """
    return _current.get(None) if os.getpid() == _owner else None


class _Raw(io.RawIOBase):
    """A binary stream that writes to the log of the current attempt, or to the descriptor if no attempt is current."""

    def __init__(self, name: str, descriptor: int) -> None:
        super().__init__()
        self.name = f"<{name} of an executor>"
        self._stream = name
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: Buffer, /) -> int:
        raw = bytes(data)
        log = _log()
        if log is None or not log.write(self._stream, raw):
            self._write_through(raw)
        return len(raw)

    def flush(self) -> None:
        log = _log()
        if log is not None:
            log.flush(self._stream)

    def _write_through(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]


class _Text(io.TextIOBase):
    """A text stream that replaces ``sys.stdout`` or ``sys.stderr``.

    The stream has no buffer, because :class:`AttemptLog` joins the pieces of a line for each attempt separately.
    """

    def __init__(self, name: str, descriptor: int) -> None:
        super().__init__()
        self._raw = _Raw(name, descriptor)

    @property
    def buffer(self) -> _Raw:
        return self._raw

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a plain attribute in typeshed
        return "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]  # a plain attribute in typeshed
        return "backslashreplace"

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._raw.fileno()

    def write(self, text: str, /) -> int:
        self._raw.write(text.encode("utf-8", "backslashreplace"))
        return len(text)

    def flush(self) -> None:
        self._raw.flush()


def install() -> None:
    """Replace stdout, stderr and the root logger's handler of this process. Call it before user code is imported.

    The new ones write to the log of the attempt that runs in the current thread or task. If no attempt runs there, they
    write to the original descriptor.
    """
    sys.stdout = _Text("stdout", 1)
    sys.stderr = _Text("stderr", 2)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    _inherit_in_threads()


def _inherit_in_threads() -> None:
    """Make a thread that an attempt starts run in the attempt's context variables (Python 3.14 has an option for it),
    and also what it gives to a thread pool.

    Otherwise the output of a thread pool in user code would not get into the attempt's log.
    """
    start = threading.Thread.start

    def start_with_context(thread: threading.Thread) -> None:
        if _log() is not None:
            context, run = copy_context(), thread.run
            if (wrapper := _thread_wrapper.get(None)) is not None:
                run = wrapper(run)
            thread.run = lambda: context.run(run)  # type: ignore[method-assign]  # changes only this thread object
        start(thread)

    submit = ThreadPoolExecutor.submit

    def submit_with_context(pool: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """A pool may be older than the attempt: its threads run in the context of the attempt that has made them."""
        if _log() is None:  # also in a process that user code has forked, which must not use the parent's connections
            return submit(pool, function, *args, **kwargs)
        context = copy_context()
        run: Callable[[], Any] = partial(function, *args, **kwargs)
        if (wrapper := _thread_wrapper.get(None)) is not None:
            run = wrapper(run)
        return submit(pool, context.run, run)

    threading.Thread.start = start_with_context  # type: ignore[assignment,method-assign]  # user code starts threads by it
    ThreadPoolExecutor.submit = submit_with_context  # type: ignore[method-assign]
