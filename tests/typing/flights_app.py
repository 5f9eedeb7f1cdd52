"""A user's module, as a type checker sees it: every ``assert_type`` is checked by mypy, and the app really runs."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, assert_type

from airflow_provider_taskhub.activity import activity_info, check_cancelled, progress
from airflow_provider_taskhub.app import (
    App,
    OrchestrationContext,
    OrchestrationError,
    RetryPolicy,
    SubOrchestrationFailedError,
    Task,
    TaskFailedError,
    when_all,
    when_any,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

app = App("flights", version="3", compatible=["2"])
RETRY = RetryPolicy(max_attempts=3, first_retry_interval=timedelta(seconds=2), backoff_coefficient=2.0)


@dataclass(frozen=True)
class Job:
    year: int
    months: list[int]


@dataclass(frozen=True)
class Delays:
    month: int
    minutes: float


@app.activity
def list_months(year: int) -> list[int]:
    return [1, 2, 3] if year else []


@app.activity(retry=RETRY, timeout=timedelta(minutes=5), record=True)
async def publish(summary: dict[str, float]) -> str:
    progress(0.5, "uploaded")
    check_cancelled()
    assert_type(activity_info().idempotency_key, str)
    return f"report of {len(summary)}"


@app.activity
def clean() -> None:
    return None


@app.activity
def delays(month: int) -> Delays:
    return Delays(month, month * 1.5)


@app.spark_activity(timeout=timedelta(minutes=30))
def count_rows(spark: SparkSession, month: int) -> int:
    return month


@app.spark_activity
def vacuum(spark: SparkSession) -> bool:
    return True


@app.orchestrator
async def one_month(ctx: OrchestrationContext, month: int) -> dict[str, float]:
    rows = await ctx.call_activity(count_rows, month)
    assert_type(rows, int)
    found = await ctx.call_activity(delays, month)
    assert_type(found, Delays)
    return {"rows": float(rows), "minutes": found.minutes}


async def hours_of(ctx: OrchestrationContext, month: int) -> float:
    found = await ctx.call_activity(delays, month)
    return found.minutes / 60


@app.orchestrator
async def flights_delays(ctx: OrchestrationContext, job: Job) -> dict[str, float]:
    assert_type(await ctx.call_activity(list_months, job.year), list[int])
    assert_type(await ctx.call_activity(clean), None)
    assert_type(await ctx.call_activity(vacuum), bool)
    assert_type(await ctx.call_activity("by_name", 3), Any)

    calls = [ctx.call_activity(count_rows, month, retry=RETRY, tags={"of": "year"}) for month in job.months]
    assert_type(await ctx.when_all(calls), list[int])
    first = await when_any(calls)
    assert_type(first, Task[int])
    assert_type(first.get_result(), int)

    children = [ctx.call_sub_orchestrator(one_month, month) for month in job.months]
    months = await when_all(children)
    assert_type(months, list[dict[str, float]])

    async with ctx.timeout(60) as limit:
        both = await ctx.when_all([ctx.branch(hours_of(ctx, month)) for month in job.months])
    assert_type(both, list[float])
    assert_type(limit.expired(), bool)

    approved = ctx.wait_for_external_event("approve", bool)
    deadline = ctx.create_timer(timedelta(hours=1))
    if await ctx.when_any([approved, deadline]) is deadline:
        raise OrchestrationError("nobody approved", retryable=False)
    assert_type(await approved, bool)
    try:
        url = await ctx.call_activity(publish, months[0])
        assert_type(url, str)
    except SubOrchestrationFailedError as error:
        assert_type(error.name, str)
        raise
    except TaskFailedError:
        url = ""
    ctx.set_custom_status({"published": url})
    return months[0]


@app.orchestrator
async def with_types_of_the_calls(ctx: OrchestrationContext, year: int) -> None:
    assert_type(await ctx.call_activity("delays", 3, result_type=Delays), Delays)
    assert_type(await ctx.call_activity("all_delays", result_type=list[Delays]), list[Delays])
    assert_type(await ctx.call_activity(list_months, year, result_type=tuple[int, ...]), tuple[int, ...])
    assert_type(await ctx.call_sub_orchestrator("worst", result_type=Delays), Delays)
    assert_type(await ctx.call_sub_orchestrator(one_month, 3, result_type=Delays), Delays)


@app.orchestrator
def as_generator(ctx: OrchestrationContext, year: int) -> Generator[Task[Any], Any, int]:
    """As written for Microsoft's Python SDK: the type of what ``yield`` gives cannot be told in Python."""
    months: list[int] = yield ctx.call_activity(list_months, input=year)
    return len(months)


@app.orchestrator
async def calls_a_generator(ctx: OrchestrationContext, year: int) -> int:
    length: int = await ctx.call_sub_orchestrator(as_generator, year)
    assert_type(ctx.get_input(int), int)
    return length
