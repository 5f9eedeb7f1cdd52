"""A terminate that leaves time for a clean-up, on workers that die, lack the code, or are not there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.client.handle import InstanceHandle
from airflow_provider_taskhub.engine.context import OrchestrationContext
from airflow_provider_taskhub.engine.events import EventRaised, ExecutionTerminated, Status, TimerFired
from airflow_provider_taskhub.errors import InvalidStateError
from airflow_provider_taskhub.hub.formats.history_rows import row_key
from airflow_provider_taskhub.hub.model import InstanceState
from airflow_provider_taskhub.hub.partitions.hashing import partition_of
from airflow_provider_taskhub.hub.queues.reader import decode_message
from airflow_provider_taskhub.workers.orchestrations.stuck_instances import quarantine_stuck
from airflow_provider_taskhub.workers.orchestrations.watchdog import Running
from tests.simulation.test_unreadable_history import merge
from tests.simulation.world import World, simulate

MINUTE = timedelta(seconds=60)
KINDS: dict[str, dict[str, Any]] = {"plain": {"record": False}, "recorded": {"record": True}}


class Clusters:
    """An app whose orchestrators open something, work and close it. Notes what begins and ends, in the order of time.

    :param closing: seconds that the closing takes.
    """

    def __init__(self, *, closing: float = 5, **given: Any) -> None:
        self.noted: list[str] = []
        self.app = app = App("clusters")

        async def carried_out(what: str, seconds: float) -> None:
            self.noted.append(f"{what} begins")
            try:
                await asyncio.sleep(seconds)
            except asyncio.CancelledError:
                self.noted.append(f"{what} is cancelled")
                raise
            self.noted.append(f"{what} ends")

        @app.activity(**given)
        async def work(name: str) -> None:
            await carried_out(f"work {name}", 1e6)

        @app.activity(**given)
        async def close(name: str) -> None:
            await carried_out(f"close {name}", closing)

        @app.orchestrator
        async def one(ctx: OrchestrationContext) -> None:
            try:
                await ctx.call_activity(work, ctx.instance_id)
            finally:
                await ctx.call_activity(close, ctx.instance_id)

        @app.orchestrator
        async def both(ctx: OrchestrationContext) -> None:
            child = ctx.call_sub_orchestrator("one", instance_id="child")
            try:
                await ctx.when_all([child, ctx.call_activity(work, ctx.instance_id)])
            finally:
                await ctx.call_activity(close, ctx.instance_id)


def play(clusters: Clusters, drive: Callable[[World], Awaitable[Any]], *, workers: int = 1) -> None:
    async def main() -> None:
        async with World(clusters.app, partitions=2, activities=4) as world:
            for number in range(workers):
                await world.join(f"w{number}")
            await drive(world)
            await world.settle()
            assert not await world.client.admin.quarantined()

    simulate(main, limit=timedelta(hours=2))


async def begun(world: World, clusters: Clusters, what: str) -> None:
    while f"{what} begins" not in clusters.noted:
        await world.clock.sleep(0.05)


async def is_terminated(world: World, instance_id: str, reason: str = "late") -> None:
    state = await world.wait(instance_id)
    assert (state.status, state.output) == (Status.TERMINATED, reason)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.rows("D61", "D63")
def test_the_clean_up_begins_when_the_work_has_ended(kind: str) -> None:
    clusters = Clusters(**KINDS[kind])

    async def drive(world: World) -> None:
        await world.client.start("one", instance_id="a")
        await begun(world, clusters, "work a")
        state = await world.client.terminate("a", "late", grace=MINUTE, wait=True)
        assert (state.status, state.output) == (Status.TERMINATED, "late")
        assert clusters.noted == ["work a begins", "work a is cancelled", "close a begins", "close a ends"]
        history = await world.client.instance("a").history()
        assert not any(isinstance(event, ExecutionTerminated) for event in history)
        with pytest.raises(
            InvalidStateError, match="was asked to end with time for a clean-up, so it cannot be rewound"
        ):
            await world.client.rewind("a", terminated=True)

    play(clusters, drive)


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_dies_while_the_clean_up_runs(kind: str) -> None:
    clusters = Clusters(closing=20, **KINDS[kind])

    async def main() -> None:
        async with World(clusters.app, partitions=2, activities=4) as world:
            first = await world.join("first")
            await world.client.start("one", instance_id="a")
            await begun(world, clusters, "work a")
            await world.client.terminate("a", "late", grace=timedelta(minutes=20))
            await begun(world, clusters, "close a")
            await first.bury()
            await world.join("second")
            await is_terminated(world, "a")
            assert clusters.noted.count("close a begins") == 2
            assert clusters.noted[-1] == "close a ends"
            assert clusters.noted.count("work a begins") == 1
            await world.settle()

    simulate(main, limit=timedelta(hours=3))


def test_the_deadline_ends_a_clean_up_that_takes_too_long() -> None:
    clusters = Clusters(closing=1e6, record=True)

    async def drive(world: World) -> None:
        await world.client.start("one", instance_id="a")
        await begun(world, clusters, "work a")
        asked = world.clock.monotonic()
        await world.client.terminate("a", "late", grace=MINUTE, wait=True)
        assert 60 <= world.clock.monotonic() - asked < 90
        await is_terminated(world, "a")
        assert clusters.noted[-1] == "close a is cancelled"

    play(clusters, drive)


@pytest.mark.parametrize("workers", [1, 2])
def test_children_clean_up_too_and_the_terminate_waits_for_them(workers: int) -> None:
    clusters = Clusters(closing=20, record=True)

    async def drive(world: World) -> None:
        await world.client.start("both", instance_id="parent")
        await begun(world, clusters, "work child")
        await begun(world, clusters, "work parent")
        await world.client.terminate("parent", "late", grace=MINUTE, wait=True)
        assert {"close child ends", "close parent ends"} <= {*clusters.noted}
        await is_terminated(world, "parent")
        await is_terminated(world, "child", "its parent 'parent' was terminated: late")

    play(clusters, drive, workers=workers)


@pytest.mark.parametrize("orchestrator", ["one", "alone"])
def test_who_waits_for_a_clean_up_reads_the_instance_seldom(orchestrator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """500 tasks that are marked at once would else send 500 requests a second until all have cleaned up."""
    clusters = Clusters(closing=40, record=True)

    @clusters.app.orchestrator
    async def alone(ctx: OrchestrationContext) -> None:
        await ctx.call_sub_orchestrator("one", instance_id="child")

    reads, get = list[str](), InstanceHandle.get

    async def counted(instance: InstanceHandle, **given: Any) -> InstanceState | None:
        reads.append(instance.id)
        return await get(instance, **given)

    async def drive(world: World) -> None:
        await world.client.start(orchestrator, instance_id="a")
        await begun(world, clusters, f"work {'a' if orchestrator == 'one' else 'child'}")
        monkeypatch.setattr(InstanceHandle, "get", counted)
        await world.client.terminate("a", "late", grace=MINUTE, wait=True)
        assert clusters.noted[-1].startswith("close")
        assert clusters.noted[-1].endswith("ends")
        assert len(reads) < 35, "a pause of 1 s makes at least 45"

    play(clusters, drive)


def test_a_terminate_without_time_ends_a_clean_up_and_that_of_the_children() -> None:
    clusters = Clusters(closing=1e6, record=True)

    async def drive(world: World) -> None:
        await world.client.start("both", instance_id="parent")
        await begun(world, clusters, "work child")
        await world.client.terminate("parent", "late", grace=timedelta(minutes=20))
        await begun(world, clusters, "close parent")
        await begun(world, clusters, "close child")
        await world.client.terminate("parent", "now", wait=True)
        await is_terminated(world, "parent", "now")
        await is_terminated(world, "child", "its parent 'parent' was terminated: now")

    play(clusters, drive)


def test_a_suspended_instance_is_resumed() -> None:
    clusters = Clusters(record=True)

    async def drive(world: World) -> None:
        await world.client.start("one", instance_id="a")
        await begun(world, clusters, "work a")
        await world.client.suspend("a")
        await world.clock.sleep(5)
        await world.client.terminate("a", "late", grace=MINUTE, wait=True)
        await is_terminated(world, "a")
        assert clusters.noted[-1] == "close a ends"

    play(clusters, drive)


@pytest.mark.rows("D61")
def test_an_instance_that_cleans_up_is_not_suspended() -> None:
    """Who asks for it is told. A suspension that was on its way when the clean-up began is named in the log."""
    clusters = Clusters(record=True, closing=20)

    async def drive(world: World) -> None:
        await world.client.start("one", instance_id="a")
        await begun(world, clusters, "work a")
        await world.client.terminate("a", "late", grace=MINUTE)
        await world.client.suspend("a")
        await begun(world, clusters, "close a")
        why = r"is Running, created .* UTC: it cleans up after a terminate, so it cannot be suspended. It takes"
        with pytest.raises(InvalidStateError, match=why):
            await world.client.suspend("a", recurse=True)
        await is_terminated(world, "a")
        assert clusters.noted[-1] == "close a ends"
        (said,) = world.said("event_discarded")
        assert (said["event_type"], "cleans up after a terminate" in said["reason"]) == ("ExecutionSuspended", True)

    play(clusters, drive)


@pytest.mark.parametrize("at_once", [False, True])
def test_a_child_that_cleans_up_does_not_hold_up_the_suspension_of_its_family(at_once: bool) -> None:
    """Also if the suspension of the child is stored before the worker takes its request to end."""
    clusters = Clusters(record=True, closing=300)

    async def drive(world: World) -> None:
        await world.client.start("both", instance_id="parent")
        await begun(world, clusters, "work child")
        await world.client.terminate("child", "late", grace=timedelta(minutes=20))
        if not at_once:
            await begun(world, clusters, "close child")
        asked = world.clock.monotonic()
        await world.client.suspend("parent", recurse=True)
        assert world.clock.monotonic() - asked < 20
        assert await world.client.instance("parent").status() is Status.SUSPENDED
        await is_terminated(world, "child")
        assert "close child ends" in clusters.noted
        await world.client.terminate("parent", wait=True)

    play(clusters, drive)


@pytest.mark.rows("D61")
def test_a_child_that_its_parent_has_cancelled_is_not_suspended() -> None:
    app = App("family")

    @app.activity(record=True)
    async def work() -> None:
        try:
            await asyncio.sleep(1e6)
        except asyncio.CancelledError:
            await asyncio.sleep(8)
            raise

    @app.orchestrator
    async def child(ctx: OrchestrationContext) -> None:
        await ctx.call_activity(work)

    @app.orchestrator
    async def parent(ctx: OrchestrationContext) -> None:
        async with ctx.cancel_scope():
            ctx.call_sub_orchestrator(child, instance_id="child")
            await ctx.create_timer(timedelta(seconds=5))

    async def main() -> None:
        async with World(app) as world:
            await world.join("one")
            await world.client.start("parent", instance_id="parent")
            await world.clock.sleep(7)
            why = r"is Running, created .* UTC: its parent has cancelled it, and it ends, so it cannot be suspended"
            with pytest.raises(InvalidStateError, match=why):
                await world.client.suspend("child")
            assert (await world.wait("parent")).status is Status.COMPLETED
            await is_terminated(world, "child", "its parent 'parent' has cancelled it")
            await world.settle()

    simulate(main)


def test_an_instance_that_has_not_begun_ends_at_once() -> None:
    clusters = Clusters()

    async def drive(world: World) -> None:
        due = world.clock.utc_now().datetime() + timedelta(minutes=20)
        await world.client.start("one", instance_id="a", start_at=due)
        await world.clock.sleep(5)
        asked = world.clock.monotonic()
        await world.client.terminate("a", "late", grace=MINUTE, wait=True)
        assert world.clock.monotonic() - asked < 20
        await is_terminated(world, "a")
        assert clusters.noted == []

    play(clusters, drive)


@pytest.mark.parametrize("asked_before", [True, False])
def test_without_the_code_the_instance_ends_after_this_time(asked_before: bool) -> None:
    """No worker has the code any more: before the request, or after it."""
    clusters = Clusters(closing=1e6, record=True)

    async def main() -> None:
        async with World(clusters.app, partitions=2, activities=4) as world:
            first = await world.join("first")
            await world.client.start("one", instance_id="a")
            await begun(world, clusters, "work a")
            if asked_before:
                await world.client.terminate("a", "late", grace=MINUTE)
                await begun(world, clusters, "close a")
            await first.bury()
            await world.join("second", app=App("other"))
            if not asked_before:
                await world.client.terminate("a", "late", grace=MINUTE)
            state = await world.wait("a", limit=timedelta(minutes=5))
            assert (state.status, state.output) == (Status.TERMINATED, "late")

    simulate(main, limit=timedelta(hours=2))


@pytest.mark.parametrize("waits", [False, True], ids=["nothing waits for the code", "an event waits for it"])
def test_the_time_begins_with_the_request_although_something_has_waited_longer_for_the_code(waits: bool) -> None:
    """A worker may start that has the code. So the instance is not ended before its time is over."""
    clusters = Clusters(record=True)

    async def main() -> None:
        async with World(clusters.app, partitions=2, activities=4) as world:
            first = await world.join("first")
            await world.client.start("one", instance_id="a")
            await begun(world, clusters, "work a")
            await first.bury()
            second = await world.join("second", app=App("other"))
            if waits:
                await world.client.raise_event("a", "any")
            await world.clock.sleep(5 * 60)
            await second.stop()
            await world.clock.sleep(60)  # the event can be received again, so it comes together with the request
            await world.client.terminate("a", "late", grace=MINUTE)
            await world.join("third", app=App("other"))
            asked = world.clock.monotonic()
            state = await world.wait("a")
            assert (state.status, state.output) == (Status.TERMINATED, "late")
            assert 59.9 <= world.clock.monotonic() - asked <= 80.0, "15 s at most between two deliveries"

    simulate(main, limit=timedelta(hours=2))


def test_with_a_damaged_history_the_instance_and_its_children_end_at_once() -> None:
    clusters = Clusters(record=True)

    async def main() -> None:
        async with World(clusters.app, partitions=2, activities=4) as world:
            first = await world.join("first")
            await world.client.start("both", instance_id="parent")
            await begun(world, clusters, "work parent")
            await begun(world, clusters, "work child")
            history = await world.client.instance("parent").history()
            await first.stop()
            await merge(world, "parent", row_key(len(history) - 1), EventType="OfTheFuture")
            await world.join("second")
            asked = world.clock.monotonic()
            await world.client.terminate("parent", "late", grace=timedelta(hours=1), wait=True)
            assert world.clock.monotonic() - asked < 60
            await is_terminated(world, "parent")
            await is_terminated(world, "child", "its parent 'parent' was terminated: late")
            assert not [text for text in clusters.noted if text.startswith("close")]

    simulate(main, limit=timedelta(hours=2))


def test_the_deadline_ends_code_that_blocks_its_worker() -> None:
    """Its clean-up has not awaited any more, so the instance is in quarantine."""
    clusters = Clusters(closing=1e6, record=True)

    async def main() -> None:
        async with World(clusters.app, partitions=2, activities=4) as world:
            first = await world.join("first")
            client, names = world.client, world.client.hub.names
            await client.start("one", instance_id="a")
            await begun(world, clusters, "work a")
            await client.terminate("a", "late", grace=MINUTE)
            await begun(world, clusters, "close a")
            row = await client.get("a")
            assert row is not None
            await first.stop()
            await client.raise_event("a", "any")
            queue = names.control(partition_of("a", client.hub.info.partitions))
            (message,) = await world.store.receive(queue, limit=1, visibility=timedelta(seconds=30))
            batch = [await decode_message(world.store, names, queue, message, 0.0)]
            running = Running("a", row.execution_id, batch)
            await quarantine_stuck(running, "it did not end", world.store, first.backend.hub.names)
            await world.join("second")
            state = await world.wait("a", limit=timedelta(minutes=3))
            assert (state.status, state.output) == (Status.TERMINATED, "late")

    simulate(main, limit=timedelta(hours=2))


def test_the_deadline_that_comes_together_with_what_blocks_the_worker_still_ends_the_instance() -> None:
    """It stays in its queue when the other messages of the batch go to quarantine, as a terminate does."""
    app, kept = App("clusters"), list[Running | None]()

    @app.orchestrator
    async def one(ctx: OrchestrationContext) -> None:
        try:
            await ctx.wait_for_external_event("never")
        finally:
            if second is not None:  # it replays the code, which would block here: the watchdog ends the process
                kept.append(second.backend.processor.episodes.running)
                second.die()
            await ctx.wait_for_external_event("go")

    async def main() -> None:
        nonlocal second
        async with World(app, partitions=2, activities=4) as world:
            first = await world.join("first")
            client, names = world.client, world.client.hub.names
            await client.start("one", instance_id="a")
            await world.clock.sleep(5.0)
            await client.terminate("a", "late", grace=MINUTE)
            await world.clock.sleep(5.0)
            await first.stop()
            await client.raise_event("a", "go")
            await world.clock.sleep(2 * 60)
            second = await world.join("second")
            await second.died.wait()
            (running,) = kept
            assert running is not None
            assert {type(held.message.event) for held in running.batch} == {EventRaised, TimerFired}
            await quarantine_stuck(running, "it did not end", world.store, names)
            await second.bury()
            (item,) = await client.admin.quarantined()
            assert item.instance_id == "a"
            await world.join("third")
            state = await world.wait("a", limit=timedelta(minutes=3))
            assert (state.status, state.output) == (Status.TERMINATED, "late")

    second: Any = None
    simulate(main, limit=timedelta(hours=2))
