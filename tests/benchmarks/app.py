"""What the workloads run: orchestrators around one activity that does nothing."""

from __future__ import annotations

import asyncio

from airflow_provider_taskhub.app import App, OrchestrationContext, when_all

app = App("benchmarks", version="1")


@app.activity
def nothing(value: int) -> int:
    return value


@app.orchestrator
async def single(ctx: OrchestrationContext, value: int) -> int:
    result: int = await ctx.call_activity(nothing, value)
    return result


@app.orchestrator
async def fan(ctx: OrchestrationContext, width: int) -> int:
    return len(await when_all([ctx.call_activity(nothing, index) for index in range(width)]))


@app.orchestrator
async def chain(ctx: OrchestrationContext, length: int) -> int:
    value = 0
    for _ in range(length):
        value = await ctx.call_activity(nothing, value + 1)
    return value


@app.activity
async def pause(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


@app.orchestrator
async def paused(ctx: OrchestrationContext, seconds: float) -> float:
    result: float = await ctx.call_activity(pause, seconds)
    return result


@app.orchestrator
async def waiting(ctx: OrchestrationContext, value: int) -> int:
    await ctx.wait_for_external_event("go")
    return value
