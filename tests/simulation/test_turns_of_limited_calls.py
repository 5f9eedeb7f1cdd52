"""Calls of an activity with a limit, or a need of memory, wait in turns: a backfill holds up no other run."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.engine.context import OrchestrationContext
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.hub.history import waiting_calls
from airflow_provider_taskhub.hub.model import ACTIVITY, ORCHESTRATOR
from airflow_provider_taskhub.hub.queues.lane_reader import SHARE
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
        self.app = app = App("turns")

        async def run(what: tuple[str, float]) -> None:
            self.begun.append(what[0])
            await asyncio.sleep(what[1])

        @app.activity(**given)
        async def load(what: tuple[str, float]) -> None:
            await run(what)

        @app.activity(**given)
        async def save(what: tuple[str, float]) -> None:
            await run(what)

        @app.orchestrator
        async def many(ctx: OrchestrationContext, given: tuple[str, int, float]) -> int:
            activity, count, seconds = given
            calls = [ctx.call_activity(activity, (ctx.instance_id, seconds), tags=TENANT) for _ in range(count)]
            return len(await ctx.when_all(calls))

        @app.orchestrator
        async def steps(ctx: OrchestrationContext, given: tuple[str, int, float]) -> None:
            activity, count, seconds = given
            for _ in range(count):
                await ctx.call_activity(activity, (ctx.instance_id, seconds), tags=TENANT)


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
            await world.clock.sleep(45)
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
    loads = Loads(limit=1, limit_name="database")

    async def main() -> None:
        async with World(loads.app) as world:
            await world.join("one")
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
            await world.client.start("many", ("load", 80, 2.0), instance_id="i")
            await world.client.start("many", ("load", 4, 2.0), instance_id="low", priority=-1)
            for name in ("i", "low"):
                await world.wait(name)
            assert world.clock.monotonic() - begun < 84 / 4 * 2 + 45  # an empty queue is polled every 30 s

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
            assert (sum(left), await waiting_calls.count(hub.store, hub.names, "load")) == (0, (0, None))
            await world.settle()

    simulate(main)
