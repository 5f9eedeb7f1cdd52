"""An orchestrator that a person must approve: it counts rows, says how many, and publishes only after a yes."""

from airflow_provider_taskhub.app import App, OrchestrationContext

app = App("approval")


@app.activity
def count_rows(table: str) -> int:
    return len(table) * 1000


@app.activity
def publish_table(table: str) -> str:
    return f"{table} is published"


def enough(custom_status: dict[str, int] | None) -> bool:
    """Tell the sensor ``enough`` whether its wait ends. It is called with the custom status of the orchestration."""
    return custom_status is not None and custom_status["rows"] >= 1000


@app.orchestrator
async def approved_publication(ctx: OrchestrationContext, table: str) -> str:
    """Publish a table after a person has approved its number of rows."""
    rows = await ctx.call_activity(count_rows, table)
    ctx.set_custom_status({"rows": rows})
    answer = await ctx.wait_for_external_event("approval", dict)
    if answer["chosen_options"] != ["Publish"]:
        return f"{table} is rejected"
    return await ctx.call_activity(publish_table, table)
