"""Branches and limits in a user's own tests: time jumps to the end of a limit."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.errors import OrchestrationError
from airflow_provider_taskhub.testing import Event, run

app = App("branches")


@app.activity
async def work(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


async def steps(ctx: OrchestrationContext, seconds: list[float]) -> float:
    return sum([await ctx.call_activity(work, one) for one in seconds])


@app.orchestrator
async def limited(ctx: OrchestrationContext, parts: list[list[float]]) -> Any:
    began = ctx.current_utc_datetime
    out: list[Any] = []
    for limit in (30, 3000):
        try:
            async with ctx.timeout(limit):
                out.append(await ctx.when_all([ctx.branch(steps(ctx, part)) for part in parts]))
        except TimeoutError:
            out.append("late")
        out.append(round((ctx.current_utc_datetime - began).total_seconds()))
    return out


def test_branches_run_side_by_side_and_the_limit_ends_them() -> None:
    assert run(limited, [[20, 20], [5, 5, 5]], app=app) == ["late", 30, [40.0, 15.0], 70]


@app.orchestrator
async def asks(ctx: OrchestrationContext) -> Any:
    try:
        with ctx.timeout(timedelta(days=1)):
            return await ctx.wait_for_external_event("yes")
    except TimeoutError:
        return await ctx.wait_for_external_event("yes")


@pytest.mark.parametrize("hours", [1, 30])
def test_an_event_comes_within_the_limit_or_after_it(hours: int) -> None:
    assert run(asks, app=app, events=[Event(name="yes", data=7, after=timedelta(hours=hours))]) == 7


@app.orchestrator
async def too_late(ctx: OrchestrationContext) -> None:
    async with ctx.timeout(10):
        await ctx.call_activity(work, 60)


def test_the_error_of_a_limit_names_its_line() -> None:
    with pytest.raises(OrchestrationError, match=r"TimeoutError: the limit of ctx.timeout\(10\) at test_branches.py:"):
        run(too_late, app=app)
