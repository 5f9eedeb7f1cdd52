"""Activities that say how much memory they need: a worker never runs more than it has room for, and nothing starves."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub import testing
from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.hub.model import HubNames
from airflow_provider_taskhub.hub.waiting.reasons import Reason
from airflow_provider_taskhub.memory import memory_of
from airflow_provider_taskhub.storage.faults import Call, Fault, throttled
from airflow_provider_taskhub.workers.activities.memory import PATIENCE
from tests.simulation.world import MEMORY, PROVING, WHOLE, Place, World, machine, simulate

G = memory_of("1g")


class Use:
    """Notes how much memory the running attempts need, in each worker."""

    def __init__(self, *, limit: int | None = None, record: bool = False, **needs: str | None) -> None:
        """:param needs: the need of each activity, by its name. Those whose name begins with ``spark`` are of Spark.
        :param limit: the limit of the activity ``limited``."""
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.begun: list[tuple[str, str]] = []
        """The name and the worker of each attempt, in the order in which they began."""
        self.app = app = App("memory")
        self.functions: dict[str, Any] = {}

        async def work(name: str, seconds: float) -> str:
            where, need = machine(), memory_of(needs[name]) // G if needs[name] else 0
            self.begun.append((name, where))
            self.now[where] += need
            self.most[where] = max(self.most[where], self.now[where])
            try:
                await asyncio.sleep(seconds)
            finally:
                self.now[where] -= need
            return name

        def declare(name: str, need: str | None) -> None:
            async def run(seconds: float) -> str:
                return await work(name, seconds)

            async def on_spark(spark: Any, seconds: float) -> str:
                raise AssertionError("the test has a function in its place")

            if name.startswith("spark"):
                self.functions[name] = run
                app.spark_activity(name=name, memory=need)(on_spark)
            else:
                of_name = limit if name == "limited" else None
                app.activity(name=name, memory=need, limit=of_name, record=record)(run)

        for name, need in needs.items():
            declare(name, need)

        @app.orchestrator
        async def many(ctx: OrchestrationContext, calls: list[tuple[str, float]]) -> int:
            return len(await ctx.when_all([ctx.call_activity(name, seconds) for name, seconds in calls]))


@pytest.mark.parametrize("place", [MEMORY, WHOLE], ids=str)
def test_what_runs_at_once_in_a_worker_never_needs_more_than_it_has(place: Place) -> None:
    use = Use(one="1g", three="3g", spark_four="4g", light=None)
    rng = random.Random(7)

    async def main() -> None:
        async with World(use.app, functions=use.functions, place=place, activities=9) as world:
            for name, memory in (("a", "16g"), ("b", "7g"), ("c", "4g")):
                await world.join(name, memory=memory)
            names = ("one", "three", "spark_four", "light")
            for number in range(6):
                calls = [(rng.choice(names), rng.uniform(0.01, 8)) for _ in range(40)]
                await world.client.start("many", calls, instance_id=f"i{number}")
            for number in range(6):
                assert (await world.wait(f"i{number}")).status is Status.COMPLETED
            assert use.most == {"a": 16, "b": 7, "c": 4}, "all of it is used, and no more"
            assert len(use.begun) == 240
            await world.settle()
            assert not world.defects()

    simulate(main)


def test_as_many_run_as_there_is_memory_for() -> None:
    use = Use(three="3g")

    async def main() -> None:
        async with World(use.app, activities=20) as world:
            await world.join("a", memory="10g")
            begun = world.clock.monotonic()
            await world.client.start("many", [("three", 7.3)] * 30, instance_id="i")
            assert (await world.wait("i")).status is Status.COMPLETED
            assert use.most == {"a": 9}
            assert world.clock.monotonic() - begun < 10 * 7.3 + 3, "three at once, and few pauses between"

    simulate(main)


def test_plain_and_spark_activities_share_the_memory() -> None:
    use = Use(plain="3g", spark="3g")

    async def main() -> None:
        async with World(use.app, functions=use.functions, activities=8) as world:
            await world.join("a", memory="7g")
            await world.client.start("many", [("plain", 7.3), ("spark", 9.1)] * 10, instance_id="i")
            begun = world.clock.monotonic()
            assert (await world.wait("i")).status is Status.COMPLETED
            assert use.most == {"a": 6}
            assert world.clock.monotonic() - begun < 100, "164 s of work, two at once"

    simulate(main)


@pytest.mark.parametrize("large", ["large", "spark_large"])
@pytest.mark.parametrize("staggered", [True, False])
def test_small_needs_do_not_keep_a_large_one_waiting(large: str, staggered: bool) -> None:
    """Without turns, all 200 small ones begin before it."""
    use = Use(small="2g", **{large: "8g"})

    async def main() -> None:
        async with World(use.app, functions=use.functions, activities=8) as world:
            await world.join("a", memory="8g")
            for number in range(4):
                await world.client.start("many", [("small", 6.7 + number * staggered)] * 50, instance_id=f"s{number}")
            await world.clock.sleep(31)
            begun = world.clock.monotonic()
            await world.client.start("many", [(large, 1.3)], instance_id="large")
            assert (await world.wait("large")).status is Status.COMPLETED
            assert world.clock.monotonic() - begun < 3 * PATIENCE + 12
            assert use.most == {"a": 8}
            for number in range(4):
                assert (await world.wait(f"s{number}")).status is Status.COMPLETED

    simulate(main)


def test_large_needs_take_turns() -> None:
    use = Use(small="2g", large="8g", largest="9g")

    async def main() -> None:
        async with World(use.app, activities=8) as world:
            await world.join("a", memory="9g")
            calls = [("small", 6.7)] * 200 + [("large", 2.3)] * 20 + [("largest", 3.1)] * 20
            await world.client.start("many", calls, instance_id="i")
            await world.clock.sleep(300)
            counts = Counter(name for name, _ in use.begun)
            assert min(counts["small"], counts["large"], counts["largest"]) >= 4, counts
            assert (await world.wait("i", timedelta(hours=2))).status is Status.COMPLETED
            assert use.most == {"a": 9}

    simulate(main)


def test_nobody_is_held_up_by_an_activity_that_nobody_calls() -> None:
    use = Use(small="2g", large="8g", spark_large="8g")

    async def main() -> None:
        async with World(use.app, functions=use.functions, activities=8) as world:
            await world.join("a", memory="8g")
            begun = world.clock.monotonic()
            await world.client.start("many", [("small", 6.7)] * 80, instance_id="i")
            assert (await world.wait("i")).status is Status.COMPLETED
            assert world.clock.monotonic() - begun < 20 * 6.7 + 3

    simulate(main)


def test_the_turn_of_an_activity_ends_when_its_calls_are_gone() -> None:
    """Another worker runs them."""
    use, other = Use(small="2g", large="8g"), Use(large="8g")

    async def main() -> None:
        async with World(use.app, activities=8) as world:
            await world.join("a", memory="8g")
            await world.client.start("many", [("small", 3600.0)], instance_id="long")
            await world.clock.sleep(5)
            await world.client.start("many", [("large", 1.3)], instance_id="large")
            await world.clock.sleep(4 * PATIENCE)
            await world.client.start("many", [("small", 1.3)], instance_id="held")
            await world.clock.sleep(20)
            assert use.begun == [("small", "a")], "it is the turn of the large one"
            await world.join("b", memory="8g", roles=("activity",), app=other.app)
            assert (await world.wait("large")).status is Status.COMPLETED
            assert (await world.wait("held", timedelta(seconds=2 * PATIENCE))).status is Status.COMPLETED
            assert (other.begun, use.begun[1:]) == ([("large", "b")], [("small", "a")])

    simulate(main)


def test_activities_without_a_need_are_never_held_up() -> None:
    use = Use(large="8g", light=None, spark_light=None)

    async def main() -> None:
        async with World(use.app, functions=use.functions, activities=3) as world:
            await world.join("a", memory="8g")
            await world.client.start("many", [("large", 3600.0)] * 9, instance_id="large")
            await world.clock.sleep(60)
            for name in ("light", "spark_light"):
                begun = world.clock.monotonic()
                await world.client.start("many", [(name, 0.3)] * 10, instance_id=name)
                assert (await world.wait(name)).status is Status.COMPLETED
                assert world.clock.monotonic() - begun < 5 * 0.3 + 1.5
            assert Counter(name for name, _ in use.begun) == {"large": 1, "light": 10, "spark_light": 10}

    simulate(main)


@pytest.mark.parametrize("busy", [3600.0, 0.9])
def test_slots_that_are_all_taken_hold_up_the_other_kind_only_if_they_become_free(busy: float) -> None:
    """While all plain slots are taken for an hour, a plain activity cannot have its turn, and Spark activities go on.
    While they become free and are taken again, it gets it."""
    use = Use(large="8g", light=None, spark_small="4g")

    async def main() -> None:
        async with World(use.app, functions=use.functions, activities=2, spark_activities=2) as world:
            await world.join("a", memory="8g")
            calls = [("light", busy + number * 0.01) for number in range(400)]
            await world.client.start("many", calls, instance_id="light")
            await world.client.start("many", [("spark_small", 6.7), ("spark_small", 7.9)] * 60, instance_id="small")
            await world.clock.sleep(20)
            await world.client.start("many", [("large", 0.3)], instance_id="large")
            if busy > 1:
                await world.clock.sleep(200)
                assert len([one for one in use.begun if one[0] == "spark_small"]) >= 58
            else:
                assert (await world.wait("large", timedelta(minutes=2))).status is Status.COMPLETED

    simulate(main)


def test_a_worker_without_free_memory_does_not_ask_for_calls() -> None:
    use, calls = Use(large="8g", small="1g"), Counter[str]()

    async def main() -> None:
        async with World(use.app, activities=8) as world:
            worker = await world.join("a", memory="8g")
            names = world.client.hub.names
            queues = {*names.limited_queues("large"), *names.limited_queues("small")}
            await world.client.start("many", [("large", 3000.0)] * 20, instance_id="i")
            await world.clock.sleep(30)

            def plan(call: Call) -> Fault | None:
                if call.what in queues:
                    calls[call.kind] += 1
                return None

            worker.plan = plan
            await world.clock.sleep(1000)
            assert calls["queue.receive"] == 0
            assert 1 <= calls["queue.peek"] <= 1000 / PATIENCE + 1

    simulate(main)


def test_an_outage_of_the_store_takes_no_turn_away() -> None:
    use = Use(small="2g", large="8g")

    async def main() -> None:
        async with World(use.app, activities=8) as world:
            worker = await world.join("a", memory="8g")
            for number in range(4):
                await world.client.start("many", [("small", 6.7 + number)] * 75, instance_id=f"s{number}")
            await world.clock.sleep(21)
            worker.plan = lambda call: throttled() if call.kind == "queue.peek" else None
            await world.client.start("many", [("large", 1.3)], instance_id="large")
            await world.clock.sleep(60)
            assert ("large", "a") not in use.begun
            worker.plan = lambda call: None
            assert (await world.wait("large", timedelta(seconds=40))).status is Status.COMPLETED
            assert not world.defects()

    simulate(main)


# too much for a worker


@pytest.mark.rows("D28")
@pytest.mark.parametrize(
    ("roles", "connection", "orchestrations", "activities", "warnings"),
    [
        ("both", "azure", 100, 79, 1),
        ("both", "azure", 100, 78, 0),
        ("both", None, 100, 100, 0),
        ("both", "sqlite:hub.db", 100, 100, 0),
        ("orchestrator", "azure", 258, 1, 1),
        ("orchestrator", "azure", 256, 100, 0),
        ("activity", "azure", 1000, 129, 1),
        ("activity", "azure", 1000, 128, 0),
    ],
)
def test_more_work_at_once_than_the_store_has_connections_is_warned_of(
    roles: str, connection: str | None, orchestrations: int, activities: int, warnings: int
) -> None:
    """Twice as much is not too much. There are two kinds of activities."""
    given = ("orchestrator", "activity") if roles == "both" else (roles,)

    async def main() -> None:
        async with World(
            Use().app, connection=connection, orchestrations=orchestrations, activities=activities
        ) as world:
            await world.join("a", roles=given)
            said = world.said("more_work_than_connections")
            assert [one["at_once"] for one in said] == [258] * warnings

    simulate(main)


def test_a_need_above_the_memory_of_all_workers_fails_by_name() -> None:
    use = Use(train="64g", light=None)

    async def main() -> None:
        async with World(use.app, no_worker_timeout=timedelta(minutes=10)) as world:
            await world.join("a", memory="16g")
            await world.join("b", memory="8g")
            (warned, _) = world.said("activities_exceed_memory")
            assert (warned["activities"], warned["memory"]) == ("train (64g)", "16g")
            await world.client.start("many", [("train", 1.3)], instance_id="i")
            await world.clock.sleep(90)
            (why,) = await world.client.instance("i").waiting()
            assert why.reason is Reason.NO_MEMORY
            said = "activity 'train' needs 64g of memory; the live worker with most has 16g"
            assert str(why) == f"{said}. Start a worker with --memory 64g on a larger machine, or lower memory="
            begun = world.clock.monotonic()
            state = await world.wait("i")
            assert state.status is Status.FAILED
            assert world.clock.monotonic() - begun > 480, "it has waited for the whole no-worker timeout"
            assert state.failure is not None
            assert (
                f"{said}: start a worker with --memory 64g on a larger machine, or lower memory=. This activity has "
                "waited for 6" in str(state.failure.error_message)
            )
            assert not use.begun
            await world.settle()

    simulate(main)


def test_a_need_above_the_memory_of_a_worker_waits_for_one_that_has_it() -> None:
    use = Use(train="64g", spark_train="48g", small="8g")

    async def main() -> None:
        async with World(use.app, functions=use.functions) as world:
            await world.join("a", memory="16g")
            await world.client.start("many", [("train", 1.3), ("spark_train", 1.3)] * 9, instance_id="i")
            await world.client.start("many", [("small", 1.3)] * 9, instance_id="small")
            assert (await world.wait("small")).status is Status.COMPLETED
            await world.clock.sleep(200)
            assert {name for name, _ in use.begun} == {"small"}
            await world.join("big", memory="64g")
            assert (await world.wait("i", timedelta(minutes=4))).status is Status.COMPLETED
            assert {where for name, where in use.begun if name != "small"} == {"big"}
            assert use.most["big"] == 64
            await world.settle()

    simulate(main)


def test_a_large_and_a_small_worker_each_run_what_they_can() -> None:
    use = Use(large="12g", small="2g")

    async def main() -> None:
        async with World(use.app, activities=8) as world:
            await world.join("little", memory="8g")
            await world.join("big", memory="16g")
            await world.client.start("many", [("large", 2.3)] * 10, instance_id="l")
            begun = world.clock.monotonic()
            assert (await world.wait("l")).status is Status.COMPLETED
            assert world.clock.monotonic() - begun < 35, "a call does not wait for the worker that cannot run it"
            assert {where for _, where in use.begun} == {"big"}
            assert not world.said("activity_unknown")

    simulate(main)


def test_what_waits_goes_to_a_worker_with_enough_when_the_large_one_has_died() -> None:
    use = Use(large="12g")

    async def main() -> None:
        async with World(use.app) as world:
            await world.join("little", memory="8g")
            big = await world.join("big", memory="16g")
            await world.client.start("many", [("large", 20.3)] * 6, instance_id="l")
            await world.clock.sleep(30)
            big.die()
            await world.clock.sleep(200)
            (why,) = await world.client.instance("l").waiting()
            assert why.reason is Reason.NO_MEMORY
            await world.join("other", memory="16g")
            assert (await world.wait("l")).status is Status.COMPLETED
            assert {where for _, where in use.begun} == {"big", "other"}
            await world.settle()

    simulate(main)


# together with other things


def test_a_limit_and_memory_hold_together() -> None:
    use = Use(limited="3g", small="1g", limit=3)

    async def main() -> None:
        async with World(use.app, activities=9) as world:
            await world.join("a", memory="6g")
            await world.join("b", memory="5g")
            calls = [("limited", 3.7)] * 30 + [("small", 2.9)] * 60
            await world.client.start("many", calls, instance_id="i")
            running_at_once = 0
            for _ in range(400):
                await world.clock.sleep(0.5)
                (state,) = await world.client.admin.limits()
                running_at_once = max(running_at_once, len(state.holders))
                if (await world.client.get("i")).status.is_final:  # type: ignore[union-attr]
                    break
            assert (await world.wait("i")).status is Status.COMPLETED
            assert running_at_once == 3
            assert use.most["a"] <= 6
            assert use.most["b"] <= 5
            await world.settle()

    simulate(main)


def test_an_activity_that_waits_for_a_place_holds_up_nobody() -> None:
    use = Use(limited="6g", small="2g", limit=1)

    async def main() -> None:
        async with World(use.app, activities=9) as world:
            await world.join("other", memory="8g", roles=("activity",))
            await world.client.start("many", [("limited", 2000.0)] * 3, instance_id="l")
            await world.join("a", memory="8g")
            await world.clock.sleep(30)
            first = next(where for name, where in use.begun if name == "limited")
            begun = world.clock.monotonic()
            await world.client.start("many", [("small", 6.7)] * 100, instance_id="s")
            assert (await world.wait("s")).status is Status.COMPLETED
            assert world.clock.monotonic() - begun < 20 * 6.7 + 10, f"five at once: {first} has 2g, the other one 8g"

    simulate(main)


@pytest.mark.parametrize("place", [MEMORY, PROVING], ids=str)
@pytest.mark.parametrize("record", [False, True])
def test_the_death_of_a_worker_frees_what_its_calls_need(place: Place, record: bool) -> None:
    use = Use(large="8g", record=record)

    async def main() -> None:
        async with World(use.app, place=place) as world:
            first = await world.join("a", memory="8g")
            await world.client.start("many", [("large", 40.3)] * 4, instance_id="i")
            await world.clock.sleep(20)
            first.die()
            await world.join("b", memory="9g")
            assert (await world.wait("i")).status is Status.COMPLETED
            assert use.most["b"] == 8
            assert [where for _, where in use.begun] == ["a", *["b"] * 4]
            await world.settle()

    simulate(main)


def test_a_call_that_waits_for_another_worker_gives_its_memory_back() -> None:
    """A worker loses the call of its attempt, and goes on with the attempt. The one that gets the call waits for the
    end of the attempt. When the first worker dies, the call needs memory again, and another one has it."""
    use = Use(large="8g", record=True)

    async def main() -> None:
        async with World(use.app) as world:
            first = await world.join("a", memory="8g")
            await world.client.start("many", [("large", 600.3)], instance_id="i")
            await world.clock.sleep(3)
            first.plan = lambda call: throttled() if call.kind == "queue.update" else None
            await world.join("b", memory="8g", roles=("activity",))
            await world.clock.sleep(20)
            await world.client.start("many", [("large", 60.3)], instance_id="other")
            await world.clock.sleep(10)
            assert use.begun == [("large", "a"), ("large", "b")], "the call that waits has no memory"
            first.die()
            await world.join("c", roles=("orchestrator",))
            await world.clock.sleep(40)
            assert len(use.begun) == 2, "it waits for memory"
            assert (await world.wait("other")).status is Status.COMPLETED
            assert (await world.wait("i")).status is Status.COMPLETED
            assert use.begun[2:] == [("large", "b")]
            assert use.most == {"a": 8, "b": 8}
            assert world.said("activity_taken_over")

    simulate(main)


@pytest.mark.parametrize("knows", [True, False])
def test_the_queue_of_an_activity_without_a_need_any_more_is_emptied(knows: bool) -> None:
    old, new = Use(job="2g"), Use(job=None)
    without = Use(other=None)

    async def main() -> None:
        async with World(old.app) as world:
            first = await world.join("first", memory="8g")
            await world.client.start("many", [("job", 300.0)] * 12, instance_id="i")
            await world.clock.sleep(10)
            first.die()
            await world.join("second", app=new.app if knows else without.app)
            if not knows:
                await world.clock.sleep(150)
                await world.join("third", app=new.app)
            assert (await world.wait("i", timedelta(hours=1))).status is Status.COMPLETED
            assert len(new.begun) == 12
            names = world.client.hub.names
            assert not sum([await world.store.count(queue) for queue in names.limited_queues("job")])
            await world.settle()

    simulate(main)


def test_a_worker_with_older_code_that_lives_on_does_not_get_the_calls_back_for_ever() -> None:
    """It puts calls into the queue of the activity, from which the newer one takes them out."""
    old, new = Use(job="8g"), Use(job=None)

    async def main() -> None:
        async with World(old.app) as world:
            await world.join("first", memory="8g")
            await world.client.start("many", [("job", 43.0)] * 12, instance_id="i")
            await world.clock.sleep(10)
            await world.join("second", app=new.app)
            await world.clock.sleep(10)
            before = sum(world.store.requests.values())  # type: ignore[attr-defined]
            await world.clock.sleep(60)
            asked = sum(world.store.requests.values()) - before  # type: ignore[attr-defined]
            assert asked < 1500, "some requests a second, as always"
            assert (await world.wait("i", timedelta(hours=1))).status is Status.COMPLETED

    simulate(main)


def test_an_activity_with_a_need_leaves_the_limit_alone_that_has_its_name() -> None:
    app = App("names")

    @app.activity(limit=2, limit_name="db")
    async def load(number: int) -> int:
        return number

    @app.activity(memory="1g")
    async def db(number: int) -> int:
        return number

    @app.orchestrator
    async def both(ctx: OrchestrationContext) -> int:
        return await ctx.call_activity(load, 1) + await ctx.call_activity(db, 2)

    async def main() -> None:
        async with World(app) as world:
            await world.join("a")
            await world.client.start("both", instance_id="i")
            assert (await world.wait("i")).status is Status.COMPLETED
            (state,) = await world.client.admin.limits()
            assert (state.name, state.limit, state.activities) == ("db", 2, ("load",))

    simulate(main)


def test_an_activity_whose_queue_is_refused_holds_up_the_others_only_for_a_moment() -> None:
    use = Use(small="2g", large="8g", larger="9g")

    def plan(call: Call) -> Fault | None:
        of_large = call.what in HubNames("Simulated").limited_queues("large")
        return throttled() if refused and of_large and call.kind.startswith("queue.") else None

    refused = False

    async def main() -> None:
        nonlocal refused
        async with World(use.app, activities=20) as world:
            await world.join("a", memory="10g", plan=plan)
            await world.client.start("many", [("small", 4.3)] * 150, instance_id="small")
            await world.clock.sleep(2)
            await world.client.start("many", [("large", 4.3)], instance_id="large")
            refused = True
            await world.clock.sleep(1)
            await world.client.start("many", [("larger", 4.3)], instance_id="larger")
            begun = world.clock.monotonic()
            assert (await world.wait("larger")).status is Status.COMPLETED
            assert world.clock.monotonic() - begun < 60
            assert (await world.wait("small")).status is Status.COMPLETED
            refused = False
            assert (await world.wait("large")).status is Status.COMPLETED

    simulate(main)


def test_many_activities_that_nobody_calls_do_not_delay_a_turn() -> None:
    use = Use(small="2g", large="8g", **{f"idle{number}": "9g" for number in range(30)})

    async def main() -> None:
        async with World(use.app, activities=20) as world:
            await world.join("a", memory="10g")
            await world.client.start("many", [("small", 4.3)] * 200, instance_id="small")
            await world.clock.sleep(20)
            await world.client.start("many", [("large", 4.3)], instance_id="large")
            begun = world.clock.monotonic()
            assert (await world.wait("large")).status is Status.COMPLETED
            assert world.clock.monotonic() - begun < 60

    simulate(main)


def test_who_shares_a_limit_with_short_calls_gets_memory_too() -> None:
    """The others have the place at nearly each look."""
    app, ran = App("shared"), list[str]()

    @app.activity(limit=1, limit_name="db", memory="8g")
    async def large(seconds: float) -> None:
        ran.append("large")
        await asyncio.sleep(seconds)

    @app.activity(limit=1, limit_name="db")
    async def short(seconds: float) -> None:
        ran.append("short")
        await asyncio.sleep(seconds)

    @app.activity(memory="4g")
    async def other(seconds: float) -> None:
        await asyncio.sleep(seconds)

    @app.orchestrator
    async def many(ctx: OrchestrationContext, calls: list[tuple[str, float]]) -> int:
        return len(await ctx.when_all([ctx.call_activity(name, seconds) for name, seconds in calls]))

    async def main() -> None:
        async with World(app, activities=20) as world:
            await world.join("a", memory="10g")
            await world.client.start("many", [("other", 7.3 + number % 5) for number in range(60)], instance_id="o")
            await world.client.start("many", [("short", 1.7)] * 120, instance_id="s")
            await world.clock.sleep(5)
            await world.client.start("many", [("large", 3.1)], instance_id="large")
            await world.wait("large")
            assert ran.index("large") < 60

    simulate(main)


def test_no_limit_is_shown_for_an_activity_with_a_need() -> None:
    use = Use(job="2g")

    async def main() -> None:
        async with World(use.app) as world:
            await world.join("a", memory="8g")
            await world.client.start("many", [("job", 1.3)], instance_id="i")
            assert (await world.wait("i")).status is Status.COMPLETED
            assert await world.client.admin.limits() == ()
            assert not await world.client.instance("i").activities(), "it has no record"

    simulate(main)


def test_what_waits_for_memory_says_so() -> None:
    use = Use(large="6g", small="1g")

    async def main() -> None:
        async with World(use.app) as world:
            await world.join("a", memory="8g")
            await world.client.start("many", [("large", 1000.0)] * 2, instance_id="i")
            await world.client.start("many", [("small", 1000.0)], instance_id="s")
            await world.clock.sleep(30)
            (why,) = await world.client.instance("i").waiting()
            assert why.reason is Reason.ACTIVITIES
            assert "'large' needs 6g of memory, and no worker has so much free (in use: 7g of 8g on a@" in why.more
            assert why.more.endswith("); 1 call waits")
            admin = world.client.admin
            assert await admin.waiting_for_memory(await admin.workers()) == {"large": 1}
            (why,) = await world.client.instance("s").waiting()
            assert "memory" not in why.line

    simulate(main)


def test_what_waits_for_a_slot_says_so_and_how_many_calls_wait() -> None:
    use = Use(plain=None, other=None, spark_job=None, small="1g")

    async def main() -> None:
        async with World(use.app, functions=use.functions, activities=2, spark_activities=1) as world:
            await world.join("a", memory="8g")
            await world.client.start("many", [("plain", 1000.0)] * 5, instance_id="i")
            await world.client.start("many", [("spark_job", 1000.0)], instance_id="s")
            await world.clock.sleep(30)
            await world.client.start("many", [("other", 1000.0)] * 2, instance_id="o")
            await world.client.start("many", [("small", 1000.0)], instance_id="m")
            await world.clock.sleep(30)
            (i,), (o,), (m,), (s,) = [await world.client.instance(name).waiting() for name in "ioms"]
            worker = i.more.partition(" on ")[2].partition(")")[0]
            full = f"wait for a slot: all are taken (2 of 2 on {worker}), and"
            assert str(i) == f"activity 'plain'; further calls of 'plain' {full} 5 calls wait in its queues"
            assert str(o) == f"activity 'other'; further calls of 'other' {full} 5 calls wait in its queues"
            assert str(m) == f"activity 'small'; further calls of 'small' {full} 1 call waits in its queues"
            assert str(s) == "activity 'spark_job'", "it runs, and nobody waits behind it"
            admin = world.client.admin
            plain = {("other", "plain"): 5, ("small",): 1}
            assert await admin.waiting_for_slots(await admin.workers()) == plain
            await world.client.start("many", [("spark_job", 1000.0)], instance_id="s2")
            await world.clock.sleep(30)
            (s,) = await world.client.instance("s2").waiting()
            assert s.text == "activity 'spark_job'"
            assert s.more.startswith("further calls of 'spark_job' wait for a slot: all are taken (1 of 1 on a@")
            assert await admin.waiting_for_slots(await admin.workers()) == plain | {("spark_job",): 1}
            await world.client.start("many", [("plain", 1000.0)] * 60, instance_id="more")
            await world.clock.sleep(30)
            waiting = await admin.waiting_for_slots(await admin.workers())
            assert waiting["other", "plain"] == 65, "those that run are not counted"
            peeks = world.store.requests["queue.peek"]
            await admin.waiting_instances()
            assert world.store.requests["queue.peek"] == peeks, "a count of instances needs no numbers of calls"

    simulate(main)


def test_a_test_of_an_orchestrator_needs_no_memory() -> None:
    use = Use(huge="900t")
    assert testing.run("many", [["huge", 1.0]] * 3, app=use.app) == 3


@pytest.mark.parametrize("seed", range(4))
def test_whoever_dies_nothing_is_over_committed_and_nothing_is_left(seed: int) -> None:
    use = Use(one="1g", three="3g", spark_two="2g", limited="2g", large="6g", light=None, limit=2, record=seed % 2 > 0)
    rng = random.Random(seed)
    sizes = {"a": "6g", "b": "7g", "c": "8g", "d": "6g", "e": "3g"}

    async def main() -> None:
        async with World(use.app, functions=use.functions, activities=6, place=[MEMORY, PROVING][seed % 2]) as world:
            alive = [await world.join(name, memory=sizes[name]) for name in ("a", "b")]
            for number in range(6):
                names = rng.choices(["one", "three", "spark_two", "limited", "large", "light"], k=20)
                calls = [(name, rng.uniform(0.02, 9)) for name in names]
                await world.client.start("many", calls, instance_id=f"i{number}")
            for name in ("c", "d", "e"):
                await world.clock.sleep(rng.uniform(3, 25))
                alive.pop(rng.randrange(len(alive))).die()
                await world.clock.sleep(rng.uniform(0, 5))
                alive.append(await world.join(name, memory=sizes[name]))
            for number in range(6):
                assert (await world.wait(f"i{number}", timedelta(hours=1))).status is Status.COMPLETED
            assert all(most <= int(sizes[name][0]) for name, most in use.most.items()), use.most
            await world.settle()
            assert not world.defects()

    simulate(main)
