"""Tracks functions that this worker does not have: which live workers have them, and since when no live worker has
them.

The absence of a function begins when this worker first reads the member rows and no live worker has the function. The
wait of a message begins when a worker without the function first receives the message; that of an activity, when its
call was sent. The instance (or the activity)
fails once both the absence and the wait have lasted for the no-worker timeout. The absence alone is not enough: it may
have begun long ago with an earlier instance, and an instance that has just started would fail at once.
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
from airflow_provider_taskhub.hub.partitions.capabilities import able, lack_of_memory, too_small
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.telemetry import Outage
from airflow_provider_taskhub.worker_pools import DEFAULT_POOL

log = structlog.get_logger(__name__)

CHECK = 5.0
"""Longest time between two readings of the member rows, in seconds."""
FORGET = 120.0
"""Seconds after which an absence is forgotten if no message has needed the function meanwhile. A waiting message is
delivered again sooner."""
LOG_AGAIN = 60.0
"""Seconds between two log lines about the same missing function."""
ACTIVITY_PAUSE, ACTIVITY_LONGEST = 0.5, 5.0
"""First and longest pause, in seconds, before a work item is delivered again if another worker has its function. All
workers read one queue, and chance decides which of them receives the work item."""
CHANCES = 3.0
"""The pause starts to grow after so many deliveries that, by chance, this many of them should have reached a worker
with the function. Workers with the function are probably busy then. A pause that grows with each delivery was rejected:
if only one of many workers has the function, the activity would wait for minutes."""
LONGEST_TEXT = 4000
"""Longest error text of an instance or activity that no worker could run, in characters."""


@dataclass(slots=True)
class _Absence:
    """A function that this worker does not have. All times are monotonic seconds of this worker.

    :param asked: the time when a message last needed the function.
    :param logged: the time when the absence was last logged.
    :param elsewhere: of the live workers with the right role, the share that had the function when the member rows
        were last read.
    :param other: one of these workers; None: there was none.
    :param since: the first time when the member rows were read and no live worker had the function. It is set anew if a
        live worker has had the function meanwhile. None: a live worker has it, or the rows were not read yet.
    """

    asked: float
    logged: float = float("-inf")
    elsewhere: float = 0.0
    other: Member | None = None
    since: float | None = None


def wait_of(messages: Iterable[Delivery], visibility: timedelta) -> tuple[Timestamp | None, timedelta]:
    """Return when messages of one instance began to wait for a function, and how long they have waited.

    The wait is computed from times of the storage service only. The time of insertion is not used, because a timer or a
    scheduled start is inserted long before it is due.

    :param visibility: the time for which a received message is hidden from other workers.
    :returns: the start of the wait, which the messages keep when they are given back (None if no message comes from a
        queue), and the length of the wait.
    """
    stored = [held for held in messages if held.in_queue]
    if not stored:
        return None, timedelta(0)
    times = [(held.envelope.waiting_since or held.received(visibility), held.received(visibility)) for held in stored]
    since = min((first for first, _ in times), key=lambda time: time.ticks)
    now = max((last for _, last in times), key=lambda time: time.ticks)
    return since, now - since


class MissingFunctions:
    """Tracks the functions that messages need and this worker does not have.

    :param live: reads the live members of the hub.
    :param limit: the no-worker timeout.
    :param pause: the longest time until a message is delivered again if another worker has its orchestrator. By then
        the partition may have moved to that worker.
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
        self._read_at = float("-inf")
        self._missing = asyncio.Event()
        self._outage = Outage(log, "members_unreadable", hub.clock.monotonic)

    def gave_up(self, need: Need, waited: timedelta) -> str | None:
        """Return the error text if a message must not wait any longer for a function; None if it must wait.

        :param waited: how long the message has waited for the function (:func:`wait_of`).
        """
        found = self._asked(need)
        if found.since is None or min(self._read_at - found.since, waited.total_seconds()) < self._limit:
            return None
        if need.kind == ACTIVITY and (small := too_small(self._members, need.name)):
            text, way_out = lack_of_memory(small[0], need.name)
            return f"{text}: {way_out}. This activity has waited for {waited.total_seconds():.0f} s"
        pool = None
        if need.kind == ACTIVITY:  # the pool as a live worker says that has the code
            pool = next((one.pool(need.name) for one in self._members if need.name in one.functions(ACTIVITY)), None)
        workers = "; ".join(
            f"{member.worker} ({', '.join(f'{app} {version}'.strip() for app, version in member.apps.items())}) has "
            f"{', '.join(member.functions(need.kind)) or 'none'}{_pools(member, pool) if need.kind == ACTIVITY else ''}"
            for member in self._members
        )
        what = "activity" if need.kind == ACTIVITY else "instance"
        of_pool = "" if pool in (None, DEFAULT_POOL) else f" of pool {pool!r}"
        way_out = "" if pool is None else f" Start a worker of the pool {pool!r}, with --pools {pool}."
        text = (
            f"no live worker has had {need}{of_pool} for {self._read_at - found.since:.0f} s, and this {what} has "
            f"waited for it for {waited.total_seconds():.0f} s.{way_out} Alive: {workers or 'none'}"
        )
        return text[:LONGEST_TEXT]

    def elsewhere(self, need: Need) -> Member | None:
        """Return a live worker that could run a function when the member rows were last read. None: there was none."""
        return self._asked(need).other

    def lasts(self, need: Need) -> bool:
        """Return True if no live worker has been able to run a function for the no-worker timeout."""
        found = self._asked(need)
        return found.since is not None and self._read_at - found.since >= self._limit

    def is_log_due(self, need: Need) -> bool:
        """Return True if a log line about the missing function is due: once a minute, however many messages need it."""
        found = self._asked(need)
        if found.asked - found.logged < LOG_AGAIN:
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
        """Return the time until a message that needs the function is delivered again.

        :param dequeue_count: how often the message was delivered.
        """
        longest = unknown_delay(dequeue_count)
        found = self._absent.get(need)
        if found is None or not found.elsewhere:
            return longest
        if need.kind == ACTIVITY:
            pause = ACTIVITY_PAUSE * max(1.0, dequeue_count * found.elsewhere / CHANCES)
            return min(longest, timedelta(seconds=min(ACTIVITY_LONGEST, pause)))
        return min(longest, self._pause)

    async def run(self) -> None:
        """Read the live members repeatedly while a function is missing. Runs until cancelled."""
        while True:
            if not self._absent:
                self._missing.clear()
                await self._missing.wait()
            await self._read_members()
            await self._hub.clock.sleep(min(CHECK, max(0.5, self._limit / 3)))

    async def _read_members(self) -> None:
        try:
            members = await self._live()
        except StorageError as error:
            self._outage.failed(error)
            return
        self._outage.over()
        self._members, now = members, self._hub.clock.monotonic()
        self._read_at = now
        for need, found in list(self._absent.items()):
            if now - found.asked > FORGET:
                del self._absent[need]
                continue
            having = able(members, need)
            found.other = having[0] if having else None
            roles = sum(member.alive and need.kind in member.roles for member in members)
            found.elsewhere = len(having) / max(1, roles)
            if found.elsewhere:
                found.since = None
            elif found.since is None:
                found.since = now


def _pools(member: Member, needed: str | None) -> str:
    """Return a text with the pools of a worker; "" if these are only ``default`` and no pool is needed."""
    plain = needed is None and member.pools == (DEFAULT_POOL,)
    return "" if plain else f" (pools {', '.join(member.pools)})"
