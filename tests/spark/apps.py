"""Spark activities for executors to run in tests."""

from __future__ import annotations

import os
import pathlib
import signal
import threading
from typing import TYPE_CHECKING

from airflow_provider_taskhub.activity import activity_info, progress
from airflow_provider_taskhub.app import App

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

app = App("sparktests")


def _meet(folder: str, name: str) -> None:
    """Say that we are here; go on when the test says so."""
    pathlib.Path(folder, f"{name}.started").write_text(str(os.getpid()))
    while not pathlib.Path(folder, f"{name}.go").exists():
        threading.Event().wait(0.01)


@app.activity
def plain() -> int:
    return os.getpid()


@app.spark_activity
def count(spark: SparkSession, rows: int) -> int:
    return spark.range(rows).count()


@app.spark_activity
def parent(spark: SparkSession) -> list[str | None]:
    """The parent run as the session and as the jobs of this thread know it."""
    name = "spark.openlineage.parentRunId"
    return [spark.conf.get(name, None), spark.sparkContext.getLocalProperty(name)]


@app.spark_activity
async def count_async(spark: SparkSession, rows: int) -> int:
    return spark.range(rows).count()


@app.spark_activity
def zone(spark: SparkSession, at: list[str]) -> dict[str, object]:
    """A view and a time zone under the same names as everybody else's, used while another attempt does the same."""
    from pyspark.sql import SparkSession as Sessions
    from pyspark.sql.functions import udf

    folder, name, time_zone = at
    spark.conf.set("spark.sql.session.timeZone", time_zone)
    spark.createDataFrame([(name,)], ["owner"]).createOrReplaceTempView("mine")
    _meet(folder, name)
    active, built = (
        Sessions.getActiveSession(),
        Sessions.builder.config("spark.sql.shuffle.partitions", "3").getOrCreate(),
    )
    assert active is not None
    shout = udf(lambda text: text.upper())
    return {
        "owner": spark.sql("SELECT owner FROM mine").first()["owner"],
        "hour": spark.sql("SELECT hour(timestamp_seconds(0)) AS h").first()["h"],
        "active": active.conf.get("spark.sql.session.timeZone"),
        "built": built.conf.get("spark.sql.session.timeZone"),
        "by builder": built.table("mine").first()["owner"],
        "shuffle": spark.conf.get("spark.sql.shuffle.partitions"),
        "udf": spark.table("mine").select(shout("owner").alias("o")).first()["o"],
        "tables": [table.name for table in active.catalog.listTables()],
    }


@app.spark_activity
def tables(spark: SparkSession) -> list[str]:
    return [table.name for table in spark.catalog.listTables()]


@app.spark_activity
def place(spark: SparkSession) -> dict[str, object]:
    progress(0.5, "half")
    return {
        "group": spark.sparkContext.getLocalProperty("spark.jobGroup.id"),
        "mode": spark.conf.get("spark.scheduler.mode"),
        "application": spark.sparkContext.applicationId,
        "ui": spark.sparkContext.uiWebUrl,
        "key": activity_info().idempotency_key,
    }


@app.spark_activity
def stop(spark: SparkSession, how: str) -> None:
    if how == "with":
        with spark:
            spark.range(1).count()
    elif how == "context":
        spark.sparkContext.stop()
    else:
        spark.stop()


@app.spark_activity
def endless(spark: SparkSession, folder: str) -> None:
    """A job that does not end by itself, restarted by code that takes every error for a hiccup."""

    def wait(rows: object) -> list[int]:
        pathlib.Path(folder, "endless.started").write_text(str(os.getpid()))
        while True:
            threading.Event().wait(1)

    for _ in range(3):
        try:
            spark.sparkContext.parallelize([0], 1).mapPartitions(wait).collect()
        except Exception as error:
            print(f"hiccup: {type(error).__name__}")
    raise RuntimeError("gave up")


@app.spark_activity
def jvm(spark: SparkSession) -> int:
    return int(spark.sparkContext._gateway.proc.pid)


@app.spark_activity
def kill_jvm(spark: SparkSession) -> None:
    os.kill(spark.sparkContext._gateway.proc.pid, signal.SIGKILL)
    threading.Event().wait()
