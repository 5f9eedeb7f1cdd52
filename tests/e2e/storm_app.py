"""What the workers of a storm run: seven kinds of work, each with an output that is known beforehand.

Every end of a recorded activity is a line in ``$EFFECTS``."""

from __future__ import annotations

import os
import time
from datetime import timedelta

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.engine.context import OrchestrationContext

app = App("storm", version="1")


@app.activity
def tick(number: int) -> int:
    time.sleep(0.05)
    return number + 1


@app.activity(record=True)
def kept(number: int) -> int:
    time.sleep(0.2)
    with open(os.environ["EFFECTS"], "a") as file:
        file.write(f"{number}\n")
    return number


@app.orchestrator
async def chain(ctx: OrchestrationContext, length: int) -> int:
    value = 0
    for _ in range(length):
        value = await ctx.call_activity(tick, value)
    return value


@app.orchestrator
async def fan(ctx: OrchestrationContext, width: int) -> int:
    return sum(await ctx.when_all([ctx.call_activity(tick, number) for number in range(width)]))


@app.orchestrator
async def recorded(ctx: OrchestrationContext, first: int) -> int:
    return sum(await ctx.when_all([ctx.call_activity(kept, first + number) for number in range(3)]))


@app.orchestrator
async def parent(ctx: OrchestrationContext, width: int) -> int:
    calls = [ctx.call_sub_orchestrator(chain, 2, instance_id=f"{ctx.instance_id}-{number}") for number in range(width)]
    return sum(await ctx.when_all(calls))


@app.orchestrator
async def timed(ctx: OrchestrationContext, count: int) -> int:
    for _ in range(count):
        await ctx.create_timer(timedelta(seconds=1))
    return count


@app.orchestrator
async def rounds(ctx: OrchestrationContext, left: int) -> int:
    await ctx.call_activity(tick, left)
    if left > 0:
        ctx.continue_as_new(left - 1)
    return left


@app.orchestrator
async def gathers(ctx: OrchestrationContext, count: int) -> list[int]:
    return sorted([await ctx.wait_for_external_event("go", int) for _ in range(count)])
