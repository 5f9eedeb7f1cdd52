"""An orchestrator that never comes to an end, unless ``$MENDED``."""

from __future__ import annotations

import os

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.engine.context import OrchestrationContext

app = App("endless", version="1")


@app.activity
def number() -> int:
    return 7


@app.orchestrator
async def endless(ctx: OrchestrationContext) -> int:
    found = await ctx.call_activity(number)
    while "MENDED" not in os.environ:
        pass
    return found


@app.orchestrator
async def other(ctx: OrchestrationContext) -> int:
    return await ctx.call_activity(number) * 2
