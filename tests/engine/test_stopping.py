"""A child whose parent has cancelled it: no code of it runs, and it ends with the last answer to its calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.engine.events import (
    EventSent,
    ExecutionResumed,
    ExecutionStarted,
    ExecutionSuspended,
    ExecutionTerminated,
    FailureDetails,
    HistoryEvent,
    OrchestrationInstance,
    ParentInstance,
    Status,
    SubOrchestrationInstanceFailed,
)
from airflow_provider_taskhub.engine.registry import Registry
from airflow_provider_taskhub.engine.replay import run
from airflow_provider_taskhub.errors import TaskCancelledError
from tests.engine.play import Play

PARENT = ParentInstance(
    name="year", instance=OrchestrationInstance(instance_id="year", execution_id="f" * 32), task_schedule_id=7
)
WHY = "its parent 'year' has cancelled it"
CANCELLED = {"error_type": TaskCancelledError.__name__, "is_non_retriable": True}


async def month(ctx: OrchestrationContext) -> str:
    load = ctx.call_activity("load")
    week = ctx.call_sub_orchestrator("week", instance_id="week")
    ctx.call_sub_orchestrator("mail", instance_id="mail", fire_and_forget=True)
    await ctx.wait_for_external_event("go")
    ctx.call_activity("never")
    await ctx.when_all([load, week])
    return "done"


def stage() -> Play:
    app = App("stage")
    app.orchestrator(name="month")(month)
    play = Play(app)
    play.start("month", parent=PARENT)
    return play


def cancel(play: Play) -> ExecutionTerminated:
    """What the parent sends."""
    return ExecutionTerminated(
        timestamp=play.now,
        input=WHY,
        taskhub_execution_id=play.instance.execution_id,
        taskhub_recurse=True,
        taskhub_child="month",
        taskhub_cancels=PARENT.task_schedule_id,
    )


def answers(play: Play) -> dict[str, HistoryEvent]:
    """The answers to the two calls that the child waits for."""
    load, week = [one for one in play.outbound if getattr(one.event, "name", "") in ("load", "week")]
    start = week.event
    assert isinstance(start, ExecutionStarted)
    assert start.parent is not None
    ended = SubOrchestrationInstanceFailed(
        timestamp=play.now,
        task_scheduled_id=start.parent.task_schedule_id,
        failure=FailureDetails(error_type="Terminated", error_message="cancelled"),
        taskhub_action_id=start.instance.execution_id,
    )
    return {"load": play.failed(load, **CANCELLED), "week": ended}


def told(play: Play) -> list[Any]:
    """What the parent was told."""
    return [
        (one.target, one.event.task_scheduled_id, one.event.failure.error_type)
        for one in play.outbound
        if isinstance(one.event, SubOrchestrationInstanceFailed) and one.event.failure is not None
    ]


@pytest.mark.rows("D61")
def test_its_calls_are_cancelled_and_it_tells_its_parent_after_the_last_answer() -> None:
    play = stage()
    play.take(cancel(play))
    assert play.last.status is Status.RUNNING
    assert [(one.name, one.taskhub_cancels) for one in play.last.history if isinstance(one, EventSent)] == [
        ("cancel load", 0),
        ("cancel week", 1),
    ]
    assert (play.last.awaits.activities, play.last.awaits.child_ids) == (("load",), ("week",))
    (message,) = play.last.outbound
    assert isinstance(message.event, ExecutionTerminated)
    assert (message.target.instance_id, message.event.taskhub_cancels, message.event.taskhub_recurse) == (
        "week",
        1,
        True,
    )
    for name, answer in answers(play).items():
        assert told(play) == [], name
        play.take(answer)
    assert (play.last.status, play.last.output) == (Status.TERMINATED, WHY)
    assert told(play) == [(PARENT.instance, 7, "Terminated")]


@pytest.mark.rows("D61")
def test_no_code_runs_and_no_event_is_kept() -> None:
    """The event would let the code call another activity. A worker that lacks the code ends the child, too."""
    play = stage()
    play.registry = Registry.of([])
    play.take(cancel(play))
    play.take(play.raised("go"))
    assert play.last.history == ()
    assert [reason for _, reason in play.last.stale] == [
        "its parent has cancelled the orchestration, so its code runs no more"
    ]
    play.take(*answers(play).values())
    assert play.last.status is Status.TERMINATED


def test_nothing_that_it_gets_twice_or_from_elsewhere_ends_it() -> None:
    play = stage()
    play.take(cancel(play))
    found = answers(play)
    play.take(found["load"])
    play.take(found["load"], cancel(play), replace(found["week"], taskhub_action_id="e" * 32))
    assert (play.last.history, len(play.last.stale)) == ((), 3)
    play.take(found["week"])
    assert play.last.status is Status.TERMINATED


def test_a_wrong_answer_beside_the_right_one_does_not_hide_it() -> None:
    play = stage()
    play.take(cancel(play))
    found = answers(play)
    wrong = replace(found["week"], taskhub_action_id="e" * 32)
    play.take(wrong, found["week"], found["week"], found["load"])
    assert ([event for event, _ in play.last.stale], play.last.status) == ([wrong, found["week"]], Status.TERMINATED)


def test_one_with_nothing_open_ends_at_once_begun_or_not() -> None:
    play = stage()
    play.take(*answers(play).values(), cancel(play))
    assert play.last.status is Status.TERMINATED
    other = Play(App("stage"))
    other.start("month", parent=PARENT, with_events=[cancel(other)])
    assert [type(one).__name__ for one in other.last.history] == [
        "OrchestratorStarted",
        "ExecutionStarted",
        "EventRaised",
        "ExecutionCompleted",
        "OrchestratorCompleted",
    ]
    assert told(other) == [(PARENT.instance, 7, "Terminated")]


def test_a_suspended_one_goes_on_to_its_end() -> None:
    play = stage()
    play.take(ExecutionSuspended(timestamp=play.now, reason="wait"))
    assert play.last.status is Status.SUSPENDED
    play.take(cancel(play))
    assert play.last.status is Status.RUNNING
    assert any(isinstance(event, ExecutionResumed) for event in play.last.history)
    play.take(ExecutionSuspended(timestamp=play.now, reason="again"))
    assert play.last.history == ()
    play.take(*answers(play).values())
    assert play.last.status is Status.TERMINATED


def test_a_terminate_ends_it_at_once_and_its_parent_is_told() -> None:
    play = stage()
    play.take(cancel(play))
    play.take(ExecutionTerminated(timestamp=play.now, input="enough", taskhub_recurse=True))
    assert (play.last.status, play.last.output) == (Status.TERMINATED, "enough")
    assert [one.target.instance_id for one in play.last.outbound] == ["year", "week"]


def cleaner(ended: list[str]) -> Play:
    """One that was asked to end, and cleans up: its first activity has ended, and it awaits that of its clean-up."""
    app = App("stage")

    @app.orchestrator(name="month")
    async def tidies(ctx: OrchestrationContext) -> None:
        try:
            await ctx.when_all([ctx.call_activity("load"), ctx.call_sub_orchestrator("week", instance_id="week")])
        finally:
            await ctx.call_activity("tidy")
            ended.append("tidy")

    play = Play(app)
    play.start("month", parent=PARENT)
    play.take(ExecutionTerminated(timestamp=play.now, input="late", taskhub_recurse=True, taskhub_grace=600))
    play.take(answers(play)["load"])
    assert play.last.awaits.activities == ("tidy",)
    return play


def test_the_clean_up_of_one_that_was_asked_to_end_before_ends() -> None:
    ended: list[str] = []
    play = cleaner(ended)
    play.registry = Registry.of([])
    play.take(cancel(play))
    assert [(one.name, one.taskhub_cancels) for one in play.last.history if isinstance(one, EventSent)] == [
        ("cancel tidy", 5)
    ]
    (message,) = play.last.outbound
    assert isinstance(message.event, ExecutionTerminated)
    assert (message.target.instance_id, message.event.taskhub_grace, message.event.taskhub_cancels) == (
        "week",
        None,
        None,
    ), "it has been asked to clean up, and does not answer"
    assert (play.last.status, play.last.awaits.activities) == (Status.RUNNING, ("tidy",))
    play.take(cancel(play))
    assert (play.last.history, play.last.outbound) == ((), ())
    (tidy,) = [one for one in play.outbound if getattr(one.event, "name", "") == "tidy"]
    play.take(play.failed(tidy, **CANCELLED))
    assert (play.last.status, play.last.output, told(play)) == (
        Status.TERMINATED,
        WHY,
        [(PARENT.instance, 7, "Terminated")],
    )
    assert ended == []


def test_a_cancel_counts_before_the_request_that_came_with_it() -> None:
    play = stage()
    play.take(ExecutionTerminated(timestamp=play.now, input="late", taskhub_grace=600), cancel(play))
    assert [type(one.event).__name__ for one in play.last.outbound] == ["ExecutionTerminated"]
    play.take(*answers(play).values())
    assert (play.last.status, play.last.output) == (Status.TERMINATED, WHY)


def test_the_parent_that_is_terminated_itself_is_not_told() -> None:
    play = stage()
    play.take(cancel(play))
    play.take(replace(cancel(play), input="enough", taskhub_cancels=None))
    assert play.last.status is Status.TERMINATED
    assert told(play) == []


def test_the_custom_status_of_its_code_stays() -> None:
    """Also if the row must be repaired: the replay ends where the code has ended."""
    app = App("stage")

    @app.orchestrator(name="month")
    async def shows(ctx: OrchestrationContext) -> None:
        ctx.set_custom_status("loads")
        await ctx.call_activity("load")
        ctx.set_custom_status("never")

    play = Play(app)
    play.start("month", parent=PARENT)
    play.take(cancel(play))
    assert play.last.custom_status == '"loads"'
    play.live.close()
    assert play.live.recall() == '"loads"'
    again = run(play.registry, play.past, [play.raised("x")], instance=play.instance, now=play.now)
    assert again.history == ()
