"""The clock that components of TaskHub get as an argument. No component reads the system's time directly.

So tests can pass a virtual clock. ``utc_now`` is for people, for names and for DurableTask's columns; no decision
compares the wall clocks of two machines. ``monotonic`` is for every age, deadline and back-off.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Protocol

from airflow_provider_taskhub.codec import Timestamp

_MONOTONIC_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The system clock behind ``monotonic``. Rejected: ``time.monotonic``. On Linux that clock stops while the machine is
suspended: after an hour of suspension a worker would believe that its leases are only seconds old."""


class Clock(Protocol):
    """The interface of a clock: :class:`SystemClock`, or a virtual clock in tests."""

    def utc_now(self) -> Timestamp:
        """Return the time of this machine's wall clock."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary start. The value never falls, and grows while the machine is suspended."""

    async def sleep(self, seconds: float) -> None:
        """Wait for some seconds. 0 or a negative number waits only for the next turn of the event loop."""


class SystemClock:
    """The real clocks of this machine."""

    def utc_now(self) -> Timestamp:
        return Timestamp.from_unix_ns(time.time_ns())

    def monotonic(self) -> float:
        return time.clock_gettime(_MONOTONIC_CLOCK)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))


SYSTEM_CLOCK = SystemClock()


class Deadline:
    """A time limit for some work, measured on a clock's monotonic time.

    :param clock: the clock that measures the time.
    :param timeout: the time limit, counted from now; None: no limit.
    """

    def __init__(self, clock: Clock, timeout: timedelta | None) -> None:
        self._clock = clock
        self._until = None if timeout is None else clock.monotonic() + timeout.total_seconds()

    def left(self) -> timedelta | None:
        """Return the time until the deadline, at least 0; None if there is no limit."""
        if self._until is None:
            return None
        return timedelta(seconds=max(0.0, self._until - self._clock.monotonic()))

    def shorten(self, seconds: float) -> float:
        """Return the length of a pause, shortened so that the pause ends at the deadline.

        The result is at least one millisecond, because a last pause of 0 could end just before the deadline.

        :param seconds: the wanted length of the pause.
        """
        left = self.left()
        return seconds if left is None else min(seconds, max(0.001, left.total_seconds()))

    def check(self, what: str) -> None:
        """Raise an error if the deadline has passed.

        :param what: the text of the error.
        :raises TimeoutError: if the deadline has passed.
        """
        if self._until is not None and self._clock.monotonic() >= self._until:
            raise TimeoutError(what)
