"""The operators that control an instance, in a real Airflow: the DAGs of ``dags_examples/control.py``."""

from __future__ import annotations

from pathlib import Path

from tests.airflow.real import RealAirflow
from tests.waiting import until


def returned(real: RealAirflow, dag_id: str, run: str, task_id: str) -> object:
    return real.get(f"{real.path(dag_id, run, task_id)}/xcomEntries/return_value")["value"]


def test_an_instance_is_suspended_told_and_resumed(real: RealAirflow) -> None:
    run = real.trigger("control_events")
    real.reaches("control_events", run, "success", task_id="suspend")
    assert returned(real, "control_events", run, "suspend") == "Suspended"
    for task_id in ("ready", "resume", "load"):
        real.reaches("control_events", run, "success", task_id=task_id)
    assert returned(real, "control_events", run, "load") == [
        "flights of 2013-12-01 is loaded",
        "weather of 2013-12-01 is loaded",
    ]
    real.log("control_events", run, "ready", having=f"event 'source_ready' is raised for instance load-{run}")
    links = real.get(f"{real.path('control_events', run, 'suspend')}/links")["extra_links"]
    assert f"&id=load-{run}".replace("+", "%2B").replace(":", "%3A") in links["TaskHub instance"]


def test_a_failed_instance_continues_after_its_cause_is_repaired(real: RealAirflow, tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    run = real.trigger("control_rewind", folder=str(folder))
    real.reaches("control_rewind", run, "success", task_id="again")
    assert returned(real, "control_rewind", run, "again") == str(folder)
    assert (folder / "report.txt").read_text() == "41 flights were late"
    assert real.task("control_rewind", run, "report")["state"] == "failed"
    until("the run", lambda: real.get(f"/api/v2/dags/control_rewind/dagRuns/{run}")["state"] == "success")


def test_an_instance_is_terminated_and_purged_and_a_repeat_finds_nothing(real: RealAirflow) -> None:
    real.taskhub("instances", "start", "told", "--id", "to-be-superseded")
    until("it runs", lambda: real.status("to-be-superseded") == "Running")
    run = real.trigger("control_cleanup", instance="to-be-superseded")
    real.reaches("control_cleanup", run, "success", task_id="stop")
    assert returned(real, "control_cleanup", run, "stop") == "Terminated"
    real.reaches("control_cleanup", run, "success", task_id="purge_old")
    assert returned(real, "control_cleanup", run, "purge_one") == 1
    run = real.trigger("control_cleanup", instance="to-be-superseded")
    real.reaches("control_cleanup", run, "success", task_id="purge_old")
    assert returned(real, "control_cleanup", run, "purge_one") == 0


def test_the_reason_of_a_termination_names_its_task(real: RealAirflow) -> None:
    real.taskhub("instances", "start", "told", "--id", "named-in-its-reason")
    run = real.trigger("control_cleanup", instance="named-in-its-reason")
    until("the end", lambda: real.status("named-in-its-reason") == "Terminated")
    now = real.instance("named-in-its-reason")["instance"]["now"]
    assert now == f"from Airflow: superseded (DAG control_cleanup, run {run}, task stop)"
    real.reaches("control_cleanup", run, "success", task_id="purge_old")
