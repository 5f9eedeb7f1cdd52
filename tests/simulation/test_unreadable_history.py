"""Instances whose history cannot be read: they are shown, ended, started anew and removed all the same (K46)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.engine.context import OrchestrationContext
from airflow_provider_taskhub.engine.events import ExecutionStarted, ExecutionTerminated, OrchestrationInstance, Status
from airflow_provider_taskhub.errors import SubOrchestrationFailedError
from airflow_provider_taskhub.hub.formats.history_rows import SENTINEL, row_key
from airflow_provider_taskhub.hub.history.load import HistoryUnreadable, mark_unreadable
from airflow_provider_taskhub.hub.model import RecordState, StartPolicy
from airflow_provider_taskhub.hub.queues.quarantine import Quarantined
from airflow_provider_taskhub.hub.waiting.reasons import Reason
from airflow_provider_taskhub.storage.primitives import (
    DeleteBlob,
    Entity,
    PutBlob,
    RowOperation,
    RowVerb,
    Transact,
)
from tests.simulation.test_suspend_resume_purge import stored
from tests.simulation.world import Machine, World, simulate

LARGE = 70_000
"""Characters of a result that is spilled."""


def app_of(runs: list[str]) -> App:
    app = App("damaged")

    @app.activity
    def large(size: int) -> str:
        runs.append("large")
        return "x" * size

    @app.activity(record=True)
    async def endless(number: int) -> None:
        await asyncio.sleep(1e6)

    @app.activity
    async def slow(seconds: float) -> None:
        await asyncio.sleep(seconds)

    @app.orchestrator
    async def waits(ctx: OrchestrationContext, seconds: float) -> None:
        await ctx.call_activity("slow", seconds)

    @app.orchestrator
    async def job(ctx: OrchestrationContext, size: int) -> int:
        found = await ctx.call_activity("large", size)
        await ctx.wait_for_external_event("go")
        return len(found)

    @app.orchestrator
    async def runs_endless(ctx: OrchestrationContext) -> None:
        await ctx.call_activity("large", LARGE)
        await ctx.call_activity("endless", 1)

    @app.orchestrator
    async def parent(ctx: OrchestrationContext) -> str:
        try:
            await ctx.call_sub_orchestrator("job", LARGE, instance_id="child")
        except SubOrchestrationFailedError as error:
            return f"told: {error}"
        return "nothing was wrong"

    @app.orchestrator
    async def gives_up(ctx: OrchestrationContext) -> str:
        async with ctx.cancel_scope():
            ctx.call_sub_orchestrator("job", LARGE, instance_id="child")
            await ctx.wait_for_external_event("stop")
        return "gave up"

    return app


Damage = Callable[[World, str], Awaitable[None]]


async def merge(world: World, instance_id: str, key: str, **columns: Any) -> None:
    row = Entity(partition_key=instance_id, row_key=key, properties=columns)
    operation = RowOperation(verb=RowVerb.MERGE, entity=row, etag="*")
    await world.store.execute(Transact(table=world.client.hub.names.history, rows=(operation,)))


async def spilled(world: World, instance_id: str) -> str:
    """The blob of the large result in the history."""
    blobs = await world.store.list_blobs(world.client.hub.names.large_messages, f"{instance_id}/history-")
    (name,) = [blob.name for blob in blobs if "TaskCompleted" in blob.name]
    return name


async def payload_gone(world: World, instance_id: str) -> None:
    name = await spilled(world, instance_id)
    await world.store.execute(DeleteBlob(container=world.client.hub.names.large_messages, name=name))


async def payload_damaged(world: World, instance_id: str) -> None:
    name, data = await spilled(world, instance_id), b"\x1f\x8b\x08\x00 no more of it"
    await world.store.execute(PutBlob(container=world.client.hub.names.large_messages, name=name, data=data))


async def row_damaged(world: World, instance_id: str) -> None:
    await merge(world, instance_id, row_key(2), EventType="OfTheFuture")


async def start_damaged(world: World, instance_id: str) -> None:
    await merge(world, instance_id, row_key(1), EventType="OfTheFuture")


async def row_missing(world: World, instance_id: str) -> None:
    row = RowOperation(verb=RowVerb.DELETE, entity=Entity(partition_key=instance_id, row_key=row_key(2)), etag="*")
    await world.store.execute(Transact(table=world.client.hub.names.history, rows=(row,)))


async def sentinel_damaged(world: World, instance_id: str) -> None:
    await merge(world, instance_id, SENTINEL, ExecutionId=5)


DAMAGES: dict[str, tuple[Damage, str]] = {
    "a payload is gone": (payload_gone, "Result of history row 0000000000000005: blob .* is gone"),
    "a payload is damaged": (payload_damaged, "Result of history row 0000000000000005: blob .* not gzip"),
    "a row is damaged": (row_damaged, "history row 0000000000000002 .*: EventType is 'OfTheFuture'"),
    "the start is damaged": (start_damaged, "history row 0000000000000001 .*: EventType is 'OfTheFuture'"),
    "a row is missing": (row_missing, "1 of 7 rows are missing"),
    "the sentinel is damaged": (sentinel_damaged, "sentinel of 'child': ExecutionId is 5"),
}
"""How, and what is said to whoever looks."""


def play(drive: Callable[[World], Awaitable[Any]], runs: list[str] | None = None) -> Any:
    async def main() -> Any:
        async with World(app_of([] if runs is None else runs)) as world:
            await world.join("first")
            found = await drive(world)
            assert not world.defects(), world.defects()
            return found

    return simulate(main)


async def damaged(world: World, damage: Damage, instance_id: str) -> Machine:
    """The instance once its history is damaged, and no worker has it in memory. :returns: who serves it now."""
    await world.clock.sleep(5.0)
    await world.machines[0].stop()
    await damage(world, instance_id)
    return await world.join("second")


async def quarantined(world: World) -> tuple[Quarantined, ...]:
    """What is in quarantine within five minutes."""
    for _ in range(60):
        await world.clock.sleep(5.0)
        if kept := await world.client.admin.quarantined():
            return kept
    return ()


@pytest.mark.rows("K46")
@pytest.mark.parametrize("how", DAMAGES)
def test_an_instance_whose_history_cannot_be_read_is_shown_ended_and_removed(how: str) -> None:
    async def drive(world: World) -> Any:
        damage, said = DAMAGES[how]
        await world.client.start("parent", instance_id="top")
        second = await damaged(world, damage, "child")
        await world.client.raise_event("child", "go")
        await world.clock.sleep(10.0)
        row = await world.client.get("child")
        assert row is not None
        assert row.status is Status.RUNNING, "it cannot go on"
        with pytest.raises(HistoryUnreadable):
            await world.client.instance("child").history()
        events, unreadable = await world.client.instance("child").readable_history()
        assert len(events) >= 5
        assert len(unreadable) == 1
        assert re.search(said, unreadable[0]), unreadable

        before = await world.store.get(world.client.hub.names.history, "child", SENTINEL)
        ended = await asyncio.wait_for(world.client.terminate("child", "enough", wait=True), 30.0)
        assert (ended.status, ended.output) == (Status.TERMINATED, "enough")
        locks = [
            row.etag
            for done in world.tape
            if done.machine == second.name and isinstance(done.operation, Transact)
            for row in done.operation.rows
            if (row.entity.partition_key, row.entity.row_key) == ("child", SENTINEL)
        ]
        assert before is not None
        marked, ended_under = locks
        assert "*" not in (marked, ended_under), "the worker marks the instance once, and never without the lock"
        assert ended_under == before.etag, "under the lock that it was read with"
        history, unreadable = await world.client.instance("child").readable_history()
        assert unreadable == ()
        assert [event.event_type.name for event in history] == [
            "OrchestratorStarted",
            "ExecutionStarted",
            "ExecutionTerminated",
            "ExecutionCompleted",
            "OrchestratorCompleted",
        ]
        assert history == await world.client.instance("child").history()
        assert isinstance(history[1], ExecutionStarted)
        if how == "the start is damaged":  # which parent waits for it nobody can read
            assert history[1].parent is None
            await world.client.terminate("top")
        assert history[1].name == "job"
        top = await world.wait("top")
        await world.settle()
        assert await world.client.purge("child")
        assert not [key for key in await stored(world) if key[1].startswith("child")]
        assert not await world.client.admin.quarantined()
        return top.status, top.output

    told = (Status.COMPLETED, '"told: enough"')
    assert play(drive) == ((Status.TERMINATED, None) if how == "the start is damaged" else told)


@pytest.mark.rows("K46")
@pytest.mark.parametrize("how", DAMAGES)
def test_a_child_whose_history_cannot_be_read_tells_the_parent_that_cancels_it(how: str) -> None:
    """Also if its history does not say any more who its parent is: the message of the parent says it."""

    async def drive(world: World) -> Any:
        await world.client.start("gives_up", instance_id="top")
        await damaged(world, DAMAGES[how][0], "child")
        await world.client.raise_event("top", "stop")
        assert (await world.wait("top")).output == '"gave up"'
        await world.settle()

    play(drive)


@pytest.mark.rows("K46", "K30")
def test_what_an_unreadable_instance_runs_is_cancelled_with_it() -> None:
    """Also where the row that asked for it is what cannot be read."""

    async def drive(world: World) -> Any:
        await world.machines[0].stop()
        await world.join("runs activities", roles=("activity",))
        decides = await world.join("decides", roles=("orchestrator",))
        await world.client.start("runs_endless", instance_id="child")
        await world.clock.sleep(5.0)
        await decides.stop()
        asked = [event.event_id for event in await world.client.instance("child").history()].index(1)
        await merge(world, "child", row_key(asked), EventType="OfTheFuture")
        await world.join("decides next", roles=("orchestrator",))
        (before,) = await world.client.instance("child").activities()
        await asyncio.wait_for(world.client.terminate("child", "enough", wait=True), 60.0)
        (after,) = await world.client.instance("child").activities()
        return before.state, after.state

    assert play(drive) == (RecordState.RUNNING, RecordState.CANCELLED)


@pytest.mark.rows("K46", "K35")
def test_other_messages_of_an_unreadable_instance_go_to_quarantine() -> None:
    async def drive(world: World) -> Any:
        await world.client.start("job", LARGE, instance_id="child")
        await damaged(world, payload_gone, "child")
        await world.client.raise_event("child", "go")
        (kept,) = await quarantined(world)
        return "HistoryUnreadable" in kept.cause, await world.queued()

    assert play(drive) == (True, 0)


@pytest.mark.rows("K46")
@pytest.mark.parametrize("damage", [payload_gone, sentinel_damaged], ids=lambda damage: damage.__name__)
def test_an_ended_instance_whose_history_cannot_be_read_is_started_anew(damage: Damage) -> None:
    async def drive(world: World) -> Any:
        await world.client.start("job", LARGE, instance_id="child")
        await world.clock.sleep(2.0)
        await world.client.raise_event("child", "go")
        await world.wait("child")
        await damaged(world, damage, "child")
        await world.client.start("job", 5, instance_id="child", policy=StartPolicy.REPLACE_FINISHED)
        await world.client.raise_event("child", "go")
        state = await world.wait("child")
        await world.settle()
        assert not await world.client.admin.quarantined()
        return state.status, state.output, len(await world.client.instance("child").history()) > 5

    assert play(drive) == (Status.COMPLETED, "5", True)


@pytest.mark.rows("K46")
@pytest.mark.parametrize("damage", [row_damaged, sentinel_damaged], ids=lambda damage: damage.__name__)
def test_an_ended_instance_whose_history_cannot_be_read_is_purged(damage: Damage) -> None:
    async def drive(world: World) -> Any:
        await world.client.start("job", 5, instance_id="child")
        await world.clock.sleep(2.0)
        await world.client.raise_event("child", "go")
        await world.wait("child")
        await world.settle()
        await damage(world, "child")
        return await world.client.purge("child"), await stored(world)

    assert play(drive) == (True, [])


@pytest.mark.rows("K36", "K46")
def test_a_terminate_of_another_start_does_not_end_an_unreadable_instance() -> None:
    async def drive(world: World) -> Any:
        hub = world.client.hub
        await world.client.start("job", LARGE, instance_id="child")
        await damaged(world, payload_gone, "child")
        event = ExecutionTerminated(timestamp=hub.clock.utc_now(), input="old", taskhub_execution_id="b" * 32)
        await hub.send(hub.message_to(event, OrchestrationInstance(instance_id="child")))
        await world.settle(timedelta(minutes=5))
        row = await world.client.get("child")
        assert row is not None
        said = [entry["reason"] for entry in world.said("message_discarded")]
        return row.status, said

    assert play(drive) == (Status.RUNNING, [f"it is for run {'b' * 32}, which has ended"])


@pytest.mark.rows("K46")
def test_an_instance_that_cannot_be_read_stops_no_look_at_the_others() -> None:
    """Of an activity that runs is looked what became of its instance: from the row, else from the sentinel."""

    async def drive(world: World) -> Any:
        await world.client.start("waits", 60.0, instance_id="child")
        await world.client.start("waits", 1e6, instance_id="other")
        await world.clock.sleep(2.0)
        await sentinel_damaged(world, "child")
        row = RowOperation(verb=RowVerb.DELETE, entity=Entity(partition_key="child", row_key=""), etag="*")
        await world.store.execute(Transact(table=world.client.hub.names.instances, rows=(row,)))
        await world.clock.sleep(10.0)
        await world.client.terminate("other")
        await world.clock.sleep(10.0)
        return [said["reason"] for said in world.said("work_item_discarded")]

    assert play(drive) == ["its instance was ended"]


@pytest.mark.rows("K35", "K46")
def test_an_attempt_in_a_state_that_this_version_does_not_know_is_not_run_again() -> None:
    """Nobody can say whether it runs or has ended: its work item is kept with the way out."""

    async def drive(world: World) -> Any:
        (first,) = world.machines
        names = world.client.hub.names
        await world.client.start("runs_endless", instance_id="child")
        await world.clock.sleep(5.0)
        await first.bury()
        (row,) = [row async for row in world.store.rows(names.activities)]
        paused = Entity(partition_key=row.partition_key, row_key=row.row_key, properties={"State": "paused"})
        operation = RowOperation(verb=RowVerb.MERGE, entity=paused, etag="*")
        await world.store.execute(Transact(table=names.activities, rows=(operation,)))
        await world.join("second")
        (kept,) = await quarantined(world)
        (record,) = await world.client.instance("child").activities()
        return record.state, record.attempt, "upgrade this worker" in kept.cause

    assert play(drive) == (RecordState.UNKNOWN, 1, True)


async def is_suspended(world: World) -> None:
    await world.client.suspend("child", "hold on")
    await world.clock.sleep(5.0)


async def is_pending(world: World) -> None:
    """As if its worker died between the history of its first checkpoint and the instance's row."""
    row = Entity(partition_key="child", row_key="", properties={"RuntimeStatus": "Pending"})
    operation = RowOperation(verb=RowVerb.MERGE, entity=row, etag="*")
    await world.store.execute(Transact(table=world.client.hub.names.instances, rows=(operation,)))


@pytest.mark.parametrize("status", [Status.SUSPENDED, Status.PENDING])
def test_a_history_that_cannot_be_read_is_told_before_a_suspension(status: Status) -> None:
    async def drive(world: World) -> None:
        await world.client.start("job", LARGE, instance_id="child")
        await world.clock.sleep(5.0)
        await (is_suspended if status is Status.SUSPENDED else is_pending)(world)
        await damaged(world, row_damaged, "child")
        await world.client.resume("child")
        await world.clock.sleep(60.0)
        state = await world.client.get("child")
        assert state is not None
        assert state.status is status
        first, *_ = await world.client.instance("child").waiting()
        assert first.reason is Reason.UNREADABLE
        if status is Status.SUSPENDED:
            assert (await world.client.admin.waiting_of([state]))["child"][0].reason is Reason.UNREADABLE
            assert (await world.client.admin.waiting_instances()).faults == (Reason.UNREADABLE,)

    play(drive)


async def marked(world: World, instance_id: str) -> None:
    await mark_unreadable(world.store, world.client.hub.names, instance_id, "a row is damaged")


@pytest.mark.parametrize("damage", [marked, sentinel_damaged])
def test_a_start_over_an_ended_instance_is_not_told_as_unreadable(damage: Damage) -> None:
    async def drive(world: World) -> None:
        await world.client.start("job", LARGE, instance_id="child")
        await world.client.raise_event("child", "go", None)
        await world.client.wait("child")
        machine = await damaged(world, damage, "child")
        await machine.stop()
        await world.client.start("job", LARGE, instance_id="child", policy=StartPolicy.REPLACE_FINISHED)
        assert Reason.UNREADABLE not in [one.reason for one in await world.client.instance("child").waiting()]

    play(drive)


@pytest.mark.parametrize("damage", [row_damaged, payload_gone, sentinel_damaged])
def test_every_reader_is_told_that_the_history_cannot_be_read_once_its_worker_has_met_it(damage: Damage) -> None:
    async def drive(world: World) -> None:
        await world.client.start("job", LARGE, instance_id="child")
        await damaged(world, damage, "child")
        await world.client.raise_event("child", "go", None)
        await world.clock.sleep(60.0)
        (why,) = await world.client.instance("child").waiting()
        assert why.reason is Reason.UNREADABLE
        assert str(why).endswith("To end it: taskhub instances terminate child")
        scanned = await world.client.admin.waiting_instances()
        assert scanned.faults == (Reason.UNREADABLE,)
        await world.client.terminate("child", "damaged")
        state = await world.client.wait("child", timeout=timedelta(minutes=5))
        assert state.status is Status.TERMINATED
        assert await world.client.instance("child").waiting() == ()

    play(drive)
