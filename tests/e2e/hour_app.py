"""What the workers of ``make hour`` run: activities with every kind of limit. Each writes when it begins and ends."""

from __future__ import annotations

import json
import os
import time
from uuid import uuid4

from airflow_provider_taskhub.activity import activity_info
from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.engine.context import OrchestrationContext

app = App("hour", version="1")

LIMIT, SHARED, TENANT, STARTS, WITHIN = 2, 2, 1, 15, 60.0
"""At most so many at once: of ``load``; of ``read`` and ``write`` together; of ``bill`` for a tenant. Of ``mail``, at
most so many begin within so many seconds."""
NEEDS = {"large": 3, "small": 1}
"""GiB that activities need."""


def runs(seconds: float) -> None:
    """Run for so long. Write a line at the beginning, and one at the end. Both have the clock of this machine."""
    info, run = activity_info(), uuid4().hex
    line = {
        "run": run,
        "name": info.name,
        "call": f"{info.instance_id}/{info.task_id}",
        "tenant": info.tags.get("tenant", ""),
        "worker": f"{os.environ['WORKER']} {os.environ['INCARNATION']}",
        "pid": os.getpid(),
    }

    def write(**more: object) -> None:
        text = json.dumps(line | more) + "\n"
        file = os.open(os.environ["EFFECTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, text.encode())
        os.close(file)

    write(begun=time.monotonic())
    time.sleep(seconds)
    write(ended=time.monotonic())


@app.activity(limit=LIMIT)
def load(seconds: float) -> None:
    runs(seconds)


@app.activity(limit=SHARED, limit_name="database")
def read(seconds: float) -> None:
    runs(seconds)


@app.activity(limit=SHARED, limit_name="database")
def write(seconds: float) -> None:
    runs(seconds)


@app.activity(limit=TENANT, limit_key="tenant")
def bill(seconds: float) -> None:
    runs(seconds)


@app.activity(rate="15/m")
def mail(seconds: float) -> None:
    runs(seconds)


@app.activity(memory="3g")
def large(seconds: float) -> None:
    runs(seconds)


@app.activity(memory="1g")
def small(seconds: float) -> None:
    runs(seconds)


@app.activity
def plain(seconds: float) -> None:
    runs(seconds)


@app.orchestrator
async def mix(ctx: OrchestrationContext, number: int) -> int:
    """One call of each, all at once. Twenty of 120 instances, one after the other, send a mail: they have to wait."""
    tags, seconds = {"tenant": "abc"[number % 3]}, 0.5 + (number * 7 % 10) / 10
    activities = [load, read, write, bill, large, small, plain, *([mail] if number % 120 < 20 else [])]
    return len(await ctx.when_all([ctx.call_activity(activity, seconds, tags=tags) for activity in activities]))
