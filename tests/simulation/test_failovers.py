"""What others do with the work of a worker that is gone: all of it, only that, once, and as it was meant."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.engine.events import (
    ExecutionStarted,
    ExecutionSuspended,
    ExecutionTerminated,
    Status,
    TaskCompleted,
    TaskScheduled,
)
from airflow_provider_taskhub.hub.formats.history_rows import SENTINEL, decode_event
from airflow_provider_taskhub.hub.model import RecordState
from airflow_provider_taskhub.hub.partitions.hashing import partition_of
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.storage.faults import Call, Fault, late, unsent
from airflow_provider_taskhub.storage.primitives import DeleteMessage, Transact
from tests.simulation.lives import move, nth, undisturbed
from tests.simulation.scenarios import SCENARIOS, app_of
from tests.simulation.world import AFTER, BEFORE, Death, Effects, Machine, World, running, simulate

DECIDES, WORKS = ("orchestrator",), ("activity",)


def ids(partitions: int, each: int = 1) -> list[list[str]]:
    """Names of instances for each partition."""
    found: list[list[str]] = [[] for _ in range(partitions)]
    for number in range(1000):
        place = found[partition_of(name := f"i{number}", partitions)]
        if len(place) < each:
            place.append(name)
    return found


async def owner_of(world: World, partition: int) -> Machine:
    """The worker that serves a partition, as soon as each has the same number."""
    owners = [one for one in world.machines if "orchestrator" in one.backend.roles]
    while {len(one.owner.tenures) for one in owners} != {world.settings.partitions // len(owners)}:
        await world.clock.sleep(0.5)
    return next(one for one in owners if any(tenure.partition == partition for tenure in one.owner.tenures))


# --- all workers, one worker, a worker of activities --------------------------------------------------------------


@pytest.mark.rows("D91", "D94")
def test_the_next_worker_finds_all_unfinished_work_when_all_have_died() -> None:
    """Not as D91 says, on purpose: nobody looks for instances. Who takes a partition has its work in the queue."""
    read = list[str]()

    def plan(call: Call) -> None:
        read.append(f"{call.kind} {call.what}")

    async def play() -> Any:
        async with World(app_of(Effects()), partitions=4) as hub:
            names = [name for place in ids(4, 3) for name in place]
            machines = [await hub.join("one"), await hub.join("two")]
            await owner_of(hub, 0)
            for name in names:
                await hub.client.start("plod", 12, instance_id=name)
            await hub.clock.sleep(1.0)
            for machine in machines:
                await machine.bury()
            await hub.clock.sleep(60.0)
            late = await hub.client.start("plod", 2)
            states = [await hub.client.get(name) for name in names]
            await hub.join("next", plan=plan)
            for name in (*names, late.instance_id):
                await hub.wait(name, timedelta(minutes=1))
            instances = hub.client.hub.names.instances
            looks = [one for one in read if one.startswith("table.query") and instances in one]
            return {one.status for one in states if one}, (await hub.ended()).states, looks

    before, states, looks = simulate(play)
    assert before == {Status.RUNNING}
    assert Counter(state[:2] for state in states.values()) == {("Completed", "12"): 12, ("Completed", "2"): 1}
    assert looks == []


@pytest.mark.rows("D92")
def test_who_takes_over_many_instances_that_wait_reads_no_more_than_for_few() -> None:
    """Not as D92 says, on purpose: nothing of them is read. Of messages, the test of a reader's buffer tells."""

    def reads(count: int) -> tuple[list[str], str | None]:
        async def play() -> Any:
            async with World(app_of(Effects()), partitions=1) as hub:
                one = await hub.join("one")
                for number in range(count):
                    await hub.client.start("events", 1, instance_id=f"i{number}")
                await hub.settle()
                await one.bury()
                tables, seen = (hub.client.hub.names.history, hub.client.hub.names.instances), list[str]()

                def note(call: Call) -> None:
                    seen.extend(f"{call.kind} {table}" for table in tables if table in str(call.what))

                two = await hub.join("two", plan=note)
                await hub.clock.sleep(30.0)
                assert two.owner.tenures
                found = list(seen)
                await hub.client.raise_event(f"i{count - 1}", "go", 7)
                output = (await hub.wait(f"i{count - 1}")).output
                assert len(seen) > len(found)
                return found, output

        read: tuple[list[str], str | None] = simulate(play)
        return read

    few, many = reads(3), reads(100)
    assert few == many == ([], "[7]")


class Naps:
    """Activities that note the attempts that begin, and who runs them."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, int, int]] = []
        self.app = made = App("naps")

        @made.activity(record=True)
        async def nap(number: int) -> int:
            info = running()
            self.begun.append((info.instance.instance_id, number, info.attempt))
            await asyncio.sleep(20.0)
            return number

        @made.activity
        async def step(number: int) -> int:
            await asyncio.sleep(0.2)
            return number + 1

        @made.orchestrator
        async def naps(ctx: OrchestrationContext, count: int) -> int:
            return sum(await ctx.when_all([ctx.call_activity(nap, number) for number in range(count)]))

        @made.orchestrator
        async def plod(ctx: OrchestrationContext, length: int) -> int:
            value = 0
            for _ in range(length):
                value = await ctx.call_activity(step, value)
            return value

        @made.orchestrator
        async def parent(ctx: OrchestrationContext, child: str) -> int:
            return await ctx.call_sub_orchestrator(plod, 40, instance_id=child)


@pytest.mark.rows("D95")
@pytest.mark.parametrize("proves", [True, False], ids=["proven-dead", "silent"])
def test_only_activities_that_the_dead_worker_had_begun_are_lost(proves: bool) -> None:
    """Each of two workers runs two. Two more are not given to anybody yet."""
    naps = Naps()

    async def play() -> Any:
        async with World(naps.app, partitions=1, activities=2) as hub:
            await hub.join("decides", roles=DECIDES)
            one, _ = [await hub.join(name, roles=WORKS, proves=proves) for name in ("one", "two")]
            await hub.client.start("naps", 6, instance_id="i")
            await hub.clock.sleep(5.0)
            given = {record.task_id: record.worker for record in await hub.client.instance("i").activities()}
            await one.bury()
            await hub.join("three", roles=WORKS, proves=proves)
            await hub.wait("i")
            records = await hub.client.instance("i").activities()
            of_dead = {task for task, worker in given.items() if worker == str(one.me)}
            lost = {record.task_id for record in records if record.state is RecordState.LOST}
            return len(given), of_dead, lost, {record.task_id for record in records if record.attempt > 1}

    given, of_dead, lost, again = simulate(play)
    assert (given, len(of_dead)) == (4, 2)
    assert lost == again == of_dead
    assert len(naps.begun) == 6 + 2


# --- in the middle of it ------------------------------------------------------------------------------------------


@pytest.mark.rows("D97")
@pytest.mark.parametrize(("name", "side"), [("chain", AFTER), ("parent", BEFORE)])
def test_who_dies_while_it_takes_over_leaves_the_rest_to_the_next(name: str, side: str) -> None:
    """The first dies right after its last history was written, or before its second. The next dies at any call."""
    scenario = SCENARIOS[name]
    run = undisturbed(scenario)
    whole, made_good = run.ended, 0
    first_death = Death(point="history", side=side, count=run.points["after-history"] if side == AFTER else 2)

    def play(number: int) -> Any:
        async def main() -> Any:
            async with World(scenario.app_of(Effects())) as hub:
                first = await hub.join("first", death=first_death)

                async def follow() -> None:
                    await first.died.wait()
                    second = await hub.join("second", death=Death(point=number))
                    await second.died.wait()
                    await hub.join("third")

                following = hub.spawn(follow())
                await scenario.drive(hub)
                ended = await hub.ended()
                following.cancel()
                return ended, hub.machines[1].dead

        return simulate(main)

    for number in range(1, 8):
        ended, died = play(number)
        made_good += died
        assert (ended.states, ended.histories) == (whole.states, whole.histories), number
    assert made_good >= 4


@pytest.mark.rows("D97")
@pytest.mark.parametrize("side", [BEFORE, AFTER])
def test_who_dies_while_it_takes_over_running_attempts_leaves_them_to_the_next(side: str) -> None:
    """The first dies while two attempts run. The next dies at any of the calls with which it takes them over."""

    def play(number: int | None) -> Any:
        """:param number: at which of its calls the second dies; None: at none. Return how many it makes until then."""
        naps = Naps()

        async def main() -> Any:
            async with World(naps.app, partitions=1) as hub:
                first = await hub.join("first", proves=False)
                await hub.client.start("naps", 2, instance_id="i")
                while len(naps.begun) < 2:
                    await hub.clock.sleep(0.1)
                await first.bury()
                second = await hub.join("second", proves=False)
                while not second.owner.tenures:
                    await hub.clock.sleep(0.1)
                before = second.calls
                if number is None:
                    while len(naps.begun) < 4:
                        await hub.clock.sleep(0.1)
                    return second.calls - before
                second.death = Death(point=before + number, side=side)
                await second.died.wait()
                await hub.join("third")
                state = await hub.wait("i")
                attempts = defaultdict[int, list[RecordState]](list)
                for record in await hub.client.instance("i").activities():
                    attempts[record.task_id].append(record.state)
                await hub.ended()
                return state.output, attempts, naps.begun

        return simulate(main)

    lost, both = 0, play(None)
    for number in range(both - 8, both + 4, 2):
        output, attempts, begun = play(number)
        assert output == "1"
        assert all(
            states == [RecordState.LOST] * (len(states) - 1) + [RecordState.COMPLETED] for states in attempts.values()
        )
        assert len(begun) == len({*begun}), "no attempt has begun twice"
        lost += any(attempt > 2 for _, _, attempt in begun)
    assert lost, "the second had taken one over when it died"


@pytest.mark.rows("D98")
@pytest.mark.parametrize("taken", [False, True], ids=["in the queue", "stored"])
@pytest.mark.parametrize("order", ["suspend", "terminate"])
def test_what_was_to_pause_or_stop_does_so_under_its_next_owner(order: str, taken: bool) -> None:
    """Its owner dies before or after it has taken the order."""

    async def play() -> Any:
        async with World(Naps().app, partitions=1) as hub:
            one = await hub.join("one", roles=DECIDES)
            await hub.join("works", roles=WORKS)
            await hub.client.start("plod", 50, instance_id="i")
            await hub.clock.sleep(3.0)
            if not taken:
                await one.bury()
            await (hub.client.suspend if order == "suspend" else hub.client.terminate)("i", "so it is")
            await hub.clock.sleep(1.0)
            await one.bury()
            await hub.join("two", roles=DECIDES)
            await hub.clock.sleep(60.0)
            state = await hub.client.get("i")
            assert state is not None
            past = await hub.client.instance("i").history()
            told = next(n for n, one in enumerate(past) if isinstance(one, ExecutionSuspended | ExecutionTerminated))
            assert not [one for one in past[told:] if isinstance(one, TaskScheduled)], "it decides nothing more"
            if order == "suspend":
                await hub.client.resume("i")
            return state.status, state.output, (await hub.wait("i")).status

    states = simulate(play)
    if order == "suspend":
        assert states == (Status.SUSPENDED, "so it is", Status.COMPLETED)
    else:
        assert states == (Status.TERMINATED, "so it is", Status.TERMINATED)


async def _steps(world: World, instance_id: str) -> list[TaskCompleted]:
    past = await world.client.instance(instance_id).history()
    return [event for event in past if isinstance(event, TaskCompleted)]


@pytest.mark.rows("D104")
@pytest.mark.parametrize("dies", ["parent", "child"])
def test_a_child_and_its_parent_are_taken_over_each_by_itself(dies: str) -> None:
    """Each is in a partition of its own, and each has an owner of its own."""
    (mother,), (child,) = ids(2)

    async def play() -> Any:
        async with World(Naps().app, partitions=2) as hub:
            for name in ("one", "two"):
                await hub.join(name, roles=DECIDES)
            await hub.join("works", roles=WORKS)
            owner = await owner_of(hub, 0 if dies == "parent" else 1)
            await hub.client.start("parent", child, instance_id=mother)
            await hub.clock.sleep(3.0)
            await owner.bury()
            written = len(hub.tape)
            while not (ended := await hub.client.get(child)) or not ended.status.is_final:
                await hub.clock.sleep(0.5)
            history = hub.client.hub.names.history
            commits = [done.operation for done in hub.tape[written:] if isinstance(done.operation, Transact)]
            touched = [one for one in commits if one.table == history and one.rows[0].entity.partition_key == mother]
            state = await hub.wait(mother)
            times = [event.timestamp for event in await _steps(hub, child)]
            gap = max((b - a).total_seconds() for a, b in pairwise(times))
            return len(touched), gap, state.status, state.output

    touched, gap, *ended = simulate(play)
    assert ended == [Status.COMPLETED, "40"]
    if dies == "parent":
        assert gap < 1.0, "the child does not wait for the parent's next owner"
    else:
        assert gap > 1.0
        assert touched <= 1, "nothing is done for the parent before its child has answered"


@pytest.mark.rows("D106")
def test_a_start_makes_one_instance_though_its_partition_moves_meanwhile() -> None:
    """It moves at each call of its owner, which comes late. What the start makes is stored before it is deleted."""

    def play(number: int) -> Any:
        async def main() -> Any:
            async with World(app_of(Effects()), partitions=1) as hub:
                first = await hub.join("first")
                await hub.clock.sleep(1.0)
                second = await hub.join("second")
                await hub.clock.sleep(1.0)
                moved = list[int]()

                def away() -> Fault:
                    moved.append(number)
                    move(first, second)
                    return late(6.0)  # the messages come to the next owner meanwhile

                plan = nth(number, away)
                first.plan = lambda call: unsent() if moved and call.kind == "queue.update" else plan(call)
                await hub.client.start("chain", 1, instance_id="one")
                await hub.wait("one")
                await hub.clock.sleep(10.0)
                ended = await hub.ended()
                history, made, deleted = hub.client.hub.names.history, list[int](), list[int]()
                for index, done in enumerate(hub.tape):
                    match done.operation:
                        case Transact(table=table, rows=rows) if table == history:
                            events = [decode_event(row.entity) for row in rows if row.entity.row_key != SENTINEL]
                            made += [index for event in events if isinstance(event, ExecutionStarted)]
                        case DeleteMessage(message=Delivery() as held) if isinstance(
                            held.message.event, ExecutionStarted
                        ):
                            deleted.append(index)
                return ended.states["one"][:2], made, deleted, bool(moved)

        return simulate(main)

    moves = 0
    for number in range(1, 9):
        state, made, deleted, moved = play(number)
        moves += moved
        assert state == ("Completed", "1"), number
        assert len(made) == 1, number
        assert deleted, number
        assert made[0] < deleted[0], number
    assert moves >= 5
