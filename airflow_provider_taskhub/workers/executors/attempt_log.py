"""Appends the output of an activity, which comes from an executor, to a log in the hub's storage."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import structlog

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.errors import Throttled, Unavailable
from airflow_provider_taskhub.retries import Retries
from airflow_provider_taskhub.supervision import Supervisor, first
from airflow_provider_taskhub.telemetry import Outage

_log = structlog.get_logger()

TAIL_LINES = 50
"""How many lines are kept in memory from the end of a log. They become ``ActivityOutcome.log_tail`` of the attempt."""
_MAX_TAIL_LINE = 2000
_BATCH_AFTER = 0.5
"""Seconds for which output is collected before it is appended. On Azure each append costs a transaction."""
_MAX_BATCH = 1024 * 1024
_APPENDS = Retries(after=(Unavailable, Throttled), first=0.5, longest=10.0)
"""Pauses between two tries to append, while the store does not answer."""
_MAX_CLOSING = 10.0
"""Longest time, in seconds, for which the outcome of an attempt waits until the last lines of its log are appended."""

LogSink = Callable[[str, bytes], Awaitable[None]]
"""A function that appends bytes to a named log: ``await sink(name, data)``."""


class OutputLog:
    """Appends output to a log in batches, and remembers the last lines.

    While the store does not answer, output is kept in memory and appended later. A batch can be appended twice if the
    store's answer was lost. Output that the store does not accept within ten seconds after the end of the attempt is
    lost, and the log event ``log_lost`` says so. An error of the store can lose lines of a log, but it never fails the
    activity.

    :param name: name of the log.
    :param sink: appends bytes to a named log.
    :param limit: number of bytes that are appended at most; later bytes are dropped. The executor has a limit too. This
        limit holds even if the executor is defective.
    """

    def __init__(self, name: str, sink: LogSink, clock: Clock, *, limit: int) -> None:
        self._name = name
        self._sink = sink
        self._clock = clock
        self._left = limit
        self._waiting = bytearray()
        self._lines: deque[str] = deque(maxlen=TAIL_LINES)
        self._partial = b""
        self._closing = asyncio.Event()
        self._tasks = Supervisor(clock)
        self._pump: asyncio.Task[None] | None = None

    @property
    def tail(self) -> tuple[str, ...]:
        lines = (*self._lines, _line(self._partial)) if self._partial else tuple(self._lines)
        return lines[-TAIL_LINES:]

    def add(self, data: bytes) -> None:
        self._remember(data)
        self._waiting += data[: self._left]
        self._left -= min(self._left, len(data))
        if self._waiting and (self._pump is None or self._pump.done()):
            self._pump = self._tasks.spawn(self._run(), name=f"log {self._name}")

    async def close(self) -> None:
        """Append the output that is still in memory, and return after ten seconds at most."""
        self._closing.set()
        if self._pump is None:
            return
        done, _ = await asyncio.wait({self._pump}, timeout=_MAX_CLOSING)
        if not done:
            self._pump.cancel()
            self._lost(len(self._waiting), "storage did not answer in time")

    def _lost(self, size: int, reason: str) -> None:
        _log.warning("log_lost", log=self._name, bytes=size, reason=reason)

    def _remember(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        self._lines.extend(_line(line) for line in lines[-TAIL_LINES:])
        self._partial = self._partial[-_MAX_TAIL_LINE:]

    async def _run(self) -> None:
        # This loop does not use retries.retry: close() must end a pause, and new output arrives between two tries.
        outage = Outage(_log, "log_delayed", self._clock.monotonic)
        while self._waiting:
            await self._collect()
            batch = bytes(self._waiting[:_MAX_BATCH])
            try:
                await self._sink(self._name, batch)
            except (Unavailable, Throttled) as error:
                outage.failed(error, log=self._name, bytes=len(self._waiting))
                await first(self._clock.sleep(_APPENDS.pause(outage.failures, error)), self._closing.wait())
                if self._closing.is_set():
                    # After close() the pause above ends at once, so pause here. This loop is not endless: close()
                    # cancels it after ten seconds.
                    await self._clock.sleep(_BATCH_AFTER)
                continue
            except Exception as error:
                self._lost(len(batch), f"{type(error).__name__}: {error}")
            del self._waiting[: len(batch)]
            outage.over(log=self._name)

    async def _collect(self) -> None:
        """Wait a moment for more output, unless the attempt has ended or the batch is full."""
        if len(self._waiting) < _MAX_BATCH and not self._closing.is_set():
            await first(self._clock.sleep(_BATCH_AFTER), self._closing.wait())


def _line(data: bytes) -> str:
    return data[:_MAX_TAIL_LINE].decode("utf-8", "replace").rstrip("\r")
