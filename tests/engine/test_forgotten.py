"""What an orchestrator has started and not awaited is carried out or named in a warning with its line."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import OrchestrationContext
from airflow_provider_taskhub.engine.events import ExecutionTerminated, Status
from airflow_provider_taskhub.engine.retry import RetryPolicy
from tests.engine.play import Play, played

HOUR = timedelta(hours=1)


def sent(play: Play) -> list[tuple[str, str]]:
    events = [outbound.event for outbound in play.last.outbound]
    return [(event.event_type.name, getattr(event, "name", "")) for event in events]


def starts_all(ctx: OrchestrationContext) -> None:
    ctx.call_activity("note", 1)
    ctx.call_sub_orchestrator("child", 2)
    ctx.send_event("other", "ready", 3)
    ctx.create_timer(HOUR)


ALL = [("TaskScheduled", "note"), ("ExecutionStarted", "child"), ("EventRaised", "ready")]


async def returns(ctx: OrchestrationContext) -> Any:
    await ctx.call_activity("first")
    starts_all(ctx)
    return "done"


async def raises(ctx: OrchestrationContext) -> Any:
    await ctx.call_activity("first")
    starts_all(ctx)
    raise ValueError("broken")


async def again(ctx: OrchestrationContext) -> Any:
    await ctx.call_activity("first")
    starts_all(ctx)
    ctx.continue_as_new()


@pytest.mark.parametrize("function", [returns, raises, again])
def test_what_was_started_in_the_last_episode_is_sent_however_the_code_ends(function: Callable[..., Any]) -> None:
    play, _ = played(function)
    first = play.instance
    play.answer()
    assert sent(play)[:3] == ALL
    assert play.last.outbound[0].target == first, "its answer is for the generation that has ended"
    assert not any(kind == "TimerFired" for kind, _ in sent(play)), "nothing is done when a timer fires"


def test_activities_that_were_started_together_with_a_terminate_are_not_sent() -> None:
    async def waiting(ctx: OrchestrationContext) -> Any:
        await ctx.call_activity("first")
        await ctx.call_activity("second")

    play, said = played(waiting)
    play.take(play.done(play.outbound[0]), ExecutionTerminated(timestamp=play.now, input="stop"))
    assert play.last.status is Status.TERMINATED
    assert sent(play) == []
    assert said == []


def test_each_forgotten_task_is_named_with_its_line_when_the_code_ends() -> None:
    async def forgets(ctx: OrchestrationContext) -> Any:
        ctx.create_timer(HOUR)
        ctx.wait_for_external_event("go")
        ctx.call_activity("note")
        await ctx.call_activity("first")

    play, said = played(forgets)
    assert said == []
    play.answer()
    line = forgets.__code__.co_firstlineno
    activity, idle = said
    assert activity.startswith("orchestrator 'work' has ended and never awaited activity 'note' at test_forgotten.py:")
    assert f'test_forgotten.py:{line + 3} in forgets: `ctx.call_activity("note")`. Nothing gets its result' in activity
    assert f"never awaited timer at test_forgotten.py:{line + 1} in forgets" in idle
    assert f"; wait for event 'go' at test_forgotten.py:{line + 2} in forgets" in idle


def test_nothing_is_said_of_tasks_that_the_code_has_used() -> None:
    async def uses(ctx: OrchestrationContext) -> Any:
        got, left = ctx.wait_for_external_event("go"), ctx.create_timer(HOUR)
        loser = ctx.call_activity("slow")
        assert await ctx.when_any([got, left, loser]) is got
        unused = ctx.create_timer(HOUR)
        unused.cancel()
        assert not ctx.create_timer(HOUR).is_complete
        await ctx.wait_for_external_event("more")
        await ctx.create_timer(HOUR)
        ctx.call_sub_orchestrator("child")
        ctx.call_activity("retried", retry=RetryPolicy(max_attempts=2, first_retry_interval=HOUR)).is_complete  # noqa: B018

    play, said = played(uses)
    play.take(play.raised("go"), play.raised("more"))
    fire = play.outbound[-1]
    play.wait(hours=1)
    play.take(play.done(fire))
    assert play.last.status is Status.COMPLETED
    assert said == []


def test_an_activity_that_was_not_awaited_and_is_complete_at_the_end_is_not_named() -> None:
    async def early(ctx: OrchestrationContext) -> Any:
        ctx.call_activity("note")
        await ctx.call_activity("first")

    play, said = played(early)
    note, first = play.outbound
    play.take(play.done(note))
    play.take(play.done(first))
    assert play.last.status is Status.COMPLETED
    assert said == []


def test_many_forgotten_tasks_are_counted() -> None:
    async def many(ctx: OrchestrationContext) -> Any:
        for _ in range(120):
            ctx.create_timer(HOUR)
            await ctx.when_any([ctx.call_activity("used")])

    play, said = played(many)
    for _ in range(120):
        play.answer()
    (text,) = said
    assert text.count("timer at") == 5
    assert " and 115 more. It had no effect" in text


class Test_failures:
    def test_a_failure_that_was_never_looked_at_is_told(self) -> None:
        async def unseen(ctx: OrchestrationContext) -> Any:
            ctx.call_activity("broken")
            await ctx.call_activity("first")
            return "fine"

        play, said = played(unseen)
        broken, first = play.outbound
        play.take(play.failed(broken, "no flights"))
        assert said == []
        play.take(play.done(first))
        line = unseen.__code__.co_firstlineno + 1
        (text,) = said
        assert text.startswith("orchestrator 'work' never looked at the failure of activity 'broken' at ")
        assert f"test_forgotten.py:{line} in unseen" in text
        assert text.endswith(": no flights")

    def test_the_loser_of_a_when_any_and_the_second_failure_of_a_when_all_are_told(self) -> None:
        async def losers(ctx: OrchestrationContext) -> Any:
            one, two = ctx.call_activity("one"), ctx.call_activity("two")
            await ctx.when_any([one, two])
            three, four = ctx.call_activity("three"), ctx.call_activity("four")
            try:
                await ctx.when_all([three, four])
            except Exception:
                await ctx.call_activity("last")

        play, said = played(losers)
        one, two = play.outbound
        play.take(play.done(one))
        three, four = play.last.outbound
        play.take(play.failed(two, "two is broken"))
        play.take(play.failed(three, "three is broken"))
        last = play.last.outbound[0]
        play.take(play.failed(four, "four is broken"))
        play.take(play.done(last))
        (text,) = said
        assert "the failure of activity 'two' at" in text
        assert text.endswith(": two is broken (and 1 more)")

    @pytest.mark.parametrize("way", ["await", "is_failed", "get_exception", "get_result", "when_all", "child"])
    def test_a_failure_that_the_code_has_looked_at_is_not_told(self, way: str) -> None:
        async def looks(ctx: OrchestrationContext) -> Any:
            broken: Any = ctx.call_sub_orchestrator("c") if way == "child" else ctx.call_activity("broken")
            await ctx.when_any([broken])
            try:
                if way in ("await", "child"):
                    await broken
                elif way == "when_all":
                    await ctx.when_all([broken])
                elif way == "is_failed":
                    assert broken.is_failed
                else:
                    getattr(broken, way)()
            except Exception:
                return "seen"
            return "seen"

        play, said = played(looks)
        if way == "child":
            play.answer()
        else:
            play.take(play.failed(play.outbound[0]))
        assert play.last.output == '"seen"'
        assert said == []
