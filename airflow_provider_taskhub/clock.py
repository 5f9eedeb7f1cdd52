"""Time is passed in. Nothing in TaskHub reads a clock of its own.

``utc_now`` is for people, for names and for DurableTask's columns; no decision compares it with another machine's.
``monotonic`` is for every age, deadline and back-off.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Protocol

from airflow_provider_taskhub.codec import Timestamp

_AGES = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Not ``time.monotonic``, which stands still while a machine is suspended: a worker that wakes up after an hour would
think its leases seconds old."""


class Clock(Protocol):
    """What a component may know about time."""

    def utc_now(self) -> Timestamp:
        """The wall clock of this machine."""

    def monotonic(self) -> float:
        """Seconds that only ever grow, from an arbitrary start, also while the machine is suspended."""

    async def sleep(self, seconds: float) -> None:
        """Wait; negative values return at the next turn of the loop."""


class SystemClock:
    """The clocks of this machine."""

    def utc_now(self) -> Timestamp:
        return Timestamp.from_unix_ns(time.time_ns())

    def monotonic(self) -> float:
        return time.clock_gettime(_AGES)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))


SYSTEM_CLOCK = SystemClock()


class Deadline:
    """The time by which something is to be done, on a clock's monotonic time.

    :param timeout: from now; None: there is no limit.
    """

    def __init__(self, clock: Clock, timeout: timedelta | None) -> None:
        self._clock = clock
        self._until = None if timeout is None else clock.monotonic() + timeout.total_seconds()

    def left(self) -> timedelta | None:
        """Time that is left, at least 0; None: there is no limit."""
        if self._until is None:
            return None
        return timedelta(seconds=max(0.0, self._until - self._clock.monotonic()))

    def shorten(self, seconds: float) -> float:
        """A pause that does not go beyond it; a millisecond at least, so that the last one does not end too early."""
        left = self.left()
        return seconds if left is None else min(seconds, max(0.001, left.total_seconds()))

    def check(self, what: str) -> None:
        """:raises TimeoutError: with ``what`` as its text, when the time is over."""
        if self._until is not None and self._clock.monotonic() >= self._until:
            raise TimeoutError(what)
