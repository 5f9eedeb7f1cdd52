"""Tasks that their trigger starts and ends, inside a real Airflow."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.airflow.real import RealAirflow
from tests.waiting import until

NO_WORKER = {"pid": None, "hostname": "", "queued_when": None}
"""What Airflow knows of the worker of a task that no worker has run."""


def test_a_task_succeeds_without_any_worker(real: RealAirflow) -> None:
    run = real.trigger("zero")
    task = real.reaches("zero", run, "success")
    assert {name: task[name] for name in NO_WORKER} == NO_WORKER
    assert real.xcom("zero", run) == {"sum": 14, "run": run}, "the output, its type kept"
    instance_id = f"zero:hub:{run}:g1"
    assert real.xcom("zero", run, "instance_id") == instance_id
    log = real.log("zero", run, having="the task ends in the triggerer")
    assert f"instance {instance_id} started, by the triggerer" in log
    assert not list(Path(real.home, "logs").rglob(f"*run_id={run}*/**/attempt=1.log")), "the log of a worker"
    links = real.get(f"{real.path('zero', run)}/links")["extra_links"]
    page = f"{real.base}/plugin/taskhub{real.base}/taskhub/page/instance?dag_id=zero&run_id=manual__"
    assert links["TaskHub instance"].startswith(page)
    tags = real.instance(instance_id)["instance"]["tags"]
    assert tags["run"] == f"of {run}", "the triggerer renders the templates"
    assert (tags["airflow.try_number"], tags["airflow.max_tries"], tags["taskhub.generation"]) == ("1", "0", "1")
    real.clear("zero", run)
    assert real.reaches("zero", run, "success")["try_number"] == 2
    assert real.status(f"zero:hub:{run}:g2") == "Completed", "a clear computes everything again"
    real.log("zero", run, attempt=2, having="only a worker can tell a retry from a clear")


def test_rows_of_a_mapped_task_succeed_without_any_worker(real: RealAirflow) -> None:
    run = real.trigger("zero_mapped")
    for index, day in enumerate(("monday", "tuesday")):
        task = real.reaches("zero_mapped", run, "success", index=index)
        assert {name: task[name] for name in NO_WORKER} == NO_WORKER
        assert real.xcom("zero_mapped", run, index=index) == {"sum": (index + 1) ** 2, "run": run}
        instance_id = f"zero_mapped:hub[{index}]:{run}:g1"
        real.log("zero_mapped", run, index=index, having=f"instance {instance_id} started, by the triggerer")
        tags = real.instance(instance_id)["instance"]["tags"]
        assert (tags["run"], tags["day"]) == (f"of {run}", day), "the values of the row, and rendered templates"
    assert not list(Path(real.home, "logs").rglob(f"*run_id={run}*/**/attempt=1.log")), "the log of a worker"


def test_the_number_of_active_tasks_of_a_dag_limits_its_orchestrations(real: RealAirflow, tmp_path: Path) -> None:
    """Airflow does not count tasks that wait in the triggerer: ten tasks would run ten orchestrations at once."""
    run = real.trigger("two_at_once", folder=str(tmp_path))
    tasks = [f"hub_{number}" for number in range(10)]
    for task in tasks:
        real.reaches("two_at_once", run, "success", task_id=task)
    counts = [int(real.instance(f"two_at_once:{task}:{run}:g1")["instance"]["output"]) for task in tasks]
    assert max(counts) == 2


def test_the_triggerer_resolves_templates_and_outputs_as_a_worker_does(real: RealAirflow) -> None:
    run = real.trigger("alike", logical_date="2026-03-01T05:00:00+01:00", x={"y": "z"})
    started = {where: real.reaches("alike", run, "success", task_id=where) for where in ("trigger", "worker")}
    assert (started["trigger"]["pid"], started["worker"]["pid"] is None) == (None, False)
    inputs = [json.loads(real.instance(f"alike:{where}:{run}:g1")["instance"]["input"]) for where in started]
    assert inputs[0] == inputs[1]
    assert inputs[0]["output"] == {"rows": [1, 2.5, None, "ü"], "{{ run_id }}": "{{ run_id }}"}
    assert inputs[0]["rendered"]["code"] == "True1"


def test_a_failure_ends_in_the_triggerer_too(real: RealAirflow) -> None:
    run = real.trigger("fails")
    task = real.reaches("fails", run, "failed")
    assert {name: task[name] for name in NO_WORKER} == NO_WORKER
    log = real.log("fails", run, having="broken line 79")
    assert "41 of 8,760 rows rejected" in log


def test_a_task_that_does_not_wait_needs_no_worker_either(real: RealAirflow) -> None:
    run = real.trigger("zero_not_waiting")
    task = real.reaches("zero_not_waiting", run, "success")
    assert {name: task[name] for name in NO_WORKER} == NO_WORKER
    instance_id = f"zero_not_waiting:hub:{run}:g1"
    assert real.xcom("zero_not_waiting", run) == instance_id
    until("it runs", lambda: real.status(instance_id) == "Running")
    real.tell(instance_id, 9)
    until("completed", lambda: real.status(instance_id) == "Completed")


def test_outlets_are_updated_by_a_worker_at_once(real: RealAirflow) -> None:
    run = real.trigger("zero_outlets")
    task = real.reaches("zero_outlets", run, "success")
    assert task["pid"] is not None
    real.log("zero_outlets", run, having="started, by the triggerer")
    events = until("the event", lambda: real.get("/api/v2/assets/events", source_dag_id="zero_outlets")["asset_events"])
    assert [event["source_run_id"] for event in events] == [run]


def test_a_template_that_cannot_be_rendered_fails_with_the_workers_error(real: RealAirflow) -> None:
    run = real.trigger("zero_unrendered")
    assert real.reaches("zero_unrendered", run, "failed")["pid"] is not None
    log = real.log("zero_unrendered", run, having="no attribute 'nothing'")
    assert "a worker starts this task: the triggerer cannot render the templates" in log


def test_a_sensor_waits_and_ends_without_any_worker(real: RealAirflow) -> None:
    name = f"sensed-{time.time_ns()}"
    run = real.trigger("sensor", instance=name)
    real.reaches("sensor", run, "deferred")
    until("the wait", lambda: f"{name} is not in the hub" in real.log("sensor", run))
    real.taskhub("instances", "start", "sums", "--id", name, "--input", "[2]")
    task = real.reaches("sensor", run, "success")
    assert {name: task[name] for name in NO_WORKER} == NO_WORKER
    assert real.xcom("sensor", run)["sum"] == 4
    real.log("sensor", run, having="the task ends in the triggerer")
    assert not list(Path(real.home, "logs").rglob(f"*run_id={run}*/**/attempt=1.log")), "the log of a worker"
    links = real.get(f"{real.path('sensor', run)}/links")["extra_links"]
    assert f"id={name}" in links["TaskHub instance"]
    real.clear("sensor", run)
    task = real.reaches("sensor", run, "success")
    assert (task["try_number"], task["pid"] is not None, task["duration"] > 0) == (2, True, True)
    assert real.xcom("sensor", run)["sum"] == 4
    real.log("sensor", run, attempt=2, having="only a worker makes Airflow forget the end and the result")


def test_rows_of_a_mapped_sensor_end_without_any_worker_and_one_skips(real: RealAirflow) -> None:
    name = f"rows-{time.time_ns()}"
    run = real.trigger("sensor_mapped", instance=name)
    real.taskhub("instances", "start", "sums", "--id", f"{name}-a", "--input", "[3]")
    real.taskhub("instances", "start", "waits", "--id", f"{name}-b")
    real.taskhub("instances", "terminate", f"{name}-b", "--reason", "not needed")
    for index, state in enumerate(("success", "skipped")):
        task = real.reaches("sensor_mapped", run, state, index=index)
        assert {name: task[name] for name in NO_WORKER} == NO_WORKER
    told = f"Skipping, because soft_fail is set: instance {name}-b terminated: not needed"
    real.log("sensor_mapped", run, index=1, having=told)


@pytest.mark.parametrize("state", ["failed", "success"])
def test_marking_a_task_that_its_trigger_has_started_terminates(real: RealAirflow, state: str) -> None:
    run = real.trigger("told")
    real.waits("told", run)
    real.mark("told", run, state)
    instance_id = f"told:hub:{run}:g1"
    until("terminated", lambda: real.status(instance_id) == "Terminated")
    assert real.instance(instance_id)["instance"]["now"] == f"from Airflow: task marked {state}"
