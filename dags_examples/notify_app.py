"""An orchestrator that waits until a DAG has loaded its data."""

from airflow_provider_taskhub.app import App, OrchestrationContext

app = App("notify")


@app.orchestrator
async def waits_for_load(ctx: OrchestrationContext) -> str:
    """Wait for the event "loaded" or "late", and return what it says."""
    loaded = ctx.wait_for_external_event("loaded", str)
    late = ctx.wait_for_external_event("late", str)
    first = await ctx.when_any([loaded, late])
    return first.get_result()
