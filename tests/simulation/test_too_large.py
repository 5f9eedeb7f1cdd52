"""What no store takes for its size ends what it belongs to, at once and with its reason, on both stores."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub import codec
from airflow_provider_taskhub.app import App, OrchestrationContext, TaskFailedError
from airflow_provider_taskhub.client import client, starting
from airflow_provider_taskhub.engine import context
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.engine.validation import MAX_COLUMN
from airflow_provider_taskhub.errors import InputError, PayloadTooLarge
from airflow_provider_taskhub.hub.model import ACTIVITY, ORCHESTRATOR, RecordState
from airflow_provider_taskhub.storage import rules
from airflow_provider_taskhub.storage.faults import Call, Fault
from airflow_provider_taskhub.storage.primitives import Transact
from tests.simulation import scenarios
from tests.simulation.world import Death, Effects, Place, World, simulate

SOON = timedelta(seconds=20)
"""Of virtual time: well before a second delivery's back-off comes to anything."""
LARGEST = {"team": "x" * (MAX_COLUMN - len('{"team":""}'))}


def noise(size: int) -> str:
    """Letters that gzip makes little of."""
    return "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=size))


def app_of() -> App:
    app = App("large", version="1")

    @app.activity
    def same(value: str) -> str:
        return value

    @app.activity(record=True)
    def grown(size: int) -> str:
        return noise(size)

    @app.activity
    async def slow(size: int) -> str:
        await asyncio.sleep(2.0)  # its result goes as a message
        return noise(size)

    @app.activity(record=True)
    def foreign(text: str) -> None:
        raise ValueError(text)

    @app.orchestrator
    async def child(ctx: OrchestrationContext, size: int) -> str:
        await ctx.call_activity("same", "begun")
        return noise(size)

    @app.orchestrator
    async def parent(ctx: OrchestrationContext, given: dict[str, Any]) -> str:
        try:
            return await ctx.call_sub_orchestrator("child", given.pop("size", 1), instance_id="below", **given)
        except TaskFailedError as error:
            return f"told: {error}"

    @app.orchestrator
    async def calling(ctx: OrchestrationContext, given: dict[str, Any]) -> str:
        return await ctx.call_activity("same", noise(given.pop("size", 1)), **given)

    @app.orchestrator
    async def trying(ctx: OrchestrationContext, call: list[Any]) -> str:
        try:
            return await ctx.call_activity(*call)
        except TaskFailedError as error:
            return f"told: {error}"

    @app.orchestrator
    async def listening(ctx: OrchestrationContext) -> str:
        first = await ctx.wait_for_external_event("go")
        ctx.set_custom_status(first)  # a checkpoint that writes the instance row at once
        return await ctx.wait_for_external_event("go")

    return app


def play(place: Place, drive: Callable[[World], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with World(app_of(), place=place) as world:
            await world.join("one")
            found = await drive(world)
            await world.settle()
            assert not world.defects(), world.defects()
            return found

    return simulate(main)


@pytest.mark.rows("K50")
def test_tags_as_large_as_a_row_holds_go_all_the_way_and_a_character_more_is_refused(place: Place) -> None:
    async def drive(world: World) -> None:
        with pytest.raises(InputError, match="tags of orchestrator 'parent' are 32,769 characters of JSON: at most"):
            await world.client.start("parent", {}, tags={"team": LARGEST["team"] + "x"})
        with pytest.raises(InputError, match="version of orchestrator 'parent' is 32,769 characters"):
            await world.client.start("parent", {}, version="x" * (MAX_COLUMN + 1))
        await world.client.start("parent", {}, instance_id="one", tags=LARGEST)
        assert (await world.wait("one")).status is Status.COMPLETED
        assert [row.tags for row in (await world.client.list()).instances] == [LARGEST, LARGEST]
        await world.client.start("calling", {"tags": {"of": "y" * 80_000}}, instance_id="two")
        assert (await world.wait("two")).status is Status.COMPLETED, "an activity's tags are spilled"

    play(place, drive)


@pytest.mark.rows("K50")
def test_larger_tags_of_a_dotnet_client_stay_in_the_history(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "check_tags", lambda *_, **__: None)
    tags = {"team": "x" * 65_536}

    async def drive(world: World) -> None:
        await world.client.start("child", 1, instance_id="one", tags=tags)
        ended = await world.wait("one", SOON)
        assert (ended.status, ended.tags) == (Status.COMPLETED, None)
        started = (await world.client.instance("one").history())[1]
        assert getattr(started, "tags", None) == tags

    play(place, drive)


@pytest.mark.parametrize("given", ["version", "size"])
def test_a_decision_that_no_store_takes_fails_its_orchestrator_at_once(
    place: Place, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setattr(context, "check_column", lambda *_: None)
    monkeypatch.setattr(rules, "MAX_BLOB_BYTES", 50_000)
    value: Any = 100_000 if given == "size" else "x" * 40_000

    async def drive(world: World) -> None:
        await world.client.start("calling", {given: value}, instance_id="one")
        ended = await world.wait("one", SOON)
        assert ended.status is Status.FAILED
        assert ended.failure is not None
        assert (ended.failure.error_type, ended.failure.is_non_retriable) == ("PayloadTooLarge", True)
        assert ("'Version': 80000 bytes" if given == "version" else "the limit is 50000") in (ended.output or "")
        assert len(world.said("checkpoint_refused")) == 1, "it is not tried again"
        assert await world.client.admin.quarantined() == ()

    play(place, drive)


def refusing(world: World, table: str, times: int) -> list[Call]:
    """From now on the store itself refuses so many changes of a table. :returns: those that it has refused."""
    calls: list[Call] = []

    def plan(call: Call) -> Fault | None:
        if not isinstance(call.what, Transact) or call.what.table != table or len(calls) == times:
            return None
        calls.append(call)
        return Fault(before=PayloadTooLarge("413 (fault)"))

    world.machines[-1].plan = plan
    return calls


def test_what_was_put_for_a_decision_that_the_store_refuses_is_withdrawn(place: Place) -> None:
    async def drive(world: World) -> None:
        calls = refusing(world, world.client.hub.names.history, 1)
        await world.client.start("calling", {}, instance_id="one")
        assert (await world.wait("one", SOON)).status is Status.FAILED
        assert len(calls) == 1
        assert await world.queued() == 0, "its work item was put and claimed"

    play(place, drive)


@pytest.mark.parametrize("times", [1, 9], ids=["and fails", "and can not even fail"])
def test_a_cut_off_switch_whose_rest_the_store_refuses_does_not_go_round(place: Place, times: int) -> None:
    async def main() -> None:
        async with World(scenarios.app_of(Effects()), place=place) as world:
            first = await world.join("first", death=Death(point="history:1"))
            await world.client.start("spread", 0, instance_id="one")
            await first.died.wait()
            await world.join("second")
            calls = refusing(world, world.client.hub.names.history, times)
            while not calls:
                await world.clock.sleep(0.1)
            await world.clock.sleep(SOON.total_seconds())
            state = await world.client.get("one")
            assert state is not None
            kept = await world.client.admin.quarantined()
            if times == 1:
                assert (state.status, kept) == (Status.FAILED, ())
                assert "413 (fault)" in (state.output or "")
                await world.settle()
            else:
                assert "the store refuses to record this failure too: 413 (fault)" in kept[0].cause
                assert kept[0].dequeue_count < 5
            assert not world.defects(), world.defects()

    simulate(main)


def test_an_event_whose_checkpoint_is_refused_after_its_history_stands_in_the_history_once(place: Place) -> None:
    async def drive(world: World) -> None:
        await world.client.start("listening", instance_id="one")
        await world.settle()
        calls = refusing(world, world.client.hub.names.instances, 1)
        await world.client.raise_event("one", "go", "first")
        ended = await world.wait("one", SOON)
        assert len(calls) == 1
        assert ended.status is Status.FAILED
        names = [event.event_type.name for event in await world.client.instance("one").history()]
        assert names.count("EventRaised") == 1, "the history has the event already, so the failure does not take it"
        assert names[-2:] == ["ExecutionCompleted", "OrchestratorCompleted"]

    play(place, drive)


def test_an_end_before_the_first_checkpoint_that_the_store_refuses_is_an_end_all_the_same(place: Place) -> None:
    async def main() -> None:
        async with World(scenarios.app_of(Effects()), partitions=1, place=place) as world:
            late = await world.join("late", death=Death(point="history"))
            await world.client.start("counter", [], instance_id="one")
            await late.died.wait()
            await late.bury()
            await world.client.terminate("one", "enough")
            await world.join("next")
            calls = refusing(world, world.client.hub.names.history, 1)
            await world.settle()
            assert len(calls) == 1
            state, history = await world.client.get("one"), await world.client.instance("one").history()
            assert state is not None
            assert state.status is Status.FAILED
            assert "the store refuses the checkpoint of the orchestration" in (state.output or "")
            assert [event.event_type.name for event in history[1:-1]] == [
                "ExecutionStarted",
                "ExecutionTerminated",
                "ExecutionCompleted",
            ]

    simulate(main)


@pytest.mark.rows("K48")
def test_a_parent_learns_that_no_store_takes_what_its_child_came_to(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "MAX_BLOB_BYTES", 50_000)

    async def drive(world: World) -> None:
        await world.client.start("parent", {"size": 100_000}, instance_id="one")
        ended = await world.wait("one", SOON)
        assert ended.status is Status.COMPLETED
        assert "the limit is 50000" in json.loads(ended.output or "")
        below = await world.client.instance("below").history()
        names = [event.event_type.name for event in below]
        assert names[-3:] == ["TaskCompleted", "ExecutionCompleted", "OrchestratorCompleted"], "what came is kept"

    play(place, drive)


@pytest.mark.rows("D108")
def test_a_start_that_no_store_takes_whatever_becomes_of_it_is_kept_at_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "check_column", lambda *_: None)
    monkeypatch.setattr(starting, "created_row", _shortened(starting.created_row))

    async def drive(world: World) -> None:
        await world.client.start("child", 1, instance_id="one", version="x" * 40_000)
        await world.client.start("child", 1, instance_id="two")
        assert (await world.wait("two", SOON)).status is Status.COMPLETED, "the rest goes on"
        await world.clock.sleep(SOON.total_seconds())
        (kept,) = await world.client.admin.quarantined()
        assert "'Version': 80000 bytes" in kept.cause
        assert kept.dequeue_count == 1

    play(place, drive)


def _shortened(real: Callable[..., Any]) -> Callable[..., Any]:
    """As another client's row that is fine while its message is not."""

    def row(*arguments: Any, **named: Any) -> Any:
        entity, blobs = real(*arguments, **named)
        entity.properties["Version"] = "1"
        return entity, blobs

    return row


@pytest.mark.parametrize("activity", ["grown", "slow"])
def test_an_activity_fails_with_what_no_store_takes_and_its_record_says_so(
    place: Place, monkeypatch: pytest.MonkeyPatch, activity: str
) -> None:
    monkeypatch.setattr(rules, "MAX_BLOB_BYTES", 50_000)

    async def drive(world: World) -> None:
        await world.client.start("trying", [activity, 100_000], instance_id="one")
        ended = await world.wait("one", SOON)
        assert ended.status is Status.COMPLETED
        assert "the limit is 50000" in json.loads(ended.output or "")
        states = [record.state for record in await world.client.instance("one").activities()]
        assert states == ([RecordState.FAILED] if activity == "grown" else [])

    play(place, drive)


def test_so_it_does_where_its_record_holds_what_no_message_takes(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message is a little larger than the result in it."""
    size = 100_000
    monkeypatch.setattr(rules, "MAX_BLOB_BYTES", len(codec.compress(json.dumps(noise(size)))))

    async def main() -> None:
        async with World(app_of(), place=place) as world:
            await world.join("decides", roles=(ORCHESTRATOR,))
            await world.join("does", roles=(ACTIVITY,))
            await world.client.start("trying", ["grown", size], instance_id="one")
            ended = await world.wait("one", SOON)
            assert "the store refuses the result of activity 'grown'" in json.loads(ended.output or "")
            await world.settle()
            assert await world.client.admin.quarantined() == ()

    simulate(main)


def test_a_failure_in_another_alphabet_fits_its_record(place: Place) -> None:
    text = "не получилось " * 600

    async def drive(world: World) -> None:
        await world.client.start("trying", ["foreign", text], instance_id="one")
        ended = await world.wait("one", SOON)
        assert json.loads(ended.output or "") == f"told: {text}"
        (record,) = await world.client.instance("one").activities()
        assert record.failure is not None
        assert record.failure.error_message in text
        assert len(record.failure.error_message) >= 1000

    play(place, drive)
