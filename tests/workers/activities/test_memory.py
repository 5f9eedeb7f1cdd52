"""The memory of a worker is counted from the work items that have slots."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from airflow_provider_taskhub.virtual_time import VirtualClock
from airflow_provider_taskhub.workers.activities.memory import MemoryShare, WorkerMemory
from airflow_provider_taskhub.workers.activities.slots import Slots
from tests.simulation.world import simulate


@dataclass(eq=False)
class Item:
    queue: str


class Worker:
    """Slots of a worker with 10 units of memory: of an activity that needs 6, and of a Spark activity that needs 5."""

    def __init__(self) -> None:
        clock: Any = VirtualClock()
        hub: Any = type("H", (), {"clock": clock})()
        kinds = Slots(3, clock), Slots(3, clock)
        self.memory = WorkerMemory(10, kinds, hub)
        self.slots: dict[str, Slots] = {}
        self.shares: dict[str, MemoryShare] = {}
        for queue, need, kind in (("six", 6, 0), ("five", 5, 1)):
            reader: Any = type("R", (), {"queues": (queue,), "emptied": None})()
            self.slots[queue] = Slots(3, clock, shared=kinds[kind])
            self.shares[queue] = self.memory.share(reader, self.slots[queue], need)

    def put(self, queue: str) -> Any:
        item: Any = Item(queue)
        self.slots[queue].put(item)
        return item

    def taking(self, queue: str) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(self.slots[queue].take())


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize("how", ["leave", "pause"])
def test_what_gives_its_slot_back_gives_its_memory_back_to_both_kinds(how: str) -> None:
    async def main() -> None:
        worker = Worker()
        first, second = worker.put("six"), worker.put("five")
        assert await worker.taking("six") is first
        waits = worker.taking("five")
        await turns()
        assert not waits.done()
        assert (worker.memory.used, worker.memory.free, worker.shares["five"].room()) == (6, 4, 0)
        getattr(worker.slots["six"], how)(first)
        getattr(worker.slots["six"], how)(first)
        assert await waits is second
        assert worker.memory.used == 5

    simulate(main)


def test_what_was_paused_waits_for_memory_and_comes_before_what_is_new() -> None:
    async def main() -> None:
        worker = Worker()
        paused, other = worker.put("six"), worker.put("five")
        await worker.taking("six")
        worker.slots["six"].pause(paused)
        await worker.taking("five")
        back = asyncio.get_running_loop().create_task(worker.slots["six"].resume(paused))
        new = worker.put("five")
        waits = worker.taking("five")
        await turns()
        assert not back.done()
        assert worker.memory.used == 5
        worker.slots["five"].leave(other)
        await back
        await turns()
        assert worker.memory.used == 6
        assert not waits.done()
        worker.slots["six"].leave(paused)
        assert await waits is new

    simulate(main)


def test_a_paused_one_that_gives_up_keeps_nothing() -> None:
    async def main() -> None:
        worker = Worker()
        paused, other = worker.put("six"), worker.put("five")
        await worker.taking("six")
        worker.slots["six"].pause(paused)
        await worker.taking("five")
        back = asyncio.get_running_loop().create_task(worker.slots["six"].resume(paused))
        worker.put("five")
        waits = worker.taking("five")
        await turns()
        back.cancel()
        await waits
        assert worker.memory.used == 10
        assert other

    simulate(main)


def test_one_event_loop_turn_cannot_give_the_same_memory_twice() -> None:
    async def main() -> None:
        worker = Worker()
        for queue in ("six", "five"):
            worker.put(queue)
        taking = [worker.taking("six"), worker.taking("five")]
        await turns()
        assert sum(task.done() for task in taking) == 1
        assert worker.memory.used <= worker.memory.total

    simulate(main)
