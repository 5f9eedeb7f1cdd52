"""The trigger that starts a sensor's wait, as Airflow builds it, and what a worker does when the trigger cannot."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG, Asset
from airflow.sdk.exceptions import AirflowSensorTimeout, AirflowSkipException, AirflowTaskTimeout, TaskDeferred
from airflow.triggers.base import TaskFailedEvent, TaskSkippedEvent, TaskSuccessEvent, TriggerEvent

from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import InputError, StorageError
from airflow_provider_taskhub.sensors.taskhub import LONGEST, TaskHubSensor
from airflow_provider_taskhub.triggers.deferral import BACKSTOP
from airflow_provider_taskhub.triggers.placement import Placement
from airflow_provider_taskhub.triggers.sensor import TaskHubSensorTrigger
from tests.airflow.conftest import Task, Ti
from tests.airflow.fake import FakeHub
from tests.airflow.test_moments import awaiting
from tests.airflow.test_start_trigger import Airflow, after, airflow, event_of, play

__all__ = ["airflow"]  # a fixture
NOWHERE = Placement(start=(), success=(), failure=())


def of_sensor(airflow: Airflow, **more: Any) -> TaskHubSensorTrigger:
    trigger = airflow.trigger(kind=TaskHubSensor, **({"instance_id": "i"} | more))
    assert isinstance(trigger, TaskHubSensorTrigger)
    return trigger


def seen(hub: FakeHub, airflow: Airflow, happens: Any = None, **arguments: Any) -> Any:
    """Run the trigger of a sensor. Return its event. :param happens: happens 3 seconds after its start."""

    async def scenario() -> Any:
        if happens is not None:
            after(3, happens)
        return await event_of(of_sensor(airflow, **arguments))

    return play(scenario)


def test_serialises_to_plain_values_and_back() -> None:
    given: dict[str, Any] = {
        "instance_id": "i",
        "taskhub_conn_id": "c",
        "statuses": ["Running"],
        "custom_status": "custom_status.rows > 1",
        "event_name": "go",
        "limit_after_deadline": 300.0,
        "retry_after_deadline": True,
        "skip": "soft_fail",
        "end_from_trigger": False,
        "fail_from_trigger": False,
        "push_output": False,
        "outputs": [{"at": ["instance_id"], "task_id": "first", "key": "id"}],
    }
    path, kwargs = TaskHubSensorTrigger(**given, gone="since 0.1").serialize()
    assert path == "airflow_provider_taskhub.triggers.sensor.TaskHubSensorTrigger"
    assert kwargs == given


# where a sensor starts and ends


def made(**arguments: Any) -> Any:
    with DAG("d", schedule=None):
        return TaskHubSensor(**({"task_id": "t", "instance_id": "i"} | arguments))


def callback(*_: Any) -> None:
    pass


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"instance_id": "x-{{ run_id }}", "statuses": ("Running", "{{ params.status }}"), "event_name": "{{ ds }}"},
        {"custom_status": "custom_status.rows > 1", "mode": "reschedule", "poke_interval": 5},
        {"soft_fail": True, "on_failure_callback": callback},
        {"on_skipped_callback": callback},
    ],
)
def test_nothing_needs_a_worker(arguments: dict[str, Any]) -> None:
    sensor = made(**arguments)
    assert sensor.placement() == NOWHERE
    assert sensor.start_from_trigger is True


NO_TRIGGERER = ("deferrable is False: the task uses no triggerer",)


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"deferrable": False}, dict.fromkeys(("start", "success", "failure"), NO_TRIGGERER)),
        ({"start_on": "worker"}, {"start": ("start_on='worker'",)}),
        ({"complete_on": "worker"}, dict.fromkeys(("success", "failure"), ("complete_on='worker'",))),
        ({"outlets": [Asset("a")]}, {"success": ("outlets",)}),
        ({"on_success_callback": callback}, {"success": ("on_success_callback",)}),
        ({"on_failure_callback": callback}, {"failure": ("on_failure_callback",)}),
        ({"never_fail": True, "on_skipped_callback": callback}, {"failure": ("on_skipped_callback",)}),
        (
            {"instance_id": "{{ ti.xcom_pull('x') }}"},
            {
                "start": (
                    "the triggerer cannot render the template \"{{ ti.xcom_pull('x') }}\": "
                    "it does not have ti.xcom_pull",
                )
            },
        ),
    ],
)
def test_what_needs_a_worker(arguments: dict[str, Any], found: dict[str, Any]) -> None:
    sensor = made(**arguments)
    assert sensor.placement() == Placement(**({"start": (), "success": (), "failure": ()} | found))
    assert sensor.start_from_trigger is ("start" not in found)


def test_the_options_are_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TASKHUB__START_ON", "worker")
    assert made().placement().start == ("start_on='worker'",)
    assert made(start_on="auto").placement() == NOWHERE
    with pytest.raises(InputError, match="TaskHubSensor 't': complete_on is 'moon': choose from trigger, worker, auto"):
        made(complete_on="moon")


def test_the_log_says_what_forces_a_worker(hub: FakeHub, make_task: Any, capsys: pytest.CaptureFixture[str]) -> None:
    sensor = made(start_on="worker", outlets=[Asset("a")], short_wait=0)
    sensor.render_template_fields({})
    Task(sensor).start(Ti())
    said = capsys.readouterr().out
    assert "a worker starts this task: start_on='worker'" in said
    assert "a worker ends this task: outlets" in said


# success


@pytest.mark.parametrize(
    ("arguments", "happens", "output"),
    [
        ({}, lambda hub: hub.end("i", {"url": "x"}), {"url": "x"}),
        ({"statuses": ["running"]}, lambda hub: hub.put("i", Status.RUNNING), None),
        ({"statuses": ["Failed"]}, lambda hub: hub.fail("i", "no"), None),
        ({"event_name": "{{ params.go }}"}, lambda hub: hub.change("i", awaiting("go")), None),
        ({"do_xcom_push": False}, lambda hub: hub.end("i", 1), None),
    ],
    ids=["end", "status", "failed as wanted", "event", "no push"],
)
def test_the_task_ends_in_the_triggerer(
    hub: FakeHub, airflow: Airflow, arguments: dict[str, Any], happens: Any, output: Any
) -> None:
    if "event_name" in arguments:
        hub.put("i", Status.RUNNING)
    event = seen(hub, airflow, lambda: happens(hub), params={"go": "go"}, **arguments)
    assert type(event) is TaskSuccessEvent
    assert airflow.xcoms == {"instance_id": "i"} | ({} if output is None else {"return_value": output})


def test_templates_are_rendered_in_the_triggerer(hub: FakeHub, airflow: Airflow) -> None:
    hub.put("r-60", Status.SUSPENDED)
    event = seen(hub, airflow, instance_id="{{ run_id }}-{{ params.seconds }}", statuses=["{{ params.s }}"],
                 params={"s": "suspended"})  # fmt: skip
    assert type(event) is TaskSuccessEvent
    assert airflow.xcoms["instance_id"] == "r-60"
    assert airflow.xcoms["_link_TaskHubInstanceLink"].endswith("&conn=taskhub_default&id=r-60"), "not in the stored DAG"


def test_rows_of_a_mapped_sensor_wait_for_their_own_instances(hub: FakeHub, airflow: Airflow) -> None:
    expand = [{"instance_id": "a"}, {"instance_id": "b-{{ run_id }}", "statuses": ["Running"]}]

    async def scenario() -> None:
        for index, name in enumerate(("a", "b-r")):
            trigger = airflow.trigger(
                kind=TaskHubSensor, index=index, expand=expand
            )  # fmt: skip
            after(3, lambda name=name: hub.put(name, Status.COMPLETED if name == "a" else Status.RUNNING))
            assert type(await event_of(trigger)) is TaskSuccessEvent
            assert airflow.rows[f"t[{index}]"]["instance_id"] == name

    play(scenario)


def test_a_sensor_over_the_result_of_another_task_starts_in_a_worker() -> None:
    with DAG("d", schedule=None):
        first = TaskHubSensor(task_id="first", instance_id="i")
        rows = TaskHubSensor.partial(task_id="rows").expand(instance_id=first.output)
    assert rows.placement().start == ("the task is mapped over the result of another task",)
    assert rows.start_from_trigger is False


def test_a_kill_ends_no_instance(hub: FakeHub, airflow: Airflow) -> None:
    hub.put("i", Status.RUNNING)

    async def scenario() -> None:
        trigger = of_sensor(airflow)
        running = asyncio.ensure_future(event_of(trigger))
        await asyncio.sleep(2)
        airflow.state = "failed"
        running.cancel()
        await trigger.on_kill()
        await asyncio.sleep(60)

    play(scenario)
    assert hub.terminated == []


# failure, the same as on the worker's way

LIMIT = timedelta(seconds=20)


def fails(hub: FakeHub) -> Any:
    return lambda: hub.fail("i", "41 rows rejected", final=True)


def completes(hub: FakeHub) -> Any:
    return lambda: hub.end("i", 1)


@pytest.mark.parametrize(
    ("happens", "arguments", "event_type", "text"),
    [
        (fails, {}, TaskFailedEvent, "instance i failed: ValueError: 41 rows rejected"),
        (completes, {"event_name": "go"}, TaskFailedEvent, "completed before it reached what this sensor waits for"),
        (fails, {"soft_fail": True}, TaskSkippedEvent, "Skipping, because soft_fail is set: instance i failed"),
        (fails, {"never_fail": True}, TaskSkippedEvent, "Skipping, because never_fail is set"),
        (fails, {"complete_on": "worker"}, TriggerEvent, ""),
        (None, {"timeout": 20}, TriggerEvent, ""),
        (None, {"timeout": 20, "retries": 0}, TaskFailedEvent, "time limit is over, and there is no such instance"),
        (None, {"timeout": 20, "soft_fail": True}, TaskSkippedEvent, "Skipping, because soft_fail is set"),
        (None, {"execution_timeout": LIMIT}, TaskFailedEvent, "time limit is over"),
        (None, {"execution_timeout": LIMIT, "timeout": 20}, TriggerEvent, ""),
    ],
    ids=[
        "an end is retried", "another end", "soft_fail", "never_fail", "ended by a worker", "timeout forbids retries",
        "timeout without retries", "timeout with soft_fail", "execution_timeout is retried", "both at once",
    ],
)  # fmt: skip
def test_a_failure_ends_in_the_triggerer_unless_airflow_would_retry_it_against_its_will(
    hub: FakeHub, airflow: Airflow, happens: Any, arguments: dict[str, Any], event_type: type, text: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    event = seen(hub, airflow, happens(hub) if happens else None, **arguments)
    assert type(event) is event_type
    assert text in capsys.readouterr().out
    if event_type is TriggerEvent:
        assert event.payload["reason"] == ("reached" if happens else "timeout")


def test_a_worker_ends_the_task_without_a_pause(hub: FakeHub, airflow: Airflow) -> None:
    async def scenario() -> None:
        after(3, fails(hub))
        assert type(await event_of(of_sensor(airflow, complete_on="worker"))) is TriggerEvent
        assert asyncio.get_running_loop().time() < 8, "no process of a worker can be left behind"

    play(scenario)


@pytest.mark.parametrize(
    ("arguments", "seconds"),
    [
        ({"timeout": 90}, 90),
        ({"timeout": 90, "execution_timeout": timedelta(seconds=100)}, 90),
        ({"timeout": 90, "execution_timeout": timedelta(days=1)}, 90),
        ({"timeout": 90, "execution_timeout": timedelta(seconds=40)}, 40),
        ({"timeout": 9e11, "execution_timeout": timedelta(seconds=40)}, 40),
    ],
)
def test_the_wait_ends_at_the_shorter_of_its_limits(
    hub: FakeHub, airflow: Airflow, arguments: dict[str, Any], seconds: float
) -> None:
    async def scenario() -> None:
        trigger = of_sensor(airflow, retries=0, **arguments)
        begin = asyncio.get_running_loop().time()
        await event_of(trigger)
        assert seconds <= asyncio.get_running_loop().time() - begin < seconds + 1

    play(scenario)


def test_airflow_is_not_asked_for_a_time_after_the_year_9999() -> None:
    assert made(timeout=9e11).start_trigger_args.timeout == LONGEST + BACKSTOP


def test_a_wait_for_another_instance_is_not_ended(hub: FakeHub, airflow: Airflow) -> None:
    """Airflow on SQLite gives the id of a deleted trigger to a new trigger."""

    def end() -> None:
        airflow.xcoms["instance_id"] = "of another try"
        hub.fail("i", "no")

    assert type(seen(hub, airflow, end)) is TriggerEvent


def test_what_the_hub_cannot_say_at_the_end_a_worker_says(hub: FakeHub, airflow: Airflow) -> None:
    def down() -> None:
        hub.down = StorageError("busy")

    assert type(seen(hub, airflow, down, timeout=20, retries=0)) is TriggerEvent


# what a worker starts


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"try_number": 2}, "this is try 2, and only a worker makes Airflow forget"),
        ({"instance_id": "{{ params.nothing }}"}, "the triggerer cannot render the templates: "),
        ({"instance_id": "{{ params.empty }}"}, "instance_id is '' after rendering: give the id of an instance"),
        ({"statuses": ["{{ params.seconds }}"]}, "statuses ['60'] do not exist: choose from "),
    ],
)
def test_a_worker_starts_what_the_trigger_cannot(
    hub: FakeHub, airflow: Airflow, arguments: dict[str, Any], why: str
) -> None:
    event = seen(hub, airflow, timeout=20, **arguments)
    assert (type(event), event.payload["reason"]) == (TriggerEvent, "start")
    assert why in event.payload["message"]
    assert airflow.xcoms == {}


def test_it_waits_for_the_instance_that_another_task_names(hub: FakeHub, airflow: Airflow) -> None:
    airflow.rows["first"] = {"return_value": "i"}

    async def scenario() -> None:
        after(3, lambda: hub.end("i", 1))
        named = airflow.trigger(of_first=lambda first: {"instance_id": first.output}, kind=TaskHubSensor, timeout=20)
        assert type(await event_of(named)) is TaskSuccessEvent

    play(scenario)


STARTS = {"reason": "start", "instance_id": None, "owner": "", "status": None, "message": "why"}


def test_a_worker_continues_where_the_trigger_stopped(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.execution_time.xcom import XCom

    forgotten: list[dict[str, Any]] = []
    monkeypatch.setattr(XCom, "delete", lambda **place: forgotten.append(place))
    task, ti = Task(TaskHubSensor(task_id="wait", instance_id="i", timeout=90)), Ti()
    with pytest.raises(TaskDeferred):
        task.operator.execute_started(task.context(ti), STARTS)
    assert forgotten == []
    with pytest.raises(TaskDeferred):
        task.operator.execute_started(task.context(ti.next_try()), STARTS)
    assert [(place["key"], place["task_id"], place["map_index"]) for place in forgotten] == [
        ("return_value", ti.task_id, -1)
    ]
    hub.end("i", 7)
    reached = {"reason": "reached", "instance_id": "i", "owner": None, "status": "Completed", "message": ""}
    assert task.operator.execute_started(task.context(ti), reached) == 7
    late = reached | {"reason": "timeout", "message": "the time limit is over"}
    with pytest.raises(AirflowSensorTimeout, match="the time limit is over; it is Completed"):
        task.operator.execute_started(task.context(ti), late)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"timeout": 90}, AirflowSensorTimeout),
        ({"timeout": 90, "execution_timeout": timedelta(seconds=40)}, AirflowTaskTimeout),
        ({"timeout": 90, "execution_timeout": timedelta(seconds=40), "soft_fail": True}, AirflowSkipException),
    ],
)
def test_airflows_own_time_limit_fails_the_sensor_as_its_own_does(
    hub: FakeHub, arguments: dict[str, Any], error: type[BaseException]
) -> None:
    task = Task(TaskHubSensor(task_id="wait", instance_id="i", **arguments))
    with pytest.raises(error):
        task.operator.resume_execution("__fail__", {"error": "Trigger timeout"}, task.context(Ti()))
    late = {"reason": "timeout", "instance_id": "i", "owner": None, "status": None, "message": "the time limit is over"}
    with pytest.raises(error):
        task.operator.resume_execution("execute_started", {"event": late}, task.context(Ti()))
