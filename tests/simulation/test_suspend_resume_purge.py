"""Suspend, resume, restart and purge in every state, and who must not be touched by them (K30, K41, K46)."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import (
    EventRaised,
    OrchestrationInstance,
    Status,
    TaskCompleted,
    TaskScheduled,
)
from airflow_provider_taskhub.errors import (
    Conflict,
    InputError,
    InstanceExists,
    InstanceNotFound,
    InvalidStateError,
    Unavailable,
)
from airflow_provider_taskhub.hub.admission.facts import SECOND
from airflow_provider_taskhub.hub.formats.keys import log_name
from airflow_provider_taskhub.hub.history.activity_records import results_of
from airflow_provider_taskhub.hub.history.purge import purge, purge_activities
from airflow_provider_taskhub.hub.model import InstanceState, StartPolicy
from airflow_provider_taskhub.hub.watches import Watch
from airflow_provider_taskhub.settings import EMBEDDED_LEASE, LeaseTimes
from airflow_provider_taskhub.storage.faults import Fault, FaultyStore, at, late, lost, throttled, unsent
from airflow_provider_taskhub.storage.primitives import Entity, Message, PutBlob, RowOperation, RowVerb, Transact
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore
from airflow_provider_taskhub.tags import OWNER_TAG, WATCH_TAG
from tests.simulation.scenarios import app_of
from tests.simulation.world import AFTER, RARE_RENEWALS, Death, Effects, Place, World, simulate

START = datetime(2026, 1, 1, tzinfo=UTC)
"""When the worlds begin."""
SLOW_VISIBILITY = EMBEDDED_LEASE.model_copy(update={"visibility": timedelta(seconds=15)})
"""What a dead worker held comes back after its partition was taken."""
LARGE = "x" * 70_000
"""Over both thresholds of a spill."""
FINAL = ("Completed", "Failed", "Terminated")
LONG = EMBEDDED_LEASE.model_copy(update={"visibility": timedelta(seconds=15)})
"""What a dead worker held comes back long after its partition was taken."""


def play(drive: Callable[[World], Awaitable[Any]], **settings: Any) -> Any:
    async def main() -> Any:
        async with World(app_of(Effects()), **settings) as world:
            await world.join("one")
            found = await drive(world)
            assert not world.defects(), world.defects()
            return found

    return simulate(main, limit=timedelta(days=60))


async def status(world: World, instance_id: str = "one") -> Status | None:
    row = await world.client.get(instance_id)
    return None if row is None else row.status


async def ended_as(world: World, status: str, instance_id: str = "one") -> None:
    match status:
        case "Completed":
            await world.client.start("chain", 1, instance_id=instance_id)
        case "Failed":
            await world.client.start("raising", instance_id=instance_id)
        case "Terminated":
            await world.client.start("patient", instance_id=instance_id)
            await world.client.terminate(instance_id, "enough")
    assert str((await world.wait(instance_id)).status) == status


# --- the Airflow task of an instance that goes on again -----------------------------------------------------------

WATCH = Watch(
    instance_id="one", deployment="here", dag_id="d", run_id="r", task_id="t", map_index=-1, owner="o", generation=1
)


@pytest.mark.parametrize("operation", ["rewind", "restart"])
@pytest.mark.parametrize(
    ("written", "kept"), [("before the start", False), ("after the end", True), ("for another start", True)]
)
def test_the_sweep_does_not_end_what_a_person_has_started_again(operation: str, written: str, kept: bool) -> None:
    """The row of the task that has ended goes. A task that lets the instance go on itself has just written its row."""

    async def drive(world: World) -> Any:
        watch = WATCH if written != "for another start" else replace(WATCH, owner="newer")
        await world.client.watches.add(watch)
        await world.client.start("raising", instance_id="one", tags={OWNER_TAG: "o", WATCH_TAG: "1"})
        assert (await world.wait("one")).status is Status.FAILED
        if written == "after the end":
            await world.clock.sleep(1.0)
            await world.client.watches.add(watch)
        await (world.client.rewind("one") if operation == "rewind" else world.client.restart("one"))
        return [one.instance_id for one in await world.client.watches.of("here")]

    assert play(drive) == (["one"] if kept else [])


def test_an_order_that_changes_nothing_leaves_the_task_its_watch_row() -> None:
    async def drive(world: World) -> Any:
        await world.client.watches.add(WATCH)
        await world.client.start("chain", 1, instance_id="one", tags={OWNER_TAG: "o"})
        with pytest.raises(InstanceExists):
            await world.client.restart("one")
        assert (await world.wait("one")).status is Status.COMPLETED
        with pytest.raises(InvalidStateError):
            await world.client.rewind("one")
        await world.client.restart("one", new_id=True)
        return [one.instance_id for one in await world.client.watches.of("here")]

    assert play(drive) == ["one"]


# --- suspend and resume -------------------------------------------------------------------------------------------


@pytest.mark.rows("K46")
def test_a_suspended_instance_keeps_what_comes_and_decides_nothing() -> None:
    async def drive(world: World) -> Any:
        await world.client.start("counter", [], instance_id="one")
        await world.clock.sleep(1.0)
        await world.client.suspend("one", "hold on")
        await world.clock.sleep(1.0)
        held = await world.client.get("one")
        for number in range(4):
            await world.client.raise_event("one", "add", number)
        await world.client.suspend("one", "twice is once")
        await world.clock.sleep(600.0)
        still = await status(world)
        await world.client.resume("one", "go on")
        state = await world.wait("one")
        await world.ended()
        assert held is not None
        return held.status, held.output, still, state.status, state.output

    assert play(drive) == (Status.SUSPENDED, "hold on", Status.SUSPENDED, Status.COMPLETED, "[0,1,2,3]")


@pytest.mark.rows("D61")
@pytest.mark.parametrize("order", ["suspend", "terminate"])
@pytest.mark.parametrize("length", [1, 2], ids=["nothing is left", "more is left"])
def test_what_is_to_pause_or_stop_begins_nothing_and_pauses_or_stops_at_once(length: int, order: str) -> None:
    """Not as D61 says, on purpose: it does so though nothing is left to do, and a paused one ends after the resume."""
    begun = Counter[int]()

    async def step(number: int) -> int:
        begun[number] += 1
        await asyncio.sleep(5.0)
        return number + 1

    async def main() -> Any:
        async with World(app_of(Effects()), functions={"step": step}) as world:
            await world.join("one")
            await world.client.start("plod", length, instance_id="one")
            await world.clock.sleep(2.0)
            await (world.client.suspend if order == "suspend" else world.client.terminate)("one", "so it is")
            await world.clock.sleep(1.0)
            soon = await status(world)
            await world.clock.sleep(60.0)
            late, few = await status(world), sum(begun.values())
            if order == "suspend":
                await world.client.resume("one")
            await world.wait("one")
            return soon, late, few, (await world.ended()).states["one"][:2]

    soon, late, few, ended = simulate(main)
    paused = order == "suspend"
    assert soon is late is (Status.SUSPENDED if paused else Status.TERMINATED)
    assert few == 1
    assert ended == (("Completed", str(length)) if paused else ("Terminated", "so it is"))
    assert sum(begun.values()) == (length if paused else 1)


@pytest.mark.rows("K46")
def test_a_running_instance_that_is_resumed_goes_on() -> None:
    async def drive(world: World) -> Any:
        await world.client.start("events", 1, instance_id="one")
        await world.clock.sleep(1.0)
        await world.client.resume("one")
        await world.clock.sleep(1.0)
        running = await status(world)
        await world.client.raise_event("one", "go", 5)
        await world.wait("one")
        return running, (await world.ended()).states["one"][1]

    assert play(drive) == (Status.RUNNING, "[5]")


@pytest.mark.rows("K46")
@pytest.mark.parametrize("begun", [True, False], ids=["begun", "not begun"])
def test_a_second_suspension_changes_nothing_of_the_first_one(begun: bool) -> None:
    """Neither the reason, the time, who asked for it, the row nor the history."""

    async def seen(world: World) -> Any:
        await world.clock.sleep(2.0)
        writes = [done.operation for done in world.tape if isinstance(done.operation, Transact)]
        written = [one for one in writes if one.table == world.client.hub.names.instances]
        handle = world.client.instance("one")
        return await handle.get(), await handle.history() if begun else (), len(written)

    async def drive(world: World) -> Any:
        due = None if begun else START + timedelta(hours=1)
        await world.client.start("counter", [], instance_id="one", start_at=due)
        await world.clock.sleep(1.0)
        await world.client.suspend("one", "first", by="ann")
        first = await seen(world)
        await world.client.suspend("one", "second", by="bob")
        assert await seen(world) == first
        row, *_ = first
        assert (row.output, row.suspended_by, row.is_held) == ("first", "ann", True)
        await world.client.resume("one")
        await world.client.suspend("one", "third", by="bob")
        await world.clock.sleep(2.0)
        row = await world.client.get("one")
        assert row is not None
        assert (row.output, row.suspended_by, row.is_held) == ("third", "bob", True)

    play(drive)


def test_a_resume_that_comes_back_after_a_second_suspension_is_stale() -> None:
    """The second suspension changes nothing, but the instance remembers its time, also with the next worker."""

    async def drive(world: World) -> Any:
        (first,) = world.machines
        other = await Client.over(world.store, world.settings, clock=world.clock)
        await world.client.start("counter", [], instance_id="one")
        await world.clock.sleep(2.0)
        await world.client.suspend("one", "first")
        await world.clock.sleep(2.0)
        first.death = Death(point="history", count=first.points["before-history"] + 1)
        await world.client.resume("one", "older")
        await first.died.wait()
        await world.clock.sleep(1.0)
        second = await world.join("second")
        await other.suspend("one", "newer")
        await world.clock.sleep(6.0)
        assert await world.queued() == 1, "the resume comes back only when its visibility is over"
        await second.stop()
        await world.join("third")
        await world.clock.sleep(30.0)
        assert await world.queued() == 0
        row = await world.client.get("one")
        return None if row is None else (row.status, row.output)

    assert play(drive, lease=SLOW_VISIBILITY) == (Status.SUSPENDED, "first")


def test_an_instance_that_is_suspended_before_it_began_begins_and_is_held() -> None:
    async def drive(world: World) -> Any:
        await world.client.start("chain", 2, instance_id="one")
        await world.client.suspend("one", "not yet")
        await world.clock.sleep(60.0)
        held = await status(world)
        await world.client.resume("one")
        return held, (await world.wait("one")).output

    assert play(drive) == (Status.SUSPENDED, "2")


@pytest.mark.rows("D61", "K46")
def test_a_suspended_instance_is_terminated() -> None:
    async def drive(world: World) -> Any:
        await world.client.start("patient", instance_id="one")
        await world.clock.sleep(1.0)
        await world.client.suspend("one")
        await world.clock.sleep(1.0)
        await world.client.terminate("one", "enough")
        state = await world.wait("one")
        await world.ended()
        return state.status, state.output

    assert play(drive) == (Status.TERMINATED, "enough")


@pytest.mark.rows("K46")
@pytest.mark.parametrize("apart", [True, False], ids=["later", "in the same batch"])
def test_what_was_held_back_never_comes_about_when_a_suspended_instance_is_terminated(apart: bool) -> None:
    """As in DurableTask, which forgets it: the children and sent events too, which outlive the end of a running one."""

    async def drive(world: World) -> Any:
        await world.client.start("events", 1, instance_id="one-to")
        await world.clock.sleep(10.0)
        for name, instance_id in (("parent", "two"), ("sender", "one")):
            await world.client.start(name, 1, instance_id=instance_id)
            await world.client.suspend(instance_id, "not yet")
            await world.clock.sleep(60.0 if apart else 0.0)
            await world.client.terminate(instance_id, "never")
            await world.wait(instance_id)
        await world.settle()
        return await status(world, "two-0"), await status(world, "one-to")

    assert play(drive) == (None, Status.RUNNING)


@pytest.mark.rows("K43", "K46")
@pytest.mark.parametrize("begun", [True, False], ids=["running", "pending"])
def test_what_no_worker_alive_has_the_code_of_is_terminated_at_once(begun: bool) -> None:
    other = App("other")

    @other.orchestrator
    async def unrelated(ctx: OrchestrationContext) -> None: ...

    async def main() -> Any:
        async with World(app_of(Effects())) as world:
            first = await world.join("first")
            await world.clock.sleep(1.0)
            if begun:
                await world.client.start("patient", instance_id="one")
                await world.clock.sleep(1.0)
            await first.stop()
            await world.join("second", app=other)
            if not begun:
                await world.client.start("patient", instance_id="one")
            began = world.clock.monotonic()
            await world.client.terminate("one", "enough")
            state = await world.wait("one")
            assert not world.defects(), world.defects()
            return state.status, state.output, world.clock.monotonic() - began < 30.0

    assert simulate(main) == (Status.TERMINATED, "enough", True)


@pytest.mark.rows("D16", "K46")
@pytest.mark.parametrize("final", FINAL)
def test_what_has_ended_is_neither_suspended_nor_resumed(final: str) -> None:
    async def drive(world: World) -> Any:
        await ended_as(world, final)
        for send in (world.client.suspend, world.client.resume):
            with pytest.raises(
                InputError, match=f"is {final} since 2026-01-01 .* UTC: it cannot be .*d. It takes: .*restart"
            ):
                await send("one")
            with pytest.raises(InstanceNotFound):
                await send("two")
        assert (await world.client.terminate("one")).status == final
        return await world.queued()

    assert play(drive) == 0


# --- what was wanted last ---------------------------------------------------------------------------------------

MEANWHILE = {
    "nothing": [],
    "another worker": ["another worker"],
    "a new generation": ["a new generation"],
    "both": ["a new generation", "another worker"],
}
"""What may happen between the newer message and the older one, which its dead worker had held."""


async def overtaken(world: World, older: str, newer: str, meanwhile: Sequence[str], client: Client) -> Status | None:
    """The status once an older suspension, resume or terminate has come back behind a newer one of another client."""
    verbs = {"suspend": world.client.suspend, "resume": world.client.resume, "terminate": world.client.terminate}
    (first,) = world.machines
    await world.client.start("counter", [], instance_id="one")
    await world.clock.sleep(2.0)
    if older == "resume":
        await world.client.suspend("one", "first of all")
        await world.clock.sleep(2.0)
    first.death = Death(point="history", count=first.points["before-history"] + 1)
    await verbs[older]("one", "older")
    await first.died.wait()
    await world.clock.sleep(1.0)
    second = await world.join("second")
    await {"suspend": client.suspend, "resume": client.resume}[newer]("one", "newer")
    await world.clock.sleep(6.0)  # it was taken, and the older one comes back only when its visibility is over
    assert await world.queued() == 1
    if "a new generation" in meanwhile:
        before = await world.client.get("one")
        if newer == "suspend":  # one that is held back does not continue as new, but may have just before
            await client.resume("one", "newer still")
        await client.raise_event("one", "add", 1)
        await world.clock.sleep(1.0)
        if newer == "suspend":
            await client.suspend("one", "newest")
            await world.clock.sleep(1.0)
        after = await world.client.get("one")
        assert before is not None
        assert after is not None
        assert before.execution_id != after.execution_id
    if "another worker" in meanwhile:
        await second.stop()
        await world.join("third")
    await world.clock.sleep(30.0)
    assert await world.queued() == 0
    return await status(world)


@pytest.mark.rows("K26", "K46")
@pytest.mark.parametrize("meanwhile", MEANWHILE)
@pytest.mark.parametrize(
    ("older", "newer", "expected"),
    [("suspend", "resume", Status.RUNNING), ("resume", "suspend", Status.SUSPENDED)],
    ids=["a suspension", "a resume"],
)
def test_an_order_that_comes_back_after_a_newer_one_was_taken_is_stale(
    older: str, newer: str, expected: Status, meanwhile: str
) -> None:
    """Its worker died with it, and whoever serves the partition next is given the newer one first."""

    async def drive(world: World) -> Any:
        other = await Client.over(world.store, world.settings, clock=world.clock)
        found = await overtaken(world, older, newer, MEANWHILE[meanwhile], other)
        stale = [said["reason"] for said in world.said("message_discarded") if "newer suspension" in said["reason"]]
        return found, len(stale)

    assert play(drive, lease=SLOW_VISIBILITY) == (expected, 1)


@pytest.mark.rows("K26", "K46")
def test_a_terminate_that_comes_back_after_a_resume_ends_the_instance() -> None:
    async def drive(world: World) -> Any:
        return await overtaken(world, "terminate", "resume", (), world.client)

    assert play(drive, lease=SLOW_VISIBILITY) is Status.TERMINATED


@pytest.mark.rows("K26", "K46")
def test_within_one_second_the_order_in_which_a_client_sends_counts() -> None:
    """Azure's queues tell the second: which of two came first, only who has sent both can tell."""

    async def drive(world: World) -> Any:
        await world.clock.sleep(-world.clock.monotonic() % 1.0)
        (first,) = world.machines
        await world.client.start("counter", [], instance_id="one")
        await world.clock.sleep(2.1)
        first.death = Death(point="history", count=first.points["before-history"] + 1)
        await world.client.suspend("one", "older")
        await first.died.wait()
        await world.client.resume("one", "newer")
        await world.join("second")
        taken = [message.inserted for message in await world.store.peek(world.client.hub.queue_of("one"))]
        await world.clock.sleep(40.0)
        return len(taken), await status(world), await world.queued()

    place = Place(name="seconds", open=lambda clock: Seconds(None, clock=clock))
    assert play(drive, place=place, lease=SLOW_VISIBILITY) == (1, Status.RUNNING, 0)


@pytest.mark.rows("D12", "K41", "K46")
@pytest.mark.parametrize("seconds", [12, 60], ids=["after the start", "before it"])
def test_a_suspension_from_before_the_start_that_comes_back_after_the_resume_holds_nothing(seconds: int) -> None:
    """The row was told to resume meanwhile; the history, which had not begun then, does not know of either. Both were
    sent at the same moment: only the client's count tells which one first."""

    async def drive(world: World) -> Any:
        (first,) = world.machines
        await world.client.start("counter", [], instance_id="one", start_at=START + timedelta(seconds=seconds))
        await world.clock.sleep(2.0)
        first.death = Death(point="instance", count=first.points["before-instance"] + 1)
        await world.client.suspend("one", "older")
        await first.died.wait()
        await world.join("second")
        await world.client.resume("one", "newer")
        await world.clock.sleep(12.0)
        left = await world.queued()
        await world.clock.sleep(60.0)
        return left, await status(world), await world.queued()

    left = 1 if seconds == 12 else 2  # the suspension; and the start that is still to come
    assert play(drive, lease=SLOW_VISIBILITY) == (left, Status.RUNNING, 0)


# --- every state, every operation ---------------------------------------------------------------------------------

OPERATIONS: dict[str, Callable[[Client, str], Awaitable[Any]]] = {
    "event": lambda client, name: client.raise_event(name, "go"),
    "suspend": lambda client, name: client.suspend(name),
    "resume": lambda client, name: client.resume(name),
    "terminate": lambda client, name: client.terminate(name),
    "rewind": lambda client, name: client.rewind(name),
    "restart": lambda client, name: client.restart(name),
    "restart anew": lambda client, name: client.restart(name, new_id=True),
    "purge": lambda client, name: client.purge(name),
}
GONE, REFUSED, THERE = "gone", "refused", "there"
_ENDED = {"event": REFUSED, "suspend": REFUSED, "resume": REFUSED, "rewind": REFUSED, "purge": GONE}
_OPEN = {"rewind": REFUSED, "restart": THERE, "purge": REFUSED, "terminate": "Terminated"}
REACTIONS: dict[str, dict[str, str]] = {
    "missing": {**dict.fromkeys(OPERATIONS, GONE)},
    "scheduled": {**dict.fromkeys(OPERATIONS, "Pending"), **_OPEN},
    "pending": {**dict.fromkeys(OPERATIONS, "Running"), **_OPEN, "suspend": "Suspended"},
    "running": {**dict.fromkeys(OPERATIONS, "Running"), **_OPEN, "suspend": "Suspended"},
    "suspended": {**dict.fromkeys(OPERATIONS, "Suspended"), **_OPEN, "resume": "Running"},
    "Completed": {**dict.fromkeys(OPERATIONS, "Completed"), **_ENDED},
    "Failed": {**dict.fromkeys(OPERATIONS, "Failed"), **_ENDED, "rewind": "Failed"},
    "Terminated": {**dict.fromkeys(OPERATIONS, "Terminated"), **_ENDED, "restart": "Running"},
}
"""State → operation → the status half a minute later, or what the caller is told. What failed fails again."""


async def _in_state(world: World, state: str, instance_id: str) -> None:
    if state in FINAL:
        await ended_as(world, state, instance_id)
    elif state != "missing":
        start_at = START + timedelta(days=1) if state == "scheduled" else None
        await world.client.start("patient", instance_id=instance_id, start_at=start_at)
    if state == "suspended":
        await world.client.suspend(instance_id)


@pytest.mark.rows("K41", "K46")
@pytest.mark.parametrize("state", REACTIONS)
def test_every_operation_in_every_state(state: str) -> None:
    async def drive() -> Any:
        async with World(app_of(Effects())) as world:
            if state != "pending":
                await world.join("one")
            for operation in OPERATIONS:
                await _in_state(world, state, operation)
            if state in ("running", "suspended"):
                await world.clock.sleep(5.0)
            found = {}
            for operation, carry_out in OPERATIONS.items():
                try:
                    await carry_out(world.client, operation)
                except InstanceNotFound:
                    found[operation] = GONE
                except InstanceExists:
                    found[operation] = THERE
                except InputError:
                    found[operation] = REFUSED
            if state == "pending":
                await world.join("one")
            await world.clock.sleep(30.0)
            for operation in OPERATIONS:
                if operation not in found:
                    row = await world.client.get(operation)
                    found[operation] = GONE if row is None else str(row.status)
            assert not world.defects(), world.defects()
            assert not await world.client.admin.quarantined()
            return found

    assert simulate(drive) == REACTIONS[state]


def test_what_no_store_takes_is_refused_before_it_is_sent() -> None:
    async def drive(world: World) -> None:
        client, half = world.client, "half a smile \ud83d"
        await client.start("events", 1, instance_id="one")
        for send in (client.terminate, client.suspend, client.resume, client.rewind):
            with pytest.raises(InputError, match="the reason contains an unpaired surrogate, which no store accepts"):
                await send("one", half)
        for name in (half, "go" * 16_385, ""):
            with pytest.raises(InputError, match="raise_event: "):
                await client.raise_event("one", name)
        await world.clock.sleep(1.0)
        assert await status(world) is Status.RUNNING

    play(drive)


# --- before its time ----------------------------------------------------------------------------------------------


@pytest.mark.rows("K41", "K57")
@pytest.mark.parametrize(
    "days", [1, pytest.param(8, marks=pytest.mark.long)], ids=["a day", "longer than a message can hide"]
)
def test_what_is_sent_to_a_scheduled_instance_waits_for_it(days: int) -> None:
    """Events, and a suspension with its end, are kept for as long as it takes, and are no failures."""

    async def drive(world: World) -> Any:
        due = START + timedelta(days=days)
        await world.client.start("counter", [], instance_id="one", start_at=due)
        await world.client.start("chain", 1, instance_id="two", start_at=due)
        for number in range(4):
            await world.client.raise_event("one", "add", number)
        await world.client.suspend("two", "hold")
        await world.clock.sleep(86_400.0 * days - 5.0)
        before = await status(world), await status(world, "two")
        await world.wait("one")
        took = world.clock.monotonic() - 86_400.0 * days
        await world.clock.sleep(10.0)
        held = await status(world, "two")
        await world.client.resume("two")
        await world.wait("two")
        return before, took, held, (await world.ended()).states

    hour = timedelta(hours=1)  # nothing else happens in these days, so that they can be played
    times = LeaseTimes(renew=hour, give_up=2 * hour, take=3 * hour, scan=hour, visibility=hour)
    before, took, held, states = play(drive, lease=times, max_polling=hour, session_idle=hour)
    assert before == (Status.PENDING, Status.PENDING)
    assert 0.0 <= round(took, 6) < 5.0
    assert held is Status.SUSPENDED
    assert states["one"][:2] == ("Completed", "[0,1,2,3]")
    assert states["two"][:2] == ("Completed", "1")


@pytest.mark.rows("K41", "K46")
@pytest.mark.parametrize("ahead", [0.2, 0.9, 3.0, 20.0])
@pytest.mark.parametrize("before", [False, True], ids=["first", "started again"])
def test_a_scheduled_instance_that_is_suspended_decides_nothing(ahead: float, before: bool) -> None:
    """The suspension holds even if it comes just before the start. A resume before the start ends it."""

    async def drive(world: World) -> Any:
        for instance_id in ("one", "two") if before else ():
            await world.client.start("chain", 1, instance_id=instance_id)
            await world.wait(instance_id)
        due = world.clock.utc_now().datetime() + timedelta(seconds=ahead)
        again = StartPolicy.REPLACE_FINISHED
        for instance_id in ("one", "two"):
            await world.client.start("chain", 2, instance_id=instance_id, start_at=due, policy=again)
            await world.client.suspend(instance_id, "hold")
        await world.client.resume("two")
        two = await world.wait("two")
        await world.clock.sleep(60.0)
        one, history = await world.client.get("one"), await world.client.instance("one").history()
        await world.client.resume("one")
        return one, history, two.output, (await world.wait("one")).output, (await world.ended()).states

    one, history, *outputs, _ = play(drive)
    assert (one.status, one.output) == (Status.SUSPENDED, "hold")
    assert not any(isinstance(event, TaskScheduled) for event in history)
    assert outputs == ["2", "2"]


@pytest.mark.rows("D12", "K26", "K41", "K46")
def test_a_suspension_that_comes_again_after_the_resume_holds_nothing() -> None:
    """Its worker died between the row and the delete, and the next one was told to resume first."""

    async def play() -> Any:
        async with World(app_of(Effects()), lease=SLOW_VISIBILITY) as world:
            first = await world.join("first")
            await world.client.start("chain", 2, instance_id="one", start_at=START + timedelta(minutes=2))
            await world.clock.sleep(2.0)
            first.death = Death(point="instance", side=AFTER, count=first.points["after-instance"] + 1)
            await world.client.suspend("one", "hold")
            await first.died.wait()
            await world.join("second")
            await world.client.resume("one")
            return (await world.wait("one")).output

    assert simulate(play) == "2"


class Seconds(SqliteStore):
    """Tells when a message was enqueued as Azure's queues do, in whole seconds."""

    async def receive(self, queue: str, *, limit: int, visibility: timedelta) -> list[Message]:
        found = await super().receive(queue, limit=limit, visibility=visibility)
        return [replace(one, inserted=Timestamp(one.inserted.ticks // SECOND * SECOND)) for one in found]


@pytest.mark.rows("K41", "K46")
def test_two_clients_that_suspend_and_resume_within_one_second_are_both_heard() -> None:
    """Each numbers its own messages: the numbers of two tell no order."""

    async def drive(world: World) -> Any:
        one, other = [await Client.over(world.store, world.settings, clock=world.clock) for _ in range(2)]
        await one.start("counter", [], instance_id="one", start_at=START + timedelta(seconds=20))
        await world.clock.sleep(1.1)
        await one.suspend("one", "hold on")
        await world.clock.sleep(0.5)
        await other.resume("one", "go on")
        await world.clock.sleep(30.0)
        return await status(world)

    place = Place(name="seconds", open=lambda clock: Seconds(None, clock=clock))
    assert play(drive, place=place) is Status.RUNNING


# --- restart ------------------------------------------------------------------------------------------------------


@pytest.mark.rows("K46")
@pytest.mark.parametrize("final", FINAL)
def test_what_has_ended_is_started_again_in_its_place(final: str) -> None:
    async def drive(world: World) -> Any:
        await ended_as(world, final)
        before = await world.client.get("one")
        again = await world.client.restart("one")
        if final == "Terminated":
            await world.client.terminate("one", "enough")
        after = await world.wait("one")
        await world.ended()
        assert before is not None
        assert again.execution_id == after.execution_id != before.execution_id
        return after.restarts, after.output == before.output, str(after.status), after.input == before.input

    assert play(drive) == (1, True, final, True)


@pytest.mark.rows("K46", "K30")
def test_a_restart_takes_large_inputs_tags_and_version_with_it() -> None:
    async def drive(world: World) -> Any:
        first = await world.client.start("bulky", LARGE, instance_id="one", tags={"x": "y"}, version="7")
        await world.wait("one")
        again = await world.client.restart("one", new_id=True)
        state = await world.wait(again.instance_id)
        await world.ended()
        assert again.instance_id != first.instance_id
        return state.tags, state.version, intact(state), (await world.client.get("one")) is not None

    assert play(drive) == ({"x": "y"}, "7", True, True)


@pytest.mark.rows("K46")
def test_what_runs_is_not_started_again_but_under_another_id() -> None:
    async def drive(world: World) -> Any:
        await world.client.start("patient", instance_id="one")
        with pytest.raises(InstanceExists, match="Pending"):
            await world.client.restart("one")
        await world.clock.sleep(1.0)
        with pytest.raises(InstanceExists, match="Running"):
            await world.client.restart("one")
        with pytest.raises(InstanceNotFound):
            await world.client.restart("two")
        other = await world.client.restart("one", new_id=True)
        await world.clock.sleep(1.0)
        return await status(world), await status(world, other.instance_id)

    assert play(drive) == (Status.RUNNING, Status.RUNNING)


@pytest.mark.rows("K46", "K44")
def test_ten_restarts_with_ten_events_each() -> None:
    async def drive(world: World) -> Any:
        await world.client.start("events", 10, instance_id="one")
        found = []
        for _ in range(10):
            await asyncio.gather(*(world.client.raise_event("one", "go", number) for number in range(10)))
            state = await world.wait("one")
            found.append(sorted(json.loads(state.output or "[]")))
            await world.client.restart("one")
        await world.client.terminate("one")
        await world.wait("one")
        await world.settle()
        return found

    assert play(drive) == [list(range(10))] * 10


@pytest.mark.rows("K27", "K46")
def test_a_terminate_that_comes_again_does_not_end_the_start_after_it() -> None:
    """Whoever took it died before it was deleted, and it comes back once the instance is started again."""

    async def drive() -> Any:
        async with World(app_of(Effects()), lease=LONG) as world:
            first = await world.join("first")
            await world.client.start("listener", False, instance_id="one")
            await world.clock.sleep(2.0)
            first.death = Death(point="delete", count=first.points["before-delete"] + 1)
            await world.client.terminate("one", "enough")
            await first.died.wait()
            ended = await status(world)
            await world.join("second")
            await world.client.restart("one")
            await world.settle()
            await world.client.raise_event("one", "go", 1)
            await world.wait("one")
            return ended, (await world.ended()).states["one"][:2]

    assert simulate(drive) == (Status.TERMINATED, ("Completed", "1"))


@pytest.mark.rows("K36", "K41", "K46")
@pytest.mark.parametrize("seconds", [0, 60], ids=["it runs", "it is scheduled too"])
@pytest.mark.long
def test_a_terminate_of_a_scheduled_start_that_comes_again_does_not_end_the_next(seconds: int) -> None:
    """There was no history to remember it in. :param seconds: until the next start."""

    async def drive() -> Any:
        async with World(app_of(Effects()), lease=LONG) as world:
            first = await world.join("first")
            await world.client.start("chain", 1, instance_id="one", start_at=START + timedelta(minutes=10))
            await world.clock.sleep(2.0)
            first.death = Death(point="instance", side=AFTER, count=first.points["after-instance"] + 1)
            await world.client.terminate("one", "enough")
            await first.died.wait()
            ended = await status(world)
            due = START + timedelta(seconds=seconds) if seconds else None
            await world.client.start(
                "listener", False, instance_id="one", policy=StartPolicy.REPLACE_FINISHED, start_at=due
            )
            await world.join("second")
            await world.clock.sleep(90.0)
            await world.client.raise_event("one", "go", 1)
            await world.wait("one")
            return ended, (await world.ended()).states["one"][:2]

    assert simulate(drive) == (Status.TERMINATED, ("Completed", "1"))


# --- purge --------------------------------------------------------------------------------------------------------


async def stored(world: World, prefix: str = "") -> list[tuple[str, str]]:
    """Everything that the hub holds, by (table or container, key)."""
    names = world.client.hub.names
    found = []
    for table in (names.instances, names.history, names.activities, names.completions, names.quarantine):
        found += [
            (table, f"{row.partition_key}/{row.row_key}")
            async for row in world.store.rows(table)
            if (row.partition_key or row.row_key).startswith(prefix)
        ]
    for container in (names.large_messages, names.logs):
        found += [(container, blob.name) for blob in await world.store.list_blobs(container, prefix)]
    return sorted(found)


def intact(state: InstanceState | None) -> bool:
    """A bulky instance that ended as it should."""
    return state is not None and json.loads(state.output or "null") == LARGE[:-2]


async def bulky(world: World, *instance_ids: str) -> None:
    """Instances with everything that can be stored of one."""
    for instance_id in instance_ids:
        await world.client.start("bulky", LARGE, instance_id=instance_id, tags={"taskhub.watch": "1"})
    for instance_id in instance_ids:
        await world.wait(instance_id)
        log = log_name(OrchestrationInstance(instance_id=instance_id, execution_id="x"), 0, 1)
        await world.store.append_blob(world.client.hub.names.logs, log, b"log")
    await world.settle()


@pytest.mark.rows("K30", "K46")
@pytest.mark.parametrize("instance_id", ["job1", "a/b", "it's 'x'", "Acme Inc.", ".", "a/..", "a^."])
def test_a_purge_leaves_nothing_of_it_and_everything_of_others(instance_id: str) -> None:
    neighbours = (f"{instance_id}0", f"{instance_id}/part", "a", "a^0b", "other")

    async def drive(world: World) -> Any:
        await bulky(world, *neighbours)
        before = await stored(world)
        await bulky(world, instance_id)
        assert len(await world.client.instance(instance_id).logs()) == 1
        assert len(await stored(world)) >= len(before) + 20
        assert await world.client.purge(instance_id)
        assert await stored(world) == before
        assert not await world.client.purge(instance_id)
        return [intact(await world.client.get(name)) for name in neighbours]

    assert play(drive) == [True] * len(neighbours)


@pytest.mark.rows("K46")
def test_what_an_activity_wrote_after_the_purge_is_deleted_and_nothing_of_a_later_start() -> None:
    async def drive(world: World) -> Any:
        late, later = (OrchestrationInstance(instance_id="one", execution_id=run) for run in ("x", "y"))
        names = world.client.hub.names
        for instance in (late, later):
            await world.store.append_blob(names.logs, log_name(instance, 0, 1), b"log")
            result = f"{results_of(instance)}0-1-Result.json.gz"
            await world.store.execute(PutBlob(container=names.large_messages, name=result, data=b"{}"))
        before = await stored(world)
        await purge_activities(world.store, names, late)
        return len(before), [name for _, name in await stored(world)], log_name(later, 0, 1), results_of(later)

    before, left, log, result = play(drive)
    assert before == 4
    assert left == [f"{result}0-1-Result.json.gz", log]


@pytest.mark.rows("K46")
def test_records_and_histories_of_many_transactions_go_too() -> None:
    async def drive(world: World) -> Any:
        await world.client.start("fan", 150, instance_id="one")
        await world.client.start("recorded", 3, instance_id="two")
        await world.wait("one")
        await world.wait("two")
        await world.settle()
        assert len(await stored(world)) > 300
        assert (await world.client.purge_many()).purged == 2
        return await stored(world)

    assert play(drive) == []


@pytest.mark.rows("D58", "K46")
def test_only_what_has_ended_is_purged() -> None:
    async def drive(world: World) -> Any:
        await world.client.start("patient", instance_id="one")
        with pytest.raises(InputError, match=r"Pending, created .* UTC: terminate it"):
            await world.client.purge("one")
        await world.clock.sleep(1.0)
        with pytest.raises(InputError, match=r"Running, created .* UTC: terminate it"):
            await world.client.purge("one")
        await world.client.suspend("one")
        await world.clock.sleep(1.0)
        with pytest.raises(InputError, match=r"Suspended since .* UTC: terminate it"):
            await world.client.purge("one")
        with pytest.raises(InputError, match="Running: only instances that have ended"):
            await world.client.purge_many(statuses=[Status.RUNNING, Status.FAILED])
        assert (await world.client.purge_many()).purged == 0
        await world.client.resume("one")
        await world.clock.sleep(1.0)
        return await status(world)

    assert play(drive) is Status.RUNNING


async def heard(world: World) -> None:
    """An ended run of ``listener``."""
    await world.client.start("listener", False, instance_id="one")
    await world.client.raise_event("one", "go", 1)
    await world.wait("one")


@pytest.mark.rows("K36", "K41", "K46", "K57")
@pytest.mark.parametrize("what", ["event", "suspend", "terminate"])
@pytest.mark.long
def test_what_is_sent_to_a_start_that_is_not_due_yet_is_not_taken_for_the_run_before(what: str) -> None:
    async def drive(world: World) -> Any:
        await heard(world)
        due = START + timedelta(hours=1)
        await world.client.start(
            "listener", False, instance_id="one", policy=StartPolicy.REPLACE_FINISHED, start_at=due
        )
        await world.clock.sleep(10.0)
        if what == "event":
            await world.client.raise_event("one", "go", 2)
        elif what == "suspend":
            await world.client.suspend("one", "held")
        else:
            await world.client.terminate("one", "enough")
        await world.clock.sleep(10.0)
        before = await status(world)
        await world.clock.sleep(3600.0)
        await world.settle()
        row = await world.client.get("one")
        assert row is not None
        assert not await world.client.admin.quarantined()
        return before, row.status, row.output

    assert (
        play(drive, lease=RARE_RENEWALS)
        == {
            "event": (Status.PENDING, Status.COMPLETED, "2"),
            "suspend": (Status.PENDING, Status.SUSPENDED, "held"),
            "terminate": (Status.TERMINATED, Status.TERMINATED, "enough"),
        }[what]
    )


@pytest.mark.rows("K36", "K44")
def test_an_event_between_the_row_and_the_message_of_a_start_waits_for_it() -> None:
    async def drive(world: World) -> Any:
        slow = FaultyStore(
            world.store, lambda call: late(1.0) if call.kind == "queue.put" else None, clock=world.clock, stepwise=True
        )
        starter = Client(replace(world.client.hub, store=slow), world.settings.lease_times)
        await heard(world)
        starting = asyncio.ensure_future(
            starter.start("listener", False, instance_id="one", policy=StartPolicy.REPLACE_FINISHED)
        )
        await world.clock.sleep(0.5)
        assert await status(world) is Status.PENDING
        await world.client.raise_event("one", "go", 2)
        await starting
        return (await world.wait("one")).output

    assert play(drive) == "2"


@pytest.mark.rows("D16", "K36", "K35")
def test_an_event_that_comes_after_the_end_is_discarded_in_minutes() -> None:
    async def drive(world: World) -> Any:
        await world.client.start("chain", 1, instance_id="one")
        await world.wait("one")
        await world.clock.sleep(5.0)
        event = EventRaised(timestamp=world.clock.utc_now(), name="go", input="1")
        await world.client.hub.send(world.client.hub.message_to(event, OrchestrationInstance(instance_id="one")))
        began = world.clock.monotonic()
        await world.settle()
        ((said,), kept) = world.said("message_discarded"), await world.client.admin.quarantined()
        return said["reason"], 130 < world.clock.monotonic() - began < 180, kept

    assert play(drive) == ("its instance has ended", True, ())


@pytest.mark.rows("K46", "K35")
def test_what_comes_for_a_purged_instance_is_discarded_and_not_kept_for_people() -> None:
    """Its timers fire, its activities answer, its start becomes due."""

    async def drive(world: World) -> Any:
        await world.client.start("timers", instance_id="one")
        await world.client.start("recorded", 1, instance_id="two")
        await world.client.start("chain", 1, instance_id="three", start_at=START + timedelta(minutes=1))
        await world.clock.sleep(1.0)
        for instance_id in ("one", "two", "three"):
            await world.client.terminate(instance_id)
            await world.wait(instance_id)
            assert await world.client.purge(instance_id)
        await world.settle()
        assert len(world.said("message_discarded")) >= 2
        return await world.client.admin.quarantined(), (await world.client.list()).instances

    assert play(drive) == ((), ())


@pytest.mark.rows("K46", "K30")
def test_an_answer_that_comes_after_the_purge_leaves_no_payload() -> None:
    async def drive(world: World) -> Any:
        hub = world.client.hub
        answer = TaskCompleted(timestamp=hub.clock.utc_now(), task_scheduled_id=0, result="x" * 60_000)
        await hub.send(hub.message_to(answer, OrchestrationInstance(instance_id="purged")))
        spilled = await world.store.list_blobs(hub.names.large_messages)
        await world.settle()
        return (
            len(spilled),
            await world.store.list_blobs(hub.names.large_messages),
            await world.client.admin.quarantined(),
        )

    assert play(drive) == (1, [], ())


@pytest.mark.rows("K46", "K30")
@pytest.mark.parametrize("fault", [unsent, lost], ids=lambda fault: fault.__name__)
def test_a_purge_that_is_cut_off_anywhere_is_finished_by_the_next(fault: Callable[[], Any]) -> None:
    async def drive(world: World) -> Any:
        number = 0
        while True:
            number += 1
            await bulky(world, "one")
            store = FaultyStore(world.store, at(number, fault()), clock=world.clock, stepwise=True)
            client = Client(replace(world.client.hub, store=store), world.settings.lease_times)
            try:
                await client.purge("one")
                return number
            except Unavailable:
                await world.client.purge("one")
            left = [item for item in await stored(world) if "/instance-" not in item[1]]
            assert left == [], f"cut off at call {number}"

    assert play(drive) > 10


@pytest.mark.rows("K46")
@pytest.mark.parametrize("ends", [False, True], ids=["is started", "has run"])
def test_a_purge_and_a_new_start_of_the_same_id_do_each_other_no_harm(ends: bool) -> None:
    """The new start comes before each storage call of the purge in turn."""

    async def drive(world: World) -> Any:
        number = 0
        while True:
            number += 1
            await bulky(world, "one")

            async def restarted() -> None:
                await world.client.start("bulky", LARGE, instance_id="one", policy=StartPolicy.REPLACE_FINISHED)
                if ends:
                    await world.wait("one")

            store = Interrupting(world.store, number, restarted, clock=world.clock)
            row = await world.client.get("one", payloads=False)
            assert row is not None
            try:
                await purge(store, world.client.hub.names, row)
                happened = store.happened
            except Conflict:
                happened = True
            if not happened:
                return number
            assert intact(await world.wait("one")), number
            assert len(await world.client.instance("one").history()) > 5, number
            await world.client.purge("one")
            await world.settle()

    assert play(drive) > 8


@pytest.mark.rows("K46", "K48")
def test_a_child_that_is_started_again_has_its_history_before_its_row_and_keeps_it() -> None:
    async def drive(world: World) -> Any:
        await ended_as(world, "Completed")
        row = await world.client.get("one")
        assert row is not None
        merge = Entity(partition_key="one", row_key="sentinel", properties={"ExecutionId": "b" * 32})
        lock = RowOperation(verb=RowVerb.UPSERT_MERGE, entity=merge)
        await world.store.execute(Transact(table=world.client.hub.names.history, rows=(lock,)))
        before = await stored(world)
        with pytest.raises(Conflict, match="started again"):
            await purge(world.store, world.client.hub.names, row)
        return await stored(world) == before

    assert play(drive)


class Interrupting(FaultyStore):
    """Something else happens before its n-th call."""

    def __init__(self, store: Any, number: int, what: Callable[[], Awaitable[None]], *, clock: Any) -> None:
        super().__init__(store, lambda call: None, stepwise=True, clock=clock)
        self.happened = False
        self._left, self._meanwhile = number, what

    async def _through(self, kind: str, what: object, do: Callable[[], Awaitable[Any]]) -> Any:
        self._left -= 1
        if self._left == 0:
            self.happened = True
            await self._meanwhile()
        return await super()._through(kind, what, do)


@pytest.mark.rows("K46")
@pytest.mark.parametrize("fault", [unsent(), throttled()], ids=["no answer", "throttled"])
def test_one_that_the_store_cannot_purge_stands_in_nobodys_way(fault: Fault) -> None:
    """An id that XML does not know, of another client: no list of its blobs is ever answered."""

    async def drive(world: World) -> Any:
        for name in ("a", "b", "c"):
            await ended_as(world, "Completed", name)
        store = FaultyStore(world.store, lambda call: fault if "b/" in str(call.what) else None, clock=world.clock)
        result = await Client(replace(world.client.hub, store=store), world.settings.lease_times).purge_many()
        assert (result.purged, result.complete, [*result.failed]) == (2, False, ["b"])
        assert str(fault.before) in result.failed["b"]
        dead = FaultyStore(world.store, lambda call: None if call.kind == "table.query" else fault, clock=world.clock)
        if isinstance(fault.before, Unavailable):
            with pytest.raises(Unavailable):  # nothing answers: that is not for each of them to find out
                await Client(replace(world.client.hub, store=dead), world.settings.lease_times).purge_many()
        return (await world.client.purge_many()).purged

    assert play(drive) == 1


@pytest.mark.rows("K46", "K45")
@pytest.mark.long
def test_many_are_purged_by_what_they_are_in_pages_with_a_limit_a_rate_and_a_time() -> None:
    async def drive(world: World) -> Any:
        client = world.client
        for number in range(260):
            await client.start(
                "chain", 0, instance_id=f"a-{number:03d}", tags={"kind": "even" if number % 2 else "odd"}
            )
        for number in range(260):
            await world.wait(f"a-{number:03d}")
        await ended_as(world, "Failed", "b-failed")
        await ended_as(world, "Terminated", "b-terminated")
        await world.clock.sleep(3600.0)
        await ended_as(world, "Completed", "c-later")
        await client.start("patient", instance_id="a-runs")

        seen: list[int] = []
        some = await client.purge_many(prefix="a-", limit=50, progress=seen.append)
        assert (some.purged, some.complete) == (50, False)
        assert seen[-1] == 50
        assert (await client.purge_many(tags={"kind": "even"}, prefix="a-")).purged == 105
        for rate in (0.0, -1.0, float("nan")):
            with pytest.raises(InputError, match="give more than 0 instances a second"):
                await client.purge_many(prefix="a-", rate=rate)
        before = world.clock.monotonic()
        slow = await client.purge_many(prefix="a-", rate=10.0, timeout=timedelta(seconds=5))
        assert not slow.complete
        assert 40 <= slow.purged <= 60
        assert 4.0 <= world.clock.monotonic() - before <= 7.0
        rest = await client.purge_many(created_to=START + timedelta(minutes=30), statuses=[Status.COMPLETED])
        assert rest.complete
        assert some.purged + 105 + slow.purged + rest.purged == 260
        left = {row.instance_id for row in (await client.list()).instances}
        assert left == {"b-failed", "b-terminated", "c-later", "a-runs"}
        assert (await client.purge_many(statuses=[Status.FAILED])).purged == 1
        assert (await client.purge_many(created_from=START + timedelta(minutes=30))).purged == 1
        await ended_as(world, "Completed", "b-other")
        one = await client.purge_many(limit=1)
        assert (one.purged, one.complete) == (1, False), "one is left"
        return {row.instance_id for row in (await client.list()).instances}

    assert play(drive, lease=RARE_RENEWALS) == {"b-terminated", "a-runs"}
