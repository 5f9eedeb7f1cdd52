"""Pools of workers: an activity runs only on workers of its pool, whoever comes, goes or dies, and nothing waits
without a reason and an end."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub import testing
from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import ConfigurationError
from airflow_provider_taskhub.hub.waiting.reasons import Reason
from airflow_provider_taskhub.settings import Settings
from airflow_provider_taskhub.workers.host import Host, Options
from tests.simulation.world import MEMORY, WHOLE, Place, World, machine, simulate


class Where:
    """Notes which worker has run which activity."""

    def __init__(self, *, heavy: str = "heavy", limit: int | None = None, without: str = "") -> None:
        """:param without: an activity that the app does not declare."""
        self.ran: list[tuple[str, str]] = []
        self.now = self.most = 0
        self.app = app = App("pools")

        async def _work(name: str, seconds: float) -> str:
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(seconds)
            self.now -= 1
            self.ran.append((name, machine()))
            return name

        if without != "train":

            @app.activity(pool=heavy, limit=limit)
            async def train(seconds: float) -> str:
                return await _work("train", seconds)

        @app.spark_activity(pool=heavy)
        async def join(spark: Any, seconds: float) -> str:
            raise AssertionError("the test has a function in its place")

        @app.activity
        async def mail(seconds: float) -> str:
            return await _work("mail", seconds)

        async def joined(seconds: float) -> str:
            return await _work("join", seconds)

        self.functions = {"join": joined}

        for name in ("train", "join", "mail"):

            async def many(ctx: OrchestrationContext, given: list[float], name: str = name) -> int:
                return len(await ctx.when_all([ctx.call_activity(name, seconds) for seconds in given]))

            app.orchestrator(name=f"{name}s")(many)

    def workers(self, activity: str) -> set[str]:
        """The names of the workers that have run an activity."""
        return {worker for name, worker in self.ran if name == activity}


app = Where().app


@pytest.mark.parametrize("place", [MEMORY, WHOLE], ids=str)
def test_activities_run_only_on_workers_of_their_pool(place: Place) -> None:
    where = Where()

    async def main() -> None:
        async with World(where.app, functions=where.functions, place=place) as world:
            await world.join("plain")
            await world.join("big", pools="heavy")
            await world.join("both", pools="heavy,default")
            for round in range(3):
                for name in ("trains", "joins", "mails"):
                    await world.client.start(name, [0.5] * 12, instance_id=f"{name}{round}")
            for round in range(3):
                for name in ("trains", "joins", "mails"):
                    assert (await world.wait(f"{name}{round}")).status is Status.COMPLETED
            assert len(where.ran) == 3 * 3 * 12
            assert where.workers("train") == where.workers("join") == {"big", "both"}
            assert where.workers("mail") == {"plain", "both"}
            await world.settle()

    simulate(main)


def test_a_full_pool_does_not_hold_up_the_others() -> None:
    where = Where()

    async def main() -> None:
        async with World(where.app, functions=where.functions) as world:
            await world.join("plain")
            await world.join("big", pools="heavy")
            for name in ("trains", "joins"):
                await world.client.start(name, [600.0] * 40, instance_id=name)
            await world.clock.sleep(30)
            begun = world.clock.monotonic()
            await world.client.start("mails", [0.005], instance_id="mail")
            await world.wait("mail")
            assert world.clock.monotonic() - begun < 0.5
            assert where.workers("mail") == {"plain"}

    simulate(main)


@pytest.mark.rows("D87")
def test_a_pool_without_a_worker_is_the_reason_and_a_worker_that_comes_runs_what_waits() -> None:
    where = Where()

    async def main() -> None:
        async with World(where.app, functions=where.functions) as world:
            await world.join("plain")
            await world.client.start("trains", [1.0] * 40, instance_id="t")
            await world.client.start("mails", [1.0], instance_id="m")
            assert (await world.wait("m")).status is Status.COMPLETED
            await world.clock.sleep(90)
            (why,) = await world.client.instance("t").waiting()
            assert why.reason is Reason.NO_POOL
            said = "no live worker belongs to the pool 'heavy' of activity 'train'. Alive: plain@"
            assert why.text.startswith(said), why.text
            assert "--pools heavy" in (why.remedy or "")
            await world.join("big", pools="heavy")
            assert (await world.wait("t")).status is Status.COMPLETED
            assert [one for one in where.ran if one[0] == "train"] == [("train", "big")] * 40
            await world.settle()

    simulate(main)


@pytest.mark.rows("D84")
@pytest.mark.parametrize(("pools", "name"), [("default", "trains"), ("heavy", "mails")])
def test_an_activity_whose_pool_has_no_worker_fails_in_the_end(pools: str, name: str) -> None:
    where = Where()

    async def main() -> None:
        limit = timedelta(minutes=10)
        async with World(where.app, functions=where.functions, no_worker_timeout=limit) as world:
            await world.join("one", pools=pools)
            begun = world.clock.monotonic()
            await world.client.start(name, [1.0], instance_id="i")
            state = await world.wait("i")
            assert state.status is Status.FAILED
            assert limit.total_seconds() <= world.clock.monotonic() - begun < 1.2 * limit.total_seconds()
            activity = name.removesuffix("s")
            pool = " of pool 'heavy'" if activity == "train" else ""
            assert state.failure is not None
            assert f"no live worker has had activity '{activity}'{pool} for 6" in str(state.failure.error_message)
            assert not where.ran
            await world.settle()

    simulate(main)


def test_what_waits_in_the_queue_of_a_pool_whose_workers_have_died_is_not_lost() -> None:
    where = Where()

    async def main() -> None:
        async with World(where.app, functions=where.functions) as world:
            await world.join("plain")
            big = await world.join("big", pools="heavy")
            await world.client.start("trains", [20.0] * 12, instance_id="t")
            await world.client.start("joins", [20.0] * 12, instance_id="j")
            await world.clock.sleep(30)
            big.die()
            where.now = 0
            await world.clock.sleep(240)
            assert await world.client.instance("t").waiting()
            await world.join("other", pools="heavy,default")
            for name in ("t", "j"):
                assert (await world.wait(name)).status is Status.COMPLETED
            assert where.workers("train") == where.workers("join") == {"big", "other"}
            await world.settle()

    simulate(main)


@pytest.mark.parametrize(("before", "after"), [("heavy", "default"), ("default", "heavy"), ("heavy", "huge")])
def test_a_call_whose_pool_changes_while_it_waits_runs_on_the_new_pool(before: str, after: str) -> None:
    old, new = Where(heavy=before), Where(heavy=after)

    async def main() -> None:
        async with World(old.app, functions=old.functions) as world:
            first = await world.join("first", pools=before)
            await world.client.start("trains", [30.0] * 12, instance_id="t")
            await world.clock.sleep(10)
            first.die()
            await world.join("second", pools=after, app=new.app)
            assert (await world.wait("t")).status is Status.COMPLETED
            assert len(new.ran) == 12
            assert not old.ran
            await world.settle()

    simulate(main)


def test_a_worker_without_the_code_sends_a_call_to_the_pool_of_a_worker_that_has_it() -> None:
    where, other = Where(), Where(without="train")

    async def main() -> None:
        async with World(where.app, functions=where.functions) as world:
            await world.join("plain", app=other.app)
            await world.client.start("trains", [1.0] * 5, instance_id="t")
            await world.clock.sleep(30)
            await world.join("big", pools="heavy")
            assert (await world.wait("t", timedelta(minutes=3))).status is Status.COMPLETED
            assert where.ran == [("train", "big")] * 5
            await world.settle()

    simulate(main)


@pytest.mark.parametrize(("old", "new", "pools"), [("heavy", "huge", "heavy"), ("heavy", "default", "default")])
def test_workers_that_disagree_about_a_pool_run_its_calls(old: str, new: str, pools: str) -> None:
    """The orchestrator runs on a worker whose code has another pool for the activity than that of the one that can."""
    mine, others = (Where(heavy=new), Where(heavy=old)) if pools == "heavy" else (Where(heavy=old), Where(heavy=new))

    async def main() -> None:
        async with World(mine.app, functions=mine.functions) as world:
            await world.join("plain", roles=("orchestrator", "activity"))
            await world.client.start("trains", [1.0] * 12, instance_id="t")
            await world.clock.sleep(5)
            await world.join("other", pools=pools, app=others.app, roles=("activity",))
            assert (await world.wait("t", timedelta(minutes=5))).status is Status.COMPLETED
            assert others.ran == [("train", "other")] * 12
            await world.settle()

    simulate(main)


def test_calls_of_a_pool_do_not_wait_behind_others_when_its_worker_restarts() -> None:
    where = Where()

    async def main() -> None:
        async with World(where.app, functions=where.functions, activities=1) as world:
            await world.join("plain")
            big = await world.join("big", pools="heavy")
            await world.client.start("mails", [36_000.0], instance_id="m")
            await world.client.start("trains", [60.0] * 10, instance_id="t")
            await world.clock.sleep(90)
            await big.stop(timedelta(seconds=60))
            await world.clock.sleep(300)
            await world.join("bigger", pools="heavy")
            assert (await world.wait("t")).status is Status.COMPLETED
            assert where.workers("train") == {"big", "bigger"}

    simulate(main)


def test_a_rewound_call_goes_to_its_pool() -> None:
    where = Where()

    async def main() -> None:
        async with World(where.app, functions=where.functions, activities=1, spark_activities=1) as world:
            await world.join("plain")
            await world.join("big", pools="heavy")
            await world.client.start("mails", [36_000.0], instance_id="m")
            await world.client.start("joins", [100.0], instance_id="j")
            await world.clock.sleep(10)
            await world.client.terminate("j", "not now", wait=True)
            await world.clock.sleep(60)
            await world.client.rewind("j", "now", terminated=True)
            begun = world.clock.monotonic()
            assert (await world.wait("j")).status is Status.COMPLETED
            assert world.clock.monotonic() - begun < 110
            assert where.workers("join") == {"big"}

    simulate(main)


@pytest.mark.parametrize(("seconds", "count"), [(0.01, 2000), (5.0, 40)])
@pytest.mark.parametrize(("busy", "other"), [("mails", "trains"), ("trains", "mails")])
def test_a_worker_of_two_pools_serves_both_in_turn(seconds: float, count: int, busy: str, other: str) -> None:
    where = Where()

    async def main() -> None:
        async with World(where.app, functions=where.functions, activities=1) as world:
            await world.join("both", pools="heavy,default")
            for number in range(4):
                await world.client.start(busy, [seconds] * (count // 4), instance_id=f"m{number}")
            await world.clock.sleep(3)
            begun = world.clock.monotonic()
            await world.client.start(other, [seconds], instance_id="t")
            await world.wait("t")
            assert world.clock.monotonic() - begun < 3 + 3 * seconds
            assert len(where.ran) < count, "the other pool still has work"

    simulate(main)


def test_a_limit_holds_in_a_pool() -> None:
    where = Where(limit=2)

    async def main() -> None:
        async with World(where.app, functions=where.functions) as world:
            await world.join("plain")
            await world.clock.sleep(1)  # it has made the queue
            await world.client.start("trains", [2.0] * 10, instance_id="t")
            await world.clock.sleep(2)
            names = world.client.hub.names
            assert sum([await world.store.count(queue) for queue in names.pool_queues("heavy")]) == 0
            waiting = [await world.store.count(queue) for queue in names.limited_queues("train")]
            assert sum(waiting) == 10, "a call takes one way, not two"
            await world.join("big", pools="heavy", roles=("activity",))
            await world.join("bigger", pools="heavy", roles=("activity",))
            await world.clock.sleep(2)
            (limit,) = await world.client.admin.limits()
            assert (limit.limit, len(limit.holders)) == (2, 2)
            assert (limit.waiting or 0) > 3
            assert (await world.wait("t")).status is Status.COMPLETED
            assert where.most == 2
            assert where.workers("train") <= {"big", "bigger"}
            await world.settle()

    simulate(main)


@pytest.mark.parametrize("pool", ["", " ", "a b", "a,b", "x" * 51, "ä", None, 3])
def test_a_wrong_name_of_a_pool_is_refused(pool: Any) -> None:
    app = App("pools")
    with pytest.raises(ConfigurationError, match=r"activity 'work': pool is .*1 to 50 letters"):

        @app.activity(pool=pool)
        async def work() -> None: ...


def test_a_worker_refuses_a_pool_without_an_activity() -> None:
    host = Host(Settings(hub="Pools", pools="default,hevy"), Options(apps=("tests.simulation.test_pools:app",)))
    with pytest.raises(ConfigurationError, match=r"belongs to the pool 'hevy'. They have the pools 'default', 'heavy'"):
        asyncio.run(host.run())


def test_an_orchestrator_under_test_runs_the_activities_of_all_pools() -> None:
    where = Where()
    assert testing.run("trains", [1.0], app=where.app) == 1
