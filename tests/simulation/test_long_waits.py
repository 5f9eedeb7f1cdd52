"""What takes longer than a message can hide: activities through a bad store, timers of weeks (K37, K39, K40)."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, RetryPolicy
from airflow_provider_taskhub.engine.context import OrchestrationContext
from airflow_provider_taskhub.engine.events import Status, TaskFailed, TimerCreated, TimerFired
from airflow_provider_taskhub.errors import Unavailable
from airflow_provider_taskhub.hub.model import RecordState
from airflow_provider_taskhub.settings import LeaseTimes
from airflow_provider_taskhub.storage.faults import Call, Fault, throttled
from airflow_provider_taskhub.storage.primitives import Unit
from tests.simulation.world import PLAYED, WHOLE, World, simulate


def app_of(ran: Counter[str]) -> App:
    app = App("long")

    @app.activity
    async def plain(name: str) -> str:
        ran[name] += 1
        await asyncio.sleep(40.0)
        return name

    @app.activity(record=True)
    async def kept(name: str) -> str:
        ran[name] += 1
        await asyncio.sleep(40.0)
        return name

    @app.orchestrator
    async def long(ctx: OrchestrationContext, kind: str) -> str:
        found = await ctx.call_activity(kind, "a")
        await ctx.create_timer(timedelta(minutes=2))  # a work item that came again now would be run again
        return found

    @app.orchestrator
    async def patient(ctx: OrchestrationContext, days: float) -> float:
        began = ctx.current_utc_datetime
        await ctx.create_timer(timedelta(days=days))
        return (ctx.current_utc_datetime - began).total_seconds()

    return app


@pytest.mark.rows("K37", "K39")
@pytest.mark.parametrize("kind", ["plain", "kept"])
@pytest.mark.parametrize("others", [0, 1], ids=["alone", "with another"])
def test_an_activity_outlives_a_time_without_renewals(kind: str, others: int) -> None:
    """For 15 s, far longer than the visibility of 4 s, no renewal gets through: its message is delivered again.

    To the same worker: the new receipt is adopted. To another: only a record keeps that one from running it too.
    """
    ran: Counter[str] = Counter()

    async def play() -> Any:
        async with World(app_of(ran)) as world:
            deaf: list[bool] = [False]
            failed = 0

            def plan(call: Call) -> Fault | None:
                nonlocal failed
                if not deaf[0] or call.kind != "queue.update":
                    return None
                failed += 1
                return Fault(before=Unavailable("deaf", maybe_done=False))

            await world.join("one", plan=plan)
            await world.client.start("long", kind, instance_id="one")
            await world.clock.sleep(3.0)
            for number in range(others):
                await world.join(f"other-{number}")
            deaf[0] = True
            await world.clock.sleep(15.0)
            deaf[0] = False
            state = await world.wait("one")
            await world.settle()
            await world.ended()
            said = [entry for entry in world.said("renewal_failed") if entry["queue"].endswith("workitems")]
            return state.output, failed, len(said)

    output, failed, said = simulate(play)
    assert output == '"a"'
    assert failed > 5
    assert said == 1, "an outage is one line a minute"
    assert ran["a"] == 1 or (kind == "plain" and others)


@pytest.mark.rows("K40", "K59")
@pytest.mark.parametrize("days", [6.5, 12.25])
@pytest.mark.long
def test_a_timer_of_weeks_fires_once_and_never_early(days: float) -> None:
    hour = timedelta(hours=1)  # nothing else happens meanwhile, so that it can be played
    times = LeaseTimes(renew=hour, give_up=2 * hour, take=3 * hour, scan=hour, visibility=hour)

    async def play() -> Any:
        async with World(app_of(Counter()), lease=times, max_polling=hour, session_idle=hour) as world:
            await world.join("one")
            await world.client.start("patient", days, instance_id="one")
            await world.clock.sleep(days * 86_400 - 1.0)
            before = await world.client.get("one")
            state = await world.wait("one")
            await world.ended()
            return before, state, await world.client.instance("one").history()

    before, state, history = simulate(lambda: play(), limit=timedelta(days=60))
    assert before.status is Status.RUNNING
    assert days * 86_400 <= float(state.output) < days * 86_400 + 3
    assert sum(isinstance(event, TimerFired) for event in history) == (2 if days < 7 else 3)
    assert all(
        event.fire_at - event.timestamp <= timedelta(days=6) for event in history if isinstance(event, TimerCreated)
    ), "no message hides longer than a queue allows"


@pytest.mark.rows("D08", "D10")
@pytest.mark.parametrize("kind", ["retry", "limit"])
@pytest.mark.parametrize("away", [10.0, 100.0])
def test_a_delay_goes_on_while_no_worker_is_there(kind: str, away: float) -> None:
    """The retry, or the end of the limit, is due a minute after it was decided, and at once if that minute is over."""
    app, tries = App("delays"), list[float]()

    @app.activity
    def shaky() -> None:
        tries.append(asyncio.get_running_loop().time())
        if len(tries) == 1:
            raise ValueError("once")

    @app.orchestrator
    async def retry(ctx: OrchestrationContext) -> None:
        minute = RetryPolicy(max_attempts=2, first_retry_interval=timedelta(minutes=1))
        await ctx.call_activity(shaky, retry=minute)

    @app.orchestrator
    async def limit(ctx: OrchestrationContext) -> None:
        with suppress(TimeoutError):
            async with ctx.timeout(60):
                await ctx.wait_for_external_event("never")

    async def play() -> float:
        async with World(app, partitions=1) as world:
            first = await world.join("first")
            began = world.clock.monotonic()
            await world.client.start(kind, instance_id="one")
            await world.clock.sleep(3.0)
            await first.bury()
            await world.clock.sleep(away)
            await world.join("second")
            await world.wait("one")
            return round(world.clock.monotonic() - began, 6)

    there = 3.0 + away + PLAYED.take.total_seconds() + 2 * PLAYED.scan.total_seconds()
    assert 60.0 <= simulate(play) < max(60.0, there) + 2.0
    assert len(tries) == (2 if kind == "retry" else 0)


@pytest.mark.rows("D10")
def test_a_delay_goes_on_while_the_store_refuses_the_checkpoint_that_begins_it() -> None:
    app, refusals = App("delays"), list[float]()

    @app.orchestrator
    async def patient(ctx: OrchestrationContext) -> None:
        await ctx.create_timer(timedelta(minutes=1))

    def plan(call: Call) -> Fault | None:
        unit = call.what if isinstance(call.what, Unit) else None
        hidden = (
            [one for step in unit.steps for one in step.operations if getattr(one, "visibility", None)] if unit else []
        )
        if not hidden or len(refusals) == 2:
            return None
        refusals.append(asyncio.get_running_loop().time())
        return throttled(20.0)

    async def play() -> float:
        async with World(app, partitions=1, place=WHOLE) as world:
            await world.join("one", plan=plan)
            await world.client.start("patient", instance_id="one")
            await world.wait("one")
            return round(asyncio.get_running_loop().time() - refusals[0], 3)

    assert 60.0 <= simulate(play) < 62.0
    assert refusals[1] - refusals[0] >= 20.0


@pytest.mark.rows("D34")
@pytest.mark.parametrize("record", [True, False])
def test_a_timeout_may_warn_first_and_fails_an_activity_as_timed_out(record: bool) -> None:
    """The limit of the orchestrator warns, and the activity goes on. Its own timeout comes as the executor tells it."""
    app = App("timeouts")

    @app.activity(record=record)
    async def slow() -> None:
        await asyncio.sleep(5.0)
        raise TimeoutError("activity 'slow' ran longer than its timeout of 5 s and was stopped")

    @app.orchestrator
    async def warns(ctx: OrchestrationContext) -> None:
        task = ctx.call_activity(slow)
        try:
            async with ctx.timeout(2):
                await task
        except TimeoutError:
            ctx.set_custom_status("late")
        await task

    async def play() -> tuple[Any, ...]:
        async with World(app, partitions=1) as world:
            await world.join("only")
            await world.client.start("warns", instance_id="one")
            await world.clock.sleep(3.0)
            warned = await world.client.get("one")
            ended = await world.wait("one")
            one = world.client.instance("one")
            failed = [event.failure for event in await one.history() if isinstance(event, TaskFailed)]
            return warned, ended, failed, [attempt.state for attempt in await one.activities()]

    warned, ended, (failure,), records = simulate(play)
    assert (warned.status, warned.custom_status, ended.status) == (Status.RUNNING, '"late"', Status.FAILED)
    assert (failure.error_type, "longer than its timeout" in ended.output) == ("TimeoutError", True)
    assert records == ([RecordState.FAILED] if record else [])
