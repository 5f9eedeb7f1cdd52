"""The output of activities, on its way from an executor to the log container."""

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
_MAX_TAIL_LINE = 2000
_BATCH_AFTER = 0.5
"""Seconds in which output is collected before it is appended: on Azure each append is a transaction."""
_MAX_BATCH = 1024 * 1024
_APPENDS = Retries(after=(Unavailable, Throttled), first=0.5, longest=10.0)
"""Pauses between two tries to append while the store does not answer."""
_MAX_CLOSING = 10.0
"""Seconds that an outcome waits for the last of its log."""

LogSink = Callable[[str, bytes], Awaitable[None]]
"""Appends bytes to a named log."""


class OutputLog:
    """Bytes on their way to a log, in batches; remembers the last lines.

    Output is kept while the store does not answer, and appended afterwards; a batch whose answer was lost may be
    appended twice. What a store still does not take ten seconds after the attempt's end is lost, and that is logged:
    failing storage costs lines, never the activity.

    :param limit: bytes accepted at most; the executor keeps to its own limit, this one holds whatever it does.
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
        """Append what is left, within ten seconds."""
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
        # not retries.retry: close() must end a pause, and output goes on coming between two tries
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
                    await self._clock.sleep(_BATCH_AFTER)  # close() ends this after ten seconds
                continue
            except Exception as error:
                self._lost(len(batch), f"{type(error).__name__}: {error}")
            del self._waiting[: len(batch)]
            outage.over(log=self._name)

    async def _collect(self) -> None:
        """Give more output a moment to come, unless the attempt is over or enough is there."""
        if len(self._waiting) < _MAX_BATCH and not self._closing.is_set():
            await first(self._clock.sleep(_BATCH_AFTER), self._closing.wait())


def _line(data: bytes) -> str:
    return data[:_MAX_TAIL_LINE].decode("utf-8", "replace").rstrip("\r")
