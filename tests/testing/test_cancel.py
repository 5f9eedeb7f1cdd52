"""``testing.run`` cancels activities as a worker does."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext, TaskCancelledError
from airflow_provider_taskhub.testing import run


@pytest.mark.parametrize("record", [False, True])
def test_a_running_activity_is_cancelled(record: bool) -> None:
    app, done = App("cancels"), list[str]()

    @app.activity(record=record)
    async def load(name: str) -> None:
        await asyncio.sleep(7200)
        done.append(name)

    @app.orchestrator
    async def limited(ctx: OrchestrationContext) -> str:
        began = ctx.current_utc_datetime
        task = ctx.call_activity(load, "all")
        if await ctx.when_any([task, ctx.create_timer(timedelta(hours=1))]) is task:
            return "in time"
        task.cancel()
        try:
            await task
        except TaskCancelledError as error:
            assert ctx.current_utc_datetime - began <= timedelta(hours=1, minutes=1)
            return str(error)
        return "not cancelled"

    assert run(limited, app=app) == "activity 'load' was cancelled by the orchestrator"
    assert done == []
