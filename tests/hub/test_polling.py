"""When a worker looks into its queues: after a stop, for room, and while something is going on elsewhere in the hub."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from datetime import timedelta

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.engine.registry import Registry
from airflow_provider_taskhub.hub.contract import HubNames, Member, WorkerIdentity
from airflow_provider_taskhub.hub.messages.control import Reader
from airflow_provider_taskhub.hub.messages.prefetch import FIRST_POLL, Backoff
from airflow_provider_taskhub.jumping import JumpingClock, run
from airflow_provider_taskhub.settings import AZURE_LEASE, Settings
from airflow_provider_taskhub.storage.primitives import Message, PutMessage
from airflow_provider_taskhub.storage.sqlite import SqliteStore
from airflow_provider_taskhub.testing import InProcess
from airflow_provider_taskhub.workers.backend import POLLS_WHILE_BUSY, Backend

app = App("polled", version="1")


@app.activity
def echo(value: int) -> int:
    return value


@app.orchestrator
async def single(ctx: OrchestrationContext, value: int) -> int:
    result: int = await ctx.call_activity(echo, value)
    return result


class Remote(SqliteStore):
    """A store as Azure is for a worker whose clients are other processes: nothing tells that a message has come."""

    local = False

    def __init__(self, clock: JumpingClock, *, latency: float = 0.0) -> None:
        super().__init__(None, clock=clock)
        self.latency = latency
        self._time = clock

    async def receive(self, queue: str, *, limit: int, visibility: timedelta) -> list[Message]:
        await self._time.sleep(self.latency)
        return await super().receive(queue, limit=limit, visibility=visibility)

    async def arrival(self, queues: Sequence[str], timeout: float) -> bool:
        await self._time.sleep(timeout)
        return False


class Stay:
    """A tenure that nothing ends."""

    epoch, draining = 1, False

    def __init__(self, names: HubNames, partition: int) -> None:
        self.partition, self.queue = partition, names.control(partition)

    def check(self) -> None:
        """Never too old."""

    def drained(self) -> None:
        """Nobody waits for it."""


def reader_of(store: Remote, clock: JumpingClock, *, room: int = 4) -> Reader:
    return Reader(
        store=store,
        names=HubNames("Polled"),
        queue="polled-queue",
        clock=clock,
        visibility=timedelta(seconds=30),
        max_polling=timedelta(seconds=30),
        room=lambda: room,
        deliver=lambda held: None,
    )


@pytest.mark.parametrize("at", [60.2, 75.0], ids=["during a receive", "between two receives"])
def test_a_stop_never_waits_for_the_back_off(at: float) -> None:
    """It ends with the receive under way, though that finds nothing and the queue had been quiet for long."""

    async def scenario() -> float:
        clock = JumpingClock()
        store = Remote(clock, latency=1.0)
        async with store:
            await store.create_queue("polled-queue")
            reader = reader_of(store, clock)
            running = asyncio.create_task(reader.run())
            while clock.monotonic() < at or (at == 60.2 and clock.monotonic() - reader.last_poll > 0.5):
                await clock.sleep(0.1)
            began = clock.monotonic()
            await reader.stop()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            return clock.monotonic() - began

    assert run(scenario()) <= 1.0  # the receive under way


def test_a_message_done_with_is_no_reason_to_look_into_an_empty_queue() -> None:
    async def scenario() -> tuple[int, int]:
        clock = JumpingClock()
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


def test_room_that_comes_back_ends_the_wait_for_it() -> None:
    async def scenario() -> tuple[int, int]:
        clock = JumpingClock()
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


async def starts_in_turn(store: Remote, clock: JumpingClock, count: int, partitions: int) -> tuple[list[float], float]:
    """Latency of each start, in seconds, and receives a second."""
    settings = Settings(hub="Polled", partitions=partitions, lease=AZURE_LEASE)
    registry = Registry.of([app])
    me = WorkerIdentity(name="polled", host="here", incarnation="1")

    async def members() -> tuple[Member, ...]:
        return ()

    client = await Client.over(store, settings, create=True, clock=clock)
    runner = InProcess(registry, {}, None)
    backend = Backend(hub=client.hub, registry=registry, runner=runner, me=me, settings=settings, members=members)
    stays = [Stay(client.hub.names, partition) for partition in range(partitions)]
    backend.start()
    for stay in stays:
        backend.taken(stay)
    found = []
    for value in range(count):
        begun = clock.monotonic()
        started = await client.start("single", value, instance_id=f"instance-{value}")
        while (row := await client.get(started.instance_id)) is None or not row.status.is_final:
            await clock.sleep(0.005)
        found.append(clock.monotonic() - begun)
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
        clock = JumpingClock()
        store = Remote(clock)
        async with store:
            return await starts_in_turn(store, clock, 60, partitions)

    latencies, rate = run(scenario())
    pace = partitions / POLLS_WHILE_BUSY
    assert max(latencies[1:]) <= 3.5 * pace
    assert rate <= 2 * POLLS_WHILE_BUSY


@pytest.mark.parametrize("pace", [0.01, 0.05, 0.1, 0.5, 3.0])
def test_hastening_goes_back_to_the_pace_and_never_forward(pace: float) -> None:
    draw = random.Random(1)
    backoff = Backoff(ceiling=30.0)
    for _ in range(12):
        backoff.next(draw)
    backoff.hasten(pace)
    assert max(pace, FIRST_POLL) * 0.75 <= backoff.next(draw) <= max(pace, FIRST_POLL) * 2.5
    begun = Backoff(ceiling=30.0)
    begun.hasten(pace)
    assert begun.next(draw) == FIRST_POLL
