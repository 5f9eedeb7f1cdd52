"""What the workers of the tests' hub run."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from airflow_provider_taskhub.activity import activity_info
from airflow_provider_taskhub.app import App, OrchestrationContext, OrchestrationError, TaskFailedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

app = App("tests", version="7")


@app.activity(record=True)
def square(number: int) -> int:
    print(f"square of {number}")
    return number * number


@app.activity(record=True)
def rest(seconds: float) -> float:
    print(f"resting for {seconds} s", flush=True)
    time.sleep(seconds)
    return seconds


@app.activity(record=True)
def month(given: dict[str, Any]) -> str:
    print(f"resting for {given['seconds']} s", flush=True)
    time.sleep(given["seconds"])
    return f"{given['year']}-{given['month']:02}"


@app.activity(record=True)
def reads(pipe: str) -> str:
    print("before the pipe", flush=True)
    text = Path(pipe).read_text()
    print("after the pipe", flush=True)
    return text


@app.activity(record=True)
def broken(lines: int) -> None:
    for number in range(lines):
        print(f"broken line {number}", flush=True)
    raise ValueError("41 of 8,760 rows rejected")


@app.activity
def broken_plainly(lines: int) -> None:
    broken(lines)


@app.activity(record=True)
def second_time(marker: str) -> str:
    if not Path(marker).exists():
        print("this is the first time", flush=True)
        Path(marker).touch()
        raise ValueError("not the first time")
    print("this is another time", flush=True)
    return "at last"


@app.activity(record=True)
def counted(place: list[Any]) -> int:
    """Leaves a file for each of its runs. Number 7 fails in its first run."""
    folder, number = place
    again = any(Path(folder).glob(f"{number}-*"))
    Path(folder, f"{number}-{uuid4().hex}").touch()
    if number == 7 and not again:
        raise ValueError("number 7 fails once")
    return int(number)


@app.spark_activity
def counted_rows(spark: SparkSession, place: list[Any]) -> int:
    """As ``counted``, with a job of Spark that counts the rows."""
    return spark.range(counted(place)).count()


@app.activity
def come(folder: str) -> int:
    """Leaves a file until ``go`` takes it away, and returns how many there are."""
    Path(folder, activity_info().instance_id.replace("/", "_")).touch()
    return len(list(Path(folder).iterdir()))


@app.activity
def go(folder: str) -> None:
    Path(folder, activity_info().instance_id.replace("/", "_")).unlink()


@app.orchestrator
async def together(ctx: OrchestrationContext, folder: str) -> int:
    """How many instances of this orchestrator run at once, this one included."""
    count = await ctx.call_activity(come, folder)
    await ctx.create_timer(timedelta(seconds=1))
    await ctx.call_activity(go, folder)
    return count


@app.orchestrator
async def twelve(ctx: OrchestrationContext, folder: str) -> int:
    """Runs twelve activities, and fails when all of them have ended if one has failed."""
    return await twelve_of(ctx, counted, folder)


@app.orchestrator
async def twelve_spark(ctx: OrchestrationContext, folder: str) -> int:
    """The same with twelve Spark activities."""
    return await twelve_of(ctx, counted_rows, folder)


async def twelve_of(ctx: OrchestrationContext, activity: Callable[..., Any], folder: str) -> int:
    failure, total = None, 0
    for call in [ctx.call_activity(activity, [folder, number]) for number in range(12)]:
        try:
            total += await call
        except TaskFailedError as error:
            failure = error
    if failure is not None:
        raise failure
    return total


@app.orchestrator
async def sums(ctx: OrchestrationContext, numbers: list[int]) -> dict[str, Any]:
    ctx.set_custom_status({"numbers": len(numbers)})
    squares = await ctx.when_all([ctx.call_activity(square, number) for number in numbers])
    return {"sum": sum(squares), "run": ctx.tags.get("airflow.run_id")}


@app.orchestrator
async def slow(ctx: OrchestrationContext, seconds: float) -> float:
    return await ctx.call_activity(rest, seconds)  # type: ignore[no-any-return]


@app.orchestrator
async def year(ctx: OrchestrationContext, seconds: float) -> list[str]:
    """Twelve activities side by side. They take the given time and half of it, in turn."""
    months = [{"year": 2025, "month": number, "seconds": seconds / (1 + number % 2)} for number in range(1, 13)]
    return await ctx.when_all([ctx.call_activity(month, one) for one in months])


@app.orchestrator
async def told(ctx: OrchestrationContext) -> Any:
    """Ends when it is told to, however slow everything else is."""
    go = ctx.wait_for_external_event("go")
    await ctx.when_any([go, ctx.call_activity(rest, 600.0)])
    return go.get_result()


@app.orchestrator
async def fails(ctx: OrchestrationContext, lines: int) -> None:
    await ctx.call_activity(broken, lines)


@app.orchestrator
async def fails_plainly(ctx: OrchestrationContext, lines: int) -> None:
    await ctx.call_activity(broken_plainly, lines)


@app.orchestrator
async def flaky(ctx: OrchestrationContext, marker: str) -> str:
    return await ctx.call_activity(second_time, marker)  # type: ignore[no-any-return]


@app.orchestrator
async def reads_once(ctx: OrchestrationContext, pipe: str) -> str:
    return await ctx.call_activity(reads, pipe)  # type: ignore[no-any-return]


@app.orchestrator
async def refuses(ctx: OrchestrationContext) -> None:
    raise OrchestrationError("nobody approved", retryable=False)


@app.orchestrator
async def waits(ctx: OrchestrationContext) -> None:
    await ctx.when_any([ctx.wait_for_external_event("go"), ctx.create_timer(timedelta(minutes=10))])


@app.orchestrator
async def pause(ctx: OrchestrationContext, seconds: float) -> float:
    await ctx.create_timer(timedelta(seconds=seconds))
    return seconds
