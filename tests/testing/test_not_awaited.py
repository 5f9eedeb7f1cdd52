"""An activity that was started and not awaited is carried out, wherever it stands, also in a user's own tests."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.errors import OrchestrationError
from airflow_provider_taskhub.testing import run

app = App("not awaited")
notes: list[str] = []


@app.activity
def work(n: int) -> int:
    return n


@app.activity
async def note(text: str) -> None:
    await asyncio.sleep(5)
    notes.append(text)


@app.activity
async def hang() -> None:
    notes.append("hangs")
    await asyncio.Event().wait()


@app.orchestrator
async def last(ctx: OrchestrationContext, n: int) -> str:
    await ctx.call_activity(work, n)
    ctx.call_activity(note, "last")
    return "ok"


@app.orchestrator
async def first(ctx: OrchestrationContext, n: int) -> str:
    ctx.call_activity(note, "first")
    await ctx.create_timer(timedelta(seconds=1))
    return "ok"


@app.orchestrator
async def again(ctx: OrchestrationContext, n: int) -> str:
    await ctx.call_activity(work, n)
    ctx.call_activity(note, f"again {n}")
    if n < 2:
        ctx.continue_as_new(n + 1)
    return "ok"


@app.orchestrator
async def raises(ctx: OrchestrationContext, n: int) -> str:
    await ctx.call_activity(work, n)
    ctx.call_activity(note, "raises")
    raise ValueError("broken")


@app.orchestrator
async def hangs(ctx: OrchestrationContext, n: int) -> str:
    ctx.call_activity(hang)
    await ctx.create_timer(timedelta(seconds=1))
    return "ok"


@pytest.mark.parametrize(
    ("orchestrator", "noted"),
    [
        (last, ["last"]),
        (first, ["first"]),
        (again, ["again 0", "again 1", "again 2"]),
        (raises, ["raises"]),
        (hangs, ["hangs"]),
    ],
)
def test_it_is_carried_out(orchestrator: Any, noted: list[str]) -> None:
    notes.clear()
    if orchestrator is raises:
        with pytest.raises(OrchestrationError, match="broken"):
            run(orchestrator, 0, app=app)
    else:
        assert run(orchestrator, 0, app=app) == "ok"
    assert sorted(notes) == noted
