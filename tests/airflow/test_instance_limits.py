"""The limit with which a task starts its instance: the parameter ``max_active_instances``, or the DAG's own number."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_taskhub.instance_limit import InstanceLimit
from airflow_provider_taskhub.operators.taskhub import TaskHubOperator
from airflow_provider_taskhub.triggers import instance_limits
from airflow_provider_taskhub.triggers.start import TaskHubStartTrigger
from tests.airflow.fake import FakeHub
from tests.airflow.test_start_trigger import ID, Airflow, after, airflow, event_of, play

__all__ = ["airflow"]


def made(dag: dict[str, Any] | None = None, **arguments: Any) -> TaskHubOperator:
    with DAG("flights", schedule=None, **(dag or {})):
        return TaskHubOperator(task_id="load", orchestrator="o", **arguments)


@pytest.mark.parametrize(
    ("dag", "arguments", "limit"),
    [
        ({}, {}, None),
        ({}, {"max_active_instances": 2}, ("flights:load", 2)),
        ({}, {"max_active_instances": 2, "limit_name": "warehouse"}, ("warehouse", 2)),
        ({"max_active_tasks": 3}, {}, ("DAG flights", 3)),
        ({"max_active_tasks": 16}, {}, None),
        ({"max_active_tasks": 0}, {}, None),
        ({"max_active_tasks": 20_000}, {}, None),
        ({"max_active_tasks": 3}, {"max_active_instances": 5}, ("flights:load", 5)),
        ({"default_args": {"max_active_instances": 4, "limit_name": "all"}}, {}, ("all", 4)),
    ],
)
def test_which_limit_a_task_has(dag: dict[str, Any], arguments: dict[str, Any], limit: tuple[str, int] | None) -> None:
    operator = made(dag, **arguments)
    expected = None if limit is None else InstanceLimit(name=limit[0], instances=limit[1])
    assert operator.instance_limit == expected
    given = operator.start_trigger_args.trigger_kwargs["limit"]
    assert given == (None if limit is None else [*limit]), "the triggerer starts the task with the same limit"
    assert instance_limits.restored(given) == expected


def test_all_rows_of_a_mapped_task_share_the_limit() -> None:
    with DAG("flights", schedule=None) as dag:
        TaskHubOperator.partial(task_id="months", orchestrator="o", max_active_instances=2).expand(input=[1, 2, 3])
    assert dag.get_task("months").start_trigger_args.trigger_kwargs["limit"] == ["flights:months", 2]


def test_the_trigger_starts_the_instance_with_the_limit(hub: FakeHub, airflow: Airflow) -> None:
    async def scenario() -> None:
        after(3, lambda: hub.end(ID, 1))
        trigger: TaskHubStartTrigger = airflow.trigger(max_active_instances=2, limit_name="warehouse")
        await event_of(trigger)

    play(scenario)
    assert InstanceLimit.of(hub.instances[ID].tags) == InstanceLimit(name="warehouse", instances=2)
