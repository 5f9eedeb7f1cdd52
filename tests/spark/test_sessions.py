"""Spark activities in a real executor with a real, warm Spark: apart from each other, cancelled, and not to be stopped.

A Spark takes many seconds to start, so tests share one unless they kill or configure it.
"""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import signal
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.settings import SparkSettings
from airflow_provider_taskhub.spark_conf import session_conf
from airflow_provider_taskhub.workers.executors.attempt_values import ActivityOutcome, ActivityProgress, ActivityRequest
from airflow_provider_taskhub.workers.executors.pool import ExecutorConfig, ExecutorPool, ExecutorTimes
from tests.spark.conftest import APP, spark_pool
from tests.waiting import PATIENCE, until_async
from tests.workers.conftest import Logs, alive, request, started

pytestmark = pytest.mark.asyncio(loop_scope="module")


def spark(name: str, *arguments: object, **more: Any) -> ActivityRequest:
    values = {"input": None} if not arguments else {}
    return request(name, *arguments, spark=True, **values, **more)


def value(outcome: ActivityOutcome) -> Any:
    assert outcome.failure is None, outcome.failure
    return json.loads(outcome.result or "")


async def test_an_attempt_sees_its_own_version_of_an_added_file(pool: ExecutorPool, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "rates of 2013.csv"
    for version in ("first", "second"):
        file.write_text(version)  # a few bytes
        outcome = await pool.run(spark("reads_an_added_file", str(file), action_id=version))
        assert value(outcome) == [[], version, version]


async def test_what_an_attempt_sets_for_hadoop_ends_with_it(pool: ExecutorPool) -> None:
    first = value(await pool.run(spark("sets_hadoop_settings", True, action_id="sets")))
    assert first[0] is None
    assert first[1] not in (None, "77")
    assert value(await pool.run(spark("sets_hadoop_settings", False, action_id="reads"))) == first


async def test_an_attempt_sees_its_own_version_of_an_added_module(pool: ExecutorPool, tmp_path: pathlib.Path) -> None:
    for version in (1, 2):
        outcome = await pool.run(spark("module_version", [str(tmp_path), str(version)], action_id=f"v{version}"))
        assert value(outcome) == [version, version]


async def test_a_function_that_the_jvm_calls_runs_in_the_attempt_that_has_given_it(
    pool: ExecutorPool, tmp_path: pathlib.Path
) -> None:
    for name in ("one", "two"):
        (folder := tmp_path / name).mkdir()
        outcome = await pool.run(spark("batch_keys", str(folder), action_id=name))
        assert value(outcome) == [name, name]
        assert "a batch" in outcome.log_tail


async def test_a_session_that_user_code_keeps_is_that_of_the_attempt_which_uses_it(pool: ExecutorPool) -> None:
    for name in ("one", "two"):
        seen = value(await pool.run(spark("keeps_session", name, action_id=name)))
        assert seen == [[], [name], [name], "7"]


async def test_streams_jobs_and_checkpoints_that_are_hard_to_see_end_with_their_attempt(
    pool: ExecutorPool, tmp_path: pathlib.Path
) -> None:
    value(await pool.run(spark("leaves_hidden", str(tmp_path))))
    assert value(await pool.run(spark("left_hidden", str(tmp_path)))) == [0, [], None, []]


@pytest.mark.process
async def test_nothing_of_spark_and_java_stays_where_the_user_wants_their_files(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java, local = tmp_path / "java", tmp_path / "local"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.io.tmpdir={java}")
    async with spark_pool("local[2]", conf={"spark.local.dir": str(local)}) as pool:
        found = value(await pool.run(spark("places")))
        assert [os.path.dirname(path) for path in found] == [str(java), str(local)]
        value(await pool.run(spark("shuffled")))
        assert len(os.listdir(found[1])) > 1
    assert [*java.iterdir(), *local.iterdir()] == []


OF_NO_APPLICATION = {
    "acls",
    "admin",
    "api",
    "app",
    "appStateStore",
    "block",
    "blockManager",
    "connect",
    "diskStore",
    "history",
    "master",
    "modify",
    "shutdown",
    "standalone",
    "submit",
    "test",
    "testing",
    "worker",
}
"""Groups of settings of Spark that no activity may or needs to set: of other programs, of tests, of the worker."""


async def test_every_setting_that_spark_knows_is_taken_for_one_of_a_session_or_of_an_application(
    pool: ExecutorPool,
) -> None:
    known: dict[str, bool] = value(await pool.run(spark("known_settings")))
    assert len(known) > 1000
    wrong = [name for name, changeable in known.items() if bool(session_conf({name: ""})) != changeable]
    assert {name for name in wrong if name.split(".")[1] not in OF_NO_APPLICATION} == {
        "spark.sql.extensions.test.loadFromCp"
    }


async def test_the_log_of_a_failed_query_ends_with_its_plan(pool: ExecutorPool) -> None:
    outcome = await pool.run(spark("fails_in_a_query"))
    assert outcome.failure is not None
    assert "ZeroDivisionError" in outcome.failure.error_message
    at = outcome.log_tail.index("The plan of the query that has failed:")
    plan = "\n".join(outcome.log_tail[at:])
    assert "EvalPython" in plan
    assert "Filter" in plan


async def test_concurrent_attempts_do_not_see_each_other(pool: ExecutorPool, tmp_path: pathlib.Path) -> None:
    """The same view name and other time zones at once: by the given session, the active one and the builder's."""
    zones = {"utc": ("UTC", 0), "tokyo": ("Asia/Tokyo", 9)}
    both = [
        asyncio.create_task(pool.run(spark("zone", [str(tmp_path), name, zone], action_id=name, log=name)))
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
            "built": zone,
            "by builder": name,
            "shuffle": "3",
            "udf": name.upper(),
            "tables": ["mine"],
        }
    assert value(await pool.run(spark("tables"))) == [], "nothing is left for the next attempt"


async def test_a_spark_activity_says_where_it_runs_and_may_not_stop_spark(pool: ExecutorPool) -> None:
    heard: list[ActivityProgress] = []
    outcome = await pool.run(spark("place", action_id="7f", attempt=2), progress=heard.append)
    known = value(outcome)
    group = heard[0].job_group
    assert (group or "").startswith("taskhub-7f-2-")
    assert known == {
        "group": group,
        "mode": "FAIR",
        "application": heard[0].application_id,
        "ui": None,
        "key": "7f",
    }
    assert heard[-1].application_id == heard[0].application_id
    assert (heard[-1].fraction, heard[-1].message, heard[-1].job_group) == (0.5, "half", group)
    for how in ("session", "context", "with"):
        failure = (await pool.run(spark("stop", how))).failure
        assert failure is not None
        assert failure.error_type == "ConfigurationError"
        assert "spark.stop() inside an activity: the Spark context is shared" in failure.error_message
    conf = {"spark.openlineage.parentRunId": "8a"}
    assert value(await pool.run(spark("parent", spark_conf=conf))) == ["8a", "8a"]
    assert value(await pool.run(spark("parent"))) == [None, None], "it was of that attempt only"
    assert value(await pool.run(spark("configured"))) == ["5", "false"]
    refused = (await pool.run(spark("misconfigured"))).failure
    assert refused is not None
    assert "Spark refuses the setting 'spark.history.fs.logDirectory' of this activity (" in refused.error_message
    assert "/secret" not in refused.error_message
    assert value(await pool.run(spark("count", 7))) == 7
    assert value(await pool.run(spark("count_async", 8))) == 8
    plain: list[ActivityProgress] = []
    await pool.run(request("plain", input=None), progress=plain.append)
    assert plain[0].executor.startswith("plain-")
    assert plain[0].application_id is None


async def test_cancelling_ends_the_job_and_spares_the_executor(pool: ExecutorPool, tmp_path: pathlib.Path) -> None:
    run = asyncio.create_task(pool.run(spark("endless", str(tmp_path))))
    await until_async("the job runs", lambda: started(tmp_path, "endless"))
    async with asyncio.timeout(PATIENCE):
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    (tmp_path / "endless.started").unlink()
    outcome = await pool.run(spark("endless", str(tmp_path), action_id="other", timeout=timedelta(seconds=3)))
    assert outcome.failure is not None
    assert outcome.failure.error_message == "activity 'endless' ran longer than its timeout of 3 s and was stopped"
    assert outcome.log_tail.count("hiccup: Py4JJavaError") == 3, "later jobs of the same attempt were refused too"
    after = await pool.run(spark("count", 5))
    assert value(after) == 5, "though it is the same attempt that was cancelled first, run again"
    assert after.executor == outcome.executor == "spark-2.1"


async def test_a_timestamp_is_a_time_of_utc(pool: ExecutorPool) -> None:
    assert value(await pool.run(spark("noon"))) == [{"at": "2024-01-01T12:00:00"}, "UTC"]


async def test_threads_have_the_job_group_and_the_session_of_their_attempt(pool: ExecutorPool) -> None:
    """Also those of a pool that is older than the attempt."""
    for attempt in (1, 2):
        heard: list[ActivityProgress] = []
        first, *others = value(await pool.run(spark("in_threads", attempt=attempt), progress=heard.append))
        assert first == [heard[0].job_group, "taskhub-0", True]
        assert others == [first] * 3


@pytest.mark.parametrize("how", ["returns", "fails"])
async def test_what_an_attempt_has_left_running_is_gone_at_its_end(
    pool: ExecutorPool, tmp_path: pathlib.Path, how: str
) -> None:
    outcome = await pool.run(spark("careless", [str(tmp_path), how]))
    assert (outcome.failure is not None) == (how == "fails")
    assert value(await pool.run(spark("left"))) == [[], [], True, []]
    worker = int(started(tmp_path, "forever") or 0)
    await until_async("the Python worker of the job ends", lambda: not alive(worker))


@pytest.mark.parametrize("name", ["long_in_a_thread", "long_stream", "long_async"])
async def test_a_cancel_reaches_threads_streams_and_coroutines(
    pool: ExecutorPool, tmp_path: pathlib.Path, name: str
) -> None:
    run = asyncio.create_task(pool.run(spark(name, str(tmp_path))))
    await until_async("it runs", lambda: (tmp_path / "forever.started").exists())
    async with asyncio.timeout(PATIENCE):
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    assert (tmp_path / "cleaned").exists() == (name == "long_async")
    after = await pool.run(spark("count", 5))
    assert (value(after), after.executor) == (5, "spark-2.1"), "the executor has not been killed"


async def test_the_progress_of_a_job_is_seen_unless_the_activity_reports_its_own(
    pool: ExecutorPool, tmp_path: pathlib.Path
) -> None:
    heard: dict[str, list[ActivityProgress]] = {"silent": [], "reports": []}
    runs = [
        asyncio.create_task(
            pool.run(spark("in_two_stages", [str(tmp_path), how], action_id=how), progress=heard[how].append)
        )
        for how in heard
    ]
    wanted = "Spark job 1: 0 of 2 stages, 2 of 4 tasks"
    await until_async("the job is seen", lambda: heard["silent"][-1:] and heard["silent"][-1].message == wanted)
    assert (heard["silent"][-1].fraction, heard["silent"][-1].observed) == (0.5, True)
    (tmp_path / "go").touch()
    assert [value(outcome) for outcome in await asyncio.gather(*runs)] == [1, 1]
    assert {one.message for one in heard["reports"]} == {None, "by itself"}


async def test_data_go_from_one_activity_to_the_next_by_reference(pool: ExecutorPool, tmp_path: pathlib.Path) -> None:
    """The class DataFrame is imported for type checkers only."""
    made = [
        value(await pool.run(spark("written", [str(tmp_path / how), how], action_id=how)))
        for how in ("parquet", "csv", "published")
    ]
    assert [one["rows"] for one in made] == [3, 3, 3]
    assert value(await pool.run(spark("added", made))) == [3, 3, 3]
    missing = (await pool.run(spark("added", [{"path": str(tmp_path / "missing")}]))).failure
    assert missing is not None
    assert "missing" in missing.error_message
    frame = (await pool.run(spark("returned"))).failure
    assert frame is not None
    assert frame.error_message == (
        "result of activity 'returned' is a DataFrame, whose rows are still in Spark: "
        "write the data, for example with publish(), and return Reference(path, rows=…)"
    )


@pytest.mark.process
async def test_the_python_worker_of_a_cancelled_job_ends_at_once_if_no_neighbour_runs(tmp_path: pathlib.Path) -> None:
    """Spark itself would wait for an hour here."""
    conf = {"spark.python.task.killTimeout": "1h"}
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    for folder in (first, second, third):
        folder.mkdir()

    async def endless(folder: pathlib.Path) -> tuple[asyncio.Task[ActivityOutcome], int]:
        run = asyncio.create_task(pool.run(spark("endless", str(folder), action_id=folder.name)))
        await until_async("a Python worker of Spark's runs the user's code", lambda: started(folder, "endless"))
        return run, int(started(folder, "endless") or 0)

    async with spark_pool("local[2]", app=APP, conf=conf, warm=True) as pool:
        run, worker = await endless(first)
        neighbour, other = await endless(second)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert alive(worker), "nobody knows whether it is the worker of the neighbour"
        assert alive(other)
        neighbour.cancel()
        await until_async("both have ended", lambda: not alive(other) and not alive(worker))
        with pytest.raises(asyncio.CancelledError):
            await neighbour
        run, _ = await endless(third)
        assert not run.done(), "Spark has replaced the workers"
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run


TOP_LEVEL = """
from pyspark.sql import SparkSession
from airflow_provider_taskhub.app import App

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
app = App("top")
"""


@pytest.mark.process
async def test_an_app_that_starts_spark_when_it_is_imported_is_refused(tmp_path: pathlib.Path) -> None:
    """Each process of the worker would start a JVM, and the Spark executor could not start its own."""
    await asyncio.to_thread((tmp_path / "top_level.py").write_text, TOP_LEVEL)
    code = "from airflow_provider_taskhub.app import load_app; load_app('top_level:app')"
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode != 0
    place = tmp_path / "top_level.py"
    assert f"app 'top_level:app': its import starts Spark at {place}:5. The worker starts Spark" in done.stderr


@pytest.mark.process
async def test_a_context_that_was_stopped_is_a_crash_and_is_replaced(tmp_path: pathlib.Path) -> None:
    """By code of an activity, as a cluster stops it too. Whoever notices it first, nobody's activity fails by it."""
    async with spark_pool("local[2]", warm=True) as pool:
        for fails in (True, False):
            outcome = await pool.run(spark("stop_context", fails))
            assert outcome.crashed or not fails
            if outcome.failure is not None:
                assert "the Spark context was stopped, by the cluster or by code" in outcome.failure.error_message
            outcome = await pool.run(spark("count", 5))
            while outcome.crashed:
                outcome = await pool.run(spark("count", 5))
            assert value(outcome) == 5


@pytest.mark.process
async def test_an_activity_with_settings_that_no_session_can_change_runs_in_an_application_of_its_own(
    tmp_path: pathlib.Path,
) -> None:
    async def own(memory: str) -> dict[str, Any]:
        (tmp_path / "own.go").touch()
        conf = {"spark.driver.memory": memory}
        found: dict[str, Any] = value(
            await pool.run(spark("own_application", [str(tmp_path), "own"], application=conf))
        )
        return found

    async with spark_pool("local[2]", warm=True, applications=2) as pool:
        first, common = await asyncio.gather(own("600m"), pool.run(spark("place")))
        assert first["application"] != value(common)["application"]
        assert 500 < first["heap"] < 700, "MB: the JVM was started with them"
        assert first["partitions"] == "5"
        assert await own("600m") == first, "the same application"
        second = await own("800m")
        assert second["application"] != first["application"]
        assert 700 < second["heap"] < 900
        assert value(await pool.run(spark("place")))["application"] == value(common)["application"]
        assert [seat.starts for seat in pool._seats] == [1, 1, 2]


@pytest.mark.process
async def test_a_dead_jvm_is_a_crash_and_a_dead_executor_takes_its_jvm_along(tmp_path: pathlib.Path) -> None:
    """Also if the user's code notices the end of the JVM first, by an error of its connection."""
    async with spark_pool("local[2]", warm=True) as pool:
        first, outcome = await asyncio.gather(
            *(pool.run(spark("kill_jvm", go_on, alone=True)) for go_on in (False, True))
        )
        assert first.crashed
        assert (first.executor, outcome.executor) == ("spark-2.1", "spark-2.2"), "suspects have no company"
        assert (first.shared, outcome.shared) == (False, False)
        assert outcome.crashed
        assert outcome.failure is not None
        assert "Spark's JVM was killed by signal 9; likely out of memory" in outcome.failure.error_message
        scratch, *files = value(await pool.run(spark("shuffled")))
        assert {"lock", "blockmgr"} <= {*files}
        jvm = value(await pool.run(spark("jvm")))
        run = asyncio.create_task(pool.run(spark("endless", str(tmp_path))))
        await until_async("a Python worker of Spark's runs the user's code", lambda: started(tmp_path, "endless"))
        worker = int(started(tmp_path, "endless") or 0)
        executor = os.getsid(jvm)
        assert os.getpgid(worker) != executor, "PySpark's daemon has a group of its own"
        assert alive(jvm)
        assert alive(worker)
        os.kill(executor, signal.SIGKILL)
        assert (await run).crashed
        assert not alive(jvm)
        assert not alive(worker)
        await until_async("its temporary files are removed", lambda: not os.path.exists(scratch))


@pytest.mark.process
async def test_a_spark_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    pool = ExecutorPool(
        ExecutorConfig(apps=(APP,), spark=SparkSettings(master="local[1]")),
        size=1,
        processes=1,
        logs=Logs(),
        times=ExecutorTimes(patience=timedelta(seconds=1)),
    )
    await pool.start()
    try:
        outcome = await pool.run(spark("count", 1))
        assert not outcome.crashed, "no executor that ran it has crashed"
        assert outcome.failure is not None
        assert "Spark 'local[1]' did not start" in outcome.failure.error_message
        assert "Java 17 or newer" in outcome.failure.error_message
        assert f"{tmp_path}/bin/java" in outcome.failure.error_message, "the last words of what was started"
        assert value(await pool.run(request("plain", input=None))) > 0, "plain activities go on"
    finally:
        await pool.stop(timedelta(0))
