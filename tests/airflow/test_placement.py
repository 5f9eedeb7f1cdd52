"""Where a task starts and ends, and every reason why it needs an Airflow worker."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
from airflow.listeners import hookimpl
from airflow.sdk import DAG, Asset, task_group
from airflow.sdk._shared.listeners.spec import lifecycle, taskinstance
from airflow.sdk.listener import ListenerManager
from jinja2 import ChainableUndefined

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.decorators.orchestration import orchestration_task
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.operators.taskhub import TaskHubOperator
from airflow_provider_taskhub.triggers.placement import LARGEST_ARGUMENTS, Placement

EXAMPLE = Path(__file__).parents[2] / "dags_examples" / "zero_slot.py"
NOWHERE = Placement(start=(), success=(), failure=())
NO_TRIGGERER = ("deferrable is False: the task uses no triggerer",)


def made(dag: dict[str, Any] | None = None, *, kind: type[TaskHubOperator] = TaskHubOperator, **arguments: Any) -> Any:
    with DAG("d", schedule=None, **(dag or {})):
        return kind(**({"task_id": "t", "orchestrator": "o"} | arguments))


@App("texts").orchestrator
async def of_a_text(ctx: OrchestrationContext, day: str) -> None: ...


def stubbed() -> Any:
    """A task of ``@task.orchestration``: it fails before the start if a rendered argument has a wrong type."""
    with DAG("d", schedule=None) as dag:

        @orchestration_task
        def month(year: Annotated[int, "after Christ"]) -> None: ...

        month("{{ params.year }}")
    return dag.get_task("month")


def texts(operator: Any) -> dict[str, tuple[str, ...]]:
    placement = operator.placement()
    return {name: getattr(placement, name) for name in ("start", "success", "failure") if getattr(placement, name)}


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"input": {"a": [1, 2.5, None, True], "b": "{{ run_id }} of {{ds}}"}},
        {"input": "{{ params.a['b'][0] }}{{ dag_run.conf[\"c\"].d }}", "tags": {"x": "{{ ts_nodash }}"}},
        {"instance_id": "x-{{ dag_run.run_id }}", "no_worker_timeout": 5, "retries": 3, "do_xcom_push": False},
        {"input": "costs 5 {dollars} % or #1"},
        {"wait_for_completion": False, "poll_interval": 5, "on_retry": "attach", "deferrable": True},
        {"start_at": datetime(2027, 1, 1, tzinfo=UTC)},
        {"start_at": "{{ data_interval_end }}"},
        {"terminate_grace": timedelta(minutes=5)},
        {"dag": {"max_active_tasks": 3}},
        {"max_active_instances": 2, "limit_name": "warehouse"},
        {"start_at": "{{ dag_run.run_after + macros.timedelta(hours=1) }}"},
        {"input": ["{{ params.x | upper }}", "{{ macros.ds_add(ds, -1) }}", "{{ logical_date.strftime('%Y') }}"]},
        {"input": "{% for x in range(3) if x is odd %}{{ x }}{{ loop.last }}{{ params.a[x] }}{% endfor %}{# gone #}"},
        {"input": "{% set day = ds %}{{ day }} {{ dag.dag_id }} {{ task['task_id'] }} {{ ti.run_id }} {{ params }}"},
    ],
)
def test_nothing_needs_a_worker(arguments: dict[str, Any]) -> None:
    operator = made(**arguments)
    assert operator.placement() == NOWHERE
    assert operator.start_from_trigger is True
    kwargs = operator.start_trigger_args.trigger_kwargs
    assert (kwargs["end_from_trigger"], kwargs["fail_from_trigger"]) == (True, True)
    assert kwargs["push_output"] is arguments.get("do_xcom_push", True)
    assert kwargs["wait_for_completion"] is arguments.get("wait_for_completion", True)


@pytest.mark.parametrize(
    ("start_at", "given"),
    [
        (None, None),
        (datetime(2027, 1, 1, tzinfo=UTC), "2027-01-01T00:00:00+00:00"),
        (datetime(2027, 1, 1), "2027-01-01T00:00:00"),  # without a zone, which is UTC
        ("{{ data_interval_end }}", "{{ data_interval_end }}"),
    ],
)
def test_a_trigger_gets_the_time_as_text(start_at: Any, given: str | None) -> None:
    assert made(start_at=start_at).start_trigger_args.trigger_kwargs["start_at"] == given


def test_a_parse_does_not_look_for_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow asks several times while it makes an operator, and the rest of the DAG is not known then."""
    asked: list[Any] = []

    def placed(*arguments: Any, **more: Any) -> Placement:
        asked.append(arguments)
        return NOWHERE

    monkeypatch.setattr("airflow_provider_taskhub.operators.taskhub.place", placed)
    operator = made()
    assert asked == []
    assert operator.start_from_trigger is True
    assert len(asked) == 1


def test_without_a_triggerer_by_default_a_worker_does_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "False")
    assert texts(made()) == dict.fromkeys(("start", "success", "failure"), NO_TRIGGERER)
    assert texts(made(deferrable=True)) == {}


class Executes(TaskHubOperator):
    def execute(self, context: Any) -> Any:
        return super().execute(context)


class Prepares(TaskHubOperator):
    def pre_execute(self, context: Any) -> None:
        pass


class Renders(TaskHubOperator):
    def render_template_fields(self, context: Any, jinja_env: Any = None) -> None:
        pass


class Completes(TaskHubOperator):
    def execute_complete(self, *arguments: Any, **more: Any) -> Any:
        pass


class Posts(TaskHubOperator):
    def post_execute(self, context: Any, result: Any = None) -> None:
        pass


def callback(*_: Any) -> None:
    pass


DAG_ARGUMENTS = {"user_defined_macros": {"twice": 2}, "user_defined_filters": {"shout": str.upper, "lower": str.upper}}


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (stubbed, {"start": ("only a worker can check the input against the annotation of the stub",)}),
        (lambda: made(kind=Executes), {"start": ("Executes overrides execute()",)}),
        (lambda: made(kind=Prepares), {"start": ("Prepares overrides pre_execute()",)}),
        (lambda: made(kind=Renders), {"start": ("Renders overrides render_template_fields()",)}),
        (lambda: TaskHubOperator(task_id="t", orchestrator="o"), {"start": ("the task is in no DAG",)}),
        (
            lambda: made(input={"when": [datetime(2026, 1, 1, tzinfo=UTC)]}),
            {"start": ("argument 'input' has a value of type datetime, which only a worker can resolve",)},
        ),
        (
            lambda: made(
                input={
                    "rows": {
                        "taskhub_output": {
                            "taskhub_conn_id": "c",
                            "instance_id": "i",
                            "execution_id": "e",
                            "size": 300_000,
                        }
                    }
                }
            ),
            {"start": ("argument 'input' has an output reference, which only a worker can resolve",)},
        ),
        (
            lambda: made(tags={"__t": "x"}),
            {"start": ("argument 'tags' has a dict with the key '__t', which only a worker can resolve",)},
        ),
        (
            lambda: made(input="x" * LARGEST_ARGUMENTS),
            {"start": ("the arguments are longer than 65,536 characters",)},
        ),
        *(
            (
                lambda template=template: made(DAG_ARGUMENTS, input=[template]),
                {"start": (f"the triggerer cannot render the template {template!r}: it does not have {unknown}",)},
            )
            for template, unknown in (
                ("{{ ti.xcom_pull('x') }}", "ti.xcom_pull"),
                ("{{ ds }}{{ var.value.x }}", "var.value"),
                ("{{ conn['x'].password }}", "conn.x"),
                ("{{ dag_run.state }}", "dag_run.state"),
                ("{{ dag_run }}", "dag_run"),
                ("{{ dag_run[params.x] }}", "dag_run"),
                ("{% set mine = ti %}{{ mine.hostname }}", "ti"),
                ("{{ prev_start_date_success }}", "prev_start_date_success"),
                ("{{ twice(2) }}", "twice"),
                ("{{ params.x | shout }}", "shout"),
                ("{{ params.x | lower }}", "lower"),
                ("{{ params.x is loud }}", "loud"),
                ("{% include 'sql/x.sql' %}", "the DAG's folder"),
            )
        ),
        (
            lambda: made({"render_template_as_native_obj": True}, input="{{ run_id }}"),
            {"start": ("the triggerer cannot render templates as native objects",)},
        ),
        (
            lambda: made(render_template_as_native_obj=True, input="{{ run_id }}"),
            {"start": ("the triggerer cannot render templates as native objects",)},
        ),
        (lambda: made({"render_template_as_native_obj": True}, input={"day": "plain", "n": 7}, version="3"), {}),
        *(
            (
                lambda text=text: made({"render_template_as_native_obj": True}, input={"days": [text]}),
                {"start": (f"argument 'input' has the text {text!r}, of which native rendering makes another value",)},
            )
            for text in ("20261126", "True", "[1]", "")
        ),
        (
            lambda: made({"render_template_as_native_obj": True}, orchestrator=of_a_text, input="20261126"),
            {},
        ),
        (
            lambda: made({"jinja_environment_kwargs": {"variable_start_string": "[["}}),
            {"start": ("jinja_environment_kwargs of the DAG",)},
        ),
        (lambda: made({"template_undefined": ChainableUndefined}), {"start": ("template_undefined of the DAG",)}),
        (
            lambda: made(kind=Completes),
            dict.fromkeys(("success", "failure"), ("Completes overrides execute_complete()",)),
        ),
        (
            lambda: made(deferrable=False),
            dict.fromkeys(("start", "success", "failure"), NO_TRIGGERER),
        ),
        (
            lambda: made(deferrable=False, wait_for_completion=False),
            dict.fromkeys(("start", "success", "failure"), NO_TRIGGERER),
        ),
        (lambda: made(wait_for_completion=False, outlets=[Asset("a")]), {"success": ("outlets",)}),
        (lambda: made(outlets=[Asset("a")]), {"success": ("outlets",)}),
        (lambda: made(multiple_outputs=True), {"success": ("multiple_outputs",)}),
        (lambda: made(map_index_template="{{ x }}"), {"success": ("map_index_template",)}),
        (lambda: made({"fail_fast": True}), {"failure": ("fail_fast of the DAG",)}),
    ],
)
def test_what_forces_a_worker_forces_it_against_the_users_wish(make: Callable[[], Any], found: Any) -> None:
    operator = make()
    assert texts(operator) == found
    operator.start_on = operator.complete_on = "trigger"
    assert texts(operator) == found
    assert operator.start_from_trigger is ("start" not in found)
    if "start" not in found:
        kwargs = operator.start_trigger_args.trigger_kwargs
        assert kwargs["end_from_trigger"] is ("success" not in found)
        assert kwargs["fail_from_trigger"] is ("failure" not in found)
    else:
        assert operator.start_trigger_args is None


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"on_execute_callback": callback}, {"start": ("on_execute_callback",)}),
        ({"pre_execute": callback}, {"start": ("pre_execute",)}),
        ({"pool": "p"}, {"start": ("pool 'p': Airflow counts only the tasks that a worker starts",)}),
        *(
            ({name: 3}, {"start": (f"{name}: Airflow counts only the tasks that a worker starts",)})
            for name in ("max_active_tis_per_dag", "max_active_tis_per_dagrun")
        ),
        ({"on_success_callback": callback}, {"success": ("on_success_callback",)}),
        ({"post_execute": callback}, {"success": ("post_execute",)}),
        ({"kind": Posts}, {"success": ("post_execute",)}),
        ({"on_failure_callback": callback}, {"failure": ("on_failure_callback",)}),
        ({"on_retry_callback": callback}, {"failure": ("on_retry_callback",)}),
        ({"email": "a@b.c"}, {"failure": ("email",)}),
    ],
)
@pytest.mark.filterwarnings("ignore:Setting email")
def test_the_user_may_do_without_a_side_effect(arguments: dict[str, Any], found: Any) -> None:
    assert texts(made(**arguments)) == found
    assert texts(made(**arguments, start_on="trigger", complete_on="trigger")) == {}


class OfProcesses:
    @hookimpl
    def on_starting(self, component: Any) -> None:
        pass


class OfTasks:
    @hookimpl
    def on_task_instance_success(self, previous_state: Any, task_instance: Any) -> None:
        pass


def test_listeners_and_queues_need_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TRIGGERER__QUEUES_ENABLED", "True")
    assert texts(made(queue="gpu")) == {"start": ("queue 'gpu': a trigger that starts a task has no queue",)}
    monkeypatch.setenv("AIRFLOW__TRIGGERER__QUEUES_ENABLED", "False")
    assert texts(made(queue="gpu")) == {}
    listeners = ListenerManager()
    listeners.add_hookspecs(lifecycle)
    listeners.add_hookspecs(taskinstance)
    monkeypatch.setattr("airflow.sdk.listener.get_listener_manager", lambda: listeners)
    listeners.add_listener(OfProcesses())
    assert texts(made()) == {}, "it hears of no task"
    listeners.add_listener(OfTasks())
    start, end = (f"listener OfTasks expects the {what} of each task" for what in ("start", "end"))
    assert texts(made()) == {"start": (start,), "success": (end,), "failure": (end,)}


def test_a_retry_policy_is_asked_by_a_worker() -> None:
    operator = made()
    operator.retry_policy = SimpleNamespace()
    assert texts(operator) == {"failure": ("retry_policy",)}


def test_a_secret_in_the_arguments_is_left_to_the_worker_that_refuses_it() -> None:
    from airflow.sdk.log import mask_secret

    mask_secret("hunter2-hunter2")
    reason = "the arguments contain a value that Airflow masks as a secret"
    assert texts(made(input={"password": "hunter2-hunter2"})) == {"start": (reason,)}


def test_the_result_of_one_task_is_read_by_the_trigger() -> None:
    with DAG("d", schedule=None):
        first = TaskHubOperator(task_id="first", orchestrator="o")
        given = {"input": {"a": [1, first.output["rows"]]}, "instance_id": first.output}
        second = TaskHubOperator(task_id="second", orchestrator="o", **given)
        third = TaskHubOperator.partial(task_id="third", orchestrator="o", version=first.output).expand(input=[1, 2])
    assert (texts(second), texts(third)) == ({}, {})
    kwargs = second.start_trigger_args.trigger_kwargs
    assert (kwargs["input"], kwargs["instance_id"]) == ({"a": [1, None]}, None)
    assert kwargs["outputs"] == [
        {"at": ["input", "a", 1], "task_id": "first", "key": "rows"},
        {"at": ["instance_id"], "task_id": "first", "key": "return_value"},
    ]
    assert [place["at"] for place in third.start_trigger_args.trigger_kwargs["outputs"]] == [["version"]]
    assert second.upstream_task_ids == third.upstream_task_ids == {"first"}


def test_results_of_more_than_one_task_instance_are_resolved_by_a_worker() -> None:
    with DAG("d", schedule=None):
        first = TaskHubOperator(task_id="first", orchestrator="o")
        second = TaskHubOperator.partial(task_id="second", orchestrator="o").expand(input=first.output)
        third = TaskHubOperator(task_id="third", orchestrator="o", input=second.output)
        fourth = TaskHubOperator(task_id="fourth", orchestrator="o", input=first.output.map(str))
        fifth = TaskHubOperator.partial(task_id="fifth", orchestrator="o").expand(input=["x", first.output])

        @task_group
        def months(month: Any) -> None:
            load = TaskHubOperator(task_id="load", orchestrator="o", input="x")
            TaskHubOperator(task_id="sum", orchestrator="o", input=load.output)

        months.expand(month=[1, 2])
    assert (second.start_from_trigger, second.start_trigger_args) == (False, None)
    assert texts(first) == {"success": ("another task is mapped over the output",)}
    only = "which only a worker can resolve"
    found = {one.task_id: texts(one)["start"] for one in (third, fourth, fifth, fourth.dag.get_task("months.sum"))}
    assert found == {
        "third": (f"argument 'input' has the outputs of the mapped task 'second', {only}",),
        "fourth": (f"argument 'input' has a value of type MapXComArg, {only}",),
        "fifth": ("a mapped argument has the result of another task",),
        "months.sum": (f"argument 'input' has the output of 'months.load', which is in a mapped task group, {only}",),
    }


def test_worker_is_taken_at_its_word_and_other_words_are_refused() -> None:
    assert texts(made(start_on="worker")) == {"start": ("start_on='worker'",)}
    said = ("complete_on='worker'",)
    assert texts(made(complete_on="worker")) == {"success": said, "failure": said}
    with pytest.raises(InputError, match="TaskHubOperator 't': start_on is 'moon': choose from trigger, worker, auto"):
        made(start_on="moon")
    for wrong in ("", "Trigger", "{{ params.x }}"):
        with pytest.raises(InputError, match="complete_on is"):
            made(complete_on=wrong)


def test_the_example_dag_shows_where_tasks_start_and_end() -> None:
    tasks = runpy.run_path(str(EXAMPLE))["dag"].task_dict
    assert {name: texts(task) for name, task in tasks.items()} == {
        "no_worker": {},
        "rows": {},
        "ends_in_a_worker": {"success": ("outlets",)},
        "after_it": {},
        "starts_in_a_worker": {
            "start": (
                "the triggerer cannot render the template '{{ dag_run.run_type.value }}': "
                "it does not have dag_run.run_type",
            )
        },
        "only_workers": {
            "start": ("start_on='worker'",),
            "success": ("complete_on='worker'",),
            "failure": ("complete_on='worker'",),
        },
    }
