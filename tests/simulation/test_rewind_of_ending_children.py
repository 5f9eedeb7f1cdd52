"""A parent is rewound while the last checkpoint of its failed child is under way."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta

import pytest

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.engine.context import OrchestrationContext
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import Conflict, Unavailable
from airflow_provider_taskhub.storage.faults import Call, Fault
from airflow_provider_taskhub.storage.primitives import Transact
from tests.simulation.world import MEMORY, RARE_RENEWALS, Place, World, simulate

STALL = 150.0
"""Seconds that the worker waits in vain for the answer to the child's last history."""


def family(runs: list[int]) -> App:
    app = App("family", version="1")

    @app.activity
    async def shaky(seconds: float) -> int:
        runs.append(1)
        if len(runs) == 1:
            raise ValueError("at first")
        await asyncio.sleep(seconds)
        return 7

    @app.orchestrator
    async def nested(ctx: OrchestrationContext, given: tuple[int, float]) -> int:
        depth, seconds = given
        if depth == 0:
            return await ctx.call_activity("shaky", seconds)
        return await ctx.call_sub_orchestrator("nested", (depth - 1, seconds), instance_id=f"depth-{depth - 1}")

    return app


async def until(world: World, instance_id: str, status: Status) -> None:
    async with asyncio.timeout(600):
        while (state := await world.client.get(instance_id)) is None or state.status is not status:
            await world.clock.sleep(0.2)


async def rewound(place: Place, *, depth: int, left: float) -> tuple[list[str], str | None, int]:
    """:param left: how long after the first rewind the child's last checkpoint goes on, in seconds."""
    runs = list[int]()
    async with World(family(runs), place=place, partitions=1) as world:
        names, story = world.client.hub.names, list[float]()
        worker = await world.join("only")

        def plan(call: Call) -> Fault | None:
            what = call.what
            if isinstance(what, Transact) and what.table == names.history and not story:
                events = [row.entity.properties.get("EventType") for row in what.rows]
                if what.rows[0].entity.partition_key == "depth-0" and "ExecutionCompleted" in events:
                    story.append(world.clock.monotonic() + STALL)
                    return Fault(pause=STALL, after=Unavailable("answer lost (fault)", maybe_done=True))
            return None

        worker.plan = plan
        top = f"depth-{depth}"
        await world.client.start("nested", (depth, 0.0), instance_id=top)
        await until(world, top, Status.FAILED)
        await world.clock.sleep(story[0] - left - world.clock.monotonic())
        child = await world.client.get("depth-0")
        assert child is not None
        assert child.status is Status.RUNNING, "the child's row lags"
        tried = list[str]()
        while "done" not in tried and len(tried) < 9:
            began = world.clock.monotonic()
            with suppress(Conflict):
                await world.client.rewind(top)
                tried.append("done")
                continue
            took = world.clock.monotonic() - began
            assert 29.9 < took < 35.0
            tried.append("conflict")
        state = await world.wait(top, timedelta(hours=1))
        await world.settle()
        return tried, state.output, len(runs)


@pytest.mark.rows("K46", "K48")
@pytest.mark.parametrize("depth", [1, 2], ids=["its child", "a child of its child"])
@pytest.mark.parametrize("left", [20.0, 75.0], ids=["ends in time", "ends later"])
def test_a_rewind_waits_for_the_last_checkpoint_of_a_failed_child(place: Place, depth: int, left: float) -> None:
    """Its row says that the child runs. A rewind that believes the row leaves the parent waiting forever."""
    refused = ["conflict"] * int(left // 30)
    assert simulate(lambda: rewound(place, depth=depth, left=left)) == ([*refused, "done"], "7", 2)


@pytest.mark.rows("K46", "K48")
def test_a_child_that_was_rewound_before_its_parent_and_runs_does_not_hold_the_rewind_up() -> None:
    async def play() -> tuple[bool, str | None, int]:
        runs = list[int]()
        async with World(family(runs), place=MEMORY, partitions=1, lease=RARE_RENEWALS) as world:
            await world.join("only")
            await world.client.start("nested", (1, 3600.0), instance_id="depth-1")
            await until(world, "depth-1", Status.FAILED)
            await world.client.rewind("depth-0")
            await world.clock.sleep(60.0)
            began = world.clock.monotonic()
            await world.client.rewind("depth-1")
            quick = world.clock.monotonic() - began < 10.0
            state = await world.wait("depth-1", timedelta(hours=3))
            return quick, state.output, len(runs)

    assert simulate(play) == (True, "7", 2)
