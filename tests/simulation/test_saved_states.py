"""What an activity saves reaches the next attempt of its call, and no other call."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from airflow_provider_taskhub.activity import ActivityCancelled
from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.errors import TaskCancelledError
from airflow_provider_taskhub.hub.model import RecordState
from airflow_provider_taskhub.storage.faults import Call, Fault, refused
from airflow_provider_taskhub.storage.primitives import RowVerb, Transact
from tests.simulation.world import World, running, saves, simulate


def app(*, clean_up: bool = False) -> App:
    made = App("saved")

    @made.activity(record=True, clean_up=clean_up)
    def submit(number: int) -> str:
        raise AssertionError("the test has a function in its place")

    @made.orchestrator
    async def once(ctx: OrchestrationContext, number: int) -> str:
        return await ctx.call_activity(submit, number)

    @made.orchestrator
    async def stoppable(ctx: OrchestrationContext, number: int) -> str:
        task = ctx.call_activity(submit, number)
        await ctx.wait_for_external_event("stop")
        task.cancel()
        try:
            return await task
        except TaskCancelledError:
            return "cancelled"

    @made.orchestrator
    async def raising(ctx: OrchestrationContext, number: int) -> str:
        ctx.call_activity(submit, number)
        await ctx.wait_for_external_event("stop")
        raise RuntimeError("no rows")

    return made


def is_renewal(call: Call) -> bool:
    what = call.what
    return isinstance(what, Transact) and what.table.endswith("Activities") and what.rows[0].verb is RowVerb.REPLACE


@pytest.mark.parametrize("proves", [True, False], ids=["proven-dead", "silent"])
def test_the_next_attempt_after_a_death_has_the_state(proves: bool) -> None:
    found: list[str | None] = []

    async def submit(number: int) -> str:
        found.append(running().saved)
        if len(found) == 1:
            await saves('{"job":1}')
            await saves('{"job":2}')
            found.append("stored")
            await asyncio.sleep(100.0)
        return "done"

    async def play() -> Any:
        async with World(app(), functions={"submit": submit}) as hub:
            one = await hub.join("one", proves=proves)
            await hub.client.start("once", 0, instance_id="i")
            while "stored" not in found:
                await hub.clock.sleep(0.05)
            one.die()  # right after the answer: what was answered is stored
            await hub.join("two", proves=proves)
            await hub.wait("i")
            return await hub.client.instance("i").activities()

    records = simulate(play)
    assert found == [None, "stored", '{"job":2}']
    assert [record.saved for record in records] == ['{"job":2}', '{"job":2}']


def test_nothing_is_answered_before_it_is_stored() -> None:
    """Writes into the record fail for a while."""
    answered: list[float] = []
    down = [True]

    async def submit(number: int) -> str:
        await saves("1")
        answered.append(asyncio.get_running_loop().time())
        return "done"

    def plan(call: Call) -> Fault | None:
        return refused() if down[0] and is_renewal(call) else None

    async def play() -> Any:
        async with World(app(), functions={"submit": submit}) as hub:
            await hub.join("one", plan=plan)
            await hub.client.start("once", 0, instance_id="i")
            await hub.clock.sleep(2.0)
            assert not answered
            down[0] = False
            await hub.wait("i")
            return await hub.client.instance("i").activities()

    (record,) = simulate(play)
    assert (record.saved, len(answered)) == ("1", 1)


def test_the_call_after_a_rewind_begins_without_a_state() -> None:
    found: list[str | None] = []

    async def submit(number: int) -> str:
        found.append(running().saved)
        await saves('"mine"')
        if len(found) == 1:
            raise RuntimeError("once")
        return "done"

    async def play() -> Any:
        async with World(app(), functions={"submit": submit}) as hub:
            await hub.join("one")
            await hub.client.start("once", 0, instance_id="i")
            await hub.wait("i")
            await hub.client.rewind("i", "again")
            await hub.wait("i")

    simulate(play)
    assert found == [None, None]


# what a dead worker has left running elsewhere, and nobody wants


class Jobs:
    """Another system: the activity starts a job there and waits for it. :ivar events: what happened, in order."""

    def __init__(self, *, broken: int = 0) -> None:
        self.events: list[str] = []
        self._broken = broken

    async def submit(self, number: int) -> str:
        request = running()
        if request.clean_up:
            if self._broken:
                self._broken -= 1
                raise RuntimeError("the other system does not answer")
            self.events.append(f"kill {request.saved}")
            raise ActivityCancelled("stopped")
        if request.saved is None:
            self.events.append("start 7")
            await saves("7")
        self.events.append("wait for 7")
        await asyncio.sleep(600.0)
        return "done"


async def left(world: World, jobs: Jobs, orchestrator: str) -> None:
    """Let a worker die while it waits for the job. No worker with activities is there afterwards."""
    await world.join("two", roles=("orchestrator",))
    one = await world.join("one", roles=("activity",))
    await world.client.start(orchestrator, 0, instance_id="i")
    while "wait for 7" not in jobs.events:
        await world.clock.sleep(0.05)
    one.die()


@pytest.mark.parametrize("early", [True, False], ids=["before-the-end", "after-the-end"])
def test_a_terminate_after_a_death_ends_what_the_dead_worker_has_left(early: bool) -> None:
    jobs = Jobs()

    async def play() -> Any:
        async with World(app(clean_up=True), functions={"submit": jobs.submit}) as world:
            await left(world, jobs, "once")
            if early:  # the record of the dead worker is marked, or found silent
                await world.client.terminate("i", "enough")
            await world.clock.sleep(100.0)
            if not early:
                await world.client.terminate("i", "enough")
                await world.clock.sleep(1.0)
            await world.join("three", roles=("activity",))
            await world.clock.sleep(100.0)
            return await world.client.instance("i").activities()

    (record,) = simulate(play)
    assert jobs.events == ["start 7", "wait for 7", "kill 7"]
    assert (record.state, record.saved) == (RecordState.CANCELLED, None)


def test_a_cancelled_call_is_answered_when_what_the_dead_worker_has_left_has_ended() -> None:
    """The other system does not answer twice."""
    jobs = Jobs(broken=2)

    async def play() -> Any:
        async with World(app(clean_up=True), functions={"submit": jobs.submit}) as world:
            await left(world, jobs, "stoppable")
            await world.client.raise_event("i", "stop")
            await world.clock.sleep(30.0)
            await world.join("three", roles=("activity",))
            return (await world.wait("i")).output

    assert simulate(play) == '"cancelled"'
    assert jobs.events == ["start 7", "wait for 7", "kill 7"]


def test_what_a_rewind_may_go_on_with_is_left_running() -> None:
    jobs = Jobs()

    async def play() -> None:
        async with World(app(clean_up=True), functions={"submit": jobs.submit}) as world:
            await left(world, jobs, "raising")
            await world.client.raise_event("i", "stop")
            await world.wait("i")
            await world.join("three", roles=("activity",))
            await world.clock.sleep(100.0)

    simulate(play)
    assert jobs.events == ["start 7", "wait for 7"]


def test_an_activity_that_does_not_ask_for_it_is_not_called_to_clean_up() -> None:
    jobs = Jobs()

    async def play() -> None:
        async with World(app(), functions={"submit": jobs.submit}) as world:
            await left(world, jobs, "once")
            await world.client.terminate("i", "enough")
            await world.join("three", roles=("activity",))
            await world.clock.sleep(200.0)

    simulate(play)
    assert jobs.events == ["start 7", "wait for 7"]
