"""Activities that publish, slowly enough to be killed in the middle."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_taskhub.activity import activity_info, publish
from airflow_provider_taskhub.app import App

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

app = App("publishing")
PARTS, ROWS = 4, 50
"""Partitions that a load writes, and rows of each."""


def _tell(call: dict[str, Any], **pids: int) -> None:
    """Say which processes work on this attempt."""
    file = Path(call["told"])
    unfinished = file.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps({"attempt": activity_info().attempt, "executor": os.getpid(), **pids}))
    unfinished.replace(file)


@app.activity(record=True)
def load(call: dict[str, Any]) -> int:
    """Write the partitions one after the other, in two files each."""
    import pyarrow
    import pyarrow.parquet

    _tell(call)
    with publish(call["target"], mode=call["mode"]) as path:
        for part in call["parts"]:
            os.makedirs(f"{path}/part={part}")
            for half in range(2):
                table = pyarrow.table({"load": [call["load"]] * (ROWS // 2)})
                pyarrow.parquet.write_table(table, f"{path}/part={part}/{half}.parquet")
                threading.Event().wait(0.05)
    return activity_info().attempt


@app.spark_activity
def load_by_spark(spark: SparkSession, call: dict[str, Any]) -> int:
    """The same by Spark: its committer moves the files of each task when the task has ended."""
    from pyspark.sql import functions as f

    _tell(call, jvm=spark.sparkContext._gateway.proc.pid)
    parts = spark.createDataFrame([(part,) for part in call["parts"]], "part INT").repartition(PARTS)
    rows = parts.crossJoin(spark.range(ROWS)).select(f.lit(call["load"]).alias("load"), "part")
    with publish(call["target"], mode=call["mode"]) as path:
        rows.write.partitionBy("part").parquet(path)
    return activity_info().attempt


@app.orchestrator
async def publishing(ctx: Any, call: dict[str, Any]) -> int:
    return int(await ctx.call_activity(load_by_spark if call["spark"] else load, call))
