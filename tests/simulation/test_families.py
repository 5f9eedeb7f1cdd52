"""Rows name the parent and the oldest ancestor of an instance, and a purge can take a whole family."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.client.client import Client
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import InvalidStateError
from tests.simulation.world import World, simulate


def app() -> App:
    made = App("families")

    @made.orchestrator
    async def grandparent(ctx: OrchestrationContext) -> None:
        await ctx.when_all(
            [ctx.call_sub_orchestrator("parent", 1, instance_id=f"{ctx.instance_id}-{number}") for number in range(2)]
        )

    @made.orchestrator
    async def parent(ctx: OrchestrationContext, rounds: int) -> None:
        """Its children start in its second generation."""
        if rounds:
            ctx.continue_as_new(rounds - 1)
            return
        ctx.call_sub_orchestrator("child", instance_id=f"{ctx.instance_id}-forgotten", fire_and_forget=True)
        await ctx.call_sub_orchestrator("child", instance_id=f"{ctx.instance_id}-child")

    @made.orchestrator
    async def child(ctx: OrchestrationContext) -> str:
        return "grown"

    @made.orchestrator
    async def shares(ctx: OrchestrationContext, child_id: str) -> None:
        await ctx.call_sub_orchestrator("waits", instance_id=child_id)

    @made.orchestrator
    async def waits(ctx: OrchestrationContext) -> None:
        await ctx.wait_for_external_event("go")

    return made


def played(play: Callable[[World], Awaitable[Any]]) -> Any:
    async def whole() -> Any:
        async with World(app(), partitions=2) as hub:
            await hub.join("only")
            return await play(hub)

    return simulate(whole)


async def family(hub: World, *tops: str) -> None:
    for top in tops:
        await hub.client.start("grandparent", instance_id=top)
    for top in tops:
        await hub.wait(top)
    await hub.settle()


async def ids(client: Client, **where: Any) -> list[str]:
    return [one.instance_id for one in (await client.list(limit=1000, **where)).instances]


def test_rows_of_children_name_their_parent_and_their_oldest_ancestor() -> None:
    async def play(hub: World) -> Any:
        await family(hub, "day")
        rows = (await hub.client.list(payloads=False)).instances
        return {row.instance_id: (row.parent, row.root) for row in rows}

    assert played(play) == {
        "day": (None, None),
        "day-0": ("day", "day"),
        "day-0-child": ("day-0", "day"),
        "day-0-forgotten": ("day-0", "day"),
        "day-1": ("day", "day"),
        "day-1-child": ("day-1", "day"),
        "day-1-forgotten": ("day-1", "day"),
    }


def test_a_list_can_have_only_instances_without_a_parent_or_of_one_orchestrator() -> None:
    async def play(hub: World) -> Any:
        await family(hub, "day", "week")
        client = hub.client
        left = await client.purge_many(orchestrator="child")
        return await ids(client, roots=True), await ids(client, orchestrator="parent"), left.purged, await ids(client)

    roots, parents, purged, left = played(play)
    assert roots == ["day", "week"]
    assert parents == ["day-0", "day-1", "week-0", "week-1"]
    assert (purged, left) == (8, sorted([*roots, *parents]))


@pytest.mark.parametrize("before", [(), ("day",), ("day", "day-0")], ids=["whole", "without top", "without middle"])
def test_a_purge_takes_the_family_and_no_other_instance(before: tuple[str, ...]) -> None:
    """Also what is left of a family of which some were purged alone before."""

    async def play(hub: World) -> Any:
        await family(hub, "day", "week")
        for one in before:
            await hub.client.purge(one)
        purged = await hub.client.purge("day", recurse=True)
        again = await hub.client.purge("day", recurse=True)
        return purged, again, await ids(hub.client)

    purged, again, left = played(play)
    whole = ["week", "week-0", "week-0-child", "week-0-forgotten", "week-1", "week-1-child", "week-1-forgotten"]
    assert (purged, again, left) == (True, False, whole)


@pytest.mark.parametrize("missing", [False, True])
def test_a_purge_of_a_child_takes_only_what_is_below_it(missing: bool) -> None:
    async def play(hub: World) -> Any:
        await family(hub, "day")
        if missing:
            await hub.client.purge("day-0")
        assert await hub.client.purge("day-0", recurse=True)
        return await ids(hub.client)

    assert played(play) == ["day", "day-1", "day-1-child", "day-1-forgotten"]


def test_nothing_of_a_family_is_purged_while_one_of_it_runs() -> None:
    async def play(hub: World) -> Any:
        await hub.client.start("shares", "inner", instance_id="outer")
        await hub.clock.sleep(5.0)
        await hub.client.terminate("outer", recurse=False, wait=True, timeout=timedelta(minutes=1))
        with pytest.raises(
            InvalidStateError, match=r"'inner' is Running, created .*: it belongs to 'outer': terminate it"
        ):
            await hub.client.purge("outer", recurse=True)
        assert await ids(hub.client) == ["inner", "outer"]
        await hub.client.terminate("inner", wait=True, timeout=timedelta(minutes=1))
        await hub.client.purge("outer", recurse=True)
        return await ids(hub.client)

    assert played(play) == []


@pytest.mark.parametrize("first", ["parent", "client"])
def test_a_wait_says_whose_run_uses_the_id_of_its_child(first: str) -> None:
    async def play(hub: World) -> Any:
        if first == "parent":
            await hub.client.start("shares", "x", instance_id="one")
        else:
            await hub.client.start("waits", instance_id="x")
        await hub.clock.sleep(5.0)
        await hub.client.start("shares", "x", instance_id="two")
        await hub.clock.sleep(5.0)
        texts = [str((await hub.client.instance("two").waiting())[0])]
        if first == "parent":
            texts.append(str((await hub.client.instance("one").waiting())[0]))
        await hub.client.raise_event("x", "go")
        until = hub.clock.monotonic() + 120.0
        while (row := await hub.client.get("x")) is None or row.parent != "two" or row.status is not Status.RUNNING:
            assert hub.clock.monotonic() < until
            await hub.clock.sleep(1.0)
        return *texts, str((await hub.client.instance("two").waiting())[0])

    held_up, *own = played(play)
    whose = "another parent, 'one'," if first == "parent" else "a client"
    end = f"; 'x' is now a run that {whose} has started, and the child begins after its end"
    assert held_up == f"child 'waits' (x){end}"
    assert set(own) == {"child 'waits' (x)"}
