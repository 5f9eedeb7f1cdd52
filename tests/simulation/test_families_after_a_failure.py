"""Tests of a parent that failed while its children run: terminate, rewind, and what the client shows."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.engine.children import left_over, reports_end
from airflow_provider_taskhub.engine.context import OrchestrationContext
from airflow_provider_taskhub.engine.events import (
    ExecutionTerminated,
    FailureDetails,
    Status,
    SubOrchestrationInstanceCreated,
    SubOrchestrationInstanceFailed,
)
from airflow_provider_taskhub.errors import TaskFailedError, TerminationRequested
from airflow_provider_taskhub.hub.waiting.reasons import Reason
from tests.hub.by_hand import NOW
from tests.simulation.world import World, simulate

BROKEN = [True]
RUNS: list[str] = []
CLEANED: list[str] = []
app = App("family")


@app.activity
def flaky() -> str:
    if BROKEN[0]:
        raise ValueError("no")
    return "mended"


@app.orchestrator
async def fails(ctx: OrchestrationContext) -> str:
    return await ctx.call_activity(flaky)


@app.orchestrator
async def waits(ctx: OrchestrationContext) -> str:
    return await ctx.wait_for_external_event("go", str)


@app.orchestrator
async def family(ctx: OrchestrationContext) -> list[str]:
    one = ctx.call_sub_orchestrator(fails, instance_id="fails")
    others = [ctx.call_sub_orchestrator(waits, instance_id=f"waits-{number}") for number in range(2)]
    return await ctx.when_all([one, *others])


@app.orchestrator
async def alone(ctx: OrchestrationContext) -> str:
    await ctx.call_activity(flaky)
    return await ctx.wait_for_external_event("go", str)


@app.activity(record=True)
async def long(whose: str) -> None:
    RUNS.append(whose)
    try:
        await asyncio.sleep(600)
    finally:
        RUNS.remove(whose)


@app.activity
async def clean() -> None:
    await asyncio.sleep(20)
    CLEANED.append("cleans")


@app.orchestrator
async def cleans(ctx: OrchestrationContext) -> None:
    try:
        await ctx.wait_for_external_event("go")
    except TerminationRequested:
        await ctx.call_activity(clean)
        raise


@app.orchestrator
async def broken(ctx: OrchestrationContext) -> None:
    ctx.call_activity(long, "broken")
    ctx.call_sub_orchestrator(waits, instance_id="waits-0")
    ctx.call_sub_orchestrator(cleans, instance_id="cleans")
    await ctx.create_timer(timedelta(seconds=5))
    await ctx.call_activity(flaky)


@app.orchestrator
async def tolerant(ctx: OrchestrationContext) -> str:
    with suppress(TaskFailedError):
        await ctx.call_sub_orchestrator(broken, instance_id="broken")
    return await ctx.wait_for_external_event("go", str)


@app.orchestrator
async def patient(ctx: OrchestrationContext) -> str:
    with suppress(TaskFailedError):
        await ctx.call_sub_orchestrator(fails, instance_id="fails")
    return await ctx.wait_for_external_event("go", str)


@app.orchestrator
async def top(ctx: OrchestrationContext) -> None:
    child = ctx.call_sub_orchestrator(tolerant, instance_id="tolerant")
    cancel, fail = (ctx.wait_for_external_event(name) for name in ("cancel", "fail"))
    if await ctx.when_any([cancel, fail]) is fail:
        raise ValueError("no")
    child.cancel()
    with suppress(TaskFailedError):
        await child


async def _failed(world: World, orchestrator: str) -> None:
    BROKEN[0] = True
    await world.client.start(orchestrator, instance_id="i")
    assert (await world.wait("i")).status is Status.FAILED
    BROKEN[0] = False


async def _ended(client: Client, grace: timedelta | None) -> None:
    reason = "all " + "x" * 60_000  # too long for a message of a queue
    await client.terminate("i", reason, wait=True, grace=grace, timeout=timedelta(minutes=5))


async def _running(world: World, *ids: str) -> None:
    for one in ids:
        async with asyncio.timeout(60.0):
            while (state := await world.client.get(one)) is None or state.status.is_final:
                await world.clock.sleep(0.5)


@pytest.mark.parametrize("who", ["i", "waits-0"])
def test_one_rewind_goes_on_although_children_were_terminated_after_the_failure(who: str) -> None:
    """The rewind starts these children again, like children that were terminated before the failure."""

    async def main() -> Any:
        async with World(app) as world:
            await world.join("one")
            await _failed(world, "family")
            await world.client.terminate(who, "stop", wait=True)
            await world.client.rewind("i", "mended")
            await world.clock.sleep(20.0)
            await _running(world, "i", "waits-0", "waits-1")
            for number in range(2):
                await world.client.raise_event(f"waits-{number}", "go", str(number))
            return (await world.wait("i")).output

    assert simulate(main) == '["mended","0","1"]'


@pytest.mark.parametrize("wait", [True, False])
def test_a_second_terminate_ends_the_children_that_the_first_one_has_left(wait: bool) -> None:
    async def main() -> Any:
        async with World(app) as world:
            await world.join("one")
            BROKEN[0] = False
            await world.client.start("family", instance_id="i")
            await _running(world, "waits-0", "waits-1")
            await world.client.terminate("i", "stop", recurse=False, wait=True)
            await _running(world, "waits-0", "waits-1")
            state = await world.client.terminate("i", "all", wait=wait)
            if not wait:
                await world.settle()
            children = [await world.client.get(f"waits-{number}") for number in range(2)]
            return state.status, [child and (child.status, child.output) for child in children]

    assert simulate(main) == (Status.TERMINATED, [(Status.TERMINATED, "all")] * 2)


@pytest.mark.parametrize("dies", [False, True], ids=["", "and its worker dies"])
@pytest.mark.parametrize("how", ["terminate", "terminate with grace", "cancel", "terminate after a failure"])
@pytest.mark.rows("D63")
def test_what_a_failed_child_has_left_running_ends_with_its_family(how: str, dies: bool) -> None:
    """The parent has handled the failure, so a rewind of this child alone would not change the parent."""

    async def main() -> None:
        BROKEN[0] = True
        CLEANED.clear()
        async with World(app) as world:
            client, first = world.client, await world.join("one")
            await client.start("top", instance_id="i")
            async with asyncio.timeout(60.0):
                while (row := await client.get("broken")) is None or row.status is not Status.FAILED:
                    await world.clock.sleep(0.5)
            assert RUNS == ["broken"]
            await _running(world, "i", "tolerant", "waits-0")
            if how == "cancel":
                await client.raise_event("i", "cancel")
            elif how == "terminate after a failure":
                await client.raise_event("i", "fail")
                assert (await world.wait("i")).status is Status.FAILED
                assert RUNS == ["broken"]
            asked = None
            if how != "cancel":
                grace = timedelta(seconds=30) if "grace" in how else None
                asked = asyncio.create_task(_ended(client, grace))
                await world.clock.sleep(0.1)
            if dies:
                await first.bury()
                RUNS.clear()  # the attempt ends with its worker
                await world.join("two")
            if asked is not None:
                await asked
                assert RUNS == []
            await world.wait("waits-0")
            await world.wait("cleans")
            await world.settle()
            assert RUNS == []
            ended = [await client.get(one) for one in ("i", "tolerant", "broken", "waits-0")]
            others = [Status.TERMINATED, Status.FAILED, Status.TERMINATED]
            top = {"cancel": Status.COMPLETED, "terminate after a failure": Status.FAILED}.get(how, Status.TERMINATED)
            assert [row and row.status for row in ended] == [top, *others]
            assert (["cleans"] if "grace" in how else []) == CLEANED

    simulate(main)


def test_a_rewound_instance_says_for_what_it_waits_and_that_it_has_not_ended() -> None:
    async def main() -> Any:
        async with World(app) as world:
            await world.join("one")
            await _failed(world, "alone")
            await world.client.rewind("i", "mended")
            await world.clock.sleep(30.0)
            state = await world.client.get("i")
            assert state is not None
            return state.status, state.ended, await world.client.instance("i").waiting()

    status, ended, waiting = simulate(main)
    assert (status, ended, [why.reason for why in waiting]) == (Status.PENDING, None, [Reason.EVENTS])
    assert "event 'go'" in waiting[0].text


@pytest.mark.parametrize("wait", [True, False])
def test_a_terminate_that_comes_with_the_failure_ends_what_is_left(wait: bool) -> None:
    """A worker receives both messages at once. The first message makes the instance fail."""

    async def main() -> Any:
        async with World(app) as world:
            client = world.client
            await world.join("one")
            await client.start("top", instance_id="i")
            await _running(world, "i", "tolerant")
            await client.raise_event("i", "fail")
            await client.terminate("i", "stop", wait=wait, timeout=timedelta(minutes=5))
            if not wait:
                await world.settle()
            return [str(row and row.status) for row in [await client.get("i"), await client.get("tolerant")]]

    BROKEN[0] = True
    assert simulate(main) == ["Failed", "Terminated"]


def test_a_failed_child_that_was_purged_stays_so() -> None:
    async def main() -> Any:
        async with World(app) as world:
            client = world.client
            await world.join("one")
            await client.start("patient", instance_id="i")
            async with asyncio.timeout(60.0):
                while (row := await client.get("fails")) is None or not row.status.is_final:
                    await world.clock.sleep(0.5)
            await client.purge("fails")
            await client.terminate("i", "stop", wait=True, timeout=timedelta(seconds=20))
            await world.settle()
            return [row.instance_id for row in (await client.list()).instances]

    BROKEN[0] = True
    assert simulate(main) == ["i"]


def test_the_children_of_a_failed_parent_tell_it_how_they_end() -> None:
    """The parent may be rewound, and then it waits for an answer from each child."""
    created = [
        SubOrchestrationInstanceCreated(
            timestamp=NOW, event_id=number, name="c", instance_id=f"c{number}", taskhub_action_id=known
        )
        for number, known in enumerate(["a" * 32, "b" * 32, "c" * 32, None])
    ]
    answers = [
        SubOrchestrationInstanceFailed(
            timestamp=NOW, task_scheduled_id=1, failure=FailureDetails(error_type="E", error_message="no")
        ),
        SubOrchestrationInstanceFailed(timestamp=NOW, task_scheduled_id=2, failure=None, details=None),
    ]
    terminate = ExecutionTerminated(timestamp=NOW, input="stop", taskhub_recurse=True, taskhub_grace=30)
    found = {one.target.instance_id: one.event for one in left_over([*created, *answers], terminate, "p", NOW)}
    assert set(found) == {"c0", "c1"}, "c2 was terminated, and the run of c3 is unknown, because .NET started it"
    told = {name: (one.taskhub_left_over, one.taskhub_grace, reports_end([one])) for name, one in found.items()}
    assert told == {"c0": (None, 30, True), "c1": (True, 30, False)}
