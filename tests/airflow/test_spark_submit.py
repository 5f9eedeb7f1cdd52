"""The activity ``spark_submit``: what it gives to Airflow's operator, and what it does in the attempt after a death.

Spark itself is not started: methods of the operator and of its hook are replaced. tests/spark/test_submit.py has Spark.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from airflow_provider_taskhub import spark_submit as module
from airflow_provider_taskhub.activity import ActivityCancelled, ActivityInfo, Attempt, entered
from airflow_provider_taskhub.errors import ConfigurationError, InputError
from airflow_provider_taskhub.spark_submit import SparkJobFailed, spark_submit

STANDALONE = {"conn_type": "spark", "host": "spark://master", "port": 7077, "extra": {"deploy-mode": "cluster"}}
JOB = {"spark_job_id": "driver-7"}


class Spark:
    """A cluster.

    :ivar status: of the application. :ivar done: what was asked of it. :ivar hangs: it does not end by itself.
    :ivar deaf: how many kills it does not hear. :ivar accepted: called while it submits.
    """

    def __init__(self) -> None:
        self.status = "RUNNING"
        self.hangs = False
        self.deaf = 0
        self.accepted: Callable[[], object] = lambda: None
        self.done: list[str] = []
        self.waits = threading.Event()
        self.killed = threading.Event()
        self.flags: list[tuple[bool, bool]] = []

    def submit(self, operator: SparkSubmitOperator, context: Any) -> str:
        self.done.append(f"submit {operator.application} {operator.application_args}")
        self.accepted()
        return "driver-7"

    def poll(self, operator: SparkSubmitOperator, job: str, context: Any) -> None:
        self.done.append(f"wait for {job}")
        self.waits.set()
        if self.hangs:
            assert self.killed.wait(60)
            if self.status == "KILLED":
                raise RuntimeError(f"Driver {job} exited with status KILLED")

    def kill(self, operator: SparkSubmitOperator) -> None:
        self.done.append("kill")
        if self.deaf:
            self.deaf -= 1
            return
        self.status = "KILLED"
        self.killed.set()


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> Spark:
    cluster = Spark()
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(STANDALONE))
    monkeypatch.setattr(SparkSubmitOperator, "submit_job", lambda one, context: cluster.submit(one, context))
    monkeypatch.setattr(SparkSubmitOperator, "poll_until_complete", lambda *given: cluster.poll(*given))
    monkeypatch.setattr(SparkSubmitOperator, "get_job_status", lambda one, job, context: cluster.status)
    monkeypatch.setattr(SparkSubmitOperator, "on_kill", lambda one: cluster.kill(one))
    return cluster


def attempt(saved: dict[str, Any] | None = None, kept: list[str] | None = None) -> Attempt:
    info = ActivityInfo(
        name="spark_submit", instance_id="i", execution_id="e", task_id=0, attempt=1, idempotency_key="k", tags={}
    )
    save = (lambda state: None) if kept is None else kept.append
    text = None if saved is None else json.dumps(saved)
    return Attempt(info=info, report=lambda fraction, message: None, saved=text, save=save)


def test_the_id_is_stored_before_anybody_waits_for_the_application(spark: Spark) -> None:
    kept: list[str] = []
    with entered(attempt(kept=kept)):
        assert spark_submit({"application": "/jobs/load.jar", "application_args": ["7"]}) == "driver-7"
    assert spark.done == ["submit /jobs/load.jar ['7']", "wait for driver-7"]
    assert [json.loads(state) for state in kept] == [JOB]


@pytest.mark.parametrize(("status", "done"), [("RUNNING", ["wait for driver-7"]), ("FINISHED", [])])
def test_the_attempt_after_a_death_attaches_to_the_application(spark: Spark, status: str, done: Sequence[str]) -> None:
    spark.status = status
    with entered(attempt(JOB)):
        assert spark_submit({"application": "/jobs/load.jar"}) == "driver-7"
    assert spark.done == done


@pytest.mark.parametrize("status", ["FAILED", "KILLED", "ERROR"])
def test_an_application_that_has_failed_meanwhile_is_not_submitted_again(spark: Spark, status: str) -> None:
    spark.status = status
    with entered(attempt(JOB)), pytest.raises(SparkJobFailed, match=f"driver-7, which an earlier .* is {status}"):
        spark_submit({"application": "/jobs/load.jar"})
    assert spark.done == []


@pytest.mark.parametrize("silent", [2, 1_000_000])
def test_a_cluster_that_does_not_answer_is_asked_again(
    spark: Spark, silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    def status(operator: SparkSubmitOperator, job: str, context: Any) -> str:
        nonlocal asked
        asked += 1
        if asked <= silent:
            raise OSError("connection refused")
        return "FINISHED"

    monkeypatch.setattr(SparkSubmitOperator, "get_job_status", status)
    monkeypatch.setattr(module, "_LOOK", 0.0)
    monkeypatch.setattr(module, "_PATIENCE", 300.0 if silent == 2 else 0.0)
    with entered(attempt(JOB)):
        if silent == 2:
            assert spark_submit({"application": "/jobs/load.jar"}) == "driver-7"
        else:
            with pytest.raises(SparkJobFailed, match=r"driver-7, .* \(OSError: connection refused\). It may still run"):
                spark_submit({"application": "/jobs/load.jar"})
    assert not [done for done in spark.done if done.startswith("submit")]


@pytest.mark.parametrize("deaf", [0, 2])
def test_a_cancel_kills_the_application_until_the_cluster_says_so(spark: Spark, deaf: int) -> None:
    spark.hangs, spark.deaf = True, deaf
    one = attempt()

    def cancel() -> None:
        assert spark.waits.wait(60)
        one.cancelled.set()

    threading.Thread(target=cancel, daemon=True).start()
    with entered(one), pytest.raises((RuntimeError, ActivityCancelled)):
        spark_submit({"application": "/jobs/load.jar"})
    assert spark.done[2:] == ["kill"] * (1 + deaf)


@pytest.mark.parametrize("confirmed", [True, False])
def test_a_cancel_during_the_submission_kills_what_the_cluster_has_accepted(spark: Spark, confirmed: bool) -> None:
    one, kept = attempt(kept=[]), list[str]()

    def save(state: str) -> None:
        kept.append(state)
        if not confirmed:
            raise ActivityCancelled("asked to stop before the record was written")

    one.save = save
    spark.hangs, spark.accepted = True, one.cancelled.set
    with entered(one), pytest.raises((RuntimeError, ActivityCancelled)):
        spark_submit({"application": "/jobs/load.jar"})
    assert [json.loads(state) for state in kept] == [JOB], "the id is known"
    assert spark.done[1:] == ["wait for driver-7", "kill"][0 if confirmed else 1 :]


@pytest.mark.parametrize(
    ("saved", "status", "done"),
    [(JOB, "RUNNING", ["kill", "kill"]), (JOB, "FINISHED", []), (None, "RUNNING", [])],
    ids=["runs", "has-ended", "was-not-submitted"],
)
def test_a_call_that_only_cleans_up_kills_what_a_dead_worker_has_left(
    spark: Spark, saved: Any, status: str, done: Sequence[str]
) -> None:
    spark.status, spark.deaf = status, 1
    one = attempt(saved)
    one.cancelled.set()
    with entered(one):
        assert spark_submit({"application": "/jobs/load.jar"}) is None
    assert spark.done == done


def test_a_clean_up_that_the_cluster_does_not_confirm_has_failed(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KILLS_LEFT", 1.0)
    spark.deaf = 1000
    one = attempt(JOB)
    one.cancelled.set()
    with entered(one), pytest.raises(SparkJobFailed, match="not confirmed that Spark application driver-7 has ended"):
        spark_submit({"application": "/jobs/load.jar"})


def test_the_end_of_the_worker_leaves_the_application_to_the_next_attempt(spark: Spark) -> None:
    spark.hangs = True
    one = attempt(kept=[])

    def stop() -> None:
        assert spark.waits.wait(60)
        one.lost = True
        one.cancelled.set()

    threading.Thread(target=stop, daemon=True).start()
    with entered(one), pytest.raises(ActivityCancelled):
        spark_submit({"application": "/jobs/load.jar"})
    assert spark.done == ["submit /jobs/load.jar None", "wait for driver-7"], "it does not wait for the end"
    spark.killed.set()


@pytest.mark.parametrize("status", ["Succeeded", "NotFound"])
def test_a_pod_that_has_vanished_has_not_succeeded(spark: Spark, monkeypatch: pytest.MonkeyPatch, status: str) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "k8s://https://c"}))
    spark.status = status

    def execute(operator: Any, context: Any) -> None:
        operator._hook = SimpleNamespace(
            _should_track_driver_via_k8s_api=lambda: True, _is_yarn_cluster_mode=False, _is_kubernetes=True
        )
        context["task_state_store"].set(operator.external_id_key, "spaces:pod")

    execute.__wrapped__ = execute  # type: ignore[attr-defined]
    monkeypatch.setattr(SparkSubmitOperator, "execute", execute)
    arguments = {"application": "/jobs/load.py", "deploy_mode": "cluster"}
    with entered(attempt(kept=[])):
        if status == "Succeeded":
            assert spark_submit(arguments) == "spaces:pod"
            return
        with pytest.raises(SparkJobFailed, match="Spark application spaces:pod is NotFound"):
            spark_submit(arguments)


def test_client_mode_submits_and_waits_in_one_step(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkSubmitHook, "submit", lambda hook, application: spark.done.append(f"run {application}"))
    with entered(attempt()):
        assert spark_submit({"application": "/jobs/load.py", "deploy_mode": "client"}) is None
    assert spark.done == ["run /jobs/load.py"]


@pytest.mark.parametrize(
    ("connection", "polled"),
    [
        ({"conn_type": "spark", "host": "yarn"}, (True, False)),
        ({"conn_type": "spark", "host": "k8s://https://cluster"}, (False, True)),
        (STANDALONE, (False, False)),
    ],
    ids=["yarn", "kubernetes", "standalone"],
)
def test_in_cluster_mode_the_end_is_polled_so_that_it_can_be_attached_to(
    spark: Spark, monkeypatch: pytest.MonkeyPatch, connection: dict[str, Any], polled: tuple[bool, bool]
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    seen: list[tuple[bool, bool]] = []

    def execute(operator: Any, context: Any) -> None:
        seen.append((operator._yarn_track_via_rm_api, operator._track_driver_via_k8s_api))

    execute.__wrapped__ = execute  # type: ignore[attr-defined]
    monkeypatch.setattr(SparkSubmitOperator, "execute", execute)
    with entered(attempt()):
        spark_submit({"application": "/jobs/load.py", "deploy_mode": "cluster"})
    assert seen == [polled]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({}, InputError, "give the argument 'application'"),
        (
            {"aplication": "x"},
            InputError,
            "no argument of SparkSubmitOperator: did you mean 'application'",
        ),
        ({"application": "x", "deploy_mode": "clusters"}, InputError, "'deploy_mode' is 'clusters'"),
        (
            {"application": "x", "conn_id": "gone"},
            ConfigurationError,
            "no Airflow connection 'gone', or cannot read it: set AIRFLOW_CONN_G",
        ),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_submitted(
    spark: Spark, arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    with entered(attempt()), pytest.raises(error, match=text):
        spark_submit(arguments)
    assert spark.done == []


def test_the_program_of_spark_is_found_beside_this_python_or_named(
    spark: Spark, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with entered(attempt()):
        assert spark_submit({"application": "job.py"}) == "driver-7"
    assert shutil.which("spark-submit") is not None
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        entered(attempt()),
        pytest.raises(ConfigurationError, match=r"finds no program 'spark3-submit'.*PATH"),
    ):
        spark_submit({"application": "job.py", "spark_binary": "spark3-submit"})
