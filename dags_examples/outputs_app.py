"""The orchestrators of the DAG ``outputs``. Start a worker with ``taskhub worker --app outputs_app:app``."""

from airflow_provider_taskhub.app import App, OrchestrationContext

app = App("outputs")


@app.activity
def make_rows(count: int) -> list[str]:
    return [f"row {number} of {count}" for number in range(1, count + 1)]


@app.orchestrator
async def many_rows(ctx: OrchestrationContext, count: int) -> list[str]:
    """Return a list that is too large for an XCom."""
    return await ctx.call_activity(make_rows, count)


@app.orchestrator
async def count_rows(ctx: OrchestrationContext, rows: list[str]) -> int:
    """Count the rows that another orchestration has returned."""
    return len(rows)
