"""Keeps the rate of an activity: at most so many of its attempts begin within a time in the whole hub.

An attempt that begins takes a place. Its worker frees the place when the time of the rate has passed since the attempt
began. So at most as many attempts begin within any such time as there are places.

A worker that dies frees nothing. Another worker frees a place that it has seen unchanged for the time of the rate and
the take time of records: whoever took the place has begun before, or finds that the place is not its own any more. Each
worker measures with its own clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from airflow_provider_taskhub.errors import Conflict, StorageError
from airflow_provider_taskhub.hub.history import places as rows
from airflow_provider_taskhub.hub.history.places import Limit, LimitState, Place
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import ActivityRecord, WorkerIdentity
from airflow_provider_taskhub.settings import LeaseTimes
from airflow_provider_taskhub.telemetry import Outage
from airflow_provider_taskhub.workers.activities.hub_places import FIRST_LOOK, FULL, LONGEST_LOOK, SELDOM, HubPlaces

log = structlog.get_logger(__name__)

TOGETHER = 0.05
"""Seconds. Places that become free within this time are freed together, so that a high rate needs few reads."""


class ActivityRate(HubPlaces):
    """The places of a rate, as this worker sees them."""

    def __init__(self, hub: Hub, limit: Limit, *, me: WorkerIdentity, times: LeaseTimes) -> None:
        super().__init__(hub, limit, me=me, times=times)
        self._due: dict[int, float] = {}
        """For each place that this worker has taken: the monotonic time at which it is free again."""
        self._seen: dict[int, tuple[str, float]] = {}
        """For each place that another worker has taken: the ETag of its row, and since when this worker has seen it."""

    def _own(self, record: ActivityRecord, found: LimitState) -> Sequence[Place]:
        """A repeated attempt begins once more, so it takes another place."""
        return [place for place in found.holders if place.is_reserved and place.is_of_call(record)]

    def _keeps(self, place: Place) -> bool:
        return place.is_reserved

    def next_look(self) -> float | None:
        return self._until_next(FULL, bool(self._seen))

    def _took(self, record: ActivityRecord, place: Place) -> None:
        self._due[place.number] = self._hub.clock.monotonic() + self.limit.seconds

    def _confirms(self, record: ActivityRecord, place: Place) -> bool:
        if not place.is_of_call(record) or place.attempt != record.attempt or place.number not in self._due:
            return False
        self._took(record, place)  # it begins only now
        return True

    def forget(self, record: ActivityRecord) -> None:
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
                continue
            pause = FIRST_LOOK if self.free else min(LONGEST_LOOK, pause * 1.5)
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
        waits = [max(0.0, due - now) + TOGETHER for due in self._due.values()]
        if others:
            waits.append(SELDOM if self.free else pause)
        elif not self.free:
            waits.append(FULL)
        return min(waits, default=None)

    async def look(self) -> bool:
        """Free the places whose time is over, and count the free ones."""
        before, found = self._change, await self._state()
        others, now = False, self._hub.clock.monotonic()
        held = {place.number: place for place in found.holders}
        for mine in self._due.keys() - held.keys():
            del self._due[mine]
        self._seen = {number: seen for number, seen in self._seen.items() if number in held}
        for number, place in held.items():
            if self._is_over(place, now):
                self._change -= await self._free(place)
            others |= number not in self._due
        self._count(found, before)
        return others

    def _is_over(self, place: Place, now: float) -> bool:
        if place.number in self._due and place.worker == self._me:
            return now >= self._due[place.number]
        self._due.pop(place.number, None)
        assert place.row is not None
        etag, since = self._seen.get(place.number, ("", 0.0))
        if etag != place.row.etag:
            self._seen[place.number] = place.row.etag, now
            return False
        return now - since >= self.limit.seconds + self._times.take.total_seconds()

    async def _free(self, place: Place) -> bool:
        """Free a place. :returns: False if it was changed meanwhile."""
        try:
            await self._hub.store.execute(rows.freed(self._hub.names, place))
        except Conflict:
            return False
        self._due.pop(place.number, None)
        return True
