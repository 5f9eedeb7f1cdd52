"""A continue-as-new whose new generation needs several transactions, cut off between two of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.engine.context import OrchestrationContext
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.hub.history.load import load
from airflow_provider_taskhub.storage.faults import Call, Fault, lost, throttled, unsent
from airflow_provider_taskhub.storage.primitives import DeleteBlob, PutBlob, Transact
from tests.simulation.lives import without_blob
from tests.simulation.world import AFTER, BEFORE, Death, Machine, Place, World, simulate

EVENTS, AT_ONCE = 150, 10
HOUR = timedelta(hours=1)


def draining(at_once: int = AT_ONCE) -> App:
    """Each generation takes so many events, and carries the others over."""
    app = App("carry", version="1")

    @app.activity
    def note(number: int) -> int:
        return number

    @app.orchestrator
    async def drain(ctx: OrchestrationContext, seen: list[int]) -> list[int]:
        numbers = [await ctx.wait_for_external_event("n", int) for _ in range(at_once)]
        seen.extend([await ctx.call_activity("note", number) for number in numbers])
        if len(seen) < EVENTS:
            ctx.continue_as_new(seen)
        return seen

    return app


async def begin(world: World) -> None:
    await world.client.start("drain", [], instance_id="one")
    for number in range(EVENTS):
        await world.client.raise_event("one", "n", number)


async def outcome(world: World) -> Any:
    """The status, the events that were seen, and the blobs that are left after a purge of the instance."""
    state = await world.wait("one", HOUR)
    await world.settle()
    assert not world.defects(), world.defects()
    assert not await world.client.admin.quarantined()
    seen = sorted(json.loads(state.output or "null"))
    assert await world.client.instance("one").purge()
    return state.status, seen, await blobs(world)


async def blobs(world: World) -> Sequence[str]:
    return [blob.name for blob in await world.store.list_blobs(world.client.hub.names.large_messages, "")]


ALL = (Status.COMPLETED, list(range(EVENTS)), [])


def in_the_switch(machine: Machine, then: Callable[[], None]) -> None:
    """Call a function when the machine puts the blob of the first switch that needs several transactions."""
    found = list[str]()

    def plan(call: Call) -> Fault | None:
        if not found and isinstance(call.what, PutBlob) and "-Unwritten" in call.what.name:
            found.append(call.what.name)
            then()
        return None

    machine.plan = plan


@pytest.mark.rows("K28", "K47")
@pytest.mark.parametrize(
    ("point", "side"),
    [
        ("payloads", AFTER),
        ("history", BEFORE),
        ("history", AFTER),
        ("history:1", BEFORE),
        ("history:1", AFTER),
        ("blobs", BEFORE),
        ("blobs", AFTER),
    ],
)
def test_no_carried_event_is_lost_if_the_worker_dies(place: Place, point: str, side: str) -> None:
    async def play() -> Any:
        async with World(draining(), place=place, partitions=1) as world:
            await begin(world)
            first = await world.join("first")

            def dies() -> None:
                first.death = Death(point=point, side=side, count=first.points[f"{side}-{point}"] + 1)

            in_the_switch(first, dies)
            await first.died.wait()
            await world.join("second")
            return await outcome(world)

    assert simulate(play) == ALL


@pytest.mark.rows("K28", "K47")
@pytest.mark.parametrize("point", ["history", "history:1", "blobs"])
@pytest.mark.parametrize("side", [BEFORE, AFTER])
def test_no_carried_event_is_lost_if_the_next_worker_dies_too(place: Place, point: str, side: str) -> None:
    """It dies while it writes the rest. Its first write of a history is that rest, in one transaction or in two."""
    large = "x" * 25_000  # so that the rest needs two transactions

    async def play() -> Any:
        async with World(draining(50), place=place, partitions=1) as world:
            await begin(world)
            for _ in range(80):
                await world.client.raise_event("one", "nobody takes this", large)
            first = await world.join("first", death=Death(point="history:1"))
            await first.died.wait()
            second = await world.join("second", death=Death(point=point, side=side))
            await second.died.wait()
            await world.join("third")
            return await outcome(world)

    assert simulate(play) == ALL


@pytest.mark.rows("K28", "K47")
@pytest.mark.parametrize("fault", [throttled, unsent, lost])
@pytest.mark.parametrize("point", ["payloads", "history", "history:1", "blobs"])
def test_no_carried_event_is_lost_if_the_store_fails_once(place: Place, point: str, fault: Callable[[], Fault]) -> None:
    """The worker lives on: it still has all rows, and writes them itself."""

    async def play() -> Any:
        async with World(draining(), place=place, partitions=1) as world:
            await begin(world)
            only = await world.join("only")
            failed = list[str]()

            def plan(call: Call) -> Fault | None:
                if not failed and (found := _point(call, world.client.hub.names.history)) == point:
                    failed.append(found)
                    return fault()
                return None

            only.plan = plan
            found = await outcome(world)
            assert failed == [point]
            assert not world.said("switch_resumed")
            return found

    assert simulate(play) == ALL


def _point(call: Call, history: str) -> str | None:
    """Return the step of a generation switch of two transactions to which a call belongs; None: to none."""
    what = call.what
    if isinstance(what, PutBlob | DeleteBlob):
        step = "payloads" if isinstance(what, PutBlob) else "blobs"
        return step if "-Unwritten" in what.name else None
    if isinstance(what, Transact) and what.table == history:
        sentinel = what.rows[-1].entity.properties
        if "TaskHubUnwritten" in sentinel:
            return "history:1" if sentinel["IsCheckpointComplete"] else "history"
    return None


@pytest.mark.rows("K28", "K30", "K46")
def test_a_terminate_and_a_purge_of_an_instance_whose_switch_was_cut_off_leave_nothing(place: Place) -> None:
    other = App("other", version="7")

    async def play() -> Any:
        async with World(draining(), place=place, partitions=1) as world:
            await begin(world)
            first = await world.join("first", death=Death(point="history:1"))
            await first.died.wait()
            left = await blobs(world)
            await world.client.terminate("one", "enough")
            await world.join("second", app=other)
            state = await world.wait("one", HOUR)
            past = await load(world.store, world.client.hub.names, "one")
            assert await world.client.instance("one").purge()
            return len(left), state.status, past.sentinel and past.sentinel.complete, await blobs(world)

    assert simulate(play) == (1, Status.TERMINATED, True, [])


@pytest.mark.rows("K28")
def test_a_switch_whose_blob_is_gone_is_unreadable_and_can_be_terminated(place: Place) -> None:
    async def play() -> Any:
        async with World(draining(), place=place, partitions=1) as world:
            await begin(world)
            first = await world.join("first", death=Death(point="history:1"))
            await first.died.wait()
            (left,) = await blobs(world)
            await world.store.execute(DeleteBlob(container=world.client.hub.names.large_messages, name=left))
            await world.join("second")
            await world.clock.sleep(60.0)
            state = await world.client.get("one")
            assert state is not None
            running = state.status
            await world.client.terminate("one", "enough")
            ended = await world.wait("one", HOUR)
            assert not world.defects(), world.defects()
            return running, ended.status, bool(world.said("instance_ended_unread"))

    assert simulate(play) == (Status.RUNNING, Status.TERMINATED, True)


@pytest.mark.rows("K28")
@pytest.mark.parametrize("cut", ["a death", "a refusal", "an older version"])
def test_a_switch_in_the_first_checkpoint_that_is_cut_off_ends(place: Place, cut: str) -> None:
    """The rest is decisions only. The sentinel of an older version names no blob: its code decides the same again."""
    app = App("spread", version="1")

    @app.activity
    def hop(number: int) -> int:
        return number

    @app.orchestrator
    async def spread(ctx: OrchestrationContext, again: bool) -> int:
        if again:
            ctx.continue_as_new(False)
            return 0
        return sum([await call for call in [ctx.call_activity("hop", number) for number in range(120)]])

    async def play() -> Any:
        async with World(app, place=place, partitions=1) as world:
            names, failed = world.client.hub.names, list[str]()

            def plan(call: Call) -> Fault | None:
                if cut == "a refusal" and not failed and _point(call, names.history) == "history:1":
                    failed.append("history:1")
                    return throttled()
                return None

            first = await world.join("first", plan=plan, death=None if cut == "a refusal" else Death(point="history:1"))
            await world.client.start("spread", True, instance_id="one")
            if cut != "a refusal":
                await first.died.wait()
            if cut == "an older version":
                await without_blob(world)
            if cut != "a refusal":
                await world.join("second")
            state = await world.wait("one", HOUR)
            await world.ended()
            return state.status, state.output, len(failed)

    assert simulate(play) == (Status.COMPLETED, str(sum(range(120))), int(cut == "a refusal"))
