"""Orchestrators whose ``finally`` blocks do not come to an end."""

from __future__ import annotations

import threading
from typing import Any

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.engine.context import OrchestrationContext

app = App("untidy", version="1")


@app.activity
def number() -> int:
    return 7


@app.orchestrator
async def untidy(ctx: OrchestrationContext, how: str) -> Any:
    try:
        return await ctx.wait_for_external_event("go")
    except GeneratorExit:  # it is put aside; an event finds it anew
        if how == "blocks":
            threading.Event().wait()
        while how == "loops":
            pass
        raise SystemExit(3) from None


@app.orchestrator
async def other(ctx: OrchestrationContext) -> int:
    return await ctx.call_activity(number) * 2
