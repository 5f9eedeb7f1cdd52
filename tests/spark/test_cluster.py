"""Activities on a real standalone cluster, in client mode: the driver is the executor's JVM, the tasks run on Spark's
workers.
"""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from airflow_provider_taskhub.demo import spark_servers
from airflow_provider_taskhub.demo.ports import free_port
from airflow_provider_taskhub.workers.executors.attempt_values import ActivityProgress
from airflow_provider_taskhub.workers.executors.pool import ExecutorLimits, ExecutorPool, ExecutorTimes
from tests.spark.conftest import CONNECT_APP, spark_pool
from tests.spark.servers import Servers, active_tasks, get
from tests.spark.test_connect import spark, ticking, ticks, value
from tests.waiting import until_async

pytestmark = pytest.mark.process


@pytest.fixture
async def pool(cluster: Servers) -> AsyncIterator[ExecutorPool]:
    more = {"spark.ui.enabled": "true", "spark.ui.port": str(free_port()), "spark.sql.shuffle.partitions": "3"}
    conf = {**cluster.conf, "spark.cores.max": "2", **more}
    times = ExecutorTimes(grace=timedelta(seconds=5))
    async with spark_pool(cluster.master, app=CONNECT_APP, conf=conf, times=times, warm=True) as pool:
        yield pool


async def test_attempts_run_on_a_cluster_are_cancelled_there_and_leave_nothing_when_they_are_killed(
    pool: ExecutorPool, cluster: Servers, tmp_path: pathlib.Path
) -> None:
    heard: list[ActivityProgress] = []
    outcome = await pool.run(spark("total", 7), progress=heard.append)
    assert value(outcome) == 21
    (tmp_path / "there").touch()
    for name in ("there", "nowhere"):
        assert value(await pool.run(spark("sees", str(tmp_path / name)))) == (name == "there")
    assert [heard[0].application_id] == cluster.applications()
    assert heard[0].spark_ui is not None
    page = heard[0].spark_ui.replace("localhost", "127.0.0.1")
    for name in ("utc", "tokyo"):
        (tmp_path / f"{name}.go").touch()
    zones = (("utc", "UTC", 0), ("tokyo", "Asia/Tokyo", 9))
    both = [pool.run(spark("settings", [str(tmp_path), name, zone], action_id=name)) for name, zone, _ in zones]
    for (name, zone, hour), answer in zip(zones, await asyncio.gather(*both), strict=True):
        seen = value(answer)
        assert (seen["owner"], seen["hour"], seen["active"], seen["shuffle"]) == (name, hour, zone, "3")

    run = asyncio.create_task(pool.run(spark("endless", str(tmp_path))))
    await until_async("the tasks run on the cluster", lambda: ticks(tmp_path) and active_tasks(page))
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await until_async("no task runs", lambda: not active_tasks(page))
    await until_async("the Python workers have ended too", lambda: not ticking(tmp_path))
    again = tmp_path / "again"
    again.mkdir()
    first = await pool.run(spark("dies_once", str(again), action_id="a"))
    assert first.crashed
    second = await pool.run(spark("dies_once", str(again), action_id="a", attempt=2), progress=heard.append)
    assert value(second) == ticks(again) > 0, "nothing of the first attempt ran beside the second one"
    await until_async("the first application has ended", lambda: cluster.applications() == [heard[-1].application_id])


async def test_a_cluster_that_does_not_answer_is_named_in_seconds() -> None:
    master = f"spark://127.0.0.1:{free_port()}"
    times = ExecutorTimes(patience=timedelta(seconds=1))
    async with spark_pool(master, app=CONNECT_APP, times=times) as pool:
        failure = (await pool.run(spark("total", 7))).failure
        assert failure is not None
        assert master in failure.error_message


async def test_a_cluster_without_free_cores_is_named_while_the_job_waits(cluster: Servers) -> None:
    conf = {**cluster.conf, "spark.cores.max": "2"}
    heard: list[ActivityProgress] = []
    async with spark_pool(cluster.master, app=CONNECT_APP, conf=conf, warm=True, name="w1") as first:
        assert value(await first.run(spark("total", 7))) == 21
        async with spark_pool(cluster.master, app=CONNECT_APP, conf=conf, warm=True, name="w2") as second:
            run = asyncio.create_task(second.run(spark("total", 7), progress=heard.append))
            await until_async(
                "it is named", lambda: "no executor of the cluster for" in ((heard and heard[-1].message) or "")
            )
            names = {found["name"] for found in get(f"{cluster.page}/json/")["activeapps"]}
            assert names == {"taskhub w1 spark-2.1", "taskhub w2 spark-2.1"}
            await first.stop(timedelta(0))
            assert value(await run) == 21, "it waits as long as it takes"


async def test_an_application_that_its_cluster_has_forgotten_is_started_again(tmp_path: pathlib.Path) -> None:
    servers = Servers(spark_servers.standalone(tmp_path), tmp_path)
    heard: list[ActivityProgress] = []
    try:
        async with spark_pool(
            servers.master, app="tests.spark.impatient_apps:app", conf=servers.conf, warm=True
        ) as pool:
            assert value(await pool.run(spark("total", 7), progress=heard.append)) == 21
            servers.stop()
            servers.start()
            lost = await pool.run(spark("total", 7, action_id="a"))
            assert (lost.crashed, lost.failure and "no Spark executor for" in lost.failure.error_message) == (
                True,
                True,
            )
            assert value(await pool.run(spark("total", 7, action_id="a", attempt=2), progress=heard.append)) == 21
            assert heard[-1].application_id != heard[0].application_id
    finally:
        servers.stop()


async def test_an_idle_application_gives_its_cores_back_until_the_next_activity(cluster: Servers) -> None:
    limits = ExecutorLimits(idle=timedelta(seconds=1))
    async with spark_pool(cluster.master, app=CONNECT_APP, conf=cluster.conf, warm=True, limits=limits) as pool:
        assert value(await pool.run(spark("total", 7))) == 21
        await until_async("the application has ended", lambda: not cluster.applications())
        both = [pool.run(spark("total", 7, action_id=name)) for name in ("a", "b")]
        assert [value(outcome) for outcome in await asyncio.gather(*both)] == [21, 21]
