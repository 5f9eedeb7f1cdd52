"""Code that decides otherwise than its history fails, and the failure names the event and the line."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.engine.episode import Episode
from airflow_provider_taskhub.engine.events import (
    ExecutionResumed,
    ExecutionStarted,
    ExecutionSuspended,
    Status,
    TaskCompleted,
)
from airflow_provider_taskhub.engine.registry import Registry
from airflow_provider_taskhub.engine.replay import run
from tests.engine.play import INSTANCE, START, Play, plain


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


async def kinds(ctx: OrchestrationContext) -> Any:
    """Each kind of decision that has an input or a receiver."""
    ctx.call_activity("extract", {"day": 1, "paths": ["a", "b"]})
    ctx.call_sub_orchestrator("child", "x", instance_id="child-1")
    ctx.call_sub_orchestrator("child", "x")
    ctx.send_event("other", "ready", 1)
    ctx.call_activity("load", "long" * 1000)
    ctx.call_sub_orchestrator("child")
    ctx.call_activity("plain")
    return await ctx.wait_for_external_event("go")


def after_kinds(**changes: Any) -> Episode:
    """The same decisions as of :func:`kinds`, but some have other values."""
    given = {
        "extract": {"day": 1, "paths": ["a", "b"]},
        "child": "child-1",
        "input": "x",
        "default": None,
        "receiver": "other",
        "data": 1,
        "load": "long" * 1000,
    } | changes

    async def changed(ctx: OrchestrationContext) -> Any:
        ctx.call_activity("Extract", given["extract"])
        ctx.call_sub_orchestrator("child", given["input"], instance_id=given["child"], version="9")
        ctx.call_sub_orchestrator("child", "x", instance_id=given["default"])
        ctx.send_event(given["receiver"], "ready", given["data"])
        ctx.call_activity("load", given["load"], version="2", tags={"a": "b"})
        ctx.call_sub_orchestrator("child", **given.get("none", {}))
        ctx.call_activity("plain", *given.get("plain", ()))
        return await ctx.wait_for_external_event("go")

    play = Play(app_of(kinds))
    play.start("work")
    return play.replay(app_of(changed), play.raised("go", 1))


def test_the_same_inputs_and_receivers_go_on_also_with_other_versions_and_tags() -> None:
    assert after_kinds().output == "1"
    assert after_kinds(none={"input": None}, plain=[None]).output == "1"


@pytest.mark.parametrize(
    ("change", "recorded", "decided"),
    [
        (
            {"extract": {"day": 2, "paths": ["a", "b"]}},
            'TaskScheduled \'extract\' as action 0 with the input {"day":1,"paths":["a","b"]},',
            'the input {"day":2,"paths":["a","b"]}',
        ),
        ({"extract": {"day": 1, "paths": ["a"]}}, "the input {", 'the input {"day":1,"paths":["a"]}'),
        ({"extract": {"hour": 1, "paths": ["a", "b"]}}, "the input {", "the input {"),
        ({"extract": [1]}, "the input {", "the input [1]"),
        ({"child": "child-2"}, "Created 'child' as action 1 with the instance id 'child-1',", "instance id 'child-2'"),
        ({"input": ["y"]}, 'as action 1 with the input "x",', 'the input ["y"]'),
        ({"default": "own"}, f"as action 2 with the instance id '{INSTANCE.execution_id}:2',", "the instance id 'own'"),
        ({"receiver": "third"}, "EventSent 'ready' as action 3 with the receiver 'other',", "the receiver 'third'"),
        ({"data": 2}, "EventSent 'ready' as action 3 with the data 1,", "the data 2"),
        (
            {"load": "other" * 1000},
            "TaskScheduled 'load' as action 4 with another input, which is longer than the history keeps,",
            "… (5,002 characters)",
        ),
        ({"load": 1}, "as action 4 with another input, which is longer than the history keeps,", "the input 1"),
        ({"none": {"input": 1}}, "as action 5 with no input,", "the input 1"),
        ({"plain": [1]}, "as action 6 with no input,", "the input 1"),
    ],
)
def test_another_input_child_id_or_receiver_than_in_the_history_fails_with_both_values(
    change: dict[str, Any], recorded: str, decided: str
) -> None:
    text = failure(after_kinds(**change))
    before, _, after = text.partition(" but the code decided it with ")
    assert recorded in before
    assert decided in after.partition(" at test_determinism.py:")[0]
    assert " in changed: `ctx." in after


def test_no_input_is_the_input_none_because_a_worker_without_the_activity_writes_it() -> None:
    async def calls(ctx: OrchestrationContext) -> Any:
        await ctx.call_activity("empty")
        return await ctx.wait_for_external_event("go")

    declared = app_of(calls)
    declared.activity(name="empty")(lambda: None)
    play = Play(declared)
    play.start("work")
    play.answer()
    assert play.replay(app_of(calls), play.raised("go", 1)).output == "1"


def test_two_calls_that_were_swapped_are_found() -> None:
    async def before(ctx: OrchestrationContext) -> Any:
        first, second = ctx.call_activity("echo", "a"), ctx.call_activity("echo", "b")
        return await ctx.when_all([first, second])

    async def swapped(ctx: OrchestrationContext) -> Any:
        second, first = ctx.call_activity("echo", "b"), ctx.call_activity("echo", "a")
        return await ctx.when_all([first, second])

    play = Play(app_of(before))
    play.start("work")
    again = play.replay(app_of(swapped), play.done(play.outbound[0], "A"))
    assert 'with the input "a", but the code decided it with the input "b"' in failure(again)


@pytest.mark.parametrize(
    "grown",
    [
        {"day": 1, "paths": ["a", "b"], "mode": "append"},
        {"day": 1},
        {"day": 1.0, "paths": ["a", "b"]},
    ],
)
def test_a_record_that_only_grew_or_lost_fields_is_no_other_input(grown: dict[str, Any]) -> None:
    assert after_kinds(extract=grown).output == "1"


def test_records_inside_of_a_list_may_grow_too() -> None:
    async def before(ctx: OrchestrationContext) -> Any:
        await ctx.call_activity("extract", [{"path": "a"}, {"path": "b"}])

    async def after(ctx: OrchestrationContext) -> Any:
        await ctx.call_activity("extract", [{"path": "a", "size": 1}, {"path": "b", "size": 2}])

    play = Play(app_of(before))
    play.start("work")
    assert play.replay(app_of(after), play.done(play.outbound[0])).status is Status.COMPLETED


@pytest.mark.parametrize("fields", [({"a": 1}, {"a": 1, "b": 2}), ({"c": {"a": 1}}, {"c": {"a": 1, "b": 2}})])
def test_calls_that_are_swapped_and_differ_only_by_a_field_are_found(fields: tuple[Any, Any]) -> None:
    def calls(*inputs: Any) -> App:
        async def work(ctx: OrchestrationContext) -> Any:
            await ctx.when_all([ctx.call_activity("extract", each) for each in inputs])

        return app_of(work)

    play = Play(calls(*fields))
    play.start("work")
    again = play.replay(calls(*reversed(fields)), play.done(play.outbound[0]))
    assert "but the code decided it with the input" in failure(again)


def test_rows_of_a_dotnet_worker_are_not_compared() -> None:
    async def changed(ctx: OrchestrationContext) -> Any:
        await ctx.call_activity("extract", 2)

    play = Play(app_of(original))
    play.start("work")
    play.past = tuple(map(plain, play.past))
    done = plain(play.done(play.outbound[0]))
    assert play.replay(app_of(changed), done).status is Status.COMPLETED


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


@pytest.mark.parametrize("seconds", [1, 10, 3600, 30 * 86_400], ids=str)
@pytest.mark.parametrize("waits", ["timer", "limit"])
def test_another_duration_of_a_timer_is_no_other_decision(seconds: int, waits: str) -> None:
    """The history decides, also if the code now sets a longer timer, of one part or of several."""

    def code(duration: int) -> Callable[..., Any]:
        async def work(ctx: OrchestrationContext) -> Any:
            if waits == "timer":
                await ctx.create_timer(timedelta(seconds=duration))
            else:
                with suppress(TimeoutError):
                    async with ctx.timeout(duration):
                        await ctx.wait_for_external_event("never")
            await ctx.call_activity("save", 1)
            return await ctx.wait_for_external_event("go")

        return work

    play = Play(app_of(code(10)))
    play.start("work")
    play.wait(seconds=10)
    fired = play.done(play.outbound[-1])
    early = play.replay(app_of(code(seconds)), fired)
    assert [one.event.event_type.name for one in early.outbound] == ["TaskScheduled"]
    play.take(fired)
    play.answer()
    assert play.replay(app_of(code(seconds)), play.raised("go", 1)).output == "1"


def test_a_long_timer_that_was_stored_late_has_all_its_parts() -> None:
    """It was decided while the instance was suspended, and stored at its resume an hour later."""

    async def work(ctx: OrchestrationContext) -> Any:
        await ctx.create_timer(timedelta(days=30))
        return "later"

    play = Play(app_of(work))
    play.start("work", with_events=[ExecutionSuspended(timestamp=START, reason="x")])
    play.wait(hours=1)
    play.take(ExecutionResumed(timestamp=play.now, reason="y"))
    for part in range(5):
        assert play.last.completed is None, part
        play.wait(days=6)
        play.answer()
    assert play.last.output == '"later"'
    assert play.now >= START + timedelta(days=30)
