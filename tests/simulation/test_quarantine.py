"""What is kept in quarantine can be looked at, put back and dropped, by anybody at any time (K35, K42)."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import OrchestrationContext
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.codec import Timestamp, compress
from airflow_provider_taskhub.engine.events import (
    EventRaised,
    ExecutionStarted,
    HistoryEvent,
    OrchestrationInstance,
    Status,
    TaskCompleted,
    TaskScheduled,
    TimerCreated,
)
from airflow_provider_taskhub.engine.replay import Execution
from airflow_provider_taskhub.errors import InputError, Unavailable
from airflow_provider_taskhub.hub.formats.message_envelope import NO_ACTIVITY, Envelope, TaskMessage, encode
from airflow_provider_taskhub.hub.history.load import load
from airflow_provider_taskhub.hub.model import StartPolicy
from airflow_provider_taskhub.hub.partitions.hashing import partition_of
from airflow_provider_taskhub.hub.queues import quarantine
from airflow_provider_taskhub.hub.queues.quarantine import Quarantined
from airflow_provider_taskhub.hub.queues.reader import decode_message
from airflow_provider_taskhub.storage.faults import Call, Fault, FaultyStore, at, lost, refused, unsent
from airflow_provider_taskhub.storage.primitives import DeleteBlob, PutBlob, PutMessage, Transact
from airflow_provider_taskhub.workers.activities.processor import Activities
from airflow_provider_taskhub.workers.orchestrations import triage
from airflow_provider_taskhub.workers.orchestrations.commit import Committer
from airflow_provider_taskhub.workers.orchestrations.processor import Orchestrations
from airflow_provider_taskhub.workers.orchestrations.stuck_instances import quarantine_stuck
from airflow_provider_taskhub.workers.orchestrations.watchdog import Running
from tests.simulation.lives import without_blob
from tests.simulation.scenarios import app_of
from tests.simulation.world import Death, Effects, World, simulate

NOW = Timestamp.parse("2026-01-01T00:00:00Z")


def play(drive: Callable[[World], Awaitable[Any]]) -> Any:
    app = app_of(Effects())

    @app.orchestrator
    async def gathering(ctx: OrchestrationContext) -> list[Any]:
        return sorted([await ctx.wait_for_external_event("add") for _ in range(4)])

    async def main() -> Any:
        async with World(app) as world:
            await world.join("one")
            return await drive(world)

    return simulate(main)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """Every episode with an event named ``add`` fails, until it is mended."""
    real, state = triage.judge, {"broken": True}

    def judge(message: Any, facts: Any) -> Any:
        if state["broken"] and isinstance(message.event, EventRaised) and message.event.name == "add":
            raise RuntimeError("a defect of ours")
        return real(message, facts)

    monkeypatch.setattr(triage, "judge", judge)
    monkeypatch.setattr(quarantine, "MAX_FAILURES", 3)
    return state


async def poisoned(
    world: World, values: Sequence[Any] = (0, 1, 2, 3), *, instance_id: str = "one"
) -> tuple[Quarantined, ...]:
    """An instance whose four events all end in quarantine."""
    await world.client.start("gathering", instance_id=instance_id)
    await world.clock.sleep(1.0)
    for value in values:
        await world.client.raise_event(instance_id, "add", value)
    while len(kept := await world.client.admin.quarantined()) < len(values):
        await world.clock.sleep(1.0)
    return kept


async def purged(world: World, instance_id: str = "one") -> None:
    await world.client.terminate(instance_id)
    await world.wait(instance_id)
    await world.settle()
    assert await world.client.purge(instance_id)


async def large_blobs(world: World) -> list[str]:
    return [blob.name for blob in await world.store.list_blobs(world.client.hub.names.large_messages)]


LARGE = ["x" * 60_000 + str(number) for number in range(4)]
"""Events that are spilled."""


@pytest.mark.rows("K35", "K42")
def test_what_is_put_back_is_processed_as_if_it_were_new(broken: dict[str, bool]) -> None:
    async def drive(world: World) -> Any:
        kept = await poisoned(world)
        assert {item.instance_id for item in kept} == {"one"}
        assert sum(machine.backend.quarantined for machine in world.machines) == 4, "counted for /metrics"
        assert all("a defect of ours" in item.cause and item.since is not None for item in kept)
        assert [item.text for item in await world.client.admin.quarantined(bodies=False)] == [""] * 4
        assert len(await world.client.admin.quarantined(limit=2)) == 2
        found = await world.client.admin.find_quarantined(kept[0].message_id)
        assert found == kept[0]
        broken["broken"] = False
        assert [await world.client.admin.put_back(item.message_id) for item in kept] == [True] * 4
        assert not await world.client.admin.put_back(kept[0].message_id)
        state = await world.wait("one")
        await world.settle()
        return state.output, await world.client.admin.quarantined()

    assert play(drive) == ("[0,1,2,3]", ())


@pytest.mark.rows("K35")
@pytest.mark.parametrize(
    ("place", "error", "count"),
    [
        ((Activities, "_process"), RuntimeError("a defect of ours"), 3),
        ((Activities, "_process"), Unavailable("the store said nothing"), 5),  # the put's own claim was the first
        ((Committer, "commit"), Unavailable("the store said nothing"), 6),
    ],
    ids=["activity that fails", "activity whose store fails", "orchestration whose store fails"],
)
def test_what_is_at_its_limit_is_kept_with_the_last_error(
    monkeypatch: pytest.MonkeyPatch, place: tuple[type, str], error: Exception, count: int
) -> None:
    async def fails(*arguments: Any, **named: Any) -> None:
        raise error

    monkeypatch.setattr(quarantine, "MAX_FAILURES", 3)
    monkeypatch.setattr(quarantine, "MAX_DELIVERIES", 6)

    async def drive(world: World) -> Any:
        with monkeypatch.context() as broken:
            broken.setattr(*place, fails)
            await world.client.start("fan", 1, instance_id="one")
            while not (kept := await world.client.admin.quarantined()):
                await world.clock.sleep(1.0)
        (item,) = kept
        assert sum(machine.backend.quarantined for machine in world.machines) == 1, "counted for /metrics"
        assert item.instance_id == "one"
        assert repr(error) in item.cause
        assert item.dequeue_count == count
        assert await world.client.admin.put_back(item.message_id)
        return (await world.wait("one")).output

    assert play(drive) == "1"


@pytest.mark.rows("K35")
@pytest.mark.parametrize("place", [Activities, Orchestrations], ids=["activity", "orchestration"])
def test_what_cannot_be_quarantined_comes_again_soon(monkeypatch: pytest.MonkeyPatch, place: type) -> None:
    async def fails(*arguments: Any, **named: Any) -> None:
        raise RuntimeError("a defect of ours")

    monkeypatch.setattr(quarantine, "MAX_FAILURES", 3)
    refusals: list[float] = []

    async def drive(world: World) -> Any:
        def plan(call: Call) -> Fault | None:
            table = call.what.table if isinstance(call.what, Transact) else None
            if table != world.client.hub.names.quarantine or len(refusals) == 2:
                return None
            refusals.append(world.clock.monotonic())
            return refused()

        world.machines[0].plan = plan
        with monkeypatch.context() as broken:
            broken.setattr(place, "_process", fails)
            await world.client.start("fan", 1, instance_id="one")
            while not (kept := await world.client.admin.quarantined()):
                await world.clock.sleep(0.1)
        assert world.clock.monotonic() - refusals[0] < 3.0
        assert sum(machine.backend.quarantined for machine in world.machines) == 1, "counted for /metrics"
        assert await world.client.admin.put_back(kept[0].message_id)
        return (await world.wait("one")).output

    assert play(drive) == "1"


@pytest.mark.rows("K35", "K42")
@pytest.mark.parametrize("text", ["nonsense \u00ff", ""])
def test_what_is_still_wrong_comes_back_with_its_bytes(text: str) -> None:
    async def drive(world: World) -> Any:
        queue = world.client.hub.names.control(0)
        await world.store.execute(PutMessage(queue=queue, text=text))
        found = []
        for _ in range(2):
            while not (kept := await world.client.admin.quarantined()):
                await world.clock.sleep(1.0)
            found.append((kept[0].text, kept[0].queue == queue))
            await world.client.admin.put_back(kept[0].message_id)
        return found

    assert play(drive) == [(text, True)] * 2


@pytest.mark.rows("K35")
def test_what_is_put_back_too_early_has_all_its_tries_again(broken: dict[str, bool]) -> None:
    async def drive(world: World) -> Any:
        tries = []
        await world.client.start("counter", [], instance_id="one")
        await world.clock.sleep(1.0)
        await world.client.raise_event("one", "add", 1)
        for _ in range(2):
            while not (kept := await world.client.admin.quarantined()):
                await world.clock.sleep(1.0)
            tries.append(len(world.said("episode_defect")))
            await world.client.admin.put_back(kept[0].message_id)
        return tries

    assert play(drive) == [4, 8]


@pytest.mark.rows("K42")
@pytest.mark.parametrize(
    ("event", "instance_id", "work_items", "cause"),
    [
        (EventRaised(timestamp=NOW, name="add", input="1"), "one", True, "its event is EventRaised"),
        (
            ExecutionStarted(timestamp=NOW, instance=OrchestrationInstance(instance_id="one"), name="plod"),
            "one",
            True,
            "its event is ExecutionStarted",
        ),
        (TaskScheduled(timestamp=NOW, event_id=0, name="hop"), "one", False, "its event is TaskScheduled"),
        (TimerCreated(timestamp=NOW, event_id=0, fire_at=NOW), "one", False, "its event is TimerCreated"),
        (EventRaised(timestamp=NOW, name="add", input="1"), "x" * 2_000, False, "its instance id is not valid"),
        (TaskScheduled(timestamp=NOW, event_id=0, name="hop"), "x" * 2_000, True, "its instance id is not valid"),
        (EventRaised(timestamp=NOW, name="add", input="1"), "", False, "its instance id is empty"),
    ],
)
def test_what_can_never_be_processed_is_quarantined_at_its_first_delivery(
    event: HistoryEvent, instance_id: str, work_items: bool, cause: str
) -> None:
    async def drive(world: World) -> Any:
        names = world.client.hub.names
        await world.client.start("counter", [], instance_id="one")  # whether it runs makes no difference
        await world.clock.sleep(1.0)
        message = TaskMessage(event=event, instance=OrchestrationInstance(instance_id=instance_id, execution_id="0"))
        queue = names.work_items if work_items else names.control(0)
        text = encode(Envelope(activity_id=NO_ACTIVITY, message=message))
        await world.store.execute(PutMessage(queue=queue, text=text))
        await world.clock.sleep(5.0)
        (kept,) = await world.client.admin.quarantined()
        assert cause in kept.cause
        return kept.queue == queue, kept.text == text, kept.dequeue_count

    assert play(drive) == (True, True, 1)


@pytest.mark.rows("K42")
@pytest.mark.parametrize("work_items", [False, True])
@pytest.mark.parametrize("name", ["a/b./c.json.gz", "a\\b.json.gz", f"{'x' * 1_100}/message.json.gz"])
def test_a_wrapper_of_a_blob_that_no_store_could_hold_is_quarantined_and_its_reader_goes_on(
    work_items: bool, name: str
) -> None:
    async def drive(world: World) -> Any:
        names = world.client.hub.names
        queue = names.work_items if work_items else names.control(0)
        await world.store.execute(
            PutMessage(queue=queue, text=encode(Envelope(activity_id=NO_ACTIVITY, message=None, blob_name=name)))
        )
        await world.clock.sleep(5.0)
        (kept,) = await world.client.admin.quarantined()
        assert await world.client.admin.drop_quarantined(kept.message_id)
        await world.client.start("gathering", instance_id="one")
        for number in range(4):
            await world.client.raise_event("one", "add", number)
        return kept.dequeue_count, "blob name" in kept.cause, (await world.wait("one")).output

    assert play(drive) == (1, True, "[0,1,2,3]")


@pytest.mark.rows("K42", "K30")
def test_what_is_dropped_is_gone_with_its_blob(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "INLINE_BYTES", 10)

    async def drive(world: World) -> Any:
        names = world.client.hub.names
        for text in ("nonsense " * 30, "more of it " * 30):
            await world.store.execute(PutMessage(queue=names.work_items, text=text))
        await world.settle()
        kept = await world.client.admin.quarantined()
        assert sorted(item.text[:4] for item in kept) == ["more", "nons"]
        assert len(await world.store.list_blobs(names.large_messages)) == 2
        assert await world.client.admin.drop_quarantined(kept[0].message_id)
        assert not await world.client.admin.drop_quarantined(kept[0].message_id)
        (blob,) = await world.store.list_blobs(names.large_messages)
        return kept[1].message_id in blob.name, len(await world.client.admin.quarantined())

    assert play(drive) == (True, 1)


@pytest.mark.rows("K42", "K30")
def test_what_was_spilled_outlives_the_purge_of_its_instance(broken: dict[str, bool]) -> None:
    """Its blob goes with the instance: what is in quarantine has a copy of its own, and goes back with it."""

    async def drive(world: World) -> Any:
        kept = await poisoned(world, LARGE)
        await purged(world)
        assert len(await large_blobs(world)) == 4, "a copy each, and nothing of the instance"
        broken["broken"] = False
        await world.client.start("gathering", instance_id="one")
        await world.clock.sleep(1.0)
        assert [await world.client.admin.put_back(item.message_id) for item in kept] == [True] * 4
        state = await world.wait("one")
        assert state.output is not None
        assert sorted(json.loads(state.output)) == LARGE
        await purged(world)
        return await large_blobs(world)

    assert play(drive) == []


@pytest.mark.rows("K42", "K30")
def test_what_was_copied_by_a_try_that_was_cut_off_is_found_by_the_next(broken: dict[str, bool]) -> None:
    async def drive(world: World) -> Any:
        names, (item, *_) = world.client.hub.names, await poisoned(world, LARGE)
        await purged(world)
        await quarantine.keep(world.store, names, item, None)
        again = await quarantine.find(world.store, names, item.message_id)
        assert again is not None
        return again.blobs == item.blobs, "lost" in again.cause

    assert play(drive) == (True, False)


@pytest.mark.rows("K42", "K30")
def test_what_has_lost_its_payload_is_not_put_back(broken: dict[str, bool]) -> None:
    async def drive(world: World) -> Any:
        names, (item, *_) = world.client.hub.names, await poisoned(world, LARGE)
        await world.store.execute(DeleteBlob(container=names.large_messages, name=item.blobs[1]))
        with pytest.raises(InputError, match=f"payload of message {item.message_id} is gone, .*drop that message"):
            await world.client.admin.put_back(item.message_id)
        return await world.client.admin.find_quarantined(item.message_id) is not None

    assert play(drive) is True


@pytest.mark.rows("K42", "K30")
def test_a_spilled_message_for_an_impossible_id_can_be_dropped() -> None:
    async def drive(world: World) -> Any:
        names = world.client.hub.names
        inner = TaskMessage(
            event=EventRaised(timestamp=NOW, name="add", input="1"),
            instance=OrchestrationInstance(instance_id="x" * 600),
        )
        blob = PutBlob(
            container=names.large_messages,
            name=f"{'x' * 600}/message-1.json.gz",
            data=compress(encode(Envelope(activity_id=NO_ACTIVITY, message=inner))),
        )
        wrapper = encode(Envelope(activity_id=NO_ACTIVITY, message=None, blob_name=blob.name))
        await world.store.execute(blob)
        await world.store.execute(PutMessage(queue=names.control(0), text=wrapper))
        await world.clock.sleep(5.0)
        (kept,) = await world.client.admin.quarantined()
        assert await world.client.admin.drop_quarantined(kept.message_id)
        return await large_blobs(world)

    assert play(drive) == []


@pytest.mark.rows("K42", "K30")
@pytest.mark.parametrize("purge", [True, False], ids=["instance gone", "instance there"])
def test_what_was_spilled_and_is_dropped_leaves_no_blob(broken: dict[str, bool], purge: bool) -> None:
    async def drive(world: World) -> Any:
        kept = await poisoned(world, LARGE)
        if purge:
            await purged(world)
            broken["broken"] = False
            assert await world.client.admin.put_back(kept[0].message_id)  # it is written under its instance again
            await world.settle(timedelta(hours=2))
            assert len(await world.client.admin.quarantined()) == 3, "nothing is left of what it was for"
        for item in await world.client.admin.quarantined():
            assert await world.client.admin.drop_quarantined(item.message_id)
        left = await large_blobs(world)
        if not purge:
            assert len(left) == 4, "the instance's own, which go with it"
            assert all(name.startswith("one/") for name in left)
            await purged(world)
        return await large_blobs(world)

    assert play(drive) == []


@pytest.mark.rows("K42", "K30")
def test_no_instance_owns_what_is_kept_in_quarantine(broken: dict[str, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "INLINE_BYTES", 10)

    async def drive(world: World) -> Any:
        kept = await poisoned(world, LARGE)
        before = await world.client.admin.quarantined()
        blobs = await large_blobs(world)
        for folder in ("quarantine", "^quarantine", "^^quarantine"):
            for instance_id in (folder, f"{folder}/{kept[0].queue}"):
                await world.client.start("plod", 0, instance_id=instance_id)
                await world.wait(instance_id)
                await world.settle()
                assert await world.client.purge(instance_id)
        assert await large_blobs(world) == blobs
        return await world.client.admin.quarantined() == before

    assert play(drive) is True


@pytest.mark.rows("K42")
def test_what_was_spilled_and_cannot_be_read_goes_back_with_its_bytes() -> None:
    async def drive(world: World) -> Any:
        names = world.client.hub.names
        wrapper = encode(Envelope(activity_id=NO_ACTIVITY, message=None, blob_name="some/message-1.json.gz"))
        there = PutBlob(container=names.large_messages, name="some/message-1.json.gz", data=b"no message")
        await world.store.execute(there)
        await world.store.execute(PutMessage(queue=names.control(0), text=wrapper))
        found = []
        for _ in range(2):
            while not (kept := await world.client.admin.quarantined()):
                await world.clock.sleep(1.0)
            await world.store.execute(DeleteBlob(container=names.large_messages, name=there.name))
            found.append((kept[0].text == wrapper, "JSON" in kept[0].cause))
            assert await world.client.admin.put_back(kept[0].message_id)
            blob = await world.store.get_blob(names.large_messages, there.name)
            found.append((blob is not None and blob.data == b"no message", True))
        while not (kept := await world.client.admin.quarantined()):
            await world.clock.sleep(1.0)
        assert await world.client.admin.drop_quarantined(kept[0].message_id)
        return found, await large_blobs(world)

    assert play(drive) == ([(True, True)] * 4, [])


@pytest.mark.rows("K42")
def test_what_is_gone_of_a_message_is_said(monkeypatch: pytest.MonkeyPatch, broken: dict[str, bool]) -> None:
    async def drive(world: World) -> Any:
        names = world.client.hub.names
        wrapper = encode(Envelope(activity_id=NO_ACTIVITY, message=None, blob_name="gone/message-1.json.gz"))
        await world.store.execute(PutMessage(queue=names.control(0), text=wrapper))
        while not (kept := await world.client.admin.quarantined()):
            await world.clock.sleep(1.0)
        assert "'gone/message-1.json.gz' does not exist" in kept[0].cause
        assert await world.client.admin.drop_quarantined(kept[0].message_id)
        monkeypatch.setattr(quarantine, "INLINE_BYTES", 10)
        await world.store.execute(PutMessage(queue=names.control(0), text="nonsense " * 30))
        while not (kept := await world.client.admin.quarantined()):
            await world.clock.sleep(1.0)
        for name in await large_blobs(world):
            await world.store.execute(DeleteBlob(container=names.large_messages, name=name))
        with pytest.raises(InputError, match=r"is gone, blob .*: drop that message"):
            await world.client.admin.put_back(kept[0].message_id)
        return await world.client.admin.drop_quarantined(kept[0].message_id), await world.client.admin.quarantined()

    assert play(drive) == (True, ())


@pytest.mark.rows("K35")
def test_of_two_who_put_back_at_once_one_does(broken: dict[str, bool]) -> None:
    async def drive(world: World) -> Any:
        kept = await poisoned(world)
        broken["broken"] = False
        did = await asyncio.gather(*(world.client.admin.put_back(item.message_id) for item in kept for _ in range(5)))
        state = await world.wait("one")
        return sum(did), state.output

    assert play(drive) == (4, "[0,1,2,3]")


@pytest.mark.rows("K35", "K26")
@pytest.mark.parametrize(
    "values", [[0, 1, 2, 3], pytest.param(LARGE, marks=pytest.mark.long)], ids=["inline", "spilled"]
)
@pytest.mark.parametrize("fault", [unsent, lost], ids=lambda fault: fault.__name__)
def test_a_put_back_that_is_cut_off_anywhere_loses_and_doubles_nothing(
    broken: dict[str, bool], fault: Callable[[], Any], values: list[Any]
) -> None:
    def cut(number: int) -> tuple[bool, str | None]:
        async def drive(world: World) -> Any:
            kept = await poisoned(world, values)
            broken["broken"] = False
            store = FaultyStore(world.store, at(number, fault()), clock=world.clock, stepwise=True)
            client = Client(replace(world.client.hub, store=store), world.settings.lease_times)
            whole = True
            for item in kept:
                try:
                    await client.admin.put_back(item.message_id)
                except Unavailable:
                    whole = False
            for item in await world.client.admin.quarantined():
                await world.client.admin.put_back(item.message_id)
            return whole, (await world.wait("one", timedelta(minutes=5))).output

        broken["broken"] = True
        found: tuple[bool, str | None] = play(drive)
        return found

    for number in range(1, 60):
        whole, output = cut(number)
        assert output is not None
        assert sorted(json.loads(output)) == values, number
        if whole:
            return
    raise AssertionError("never whole")


@pytest.mark.rows("D108", "K35", "K42", "K43")
def test_nothing_else_is_slowed_down_by_what_cannot_be_processed(broken: dict[str, bool]) -> None:
    """Poison, nonsense, strays and an unknown name among a hundred chains: those take as long as without."""

    def took(bad: bool) -> float:
        async def drive(world: World) -> Any:
            names = world.client.hub.names
            began = world.clock.monotonic()
            if bad:
                await world.client.start("counter", [], instance_id="one")
                await world.client.start("nobody has it", instance_id="two")
                for number in range(20):
                    await world.client.raise_event("one", "add", number)
                    to = OrchestrationInstance(instance_id="one")
                    stray = TaskCompleted(timestamp=world.clock.utc_now(), task_scheduled_id=77, result="1")
                    await world.client.hub.send(world.client.hub.message_to(stray, to))
                    for queue in (names.control(0), names.control(1), names.work_items):
                        await world.store.execute(PutMessage(queue=queue, text="nonsense"))
            for number in range(100):
                await world.client.start("plod", 3, instance_id=f"chain-{number}")
            for number in range(100):
                await world.wait(f"chain-{number}")
            return world.clock.monotonic() - began

        spent: float = play(drive)
        return spent

    assert took(True) <= took(False) + 1.0


async def stuck(world: World, **options: Any) -> str:
    """An instance whose episode with its first event did not end, and another worker; returns its generation."""
    client, names = world.client, world.client.hub.names
    await client.start("counter", [], instance_id="one")
    await world.clock.sleep(1.0)
    state = await client.get("one")
    assert state is not None
    machine = world.machines[0]
    await machine.stop()
    await client.raise_event("one", "add", 0)
    queue = names.control(partition_of("one", client.hub.info.partitions))
    (message,) = await world.store.receive(queue, limit=1, visibility=timedelta(seconds=30))
    batch = [await decode_message(world.store, names, queue, message, 0.0)]
    running = Running("one", state.execution_id, batch)
    await quarantine_stuck(running, "it did not end", world.store, machine.backend.hub.names)
    await world.join("two", **options)
    await world.clock.sleep(60.0)
    return state.execution_id


def test_an_instance_in_quarantine_is_left_alone_until_it_is_put_back() -> None:
    async def drive(world: World) -> Any:
        generation = await stuck(world)
        for number in (1, 2, 3):
            await world.client.raise_event("one", "add", number)
        await world.client.start("counter", [], instance_id="other")
        await world.clock.sleep(5.0)
        kept = await world.client.admin.quarantined()
        assert [item.stuck for item in kept] == [generation] * 4
        assert Counter(item.cause for item in kept) == {"it did not end": 1, "its instance is in quarantine": 3}
        states = [await world.client.get(name) for name in ("one", "other")]
        assert [state and state.status for state in states] == [Status.RUNNING] * 2
        assert await world.client.admin.put_back(kept[2].message_id)
        state = await world.wait("one")
        await world.settle()
        return state.output, await world.client.admin.quarantined()

    assert play(drive) == ("[0,1,2,3]", ())


def test_an_instance_in_quarantine_is_not_forgotten_by_a_store_that_does_not_answer() -> None:
    async def drive(world: World) -> Any:
        answers = [False]

        def once(call: Call) -> Fault | None:
            """The first question after the reader's own."""
            looks = call.kind == "table.query" and call.what[0] == world.client.hub.names.quarantine
            return refused() if looks and answers and answers.pop() else None

        generation = await stuck(world, plan=once)
        answers.append(True)
        await world.client.raise_event("one", "add", 1)
        await world.clock.sleep(5.0)
        return answers, [item.stuck == generation for item in await world.client.admin.quarantined()]

    assert play(drive) == ([], [True, True])


def test_an_instance_in_quarantine_can_be_terminated_and_started_anew() -> None:
    async def drive(world: World) -> Any:
        await stuck(world)
        await world.client.terminate("one", "it never ends")
        ended = await world.wait("one")
        await world.client.start("counter", [], instance_id="one", policy=StartPolicy.REPLACE_FINISHED)
        for number in range(4):
            await world.client.raise_event("one", "add", number)
        again = await world.wait("one")
        return ended.status, again.output, len(await world.client.admin.quarantined())

    assert play(drive) == (Status.TERMINATED, "[0,1,2,3]", 1)


@pytest.mark.rows("K35", "K46")
@pytest.mark.parametrize("events", [0, 1], ids=["terminate alone", "with an event"])
def test_the_terminate_that_found_its_code_without_end_ends_it_without_its_code(
    monkeypatch: pytest.MonkeyPatch, events: int
) -> None:
    async def drive(world: World) -> Any:
        client, names = world.client, world.client.hub.names
        await client.start("counter", [], instance_id="one")
        await world.clock.sleep(1.0)
        state = await client.get("one")
        assert state is not None
        machine = world.machines[0]
        await machine.stop()
        for number in range(events):
            await client.raise_event("one", "add", number)
        await client.terminate("one", "it never ends")
        queue = names.control(partition_of("one", client.hub.info.partitions))
        messages = await world.store.receive(queue, limit=2, visibility=timedelta(seconds=30))
        batch = [await decode_message(world.store, names, queue, message, 0.0) for message in messages]
        running = Running("one", state.execution_id, batch)
        await quarantine_stuck(running, "it did not end", world.store, machine.backend.hub.names)

        def endless(execution: Execution, *arguments: Any, **named: Any) -> Any:
            raise AssertionError("its code runs")

        monkeypatch.setattr(Execution, "advance", endless)
        await world.join("two")
        ended = await world.wait("one")
        await world.settle()
        assert not world.defects()
        kept = await client.admin.quarantined()
        return ended.status, ended.output, [item.cause for item in kept], await world.store.count(queue)

    assert play(drive) == (Status.TERMINATED, "it never ends", ["it did not end"], 0)


@pytest.mark.parametrize("end", [False, True], ids=["put back", "terminated"])
def test_no_code_of_an_instance_in_quarantine_runs_to_resume_its_switch(
    monkeypatch: pytest.MonkeyPatch, end: bool
) -> None:
    """Its code came to no end while the rest of a generation switch was made again: it would not now."""
    real = Execution.resume

    async def drive(world: World) -> Any:
        client, names = world.client, world.client.hub.names
        machine = await world.join("one", death=Death(point="history:1"))
        await client.start("spread", 0, instance_id="one")
        await machine.died.wait()
        await machine.bury()
        await without_blob(world)
        await client.raise_event("one", "any")
        queue = names.control(partition_of("one", client.hub.info.partitions))
        (message,) = await world.store.receive(queue, limit=1, visibility=timedelta(seconds=30))
        held = await decode_message(world.store, names, queue, message, 0.0)
        loaded = await load(world.store, names, "one")
        assert loaded.sentinel is not None
        assert not loaded.sentinel.complete
        running = Running("one", loaded.sentinel.execution_id, [held])
        await quarantine_stuck(running, "it did not end", world.store, machine.backend.hub.names)

        def endless(execution: Execution) -> Any:
            raise AssertionError("its code runs")

        monkeypatch.setattr(Execution, "resume", endless)
        await world.join("two")
        while len(await client.admin.quarantined()) < 120:  # the answers to what the cut-off commit had put
            await world.clock.sleep(1.0)
        if end:
            monkeypatch.setattr(Execution, "advance", endless)
            await client.terminate("one", "it never ends")
        else:
            monkeypatch.setattr(Execution, "resume", real)
            assert await client.admin.put_back(held.message_id)
        state = await world.wait("one")
        assert not world.defects()
        return state.status, state.output

    async def main() -> Any:
        async with World(app_of(Effects())) as world:
            return await drive(world)

    found = simulate(main)
    assert found == ((Status.TERMINATED, "it never ends") if end else (Status.COMPLETED, str(sum(range(1, 121)))))


@pytest.mark.rows("K35", "K41")
def test_a_start_that_is_put_back_does_not_revive_what_was_terminated_meanwhile() -> None:
    """The row that its client had inserted has changed since: it is looked at."""

    async def drive(world: World) -> Any:
        client, names = world.client, world.client.hub.names
        await world.machines[0].stop()
        await client.start("counter", [], instance_id="one")
        queue = names.control(partition_of("one", client.hub.info.partitions))
        (message,) = await world.store.receive(queue, limit=1, visibility=timedelta(seconds=30))
        held = await decode_message(world.store, names, queue, message, 0.0)
        assert isinstance(held.message.event, ExecutionStarted)
        assert held.message.event.taskhub_row_etag is not None
        running = Running("one", held.message.instance.execution_id, [held])
        await quarantine_stuck(running, "it did not end", world.store, world.machines[0].backend.hub.names)
        await client.terminate("one", "enough")
        await world.join("two")
        ended = await world.wait("one")
        (kept,) = await client.admin.quarantined()
        assert await client.admin.put_back(kept.message_id)
        await world.settle()
        after = await client.get("one")
        history = [event.event_type.name for event in await client.instance("one").history()]
        return ended.status, after and (after.status, after.output), history[1:-1]

    history = ["ExecutionStarted", "ExecutionTerminated", "ExecutionCompleted"]
    assert play(drive) == (Status.TERMINATED, (Status.TERMINATED, "enough"), history)
