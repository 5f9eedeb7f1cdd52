"""Where a task waits: in the triggerer, in its Airflow worker, or not at all; and when its instance begins."""

from __future__ import annotations

import gc
import runpy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import conf
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowTaskTimeout

from airflow_provider_taskhub.clock import SystemClock
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.hub.model import InstanceState
from airflow_provider_taskhub.operators.taskhub import TaskHubOperator
from airflow_provider_taskhub.triggers.taskhub import TaskHubTrigger
from tests.airflow.conftest import Ti
from tests.airflow.fake import FakeClient, FakeHub, member
from tests.waiting import PATIENCE

ID = "flights:delays:scheduled__2013-12-01T00:00:00+00:00:g{}"
EXAMPLE = Path(__file__).parents[2] / "dags_examples" / "waiting.py"


@pytest.fixture
def ends_later(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The instance ends while a trigger waits for it, not in the short wait. What it ends with can be changed."""
    ending: dict[str, Any] = {"output": [7]}
    activities = FakeClient.get

    async def end(self: FakeClient, instance_id: str, *, payloads: bool = True) -> InstanceState | None:
        state = hub.instances.get(instance_id)
        if hub.attending and state is not None and not state.status.is_final:
            hub.end(instance_id, **ending)
        return await activities(self, instance_id, payloads=payloads)

    monkeypatch.setattr(FakeClient, "get", end)
    return ending


def test_without_waiting_the_task_ends_with_the_id(make_task, hub) -> None:
    task, ti = make_task(wait_for_completion=False), Ti()
    assert task.run(ti) == ID.format(1)
    assert hub.instances[ID.format(1)].status is Status.PENDING
    assert hub.watched == {}, "or the sweep would terminate it, because its task has ended"
    assert "taskhub.watch" not in hub.instances[ID.format(1)].tags, "or its end would leave a hint that nobody reads"
    assert hub.instances[ID.format(1)].tags["taskhub.owner"] == str(ti.id)
    assert hub.requests["wait"] == 0


def test_a_dag_that_stops_waiting_takes_back_that_its_task_waits(make_task, hub) -> None:
    task, ti = make_task(), Ti()
    task.start(ti)
    assert set(hub.watched) == {ID.format(1)}
    task.operator.wait_for_completion = False
    assert task.run(ti.next_try()) == ID.format(1)
    assert hub.watched == {}


def test_a_task_that_does_not_wait_leaves_the_watch_row_of_another_deployment(make_task, hub) -> None:
    task, ti = make_task(), Ti()
    task.start(ti)
    hub.watched[ID.format(1)] = there = replace(hub.watched[ID.format(1)], deployment="there")
    task.operator.wait_for_completion = False
    task.run(ti.next_try())
    assert hub.watched == {ID.format(1): there}


def test_a_task_that_does_not_wait_still_rewinds_and_clears(make_task, hub) -> None:
    task, ti = make_task(wait_for_completion=False), Ti()
    task.run(ti)
    hub.fail(ID.format(1), "no rows")
    assert task.run(ti.next_try()) == ID.format(1)
    assert len(hub.rewound) == 1
    assert task.run(ti.cleared()) == ID.format(2)
    assert [instance for instance, _ in hub.terminated] == [ID.format(1)]


@pytest.mark.parametrize("orchestrator", ["flights_delays", "flights_delay"])
def test_a_task_that_does_not_wait_warns_of_a_name_that_no_live_worker_knows(
    make_task, hub, orchestrator: str, capsys
) -> None:
    hub.workers = (member("a@host/1", "flights_delays"),)
    make_task(wait_for_completion=False, orchestrator=orchestrator).run(Ti())
    said = capsys.readouterr().out
    text = "no live worker knows orchestrator 'flights_delay', so the instance waits until one does"
    assert (text in said) == ("did you mean 'flights_delays'?" in said) == (orchestrator == "flights_delay")


@pytest.mark.parametrize("deferrable", [True, None])
def test_a_task_waits_in_the_triggerer_unless_told_otherwise(make_task, deferrable) -> None:
    assert make_task(deferrable=deferrable).start(Ti()).trigger.instance_id == ID.format(1)


@pytest.mark.parametrize(("set_to", "deferrable"), [("True", True), ("False", False)])
def test_airflows_environment_variable_is_the_default(monkeypatch, set_to: str, deferrable: bool) -> None:
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", set_to)
    assert TaskHubOperator(task_id="t", orchestrator="o").deferrable is deferrable
    assert TaskHubOperator(task_id="t", orchestrator="o", deferrable=not deferrable).deferrable is not deferrable


def test_what_airflow_writes_into_a_new_airflow_cfg_is_no_decision(monkeypatch) -> None:
    """Airflow writes ``default_deferrable = false`` there."""
    if not conf.has_section("operators"):
        conf.add_section("operators")
    monkeypatch.setitem(conf["operators"], "default_deferrable", "false")
    assert conf.getboolean("operators", "default_deferrable") is False
    assert TaskHubOperator(task_id="t", orchestrator="o").deferrable is True


def test_a_wait_in_the_worker_returns_the_output(make_task, hub, ends_later, capsys) -> None:
    ti = Ti()
    assert make_task(deferrable=False, poll_interval=0.01).run(ti) == [7]
    said = capsys.readouterr().out
    assert "this Airflow worker waits for instance" in said
    assert "flights_delays is Completed" in said, "the log says what a trigger would have said"
    assert set(hub.watched) == {ID.format(1)}, "until the sweep deletes it: a kill of the task is seen"


def test_a_failure_during_a_wait_in_the_worker_fails_the_task(make_task, hub, ends_later) -> None:
    ends_later.update(output="no rows", status=Status.FAILED)
    with pytest.raises(AirflowException, match="failed: no rows"):
        make_task(deferrable=False, poll_interval=0.01).run(Ti())


def test_the_time_limit_of_a_wait_in_the_worker_terminates(make_task, hub, monkeypatch) -> None:
    """Airflow raises its error in whatever code runs."""

    def alarm(*_: Any) -> None:
        raise AirflowTaskTimeout("Timeout, PID: 7")

    monkeypatch.setattr("airflow_provider_taskhub.operators.taskhub.wait_in_worker", alarm)
    with pytest.raises(AirflowTaskTimeout, match="the time limit is over; the instance is terminated, nothing of it"):
        make_task(deferrable=False, execution_timeout=timedelta(hours=1)).run(Ti())
    assert hub.terminated == [(ID.format(1), "from Airflow: execution timeout")]


def test_a_wait_in_the_worker_asks_as_often_as_told(make_task, monkeypatch) -> None:
    seen = []

    def look(trigger: Any) -> dict[str, Any]:
        seen.append((trigger.interval, trigger.deadline is not None, trigger.end_from_trigger))
        return {"reason": "missing", "instance_id": trigger.instance_id, "owner": trigger.owner, "message": "gone"}

    monkeypatch.setattr("airflow_provider_taskhub.operators.taskhub.wait_in_worker", look)
    for poll_interval in (None, 30, timedelta(minutes=1)):
        with pytest.raises(AirflowException, match="gone"):
            make_task(deferrable=False, poll_interval=poll_interval, execution_timeout=timedelta(hours=1)).run(Ti())
    assert seen == [(pause, True, False) for pause in (None, timedelta(seconds=30), timedelta(minutes=1))]


@pytest.mark.timeout(PATIENCE)  # if this breaks, the task waits for ever
def test_a_wait_in_the_worker_ends_at_its_time_limit_though_airflows_error_is_lost(make_task, hub, monkeypatch) -> None:
    """Airflow raises it once, in whatever code runs. In the step of a background task, asyncio keeps it there."""
    get = FakeClient.get
    alarm = [AirflowTaskTimeout("Timeout, PID: 7")]

    async def alarmed(self: FakeClient, instance_id: str, **named: Any) -> InstanceState | None:
        if hub.attending and alarm:
            raise alarm.pop()
        return await get(self, instance_id, **named)

    class Later(SystemClock):
        def utc_now(self) -> Timestamp:
            return super().utc_now() + timedelta(hours=0 if alarm else 2)

    monkeypatch.setattr(FakeClient, "get", alarmed)
    watchers: dict[Any, Any] = {}
    monkeypatch.setattr("airflow_provider_taskhub.triggers.watcher._WATCHERS", watchers)
    monkeypatch.setattr(TaskHubTrigger, "clock", Later())
    monkeypatch.setattr("airflow_provider_taskhub.triggers.taskhub._LOOK", 0.01)
    task = make_task(deferrable=False, poll_interval=0.01, execution_timeout=timedelta(hours=1))
    with pytest.raises(AirflowTaskTimeout, match=r"instance .*: the time limit is over"):
        task.run(Ti())
    assert hub.terminated == [(ID.format(1), "from Airflow: execution timeout")]
    watchers.clear()
    gc.collect()  # asyncio logs the lost error here, and not after the last test


@pytest.mark.parametrize(
    "start_at",
    [
        datetime(2027, 1, 1, tzinfo=UTC),
        "2027-01-01T00:00:00+00:00",
        "2027-01-01 01:00:00+01:00",
        "2027-01-01",
    ],
)
def test_an_instance_begins_at_its_time(make_task, hub, start_at) -> None:
    make_task(start_at=start_at).start(Ti())
    started = hub.instances[ID.format(1)].scheduled_start
    assert started.datetime() == datetime(2027, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("start_at", [None, "", "None"])
def test_without_a_time_an_instance_begins_at_once(make_task, hub, start_at) -> None:
    make_task(start_at=start_at).start(Ti())
    assert hub.instances[ID.format(1)].scheduled_start is None


def test_a_rendered_time_that_is_none_fails_before_anything_is_started(make_task, hub) -> None:
    task = make_task()
    task.operator.start_at = "soon"
    with pytest.raises(AirflowFailException, match="start_at is 'soon': give a datetime"):
        task.run(Ti())
    assert hub.starts == []


def test_the_example_dag_shows_every_way_to_wait() -> None:
    tasks = runpy.run_path(str(EXAMPLE))["dag"].task_dict
    assert {name: (task.wait_for_completion, task.deferrable) for name, task in tasks.items()} == {
        "in_the_triggerer": (True, True),
        "a_moment": (True, True),
        "in_the_worker": (True, False),
        "not_at_all": (False, True),
        "begins_later": (True, True),
    }
