"""Time is passed in. Nothing in TaskHub reads a clock of its own (STYLE 7).

``utc_now`` is for people, for names and for DurableTask's columns; no decision compares it with another machine's.
``monotonic`` is for every age, deadline and back-off.
"""

from __future__ import annotations

import asyncio
import time
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
