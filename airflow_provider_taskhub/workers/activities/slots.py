"""Slots for activities, and the work items that wait in memory for a slot.

A worker takes more work items than it has free slots. Otherwise it would wait for the store between two short
activities. The number of extra work items is the number of activities that have ended within the last :data:`MOMENT`.
Long activities seldom end, so the worker takes almost no extra work items, and other workers can take them. A work item
that waits for more than :data:`PATIENCE` is given back.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.storage.primitives import MAX_RECEIVE

MOMENT = 0.25
"""Seconds. The number of extra work items is the number of activities that have ended within this time."""
MAX_AHEAD = 256
"""The largest number of extra work items that the worker takes."""
PATIENCE = 1.0
"""Seconds after which a work item that waits for a slot is given back, so that another worker can take it."""


class Slots:
    """The slots of a worker, and the work items that wait for a slot.

    :param limit: the number of activities that may run at once.
    :param shared: slots that these are the same as: an activity that runs here takes one of those, too. Each of the two
        has its own work items that wait. None: these slots are nobody else's.
    """

    def __init__(self, limit: int, clock: Clock, *, shared: Slots | None = None) -> None:
        self.limit, self._clock = limit, clock
        self.may: Callable[[], bool] = lambda: True
        """Whether a work item of these may take a slot now."""
        self.took: Callable[[], None] = lambda: None
        """Called after a work item of these got a slot."""
        self.may_resume: Callable[[], bool] = lambda: True
        """Whether a paused work item of these may take a slot now."""
        self.left: Callable[[], None] = lambda: None
        """Called after a work item of these has freed its slot, or does not wait for one any more."""
        self._running: set[Delivery] = set() if shared is None else shared._running
        self._waiting: deque[tuple[float, Delivery]] = deque()
        self._ended: deque[float] = deque(maxlen=MAX_AHEAD) if shared is None else shared._ended
        self._reserved: list[int] = [] if shared is None else shared._reserved
        """For each commit under way, how many slots are kept free for what it claims."""
        self._resuming: set[Delivery] = set() if shared is None else shared._resuming
        """Paused work items that wait for a slot, see :meth:`resume`."""
        self._changed: asyncio.Event = asyncio.Event() if shared is None else shared._changed
        self._turns: Iterator[int] = itertools.count() if shared is None else shared._turns
        self._last = next(self._turns)
        """The number of the last work item of these that got a slot, among those of all that share the slots."""
        self._takers: list[Slots] = [] if shared is None else shared._takers
        """Of all that share these slots: those whose :meth:`take` waits for a work item or a slot."""
        self.freed: list[Callable[[], None]] = [] if shared is None else shared.freed
        """Called when a slot may have become free: they let readers receive work items for it."""
        self._arrived = asyncio.Event()

    @property
    def waiting(self) -> bool:
        """Whether a work item waits for a slot."""
        return bool(self._waiting)

    @property
    def waits(self) -> int:
        """How many work items wait for a slot."""
        return len(self._waiting)

    @property
    def busy(self) -> int:
        return len(self._running)

    @property
    def running(self) -> Set[Delivery]:
        """The work items that have a slot, of all that share the slots."""
        return self._running

    @property
    def resuming(self) -> Set[Delivery]:
        """The paused work items that wait for a slot, of all that share the slots."""
        return self._resuming

    @property
    def full(self) -> bool:
        """Whether every slot is taken, or kept for a paused work item."""
        return len(self._running) + len(self._resuming) >= self.limit

    @property
    def free(self) -> int:
        """How many more work items this worker may take, the extra ones included."""
        since = self._clock.monotonic() - MOMENT
        while self._ended and self._ended[0] < since:
            self._ended.popleft()
        taken = len(self._running) + len(self._waiting) + sum(self._reserved)
        return max(0, self.limit + len(self._ended) - taken)

    @contextmanager
    def reserved(self, count: int) -> Iterator[None]:
        """Keep ``count`` slots free until the end of the ``with`` block.

        Otherwise two episodes could claim work items for the same free slots.
        """
        self._reserved.append(count)
        try:
            yield
        finally:
            self._reserved.remove(count)

    @property
    def room(self) -> int:
        """How many work items to ask the store for now.

        While a work item waits for a slot, all slots are busy. Then the worker waits until it can ask for many work
        items, because receiving a few costs about as much as receiving many.
        """
        free = self.free
        enough = min(MAX_RECEIVE, self.limit + len(self._ended)) // 2
        return 0 if self._waiting and free < enough else free

    def put(self, held: Delivery) -> None:
        """Add a work item, which waits for a slot from now on."""
        self._waiting.append((self._clock.monotonic(), held))
        self._changed.set()
        self._arrived.set()

    async def take(self) -> Delivery:
        """Wait for a work item and a free slot. Return the work item, which keeps the slot until :meth:`leave`.

        Of several that share the slots, the one whose first work item has waited longest gets the next slot, unless it
        may not (:attr:`may`).
        """
        self._takers.append(self)
        try:
            while not self._waiting or not self._is_next():
                # Without a work item, no slot matters: what happens to the others that share them wakes nobody here.
                event = self._changed if self._waiting else self._arrived
                event.clear()
                await event.wait()
        finally:
            self._takers.remove(self)
        _, held = self._waiting.popleft()
        self._last = next(self._turns)
        self._running.add(held)
        self.took()
        self._changed.set()  # another one may be the next now
        return held

    def _is_next(self) -> bool:
        if self.full or not self.may():
            return False
        return self._claim <= min(other._claim for other in self._takers if other._waiting and other.may())

    @property
    def _claim(self) -> tuple[float, int]:
        """What is smallest of those that share the slots if these get the next one. Several work items may have come at
        the same moment."""
        return self._waiting[0][0], self._last

    def leave(self, held: Delivery) -> None:
        """Free the slot of a work item. A second call has no effect."""
        if held in self._running:
            self._running.remove(held)
            self._ended.append(self._clock.monotonic())
            self._freed()

    def pause(self, held: Delivery) -> None:
        """Free the slot of a work item that waits for another worker, until :meth:`resume`.

        A second call has no effect.
        """
        if held in self._running:
            self._running.remove(held)
            self._freed()

    async def resume(self, held: Delivery) -> None:
        """Wait for a slot for a paused work item. Paused work items get slots before work items that are new."""
        self._resuming.add(held)
        try:
            while len(self._running) >= self.limit or not self.may_resume():
                self._changed.clear()
                await self._changed.wait()
            self._running.add(held)
        finally:
            self._resuming.discard(held)
            self._freed()

    def _freed(self) -> None:
        self.look()
        self.left()

    def look(self) -> None:
        """Let those that wait for a slot look whether they may take one now."""
        self._changed.set()

    def clear(self) -> list[Delivery]:
        """Remove and return all waiting work items; the caller gives them back."""
        left = [held for _, held in self._waiting]
        self._waiting.clear()
        self._changed.set()
        return left

    async def overdue(self) -> list[Delivery]:
        """Wait until work items have waited for longer than :data:`PATIENCE`; remove and return these work items.

        The caller gives them back.
        """
        while True:
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            await self._clock.sleep(PATIENCE)
            since = self._clock.monotonic() - PATIENCE
            late = []
            while self._waiting and self._waiting[0][0] <= since:
                late.append(self._waiting.popleft()[1])
            if late:
                self._changed.set()
                return late
