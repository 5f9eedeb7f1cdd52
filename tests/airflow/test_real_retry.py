"""Retries and clears inside a real Airflow: what runs again is counted by files that the activities leave."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.airflow.real import RealAirflow
from tests.waiting import until


def runs(folder: Path) -> Counter[int]:
    """How often each of the twelve activities has run."""
    return Counter(int(path.name.split("-")[0]) for path in folder.iterdir())


def hub_id(dag_id: str, run_id: str) -> str:
    return f"{dag_id}:hub:{run_id}:g1"


@pytest.mark.parametrize(
    ("dag_id", "total", "first_try_owns"),
    [("rewound", 13, True), ("rewound_spark", 13, True), ("restarted", 24, False), ("other_version", 24, False)],
)
def test_twelve_activities_of_which_one_fails_once(
    real: RealAirflow, tmp_path: Path, dag_id: str, total: int, first_try_owns: bool
) -> None:
    run = real.trigger(dag_id, folder=str(tmp_path))
    assert real.reaches(dag_id, run, "success")["try_number"] == 2
    assert real.xcom(dag_id, run) == sum(range(12))
    counts = runs(tmp_path)
    assert counts.total() == total
    assert counts[7] == 2
    instance = real.instance(hub_id(dag_id, run))["instance"]
    assert instance["status"] == "Completed"
    assert instance["tags"]["airflow.try_number"] == ("1" if first_try_owns else "2")
    log = real.log(dag_id, run, attempt=2)
    assert ("goes on from before its failure" in log) == dag_id.startswith("rewound")
    in_spark = [bool(one["application"]) for one in real.instance(hub_id(dag_id, run))["activities"]]
    assert in_spark == [dag_id == "rewound_spark"] * len(in_spark)
    other = "is not rewound: it was started with version '7', and the task now asks for ''"
    assert (other in log) == (dag_id == "other_version")


def test_an_attached_retry_runs_nothing_and_fails_with_the_same_error(real: RealAirflow, tmp_path: Path) -> None:
    run = real.trigger("attached", folder=str(tmp_path))
    assert real.reaches("attached", run, "failed")["try_number"] == 2
    assert runs(tmp_path).total() == 12
    real.log("attached", run, attempt=2, having="number 7 fails once")


def test_a_terminated_instance_starts_from_its_beginning(real: RealAirflow) -> None:
    run = real.trigger("told_again")
    real.reaches("told_again", run, "deferred")
    until("the trigger's log", lambda: "told is Running" in real.log("told_again", run))
    real.taskhub("instances", "terminate", hub_id("told_again", run), "--reason", "by hand")
    until("the second try", lambda: real.task("told_again", run)["try_number"] == 2)
    until("started again", lambda: "started again" in real.log("told_again", run, attempt=2))
    real.tell(hub_id("told_again", run), 5)
    real.reaches("told_again", run, "success")
    assert real.xcom("told_again", run) == 5


def test_a_clear_after_the_last_try_runs_only_what_has_failed(real: RealAirflow, tmp_path: Path) -> None:
    run = real.trigger("cleared_spark", folder=str(tmp_path))
    real.reaches("cleared_spark", run, "failed")
    assert runs(tmp_path).total() == 12
    real.clear("cleared_spark", run)
    assert real.reaches("cleared_spark", run, "success")["try_number"] == 2
    assert real.xcom("cleared_spark", run) == sum(range(12))
    counts = runs(tmp_path)
    assert (counts.total(), counts[7]) == (13, 2)
    assert real.status(hub_id("cleared_spark", run)) == "Completed"
    assert not real.exists(f"cleared_spark:hub:{run}:g2")
    real.log("cleared_spark", run, attempt=2, having="goes on from before its failure")


def test_an_instance_that_was_terminated_with_its_task_goes_on_after_a_clear(real: RealAirflow) -> None:
    run = real.trigger("told")
    real.waits("told", run)
    real.mark("told", run, "failed")
    until("terminated", lambda: real.status(hub_id("told", run)) == "Terminated")
    real.clear("told", run)
    until("the second try", lambda: real.task("told", run)["try_number"] == 2)
    until("it goes on", lambda: "it goes on from there" in real.log("told", run, attempt=2))
    real.tell(hub_id("told", run), 6)
    real.reaches("told", run, "success")
    assert real.xcom("told", run) == 6
    assert not real.exists(f"told:hub:{run}:g2")
