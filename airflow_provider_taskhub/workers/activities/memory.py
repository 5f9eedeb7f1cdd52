"""Shares out the memory of a worker among the activities that say what they need, as ``@app.activity(memory="4g")``.

The attempts that run at once never need more than the worker has. What runs is counted when a slot is taken, from the
work items that have slots. The calls of each of these activities wait in queues of the activity. While there is no
memory for one more, the worker does not read them.

Small needs would keep a large one waiting for ever, because the memory that one of them frees is enough for the next
one. So the activity that has had no memory for longest gets its turn: no other activity with a need takes memory until
one of its calls has got a slot, or until nothing waits in its queues any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence, Set

from airflow_provider_taskhub.errors import NotFound, StorageError
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.hub.queues.lane_reader import LaneReader
from airflow_provider_taskhub.workers.activities.slots import Slots

PATIENCE = 5.0
"""Seconds for which an activity has no memory before it may get its turn. Also the time between two looks, each of
which asks some queues whether something waits there. There are looks only while an activity has no memory."""
MOST_ASKED = 8
"""Of how many activities a look asks the queues at most, until one has a call."""


class WorkerMemory:
    """The memory of a worker.

    :param total: how many bytes it has for the activities that say what they need.
    :param kinds: the slots of plain activities, and those of Spark activities.
    """

    def __init__(self, total: int, kinds: Sequence[Slots], hub: Hub) -> None:
        self.total, self._kinds, self._hub = total, kinds, hub
        self._shares: list[MemoryShare] = []
        """The activities of this worker that say what they need."""
        self._need_of: dict[str, int] = {}
        """By the name of a queue, how many bytes an attempt of its activity needs."""
        self._turn: MemoryShare | None = None
        """The activity whose turn it is: no other one gets memory now."""
        self._unanswered = False
        """Whether the store did not say at the last look whether its queue has a call."""
        self._lacking = asyncio.Event()
        self._ran: list[Set[Delivery]] = []
        """The work items that had slots at the last look, by kind."""

    def share(
        self, reader: LaneReader, slots: Slots, need: int, *, has_place: Callable[[], bool] = lambda: True
    ) -> MemoryShare:
        """Make an activity share the memory of the worker.

        :param reader: reads the queues of the activity.
        :param slots: its slots, shared with those of its kind.
        :param need: how many bytes one attempt needs.
        :param has_place: whether an attempt may run as far as the limit of the activity is concerned.
        """
        kind = next(kind for kind in self._kinds if kind.running is slots.running)
        made = MemoryShare(self, reader, slots, kind, need, has_place)
        self._shares.append(made)
        self._need_of.update(dict.fromkeys(reader.queues, need))
        slots.may, slots.may_resume, slots.took, slots.left = made.fits, made.fits_again, made.took, self.freed
        return made

    @property
    def used(self) -> int:
        """How many bytes the attempts need that run now."""
        return sum(self._needs(kind.running) for kind in self._kinds)

    @property
    def free(self) -> int:
        """How many bytes new attempts may take. Paused attempts that wait for memory come first."""
        first = sum(self._needs(kind.resuming) for kind in self._kinds if len(kind.running) < kind.limit)
        return self.total - self.used - first

    @property
    def unpromised(self) -> int:
        """How many of these bytes no received call waits for."""
        return self.free - sum(share.need * share.slots.waits for share in self._shares)

    def _needs(self, items: Set[Delivery]) -> int:
        return sum(self._need_of.get(held.queue, 0) for held in items)

    def is_held_up(self, share: MemoryShare) -> bool:
        """Return whether it is the turn of another activity."""
        return self._turn is not None and self._turn is not share

    def lacks(self, share: MemoryShare) -> None:
        """Note that an activity has no memory, and begin to look for the one that has had none for longest."""
        if share.since is None:
            share.since = self._hub.clock.monotonic()
            self._lacking.set()

    def took(self, share: MemoryShare) -> None:
        """Note that an attempt of an activity has begun: if it was its turn, the turn is over."""
        share.since = None
        if self._turn is share:
            self._end_turn()

    def _end_turn(self) -> None:
        self._turn = None
        self.freed()

    def freed(self) -> None:
        """Let those that wait for memory look whether there is enough now. They may be of both kinds."""
        for kind in self._kinds:
            kind.look()
            for freed in kind.freed:
                freed()

    async def run(self) -> None:
        """Give turns while an activity has no memory. Runs until cancelled."""
        while True:
            if all(share.since is None for share in self._shares):
                self._lacking.clear()
                await self._lacking.wait()
                self._note()
            await self._hub.clock.sleep(PATIENCE)
            await self._look()
            self._note()

    def _note(self) -> None:
        self._ran = [frozenset(kind.running) for kind in self._kinds]

    async def _look(self) -> None:
        """Give the turn to the activity that has waited for longest, or take it from one that has nothing to run."""
        now = self._hub.clock.monotonic()
        if (turn := self._turn) is not None:
            waiting = await self._is_waiting(turn) if self._may_begin(turn) else False
            if waiting or (waiting is None and not self._unanswered):
                self._unanswered = waiting is None
            elif self._turn is turn:
                turn.since = None
                self._end_turn()
            return
        for share in self._shares:
            if share.is_idle:
                share.since = None
        lacking = [share for share in self._shares if self._may_begin(share) and share.waited(now) >= PATIENCE]
        for share in sorted(lacking, key=lambda share: -share.waited(now))[:MOST_ASKED]:
            waiting = await self._is_waiting(share)
            if share.since is None:  # an attempt has begun meanwhile
                return
            if waiting:
                self._turn, self._unanswered = share, False
                return
            share.since = self._hub.clock.monotonic()

    def _may_begin(self, share: MemoryShare) -> bool:
        """Return whether only memory keeps an activity from running.

        Slots that are all taken for a moment do not: then its turn would never come. But nobody waits for an activity
        whose slots have all been taken since the last look by work that does not end.
        """
        ran = self._ran[self._kinds.index(share.kind)]
        return share.has_place() and not (share.kind.full and ran <= share.kind.running)

    async def _is_waiting(self, share: MemoryShare) -> bool | None:
        """Return whether a call of an activity waits, and let its queue be read soon. None: the store does not say."""
        if share.slots.waiting:
            return True
        for queue in share.reader.queues:
            try:
                if await self._hub.store.peek(queue, limit=1):
                    share.reader.look(queue)  # it may be in a long pause between two polls
                    return True
            except NotFound:
                continue
            except StorageError:
                return None
        return False


class MemoryShare:
    """What an activity gets of the memory of a worker. The parameters are those of :meth:`WorkerMemory.share`.

    :ivar since: monotonic time since when no attempt of the activity could begin for lack of memory; None: the last one
        could. It says nothing about whether one waits.
    """

    def __init__(
        self,
        memory: WorkerMemory,
        reader: LaneReader,
        slots: Slots,
        kind: Slots,
        need: int,
        has_place: Callable[[], bool],
    ) -> None:
        self._memory, self.reader, self.slots, self.kind, self.need = memory, reader, slots, kind, need
        self.has_place = has_place
        self.since: float | None = None

    def room(self) -> int:
        """Return for how many more calls of the activity there is memory."""
        if not self.fits():
            self._memory.lacks(self)
            return 0
        return 0 if self.slots.waiting else max(0, self._memory.unpromised // self.need)

    def fits(self) -> bool:
        """Return whether a new attempt may take memory now."""
        return self.need <= self._memory.free and not self._memory.is_held_up(self)

    def fits_again(self) -> bool:
        """Return whether a paused attempt may take memory now."""
        return self.need <= self._memory.total - self._memory.used

    def took(self) -> None:
        """Note that an attempt has begun."""
        self._memory.took(self)

    def waited(self, now: float) -> float:
        """Return for how many seconds no attempt could begin for lack of memory; 0: one could."""
        return 0.0 if self.since is None or self.fits() else now - self.since

    @property
    def is_idle(self) -> bool:
        """Whether there is memory, and the queue was empty when it was last read."""
        return self.fits() and not self.slots.waiting and self.reader.emptied is not None
