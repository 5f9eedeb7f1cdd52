"""What ``make bench-spark`` runs: a small Spark job, as an activity and as an orchestration of many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_taskhub.app import App, OrchestrationContext, when_all

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

app = App("sparkbenchmarks")
COUNT = 100
"""Jobs in a round."""
THREADS = 4
"""Jobs at once."""


def job(spark: SparkSession) -> int:
    """A job of two stages and five tasks over so few rows that the time is Spark's own."""
    return int(spark.range(0, 20_000, 1, 4).selectExpr("sum(id % 7)").collect()[0][0])


@app.spark_activity
def small(spark: SparkSession, number: int) -> int:
    return job(spark)


@app.orchestrator
async def many(ctx: OrchestrationContext, count: int) -> int:
    return len(await when_all([ctx.call_activity(small, number) for number in range(count)]))
