"""Instances that wait for each other, and runs of children that are ended before they begin."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.hub.model import InstanceState
from tests.simulation.world import Death, World, simulate

SECOND, SOON = timedelta(seconds=1), timedelta(seconds=20)


def app() -> App:
    made = App("circles")

    @made.orchestrator
    async def chain(ctx: OrchestrationContext, ids: list[str]) -> str:
        """Calls the first of the ids, which calls the next one, and so on."""
        if not ids:
            return "end"
        first, *rest = ids
        answer: str = await ctx.call_sub_orchestrator("chain", rest, instance_id=first)
        return answer

    @made.orchestrator
    async def patient(ctx: OrchestrationContext, ids: list[str]) -> str:
        """Does what chain does, and tells whether it was refused."""
        try:
            answer: str = await ctx.call_sub_orchestrator("chain", ids[1:], instance_id=ids[0])
            return answer
        except Exception as error:
            return f"told: {error}"

    @made.orchestrator
    async def fan(ctx: OrchestrationContext, ids: list[str]) -> Any:
        """Calls many children; each calls the first id."""
        return await ctx.when_all(
            [ctx.call_sub_orchestrator("chain", [ids[0]], instance_id=child) for child in ids[1:]]
        )

    @made.orchestrator
    async def limited(ctx: OrchestrationContext, ids: list[str]) -> str:
        """Does what chain does, with a limit."""
        child = ctx.call_sub_orchestrator("chain", ids[1:], instance_id=ids[0])
        timer = ctx.create_timer(timedelta(minutes=3))
        done = await ctx.when_any([child, timer])
        return "limit" if done is timer else "child"

    @made.orchestrator
    async def told(ctx: OrchestrationContext, child: str) -> str:
        """Calls the child after an event."""
        await ctx.wait_for_external_event("go")
        answer: str = await ctx.call_sub_orchestrator("chain", [], instance_id=child)
        return answer

    @made.orchestrator
    async def loose(ctx: OrchestrationContext, child: str) -> str:
        """Calls a child, does not await it, and ends after a minute."""
        ctx.call_sub_orchestrator("chain", ["loose"], instance_id=child)
        await ctx.create_timer(timedelta(minutes=1))
        return "loose"

    @made.orchestrator
    async def slow(ctx: OrchestrationContext) -> str:
        await ctx.create_timer(timedelta(minutes=2))
        return "slow"

    @made.orchestrator
    async def over_slow(ctx: OrchestrationContext) -> str:
        answer: str = await ctx.call_sub_orchestrator("slow", instance_id="shared")
        return answer

    return made


def played(play: Callable[[World], Awaitable[Any]], *, workers: int = 1, **settings: Any) -> Any:
    async def whole() -> Any:
        async with World(app(), partitions=3, **settings) as hub:
            for number in range(workers):
                await hub.join(f"worker-{number}")
            found = await play(hub)
            await hub.ended()
            assert not hub.defects()
            assert not await hub.client.admin.quarantined()
            return found

    return simulate(whole)


async def row(hub: World, instance_id: str) -> InstanceState:
    found = await hub.client.get(instance_id)
    assert found is not None
    return found


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("between", [["pay"], ["pay", "audit"], ["a", "b", "c", "d"]], ids=["one", "two", "four"])
def test_a_child_with_the_id_of_a_waiting_ancestor_fails_at_once_with_all_ids(between: list[str], workers: int) -> None:
    async def play(hub: World) -> tuple[InstanceState, list[str]]:
        await hub.client.start("chain", [*between, "order-7"], instance_id="order-7")
        ended = await hub.wait("order-7", SOON)
        return ended, [(await row(hub, one)).status for one in between]

    ended, others = played(play, workers=workers)
    circle = " waits for ".join(map(repr, ["order-7", *between, "order-7"]))
    assert ended.status is Status.FAILED
    assert f"instance 'order-7' waits for this caller: {circle}. Give the child another instance_id" in ended.output
    assert (ended.name, others) == ("chain", [Status.FAILED] * len(between))


def test_the_start_that_closes_a_circle_of_running_instances_fails() -> None:
    async def play(hub: World) -> Any:
        await hub.client.start("told", "B", instance_id="A")
        await hub.client.start("told", "A", instance_id="B")
        await hub.clock.sleep(1.0)
        await hub.client.raise_event("A", "go")
        await hub.clock.sleep(100.0)
        waiting = [(await row(hub, one)).status for one in "AB"]
        await hub.client.raise_event("B", "go")
        await hub.wait("B", SOON)
        return waiting, await row(hub, "B"), await hub.wait("A", timedelta(minutes=2))

    waiting, closes, other = played(play)
    assert waiting == [Status.RUNNING] * 2, "A waits for the end of B"
    assert closes.status is Status.FAILED
    assert "'A' waits for 'B' waits for 'A'" in closes.output
    assert (other.status, other.output) == (Status.COMPLETED, '"end"'), "its child runs after the failed instance"


def test_a_caller_can_handle_the_refusal_and_the_circle_is_over() -> None:
    async def play(hub: World) -> str | None:
        await hub.client.start("patient", ["pay", "order-7"], instance_id="order-7")
        return (await hub.wait("order-7", SOON)).output

    assert "told: instance 'order-7' waits for this caller" in played(play)


def test_one_of_many_awaited_children_closes_the_circle() -> None:
    async def play(hub: World) -> InstanceState:
        await hub.client.start("fan", ["top", *(f"child-{number}" for number in range(40))], instance_id="top")
        return await hub.wait("top", SOON)

    ended = played(play)
    assert (ended.status, ended.name) == (Status.FAILED, "fan")
    assert "'top' waits for 'child-" in ended.output


@pytest.mark.parametrize(("name", "output"), [("limited", '"limit"'), ("loose", '"loose"')])
def test_a_child_waits_for_a_run_that_can_end_without_its_parent(name: str, output: str) -> None:
    """The run has a limit, or does not await the parent. When it has ended, the child begins under its id."""

    async def play(hub: World) -> Any:
        given = "pay" if name == "loose" else ["pay", name]
        await hub.client.start(name, given, instance_id=name)
        first = await hub.wait(name, timedelta(minutes=4))
        return first, await hub.wait("pay", timedelta(minutes=2)), await row(hub, name)

    first, pay, again = played(play)
    assert (first.name, first.output) == (name, output)
    assert (pay.output, again.name, again.output) == ('"end"', "chain", '"end"')


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("point", ["outbound", "sentinel", "discard"])
def test_a_refusal_survives_the_death_of_its_worker(point: str, side: str) -> None:
    async def play() -> Any:
        async with World(app(), partitions=1) as hub:
            death = Death(point=point, side=side, count=3 if point == "outbound" else 1)
            await hub.join("first", death=death)
            await hub.client.start("chain", ["pay", "order-7"], instance_id="order-7")
            await hub.clock.sleep(5.0)
            await hub.join("second")
            ended = await hub.wait("order-7", timedelta(minutes=5))
            return ended.status, ended.name, ended.output

    status, name, output = simulate(play)
    assert (status, name) == (Status.FAILED, "chain")
    assert "waits for this caller" in output


@pytest.mark.parametrize("order", ["child", "client"])
def test_a_terminate_of_a_child_that_has_not_begun_leaves_the_row_of_the_run_before_it(order: str) -> None:
    """Two parents call one id. The second parent is terminated while its child waits for the end of the first one."""

    async def play(hub: World) -> Any:
        if order == "child":
            await hub.client.start("over_slow", instance_id="first")
        else:
            await hub.client.start("slow", instance_id="shared")
        await hub.clock.sleep(1.0)
        await hub.client.start("over_slow", instance_id="second")
        await hub.clock.sleep(10.0)
        ended = await hub.client.terminate("second", "enough", wait=True, timeout=timedelta(minutes=1))
        under = await row(hub, "shared")
        shared = await hub.wait("shared")
        await hub.clock.sleep(200.0)
        return ended.status, under.status, shared, await row(hub, "shared"), len(hub.said("child_refused"))

    status, under, shared, later, refused = played(play)
    assert (status, under) == (Status.TERMINATED, Status.RUNNING)
    assert (shared.status, shared.output) == (Status.COMPLETED, '"slow"')
    assert (later.execution_id, later.status, later.output) == (shared.execution_id, Status.COMPLETED, '"slow"')
    assert refused == 1


def test_a_terminated_instance_keeps_its_row_though_a_descendant_waits_for_its_id() -> None:
    async def play(hub: World) -> InstanceState:
        await hub.client.start("limited", ["pay", "order-7"], instance_id="order-7")
        await hub.clock.sleep(60.0)
        await hub.client.terminate("order-7", "enough", wait=True, timeout=timedelta(minutes=1))
        await hub.clock.sleep(200.0)
        return await row(hub, "order-7")

    ended = played(play)
    assert (ended.name, ended.status, ended.output) == ("limited", Status.TERMINATED, "enough")
