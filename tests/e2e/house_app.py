"""What the worker processes of these tests run. Every run of an activity is a line in ``$EFFECTS``."""

from __future__ import annotations

import os
import random
import time
from datetime import timedelta

from airflow_provider_taskhub.activity import inlet, outlet
from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.engine.context import OrchestrationContext
from airflow_provider_taskhub.engine.retry import RetryPolicy

app = App("house", version="1")


def note(line: str) -> None:
    with open(os.environ["EFFECTS"], "a") as file:
        file.write(f"{line}\n")


@app.activity
def hop(number: int) -> int:
    note(f"hop {number}")
    return number + 1


@app.activity
def tick(number: int) -> int:
    time.sleep(0.1)
    return number


@app.activity(record=True)
def kept(number: int) -> int:
    print(f"kept {number} speaks")
    note(f"begin {number} {os.environ.get('WORKER', '')}")
    time.sleep(2.0)
    note(f"end {number}")
    return number * 10


@app.activity(record=True)
def held(number: int) -> int:
    """Run until the test lets it go: until a file with its number exists."""
    note(f"begin {number} {os.environ.get('WORKER', '')}")
    while not os.path.exists(f"{os.environ['EFFECTS']}.go-{number}"):
        time.sleep(0.02)
    note(f"end {number}")
    return number * 10


@app.activity
def broken(number: int) -> int:
    raise ValueError(f"broken {number}")


@app.orchestrator
async def hello(ctx: OrchestrationContext, name: str) -> str:
    return f"Hello, {name}!"


@app.activity
def upper(name: str) -> list[str]:
    return [name.upper(), os.environ["PYTHONHASHSEED"]]


@app.orchestrator
async def over_a_set(ctx: OrchestrationContext, names: list[str]) -> dict[str, list[str]]:
    """Decides in the order of a set, which is random in each process unless its hash seed is fixed."""
    found = {name: await ctx.call_activity(upper, name) for name in set(names)}
    go = ctx.wait_for_external_event("go")
    note(f"asks {ctx.instance_id}")
    await go
    return found


@app.orchestrator
async def chain(ctx: OrchestrationContext, length: int) -> int:
    value = 0
    for _ in range(length):
        value = await ctx.call_activity(hop, value)
    return value


@app.orchestrator
async def paced(ctx: OrchestrationContext, length: int) -> int:
    for number in range(length):
        await ctx.call_activity(tick, number)
    return length


@app.orchestrator
async def fan(ctx: OrchestrationContext, width: int) -> int:
    return sum(await ctx.when_all([ctx.call_activity(hop, number) for number in range(width)]))


@app.orchestrator
async def recorded(ctx: OrchestrationContext, width: int) -> int:
    return sum(await ctx.when_all([ctx.call_activity(kept, number) for number in range(width)]))


@app.orchestrator
async def gated(ctx: OrchestrationContext, width: int) -> int:
    return sum(await ctx.when_all([ctx.call_activity(held, number) for number in range(width)]))


@app.activity(record=True)
def written(number: int) -> None:
    inlet("file:///data/source")
    outlet(f"file:///data/{number}")


@app.orchestrator
async def writer(ctx: OrchestrationContext, numbers: list[int]) -> None:
    """Write the first number here, and the others in children."""
    await ctx.call_activity(written, numbers[0])
    if len(numbers) > 1:
        await ctx.call_sub_orchestrator(writer, numbers[1:])


@app.orchestrator
async def failing(ctx: OrchestrationContext) -> int:
    return await ctx.call_activity(broken, 7)


@app.orchestrator
async def waiting(ctx: OrchestrationContext) -> int:
    return await ctx.wait_for_external_event("go", int)


@app.activity
def mended(path: str) -> str:
    if not os.path.exists(path):
        raise ValueError(f"{path} is not there yet")
    return path


@app.orchestrator
async def mending(ctx: OrchestrationContext, path: str) -> str:
    await ctx.call_activity(hop, 1)
    return await ctx.call_activity(mended, path)


def bulk(length: int) -> str:
    """A text that does not compress to nothing."""
    return random.Random(length).randbytes(length // 2).hex()


@app.activity
def large(length: int) -> str:
    note(f"large {length}")
    return bulk(length)


@app.orchestrator
async def carrying(ctx: OrchestrationContext, length: int) -> str:
    policy = RetryPolicy(max_attempts=5, first_retry_interval=timedelta(seconds=1))
    return await ctx.call_activity(large, length, retry_policy=policy)
