"""Asset events for the ends of orchestrations, inside a real Airflow, and DAGs that they start."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.airflow.real import RealAirflow
from tests.waiting import until


def events(real: RealAirflow) -> list[dict[str, Any]]:
    """The asset events of the example, the oldest first: their payloads."""
    (asset,) = real.get("/api/v2/assets", name_pattern="sales_orchestrations")["assets"]
    found = real.get("/api/v2/assets/events", asset_id=asset["id"], order_by="timestamp", limit=100)["asset_events"]
    return [event["extra"]["payload"] for event in found]


def of(real: RealAirflow, name: str) -> list[dict[str, Any]]:
    return [event for event in events(real) if event["instance_id"].startswith(name)]


def start(real: RealAirflow, name: str) -> None:
    real.taskhub("instances", "start", "sums", "--id", name, "--input", "[2]", "--tag", "team=sales")


def test_ends_of_orchestrations_start_a_dag_also_those_that_no_triggerer_saw(real: RealAirflow) -> None:
    name = f"sold-{time.time_ns()}"
    real.taskhub("instances", "start", "sums", "--id", f"other-{name}", "--input", "[2]")
    start(real, f"{name}-a")
    (event,) = until("the event", lambda: of(real, name))
    assert event.pop("completed")
    assert event == {
        "hub": "TaskHub",
        "instance_id": f"{name}-a",
        "orchestrator": "sums",
        "status": "Completed",
    }
    runs = until("the run", lambda: real.get("/api/v2/dags/ends_example/dagRuns", order_by="-run_after")["dag_runs"])
    run = runs[0]["dag_run_id"]
    real.reaches("ends_example", run, "success", task_id="report")
    real.log("ends_example", run, task_id="report", having=f"sums: {name}-a is Completed")
    triggerer = real.processes["triggerer"]
    triggerer.stop()
    start(real, f"{name}-b")
    until("completed", lambda: real.status(f"{name}-b") == "Completed")
    triggerer.start()
    until("the event", lambda: any(event["instance_id"] == f"{name}-b" for event in of(real, name)))
    start(real, f"{name}-c")
    until("the next event", lambda: any(event["instance_id"] == f"{name}-c" for event in of(real, name)))
    ids = [event["instance_id"] for event in of(real, name)]
    assert sorted(set(ids)) == [f"{name}-{letter}" for letter in "abc"]
    assert ids.count(f"{name}-b") == ids.count(f"{name}-c") == 1
    assert not of(real, "other"), "an end without the tag"


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"rows": 3}, "3 rows are loaded"),
        ({"rows": 0}, "task load has failed"),
        ({"seconds": 40}, "the load is late"),
    ],
    ids=["success", "failure", "deadline"],
)
def test_notifiers_raise_events_from_a_worker_and_from_the_triggerer(
    real: RealAirflow, params: dict[str, int], says: str
) -> None:
    name = f"load-{time.time_ns()}"
    real.taskhub("instances", "start", "waits_for_load", "--id", name)
    real.trigger("notify_example", run_id=name, **params)
    until("the event", lambda: real.status(name) == "Completed")
    assert says in real.instance(name)["instance"]["output"]
