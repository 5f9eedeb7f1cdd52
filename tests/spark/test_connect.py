"""Activities with a real Spark Connect server: a session for each attempt, which is ended whatever happens to it."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.workers.executors.attempt_values import ActivityOutcome, ActivityProgress, ActivityRequest
from airflow_provider_taskhub.workers.executors.executor import ExecutorError
from airflow_provider_taskhub.workers.executors.pool import ExecutorPool, ExecutorTimes
from tests.spark.conftest import CONNECT_APP, spark_pool
from tests.spark.servers import Servers
from tests.waiting import until_async
from tests.workers.conftest import alive, request, started

pytestmark = pytest.mark.process


def spark(name: str, *arguments: object, **more: Any) -> ActivityRequest:
    values = {"input": None} if not arguments else {}
    return request(name, *arguments, spark=True, **values, **more)


def value(outcome: ActivityOutcome) -> Any:
    assert outcome.failure is None, outcome.failure
    return json.loads(outcome.result or "")


def ticks(folder: pathlib.Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.ticks"))


def ticking(folder: pathlib.Path) -> list[int]:
    """Return the process ids of Spark's Python workers that still run a task of :func:`.connect_apps._slow`.

    Spark calls a task ended a moment before its Python worker ends.
    """
    pids = [int(file.name.split(".")[1]) for file in folder.glob("*.ticks")]
    return [pid for pid in pids if alive(pid)]


@pytest.fixture
async def pool(connect: Servers) -> AsyncIterator[ExecutorPool]:
    times = ExecutorTimes(grace=timedelta(seconds=5), patience=timedelta(seconds=60))
    conf = {"spark.sql.shuffle.partitions": "3"}
    master = f"{connect.master}/;user_id=tester"
    async with spark_pool(master, app=CONNECT_APP, times=times, conf=conf, warm=True) as pool:
        yield pool


async def test_concurrent_attempts_have_sessions_of_their_own(pool: ExecutorPool, tmp_path: pathlib.Path) -> None:
    zones = {"utc": ("UTC", 0), "tokyo": ("Asia/Tokyo", 9)}
    both = [
        asyncio.create_task(pool.run(spark("settings", [str(tmp_path), name, zone], action_id=name, log=name)))
        for name, (zone, _) in zones.items()
    ]
    for name in zones:
        await until_async(f"{name} has its view", lambda name=name: started(tmp_path, name))
    for name in zones:
        (tmp_path / f"{name}.go").touch()
    for (name, (zone, hour)), outcome in zip(zones.items(), await asyncio.gather(*both), strict=True):
        assert value(outcome) == {
            "owner": name,
            "hour": hour,
            "active": zone,
            "built": name,
            "thread": zone,
            "built in a thread": name,
            "raw thread": "PySparkRuntimeError",
            "shuffle": "3",
        }


async def test_a_session_that_user_code_keeps_is_that_of_the_attempt_which_uses_it(pool: ExecutorPool) -> None:
    for name in ("one", "two"):
        assert value(await pool.run(spark("keeps_session", name, action_id=name))) == [[], [name], [name]]


async def test_an_attempt_says_where_it_runs_and_leaves_no_session(pool: ExecutorPool, connect: Servers) -> None:
    heard: list[ActivityProgress] = []
    name = f"{connect.master}/;user_id=tester;session_id=5b6b2f4e-52a2-4f0a-8c3e-0123456789ab"
    conf = {"spark.openlineage.parentRunId": "8a"}
    outcome = await pool.run(
        spark("where", action_id="7f", attempt=2, spark_session=name, spark_conf=conf), progress=heard.append
    )
    assert value(outcome) == {
        "session": "5b6b2f4e-52a2-4f0a-8c3e-0123456789ab",
        "tags": ["taskhub-7f-2"],
        "parent": "8a",
        "secrets": [],
    }
    assert heard[0].job_group == "taskhub-7f-2"
    assert (heard[0].application_id or "").startswith("local-")
    again = (await pool.run(spark("where", spark_session=name))).failure
    assert again is not None, "the session was ended with its attempt, so its id is refused"
    assert f"the Spark Connect session {name} has ended" in again.error_message
    failed = replace(spark("fails"), spark_session=name.replace("5b6b2f4e", "5b6b2f4f"))
    assert "after a job" in ((await pool.run(failed)).failure or outcome).error_message  # type: ignore[union-attr]
    ended = (await pool.run(replace(failed, name="where"))).failure
    assert ended is not None, "also after a failure"
    assert "has ended" in ended.error_message
    assert value(await pool.run(spark("stops"))) == 1, "it ends only its own session"
    assert value(await pool.run(spark("total", 7))) == 21


async def test_cancelling_ends_the_tasks_and_spares_the_executor(
    pool: ExecutorPool, connect: Servers, tmp_path: pathlib.Path
) -> None:
    heard: list[ActivityProgress] = []
    run = asyncio.create_task(pool.run(spark("endless", str(tmp_path), log="cancelled"), progress=heard.append))
    await until_async("the tasks run", lambda: ticks(tmp_path) and connect.tasks())
    wanted = "Spark job 1: 0 of 1 stages, 0 of 2 tasks"
    await until_async("the server has told the progress of the job", lambda: heard[-1].message == wanted)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await until_async("no task runs", lambda: not connect.tasks())
    outcome = await pool.run(spark("endless", str(tmp_path), timeout=timedelta(seconds=3)))
    assert outcome.failure is not None
    assert outcome.failure.error_message == "activity 'endless' ran longer than its timeout of 3 s and was stopped"
    assert len([line for line in outcome.log_tail if line.startswith("hiccup")]) == 3, "later jobs were refused too"
    after = await pool.run(spark("total", 5))
    assert value(after) == 10
    assert after.executor == outcome.executor == "spark-2.1"


async def test_what_a_killed_executor_leaves_is_ended_before_its_attempt_ends(
    pool: ExecutorPool, connect: Servers, tmp_path: pathlib.Path
) -> None:
    first = await pool.run(spark("dies_once", str(tmp_path), action_id="a"))
    assert first.crashed
    await until_async("no task runs", lambda: not connect.tasks() and not ticking(tmp_path))
    counted = ticks(tmp_path)
    second = await pool.run(spark("dies_once", str(tmp_path), action_id="a", attempt=2))
    assert value(second) == counted > 0, "nothing of the first attempt ran beside the second one"
    run = await pool.run(spark("stubborn", str(tmp_path), timeout=timedelta(seconds=3)))
    assert run.failure is not None
    assert "killed with its executor" in run.failure.error_message
    await until_async("no task runs", lambda: not connect.tasks())


async def test_what_a_dead_worker_has_left_is_ended_before_the_next_attempt_runs(
    pool: ExecutorPool, connect: Servers, tmp_path: pathlib.Path
) -> None:
    """Another worker's attempt, whose executor is frozen: nobody but the server knows of its tasks."""
    times = ExecutorTimes(silence=timedelta(minutes=10))  # its own worker is not to notice either
    async with spark_pool(f"{connect.master}/;user_id=tester", app=CONNECT_APP, times=times) as other:
        name = f"{connect.master}/;user_id=tester;session_id=5b6b2f4e-52a2-4f0a-8c3e-0123456789ac"
        run = asyncio.create_task(other.run(spark("stubborn", str(tmp_path), spark_session=name)))
        await until_async("the tasks run", lambda: ticks(tmp_path) and connect.tasks())
        pid = next(seat.executor.pid for seat in other._seats if seat.executor and seat.kind == "spark")
        os.kill(pid, signal.SIGSTOP)
        async with asyncio.timeout(120):  # its tasks have all cores of the server
            assert value(await pool.run(spark("total", 5, left_sessions=(name,)))) == 10
        assert not connect.tasks()
        assert not run.done()
        foreign = "sc://elsewhere:15002/;user_id=tester;session_id=5b6b2f4e-52a2-4f0a-8c3e-0123456789ac"
        refused = (await pool.run(spark("total", 5, left_sessions=(foreign,)))).failure
        assert refused is not None
        assert "give all workers of a hub the same TASKHUB_SPARK__MASTER" in refused.error_message
        run.cancel()
        os.kill(pid, signal.SIGCONT)
        with pytest.raises(asyncio.CancelledError):
            await run
    with pytest.raises(ExecutorError, match="does not use Spark Connect"):
        async with spark_pool("local[1]", app=CONNECT_APP) as local:
            await local.end_sessions((name,))


async def test_a_server_that_dies_ends_the_executor_and_one_that_comes_back_is_used(
    connect: Servers, tmp_path: pathlib.Path
) -> None:
    times = ExecutorTimes(patience=timedelta(seconds=3))
    async with spark_pool(connect.master, app=CONNECT_APP, times=times) as pool:
        run = asyncio.create_task(pool.run(spark("endless", str(tmp_path))))
        await until_async("the job runs", lambda: ticks(tmp_path))
        connect.stop()
        outcome = await run
        assert outcome.crashed, "the attempt is lost, and not failed"
        assert outcome.failure is not None
        assert f"the Spark Connect server {connect.master} did not accept a call" in outcome.failure.error_message
        failure = (await pool.run(spark("total", 5))).failure
        assert failure is not None
        assert f"the Spark Connect server {connect.master} did not accept a call" in failure.error_message
        assert value(await pool.run(request("plain", input=None))) > 0, "plain activities go on"
        connect.start()
        assert value(await pool.run(spark("total", 5))) == 10
