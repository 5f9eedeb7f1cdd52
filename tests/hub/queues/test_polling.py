"""When a worker looks into its queues: after a stop, for room, and while something is going on elsewhere in the hub."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.engine.events import EventRaised, OrchestrationInstance
from airflow_provider_taskhub.engine.registry import Registry
from airflow_provider_taskhub.hub.model import HubNames, Member, WorkerIdentity
from airflow_provider_taskhub.hub.queues.pacing import (
    FIRST_POLL,
    LONGEST_BATCHING_DELAY,
    PollingBackoff,
    batching_delay,
)
from airflow_provider_taskhub.hub.queues.reader import CONTROL_EVENTS, Reader, ReaderContext
from airflow_provider_taskhub.settings import AZURE_LEASE, Settings
from airflow_provider_taskhub.storage.primitives import Message, PutMessage
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore
from airflow_provider_taskhub.testing import InProcess
from airflow_provider_taskhub.virtual_time import VirtualClock, run
from airflow_provider_taskhub.workers.activities.local_queues import POLLS_WHILE_BUSY
from airflow_provider_taskhub.workers.activities.slots import Slots
from airflow_provider_taskhub.workers.backend import Backend
from airflow_provider_taskhub.workers.peers import Peers
from tests.hub.by_hand import held, raised

app = App("polled", version="1")


@app.activity
def echo(value: int) -> int:
    return value


@app.orchestrator
async def single(ctx: OrchestrationContext, value: int) -> int:
    result: int = await ctx.call_activity(echo, value)
    return result


@app.activity
async def slow(value: int) -> int:
    await asyncio.sleep(0.2)
    return value


@app.orchestrator
async def chain(ctx: OrchestrationContext, length: int) -> int:
    for number in range(length):
        await ctx.call_activity(slow, number)
    return length


class Remote(SqliteStore):
    """A store as Azure is for a worker whose clients are other processes: nothing tells that a message has come."""

    local = False

    def __init__(self, clock: VirtualClock, *, latency: float = 0.0, told: bool = False) -> None:
        """:param told: who puts is a neighbour: the store does tell."""
        super().__init__(None, clock=clock)
        self.latency = latency
        self.receives = 0
        self._time = clock
        self._told = told

    async def receive(self, queue: str, *, limit: int, visibility: timedelta) -> list[Message]:
        self.receives += 1
        await self._time.sleep(self.latency)
        return await super().receive(queue, limit=limit, visibility=visibility)

    async def arrival(self, queues: Sequence[str], timeout: float) -> Sequence[str]:
        if self._told:
            return await super().arrival(queues, timeout)
        await self._time.sleep(timeout)
        return []


class Stay:
    """A tenure that nothing ends."""

    epoch, draining, failover = 1, False, None

    def __init__(self, names: HubNames, partition: int) -> None:
        self.partition, self.queue = partition, names.control(partition)

    def check(self) -> None:
        """Never too old."""

    def drained(self) -> None:
        """Nobody waits for it."""


def context_of(store: Remote, clock: VirtualClock) -> ReaderContext:
    half = timedelta(seconds=30)
    return ReaderContext(store=store, names=HubNames("Polled"), clock=clock, visibility=half, max_polling=half)


def reader_of(store: Remote, clock: VirtualClock, *, room: int = 4) -> Reader:
    return Reader(
        context_of(store, clock),
        queue="polled-queue",
        carries=CONTROL_EVENTS,
        room=lambda: room,
        deliver=lambda held: None,
    )


@pytest.mark.parametrize("at", [60.2, 75.0], ids=["during a receive", "between two receives"])
def test_a_stop_never_waits_for_the_back_off(at: float) -> None:
    """It ends with the receive under way, though that finds nothing and the queue had been quiet for long."""

    async def scenario() -> float:
        clock = VirtualClock()
        store = Remote(clock, latency=1.0)
        async with store:
            await store.create_queue("polled-queue")
            reader = reader_of(store, clock)
            running = asyncio.create_task(reader.run())
            polls = 0
            while clock.monotonic() < at or (at == 60.2 and store.receives == polls):
                polls = store.receives
                await clock.sleep(0.1)
            began = clock.monotonic()
            await reader.stop()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            return clock.monotonic() - began

    assert run(scenario()) <= 1.0  # the receive under way


def test_a_message_done_with_is_no_reason_to_look_into_an_empty_queue() -> None:
    async def scenario() -> tuple[int, int]:
        clock = VirtualClock()
        store = Remote(clock)
        async with store:
            await store.create_queue("polled-queue")
            reader = reader_of(store, clock)
            running = asyncio.create_task(reader.run())
            await clock.sleep(120)
            before = store.requests["queue.receive"]
            for _ in range(100):
                reader.release([])
                reader.freed()
                await clock.sleep(0.01)
            released = store.requests["queue.receive"] - before
            reader.wake()
            await clock.sleep(0.01)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            return released, store.requests["queue.receive"] - before - released

    released, woken = run(scenario())
    assert released <= 1  # the back-off's own
    assert woken == 1


@pytest.mark.parametrize("runs", [True, False])
def test_what_another_worker_must_run_is_no_reason_to_look_again_soon(runs: bool) -> None:
    """Who looks most often would receive it again and again."""

    async def scenario() -> int:
        clock = VirtualClock()
        store = Remote(clock)
        async with store:
            await store.create_queue("polled-queue")
            client = await Client.over(store, Settings(hub="Polled", partitions=1), create=True, clock=clock)
            reader, delivered = reader_of(store, clock), asyncio.Event()
            reader._runs = lambda held: runs
            reader._deliver = lambda held: delivered.set()
            running = asyncio.create_task(reader.run())
            await clock.sleep(120)
            event = EventRaised(timestamp=clock.utc_now(), name="go", input="1")
            message = client.hub.message_to(event, OrchestrationInstance(instance_id="i", execution_id=None))
            await store.execute(replace(message.put(), queue="polled-queue"))
            await delivered.wait()
            before = store.requests["queue.receive"]
            await clock.sleep(20)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            return store.requests["queue.receive"] - before

    assert (run(scenario()) > 5) == runs


def test_room_that_comes_back_ends_the_wait_for_it() -> None:
    async def scenario() -> tuple[int, int]:
        clock = VirtualClock()
        room = 0
        store = Remote(clock)
        async with store:
            await store.create_queue("polled-queue")
            await store.execute(PutMessage(queue="polled-queue", text="no task message"))
            reader = reader_of(store, clock)
            reader._room = lambda: room
            running = asyncio.create_task(reader.run())
            await clock.sleep(100)
            full = store.requests["queue.receive"]
            room = 1
            reader.freed()
            await clock.sleep(0.01)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            return full, store.requests["queue.receive"]

    full, after = run(scenario())
    assert (full, after > 0) == (0, True)


async def starts_in_turn(
    store: Remote, clock: VirtualClock, count: int, partitions: int, *, rest: float = 0.0, orchestrator: str = "single"
) -> tuple[list[float], float]:
    """Latency of each start, in seconds, and receives a second."""
    settings = Settings(hub="Polled", partitions=partitions, lease=AZURE_LEASE)
    registry = Registry.of([app])
    me = WorkerIdentity(name="polled", host="here", incarnation="1")

    async def members() -> tuple[Member, ...]:
        return ()

    client = await Client.over(store, settings, create=True, clock=clock)
    runner = InProcess(registry, {}, None)
    backend = Backend(
        hub=client.hub, registry=registry, runner=runner, me=me, settings=settings, peers=Peers(live=members)
    )
    stays = [Stay(client.hub.names, partition) for partition in range(partitions)]
    backend.start()
    for stay in stays:
        backend.taken(stay)
    found = []
    for value in range(1, count + 1):
        begun = clock.monotonic()
        started = await client.start(orchestrator, value, instance_id=f"instance-{value}")
        while (row := await client.get(started.instance_id)) is None or not row.status.is_final:
            await clock.sleep(0.005)
        found.append(clock.monotonic() - begun)
        await clock.sleep(rest)
    rate = store.requests["queue.receive"] / clock.monotonic()
    await backend.drain(0.0)
    for stay in stays:
        backend.lost(stay, "the test is over")
    await backend.stop()
    return found, rate


@pytest.mark.rows("K38")
@pytest.mark.parametrize("partitions", [4, 40])
def test_starts_in_turn_do_not_wait_for_the_back_off_of_quiet_partitions(partitions: int) -> None:
    """Each queue backs off alone, so that every start found a queue that had been quiet for as many turns as there are
    partitions, and waited as long again: seconds, growing. Bounded, whatever the number of partitions, by a rate."""

    async def scenario() -> tuple[list[float], float]:
        clock = VirtualClock()
        store = Remote(clock)
        async with store:
            return await starts_in_turn(store, clock, 60, partitions)

    latencies, rate = run(scenario())
    pace = partitions / POLLS_WHILE_BUSY
    assert max(latencies[1:]) <= 3.5 * pace
    assert rate <= 2 * POLLS_WHILE_BUSY


@pytest.mark.rows("D24")
@pytest.mark.parametrize(("told", "longest"), [(True, 0.05), (False, 30.0)], ids=["told", "polled"])
def test_a_start_begins_at_once_where_the_store_tells_of_it_and_else_at_the_next_poll(
    told: bool, longest: float
) -> None:
    """Not as D24 says, on purpose: Azure Storage tells no other machine of a message, so that machine polls."""

    async def scenario() -> list[float]:
        clock = VirtualClock()
        async with Remote(clock, told=told) as store:
            return (await starts_in_turn(store, clock, 3, 1, rest=300.0))[0]

    latencies = run(scenario())
    assert max(latencies[1:]) <= longest + 0.5 * (not told)
    assert told or min(latencies[1:]) > 0.5, "the queue had been quiet for minutes"


def test_a_start_that_the_store_has_told_of_is_no_reason_to_look_into_the_other_queues() -> None:
    """Forty queues, sixty starts in turn: ten looks for each of the
    hundred at most, as their back-offs begin."""

    async def scenario() -> tuple[list[float], int]:
        clock = VirtualClock()
        async with Remote(clock, told=True) as store:
            latencies, _ = await starts_in_turn(store, clock, 60, 40, rest=0.6)
            return latencies, store.requests["queue.receive"]

    latencies, looks = run(scenario())
    assert max(latencies) <= 0.05
    assert looks <= 10 * (40 + 60)


def test_responses_that_a_worker_gives_to_itself_are_no_reason_to_look_into_the_other_queues() -> None:
    """Eleven chains that nobody told of: each ends the back-offs as it is found, and not with each of its steps."""

    async def scenario() -> int:
        clock = VirtualClock()
        async with Remote(clock) as store:
            await starts_in_turn(store, clock, 11, 40, orchestrator="chain")
            return store.requests["queue.receive"]

    assert run(scenario()) <= 1250


async def trickle(latency: float, every: float, count: int) -> tuple[list[float], int]:
    """When each of some messages was delivered after its put, and how many receives that took."""
    clock = VirtualClock()
    store, came, delivered = Remote(clock, latency=latency, told=True), [], []
    async with store:
        await store.create_queue("polled-queue")
        client = await Client.over(store, Settings(hub="Polled", partitions=1), create=True, clock=clock)
        reader = reader_of(store, clock, room=32)
        reader._deliver = lambda held: delivered.append(clock.monotonic())
        running = asyncio.create_task(reader.run())
        await clock.sleep(60.0)
        before = store.requests["queue.receive"]
        for number in range(count):
            instance = OrchestrationInstance(instance_id=f"i{number}", execution_id=None)
            message = client.hub.message_to(EventRaised(timestamp=clock.utc_now(), name="go", input="1"), instance)
            await store.execute(replace(message.put(), queue="polled-queue"))
            came.append(clock.monotonic())
            await clock.sleep(every)
        await clock.sleep(5 * latency)
        receives = store.requests["queue.receive"] - before
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return [late - early for early, late in zip(came, delivered, strict=True)], receives


def test_a_quick_store_is_asked_for_each_message_and_a_slow_one_for_many_at_once() -> None:
    """An emulator whose every answer takes 0.1 s is busy: what comes in that time comes with one receive."""
    quick, asked = run(trickle(0.002, 0.02, 50))
    assert max(quick) <= 0.02
    assert asked <= 55, "an answer that held all that there was is not asked for again at once"
    slow, seldom = run(trickle(0.1, 0.02, 50))
    assert max(slow) <= 4 * 0.1 + 0.01
    assert seldom <= 8


def test_a_stop_does_not_wait_for_a_breather() -> None:
    assert [batching_delay(took) for took in (0.0, 0.01, 10.0)] == [0.0, 0.02, LONGEST_BATCHING_DELAY]

    async def scenario() -> float:
        clock = VirtualClock()
        async with Remote(clock, latency=0.1) as store:
            await store.create_queue("polled-queue")
            await store.execute(PutMessage(queue="polled-queue", text="no task message"))
            reader = reader_of(store, clock)
            running = asyncio.create_task(reader.run())
            await clock.sleep(0.15)  # in the middle of it
            began = clock.monotonic()
            await reader.stop()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            return clock.monotonic() - began

    assert run(scenario()) == 0.0


@pytest.mark.parametrize(
    ("ended", "running", "waiting", "room"),
    [
        (0, 0, 0, 4),
        (0, 3, 0, 1),
        (0, 4, 0, 0),
        (0, 4, 1, 0),
        (20, 4, 0, 20),
        (20, 4, 9, 0),
        (20, 4, 8, 12),
        (200, 4, 180, 20),
    ],
)
def test_work_items_are_asked_for_by_the_many_unless_a_slot_is_idle(
    ended: int, running: int, waiting: int, room: int
) -> None:
    """Four slots. What has ended within a moment may be taken ahead; while some of that still waits, a receive of a
    few more is put off."""

    async def scenario() -> int:
        slots = Slots(4, VirtualClock())
        for _ in range(ended):
            slots.put(held(raised()))
            slots.leave(await slots.take())
        for _ in range(running + waiting):
            slots.put(held(raised()))
        for _ in range(running):
            await slots.take()
        return slots.room

    assert run(scenario()) == room


def test_who_received_what_another_worker_must_run_does_not_look_at_the_same_beat_again() -> None:
    """Else of two workers the same one would look first each time, and only that one would find anything."""
    draw, backoff = random.Random(1), PollingBackoff(ceiling=30.0)
    waits = []
    for _ in range(60):
        backoff.shift()
        waits += [backoff.next(draw), backoff.next(draw)]
    assert 24.0 <= min(waits[40::2]) < 25.0
    assert 29.0 < max(waits[40::2]) <= 30.0
    assert set(waits[41::2]) == {30.0}, "once: an idle queue costs two looks a minute"


@pytest.mark.parametrize("pace", [0.01, 0.05, 0.1, 0.5, 3.0])
def test_hastening_goes_back_to_the_pace_and_never_forward(pace: float) -> None:
    draw = random.Random(1)
    backoff = PollingBackoff(ceiling=30.0)
    for _ in range(12):
        backoff.next(draw)
    backoff.hasten(pace)
    assert max(pace, FIRST_POLL) * 0.75 <= backoff.next(draw) <= max(pace, FIRST_POLL) * 2.5
    begun = PollingBackoff(ceiling=30.0)
    begun.hasten(pace)
    assert begun.next(draw) == FIRST_POLL
