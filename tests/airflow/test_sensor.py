"""What the sensor does about the events of triggers; its wait itself is the trigger's (test_trigger, test_real)."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)

from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.engine.pending_waits import AwaitedEvent, Awaits
from airflow_provider_taskhub.errors import InputError, Unavailable
from airflow_provider_taskhub.sensors.taskhub import STATUSES, TaskHubSensor
from tests.airflow.conftest import Task, Ti
from tests.airflow.fake import NOW, FakeHub


def waiting(**arguments: object) -> Task:
    task = Task(TaskHubSensor(task_id="wait", instance_id="i", **arguments))
    task.start(Ti())
    return task


def test_returns_the_output_of_what_has_completed(hub: FakeHub) -> None:
    task = waiting()
    hub.end("i", {"url": "x"})
    assert task.finish(Ti(), status="Completed") == {"url": "x"}


def test_a_wanted_status_succeeds_and_another_end_fails(hub: FakeHub) -> None:
    task = waiting(statuses=["running"])
    hub.put("i", Status.RUNNING)
    assert task.finish(Ti(), status="Running") is None
    hub.end("i", "maintenance", status=Status.TERMINATED)
    with pytest.raises(AirflowException, match="instance i terminated: maintenance"):
        task.finish(Ti(), status="Terminated")


def test_where_there_is_nothing_to_wait_for_it_does_not_defer(hub: FakeHub) -> None:
    hub.put("i", Status.RUNNING)
    assert Task(TaskHubSensor(task_id="wait", instance_id="i", statuses=["running"])).run(Ti()) is None
    hub.end("i", {"url": "x"})
    assert Task(TaskHubSensor(task_id="wait", instance_id="i")).run(Ti()) == {"url": "x"}
    hub.fail("i", "41 rows rejected")
    with pytest.raises(AirflowException, match="instance i failed: ValueError: 41 rows rejected"):
        Task(TaskHubSensor(task_id="wait", instance_id="i")).run(Ti())


@pytest.mark.parametrize("option", ["soft_fail", "never_fail"])
def test_a_sensor_that_may_skip_skips_whenever_its_instance_has_failed(hub: FakeHub, option: str) -> None:
    """One that had failed before the sensor looked failed it; one that failed later skipped it."""
    hub.fail("i", "41 rows rejected")
    task = Task(TaskHubSensor(task_id="wait", instance_id="i", **{option: True}))
    with pytest.raises(AirflowSkipException, match=f"{option} is set.*instance i failed: ValueError: 41 rows rejected"):
        task.run(Ti())
    hub.instances.clear()
    task.start(Ti())
    hub.fail("i", "41 rows rejected")
    with pytest.raises(AirflowSkipException, match=option):
        task.finish(Ti(), status="Failed")


def test_a_hub_that_cannot_be_read_is_waited_for(hub: FakeHub) -> None:
    hub.put("i", Status.COMPLETED)
    hub.down = Unavailable("no answer")
    assert waiting().deferred.trigger.instance_id == "i"


def test_the_deadline_is_the_sensors_timeout(hub: FakeHub) -> None:
    over = {"reason": "timeout", "message": "the time limit is over"}
    assert waiting(timeout=90).deferred.trigger.deadline is not None
    with pytest.raises(AirflowSensorTimeout, match="over, and there is no such instance in the hub: it never appeared"):
        waiting().finish(Ti(), **over)
    hub.put("i", Status.RUNNING)
    with pytest.raises(AirflowSensorTimeout, match="the time limit is over; it is Running"):
        waiting().finish(Ti(), **over)
    hub.down = Unavailable("no answer")
    with pytest.raises(AirflowSensorTimeout, match="over; the hub cannot be read now: no answer"):
        waiting().finish(Ti(), **over)


@pytest.mark.parametrize("other", [{"owner": "an operator's"}, {"instance_id": "another"}])
def test_the_event_of_another_wait_ends_nothing(hub: FakeHub, other: dict[str, str]) -> None:
    """Airflow on SQLite gives the number of a deleted trigger again."""
    task = waiting()
    hub.put("i", Status.COMPLETED)
    with pytest.raises(TaskDeferred) as again:
        task.finish(Ti(), status="Completed", **other)
    assert again.value.trigger.instance_id == "i"


# a custom status and an awaited event


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"instance_id": ""}, "TaskHubSensor 'wait': instance_id is ''"),
        ({"statuses": "Running"}, "give a list, for example"),
        ({"statuses": 5}, "statuses is 5: give a list, for example"),
        ({"statuses": ["Runing"]}, "'Runing': choose from Pending, Running"),
        ({"custom_status": "rows >"}, "custom_status is 'rows >'"),
        ({"event_name": " "}, "event_name is ' '"),
    ],
)
def test_arguments_that_cannot_be_right_are_refused_at_parse(more: dict[str, object], text: str) -> None:
    with pytest.raises(InputError, match=text):
        TaskHubSensor(**({"task_id": "wait", "instance_id": "i"} | more))


@pytest.mark.parametrize(
    ("rendered", "text"),
    [
        ({"instance_id": "None"}, "instance_id is 'None' after rendering: give the id of an instance"),
        ({"instance_id": None}, "instance_id is None after rendering"),
        ({"instance_id": "x" * 300}, "at most 256"),
        ({"statuses": ["Runing"]}, "do not exist: choose from Running"),
    ],
)
def test_a_rendered_argument_that_cannot_be_right_fails_for_good(
    hub: FakeHub, rendered: dict[str, Any], text: str
) -> None:
    task = waiting()
    for name, value in rendered.items():
        setattr(task.operator, name, value)
    with pytest.raises(AirflowFailException, match=text):
        task.run(Ti())


def test_statuses_that_are_not_given_are_none() -> None:
    assert TaskHubSensor(task_id="wait", instance_id="i", statuses=None).statuses == []
    assert TaskHubSensor(task_id="wait", instance_id="i", statuses={"Running"}).statuses == ["Running"]


def test_the_statuses_are_the_engines() -> None:
    assert set(STATUSES) == set(Status)


def sensor(**arguments: object) -> Task:
    return Task(TaskHubSensor(task_id="wait", instance_id="i", **arguments))


def test_a_condition_that_is_met_already_needs_no_triggerer(hub: FakeHub) -> None:
    hub.put("i", Status.RUNNING, custom_status='{"rows": 2000}')
    hub.awaits["i"] = Awaits(events=(AwaitedEvent(name="approval", since=NOW),))
    assert sensor(custom_status="custom_status.rows > 1000").run(Ti()) is None
    assert sensor(event_name="approval").run(Ti()) is None
    assert sensor(statuses=["Suspended"], event_name="approval").run(Ti()) is None, "the first of several"
    with pytest.raises(TaskDeferred) as deferred:
        sensor(event_name="another").run(Ti())
    assert deferred.value.trigger.awaited_event == "another"


def test_an_instance_that_ends_before_the_condition_fails(hub: FakeHub) -> None:
    hub.end("i", 7, custom_status='{"rows": 1}')
    for one in (sensor(custom_status="custom_status.rows > 1000"), sensor(event_name="approval")):
        with pytest.raises(AirflowException, match="instance i completed before it reached what this sensor waits for"):
            one.run(Ti())
    assert sensor(custom_status="custom_status.rows == 1").run(Ti()) == 7


def test_a_condition_that_raises_fails_without_a_retry(hub: FakeHub) -> None:
    hub.put("i", Status.RUNNING, custom_status='{"rows": "many"}')
    with pytest.raises(AirflowFailException, match="which raised TypeError"):
        sensor(custom_status="custom_status.rows > 1000").run(Ti())


def test_after_the_wait_a_met_condition_succeeds(hub: FakeHub) -> None:
    hub.put("i", Status.RUNNING)
    one, ti = sensor(event_name="approval"), Ti()
    assert one.start(ti).trigger.end_from_trigger
    assert ti.xcoms == {"instance_id": "i"}, "so that the triggerer may end the task"
    assert one.finish(ti, status="Running", met=True) is None
    hub.end("i", 7)
    with pytest.raises(AirflowException, match="before it reached"):
        one.finish(ti, status="Completed", met=False)


def test_the_sensor_has_the_link_to_the_page() -> None:
    (link,) = TaskHubSensor(task_id="wait", instance_id="i").operator_extra_links
    assert link.name == "TaskHub instance"
