"""A terminate that leaves time for a clean-up: the code is interrupted, cleans up, and the instance ends Terminated."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext, TaskCancelledError, TerminationRequested
from airflow_provider_taskhub.engine import grace
from airflow_provider_taskhub.engine.children import reports_end, unfinished
from airflow_provider_taskhub.engine.episode import Outbound
from airflow_provider_taskhub.engine.events import (
    EventRaised,
    EventSent,
    ExecutionCompleted,
    ExecutionResumed,
    ExecutionSuspended,
    ExecutionTerminated,
    HistoryEvent,
    OrchestratorStarted,
    Status,
    TaskScheduled,
    TimerCreated,
    TimerFired,
)
from airflow_provider_taskhub.engine.registry import Registry
from airflow_provider_taskhub.engine.replay import Execution
from airflow_provider_taskhub.engine.retry import RetryPolicy
from airflow_provider_taskhub.engine.validation import TERMINATE_EVENT, grace_seconds
from airflow_provider_taskhub.errors import InputError
from tests.engine import play as stage
from tests.engine.play import Play

PLAYS: list[Play] = []

CANCELLED = {"error_type": TaskCancelledError.__name__, "is_non_retriable": True}


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Close what a test leaves behind: else Python tells that its clean-up awaits something."""
    yield
    for play in PLAYS:
        play.live.close()
    PLAYS.clear()


def played(function: Callable[..., Any]) -> tuple[Play, list[str]]:
    play, said = stage.played(function)
    PLAYS.append(play)
    return play, said


def asked(play: Play, seconds: int | None = 60, *, reason: str = "too late", recurse: bool = True) -> HistoryEvent:
    return ExecutionTerminated(timestamp=play.now, input=reason, taskhub_recurse=recurse or None, taskhub_grace=seconds)


def sent(play: Play, name: str) -> Outbound:
    """The newest message with a name."""
    return next(one for one in reversed(play.outbound) if getattr(one.event, "name", "") == name)


def names(play: Play) -> list[str]:
    """The activities that have been called so far."""
    return [one.event.name for one in play.outbound if isinstance(one.event, TaskScheduled)]


def cancels(play: Play) -> list[str]:
    return [one.name for one in play.past if isinstance(one, EventSent) and one.taskhub_cancels is not None]


def ended(play: Play, output: str = "too late") -> None:
    assert (play.last.status, play.last.output) == (Status.TERMINATED, output)
    assert isinstance(play.past[-2], ExecutionCompleted)
    assert not any(isinstance(event, ExecutionTerminated) for event in play.past)


def deadline(play: Play) -> TimerFired:
    """The end of the time for the clean-up; the clock of the worker is set to it."""
    (timer,) = (
        one for one in play.outbound if isinstance(one.event, TimerFired) and one.event.timer_id == _deadline(play)
    )
    assert isinstance(timer.event, TimerFired)
    play.now = timer.event.fire_at
    return timer.event


def _deadline(play: Play) -> int:
    return next(one.event_id for one in play.past if isinstance(one, TimerCreated) and one.taskhub_role == grace.ROLE)


async def cluster(ctx: OrchestrationContext) -> Any:
    await ctx.call_activity("open")
    try:
        return await ctx.call_activity("work")
    finally:
        await ctx.call_activity("close")


def in_work(function: Any = cluster) -> tuple[Play, list[str]]:
    play, said = played(function)
    play.take(play.done(sent(play, "open")))
    return play, said


class Test_the_code:
    @pytest.mark.rows("D63")
    def test_cleans_up_when_what_it_awaited_has_ended(self) -> None:
        play, said = in_work()
        play.take(asked(play))
        assert (play.last.status, cancels(play), names(play)) == (Status.RUNNING, ["cancel work"], ["open", "work"])
        play.take(play.failed(sent(play, "work"), "cancelled", **CANCELLED))
        assert names(play) == ["open", "work", "close"]
        play.take(play.done(sent(play, "close")))
        ended(play)
        assert said == []

    def test_the_history_has_the_request_as_an_event(self) -> None:
        """An ExecutionTerminated in the history of an instance that goes on would mislead other readers."""
        play, _ = in_work()
        play.take(asked(play))
        (event,) = (one for one in play.past if isinstance(one, EventRaised))
        assert event.name == TERMINATE_EVENT
        assert json.loads(event.input or "") == {"reason": "too late", "grace": 60, "recurse": True}
        (timer,) = (one for one in play.past if isinstance(one, TimerCreated))
        assert timer.fire_at == play.now + timedelta(seconds=60)

    def test_an_activity_that_has_finished_first_is_no_reason_to_go_on(self) -> None:
        play, said = in_work()
        play.take(asked(play))
        play.take(play.done(sent(play, "work"), 7))
        play.take(play.done(sent(play, "close")))
        ended(play)
        assert said == []

    @pytest.mark.parametrize("how", ["returns", "raises again", "continues as new"])
    def test_catches_the_error(self, how: str) -> None:
        async def work(ctx: OrchestrationContext) -> Any:
            try:
                await ctx.wait_for_external_event("never")
            except TerminationRequested as error:
                left = error.deadline - ctx.current_utc_datetime
                await ctx.call_activity("close", [error.reason, left.total_seconds()])
                if how == "raises again":
                    raise
                if how == "continues as new":
                    ctx.continue_as_new()
            return "done"

        play, said = played(work)
        play.take(asked(play))
        event = sent(play, "close").event
        assert isinstance(event, TaskScheduled)
        assert event.input == '[["too late",60.0]]'
        play.take(play.done(sent(play, "close")))
        ended(play)
        assert said == []

    def test_no_except_of_an_exception_catches_it(self) -> None:
        async def work(ctx: OrchestrationContext) -> None:
            for _ in range(3):
                try:
                    await ctx.call_activity("open")
                except Exception:
                    continue

        play, said = played(work)
        play.take(asked(play))
        play.take(play.failed(sent(play, "open"), "cancelled", **CANCELLED))
        ended(play)
        assert said == []

    def test_the_cancellation_of_asyncio_does(self) -> None:
        async def work(ctx: OrchestrationContext) -> str:
            try:
                await ctx.create_timer(timedelta(days=1))
            except asyncio.CancelledError as error:
                return str(error)
            return ""

        play, _ = played(work)
        play.take(asked(play))
        ended(play)

    def test_without_a_reason(self) -> None:
        async def work(ctx: OrchestrationContext) -> None:
            await ctx.create_timer(timedelta(days=1))

        play, _ = played(work)
        play.take(asked(play, reason=""))
        ended(play, "")

    def test_a_failure_of_the_clean_up_is_told(self) -> None:
        play, said = in_work()
        play.take(asked(play))
        play.take(play.failed(sent(play, "work"), "cancelled", **CANCELLED))
        play.take(play.failed(sent(play, "close"), "no such cluster"))
        ended(play)
        (text,) = said
        assert text.startswith("orchestrator 'work' failed in its clean-up: no such cluster")

    def test_a_generator_gets_the_error_at_its_yield(self) -> None:
        def work(ctx: OrchestrationContext) -> Generator[Any, Any, None]:
            yield ctx.call_activity("open")
            try:
                yield ctx.call_activity("work")
            finally:
                yield ctx.call_activity("close")

        play, said = in_work(work)
        play.take(asked(play))
        play.take(play.failed(sent(play, "work"), "cancelled", **CANCELLED))
        assert names(play) == ["open", "work", "close"]
        play.take(play.done(sent(play, "close")))
        ended(play)
        assert said == []

    def test_limits_and_scopes_let_it_pass(self) -> None:
        async def work(ctx: OrchestrationContext) -> None:
            async with ctx.timeout(30), ctx.cancel_scope():
                try:
                    await ctx.call_activity("work")
                except TerminationRequested:
                    with pytest.raises(TimeoutError):
                        async with ctx.timeout(5):
                            await ctx.call_activity("close")
                    raise

        play, said = played(work)
        play.take(asked(play))
        play.take(play.failed(sent(play, "work"), "cancelled", **CANCELLED))
        play.wait(seconds=5)
        play.take(next(one.event for one in reversed(play.outbound) if isinstance(one.event, TimerFired)))
        assert cancels(play) == ["cancel work", "cancel close"]
        play.take(play.failed(sent(play, "close"), "cancelled", **CANCELLED))
        ended(play)
        assert said == []

    def test_a_limit_that_is_over_while_it_waits_for_the_end_of_an_activity_does_not_hide_it(self) -> None:
        async def work(ctx: OrchestrationContext) -> None:
            try:
                async with ctx.timeout(30):
                    await ctx.call_activity("work")
            except TimeoutError:
                await ctx.call_activity("next")

        play, _ = played(work)
        limit = next(one.event for one in play.outbound if isinstance(one.event, TimerFired))
        play.take(asked(play))
        play.wait(seconds=30)
        play.take(limit)
        play.take(play.failed(sent(play, "work"), "cancelled", **CANCELLED))
        ended(play)

    def test_what_waits_for_its_retry_is_not_tried_again(self) -> None:
        async def work(ctx: OrchestrationContext) -> None:
            try:
                await ctx.call_activity("work", retry=RetryPolicy(max_attempts=3, first_retry_interval=timedelta(5)))
            finally:
                await ctx.call_activity("close")

        play, _ = played(work)
        play.take(play.failed(sent(play, "work")))
        play.take(asked(play))
        assert names(play) == ["work", "close"]

    def test_waits_and_timers_end(self) -> None:
        async def work(ctx: OrchestrationContext) -> None:
            wait, timer = ctx.wait_for_external_event("go"), ctx.create_timer(timedelta(days=1))
            try:
                await ctx.when_any([wait, timer])
            finally:
                for task in (wait, timer):
                    with pytest.raises(TaskCancelledError):
                        await task
                assert await ctx.wait_for_external_event("go") == 7

        play, said = played(work)
        play.take(asked(play))
        assert [one.name for one in play.last.awaits.events] == ["go"]
        play.take(play.raised("go", 7))
        ended(play)
        assert said == []


class Test_branches:
    def test_clean_up_before_the_orchestrator_does(self) -> None:
        async def part(ctx: OrchestrationContext, name: str) -> None:
            try:
                await ctx.call_activity(f"work {name}")
            finally:
                await ctx.call_activity(f"close {name}")

        async def work(ctx: OrchestrationContext) -> None:
            try:
                await ctx.when_all([ctx.branch(part(ctx, name)) for name in "ab"])
            finally:
                await ctx.call_activity("close")

        play, said = played(work)
        play.take(asked(play))
        assert cancels(play) == ["cancel work a", "cancel work b"]
        play.take(play.failed(sent(play, "work b"), "cancelled", **CANCELLED))
        assert names(play) == ["work a", "work b"]
        play.take(play.done(sent(play, "work a")))
        assert names(play)[2:] == ["close a", "close b"]
        play.take(play.done(sent(play, "close a")))
        assert names(play)[4:] == []
        play.take(play.done(sent(play, "close b")))
        assert names(play)[4:] == ["close"]
        play.take(play.done(sent(play, "close")))
        ended(play)
        assert said == []

    def test_one_that_waits_for_another_one(self) -> None:
        async def inner(ctx: OrchestrationContext) -> None:
            await ctx.create_timer(timedelta(days=1))

        async def outer(ctx: OrchestrationContext) -> None:
            await ctx.branch(inner(ctx))

        async def work(ctx: OrchestrationContext) -> None:
            await ctx.branch(outer(ctx))

        play, said = played(work)
        play.take(asked(play))
        ended(play)
        assert said == []


class Test_the_deadline:
    def test_ends_the_instance(self) -> None:
        play, said = in_work()
        play.take(asked(play))
        play.take(play.failed(sent(play, "work"), "cancelled", **CANCELLED))
        play.take(deadline(play))
        ended(play)
        (text,) = said
        assert text.startswith("orchestrator 'work' has not ended its clean-up within 60 s, at test_grace.py:")

    def test_names_the_cancelled_calls_for_which_the_clean_up_has_waited(self) -> None:
        async def work(ctx: OrchestrationContext) -> None:
            await ctx.when_all([ctx.call_activity(name) for name in ("load", "send")])

        play, said = played(work)
        play.take(asked(play))
        play.take(deadline(play))
        ended(play)
        (text,) = said
        begins = "orchestrator 'work' has not begun its clean-up within 60 s: it waited for the end of the cancelled "
        assert text.startswith(f"{begins}activity 'load' at test_grace.py:")
        assert text.endswith(" and 1 more")

    def test_ends_code_that_goes_on(self) -> None:
        async def work(ctx: OrchestrationContext) -> None:
            while True:
                with suppress(TerminationRequested):
                    await ctx.wait_for_external_event("next")

        play, _ = played(work)
        play.take(asked(play))
        play.take(play.raised("next"))
        assert play.last.status is Status.RUNNING
        play.take(deadline(play))
        ended(play)

    def test_begins_when_the_orchestrator_handles_the_request(self) -> None:
        """No clock of another machine counts."""
        play, _ = in_work()
        event = asked(play)
        play.wait(hours=3)
        play.take(event)
        (timer,) = (one for one in play.past if isinstance(one, TimerCreated))
        assert timer.fire_at == play.now + timedelta(seconds=60)

    def test_ends_it_without_its_code(self) -> None:
        play, _ = in_work()
        play.take(asked(play))
        execution = Execution(Registry.of([App("other")]), play.past, instance=play.instance)
        late = deadline(play)
        assert execution.ends(late)
        episode = execution.terminate([late], now=play.now)
        assert (episode.status, episode.output) == (Status.TERMINATED, "too late")

    def test_runs_on_because_no_suspension_is_taken(self) -> None:
        """The clean-up would lose its time, and nobody would learn that it has not ended."""
        play, _ = in_work()
        play.take(asked(play))
        play.take(ExecutionSuspended(timestamp=play.now))
        ((_, why),) = play.last.stale
        assert why == "the orchestration cleans up after a terminate, and cannot be suspended"
        assert (play.last.history, play.last.status) == ((), Status.RUNNING)
        play.take(play.failed(sent(play, "work"), "cancelled", **CANCELLED))
        play.take(ExecutionSuspended(timestamp=play.now), play.done(sent(play, "close")))
        ended(play)

    def test_no_other_timer_ends_it(self) -> None:
        play, _ = in_work()
        play.take(asked(play))
        other = TimerFired(timestamp=play.now, timer_id=0, fire_at=play.now)
        assert not Execution(play.registry, play.past, instance=play.instance).ends(other)


class Test_other_requests:
    def test_the_first_one_counts(self) -> None:
        play, _ = in_work()
        play.take(asked(play))
        play.take(asked(play, 5, reason="again"))
        ((_, why),) = play.last.stale
        assert why == "the orchestration was asked to end before, and the first request counts"
        play.take(play.failed(sent(play, "work"), "cancelled", **CANCELLED))
        play.take(play.done(sent(play, "close")))
        ended(play)

    def test_a_terminate_without_time_ends_it_at_once(self) -> None:
        play, _ = in_work()
        play.take(asked(play))
        play.take(asked(play, None, reason="now"))
        assert (play.last.status, play.last.output) == (Status.TERMINATED, "now")

    @pytest.mark.parametrize("seconds", [0, -1, 6 * 86_400 + 1])
    def test_a_time_that_is_none_is_a_terminate_without_time(self, seconds: int) -> None:
        play, _ = in_work()
        play.take(asked(play, seconds))
        assert play.last.status is Status.TERMINATED

    @pytest.mark.parametrize("text", [None, "", "7", "{}", '{"grace":true}', '{"grace":60,"reason":1}', "[" * 100_000])
    def test_an_event_of_this_name_that_is_no_request_has_no_effect(self, text: str | None) -> None:
        play, _ = in_work()
        play.take(EventRaised(timestamp=play.now, name=TERMINATE_EVENT, input=text))
        assert play.last.status is Status.RUNNING
        assert cancels(play) == []

    @pytest.mark.parametrize("suspended", [False, True])
    def test_after_continue_as_new_the_next_generation_gets_it(self, suspended: bool) -> None:
        async def work(ctx: OrchestrationContext) -> None:
            try:
                await ctx.wait_for_external_event("next")
            except TerminationRequested:
                await ctx.call_activity("close")
            ctx.continue_as_new()

        play, said = played(work)
        play.take(play.raised("next"), *[ExecutionSuspended(timestamp=play.now)] * suspended, asked(play))
        assert play.last.switched
        assert names(play) == ["close"]
        play.take(play.done(sent(play, "close")))
        ended(play)
        assert said == []

    def test_the_clean_up_of_an_async_generator_that_was_left_goes_on(self) -> None:
        async def pages(ctx: OrchestrationContext) -> Any:
            try:
                yield await ctx.call_activity("page")
            finally:
                await ctx.call_activity("leave page")

        async def work(ctx: OrchestrationContext) -> None:
            async for _ in pages(ctx):
                break
            await ctx.wait_for_external_event("next")

        play, said = played(work)
        play.take(play.done(sent(play, "page")))
        assert names(play) == ["page", "leave page"]
        left = sent(play, "leave page")
        play.take(asked(play))
        assert cancels(play) == []
        play.take(play.done(left))
        ended(play)
        assert said == []

    def test_together_with_the_start(self) -> None:
        app = App("played")
        app.orchestrator(name="work")(cluster)
        play = Play(app)
        play.start("work", with_events=[asked(play)])
        assert cancels(play) == ["cancel open"]
        play.take(play.failed(sent(play, "open"), "cancelled", **CANCELLED))
        ended(play)


class Test_a_suspended_instance:
    def test_is_resumed_and_cleans_up_but_does_not_go_on(self) -> None:
        """What had come meanwhile does not run the code before it is interrupted."""
        play, said = in_work()
        play.take(ExecutionSuspended(timestamp=play.now))
        play.take(play.done(sent(play, "work"), 7))
        play.take(asked(play))
        assert [type(one) for one in play.past[-6:-2]] == [
            OrchestratorStarted,
            EventRaised,
            ExecutionResumed,
            TimerCreated,
        ]
        assert play.last.status is Status.RUNNING
        assert (names(play), cancels(play)) == (["open", "work", "close"], [])
        play.take(play.done(sent(play, "close")))
        ended(play)
        assert said == []

    def test_a_later_resume_cancels_nothing(self) -> None:
        play, _ = in_work()
        play.take(asked(play))
        play.take(play.failed(sent(play, "work"), "cancelled", **CANCELLED))
        play.take(ExecutionResumed(timestamp=play.now))
        assert cancels(play) == ["cancel work"]
        play.take(play.done(sent(play, "close")))
        ended(play)

    def test_that_has_run_nothing_yet(self) -> None:
        app = App("played")
        app.orchestrator(name="work")(cluster)
        play = Play(app)
        play.start("work", with_events=[ExecutionSuspended(timestamp=play.now)])
        play.take(asked(play))
        assert cancels(play) == ["cancel open"]
        play.take(play.failed(sent(play, "open"), "cancelled", **CANCELLED))
        ended(play)


async def parent(ctx: OrchestrationContext) -> None:
    try:
        await ctx.call_sub_orchestrator("child")
    finally:
        await ctx.call_activity("close")


class Test_children:
    def test_are_asked_to_end_with_the_same_time(self) -> None:
        play, _ = played(parent)
        run = sent(play, "child").target
        play.take(asked(play))
        (message,) = (one for one in play.outbound if isinstance(one.event, ExecutionTerminated))
        event = message.event
        assert isinstance(event, ExecutionTerminated)
        assert (event.taskhub_grace, event.taskhub_recurse, event.taskhub_child) == (60, True, "child")
        assert event.input == "its parent 'play-1' was terminated: too late"
        assert (message.target.instance_id, event.taskhub_execution_id) == (run.instance_id, run.execution_id)
        assert names(play) == ["close"]
        play.take(play.done(sent(play, "close")))
        ended(play)
        assert not play.last.outbound, "the child goes on with its clean-up"
        assert [one.name for one in unfinished(play.past, cancelled=True)] == ["child"]

    def test_end_at_once_with_a_terminate_without_time(self) -> None:
        play, _ = played(parent)
        play.take(asked(play))
        play.take(asked(play, None, reason="now"))
        (message,) = (one.event for one in play.last.outbound)
        assert isinstance(message, ExecutionTerminated)
        assert message.taskhub_grace is None

    def test_go_on_if_the_request_is_for_the_parent_alone(self) -> None:
        play, _ = played(parent)
        play.take(asked(play, recurse=False))
        play.take(play.done(sent(play, "close")))
        ended(play)
        assert not [one for one in play.outbound if isinstance(one.event, ExecutionTerminated)]

    def test_of_earlier_generations_are_asked_too(self) -> None:
        async def work(ctx: OrchestrationContext) -> None:
            if ctx.get_input() is None:
                ctx.call_sub_orchestrator("child")
                ctx.continue_as_new(1)
                return
            await ctx.wait_for_external_event("never")

        play, _ = played(work)
        play.take(asked(play))
        ended(play)
        (message,) = (one.event for one in play.last.outbound)
        assert isinstance(message, ExecutionTerminated)
        assert (message.taskhub_grace, message.taskhub_child) == (60, "child")

    def test_of_the_clean_up_are_terminated_at_the_deadline(self) -> None:
        async def work(ctx: OrchestrationContext) -> None:
            try:
                await ctx.wait_for_external_event("never")
            finally:
                await ctx.call_sub_orchestrator("closing")

        play, _ = played(work)
        play.take(asked(play))
        play.take(deadline(play))
        ended(play)
        (message,) = (one.event for one in play.last.outbound)
        assert isinstance(message, ExecutionTerminated)
        assert (message.taskhub_grace, message.taskhub_child) == (None, "closing")

    def test_do_not_answer_the_parent_that_has_asked(self) -> None:
        told = {"reason": "x", "grace": 60, "recurse": True}
        play = Play(App("any"))
        own = EventRaised(timestamp=play.now, name=TERMINATE_EVENT, input=json.dumps(told))
        parents = EventRaised(timestamp=play.now, name=TERMINATE_EVENT, input=json.dumps({**told, "child": "c"}))
        assert reports_end([own])
        assert not reports_end([parents])


@pytest.mark.parametrize("name", ["taskhub.terminate", "TaskHub.Terminate"])
def test_user_code_cannot_wait_for_the_request_or_send_it(name: str) -> None:
    async def work(ctx: OrchestrationContext) -> str:
        said = []
        for call in (lambda: ctx.wait_for_external_event(name), lambda: ctx.send_event("other", name)):
            try:
                call()
            except InputError as error:
                said.append(str(error))
        return "; ".join(said)

    play, _ = played(work)
    text = f"{name!r} is TaskHub's own event: choose another name, or call terminate with grace"
    assert json.loads(play.last.output or "") == f"wait_for_external_event: {text}; send_event: {text}"


@pytest.mark.parametrize("given", [timedelta(0), timedelta(seconds=-1), timedelta(days=6, seconds=1), 60])
def test_a_wrong_time_is_refused(given: Any) -> None:
    with pytest.raises(InputError, match="grace is "):
        grace_seconds(given)


def test_a_time_is_rounded_up_to_seconds() -> None:
    assert [grace_seconds(one) for one in (None, timedelta(milliseconds=1), timedelta(days=6))] == [None, 1, 518_400]
