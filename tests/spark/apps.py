"""Spark activities for executors to run in tests."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import os
import pathlib
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from airflow_provider_taskhub.activity import Reference, activity_info, progress, publish
from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.publishing import published, read_published

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
def noon(spark: SparkSession) -> list[object]:
    """Noon of UTC, as PySpark gives it, and the zone of this process."""
    return [*spark.sql("SELECT timestamp'2024-01-01 12:00:00Z' AS at").collect(), os.environ["TZ"]]


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
def written(spark: SparkSession, at: list[str]) -> Reference:
    """Three rows, published or in a folder."""
    path, how = at
    frame = spark.range(3)
    if how == "published":
        with publish(path) as place:
            frame.write.parquet(place)
        return Reference(path, rows=3, published=True)
    frame.write.format(how).save(path)
    return Reference(path, how, rows=3, options={"inferSchema": "true"} if how == "csv" else {})


@app.spark_activity
def added(spark: SparkSession, frames: list[DataFrame]) -> list[int]:
    return [frame.groupBy().sum().collect()[0][0] for frame in frames]


@app.spark_activity
def returned(spark: SparkSession) -> object:
    return spark.range(3)


@app.spark_activity(conf={"spark.sql.shuffle.partitions": 5, "spark.sql.ansi.enabled": False})
def configured(spark: SparkSession) -> list[str]:
    return [spark.conf.get(name) for name in ("spark.sql.shuffle.partitions", "spark.sql.ansi.enabled")]


@app.spark_activity(conf={"spark.driver.memory": "600m", "spark.sql.shuffle.partitions": 5})
def own_application(spark: SparkSession, at: list[str]) -> dict[str, object]:
    _meet(*at)
    return {
        "application": spark.sparkContext.applicationId,
        "heap": spark._jvm.java.lang.Runtime.getRuntime().maxMemory() // 1_000_000,
        "partitions": spark.conf.get("spark.sql.shuffle.partitions"),
    }


@app.spark_activity
def known_settings(spark: SparkSession) -> dict[str, bool]:
    """The settings that Spark knows, each with whether a session can change it."""
    java = spark._jvm.java.lang
    entries = java.Class.forName("org.apache.spark.internal.config.ConfigEntry$")
    known = entries.getDeclaredField("knownConfigs")
    known.setAccessible(True)
    static = spark._jvm.org.apache.spark.sql.internal.SQLConf.isStaticConfigKey
    names = [str(name) for name in known.get(entries.getField("MODULE$").get(None)).keySet()]
    return {name: name.startswith("spark.sql.") and not static(name) for name in names}


@app.spark_activity(conf={"spark.history.fs.logDirectory": "/secret"})
def misconfigured(spark: SparkSession) -> None:
    raise AssertionError("Spark has refused the setting")


@app.spark_activity
def in_two_stages(spark: SparkSession, at: list[str]) -> int:
    """Three tasks, of which the last one ends when the test says so, and then one task."""
    folder, how = at

    def wait(key: int, rows: object) -> list[int]:
        while key == 2 and not pathlib.Path(folder, "go").exists():
            threading.Event().wait(0.01)
        return [key]

    if how == "reports":
        progress(0.5, "by itself")
    keys = spark.sparkContext.parallelize(range(3), 3).mapPartitionsWithIndex(wait)
    return keys.map(lambda key: (0, key)).reduceByKey(lambda one, other: one + other, 1).count()


OLDER = ThreadPoolExecutor(1)
"""A pool of the module, whose thread one attempt starts and later ones use."""


@app.spark_activity
def in_threads(spark: SparkSession) -> list[list[object]]:
    """Job group, scheduler pool and session as threads have them: this, another, of a pool, and of an older pool."""
    from pyspark.sql import SparkSession as Sessions

    seen: list[list[object]] = []

    def look() -> None:
        names = ("spark.jobGroup.id", "spark.scheduler.pool")
        mine = [spark.sparkContext.getLocalProperty(name) for name in names]
        seen.append([*mine, Sessions.builder.getOrCreate() is spark])

    look()
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(look).result()
    OLDER.submit(look).result()
    return seen


def _forever(spark: SparkSession, folder: str) -> None:
    def wait(rows: object) -> list[int]:
        pathlib.Path(folder, "forever.started").write_text(str(os.getpid()))
        while True:
            threading.Event().wait(1)

    spark.sparkContext.parallelize([0], 1).mapPartitions(wait).collect()


@app.spark_activity
def careless(spark: SparkSession, at: list[str]) -> None:
    """Leaves a job in a thread, a stream, cached data and a global view behind, whether it returns or fails."""
    folder, how = at
    threading.Thread(target=_forever, args=(spark, folder), daemon=True).start()
    spark.readStream.format("rate").load().writeStream.format("noop").start()
    spark.range(3).cache().count()
    spark.range(3).createGlobalTempView("everybodys")
    while not pathlib.Path(folder, "forever.started").exists():
        threading.Event().wait(0.01)
    if how == "fails":
        raise RuntimeError("gave up")


@app.spark_activity
def left(spark: SparkSession) -> list[object]:
    """What an earlier attempt has left: streams, cached data and global views. A stream or a job has threads."""
    threads = [one.getName() for one in spark._jvm.java.lang.Thread.getAllStackTraces().keySet()]
    shared = spark._jsparkSession.sharedState()
    return [
        [name for name in threads if name.startswith("stream execution thread")],
        list(spark.sparkContext.statusTracker().getActiveJobsIds()),
        shared.cacheManager().isEmpty(),
        [view.name for view in spark.catalog.listTables("global_temp")],
    ]


@app.spark_activity
def long_in_a_thread(spark: SparkSession, folder: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(_forever, spark, folder).result()


@app.spark_activity
def long_stream(spark: SparkSession, folder: str) -> None:
    query = spark.readStream.format("rate").load().writeStream.format("noop").start()
    pathlib.Path(folder, "forever.started").touch()
    query.awaitTermination()


@app.spark_activity
async def long_async(spark: SparkSession, folder: str) -> None:
    touch = pathlib.Path.touch
    try:
        touch(pathlib.Path(folder, "forever.started"))
        await asyncio.Event().wait()
    finally:
        touch(pathlib.Path(folder, "cleaned"))


@app.spark_activity
def stop_context(spark: SparkSession, fails: bool) -> str:
    spark.sparkContext._jsc.sc().stop()
    if fails:
        spark.range(1).count()
    return "stopped"


@app.spark_activity
def shuffled(spark: SparkSession) -> list[str]:
    """Writes files of a shuffle. Returns the folder for Spark's files, and what is in it."""
    spark.range(100).repartition(3).count()
    folder = pathlib.Path(spark.conf.get("spark.local.dir"))
    return [str(folder), *(one.name.partition("-")[0] for one in folder.iterdir())]


@app.spark_activity
def jvm(spark: SparkSession) -> int:
    return int(spark.sparkContext._gateway.proc.pid)


@app.spark_activity
def kill_jvm(spark: SparkSession, go_on: bool) -> None:
    os.kill(spark.sparkContext._gateway.proc.pid, signal.SIGKILL)
    while go_on:
        spark.range(1).count()
    threading.Event().wait()


@app.spark_activity
def publish_days(spark: SparkSession, call: dict[str, object]) -> list[list[int]]:
    """Publish the squares of some days, partitioned by month and day; return what a reader finds after it."""
    from pyspark.sql import functions as f

    days = spark.createDataFrame([(day,) for day in call["days"]], "day INT")  # type: ignore[attr-defined]
    frame = days.withColumn("month", f.col("day") % 2).withColumn("value", f.col("day") * call["factor"])
    target = str(call["target"])
    with publish(target, mode=call["mode"]) as path:  # type: ignore[arg-type]
        (frame.write.partitionBy("month", "day") if call["partitions"] else frame.write).parquet(path)
    found = read_published(spark, target)
    assert sorted(found.columns) == ["day", "month", "value"], "the column of the commit is not the user's"
    return sorted([row["month"], row["day"], row["value"]] for row in found.collect())


@app.spark_activity
def publish_column(spark: SparkSession, call: list[str]) -> list[object]:
    """Append a row with a column of a name and a type; return the columns and rows of a reader, or its error."""
    target, name, kind = call
    with publish(target, mode="append") as path:
        spark.sql(f"SELECT 1 AS id, CAST('7' AS {kind}) AS {name}").write.parquet(path)
    try:
        found = read_published(spark, target)
        return [sorted(found.columns), sorted((row.asDict() for row in found.collect()), key=str)]
    except Exception as error:
        return [str(error)]


@app.spark_activity
def plain_read(spark: SparkSession, target: str) -> str:
    """What a reader gets that knows nothing of commits."""
    try:
        return str(spark.read.parquet(target).count())
    except Exception as error:
        return str(error)


@app.spark_activity
def pruned(spark: SparkSession, target: str) -> list[object]:
    """The rows of one partition, and whether Spark leaves the other partitions out."""
    one = read_published(spark, target).where("day = 3")
    return [one.count(), "PartitionFilters: [isnotnull(day" in one._jdf.queryExecution().executedPlan().toString()]


@app.spark_activity
def empty(spark: SparkSession, target: str) -> list[object]:
    frame = spark.createDataFrame([], "value INT, day INT")
    with publish(target) as path:
        frame.write.partitionBy("day").parquet(path)
    found = published(target)
    assert found is not None
    try:
        read_published(spark, target)
    except Exception as error:
        return [found.paths, str(error), read_published(spark, target, schema=frame.schema).count()]
    return []


@app.spark_activity
def batch_keys(spark: SparkSession, folder: str) -> list[str]:
    """The key of this attempt, and the key that its function sees in a batch, which the JVM calls."""
    seen: list[str] = []
    done = threading.Event()

    def batch(frame: DataFrame, number: int) -> None:
        print("a batch")
        seen.append(activity_info().idempotency_key)
        done.set()

    pathlib.Path(folder, "in").mkdir()
    spark.range(1).write.parquet(f"{folder}/in/0")
    read = spark.readStream.schema("id LONG").parquet(f"{folder}/in/*")
    query = read.writeStream.option("checkpointLocation", f"{folder}/cp").foreachBatch(batch).start()
    query.processAllAvailable()
    assert done.is_set()
    return [activity_info().idempotency_key, *seen]


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
    kept().conf.set("spark.sql.shuffle.partitions", "7")
    found = _POOL.submit(lambda: [one.name for one in SparkSession.builder.getOrCreate().catalog.listTables()])
    after = [table.name for table in kept().catalog.listTables()]
    return [before, after, found.result(), spark.conf.get("spark.sql.shuffle.partitions")]


@app.spark_activity
def leaves_hidden(spark: SparkSession, folder: str) -> None:
    """Leave what is hard to see: a stream of another session, a job of another group, a checkpoint."""
    own = spark.newSession()
    stream = own.readStream.format("rate").load().writeStream.format("noop")
    stream.option("checkpointLocation", f"{folder}/stream").start()

    def job() -> None:
        spark.sparkContext.setJobGroup("mine", "a group of the user")
        with contextlib.suppress(Exception):
            spark.range(10**12).selectExpr("sum(id % 7)").collect()

    spark.sparkContext.setCheckpointDir(f"{folder}/checkpoints")
    spark.range(10).checkpoint()
    threading.Thread(target=job, daemon=True).start()  # last, because its tasks take all cores
    while not spark.sparkContext.statusTracker().getJobIdsForGroup("mine"):
        threading.Event().wait(0.01)


@app.spark_activity
def left_hidden(spark: SparkSession, folder: str) -> list[object]:
    """What the attempt before has left."""
    context = spark.sparkContext
    streams = spark._jsparkSession.sharedState().activeStreamingQueries().size()
    running = context.statusTracker().getActiveJobsIds()
    return [streams, running, context.getCheckpointDir(), os.listdir(f"{folder}/checkpoints")]


@app.spark_activity
def module_version(spark: SparkSession, at: list[str]) -> list[int]:
    """The version of an added module, as the driver and as Spark's Python workers import it."""
    folder, version = at
    pathlib.Path(folder, "versioned.py").write_text(f"V = {version}\n")
    spark.sparkContext.addPyFile(f"{folder}/versioned.py")
    seen = spark.sparkContext.parallelize([0], 1).map(lambda _: importlib.import_module("versioned").V).collect()
    return [importlib.import_module("versioned").V, *seen]


@app.spark_activity
def places(spark: SparkSession) -> list[str]:
    """Where the JVM has its temporary files."""
    return [
        str(spark._jvm.java.lang.System.getProperty("java.io.tmpdir")),
        *spark.sparkContext.getConf().get("spark.local.dir", "").split(","),
    ]


@app.spark_activity
def sees(spark: SparkSession, path: str) -> bool:
    from airflow_provider_taskhub.publishing.hadoop import executors_see

    return executors_see(path)


@app.spark_activity
def through_the_jvm(spark: SparkSession, folder: str) -> str:
    """Files through Hadoop's file systems, as on HDFS. The disk stands in for it."""
    from airflow_provider_taskhub.publishing.hadoop import HadoopFiles
    from tests.publishing.contract import keeps_the_contract

    files = HadoopFiles.of_session(f"file://{folder}")

    def put(path: str, content: bytes) -> None:
        file = pathlib.Path(folder, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)

    keeps_the_contract(files, put)
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    conf.set("fs.defaultFS", "hdfs://name:8020")
    try:
        published(folder)
    except InputError as error:
        return str(error)
    finally:
        conf.set("fs.defaultFS", "file:///")
    return "not refused"


@app.spark_activity
def fails_in_a_query(spark: SparkSession) -> list[float]:
    from pyspark.sql.functions import udf

    def ratio(number: int) -> float:
        return 1 / (number - 3)

    rows = spark.range(8).where("id % 2 = 1").select(udf(ratio, "double")("id").alias("of_three"))
    return [row.of_three for row in rows.collect()]


@app.spark_activity
def reads_an_added_file(spark: SparkSession, path: str) -> list[object]:
    """What Spark's tasks and the driver read of a file that the attempt adds, and the files that it has found."""
    from pyspark import SparkFiles

    context = spark.sparkContext
    before = list(context.listFiles)
    context.addFile(os.path.dirname(path), recursive=True)
    context.addFile(path)
    name = os.path.basename(path)
    in_task = context.parallelize([0], 1).map(lambda _: pathlib.Path(SparkFiles.get(name)).read_text()).collect()[0]
    return [before, in_task, pathlib.Path(SparkFiles.get(name)).read_text()]


@app.spark_activity
def sets_hadoop_settings(spark: SparkSession, sets: bool) -> list[str | None]:
    """What Hadoop's configuration says at the beginning: a key of nobody, and one that has a default."""
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    keys = ("fs.s3a.secret.key", "io.file.buffer.size", "hadoop.tmp.dir")
    found = [conf.get(key) for key in keys]
    if sets:
        conf.set(keys[0], "s3cret")
        conf.set(keys[1], "77")
        conf.unset(keys[2])
    return found
