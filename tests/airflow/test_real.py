"""The front inside a real Airflow, over a real embedded hub with a real worker."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest

from tests.airflow.kills import KINDS, kills
from tests.airflow.real import Process, RealAirflow
from tests.waiting import until


def hub_id(dag_id: str, run_id: str, generation: int = 1, index: str = "") -> str:
    return f"{dag_id}:hub{index}:{run_id}:g{generation}"


def test_an_orchestration_between_two_tasks(real: RealAirflow) -> None:
    run = real.trigger("sums")
    real.reaches("sums", run, "success", task_id="check")
    assert real.xcom("sums", run) == {"sum": 14, "run": run}, "the output, its type kept; tags reach the orchestration"
    log = real.log("sums", run, having="sums is Completed")
    assert f"instance {hub_id('sums', run)} started" in log
    assert re.search(r"hub served by 1 live worker: first.*\(.*tests 7.*\); it knows 'sums'", log)
    assert len(re.findall(r"square #\d+, attempt 1, completed on first", log)) == 3
    links = real.get(f"{real.path('sums', run)}/links")["extra_links"]
    assert links["TaskHub instance"].startswith("/plugin/taskhub/taskhub/page/instance?dag_id=sums&run_id=manual__")
    tags = real.instance(hub_id("sums", run))["instance"]["tags"]
    assert (tags["airflow.dag_id"], tags["airflow.try_number"], tags["taskhub.generation"]) == ("sums", "1", "1")


def test_mapped_tasks_have_instances_of_their_own(real: RealAirflow) -> None:
    run = real.trigger("mapped")
    for index in range(5):
        real.reaches("mapped", run, "success", index=index)
        assert real.xcom("mapped", run, index=index)["sum"] == index**2
        assert real.status(hub_id("mapped", run, index=f"[{index}]")) == "Completed"


@pytest.mark.parametrize("dag_id", ["fails", "fails_plainly"], ids=["recorded", "plain"])
def test_a_failure_is_the_orchestrations_own_with_the_failed_log(real: RealAirflow, dag_id: str) -> None:
    run = real.trigger(dag_id)
    real.reaches(dag_id, run, "failed")
    log = real.log(dag_id, run, having="broken line 79")
    assert "41 of 8,760 rows rejected" in log
    assert "broken line 29\n" not in log, "the last 50 lines, not all 80"


def test_a_retry_goes_on_with_a_failed_orchestration(real: RealAirflow, tmp_path: Path) -> None:
    run = real.trigger("flaky", marker=str(tmp_path / "marker"))
    assert real.reaches("flaky", run, "success")["try_number"] == 2
    assert real.xcom("flaky", run) == "at last"
    assert real.instance(hub_id("flaky", run))["instance"]["airflow"]["try"] == "1", "same id, same start"


def test_an_error_that_forbids_retries_ends_the_task_at_once(real: RealAirflow) -> None:
    run = real.trigger("refuses")
    assert real.reaches("refuses", run, "failed")["try_number"] == 1
    real.log("refuses", run, having="nobody approved")


@pytest.mark.rows("K43")
def test_without_a_worker_that_knows_the_orchestrator_the_task_fails_and_says_so(real: RealAirflow) -> None:
    run = real.trigger("nobody")
    real.reaches("nobody", run, "failed")
    log = real.log("nobody", run, having="they know: ")
    assert re.search(r"no live worker has known orchestrator 'unheard_of' for 5 s. Alive: first", log)
    assert re.search(r"they know: .*fails, fails_plainly, flaky, .* and \d+ more", log)


def test_execution_timeout_terminates_and_fails(real: RealAirflow) -> None:
    run = real.trigger("late")
    real.reaches("late", run, "failed")
    ends = r"the instance is terminated, nothing of it runs|the instance has ended already"
    # its trigger and a worker see the time limit at the same time
    until("the end in the log", lambda: re.search(ends, real.log("late", run)))
    assert real.status(hub_id("late", run)) == "Terminated"


def test_execution_timeout_also_terminates_when_no_triggerer_was_there_in_time(real: RealAirflow) -> None:
    triggerer = real.processes["triggerer"]
    triggerer.stop()
    try:
        run = real.trigger("late_without_triggerer")
        real.reaches("late_without_triggerer", run, "deferred")
        instance = hub_id("late_without_triggerer", run)
        over = real.instance(instance)["instance"]["created"] + 9_000
        until("the time limit is over", lambda: real.instance(instance)["time"] > over)
        assert real.status(instance) == "Running"
    finally:
        triggerer.start()
    real.reaches("late_without_triggerer", run, "failed")
    real.log("late_without_triggerer", run, having="the instance is terminated, nothing of it runs")
    assert real.status(instance) == "Terminated"


@pytest.mark.parametrize("state", ["failed", "success"])
def test_marking_a_waiting_task_terminates(real: RealAirflow, state: str) -> None:
    run = real.trigger("slow", seconds=300)
    real.waits("slow", run)
    instance = hub_id("slow", run)
    real.mark("slow", run, state)
    until("terminated", lambda: real.status(instance) == "Terminated")
    until("nothing runs", lambda: not real.instance(instance)["tally"].get("running"))
    assert real.instance(instance)["instance"]["now"] == f"from Airflow: task marked {state}"


def test_clearing_a_waiting_task_ends_the_old_and_starts_a_new_generation(real: RealAirflow) -> None:
    run = real.trigger("told")
    real.waits("told", run)
    real.clear("told", run)
    until("terminated", lambda: real.status(hub_id("told", run)) == "Terminated")
    until("second try", lambda: real.task("told", run)["try_number"] == 2)
    until("a second instance", lambda: real.exists(hub_id("told", run, 2)))
    real.tell(hub_id("told", run, 2), 20)
    real.reaches("told", run, "success")
    until("completed", lambda: real.status(hub_id("told", run, 2)) == "Completed")  # the page keeps an answer for 1.5 s
    assert real.xcom("told", run) == 20


def test_clearing_a_successful_task_computes_anew(real: RealAirflow) -> None:
    run = real.trigger("sums")
    real.reaches("sums", run, "success")
    real.clear("sums", run)
    until("second generation", lambda: real.task("sums", run)["try_number"] == 2)
    real.reaches("sums", run, "success")
    assert real.status(hub_id("sums", run, 2)) == "Completed"


def test_a_shutdown_of_the_triggerer_leaves_the_instance_alone(real: RealAirflow) -> None:
    run = real.trigger("told")
    real.waits("told", run)
    triggerer = real.processes["triggerer"]
    triggerer.stop()
    assert real.status(hub_id("told", run)) == "Running"
    triggerer.start()
    real.tell(hub_id("told", run), 25)
    real.reaches("told", run, "success")
    assert real.xcom("told", run) == 25
    real.log("told", run, having="the task ends in the triggerer: nothing in the task needs a worker")


def test_without_a_triggerer_nothing_runs_on_that_no_task_waits_for(real: RealAirflow) -> None:
    """The short form of ``make kills``: killed at once after the deferral."""
    triggerer = real.processes["triggerer"]
    triggerer.stop()
    try:
        cases = kills(real, kinds=KINDS, delays=(0.0,), triggerer=False)
    finally:
        triggerer.start()
    assert [case.kind for case in cases if not case.held] == []


def test_a_triggerer_that_stood_still_kills_nothing(real: RealAirflow) -> None:
    """Another one takes its triggers; waking up, it believes that all of them were killed."""
    run = real.trigger("told")
    real.waits("told", run)
    first = real.processes["triggerer"]
    first.signal(signal.SIGSTOP)
    env = real.env | {"AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": "0"}
    second = Process("second-triggerer", first.command, env, real.home)
    try:
        until("the other one waits", lambda: real.log("told", run).count("waiting for told:") == 2)
        first.signal(signal.SIGCONT)
        until("on_kill", lambda: "invoking on_kill" in real.log("told", run))
        until("seen through", lambda: "the task waits in another triggerer" in real.log("told", run))
        assert real.status(hub_id("told", run)) == "Running"
        real.tell(hub_id("told", run), 60)
        real.reaches("told", run, "success")
    finally:
        first.signal(signal.SIGCONT)
        second.stop()
    assert real.xcom("told", run) == 60


def test_a_sensor_waits_for_an_instance_that_is_started_later(real: RealAirflow) -> None:
    run = real.trigger("sensor", instance=f"by-hand-{time.time_ns()}")
    real.reaches("sensor", run, "deferred")
    instance = real.get(f"/api/v2/dags/sensor/dagRuns/{run}")["conf"]["instance"]
    real.taskhub("instances", "start", "sums", "--input", "[3]", "--id", instance)
    real.reaches("sensor", run, "success")
    assert real.xcom("sensor", run)["sum"] == 9


def test_a_connection_that_the_page_does_not_offer_is_tested_without_showing_its_secret(real: RealAirflow) -> None:
    place = "BlobEndpoint=http://127.0.0.1:9/x;QueueEndpoint=http://127.0.0.1:9/x;TableEndpoint=http://127.0.0.1:9/x"
    secret = f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey=c2VjcmV0;{place}"
    extra = '{"hub": "Elsewhere", "storage": "azure"}'
    body = {"connection_id": "elsewhere", "conn_type": "taskhub", "password": secret, "extra": extra}
    assert real.request("POST", "/api/v2/connections", json=body).status_code == 201
    page = real.request("GET", "/taskhub/api/instances", params={"conn": "elsewhere"})
    assert page.status_code == 404
    tested = real.request("POST", "/api/v2/connections/test", json=body)
    assert tested.status_code == 200
    assert tested.json()["status"] is False
    assert "the hub's storage does not answer" in tested.json()["message"]
    assert "c2VjcmV0" not in page.text + tested.text


def test_airflow_lists_the_provider_and_the_plugin(real: RealAirflow) -> None:
    import json
    import subprocess

    def airflow(*arguments: str) -> list[dict[str, object]]:
        command = ["airflow", *arguments, "--output", "json"]
        done = subprocess.run(command, env=real.env, capture_output=True, text=True, timeout=120, check=True)
        return json.loads(done.stdout[done.stdout.index("[") :])  # type: ignore[no-any-return]

    assert any(line["package_name"] == "airflow-provider-taskhub" for line in airflow("providers", "list"))
    hooks = {line["connection_type"]: line for line in airflow("providers", "hooks")}
    assert hooks["taskhub"]["class"] == "airflow_provider_taskhub.hooks.taskhub.TaskHubHook"
    assert any(line["name"] == "taskhub" for line in airflow("plugins"))
    metas = {meta["connection_type"]: meta for meta in real.get("/ui/connections/hook_meta")}
    fields = metas["taskhub"]["extra_fields"]
    assert set(fields) == {"hub", "storage", "path", "account_url"}
    assert metas["taskhub"]["standard_fields"]["password"]["title"] == "Connection string, account key or SAS"
