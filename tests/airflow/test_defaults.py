"""The section ``[taskhub]`` of Airflow's configuration: defaults of parameters, and what counts more."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.operators.control import TaskHubSuspendOperator
from airflow_provider_taskhub.operators.short_wait import short_wait
from airflow_provider_taskhub.operators.taskhub import TaskHubOperator
from airflow_provider_taskhub.provider_info import get_provider_info
from airflow_provider_taskhub.sensors.taskhub import TaskHubSensor

OPTIONS = get_provider_info()["config"]["taskhub"]["options"]


def operator(**arguments: Any) -> TaskHubOperator:
    with DAG("d", schedule=None):
        return TaskHubOperator(**({"task_id": "t", "orchestrator": "o"} | arguments))


def set_options(monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
    for name, value in options.items():
        monkeypatch.setenv(f"AIRFLOW__TASKHUB__{name.upper()}", value)


SET = {
    "on_retry": "attach",
    "on_clear": "restart",
    "start_on": "worker",
    "complete_on": "trigger",
    "no_worker_timeout": "120",
    "poll_interval": "7.5",
    "short_wait": "0",
}
EXPECTED = {**SET, "no_worker_timeout": 120.0, "poll_interval": 7.5, "short_wait": 0.0}


def test_each_default_is_an_option_of_the_section(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SET.keys() < OPTIONS.keys()
    set_options(monkeypatch, **SET)
    one = operator()
    assert {name: getattr(one, name) for name in SET} == EXPECTED
    sensor = TaskHubSensor(task_id="s", instance_id="i")
    suspend = TaskHubSuspendOperator(task_id="c", instance_id="i")
    assert (sensor.poll_interval, suspend.poll_interval) == (7.5, 7.5)


def test_without_options_the_defaults_are_those_of_the_documentation() -> None:
    one = operator()
    assert (one.on_retry, one.start_on, one.complete_on) == ("rewind", "auto", "auto")
    assert (one.no_worker_timeout, one.poll_interval, one.short_wait) == (None, None, None)
    for name in ("on_retry", "on_clear", "start_on", "complete_on"):
        assert OPTIONS[name]["default"] == getattr(one, name)


def test_a_parameter_of_the_task_counts_more(monkeypatch: pytest.MonkeyPatch) -> None:
    set_options(monkeypatch, **SET)
    given: dict[str, Any] = {
        "on_retry": "restart",
        "on_clear": "rewind",
        "start_on": "auto",
        "complete_on": "worker",
        "no_worker_timeout": timedelta(minutes=1),
        "poll_interval": 2,
        "short_wait": timedelta(seconds=3),
    }
    one = operator(**given)
    assert {name: getattr(one, name) for name in given} == given


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("on_retry", "again", "option .taskhub. on_retry is 'again': choose from rewind, restart, attach"),
        ("on_clear", "attach", "option .taskhub. on_clear is 'attach': choose from rewind, restart"),
        ("start_on", "Worker", "option .taskhub. start_on is 'Worker': choose from auto, trigger, worker"),
        ("complete_on", "moon", "option .taskhub. complete_on is 'moon'"),
        ("no_worker_timeout", "10 minutes", "no_worker_timeout is '10 minutes': give seconds, at least 0, or nothing"),
        ("poll_interval", "0", "poll_interval is '0': give seconds, at least 0.1, or nothing"),
        ("short_wait", "inf", "short_wait is 'inf': give seconds"),
        ("short_wait", "-1", "short_wait is '-1': give seconds"),
    ],
)
def test_a_wrong_option_is_named_when_airflow_parses_the_dag(
    monkeypatch: pytest.MonkeyPatch, option: str, value: str, says: str
) -> None:
    set_options(monkeypatch, **{option: value})
    with pytest.raises(InputError, match=says):
        operator()


def test_a_wrong_short_wait_is_refused_at_parse() -> None:
    with pytest.raises(InputError, match="TaskHubOperator 't': short_wait is -1: give a timedelta, or seconds"):
        operator(short_wait=-1)


def test_the_short_wait_is_as_long_as_the_task_says_but_ends_before_the_deadline() -> None:
    left = [None, timedelta(seconds=60), timedelta(seconds=4)]
    assert [short_wait(one, timedelta(seconds=5)).total_seconds() for one in left] == [5, 5, 3.5]
    assert short_wait(None, timedelta(0)) == timedelta(0)
