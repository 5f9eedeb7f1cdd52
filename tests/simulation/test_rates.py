"""The rate of an activity, and activities that share a limit: the numbers hold in the whole hub, and nobody starves."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import timedelta

import pytest

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.context import OrchestrationContext
from airflow_provider_taskhub.engine.events import OrchestrationInstance, Status
from airflow_provider_taskhub.hub.history.places import Limit, LimitKind
from airflow_provider_taskhub.hub.model import ActivityRecord, RecordState, WorkerIdentity
from airflow_provider_taskhub.settings import EMBEDDED_LEASE
from airflow_provider_taskhub.workers.activities.rates import ActivityRate
from tests.simulation.world import World, running, simulate

STARTS, MINUTE = 3, 60


class Calls:
    """An app whose activities note when they begin, and how many run at once."""

    def __init__(self, *, limit: int | None = None, rate: str | None = f"{STARTS}/m") -> None:
        self.begins: list[float] = []
        self.ran: Counter[int] = Counter()
        self.inside: set[tuple[int, int]] = set()
        self.most = 0
        self.app = app = App("calls")

        @app.activity(limit=limit, rate=rate)
        async def ask(what: tuple[int, float]) -> int:
            return await self.work(*what)

        @app.orchestrator
        async def asks(ctx: OrchestrationContext, given: tuple[int, int, float]) -> int:
            first, count, seconds = given
            return len(
                await ctx.when_all([ctx.call_activity("ask", (first + number, seconds)) for number in range(count)])
            )

    async def work(self, number: int, seconds: float) -> int:
        self.begins.append(asyncio.get_running_loop().time())
        key = number, running().attempt
        self.inside.add(key)
        self.most = max(self.most, len(self.inside))
        try:
            await asyncio.sleep(seconds)
        finally:
            self.inside.discard(key)
        self.ran[number] += 1
        return number

    def check(self, starts: int, seconds: float) -> None:
        """Check that no more attempts have begun within any span of this length."""
        begins = sorted(self.begins)
        spans = [later - first for first, later in zip(begins, begins[starts:], strict=False)]
        assert min(spans, default=seconds) >= seconds, (spans, begins)


def test_no_more_attempts_than_the_rate_begin_within_its_time_on_all_workers_together() -> None:
    calls = Calls()

    async def main() -> None:
        async with World(calls.app) as world:
            for name in ("one", "two", "three"):
                await world.join(name)
            for number in range(3):
                await world.client.start("asks", [number * 4, 4, 1.0], instance_id=f"i{number}")
            begun = world.clock.monotonic()
            for number in range(3):
                assert (await world.wait(f"i{number}")).status is Status.COMPLETED
            calls.check(STARTS, MINUTE)
            assert (len(calls.ran), set(calls.ran.values())) == (12, {1})
            assert world.clock.monotonic() - begun < 4 * MINUTE, "12 starts, 3 in a minute: the last three after 180 s"
            await world.settle()

    simulate(main)


@pytest.mark.parametrize("seed", range(3))
def test_the_rate_holds_while_workers_die_and_join(seed: int) -> None:
    calls, draw = Calls(rate="5/m"), random.Random(seed)

    async def main() -> None:
        async with World(calls.app) as world:
            machines = [await world.join(f"w{number}") for number in range(3)]
            for number in range(4):
                await world.client.start("asks", [number * 8, 8, draw.uniform(0.3, 9)], instance_id=f"i{number}")
            for number in range(3, 10):
                await world.clock.sleep(draw.uniform(5, 50))
                dead = draw.choice(machines)
                dead.die()
                machines.remove(dead)
                machines.append(await world.join(f"w{number}"))
            for number in range(4):
                assert (await world.wait(f"i{number}")).status is Status.COMPLETED
            calls.check(5, MINUTE)
            assert len(calls.ran) == 32
            await world.settle()

    simulate(main)


def test_a_worker_that_starts_anew_does_not_forget_what_has_begun() -> None:
    calls = Calls()

    async def main() -> None:
        async with World(calls.app) as world:
            one = await world.join("one")
            await world.client.start("asks", [0, 6, 0.3], instance_id="i")
            await world.clock.sleep(5)
            assert len(calls.begins) == STARTS
            await one.stop()
            await world.join("one")
            assert (await world.wait("i")).status is Status.COMPLETED
            calls.check(STARTS, MINUTE)

    simulate(main)


def test_a_limit_and_a_rate_hold_together() -> None:
    calls = Calls(limit=2, rate="4/m")

    async def main() -> None:
        async with World(calls.app) as world:
            for name in ("one", "two"):
                await world.join(name)
            await world.client.start("asks", [0, 10, 7.0], instance_id="i")
            begun = world.clock.monotonic()
            assert (await world.wait("i")).status is Status.COMPLETED
            calls.check(4, MINUTE)
            assert (calls.most, set(calls.ran.values())) == (2, {1})
            assert world.clock.monotonic() - begun < 3 * MINUTE
            await world.settle()

    simulate(main)


def _requests_while_waiting(count: int) -> int:
    """Return the requests of two minutes in which ``count`` calls wait for a place."""
    calls = Calls(rate="2/h")

    async def main() -> int:
        async with World(calls.app) as world:
            for name in ("one", "two"):
                await world.join(name)
            await world.client.start("asks", [0, count, 1.0], instance_id="i")
            await world.clock.sleep(60)
            (state,) = await world.client.admin.limits()
            assert (state.shown, len(state.holders), state.waiting) == ("2/h", 2, count - 2)
            before = sum(world.store.requests.values())  # type: ignore[attr-defined]
            await world.clock.sleep(120)
            return int(sum(world.store.requests.values()) - before)  # type: ignore[attr-defined]

    asked: int = simulate(main)
    return asked


def test_calls_that_wait_for_a_rate_cost_no_requests() -> None:
    few, many = _requests_while_waiting(20), _requests_while_waiting(400)
    assert abs(many - few) < 5, (few, many)


def test_people_see_the_rate_that_a_call_waits_for() -> None:
    async def main() -> None:
        async with World(Calls().app) as world:
            await world.join("one")
            await world.client.start("asks", [0, 5, 1.0], instance_id="i")
            await world.clock.sleep(20)
            (why,) = await world.client.instance("i").waiting()
            assert str(why) == "activity 'ask'; at most 3/m of 'ask' begin in the hub"

    simulate(main)


def test_the_order_of_an_administrator_changes_the_rate() -> None:
    calls = Calls()

    async def main() -> None:
        async with World(calls.app) as world:
            await world.join("one")
            await world.client.start("asks", [0, 20, 0.3], instance_id="i")
            await world.clock.sleep(5)
            state = await world.client.admin.set_limit("ask", 20)
            assert (state.kind, state.shown, state.declared) == (LimitKind.RATE, "20/m", STARTS)
            begun = world.clock.monotonic()
            assert (await world.wait("i")).status is Status.COMPLETED
            assert world.clock.monotonic() - begun < 30

    simulate(main)


# one worker's view of the places


def _seen_by(world: World, worker: str) -> ActivityRate:
    limit = Limit(name="ask", places=1, seconds=MINUTE, kind=LimitKind.RATE)
    me, _, incarnation = worker.partition("@h/")
    identity = WorkerIdentity(name=me, host="h", incarnation=incarnation)
    return ActivityRate(world.client.hub, limit, me=identity, times=EMBEDDED_LEASE)


def _record(number: int, worker: str) -> ActivityRecord:
    return ActivityRecord(
        instance=OrchestrationInstance(instance_id="i", execution_id="e"),
        task_id=number,
        action_id=f"a{number}",
        attempt=1,
        name="ask",
        state=RecordState.RUNNING,
        worker=worker,
        executor="",
        claimed=Timestamp(0),
    )


def test_a_worker_that_was_away_for_longer_than_the_time_does_not_begin() -> None:
    """Meanwhile another worker has given its place away."""

    async def main() -> None:
        async with World(Calls().app) as world:
            slow, other = _seen_by(world, "w@h/1"), _seen_by(world, "x@h/1")
            mine, its = _record(0, "w@h/1"), _record(1, "x@h/1")
            assert await slow.take(mine)
            assert not await other.take(its)
            looking = world.spawn(other.run(lambda: None))
            await world.clock.sleep(MINUTE - 1)
            assert not await other.take(its)
            await world.clock.sleep(2 * EMBEDDED_LEASE.take.total_seconds() + 7)
            assert await other.take(its)
            assert not await slow.confirm(mine)
            assert await other.confirm(its)
            looking.cancel()

    simulate(main)


def test_the_time_counts_from_the_beginning_and_not_from_the_place() -> None:
    async def main() -> None:
        async with World(Calls().app) as world:
            mine, record = _seen_by(world, "w@h/1"), _record(0, "w@h/1")
            looking = world.spawn(mine.run(lambda: None))
            assert await mine.take(record)
            await world.clock.sleep(20)
            assert await mine.confirm(record)
            await world.clock.sleep(MINUTE - 1)
            assert not await mine.take(_record(1, "w@h/1"))
            await world.clock.sleep(2)
            assert await mine.take(_record(1, "w@h/1"))
            looking.cancel()

    simulate(main)


# activities that share a limit


class Shared(Calls):
    """Three activities that share a limit."""

    def __init__(self, limit: int = 2) -> None:
        super().__init__(rate=None)
        self.done: dict[str, list[float]] = {}

        for name in ("orders", "stock", "prices"):

            @self.app.activity(name=name, limit=limit, limit_name="database")
            async def load(what: tuple[int, float], name: str = name) -> int:
                found = await self.work(*what)
                self.done.setdefault(name, []).append(asyncio.get_running_loop().time())
                return found

        @self.app.orchestrator
        async def loads(ctx: OrchestrationContext, given: tuple[str, int, int, float]) -> int:
            name, first, count, seconds = given
            calls = [ctx.call_activity(name, (first + number, seconds)) for number in range(count)]
            return len(await ctx.when_all(calls))


@pytest.mark.parametrize("workers", [1, 3])
def test_activities_that_share_a_limit_count_together_and_take_turns(workers: int) -> None:
    calls = Shared()

    async def main() -> None:
        async with World(calls.app) as world:
            for number in range(workers):
                await world.join(f"w{number}")
            await world.client.start("loads", ["orders", 0, 60, 3.0], instance_id="many")
            await world.clock.sleep(10)
            begun = world.clock.monotonic()
            await world.client.start("loads", ["stock", 100, 4, 3.0], instance_id="few")
            await world.client.start("loads", ["prices", 200, 4, 3.0], instance_id="others")
            for one in ("few", "others"):
                assert (await world.wait(one)).status is Status.COMPLETED
            assert world.clock.monotonic() - begun < 45, "8 of 16 turns of 3 s, two at once, and pauses"
            assert (await world.wait("many")).status is Status.COMPLETED
            assert (calls.most, len(calls.ran), set(calls.ran.values())) == (2, 68, {1})
            await world.settle()

    simulate(main)


def test_an_activity_without_slots_does_not_hold_up_those_that_share_its_limit() -> None:
    calls = Shared(limit=3)

    @calls.app.spark_activity(limit=3, limit_name="database")
    async def heavy(spark: object, number: int) -> int:
        await asyncio.sleep(600)
        return number

    @calls.app.orchestrator
    async def heavies(ctx: OrchestrationContext) -> int:
        return len(await ctx.when_all([ctx.call_activity(heavy, number) for number in range(2)]))

    async def main() -> None:
        async with World(calls.app, spark_activities=1) as world:
            await world.join("one")
            await world.client.start("heavies", instance_id="h")
            await world.clock.sleep(10)
            begun = world.clock.monotonic()
            await world.client.start("loads", ["stock", 0, 6, 3.0], instance_id="i")
            assert (await world.wait("i")).status is Status.COMPLETED
            assert world.clock.monotonic() - begun < 20

    simulate(main)


def test_people_see_the_limit_that_activities_share() -> None:
    async def main() -> None:
        async with World(Shared().app) as world:
            await world.join("one")
            await world.client.start("loads", ["orders", 0, 2, 300.0], instance_id="first")
            await world.clock.sleep(10)
            await world.client.start("loads", ["stock", 10, 3, 1.0], instance_id="second")
            await world.clock.sleep(10)
            (why,) = await world.client.instance("second").waiting()
            assert str(why) == "activity 'stock'; at most 2 of 'database' run in the hub, now first #0, first #1"
            found = {(state.kind, state.name): state for state in await world.client.admin.limits()}
            state = found[LimitKind.ACTIVITY, "database"]
            assert (sorted(state.activities), state.waiting) == (["orders", "prices", "stock"], 3)

    simulate(main)


def test_calls_of_a_shared_limit_go_on_after_it_was_taken_out_of_the_code() -> None:
    calls = Shared()

    async def main() -> None:
        async with World(calls.app, no_worker_timeout=timedelta(minutes=30)) as world:
            one = await world.join("one")
            await world.client.start("loads", ["orders", 0, 10, 30.0], instance_id="i")
            await world.clock.sleep(5)
            await one.stop()
            free = App("calls")
            for name, definition in calls.app.activities.items():
                free.activity(definition.function, name=name)
            for orchestrator in calls.app.orchestrators.values():
                free.orchestrator(orchestrator.function)
            begun = world.clock.monotonic()
            await world.join("two", app=free)
            assert (await world.wait("i")).status is Status.COMPLETED
            assert world.clock.monotonic() - begun < 120
            assert calls.most > 2
            await world.settle()

    simulate(main)
