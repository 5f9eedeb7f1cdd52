"""Workers of one hub whose apps differ: whatever a live worker can run is run, wherever its partition is."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.hub.model import StartPolicy
from airflow_provider_taskhub.hub.partitions.differences import Differences
from airflow_provider_taskhub.hub.partitions.hashing import partition_of
from airflow_provider_taskhub.hub.partitions.placement import LEAST_DWELL, Placement
from airflow_provider_taskhub.hub.waiting.reasons import Reason
from airflow_provider_taskhub.settings import AZURE_LEASE
from airflow_provider_taskhub.storage.azure.local_wakeups import Listener, LocalWakeups
from airflow_provider_taskhub.storage.primitives import Message, Operation, PutMessage, Result, UpdateMessage
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore
from airflow_provider_taskhub.virtual_time import VirtualClock
from tests.simulation.world import Death, Machine, Place, World, simulate

SOON = timedelta(minutes=2)


def app_with(*names: str, title: str = "") -> App:
    """An app whose orchestrators call an activity of their own, twice."""
    app = App(title or "-".join(names) or "empty", version="1")
    for name in names:
        declare(app, name)
    return app


def declare(app: App, name: str) -> None:
    activity = f"{name}_work"

    @app.activity(name=activity)
    def work(number: int) -> int:
        return number + 1

    @app.orchestrator(name=name)
    async def orchestrate(ctx: OrchestrationContext, number: int) -> int:
        number = await ctx.call_activity(activity, number)
        await ctx.create_timer(timedelta(seconds=3))
        return int(await ctx.call_activity(activity, number))


async def all_end(world: World, names: Sequence[str], count: int = 6, limit: timedelta = SOON) -> float:
    """Start ``count`` instances of each and wait for all. :returns: virtual seconds."""
    began = world.clock.monotonic()
    ids = [f"{name}-{number}" for name in names for number in range(count)]
    for instance_id in ids:
        await world.client.start(instance_id.partition("-")[0], 0, instance_id=instance_id)
    for instance_id in ids:
        state = await world.wait(instance_id, limit)
        assert (state.status, state.output) == (Status.COMPLETED, "2"), (instance_id, state)
    assert not world.defects(), world.defects()
    assert not await world.client.admin.quarantined()
    return world.clock.monotonic() - began


def play(drive: Any, *, partitions: int = 4, **settings: Any) -> Any:
    async def main() -> Any:
        async with World(app_with("a", "b", "c"), partitions=partitions, **settings) as world:
            found = await drive(world)
            await world.ended()
            return found

    return simulate(main)


@pytest.mark.rows("K43")
@pytest.mark.parametrize("partitions", [1, 4])
def test_what_only_one_of_two_workers_has_is_run_there(partitions: int) -> None:
    async def drive(world: World) -> float:
        await world.join("full", app=app_with("a", "b"))
        await world.join("half", app=app_with("a"))
        await world.clock.sleep(10.0)
        return await all_end(world, ["a", "b"])

    assert play(drive, partitions=partitions) < 30.0


@pytest.mark.rows("K43")
@pytest.mark.parametrize("partitions", [1, 4])
def test_two_workers_each_of_which_has_a_part_take_turns(partitions: int) -> None:
    async def drive(world: World) -> float:
        await world.join("one", app=app_with("a"))
        await world.join("two", app=app_with("b"))
        await world.clock.sleep(10.0)
        return await all_end(world, ["a", "b"])

    assert play(drive, partitions=partitions) < 40.0


@pytest.mark.rows("K43")
@pytest.mark.parametrize("partitions", [1, 4])
def test_three_workers_each_of_which_has_a_part_take_turns(partitions: int) -> None:
    """Within three rounds of three turns (5 s and a handover): a response may miss the turn of its instance."""

    async def drive(world: World) -> float:
        for name in ("a", "b", "c"):
            await world.join(f"has-{name}", app=app_with(name))
        await world.clock.sleep(10.0)
        return await all_end(world, ["a", "b", "c"])

    assert play(drive, partitions=partitions) < 60.0


@pytest.mark.rows("K43")
def test_a_worker_that_has_nothing_disturbs_nobody() -> None:
    async def drive(world: World) -> float:
        await world.join("empty", app=app_with())
        await world.clock.sleep(5.0)
        await world.join("full", app=app_with("a", "b"))
        return await all_end(world, ["a", "b"])

    assert play(drive) < 30.0


@pytest.mark.rows("K43")
def test_who_joins_later_with_what_is_missing_takes_it() -> None:
    async def drive(world: World) -> float:
        await world.join("one", app=app_with("a"))
        await world.client.start("b", 0, instance_id="early")
        await world.clock.sleep(60.0)
        await world.join("two", app=app_with("b"))
        seconds = await all_end(world, ["a"])
        state = await world.wait("early", SOON)
        assert state.output == "2"
        return seconds

    assert play(drive) < 60.0


@pytest.mark.rows("K43")
def test_the_death_of_the_only_one_that_has_it_leaves_no_partition_unserved() -> None:
    async def drive(world: World) -> float:
        await world.join("one", app=app_with("a"))
        two = await world.join("two", app=app_with("b"))
        await world.clock.sleep(10.0)
        for number in range(6):
            await world.client.start("b", 0, instance_id=f"left-{number}")
        await world.clock.sleep(2.0)
        await two.bury()
        seconds = await all_end(world, ["a"])
        await world.join("three", app=app_with("b"))
        for number in range(6):
            assert (await world.wait(f"left-{number}", SOON)).output == "2"
        return seconds

    assert play(drive) < 60.0


def moves(world: World) -> int:
    return len(world.said("partition_owner_changed"))


async def steady(world: World, names: Sequence[str], minutes: int) -> float:
    """Start one of each every five seconds. :returns: the longest time that one took, in virtual seconds."""
    longest = 0.0

    async def one(instance_id: str) -> None:
        nonlocal longest
        began = world.clock.monotonic()
        await world.client.start(instance_id.partition("-")[0], 0, instance_id=instance_id)
        await world.wait(instance_id, SOON)
        longest = max(longest, world.clock.monotonic() - began)

    first = len(world.logs)
    work = []
    for number in range(12 * minutes):
        work += [world.spawn(one(f"{name}-{first}-{number}")) for name in names]
        await world.clock.sleep(5.0)
    await asyncio.gather(*work)
    return longest


@pytest.mark.rows("K43", "E48")
@pytest.mark.long
def test_partitions_rest_where_everything_can_be_run() -> None:
    """Fair shares would take back what was handed over, and it would have to be handed over again."""

    async def drive(world: World) -> tuple[float, int]:
        await world.join("full", app=app_with("a", "b"))
        await world.join("half", app=app_with("a"))
        await steady(world, ["a", "b"], 2)
        before = moves(world)
        return await steady(world, ["a", "b"], 5), moves(world) - before

    longest, moved = play(drive)
    assert moved == 0
    assert longest < 6.0


@pytest.mark.rows("K43", "E48")
@pytest.mark.long
def test_turns_are_long_enough_for_work_and_short_enough_to_wait_for() -> None:
    async def drive(world: World) -> tuple[float, int]:
        await world.join("one", app=app_with("a"))
        await world.join("two", app=app_with("b"))
        await steady(world, ["a", "b"], 1)
        before = moves(world)
        return await steady(world, ["a", "b"], 5), moves(world) - before

    longest, moved = play(drive, partitions=2)
    assert 0 < moved <= 2 * 5 * 60 / LEAST_DWELL
    assert longest < 40.0


@pytest.mark.rows("K43", "K50")
def test_an_instance_of_another_version_goes_to_the_worker_that_accepts_it() -> None:
    def version(number: str) -> App:
        app = App("versions", version=number, compatible=[])
        declare(app, "a")
        return app

    async def drive(world: World) -> float:
        await world.join("new", app=version("2"))
        await world.clock.sleep(10.0)
        await world.join("old", app=version("1"))
        await world.clock.sleep(10.0)
        began = world.clock.monotonic()
        for number in range(12):
            await world.client.start("a", 0, instance_id=f"old-{number}", version="1" if number % 2 else "2")
        for number in range(12):
            assert (await world.wait(f"old-{number}", SOON)).output == "2"
        return world.clock.monotonic() - began

    assert play(drive) < 90.0


# --- what differs is told -----------------------------------------------------------------------------------------


def told(world: World) -> set[tuple[str, str, str, str]]:
    return {
        (entry["worker"].partition("@")[0], entry["lacks"], entry["has_more"], entry["versions"])
        for entry in world.said("apps_differ")
    }


@pytest.mark.rows("K43")
def test_workers_whose_apps_differ_warn_once_of_each_other() -> None:
    async def drive(world: World) -> Any:
        await world.join("one", app=app_with("a", "b", title="orders"))
        await world.clock.sleep(60.0)
        alone = told(world)
        await world.join("two", app=app_with("a", title="orders"))
        await world.clock.sleep(180.0)
        return alone, told(world), len(world.said("apps_differ"))

    assert play(drive) == (
        set(),
        {
            ("two", "orchestrator 'b', activity 'b_work'", "", ""),
            ("one", "", "orchestrator 'b', activity 'b_work'", ""),
        },
        2,
    )


@pytest.mark.rows("K43")
def test_another_version_is_told_and_the_row_of_a_dead_worker_is_not() -> None:
    async def drive(world: World) -> Any:
        gone = await world.join("gone", app=app_with("c"))
        await world.clock.sleep(10.0)
        await gone.bury()
        await world.join("one", app=App("deploy", version="1"))
        await world.join("two", app=App("deploy", version="2"))
        await world.clock.sleep(60.0)
        return told(world)

    assert play(drive) == {
        ("two", "", "", "deploy: '1' here, '2' there"),
        ("one", "", "", "deploy: '2' here, '1' there"),
    }


@pytest.mark.rows("K43")
def test_a_limit_that_only_newer_workers_have_is_told_to_both() -> None:
    def app(**limit: Any) -> App:
        made = App("deploy")
        made.activity(**limit)(work)
        return made

    async def work(number: int) -> int:
        return number

    async def drive(world: World) -> Any:
        await world.join("old", app=app(record=True))
        await world.join("new", app=app(limit=1, rate="5/m"))
        await world.clock.sleep(60.0)
        return {(entry["worker"].partition("@")[0], entry["limits"]) for entry in world.said("apps_differ")}

    assert play(drive) == {
        ("old", "limit 'work': '1' here, 'no limit' there, rate 'work': '5/m' here, 'no limit' there"),
        ("new", "limit 'work': 'no limit' here, '1' there, rate 'work': 'no limit' here, '5/m' there"),
    }


# --- and costs nothing where nothing differs ------------------------------------------------------------------------


@pytest.mark.rows("K43", "T85")
def test_workers_with_the_same_apps_say_and_read_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many requests as with none of this, whatever ran there before."""

    async def drive(world: World) -> int:
        for name in ("one", "two", "three"):
            await world.join(name)
        await all_end(world, ["a", "b"])
        await world.clock.sleep(20.0)
        machines = list(world.machines)
        before = [machine.lease_store._calls for machine in machines]
        await world.clock.sleep(100.0)
        names = world.client.hub.names
        said = [row.properties["Wanted"] async for row in world.store.rows(names.members)]
        assert said == ["", "", ""]
        assert not world.said("apps_differ")
        return sum(machine.lease_store._calls - count for machine, count in zip(machines, before, strict=True))

    with_it = play(drive)
    monkeypatch.setattr(Placement, "say", lambda *arguments: {})
    monkeypatch.setattr(Differences, "_compare_apps", lambda *arguments: None)
    assert play(drive) == with_it > 0


# --- activities -----------------------------------------------------------------------------------------------------


@pytest.mark.rows("K43")
@pytest.mark.parametrize("record", [False, True], ids=["plain", "recorded"])
def test_an_activity_that_one_worker_lacks_is_run_by_the_other(record: bool) -> None:
    """It comes back at once, however often the wrong worker is first, and is never quarantined for it."""

    def app(*activities: str) -> App:
        made = App("activities", version="1")
        for name in activities:

            @made.activity(name=name, record=record)
            def work(number: int) -> int:
                return number + 1

        @made.orchestrator(name="both")
        async def both(ctx: OrchestrationContext, number: int) -> int:
            for _ in range(5):
                number = await ctx.call_activity("left", number)
                number = await ctx.call_activity("right", number)
            return number

        return made

    async def drive(world: World) -> float:
        await world.join("one", app=app("left"))
        await world.join("two", app=app("right"))
        await world.clock.sleep(10.0)
        began = world.clock.monotonic()
        for number in range(8):
            await world.client.start("both", 0, instance_id=f"both-{number}")
        for number in range(8):
            assert (await world.wait(f"both-{number}", SOON)).output == "10"
        assert not await world.client.admin.quarantined()
        return world.clock.monotonic() - began

    assert play(drive) < 40.0


class Distant(SqliteStore):
    """As Azure Storage is to workers on machines of their own: each is told of its own messages only."""

    local = False

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(None, clock=clock)
        self._wakeups = LocalWakeups()
        self._listener = Listener(self._wakeups)

    def held_by(self, holder: str) -> SqliteStore:
        other = super().held_by(holder)
        assert isinstance(other, Distant)
        other._wakeups = LocalWakeups()
        other._listener = Listener(other._wakeups)
        return other

    async def execute(self, operation: Operation) -> Result:
        result = await super().execute(operation)
        if isinstance(operation, PutMessage) or (isinstance(operation, UpdateMessage) and operation.signal):
            now, delay = asyncio.get_running_loop().time(), operation.visibility.total_seconds()
            self._wakeups.notify(operation.queue, now=now, delay=delay)
        return result

    async def receive(self, queue: str, *, limit: int, visibility: timedelta) -> list[Message]:
        self._listener.receiving(queue)
        return await super().receive(queue, limit=limit, visibility=visibility)

    async def arrival(self, queues: Sequence[str], timeout: float) -> Sequence[str]:
        return await self._listener.arrival(queues, timeout)


@pytest.mark.rows("K43")
def test_an_activity_reaches_the_worker_that_has_it_although_another_one_is_told_first() -> None:
    """Who cannot run it looks no more often than who can; else it would receive the activity for ever."""

    async def drive(world: World) -> None:
        await world.join("orchestrates", app=app_with("a"), roles=("orchestrator",))
        await world.join("has", app=app_with("a"), roles=("activity",))
        for number in range(3):
            await world.join(f"lacks-{number}", app=app_with("b"), roles=("activity",))
        for number in range(10):
            await world.clock.sleep(100.0 + 7.0 * number)
            await world.client.start("a", 0, instance_id=f"a-{number}")
            state = await world.wait(f"a-{number}", timedelta(minutes=10))
            assert state.output == "2"

    place = Place(name="distant", open=Distant, lease=AZURE_LEASE)
    play(drive, partitions=1, place=place)


def test_an_activity_that_a_worker_lacks_is_told_once_a_minute() -> None:
    async def drive(world: World) -> list[dict[str, Any]]:
        await world.join("orchestrates", app=app_with("a"), roles=("orchestrator",))
        await world.join("lacks", app=app_with("b"), roles=("activity",))
        for number in range(4):
            await world.client.start("a", 0, instance_id=f"a-{number}")
        await world.clock.sleep(150.0)
        told = [line for line in world.said("activity_unknown") if line["log_level"] == "warning"]
        await world.join("has", app=app_with("a"), roles=("activity",))
        for number in range(4):
            assert (await world.wait(f"a-{number}", SOON)).output == "2"
        return told

    assert len(play(drive, partitions=1)) == 3


def waiting_app() -> App:
    app = App("waiting", version="1")

    @app.orchestrator(name="gate")
    async def gate(ctx: OrchestrationContext) -> Any:
        ctx.set_custom_status("it runs")
        return await ctx.wait_for_external_event("go")

    return app


@pytest.mark.rows("K36", "K41", "K46")
@pytest.mark.parametrize("minutes", [1, 8])
@pytest.mark.parametrize("again", [False, True], ids=["new", "over an ended run"])
def test_what_is_sent_before_a_worker_has_the_code_counts_as_soon_as_one_has_it(minutes: int, again: bool) -> None:
    """Events are delivered, a suspension holds the first turn, a termination ends what came before it too."""

    async def drive(world: World) -> float:
        client = world.client
        names = ("told", "held", "let go", "ended")
        if again:
            before = await world.join("before", app=waiting_app())
            for name in names:
                await client.start("gate", instance_id=name)
                await client.terminate(name)
                await world.wait(name, SOON)
            await before.stop()
        await world.join("one", app=app_with("a"))
        for name in names:
            await client.start("gate", instance_id=name, policy=StartPolicy.REPLACE_FINISHED)
        await world.clock.sleep(30.0)
        await client.raise_event("told", "go", 1)
        await client.suspend("held", "not yet")
        await client.suspend("let go", "not yet")
        await world.clock.sleep(5.0)
        await client.resume("let go")
        await client.suspend("ended", "not yet")
        await client.raise_event("ended", "go", 2)
        await world.clock.sleep(60.0 * minutes)
        assert [one.reason for one in await client.instance("held").waiting()] == [
            Reason.SUSPENDED,
            Reason.NO_ORCHESTRATOR,
        ]
        await client.terminate("ended")
        assert (await world.wait("ended", SOON)).status is Status.TERMINATED
        await world.join("two", app=waiting_app())
        began = world.clock.monotonic()
        assert (await world.wait("told", SOON)).output == "1"
        seconds = world.clock.monotonic() - began
        await world.clock.sleep(40.0)
        held = await client.get("held")
        assert held is not None
        assert (held.status, held.output) == (Status.SUSPENDED, "not yet")
        assert [one.reason for one in await client.instance("let go").waiting()] == [Reason.EVENTS]
        await client.raise_event("let go", "go", 3)
        await client.resume("held")
        await client.raise_event("held", "go", 4)
        assert [(await world.wait(name, SOON)).output for name in ("let go", "held")] == ["3", "4"]
        await world.clock.sleep(150.0)  # an event over an ended run waits so long for another start
        assert await world.queued() == 0
        assert not await client.admin.quarantined()
        assert not world.defects(), world.defects()
        return seconds

    # the start and what was sent come again every 15 s at most; then the partition goes to the worker that has the code
    assert play(drive, partitions=1) < 45.0


def test_a_child_that_cannot_begin_is_told_by_its_parent_in_every_reading() -> None:
    """A child has no row before its first checkpoint."""
    app = waiting_app()

    @app.orchestrator(name="parent")
    async def parent(ctx: OrchestrationContext, child: list[str]) -> Any:
        name, instance_id = child
        return await ctx.call_sub_orchestrator(name, instance_id=instance_id)

    async def drive(world: World) -> None:
        client = world.client
        await world.join("one", app=app)
        partition = partition_of("kid", 4)
        top, second, other, *_ = (
            f"id-{number}" for number in range(20) if partition_of(f"id-{number}", 4) != partition
        )
        await client.admin.partition_operations.offline([partition], "repair")
        await world.clock.sleep(20.0)
        await client.start("parent", ["gate", "kid"], instance_id=top)
        await client.start("parent", ["lost", other], instance_id=second)
        await world.clock.sleep(20.0)
        assert await client.get("kid") is None
        reasons = {}
        for instance_id in (top, second):
            (reasons[instance_id],) = await client.instance(instance_id).waiting()
            row = await client.get(instance_id)
            assert row is not None
            assert await client.admin.waiting_of([row]) == {instance_id: (reasons[instance_id],)}
        held, lost = reasons.values()
        assert held.reason is Reason.CHILD_HELD
        assert f"its child 'kid': partition {partition} was taken offline by " in held.text
        assert "(repair)" in held.text
        assert lost.reason is Reason.NO_CHILD
        assert (await client.admin.waiting_instances()).counts == {Reason.NO_CHILD: 1, Reason.CHILD_HELD: 1}
        await client.admin.partition_operations.online([partition])
        await world.clock.sleep(20.0)
        assert [one.reason for one in await client.instance(top).waiting()] == [Reason.CHILDREN]
        for instance_id in (top, second):
            await client.terminate(instance_id, wait=True)

    play(drive)


# --- whatever happens -----------------------------------------------------------------------------------------------


@pytest.mark.rows("K43", "T87")
@pytest.mark.parametrize("seed", range(6))
def test_what_a_live_worker_has_is_run_whoever_joins_and_dies(seed: int) -> None:
    """Workers with random parts of the apps join, stop and die; then all parts are there, and every instance ends."""
    dice = random.Random(seed)
    names = ("a", "b", "c")

    async def drive(world: World) -> None:
        ids: list[str] = []
        alive: list[tuple[Machine, Sequence[str]]] = []
        for turn in range(12):
            for _ in range(dice.randrange(3)):
                name = dice.choice(names)
                ids.append(f"{name}-{len(ids)}")
                await world.client.start(name, 0, instance_id=ids[-1])
            happens = dice.choice(["join", "join", "stop", "die", "wait"])
            if happens == "join" or not alive:
                parts = dice.sample(names, dice.randrange(4))
                alive.append((await world.join(f"w{turn}", app=app_with(*parts)), parts))
            elif happens in ("stop", "die"):
                gone, _ = alive.pop(dice.randrange(len(alive)))
                await (gone.stop() if happens == "stop" else gone.bury())
            await world.clock.sleep(dice.uniform(0.0, 12.0))
        missing = set(names) - {name for _, parts in alive for name in parts}
        for name in sorted(missing):
            await world.join(f"last-{name}", app=app_with(name))
        for instance_id in ids:
            state = await world.wait(instance_id, timedelta(minutes=3))
            assert (state.status, state.output) == (Status.COMPLETED, "2"), (instance_id, state)
        assert not world.defects(), world.defects()

    play(drive, partitions=dice.choice([1, 2, 4]))


@pytest.mark.rows("K43", "K29")
@pytest.mark.parametrize("seed", range(8))
def test_a_worker_that_dies_while_workers_take_turns_costs_time_and_nothing_else(seed: int) -> None:
    """It dies at any storage call; its part comes back with a successor."""

    async def drive(world: World) -> None:
        one = await world.join("one", app=app_with("a"), death=Death(point=40 + 37 * seed))
        await world.join("two", app=app_with("b"))
        for number in range(12):
            await world.client.start("ab"[number % 2], 0, instance_id=f"i-{number}")
        await asyncio.wait([asyncio.ensure_future(one.died.wait())], timeout=60.0)
        await world.join("three", app=app_with("a"))
        for number in range(12):
            assert (await world.wait(f"i-{number}", timedelta(minutes=3))).output == "2"

    play(drive, partitions=2)
