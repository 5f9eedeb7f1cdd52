"""Large payloads of generations that are over do not stay behind (K47), and nobody ever looks for one in vain."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.engine.events import ExecutionStarted
from airflow_provider_taskhub.hub.history.load import HistoryUnreadable, load
from airflow_provider_taskhub.storage.faults import Call, Fault, FaultyStore, lost, unsent
from airflow_provider_taskhub.storage.primitives import Blob, DeleteBlob
from tests.simulation.scenarios import LARGE
from tests.simulation.world import AFTER, BEFORE, Death, Place, World, simulate

app = App("rolling", version="1")


@app.activity
def shorter(text: str) -> str:
    return text[:-1]


@app.orchestrator
async def twice(ctx: OrchestrationContext, text: str) -> str:
    text = await ctx.call_activity("shorter", text)
    if len(text) == len(LARGE) - 1:
        ctx.continue_as_new(text)
    return text


@app.orchestrator
async def roll(ctx: OrchestrationContext, text: str) -> str:
    """Goes on with each large event, and ends with another."""
    text = await ctx.call_activity("shorter", text)
    if await ctx.wait_for_external_event("go", str) == LARGE:
        ctx.continue_as_new(text)
    return text


@app.orchestrator
async def child(ctx: OrchestrationContext, run: str) -> str | None:
    """Its first run ends with much, its second goes on as a generation that waits."""
    if run == "first":
        return LARGE
    if run == "second":
        ctx.continue_as_new("waiting")
        return None
    return await ctx.wait_for_external_event("go", str)


@app.orchestrator
async def parent(ctx: OrchestrationContext) -> str | None:
    await ctx.call_sub_orchestrator("child", "first", instance_id="one")
    return await ctx.call_sub_orchestrator("child", "second", instance_id="one")


async def length(world: World) -> int:
    """Of the input of the current generation."""
    state = await world.client.get("one")
    assert state is not None
    return len(json.loads(state.input or '""'))


async def histories(world: World) -> list[str]:
    """Blobs of history rows."""
    blobs = await world.store.list_blobs(world.client.hub.names.large_messages, "one/history-")
    return [blob.name.rpartition("-")[2] for blob in blobs]


@pytest.mark.rows("K47", "K30")
@pytest.mark.parametrize("fresh", [False, True], ids=["one worker", "a new worker each time"])
def test_however_many_generations_there_were_only_the_last_ones_blobs_are_there(place: Place, fresh: bool) -> None:
    async def play() -> Any:
        async with World(app, place=place) as world:
            worker = await world.join("one")
            names = world.client.hub.names
            found = []
            await world.client.start("roll", LARGE, instance_id="one")
            for generation in range(1, 6):
                await world.client.raise_event("one", "go", LARGE)
                while await length(world) != len(LARGE) - generation:
                    await world.clock.sleep(0.5)
                await world.settle()
                found.append(sorted(await histories(world)))
                if fresh:  # what it has to delete is what it has loaded
                    await worker.stop()
                    worker = await world.join(f"of generation {generation}")
            await world.client.raise_event("one", "go", "end")
            await world.wait("one")
            await world.settle()
            found.append(sorted(await histories(world)))
            assert await world.client.purge("one")
            assert await world.store.list_blobs(names.large_messages) == []
            return found

    *switched, ended = simulate(play)
    assert switched == [["Input.json.gz", "Result.json.gz"]] * 5
    assert ended == ["Input.json.gz", "Result.json.gz", "Result.json.gz"]


@pytest.mark.rows("K47")
@pytest.mark.parametrize("happens", [lost, unsent], ids=["done", "not done"])
def test_so_it_is_where_the_answer_to_a_commit_was_lost(place: Place, happens: Callable[[], Fault]) -> None:
    calls: list[Call] = []

    def plan(call: Call) -> Fault | None:
        calls.extend([call] if call.kind == "table.batch" else [])
        return happens() if calls == [call] else None

    async def play() -> Any:
        async with World(app, place=place) as world:
            await world.join("one", plan=plan)
            await world.client.start("roll", LARGE, instance_id="one")
            await world.client.raise_event("one", "go", LARGE)
            while await length(world) == len(LARGE):
                await world.clock.sleep(0.5)
            await world.settle()
            assert len(calls) > 1
            return sorted(await histories(world))

    assert simulate(play) == ["Input.json.gz", "Result.json.gz"]


@pytest.mark.rows("K26", "K47")
@pytest.mark.parametrize("side", [BEFORE, AFTER])
@pytest.mark.parametrize("point", ["history", "instance", "blobs", "delete"])
def test_whoever_dies_in_a_switch_leaves_nothing_that_is_missed_and_nothing_that_purge_leaves(
    place: Place, point: str, side: str
) -> None:
    async def play() -> Any:
        async with World(app, partitions=1, place=place) as world:
            count = 1 if point == "blobs" else 2  # the second episode is the switch
            first = await world.join("first", death=Death(point=point, side=side, count=count))

            async def follow() -> None:
                await first.died.wait()
                await world.join("second")

            following = asyncio.ensure_future(follow())
            await world.client.start("twice", LARGE, instance_id="one")
            state = await world.wait("one")
            assert first.dead
            following.cancel()
            await world.ended()
            assert len(json.loads(state.output or "")) == len(json.loads(state.input or "")) - 1 == len(LARGE) - 2
            assert await world.client.purge("one")
            return await world.store.list_blobs(world.client.hub.names.large_messages)

    assert simulate(play) == []


@pytest.mark.rows("K47", "K30")
def test_what_a_childs_row_has_of_its_run_before_outlives_a_switch_of_the_run_after(place: Place) -> None:
    """As in DurableTask its row keeps the output of the run before: that is not of the generation that is left."""

    async def play() -> Any:
        async with World(app, place=place) as world:
            await world.join("one")
            await world.client.start("parent", instance_id="both")
            while (state := await world.client.get("one")) is None or state.input != '"waiting"':
                await world.clock.sleep(0.5)
            await world.settle()
            state = await world.client.get("one")
            assert state is not None
            await world.client.raise_event("one", "go", "end")
            return state.output, (await world.wait("both")).output

    assert [json.loads(output) for output in simulate(play)] == [LARGE, "end"]


class Late(FaultyStore):
    """Something happens right before the first blob is read."""

    def __init__(self, inner: Any, happens: Callable[[], Awaitable[Any]]) -> None:
        super().__init__(inner, lambda call: None)
        self._happens: Callable[[], Awaitable[Any]] | None = happens

    async def get_blob(self, container: str, name: str) -> Blob | None:
        happens, self._happens = self._happens, None
        if happens is not None:
            await happens()
        return await super().get_blob(container, name)


@pytest.mark.rows("K47")
def test_who_reads_while_the_generation_switches_reads_the_next(place: Place) -> None:
    async def play() -> Any:
        async with World(app, place=place) as world:
            await world.join("one")
            hub = world.client.hub
            await world.client.start("roll", LARGE, instance_id="one")
            await world.clock.sleep(5.0)

            async def switch() -> None:
                before = await length(world)
                await world.client.raise_event("one", "go", LARGE)
                while await length(world) == before:
                    await world.clock.sleep(0.5)
                await world.settle()

            read = await load(Late(world.store, switch), hub.names, "one")
            state = await replace(hub, store=Late(world.store, switch)).instance("one", payloads=True)
            assert state is not None

            async def lose() -> None:
                blobs = await world.store.list_blobs(hub.names.large_messages, "one/history-")
                for blob in blobs:
                    await world.store.execute(DeleteBlob(container=hub.names.large_messages, name=blob.name))

            with pytest.raises(HistoryUnreadable):  # nothing has changed: it is gone for good
                await load(Late(world.store, lose), hub.names, "one")
            started = read.past[1]
            assert isinstance(started, ExecutionStarted)
            return [len(json.loads(text or "")) for text in (started.input, state.input)]

    assert simulate(play) == [len(LARGE) - 1, len(LARGE) - 2]
