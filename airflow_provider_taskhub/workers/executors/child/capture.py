"""Keeps the output of attempts apart (stdout, stderr, logging) in a process where they share one ``sys.stdout``.

A line is sent as soon as it is complete and is never collected: people need most what an attempt printed right before
it crashed the executor, and bytes in a socket survive the process that wrote them.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

_MAX_PARTIAL = 8 * 1024
"""Bytes of a line without end (a progress bar) that are held back at most."""
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_current: ContextVar[AttemptLog] = ContextVar("taskhub_attempt_log")
_owner = os.getpid()
"""Processes that user code forks write to the descriptor instead: the log's locks and socket belong to this process."""


class AttemptLog:
    """Output of one attempt, bounded.

    :param send: takes complete lines; called from whichever thread writes.
    :param limit: bytes; what comes later is dropped, and one line says so.
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
        """:returns: False when the attempt is over: a thread that it left behind cannot write into the next attempt's
        log.
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
        """Send an incomplete line too, because user code has called ``flush``."""
        with self._lock:
            self._emit(self._partial[stream], len(self._partial[stream]))

    def close(self) -> None:
        """Send what is left; later writes are refused."""
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
    """Route this thread's or task's output to a log until the end of the block."""
    token = _current.set(log)
    try:
        yield
    finally:
        _current.reset(token)
        log.close()


def _log() -> AttemptLog | None:
    return _current.get(None) if os.getpid() == _owner else None


class _Raw(io.RawIOBase):
    """The binary side of a routed stream: the current attempt's log, else the process's own descriptor."""

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
    """What takes the place of ``sys.stdout`` and ``sys.stderr``. Unbuffered: lines are put together per attempt."""

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
    """Take over stdout, stderr and the root logger of this process; before any user code is imported."""
    sys.stdout = _Text("stdout", 1)
    sys.stderr = _Text("stderr", 2)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    _inherit_in_threads()


def _inherit_in_threads() -> None:
    """Threads that an attempt starts inherit its context, as Python 3.14 can do by itself.

    Otherwise the output of a thread pool in user code would not get into the attempt's log.
    """
    start = threading.Thread.start

    def start_with_context(thread: threading.Thread) -> None:
        if _current.get(None) is not None:
            context, run = copy_context(), thread.run
            thread.run = lambda: context.run(run)  # type: ignore[method-assign]  # of this one thread
        start(thread)

    threading.Thread.start = start_with_context  # type: ignore[assignment,method-assign]  # for code that we do not own
