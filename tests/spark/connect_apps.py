"""Activities with Spark Connect, and with a cluster, for executors to run in tests. No RDD: Connect has none."""

from __future__ import annotations

import _thread
import functools
import os
import pathlib
import queue
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.publishing.hadoop import executors_see

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

app = App("connecttests")


def _slow(spark: SparkSession, folder: str, tasks: int = 2) -> int:
    """A job whose tasks do not end by themselves. Each task writes a file when it begins, and again and again.

    The name of the file has the process id of Spark's Python worker.
    """
    from pyspark.sql.functions import udf

    def tick(number: int) -> int:
        import time

        file = pathlib.Path(folder, f"task-{number}.{os.getpid()}.ticks")
        while True:
            with file.open("a") as out:
                out.write(".")
            time.sleep(0.05)

    return spark.range(0, tasks, 1, tasks).select(udf(tick)("id")).collect()[0][0]


@functools.lru_cache
def kept() -> SparkSession:
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()


_POOL = ThreadPoolExecutor(1)


@app.spark_activity
def keeps_session(spark: SparkSession, view: str) -> list[object]:
    """What a session that was kept from the first attempt, and one in a thread of an old pool, have to do with this."""
    from pyspark.sql import SparkSession

    before = [table.name for table in kept().catalog.listTables()]
    spark.range(1).createOrReplaceTempView(view)
    found = _POOL.submit(lambda: [one.name for one in SparkSession.builder.getOrCreate().catalog.listTables()])
    return [before, [table.name for table in kept().catalog.listTables()], found.result()]


@app.spark_activity
def sees(spark: SparkSession, path: str) -> bool:
    """Whether the executors of the cluster see a file."""
    return executors_see(path)


@app.activity
def plain() -> int:
    return os.getpid()


@app.spark_activity
def total(spark: SparkSession, rows: int) -> int:
    from pyspark.sql.functions import sum as total_of

    return int(spark.range(rows).select(total_of("id")).first()[0])


@app.spark_activity
def settings(spark: SparkSession, at: list[str]) -> dict[str, object]:
    """What the attempt sees of its session while another attempt does the same: directly, active, built, in threads."""
    from concurrent.futures import ThreadPoolExecutor

    from pyspark.sql import SparkSession as Sessions

    folder, name, zone = at
    spark.conf.set("spark.sql.session.timeZone", zone)
    spark.createDataFrame([(name,)], ["owner"]).createOrReplaceTempView("mine")
    pathlib.Path(folder, f"{name}.started").write_text("here")
    while not pathlib.Path(folder, f"{name}.go").exists():
        threading.Event().wait(0.01)
    active = Sessions.getActiveSession()
    assert active is not None
    with ThreadPoolExecutor(1) as threads:
        in_thread = threads.submit(lambda: Sessions.active().conf.get("spark.sql.session.timeZone")).result()
        built_in_thread = threads.submit(lambda: Sessions.builder.getOrCreate().table("mine").first()["owner"]).result()
    raw: queue.SimpleQueue[str] = queue.SimpleQueue()

    def without_session() -> None:
        try:
            raw.put(Sessions.active().conf.get("spark.sql.session.timeZone") or "")
        except Exception as error:
            raw.put(type(error).__name__)

    _thread.start_new_thread(without_session, ())
    return {
        "raw thread": raw.get(timeout=30),
        "owner": spark.table("mine").first()["owner"],
        "hour": spark.sql("SELECT hour(timestamp_seconds(0)) AS h").first()["h"],
        "active": active.conf.get("spark.sql.session.timeZone"),
        "built": Sessions.builder.getOrCreate().table("mine").first()["owner"],
        "thread": in_thread,
        "built in a thread": built_in_thread,
        "shuffle": spark.conf.get("spark.sql.shuffle.partitions"),
    }


@app.spark_activity
def where(spark: SparkSession) -> dict[str, object]:
    return {
        "session": spark.session_id,  # type: ignore[attr-defined]  # Connect has it
        "tags": sorted(spark.getTags()),
        "parent": spark.conf.get("spark.openlineage.parentRunId", None),
        "secrets": [name for name, value in os.environ.items() if "s3cret" in value],
    }


@app.spark_activity
def fails(spark: SparkSession) -> None:
    spark.range(1).count()
    raise RuntimeError("after a job")


@app.spark_activity
def stops(spark: SparkSession) -> int:
    spark.stop()
    return 1


@app.spark_activity
def endless(spark: SparkSession, folder: str) -> None:
    """A job that does not end by itself, started again by code that takes every error for a hiccup."""
    for _ in range(3):
        try:
            _slow(spark, folder)
        except Exception as error:
            print(f"hiccup: {type(error).__name__}")
    raise RuntimeError("gave up")


@app.spark_activity
def stubborn(spark: SparkSession, folder: str) -> None:
    """As ``endless``, in code that does not end when it is asked to."""
    try:
        _slow(spark, folder)
    finally:
        threading.Event().wait()


@app.spark_activity
def dies_once(spark: SparkSession, folder: str) -> int:
    """The first attempt is killed in the middle of a job; the second one counts the ticks while it runs."""
    import time

    mark = pathlib.Path(folder, "died")
    if not mark.exists():
        mark.touch()
        threading.Thread(target=_slow, args=(spark, folder), daemon=True).start()
        while not list(pathlib.Path(folder).glob("*.ticks")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    return sum(file.stat().st_size for file in pathlib.Path(folder).glob("*.ticks"))
