"""The notifier that raises an event: in a worker, in the DAG processor, and in the triggerer."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk._shared.module_loading import import_string
from airflow.sdk.log import mask_secret

from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import InputError, InstanceNotFound
from airflow_provider_taskhub.notifications.taskhub import TaskHubRaiseEventNotifier
from airflow_provider_taskhub.operators.taskhub import TaskHubOperator
from airflow_provider_taskhub.provider_info import get_provider_info
from tests.airflow.fake import FakeHub

CONTEXT: Any = {"run_id": "r", "params": {"who": "Ada"}}
GIVEN: dict[str, Any] = {
    "instance_id": "i-{{ run_id }}",
    "event_name": "{{ params.who }} failed",
    "data": {"run": "{{ run_id }}", "rows": [1, None]},
}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_event_is_raised_with_rendered_arguments(hub: FakeHub, asynchronous: bool) -> None:
    hub.put("i-r", Status.RUNNING)
    if asynchronous:

        async def deadline() -> None:
            await TaskHubRaiseEventNotifier(**GIVEN, context=dict(CONTEXT))

        asyncio.run(deadline())
    else:
        TaskHubRaiseEventNotifier(**GIVEN)(dict(CONTEXT))
    assert hub.events == [("i-r", "Ada failed", {"run": "r", "rows": [1, None]})]


@pytest.mark.parametrize("name", ["on_failure_callback", "on_success_callback", "on_skipped_callback"])
def test_airflow_takes_it_as_a_callback(name: str) -> None:
    notifier: Any = TaskHubRaiseEventNotifier(**GIVEN)
    with DAG("d", schedule=None):
        task = TaskHubOperator(task_id="t", orchestrator="o", **{name: notifier})
    assert list(getattr(task, name)) == [notifier]


def test_an_instance_that_is_not_there_is_an_error(hub: FakeHub) -> None:
    with pytest.raises(InstanceNotFound, match="i-r"):
        TaskHubRaiseEventNotifier(**GIVEN)(dict(CONTEXT))


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"instance_id": ""}, "TaskHubRaiseEventNotifier: instance_id is ''"),
        ({"event_name": None}, "event_name is None: give the name for which the orchestrator waits"),
        ({"taskhub_conn_id": " "}, "taskhub_conn_id is ' '"),
        ({"data": object()}, "TaskHubRaiseEventNotifier: data"),
    ],
)
def test_arguments_that_cannot_be_right_are_refused_at_parse(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        TaskHubRaiseEventNotifier(**(GIVEN | wrong))


def test_a_secret_is_not_sent(hub: FakeHub) -> None:
    mask_secret("tiger-scott-tiger")
    hub.put("i-r", Status.RUNNING)
    with pytest.raises(InputError, match=r"data of event 'Ada failed'\.password contains a value that") as refused:
        TaskHubRaiseEventNotifier(**(GIVEN | {"data": {"password": "tiger-scott-tiger"}}))(dict(CONTEXT))
    assert "tiger" not in str(refused.value)
    assert hub.events == []


def test_airflow_finds_it_and_the_triggers_by_the_description_of_the_provider() -> None:
    info = get_provider_info()
    assert [import_string(path) for path in info["notifications"]] == [TaskHubRaiseEventNotifier]
    (triggers,) = info["triggers"]
    found = {name for module in triggers["python-modules"] for name in importlib.import_module(module).__all__}
    assert found == {"TaskHubEventTrigger", "TaskHubTrigger"}
