"""An orchestrator that shows its custom status and awaits an event, for sensors that wait for such moments."""

from __future__ import annotations

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.engine.context import OrchestrationContext

app = App("moving")


@app.orchestrator
async def moving(ctx: OrchestrationContext) -> str:
    go = ctx.wait_for_external_event("go", str)
    told = await go
    ctx.set_custom_status({"told": told})
    await ctx.wait_for_external_event("stop", str)
    return told
