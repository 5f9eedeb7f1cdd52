"""An activity with a limit: no more attempts run at once in the hub, whoever dies, and those that wait cost nothing."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.context import OrchestrationContext
from airflow_provider_taskhub.engine.events import FailureDetails, OrchestrationInstance, Status
from airflow_provider_taskhub.hub.history import activity_records as records
from airflow_provider_taskhub.hub.history.places import Limit
from airflow_provider_taskhub.hub.model import (
    ACTIVITY,
    ORCHESTRATOR,
    ActivityRecord,
    Member,
    RecordState,
    WorkerIdentity,
)
from airflow_provider_taskhub.settings import EMBEDDED_LEASE
from airflow_provider_taskhub.storage.primitives import Operation, Result, Transact
from airflow_provider_taskhub.workers.activities.limits import ActivityLimit
from airflow_provider_taskhub.workers.executors.attempt_values import MAX_CRASHES, ActivityOutcome, ActivityRequest
from airflow_provider_taskhub.workers.peers import Peers
from tests.simulation.world import RARE_RENEWALS, Attempts, World, running, simulate

LIMIT = 2


class Gate:
    """Counts how many attempts of the activity run, and how many have run at once."""

    def __init__(self, timeout: timedelta | None = None) -> None:
        self.inside: set[tuple[str, int]] = set()
        self.most = 0
        self.ran: Counter[int] = Counter()
        self.broken: set[int] = set()
        self.app = app = App("limited")

        @app.activity(limit=LIMIT, timeout=timeout)
        async def load(what: tuple[int, float]) -> int:
            number, seconds = what
            key = (f"{number}", running().attempt)
            self.inside.add(key)
            self.most = max(self.most, len(self.inside))
            try:
                await asyncio.sleep(seconds)
            finally:
                self.inside.discard(key)
            if number in self.broken:
                raise ValueError("broken")
            self.ran[number] += 1
            return number

        @app.activity
        async def light(number: int) -> int:
            return number

        @app.orchestrator
        async def loads(ctx: OrchestrationContext, given: tuple[int, int, float]) -> int:
            first, count, seconds = given
            calls = [ctx.call_activity(load, (first + number, seconds)) for number in range(count)]
            return len(await ctx.when_all(calls))

        @app.orchestrator
        async def lights(ctx: OrchestrationContext) -> int:
            return await ctx.call_activity(light, 1)


def test_no_more_attempts_than_the_limit_run_on_all_workers_together() -> None:
    gate = Gate()

    async def main() -> None:
        async with World(gate.app) as world:
            for name in ("one", "two", "three"):
                await world.join(name)
            for number in range(4):
                await world.client.start("loads", [number * 5, 5, 3.0], instance_id=f"i{number}")
            begun = world.clock.monotonic()
            for number in range(4):
                assert (await world.wait(f"i{number}")).status is Status.COMPLETED
            assert (gate.most, len(gate.ran), set(gate.ran.values())) == (LIMIT, 20, {1})
            assert world.clock.monotonic() - begun < 45, "20 activities of 3 s, two at once, and few pauses between"
            await world.settle()

    simulate(main)


def test_what_waits_for_a_place_takes_no_slot() -> None:
    gate = Gate()

    async def main() -> None:
        async with World(gate.app, activities=3) as world:
            await world.join("one")
            await world.client.start("loads", [0, 20, 60.0], instance_id="i")
            await world.clock.sleep(5)
            begun = world.clock.monotonic()
            await world.client.start("lights", instance_id="l")
            assert (await world.wait("l")).status is Status.COMPLETED
            assert world.clock.monotonic() - begun < 1

    simulate(main)


def _record(number: int, attempt: int = 1) -> ActivityRecord:
    return ActivityRecord(
        instance=OrchestrationInstance(instance_id="i", execution_id="e"),
        task_id=number,
        action_id=f"a{number}",
        attempt=attempt,
        name="load",
        state=RecordState.RUNNING,
        worker="w@h/1",
        executor="",
        claimed=Timestamp(0),
    )


def _seen_by(world: World, worker: str) -> ActivityLimit:
    """The places as a worker sees them that runs nothing else."""
    me, _, incarnation = worker.partition("@h/")

    async def live() -> Sequence[Member]:
        return ()

    return ActivityLimit(
        world.client.hub,
        Limit(name="load", places=LIMIT),
        me=WorkerIdentity(name=me, host="h", incarnation=incarnation),
        peers=Peers(live=live),
        times=EMBEDDED_LEASE,
        end_sessions=_no_sessions,
    )


async def _no_sessions(sessions: Sequence[str]) -> None:
    raise AssertionError(sessions)


def test_the_next_attempt_of_a_call_has_the_place_of_the_one_before() -> None:
    async def main() -> None:
        async with World(Gate().app) as world:
            limit = _seen_by(world, "w@h/1")
            assert [await limit.take(_record(number)) for number in range(3)] == [True, True, False]
            assert await limit.take(_record(0, attempt=2))
            assert await limit.confirm(_record(0, attempt=2))
            await limit.leave(_record(0))
            assert not await limit.take(_record(2)), "an attempt frees no place of another one"
            await limit.leave(_record(0, attempt=2))
            assert await limit.take(_record(2))

    simulate(main)


@pytest.mark.parametrize("writes", ["never", "before it names nobody", "after it names nobody", "when it is freed"])
def test_a_place_whose_attempt_has_no_record_is_freed_if_it_stays_so(
    writes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slow worker claims the record of its attempt just before or just after another one frees its place."""

    async def main() -> None:
        async with World(Gate().app) as world:
            hub = world.client.hub
            slow, other = _seen_by(world, "w@h/1"), _seen_by(world, "x@h/1")
            for number in range(LIMIT):
                assert await slow.take(_record(number))
                if number:
                    await hub.store.execute(records.claim(hub.names, _record(number), supersede=None))
            claim, execute = records.claim(hub.names, _record(0), supersede=None), hub.store.execute

            async def executed(operation: Operation) -> Result:
                columns = operation.rows[0].entity.properties if isinstance(operation, Transact) else {}
                nobody, frees = columns.get("InstanceId") == "", columns.get("Held") is False
                if nobody and not frees and writes.startswith("before"):
                    await execute(claim)
                result = await execute(operation)
                if (nobody and not frees and writes.startswith("after")) or (frees and writes.startswith("when")):
                    await execute(claim)
                return result

            monkeypatch.setattr(hub.store, "execute", executed)
            looking = world.spawn(other.run(lambda: None))
            for _ in range(60):
                await world.clock.sleep(0.5)
                await _beat(world, *map(_record, range(LIMIT)))
            looking.cancel()
            in_time = "names nobody" in writes
            assert await other.take(_record(7)) is not in_time
            if writes == "never":
                await execute(claim)
            assert await slow.confirm(_record(0)) is in_time

    simulate(main)


def test_a_call_with_a_free_place_begins_when_other_activities_free_a_slot() -> None:
    gate = Gate()

    @gate.app.activity(record=True)
    async def plain(number: int) -> int:
        await asyncio.sleep(30)
        return number

    @gate.app.orchestrator
    async def plains(ctx: OrchestrationContext) -> int:
        return len(await ctx.when_all([ctx.call_activity(plain, number) for number in range(3)]))

    async def main() -> None:
        async with World(gate.app, activities=3) as world:
            await world.join("one")
            await world.client.start("plains", instance_id="p")
            await world.clock.sleep(5)
            await world.client.start("loads", [0, 1, 1.0], instance_id="i")
            await world.wait("p")
            begun = world.clock.monotonic()
            assert (await world.wait("i")).status is Status.COMPLETED
            assert world.clock.monotonic() - begun < 3

    simulate(main)


async def _beat(world: World, *beating: ActivityRecord) -> None:
    """Send a heartbeat for attempts, as their workers do."""
    hub = world.client.hub
    for record in beating:
        newest = await records.newest(hub.store, hub.names, record)
        if newest is not None:
            await hub.store.execute(records.update(hub.names, newest[0], newest[1].etag))


def test_who_has_the_last_place_sees_that_another_place_is_free_again() -> None:
    async def main() -> None:
        async with World(Gate().app) as world:
            hub, mine, other = world.client.hub, _seen_by(world, "w@h/1"), _seen_by(world, "x@h/1")
            freed: list[float] = []
            assert await other.take(_record(0))
            await hub.store.execute(records.claim(hub.names, _record(0), supersede=None))
            looking = world.spawn(mine.run(lambda: freed.append(world.clock.monotonic())))
            await world.clock.sleep(1)
            assert await mine.take(_record(1))
            freed.clear()
            await other.leave(_record(0))
            await world.clock.sleep(10)
            assert freed
            looking.cancel()

    simulate(main)


def test_a_duplicate_of_a_call_does_not_free_the_place_under_it() -> None:
    """The place then names an earlier attempt than the one that runs."""

    async def main() -> None:
        async with World(Gate().app) as world:
            hub, limit, other = world.client.hub, _seen_by(world, "w@h/1"), _seen_by(world, "x@h/1")
            lost = replace(_record(0), state=RecordState.LOST)
            (etag,) = await hub.store.execute(records.claim(hub.names, _record(0), supersede=None))
            await hub.store.execute(records.update(hub.names, lost, etag))
            assert await limit.take(_record(0, attempt=2))
            await hub.store.execute(records.claim(hub.names, _record(0, attempt=2), supersede=None))
            assert await other.take(_record(0)), "the duplicate has not read the records"
            other.forget(_record(0))
            assert await limit.confirm(_record(0, attempt=2))
            assert await limit.take(_record(1))
            await hub.store.execute(records.claim(hub.names, _record(1), supersede=None))
            looking = world.spawn(other.run(lambda: None))
            for _ in range(30):
                await world.clock.sleep(0.5)
                await _beat(world, _record(0, attempt=2), _record(1))
            assert not await other.take(_record(2))
            await limit.leave(_record(0, attempt=2))
            assert await other.take(_record(2))
            looking.cancel()

    simulate(main)


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1)])
def test_a_changed_limit_holds_for_the_next_workers(before: int, after: int) -> None:
    inside, most = set[int](), [0]

    def app_of(limit: int) -> App:
        app = App("changing")

        @app.activity(limit=limit)
        async def load(number: int) -> int:
            inside.add(number)
            most.append(len(inside))
            try:
                await asyncio.sleep(5)
            finally:
                inside.discard(number)
            return number

        @app.orchestrator
        async def loads(ctx: OrchestrationContext) -> int:
            return len(await ctx.when_all([ctx.call_activity("load", number) for number in range(12)]))

        return app

    async def main() -> None:
        async with World(app_of(before)) as world:
            one = await world.join("one")
            await world.client.start("loads", instance_id="i")
            await world.clock.sleep(12)
            await one.stop()
            assert max(most) == before
            most.clear()
            await world.join("two", app=app_of(after))
            assert (await world.wait("i")).status is Status.COMPLETED
            assert max(most) == after
            (changed,) = world.said("limit_changed")
            assert (changed["before"], changed["now"]) == (str(before), str(after))
            await world.settle()

    simulate(main)


def test_an_order_for_more_places_counts_while_one_worker_has_them_all() -> None:
    gate = Gate()

    async def main() -> None:
        async with World(gate.app) as world:
            await world.join("one")
            await world.client.start("loads", [0, 4, 600.0], instance_id="i")
            await world.clock.sleep(30)
            await world.client.admin.set_limit("load", 4)
            await world.clock.sleep(30)
            assert gate.most == 4

    simulate(main)


def test_a_moved_call_has_been_delivered_as_often_as_before() -> None:
    """A ``queue_timeout`` counts until the first delivery: an attempt may have begun since."""
    gate = Gate()

    async def main() -> None:
        async with World(gate.app) as world:
            one = await world.join("one", app=_unlimited(gate))
            await world.client.start("loads", [0, 1, 600.0], instance_id="i")
            await world.clock.sleep(60)
            await one.stop(timedelta(seconds=1))
            await world.join("two")
            await world.clock.sleep(20)
            assert [held.deliveries for machine in world.machines if not machine.dead for held in _held(machine)] == [2]

    simulate(main)


@pytest.mark.rows("D88")
@pytest.mark.parametrize("end", ["fails", "is terminated", "times out"])
def test_the_place_of_an_attempt_is_free_again_at_once_however_it_ends(end: str) -> None:
    gate = Gate(timeout=timedelta(seconds=5) if end == "times out" else None)
    gate.broken = {0, 1}

    async def main() -> None:
        async with World(gate.app) as world:
            await world.join("one")
            for number in range(LIMIT):
                await world.client.start(
                    "loads", [number, 1, 3.0 if end == "fails" else 600.0], instance_id=f"i{number}"
                )
            await world.clock.sleep(2)
            assert len(gate.inside) == LIMIT
            await world.client.start("loads", [LIMIT, LIMIT, 1.0], instance_id="next")
            for number in range(LIMIT):
                if end == "is terminated":
                    await world.client.terminate(f"i{number}", "enough", wait=True)
                state = await world.wait(f"i{number}")
                assert state.status is (Status.TERMINATED if end == "is terminated" else Status.FAILED)
            ended = world.clock.monotonic()
            assert (await world.wait("next")).status is Status.COMPLETED
            assert world.clock.monotonic() - ended < 4
            assert gate.most == LIMIT
            assert gate.ran == {LIMIT: 1, LIMIT + 1: 1}
            await world.clock.sleep(10)
            (limit,) = await world.client.admin.limits()
            assert (limit.waiting, limit.holders) == (0, ())
            await world.settle()

    simulate(main)


@pytest.mark.rows("D88")
def test_the_place_of_an_attempt_whose_executor_dies_is_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker lives. The calls fail when they have killed three executors, and the calls behind them run."""
    gate, run, began = Gate(), Attempts.run, Counter[int]()

    async def dies(self: Attempts, request: ActivityRequest, **more: Any) -> ActivityOutcome:
        outcome = await run(self, request, **more)
        ((number, _),) = json.loads(request.input or "")
        began[number] += 1
        if number >= LIMIT:
            return outcome
        failure = FailureDetails(error_type="Killed", error_message="died")
        return ActivityOutcome(failure=failure, crashed=True)

    monkeypatch.setattr(Attempts, "run", dies)

    async def main() -> None:
        async with World(gate.app) as world:
            await world.join("one")
            for number in range(LIMIT):
                await world.client.start("loads", [number, 1, 3.0], instance_id=f"i{number}")
            await world.clock.sleep(2)
            await world.client.start("loads", [LIMIT, LIMIT, 1.0], instance_id="next")
            assert (await world.wait("next")).status is Status.COMPLETED
            for number in range(LIMIT):
                assert (await world.wait(f"i{number}")).status is Status.FAILED
            assert gate.most == LIMIT
            assert began == {number: MAX_CRASHES if number < LIMIT else 1 for number in range(2 * LIMIT)}
            (limit,) = await world.client.admin.limits()
            assert (limit.waiting, limit.holders) == (0, ())
            await world.settle()

    simulate(main)


def _held(machine: Any) -> list[Any]:
    return [held for source in machine.backend.readers for held in source.items.reader.held()]


@pytest.mark.rows("D88")
@pytest.mark.parametrize("proves", [True, False], ids=["proven dead", "silent"])
def test_the_places_of_a_dead_worker_are_free_again(proves: bool) -> None:
    gate = Gate()

    async def main() -> None:
        async with World(gate.app) as world:
            one = await world.join("one", proves=proves)
            await world.client.start("loads", [0, 6, 10.0], instance_id="i")
            await world.clock.sleep(5)
            one.die()
            await world.join("two", proves=proves)
            assert (await world.wait("i")).status is Status.COMPLETED
            assert (gate.most, len(gate.ran)) == (LIMIT, 6)
            assert set(gate.ran.values()) == {1}
            await world.settle()

    simulate(main)


@pytest.mark.parametrize("seed", range(4))
def test_the_limit_holds_while_workers_die_and_join(seed: int) -> None:
    gate, draw = Gate(), random.Random(seed)

    async def main() -> None:
        async with World(gate.app) as world:
            machines = [await world.join(f"w{number}") for number in range(3)]
            for number in range(6):
                await world.client.start("loads", [number * 10, 10, draw.uniform(0.2, 6)], instance_id=f"i{number}")
            for number in range(3, 12):
                await world.clock.sleep(draw.uniform(1, 12))
                dead = draw.choice(machines)
                dead.die()
                machines.remove(dead)
                machines.append(await world.join(f"w{number}"))
            for number in range(6):
                assert (await world.wait(f"i{number}")).status is Status.COMPLETED
            assert gate.most <= LIMIT
            assert len(gate.ran) == 60
            await world.settle()

    simulate(main)


def _unlimited(gate: Gate) -> App:
    """The same app after its author has taken the limit away."""
    app = App("limited")
    for name, definition in gate.app.activities.items():
        app.activity(definition.function, name=name)
    for definition in gate.app.orchestrators.values():
        app.orchestrator(definition.function)
    return app


def test_calls_go_on_after_the_limit_was_taken_out_of_the_code() -> None:
    gate = Gate()

    async def main() -> None:
        async with World(gate.app) as world:
            one = await world.join("one")
            await world.client.start("loads", [0, 10, 30.0], instance_id="i")
            await world.clock.sleep(5)
            await one.stop()
            begun = world.clock.monotonic()
            await world.join("two", app=_unlimited(gate))
            assert (await world.wait("i")).status is Status.COMPLETED
            assert world.clock.monotonic() - begun < 120, "not two after two, which takes 150 s"
            assert gate.most > LIMIT
            await world.settle()

    simulate(main)


def test_calls_of_senders_that_do_not_know_the_limit_wait_in_its_queue() -> None:
    gate = Gate()

    async def main() -> None:
        async with World(gate.app) as world:
            old = await world.join("old", app=_unlimited(gate), roles=(ORCHESTRATOR,))
            await world.client.start("loads", [0, 6, 3.0], instance_id="i")
            await world.clock.sleep(2)
            await world.join("new", roles=(ACTIVITY,))
            assert (await world.wait("i")).status is Status.COMPLETED
            assert (gate.most, set(gate.ran.values())) == (LIMIT, {1})
            await old.stop()
            await world.settle()

    simulate(main)


def test_calls_that_no_live_worker_can_run_any_more_leave_the_queue_of_their_limit() -> None:
    gate, other = Gate(), App("other")

    @other.activity
    def nothing() -> None: ...

    async def main() -> None:
        async with World(gate.app, no_worker_timeout=timedelta(minutes=3)) as world:
            await world.join("two", app=other)
            await world.clock.sleep(10)
            one = await world.join("one")
            await world.client.start("loads", [0, 5, 600.0], instance_id="i")
            await world.clock.sleep(5)
            await one.stop(timedelta(seconds=1))
            names = world.client.hub.names
            await world.clock.sleep(1000)
            left = [await world.store.count(queue) for queue in names.limited_queues("load")]
            assert not sum(left)
            assert world.said("activity_unknown"), (
                "what always applies to an activity that no worker has applies to these calls"
            )

    simulate(main)


def _requests_while_waiting(count: int) -> int:
    """Return the requests of two minutes in which ``count`` calls wait for a place."""
    gate = Gate()

    async def main() -> int:
        async with World(gate.app) as world:
            for name in ("one", "two"):
                await world.join(name)
            await world.client.start("loads", [0, count, 300.0], instance_id="i")
            await world.clock.sleep(60)
            (state,) = await world.client.admin.limits()
            assert (state.limit, len(state.holders), state.waiting) == (LIMIT, LIMIT, count - LIMIT)
            before = sum(world.store.requests.values())  # type: ignore[attr-defined]
            await world.clock.sleep(120)
            return int(sum(world.store.requests.values()) - before)  # type: ignore[attr-defined]

    asked: int = simulate(main)
    return asked


def test_calls_that_wait_cost_no_requests() -> None:
    few, many = _requests_while_waiting(20), _requests_while_waiting(400)
    assert abs(many - few) < 5, (few, many)


def test_people_see_who_has_the_places() -> None:
    gate = Gate()

    async def main() -> None:
        async with World(gate.app, activities=1) as world:
            for name in ("one", "two"):
                await world.join(name)
            await world.client.start("loads", [0, 2, 300.0], instance_id="first")
            await world.clock.sleep(20)
            (why,) = await world.client.instance("first").waiting()
            assert str(why) == "activity 'load'", "no call waits for the limit"
            await world.client.start("loads", [10, 1, 1.0], instance_id="second")
            await world.clock.sleep(20)
            (why,) = await world.client.instance("second").waiting()
            said = "activity 'load'; at most 2 of 'load' run in the hub, now first #0, first #1, and 1 call waits"
            assert str(why) == said
            found = await world.client.get("second", payloads=False)
            assert found is not None
            assert (await world.client.admin.waiting_of([found]))["second"] == (why,)
            (state,) = await world.client.admin.limits()
            assert {place.instance.instance_id for place in state.holders} == {"first"}
            assert [one.limits for one in await world.client.admin.workers()] == [{"activity load": "2"}] * 2

    simulate(main)


def test_a_large_input_is_there_when_its_call_has_waited_for_hours() -> None:
    gate = Gate()
    got: list[int] = []

    @gate.app.activity(limit=1)
    async def big(text: str) -> int:
        await asyncio.sleep(1 if got else 3600)
        got.append(len(text))
        return len(text)

    @gate.app.orchestrator
    async def bigs(ctx: OrchestrationContext) -> int:
        return sum(await ctx.when_all([ctx.call_activity(big, "x" * 100_000) for _ in range(3)]))

    async def main() -> None:
        async with World(gate.app, lease=RARE_RENEWALS) as world:
            await world.join("old", app=_unlimited(gate), roles=(ORCHESTRATOR,))
            await world.join("one")
            await world.client.start("bigs", instance_id="i")
            assert (await world.wait("i", timedelta(hours=6))).status is Status.COMPLETED
            assert got == [100_000] * 3

    simulate(main)
