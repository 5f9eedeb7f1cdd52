"""Events arrive in the order in which they were sent: those of one sender, and one that answers another's."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext, RetryPolicy
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.engine.identity import run_name
from airflow_provider_taskhub.hub.partitions.hashing import partition_of
from airflow_provider_taskhub.settings import EMBEDDED_LEASE
from airflow_provider_taskhub.storage.faults import Call, Fault, lost, refused, unsent
from airflow_provider_taskhub.storage.primitives import Transact, UpdateMessage
from airflow_provider_taskhub.workers.orchestrations.sessions import LONGEST_WAIT
from tests.simulation.world import RARE_RENEWALS, Place, World, simulate

SLOW = EMBEDDED_LEASE.model_copy(update={"visibility": timedelta(seconds=15)})
"""What a dead worker held comes back after its partition was taken."""
OTHER = App("other")
"""The app of a worker that has none of the orchestrators."""
app = App("order")


@app.orchestrator
async def collect(ctx: OrchestrationContext, count: int) -> list[Any]:
    return [await ctx.wait_for_external_event("e") for _ in range(count)]


async def another(hub: World) -> Client:
    """A client of another process: it counts its messages apart."""
    return await Client.over(hub.store, hub.settings, clock=hub.clock)


@pytest.mark.rows("D07", "K16")
@pytest.mark.parametrize("suspended", [False, True], ids=["running", "suspended"])
@pytest.mark.parametrize("behind", [False, True], ids=["served", "behind"])
def test_two_senders_within_a_second(place: Place, suspended: bool, behind: bool) -> None:
    """Each event was sent after the answer to the one before, by two processes in turn. One counts far ahead.

    The worker takes them one by one, or many in one batch, because its partition had no worker for a while.
    """

    async def play() -> Any:
        async with World(app, partitions=1, place=place) as hub:
            one, two = hub.client, await another(hub)
            for _ in range(50):
                one.hub.sequence()
            worker = await hub.join("only")
            await one.start("collect", 8, instance_id="i")
            await hub.clock.sleep(1.3)
            if suspended:
                await one.suspend("i")
                await hub.clock.sleep(2.1)
            if behind:
                await worker.stop()
            for number in range(8):
                await (two if number % 2 else one).raise_event("i", "e", number)
            if behind:
                await hub.join("next")
            if suspended:
                await hub.clock.sleep(2.0)
                await two.resume("i")
            return (await hub.wait("i")).output, not hub.defects()

    assert simulate(play) == ("[0,1,2,3,4,5,6,7]", True)


def scrambled(seed: int, seconds: float = 1.5) -> Callable[[Call], Fault | None]:
    """Each message that goes back to its queue does so after a pause of its own, so it also comes again at its own."""
    draw = random.Random(seed)

    def plan(call: Call) -> Fault | None:
        gives_back = isinstance(call.what, UpdateMessage) and not call.what.claimed
        return Fault(delay=draw.uniform(0.0, seconds)) if gives_back else None

    return plan


async def raise_in_turn(hub: World, clients: Sequence[Client], count: int) -> None:
    """Send the events 0, 1, 2 …, each after the answer to the one before, from the clients in turn."""
    for number in range(count):
        await clients[number % len(clients)].raise_event("i", "e", number)
        await hub.clock.sleep(0.02)


@pytest.mark.rows("K16", "K57")
@pytest.mark.parametrize("senders", [1, 2])
def test_events_for_a_start_that_is_not_due(place: Place, senders: int) -> None:
    """They come back at times of their own, and the first episode has all of them nevertheless."""

    async def play() -> Any:
        found = []
        for seed in range(4):
            async with World(app, partitions=1, place=place) as hub:
                clients = [hub.client, await another(hub)][:senders]
                await hub.join("only", plan=scrambled(seed))
                due = hub.clock.utc_now() + timedelta(seconds=3 + 3 * seed)
                await hub.client.start("collect", 6, instance_id="i", start_at=due.datetime())
                await raise_in_turn(hub, clients, 6)
                found.append(((await hub.wait("i")).output, not hub.defects()))
        return found

    assert simulate(play) == [("[0,1,2,3,4,5]", True)] * 4


@pytest.mark.rows("K16", "K57")
def test_events_that_wait_for_code(place: Place) -> None:
    """The worker that lacks the code gives the start and the events back again and again, and another one takes all."""

    async def play() -> Any:
        found = []
        for seed in range(4):
            async with World(app, partitions=1, place=place) as hub:
                without = await hub.join("without", app=OTHER, plan=scrambled(seed))
                await hub.client.start("collect", 8, instance_id="i")
                await raise_in_turn(hub, [hub.client], 4)
                await hub.clock.sleep(4.0 + seed)
                await raise_in_turn_from(hub, 4, 8)
                await without.stop()
                await hub.join("with", plan=scrambled(seed))
                found.append(((await hub.wait("i")).output, not hub.defects()))
        return found

    assert simulate(play) == [("[0,1,2,3,4,5,6,7]", True)] * 4


async def raise_in_turn_from(hub: World, first: int, end: int) -> None:
    for number in range(first, end):
        await hub.client.raise_event("i", "e", number)


@pytest.mark.rows("D27", "K16", "K27")
@pytest.mark.parametrize("fault", [lost, unsent], ids=["answer lost", "not sent"])
def test_an_event_that_comes_again_after_its_episode_failed(place: Place, fault: Callable[[], Fault]) -> None:
    """It is hidden for a second, and the events that its sender sends meanwhile wait for it."""

    async def play() -> Any:
        async with World(app, partitions=1, place=place) as hub:
            broken: list[Call] = []

            def plan(call: Call) -> Fault | None:
                what = call.what
                if armed and not broken and isinstance(what, Transact) and what.table == hub.client.hub.names.history:
                    broken.append(call)
                    return fault()
                return None

            armed: list[bool] = []
            await hub.join("only", plan=plan)
            await hub.client.start("collect", 3, instance_id="i")
            await hub.clock.sleep(2.0)
            armed.append(True)
            await hub.client.raise_event("i", "e", 0)
            while not broken:  # virtual time
                await hub.clock.sleep(0.01)
            await raise_in_turn_from(hub, 1, 3)
            return (await hub.wait("i")).output, not hub.defects()

    assert simulate(play) == ("[0,1,2]", True)


@pytest.mark.rows("D11", "D27")
def test_an_event_that_goes_back_to_its_queue_after_a_failure_comes_before_later_ones() -> None:
    """For two minutes the store takes no history. Each episode fails and gives its event back, and others come."""

    async def play() -> Any:
        async with World(app, partitions=1, lease=RARE_RENEWALS) as hub:
            until = 0.0

            def plan(call: Call) -> Fault | None:
                what = call.what
                writes = isinstance(what, Transact) and what.table == hub.client.hub.names.history
                return refused() if writes and hub.clock.monotonic() < until else None

            await hub.join("only", plan=plan)
            await hub.client.start("collect", 4, instance_id="i")
            await hub.settle()
            until = hub.clock.monotonic() + 120.0
            await hub.client.raise_event("i", "e", 0)
            while not hub.said("episode_failed"):
                await hub.clock.sleep(1.0)
            for number, client in ((1, hub.client), (2, await another(hub)), (3, hub.client)):
                await client.raise_event("i", "e", number)
            return (await hub.wait("i")).output, hub.clock.monotonic() >= until, hub.defects()

    assert simulate(play) == ("[0,1,2,3]", True, [])


@pytest.mark.rows("D15", "K16", "K27")
def test_an_event_that_a_dead_worker_held() -> None:
    """It is hidden until its visibility timeout is over. The next worker has received the later ones before."""

    async def play() -> Any:
        async with World(app, partitions=1, lease=SLOW) as hub:
            received: list[Call] = []

            def plan(call: Call) -> Fault | None:
                if armed and isinstance(call.what, Transact) and call.what.table == hub.client.hub.names.history:
                    received.append(call)
                    first.die()
                    return unsent()
                return None

            armed: list[bool] = []
            first = await hub.join("first", plan=plan)
            await hub.client.start("collect", 3, instance_id="i")
            await hub.clock.sleep(2.0)
            armed.append(True)
            await hub.client.raise_event("i", "e", 0)
            await first.died.wait()
            await first.bury()
            await hub.join("second")
            await raise_in_turn_from(hub, 1, 3)
            return (await hub.wait("i")).output, len(received), hub.said("event_out_of_turn")

    assert simulate(play) == ("[0,1,2]", 1, [])


app_rounds = App("rounds")


@app_rounds.orchestrator
async def rounds(ctx: OrchestrationContext, got: list[Any]) -> list[Any]:
    got = [*got, await ctx.wait_for_external_event("e")]
    if len(got) < 6:
        ctx.continue_as_new(got)
    return got


@pytest.mark.rows("K16", "K27")
def test_the_order_is_remembered_over_continue_as_new_and_by_the_next_worker(place: Place) -> None:
    """The partition moves after each second event, and what goes back to the queue does so at a time of its own."""

    async def play() -> Any:
        async with World(app_rounds, partitions=1, place=place) as hub:
            worker = await hub.join("worker-0", plan=scrambled(0, 0.5))
            await hub.client.start("rounds", [], instance_id="i")
            for number in range(3):
                await raise_in_turn_from(hub, 2 * number, 2 * number + 2)
                stopping = hub.spawn(worker.stop())
                worker = await hub.join(f"worker-{number + 1}", plan=scrambled(number, 0.5))
                await stopping
            return (await hub.wait("i")).output, hub.said("event_out_of_turn"), hub.defects()

    assert simulate(play) == ("[0,1,2,3,4,5]", [], [])


@pytest.mark.rows("K16", "K35")
def test_an_event_does_not_wait_without_end_for_one_that_never_comes() -> None:
    """Nor do those behind it, and the log says that the order was given up."""

    async def play() -> Any:
        async with World(app, partitions=1) as hub:
            await hub.join("only")
            await hub.client.start("collect", 3, instance_id="i")
            await hub.clock.sleep(2.0)
            await hub.client.raise_event("i", "e", 0)
            with hub.client.hub.sent_events.next(await run_of(hub), 10_000):
                pass  # an event that never comes
            began = hub.clock.monotonic()
            await raise_in_turn_from(hub, 1, 3)
            ended = await hub.wait("i")
            return ended.output, len(hub.said("event_out_of_turn")), hub.clock.monotonic() - began

    output, said, took = simulate(play)
    assert (output, said) == ("[0,1,2]", 1)
    assert LONGEST_WAIT <= took < 2 * LONGEST_WAIT


async def run_of(hub: World) -> tuple[str, str]:
    row = await hub.client.get("i")
    assert row is not None
    return "i", run_name(row.execution_id or "")


app_sender = App("sender")
app_sender.orchestrator(collect)


@app_sender.orchestrator
async def tell(ctx: OrchestrationContext, count: int) -> None:
    for number in range(count):
        ctx.send_event("i", "e", number)


@pytest.mark.rows("K16", "K26")
def test_events_of_one_checkpoint_that_the_store_puts_backwards() -> None:
    """Azure puts the messages of a checkpoint in parallel. Here the last one is there first, for another worker."""

    async def play() -> Any:
        async with World(app_sender, partitions=2) as hub:
            hub.backwards = 1
            for worker in ("one", "two"):
                await hub.join(worker)
            await hub.clock.sleep(60.0)  # until each worker serves one partition
            await hub.client.start("collect", 4, instance_id="i")
            elsewhere = next(name for name in "abcdef" if partition_of(name, 2) != partition_of("i", 2))
            await hub.client.start("tell", 4, instance_id=elsewhere)
            return (await hub.wait("i")).output, hub.steps > 0, hub.said("event_out_of_turn")

    assert simulate(play) == ("[0,1,2,3]", True, [])


@app.activity
def fails() -> None:
    raise ValueError("not yet")


@app.orchestrator
async def waits(ctx: OrchestrationContext) -> Any:
    """Has a timer of an hour open, and a retry that is due in an hour."""
    hourly = RetryPolicy(max_attempts=2, first_retry_interval=timedelta(hours=1))
    open_tasks = [ctx.create_timer(timedelta(hours=1)), ctx.call_activity(fails, retry=hourly)]
    told = ctx.wait_for_external_event("e")
    return await told if await ctx.when_any([told, *open_tasks]) is told else "late"


@pytest.mark.rows("D09")
def test_an_event_does_not_wait_behind_those_that_are_due_later(place: Place) -> None:
    """Timers, retries and starts of an hour are in front of it in the queue: more of them than one receive brings."""

    async def play() -> Any:
        async with World(app, partitions=1, place=place, lease=RARE_RENEWALS) as hub:
            await hub.join("only")
            for number in range(40):
                due = hub.clock.utc_now() + timedelta(hours=1)
                await hub.client.start("collect", 0, instance_id=f"later-{number}", start_at=due.datetime())
            await hub.client.start("waits", instance_id="i")
            await hub.clock.sleep(5.0)
            hidden = await hub.queued()
            began = hub.clock.monotonic()
            await hub.client.raise_event("i", "e", "told")
            return hidden, (await hub.wait("i")).output, hub.clock.monotonic() - began < 5.0

    assert simulate(play) == (42, '"told"', True)
