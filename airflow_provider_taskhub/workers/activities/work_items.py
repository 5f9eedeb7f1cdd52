"""Keeps the work items that this worker has claimed: the reader of the work-item queue, and the slots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.hub.queues.reader import Reader
from airflow_provider_taskhub.workers.activities.slots import Slots


class WorkItems:
    """The work items that this worker has claimed and not yet settled.

    The reader may claim one more work item for each slot that becomes free. So other modules change slots through this
    class, which tells the reader.

    :ivar reader: claims work items, renews their receipts, and gives them back.
    :ivar slots: the work items that run, and those that wait for a slot.
    """

    def __init__(self, reader: Reader, slots: Slots, *, may_claim: Callable[[], bool] = lambda: True) -> None:
        """:param may_claim: whether new work items may take free slots before those that are in queues."""
        self.reader, self.slots, self._may_claim = reader, slots, may_claim
        slots.freed.append(reader.freed)

    @property
    def visibility(self) -> timedelta:
        """The time for which a received work item is hidden from other workers."""
        return self.reader.visibility

    @property
    def claimable(self) -> int:
        """How many new work items this worker may claim at the moment when it puts them into the queue.

        The number is 0 while the reader has had no room for half a second. Otherwise new work items would take every
        free slot, and this worker would never read the older ones in the queue.
        """
        blocked = self.reader.stopping or self.reader.starved or not self._may_claim()
        return 0 if blocked else self.slots.free

    async def next(self) -> Delivery:
        """Wait for the next work item and a slot for it, and return the work item; :meth:`leave` frees the slot."""
        held = await self.slots.take()
        # Of the readers that share the slots, the one that got a slot last is told last of the next one.
        self.slots.freed.remove(self.reader.freed)
        self.slots.freed.append(self.reader.freed)
        self._freed()  # the readers may have paused because this work item waited for a slot
        return held

    def _freed(self) -> None:
        for freed in self.slots.freed:
            freed()

    def leave(self, held: Delivery) -> None:
        """Free the slot of a work item whose activity no longer runs. A second call has no effect."""
        self.slots.leave(held)
        self._freed()

    def pause(self, held: Delivery) -> None:
        """Free the slot of a work item that waits for another worker, until ``slots.resume``.

        A second call has no effect.
        """
        self.slots.pause(held)
        self._freed()

    @contextmanager
    def reserved(self, count: int) -> Iterator[None]:
        """Keep ``count`` slots free until the end of the ``with`` block, for the work items that a commit claims."""
        try:
            with self.slots.reserved(count):
                yield
        finally:
            self._freed()

    async def return_overdue(self) -> None:
        """Give back work items that have waited too long for a slot in this worker. Runs until cancelled."""
        while True:
            await self.reader.give_back(await self.slots.overdue(), begun=False)

    async def return_waiting(self) -> None:
        """Give back all work items that wait for a slot."""
        await self.reader.give_back(self.slots.clear(), begun=False)
