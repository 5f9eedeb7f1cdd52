"""Starts of a child behind a run of its id, and events around them (K27, K36)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.storage.faults import Call, Fault, straggling
from airflow_provider_taskhub.storage.primitives import Transact
from tests.simulation.world import World, simulate

HOUR = 3600.0


def app(ran: list[Any]) -> App:
    made = App("starts")

    @made.activity
    def note(what: Any) -> None:
        ran.append(what)

    @made.orchestrator
    async def waits(ctx: OrchestrationContext) -> Any:
        return await ctx.wait_for_external_event("go")

    @made.orchestrator
    async def logs(ctx: OrchestrationContext, number: int) -> None:
        await ctx.call_activity("note", number)

    @made.orchestrator
    async def crosses(ctx: OrchestrationContext) -> list[Any]:
        """What the first run waits for is sent behind the second start."""
        first = ctx.call_sub_orchestrator("waits", instance_id="child")
        await ctx.create_timer(timedelta(seconds=0.5))
        second = ctx.call_sub_orchestrator("waits", instance_id="child")
        await ctx.create_timer(timedelta(seconds=1))
        ctx.send_event("child", "go", 1)
        one = await first
        ctx.send_event("child", "go", 2)
        return [one, await second]

    @made.orchestrator
    async def again(ctx: OrchestrationContext) -> list[Any]:
        first = ctx.call_sub_orchestrator("waits", instance_id="child")
        await ctx.create_timer(timedelta(seconds=0.5))
        second = ctx.call_sub_orchestrator("waits", instance_id="child")
        one = await first
        ctx.send_event("child", "go", "second")
        return [one, await second]

    @made.orchestrator
    async def rounds(ctx: OrchestrationContext, number: int) -> None:
        ctx.call_sub_orchestrator("logs", number, instance_id="child", fire_and_forget=True)
        await ctx.create_timer(timedelta(seconds=20))
        if number < 1:
            ctx.continue_as_new(number + 1)

    @made.orchestrator
    async def consumer(ctx: OrchestrationContext) -> None:
        await ctx.call_activity("note", await ctx.wait_for_external_event("work"))
        ctx.continue_as_new(None)

    @made.orchestrator
    async def feeds(ctx: OrchestrationContext, number: int) -> None:
        """Makes sure of its consumer in each round."""
        ctx.call_sub_orchestrator("consumer", instance_id="child", fire_and_forget=True)
        ctx.send_event("child", "work", number)
        await ctx.create_timer(timedelta(seconds=10))
        if number < 3:
            ctx.continue_as_new(number + 1)

    return made


def played(play: Callable[[World, list[Any]], Awaitable[Any]]) -> Any:
    async def whole() -> Any:
        ran: list[Any] = []
        async with World(app(ran)) as hub:
            await hub.join("only")
            found = await play(hub, ran)
            assert not hub.defects()
            assert not await hub.client.quarantined()
            return found

    return simulate(whole)


@pytest.mark.rows("K27", "K36")
def test_what_a_run_waits_for_reaches_it_though_it_was_sent_behind_the_next_start() -> None:
    async def play(hub: World, _: list[Any]) -> Any:
        await hub.client.start("crosses", instance_id="one")
        return (await hub.wait("one")).output

    assert played(play) == "[1,2]"


@pytest.mark.rows("K27", "K36")
def test_events_for_an_endless_run_do_not_wait_for_starts_that_nobody_waits_for() -> None:
    async def play(hub: World, ran: list[Any]) -> Any:
        await hub.client.start("feeds", 0, instance_id="one")
        await hub.wait("one")
        await hub.clock.sleep(1.0)
        return ran

    assert played(play) == [0, 1, 2, 3]


@pytest.mark.rows("K27", "K36")
@pytest.mark.parametrize("seconds", [1.0, 100.0, 260.0, 3 * HOUR])
def test_what_comes_between_the_end_of_a_run_and_the_next_start_is_for_that(seconds: float) -> None:
    """However long it ran: the start looks again before that is set aside."""

    async def play(hub: World, _: list[Any]) -> Any:
        await hub.client.start("again", instance_id="one")
        await hub.clock.sleep(seconds)
        await hub.client.raise_event("child", "go", "first")
        began = hub.clock.monotonic()
        output = (await hub.wait("one", timedelta(hours=4))).output
        return output, hub.clock.monotonic() - began < 150.0

    assert played(play) == ('["first","second"]', True)


@pytest.mark.rows("K36")
@pytest.mark.parametrize("seconds", [23.0, 3 * HOUR])
def test_a_start_that_waits_for_another_run_is_run_for_each_generation_of_its_parent(seconds: float) -> None:
    """However long that takes, and though the later one was there first: nobody had begun the earlier one."""

    async def play(hub: World, ran: list[Any]) -> Any:
        await hub.client.start("waits", instance_id="child")
        await hub.clock.sleep(1.0)
        await hub.client.start("rounds", 0, instance_id="one")
        await hub.clock.sleep(seconds)
        await hub.client.raise_event("child", "go", 1)
        await hub.clock.sleep(1000.0)
        state = await hub.client.get("child")
        return sorted(ran), state is not None and state.status

    assert played(play) == ([0, 1], Status.COMPLETED)


@pytest.mark.rows("K26", "K29")
def test_a_childs_first_row_that_comes_late_does_not_bring_it_back() -> None:
    """Its answer was given up on, and the child has ended by the time that it is written."""
    late: list[str] = []

    def plan(call: Call) -> Fault | None:
        rows = call.what.rows if isinstance(call.what, Transact) and call.what.table.endswith("Instances") else ()
        if late or not any(row.entity.partition_key == "child" for row in rows):
            return None
        late.append(call.kind)
        return straggling(3.0)

    async def play() -> Any:
        async with World(app([])) as hub:
            await hub.join("only", plan=plan)
            await hub.client.start("rounds", 1, instance_id="one")
            await hub.clock.sleep(10.0)
            state = await hub.client.get("child")
            return len(late), state is not None and state.status

    assert simulate(play) == (1, Status.COMPLETED)
