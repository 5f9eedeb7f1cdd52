"""Decides which queue of a kind of activities a worker reads next: the first one, or the lanes."""

from __future__ import annotations

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.hub.queues.lane_reader import MOST_PASSED, RECENT, SHARE, LaneReader
from airflow_provider_taskhub.hub.queues.reader import Reader
from airflow_provider_taskhub.workers.activities.slots import Slots


class Turns:
    """Lets the first queue go first. While it has work, the lanes get one of :data:`SHARE` slots.

    :param first: the slots of the first queue. Those of the lanes are shared with them.
    :param lanes: the slots of the lanes.
    """

    def __init__(self, first: Slots, lanes: Slots, clock: Clock) -> None:
        self._first, self._lanes, self._clock = first, lanes, clock
        self._first_reader: Reader | None = None
        self._lane_reader: LaneReader | None = None
        self._asked: float | None = None
        """Monotonic time since which the lanes wait for a look at the first queue."""
        self._passed = 0
        """Work items of the first queue that got a slot while the lanes had work, less :data:`SHARE` - 1 for each of
        the lanes that did."""

    def between(self, first: Reader, lanes: LaneReader) -> None:
        """Set the two readers. They ask this object how much they may read, so they are made later."""
        self._first_reader, self._lane_reader = first, lanes
        self._first.may, self._first.took = self._first_may, self._first_took
        self._lanes.may, self._lanes.took = self._lanes_may, self._lanes_took

    # reading

    def may_claim(self) -> bool:
        """Return whether new calls of the first queue may take free slots at once."""
        return not self._lanes_are_next

    def first_room(self) -> int:
        """Return how many work items the first queue may give now."""
        return max(0, self._first.room - 1) if self._lanes_are_next else self._first.room

    def lanes_room(self) -> int:
        """Return how many work items the lanes may give now. If the first queue must be looked at before, do that."""
        first, lanes, room = self._first_reader, self._lane_reader, self._lanes.room
        assert first is not None
        assert lanes is not None
        if not lanes.found or not room:
            return room  # a look whether there is something
        if self._passed >= SHARE // 2:  # so that it is there when it is the next
            return min(room, max(1, self._passed // (SHARE - 1)))
        if first.emptied is None:  # it has more
            return 0
        now = self._clock.monotonic()
        if now - first.emptied <= RECENT or (self._asked is not None and first.emptied >= self._asked):
            return room
        if self._asked is None:
            self._asked = now
        first.poll_soon(RECENT)
        return 0

    def first_polled(self) -> None:
        """The first queue was read: the lanes may be next."""
        if self._lane_reader is not None:
            self._lane_reader.freed()

    def lanes_polled(self) -> None:
        """A lane was read: the first queue may be next."""
        self._asked = None
        if self._first_reader is not None:
            self._first_reader.freed()

    # taking slots

    @property
    def _lanes_have_work(self) -> bool:
        return self._lanes.waiting or (self._lane_reader is not None and self._lane_reader.found)

    @property
    def _lanes_are_next(self) -> bool:
        return self._passed >= SHARE - 1 and self._lanes_have_work

    def _first_may(self) -> bool:
        return not (self._lanes.waiting and self._passed >= SHARE - 1)

    def _lanes_may(self) -> bool:
        return self._passed >= SHARE - 1 or not self._first.waiting

    def _first_took(self) -> None:
        self._passed = min(self._passed + 1, MOST_PASSED) if self._lanes_have_work else 0

    def _lanes_took(self) -> None:
        self._passed = max(0, self._passed - (SHARE - 1))
