"""``ctx.timeout`` limits how long a block of code waits, like ``asyncio.timeout``."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import OrchestrationContext
from airflow_provider_taskhub.engine.awaitables import LONGEST_TIMER
from airflow_provider_taskhub.engine.episode import Outbound
from airflow_provider_taskhub.engine.events import ExecutionTerminated, Status, TimerFired
from airflow_provider_taskhub.engine.failures import place_of
from airflow_provider_taskhub.engine.wait_changes import Waits
from tests.engine.play import START, Play, played


def sent(play: Play, name: str) -> Outbound:
    """The newest message of an activity."""
    return next(one for one in reversed(play.outbound) if getattr(one.event, "name", "") == name)


def timers(play: Play) -> list[TimerFired]:
    return [one.event for one in play.outbound if isinstance(one.event, TimerFired)]


def fire(play: Play, at: int = -1) -> None:
    """Let a timer fire when it is due."""
    timer = timers(play)[at]
    play.now = max(play.now, timer.fire_at)
    play.take(timer)


async def slow(ctx: OrchestrationContext) -> Any:
    return await ctx.call_activity("slow")


class Test_expiry:
    @pytest.mark.parametrize("delay", [60, 60.0, timedelta(minutes=1), START.datetime() + timedelta(minutes=1)])
    def test_the_block_ends_with_a_timeout_error_and_the_code_goes_on(self, delay: Any) -> None:
        async def work(ctx: OrchestrationContext) -> str:
            try:
                async with ctx.timeout(delay) as limit:
                    await slow(ctx)
            except TimeoutError:
                return f"late {limit.expired()} {await ctx.call_activity('fallback')}"
            return "in time"

        play, said = played(work)
        assert timers(play)[0].fire_at == START + timedelta(minutes=1)
        fire(play)
        play.take(play.done(sent(play, "fallback"), "fine"))
        assert play.last.output == '"late True fine"'
        assert said == []

    def test_an_error_that_nobody_catches_names_the_limit_and_its_line(self) -> None:
        async def work(ctx: OrchestrationContext) -> None:
            async with ctx.timeout(60):
                await slow(ctx)

        play, _ = played(work)
        fire(play)
        assert play.last.completed is not None
        failure = play.last.completed.failure
        assert failure is not None
        line = work.__code__.co_firstlineno + 1
        assert failure.error_type == "TimeoutError"
        assert failure.error_message == (
            f"the limit of ctx.timeout(60) at test_timeouts.py:{line} in work: `async with ctx.timeout(60):` is over"
        )
        assert place_of(failure) == f"{__file__}:{line}, in work"
        assert f", line {slow.__code__.co_firstlineno + 1}, in slow" in str(failure.inner_failure)

    def test_a_block_that_ends_in_time_cancels_its_timer(self) -> None:
        async def work(ctx: OrchestrationContext) -> Any:
            async with ctx.timeout(60) as limit:
                first = await slow(ctx)
            return [first, limit.expired(), await slow(ctx)]

        play, said = played(work)
        play.take(play.done(sent(play, "slow"), 1))
        number = timers(play)[0].timer_id
        assert Waits.parse(play.last.history[-1].taskhub_waits).timers == (number,)  # type: ignore[union-attr]
        assert play.last.awaits.timer is None
        fire(play)
        assert play.last.status is Status.RUNNING
        play.take(play.done(sent(play, "slow"), 2))
        assert play.last.output == "[1,false,2]"
        assert said == []

    @pytest.mark.parametrize("result_first", [True, False])
    def test_the_order_of_the_history_decides_between_result_and_expiry_of_one_episode(
        self, result_first: bool
    ) -> None:
        async def work(ctx: OrchestrationContext) -> Any:
            try:
                async with ctx.timeout(60):
                    return await slow(ctx)
            except TimeoutError:
                return "late"

        play, _ = played(work)
        play.wait(minutes=1)
        both = [play.done(sent(play, "slow"), "in time"), timers(play)[0]]
        play.take(*(both if result_first else both[::-1]))
        assert play.last.output == ('"in time"' if result_first else '"late"')

    def test_a_limit_that_is_over_at_once_lets_complete_work_pass(self) -> None:
        async def work(ctx: OrchestrationContext) -> Any:
            task = ctx.call_activity("slow")
            await task
            async with ctx.timeout(0):
                first = await task
            try:
                async with ctx.timeout(-5):
                    await slow(ctx)
            except TimeoutError:
                return [first, "late"]

        play, _ = played(work)
        play.take(play.done(sent(play, "slow"), 1))
        fire(play)
        assert play.last.output == '[1,"late"]'

    def test_a_limit_of_weeks_is_made_of_several_timers(self) -> None:
        async def work(ctx: OrchestrationContext) -> Any:
            try:
                async with ctx.timeout(timedelta(days=10)):
                    await slow(ctx)
            except TimeoutError:
                return (ctx.current_utc_datetime - START.datetime()).days

        play, _ = played(work)
        assert timers(play)[0].fire_at == START + LONGEST_TIMER
        fire(play)
        assert play.last.status is Status.RUNNING
        fire(play)
        assert play.last.output == "10"

    def test_none_is_no_limit(self) -> None:
        async def work(ctx: OrchestrationContext) -> Any:
            async with ctx.timeout(None):
                return await slow(ctx)

        play, _ = played(work)
        assert timers(play) == []
        play.take(play.done(sent(play, "slow"), 1))
        assert play.last.output == "1"

    def test_a_generator_has_limits_with_a_plain_with(self) -> None:
        def work(ctx: OrchestrationContext) -> Generator[Any, Any, str]:
            try:
                with ctx.timeout(60):
                    yield ctx.call_activity("slow")
            except TimeoutError:
                return "late"
            return "in time"

        play, _ = played(work)
        fire(play)
        assert play.last.output == '"late"'

    def test_an_error_of_the_block_passes_and_clean_up_can_await(self) -> None:
        async def work(ctx: OrchestrationContext) -> Any:
            try:
                async with ctx.timeout(60):
                    try:
                        await slow(ctx)
                    finally:
                        await ctx.call_activity("undo")
            except TimeoutError:
                pass
            async with ctx.timeout(60):
                raise KeyError("own")

        play, _ = played(work)
        fire(play)
        play.take(play.done(sent(play, "undo")))
        assert play.last.completed is not None
        assert play.last.completed.failure is not None
        assert play.last.completed.failure.error_type == "KeyError"


async def again(ctx: OrchestrationContext, task: Any) -> Any:
    """Await a task within a limit, then without one."""
    try:
        async with ctx.timeout(60):
            await task
    except TimeoutError:
        await ctx.call_activity("remind")
    return await task


class Test_what_is_left_behind:
    def test_an_activity_goes_on_and_can_be_awaited_again(self) -> None:
        async def work(ctx: OrchestrationContext) -> Any:
            return await again(ctx, ctx.call_activity("slow"))

        play, _ = played(work)
        fire(play)
        play.take(play.done(sent(play, "slow"), "at last"))
        assert play.last.status is Status.RUNNING
        play.take(play.done(sent(play, "remind")))
        assert play.last.output == '"at last"'

    def test_a_wait_for_an_event_takes_nothing(self) -> None:
        async def work(ctx: OrchestrationContext) -> Any:
            for round in range(4):
                try:
                    async with ctx.timeout(60):
                        return f"round {round}: {await ctx.wait_for_external_event('approve')}"
                except TimeoutError:
                    await ctx.call_activity("remind")
            return "nobody"

        play, _ = played(work)
        fire(play)
        assert play.last.awaits.events == ()
        play.take(play.done(sent(play, "remind")))
        fire(play)
        play.take(play.raised("approve", "yes"))
        play.take(play.done(sent(play, "remind")))
        assert play.last.output == '"round 2: yes"'

    @pytest.mark.parametrize("group", ["when_all", "when_any"])
    def test_the_waits_of_a_group_take_nothing(self, group: str) -> None:
        async def work(ctx: OrchestrationContext) -> Any:
            try:
                async with ctx.timeout(60):
                    await getattr(ctx, group)([ctx.wait_for_external_event("go"), ctx.create_timer(timedelta(days=1))])
            except TimeoutError:
                await ctx.call_activity("remind")
            return await ctx.wait_for_external_event("go")

        play, _ = played(work)
        play.wait(minutes=1)
        limit = min(timers(play), key=lambda timer: timer.fire_at)
        play.take(limit, play.raised("go", 1))
        play.take(play.done(sent(play, "remind")))
        assert play.last.output == "1"

    def test_a_wait_to_which_the_code_comes_back_takes_the_event(self) -> None:
        async def work(ctx: OrchestrationContext) -> Any:
            return await again(ctx, ctx.wait_for_external_event("go"))

        play, _ = played(work)
        fire(play)
        play.take(play.raised("go", 1))
        play.take(play.done(sent(play, "remind")))
        assert play.last.output == "1"

    def test_when_all_of_activities(self) -> None:
        async def work(ctx: OrchestrationContext) -> Any:
            tasks = [ctx.call_activity(name) for name in "abc"]
            try:
                async with ctx.timeout(60):
                    await ctx.when_all(tasks)
            except TimeoutError:
                return [task.get_result() if task.is_complete else None for task in tasks]

        play, said = played(work)
        play.take(play.done(sent(play, "b"), "got"))
        fire(play)
        assert play.last.output == '[null,"got",null]'
        assert said == []

    def test_branches_are_cancelled_and_begin_nothing_more(self) -> None:
        async def steps(ctx: OrchestrationContext, name: str) -> None:
            try:
                await ctx.call_activity(name)
                await ctx.call_activity(f"{name} again")
            except asyncio.CancelledError:
                ctx.send_event("other", f"undo {name}")
                raise

        async def work(ctx: OrchestrationContext) -> str:
            try:
                async with ctx.timeout(60):
                    await ctx.when_all([ctx.branch(steps(ctx, name)) for name in "ab"])
            except TimeoutError:
                await ctx.call_activity("fallback")
            return "done"

        play, said = played(work)
        fire(play)
        play.take(*(play.done(sent(play, name)) for name in ("a", "b")))
        play.take(play.done(sent(play, "fallback")))
        assert [getattr(one.event, "name", "timer") for one in play.outbound] == [
            "timer", "a", "b", "undo a", "undo b", "fallback",
        ]  # fmt: skip
        assert play.last.output == '"done"'
        assert said == []


class Test_nested:
    async def nested(self, ctx: OrchestrationContext) -> str:
        """Try again and again, with a limit for each attempt and a limit for all of them."""
        attempts = 0
        try:
            async with ctx.timeout(150):
                while True:
                    attempts += 1
                    try:
                        async with ctx.timeout(60):
                            return str(await slow(ctx))
                    except TimeoutError:
                        await ctx.call_activity("pause")
        except TimeoutError:
            return f"gave up after {attempts}"

    def test_the_inner_limit_ends_the_inner_block_only(self) -> None:
        play, said = played(self.nested)
        fire(play)
        play.take(play.done(sent(play, "pause")))
        play.take(play.done(sent(play, "slow"), "second"))
        assert play.last.output == '"second"'
        assert said == []

    def test_the_outer_limit_passes_the_handlers_of_inner_blocks(self) -> None:
        play, said = played(self.nested)
        for _ in range(2):
            fire(play)
            play.take(play.done(sent(play, "pause")))
        fire(play, 0)
        assert play.last.output == '"gave up after 3"'
        assert said == []

    def test_the_outer_limit_ends_the_clean_up_of_an_inner_block(self) -> None:
        async def work(ctx: OrchestrationContext) -> str:
            try:
                async with ctx.timeout(100):
                    try:
                        async with ctx.timeout(60):
                            try:
                                await slow(ctx)
                            finally:
                                await ctx.call_activity("undo")
                    except TimeoutError:
                        return "inner"
            except TimeoutError:
                return "outer"
            return "none"

        play, _ = played(work)
        fire(play)
        assert play.last.status is Status.RUNNING
        fire(play, 0)
        assert play.last.output == '"outer"'

    def test_limits_in_a_row_count_alone(self) -> None:
        async def work(ctx: OrchestrationContext) -> list[str]:
            out = []
            for _ in range(3):
                try:
                    async with ctx.timeout(60):
                        await slow(ctx)
                        out.append("in time")
                except TimeoutError:
                    out.append("late")
            return out

        play, _ = played(work)
        fire(play)
        play.take(play.done(sent(play, "slow")))
        fire(play)
        assert play.last.output == '["late","in time","late"]'


class Test_branches:
    def test_a_limit_in_a_branch_holds_for_this_branch_only(self) -> None:
        async def limited(ctx: OrchestrationContext) -> str:
            try:
                async with ctx.timeout(60):
                    await ctx.call_activity("a")
            except TimeoutError:
                return "late"
            return "in time"

        async def work(ctx: OrchestrationContext) -> Any:
            return await ctx.when_all([ctx.branch(limited(ctx)), ctx.branch(slow(ctx))])

        play, _ = played(work)
        fire(play)
        assert play.last.status is Status.RUNNING
        play.take(play.done(sent(play, "slow"), 1))
        assert play.last.output == '["late",1]'

    def test_a_branch_that_the_block_has_started_and_does_not_await_goes_on(self) -> None:
        async def work(ctx: OrchestrationContext) -> Any:
            try:
                async with ctx.timeout(60):
                    other = ctx.branch(slow(ctx))
                    await ctx.call_activity("a")
            except TimeoutError:
                return await other

        play, _ = played(work)
        fire(play)
        play.take(play.done(sent(play, "slow"), 1))
        assert play.last.output == "1"

    def test_a_cancel_passes_a_limit_that_is_not_over_and_one_that_is(self) -> None:
        async def limited(ctx: OrchestrationContext) -> str:
            try:
                async with ctx.timeout(60):
                    try:
                        await ctx.call_activity("a")
                    finally:
                        await ctx.call_activity("undo")
            except TimeoutError:
                return "late"
            return "in time"

        async def work(ctx: OrchestrationContext) -> Any:
            one, two = ctx.branch(limited(ctx)), ctx.branch(limited(ctx))
            await ctx.wait_for_external_event("stop")
            one.cancel()
            one.cancel()
            two.cancel()
            await ctx.when_any([one])
            await ctx.when_any([two])
            return [one.is_failed, two.is_failed]

        play, said = played(work)
        play.now = timers(play)[0].fire_at
        play.take(timers(play)[0])
        play.take(play.raised("stop"))
        play.take(play.done(sent(play, "undo")))
        assert play.last.output == "[true,true]"
        assert said == []


class Test_mistakes:
    def test_a_limit_that_is_never_entered_is_named(self) -> None:
        async def work(ctx: OrchestrationContext) -> Any:
            ctx.timeout(60)
            return await slow(ctx)

        play, said = played(work)
        play.take(play.done(sent(play, "slow"), 1))
        line = work.__code__.co_firstlineno + 1
        (text,) = said
        assert text == (
            f"orchestrator 'work' never entered ctx.timeout at test_timeouts.py:{line} in work: `ctx.timeout(60)`. "
            "It has no effect: write `async with` before it"
        )

    def test_a_limit_that_is_entered_twice_is_refused(self) -> None:
        async def work(ctx: OrchestrationContext) -> Any:
            limit = ctx.timeout(60)
            async with limit:
                pass
            async with limit:
                pass

        play, _ = played(work)
        assert "was entered before: call ctx.timeout again for each block" in str(play.last.output)

    @pytest.mark.parametrize(
        ("given", "text"),
        [
            ("5 s", "timeout takes seconds, a timedelta or a datetime, not str '5 s'"),
            (True, "timeout takes seconds, a timedelta or a datetime, not bool True"),
            (float("inf"), "timeout: inf is no number of seconds; for no limit, give None"),
            (float("nan"), "timeout: nan is no number of seconds; for no limit, give None"),
            (datetime(1600, 1, 1, tzinfo=UTC), "timeout: 1600-01-01 00:00:00+00:00 is out of range"),
        ],
    )
    def test_what_is_no_limit_is_refused(self, given: Any, text: str) -> None:
        async def work(ctx: OrchestrationContext) -> Any:
            async with ctx.timeout(given):
                pass

        play, _ = played(work)
        assert play.last.status is Status.FAILED
        assert text in str(play.last.output)


def test_a_terminate_leaves_the_block_without_effect() -> None:
    async def work(ctx: OrchestrationContext) -> None:
        try:
            async with ctx.timeout(60):
                await slow(ctx)
        except TimeoutError:
            await ctx.call_activity("fallback")

    play, said = played(work)
    play.take(ExecutionTerminated(timestamp=play.now, input="stop"))
    assert play.last.status is Status.TERMINATED
    assert play.last.outbound == ()
    assert said == []
