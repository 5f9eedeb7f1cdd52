"""Declares a name that ``house_app`` has too."""

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.engine.context import OrchestrationContext

app = App("twice")


@app.orchestrator
async def hello(ctx: OrchestrationContext) -> str:
    return "the other one"
