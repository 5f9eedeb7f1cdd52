"""Context variables are the same before and after an await, in each replay, and in no other instance."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from contextvars import ContextVar
from decimal import Decimal
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from tests.engine.play import Play

REGION: ContextVar[str] = ContextVar("region", default="nowhere")
SIX = ["0.333333", "0.333333"]


def played(function: Callable[..., Any]) -> Play:
    """Every episode is also made by replay, and must come out the same."""
    app = App("variables")
    app.orchestrator(name="work")(function)
    play = Play(app)
    play.start("work")
    return play


async def precise(ctx: OrchestrationContext) -> list[str]:
    with decimal.localcontext() as context:
        context.prec = 6
        before = str(Decimal(1) / 3)
        await ctx.call_activity("rate")
        return [before, str(Decimal(1) / 3)]


def yields(ctx: OrchestrationContext) -> Any:
    with decimal.localcontext() as context:
        context.prec = 6
        before = str(Decimal(1) / 3)
        yield ctx.call_activity("rate")
        return [before, str(Decimal(1) / 3)]


async def sets(ctx: OrchestrationContext) -> list[str]:
    token = REGION.set("eu")
    await ctx.call_activity("rate")
    found = REGION.get()
    REGION.reset(token)
    return [found, REGION.get()]


async def fails(ctx: OrchestrationContext) -> str:
    REGION.set("eu")
    try:
        async with ctx.timeout(1):
            await ctx.call_activity("rate")
    except TimeoutError:
        return REGION.get()
    return "in time"


@pytest.mark.parametrize(
    ("function", "output"),
    [(precise, SIX), (yields, SIX), (sets, ["eu", "nowhere"])],
    ids=lambda given: str(given)[:20],
)
def test_they_are_the_same_after_an_await(function: Callable[..., Any], output: list[str]) -> None:
    play = played(function)
    play.answer(1)
    assert play.last.output == str(output).replace("'", '"').replace(" ", "")


def test_they_are_the_same_where_an_await_is_interrupted() -> None:
    play = played(fails)
    play.wait(seconds=1)
    play.take(play.done(play.outbound[0]))
    assert play.last.output == '"eu"'


def test_a_branch_has_those_of_the_code_that_starts_it_and_changes_only_its_own() -> None:
    async def work(ctx: OrchestrationContext) -> list[str]:
        async def one(name: str) -> str:
            before = REGION.get()
            REGION.set(name)
            await ctx.call_activity("rate")
            return f"{before} {REGION.get()}"

        REGION.set("eu")
        branches = [ctx.branch(one(name)) for name in ("a", "b")]
        return [*await ctx.when_all(branches), REGION.get()]

    play = played(work)
    for sent in [*play.outbound]:
        play.take(play.done(sent, 1))
    assert play.last.output == '["eu a","eu b","eu"]'


def test_no_other_instance_sees_them() -> None:
    async def work(ctx: OrchestrationContext) -> list[str]:
        found = [str(decimal.getcontext().prec), REGION.get()]
        decimal.getcontext().prec = 3
        REGION.set("mine")
        await ctx.call_activity("rate")
        return found

    token = REGION.set("the worker's")
    try:
        for _ in range(2):
            play = played(work)
            play.answer(1)
            assert play.last.output == '["28","nowhere"]'
    finally:
        REGION.reset(token)
    assert decimal.getcontext().prec == 28
