"""The short way of messages between a worker's own sessions and activities."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.clock import SYSTEM_CLOCK
from airflow_provider_taskhub.hub.model import HubNames
from airflow_provider_taskhub.settings import Settings
from airflow_provider_taskhub.supervision import Supervisor
from airflow_provider_taskhub.workers.activities.local_queues import LocalQueues
from airflow_provider_taskhub.workers.activities.slots import Slots
from airflow_provider_taskhub.workers.activities.work_items import WorkItems

NAMES = HubNames("Local")
CONTROL = NAMES.control(0)
VISIBILITY = timedelta(seconds=30)


class Message:
    """A claimed message, or a response that is offered."""

    def __init__(self, queue: str, *, claim: timedelta | None = VISIBILITY, age: float = 0.0) -> None:
        self.queue, self.claim = queue, claim
        self.claimed = SYSTEM_CLOCK.monotonic() - age


class StandIn:
    """Stands in for a reader of a queue."""

    visibility = VISIBILITY

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.stopping = self.starved = False
        self.buffered = self.buffered_bytes = 0
        self.taken: list[Message] = []
        self.returned: list[Message] = []
        self.polls = 0

    def adopt(self, held: Message) -> None:
        self.taken.append(held)

    offer = adopt

    def freed(self) -> None:
        """There is room."""

    def poll_soon(self, pace: float) -> None:
        self.polls += 1

    async def give_back(self, messages: list[Message], *, begun: bool) -> None:
        assert not begun
        self.returned += messages


class Bench:
    def __init__(self, *, takes_work: bool = True, slots: int = 2) -> None:
        self.work: Any = StandIn(NAMES.work_items)
        self.control: Any = StandIn(CONTROL)
        self.supervisor = Supervisor()
        self.spark: Any = StandIn(NAMES.spark_work_items)
        self.items = WorkItems(self.work, Slots(slots, SYSTEM_CLOCK))
        self.spark_items = WorkItems(self.spark, Slots(1, SYSTEM_CLOCK))
        self.queues = LocalQueues(
            (self.items, self.spark_items),
            takes_work=takes_work,
            settings=Settings(hub="Local", buffer=10, buffer_bytes=65_536),
            clock=SYSTEM_CLOCK,
            supervisor=self.supervisor,
        )
        self.queues.add(self.control)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    await made.supervisor.close()


async def test_as_many_messages_are_claimed_as_there_is_room_for(bench: Bench) -> None:
    bench.control.buffered = 7
    assert bench.queues.claimable(CONTROL) == (3, VISIBILITY)
    assert bench.queues.claimable(NAMES.work_items) == (2, VISIBILITY)
    assert bench.queues.claimable(NAMES.spark_work_items) == (1, VISIBILITY)
    assert bench.queues.claimable(NAMES.control(1)) == (0, VISIBILITY), "another worker serves it"


@pytest.mark.parametrize("state", ["stopping", "starved"])
async def test_nothing_is_claimed_from_a_queue_that_stops_or_waits_for_its_turn(bench: Bench, state: str) -> None:
    for reader in (bench.control, bench.work):
        setattr(reader, state, True)
    assert bench.queues.claimable(CONTROL)[0] == bench.queues.claimable(NAMES.work_items)[0] == 0
    response: Any = Message(CONTROL)
    assert not bench.queues.offer(response)


async def test_a_worker_that_runs_no_activities_claims_no_work_items() -> None:
    assert Bench(takes_work=False).queues.claimable(NAMES.work_items)[0] == 0


async def test_slots_are_reserved_for_claimed_work_items_alone(bench: Bench) -> None:
    messages: Any = [Message(NAMES.work_items), Message(NAMES.work_items, claim=None), Message(CONTROL)]
    with bench.queues.reserved(messages):
        assert (bench.items.slots.free, bench.spark_items.slots.free) == (1, 1)
    with bench.queues.reserved([*messages, Message(NAMES.spark_work_items)]):
        assert (bench.items.slots.free, bench.spark_items.slots.free) == (1, 0)
    assert (bench.items.slots.free, bench.spark_items.slots.free) == (2, 1)


async def test_claimed_messages_reach_their_readers_and_the_others_go_back(bench: Bench) -> None:
    own, work, foreign = Message(CONTROL), Message(NAMES.work_items), Message(NAMES.control(1))
    claimed: Any = [own, work, foreign]
    bench.queues.hand_over(claimed)
    await asyncio.sleep(0)
    assert (bench.control.taken, bench.work.taken, bench.work.returned) == ([own], [work], [foreign])


async def test_a_message_whose_claim_ends_soon_goes_back(bench: Bench) -> None:
    """Another worker may receive it before this worker has renewed the claim."""
    fresh, old, over = (Message(CONTROL, age=age) for age in (10.0, 20.0, 40.0))
    claimed: Any = [fresh, old, over]
    bench.queues.hand_over(claimed)
    await asyncio.sleep(0)
    assert (bench.control.taken, bench.work.returned) == ([fresh], [old, over])


async def test_a_work_item_without_a_slot_goes_back(bench: Bench) -> None:
    work: Any = Message(NAMES.work_items)
    with bench.items.slots.reserved(2):
        bench.queues.hand_over([work])
    await asyncio.sleep(0)
    assert (bench.work.taken, bench.work.returned) == ([], [work])


async def test_a_response_is_offered_until_the_buffer_is_full(bench: Bench) -> None:
    response: Any = Message(CONTROL)
    assert bench.queues.offer(response)
    bench.control.buffered_bytes = 65_536
    assert not bench.queues.offer(response)
    assert bench.control.taken == [response]
    assert bench.queues.remove(bench.control)
    assert not bench.queues.remove(bench.control)
    bench.control.buffered_bytes = 0
    assert not bench.queues.offer(response), "another worker serves it now"


async def test_the_reader_of_a_later_tenure_is_not_removed_with_the_earlier_one(bench: Bench) -> None:
    later: Any = StandIn(CONTROL)
    bench.queues.add(later)
    assert not bench.queues.remove(bench.control)
    assert bench.queues.get(CONTROL) is later


async def test_a_find_in_one_partition_polls_all_but_not_too_often(bench: Bench) -> None:
    other: Any = StandIn(NAMES.control(1))
    bench.queues.add(other)
    bench.queues.poll_soon()
    bench.queues.poll_soon()
    assert (bench.control.polls, other.polls) == (1, 1)
