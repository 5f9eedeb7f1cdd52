"""A limit for each value of a tag: it holds in the whole hub, and no value holds up another one."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.context import OrchestrationContext
from airflow_provider_taskhub.engine.events import OrchestrationInstance, Status, TaskScheduled
from airflow_provider_taskhub.hub.history import waiting_calls
from airflow_provider_taskhub.hub.history.places import Limit, LimitKind, split
from airflow_provider_taskhub.hub.model import ActivityRecord, Member, RecordState, WorkerIdentity
from airflow_provider_taskhub.settings import EMBEDDED_LEASE
from airflow_provider_taskhub.storage.faults import Call, Fault, unsent
from airflow_provider_taskhub.workers.activities.divided_limits import DividedLimits
from airflow_provider_taskhub.workers.activities.limits import ActivityLimit
from airflow_provider_taskhub.workers.peers import Peers
from tests.simulation.world import World, running, simulate

LIMIT = 2


class Tenants:
    """An app whose activity has a limit for each tenant. Notes how many run at once, and when they begin."""

    def __init__(self, limit: int | None = LIMIT, rate: str | None = None) -> None:
        self.inside: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.begins: dict[str, list[float]] = {}
        self.order: dict[str, list[tuple[str, int]]] = {}
        self.ran: Counter[tuple[str, int]] = Counter()
        self.app = app = App("tenants")

        @app.activity(limit=limit, rate=rate, limit_key="tenant")
        async def load(what: tuple[int, float]) -> int:
            number, seconds = what
            tenant = running().tags.get("tenant", "")
            self.begins.setdefault(tenant, []).append(asyncio.get_running_loop().time())
            self.order.setdefault(tenant, []).append((running().instance.instance_id, number))
            self.inside[tenant] += 1
            self.most[tenant] = max(self.most[tenant], self.inside[tenant])
            try:
                await asyncio.sleep(seconds)
            finally:
                self.inside[tenant] -= 1
            self.ran[tenant, number] += 1
            return number

        @app.orchestrator
        async def loads(ctx: OrchestrationContext, given: tuple[str, int, float]) -> int:
            tenant, count, seconds = given
            tags = {"tenant": tenant} if tenant else None
            calls = [ctx.call_activity(load, (number, seconds), tags=tags) for number in range(count)]
            return len(await ctx.when_all(calls))


async def waiting(world: World) -> int:
    hub = world.client.hub
    return len(await waiting_calls.in_order(hub.store, hub.names, "load"))


@pytest.mark.parametrize("workers", [1, 3])
def test_each_value_has_places_of_its_own_and_holds_up_no_other_one(workers: int) -> None:
    tenants = Tenants()

    async def main() -> None:
        async with World(tenants.app, activities=8) as world:
            for number in range(workers):
                await world.join(f"w{number}")
            await world.client.start("loads", ["large", 60, 5.0], instance_id="large")
            await world.clock.sleep(10)
            begun = world.clock.monotonic()
            for name in ("a", "b", ""):
                await world.client.start("loads", [name, 4, 5.0], instance_id=f"i{name}")
            for name in ("a", "b", ""):
                assert (await world.wait(f"i{name}")).status is Status.COMPLETED
            assert world.clock.monotonic() - begun < 15, "two after two, 5 s each"
            assert (await world.wait("large")).status is Status.COMPLETED
            assert world.clock.monotonic() < 180, "60 calls of 5 s, two at once"
            assert tenants.most == {"large": LIMIT, "a": LIMIT, "b": LIMIT, "": LIMIT}
            assert (len(tenants.ran), set(tenants.ran.values())) == (72, {1})
            assert await waiting(world) == 0
            await world.settle()

    simulate(main)


def test_the_calls_of_a_value_begin_in_their_order() -> None:
    tenants = Tenants(limit=1)

    async def main() -> None:
        async with World(tenants.app, activities=8) as world:
            for name in ("one", "two"):
                await world.join(name)
            await world.client.start("loads", ["a", 12, 3.0], instance_id="first")
            await world.clock.sleep(2)
            await world.client.start("loads", ["a", 12, 3.0], instance_id="second")
            for one in ("first", "second"):
                await world.wait(one)
            order = tenants.order["a"]
            assert [instance for instance, _ in order] == ["first"] * 12 + ["second"] * 12
            # The calls of one instance are put into the queue at the same moment, and two workers receive them.
            assert [number for _, number in order[2:12]] == sorted(number for _, number in order[2:12])
            await world.settle()

    simulate(main)


@pytest.mark.parametrize("seed", range(4))
def test_the_limit_holds_while_workers_die_and_join(seed: int) -> None:
    tenants, draw = Tenants(), random.Random(seed)

    async def main() -> None:
        async with World(tenants.app, activities=6) as world:
            machines = [await world.join(f"w{number}") for number in range(3)]
            for name in "abcd":
                await world.client.start("loads", [name, 12, draw.uniform(0.3, 6)], instance_id=f"i{name}")
            for number in range(3, 11):
                await world.clock.sleep(draw.uniform(1, 12))
                dead = draw.choice(machines)
                dead.die()
                machines.remove(dead)
                machines.append(await world.join(f"w{number}"))
            for name in "abcd":
                assert (await world.wait(f"i{name}")).status is Status.COMPLETED
            assert len(tenants.ran) == 48
            assert max(tenants.most.values()) <= LIMIT
            assert await waiting(world) == 0
            await world.settle()

    simulate(main)


def test_a_rate_holds_for_each_value() -> None:
    tenants = Tenants(limit=None, rate="3/m")

    async def main() -> None:
        async with World(tenants.app, activities=8) as world:
            for name in ("one", "two"):
                await world.join(name)
            for name in "ab":
                await world.client.start("loads", [name, 9, 1.0], instance_id=f"i{name}")
            for name in "ab":
                assert (await world.wait(f"i{name}")).status is Status.COMPLETED
            for begins in tenants.begins.values():
                assert min(later - first for first, later in zip(begins, begins[3:], strict=False)) >= 60
            assert world.clock.monotonic() < 200, "three times three, and two minutes between"
            assert set(tenants.ran.values()) == {1}
            await world.settle()

    simulate(main)


def _requests_while_waiting(count: int) -> int:
    """Return the requests of two minutes in which ``count`` calls wait for a place."""
    tenants = Tenants()

    async def main() -> int:
        async with World(tenants.app, activities=8) as world:
            for name in ("one", "two"):
                await world.join(name)
            await world.client.start("loads", ["a", count, 600.0], instance_id="i")
            await world.clock.sleep(60)
            (state,) = await world.client.admin.limits()
            assert (state.shown, len(state.holders), state.waiting) == ("2 for each tenant", LIMIT, count - LIMIT)
            before = sum(world.store.requests.values())  # type: ignore[attr-defined]
            await world.clock.sleep(120)
            return int(sum(world.store.requests.values()) - before)  # type: ignore[attr-defined]

    asked: int = simulate(main)
    return asked


def test_calls_that_wait_cost_no_requests() -> None:
    few, many = _requests_while_waiting(20), _requests_while_waiting(300)
    assert abs(many - few) < 8, (few, many)


def test_terminated_calls_that_wait_do_not_hold_up_those_behind_them() -> None:
    tenants = Tenants(limit=1)

    async def main() -> None:
        async with World(tenants.app, activities=8) as world:
            await world.join("one")
            await world.client.start("loads", ["a", 1, 20.0], instance_id="runs")
            await world.clock.sleep(2)
            await world.client.start("loads", ["a", 40, 20.0], instance_id="gone")
            await world.clock.sleep(2)
            await world.client.start("loads", ["a", 1, 1.0], instance_id="next")
            await world.clock.sleep(2)
            await world.client.terminate("gone", "stop", wait=True)
            await world.wait("runs")
            begun = world.clock.monotonic()
            await world.wait("next")
            assert world.clock.monotonic() - begun < 10
            assert tenants.ran == {("a", 0): 2}
            await world.settle()

    simulate(main)


def test_calls_that_wait_too_long_for_a_place_fail_and_do_not_hold_up_those_behind_them() -> None:
    tenants = Tenants(limit=1)
    app, activity = App("tenants"), tenants.app.activities["load"]
    app.activity(activity.function, name="load", limit=1, limit_key="tenant", queue_timeout=timedelta(seconds=20))
    for orchestrator in tenants.app.orchestrators.values():
        app.orchestrator(orchestrator.function)

    async def main() -> None:
        async with World(app, activities=8) as world:
            await world.join("one")
            await world.client.start("loads", ["a", 1, 30.0], instance_id="runs")
            await world.clock.sleep(1)
            for number in range(6):
                await world.client.start("loads", ["a", 1, 1.0], instance_id=f"late{number}")
            await world.clock.sleep(29)
            await world.client.start("loads", ["a", 1, 1.0], instance_id="next")
            begun = world.clock.monotonic()
            assert (await world.wait("next")).status is Status.COMPLETED
            assert world.clock.monotonic() - begun < 15
            for number in range(6):
                assert (await world.wait(f"late{number}")).status is Status.FAILED

    simulate(main)


def test_nothing_is_left_of_a_value_that_is_not_used_any_more() -> None:
    tenants = Tenants(limit=None, rate="3/m")

    async def main() -> None:
        async with World(tenants.app, activities=8) as world:

            async def asked() -> int:
                before = sum(world.store.requests.values())  # type: ignore[attr-defined]
                await world.clock.sleep(600)
                return int(sum(world.store.requests.values()) - before)  # type: ignore[attr-defined]

            two = await world.join("two")
            await world.clock.sleep(60)
            unused = await asked()
            one = await world.join("one")
            await world.client.start("loads", ["a", 1, 1.0], instance_id="i")
            await world.wait("i")
            await one.stop()
            await world.clock.sleep(300)
            (state,) = await world.client.admin.limits()
            assert (state.holders, state.values) == ((), {})
            assert not two.backend._limits["load"]._values  # type: ignore[union-attr]
            assert abs(await asked() - unused) < 60

    simulate(main)


def test_a_worker_with_a_free_slot_runs_what_waits_for_another_one() -> None:
    """The one that has turned the calls away has no slot any more when a place of their value is free."""
    tenants = Tenants(limit=None, rate="1/m")

    async def main() -> None:
        async with World(tenants.app, activities=2) as world:
            await world.join("one")
            for name in "abcdef":
                await world.client.start("loads", [name, 3, 3600.0], instance_id=f"i{name}")
            await world.clock.sleep(30)
            await world.join("two")
            await world.clock.sleep(200)
            assert len(tenants.ran) + sum(tenants.inside.values()) == 4

    simulate(main)


def test_names_with_the_characters_of_keys_are_told_apart() -> None:
    for name in ("a^;b", "a^", "a;b", "a/b", "^;"):
        for value in (None, "", "x^;y", "^", ";"):
            key = Limit(name=name, places=1, value=value).key.removeprefix(LimitKind.ACTIVITY.prefix)
            assert split(key) == (name, value)


def test_an_order_that_was_given_while_nothing_ran_is_not_exceeded() -> None:
    tenants = Tenants(limit=5)

    async def main() -> None:
        async with World(tenants.app, activities=8) as world:
            for name in ("one", "two"):
                await world.join(name)
            await world.clock.sleep(5)
            await world.client.admin.set_limit("load", 1)
            await world.clock.sleep(60)
            await world.client.start("loads", ["a", 8, 3.0], instance_id="i")
            await world.wait("i")
            assert tenants.most == {"a": 1}

    simulate(main)


def test_the_order_of_an_administrator_counts_for_each_value() -> None:
    tenants = Tenants(limit=1)

    async def main() -> None:
        async with World(tenants.app, activities=8) as world:
            await world.join("one")
            for name in "ab":
                await world.client.start("loads", [name, 4, 600.0], instance_id=f"i{name}")
            await world.clock.sleep(20)
            assert (await world.client.admin.set_limit("load", 3)).shown == "3 for each tenant"
            await world.clock.sleep(40)
            assert tenants.most == {"a": 3, "b": 3}

    simulate(main)


@pytest.mark.parametrize("kind", ["row", "message", "sent", "deleted"])
def test_a_call_that_waits_is_not_lost_if_its_worker_dies_on_the_way(kind: str) -> None:
    """The worker dies before the row is stored, the message is deleted, the call is put back, or its row is deleted."""
    tenants, deaths = Tenants(limit=1), [1]

    def plan(call: Call) -> Fault | None:
        what = str(call.what)
        row, queue = "waiting-calls" in what, "-limit-" in what
        hit = {
            "row": row and "UPSERT" in what,
            "message": queue and call.kind == "queue.delete",
            "sent": queue and call.kind == "queue.put",
            "deleted": row and "DELETE" in what,
        }[kind]
        if hit and deaths:
            deaths.pop()
            machines[0].die()
            return unsent()
        return None

    machines = []

    async def main() -> None:
        async with World(tenants.app, activities=8) as world:
            machines.append(await world.join("one", plan=plan))
            await world.client.start("loads", ["a", 4, 3.0], instance_id="i")
            await world.clock.sleep(1)
            await world.join("two")
            assert (await world.wait("i", timedelta(minutes=10))).status is Status.COMPLETED
            assert set(tenants.ran.values()) == {1}
            assert tenants.most["a"] == 1
            assert not deaths
            assert await waiting(world) == 0
            await world.settle()

    simulate(main)


@pytest.mark.parametrize("code", ["without a key", "without a limit", "without the activity"])
def test_calls_that_wait_go_on_after_the_limit_was_taken_out_of_the_code(code: str) -> None:
    tenants = Tenants(limit=1)
    app = App("tenants")
    for name, activity in tenants.app.activities.items():
        if code == "without the activity":
            app.activity(lambda: None, name="other")
        else:
            app.activity(activity.function, name=name, limit=4 if code == "without a key" else None)
    for orchestrator in tenants.app.orchestrators.values():
        app.orchestrator(orchestrator.function)

    async def main() -> None:
        async with World(tenants.app, activities=8, no_worker_timeout=timedelta(minutes=5)) as world:
            one = await world.join("one")
            await world.client.start("loads", ["a", 12, 30.0], instance_id="i")
            await world.clock.sleep(5)
            assert await waiting(world) == 11
            await one.stop()
            begun = world.clock.monotonic()
            await world.join("two", app=app)
            ended = await world.wait("i")
            if code == "without the activity":
                assert (ended.status, "no live worker" in str(ended.failure)) == (Status.FAILED, True), ended.failure
            else:
                assert ended.status is Status.COMPLETED
                assert world.clock.monotonic() - begun < 160, "not one after the other, which takes 330 s"
            assert await waiting(world) == 0
            await world.settle()

    simulate(main)


def test_people_see_the_limit_of_each_value() -> None:
    tenants = Tenants()

    async def main() -> None:
        async with World(tenants.app, activities=8) as world:
            await world.join("one")
            await world.client.start("loads", ["a", 3, 300.0], instance_id="i")
            await world.clock.sleep(20)
            (why,) = await world.client.instance("i").waiting()
            said = "activity 'load'; at most 2 of 'load' run for each tenant at once; full: "
            assert str(why) == said + "a (1 call waits)"
            await world.client.start("loads", ["b", 2, 300.0], instance_id="runs")
            await world.clock.sleep(20)
            (why,) = await world.client.instance("runs").waiting()
            assert str(why) == "activity 'load'", "its calls run, although all places of its value are taken"
            (state,) = await world.client.admin.limits()
            assert (state.kind, state.key_tag, state.waiting) == (LimitKind.ACTIVITY, "tenant", 1)
            assert {value: len(holders) for value, holders in state.values.items()} == {"a": 2, "b": 2}

    simulate(main)


@pytest.mark.parametrize("earlier", [True, False])
def test_a_call_takes_no_place_before_one_of_its_value_that_has_waited_longer(earlier: bool) -> None:
    """Such a call may wait in its row while a place is free: it is just being put into the queue."""

    async def main() -> None:
        async with World(Tenants().app) as world:
            hub, me = world.client.hub, WorkerIdentity(name="w", host="h", incarnation="1")
            peers = Peers(live=_nobody)
            limits = DividedLimits(
                hub,
                "load",
                "tenant",
                ["load"],
                [Limit(name="load", places=2, key_tag="tenant")],
                lambda limit: ActivityLimit(
                    hub, limit, me=me, peers=peers, times=EMBEDDED_LEASE, end_sessions=_no_sessions
                ),
                me=me,
                peers=peers,
            )
            event = TaskScheduled(event_id=1, timestamp=Timestamp(0), name="load", tags={"tenant": "a"})
            instance = OrchestrationInstance(instance_id="i", execution_id="e")
            held: Any = _Hashable(
                message=SimpleNamespace(event=event, instance=instance),
                envelope=SimpleNamespace(waiting_since=None),
                inserted=Timestamp(1000),
                queue="q",
            )
            waits = replace(limits._waiting(held), task_id=2, since=Timestamp(900 if earlier else 1100))
            await hub.store.execute(waiting_calls.stored(hub.names, waits))
            record = ActivityRecord(
                instance=instance,
                task_id=1,
                action_id="a",
                attempt=1,
                name="load",
                state=RecordState.RUNNING,
                worker=str(me),
                executor="",
                claimed=Timestamp(0),
            )
            assert await limits.take(record, held) is not earlier

    simulate(main)


class _Hashable(SimpleNamespace):
    __hash__ = object.__hash__


async def _nobody() -> Sequence[Member]:
    return ()


async def _no_sessions(sessions: Sequence[str]) -> None:
    raise AssertionError(sessions)
