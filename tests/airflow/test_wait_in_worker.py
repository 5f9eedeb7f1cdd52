"""Sensors and control operators with ``deferrable=False``: they wait in their Airflow worker, without a triggerer."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
)

from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.operators import acting
from airflow_provider_taskhub.operators.control import (
    TaskHubResumeOperator,
    TaskHubSuspendOperator,
    TaskHubTerminateOperator,
)
from airflow_provider_taskhub.operators.repair import TaskHubRewindOperator
from airflow_provider_taskhub.sensors import taskhub as sensors
from airflow_provider_taskhub.sensors.taskhub import TaskHubSensor
from tests.airflow.conftest import Task, Ti
from tests.airflow.fake import FakeClient, FakeHub

KINDS = [
    TaskHubSensor,
    TaskHubTerminateOperator,
    TaskHubSuspendOperator,
    TaskHubResumeOperator,
    TaskHubRewindOperator,
]
SOON = {"deferrable": False, "poll_interval": 0.01}


@pytest.fixture(autouse=True)
def no_short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acting, "WORKER_END_WAIT", timedelta(0))


@pytest.fixture
def during_the_wait(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], Any]]:
    """What happens, one after another, when a trigger reads the instance."""
    happens: list[Callable[[], Any]] = []
    get = FakeClient.get

    async def after_something(self: FakeClient, instance_id: str, **named: Any) -> Any:
        if hub.attending and happens:
            happens.pop(0)()
        return await get(self, instance_id, **named)

    monkeypatch.setattr(FakeClient, "get", after_something)
    return happens


def task(kind: Any, **more: Any) -> Task:
    return Task(kind(**({"task_id": "delays", "instance_id": "i"} | more)))


# arguments


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"deferrable": "no"}, "deferrable is 'no': give True or False"),
        ({"deferrable": "{{ params.x }}"}, "deferrable is '{{ params.x }}'"),
        ({"poll_interval": 0}, "poll_interval is 0: give more than 0 seconds"),
        ({"poll_interval": timedelta(seconds=-1)}, "poll_interval is .*: give a timedelta, or seconds, of 0 or more"),
        ({"poll_interval": "5"}, "poll_interval is '5'"),
    ],
)
def test_arguments_that_cannot_be_right_are_refused_at_parse(kind: Any, wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=f"{kind.__name__} 'delays': {text}"):
        task(kind, **wrong)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("set_to", "deferrable"), [("True", True), ("False", False)])
def test_airflows_environment_variable_is_the_default(monkeypatch, kind: Any, set_to: str, deferrable: bool) -> None:
    assert task(kind).operator.deferrable is True
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", set_to)
    assert task(kind).operator.deferrable is deferrable
    assert task(kind, deferrable=not deferrable).operator.deferrable is not deferrable


@pytest.mark.parametrize("poll_interval", [None, 30, timedelta(minutes=1)])
@pytest.mark.parametrize("kind", [TaskHubSensor, TaskHubSuspendOperator])
def test_a_wait_asks_as_often_as_told(hub: FakeHub, monkeypatch, kind: Any, poll_interval: Any) -> None:
    seen = []

    def look(trigger: Any) -> dict[str, Any]:
        seen.append(trigger.interval)
        return {"reason": "missing", "instance_id": "i", "owner": None, "message": "it is gone"}

    monkeypatch.setattr(sensors, "wait_in_worker", look)
    monkeypatch.setattr(acting, "wait_in_worker", look)
    hub.put("i", Status.RUNNING)
    hub.slow = True
    with pytest.raises(AirflowException, match="it is gone"):
        task(kind, deferrable=False, poll_interval=poll_interval).run(Ti())
    assert seen == [timedelta(seconds=30) if poll_interval == 30 else poll_interval]


# the sensor


def test_a_sensor_returns_the_output(hub: FakeHub, during_the_wait, capsys) -> None:
    during_the_wait += [lambda: None, lambda: hub.put("i", Status.RUNNING), lambda: hub.end("i", {"url": "x"})]
    assert task(TaskHubSensor, **SOON).run(Ti()) == {"url": "x"}
    said = capsys.readouterr().out
    assert "this Airflow worker waits for instance i, because deferrable is False" in said
    assert "flights_delays is Completed" in said, "the log says what a trigger would have said"


def test_a_sensor_sees_its_condition(hub: FakeHub, during_the_wait) -> None:
    hub.put("i", Status.RUNNING)
    during_the_wait.append(lambda: hub.put("i", Status.RUNNING, custom_status='{"rows": 2000}'))
    assert task(TaskHubSensor, custom_status="custom_status.rows > 1000", **SOON).run(Ti()) is None


@pytest.mark.parametrize(
    ("option", "error"), [({}, AirflowException), ({"soft_fail": True}, AirflowSkipException)], ids=["fails", "skips"]
)
def test_a_sensor_whose_instance_fails(hub: FakeHub, during_the_wait, option: Any, error: type[Exception]) -> None:
    hub.put("i", Status.RUNNING)
    during_the_wait.append(lambda: hub.fail("i", "41 rows rejected"))
    with pytest.raises(error, match="instance i failed: ValueError: 41 rows rejected") as raised:
        task(TaskHubSensor, **SOON, **option).run(Ti())
    assert isinstance(raised.value, AirflowSkipException) is bool(option)


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        ({"timeout": 0}, AirflowSensorTimeout),
        ({"timeout": 0, "soft_fail": True}, AirflowSkipException),
        ({"timeout": 60, "execution_timeout": timedelta(0, 0, 1)}, AirflowTaskTimeout),
        ({"timeout": 60, "execution_timeout": timedelta(0, 0, 1), "never_fail": True}, AirflowSkipException),
    ],
)
def test_a_sensor_waits_no_longer_than_its_shortest_limit(
    hub: FakeHub, limits: dict[str, Any], error: type[BaseException]
) -> None:
    hub.put("i", Status.RUNNING)
    with pytest.raises(error, match="instance i: the time limit is over; it is Running"):
        task(TaskHubSensor, **SOON, **limits).run(Ti())


def test_a_deferred_sensor_has_the_same_limit(hub: FakeHub) -> None:
    limits = {"timeout": 60, "execution_timeout": timedelta(seconds=1)}
    one = task(TaskHubSensor, **limits)
    until = one.start(Ti()).trigger.deadline
    assert until < task(TaskHubSensor, timeout=60).start(Ti()).trigger.deadline
    with pytest.raises(AirflowTaskTimeout, match="the time limit is over"):
        one.finish(Ti(), reason="timeout", message="the time limit is over")


class Rescheduled(Ti):
    def get_first_reschedule_date(self, context: Any) -> None:
        return None


def test_a_rescheduled_sensor_looks_once_and_frees_its_worker(hub: FakeHub) -> None:
    one = task(TaskHubSensor, deferrable=False, mode="reschedule", poke_interval=300)
    for put in (lambda: None, lambda: hub.put("i", Status.RUNNING)):
        put()
        with pytest.raises(AirflowRescheduleException):
            one.run(Rescheduled())
    hub.end("i", {"url": "x"})
    assert one.run(Rescheduled()) == {"url": "x"}
    hub.fail("i", "41 rows rejected")
    with pytest.raises(AirflowException, match="41 rows rejected"):
        one.run(Rescheduled())
    one.operator.soft_fail = True
    with pytest.raises(AirflowSkipException, match=r"soft_fail is set.*41 rows rejected"):
        one.run(Rescheduled())


def test_a_deferrable_sensor_defers_in_every_mode(hub: FakeHub) -> None:
    assert task(TaskHubSensor, mode="reschedule").start(Ti()).trigger.instance_id == "i"


def test_the_example_dag_shows_every_way_to_wait() -> None:
    example = Path(__file__).parents[2] / "dags_examples" / "sensor.py"
    tasks = runpy.run_path(str(example))["dag"].task_dict
    assert {name: (one.deferrable, one.reschedule) for name, one in tasks.items()} == {
        "in_the_triggerer": (True, False),
        "in_the_worker": (False, False),
        "rescheduled": (False, True),
    }


# operators


@pytest.mark.parametrize(
    ("kind", "before", "effect"),
    [
        (TaskHubTerminateOperator, Status.RUNNING, Status.TERMINATED),
        (TaskHubSuspendOperator, Status.RUNNING, Status.SUSPENDED),
        (TaskHubResumeOperator, Status.SUSPENDED, Status.RUNNING),
    ],
)
def test_an_operator_waits_for_its_effect(hub: FakeHub, during_the_wait, capsys, kind, before, effect) -> None:
    hub.put("i", before)
    hub.slow = True

    def takes_effect() -> None:
        hub.slow = False
        hub.put("i", effect)

    during_the_wait += [lambda: None, takes_effect]
    assert task(kind, **SOON).run(Ti()) == str(effect)
    assert "this Airflow worker waits for instance i" in capsys.readouterr().out


def failed(hub: FakeHub) -> None:
    hub.put("i", Status.RUNNING, tags={"taskhub.owner": "o"})
    hub.fail("i", "41 rows rejected")


def test_a_rewind_returns_the_output(hub: FakeHub, during_the_wait) -> None:
    failed(hub)
    during_the_wait += [lambda: None, lambda: hub.end("i", {"url": "x"})]
    assert task(TaskHubRewindOperator, **SOON).run(Ti()) == {"url": "x"}


def test_a_rewind_ends_its_instance_at_the_time_limit(hub: FakeHub, monkeypatch) -> None:
    """Airflow raises its error in whatever code runs."""

    def alarm(*_: Any) -> None:
        raise AirflowTaskTimeout("Timeout, PID: 7")

    monkeypatch.setattr(acting, "wait_in_worker", alarm)
    failed(hub)
    terminate, waited = FakeClient.terminate, list[bool]()

    async def noted(client: FakeClient, *given: Any, wait: bool = False, **named: Any) -> Any:
        waited.append(wait)
        return await terminate(client, *given, wait=wait, **named)

    monkeypatch.setattr(FakeClient, "terminate", noted)
    with pytest.raises(AirflowTaskTimeout, match="instance i: the time limit is over; the instance is rewound"):
        task(TaskHubRewindOperator, execution_timeout=timedelta(hours=1), **SOON).run(Ti())
    assert hub.terminated == [("i", "from Airflow: execution timeout")]
    assert waited == [True], "a retry must not meet the clean-up"


def test_an_operator_without_an_own_instance_ends_nothing_at_the_time_limit(hub: FakeHub) -> None:
    hub.put("i", Status.RUNNING)
    hub.slow = True
    with pytest.raises(AirflowTaskTimeout, match="instance i: the time limit is over; the request is stored"):
        task(TaskHubSuspendOperator, execution_timeout=timedelta(0, 0, 1), **SOON).run(Ti())
    assert not hub.terminated


# a moment before the task defers


@pytest.mark.parametrize(
    ("more", "seconds"),
    [
        ({}, None),
        ({"outlets": [Asset("rows")]}, 30),
        ({"outlets": [Asset("rows")], "short_wait": 0}, None),
        ({"short_wait": timedelta(seconds=2)}, 2),
        ({"outlets": [Asset("rows")], "timeout": 5}, 4.5),
        ({"outlets": [Asset("rows")], "execution_timeout": timedelta(seconds=3)}, 2.5),
    ],
)
def test_a_sensor_that_a_worker_must_end_waits_a_moment(hub: FakeHub, monkeypatch, more: Any, seconds: Any) -> None:
    """Airflow takes a deferred task back after 30 s. The sensor's time limit leaves time to defer."""
    given: list[Any] = []
    monkeypatch.setattr(sensors, "ends_within", lambda *wait: given.append(wait))
    hub.put("i", Status.RUNNING)
    deferred = task(TaskHubSensor, **more).start(Ti())
    assert [longest.total_seconds() <= seconds for _, longest in given] == ([] if seconds is None else [True])
    assert [trigger.deadline for trigger, _ in given] in ([], [deferred.trigger.deadline]), "the limit counts once"
    if seconds in (2, 30):
        assert given[0][1] == timedelta(seconds=seconds)


def test_a_sensor_does_not_wait_where_airflow_takes_it_back_at_once(hub: FakeHub, monkeypatch) -> None:
    monkeypatch.setattr(sensors, "settle", lambda: 0.0)  # CeleryExecutor
    monkeypatch.setattr(sensors, "ends_within", lambda *wait: pytest.fail(f"waits {wait}"))
    hub.put("i", Status.RUNNING)
    assert task(TaskHubSensor, outlets=[Asset("rows")]).start(Ti()).trigger.instance_id == "i"


def test_what_ends_in_this_moment_ends_the_sensor(hub: FakeHub, during_the_wait: list[Callable[[], Any]]) -> None:
    hub.put("i", Status.RUNNING)
    during_the_wait.append(lambda: hub.end("i", 7))
    assert task(TaskHubSensor, short_wait=60).run(Ti()) == 7
    hub.put("i", Status.RUNNING)
    during_the_wait.append(lambda: hub.fail("i", "no"))
    with pytest.raises(AirflowSkipException, match="soft_fail is set"):
        task(TaskHubSensor, short_wait=60, soft_fail=True).run(Ti())
    hub.put("i", Status.RUNNING)
    assert task(TaskHubSensor, short_wait=0.01).start(Ti()).trigger.instance_id == "i"
