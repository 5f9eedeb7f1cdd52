"""The smallest app: one activity, and an orchestrator that calls the activity for all names at the same time."""

from airflow_provider_taskhub.app import App, OrchestrationContext

app = App("first")


@app.activity
def greet(name: str) -> str:
    return f"Hello, {name}!"


@app.orchestrator
async def greetings(ctx: OrchestrationContext, names: list[str]) -> list[str]:
    return await ctx.when_all([ctx.call_activity(greet, name) for name in names])
