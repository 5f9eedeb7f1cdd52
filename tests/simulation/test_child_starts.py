"""Starts of a child behind a run of its id, and events around them (K27, K36)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.engine.events import ExecutionStarted, Status
from airflow_provider_taskhub.hub.formats.message_envelope import decode
from airflow_provider_taskhub.hub.partitions.hashing import partition_of
from airflow_provider_taskhub.settings import EMBEDDED_LEASE
from airflow_provider_taskhub.storage.faults import Call, Fault, FaultyStore, late, refused, straggling
from airflow_provider_taskhub.storage.primitives import Transact, UpdateMessage
from tests.simulation.world import RARE_RENEWALS, Death, World, simulate

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
    async def tells(ctx: OrchestrationContext, what: tuple[int, float]) -> Any:
        number, seconds = what
        child = ctx.call_sub_orchestrator("waits", instance_id="child")
        await ctx.create_timer(timedelta(seconds=seconds))
        ctx.send_event("child", "go", number)
        return await child

    @made.orchestrator
    async def rounds(ctx: OrchestrationContext, number: int) -> None:
        ctx.call_sub_orchestrator("logs", number, instance_id="child", fire_and_forget=True)
        await ctx.create_timer(timedelta(seconds=20))
        if number < 1:
            ctx.continue_as_new(number + 1)

    @made.orchestrator
    async def rests(ctx: OrchestrationContext, number: int) -> None:
        await ctx.call_activity("note", number)
        await ctx.create_timer(timedelta(seconds=5))

    @made.orchestrator
    async def twice(ctx: OrchestrationContext) -> None:
        await ctx.call_sub_orchestrator("rests", 1, instance_id="child")
        await ctx.create_timer(timedelta(seconds=10))
        await ctx.call_sub_orchestrator("rests", 2, instance_id="child")

    @made.orchestrator
    async def patient(ctx: OrchestrationContext, name: str) -> str:
        """Waits ten minutes for an event."""
        event, timer = ctx.wait_for_external_event("go"), ctx.create_timer(timedelta(minutes=10))
        done = await ctx.when_any([event, timer])
        return f"{name}: {await event if done is event else 'nothing'}"

    @made.orchestrator
    async def forgets(ctx: OrchestrationContext, how: str) -> str:
        """Awaits the second of two children with one id, and not the first."""
        if how != "next generation":
            forget = how == "fire and forget"
            ctx.call_sub_orchestrator("patient", "first", instance_id="child", fire_and_forget=forget)
            await ctx.create_timer(timedelta(seconds=5))
            if not forget:
                ctx.continue_as_new("next generation")
                return ""
        second = ctx.call_sub_orchestrator("patient", "second", instance_id="child")
        await ctx.create_timer(timedelta(seconds=1))
        ctx.send_event("child", "go", "for the second")
        return await second

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


def played(play: Callable[[World, list[Any]], Awaitable[Any]], **settings: Any) -> Any:
    async def whole() -> Any:
        ran: list[Any] = []
        async with World(app(ran), **settings) as hub:
            await hub.join("only")
            found = await play(hub, ran)
            assert not hub.defects()
            assert not await hub.client.admin.quarantined()
            return found

    return simulate(whole)


@pytest.mark.rows("K27", "K36")
def test_what_a_run_waits_for_reaches_it_though_it_was_sent_behind_the_next_start() -> None:
    async def play(hub: World, _: list[Any]) -> Any:
        await hub.client.start("crosses", instance_id="one")
        return (await hub.wait("one")).output

    assert played(play) == "[1,2]"


@pytest.mark.rows("K27", "K36")
@pytest.mark.parametrize("how", ["fire and forget", "earlier generation"])
def test_an_event_for_a_child_is_not_given_to_an_earlier_child_that_the_sender_does_not_await(how: str) -> None:
    async def play(hub: World, _: list[Any]) -> Any:
        await hub.client.start("forgets", how, instance_id="one")
        return (await hub.wait("one")).output

    assert played(play, lease=RARE_RENEWALS) == '"second: for the second"'


@pytest.mark.rows("K27", "K36")
def test_events_for_an_endless_run_do_not_wait_for_starts_that_nobody_waits_for() -> None:
    async def play(hub: World, ran: list[Any]) -> Any:
        await hub.client.start("feeds", 0, instance_id="one")
        await hub.wait("one")
        await hub.clock.sleep(1.0)
        return ran

    assert played(play) == [0, 1, 2, 3]


@pytest.mark.rows("K27", "K36")
@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("seconds", [8.0, 8.7, 9.4, 10.05, 10.3, 10.8])
def test_an_event_behind_a_start_that_waits_is_kept_whenever_the_run_before_it_ends(seconds: float, dies: bool) -> None:
    """Between the start's look and its own too, and though whoever knew that it waits for a start has died."""

    async def play() -> Any:
        async with World(app([])) as hub:
            first = await hub.join("first")
            await hub.client.start("waits", instance_id="child")
            await hub.clock.sleep(1.0)
            await hub.client.start("tells", [1, 0.5], instance_id="one")
            await hub.clock.sleep(seconds)
            if dies:
                await first.bury()
            await hub.client.raise_event("child", "go", "before")
            if dies:
                await hub.join("second")
            output = (await hub.wait("one")).output
            await hub.ended()
            return output

    # who comes anew does not know of the start before it has looked, and the event goes to the run that is there (K36)
    assert simulate(play) in (("1", '"before"') if dies else ("1",))


@pytest.mark.rows("K27", "K36")
def test_an_event_behind_a_start_that_comes_back_late_waits_for_it() -> None:
    """Giving the start back was refused, so that it is hidden for a whole visibility: far behind its own pause."""
    lease = EMBEDDED_LEASE.model_copy(update={"visibility": timedelta(seconds=30)})

    async def play() -> Any:
        async with World(app([]), lease=lease) as hub:
            refusals: list[Call] = []

            def plan(call: Call) -> Fault | None:
                text = call.what.text if isinstance(call.what, UpdateMessage) else None
                event = decode(text).message if text else None
                if refusals or event is None or not isinstance(event.event, ExecutionStarted):
                    return None
                refusals.append(call)
                return refused()

            await hub.join("only", plan=plan)
            await hub.client.start("waits", instance_id="child")
            await hub.clock.sleep(60.0)
            await hub.client.start("tells", [1, 20.0], instance_id="one")
            await hub.clock.sleep(25.0)
            assert refusals
            between = await hub.client.get("child")
            await hub.client.raise_event("child", "go", "before")
            return between is not None and between.status, (await hub.wait("one")).output

    assert simulate(play) == (Status.RUNNING, "1")


@pytest.mark.rows("K27", "K36")
@pytest.mark.parametrize("busy", [False, True], ids=["the first is a parent's", "the first is a client's"])
@pytest.mark.parametrize("gap", [0.1, 0.2, 0.3, 1.0])
def test_parents_that_share_a_child_id_tell_each_its_own(gap: float, busy: bool) -> None:
    async def play(hub: World, _: list[Any]) -> Any:
        if busy:
            await hub.client.start("waits", instance_id="child")
            await hub.clock.sleep(1.0)
        for number in (1, 2, 3):
            await hub.client.start("tells", [number, 0.5], instance_id=f"parent {number}")
            await hub.clock.sleep(gap)
        await hub.clock.sleep(5.0)
        if busy:
            await hub.client.raise_event("child", "go", 0)
        return [(await hub.wait(f"parent {number}")).output for number in (1, 2, 3)]

    assert played(play) == ["1", "2", "3"]


@pytest.mark.rows("K27", "K36")
@pytest.mark.parametrize("seconds", [1.0, 100.0, 260.0, pytest.param(3 * HOUR, marks=pytest.mark.long)])
def test_what_comes_between_the_end_of_a_run_and_the_next_start_is_for_that(seconds: float) -> None:
    """However long it ran: the start looks again before that is discarded."""

    async def play(hub: World, _: list[Any]) -> Any:
        await hub.client.start("again", instance_id="one")
        await hub.clock.sleep(seconds)
        await hub.client.raise_event("child", "go", "first")
        began = hub.clock.monotonic()
        output = (await hub.wait("one", timedelta(hours=4))).output
        return output, hub.clock.monotonic() - began < 150.0

    assert played(play, lease=RARE_RENEWALS) == ('["first","second"]', True)


@pytest.mark.rows("K36")
@pytest.mark.parametrize("seconds", [23.0, pytest.param(3 * HOUR, marks=pytest.mark.long)])
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

    assert played(play, lease=RARE_RENEWALS) == ([0, 1], Status.COMPLETED)


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


@pytest.mark.rows("K26", "K36")
def test_a_start_that_nobody_waits_for_is_run_though_it_comes_again_behind_the_next_generations() -> None:
    """Its worker died in front of its history, and its parent went on meanwhile: there is no answer to go by."""
    ran: list[Any] = []

    async def play() -> Any:
        async with World(
            app(ran), lease=EMBEDDED_LEASE.model_copy(update={"visibility": timedelta(seconds=30)})
        ) as hub:
            machines = [await hub.join("first"), await hub.join("second")]
            await hub.clock.sleep(60.0)
            parent = next(name for name in map(str, range(99)) if partition_of(name, 2) != partition_of("child", 2))
            (its,) = [one for one in machines if one.owner.tenures[0].partition == partition_of("child", 2)]
            its.death = Death(point="history")
            await hub.client.start("rounds", 0, instance_id=parent)
            await hub.wait(parent)
            await hub.ended()
            return its.dead

    assert simulate(play)
    assert sorted(ran) == [0, 1]


@pytest.mark.rows("K30", "K46")
def test_a_run_that_begins_while_the_one_before_it_is_purged_is_not_taken_for_the_purged_one() -> None:
    """It finds no history and the old row, which is gone when it has its own written."""
    ran: list[Any] = []

    def writes_row(call: Call) -> bool:
        rows = call.what.rows if isinstance(call.what, Transact) and call.what.table.endswith("Instances") else ()
        return any(row.entity.partition_key == "child" for row in rows)

    async def play() -> Any:
        async with World(app(ran)) as hub:
            begun = 1e9

            def plan(call: Call) -> Fault | None:
                return late(5.0) if writes_row(call) and 0.0 < hub.clock.monotonic() - begun < 3.0 else None

            await hub.join("only", plan=plan)
            await hub.client.start("twice", instance_id="one")
            await hub.clock.sleep(14.0)
            assert (await hub.wait("child")).status is Status.COMPLETED
            begun = hub.clock.monotonic()
            slow = FaultyStore(hub.store, lambda call: late(4.0) if writes_row(call) else None, clock=hub.clock)
            assert await Client(replace(hub.client.hub, store=slow), hub.settings.lease_times).purge("child")
            assert ran == [1]
            state = await hub.wait("one")
            await hub.ended()
            return state.status, state.failure

    assert simulate(play) == (Status.COMPLETED, None)
    assert set(ran) == {1, 2}
