"""This worker's share of the work-item queue: the reader of the queue, and the slots that activities run in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.hub.queues.reader import Reader
from airflow_provider_taskhub.workers.activities.slots import Slots


class WorkItems:
    """Work items in this worker's hands.

    A slot that becomes free is room for the reader, so the two are used through this class only.

    :ivar reader: claims work items, renews them, and gives them back.
    :ivar slots: which of them run, and which wait for a slot.
    """

    def __init__(self, reader: Reader, slots: Slots) -> None:
        self.reader, self.slots = reader, slots

    @property
    def visibility(self) -> timedelta:
        """For how long a receipt is asked for."""
        return self.reader.visibility

    @property
    def claimable(self) -> int:
        """How many new work items this worker may claim while it puts them.

        None while the queue waits for its turn: the work items that stand in it would never be read.
        """
        return 0 if self.reader.stopping or self.reader.starved else self.slots.free

    async def next(self) -> Delivery:
        """The next work item, once it has a slot; :meth:`leave` frees the slot."""
        held = await self.slots.take()
        self.reader.freed()  # what made it wait for a slot may have kept the reader from asking for more
        return held

    def leave(self, held: Delivery) -> None:
        """Free the slot of a work item: only the store has work with it now. A second call has no effect."""
        self.slots.leave(held)
        self.reader.freed()

    def pause(self, held: Delivery) -> None:
        """Free the slot of a work item that only waits, until ``slots.resume``. A second call has no effect."""
        self.slots.pause(held)
        self.reader.freed()

    @contextmanager
    def reserved(self, count: int) -> Iterator[None]:
        """Keep slots free for so many work items until the end of the block; fewer of them may come."""
        try:
            with self.slots.reserved(count):
                yield
        finally:
            if count:
                self.reader.freed()

    async def return_overdue(self) -> None:
        """Give back work items that have waited too long for a slot here. Runs for ever."""
        while True:
            await self.reader.give_back(await self.slots.overdue(), begun=False)

    async def return_waiting(self) -> None:
        """Give back the work items that wait for a slot."""
        await self.reader.give_back(self.slots.clear(), begun=False)
