"""Functions that this worker does not have: whether another live worker has them, and for how long none has had them.

The absence of a function begins when the members are first read and no live worker has it. The wait of a message begins
when a worker without the function first receives it. The instance (or the activity) fails once both have lasted for the
no-worker timeout. The absence alone is not enough: it may be old because of an earlier instance, and would fail an
instance that has just been started.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import structlog

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.errors import StorageError
from airflow_provider_taskhub.hub.admission.facts import unknown_delay
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import ACTIVITY, Member, Need
from airflow_provider_taskhub.hub.partitions.capabilities import able
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.telemetry import Outage

log = structlog.get_logger(__name__)

CHECK = 5.0
"""Seconds between two readings of the members, at most."""
FORGET = 120.0
"""Seconds after which an absence is forgotten unless a message needs the function again. A waiting message comes again
sooner."""
AGAIN = 60.0
"""Seconds after which a function that is still missing is logged again."""
ACTIVITY_PAUSE, ACTIVITY_LONGEST = 0.5, 5.0
"""Seconds for which an activity is given back if another worker has its function: at first, and at most. All workers
read one queue, and chance decides which of them receives it."""
CHANCES = 3.0
"""The pause grows once chance should have brought the activity to a worker that has it so many times: those workers are
busy then. A pause that grows with each delivery was rejected: where one worker of many has the function, the activity
would wait for minutes."""
LONGEST_TEXT = 4000
"""Characters of the failure of a task that no worker could run."""


@dataclass(slots=True)
class _Absence:
    """A function that is not here.

    :param asked: when a message last needed it. :param elsewhere: the share of the live workers of its kind that had it
        at the last reading.
    :param since: since when every reading found no live worker that has it; None: one has it, or there was no reading.
    :param logged: when it was last logged.
    """

    asked: float
    logged: float = float("-inf")
    elsewhere: float = 0.0
    since: float | None = None


def wait_of(messages: Iterable[Delivery], visibility: timedelta) -> tuple[Timestamp | None, timedelta]:
    """When messages of one instance began to wait for a function, and how long ago that is.

    Both times are the storage service's own. The time of insertion is not used: a timer or a scheduled start is
    inserted long before it is due.

    :param visibility: for how long a receipt is asked for.
    :returns: the time to keep in the messages when they are given back; None: none of them comes from a queue.
    """
    stored = [held for held in messages if held.in_queue]
    if not stored:
        return None, timedelta(0)
    times = [(held.envelope.waiting_since or held.received(visibility), held.received(visibility)) for held in stored]
    since = min((first for first, _ in times), key=lambda time: time.ticks)
    now = max((last for _, last in times), key=lambda time: time.ticks)
    return since, now - since


class MissingFunctions:
    """The functions that messages need and this worker does not have.

    :param live: reads the live members. :param limit: the no-worker timeout.
    :param pause: for how long a message is given back if another worker has its orchestrator: that worker may own the
        partition by then.
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

    def gave_up(self, need: Need, waited: timedelta) -> str | None:
        """The text of the failure once no live worker has had the function for the timeout; None before.

        :param waited: how long the message that needs it has waited for it (:func:`wait_of`).
        """
        found = self._asked(need)
        if found.since is None or min(self._looked - found.since, waited.total_seconds()) < self._limit:
            return None
        workers = "; ".join(
            f"{member.worker} ({', '.join(f'{app} {version}'.strip() for app, version in member.apps.items())}) has "
            f"{', '.join(member.functions(need.kind)) or 'none'}"
            for member in self._members
        )
        what = "activity" if need.kind == ACTIVITY else "instance"
        text = (
            f"no live worker has had {need} for {self._looked - found.since:.0f} s, and this {what} has waited for it "
            f"for {waited.total_seconds():.0f} s. Alive: {workers or 'nobody'}"
        )
        return text[:LONGEST_TEXT]

    def tell(self, need: Need) -> bool:
        """Whether to log that this worker does not have a function: once a minute, however many messages need it."""
        found = self._asked(need)
        if found.asked - found.logged < AGAIN:
            return False
        found.logged = found.asked
        return True

    def _asked(self, need: Need) -> _Absence:
        now = self._hub.clock.monotonic()
        found = self._absent.setdefault(need, _Absence(asked=now))
        found.asked = now
        self._missing.set()
        return found

    def delay(self, need: Need, dequeue_count: int) -> timedelta:
        """For how long a message that needs the function is given back."""
        longest = unknown_delay(dequeue_count)
        found = self._absent.get(need)
        if found is None or not found.elsewhere:
            return longest
        if need.kind == ACTIVITY:
            pause = ACTIVITY_PAUSE * max(1.0, dequeue_count * found.elsewhere / CHANCES)
            return min(longest, timedelta(seconds=min(ACTIVITY_LONGEST, pause)))
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
            having = len(able(members, need))
            found.elsewhere = having / max(1, sum(member.alive and need.kind in member.roles for member in members))
            if found.elsewhere:
                found.since = None
            elif found.since is None:
                found.since = now
