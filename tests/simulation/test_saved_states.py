"""What an activity saves reaches the next attempt of its call, and no other call."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.engine.events import FailureDetails
from airflow_provider_taskhub.errors import TaskCancelledError
from airflow_provider_taskhub.hub.model import RecordState
from airflow_provider_taskhub.storage.faults import Call, Fault, refused
from airflow_provider_taskhub.storage.primitives import RowVerb, Transact
from airflow_provider_taskhub.workers.executors.attempt_values import ActivityOutcome, ActivityProgress, ActivityRequest
from tests.simulation.world import Attempts, World, running, saves, simulate


def app(*, clean_up: bool = False) -> App:
    made = App("saved")

    @made.activity(record=True, clean_up=clean_up)
    def submit(number: int) -> str:
        raise AssertionError("the test has a function in its place")

    @made.activity
    def check() -> None:
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
        task = ctx.call_activity(submit, number)
        await ctx.wait_for_external_event("stop")
        await ctx.call_activity(check)
        return await task

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

    def __init__(self, *, broken: int = 0, slow: float = 0.0) -> None:
        self.events: list[str] = []
        self._broken, self._slow, self._checks = broken, slow, 0

    async def check(self) -> None:
        """Fail once."""
        self._checks += 1
        if self._checks == 1:
            raise RuntimeError("no rows")

    async def submit(self, number: int) -> str:
        request = running()
        if request.clean_up:
            if self._broken:
                self._broken -= 1
                raise RuntimeError("the other system does not answer")
            if self._slow:
                self.events.append("kill begins")
                await asyncio.sleep(self._slow)
            self.events.append(f"kill {request.saved}")
            return "ended"
        if request.saved is None:
            self.events.append("start 7")
            await saves("7")
        self.events.append("wait for 7")
        await asyncio.sleep(600.0)
        return "done"


async def left(world: World, jobs: Jobs, orchestrator: str, *, dies: bool = True) -> None:
    """Let a worker die, or stop, while it waits for the job. No worker with activities is there afterwards."""
    await world.join("two", roles=("orchestrator",))
    one = await world.join("one", roles=("activity",))
    await world.client.start(orchestrator, 0, instance_id="i")
    while "wait for 7" not in jobs.events:
        await world.clock.sleep(0.05)
    if dies:
        one.die()
    else:
        await one.stop()


async def failed(world: World, jobs: Jobs) -> None:
    """Let an instance fail while its activity waits for the job. Then the worker of the activity dies."""
    await world.join("two", roles=("orchestrator",))
    one = await world.join("one", roles=("activity",))
    await world.client.start("raising", 0, instance_id="i")
    while "wait for 7" not in jobs.events:
        await world.clock.sleep(0.05)
    await world.client.raise_event("i", "stop")
    await world.wait("i")
    one.die()
    await world.join("three", roles=("activity",))


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


@pytest.mark.parametrize("dies", [True, False], ids=["dies", "stops"])
def test_a_cancelled_call_is_answered_when_what_its_worker_has_left_has_ended(dies: bool) -> None:
    """The other system does not answer twice."""
    jobs = Jobs(broken=2)

    async def play() -> Any:
        async with World(app(clean_up=True), functions={"submit": jobs.submit}) as world:
            await left(world, jobs, "stoppable", dies=dies)
            await world.clock.sleep(10.0)
            await world.client.raise_event("i", "stop")
            await world.clock.sleep(30.0)
            state = await world.client.get("i", payloads=False)
            assert state is not None
            assert not state.status.is_final, "nobody has ended it yet"
            await world.join("three", roles=("activity",))
            return (await world.wait("i")).output

    assert simulate(play) == '"cancelled"'
    assert jobs.events == ["start 7", "wait for 7", "kill 7"]


def test_after_a_failure_nothing_is_left_and_a_rewind_begins_anew() -> None:
    jobs = Jobs()

    async def play() -> None:
        async with World(app(clean_up=True), functions={"submit": jobs.submit, "check": jobs.check}) as world:
            await failed(world, jobs)
            await world.clock.sleep(100.0)
            assert jobs.events == ["start 7", "wait for 7", "kill 7"]
            await world.client.rewind("i", "again")
            await world.clock.sleep(100.0)

    simulate(play)
    assert jobs.events[3:] == ["start 7", "wait for 7"]


def test_an_attempt_that_is_cancelled_before_it_begins_ends_what_an_earlier_one_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs, waits = Jobs(), asyncio.Event()
    run = Attempts.run

    async def without_executor(self: Attempts, request: ActivityRequest, **more: Any) -> ActivityOutcome:
        if request.attempt == 2 and not request.clean_up:
            waits.set()
            await asyncio.sleep(600.0)  # all executors are busy
        return await run(self, request, **more)

    monkeypatch.setattr(Attempts, "run", without_executor)

    async def play() -> Any:
        async with World(app(clean_up=True), functions={"submit": jobs.submit}) as world:
            await left(world, jobs, "once")
            await world.join("three", roles=("activity",))
            await waits.wait()
            await world.client.terminate("i", "enough", wait=True)
            await world.clock.sleep(30.0)
            return await world.client.instance("i").activities()

    records = simulate(play)
    assert jobs.events == ["start 7", "wait for 7", "kill 7"]
    assert [record.state for record in records] == [RecordState.LOST, RecordState.CANCELLED]


def test_an_activity_that_fails_because_its_executors_died_ends_what_it_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = Jobs()
    run = Attempts.run

    async def dying(self: Attempts, request: ActivityRequest, **more: Any) -> ActivityOutcome:
        if request.saved is None or request.clean_up:
            with suppress(TimeoutError):
                async with asyncio.timeout(10.0):
                    return await run(self, request, **more)
        return ActivityOutcome(failure=FailureDetails(error_type="Killed", error_message="died"), crashed=True)

    monkeypatch.setattr(Attempts, "run", dying)

    async def play() -> Any:
        async with World(app(clean_up=True), functions={"submit": jobs.submit}) as world:
            await world.join("one")
            await world.client.start("once", 0, instance_id="i")
            await world.wait("i")
            await world.clock.sleep(10.0)
            return await world.client.instance("i").activities()

    records = simulate(play)
    assert [record.state for record in records] == [RecordState.LOST, RecordState.LOST, RecordState.FAILED]
    assert jobs.events == ["start 7", "wait for 7", "kill 7"]


@pytest.mark.parametrize("crashes", [1, 2])
def test_a_clean_up_whose_executor_dies_is_repeated(monkeypatch: pytest.MonkeyPatch, crashes: int) -> None:
    """Another activity in the executor is the cause. The second call is alone there."""
    jobs, alone = Jobs(), list[bool]()
    run = Attempts.run

    async def dying(self: Attempts, request: ActivityRequest, **more: Any) -> ActivityOutcome:
        if request.clean_up:
            alone.append(request.alone)
            if len(alone) <= crashes:
                died = FailureDetails(error_type="Killed", error_message="died")
                return ActivityOutcome(failure=died, crashed=True)
        return await run(self, request, **more)

    monkeypatch.setattr(Attempts, "run", dying)

    async def play() -> None:
        async with World(app(clean_up=True), functions={"submit": jobs.submit}) as world:
            await left(world, jobs, "once")
            await world.client.terminate("i", "enough")
            await world.join("three", roles=("activity",))
            await world.clock.sleep(100.0)

    simulate(play)
    assert jobs.events == ["start 7", "wait for 7", "kill 7"]
    assert alone == [False, *[True] * crashes]


def test_an_attempt_that_came_too_late_has_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its executor has announced it, and has refused to call the function. Then the attempt waits again."""
    jobs, waits = Jobs(), asyncio.Event()
    run, tries = Attempts.run, 0

    async def late(self: Attempts, request: ActivityRequest, **more: Any) -> ActivityOutcome:
        nonlocal tries
        if request.attempt == 2 and not request.clean_up:
            tries += 1
            if tries == 1:
                more["progress"](ActivityProgress(executor="plain-1.1"))
                return ActivityOutcome(too_late=True)
            waits.set()
            await asyncio.sleep(600.0)
        return await run(self, request, **more)

    monkeypatch.setattr(Attempts, "run", late)

    async def play() -> None:
        async with World(app(clean_up=True), functions={"submit": jobs.submit}) as world:
            await left(world, jobs, "once")
            await world.join("three", roles=("activity",))
            await waits.wait()
            await world.client.terminate("i", "enough", wait=True)
            await world.clock.sleep(30.0)

    simulate(play)
    assert jobs.events == ["start 7", "wait for 7", "kill 7"]


def test_an_attempt_whose_executor_is_killed_while_it_stops_has_not_cleaned_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = Jobs()
    run = Attempts.run

    async def hanging(self: Attempts, request: ActivityRequest, **more: Any) -> ActivityOutcome:
        try:
            return await run(self, request, **more)
        except asyncio.CancelledError:
            more["progress"](ActivityProgress(executor="plain-1.1", killed=True))
            raise

    monkeypatch.setattr(Attempts, "run", hanging)

    async def play() -> None:
        async with World(app(clean_up=True), functions={"submit": jobs.submit}) as world:
            await world.join("one")
            await world.client.start("once", 0, instance_id="i")
            while "wait for 7" not in jobs.events:
                await world.clock.sleep(0.05)
            await world.client.terminate("i", "enough", wait=True)
            await world.clock.sleep(30.0)

    simulate(play)
    assert jobs.events == ["start 7", "wait for 7", "kill 7"]


def test_an_attempt_whose_executor_died_when_it_was_cancelled_has_not_cleaned_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is the last attempt: no heartbeat has told its worker of the cancel."""
    jobs, worlds = Jobs(), list[World]()
    run = Attempts.run

    async def dying(self: Attempts, request: ActivityRequest, **more: Any) -> ActivityOutcome:
        if request.clean_up:
            return await run(self, request, **more)
        more["progress"](ActivityProgress(executor="plain-1.1"))
        with suppress(TimeoutError):
            async with asyncio.timeout(10.0):
                await run(self, request, **more)
        if request.attempt == 3:
            handle = worlds[0].client.instance("i")
            await worlds[0].client.terminate("i", "enough")
            while (await handle.activities())[-1].state is not RecordState.CANCELLING:
                await worlds[0].clock.sleep(0.001)
        return ActivityOutcome(failure=FailureDetails(error_type="Killed", error_message="died"), crashed=True)

    monkeypatch.setattr(Attempts, "run", dying)

    async def play() -> Any:
        async with World(app(clean_up=True), functions={"submit": jobs.submit}) as world:
            worlds.append(world)
            await world.join("one")
            await world.client.start("once", 0, instance_id="i")
            await world.wait("i")
            await world.clock.sleep(30.0)
            return await world.client.instance("i").activities()

    assert simulate(play)[-1].state is RecordState.CANCELLED
    assert jobs.events[-1] == "kill 7"
    assert jobs.events.count("kill 7") == 1


def test_an_attempt_that_was_killed_because_of_its_timeout_ends_what_it_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = Jobs()
    run = Attempts.run

    async def killed(self: Attempts, request: ActivityRequest, **more: Any) -> ActivityOutcome:
        if request.clean_up:
            return await run(self, request, **more)
        with suppress(TimeoutError):
            async with asyncio.timeout(10.0):
                await run(self, request, **more)
        failure = FailureDetails(error_type="TimeoutError", error_message="longer than 10 s")
        return ActivityOutcome(failure=failure, killed=True)

    monkeypatch.setattr(Attempts, "run", killed)

    async def play() -> Any:
        async with World(app(clean_up=True), functions={"submit": jobs.submit}) as world:
            await world.join("one")
            await world.client.start("once", 0, instance_id="i")
            await world.wait("i")
            await world.clock.sleep(10.0)
            return await world.client.instance("i").activities()

    (record,) = simulate(play)
    assert record.state is RecordState.FAILED
    assert jobs.events == ["start 7", "wait for 7", "kill 7"]


def test_a_rewind_during_a_clean_up_does_not_go_on_with_what_has_ended() -> None:
    jobs = Jobs(slow=5.0)

    async def play() -> None:
        async with World(app(clean_up=True), functions={"submit": jobs.submit, "check": jobs.check}) as world:
            await failed(world, jobs)
            while "kill begins" not in jobs.events:
                await world.clock.sleep(0.05)
            await world.client.rewind("i", "again")
            await world.clock.sleep(100.0)

    simulate(play)
    assert jobs.events == ["start 7", "wait for 7", "kill begins", "kill 7", "start 7", "wait for 7"]


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
