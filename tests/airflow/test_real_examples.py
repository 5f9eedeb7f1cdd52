"""Example DAGs that need nothing but Airflow and a worker of the hub, in a real Airflow: all of them run at once."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.real import RealAirflow
from tests.waiting import until

HELLO = ["Hello, Ada!", "Hello, Grace!", "Hello, Katherine!"]
WAITS = ("in_the_triggerer", "a_moment", "in_the_worker", "begins_later")
ZERO = {
    "ends_in_a_worker": HELLO[:1],
    "starts_in_a_worker": ["Hello, manual!"],
    "only_workers": HELLO[:1],
}


@pytest.fixture(scope="module")
def runs(real: RealAirflow, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The run of each example by the name of its DAG, and under "folder" the folder of the DAG ``on_retry``.

    The instance of its task ``repaired_by_hand`` is rewound.
    """
    folder = str(tmp_path_factory.mktemp("reports"))
    given: dict[str, dict[str, Any]] = {"on_retry": {"folder": folder}, "waiting": {"delay": 2}}
    names = ("on_retry", "time_limits", "first", "by_function", "zero_slot", "waiting", "outputs", "mapping")
    started = {name: real.trigger(name, **given.get(name, {})) for name in names}
    by_hand = f"on_retry:repaired_by_hand:{started['on_retry']}:g1"
    until("it has failed", lambda: real.exists(by_hand) and real.status(by_hand) == "Failed")
    answer = real.request("POST", "/taskhub/api/instance/rewind", json={"id": by_hand})
    assert answer.status_code == 200, answer.text  # before the last retry of the task
    return {"folder": folder} | started


def returned(real: RealAirflow, runs: dict[str, str], dag_id: str, task_id: str, index: int = -1) -> Any:
    """The return value of a task, once it has succeeded."""
    real.reaches(dag_id, runs[dag_id], "success", task_id=task_id, index=index)
    entry = f"{real.path(dag_id, runs[dag_id], task_id)}/xcomEntries/return_value"
    return real.get(entry, map_index=index)["value"]


@pytest.mark.parametrize("dag_id", ["first", "by_function"])
def test_an_orchestrator_by_its_name_and_by_its_function(real: RealAirflow, runs: dict[str, str], dag_id: str) -> None:
    assert returned(real, runs, dag_id, "greetings") == HELLO


def test_tasks_without_a_worker_and_with_one(real: RealAirflow, runs: dict[str, str]) -> None:
    run = runs["zero_slot"]
    assert returned(real, runs, "zero_slot", "no_worker") == ["Hello, Ada!", f"Hello, {run}!"]
    rows = [returned(real, runs, "zero_slot", "rows", index) for index in (0, 1)]
    assert rows == [["Hello, Ada!"], ["Hello, Alan!", f"Hello, {run}!"]]
    assert returned(real, runs, "zero_slot", "after_it") == ["Hello, Hello, Ada!!", f"Hello, Hello, {run}!!"]
    assert {task_id: returned(real, runs, "zero_slot", task_id) for task_id in ZERO} == ZERO
    for task_id, index in (("no_worker", -1), ("after_it", -1), ("rows", 0), ("rows", 1)):
        assert real.task("zero_slot", run, task_id, index)["pid"] is None, "no worker has run it"
    assert real.task("zero_slot", run, "only_workers")["pid"] is not None


def test_rows_of_inputs_and_rows_of_outputs(real: RealAirflow, runs: dict[str, str]) -> None:
    assert [returned(real, runs, "mapping", "teams", index) for index in range(3)] == [
        ["Hello, Ada!", "Hello, Alan!"],
        ["Hello, Grace!"],
        ["Hello, Katherine!"],
    ]
    real.log("mapping", runs["mapping"], "teams", index=0, having="started, by the triggerer")
    assert returned(real, runs, "mapping", "again", 1) == ["Hello, Hello, Grace!!"]


def test_every_way_to_wait(real: RealAirflow, runs: dict[str, str]) -> None:
    run = runs["waiting"]
    assert [returned(real, runs, "waiting", task_id) for task_id in WAITS] == [HELLO] * len(WAITS)
    instance = f"waiting:not_at_all:{run}:g1"
    assert returned(real, runs, "waiting", "not_at_all") == instance
    until("its instance ends too", lambda: real.status(instance) == "Completed")
    assert "a triggerer now waits" not in real.log("waiting", run, "a_moment")


def test_an_output_that_stays_in_the_hub(real: RealAirflow, runs: dict[str, str]) -> None:
    assert list(returned(real, runs, "outputs", "rows")) == ["taskhub_output"]
    assert returned(real, runs, "outputs", "count") == 20_000
    assert returned(real, runs, "outputs", "last") == "row 20000 of 20000"


def test_both_time_limits(real: RealAirflow, runs: dict[str, str]) -> None:
    run = runs["time_limits"]
    for task_id in ("too_late", "no_worker"):
        real.reaches("time_limits", run, "failed", task_id=task_id)
        until("its instance ends too", partial(_ended, real, f"time_limits:{task_id}:{run}:g1"))
    assert real.instance(f"time_limits:too_late:{run}:g1")["instance"]["tags"]["team"] == "sales"
    real.log("time_limits", run, "no_worker", having="not_deployed")


def test_every_way_to_retry(real: RealAirflow, runs: dict[str, str]) -> None:
    run, folder = runs["on_retry"], Path(runs["folder"])
    counted = {}
    for task_id, name in (("go_on", "go_on"), ("compute_anew", "compute_anew"), ("repaired_by_hand", "by_hand")):
        assert returned(real, runs, "on_retry", task_id) == "the report is sent: 600 rows"
        counted[task_id] = len((folder / run / name / "runs.txt").read_text().splitlines())
    assert counted == {"go_on": 3, "compute_anew": 6, "repaired_by_hand": 3}


def _ended(real: RealAirflow, instance_id: str) -> bool:
    return real.status(instance_id) in ("Terminated", "Failed")
