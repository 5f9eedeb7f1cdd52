"""What users of the page do, inside a real Airflow, over a real embedded hub with a real worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from tests.airflow.real import RealAirflow
from tests.waiting import until


def order(real: RealAirflow, action: str, instance_id: str, user: str, **more: Any) -> httpx.Response:
    return real.request("POST", f"/taskhub/api/instance/{action}", user=user, json={"id": instance_id} | more)


def status(real: RealAirflow, instance_id: str) -> str:
    return str(real.instance(instance_id)["instance"]["status"])


def test_a_user_terminates_what_a_viewer_may_not_and_airflow_knows_who_it_was(real: RealAirflow) -> None:
    run = real.trigger("told")
    real.waits("told", run)
    mine = f"told:hub:{run}:g1"
    seen = real.get("/taskhub/api/instance", user="uma", id=mine)
    assert seen["actions"] == ["raise-event", "suspend", "terminate"]
    assert real.get("/taskhub/api/instance", user="vera", id=mine)["actions"] == []
    refused = order(real, "terminate", mine, "vera")
    assert (refused.status_code, "'told'" in refused.json()["detail"]) == (403, True)
    with httpx.Client(base_url=real.url, cookies={"_token": real.token("uma")}, timeout=90) as browser:
        form = browser.post("/taskhub/api/instance/terminate", data={"id": mine})
        assert form.status_code == 415, "the cookie alone, as a form of another web site sends it"
        body = {"id": mine, "execution": seen["instance"]["execution"], "reason": "wrong year"}
        answer = browser.post("/taskhub/api/instance/terminate", json=body)
    assert answer.status_code == 200, answer.text
    real.reaches("told", run, "failed")
    real.log("told", run, having="from Airflow: uma on TaskHub's page: wrong year")
    entries = real.get("/api/v2/eventLogs", dag_id="told", run_id=run, event="taskhub.terminate")["event_logs"]
    assert [(one["owner"], one["task_id"]) for one in entries] == [("uma", "hub")]
    assert "wrong year" in entries[0]["extra"]
    assert httpx.post(f"{real.url}/taskhub/api/instance/terminate", json=body).status_code == 401


def test_an_administrator_steers_an_instance_of_no_dag_through_its_life(real: RealAirflow, tmp_path: Path) -> None:
    assert real.taskhub("instances", "start", "waits", "--id", "steered")
    until("it runs", lambda: status(real, "steered") == "Running")
    assert order(real, "suspend", "steered", "uma").status_code == 404
    assert order(real, "suspend", "steered", "otto", reason="the cluster moves").status_code == 200
    until("it is suspended", lambda: status(real, "steered") == "Suspended")
    assert "otto (Airflow)" in real.instance("steered")["instance"]["now"]
    assert order(real, "purge", "steered", "otto").status_code == 409
    assert order(real, "resume", "steered", "otto").status_code == 200
    until("it runs again", lambda: status(real, "steered") == "Running")
    assert order(real, "raise-event", "steered", "otto", name="go", data={"by": "otto"}).status_code == 200
    until("it has ended", lambda: status(real, "steered") == "Completed")
    assert order(real, "terminate", "steered", "otto").status_code == 409
    first = real.instance("steered")["instance"]["execution"]
    assert order(real, "restart", "steered", "otto", execution=first, status="Completed").status_code == 200
    until("it is another run", lambda: real.instance("steered")["instance"]["execution"] != first)
    assert order(real, "purge", "steered", "otto", execution=first).status_code == 409
    assert order(real, "terminate", "steered", "otto").status_code == 200
    until("it is terminated", lambda: status(real, "steered") == "Terminated")
    assert order(real, "purge", "steered", "otto", status="Terminated").status_code == 200
    assert order(real, "purge", "steered", "otto").status_code == 404


def test_a_failed_instance_is_rewound(real: RealAirflow, tmp_path: Path) -> None:
    marker = f'"{tmp_path / "marker"}"'
    assert real.taskhub("instances", "start", "flaky", "--input", marker, "--id", "rewound")
    until("it has failed", lambda: status(real, "rewound") == "Failed")
    assert order(real, "rewind", "rewound", "admin", status="Failed", reason="the table is there").status_code == 200
    until("it has completed", lambda: status(real, "rewound") == "Completed")
    assert order(real, "rewind", "rewound", "admin").status_code == 409


def test_a_repair_lets_the_task_and_its_run_go_on(real: RealAirflow, tmp_path: Path) -> None:
    run = real.trigger("cleared_spark", folder=str(tmp_path))
    path = f"/api/v2/dags/cleared_spark/dagRuns/{quote(run)}"
    real.reaches("cleared_spark", run, "failed")
    until("the run has failed", lambda: real.get(path)["state"] == "failed")
    instance = f"cleared_spark:hub:{run}:g1"
    assert order(real, "repair", instance, "vera", status="Failed").status_code == 403
    assert order(real, "repair", instance, "uma", status="Failed", reason="the file is there").status_code == 200
    assert real.reaches("cleared_spark", run, "success")["try_number"] == 2
    assert len(list(tmp_path.iterdir())) == 13, "one of twelve activities has run again"
    assert real.xcom("cleared_spark", run) == sum(range(12))
    until("the run has succeeded", lambda: real.get(path)["state"] == "success")
    by = {one["event"]: one["owner"] for one in real.get("/api/v2/eventLogs", run_id=run)["event_logs"]}
    assert by["taskhub.repair"] == by["post_clear_task_instances"] == "uma", by


def test_an_administrator_steers_partitions_and_workers(real: RealAirflow) -> None:
    def post(path: str, user: str = "otto", **body: Any) -> httpx.Response:
        return real.request("POST", f"/taskhub/api/{path}", user=user, json=body)

    def partition() -> Any:
        return real.get("/taskhub/api/partitions", user="vera")["partitions"][0]

    until("partition 0 has an owner", lambda: partition()["owner"])
    epoch = partition()["epoch"]
    assert post("partition/kick", "uma", partition=0).status_code == 403
    assert post("partition/kick", partition=0, epoch=epoch, reason="slow disk").status_code == 200
    until("the next owner has it", lambda: partition()["epoch"] > epoch and partition()["owner"])
    assert "otto (Airflow)" in partition()["kicked"]
    assert post("partition/kick", partition=0, epoch=epoch).status_code == 409
    assert post("partition/offline", partition=0, reason="repair").status_code == 200
    until("it is offline", lambda: partition()["state"] == "offline")
    assert [(one["by"], one["reason"]) for one in partition()["orders"]] == [("otto (Airflow)", "repair")]
    assert post("partition/online", partition=0).status_code == 200
    until("it is served again", lambda: partition()["owner"])
    workers = real.get("/taskhub/api/workers", user="otto")["workers"]
    first = next(one["worker"] for one in workers if one["worker"].startswith("first@")).rpartition("/")[0]
    assert post("worker/drain", worker=first).status_code == 200
    until("it has no partition", lambda: not partition()["owner"])
    assert post("worker/undrain", worker=first).status_code == 200
    until("it has partitions again", lambda: partition()["owner"])
    assert real.get("/taskhub/api/quarantine", user="otto")["messages"] == []
    assert real.request("GET", "/taskhub/api/quarantine", user="uma").status_code == 403
    entries = real.get("/api/v2/eventLogs", owner="otto")["event_logs"]
    assert {"taskhub.partition.kick", "taskhub.worker.drain"} <= {one["event"] for one in entries}


def test_an_order_over_the_filter_a_comparison_and_the_parts_of_a_history(real: RealAirflow) -> None:
    runs = [real.trigger("told"), real.trigger("told")]
    for run in runs:
        real.waits("told", run)
    mine = [f"told:hub:{run}:g1" for run in runs]

    def targets(action: str, user: str) -> list[Any]:
        filter = {"text": "dag_id=told", "status": "running", "window": "hour", "action": action}
        found = real.get("/taskhub/api/targets", user=user, **filter)["targets"]
        return [one for one in found if one["id"] in mine]

    assert (real.get("/taskhub/api/orders", user="vera")["orders"], targets("terminate", "vera")) == ([], [])
    assert "terminate" in real.get("/taskhub/api/orders", user="uma")["orders"]
    seen = targets("terminate", "uma")
    assert sorted(one["id"] for one in seen) == sorted(mine)
    body = {"targets": [*seen, {"id": "without-airflow"}], "reason": "wrong year"}
    refused = real.request("POST", "/taskhub/api/instances/terminate", user="vera", json={"targets": seen})
    assert [one["code"] for one in refused.json()["results"]] == [403, 403]
    answer = real.request("POST", "/taskhub/api/instances/terminate", user="uma", json=body)
    assert [one["code"] for one in answer.json()["results"]] == [200, 200, 404]
    for run, instance_id in zip(runs, mine, strict=True):
        real.reaches("told", run, "failed")
        assert status(real, instance_id) == "Terminated"
        entries = real.get("/api/v2/eventLogs", dag_id="told", run_id=run, event="taskhub.terminate")["event_logs"]
        assert [one["owner"] for one in entries] == ["uma"]
    sides = real.get("/taskhub/api/compare", user="uma", id=mine[0], other=mine[1])
    assert [sides[side]["status"] for side in ("one", "other")] == ["Terminated", "Terminated"]
    part = real.get("/taskhub/api/instance/history", user="uma", id=mine[0], before=2)
    assert [event["n"] for event in part["events"]] == [1, 0]
    assert real.get("/taskhub/api/instance/children", user="uma", id=mine[0])["children"] == []
