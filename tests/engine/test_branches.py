"""``ctx.branch`` runs a coroutine of several steps beside other code, in the order of the history."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Generator
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext, OrchestrationError, TaskFailedError, when_all
from airflow_provider_taskhub.engine import driver
from airflow_provider_taskhub.engine.events import ExecutionResumed, ExecutionSuspended, ExecutionTerminated, Status
from airflow_provider_taskhub.engine.failures import place_of
from airflow_provider_taskhub.testing import Event, run
from tests.engine.play import Play, played

HOUR = timedelta(hours=1)


def names(play: Play) -> list[str]:
    """Names of the activities that were sent, in the order of their numbers."""
    return [getattr(outbound.event, "name", "timer") for outbound in play.outbound]


def answer(play: Play, name: str, result: Any = None) -> None:
    """Answer the newest call of an activity."""
    play.take(play.done(next(one for one in reversed(play.outbound) if getattr(one.event, "name", "") == name), result))


def fail(play: Play, name: str, message: str = "broken") -> None:
    play.take(play.failed(next(one for one in play.outbound if getattr(one.event, "name", "") == name), message))


async def two_steps(ctx: OrchestrationContext, name: str) -> str:
    first = await ctx.call_activity(f"{name}1")
    second = await ctx.call_activity(f"{name}2")
    return f"{first}{second}"


class Test_steps:
    def test_each_branch_goes_on_as_soon_as_its_own_step_is_done(self) -> None:
        async def work(ctx: OrchestrationContext) -> Any:
            return await ctx.when_all([ctx.branch(two_steps(ctx, name)) for name in "ab"])

        play, said = played(work)
        assert names(play) == ["a1", "b1"]
        answer(play, "b1", "x")
        assert names(play) == ["a1", "b1", "b2"]
        answer(play, "b2", "y")
        answer(play, "a1", "v")
        answer(play, "a2", "w")
        assert play.last.output == '["vw","xy"]'
        assert said == []

    def test_a_branch_runs_at_once_up_to_its_first_await(self) -> None:
        async def quick(ctx: OrchestrationContext) -> int:
            ctx.send_event("other", "first")
            return 7

        async def work(ctx: OrchestrationContext) -> Any:
            branch = ctx.branch(quick(ctx))
            ctx.send_event("other", "second")
            return [branch.is_complete, await branch]

        play, _ = played(work)
        assert names(play) == ["first", "second"]
        assert play.last.output == "[true,7]"

    def test_when_any_gives_the_branch_that_ends_first(self) -> None:
        async def work(ctx: OrchestrationContext) -> Any:
            branches = [ctx.branch(two_steps(ctx, name)) for name in "ab"]
            first = await ctx.when_any([*branches, ctx.create_timer(HOUR)])
            return [branches.index(first), first.get_result()]  # type: ignore[arg-type]  # it is no timer here

        play, said = played(work)
        for name in ("a1", "b1", "b2"):
            answer(play, name, name)
        assert play.last.output == '[1,"b1b2"]'
        (text,) = said
        line = work.__code__.co_firstlineno + 1
        assert text.startswith("orchestrator 'work' has ended before branch 'two_steps' at test_branches.py:")
        assert f"test_branches.py:{line} in " in text
        assert "waited at test_branches.py:" in text
        assert '`second = await ctx.call_activity(f"{name}2")`. The rest of its code does not run' in text

    def test_branches_that_one_event_wakes_run_in_the_order_in_which_they_began_to_wait(self) -> None:
        async def note(ctx: OrchestrationContext, shared: Any, name: str) -> None:
            await shared
            ctx.send_event("other", name)

        async def work(ctx: OrchestrationContext) -> None:
            shared = ctx.call_activity("shared")
            branches = [ctx.branch(note(ctx, shared, name)) for name in "cab"]
            await shared
            ctx.send_event("other", "main")
            await ctx.when_all(branches)

        play, _ = played(work)
        answer(play, "shared")
        assert names(play) == ["shared", "c", "a", "b", "main"]
        assert play.last.status is Status.COMPLETED

    def test_a_branch_starts_branches(self) -> None:
        async def outer(ctx: OrchestrationContext) -> Any:
            return await ctx.when_all([ctx.branch(two_steps(ctx, name)) for name in "ab"])

        async def work(ctx: OrchestrationContext) -> Any:
            return await ctx.branch(outer(ctx))

        play, _ = played(work)
        for name in ("b1", "a1", "a2", "b2"):
            answer(play, name, name)
        assert play.last.output == '["a1a2","b1b2"]'

    def test_generators_have_branches(self) -> None:
        def steps(ctx: OrchestrationContext, name: str) -> Generator[Any, Any, str]:
            first = yield ctx.call_activity(f"{name}1")
            second = yield ctx.call_activity(f"{name}2")
            return f"{first}{second}"

        def work(ctx: OrchestrationContext) -> Generator[Any, Any, Any]:
            return (yield ctx.when_all([ctx.branch(steps(ctx, name)) for name in "ab"]))

        play, _ = played(work)
        for name in ("b1", "a1", "a2", "b2"):
            answer(play, name, name)
        assert play.last.output == '["a1a2","b1b2"]'

    def test_branches_of_a_suspended_instance_run_in_the_order_of_the_history_when_it_is_resumed(self) -> None:
        async def work(ctx: OrchestrationContext) -> Any:
            return await ctx.when_all([ctx.branch(two_steps(ctx, name)) for name in "ab"])

        play, _ = played(work)
        play.take(ExecutionSuspended(timestamp=play.now))
        answer(play, "b1", "x")
        answer(play, "a1", "v")
        assert names(play) == ["a1", "b1"]
        play.take(ExecutionResumed(timestamp=play.now))
        assert names(play) == ["a1", "b1", "b2", "a2"]

    def test_the_context_of_a_branch_is_silent_on_replay(self) -> None:
        async def speak(ctx: OrchestrationContext) -> None:
            ctx.logger.info("one")
            await ctx.call_activity("a")
            ctx.logger.info("two")

        async def work(ctx: OrchestrationContext) -> None:
            await ctx.branch(speak(ctx))

        play, said = played(work)
        play.live.close()  # the next episode replays
        answer(play, "a")
        assert said == ["one", "two"]

    def test_many_branches_cost_their_steps(self) -> None:
        count = 3000

        async def one(ctx: OrchestrationContext) -> None:
            await ctx.call_activity("a")

        async def work(ctx: OrchestrationContext) -> None:
            await ctx.when_all([ctx.branch(one(ctx)) for _ in range(count)])

        app = App("many")
        app.orchestrator(name="work")(work)
        play = Play(app)
        play.start("work")
        play.take(*(play.done(outbound) for outbound in play.outbound))
        assert play.last.status is Status.COMPLETED


class Test_failures:
    async def broken(self, ctx: OrchestrationContext) -> None:
        await ctx.call_activity("a")
        raise ValueError("no flights")

    def test_the_error_of_a_branch_is_raised_at_the_await_with_its_own_line(self) -> None:
        async def work(ctx: OrchestrationContext) -> None:
            await ctx.when_all([ctx.branch(self.broken(ctx)), ctx.branch(two_steps(ctx, "b"))])

        play, said = played(work)
        answer(play, "a")
        assert play.last.status is Status.FAILED
        assert play.last.completed is not None
        failure = play.last.completed.failure
        assert failure is not None
        assert (failure.error_type, failure.error_message) == ("ValueError", "no flights")
        line = self.broken.__code__.co_firstlineno + 2
        assert place_of(failure) == f"{__file__}:{line}, in broken"
        assert f", line {work.__code__.co_firstlineno + 1}, in work" in (failure.stack_trace or "")
        assert [text.partition(" at ")[0] for text in said] == [
            "orchestrator 'work' has ended before branch 'two_steps'"
        ]

    def test_the_traceback_does_not_grow_with_each_await(self) -> None:
        async def work(ctx: OrchestrationContext) -> Any:
            branch = ctx.branch(self.broken(ctx))
            depths = []
            for _ in range(4):
                try:
                    await ctx.when_all([branch])
                except ValueError as error:
                    depths.append(len([*_frames(error)]))
            return depths

        play, _ = played(work)
        answer(play, "a")
        depths = play.last.output or ""
        assert len(set(depths.strip("[]").split(","))) == 1

    def test_a_failure_of_a_branch_that_nobody_looked_at_is_told(self) -> None:
        async def work(ctx: OrchestrationContext) -> str:
            ctx.branch(self.broken(ctx))
            await ctx.call_activity("b")
            return "fine"

        play, said = played(work)
        answer(play, "a")
        answer(play, "b")
        (text,) = said
        assert text.startswith("orchestrator 'work' never looked at the failure of branch 'broken' at ")
        assert text.endswith(": no flights")
        assert play.last.output == '"fine"'

    def test_a_failed_activity_of_a_branch_can_be_caught_by_the_code_that_awaits_the_branch(self) -> None:
        async def work(ctx: OrchestrationContext) -> str:
            try:
                return await ctx.branch(two_steps(ctx, "a"))
            except TaskFailedError as error:
                return f"caught {error}"

        play, said = played(work)
        fail(play, "a1")
        assert play.last.output == '"caught broken"'
        assert said == []

    def test_a_branch_that_exits_does_not_end_the_worker(self) -> None:
        async def leave(ctx: OrchestrationContext) -> None:
            raise SystemExit(3)

        async def work(ctx: OrchestrationContext) -> None:
            await ctx.branch(leave(ctx))

        play, _ = played(work)
        assert play.last.status is Status.FAILED

    def test_what_a_branch_calls_of_asyncio_is_refused_with_its_line(self) -> None:
        async def sleeps(ctx: OrchestrationContext) -> None:
            await asyncio.sleep(1)

        async def waits(ctx: OrchestrationContext) -> None:
            await asyncio.Future()

        for function, text in ((sleeps, "asyncio.sleep cannot be used"), (waits, "awaited Future at test_branches.py")):

            async def work(ctx: OrchestrationContext, function: Any = function) -> None:
                await ctx.branch(function(ctx))

            app = App("refused")
            app.orchestrator(name="work")(lambda ctx, work=work: work(ctx))
            play = Play(app)
            play.start("work")
            assert text in str(play.last.output)
            assert f"test_branches.py:{function.__code__.co_firstlineno + 1} in {function.__name__}" in str(
                play.last.output
            )

    def test_branches_that_wake_each_other_for_ever_fail_the_instance(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(driver, "MAX_STEPS", 500)

        async def nothing(ctx: OrchestrationContext, other: Any) -> None:
            await other

        async def work(ctx: OrchestrationContext) -> None:
            while True:
                timer = ctx.create_timer(HOUR)
                branch = ctx.branch(nothing(ctx, timer))
                timer.cancel()
                await ctx.when_any([branch])

        play, _ = played(work)
        assert play.last.status is Status.FAILED
        assert "this loop never waits" in str(play.last.output)


def _frames(error: BaseException) -> Any:
    trace = error.__traceback__
    while trace is not None:
        yield trace
        trace = trace.tb_next


class Test_end:
    def test_a_branch_that_is_never_awaited_goes_on_until_the_end(self) -> None:
        async def work(ctx: OrchestrationContext) -> str:
            ctx.branch(two_steps(ctx, "a"))
            await ctx.call_activity("b")
            return "done"

        play, said = played(work)
        answer(play, "a1")
        answer(play, "a2")
        answer(play, "b")
        assert names(play) == ["a1", "b", "a2"]
        assert said == []

    def test_no_step_of_a_branch_runs_after_the_end(self) -> None:
        ran: list[str] = []

        async def late(ctx: OrchestrationContext, task: Any) -> None:
            try:
                await task
                ran.append("ran")
            finally:
                ctx.logger.info("closed")
                ctx.call_activity("cleanup")

        async def work(ctx: OrchestrationContext) -> None:
            task = ctx.call_activity("a")
            ctx.branch(late(ctx, ctx.call_activity("b")))
            timer = ctx.create_timer(HOUR)
            ctx.branch(late(ctx, timer))
            await task
            timer.cancel()  # the second branch can go on, but the orchestrator has ended before

        play, said = played(work)
        answer(play, "a")
        assert play.last.status is Status.COMPLETED
        assert names(play) == ["a", "b", "timer"]
        assert ran == []
        assert len(said) == 1, said

    def test_a_terminate_closes_branches_without_effect(self) -> None:
        closed: list[str] = []

        async def held(ctx: OrchestrationContext, name: str) -> None:
            try:
                await ctx.call_activity(name)
            finally:
                closed.append(name)
                ctx.call_activity("cleanup")

        async def work(ctx: OrchestrationContext) -> None:
            await ctx.when_all([ctx.branch(held(ctx, name)) for name in "ab"])

        play, said = played(work)
        closed.clear()
        play.live.advance([ExecutionTerminated(timestamp=play.now, input="stop")], now=play.now)
        assert closed == ["b", "a"]
        assert play.live.is_finished
        assert said == []

    def test_no_branch_runs_when_another_one_cancels_it_while_both_are_closed(self) -> None:
        ran: list[str] = []

        async def held(ctx: OrchestrationContext) -> None:
            try:
                await ctx.call_activity("a")
            except asyncio.CancelledError:
                ran.append("cancelled")

        async def cancels(ctx: OrchestrationContext, other: Any) -> None:
            try:
                await ctx.call_activity("b")
            finally:
                other.cancel()

        async def work(ctx: OrchestrationContext) -> None:
            other = ctx.branch(held(ctx))
            await ctx.branch(cancels(ctx, other))

        play, _ = played(work)
        play.live.close()
        assert ran == []

    def test_continue_as_new_is_refused_in_a_branch(self) -> None:
        async def again(ctx: OrchestrationContext) -> None:
            ctx.continue_as_new()

        async def work(ctx: OrchestrationContext) -> None:
            await ctx.branch(again(ctx))

        play, _ = played(work)
        assert play.last.status is Status.FAILED
        assert "ctx.continue_as_new cannot be called in a branch" in str(play.last.output)

    def test_continue_as_new_of_the_orchestrator_ends_its_branches(self) -> None:
        async def work(ctx: OrchestrationContext, round: int = 0) -> Any:
            if round == 2:
                return "over"
            ctx.branch(two_steps(ctx, "a"))
            await ctx.call_activity("b")
            ctx.continue_as_new(round + 1)
            return None

        play, said = played(work)
        answer(play, "b")
        answer(play, "b")
        assert play.last.output == '"over"'
        assert names(play) == ["a1", "b", "a1", "b"]
        assert len(said) == 2


class Test_cancel:
    def test_a_cancelled_branch_ends_and_its_await_fails(self) -> None:
        async def work(ctx: OrchestrationContext) -> str:
            branch = ctx.branch(two_steps(ctx, "a"))
            await ctx.call_activity("b")
            branch.cancel()
            try:
                return await branch
            except TaskFailedError as error:
                return str(error)

        play, said = played(work)
        answer(play, "b")
        assert play.last.output == '"the task was cancelled by the orchestrator"'
        assert said == []

    def test_a_cancelled_branch_cleans_up_with_awaits(self) -> None:
        async def guarded(ctx: OrchestrationContext) -> None:
            try:
                await ctx.call_activity("a")
            except asyncio.CancelledError:
                await ctx.call_activity("undo")
                raise

        async def work(ctx: OrchestrationContext) -> Any:
            branch = ctx.branch(guarded(ctx))
            await ctx.call_activity("b")
            branch.cancel()
            open = branch.is_complete
            await ctx.when_any([branch])
            return [open, branch.is_failed]

        play, said = played(work)
        answer(play, "b")
        assert names(play) == ["a", "b", "undo"]
        answer(play, "a")
        answer(play, "undo")
        assert play.last.output == "[false,true]"
        assert said == []

    def test_a_cancel_reaches_the_branches_that_the_branch_awaits(self) -> None:
        async def inner(ctx: OrchestrationContext, name: str) -> None:
            try:
                await ctx.call_activity(name)
            finally:
                ctx.send_event("other", f"closed {name}")

        async def outer(ctx: OrchestrationContext) -> None:
            await ctx.when_all([ctx.branch(inner(ctx, name)) for name in "ab"])

        async def work(ctx: OrchestrationContext) -> None:
            branch = ctx.branch(outer(ctx))
            branch.cancel()
            await ctx.call_activity("last")

        play, said = played(work)
        assert names(play) == ["a", "b", "closed a", "closed b", "last"]
        answer(play, "last")
        assert said == []

    def test_a_branch_for_which_other_code_waits_is_not_cancelled_with_a_waiter(self) -> None:
        async def waiter(ctx: OrchestrationContext, shared: Any) -> None:
            await shared

        async def work(ctx: OrchestrationContext) -> Any:
            shared = ctx.branch(two_steps(ctx, "a"))
            one, two = ctx.branch(waiter(ctx, shared)), ctx.branch(waiter(ctx, shared))
            one.cancel()
            await two
            return await shared

        play, _ = played(work)
        answer(play, "a1", "x")
        answer(play, "a2", "y")
        assert play.last.output == '"xy"'

    def test_a_branch_that_cancels_itself_is_interrupted_at_its_next_await(self) -> None:
        async def own(ctx: OrchestrationContext, me: list[Any]) -> str:
            await ctx.call_activity("a")
            me[0].cancel()
            ctx.send_event("other", "still here")
            await ctx.call_activity("b")
            return "not reached"

        async def work(ctx: OrchestrationContext) -> Any:
            me: list[Any] = []
            me.append(ctx.branch(own(ctx, me)))
            await ctx.when_any(me)
            return me[0].is_failed

        play, _ = played(work)
        answer(play, "a")
        assert names(play) == ["a", "still here", "b"]
        assert play.last.output == "true"

    def test_an_await_that_is_interrupted_at_once_takes_no_event(self) -> None:
        async def own(ctx: OrchestrationContext, me: list[Any]) -> None:
            got = ctx.wait_for_external_event("go")
            await ctx.when_any([got, ctx.create_timer(HOUR)])
            await ctx.call_activity("a")
            me[0].cancel()
            await got

        async def work(ctx: OrchestrationContext) -> Any:
            me: list[Any] = []
            me.append(ctx.branch(own(ctx, me)))
            await ctx.when_any(me)
            return await ctx.wait_for_external_event("go")

        play, _ = played(work)
        play.wait(hours=1)
        play.answer()
        play.take(play.raised("go", 1))
        answer(play, "a")
        assert play.last.output == "1"

    def test_a_branch_can_go_on_in_spite_of_a_cancellation_and_its_failure_counts(self) -> None:
        async def stubborn(ctx: OrchestrationContext) -> int:
            try:
                await ctx.call_activity("a")
            except asyncio.CancelledError:
                return 7
            return 0

        async def clumsy(ctx: OrchestrationContext) -> None:
            try:
                await ctx.call_activity("b")
            finally:
                raise KeyError("clean-up")

        async def work(ctx: OrchestrationContext) -> Any:
            one, two = ctx.branch(stubborn(ctx)), ctx.branch(clumsy(ctx))
            one.cancel()
            two.cancel()
            await ctx.call_activity("c")
            return await one

        play, said = played(work)
        answer(play, "c")
        assert play.last.output == "7"
        (text,) = said
        assert "never looked at the failure of branch 'clumsy'" in text

    def test_the_wait_of_a_cancelled_branch_takes_no_event(self) -> None:
        async def wait(ctx: OrchestrationContext) -> Any:
            return await ctx.wait_for_external_event("go")

        async def work(ctx: OrchestrationContext) -> Any:
            ctx.branch(wait(ctx)).cancel()
            return await ctx.wait_for_external_event("go")

        play, _ = played(work)
        play.take(play.raised("go", 1))
        assert play.last.output == "1"


class Test_events:
    def test_branches_take_events_of_one_name_in_the_order_of_their_waits(self) -> None:
        async def wait(ctx: OrchestrationContext) -> Any:
            return await ctx.wait_for_external_event("go")

        async def work(ctx: OrchestrationContext) -> Any:
            return await ctx.when_all([ctx.branch(wait(ctx)) for _ in range(3)])

        play, _ = played(work)
        for value in "abc":
            play.take(play.raised("go", value))
        assert play.last.output == '["a","b","c"]'

    def test_the_wait_of_a_branch_that_was_left_behind_comes_after_all_others(self) -> None:
        async def approval(ctx: OrchestrationContext) -> Any:
            return await ctx.wait_for_external_event("approve")

        async def work(ctx: OrchestrationContext) -> Any:
            for round in range(3):
                asked = ctx.branch(approval(ctx))
                if await ctx.when_any([asked, ctx.create_timer(HOUR)]) is asked:
                    return f"round {round}: {asked.get_result()}"
            return "nobody"

        play, _ = played(work)
        play.wait(hours=1)
        play.answer()
        assert [one.name for one in play.last.awaits.events] == ["approve"]
        play.take(play.raised("approve", "yes"))
        assert play.last.output == '"round 1: yes"'

    def test_a_branch_that_was_left_behind_takes_an_event_that_nobody_else_wants(self) -> None:
        async def note(ctx: OrchestrationContext) -> None:
            while True:
                ctx.send_event("other", await ctx.wait_for_external_event("note"))

        async def work(ctx: OrchestrationContext) -> None:
            await ctx.when_any([ctx.branch(note(ctx)), ctx.create_timer(HOUR)])
            await ctx.call_activity("a")

        play, _ = played(work)
        play.wait(hours=1)
        play.answer()
        play.take(play.raised("note", "one"), play.raised("note", "two"))
        assert names(play)[-2:] == ["one", "two"]


class Test_bad_input:
    @pytest.mark.parametrize(
        ("given", "text"),
        [
            (two_steps, "call the function, as in ctx.branch(load(ctx))"),
            (7, "branch takes a coroutine, not int 7"),
            (None, "give it the call of an `async def` function"),
        ],
    )
    def test_what_is_no_coroutine_is_refused(self, given: Any, text: str) -> None:
        async def work(ctx: OrchestrationContext) -> None:
            ctx.branch(given)

        play, _ = played(work)
        assert play.last.status is Status.FAILED
        assert text in str(play.last.output)

    def test_a_task_is_refused(self) -> None:
        async def work(ctx: OrchestrationContext) -> None:
            ctx.branch(ctx.call_activity("a"))  # type: ignore[arg-type]  # the mistake that is tested

        play, _ = played(work)
        assert "a task runs already, so give it to when_all or when_any" in str(play.last.output)

    def test_a_coroutine_that_has_begun_is_refused(self) -> None:
        async def work(ctx: OrchestrationContext) -> None:
            steps = two_steps(ctx, "a")
            ctx.branch(steps)
            ctx.branch(steps)

        play, _ = played(work)
        assert "the coroutine 'two_steps' was begun before: call the function again" in str(play.last.output)

    @pytest.mark.parametrize("group", ["when_all", "when_any"])
    def test_groups_of_coroutines_name_branch(self, group: str) -> None:
        async def work(ctx: OrchestrationContext) -> None:
            await getattr(ctx, group)([two_steps(ctx, "a")])

        play, _ = played(work)
        assert "start a coroutine of several steps with ctx.branch(...)" in str(play.last.output)

    def test_a_branch_that_begins_while_the_orchestrator_is_closed_does_nothing(self) -> None:
        coroutines: list[Any] = []

        async def work(ctx: OrchestrationContext) -> None:
            try:
                await ctx.call_activity("a")
            finally:
                coroutines.append(two_steps(ctx, "b"))
                ctx.branch(coroutines[-1])

        play, _ = played(work)
        play.live.close()
        assert inspect.getcoroutinestate(coroutines[-1]) == inspect.CORO_CLOSED


def test_a_clean_up_of_several_awaits_is_closed_without_a_word_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    closed: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)

    async def work(ctx: OrchestrationContext) -> None:
        try:
            await ctx.call_activity("a")
        finally:
            try:
                await ctx.call_activity("b")
            finally:
                await ctx.call_activity("c")
                closed.append("not reached")

    play, _ = played(work)
    play.live.close()
    assert told == []
    assert closed == []


class Test_code_that_waits_for_itself:
    def test_fails_with_its_lines(self) -> None:
        async def o(ctx: OrchestrationContext) -> Any:
            tasks: list[Any] = []

            async def step(other: int) -> Any:
                await ctx.create_timer(timedelta(seconds=1))
                return await tasks[other]

            tasks += [ctx.branch(step(1)), ctx.branch(step(0))]
            return await tasks[0]

        with pytest.raises(OrchestrationError, match=r"waits for nothing that can come, at test_branches\.py:\d+"):
            run(o)

    def test_an_event_and_an_activity_are_something_that_can_come(self) -> None:
        made = App("made")

        @made.activity
        def work() -> int:
            return 1

        @made.orchestrator
        async def o(ctx: OrchestrationContext) -> Any:
            ctx.call_activity(work)
            return await ctx.wait_for_external_event("go")

        assert run(o, app=made, events=[Event(name="go", data=2, after=timedelta(days=1))]) == 2


def test_a_set_of_tasks_has_the_same_order_in_each_run() -> None:
    made = App("made")

    @made.activity
    def work(number: int) -> int:
        return number

    @made.orchestrator
    async def o(ctx: OrchestrationContext) -> Any:
        pending = {*[ctx.call_activity(work, number) for number in range(20)], ctx.create_timer(timedelta(days=1))}
        order = await ctx.when_all(list(pending))
        kept = [object() for _ in range(99)]  # so that the next tasks have other addresses
        assert kept
        return order

    async def seen(ctx: OrchestrationContext) -> bool:
        return 1 in {ctx.create_timer(timedelta(seconds=number)) for number in range(9)}

    @made.orchestrator
    async def child(ctx: OrchestrationContext) -> None: ...

    async def hashes(ctx: OrchestrationContext) -> list[int]:
        started = [ctx.call_sub_orchestrator(child, fire_and_forget=True) for _ in range(3)]
        return [hash(task) for task in (*started, ctx.when_all([]), when_all([]), ctx.when_all(started))]

    assert len({tuple(run(hashes, app=made)) for _ in range(3)}) == 1
    assert run(seen, app=made) is False, "no task has the hash of a small number"
    orders = [run(o, app=made) for _ in range(4)]
    assert orders == [orders[0]] * 4
