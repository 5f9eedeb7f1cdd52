"""Runs the dispatch loop: fetch an item, process the item, repeat. There are two processors: for orchestrations and for
activities.

The loop limits how many items are processed at once. The processor, not the loop, completes its items or gives them
back. An exception from a processor is a defect: the loop logs the exception with the item, and goes on.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeVar

import structlog

from airflow_provider_taskhub.supervision import Supervisor

log = structlog.get_logger(__name__)

Item = TypeVar("Item")


class Processor(Protocol[Item]):
    """Fetches and processes items of one kind."""

    async def next(self) -> Item:
        """Wait for the next item, and return it."""

    async def process(self, item: Item) -> None:
        """Process an item, and complete the item or give it back."""


class Dispatcher:
    """Processes the items of a processor concurrently.

    :param name: the name of the dispatcher, for the log.
    :param limit: the largest number of items that are processed at once.
    """

    def __init__(self, name: str, processor: Processor[Item], limit: int) -> None:
        self.name = name
        self._processor, self._limit = processor, limit
        self._tasks = Supervisor()
        self._running: set[asyncio.Task[None]] = set()
        self._room = asyncio.Event()

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def free(self) -> int:
        return self._limit - len(self._running)

    async def run(self) -> None:
        """Fetch and process items until cancelled. Items that are being processed then go on (see :meth:`drain`)."""
        while True:
            while self.free <= 0:
                self._room.clear()
                await self._room.wait()
            item = await self._processor.next()
            task = self._tasks.spawn(self._one(item), name=self.name)
            self._running.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._room.set()

    async def _one(self, item: object) -> None:
        try:
            await self._processor.process(item)  # type: ignore[arg-type]  # the item comes from next()
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("dispatch_defect", dispatcher=self.name, item=str(item)[:200])

    async def drain(self, timeout: float) -> None:
        """Wait for the items that are being processed, then cancel the rest.

        :param timeout: the seconds to wait before the rest is cancelled.
        """
        if self._running:
            await asyncio.wait(self._running, timeout=timeout)
        left = list(self._running)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=5.0)
