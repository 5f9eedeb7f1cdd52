"""The activity ``spark_submit`` in cluster mode on a real standalone cluster: the driver outlives the executor."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import pathlib
import textwrap
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.settings import SparkSettings
from airflow_provider_taskhub.workers.executors.attempt_values import (
    LOST,
    ActivityOutcome,
    ActivityProgress,
    ActivityRequest,
)
from airflow_provider_taskhub.workers.executors.pool import ExecutorConfig, ExecutorPool, ExecutorTimes
from tests.spark.servers import Servers, get
from tests.waiting import PATIENCE, until_async
from tests.workers.conftest import Logs, request

pytestmark = pytest.mark.process

PYSPARK = importlib.util.find_spec("pyspark")
assert PYSPARK is not None
assert PYSPARK.origin is not None
JAR = next(pathlib.Path(PYSPARK.origin).parent.glob("jars/spark-core_*.jar"))
"""On a standalone cluster, cluster mode takes jars only. This one has Spark's own runner of Python files."""
JOB = """
    import os, pathlib, sys, time
    folder, jvm = pathlib.Path(sys.argv[1]), os.getppid()  # Spark may end only the JVM of a driver that it kills
    with (folder / "runs").open("a") as runs:
        runs.write("run\\n")
    while not (folder / "go").exists() and os.getppid() == jvm:
        time.sleep(0.1)
    (folder / "done").touch()
"""


def driver(cluster: Servers, job: str) -> str:
    """The state of a driver, as the master's REST server says."""
    status = get(f"http://127.0.0.1:{cluster.ports[2]}/v1/submissions/status/{job}")
    return str(status.get("driverState"))


class Heard:
    """Stores what the activity saves, as a worker does it. :ivar saved: the newest state."""

    def __init__(self) -> None:
        self.saved: str | None = None

    def __call__(self, news: ActivityProgress) -> None:
        if news.confirm is not None:
            self.saved = news.saved
            news.confirm()

    @property
    def job(self) -> str:
        return str(json.loads(self.saved or "{}").get("spark_job_id", ""))


def path_without(program: str) -> str:
    folders = os.environ["PATH"].split(os.pathsep)
    return os.pathsep.join(folder for folder in folders if not pathlib.Path(folder, program).exists())


@pytest.fixture
async def submitting(cluster: Servers, tmp_path: pathlib.Path) -> AsyncIterator[ExecutorPool]:
    extra = {"deploy-mode": "cluster", "rest-port": cluster.ports[2]}
    connection = {"conn_type": "spark", "host": cluster.master, "extra": extra}
    own = {"AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(connection), "AIRFLOW_HOME": str(tmp_path / "airflow")}
    own["PATH"] = path_without("spark-submit")  # as of a worker that was started from a virtual environment by its path
    app = "airflow_provider_taskhub.spark_submit:app"
    config = ExecutorConfig(apps=(app,), spark=SparkSettings(), environment={**os.environ, **own})
    times = ExecutorTimes(grace=timedelta(seconds=PATIENCE))
    pool = ExecutorPool(config, size=2, processes=1, logs=Logs(), name="submit", times=times)
    await pool.start()
    yield pool
    await pool.stop(timedelta(0))


def submit(folder: pathlib.Path, **more: Any) -> ActivityRequest:
    job = folder / "job.py"
    job.write_text(textwrap.dedent(JOB))
    arguments = {
        "application": str(JAR),
        "java_class": "org.apache.spark.deploy.PythonRunner",
        "application_args": [str(job), "", str(folder)],
        "driver_memory": "300m",
    }
    return request("spark_submit", arguments, **more)


async def driver_works(run: asyncio.Task[ActivityOutcome], folder: pathlib.Path, heard: Heard) -> None:
    """Wait until the driver of an attempt works. An attempt that has ended before has failed: its outcome says why."""
    await until_async("the driver works", lambda: run.done() or ((folder / "runs").exists() and heard.job))
    assert not run.done(), run.result()


async def orphan(submitting: ExecutorPool, folder: pathlib.Path) -> Heard:
    """Let an executor die while its driver works. Return what its attempt has saved."""
    heard = Heard()
    first = asyncio.create_task(submitting.run(submit(folder), progress=heard))
    await driver_works(first, folder, heard)
    for seat in submitting._seats:
        if seat.executor is not None:
            await seat.executor.kill("is killed by the test")
    assert (await first).crashed
    return heard


async def test_the_attempt_after_a_death_waits_for_the_same_driver(
    submitting: ExecutorPool, cluster: Servers, tmp_path: pathlib.Path
) -> None:
    heard = await orphan(submitting, tmp_path)
    assert driver(cluster, heard.job) == "RUNNING", "the driver has outlived the executor"
    second = asyncio.create_task(submitting.run(submit(tmp_path, saved=heard.saved), progress=heard))
    (tmp_path / "go").touch()
    outcome = await second
    assert (outcome.failure, json.loads(outcome.result or "")) == (None, heard.job)
    assert ((tmp_path / "runs").read_text(), (tmp_path / "done").exists()) == ("run\n", True)


async def test_the_end_of_the_worker_leaves_the_driver_to_the_next_attempt(
    submitting: ExecutorPool, cluster: Servers, tmp_path: pathlib.Path
) -> None:
    heard = Heard()
    run = asyncio.create_task(submitting.run(submit(tmp_path), progress=heard))
    await driver_works(run, tmp_path, heard)
    run.cancel(LOST)
    with pytest.raises(asyncio.CancelledError):
        await run
    assert driver(cluster, heard.job) == "RUNNING"
    second = asyncio.create_task(submitting.run(submit(tmp_path, saved=heard.saved), progress=heard))
    (tmp_path / "go").touch()
    assert json.loads((await second).result or "") == heard.job
    assert (tmp_path / "runs").read_text() == "run\n"


async def test_a_cancel_ends_the_driver(submitting: ExecutorPool, cluster: Servers, tmp_path: pathlib.Path) -> None:
    heard = Heard()
    run = asyncio.create_task(submitting.run(submit(tmp_path), progress=heard))
    await driver_works(run, tmp_path, heard)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert driver(cluster, heard.job) == "KILLED"


async def test_the_driver_of_a_dead_worker_that_nobody_wants_is_killed(
    submitting: ExecutorPool, cluster: Servers, tmp_path: pathlib.Path
) -> None:
    heard = await orphan(submitting, tmp_path)
    outcome = await submitting.run(submit(tmp_path, saved=heard.saved, clean_up=True))
    assert (outcome.failure, outcome.result) == (None, "null")
    assert driver(cluster, heard.job) == "KILLED"
    assert (tmp_path / "runs").read_text() == "run\n"
