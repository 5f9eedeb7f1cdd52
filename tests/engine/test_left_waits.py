"""A wait that the code has left behind takes no event: the event is for the next wait of its name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.engine.events import Status, TimerFired
from airflow_provider_taskhub.errors import TaskCancelledError
from airflow_provider_taskhub.testing import Event, run
from tests.engine.play import Play

HOUR = timedelta(hours=1)


def played(function: Callable[..., Any]) -> Play:
    app = App("left")
    app.orchestrator(name="work")(function)
    play = Play(app)
    play.start("work", 0)
    return play


def fire(play: Play) -> None:
    """Let the newest timer fire."""
    play.wait(hours=1)
    play.answer()


async def remind(ctx: OrchestrationContext, done: int) -> str:
    for round in range(4):
        got = ctx.wait_for_external_event("approve")
        left = ctx.create_timer(HOUR)
        if await ctx.when_any([got, left]) is got:
            return f"round {round}: {got.get_result()}"
    return "nobody"


async def remind_cancel(ctx: OrchestrationContext, done: int) -> str:
    for round in range(4):
        got = ctx.wait_for_external_event("approve")
        left = ctx.create_timer(HOUR)
        if await ctx.when_any([got, left]) is got:
            return f"round {round}: {got.get_result()}"
        got.cancel()
    return "nobody"


async def remind_both(ctx: OrchestrationContext, done: int) -> str:
    """The wait is in a group that is in a group."""
    for round in range(4):
        both = ctx.when_all([ctx.wait_for_external_event("approve"), ctx.wait_for_external_event("pay")])
        if await ctx.when_any([both, ctx.create_timer(HOUR)]) is both:
            return f"round {round}: {both.get_result()[0]}"
    return "nobody"


async def remind_either(ctx: OrchestrationContext, done: int) -> str:
    """The wait is in a ``when_any``, which is in a ``when_all``."""
    for round in range(4):
        answer = ctx.when_any([ctx.wait_for_external_event("approve"), ctx.wait_for_external_event("reject")])
        both = ctx.when_all([answer, ctx.wait_for_external_event("pay")])
        if await ctx.when_any([both, ctx.create_timer(HOUR)]) is both:
            return f"round {round}: {both.get_result()[0].get_result()}"
    return "nobody"


@pytest.mark.parametrize("function", [remind, remind_cancel, remind_both, remind_either])
def test_an_event_ends_the_round_of_a_reminder_loop_in_which_it_comes(function: Callable[..., Any]) -> None:
    play = played(function)
    fire(play)
    fire(play)
    play.take(play.raised("approve", "yes"), play.raised("pay", 7))
    assert play.last.output == '"round 2: yes"'


@pytest.mark.parametrize("first", ["approve", "reject"])
def test_the_first_of_two_events_is_kept_for_the_next_round(first: str) -> None:
    play = played(remind_either)
    play.take(play.raised(first, f"first {first}"))
    fire(play)
    fire(play)
    assert [one.name for one in play.last.awaits.events] == ["pay"]
    play.take(play.raised("pay", 7))
    assert play.last.output == f'"round 2: first {first}"'


def test_both_of_two_events_are_kept_for_the_next_round() -> None:
    play = played(remind_either)
    play.take(play.raised("reject", "no"), play.raised("approve", "yes"))
    fire(play)
    play.take(play.raised("pay", 7))
    assert play.last.output == '"round 1: yes"', "the first wait of the round takes its event first"


def test_events_of_one_round_that_come_in_several_rounds_are_all_taken() -> None:
    play = played(remind_both)
    play.take(play.raised("approve", "yes"))
    assert [one.name for one in play.last.awaits.events] == ["pay"]
    fire(play)
    assert [one.name for one in play.last.awaits.events] == ["pay"]
    fire(play)
    play.take(play.raised("pay", 7))
    assert play.last.output == '"round 2: yes"'


def test_a_wait_in_a_group_that_gave_its_event_away_takes_a_later_one_when_the_code_comes_back() -> None:
    async def work(ctx: OrchestrationContext, done: int) -> Any:
        old = ctx.when_all([ctx.wait_for_external_event("approve"), ctx.wait_for_external_event("pay")])
        await ctx.when_any([old, ctx.create_timer(HOUR)])
        new = await ctx.wait_for_external_event("approve")
        return [new, await old]

    play = played(work)
    play.take(play.raised("approve", 1))
    fire(play)
    play.take(play.raised("pay", 2))
    assert play.last.status is Status.RUNNING
    play.take(play.raised("approve", 3))
    assert play.last.output == "[1,[3,2]]"


def test_a_group_that_is_awaited_keeps_the_events_that_have_come() -> None:
    async def awaits(ctx: OrchestrationContext, done: int) -> Any:
        both = ctx.when_all([ctx.wait_for_external_event("approve"), ctx.wait_for_external_event("pay")])
        later = ctx.branch(one(ctx))
        return [await both, await later]

    async def one(ctx: OrchestrationContext) -> Any:
        await ctx.wait_for_external_event("go")
        return await ctx.wait_for_external_event("approve")

    play = played(awaits)
    for name, value in (("approve", 1), ("go", 0), ("pay", 2), ("approve", 3)):
        play.take(play.raised(name, value))
    assert play.last.output == "[[1,2],3]"


def test_an_event_that_comes_between_two_rounds_is_for_the_next_round() -> None:
    async def work(ctx: OrchestrationContext, done: int) -> str:
        for round in range(4):
            got = ctx.wait_for_external_event("approve")
            if await ctx.when_any([got, ctx.create_timer(HOUR)]) is got:
                return f"round {round}: {got.get_result()}"
            await ctx.call_activity("slow")
        return "nobody"

    play = played(work)
    fire(play)
    play.take(play.raised("approve", "yes"))
    assert play.last.awaits.events == ()
    play.answer()
    assert play.last.output == '"round 1: yes"'


def test_an_event_for_a_wait_that_was_left_behind_is_carried_over_to_the_next_generation() -> None:
    async def work(ctx: OrchestrationContext, done: int) -> str:
        got = ctx.wait_for_external_event("approve")
        if await ctx.when_any([got, ctx.create_timer(HOUR)]) is got:
            return f"round {done}: {got.get_result()}"
        await ctx.call_activity("slow")
        ctx.continue_as_new(done + 1)
        return "next"

    play = played(work)
    fire(play)
    play.take(play.raised("approve", "yes"))
    play.answer()
    assert play.last.output == '"round 1: yes"'


def test_a_wait_to_which_the_code_comes_back_takes_the_event_that_came_meanwhile() -> None:
    async def awaits(ctx: OrchestrationContext, done: int) -> Any:
        got = ctx.wait_for_external_event("approve")
        await ctx.when_any([got, ctx.create_timer(HOUR)])
        await ctx.call_activity("slow")
        return await got

    async def joins(ctx: OrchestrationContext, done: int) -> Any:
        got = ctx.wait_for_external_event("approve")
        await ctx.when_any([got, ctx.create_timer(HOUR)])
        await ctx.call_activity("slow")
        return (await ctx.when_any([got, ctx.create_timer(HOUR)])).get_result()

    async def polls(ctx: OrchestrationContext, done: int) -> Any:
        got = ctx.wait_for_external_event("approve")
        await ctx.when_any([got, ctx.create_timer(HOUR)])
        await ctx.call_activity("slow")
        return got.get_result() if got.is_complete and not got.is_failed else "nobody"

    async def group(ctx: OrchestrationContext, done: int) -> Any:
        both = ctx.when_all([ctx.wait_for_external_event("approve")])
        await ctx.when_any([both, ctx.create_timer(HOUR)])
        await ctx.call_activity("slow")
        return (await both)[0]

    for function in (awaits, joins, polls, group):
        play = played(function)
        fire(play)
        play.take(play.raised("approve", "yes"))
        play.answer()
        assert play.last.output == '"yes"', function.__name__


def test_a_wait_to_which_the_code_comes_back_has_its_old_place() -> None:
    async def work(ctx: OrchestrationContext, done: int) -> Any:
        old = ctx.wait_for_external_event("approve")
        await ctx.when_any([old, ctx.create_timer(HOUR)])
        new = ctx.wait_for_external_event("approve")
        await ctx.when_any([new, ctx.create_timer(HOUR)])
        await ctx.wait_for_external_event("go")
        return await ctx.when_all([new, old])

    play = played(work)
    fire(play)
    fire(play)
    play.take(play.raised("approve", 1), play.raised("go"))
    assert play.last.status is Status.RUNNING
    play.take(play.raised("approve", 2))
    assert play.last.output == "[1,2]"


def test_waits_that_come_back_without_an_event_stand_in_their_old_order() -> None:
    async def work(ctx: OrchestrationContext, done: int) -> Any:
        waits = []
        for _ in range(3):
            waits.append(ctx.wait_for_external_event("approve"))
            await ctx.when_any([waits[-1], ctx.create_timer(HOUR)])
        last = ctx.wait_for_external_event("approve")
        first = await last
        return [first, *await ctx.when_all([waits[2], waits[0], waits[1]])]

    play = played(work)
    for _ in range(3):
        fire(play)
    for value in "abcd":
        play.take(play.raised("approve", value))
    assert play.last.output == '["a","d","b","c"]'


def test_a_wait_that_was_given_to_no_group_takes_the_event_while_other_work_runs() -> None:
    async def work(ctx: OrchestrationContext, done: int) -> Any:
        got = ctx.wait_for_external_event("approve")
        await ctx.call_activity("slow")
        later = ctx.wait_for_external_event("approve")
        return await ctx.when_all([got, later])

    play = played(work)
    play.take(play.raised("approve", 1))
    play.answer(None)
    play.take(play.raised("approve", 2))
    assert play.last.output == "[1,2]"


async def _mails(ctx: OrchestrationContext, round: int) -> None:
    """A reminder, which fails in the first round."""
    await ctx.create_timer(HOUR)
    if round == 0:
        raise OSError("the mail server is down")


async def fails_between(ctx: OrchestrationContext, done: int) -> str:
    for round in range(3):
        got = ctx.wait_for_external_event("approve")
        try:
            await _mails(ctx, round)
        except OSError:
            continue
        return f"round {round}: {await got}"
    return "nobody"


async def fails_in_a_helper(ctx: OrchestrationContext, done: int) -> str:
    async def turn(round: int) -> str:
        got = ctx.wait_for_external_event("approve")
        await _mails(ctx, round)
        return f"round {round}: {await got}"

    for round in range(3):
        with suppress(OSError):
            return await turn(round)
    return "nobody"


async def is_interrupted_between(ctx: OrchestrationContext, done: int) -> str:
    for round in range(3):
        got = ctx.wait_for_external_event("approve")
        with suppress(TimeoutError):
            async with ctx.timeout(HOUR):
                await ctx.create_timer((9 if round == 0 else 0.5) * HOUR)
                return f"round {round}: {await got}"
    return "nobody"


async def stands_in_a_branch_that_was_left(ctx: OrchestrationContext, done: int) -> str:
    async def turn(round: int) -> str:
        got = ctx.wait_for_external_event("approve")
        await ctx.create_timer((9 if round == 0 else 0.5) * HOUR)
        return f"round {round}: {await got}"

    for round in range(3):
        branch = ctx.branch(turn(round))
        if await ctx.when_any([branch, ctx.create_timer(HOUR)]) is branch:
            return await branch
    return "nobody"


async def was_in_a_group_that_failed(ctx: OrchestrationContext, done: int) -> str:
    for round in range(3):
        mail = ctx.branch(_mails(ctx, round))
        with suppress(OSError):
            answer, _ = await ctx.when_all([ctx.wait_for_external_event("approve"), mail])
            return f"round {round}: {answer}"
    return "nobody"


@pytest.mark.parametrize(
    "function",
    [
        fails_between,
        fails_in_a_helper,
        is_interrupted_between,
        stands_in_a_branch_that_was_left,
        was_in_a_group_that_failed,
    ],
)
def test_an_event_that_comes_before_an_error_or_a_limit_is_for_the_next_round(function: Callable[..., Any]) -> None:
    """The wait of the first round had the event already, and the code never learned of it."""
    app = App("left")
    app.orchestrator(name="work")(function)
    at = [Event(name="approve", data="yes", after=timedelta(minutes=20))]
    assert run("work", 0, app=app, events=at) == "round 1: yes"
    play, fired = played(function), set[int]()
    play.take(play.raised("approve", "yes"))
    while play.last.status is Status.RUNNING:
        timers = [
            (one.event.fire_at, number)
            for number, one in enumerate(play.outbound)
            if isinstance(one.event, TimerFired) and number not in fired
        ]
        _, first = min(timers)
        fired.add(first)
        play.wait(hours=1)
        play.take(play.done(play.outbound[first]))
    assert play.last.output == '"round 1: yes"'


def test_waits_that_the_code_has_only_made_give_their_events_in_order() -> None:
    async def work(ctx: OrchestrationContext, done: int) -> Any:
        first, second = (ctx.wait_for_external_event("approve") for _ in range(2))
        await ctx.call_activity("slow")
        third = ctx.wait_for_external_event("approve")
        return [await third, await second, await first]

    play = played(work)
    play.take(play.raised("approve", 1), play.raised("approve", 2))
    play.answer()
    assert play.last.status is Status.RUNNING
    play.take(play.raised("approve", 3))
    assert play.last.output == "[1,2,3]"


def test_an_event_whose_data_do_not_fit_the_wait_that_was_left_fits_the_next_one() -> None:
    async def work(ctx: OrchestrationContext, done: int) -> Any:
        first = ctx.wait_for_external_event("approve", int)
        await ctx.call_activity("slow")
        return [await ctx.wait_for_external_event("approve", str), await first]

    play = played(work)
    play.take(play.raised("approve", "yes"))
    play.answer()
    play.take(play.raised("approve", 7))
    assert play.last.output == '["yes",7]'


def test_the_instance_waits_for_no_event_whose_wait_was_left_behind() -> None:
    async def work(ctx: OrchestrationContext, done: int) -> Any:
        got = ctx.wait_for_external_event("approve")
        await ctx.when_any([got, ctx.create_timer(HOUR)])
        await ctx.call_activity("slow")

    play = played(work)
    assert [one.name for one in play.last.awaits.events] == ["approve"]
    fire(play)
    assert play.last.awaits.events == ()


async def polls(ctx: OrchestrationContext, done: int) -> str:
    for round in range(4):
        stop = ctx.wait_for_external_event("approve")
        if stop.is_complete:
            return f"round {round}: {await stop}"
        await ctx.create_timer(HOUR)
    return "nobody"


async def polls_once_and_waits(ctx: OrchestrationContext, done: int) -> str:
    early = ctx.wait_for_external_event("approve")
    if early.is_complete:
        return "early"
    await ctx.create_timer(2 * HOUR)
    return f"round 2: {await ctx.wait_for_external_event('approve')}"


async def polls_either(ctx: OrchestrationContext, done: int) -> str:
    for round in range(4):
        either = ctx.when_any([ctx.wait_for_external_event("approve"), ctx.wait_for_external_event("reject")])
        if either.is_complete:
            return f"round {round}: {either.get_result().get_result()}"
        await ctx.create_timer(HOUR)
    return "nobody"


@pytest.mark.parametrize("function", [polls, polls_once_and_waits, polls_either])
def test_an_event_that_comes_after_the_code_has_asked_is_for_the_next_wait(function: Callable[..., Any]) -> None:
    app = App("left")
    app.orchestrator(name="work")(function)
    at = [Event(name="approve", data="yes", after=1.5 * HOUR)]
    assert run("work", 0, app=app, events=at) == "round 2: yes"
    play = played(function)
    if function is not polls_once_and_waits:
        fire(play)
    play.take(play.raised("approve", "yes"))
    fire(play)
    assert play.last.output == '"round 2: yes"'


def test_a_wait_that_was_asked_too_early_gets_the_next_event_when_it_is_used_again() -> None:
    async def work(ctx: OrchestrationContext, done: int) -> Any:
        waits = [ctx.wait_for_external_event("approve") for _ in range(2)]
        asked = [wait.is_complete for wait in waits]
        await ctx.create_timer(HOUR)
        asked += [wait.is_complete for wait in reversed(waits)]
        return [asked, await ctx.when_all(waits)]

    play = played(work)
    play.take(play.raised("approve", 1))
    fire(play)
    play.take(play.raised("approve", 2))
    assert play.last.output == "[[false,false,false,true],[1,2]]"


def test_one_event_is_not_that_of_two_waits_that_were_asked_in_turn() -> None:
    """Two approvals are needed, and one has come."""

    async def work(ctx: OrchestrationContext, done: int) -> str:
        first, second = (ctx.wait_for_external_event("approve") for _ in range(2))
        for _ in range(2):
            if second.is_complete:
                return "both"
            if first.is_complete:
                return "one"
            await ctx.create_timer(HOUR)
        return "none"

    play = played(work)
    play.take(play.raised("approve", 1))
    fire(play)
    assert play.last.output == '"one"'


def test_an_event_that_is_taken_over_stays_with_a_wait_that_lost_a_when_any_before() -> None:
    """It came while the code did something else, so an older wait had it that the code has only asked."""

    async def work(ctx: OrchestrationContext, done: int) -> Any:
        early = ctx.wait_for_external_event("approve")
        assert not early.is_complete
        got = ctx.wait_for_external_event("approve")
        while await ctx.when_any([got, ctx.create_timer(HOUR)]) is not got:
            await ctx.call_activity("remind")
        return await got

    play = played(work)
    fire(play)
    play.take(play.raised("approve", 1))
    play.take(play.done(next(one for one in play.outbound if getattr(one.event, "name", "") == "remind")))
    assert play.last.output == "1"


def test_a_cancelled_wait_leaves_its_unread_event_to_the_next_one() -> None:
    async def work(ctx: OrchestrationContext, done: int) -> Any:
        old = ctx.wait_for_external_event("approve")
        await ctx.create_timer(HOUR)
        old.cancel()
        data = await ctx.wait_for_external_event("approve")
        try:
            return [data, await old]
        except TaskCancelledError as error:
            return [data, str(error)]

    play = played(work)
    play.take(play.raised("approve", 1))
    fire(play)
    assert play.last.output == '[1,"the task was cancelled by the orchestrator"]'


@pytest.mark.parametrize("asks", [False, True])
def test_a_cancelled_wait_leaves_its_unread_event_to_a_wait_that_was_there_too(asks: bool) -> None:
    async def work(ctx: OrchestrationContext, done: int) -> Any:
        old, new = ctx.wait_for_external_event("approve"), ctx.wait_for_external_event("approve")
        await ctx.create_timer(HOUR)
        old.cancel()
        return new.is_complete if asks else await ctx.when_any([new, ctx.create_timer(HOUR)]) is new

    play = played(work)
    play.take(play.raised("approve", 1))
    fire(play)
    assert play.last.output == "true"


def test_an_event_of_a_cancelled_wait_is_older_than_those_that_came_after_it() -> None:
    async def work(ctx: OrchestrationContext, done: int) -> Any:
        old = ctx.wait_for_external_event("approve")
        await ctx.create_timer(HOUR)
        old.cancel()
        return [await ctx.wait_for_external_event("approve") for _ in range(3)]

    play = played(work)
    for number in (1, 2, 3):
        play.take(play.raised("approve", number))
    fire(play)
    assert play.last.output == "[1,2,3]"


def test_an_awaited_group_takes_the_event_of_a_wait_that_was_only_asked() -> None:
    async def work(ctx: OrchestrationContext, done: int) -> Any:
        first, second = ctx.wait_for_external_event("approve"), ctx.wait_for_external_event("approve")
        both = ctx.when_any([second, ctx.create_timer(HOUR)])
        assert not first.is_complete
        assert not second.is_complete
        await ctx.call_activity("check")
        return await both is second

    play = played(work)
    play.take(play.raised("approve", 1))
    play.take(play.done(next(one for one in play.outbound if getattr(one.event, "name", "") == "check")))
    assert play.last.output == "true"


@pytest.mark.parametrize("late", [False, True])
def test_whenever_a_wait_is_cancelled_the_events_keep_their_order(late: bool) -> None:
    async def work(ctx: OrchestrationContext, done: int) -> Any:
        old, second, third = (ctx.wait_for_external_event("approve") for _ in range(3))
        if late:
            await ctx.create_timer(HOUR)
        old.cancel()
        await ctx.create_timer(HOUR)
        return [await second, await third]

    play = played(work)
    for number in (1, 2):
        play.take(play.raised("approve", number))
    for _ in range(1 + late):
        fire(play)
    assert play.last.output == "[1,2]"


@pytest.mark.parametrize("lost", [False, True])
def test_a_cancelled_wait_that_is_awaited_takes_no_event(lost: bool) -> None:
    async def work(ctx: OrchestrationContext, done: int) -> Any:
        old = ctx.wait_for_external_event("approve")
        if lost:
            await ctx.when_any([old, ctx.create_timer(HOUR)])
        await ctx.create_timer(HOUR)
        old.cancel()
        with pytest.raises(TaskCancelledError):
            await old
        return await ctx.wait_for_external_event("approve")

    play = played(work)
    if lost:
        fire(play)
    play.take(play.raised("approve", 1))
    fire(play)
    assert play.last.output == "1"


class Test_a_wait_that_nobody_awaits:
    def test_leaves_the_event_to_one_that_is_awaited(self) -> None:
        made = App("made")

        @made.orchestrator
        async def o(ctx: OrchestrationContext) -> Any:
            forgotten = ctx.wait_for_external_event("go")
            found = await ctx.wait_for_external_event("go")
            return [found, forgotten.is_complete]

        play = Play(made)
        play.start("o")
        play.take(play.raised("go", 1))
        assert play.last.output == "[1,false]"

    @pytest.mark.parametrize("group", ["when_any", "when_all"])
    def test_in_a_group_that_nobody_awaits(self, group: str) -> None:
        made = App("made")

        @made.orchestrator
        async def o(ctx: OrchestrationContext) -> Any:
            getattr(ctx, group)([ctx.wait_for_external_event("go"), ctx.create_timer(timedelta(days=9))])
            return await ctx.wait_for_external_event("go")

        play = Play(made)
        play.start("o")
        play.take(play.raised("go", 1))
        assert play.last.output == "1"

    def test_that_is_cancelled_gives_its_event_to_the_next_generation(self) -> None:
        made = App("made")

        @made.orchestrator
        async def o(ctx: OrchestrationContext, number: int) -> Any:
            got = ctx.wait_for_external_event("go")
            await ctx.create_timer(timedelta(seconds=20))
            if number == 0:
                got.cancel()
                ctx.continue_as_new(1)
                return None
            return got.is_complete

        assert run(o, 0, app=made, events=[Event(name="go", data=1, after=timedelta(seconds=5))])

    def test_that_was_asked_leaves_it_to_a_newer_one(self) -> None:
        """A loop that asks and makes a new wait in each round."""
        made = App("made")

        @made.orchestrator
        async def o(ctx: OrchestrationContext) -> Any:
            for number in range(4):
                got = ctx.wait_for_external_event("go")
                await ctx.create_timer(timedelta(seconds=10))
                if got.is_complete:
                    return [number, got.get_result()]
            return "nobody"

        assert run(o, app=made, events=[Event(name="go", data=7, after=timedelta(seconds=15))]) == [1, 7]

    def test_empties_a_mailbox_and_waits(self) -> None:
        made = App("made")

        @made.orchestrator
        async def o(ctx: OrchestrationContext) -> Any:
            found = []
            await ctx.create_timer(timedelta(seconds=10))
            while (wait := ctx.wait_for_external_event("go")).is_complete:
                found.append(wait.get_result())
            return [*found, await ctx.wait_for_external_event("go")]

        events = [
            Event(name="go", data=number, after=timedelta(seconds=second))
            for number, second in ((1, 1), (2, 2), (3, 30))
        ]
        assert run(o, app=made, events=events) == [1, 2, 3]

    @pytest.mark.parametrize("looks", [False, True])
    def test_gives_its_event_to_the_next_generation(self, looks: bool) -> None:
        made = App("made")

        @made.orchestrator
        async def o(ctx: OrchestrationContext, number: int) -> Any:
            got = ctx.wait_for_external_event("go")
            await ctx.create_timer(timedelta(seconds=20))
            if looks and number == 0:
                assert got.is_complete
            if number == 0:
                ctx.continue_as_new(1)
                return None
            return got.is_complete

        assert run(o, 0, app=made, events=[Event(name="go", data=1, after=timedelta(seconds=5))]) is not looks

    def test_that_has_won_a_race_does_not_give_its_event_away(self) -> None:
        """Also if the code only asks which task has won. The loser of the same moment gives its event away."""
        made = App("made")

        @made.orchestrator
        async def o(ctx: OrchestrationContext, rounds: list[str]) -> Any:
            waits = {name: ctx.wait_for_external_event(name) for name in ("a", "b")}
            timer = ctx.create_timer(timedelta(seconds=30))
            won = await ctx.when_any([*waits.values(), timer])
            rounds.append(next((name for name, wait in waits.items() if wait is won), "timer"))
            if len(rounds) < 3:
                ctx.continue_as_new(rounds)
                return None
            return rounds

        play = Play(made)
        play.start("o", [])
        play.take(play.raised("a"), play.raised("b"))
        fire(play)
        assert play.last.output == '["a","b","timer"]'
