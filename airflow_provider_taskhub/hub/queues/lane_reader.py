"""The reader of the lanes of a kind of activities: one queue after the other, so that none waits behind another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from airflow_provider_taskhub.errors import StorageError
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.hub.queues.pacing import PollingBackoff
from airflow_provider_taskhub.hub.queues.reader import WORK_EVENTS, Reader, ReaderContext

SHARE = 8
"""While work of a higher priority waits, work of a lower priority gets one of this number of turns."""
SELDOM, FOREIGN = 2, 20
"""A lane that stays empty is polled so many times more rarely than other queues, because most lanes are not used. The
second number is for lanes into which only workers with other code put something."""
UNUSED = 20
"""After this number of empty receives, the pause between two receives has its full length."""


@dataclass(slots=True, eq=False)
class _Lane:
    """One of the queues.

    :ivar due: monotonic time at which the queue is read next.
    :ivar full: whether the queue may have messages: the last receive did not empty it, or somebody has put some.
    """

    queue: str
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
        runs: Callable[[Delivery], bool],
    ) -> None:
        super().__init__(
            context, queue=lanes[0], carries=WORK_EVENTS, room=room, deliver=deliver, polled=self._answered, runs=runs
        )
        self._after = polled
        self.name = f"lanes {lanes[0]} …"
        longest = context.max_polling.total_seconds()
        ceiling = (SELDOM if own else FOREIGN) * longest
        # Most lanes are never used: after one look at the beginning they are polled seldom.
        self._lanes = [_Lane(queue, PollingBackoff(ceiling=ceiling, empty=UNUSED)) for queue in lanes]
        self._low = self._lane = self._lanes[-1]
        if own:  # no call in the first queue tells of those of low priority
            self._low.backoff.ceiling = longest
        self._passed = 0
        """How often another lane was read although the lane of low priority was due, too."""

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
        others = [lane for lane in due if lane is not self._low]
        if not others or (self._low in due and self._passed >= SHARE - 1):
            self._passed = 0
            return self._low if due else None
        if self._low in due:
            self._passed += 1
        # The one that had its turn longest ago: the chosen one goes behind the others.
        self._lanes.remove(others[0])
        self._lanes.insert(len(self._lanes) - 1, others[0])
        return others[0]

    async def _turn(self) -> None:
        now = self._clock.monotonic()
        if self._room() > 0:
            lane = self._choose(now)
            if lane is None:
                await self._wait_for_all(min(one.due for one in self._lanes) - now)
                return
            self._lane, self.queue, self._backoff = lane, lane.queue, lane.backoff
        try:
            await super()._turn()
        except StorageError:
            await self._wait()
            for lane in self._lanes:
                lane.full = False  # what cannot be read holds up no other queue
            self._after()
            raise

    def _answered(self) -> None:
        self._lane.full = self.emptied is None
        self._after()

    async def _wait(self) -> None:
        """Note that the lane is empty, and when it is read again. The next turn waits if no lane is due."""
        lane = self._lane
        lane.due = 0.0 if self._woken else self._clock.monotonic() + lane.backoff.next(self._draw)

    async def _wait_for_all(self, seconds: float) -> None:
        self._woken = False
        if await self._arrival([lane.queue for lane in self._lanes], seconds):
            for lane in self._lanes:
                lane.announced()
