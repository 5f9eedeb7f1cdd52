"""Calls of an activity with a limit, or a need of memory, wait in turns: a backfill holds up no other run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.engine.context import OrchestrationContext
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.hub.history import waiting_calls
from airflow_provider_taskhub.hub.model import ACTIVITY, ORCHESTRATOR
from airflow_provider_taskhub.hub.queues.lane_reader import RECENT, SHARE
from airflow_provider_taskhub.storage.faults import Call, Fault
from airflow_provider_taskhub.tags import DAG_TAG
from airflow_provider_taskhub.workers.orchestrations.call_lanes import FEWEST_OF_INSTANCES
from tests.simulation.test_fairness import dags_of_different_lanes
from tests.simulation.world import World, simulate

LIMITS: dict[str, dict[str, Any]] = {
    "limit": {"limit": 2},
    "memory": {"memory": "4g"},
    "limit for each tenant": {"limit": 2, "limit_key": "tenant"},
    "limit and memory": {"limit": 2, "memory": "1g"},
}
"""Each lets two attempts run at once on a worker with 8 GiB."""
TENANT = {"tenant": "a"}


class Loads:
    """An app whose activities have a limit. Notes the instance of each call, in the order in which they begin."""

    def __init__(self, **given: Any) -> None:
        self.begun: list[str] = []
        self.times: list[float] = []
        self.app = app = App("turns")

        async def run(what: tuple[str, float]) -> None:
            self.begun.append(what[0])
            self.times.append(asyncio.get_running_loop().time())
            await asyncio.sleep(what[1])

        @app.activity(**given)
        async def load(what: tuple[str, float]) -> None:
            await run(what)

        @app.activity(**given)
        async def save(what: tuple[str, float]) -> None:
            await run(what)

        @app.orchestrator
        async def many(ctx: OrchestrationContext, given: Sequence[Any]) -> int:
            activity, count, seconds, *tenant = given
            tags = {"tenant": tenant[0]} if tenant else TENANT
            calls = [ctx.call_activity(activity, (ctx.instance_id, seconds), tags=tags) for _ in range(count)]
            return len(await ctx.when_all(calls))

        @app.orchestrator
        async def steps(ctx: OrchestrationContext, given: Sequence[Any]) -> None:
            activity, count, seconds, *tenant = given
            tags = {"tenant": tenant[0]} if tenant else TENANT
            for _ in range(count):
                await ctx.call_activity(activity, (ctx.instance_id, seconds), tags=tags)


@pytest.mark.parametrize("kind", LIMITS)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.rows("D85")
def test_a_backfill_delays_tonights_run_by_one_activity(kind: str, workers: int) -> None:
    """Both are runs of one DAG. 90 calls of the backfill wait; without lanes the run of tonight came after them."""
    loads = Loads(**LIMITS[kind])

    async def main() -> None:
        async with World(loads.app, memory=f"{8 // workers}g") as world:
            for number in range(workers):
                await world.join(f"w{number}")
            tags = {DAG_TAG: "nightly"}
            for number in range(30):
                name = f"{number}"
                await world.client.start("many", ("load", 3, 10.0), instance_id=name, tags=tags, priority=-1000)
            await world.clock.sleep(245)  # the first queue has been empty for long
            before, begun = len(loads.begun), world.clock.monotonic()
            await world.client.start("many", ("load", 2, 10.0), instance_id="tonight", tags=tags)
            await world.wait("tonight")
            assert world.clock.monotonic() - begun <= 10 + 10 + 2, "what runs already, then its own"
            assert loads.begun[before:].count("tonight") == 2
            for number in range(30):
                assert (await world.wait(f"{number}", timedelta(hours=1))).status is Status.COMPLETED
            assert len(loads.begun) == 92
            await world.settle()

    simulate(main)


@pytest.mark.parametrize("kind", ["limit", "memory"])
@pytest.mark.rows("D85")
def test_the_fan_out_of_one_dag_does_not_hold_up_another_dag(kind: str) -> None:
    loads = Loads(**LIMITS[kind])

    async def main() -> None:
        async with World(loads.app, memory="8g") as world:
            await world.join("one")
            large, small, *_ = dags_of_different_lanes()
            for number in range(20):
                await world.client.start("many", ("load", 5, 10.0), instance_id=f"{number}", tags={DAG_TAG: large})
            await world.clock.sleep(5)
            before = len(loads.begun)
            await world.client.start("many", ("load", 6, 10.0), instance_id="small", tags={DAG_TAG: small})
            await world.wait("small")
            others = len(loads.begun) - before - 6
            # What it has in the first queue at most, for two partitions, and then a turn for each of the other's.
            assert others <= FEWEST_OF_INSTANCES * 2 + 6
            for number in range(20):
                await world.wait(f"{number}", timedelta(hours=1))

    simulate(main)


@pytest.mark.parametrize("kind", ["limit", "memory"])
def test_what_has_a_low_priority_gets_its_share_while_others_never_end(kind: str) -> None:
    loads = Loads(**LIMITS[kind])

    async def main() -> None:
        async with World(loads.app, memory="8g") as world:
            await world.join("one")
            for number in range(6):
                tags = {DAG_TAG: f"dag{number}"}
                await world.client.start("steps", ("load", 1000, 1.0), instance_id=f"s{number}", tags=tags)
            await world.clock.sleep(30)
            before = len(loads.begun)
            await world.client.start("many", ("load", 10, 1.0), instance_id="low", priority=-1)
            await world.wait("low")
            since = loads.begun[before:]
            assert 1 / (2 * SHARE) < since.count("low") / len(since) < 2 / SHARE

    simulate(main)


def test_an_activity_whose_calls_are_all_in_a_lane_has_its_turn_among_those_that_share_the_limit() -> None:
    """All calls of one have a low priority, so its first queue is empty at each look."""
    loads, returned = Loads(limit=1, limit_name="database"), Counter[str]()

    def plan(call: Call) -> Fault | None:
        returned[call.kind] += 1
        return None

    async def main() -> None:
        async with World(loads.app) as world:
            await world.join("one", plan=plan)
            for number in range(4):
                await world.client.start("steps", ("save", 1000, 5.0), instance_id=f"s{number}")
            await world.clock.sleep(60)
            before = len(loads.begun)
            await world.client.start("many", ("load", 5, 5.0), instance_id="low", priority=-1)
            await world.wait("low")
            assert len(loads.begun) - before <= 2 * 5 + 2, "they take turns"

    simulate(main)


def test_another_worker_finds_what_is_in_the_lanes() -> None:
    """No store announces messages to the other one."""
    loads = Loads(limit=4)

    async def main() -> None:
        async with World(loads.app) as world:
            await world.join("orders", roles=(ORCHESTRATOR,))
            await world.join("one", roles=(ACTIVITY,))
            await world.clock.sleep(600)
            begun = world.clock.monotonic()
            await world.client.start("many", ("load", 40, 2.0), instance_id="i")
            await world.wait("i")
            assert loads.times[0] - begun < 40, "an empty queue is polled every 30 s"
            assert loads.times[-1] - loads.times[0] < 40 / 4 * 2 + 5, "the first call says in which lane the others are"
            begun = world.clock.monotonic()
            await world.client.start("many", ("load", 4, 2.0), instance_id="low", priority=-1)
            await world.wait("low")
            assert world.clock.monotonic() - begun < 40

    simulate(main)


def test_a_large_need_of_low_priority_gets_memory_while_others_never_end() -> None:
    """Its calls are in a lane. Nothing waits in its first queue."""
    loads = Loads(memory="2g")

    @loads.app.activity(memory="8g")
    async def large(what: tuple[str, float]) -> None:
        loads.begun.append(what[0])

    async def main() -> None:
        async with World(loads.app, memory="8g") as world:
            await world.join("one")
            for number in range(5):
                await world.client.start("steps", ("load", 1000, 7.0 + number), instance_id=f"s{number}")
            await world.clock.sleep(60)
            await world.client.start("many", ("large", 2, 1.0), instance_id="low", priority=-1)
            assert (await world.wait("low", timedelta(minutes=3))).status is Status.COMPLETED

    simulate(main)


def test_lanes_are_read_although_each_receive_takes_long() -> None:
    """Longer than a look at the first queue counts."""
    loads, slow = Loads(limit=2), Fault(delay=2 * RECENT)

    async def main() -> None:
        async with World(loads.app) as world:
            await world.join("one", plan=lambda call: slow if call.kind == "queue.receive" else None)
            begun = world.clock.monotonic()
            await world.client.start("many", ("load", 20, 2.0), instance_id="i")
            await world.wait("i")
            assert world.clock.monotonic() - begun < 20 / 2 * 2 * 2

    simulate(main)


def test_the_share_of_a_lane_is_the_same_when_a_receive_brings_many_calls() -> None:
    loads = Loads(memory="1m")

    async def main() -> None:
        async with World(loads.app, memory="8g", activities=16) as world:
            await world.join("one")
            for number in range(4):
                tags = {DAG_TAG: f"dag{number}"}
                await world.client.start("many", ("load", 150, 0.4), instance_id=f"usual{number}", tags=tags)
            await world.client.start("many", ("load", 150, 0.4), instance_id="low", priority=-1)
            for number in range(40):
                tags = {DAG_TAG: f"first{number}"}
                await world.client.start("steps", ("load", 100, 0.4), instance_id=f"first{number}", tags=tags)
            await world.clock.sleep(5)
            before = len(loads.begun)
            await world.clock.sleep(12)
            began = Counter(name.rstrip("0123456789") for name in loads.begun[before:])
            assert began.total() > 300
            assert 1 / (2 * SHARE) < (began["usual"] + began["low"]) / began.total() < 2 / SHARE
            assert began["low"] < began["usual"] / 3

    simulate(main)


def test_the_calls_of_a_tenant_come_in_their_turn_while_other_tenants_never_end() -> None:
    """Four slots have more to do than they can. A call of the tenant that waits in a row has had its turn already: it
    begins after at most one call of each other tenant, 13 calls of 2 s on four slots."""
    loads = Loads(limit=1, limit_key="tenant")

    async def main() -> None:
        async with World(loads.app) as world:
            await world.join("one")
            for number in range(12):
                given = ("load", 400, 2.0, f"t{number}")
                await world.client.start("steps", given, instance_id=f"o{number}", tags={DAG_TAG: f"o{number}"})
            await world.clock.sleep(10)
            begun = world.clock.monotonic()
            await world.client.start("many", ("load", 16, 2.0), instance_id="early", tags={DAG_TAG: "early"})
            await world.clock.sleep(5)
            for number in range(8):
                tags = {DAG_TAG: f"late{number}"}
                await world.client.start("many", ("load", 1, 2.0), instance_id=f"late{number}", tags=tags)
            for name in ("early", *(f"late{number}" for number in range(8))):
                await world.wait(name)
            assert world.clock.monotonic() - begun <= 24 * 8
            assert [name for name in loads.begun if name[0] in "el"][:16] == ["early"] * 16

    simulate(main)


@pytest.mark.parametrize("limited", [True, False], ids=["a new limit", "no limit any more"])
def test_a_call_of_low_priority_keeps_it_when_it_is_moved(limited: bool) -> None:
    old, new = Loads(limit=2), Loads()
    if limited:
        old, new = new, old

    async def main() -> None:
        async with World(old.app, activities=2) as world:
            first = await world.join("old")
            await world.client.start("many", ("load", 60, 10.0), instance_id="low", priority=-1)
            await world.clock.sleep(5)
            await first.stop(timedelta(seconds=1))
            await world.join("new", app=new.app)
            await world.clock.sleep(70)
            begun = world.clock.monotonic()
            await world.client.start("many", ("load", 2, 10.0), instance_id="tonight")
            await world.wait("tonight")
            assert world.clock.monotonic() - begun < 10 + 10 + 5

    simulate(main)


def test_a_call_costs_few_receives_although_there_are_lanes() -> None:
    """One call a minute. Every call once cost 72 receives: each of six queues was polled fast again."""
    loads, receives = Loads(limit=2), Counter[str]()

    def plan(call: Call) -> Fault | None:
        receives[str(call.what)] += call.kind == "queue.receive"
        return None

    async def main() -> None:
        async with World(loads.app) as world:
            await world.join("one", plan=plan)
            await world.clock.sleep(600)
            queues = world.client.hub.names.limited_queues("load")
            receives.clear()
            for number in range(10):
                await world.client.start("many", ("load", 1, 1.0), instance_id=f"{number}")
                await world.clock.sleep(60)
            assert sum(receives[queue] for queue in queues[1:]) <= 10 * 7
            assert receives[queues[0]] <= 10 * 15

    simulate(main)


@pytest.mark.parametrize("kind", ["limit", "limit for each tenant"])
def test_all_that_wait_are_counted_wherever_they_wait(kind: str) -> None:
    loads = Loads(**LIMITS[kind])

    async def main() -> None:
        async with World(loads.app) as world:
            await world.join("one")
            started = world.clock.utc_now()
            await world.client.start("many", ("load", 20, 600.0), instance_id="i")
            await world.client.start("many", ("load", 9, 600.0), instance_id="low", priority=-1)
            await world.clock.sleep(60)
            state = next(one for one in await world.client.admin.limits() if one.name == "load")
            assert (len(state.holders), state.waiting) == (2, 27)
            assert state.oldest is not None
            assert abs((state.oldest - started).total_seconds()) < 5

    simulate(main)


@pytest.mark.parametrize("kind", LIMITS)
def test_a_lane_is_emptied_when_the_code_has_no_limit_any_more(kind: str) -> None:
    loads, free = Loads(**LIMITS[kind]), Loads()

    async def main() -> None:
        async with World(loads.app, memory="8g") as world:
            old = await world.join("old")
            await world.client.start("many", ("load", 30, 30.0), instance_id="i")
            await world.client.start("many", ("load", 9, 30.0), instance_id="low", priority=-1)
            await world.clock.sleep(20)
            await old.stop(timedelta(seconds=1))
            await world.join("new", app=free.app)
            for name in ("i", "low"):
                assert (await world.wait(name, timedelta(minutes=15))).status is Status.COMPLETED
            hub = world.client.hub
            left = [await world.store.count(queue) for queue in hub.names.limited_queues("load")]
            assert (sum(left), await waiting_calls.in_order(hub.store, hub.names, "load")) == (0, [])
            await world.settle()

    simulate(main)
