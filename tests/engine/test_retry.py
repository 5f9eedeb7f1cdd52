"""Retries: DurableTask's rules, as pure values and as recorded events."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_taskhub.app import App, OrchestrationContext, RetryPolicy, TaskFailedError
from airflow_provider_taskhub.engine.events import (
    ExecutionResumed,
    ExecutionSuspended,
    FailureDetails,
    GenericEvent,
    HistoryEvent,
    SubOrchestrationInstanceFailed,
    TaskScheduled,
    TimerCreated,
    TimerFired,
)
from airflow_provider_taskhub.engine.identity import action_id
from airflow_provider_taskhub.engine.recorded import Recorded, retry_of, retry_role
from airflow_provider_taskhub.engine.retry import LONGEST_DELAY, RetryDecision, decide_retry
from airflow_provider_taskhub.errors import ConfigurationError
from tests.engine.play import INSTANCE, START, Play

BROKEN = FailureDetails(error_type="ValueError", error_message="broken")


def verdict(policy: RetryPolicy | None, attempt: int = 0, *, after: float = 0, failure: FailureDetails = BROKEN) -> Any:
    return decide_retry(policy, attempt=attempt, first=START, now=START + timedelta(seconds=after), failure=failure)


@pytest.mark.rows("K49")
class Test_policy:
    def test_delays_grow_up_to_the_cap(self) -> None:
        policy = RetryPolicy(
            max_attempts=9,
            first_retry_interval=timedelta(seconds=2),
            backoff_coefficient=3,
            max_retry_interval=timedelta(seconds=30),
        )
        assert [verdict(policy, k)[1].total_seconds() for k in range(5)] == [2, 6, 18, 30, 30]
        assert verdict(policy, 7)[0] is RetryDecision.AGAIN
        assert verdict(policy, 8) == (RetryDecision.LAST, timedelta(0))

    def test_what_stops_at_once(self) -> None:
        policy = RetryPolicy(max_attempts=5, retry_timeout=timedelta(seconds=10), handle=lambda f: f is not OTHER)
        assert verdict(None)[0] is RetryDecision.STOP
        assert verdict(policy)[0] is RetryDecision.AGAIN
        assert verdict(policy, failure=OTHER)[0] is RetryDecision.STOP
        assert verdict(policy, after=9)[0] is RetryDecision.AGAIN
        assert verdict(policy, after=10)[0] is RetryDecision.STOP
        final = FailureDetails(error_type="ValueError", error_message="bad", is_non_retriable=True)
        assert verdict(policy, failure=final)[0] is RetryDecision.STOP

    @given(st.integers(0, 5000), st.floats(1, 1e6), st.timedeltas(timedelta(microseconds=1), LONGEST_DELAY))
    def test_a_delay_always_fits_a_queue_message(self, attempt: int, factor: float, first: timedelta) -> None:
        policy = RetryPolicy(max_attempts=2, first_retry_interval=first, backoff_coefficient=factor)
        assert timedelta(0) < policy.delay(attempt) <= LONGEST_DELAY

    def test_the_names_of_microsofts_sdk(self) -> None:
        policy = RetryPolicy(first_retry_interval=timedelta(seconds=1), max_number_of_attempts=3)
        assert policy.max_attempts == 3

    @pytest.mark.parametrize(
        ("wrong", "text"),
        [
            ({}, "max_attempts is 0"),
            ({"max_attempts": -1}, "max_attempts is -1"),
            ({"max_attempts": 2, "first_retry_interval": timedelta(0)}, "first_retry_interval is 0:00:00"),
            ({"max_attempts": 2, "first_retry_interval": timedelta(days=10)}, "is 10 days, 0:00:00; give 6 days"),
            ({"max_attempts": 2, "backoff_coefficient": 0.5}, r"backoff_coefficient is 0\.5"),
            ({"max_attempts": 2, "max_retry_interval": timedelta(0)}, "max_retry_interval is 0:00:00"),
            ({"max_attempts": 2, "retry_timeout": timedelta(-1)}, "retry_timeout is -1 day"),
        ],
    )
    def test_values_that_cannot_work(self, wrong: dict[str, Any], text: str) -> None:
        with pytest.raises(ConfigurationError, match=text):
            RetryPolicy(**wrong)


OTHER = FailureDetails(error_type="KeyError", error_message="other")


def app_with(policy: RetryPolicy | None) -> App:
    app = App("retries")

    @app.activity(retry=policy)
    def flaky(x: int) -> int:
        return x

    @app.orchestrator
    async def work(ctx: OrchestrationContext) -> Any:
        try:
            result = await ctx.call_activity(flaky, 1)
        except TaskFailedError as error:
            result = str(error)
        return [result, await ctx.wait_for_external_event("go")]

    return app


def fail_until(play: Play, fails: int) -> None:
    """Fail the newest attempt ``fails`` times, letting the timers between fire."""
    for k in range(fails):
        play.take(play.failed(play.outbound[-1], f"broken {k}"))
        fired = play.outbound[-1].event
        if isinstance(fired, TimerFired):
            play.now = max(play.now, fired.fire_at)
            play.take(fired)


@pytest.mark.rows("K49")
def test_the_activitys_own_policy_is_the_default() -> None:
    play = Play(app_with(RetryPolicy(max_attempts=3, first_retry_interval=timedelta(seconds=4))))
    play.start("work")
    fail_until(play, 2)
    assert play.now == START + timedelta(seconds=8)
    play.answer(5)
    play.take(play.raised("go"))
    assert play.last.output == "[5,null]"


@pytest.mark.rows("D35")
def test_each_retry_is_a_new_attempt_after_its_interval_and_there_are_no_more_than_the_policy_says() -> None:
    policy = RetryPolicy(max_attempts=3, first_retry_interval=timedelta(seconds=4), backoff_coefficient=2)
    play = Play(app_with(policy))
    play.start("work")
    fail_until(play, 3)
    attempts = [event for event in play.past if isinstance(event, TaskScheduled)]
    assert [(event.timestamp - START).total_seconds() for event in attempts] == [0, 4, 12]
    assert len({event.event_id for event in attempts}) == len({event.taskhub_action_id for event in attempts}) == 3
    play.take(play.raised("go"))
    assert play.last.output == '["broken 2",null]', "it was not tried a fourth time"


@pytest.mark.rows("K49")
@pytest.mark.parametrize("new", [None, RetryPolicy(max_attempts=1), RetryPolicy(max_attempts=9)])
@pytest.mark.parametrize("fails", [1, 2, 3])
@pytest.mark.parametrize("without_role", [False, True], ids=["now", "earlier version"])
def test_an_edited_policy_does_not_touch_what_was_recorded(
    new: RetryPolicy | None, fails: int, without_role: bool
) -> None:
    """Three attempts recorded, the last with its dummy timer: replayed so under any other policy."""
    play = Play(app_with(RetryPolicy(max_attempts=3, first_retry_interval=timedelta(seconds=4))))
    play.start("work")
    fail_until(play, fails)
    if fails < 3:
        play.answer(5)
    timers = [event for event in play.past if isinstance(event, TimerCreated)]
    assert [timer.taskhub_role for timer in timers] == ["retry again 0", "retry again 2", "retry last 4"][:fails]
    if without_role:
        play.past = tuple(
            replace(event, taskhub_role=None) if isinstance(event, TimerCreated) else event for event in play.past
        )
    episode = play.replay(app_with(new), play.raised("go", 1))
    assert episode.output == ("[5,1]" if fails < 3 else '["broken 2",1]')


@pytest.mark.rows("K49")
def test_an_edited_policy_holds_for_what_comes() -> None:
    play = Play(app_with(RetryPolicy(max_attempts=3)))
    play.start("work")
    fail_until(play, 1)
    failed = play.failed(play.outbound[-1], "again")
    assert play.replay(app_with(None), failed).outbound == ()
    assert len(play.replay(app_with(RetryPolicy(max_attempts=9)), failed).outbound) == 1


@pytest.mark.rows("K49")
def test_a_retry_held_back_by_a_suspend_is_not_given_up() -> None:
    """The failure is in the history, the timer that follows from it is not: it is decided on resume."""
    play = Play(app_with(RetryPolicy(max_attempts=3)))
    play.start("work")
    play.take(play.failed(play.outbound[0]), ExecutionSuspended(timestamp=START))
    play.take(play.raised("other"))
    assert len(play.outbound) == 1
    play.take(ExecutionResumed(timestamp=START))
    assert isinstance(play.outbound[-1].event, TimerFired)


@pytest.mark.rows("K46", "K49")
def test_a_retry_is_known_however_its_rewinds_were_counted() -> None:
    """The rows of earlier versions have no role. They counted the messages of rewinds: more than rewinds, or fewer."""
    play = Play(app_with(RetryPolicy(max_attempts=3)))
    play.start("work")
    for _ in range(2):
        play.take(GenericEvent(timestamp=START))
    fail_until(play, 1)
    past = play.past
    created, fired = [event for event in past if isinstance(event, TimerCreated | TimerFired)]
    for rewinds in range(3):
        at = created.fire_at.text()
        name = action_id(INSTANCE, created.event_id, "retry again 0", "", input=at, rewinds=rewinds)
        swap: dict[int, HistoryEvent] = {
            id(created): replace(created, taskhub_action_id=name, taskhub_role=None),
            id(fired): replace(fired, taskhub_action_id=name),
        }
        play.past = tuple(swap.get(id(event), event) for event in past)
        assert play.replay(app_with(None), play.raised("go")).completed is None


def test_the_role_of_a_timer_tells_its_retry_whatever_its_identity() -> None:
    """No identity is made for comparison: the row says the verdict and the attempt."""
    timer = TimerCreated(timestamp=START, event_id=7, fire_at=START, taskhub_role=retry_role(RetryDecision.LAST, 3))
    past = Recorded([timer])
    assert past.decision(7, 3, INSTANCE) == (RetryDecision.LAST, START)
    assert past.decision(7, 2, INSTANCE) is None, "another attempt's"
    assert past.decision(8, 3, INSTANCE) is None, "no timer of that number"


@pytest.mark.parametrize("role", ["", "timer", "retry", "retry again", "retry never 3", "retry again x", "again 3"])
def test_a_role_that_cannot_be_read_is_none(role: str) -> None:
    assert retry_of(TimerCreated(timestamp=START, event_id=7, fire_at=START, taskhub_role=role)) is None


def test_a_timer_of_the_users_own_is_no_retry() -> None:
    """Gave up under no policy, then slept: a policy given later must not take that timer for its own."""

    def made(policy: RetryPolicy | None) -> App:
        app = App("sleeps")

        @app.orchestrator
        async def work(ctx: OrchestrationContext) -> Any:
            try:
                await ctx.call_activity("flaky", retry=policy)
            except TaskFailedError:
                await ctx.create_timer(timedelta(seconds=5))
            return "slept"

        return app

    play = Play(made(None))
    play.start("work")
    play.take(play.failed(play.outbound[0]))
    fired = play.outbound[-1].event
    assert play.replay(made(RetryPolicy(max_attempts=3)), fired).output == '"slept"'


def test_of_two_failures_each_keeps_its_own_timer() -> None:
    """The next action of both is the timer; only its identity says whose retry it is."""
    app = App("pair")

    @app.orchestrator
    async def work(ctx: OrchestrationContext) -> Any:
        never, again = ctx.call_activity("never"), ctx.call_activity("again", retry=RetryPolicy(max_attempts=2))
        await ctx.when_any([never])
        return [never.is_failed, await again]

    play = Play(app)
    play.start("work")
    play.take(*(play.failed(outbound) for outbound in play.outbound))
    play.take(play.raised("other"))
    play.now = play.now + timedelta(seconds=5)
    play.take(play.outbound[-1].event)
    play.answer(5)
    assert play.last.output == "[true,5]"


def test_a_handler_that_raises_fails_the_task_with_its_error() -> None:
    def handle(failure: FailureDetails) -> bool:
        raise KeyError(failure.error_message)

    app = App("handles")

    @app.orchestrator
    async def work(ctx: OrchestrationContext) -> Any:
        await ctx.call_activity("flaky", retry=RetryPolicy(max_attempts=3, handle=handle))

    play = Play(app)
    play.start("work")
    play.take(play.failed(play.outbound[0]))
    assert play.last.output == "KeyError: 'broken'"


def test_a_child_is_tried_again_under_a_new_id() -> None:
    app = App("children")

    @app.orchestrator
    async def work(ctx: OrchestrationContext) -> Any:
        return await ctx.call_sub_orchestrator("child", retry_policy=RetryPolicy(max_attempts=2))

    play = Play(app)
    play.start("work")
    first = play.outbound[0].target
    play.take(SubOrchestrationInstanceFailed(timestamp=START, task_scheduled_id=0, reason="no"))
    play.now = play.now + timedelta(seconds=5)
    play.take(play.outbound[-1].event)
    second = play.outbound[-1].target
    assert (first.instance_id, second.instance_id) == tuple(f"{play.instance.execution_id}:{k}" for k in (0, 2))
    assert first.execution_id != second.execution_id
    play.answer("fine")
    assert play.last.output == '"fine"'
