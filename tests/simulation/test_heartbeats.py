"""A recorded activity's own heartbeats never cost it its result; what nobody waits for is ended."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.engine.identity import same_start
from airflow_provider_taskhub.errors import TaskCancelledError
from airflow_provider_taskhub.hub.model import RecordState
from airflow_provider_taskhub.settings import AZURE_LEASE, EMBEDDED_LEASE
from airflow_provider_taskhub.storage.faults import Call, Fault, Plan, late, lost, unsent
from airflow_provider_taskhub.storage.primitives import Transact
from airflow_provider_taskhub.workers.executors.attempt_values import LOST
from tests.simulation.lives import move
from tests.simulation.world import AFTER, RARE_RENEWALS, Death, World, seen_in_spark, simulate


def app() -> App:
    made = App("beats")

    @made.activity(record=True)
    async def slow(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "done"

    @made.orchestrator
    async def once(ctx: OrchestrationContext, seconds: float) -> str:
        return await ctx.call_activity(slow, seconds)

    return made


def is_heartbeat(call: Call) -> bool:
    return call.kind == "table.update" and isinstance(call.what, Transact) and call.what.table.endswith("Activities")


def every_third(fault: Fault) -> Plan:
    """Of the heartbeats: if none were answered, giving up would be right."""
    beats = itertools.count()
    return lambda call: fault if is_heartbeat(call) and next(beats) % 3 == 0 else None


@pytest.mark.parametrize("seconds", [1.3, 2.6, 3.9])
@pytest.mark.parametrize("fault", [Fault(pause=0.8), lost()], ids=["answered-late", "answer-lost"])
def test_an_activity_that_ends_while_its_heartbeat_is_under_way_runs_once(fault: Fault, seconds: float) -> None:
    """The ETag that the outcome needs is the one that the heartbeat has just made."""

    async def play() -> Any:
        async with World(app()) as hub:
            await hub.join("only", plan=every_third(fault))
            state = await hub.client.start("once", seconds, instance_id="one")
            await hub.wait(state.instance_id)
            return (
                await hub.client.get("one"),
                await hub.client.instance("one").activities(),
                hub.said("activity_superseded"),
            )

    state, records, superseded = simulate(play)
    assert state.output == '"done"'
    assert [(record.attempt, record.state) for record in records] == [(1, RecordState.COMPLETED)]
    assert superseded == []


@pytest.mark.rows("D63")
def test_a_cancel_is_seen_within_a_second_though_renewals_are_rare() -> None:
    """With the lease times of Azure Storage, a record is renewed every 10 s."""

    async def play() -> Any:
        async with World(app(), lease=AZURE_LEASE) as hub:
            await hub.join("one", roles=("orchestrator",))
            works = await hub.join("two", roles=("activity",))
            seen: list[float] = []
            for number, seconds in enumerate((3.0, 14.1, 21.3, 37.7)):
                name = f"number-{number}"
                await hub.client.start("once", 600.0, instance_id=name)
                await hub.clock.sleep(seconds)
                asked = hub.clock.utc_now()
                await hub.client.terminate(name, "enough", wait=True)
                (record,) = await hub.client.instance(name).activities()
                assert (record.state, record.ended is None) == (RecordState.CANCELLED, False)
                seen.append((record.ended - asked).total_seconds())
            await hub.client.start("once", 600.0, instance_id="watched")
            await hub.clock.sleep(10.0)
            table, looks = hub.client.hub.names.activities, 0

            def count(call: Call) -> None:
                nonlocal looks
                looks += call.kind == "table.get" and table in str(call.what)

            works.plan = count
            await hub.clock.sleep(60.0)
            return seen, looks

    seen, looks = simulate(play)
    assert max(seen) < 1.2
    assert sorted(seen)[1] < 1.0
    assert looks == 72, "12 between two renewals: each is a read of one row"


def test_progress_that_is_seen_in_spark_is_written_with_the_renewals_only() -> None:
    made = App("seen")

    @made.activity(record=True)
    async def job(seconds: int) -> str:
        for second in range(seconds):
            seen_in_spark(second / seconds, f"{second} tasks")
            await asyncio.sleep(1)
        return "done"

    @made.orchestrator
    async def once(ctx: OrchestrationContext, seconds: int) -> str:
        return await ctx.call_activity(job, seconds)

    async def play() -> Any:
        async with World(made, lease=AZURE_LEASE) as hub:
            writes = 0

            def count(call: Call) -> None:
                nonlocal writes
                writes += is_heartbeat(call)

            await hub.join("one", plan=count)
            await hub.client.start("once", 95, instance_id="one")
            await hub.clock.sleep(55)
            (record,) = await hub.client.instance("one").activities()
            return record.message, record.progress, writes

    message, progress, writes = simulate(play)
    assert (message, progress) == ("50 tasks", 50 / 95)
    assert writes == 5


def test_who_waits_for_a_silent_worker_takes_no_slot_from_others() -> None:
    """A worker with one slot that is about to take over an attempt runs other activities meanwhile."""

    async def play() -> Any:
        async with World(app(), activities=1) as hub:
            one, _ = await hub.join("one", roles=("activity",)), await hub.join("two", roles=("orchestrator",))
            await hub.client.start("once", 30.0, instance_id="long")
            await hub.clock.sleep(5.0)
            one.die()
            await hub.join("three", roles=("activity",), proves=False)
            for number in range(400):
                await hub.client.start("once", 0.1, instance_id=f"short-{number}")
                await hub.wait(f"short-{number}")
                records = await hub.client.instance("long").activities()
                if len(records) > 1:  # its second attempt has the slot now
                    break
                ended = hub.clock.utc_now()
            await hub.wait("long")
            return (records[1].claimed - ended).total_seconds(), number

    standstill, number = simulate(play)
    assert standstill < 1.5, "until the attempt is taken over, the slot is used"
    assert number > 3


@pytest.mark.parametrize("first", ["death", "terminate"])
@pytest.mark.rows("D63", "D66", "D67")
def test_the_record_of_a_cancelled_attempt_is_closed_though_its_holder_is_dead(first: str) -> None:
    """Whoever waits for a terminate waits for records that say that nothing of them runs: nobody's may be left open."""

    async def play() -> Any:
        async with World(app()) as hub:
            one, _ = await hub.join("one", roles=("activity",)), await hub.join("two", roles=("orchestrator",))
            await hub.client.start("once", 600.0, instance_id="one")
            await asyncio.sleep(10)
            if first == "death":
                one.die()
            await hub.client.terminate("one", "enough")
            await asyncio.sleep(0.3)
            one.die()
            began = hub.clock.monotonic()
            await hub.join("three", roles=("activity",))
            async with asyncio.timeout(300):
                await hub.client.terminate("one", "enough", wait=True)
            waited = hub.clock.monotonic() - began
            await hub.settle()
            return waited, await hub.client.instance("one").activities(), await hub.queued()

    waited, records, queued = simulate(play)
    assert [(record.attempt, record.state) for record in records] == [(1, RecordState.CANCELLED)]
    assert waited < 15
    assert queued == 0


@pytest.mark.rows("D63")
@pytest.mark.parametrize("fault", ["no answer", "death"])
def test_a_cancellation_that_is_cut_off_is_made_good(fault: str) -> None:
    """The messages that ended the instance stand until its activities' holders are asked: they say so once more."""

    async def play() -> Any:
        async with World(app()) as hub:
            decider, _ = await hub.join("one", roles=("orchestrator",)), await hub.join("two", roles=("activity",))
            await hub.client.start("once", 600.0, instance_id="one")
            await hub.clock.sleep(10.0)
            cut: list[Call] = []

            def plan(call: Call) -> Fault | None:
                if cut or call.kind != "table.query" or hub.client.hub.names.activities not in str(call.what):
                    return None
                cut.append(call)
                if fault == "death":
                    decider.die()
                    return Fault(before=asyncio.CancelledError())
                return unsent()

            decider.plan = plan
            await hub.client.terminate("one", "enough")
            await hub.wait("one")
            await hub.clock.sleep(1.0)
            if decider.dead:
                await hub.join("three", roles=("orchestrator",))
            await hub.clock.sleep(15.0)
            return (
                len(cut),
                [record.state for record in await hub.client.instance("one").activities()],
                await hub.queued(),
            )

    assert simulate(play) == (1, [RecordState.CANCELLED], 0)


@pytest.mark.rows("D63")
@pytest.mark.parametrize("hidden", [4.0, 30.0], ids=["with the new start", "after it"])
def test_a_cancellation_that_is_cut_off_is_made_good_though_the_instance_is_started_again(hidden: float) -> None:
    """The attempt of the new start goes on.

    :param hidden: seconds until the terminate, whose taker died, comes again.
    """

    async def play() -> Any:
        lease = EMBEDDED_LEASE.model_copy(update={"visibility": timedelta(seconds=hidden)})
        async with World(app(), lease=lease, partitions=1) as hub:
            first = await hub.join("first", roles=("orchestrator",))
            await hub.join("works", roles=("activity",))
            await hub.client.start("once", 600.0, instance_id="one")
            await hub.clock.sleep(10.0)
            first.death = Death(point="instance", side=AFTER, count=first.points["after-instance"] + 1)
            await hub.client.terminate("one", "enough")
            await first.died.wait()
            again = await hub.client.restart("one")
            await hub.join("second", roles=("orchestrator",))
            await hub.clock.sleep(60.0)
            states = {}
            for record in await hub.client.instance("one").activities():
                states[same_start(record.instance.execution_id, again.execution_id)] = record.state
            await hub.client.terminate("one", "enough", wait=True)
            await hub.ended()
            return states

    assert simulate(play) == {False: RecordState.CANCELLED, True: RecordState.RUNNING}


@pytest.mark.rows("D60", "D63")
def test_a_cancellation_that_comes_late_does_not_end_attempts_of_the_next_start() -> None:
    """The partition has another owner by then, and the instance was started again there."""

    async def play() -> Any:
        async with World(app(), partitions=1) as hub:
            first = await hub.join("first", roles=("orchestrator",))
            await hub.clock.sleep(1.0)
            second = await hub.join("second", roles=("orchestrator",))
            await hub.join("works", roles=("activity",))
            await hub.client.start("once", 600.0, instance_id="one")
            await hub.clock.sleep(10.0)
            slow = [late(60.0)]

            def plan(call: Call) -> Fault | None:
                asks = call.kind == "table.query" and hub.client.hub.names.activities in str(call.what)
                return slow.pop() if asks and slow else None

            first.plan = plan
            await hub.client.terminate("one", "enough")
            await hub.wait("one")
            await hub.clock.sleep(1.0)
            assert not slow
            move(first, second)
            await hub.client.restart("one")
            await hub.clock.sleep(120.0)
            return [record.state for record in await hub.client.instance("one").activities()]

    assert sorted(simulate(play)) == [RecordState.CANCELLED, RecordState.RUNNING]


@pytest.mark.rows("D60", "D63", "D67")
@pytest.mark.parametrize("claim", ["after", "during"])
def test_an_attempt_that_is_claimed_after_the_end_of_its_instance_ends_too(claim: str) -> None:
    """When the instance was terminated there was no record, and nobody to ask.

    The activity waited for a worker, and is not claimed at all. Or its worker had asked for the instance, and the claim
    was on its way.
    """
    claims: list[Call] = []

    def slow(call: Call) -> Fault | None:
        if not (isinstance(call.what, Transact) and call.what.table.endswith("Activities")) or claims:
            return None
        claims.append(call)
        return late(1.5)

    async def play() -> Any:
        async with World(app()) as hub:
            await hub.join("one", roles=("orchestrator",))
            await hub.client.start("once", 600.0, instance_id="one")
            await hub.clock.sleep(10.0)
            if claim == "after":
                await hub.client.terminate("one", "enough", wait=True)
                await hub.clock.sleep(1.0)
            await hub.join("two", roles=("activity",), plan=slow)
            while claim == "during" and not claims:
                await hub.clock.sleep(0.1)
            await hub.client.terminate("one", "enough")
            await hub.clock.sleep(10.0)
            return [record.state for record in await hub.client.instance("one").activities()], await hub.queued()

    assert simulate(play) == ([RecordState.CANCELLED] if claim == "during" else [], 0)


class Lab:
    """Activities, with a record and without, that say when they begin and end; their results are over the threshold."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.app = made = App("lab")

        @made.activity(record=True)
        async def recorded(seconds: float) -> str:
            return await self.work(seconds)

        @made.activity
        async def plain(seconds: float) -> str:
            return await self.work(seconds)

        @made.orchestrator
        async def once(ctx: OrchestrationContext, what: tuple[str, float]) -> str:
            name, seconds = what
            return await ctx.call_activity(name, seconds)

    async def work(self, seconds: float) -> str:
        self.did.append("begun")
        await asyncio.sleep(seconds)
        self.did.append("ended")
        return "x" * 70_000


async def left(world: World) -> tuple[int, int, list[str]]:
    """Records, messages and blobs."""
    names = world.client.hub.names
    blobs = [blob.name for blob in await world.store.list_blobs(names.large_messages, "")]
    return len(await world.client.instance("one").activities()), await world.queued(), blobs


@pytest.mark.rows("K27", "K30", "K46")
@pytest.mark.parametrize("seconds", [10.4, 120.0], ids=["ends before its holder looks", "is ended"])
@pytest.mark.parametrize("name", ["recorded", "plain"])
def test_what_runs_when_its_instance_is_purged_is_not_run_again_and_leaves_nothing(name: str, seconds: float) -> None:
    async def play() -> Any:
        lab = Lab()
        async with World(lab.app) as hub:
            await hub.join("one")
            await hub.client.start("once", [name, seconds], instance_id="one")
            await hub.clock.sleep(10.0)
            await hub.client.terminate("one", "enough")
            await hub.wait("one")
            assert await hub.client.purge("one")
            await hub.clock.sleep(180.0)
            assert not hub.defects()
            return lab.did, await left(hub)

    did, found = simulate(play)
    assert did == ["begun", "ended"][: 1 + (seconds < 60)]
    assert found == (0, 0, [])


@pytest.mark.rows("D60", "D62", "K46")
@pytest.mark.parametrize("purged", [False, True], ids=["ended", "purged"])
@pytest.mark.parametrize("name", ["recorded", "plain"])
@pytest.mark.long
def test_what_has_waited_for_a_slot_since_its_instance_ended_is_not_begun(name: str, purged: bool) -> None:
    async def play() -> Any:
        lab = Lab()
        async with World(lab.app, lease=RARE_RENEWALS) as hub:
            await hub.join("one", roles=("orchestrator",))
            await hub.client.start("once", [name, 600.0], instance_id="one")
            await hub.clock.sleep(100.0)
            await hub.client.terminate("one", "enough")
            await hub.wait("one")
            if purged:
                await hub.client.purge("one")
            await hub.join("two", roles=("activity",))
            await hub.clock.sleep(900.0)
            assert not hub.defects()
            return lab.did, await left(hub)

    assert simulate(play) == ([], (0, 0, []))


@pytest.mark.rows("D63", "D88")
@pytest.mark.parametrize("lose", [False, True])
def test_a_cancelled_attempt_that_takes_long_to_end_keeps_its_place(lose: bool) -> None:
    """Its clean-up takes longer than an owner may be silent. The terminate is confirmed when it has ended."""
    made, running, most, ended = App("places"), 0, 0, list[float]()

    @made.activity(limit=1)
    async def load(seconds: float) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            await asyncio.sleep(seconds)
        finally:
            await asyncio.sleep(9.0 if seconds > 60 else 0.0)
            running -= 1
            ended.append(asyncio.get_running_loop().time())
        return "done"

    @made.orchestrator
    async def once(ctx: OrchestrationContext, seconds: float) -> str:
        return await ctx.call_activity(load, seconds)

    async def play() -> Any:
        async with World(made, lease=EMBEDDED_LEASE) as hub:
            faults: dict[str, Any] = {"plan": every_third(lost())} if lose else {}
            await hub.join("one", **faults)
            await hub.join("two", **faults)
            await hub.client.start("once", 600.0, instance_id="long")
            await hub.clock.sleep(3.0)
            await hub.client.start("once", 1.0, instance_id="next")
            await hub.client.terminate("long", "enough", wait=True)
            confirmed = hub.clock.monotonic()
            await hub.wait("next")
            return confirmed, await hub.client.instance("long").activities(), hub.said("limited_attempt_lost")

    confirmed, (record,), lost_ones = simulate(play)
    assert (most, record.state, lost_ones) == (1, RecordState.CANCELLED, [])
    assert confirmed >= ended[0]


@pytest.mark.parametrize("end", ["terminate", "cancel", "purge", "stop"])
def test_an_attempt_is_told_whether_the_next_one_goes_on(end: str) -> None:
    """It leaves the application that it has submitted to a cluster to the next attempt, or kills it."""
    made, told = App("told"), list[tuple[object, ...]]()

    @made.activity(record=True)
    async def long() -> str:
        try:
            await asyncio.sleep(0.0 if told else 600.0)
        except asyncio.CancelledError as error:
            told.append(error.args)
            raise
        return "done"

    @made.orchestrator
    async def once(ctx: OrchestrationContext) -> str:
        task = ctx.call_activity(long)
        if end == "purge":
            await ctx.create_timer(timedelta(seconds=2))
            raise ValueError("the activity runs on")
        if end == "cancel":
            await ctx.create_timer(timedelta(seconds=2))
            task.cancel()
            with suppress(TaskCancelledError):
                await task
            return "cancelled"
        return await task

    async def play() -> str | None:
        async with World(made) as hub:
            one = await hub.join("one")
            await hub.client.start("once", instance_id="i")
            await hub.clock.sleep(3.0)
            if end == "terminate":
                await hub.client.terminate("i", "enough", wait=True)
            if end == "stop":
                await one.stop(timedelta(0))
                await hub.join("two")
            output = (await hub.wait("i")).output
            if end == "purge":
                await hub.client.purge("i")
                await hub.clock.sleep(30.0)
            return output

    assert (
        simulate(play)
        == {
            "terminate": "enough",
            "cancel": '"cancelled"',
            "purge": "ValueError: the activity runs on",
            "stop": '"done"',
        }[end]
    )
    assert told == [(LOST,) if end == "stop" else ()]
