"""Calls of activities wait in turns: many calls of one DAG hold up nobody else, and nothing waits for ever."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from zlib import crc32

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext, RetryPolicy
from airflow_provider_taskhub.client import InstanceLimit
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import AccessDenied
from airflow_provider_taskhub.hub.model import ACTIVITY, LANES, ORCHESTRATOR
from airflow_provider_taskhub.hub.queues.lane_reader import SHARE
from airflow_provider_taskhub.storage.faults import Call, Fault, throttled
from airflow_provider_taskhub.tags import DAG_TAG
from airflow_provider_taskhub.worker_pools import DEFAULT_POOL
from airflow_provider_taskhub.workers.activities.turns import RECENT
from airflow_provider_taskhub.workers.orchestrations.call_lanes import OF_CALLER, OF_INSTANCES
from tests.simulation.world import MEMORY, WHOLE, Place, World, machine, simulate

SLOTS = 4
"""Activities that a worker of these tests runs at once. Most of them take a little less than the second for which a
worker keeps a call without a slot, so that neither happens at the same instant as the other."""


class Load:
    """An orchestrator that calls an activity many times at once, and notes when each call ran."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        """The instance of each call, in the order in which the calls began."""
        self.where: list[str] = []
        self.fails = 0
        """How many of the next calls fail."""
        self.app = app = App("fair")

        @app.activity
        async def work(given: tuple[str, float]) -> None:
            name, seconds = given
            self.begun.append(name)
            self.where.append(machine())
            if self.fails:
                self.fails -= 1
                raise RuntimeError("not yet")
            await asyncio.sleep(seconds)

        @app.spark_activity
        async def join(spark: Any, given: tuple[str, float]) -> None:
            raise AssertionError("the test has a function in its place")

        async def joined(given: tuple[str, float]) -> None:
            await work(given)

        self.functions = {"join": joined}

        @app.orchestrator
        async def many(ctx: OrchestrationContext, given: tuple[int, float]) -> int:
            count, seconds = given
            return len(await ctx.when_all([ctx.call_activity(work, (ctx.instance_id, seconds)) for _ in range(count)]))

        @app.orchestrator
        async def joins(ctx: OrchestrationContext, given: tuple[int, float]) -> int:
            count, seconds = given
            return len(await ctx.when_all([ctx.call_activity(join, (ctx.instance_id, seconds)) for _ in range(count)]))

        @app.orchestrator
        async def again(ctx: OrchestrationContext) -> None:
            retry = RetryPolicy(max_attempts=2, first_retry_interval=timedelta(hours=1))
            await ctx.call_activity(work, (ctx.instance_id, 0.9), retry=retry)

        @app.orchestrator
        async def paced(ctx: OrchestrationContext, count: int) -> None:
            for _ in range(count):
                await ctx.call_activity(work, (ctx.instance_id, 0.1))
                await ctx.create_timer(timedelta(seconds=2))

        @app.orchestrator
        async def steps(ctx: OrchestrationContext, given: tuple[int, float]) -> int:
            count, seconds = given
            for _ in range(count):
                await ctx.call_activity(work, (ctx.instance_id, seconds))
            return count


app = Load().app


def dags_of_different_lanes() -> list[str]:
    """The names of as many DAGs as there are lanes, each with a lane of its own."""
    found: dict[int, str] = {}
    for number in range(1000):
        found.setdefault(crc32(f"dag{number}".encode()) % LANES, f"dag{number}")
    return [found[lane] for lane in range(LANES)]


def test_the_first_fan_out_that_a_worker_finds_uses_lanes() -> None:
    """It was all in front of everybody: 750 calls went to the first queue while the worker was making the lanes."""
    load = Load()

    async def main() -> None:
        async with World(load.app, activities=SLOTS) as world:
            for number in range(4):
                await world.client.start("many", (40, 0.9), instance_id=f"large{number}")
            slow = Fault(delay=3.0)
            await world.join("one", plan=lambda call: slow if call.kind == "admin" else None)
            names, store = world.client.hub.names, world.store
            await world.clock.sleep(8)
            waiting = [await store.count(queue) for queue in names.work_queues(DEFAULT_POOL, spark=False)]
            assert waiting[0] <= 2 * OF_INSTANCES < sum(waiting)
            for number in range(4):
                await world.wait(f"large{number}")

    simulate(main)


@pytest.mark.parametrize("place", [MEMORY, WHOLE], ids=str)
@pytest.mark.parametrize("orchestrator", ["steps", "many"])
@pytest.mark.rows("D85")
def test_a_call_does_not_wait_behind_the_fan_out_of_another_instance(place: Place, orchestrator: str) -> None:
    """Without lanes the one call waited for 38 s, behind all 160."""
    load = Load()

    async def main() -> None:
        async with World(load.app, place=place, activities=SLOTS) as world:
            await world.join("one")
            await world.client.start("many", (160, 0.9), instance_id="large")
            await world.clock.sleep(2)
            begun = world.clock.monotonic()
            await world.client.start(orchestrator, (1, 0.9), instance_id="small")
            await world.wait("small")
            assert world.clock.monotonic() - begun < 6
            assert (await world.wait("large")).status is Status.COMPLETED
            assert len(load.begun) == 161
            await world.settle()

    simulate(main)


def test_spark_activities_have_lanes_of_their_own() -> None:
    load = Load()

    async def main() -> None:
        async with World(load.app, functions=load.functions, activities=SLOTS, spark_activities=1) as world:
            await world.join("one")
            await world.client.start("joins", (40, 60.0), instance_id="large")
            await world.clock.sleep(30)
            begun = world.clock.monotonic()
            await world.client.start("many", (100, 0.05), instance_id="plain")
            await world.wait("plain")
            assert world.clock.monotonic() - begun < 10
            assert load.begun.count("large") == 1
            await world.wait("large", timedelta(hours=2))

    simulate(main)


@pytest.mark.rows("D85")
def test_the_instances_of_one_dag_do_not_hold_up_another_dag() -> None:
    """A DAG with 150 instances, as of a mapped task, and one with a single instance of 30 calls."""
    load = Load()

    async def main() -> None:
        async with World(load.app, activities=SLOTS) as world:
            await world.join("one")
            large, small, *_ = dags_of_different_lanes()
            for number in range(150):
                await world.client.start("many", (3, 0.9), instance_id=f"{number}", tags={DAG_TAG: large})
            await world.clock.sleep(5)
            before = len(load.begun)
            await world.client.start("many", (30, 0.9), instance_id="small", tags={DAG_TAG: small})
            await world.wait("small")
            others = len(load.begun) - before - 30
            # What it has in the first queue at most, for two partitions, and then a turn for each of the other's.
            assert others < 2 * OF_INSTANCES + 30
            for number in range(150):
                await world.wait(f"{number}")

    simulate(main)


def test_each_dag_with_many_calls_has_its_turn() -> None:
    load = Load()
    dags = dags_of_different_lanes()

    async def main() -> None:
        async with World(load.app, activities=SLOTS) as world:
            await world.join("one")
            for dag in dags:
                await world.client.start(
                    "many", (150 if dag != dags[-1] else 40, 0.9), instance_id=dag, tags={DAG_TAG: dag}
                )
                await world.clock.sleep(1)
            await world.wait(dags[-1])
            counts = [load.begun.count(dag) for dag in dags]
            assert counts[-1] == 40
            assert max(counts) < 40 + 2 * OF_CALLER, f"the DAG with 40 calls had its share while {counts} began"
            for dag in dags:
                await world.wait(dag)
            assert len(load.begun) == 3 * 150 + 40

    simulate(main)


@pytest.mark.rows("D85")
def test_a_backfill_delays_tonights_run_by_one_activity() -> None:
    """Both are runs of one DAG. The run has the worker almost alone, although 30 others are there."""
    load = Load()

    async def main() -> None:
        async with World(load.app, activities=SLOTS) as world:
            await world.join("one")
            tags = {DAG_TAG: "nightly"}
            for number in range(30):
                await world.client.start("many", (12, 5.0), instance_id=f"{number}", tags=tags, priority=-1000)
            await world.clock.sleep(50)
            begun = world.clock.monotonic()
            await world.client.start("many", (12, 5.0), instance_id="tonight", tags=tags)
            await world.wait("tonight")
            alone = 12 / SLOTS * 5
            # what runs already, and every eighth slot
            assert world.clock.monotonic() - begun <= alone + 2 * 5
            for number in range(30):
                await world.wait(f"{number}")
            assert len(load.begun) == 31 * 12

    simulate(main)


def test_what_has_a_low_priority_gets_its_share_while_others_never_end() -> None:
    """Two DAGs have more to do than the worker can, all the time: one step after step, one as a large fan-out."""
    load = Load()

    async def main() -> None:
        async with World(load.app, activities=SLOTS) as world:
            await world.join("one")
            large, endless, *_ = dags_of_different_lanes()
            await world.client.start("many", (400, 0.9), instance_id="large", tags={DAG_TAG: large})

            for number in range(12):
                tags = {DAG_TAG: endless}
                await world.client.start("steps", (1000, 0.9), instance_id=f"s{number}", tags=tags)
            await world.clock.sleep(30)
            before = len(load.begun)
            await world.client.start("many", (4, 0.9), instance_id="low", priority=-1)
            await world.wait("low")
            since = load.begun[before:]
            assert len(since) < 6 * SHARE * SHARE, "each eighth turn of the lanes, of each eighth turn"
            assert 1 / (2 * SHARE) < since.count("large") / len(since) < 2 / SHARE

    simulate(main)


def test_many_partitions_hold_no_more_in_front_of_others() -> None:
    """What a partition puts into the first queue becomes less with their number."""
    load = Load()

    async def main() -> None:
        async with World(load.app, activities=SLOTS, partitions=32) as world:
            await world.join("one")
            large, small, *_ = dags_of_different_lanes()
            for number in range(100):
                await world.client.start("many", (2, 0.9), instance_id=f"{number}", tags={DAG_TAG: large})
                await world.client.start("steps", (3, 0.9), instance_id=f"low{number}", priority=-1)
            await world.clock.sleep(5)
            before = len(load.begun)
            await world.client.start("steps", (1, 0.9), instance_id="small", tags={DAG_TAG: small})
            await world.wait("small")
            assert len(load.begun) - before < 4 * 32 + 10  # four of each partition
            assert sum(name.startswith("low") for name in load.begun) < len(load.begun) / 4

    simulate(main)


@pytest.mark.rows("D86")
def test_a_call_that_is_tried_again_later_holds_up_no_call_of_low_priority() -> None:
    load = Load()
    load.fails = 1

    async def main() -> None:
        async with World(load.app, activities=1) as world:
            await world.join("one")
            await world.client.start("again", None, instance_id="later")
            await world.clock.sleep(10)
            assert load.begun == ["later"]
            begun = world.clock.monotonic()
            await world.client.start("many", (3, 0.9), instance_id="low", priority=-5)
            await world.wait("low")
            assert world.clock.monotonic() - begun < 5
            await world.wait("later", timedelta(hours=2))
            assert load.begun == ["later", *["low"] * 3, "later"]

    simulate(main)


@pytest.mark.rows("D86")
def test_hidden_calls_of_a_suspended_instance_hold_up_no_call_of_low_priority() -> None:
    """They were given back to the same queue, and are hidden there for up to 30 s at a time."""
    load = Load()

    async def main() -> None:
        async with World(load.app, activities=1) as world:
            await world.join("one")
            await world.client.start("many", (1, 10.0), instance_id="first")
            await world.clock.sleep(2)
            await world.client.start("many", (20, 0.9), instance_id="later")
            await world.clock.sleep(2)
            await world.client.suspend("later")
            await world.client.start("many", (3, 0.9), instance_id="low", priority=-5)
            await world.wait("first")
            begun = world.clock.monotonic()
            await world.wait("low")
            assert world.clock.monotonic() - begun < 10
            assert load.begun == ["first", *["low"] * 3]
            await world.client.resume("later")
            await world.wait("later", timedelta(minutes=5))
            assert len(load.begun) == 24

    simulate(main)


def test_another_worker_finds_what_is_in_the_lanes() -> None:
    """Each of two workers runs about half. No store announces messages to the other one."""
    load = Load()

    async def main() -> None:
        async with World(load.app, activities=SLOTS) as world:
            await world.join("orders", roles=(ORCHESTRATOR,))
            await world.join("one", roles=(ACTIVITY,))
            await world.join("two", roles=(ACTIVITY,))
            await world.clock.sleep(600)
            begun = world.clock.monotonic()
            await world.client.start("many", (160, 0.9), instance_id="large")
            await world.wait("large")
            assert world.clock.monotonic() - begun < 160 / (2 * SLOTS) + 35  # an empty queue is polled every 30 s
            assert min(load.where.count(name) for name in ("one", "two")) > 40

    simulate(main)


def test_lanes_are_read_although_each_receive_takes_long() -> None:
    """Longer than a look at the first queue counts."""
    load = Load()
    slow = Fault(delay=2 * RECENT)

    async def main() -> None:
        async with World(load.app, activities=SLOTS) as world:
            await world.join("one", plan=lambda call: slow if call.kind == "queue.receive" else None)
            await world.client.start("many", (60, 0.9), instance_id="large")
            await world.wait("large", timedelta(minutes=2))

    simulate(main)


def test_a_worker_that_may_make_no_queue_uses_no_lanes_and_looks_after_limits() -> None:
    load = Load()
    denied = Fault(before=AccessDenied("403 (fault)"))

    async def main() -> None:
        async with World(load.app, activities=SLOTS) as world:
            await world.join("one", plan=lambda call: denied if call.kind == "admin" else None)
            limit = InstanceLimit(name="two", instances=2)
            for number in range(6):
                await world.client.start("many", (40, 0.9), instance_id=f"{number}", limit=limit)
            for number in range(6):
                assert (await world.wait(f"{number}")).status is Status.COMPLETED
            assert not await world.store.list_queues(world.client.hub.names.lane_prefix)
            assert world.said("queues_not_made")
            await world.settle()

    simulate(main)


def test_lanes_that_cannot_be_read_hold_up_nothing_else() -> None:
    """With one slot, too, which is that of the lanes each eighth time."""
    load = Load()
    busy = True

    def plan(call: Call) -> Fault | None:
        in_lane = call.kind == "queue.receive" and "-lane-" in str(call.what)
        return throttled() if busy and in_lane else None

    async def main() -> None:
        nonlocal busy
        async with World(load.app, activities=1) as world:
            await world.join("one", plan=plan)
            await world.client.start("many", (40, 0.1), instance_id="large")
            await world.client.start("paced", 20, instance_id="paced")
            await world.wait("paced", timedelta(seconds=120))
            assert load.begun.count("large") < 40
            busy = False
            await world.wait("large")
            await world.settle()

    simulate(main)


@pytest.mark.parametrize("place", [MEMORY, WHOLE], ids=str)
def test_what_waits_in_lanes_is_done_once_when_workers_die(place: Place) -> None:
    load = Load()

    async def main() -> None:
        async with World(load.app, place=place, activities=SLOTS) as world:
            first = await world.join("first")
            for number in range(3):
                await world.client.start("many", (40, 0.9), instance_id=f"{number}", priority=-(number % 2))
            await world.clock.sleep(10)
            first.die()
            await world.join("second")
            for number in range(3):
                assert (await world.wait(f"{number}")).status is Status.COMPLETED
            again = len(load.begun) - 120
            assert 0 <= again <= SLOTS, "what ran in the dead worker, and has no record"
            store, names = world.client.hub.store, world.client.hub.names
            left = [await store.count(queue) for queue in names.pool_queues(DEFAULT_POOL)]
            assert not any(left)
            await world.settle()

    simulate(main)
