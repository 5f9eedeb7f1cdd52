"""An orchestrator cancels a call: the decision is in the history, and the task ends as the answer says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.engine.children import awaited
from airflow_provider_taskhub.engine.episode import Outbound
from airflow_provider_taskhub.engine.events import (
    EventSent,
    ExecutionStarted,
    ExecutionTerminated,
    FailureDetails,
    Status,
    SubOrchestrationInstanceFailed,
    TimerFired,
)
from airflow_provider_taskhub.engine.identity import run_name
from airflow_provider_taskhub.engine.replay import run
from airflow_provider_taskhub.engine.retry import RetryPolicy
from airflow_provider_taskhub.engine.tasks import Task
from airflow_provider_taskhub.errors import SubOrchestrationFailedError, TaskCancelledError, TaskFailedError
from tests.engine.play import Play, played

CANCELLED = {"error_type": TaskCancelledError.__name__, "is_non_retriable": True}
"""What a worker answers for a call whose activity has ended because of the cancel."""
RETRY = RetryPolicy(max_attempts=3, first_retry_interval=timedelta(seconds=5))


def sent(play: Play, name: str) -> Outbound:
    """The newest message with a name."""
    return next(one for one in reversed(play.outbound) if getattr(one.event, "name", "") == name)


def cancels(play: Play) -> list[tuple[str, int | None]]:
    """The cancels in the history: the name of each, and the number of the call."""
    return [
        (event.name, event.taskhub_cancels)
        for event in play.past
        if isinstance(event, EventSent) and event.taskhub_cancels is not None
    ]


async def hedged(ctx: OrchestrationContext) -> Any:
    """Two sources. The slower one is cancelled, and the code waits until it has ended."""
    one, other = ctx.call_activity("one"), ctx.call_activity("other")
    winner = await ctx.when_any([one, other])
    loser = other if winner is one else one
    loser.cancel()
    try:
        return [winner.get_result(), await loser]
    except TaskCancelledError as error:
        return [winner.get_result(), type(error).__name__, str(error)]


class Test_an_activity:
    def test_the_loser_of_a_when_any_is_cancelled_and_its_end_awaited(self) -> None:
        play, said = played(hedged)
        play.take(play.done(sent(play, "one"), 1))
        assert cancels(play) == [("cancel other", 1)]
        assert len(play.outbound) == 2, "a worker finds the cancel in the history, no message tells of it"
        assert play.last.status is Status.RUNNING
        play.take(play.failed(sent(play, "other"), "activity 'other' was cancelled", **CANCELLED))
        assert play.last.output == '[1,"TaskCancelledError","activity \'other\' was cancelled"]'
        assert said == []

    def test_it_finishes_first(self) -> None:
        play, said = played(hedged)
        play.take(play.done(sent(play, "one"), 1))
        play.take(play.done(sent(play, "other"), 2))
        assert play.last.output == "[1,2]"
        assert said == []

    def test_it_fails_first(self) -> None:
        """What it has raised is raised. It is not tried again, and nothing is said of an error that nobody looks at."""

        async def work(ctx: OrchestrationContext) -> str:
            task = ctx.call_activity("load", retry=RETRY)
            await ctx.wait_for_external_event("stop")
            task.cancel()
            await ctx.wait_for_external_event("end")
            return "done"

        play, said = played(work)
        play.take(play.raised("stop"))
        play.take(play.failed(sent(play, "load")))
        assert not [one for one in play.outbound if isinstance(one.event, TimerFired)]
        play.take(play.raised("end"))
        assert play.last.output == '"done"'
        assert said == []

    def test_a_second_cancel_and_one_after_the_end_do_nothing(self) -> None:
        async def work(ctx: OrchestrationContext) -> Any:
            task = ctx.call_activity("load")
            await ctx.wait_for_external_event("stop")
            task.cancel()
            task.cancel()
            result = await task
            task.cancel()
            return [result, await task]

        play, _ = played(work)
        play.take(play.raised("stop"))
        play.take(play.done(sent(play, "load"), 7))
        assert cancels(play) == [("cancel load", 0)]
        assert play.last.output == "[7,7]"

    def test_in_the_step_that_has_called_it(self) -> None:
        """Its message is sent, and the worker that gets it finds the cancel. So the numbers stay those of the code."""

        async def work(ctx: OrchestrationContext) -> Any:
            task = ctx.call_activity("load")
            task.cancel()
            try:
                return await task
            except TaskFailedError as error:
                return str(error)

        play, _ = played(work)
        assert cancels(play) == [("cancel load", 0)]
        play.take(play.failed(sent(play, "load"), "not begun", **CANCELLED))
        assert play.last.output == '"not begun"'

    @pytest.mark.parametrize("awaits", [True, False])
    def test_while_it_waits_for_its_retry(self, awaits: bool) -> None:
        async def work(ctx: OrchestrationContext) -> str:
            task = ctx.call_activity("load", retry=RETRY)
            await ctx.wait_for_external_event("stop")
            task.cancel()
            try:
                if awaits:
                    await task
            except TaskCancelledError as error:
                return str(error)
            await ctx.wait_for_external_event("end")
            return "not awaited"

        play, said = played(work)
        play.take(play.failed(sent(play, "load")))
        timer = next(one for one in play.outbound if isinstance(one.event, TimerFired))
        play.take(play.raised("stop"))
        assert cancels(play) == []
        if awaits:
            assert play.last.output == '"the task was cancelled by the orchestrator"'
            return
        play.wait(seconds=5)
        play.take(timer.event)
        assert [one for one in play.outbound if getattr(one.event, "name", "") == "load"] == [sent(play, "load")]
        play.take(play.raised("end"))
        assert play.last.output == '"not awaited"'
        assert said == []

    def test_the_error_that_nobody_catches_fails_the_instance(self) -> None:
        async def work(ctx: OrchestrationContext) -> None:
            task = ctx.call_activity("load")
            await ctx.wait_for_external_event("stop")
            task.cancel()
            await task

        play, _ = played(work)
        play.take(play.raised("stop"))
        play.take(play.failed(sent(play, "load"), "activity 'load' was cancelled by the orchestrator", **CANCELLED))
        assert play.last.status is Status.FAILED
        assert play.last.output == "activity 'load' was cancelled by the orchestrator"

    def test_a_cancelled_answer_is_not_tried_again_by_code_that_cancels_no_more(self) -> None:
        def app(*, cancel: bool) -> App:
            made = App("changed")

            @made.orchestrator
            async def work(ctx: OrchestrationContext) -> Any:
                task = ctx.call_activity("load", retry=RETRY)
                await ctx.wait_for_external_event("stop")
                if cancel:
                    task.cancel()
                return await task

            return made

        play = Play(app(cancel=True))
        play.start("work")
        play.take(play.raised("stop"))
        other = play.replay(app(cancel=False), play.failed(sent(play, "load"), "cancelled", **CANCELLED))
        assert other.status is Status.FAILED
        assert "the history has EventSent 'cancel load' as action 1" in str(other.output)

    def test_the_line_of_a_cancel_at_the_end_of_a_block_is_the_users(self) -> None:
        def app(which: int) -> App:
            made = App("changed")

            @made.orchestrator
            async def work(ctx: OrchestrationContext) -> None:
                tasks = [ctx.call_activity("load", number) for number in range(2)]
                scope = ctx.cancel_scope()
                scope.tasks[id(tasks[which])] = tasks[which]
                async with scope:
                    await ctx.wait_for_external_event("stop")

            return made

        play = Play(app(0))
        play.start("work")
        play.take(play.raised("stop"))
        other = play.replay(app(1), play.raised("more"))
        assert "decided it with the data 1 at test_cancel.py:" in str(other.output)

    def test_code_that_cancels_another_call_is_found(self) -> None:
        def app(which: int) -> App:
            made = App("changed")

            @made.orchestrator
            async def work(ctx: OrchestrationContext) -> None:
                tasks = [ctx.call_activity("load", number) for number in range(2)]
                await ctx.wait_for_external_event("stop")
                tasks[which].cancel()
                await ctx.when_all(tasks)

            return made

        play = Play(app(0))
        play.start("work")
        play.take(play.raised("stop"))
        other = play.replay(app(1), play.raised("more"))
        assert other.status is Status.FAILED
        assert "with the data 0, but the code decided it with the data 1" in str(other.output)


def ended(play: Play, name: str, kind: str = "Terminated", text: str = "cancelled") -> SubOrchestrationInstanceFailed:
    """The answer of a child that did not complete."""
    start = sent(play, name).event
    assert isinstance(start, ExecutionStarted)
    assert start.parent is not None
    return SubOrchestrationInstanceFailed(
        timestamp=play.now,
        task_scheduled_id=start.parent.task_schedule_id,
        reason=text,
        failure=FailureDetails(error_type=kind, error_message=text),
        taskhub_action_id=start.instance.execution_id,
    )


class Test_a_child:
    def test_it_is_terminated_and_its_task_fails_when_it_says_that_nothing_of_it_runs(self) -> None:
        async def work(ctx: OrchestrationContext) -> Any:
            child = ctx.call_sub_orchestrator("month", instance_id="child")
            await ctx.wait_for_external_event("stop")
            child.cancel()
            try:
                await child
            except TaskCancelledError as error:
                return [str(error), await ctx.wait_for_external_event("end")]

        play, said = played(work)
        start = sent(play, "month").event
        assert isinstance(start, ExecutionStarted)
        play.take(play.raised("stop"))
        (message,) = play.last.outbound
        assert message.target.instance_id == "child"
        assert isinstance(message.event, ExecutionTerminated)
        assert run_name(message.event.taskhub_execution_id or "") == run_name(start.instance.execution_id or "")
        assert (message.event.taskhub_recurse, message.event.taskhub_child) == (True, "month")
        assert (message.event.taskhub_cancels, message.event.taskhub_grace) == (0, None)
        assert message.event.input == "its parent 'play-1' has cancelled it"
        assert play.last.awaits.children == ("month",)
        play.take(play.raised("end", 4))
        assert play.last.status is Status.RUNNING
        play.take(ended(play, "month"))
        assert play.last.output == '["the task was cancelled by the orchestrator",4]'
        assert said == []

    def test_it_finishes_or_fails_first(self) -> None:
        async def work(ctx: OrchestrationContext) -> Any:
            child = ctx.call_sub_orchestrator("month")
            child.cancel()
            try:
                return await child
            except SubOrchestrationFailedError as error:
                return str(error)

        play, _ = played(work)
        assert (
            run(
                play.registry, play.past, [play.done(sent(play, "month"), 3)], instance=play.instance, now=play.now
            ).output
            == "3"
        )
        play.take(ended(play, "month", "ValueError", "no disk"))
        assert play.last.output == '"no disk"'

    def test_a_dotnet_worker_has_ended_it(self) -> None:
        """Its answer has no failure. That of a child that has failed has the exception."""

        async def work(ctx: OrchestrationContext) -> Any:
            child = ctx.call_sub_orchestrator("month")
            child.cancel()
            try:
                await child
            except (TaskCancelledError, SubOrchestrationFailedError) as error:
                return type(error).__name__

        for details, kind in ((None, TaskCancelledError), ("no JSON", SubOrchestrationFailedError)):
            play, _ = played(work)
            play.take(replace(ended(play, "month"), failure=None, details=details))
            assert play.last.output == f'"{kind.__name__}"'

    def test_in_the_step_that_has_started_it(self) -> None:
        """The terminate names the run that the same step starts, also if the id is the default one."""

        async def work(ctx: OrchestrationContext) -> None:
            ctx.call_sub_orchestrator("month").cancel()
            await ctx.wait_for_external_event("end")

        play, said = played(work)
        started, terminated = play.last.outbound
        assert isinstance(started.event, ExecutionStarted)
        assert isinstance(terminated.event, ExecutionTerminated)
        assert terminated.target.instance_id == started.target.instance_id
        assert terminated.event.taskhub_execution_id == started.target.execution_id
        assert said == []

    def test_one_for_which_nobody_waits_is_complete_already(self) -> None:
        async def work(ctx: OrchestrationContext) -> None:
            ctx.call_sub_orchestrator("month", fire_and_forget=True).cancel()

        play, _ = played(work)
        assert [type(one.event) for one in play.last.outbound] == [ExecutionStarted]
        assert play.last.status is Status.COMPLETED


class Test_a_scope:
    def test_what_the_block_has_not_finished_is_cancelled_and_its_end_awaited(self) -> None:
        async def load(ctx: OrchestrationContext) -> Any:
            return await ctx.call_activity("in a branch")

        async def work(ctx: OrchestrationContext) -> Any:
            before = ctx.call_activity("before")
            async with ctx.cancel_scope():
                tasks = [ctx.call_activity("one"), ctx.call_activity("other"), ctx.call_sub_orchestrator("child")]
                ctx.create_timer(timedelta(days=1))
                ctx.branch(load(ctx))
                winner = await ctx.when_any(tasks)
            return [winner.get_result(), await before]

        play, said = played(work)
        other, branch = sent(play, "other"), sent(play, "in a branch")
        play.take(play.done(sent(play, "one"), 1))
        assert [name for name, _ in cancels(play)] == ["cancel other", "cancel child", "cancel in a branch"]
        play.take(play.done(sent(play, "before"), 0))
        assert play.last.status is Status.RUNNING
        play.take(play.failed(branch, **CANCELLED))
        play.take(play.failed(other, **CANCELLED))
        assert play.last.status is Status.RUNNING
        play.take(ended(play, "child"))
        assert play.last.output == "[1,0]"
        assert said == []

    def test_a_limit_around_it_ends_the_activity_itself(self) -> None:
        async def work(ctx: OrchestrationContext) -> str:
            try:
                async with ctx.timeout(60), ctx.cancel_scope():
                    return str(await ctx.call_activity("load"))
            except TimeoutError:
                return "too late"

        play, said = played(work)
        timer = next(one.event for one in play.outbound if isinstance(one.event, TimerFired))
        play.wait(seconds=60)
        play.take(timer)
        assert cancels(play) == [("cancel load", 1)]
        assert play.last.status is Status.RUNNING, "the activity may still run"
        play.take(play.failed(sent(play, "load"), **CANCELLED))
        assert play.last.output == '"too late"'
        assert said == []

    def test_the_error_of_the_block_is_raised(self) -> None:
        async def work(ctx: OrchestrationContext) -> None:
            async with ctx.cancel_scope():
                ctx.call_activity("load")
                raise ValueError("no disk")

        play, _ = played(work)
        play.take(play.failed(sent(play, "load"), "its own error"))
        assert (play.last.status, play.last.output) == (Status.FAILED, "ValueError: no disk")

    def test_a_task_belongs_to_the_innermost_block(self) -> None:
        async def work(ctx: OrchestrationContext) -> str:
            async with ctx.cancel_scope():
                outer = ctx.call_activity("outer")
                async with ctx.cancel_scope():
                    ctx.call_activity("inner")
                await outer
                return "done"

        play, _ = played(work)
        assert [name for name, _ in cancels(play)] == ["cancel inner"]
        play.take(play.failed(sent(play, "inner"), **CANCELLED))
        play.take(play.done(sent(play, "outer")))
        assert play.last.output == '"done"'

    def test_another_branch_is_not_in_the_block(self) -> None:
        async def beside(ctx: OrchestrationContext) -> Any:
            await ctx.wait_for_external_event("go")
            return await ctx.call_activity("beside")

        async def work(ctx: OrchestrationContext) -> Any:
            branch = ctx.branch(beside(ctx))
            async with ctx.cancel_scope():
                await ctx.wait_for_external_event("stop")
            return await branch

        play, _ = played(work)
        play.take(play.raised("go"))
        play.take(play.raised("stop"))
        assert cancels(play) == []
        play.take(play.done(sent(play, "beside"), 5))
        assert play.last.output == "5"

    def test_it_is_entered_once(self) -> None:
        async def work(ctx: OrchestrationContext) -> None:
            scope = ctx.cancel_scope()
            for _ in range(2):
                async with scope:
                    pass

        play, _ = played(work)
        assert "was entered before: call ctx.cancel_scope again for each block" in str(play.last.output)

    def test_a_plain_with_is_told_how_to_write_it(self) -> None:
        def work(ctx: OrchestrationContext) -> Generator[Task[Any], Any, None]:
            with ctx.cancel_scope():
                yield ctx.call_activity("load")

        play, _ = played(work)
        text = str(play.last.output)
        assert "write `async with` before ctx.cancel_scope at test_cancel.py:" in text
        assert "cancel each task with task.cancel(), then yield it" in text

    def test_that_is_never_entered_is_named(self) -> None:
        async def work(ctx: OrchestrationContext) -> None:
            ctx.cancel_scope()
            async with ctx.cancel_scope():
                pass

        _, said = played(work)
        line = work.__code__.co_firstlineno + 1
        assert said == [
            f"orchestrator 'work' never entered ctx.cancel_scope at test_cancel.py:{line} in work: "
            "`ctx.cancel_scope()`. It has no effect: write `async with` before it"
        ]

    def test_an_interruption_of_the_wait_comes_after_it(self) -> None:
        """A second limit is over while the block waits for the end of what it has cancelled."""

        async def work(ctx: OrchestrationContext) -> str:
            try:
                async with ctx.timeout(60), ctx.cancel_scope():
                    ctx.call_activity("load")
            except TimeoutError:
                return "too late"
            return "in time"

        play, said = played(work)
        timer = next(one.event for one in play.outbound if isinstance(one.event, TimerFired))
        assert cancels(play) == [("cancel load", 1)]
        play.wait(seconds=60)
        play.take(timer)
        assert play.last.status is Status.RUNNING, "the activity may still run"
        play.take(play.failed(sent(play, "load"), **CANCELLED))
        assert play.last.output == '"too late"'
        assert said == []

    def test_a_limit_in_a_branch_is_not_cancelled_by_the_block_around_it(self) -> None:
        async def tidy(ctx: OrchestrationContext) -> None:
            try:
                await ctx.wait_for_external_event("never")
            finally:
                async with ctx.timeout(60):
                    await ctx.call_activity("clean up")

        async def work(ctx: OrchestrationContext) -> str:
            async with ctx.cancel_scope():
                ctx.branch(tidy(ctx))
            return "done"

        play, _ = played(work)
        timer = next(one.event for one in play.outbound if isinstance(one.event, TimerFired))
        play.wait(seconds=60)
        play.take(timer)
        assert (play.last.status, play.last.output is not None) == (Status.FAILED, True)
        assert "ctx.timeout(60)" in str(play.last.output), "what the clean-up of a branch raises is raised"

    def test_in_an_async_generator_that_is_left(self) -> None:
        async def numbers(ctx: OrchestrationContext) -> AsyncIterator[int]:
            async with ctx.cancel_scope():
                yield await ctx.call_activity("one")

        async def work(ctx: OrchestrationContext) -> int:
            async for number in numbers(ctx):
                return number
            return -1

        play, _ = played(work)
        play.take(play.done(sent(play, "one"), 1))
        assert play.last.output == "1"


class Test_the_family:
    def test_each_of_two_children_with_one_id_is_terminated_by_its_own_run(self) -> None:
        async def work(ctx: OrchestrationContext) -> Any:
            old, new = [ctx.call_sub_orchestrator("month", instance_id="child") for _ in range(2)]
            await ctx.wait_for_external_event("stop")
            old.cancel()
            return await new

        play, _ = played(work)
        first, second = [one for one in play.outbound if isinstance(one.event, ExecutionStarted)]
        play.take(play.raised("stop"))
        (message,) = play.last.outbound
        assert isinstance(message.event, ExecutionTerminated)
        assert message.event.taskhub_execution_id == first.target.execution_id
        play.take(play.done(second, 2))
        assert play.last.output == "2"

    def test_a_cancelled_child_is_needed_by_nobody(self) -> None:
        """Neither a suspension, a rewind nor the list of awaited children goes to it."""

        async def work(ctx: OrchestrationContext) -> None:
            children = [ctx.call_sub_orchestrator("month", instance_id=name) for name in "ab"]
            await ctx.wait_for_external_event("stop")
            children[0].cancel()
            await ctx.when_all([children[1]])

        play, _ = played(work)
        play.take(play.raised("stop"))
        assert [child.instance_id for child in awaited(play.past)] == ["b"]

    def test_branches_that_wait_for_each_other_fail_although_a_child_was_cancelled(self) -> None:
        async def work(ctx: OrchestrationContext) -> None:
            ctx.call_sub_orchestrator("month").cancel()
            tasks: list[Any] = []

            async def step(other: int) -> None:
                await ctx.create_timer(timedelta(seconds=1))
                await tasks[other]

            tasks += [ctx.branch(step(1)), ctx.branch(step(0))]
            await tasks[0]

        play, _ = played(work)
        play.wait(seconds=1)
        play.take(*[one.event for one in play.outbound if isinstance(one.event, TimerFired)])
        assert play.last.status is Status.RUNNING
        play.take(ended(play, "month"))
        assert play.last.status is Status.FAILED
        assert "waits for nothing that can come" in str(play.last.output)
