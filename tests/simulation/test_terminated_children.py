"""A terminate ends the children of an instance with it, with all that they run (K41)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.engine.context import OrchestrationContext
from airflow_provider_taskhub.engine.events import (
    ExecutionTerminated,
    OrchestrationInstance,
    Status,
)
from airflow_provider_taskhub.errors import TaskCancelledError
from airflow_provider_taskhub.hub.formats.history_rows import row_key
from airflow_provider_taskhub.hub.model import RecordState
from airflow_provider_taskhub.tags import FIRE_AND_FORGET
from tests.simulation.test_unreadable_history import merge
from tests.simulation.world import World, simulate

RUNNING, TERMINATED = Status.RUNNING, Status.TERMINATED


def app_of(*, with_child: bool = True) -> App:
    app = App("family")

    @app.activity(record=True)
    async def endless(number: int) -> None:
        await asyncio.sleep(1e6)

    async def child(ctx: OrchestrationContext, rounds: int) -> None:
        if rounds:
            await ctx.create_timer(timedelta(seconds=1))
            ctx.continue_as_new(rounds - 1)
            return
        await ctx.call_activity("endless", 1)

    if with_child:
        app.orchestrator(child)

    @app.orchestrator
    async def parent(ctx: OrchestrationContext, rounds: int) -> None:
        """Its first child is of its last generation, the others of earlier ones."""
        ctx.call_sub_orchestrator("child", 2, instance_id=f"child-{rounds}")
        if rounds:
            await ctx.create_timer(timedelta(seconds=1))
            ctx.continue_as_new(rounds - 1)
            return
        ctx.call_sub_orchestrator("child", 0, instance_id="detached", tags={FIRE_AND_FORGET: ""})
        await ctx.wait_for_external_event("never")

    @app.orchestrator
    async def grandparent(ctx: OrchestrationContext, rounds: int) -> None:
        await ctx.call_sub_orchestrator("parent", rounds, instance_id="parent")

    return app


def play(drive: Callable[[World], Awaitable[Any]], app: App | None = None) -> Any:
    async def whole() -> Any:
        async with World(app or app_of(), partitions=2, activities=10) as world:
            await world.join("one")
            found = await drive(world)
            await world.settle()
            assert not await world.client.admin.quarantined()
            return found

    return simulate(whole)


async def statuses(world: World, *names: str) -> list[Status | None]:
    rows = [await world.client.get(name) for name in names]
    return [row.status if row else None for row in rows]


async def begun(world: World, *names: str) -> None:
    """Until each of them runs its activity."""
    for name in names:
        until = world.clock.monotonic() + 60.0
        while not any(record.state is RecordState.RUNNING for record in await world.client.instance(name).activities()):
            assert world.clock.monotonic() < until, f"{name} runs nothing"
            await world.clock.sleep(0.25)


async def cancelled(world: World, *names: str) -> bool:
    """Whether the last attempt of each one's activity was."""
    return {(await world.client.instance(name).activities())[-1].state for name in names} == {RecordState.CANCELLED}


@pytest.mark.rows("K41")
@pytest.mark.parametrize("suspended", [False, True], ids=["running", "suspended"])
def test_children_end_with_their_parent_and_so_does_what_they_run(suspended: bool) -> None:
    """Through two levels; through generations of the child and of the parent; a detached child goes on."""

    async def drive(world: World) -> Any:
        await world.client.start("grandparent", 2, instance_id="top")
        await world.client.start("child", 0, instance_id="stranger")
        await begun(world, "child-0", "child-1", "child-2", "detached", "stranger")
        if suspended:
            await world.client.suspend("top")
            await world.client.suspend("parent")
            await world.clock.sleep(5.0)
        family = ("top", "parent", "child-0", "child-1", "child-2")
        waited: list[str] = []
        ended = await world.client.terminate(
            "top", "enough", wait=True, timeout=timedelta(minutes=5), progress=waited.append
        )
        assert (ended.status, ended.output) == (TERMINATED, "enough")
        assert sorted(waited) == sorted(family[1:])
        assert await statuses(world, *family) == [TERMINATED] * 5
        assert await cancelled(world, "child-0", "child-1", "child-2"), "the wait is for what they run, too"
        child = await world.client.get("child-1")
        assert child is not None
        assert child.output == "its parent 'parent' was terminated: its parent 'top' was terminated: enough"
        told = [entry for entry in world.said("message_discarded") if "SubOrchestration" in entry["event_type"]]
        assert not told, "a parent whose terminate comes again would take their end for a failure of theirs"
        rest = await statuses(world, "detached", "stranger")
        for name in ("detached", "stranger"):
            await world.client.terminate(name, wait=True)
        return rest

    assert play(drive) == [RUNNING, RUNNING]


@pytest.mark.rows("K41")
@pytest.mark.parametrize("dotnet", [False, True], ids=["asked not to", "by .NET"])
def test_children_go_on_without_recurse(dotnet: bool) -> None:
    async def drive(world: World) -> Any:
        await world.client.start("parent", 0, instance_id="parent")
        await begun(world, "child-0", "detached")
        if dotnet:
            event = ExecutionTerminated(timestamp=world.clock.utc_now(), input="enough")
            await world.client.hub.send(world.client.hub.message_to(event, OrchestrationInstance(instance_id="parent")))
            await world.wait("parent")
        else:
            await world.client.terminate("parent", "enough", wait=True, recurse=False)
        await world.clock.sleep(30.0)
        found = await statuses(world, "parent", "child-0", "detached")
        for name in ("child-0", "detached"):
            await world.client.terminate(name, wait=True)
        return found

    assert play(drive) == [TERMINATED, RUNNING, RUNNING]


@pytest.mark.rows("K41", "K43")
def test_a_child_whose_start_waits_for_its_code_never_runs() -> None:
    async def drive(world: World) -> Any:
        await world.client.start("parent", 0, instance_id="parent")
        await world.clock.sleep(20.0)
        await world.client.terminate("parent", "enough", wait=True, timeout=timedelta(minutes=2))
        assert await statuses(world, "child-0") == [TERMINATED]
        await world.machines[0].stop()
        await world.join("has the code", app=app_of())
        await begun(world, "detached")
        await world.clock.sleep(120.0)
        child = await world.client.get("child-0")
        assert child is not None
        assert child.name == "child"
        assert not await world.client.instance("child-0").activities()
        await world.client.terminate("detached", wait=True)
        return child.status

    assert play(drive, app_of(with_child=False)) is TERMINATED


@pytest.mark.rows("K41", "K46")
def test_children_of_a_parent_whose_history_cannot_be_read_end_with_it() -> None:
    async def drive(world: World) -> Any:
        await world.client.start("parent", 1, instance_id="parent")
        await begun(world, "child-0", "child-1", "detached")
        history = await world.client.instance("parent").history()
        await world.machines[0].stop()
        await merge(world, "parent", row_key(len(history) - 1), EventType="OfTheFuture")
        await world.join("two")
        await world.client.terminate("parent", "enough", wait=True, timeout=timedelta(minutes=5))
        await world.clock.sleep(60.0)
        found = await statuses(world, "parent", "child-0", "child-1", "detached")
        assert await cancelled(world, "child-0", "child-1")
        await world.client.terminate("detached", wait=True)
        return found

    assert play(drive) == [TERMINATED, TERMINATED, TERMINATED, RUNNING]


@pytest.mark.rows("K41")
def test_a_child_that_has_answered_is_told_nothing() -> None:
    app = App("answered")

    @app.orchestrator
    async def quick(ctx: OrchestrationContext) -> str:
        return "done"

    @app.orchestrator
    async def parent(ctx: OrchestrationContext) -> None:
        await ctx.call_sub_orchestrator("quick", instance_id="quick")
        await ctx.wait_for_external_event("never")

    async def drive(world: World) -> Any:
        await world.client.start("parent", instance_id="parent")
        await world.clock.sleep(10.0)
        await world.client.terminate("parent", wait=True)
        await world.settle()
        child = await world.client.get("quick")
        assert child is not None
        assert not world.said("AbandoningMessage")
        return child.output

    assert play(drive, app) == '"done"'


@pytest.mark.parametrize("late", ["instance", "activity"])
def test_a_wait_for_the_end_has_a_limit(late: str) -> None:
    """Nobody is there to end the instance, or to confirm that its activity has ended."""

    async def drive(world: World) -> Any:
        await world.machines[0].stop()
        runs = await world.join("runs", roles=("activity",))
        decides = await world.join("decides", roles=("orchestrator",))
        await world.client.start("child", 0, instance_id="child")
        await begun(world, "child")
        await (decides if late == "instance" else runs).bury()
        began = world.clock.monotonic()
        with pytest.raises(TimeoutError, match="'child'"):
            await world.client.terminate("child", wait=True, timeout=timedelta(seconds=7.3))
        assert world.clock.monotonic() - began == pytest.approx(7.3, abs=0.1)
        await world.join("two")
        await world.client.terminate("child", wait=True)

    play(drive)


def test_a_wait_ends_at_its_limit_and_not_at_its_next_look() -> None:
    async def drive(world: World) -> Any:
        await world.client.start("child", 0, instance_id="child")
        await begun(world, "child")
        began = world.clock.monotonic()
        with pytest.raises(TimeoutError, match="Running"):
            await world.client.wait("child", timeout=timedelta(seconds=9.4))
        took = world.clock.monotonic() - began
        await world.client.terminate("child", wait=True)
        return took

    assert play(drive) == pytest.approx(9.4, abs=0.05)


@pytest.mark.rows("K26", "D62")
@pytest.mark.parametrize("size", [1, 100_000], ids=["small", "in a blob"])
@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_a_child_that_is_cancelled_before_it_begins_answers_the_generation_that_has_cancelled_it(
    rounds: int, size: int
) -> None:
    """The generation begins in the episode in which it cancels. A start from a blob is read later than the cancel."""
    app = App("again")

    @app.orchestrator
    async def child(ctx: OrchestrationContext, text: str) -> None:
        await ctx.wait_for_external_event("never")

    @app.orchestrator
    async def again(ctx: OrchestrationContext, rounds: int) -> str:
        if rounds:
            ctx.continue_as_new(rounds - 1)
            return "again"
        task = ctx.call_sub_orchestrator(child, "x" * size)
        task.cancel()
        with pytest.raises(TaskCancelledError):
            await task
        return "cancelled"

    async def drive(world: World) -> str | None:
        await world.client.start("again", rounds, instance_id="i")
        return (await world.wait("i", timedelta(minutes=1))).output

    assert play(drive, app) == '"cancelled"'
