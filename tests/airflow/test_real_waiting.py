"""Waits in an Airflow worker, and no wait at all, inside a real Airflow."""

from __future__ import annotations

import pytest

from tests.airflow.crashes.verdict import do, held, line
from tests.airflow.real import RealAirflow
from tests.waiting import until


def hub_id(dag_id: str, run_id: str) -> str:
    return f"{dag_id}:hub:{run_id}:g1"


def test_a_task_waits_in_its_worker(real: RealAirflow) -> None:
    run = real.trigger("in_worker")
    real.reaches("in_worker", run, "running")
    real.reaches("in_worker", run, "success")
    assert real.xcom("in_worker", run) == 4
    log = real.log("in_worker", run, having="pause is Completed")
    assert "this Airflow worker waits for instance" in log
    assert "a triggerer now waits" not in log


def test_the_time_limit_of_a_wait_in_the_worker_terminates(real: RealAirflow) -> None:
    run = real.trigger("in_worker_late")
    real.reaches("in_worker_late", run, "failed")
    real.log("in_worker_late", run, having="the instance is terminated, nothing of it runs")
    assert real.status(hub_id("in_worker_late", run)) == "Terminated"


def test_a_task_that_does_not_wait_leaves_its_instance_running(real: RealAirflow) -> None:
    run = real.trigger("not_waiting")
    real.reaches("not_waiting", run, "success")
    instance = hub_id("not_waiting", run)
    assert real.xcom("not_waiting", run) == instance
    assert real.status(instance) == "Pending", "it begins 8 s after the run"
    until("running", lambda: real.status(instance) == "Running")
    real.tell(instance, 9)
    until("completed", lambda: real.status(instance) == "Completed")


def test_the_log_of_a_waiting_task_has_the_output_of_a_running_activity(real: RealAirflow) -> None:
    run = real.trigger("told")
    real.waits("told", run)
    until("the activity's output", lambda: "resting for 600.0 s" in real.log("told", run))
    instance_id = f"told:hub:{run}:g1"
    assert real.status(instance_id) == "Running"
    real.tell(instance_id, 1)
    real.reaches("told", run, "success")


@pytest.mark.parametrize("deed", ["task killed", "triggerer killed", "cleared", "argument changed"])
def test_what_is_done_while_tasks_wait_ends_nothing_by_mistake_and_starts_nothing_twice(
    real: RealAirflow, monkeypatch: pytest.MonkeyPatch, deed: str
) -> None:
    """The short form of ``make crashes``."""
    monkeypatch.setenv("TASKHUB_HOME", real.env["TASKHUB_HOME"])
    assert [line(wait) for wait in do(real, deed) if not held(wait)] == []
