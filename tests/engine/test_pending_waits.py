"""What an episode leaves its instance waiting for; the same live and when it is replayed (``Play`` compares them)."""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.engine.events import (
    EventRaised,
    ExecutionTerminated,
    SubOrchestrationInstanceCompleted,
    TaskCompleted,
)
from airflow_provider_taskhub.engine.pending_waits import (
    MAX_EXAMINED,
    MAX_NAMES,
    NEEDED_CHARACTERS,
    AwaitedEvent,
    Awaits,
)
from airflow_provider_taskhub.engine.timeouts import Timeout
from airflow_provider_taskhub.hub.formats.waits_column import decode_awaits, encode_awaits
from tests.engine.play import INSTANCE, START, Play

app = App("awaits")


@app.orchestrator
async def all_kinds(ctx: OrchestrationContext) -> None:
    tasks: list[Any] = [ctx.call_activity("load", n) for n in range(3)]
    tasks += [ctx.call_activity("save"), ctx.call_sub_orchestrator("gate", None)]
    tasks += [ctx.create_timer(timedelta(hours=2)), ctx.create_timer(timedelta(hours=1))]
    await ctx.when_all([*tasks, ctx.wait_for_external_event("approve")])


def test_every_kind_is_named_once() -> None:
    play = Play(app)
    assert play.start("all_kinds").awaits == Awaits(
        activities=("load", "save"),
        children=("gate",),
        child_ids=(f"{INSTANCE.execution_id}:4",),
        child_count=1,
        needed=((f"{INSTANCE.execution_id}:4", "c5f87cd633fd5234"),),
        events=(AwaitedEvent(name="approve", since=START),),
        timer=START + timedelta(hours=1),
    )


@app.orchestrator
async def needs(ctx: OrchestrationContext, how: str) -> None:
    one, two, three = (ctx.call_sub_orchestrator("gate", instance_id=name) for name in ("one", "two", "three"))
    ctx.call_sub_orchestrator("gate", instance_id="forgotten", fire_and_forget=True)
    if how == "one":
        await two
    elif how == "all":
        await ctx.when_all([one, ctx.create_timer(timedelta(hours=1)), ctx.when_all([two, three])])
    elif how == "any":
        await ctx.when_any([one, two])
    elif how == "all of any":
        await ctx.when_all([one, ctx.when_any([two, three])])
    elif how == "branch":
        await ctx.when_all([ctx.branch(waits_for(one)), ctx.branch(waits_for(three))])
    elif how == "other branch":
        ctx.branch(waits_for(one))
        await two
    elif how == "limit":
        async with ctx.timeout(60):
            await one
    else:
        await ctx.branch(waits_for(one, ctx.timeout(60)))


async def waits_for(task: Awaitable[Any], limit: Timeout | None = None) -> None:
    async with limit or nullcontext():
        await task


@pytest.mark.parametrize(
    ("how", "ids"),
    [
        ("one", ["two"]),
        ("all", ["one", "two", "three"]),
        ("any", []),
        ("all of any", ["one"]),
        ("branch", ["one", "three"]),
        ("other branch", ["two"]),
        ("limit", []),
        ("limit in a branch", []),
    ],
)
def test_a_needed_child_is_one_without_which_the_code_cannot_go_on(how: str, ids: list[str]) -> None:
    awaits = Play(app).start("needs", how).awaits
    assert [child for child, _ in awaits.needed] == ids
    assert decode_awaits(encode_awaits(awaits)) == awaits


@app.orchestrator
async def crowd(ctx: OrchestrationContext) -> None:
    await ctx.when_all([ctx.call_sub_orchestrator("gate", instance_id=f"{'x' * 84}") for _ in range(200)])


def test_the_list_of_needed_children_has_a_limit() -> None:
    awaits = Play(app).start("crowd").awaits
    assert len(awaits.needed) == NEEDED_CHARACTERS // 100


def test_what_has_come_is_awaited_no_more() -> None:
    play = Play(app)
    play.start("all_kinds")
    play.now += timedelta(minutes=5)
    assert play.take(EventRaised(timestamp=play.now, name="APPROVE")).awaits.events == ()
    for number in range(3):
        awaits = play.take(TaskCompleted(timestamp=play.now, task_scheduled_id=number, result="1")).awaits
    assert awaits.activities == ("save",)
    assert play.take(ExecutionTerminated(timestamp=play.now)).awaits == Awaits()


@app.orchestrator
async def races(ctx: OrchestrationContext) -> None:
    while True:
        go, timer = ctx.wait_for_external_event("go"), ctx.create_timer(timedelta(hours=1))
        await ctx.when_any([go, timer])
        timer.cancel()


def test_a_wait_begins_when_it_is_asked_for_and_a_cancelled_timer_is_none() -> None:
    play = Play(app)
    play.start("races")
    play.now += timedelta(minutes=5)
    awaits = play.take(EventRaised(timestamp=play.now, name="go")).awaits
    assert awaits == Awaits(events=(AwaitedEvent(name="go", since=play.now),), timer=play.now + timedelta(hours=1))


@app.orchestrator
async def wide(ctx: OrchestrationContext, kinds: int) -> None:
    await ctx.when_all([ctx.call_activity(f"load{number}") for number in range(kinds)])


@app.orchestrator
async def children(ctx: OrchestrationContext) -> None:
    await ctx.when_all([ctx.call_sub_orchestrator("month", None, instance_id=f"m{n}") for n in range(6)])


def test_of_open_children_the_first_ids_and_the_number_are_kept() -> None:
    play = Play(app)
    awaits = play.start("children").awaits
    assert (awaits.children, awaits.child_ids, awaits.child_count) == (("month",), ("m0", "m1", "m2"), 6)
    answer = SubOrchestrationInstanceCompleted(timestamp=play.now, task_scheduled_id=1, result="1")
    awaits = play.take(answer).awaits
    assert (awaits.child_ids, awaits.child_count) == (("m0", "m2", "m3"), 5)


def test_a_wide_fan_out_is_cut_and_says_so() -> None:
    for kinds in (MAX_NAMES, MAX_NAMES + 1, MAX_EXAMINED + 1):
        awaits = Play(app).start("wide", kinds).awaits
        assert len(awaits.activities) == MAX_NAMES
        assert awaits.complete is (kinds == MAX_NAMES)
