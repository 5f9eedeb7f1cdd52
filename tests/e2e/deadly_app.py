"""Activities that bring down their executor, and others that are on board with them. ``$EFFECTS`` has a line a run."""

import os
import time

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.engine.context import OrchestrationContext
from airflow_provider_taskhub.errors import TaskFailedError

app = App("deadly")


def _run(who: str) -> str:
    with open(os.environ["EFFECTS"], "a") as file:
        file.write(f"{who}\n")
    if who.startswith("guilty"):
        time.sleep(0.1)
        os._exit(7)
    time.sleep(0.7)
    return who


@app.activity
def unrecorded(who: str) -> str:
    return _run(who)


@app.activity(record=True)
def recorded(who: str) -> str:
    return _run(who)


@app.orchestrator
async def together(ctx: OrchestrationContext, name: str) -> list[str]:
    ends = []
    for call in [ctx.call_activity(name, who) for who in ("guilty 1", "guilty 2", "a", "b", "c", "d")]:
        try:
            ends.append(await call)
        except TaskFailedError as error:
            ends.append(str(error))
    return ends
