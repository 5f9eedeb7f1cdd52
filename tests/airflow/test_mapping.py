"""Mapped tasks whose rows the triggerer starts: the decision, the arguments of a row, and a row from start to end."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, task, task_group
from airflow.sdk.definitions._internal.expandinput import DictOfListsExpandInput
from airflow.serialization.serialized_objects import DagSerialization
from airflow.triggers.base import TaskSuccessEvent

from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.operators.taskhub import TaskHubOperator
from airflow_provider_taskhub.triggers.mapped_row import row_of
from airflow_provider_taskhub.triggers.mapping import TaskHubMappedOperator, row_placement
from airflow_provider_taskhub.triggers.placement import Placement
from tests.airflow.conftest import Task, Ti
from tests.airflow.fake import FakeHub
from tests.airflow.test_placement import NOWHERE, Executes
from tests.airflow.test_start_trigger import Airflow, after, airflow, event_of, play

__all__ = ["airflow"]  # a fixture


def mapped(*, kind: type[TaskHubOperator] = TaskHubOperator, expand: Any = None, **arguments: Any) -> Any:
    with DAG("d", schedule=None):
        partial = kind.partial(**({"task_id": "t", "orchestrator": "o"} | arguments))
        given = {"input": [1, 2]} if expand is None else expand
        return partial.expand_kwargs(given, strict=False) if isinstance(given, list) else partial.expand(**given)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"expand": {"input": [{"a": 1}, "{{ ds }}", [None, 2.5]], "version": ["1", "2"]}},
        {"expand": {"input": {"a": 1, "b": 2}}},
        {"expand": [{"input": 1, "instance_id": "x"}, {"tags": {"a": "b"}}]},
        {"expand": {"start_at": [datetime(2027, 1, 1, tzinfo=UTC), "{{ data_interval_end }}"]}},
        {"tags": {"run": "{{ run_id }}"}, "retries": 3, "wait_for_completion": False},
    ],
)
def test_the_triggerer_starts_and_ends_rows_whose_values_are_in_the_dag_file(arguments: dict[str, Any]) -> None:
    one = mapped(**arguments)
    assert one.placement() == NOWHERE
    assert (one.start_from_trigger, type(one)) == (True, TaskHubMappedOperator)
    stored = DagSerialization.from_dict(DagSerialization.to_dict(one.dag)).get_task("t")
    assert stored.start_from_trigger is True
    assert stored.start_trigger_args.next_method == "execute_started"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"expand": {"input": []}}, "the task is mapped over nothing"),
        ({"expand": {"on_retry": ["attach"]}}, "argument 'on_retry' is mapped, and only a worker can apply it"),
        ({"expand": [{"input": 1}, {"retries": 2}]}, "argument 'retries' is mapped, and only a worker can apply it"),
        ({"expand": {"input": [1, datetime(2027, 1, 1, tzinfo=UTC)]}}, "argument 'input' has a value of type datetime"),
        ({"expand": {"input": [1, "{{ var.x }}"]}}, "the triggerer cannot render the template '{{ var.x }}': it does"),
        ({"start_on": "worker"}, "start_on='worker'"),
        ({"deferrable": False}, "deferrable is False"),
        ({"pool": "small"}, "pool 'small'"),
        ({"kind": Executes}, "Executes overrides execute()"),
    ],
)
def test_what_needs_a_worker_is_named_for_all_rows(arguments: dict[str, Any], reason: str) -> None:
    one = mapped(**arguments)
    (found,) = one.placement().start
    assert reason in found
    assert (one.start_from_trigger, one.start_trigger_args) == (False, None)
    stored = DagSerialization.from_dict(DagSerialization.to_dict(one.dag)).get_task("t")
    assert stored.start_from_trigger is False


def test_a_secret_in_one_row_is_left_to_the_worker_that_refuses_it() -> None:
    from airflow.sdk.log import mask_secret

    mask_secret("hunter3-hunter3")
    one = mapped(expand={"input": [1, {"password": "hunter3-hunter3"}]})
    assert one.placement().start == ("the arguments contain a value that Airflow masks as a secret",)


def test_what_ends_in_a_worker_is_known_of_the_whole_dag() -> None:
    with DAG("d", schedule=None):
        rows = TaskHubOperator.partial(task_id="t", orchestrator="o").expand(input=[1, 2])
        assert rows.placement() == NOWHERE

        @task
        def each(value: int) -> None: ...

        each.expand(value=rows.output)
    assert rows.placement() == Placement(start=(), success=("another task is mapped over the output",), failure=())
    assert rows.start_trigger_args.trigger_kwargs["end_from_trigger"] is False


def test_rows_over_results_of_other_tasks_start_in_a_worker() -> None:
    with DAG("d", schedule=None):
        first = TaskHubOperator(task_id="first", orchestrator="o")
        second = TaskHubOperator.partial(task_id="second", orchestrator="o").expand(input=first.output)
        third = TaskHubOperator.partial(task_id="third", orchestrator="o").expand_kwargs(first.output)
    for one in (second, third):
        assert one.placement().start == ("the task is mapped over the result of another task",)


@pytest.mark.parametrize(
    "given",
    [
        {"input": [1, 2, 3]},
        {"input": [1, 2, 3], "version": ["a", "b"], "tags": [{"x": "y"}]},
        {"input": {"p": 1, "q": 2}, "version": ["a", "b"]},
    ],
)
def test_a_row_has_the_values_that_airflow_gives_it_in_a_worker(given: dict[str, Any]) -> None:
    one = DictOfListsExpandInput(given)
    count = 1
    for values in given.values():
        count *= len(values)
    for index in range(count):
        expected, _ = one.resolve({"ti": SimpleNamespace(map_index=index)})
        expected = {name: [*value] if isinstance(value, tuple) else value for name, value in expected.items()}
        assert row_of(one, index) == expected


def test_a_value_that_is_not_in_the_dag_is_refused() -> None:
    with pytest.raises(InputError, match="mapped over the result of another task"):
        row_of(SimpleNamespace(value={"input": object()}), 0)


@pytest.mark.parametrize(
    ("expand", "index", "started"),
    [
        ({"input": [1, {"day": "{{ params.seconds }}"}]}, 1, ({"day": "60"}, "3")),
        ({"input": [1], "version": ["1", "{{ dag_run.conf.k }}"]}, 1, (1, "v")),
        ([{"input": 7, "version": "5"}, {"input": 8}], 0, (7, "5")),
        ([{"input": 7, "version": "5"}, {"input": 8}], 1, (8, "3")),
    ],
)
def test_the_trigger_starts_its_row_and_ends_it(
    hub: FakeHub, airflow: Airflow, expand: Any, index: int, started: tuple[Any, str]
) -> None:
    instance_id = f"d:t[{index}]:r:g1"

    async def scenario() -> None:
        more = {} if isinstance(expand, dict) and "version" in expand else {"version": "3"}
        trigger = airflow.trigger(expand=expand, index=index, **more)
        after(5, lambda: hub.end(instance_id, 49))
        assert type(await event_of(trigger)) is TaskSuccessEvent

    play(scenario)
    from airflow_provider_taskhub.codec import loads

    state = hub.instances[instance_id]
    assert (loads(state.input or "null"), state.version) == started
    assert airflow.rows[f"t[{index}]"]["return_value"] == 49


def test_a_row_that_a_worker_starts_has_the_reason_in_its_log(
    make_task: Callable[..., Task], hub: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    with DAG("d", schedule=None):
        rows = TaskHubOperator.partial(task_id="t", orchestrator="o").expand(on_retry=["attach", "restart"])
    row = rows.unmap({"on_retry": "attach"})
    assert row_placement(row).start == ("argument 'on_retry' is mapped, and only a worker can apply it",)
    row._log_why_a_worker_starts(Ti(dag_id="d", task_id="t", run_id="r", map_index=0))
    assert "a worker starts this task: argument 'on_retry' is mapped" in capsys.readouterr().out
    row._trigger_said = "the hub does not answer"
    row._log_why_a_worker_starts(Ti(dag_id="d", task_id="t", run_id="r", map_index=0))
    assert "a worker starts this task: the hub does not answer" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [({"start_on": "worker"}, "start_on='worker'"), ({"pool": "p"}, "pool 'p': Airflow counts only"), ({}, None)],
)
def test_a_task_of_a_mapped_group_has_its_own_reason_in_its_log(
    arguments: dict[str, Any], why: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with DAG("d", schedule=None) as dag:

        @task_group
        def each(day: str) -> None:
            TaskHubOperator(task_id="t", orchestrator="o", **arguments)

        each.expand(day=["a", "b"])
    dag.get_task("each.t")._log_why_a_worker_starts(Ti(dag_id="d", task_id="each.t", run_id="r", map_index=0))
    said = capsys.readouterr().out
    assert f"a worker starts this task: {why}" in said if why else said == ""


def test_airflow_warns_of_a_partial_that_is_never_expanded() -> None:
    with DAG("d", schedule=None), pytest.warns(UserWarning, match="'t' was never mapped"):
        TaskHubOperator.partial(task_id="t", orchestrator="o")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"max_active_instances": 0}, "max_active_instances is 0: give a whole number"),
        ({"limit_name": "w"}, "limit_name is 'w', but max_active_instances is not given"),
        ({"on_retry": "foo"}, "on_retry is 'foo': choose from"),
        ({"orchestrator": ""}, "orchestrator is ''"),
        ({"expand": {"max_active_instances": [1, 0]}}, "max_active_instances is 0: give a whole number"),
        ({"expand": {"input": [*range(50)], "version": ["1", 7]}}, "version is 7: give a text"),
        ({"expand": [{"input": 1}, {"on_clear": "x"}]}, "on_clear is 'x': choose from"),
    ],
)
def test_wrong_arguments_of_a_mapped_task_are_an_error_of_the_dag_file(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        mapped(**arguments)


def test_a_mapped_task_over_another_one_is_checked_as_far_as_its_arguments_are_known() -> None:
    with DAG("d", schedule=None):
        first = TaskHubOperator(task_id="first", orchestrator="o")
        TaskHubOperator.partial(task_id="a", limit_name="w").expand(
            max_active_instances=first.output, orchestrator=["o"]
        )
        TaskHubOperator.partial(task_id="b").expand(orchestrator=first.output, input=[1, first.output])
        TaskHubOperator.partial(task_id="c", limit_name="w").expand_kwargs(first.output)
        TaskHubOperator.partial(task_id="d", orchestrator="o").expand(max_active_instances=[2, first.output])
        with pytest.raises(InputError, match="on_retry is 'foo'"):
            TaskHubOperator.partial(task_id="e", on_retry="foo").expand(activity=first.output)
