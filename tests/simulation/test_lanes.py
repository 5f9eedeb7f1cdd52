"""Spark activities and other activities have slots of their own: neither kind waits for the other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.engine.events import Status
from tests.simulation.world import MEMORY, WHOLE, Place, World, simulate

LONG = 60.0


def app() -> App:
    made = App("lanes")

    @made.spark_activity
    def job(spark: Any, seconds: float) -> float:
        raise AssertionError("the test has a function in its place")

    @made.activity
    def call(seconds: float) -> float:
        raise AssertionError("the test has a function in its place")

    for name, activity in (("jobs", job), ("calls", call)):

        async def many(ctx: OrchestrationContext, given: list[float], activity: Any = activity) -> int:
            return len(await ctx.when_all([ctx.call_activity(activity, seconds) for seconds in given]))

        made.orchestrator(name=name)(many)
    return made


async def works(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


@pytest.mark.parametrize("place", [MEMORY, WHOLE], ids=str)
@pytest.mark.parametrize(("long", "short"), [("jobs", "calls"), ("calls", "jobs")])
def test_short_work_of_one_kind_does_not_wait_for_the_other_kind(place: Place, long: str, short: str) -> None:
    async def play() -> Any:
        async with World(app(), functions={"job": works, "call": works}, place=place) as hub:
            await hub.join("one")
            await hub.client.start(long, [LONG] * 20, instance_id="long")
            await hub.clock.sleep(30.0)  # the slots are taken, and more waits in the queue
            begun = hub.clock.monotonic()
            await hub.client.start(short, [0.005], instance_id="short")
            await hub.wait("short")
            took = hub.clock.monotonic() - begun
            other = await hub.client.get("long")
            return took, other.status if other else None

    took, other = simulate(play)
    assert other is Status.RUNNING
    assert took < 0.5


def test_each_kind_has_as_many_slots_as_the_settings_say() -> None:
    most = {"job": 0, "call": 0}
    now = {"job": 0, "call": 0}

    def counted(name: str) -> Any:
        async def work(seconds: float) -> float:
            now[name] += 1
            most[name] = max(most[name], now[name])
            await asyncio.sleep(seconds)
            now[name] -= 1
            return seconds

        return work

    async def play() -> None:
        async with World(
            app(), functions={name: counted(name) for name in most}, activities=3, spark_activities=2
        ) as hub:
            await hub.join("one")
            for name in ("jobs", "calls"):
                await hub.client.start(name, [10.0] * 12, instance_id=name)
            for name in ("jobs", "calls"):
                await hub.wait(name)

    simulate(play)
    assert most == {"job": 2, "call": 3}
