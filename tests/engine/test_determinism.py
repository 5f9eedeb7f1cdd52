"""Code that decides otherwise than its history fails, and the failure names the event and the line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.engine.episode import Episode
from airflow_provider_taskhub.engine.events import ExecutionStarted, Status, TaskCompleted
from airflow_provider_taskhub.engine.registry import Registry
from airflow_provider_taskhub.engine.replay import run
from tests.engine.play import INSTANCE, START, Play


def app_of(function: Callable[..., Any]) -> App:
    app = App("changing")
    app.orchestrator(name="work")(function)
    return app


async def original(ctx: OrchestrationContext) -> Any:
    await ctx.call_activity("extract", 1)
    await ctx.call_activity("load", 2)
    return await ctx.wait_for_external_event("go")


def after_two(changed: Callable[..., Any]) -> Episode:
    """Two activities of the original, then the event, taken by changed code."""
    play = Play(app_of(original))
    play.start("work")
    play.answer()
    play.answer()
    return play.replay(app_of(changed), play.raised("go", 1))


def failure(episode: Episode) -> str:
    assert episode.status is Status.FAILED
    assert episode.completed is not None
    assert episode.completed.failure is not None
    assert episode.completed.failure.error_type == "NonDeterminismError"
    assert episode.completed.failure.is_non_retriable
    assert episode.outbound == ()
    return episode.completed.result or ""


def test_the_same_code_goes_on() -> None:
    assert after_two(original).output == "1"


def test_an_activity_with_another_name_than_in_the_history_fails_with_its_line() -> None:
    async def changed(ctx: OrchestrationContext) -> Any:
        await ctx.call_activity("extract", 1)
        await ctx.call_activity("store", 2)

    text = failure(after_two(changed))
    assert (
        "the history has TaskScheduled 'load' as action 1, but the code decided TaskScheduled 'store' (action 1)"
        in text
    )
    line = changed.__code__.co_firstlineno + 2
    assert f"""test_determinism.py:{line} in changed: `await ctx.call_activity("store", 2)`""" in text


def test_an_action_of_another_kind_than_in_the_history_fails() -> None:
    async def changed(ctx: OrchestrationContext) -> Any:
        await ctx.call_activity("extract", 1)
        await ctx.call_sub_orchestrator("load", 2)

    assert "but the code decided SubOrchestrationInstanceCreated 'load' (action 1)" in failure(after_two(changed))


def test_less_than_the_history_has() -> None:
    async def helper(ctx: OrchestrationContext) -> Any:
        return await ctx.wait_for_external_event("go")

    async def changed(ctx: OrchestrationContext) -> Any:
        await ctx.call_activity("extract", 1)
        return await helper(ctx)

    text = failure(after_two(changed))
    assert "the history has TaskScheduled 'load' as action 1 here, but the code waited at test_determinism.py" in text
    assert """in helper: `return await ctx.wait_for_external_event("go")` and had decided 1 actions by then""" in text


def test_code_that_returns_before_an_action_of_the_history_fails() -> None:
    async def changed(ctx: OrchestrationContext) -> Any:
        await ctx.call_activity("extract", 1)
        return "early"

    assert "TaskScheduled 'load' as action 1 here, but the code had ended" in failure(after_two(changed))


def test_more_than_the_history_has() -> None:
    """DurableTask.Core would take the extra activity for a new one, and run it."""

    async def changed(ctx: OrchestrationContext) -> Any:
        await ctx.call_activity("extract", 1)
        await ctx.call_activity("load", 2)
        ctx.call_activity("check", 3)
        return await ctx.wait_for_external_event("go")

    text = failure(after_two(changed))
    assert "the code decided TaskScheduled 'check' (action 2) at test_determinism.py" in text
    assert "but the history goes on without it" in text


def test_another_input_is_no_other_decision() -> None:
    """A record that grew a field must not break instances under way."""

    async def changed(ctx: OrchestrationContext) -> Any:
        await ctx.call_activity("Extract", {"more": 1})
        await ctx.call_activity("load")
        return await ctx.wait_for_external_event("go")

    assert after_two(changed).output == "1"


def test_the_completion_comes_after_every_action_of_the_history() -> None:
    async def changed(ctx: OrchestrationContext) -> Any:
        return None

    episode = after_two(changed)
    failure(episode)
    assert episode.completed is not None
    assert episode.completed.event_id == 2
    assert [event.event_type.name for event in episode.history] == [
        *("OrchestratorStarted", "ExecutionCompleted", "OrchestratorCompleted")
    ]


def test_code_that_ends_where_the_history_waits_for_nothing_more_completes() -> None:
    """A .NET orchestration waits for its open timers; ours is complete at once."""

    async def changed(ctx: OrchestrationContext) -> Any:
        await ctx.call_activity("extract", 1)
        await ctx.call_activity("load", 2)
        return "done"

    episode = after_two(changed)
    assert (episode.status, episode.output) == (Status.COMPLETED, '"done"')


def test_code_that_rolls_dice_is_found() -> None:
    names = iter(["a", "b", "c"])

    async def dice(ctx: OrchestrationContext) -> Any:
        await ctx.call_activity(next(names))

    app = app_of(dice)
    start = ExecutionStarted(timestamp=START, instance=INSTANCE, name="work")
    first = run(Registry.of([app]), (), [start], instance=INSTANCE, now=START)
    done = TaskCompleted(timestamp=START, task_scheduled_id=0)
    again = run(Registry.of([app]), first.history, [done], instance=INSTANCE, now=START)
    assert "'a' as action 0, but the code decided TaskScheduled 'b'" in failure(again)
