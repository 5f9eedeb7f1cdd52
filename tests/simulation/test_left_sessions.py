"""With Spark Connect, what a dead worker has left running on the server is found by the activity's record."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.engine.events import FailureDetails
from airflow_provider_taskhub.errors import TaskCancelledError
from airflow_provider_taskhub.hub.model import RecordState
from airflow_provider_taskhub.settings import SparkSettings
from airflow_provider_taskhub.storage.faults import Call, Fault
from airflow_provider_taskhub.storage.primitives import Transact
from airflow_provider_taskhub.workers.executors.attempt_values import ActivityOutcome, ActivityRequest
from airflow_provider_taskhub.workers.executors.executor import ExecutorError
from tests.simulation.world import Attempts, World, running, simulate

MASTER = "sc://spark:15002/;token=s3cret;user_id=etl"


def app() -> App:
    made = App("left")

    @made.spark_activity
    def load(spark: Any, seconds: float) -> str:
        raise AssertionError("the test has a function in its place")

    @made.orchestrator
    async def stoppable(ctx: OrchestrationContext) -> str:
        task = ctx.call_activity(load, 600.0)
        await ctx.wait_for_external_event("stop")
        task.cancel()
        try:
            return await task
        except TaskCancelledError:
            return "cancelled"

    @made.orchestrator
    async def once(ctx: OrchestrationContext, seconds: float) -> str:
        return await ctx.call_activity(load, seconds)

    return made


def is_claim(call: Call) -> bool:
    return isinstance(call.what, Transact) and call.what.table.endswith("Activities")


def world(ran: list[ActivityRequest]) -> World:
    async def load(seconds: float) -> str:
        ran.append(running())
        await asyncio.sleep(seconds)
        return "done"

    return World(app(), functions={"load": load}, spark=SparkSettings(master=MASTER))


@pytest.mark.parametrize("proves", [True, False], ids=["proven-dead", "silent"])
def test_the_next_attempt_ends_the_session_of_a_dead_worker(proves: bool) -> None:
    ran: list[ActivityRequest] = []

    async def play() -> Any:
        async with world(ran) as hub:
            one = await hub.join("one", proves=proves)
            await hub.client.start("once", 3.0, instance_id="i")
            while not ran:
                await hub.clock.sleep(0.05)
            at_start = await hub.client.instance("i").activities()
            one.die()
            await hub.join("two", proves=proves)
            await hub.wait("i")
            return at_start, await hub.client.instance("i").activities()

    at_start, records = simulate(play)
    first, second = ran
    assert [record.spark_session for record in at_start] == [first.spark_session], "stored before the activity runs"
    assert [record.job_group for record in at_start] == [f"taskhub-{first.action_id}-1"]
    assert (first.spark_session or "").startswith("sc://spark:15002/;user_id=etl;session_id=")
    assert "s3cret" not in (first.spark_session or "")
    assert first.left_sessions == ()
    assert second.left_sessions == (first.spark_session,)
    assert second.spark_session not in (None, first.spark_session), "an ended session cannot be used again"
    assert [(record.state, record.spark_session) for record in records] == [
        (RecordState.LOST, first.spark_session),
        (RecordState.COMPLETED, second.spark_session),
    ]


def test_a_death_right_after_the_claim_leaves_the_name_of_the_session() -> None:
    """The server may have the session though no code of the attempt was seen running."""
    ran: list[ActivityRequest] = []

    async def play() -> Any:
        async with world(ran) as hub:
            await hub.join("two", roles=("orchestrator",))
            one = await hub.join(
                "one", roles=("activity",), plan=lambda call: Fault(pause=60.0) if is_claim(call) else None
            )
            await hub.client.start("once", 3.0, instance_id="i")
            while not (records := await hub.client.instance("i").activities()):
                await hub.clock.sleep(0.01)
            one.die()
            assert not ran
            await hub.join("three", roles=("activity",))
            await hub.wait("i")
            return records

    (claimed,) = simulate(play)
    assert claimed.spark_session is not None
    assert [request.left_sessions for request in ran] == [(claimed.spark_session,)]


def test_nothing_is_left_of_an_attempt_that_has_an_outcome() -> None:
    """A rewind runs the activity again beside the record of its failure, which has ended its session itself."""
    ran: list[ActivityRequest] = []

    async def load(seconds: float) -> str:
        ran.append(running())
        if len(ran) == 1:
            raise RuntimeError("once")
        return "done"

    async def play() -> Any:
        async with World(app(), functions={"load": load}, spark=SparkSettings(master=MASTER)) as hub:
            await hub.join("one")
            await hub.client.start("once", 0.1, instance_id="i")
            await hub.wait("i")
            await hub.client.rewind("i", "again")
            await hub.wait("i")
            return await hub.client.instance("i").activities()

    records = simulate(play)
    assert [record.state for record in records] == [RecordState.FAILED, RecordState.COMPLETED]
    assert [request.left_sessions for request in ran] == [(), ()]


def test_a_cancelled_attempt_of_a_dead_worker_is_ended_though_no_attempt_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[ActivityRequest] = []
    ended: list[str] = []

    async def end_sessions(self: Attempts, sessions: tuple[str, ...]) -> None:
        ended.extend(sessions)

    monkeypatch.setattr(Attempts, "end_sessions", end_sessions)

    async def play() -> Any:
        async with world(ran) as hub:
            one, _ = await hub.join("one", roles=("activity",)), await hub.join("two", roles=("orchestrator",))
            await hub.client.start("once", 600.0, instance_id="i")
            while not ran:
                await hub.clock.sleep(0.05)
            one.die()
            await hub.client.terminate("i", "enough")
            await hub.join("three", roles=("activity",))
            async with asyncio.timeout(300):
                await hub.client.terminate("i", "enough", wait=True)
            return await hub.client.instance("i").activities()

    records = simulate(play)
    assert [record.state for record in records] == [RecordState.CANCELLED]
    assert ended == [ran[0].spark_session]


def test_a_cancelled_call_is_answered_when_the_session_of_its_dead_attempt_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server answers at the fourth try only. Until then the job may still run."""
    ran: list[ActivityRequest] = []
    tries = 0

    async def end_sessions(self: Attempts, sessions: tuple[str, ...]) -> None:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise ExecutorError("the server does not answer")

    monkeypatch.setattr(Attempts, "end_sessions", end_sessions)

    async def play() -> Any:
        async with world(ran) as hub:
            one, _ = await hub.join("one", roles=("activity",)), await hub.join("two", roles=("orchestrator",))
            await hub.client.start("stoppable", instance_id="i")
            while not ran:
                await hub.clock.sleep(0.05)
            one.die()
            await hub.client.raise_event("i", "stop")
            await hub.join("three", roles=("activity",))
            assert (await hub.wait("i")).output == '"cancelled"'
            return await hub.client.instance("i").activities()

    records = simulate(play)
    assert [record.state for record in records] == [RecordState.CANCELLED]
    assert tries == 4
    assert len(ran) == 1


def test_a_cancel_before_the_left_session_is_ended_ends_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cancel ends the wait for the server, and no later attempt would end the session."""
    ran: list[ActivityRequest] = []
    ended: list[str] = []

    async def end_sessions(self: Attempts, sessions: tuple[str, ...]) -> None:
        ended.extend(sessions)

    monkeypatch.setattr(Attempts, "end_sessions", end_sessions)

    async def play() -> None:
        async with world(ran) as hub:
            one, _ = await hub.join("one", roles=("activity",)), await hub.join("two", roles=("orchestrator",))
            await hub.client.start("once", 600.0, instance_id="i")
            while not ran:
                await hub.clock.sleep(0.05)
            one.die()
            await hub.join("three", roles=("activity",))
            while len(ran) < 2:
                await hub.clock.sleep(0.05)
            async with asyncio.timeout(300):
                await hub.client.terminate("i", "enough", wait=True)

    simulate(play)
    assert ended == [ran[0].spark_session]


def test_an_attempt_that_fails_because_its_executors_died_ends_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """No attempt follows. Each earlier one is lost, so the attempt after it ends its session."""
    ran: list[ActivityRequest] = []
    ended: list[str] = []

    async def run(self: Attempts, request: ActivityRequest, **more: Any) -> ActivityOutcome:
        ran.append(request)
        return ActivityOutcome(failure=FailureDetails(error_type="Killed", error_message="died"), crashed=True)

    async def end_sessions(self: Attempts, sessions: tuple[str, ...]) -> None:
        ended.extend(sessions)

    monkeypatch.setattr(Attempts, "run", run)
    monkeypatch.setattr(Attempts, "end_sessions", end_sessions)

    async def play() -> Any:
        async with world(ran) as hub:
            await hub.join("one")
            await hub.client.start("once", 3.0, instance_id="i")
            await hub.wait("i")
            return await hub.client.instance("i").activities()

    records = simulate(play)
    assert [record.state for record in records] == [RecordState.LOST, RecordState.LOST, RecordState.FAILED]
    assert [request.left_sessions for request in ran][-1] == tuple(request.spark_session for request in ran[:-1])
    assert ended == [ran[-1].spark_session]
