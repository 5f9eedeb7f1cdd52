"""Functions that this worker does not have: whether another live worker has them, and for how long none has had them.

The no-worker timeout of a function begins when the members are first read and no live worker has it (K43).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import structlog

from airflow_provider_taskhub.errors import StorageError
from airflow_provider_taskhub.hub.contract import Member, Need
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.messages.races import unknown_delay
from airflow_provider_taskhub.hub.partitions.needs import able
from airflow_provider_taskhub.telemetry import Outage

log = structlog.get_logger(__name__)

CHECK = 5.0
"""Seconds between two readings of the members, at most."""
FORGET = 120.0
"""Seconds after which a need is forgotten unless it is asked for again. A waiting message comes again sooner."""
ACTIVITY_PAUSE, ACTIVITY_LONGEST = 0.5, 5.0
"""Seconds for which an activity that another worker has is given back: at first, and at most. The first worker to
receive it takes it. The more often this worker receives it, the longer the other worker has been busy."""
LONGEST_TEXT = 4000
"""Characters of the failure of a task that no worker could run."""


@dataclass(slots=True)
class _Absence:
    """A function that is not here.

    :param asked: when a message last needed it. :param elsewhere: at the last reading, another live worker had it.
    :param since: since when every reading found no live worker that has it; None: one has it, or there was no reading.
    """

    asked: float
    elsewhere: bool = False
    since: float | None = None


class Absences:
    """The functions that messages need and this worker does not have.

    :param live: reads the live members. :param limit: the no-worker timeout.
    :param pause: how long a message for an orchestrator that another worker has is given back: by then that worker may
        own the partition.
    """

    def __init__(
        self,
        hub: Hub,
        live: Callable[[], Coroutine[Any, Any, Sequence[Member]]],
        limit: timedelta,
        pause: timedelta,
    ) -> None:
        self._hub, self._live, self._limit, self._pause = hub, live, limit.total_seconds(), pause
        self._absent: dict[Need, _Absence] = {}
        self._members: Sequence[Member] = ()
        self._looked = float("-inf")
        self._missing = asyncio.Event()
        self._outage = Outage(log, "members_unreadable", hub.clock.monotonic)

    def gave_up(self, need: Need) -> str | None:
        """The text of the failure, once no live worker has had it for the timeout; None before that."""
        now = self._hub.clock.monotonic()
        found = self._absent.setdefault(need, _Absence(asked=now))
        found.asked = now
        self._missing.set()
        if found.since is None or self._looked - found.since < self._limit:
            return None
        workers = "; ".join(
            f"{member.worker} ({', '.join(f'{app} {version}'.strip() for app, version in member.apps.items())}) has "
            f"{', '.join(member.functions(need.kind)) or 'none'}"
            for member in self._members
        )
        waited = self._looked - found.since
        return f"no live worker has had {need} for {waited:.0f} s. Alive: {workers or 'nobody'}"[:LONGEST_TEXT]

    def delay(self, need: Need, dequeue_count: int) -> timedelta:
        """How long a message that needs it is given back."""
        longest = unknown_delay(dequeue_count)
        found = self._absent.get(need)
        if found is None or not found.elsewhere:
            return longest
        if need.kind == "activity":
            return min(longest, timedelta(seconds=min(ACTIVITY_LONGEST, ACTIVITY_PAUSE * max(1, dequeue_count))))
        return min(longest, self._pause)

    async def run(self) -> None:
        """Read the live members again and again, while a function is missing."""
        while True:
            if not self._absent:
                self._missing.clear()
                await self._missing.wait()
            await self._look()
            await self._hub.clock.sleep(min(CHECK, max(0.5, self._limit / 3)))

    async def _look(self) -> None:
        try:
            members = await self._live()
        except StorageError as error:
            self._outage.failed(error)
            return
        self._outage.over()
        self._members, now = members, self._hub.clock.monotonic()
        self._looked = now
        for need, found in list(self._absent.items()):
            if now - found.asked > FORGET:
                del self._absent[need]
                continue
            found.elsewhere = bool(able(members, need))
            if found.elsewhere:
                found.since = None
            elif found.since is None:
                found.since = now
