"""Activities that say how far they are, in words and numbers, and then wait until they are let go."""

from __future__ import annotations

import os
import time

from airflow_provider_taskhub.activity import progress
from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.engine.context import OrchestrationContext

app = App("telling")


@app.activity(record=True)
def tells(name: str) -> str:
    progress(0.25, "a quarter")
    progress(0.5)
    print(f"{name}: half of it is done in {os.environ['WORKER']}")
    print(f"environment: {sorted(variable for variable in os.environ if variable.startswith('TASKHUB_'))}")
    while not os.path.exists(os.environ["EFFECTS"]):
        time.sleep(0.05)
    progress(message="nearly there")
    return "told"


@app.orchestrator
async def tale(ctx: OrchestrationContext, name: str) -> str:
    return str(await ctx.call_activity(tells, name))
