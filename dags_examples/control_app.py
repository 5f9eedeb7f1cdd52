"""Orchestrators that the DAGs in ``control.py`` control: one waits for an event, one fails until a folder is there."""

from pathlib import Path

from airflow_provider_taskhub.app import App, OrchestrationContext

app = App("control")


@app.activity
def load(part: str) -> str:
    return f"{part} is loaded"


@app.orchestrator
async def nightly_load(ctx: OrchestrationContext, tables: list[str]) -> list[str]:
    """Load the tables as soon as the source is ready."""
    ready = await ctx.wait_for_external_event("source_ready", dict)
    return await ctx.when_all([ctx.call_activity(load, f"{table} of {ready['day']}") for table in tables])


@app.activity
def publish(folder: str) -> str:
    (Path(folder) / "report.txt").write_text("41 flights were late", encoding="utf-8")  # fails without the folder
    return folder


@app.orchestrator
async def publish_report(ctx: OrchestrationContext, folder: str) -> str:
    """Publish a report into a folder that must exist."""
    return await ctx.call_activity(publish, folder)
