"""The rate of an activity, and activities that share a limit: the numbers hold in the whole hub, and nobody starves."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.context import OrchestrationContext
from airflow_provider_taskhub.engine.events import FailureDetails, OrchestrationInstance, Status
from airflow_provider_taskhub.hub.history import places
from airflow_provider_taskhub.hub.history.places import Limit, LimitKind, LimitState
from airflow_provider_taskhub.hub.model import ActivityRecord, HubNames, Member, RecordState, WorkerIdentity
from airflow_provider_taskhub.settings import AZURE_LEASE, EMBEDDED_LEASE, LeaseTimes
from airflow_provider_taskhub.storage.faults import Call, Fault, unsent
from airflow_provider_taskhub.workers.activities.activity_limits import ActivityLimits
from airflow_provider_taskhub.workers.activities.limits import ActivityLimit
from airflow_provider_taskhub.workers.activities.rates import ActivityRate
from airflow_provider_taskhub.workers.executors.attempt_values import ActivityOutcome, ActivityRequest
from airflow_provider_taskhub.workers.peers import Peers
from tests.simulation.world import Attempts, World, running, simulate

STARTS, MINUTE = 3, 60


class Calls:
    """An app whose activities note when they begin, and how many run at once."""

    def __init__(self, *, limit: int | None = None, rate: str | None = f"{STARTS}/m", key: str | None = None) -> None:
        self.begins: list[float] = []
        self.ran: Counter[int] = Counter()
        self.inside: set[tuple[int, int]] = set()
        self.most = 0
        self.app = app = App("calls")

        @app.activity(limit=limit, rate=rate, limit_key=key)
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


@pytest.mark.parametrize("key", [None, "tenant"])
@pytest.mark.parametrize("lease", [EMBEDDED_LEASE, AZURE_LEASE], ids=["embedded", "azure"])
def test_calls_begin_although_no_worker_lives_as_long_as_the_time_of_the_rate(
    lease: LeaseTimes, key: str | None
) -> None:
    """A worker that joins learns from the store how old the places of the dead are."""
    calls = Calls(key=key)

    async def main() -> None:
        async with World(calls.app, lease=lease) as world:
            machines = [await world.join(f"w{number}") for number in range(2)]
            await world.client.start("asks", [0, STARTS + 1, 0.5], instance_id="i")
            for number in range(2, 40):
                await world.clock.sleep(15)
                if len(calls.ran) > STARTS:
                    break
                await machines[number % 2].bury()
                machines[number % 2] = await world.join(f"w{number}")
            calls.check(STARTS, MINUTE)
            assert len(calls.ran) == STARTS + 1
            assert max(calls.begins) < MINUTE + lease.take.total_seconds() + 30

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


def test_an_executor_that_begins_late_asks_for_its_place_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is away for a minute and a half. Meanwhile another worker has given its place away."""
    calls, away, run = Calls(rate="1/m"), [90.0], Attempts.run

    async def late(self: Attempts, request: ActivityRequest, **more: Any) -> ActivityOutcome:
        if away:
            await asyncio.sleep(away.pop())
        return await run(self, request, **more)

    monkeypatch.setattr(Attempts, "run", late)

    async def main() -> None:
        async with World(calls.app) as world:
            for name in ("one", "two"):
                await world.join(name)
            await world.client.start("asks", [0, 4, 1.0], instance_id="i")
            assert (await world.wait("i")).status is Status.COMPLETED
            calls.check(1, MINUTE)
            assert set(calls.ran.values()) == {1}
            await world.settle()

    simulate(main)


def test_a_call_that_kills_its_executor_fails_after_as_many_attempts_as_without_a_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = Calls(rate="1/m")
    begins: list[float] = []

    async def run(self: Attempts, request: ActivityRequest, **more: Any) -> ActivityOutcome:
        begins.append(asyncio.get_running_loop().time())
        return ActivityOutcome(failure=FailureDetails(error_type="Killed", error_message="died"), crashed=True)

    monkeypatch.setattr(Attempts, "run", run)

    async def main() -> None:
        async with World(calls.app) as world:
            await world.join("one")
            await world.client.start("asks", [0, 1, 1.0], instance_id="i")
            assert (await world.wait("i")).status is Status.FAILED
            assert len(begins) == 3
            assert min(later - first for first, later in pairwise(begins)) >= MINUTE

    simulate(main)


def test_people_see_the_rate_that_a_call_waits_for() -> None:
    async def main() -> None:
        async with World(Calls().app) as world:
            await world.join("one")
            await world.client.start("asks", [0, 5, 1.0], instance_id="i")
            await world.clock.sleep(20)
            (why,) = await world.client.instance("i").waiting()
            assert str(why) == "activity 'ask'; 'ask' has reached its rate of 3/m, and 2 calls wait"

    simulate(main)


def test_a_call_that_runs_does_not_wait_for_its_rate() -> None:
    async def main() -> None:
        async with World(Calls(rate="50/m").app, activities=5) as world:
            await world.join("one")
            await world.client.start("asks", [0, 5, 600.0], instance_id="i")
            await world.clock.sleep(20)
            (state,) = await world.client.admin.limits()
            assert (len(state.holders), state.waiting, state.oldest) == (5, 0, None)

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
            await world.clock.sleep(1 + mine.begins_within + 0.5)
            assert await mine.take(_record(1, "w@h/1"))
            looking.cancel()

    simulate(main)


def test_an_attempt_that_begins_late_writes_its_place_again_so_that_others_count_from_then() -> None:
    async def main() -> None:
        async with World(Calls().app) as world:
            slow, other = _seen_by(world, "w@h/1"), _seen_by(world, "x@h/1")
            mine = _record(0, "w@h/1")
            assert await slow.take(mine)
            await other.look()
            late = EMBEDDED_LEASE.take.total_seconds() - 1
            await world.clock.sleep(late)
            assert await slow.confirm(mine)
            while not other.free:
                await world.clock.sleep(0.25)
                await other.look()
            assert world.clock.monotonic() >= late + slow.begins_within + MINUTE

    simulate(main)


def test_a_place_that_was_taken_during_a_look_stays_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with World(Calls().app) as world:
            mine, record = _seen_by(world, "w@h/1"), _record(0, "w@h/1")
            read = mine._state

            async def meanwhile() -> LimitState:
                found = await read()
                monkeypatch.setattr(mine, "_state", read)
                assert await mine.take(record)
                return found

            monkeypatch.setattr(mine, "_state", meanwhile)
            await mine.look()
            assert mine.free == 0
            assert await mine.confirm(record)

    simulate(main)


def test_the_time_of_the_newest_code_counts_on_all_workers() -> None:
    async def main() -> None:
        async with World(Calls().app) as world:
            hub, old = world.client.hub, _seen_by(world, "w@h/1")
            longer = Limit(name="ask", places=1, seconds=60 * MINUTE, kind=LimitKind.RATE)
            await hub.store.execute(places.declared(hub.names, longer))
            assert await old.take(_record(0, "w@h/1"))
            looking = world.spawn(old.run(lambda: None))
            await world.clock.sleep(59 * MINUTE)
            assert not await old.take(_record(1, "w@h/1"))
            await world.clock.sleep(2 * MINUTE)
            assert await old.take(_record(1, "w@h/1"))
            looking.cancel()

    simulate(main)


@pytest.mark.parametrize("earlier", [True, False], ids=["of an earlier attempt", "free before"])
def test_who_gets_no_start_gives_back_no_place_of_an_attempt_that_may_run(earlier: bool) -> None:
    """A work item may come twice. The other one has the place of the limit, and the rate has no start left."""

    async def main() -> None:
        async with World(Calls().app) as world:
            hub, me = world.client.hub, WorkerIdentity(name="w", host="h", incarnation="1")
            peers = Peers(live=lambda: _nobody())
            limit = ActivityLimit(
                hub, Limit(name="ask", places=2), me=me, peers=peers, times=EMBEDDED_LEASE, end_sessions=_no_sessions
            )
            rate = _seen_by(world, "w@h/1")
            assert await rate.take(_record(7, "w@h/1"))
            if earlier:
                assert await limit.take(_record(0, "x@h/1"))
            both = ActivityLimits("ask", [limit, rate], world.clock, others=False)
            held: Any = object()
            assert not await both.take(_record(0, "w@h/1"), held)
            holders = (await places.state_of(hub.store, hub.names, limit.limit)).holders
            assert len(holders) == earlier

    simulate(main)


async def _nobody() -> Sequence[Member]:
    return ()


async def _no_sessions(sessions: Sequence[str]) -> None:
    raise AssertionError(sessions)


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


def test_activities_of_several_pools_that_share_a_limit_take_turns() -> None:
    """No worker sees when one of the other pool frees a place."""
    calls = Shared(limit=1)

    @calls.app.activity(limit=1, limit_name="database", pool="large")
    async def train(what: tuple[int, float]) -> int:
        return await calls.work(*what)

    async def main() -> None:
        async with World(calls.app) as world:
            await world.join("one")
            await world.join("two", pools="large")
            await world.client.start("loads", ["orders", 0, 60, 3.0], instance_id="many")
            await world.clock.sleep(10)
            begun = world.clock.monotonic()
            await world.client.start("loads", ["train", 100, 5, 3.0], instance_id="few")
            assert (await world.wait("few")).status is Status.COMPLETED
            assert world.clock.monotonic() - begun < 60, "5 of 10 turns of 3 s, and pauses"
            assert (await world.wait("many")).status is Status.COMPLETED
            assert (calls.most, len(calls.ran)) == (1, 65)

    simulate(main)


def test_a_queue_that_cannot_be_read_holds_up_none_that_shares_its_limit() -> None:
    calls = Shared(limit=1)
    busy = True

    def plan(call: Call) -> Fault | None:
        of_orders = call.kind == "queue.receive" and call.what in HubNames("Simulated").limited_queues("orders")
        return unsent() if busy and of_orders else None

    async def main() -> None:
        nonlocal busy
        async with World(calls.app) as world:
            assert world.client.hub.names == HubNames("Simulated")
            await world.join("one", plan=plan)
            await world.client.start("loads", ["orders", 0, 3, 3.0], instance_id="unread")
            begun = world.clock.monotonic()
            await world.client.start("loads", ["stock", 10, 8, 3.0], instance_id="read")
            assert (await world.wait("read")).status is Status.COMPLETED
            assert world.clock.monotonic() - begun < 40
            busy = False
            assert (await world.wait("unread")).status is Status.COMPLETED
            await world.settle()

    simulate(main)


def test_a_limit_that_the_newest_code_has_no_more_is_not_shown() -> None:
    async def main() -> None:
        calls = Calls()
        async with World(calls.app) as world:
            one = await world.join("one")
            await world.client.start("asks", [0, 20, 0.3], instance_id="i")
            await world.clock.sleep(5)
            assert [state.kind for state in await world.client.admin.limits()] == [LimitKind.RATE]
            await one.stop()
            two = await world.join("two", app=Calls(rate=None, limit=5).app)
            await world.clock.sleep(5)
            (state,) = await world.client.admin.limits()
            assert (state.kind, state.shown) == (LimitKind.ACTIVITY, "5")
            await two.stop()
            await world.join("three", app=Calls(rate=None).app)
            await world.clock.sleep(5)
            assert await world.client.admin.limits() == ()

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
            said = "activity 'stock'; at most 2 of 'database' run in the hub, now first #0, first #1, and 3 calls wait"
            assert str(why) == said
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
