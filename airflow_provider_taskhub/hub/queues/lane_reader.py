"""A reader of several queues for calls of activities, in turns, so that none waits behind another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from airflow_provider_taskhub.errors import StorageError
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.hub.queues.pacing import PollingBackoff
from airflow_provider_taskhub.hub.queues.reader import WORK_EVENTS, Reader, ReaderContext
from airflow_provider_taskhub.storage.primitives import MAX_RECEIVE

SHARE = 8
"""While work of a higher priority waits, work of a lower priority gets one of this number of turns."""
MOST_PASSED = 8 * SHARE
"""The largest number of missed turns that those of a lower priority get back later."""
RECENT = 0.25
"""Seconds for which a look at the first queue counts. Without a newer look a lane is not read, so that what has come to
the first queue meanwhile goes first. Activities that are shorter do not cost a look each."""
SELDOM, FOREIGN = 2, 20
"""A lane that stays empty is polled so many times more rarely than other queues, because most lanes are not used. The
second number is for lanes into which only workers with other code put something."""
UNUSED = 20
"""After this number of empty receives, the pause between two receives has its full length."""
FIRST, USUAL, LOW = range(3)
"""The ranks of queues: the first queue, the usual lanes, and the lane of low priority."""


@dataclass(slots=True, eq=False)
class _Lane:
    """One of the queues.

    :ivar due: monotonic time at which the queue is read next.
    :ivar full: whether the queue may have messages: the last receive did not empty it, or somebody has put some.
    """

    queue: str
    rank: int
    backoff: PollingBackoff
    due: float = 0.0
    full: bool = False

    def announced(self) -> None:
        """Note that somebody may have put messages."""
        self.backoff.received()
        self.due, self.full = 0.0, True


class LaneReader(Reader):
    """Receives from several lanes in turns: one receive from each that has messages.

    :param lanes: the names of the queues. The last one is that of low priority: it has its turn if the others are
        empty, or if it was passed over often.
    :param first: a queue that goes before the lanes, which have their turn if it is empty, or if they were passed over
        often. None: another reader reads it.
    :param own: whether this worker has activities that use the lanes.
    :param room: as for :class:`Reader`.
    """

    def __init__(
        self,
        context: ReaderContext,
        *,
        lanes: Sequence[str],
        own: bool,
        room: Callable[[], int],
        deliver: Callable[[Delivery], None],
        polled: Callable[[], None],
        runs: Callable[[Delivery], bool] = lambda held: True,
        failed: Callable[[], None] = lambda: None,
        first: str | None = None,
    ) -> None:
        self._all_room, self._hand_over, self._after = room, deliver, polled
        self._most = MAX_RECEIVE
        """The most messages that the chosen queue may give now."""
        super().__init__(
            context,
            queue=first or lanes[0],
            carries=WORK_EVENTS,
            room=lambda: min(self._all_room(), self._most),
            deliver=self._received,
            polled=self._answered,
            failed=failed,
            runs=runs,
        )
        self.name = f"lanes {lanes[0]} …" if first is None else first
        longest = context.max_polling.total_seconds()
        ceiling = (SELDOM if own else FOREIGN) * longest
        # Most lanes are never used: after one look at the beginning they are polled seldom.
        self._lanes = [_Lane(queue, USUAL, PollingBackoff(ceiling=ceiling, empty=UNUSED)) for queue in lanes]
        self._lanes[-1].rank = LOW
        if own:  # no call in the first queue tells of those of low priority
            self._lanes[-1].backoff.ceiling = longest
        self._first = None if first is None else _Lane(first, FIRST, PollingBackoff(ceiling=longest))
        if self._first is not None:
            self._lanes.insert(0, self._first)
        self._lane, self.queues = self._lanes[0], tuple(lane.queue for lane in self._lanes)
        self._looked = float("-inf")
        """Monotonic time at which the store last answered a receive from the first queue."""
        self._claims = False
        """Whether other readers, with which this one shares the room, may wait until this one has read a lane."""
        self._behind: int | None = None
        """The rank that is passed over if a message comes now."""
        self._passed = Counter[int]()
        """By rank, the messages of better ranks that have come while it was due, less :data:`SHARE` - 1 for each of its
        own."""

    @property
    def found(self) -> bool:
        """Whether a lane may have messages. The reader does not know it for sure before it has read the lane."""
        return any(lane.full for lane in self._lanes)

    def wake(self) -> None:
        for lane in self._lanes:
            lane.announced()
        super().wake()

    def look(self, queue: str) -> None:
        """Read a lane soon: somebody has put calls there."""
        for lane in self._lanes:
            if lane.queue == queue:
                lane.announced()
                self._wake()

    def _choose(self, now: float) -> _Lane | None:
        """Return the lane whose turn it is; None: none is due."""
        due = [lane for lane in self._lanes if lane.due <= now]
        if self._first is not None and self._first not in due and self.found and now - self._looked > RECENT:
            due.append(self._first)
        ranks = sorted({lane.rank for lane in due})
        if not ranks:
            return None
        # The low lane has its share of what the lanes get.
        rank, self._behind, self._most = ranks[0], None, MAX_RECEIVE
        for worse in ranks[1:]:
            if self._passed[worse] < SHARE - 1:
                self._behind = worse
                break
            rank, self._most = worse, max(1, self._passed[worse] // (SHARE - 1))
        # The one that had its turn longest ago: the chosen one goes behind the others.
        chosen = next(lane for lane in due if lane.rank == rank)
        self._lanes.remove(chosen)
        self._lanes.append(chosen)
        return chosen

    def _received(self, held: Delivery) -> None:
        mine = self._lane.rank
        self._passed[mine] = max(0, self._passed[mine] - (SHARE - 1))
        if self._behind is not None:
            self._passed[self._behind] = min(self._passed[self._behind] + 1, MOST_PASSED)
        if held.envelope.more is not None and held.deliveries <= 1:
            self.look(held.envelope.more)
        self._hand_over(held)

    async def _turn(self) -> None:
        now = self._clock.monotonic()
        if self._all_room() > 0:
            lane = self._choose(now)
            if lane is None:
                await self._wait_for_all(min(one.due for one in self._lanes) - now)
                return
            self._lane, self.queue, self._backoff = lane, lane.queue, lane.backoff
        elif self._claims:
            self._claims = False
            self._after()
        try:
            await super()._turn()
        except StorageError:
            await self._wait()
            for lane in self._lanes:
                lane.full = False  # what cannot be read holds up no other queue
            self._after()
            raise

    def _answered(self) -> None:
        lane = self._lane
        lane.full = self.emptied is None
        if self.emptied is not None:
            self._passed[lane.rank] = 0
        if lane is self._first:
            self._looked = self._clock.monotonic()
        self._claims = self.found
        if self.found:  # the next turn reads it, before those that share the room
            self.emptied, self._waiting = None, self._waiting or self.last_poll
        self._after()

    async def _wait(self) -> None:
        """Note that the lane is empty, and when it is read again. The next turn waits if no lane is due."""
        lane = self._lane
        lane.due = 0.0 if self._woken else self._clock.monotonic() + lane.backoff.next(self._draw)

    async def _wait_for_all(self, seconds: float) -> None:
        self._woken = False
        announced = await self._arrival([lane.queue for lane in self._lanes], seconds)
        for lane in self._lanes:
            if lane.queue in announced:
                lane.announced()
