"""The orchestrations of the recordings, in Python (tests/golden/README.md says what each does)."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from airflow_provider_taskhub.app import App, OrchestrationContext, RetryPolicy, TaskFailedError

app = App("golden")


@app.orchestrator(name="Hello")
async def hello(ctx: OrchestrationContext, who: str) -> Any:
    return await ctx.call_activity("SayHello", who, version=ctx.version)


@app.orchestrator(name="Nothing")
def nothing(ctx: OrchestrationContext) -> None:
    return None


@app.orchestrator(name="Chain")
async def chain(ctx: OrchestrationContext, n: int) -> int:
    x = 0
    for k in range(n):
        x = await ctx.call_activity("Add", arguments=[x, k])
    return x


@app.orchestrator(name="FanOut")
async def fan_out(ctx: OrchestrationContext, n: int) -> int:
    return sum(await ctx.when_all([ctx.call_activity("Square", k) for k in range(n)]))


@app.orchestrator(name="Timers")
async def timers(ctx: OrchestrationContext) -> str:
    await ctx.create_timer(timedelta(seconds=1))
    deadline = ctx.create_timer(timedelta(hours=1))
    work = ctx.call_activity("SayHello", "race")
    if await ctx.when_any([deadline, work]) is work:
        deadline.cancel()
        return "activity"
    return "timer"


def raw(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


@app.orchestrator(name="Events")
async def events(ctx: OrchestrationContext) -> str:
    ctx.set_custom_status({"waiting": "go"})
    go = await ctx.wait_for_external_event("go")
    ctx.set_custom_status({"waiting": "stop"})
    stop = await ctx.wait_for_external_event("stop")
    ctx.set_custom_status(None)
    return f"{raw(go)}|{raw(stop)}"


@app.orchestrator(name="Sender")
async def sender(ctx: OrchestrationContext, receiver: str) -> str:
    ctx.send_event(receiver, "go", f"from {ctx.instance_id}")
    return "sent"


@app.orchestrator(name="Child")
async def child(ctx: OrchestrationContext, x: str) -> Any:
    return await ctx.call_activity("SayHello", x)


@app.orchestrator(name="BadChild")
async def bad_child(ctx: OrchestrationContext, x: str) -> Any:
    return await ctx.call_activity("Fail", "child")


@app.orchestrator(name="Parent")
async def parent(ctx: OrchestrationContext) -> list[str]:
    one = await ctx.call_sub_orchestrator("Child", "one")
    two = await ctx.call_sub_orchestrator("Child", "two", instance_id=f"{ctx.instance_id}-named")
    try:
        three = await ctx.call_sub_orchestrator(bad_child, "three")
    except TaskFailedError as error:
        three = f"caught {error}"
    return [one, two, three]


@app.orchestrator(name="FireAndForget")
async def fire_and_forget(ctx: OrchestrationContext) -> str:
    await ctx.call_sub_orchestrator("Child", "free", instance_id=f"{ctx.instance_id}-free", fire_and_forget=True)
    return "fired"


@app.orchestrator(name="Retry")
async def retry(ctx: OrchestrationContext) -> Any:
    policy = RetryPolicy(max_attempts=5, first_retry_interval=timedelta(seconds=0.5), backoff_coefficient=2)
    return await ctx.call_activity("Flaky", ctx.instance_id, retry=policy)


@app.orchestrator(name="RetryGivesUp")
async def retry_gives_up(ctx: OrchestrationContext) -> Any:
    policy = RetryPolicy(max_attempts=2, first_retry_interval=timedelta(seconds=0.2))
    return await ctx.call_activity("Fail", "always", retry=policy)


@app.orchestrator(name="Fails")
async def fails(ctx: OrchestrationContext) -> Any:
    return await ctx.call_activity("Fail", "here")


async def caught(ctx: OrchestrationContext, activity: str) -> Any:
    try:
        return await ctx.call_activity(activity, "there")
    except TaskFailedError as error:
        return f"caught {error}"


@app.orchestrator(name="Catches")
async def catches(ctx: OrchestrationContext) -> Any:
    return await caught(ctx, "Fail")


@app.orchestrator(name="CatchesTyped")
async def catches_typed(ctx: OrchestrationContext) -> Any:
    return await caught(ctx, "FailTyped")


@app.orchestrator(name="FailsTyped")
async def fails_typed(ctx: OrchestrationContext) -> Any:
    return await ctx.call_activity("FailTyped", "here")


@app.orchestrator(name="Throws")
async def throws(ctx: OrchestrationContext) -> None:
    raise ValueError("the orchestrator itself")


@app.orchestrator(name="Counter")
async def counter(ctx: OrchestrationContext, n: int) -> Any:
    ctx.set_custom_status(n)
    x = await ctx.call_activity("Add", arguments=[n, 1])
    if x < 3:
        ctx.continue_as_new(x)
    return x


@app.orchestrator(name="Shrink")
async def shrink(ctx: OrchestrationContext, n: int) -> Any:
    if n == 0:
        return "small"
    for k in range(n):
        await ctx.call_activity("Square", k)
    ctx.continue_as_new(0)
    return None


@app.orchestrator(name="EventCounter")
async def event_counter(ctx: OrchestrationContext, n: int) -> Any:
    tick = await ctx.wait_for_external_event("tick")
    if n + 1 < 3:
        ctx.continue_as_new(n + 1)
    return f"last {tick}"


@app.orchestrator(name="Rewindable")
async def rewindable(ctx: OrchestrationContext) -> Any:
    first = await ctx.call_activity("SayHello", "first")
    return first + await ctx.call_activity("FailUntilToldOtherwise", "second")


@app.orchestrator(name="Big")
async def big(ctx: OrchestrationContext, text: str) -> Any:
    length = await ctx.call_activity("Length", text)
    repeated = await ctx.call_activity("Repeat", arguments=["ab", 50000])
    ctx.set_custom_status("big")
    return f"{repeated}{length}"


@app.orchestrator(name="Long")
async def long(ctx: OrchestrationContext, milliseconds: int) -> str:
    await ctx.call_activity("Slow", milliseconds)
    return "long"
