"""Keeps the rate of an activity: at most so many of its attempts begin within a time in the whole hub.

An attempt takes a place before it begins. Right before it begins, its worker looks whether the place is still its own.
After that the attempt begins within a moment, or its executor refuses it and the worker looks again. When the time of
the rate has passed since the end of this moment, the worker frees the place. So at most as many attempts begin within
any such time as there are places.

A worker that dies frees nothing. Another worker frees a place that has been unchanged for the time of the rate and the
take time of records. An attempt that begins later than a part of the take time after its place was written writes the
place again. Each worker measures with its own clock, from the moment when it sees the place. What was before, it learns
from the storage service: each worker writes the row of the limit when it begins, so the times of the two rows say how
old the place was then. So places become free also if no worker lives as long as the time of the rate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import structlog

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.concurrency import gather_bounded
from airflow_provider_taskhub.errors import StorageError
from airflow_provider_taskhub.hub.history import places as rows
from airflow_provider_taskhub.hub.history.places import Limit, LimitState, Place
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import BEGINS_WITHIN, ActivityRecord, WorkerIdentity
from airflow_provider_taskhub.settings import LeaseTimes
from airflow_provider_taskhub.telemetry import Outage
from airflow_provider_taskhub.workers.activities.hub_places import FIRST_LOOK, FULL, LOST, SELDOM, HubPlaces

log = structlog.get_logger(__name__)

LEAST = 0.5
"""Seconds within which an attempt begins at least after it was asked whether it has a place."""
AT_ONCE = 8
"""How many places are freed in parallel."""
TOGETHER = 0.05
"""Seconds. Places that become free within this time are freed together, so that a high rate needs few reads."""


class ActivityRate(HubPlaces):
    """The places of a rate, as this worker sees them."""

    def __init__(self, hub: Hub, limit: Limit, *, me: WorkerIdentity, times: LeaseTimes) -> None:
        super().__init__(hub, limit, me=me, times=times)
        self._seconds = limit.seconds
        self.begins_within = min(BEGINS_WITHIN.total_seconds(), max(LEAST, limit.seconds / 10))
        self._looked = 0.0
        """Monotonic time of the last look."""
        self._begun: dict[int, float] = {}
        """For each place that this worker has taken: the monotonic time before which its attempt has begun."""
        self._unbegun: set[int] = set()
        """Those of them whose attempts have not begun."""
        self._written: dict[int, float] = {}
        """For each of these places: the monotonic time at which this worker has begun to write its row."""
        self._seen: dict[int, tuple[str, float]] = {}
        """For each place that another worker has taken: the ETag of its row, and since when it has been unchanged."""

    def _own(self, record: ActivityRecord, found: LimitState) -> Sequence[Place]:
        """A repeated attempt begins once more, so it takes another place. A place with which no attempt has begun is
        taken again: the record of that attempt could not be claimed."""
        its = [place for place in found.holders if place.is_of_call(record)]
        return [one for one in its if one.worker == self._me and one.number in self._unbegun]

    def next_look(self) -> float | None:
        return self._until_next(FULL, others=False) if self._begun else None

    def _took(self, record: ActivityRecord, place: Place) -> None:
        self._written[place.number] = self._begun[place.number] = self._hub.clock.monotonic()
        self._unbegun.add(place.number)

    async def _confirms(self, record: ActivityRecord, place: Place) -> bool:
        if not place.is_of_call(record) or place.attempt != record.attempt or place.number not in self._begun:
            return False
        now = self._hub.clock.monotonic()
        if now - self._written[place.number] > self._times.take.total_seconds() / 4:
            try:  # so that others do not free it too early
                await self._hub.store.execute(rows.taken(self._hub.names, place, record))
            except LOST:
                return False
            self._written[place.number] = now
        self._begun[place.number] = now + self.begins_within  # it begins only now
        self._unbegun.discard(place.number)
        return True

    def forget(self, record: ActivityRecord) -> None:
        """The place is free when its time is over."""

    async def undo(self, record: ActivityRecord) -> None:
        """The place is free when its time is over."""

    async def leave(self, record: ActivityRecord) -> None:
        """The place is free when its time is over."""

    async def run(self, freed: Callable[[], None]) -> None:
        """Free the places whose time is over, and look at those of others while none is free."""
        clock = self._hub.clock
        outage, pause = Outage(log.bind(limit=self.limit.name), "places_unreadable", clock.monotonic), FIRST_LOOK
        while True:
            try:
                others = await self.look()
                outage.over()
            except StorageError as error:
                outage.failed(error)
                await clock.sleep(pause)
                pause = min(self.longest_look, pause * 1.5)
                continue
            pause = FIRST_LOOK if self.free else min(self.longest_look, pause * 1.5)
            if self.free:
                freed()
            self._changed.clear()
            while await self._changed_within(self._until_next(pause, others)):
                others = True

    def _until_next(self, pause: float, others: bool) -> float | None:
        """Return the seconds until the next look; None: there is nothing to look for.

        :param pause: the pause between two looks at the places of others while none is free.
        :param others: whether others may have places.
        """
        now = self._hub.clock.monotonic()
        waits = [begun + self._seconds + TOGETHER - now for begun in self._begun.values()]
        if others:
            waits.append(self._looked + (SELDOM if self.free else pause) - now)
        elif not self.free:
            waits.append(self._looked + FULL - now)
        return max(0.0, min(waits)) if waits else None

    async def look(self) -> bool:
        """Free the places whose time is over, and count the free ones."""
        known, before, found = set(self._begun), self._change, await self._state()
        self._seconds = found.seconds or self.limit.seconds  # a worker with newer code may have another time
        now = self._looked = self._hub.clock.monotonic()
        held = {place.number: place for place in found.holders}
        for gone in known - held.keys():
            self._forget(gone)
        self._seen = {number: seen for number, seen in self._seen.items() if number in held}
        # What was taken since the read began is this worker's, whatever the row said.
        places = [place for number, place in held.items() if number in known or number not in self._begun]
        declared_at = await self._declared_at(found, places)
        over = [place for place in places if self._is_over(place, now, declared_at)]
        self._change -= sum(await gather_bounded(self._freed, over, limit=AT_ONCE))
        self._count(found, before)
        return bool(self._seen)

    async def _declared_at(self, found: LimitState, places: Sequence[Place]) -> Timestamp | None:
        """Return when the row of the limit was written. The places of a value have their own rows, without that one."""
        others = any(place.row and self._seen.get(place.number, ("",))[0] != place.row.etag for place in places)
        if found.declared_at is None and self.limit.value is not None and others:
            whole = replace(self.limit, value=None)
            return (await rows.state_of(self._hub.store, self._hub.names, whole)).declared_at
        return found.declared_at

    def _is_over(self, place: Place, now: float, declared_at: Timestamp | None) -> bool:
        if place.number in self._begun and place.worker == self._me:
            return now >= self._begun[place.number] + self._seconds
        self._forget(place.number)
        assert place.row is not None
        etag, since = self._seen.get(place.number, ("", 0.0))
        if etag != place.row.etag:
            since = now
        if declared_at is not None and place.row.timestamp is not None:
            since = min(since, now - (declared_at - place.row.timestamp).total_seconds())
        self._seen[place.number] = place.row.etag, since
        return now - since >= self._seconds + self._times.take.total_seconds()

    def _forget(self, number: int) -> None:
        """Note that a place is not this worker's any more."""
        self._begun.pop(number, None)
        self._written.pop(number, None)
        self._unbegun.discard(number)

    async def _freed(self, place: Place) -> bool:
        """Free a place. :returns: False if it was changed meanwhile."""
        try:
            await self._hub.store.execute(rows.freed(self._hub.names, place))
        except LOST:
            return False
        self._forget(place.number)
        self._seen.pop(place.number, None)
        return True
