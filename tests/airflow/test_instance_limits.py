"""The limit with which a task starts its instance: the parameter ``max_active_instances``, or the DAG's own number."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.utils.types import DagRunType

from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.instance_limit import InstanceLimit, priority_of
from airflow_provider_taskhub.operators.taskhub import TaskHubOperator
from airflow_provider_taskhub.triggers import instance_limits
from airflow_provider_taskhub.triggers.start import TaskHubStartTrigger
from tests.airflow.conftest import Ti
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
def test_which_limit_a_task_has(dag: dict[str, Any], arguments: dict[str, Any], limit: tuple[Any, ...] | None) -> None:
    operator = made(dag, **arguments)
    expected = None if limit is None else InstanceLimit(name=limit[0], instances=limit[1])
    assert operator.instance_limit == expected
    given = operator.start_trigger_args.trigger_kwargs["limit"]
    assert given == (None if limit is None else [*limit]), "the triggerer starts the task with the same limit"
    assert instance_limits.restored(given) == expected


def test_two_tasks_of_a_dag_with_one_limit_give_the_same_number() -> None:
    shared: dict[str, Any] = {"orchestrator": "o", "max_active_instances": 2, "limit_name": "warehouse"}
    with DAG("flights", schedule=None):
        TaskHubOperator(task_id="load", **shared)
        TaskHubOperator(task_id="clean", **shared)
        TaskHubOperator(task_id="own", orchestrator="o", max_active_instances=5)
        TaskHubOperator(task_id="another_hub", **shared | {"max_active_instances": 3, "taskhub_conn_id": "other"})
        with pytest.raises(InputError) as refused:
            TaskHubOperator(task_id="late", **shared | {"max_active_instances": 3})
    said = "max_active_instances is 3 for the limit 'warehouse', and 2 at the task 'load' of the same DAG: give both"
    assert said in str(refused.value)
    three = shared | {"max_active_instances": 3}
    with DAG("mapped", schedule=None):
        TaskHubOperator.partial(task_id="rows", **shared).expand(input=[1, 2])
        with pytest.raises(InputError, match=r"'late'.*at the task 'rows'"):
            TaskHubOperator(task_id="late", **three)
    with DAG("mapped_too", schedule=None):
        TaskHubOperator(task_id="one", **shared)
        with pytest.raises(InputError, match=r"'late'.*at the task 'one'"):
            TaskHubOperator.partial(task_id="late", **three).expand(input=[1, 2])
    with DAG("rows", schedule=None):
        numbers = TaskHubOperator.partial(task_id="rows", orchestrator="o", limit_name="warehouse")
        numbers.expand(max_active_instances=[2, 3])


@pytest.mark.parametrize("name", ["{{ ds }}", "{% if x %}a{% endif %}"])
def test_a_template_is_no_name_of_a_limit(name: str) -> None:
    with pytest.raises(InputError, match="which Airflow does not render: give the name itself"):
        made(max_active_instances=2, limit_name=name)


@pytest.mark.parametrize(("weight", "priority"), [(1, 0), (5, 4), (-1, -2), (10**9, 100_000), (-(10**9), -100_000)])
def test_the_weight_of_a_task_is_its_priority(weight: int, priority: int) -> None:
    operator = made({}, priority_weight=weight)
    assert operator.instance_priority == priority
    assert operator.start_trigger_args.trigger_kwargs["priority"] == priority


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


@pytest.mark.parametrize(
    ("run_id", "run_type", "priority"),
    [
        ("scheduled__2026-11-29T00:00:00+00:00", None, 2),
        ("scheduled__2026-11-29T00:00:00+00:00", "scheduled", 2),
        ("backfill__2026-11-29T00:00:00+00:00", None, -998),
        ("backfill__2026-11-29T00:00:00+00:00", "backfill", -998),
        ("scheduled__2026-11-29T00:00:00+00:00", "backfill", -998),  # a backfill that processes an earlier run again
        ("mine", "backfill", -998),
    ],
)
def test_a_run_of_a_backfill_comes_after_the_others(run_id: str, run_type: str | None, priority: int) -> None:
    dag_run = None if run_type is None else SimpleNamespace(run_type=DagRunType(run_type))
    assert instance_limits.of_run(2, InstanceLimit(name="nightly", instances=2), run_id, dag_run) == priority
    without = min(0, priority)  # a priority above 0 orders only those that wait for a limit
    assert instance_limits.of_run(2, None, run_id, dag_run) == without


@pytest.mark.parametrize("arguments", [{}, {"max_active_instances": 2, "limit_name": "nightly"}])
def test_a_task_of_a_backfill_is_started_with_the_lower_priority(
    make_task: Any, hub: FakeHub, arguments: dict[str, Any]
) -> None:
    run_id = DagRunType.BACKFILL_JOB.generate_run_id(suffix="2013-12-01")
    make_task(**arguments).start(Ti(run_id=run_id))
    (state,) = hub.instances.values()
    assert priority_of(state.tags) == -1000
