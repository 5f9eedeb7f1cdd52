"""Which arguments of the operator are refused while Airflow parses the DAG, and which are left to the task."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, task

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.engine.tasks import NAME, STANDALONE
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.operators.taskhub import TaskHubOperator
from airflow_provider_taskhub.triggers import arguments
from airflow_provider_taskhub.triggers.arguments import holds_secret

EXAMPLE = Path(__file__).parents[2] / "dags_examples" / "by_function.py"

app = App("flights")


@app.orchestrator
async def plain(ctx: OrchestrationContext) -> None: ...


@app.orchestrator(name="named_otherwise")
async def renamed(ctx: OrchestrationContext) -> None: ...


async def undeclared(ctx: OrchestrationContext) -> None: ...


def operator(**given: Any) -> TaskHubOperator:
    return TaskHubOperator(**({"task_id": "t", "orchestrator": "o"} | given))


@pytest.mark.parametrize(
    ("orchestrator", "name"),
    [(plain, "plain"), (renamed, "named_otherwise"), ("by_name", "by_name"), ("{{ params.o }}", "{{ params.o }}")],
)
def test_an_orchestrator_is_a_function_or_a_name(orchestrator: Any, name: str) -> None:
    assert operator(orchestrator=orchestrator).orchestrator == name
    assert (arguments._NAME, arguments._STANDALONE) == (NAME, STANDALONE)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"orchestrator": undeclared}, "orchestrator is undeclared, which no App has declared: decorate it with @app"),
        ({"orchestrator": ""}, "orchestrator is '': give the name that an App declares"),
        ({"orchestrator": 7}, "orchestrator is 7: give the name that an App declares"),
        ({"input": object()}, "input of type object cannot be written as JSON"),
        ({"input": {"a": [object()]}}, "input of type dict cannot be written as JSON"),
        ({"taskhub_conn_id": ""}, "taskhub_conn_id is '': give the id of a connection of type 'taskhub'"),
        ({"taskhub_conn_id": None}, "taskhub_conn_id is None: give the id"),
        ({"instance_id": "x" * 300}, "is 300 characters once escaped: at most 256"),
        ({"instance_id": 5}, "instance id 5: give a text"),
        ({"version": 3}, "version is 3: give a text"),
        ({"tags": "team"}, "tags of the task are 'team': give a dict of texts by name"),
        ({"tags": {"team": 1}}, "tag 'team' of the task is 1: give a text"),
        ({"tags": {"airflow.dag_id": "{{ dag.dag_id }}"}}, "tag 'airflow.dag_id' is reserved"),
        ({"no_worker_timeout": -1}, "no_worker_timeout is -1: give a timedelta, or seconds, of 0 or more"),
        ({"no_worker_timeout": timedelta(-1)}, "no_worker_timeout is datetime.timedelta(days=-1): give a timedelta"),
        ({"no_worker_timeout": "5"}, "no_worker_timeout is '5': give a timedelta"),
        ({"no_worker_timeout": True}, "no_worker_timeout is True: give a timedelta"),
        ({"no_worker_timeout": float("nan")}, "no_worker_timeout is nan: give a timedelta"),
        ({"on_retry": "again"}, "on_retry is 'again': choose from rewind, restart, attach"),
        ({"on_clear": "attach"}, "on_clear is 'attach': choose from rewind, restart"),
        ({"on_retry": "Rewind"}, "on_retry is 'Rewind': choose from"),
        ({"on_retry": "{{ params.x }}"}, "on_retry is '{{ params.x }}': choose from"),
        ({"start_on": "moon"}, "start_on is 'moon': choose from trigger, worker, auto"),
        ({"poll_interval": 0}, "poll_interval is 0: give more than 0 seconds"),
        ({"poll_interval": "1"}, "poll_interval is '1': give a timedelta"),
        ({"wait_for_completion": "no"}, "wait_for_completion is 'no': give True or False"),
        ({"deferrable": 1}, "deferrable is 1: give True or False"),
        ({"max_active_instances": 0}, "max_active_instances is 0: give a whole number from 1 to 10,000, or None"),
        ({"max_active_instances": "2"}, "max_active_instances is '2': give a whole number"),
        ({"max_active_instances": True}, "max_active_instances is True: give a whole number"),
        ({"max_active_instances": 20_000}, "max_active_instances is 20000: give a whole number from 1 to 10,000"),
        ({"terminate_grace": 60}, "terminate_grace is 60: give a timedelta, for example timedelta(seconds=60)"),
        ({"terminate_grace": timedelta(0)}, "terminate_grace is 0:00:00: give a time above zero and of at most 6 days"),
        ({"terminate_grace": timedelta(days=7)}, "terminate_grace is 7 days, 0:00:00: give a time above zero and of"),
        ({"terminate_grace": "{{ params.x }}"}, "terminate_grace is '{{ params.x }}': give a timedelta"),
        ({"limit_name": "warehouse"}, "limit_name is 'warehouse', but max_active_instances is not given"),
        ({"max_active_instances": 2, "limit_name": " "}, "limit_name: InstanceLimit: name is ' '; give a text"),
        ({"start_at": "tomorrow"}, "start_at is 'tomorrow': give a datetime, or a text such as '2026-01-31T06:00"),
        ({"start_at": 5}, "start_at is 5: give a datetime"),
        ({"start_at": datetime(1500, 1, 1, tzinfo=UTC)}, "is out of range: give a time in the years 1601 to 9999"),
    ],
)
def test_a_wrong_argument_is_refused_at_parse(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as error:
        operator(**given)
    assert str(error.value).startswith("TaskHubOperator 't': ")
    assert says in str(error.value)


@pytest.fixture
def known() -> Iterator[Callable[[str], None]]:
    """Make a secret known to Airflow's masker."""
    from airflow.sdk._shared.secrets_masker import _secrets_masker

    yield _secrets_masker().add_mask
    _secrets_masker().reset_masker()


@pytest.mark.parametrize(
    ("secret", "given"),
    [
        ("postgres", {"db": "postgres", "postgres": ["s3://postgres-logs/postgres.cfg", "postgres_2"]}),
        ("production", "load production"),
        ("Winter", ["Winter2013", "winter"]),
        ("flight", {"table": "flights_delays", "password": "none of it", "text": "passwords for flights"}),
    ],
)
def test_a_password_that_is_an_ordinary_word_does_not_forbid_an_input(known, secret: str, given: Any) -> None:
    known(secret)
    assert not holds_secret(given)


@pytest.mark.parametrize(
    ("secret", "given", "place"),
    [
        ("postgres", {"db": {"password": "postgres"}}, "input.db.password"),
        ("postgres", {"api_key": {"old": [{"x": "postgres"}]}}, "input.api_key.old[0].x"),
        ("postgres", ["password=postgres"], "input[0]"),
        ("postgres", {"url": "postgresql://postgres:postgres@db/a"}, "input.url"),
        ("winter2013", "load winter2013", "input"),
        ("s3cret-word", {"a": ["x", "x s3cret-word y"]}, "input.a[1]"),
        ("correct horse", "correct horse", "input"),
        ("qkzjxvwpehgbt", "qkzjxvwpehgbt", "input"),
        ("hUnterPass", {"a": {"hUnterPass": 1}}, "a key of input.a"),
        ("hUnterPass", {"hUnterPass": "hUnterPass"}, "input.***"),
    ],
)
def test_a_secret_that_is_no_word_or_stands_as_a_secret_forbids_an_input_and_is_named(
    known, secret: str, given: Any, place: str
) -> None:
    known(secret)
    (problem,) = arguments.problems("o", given, None, "", {})
    assert problem.startswith(f"{place} contains a value that Airflow masks as a secret, and the hub stores inputs as")


def test_templates_and_outputs_of_tasks_are_left_to_the_task() -> None:
    with DAG("d", schedule=None):

        @task
        def numbers() -> list[int]:
            return [1]

        given = {
            "orchestrator": "{{ params.o }}",
            "input": {"n": numbers(), "day": "{{ ds }}"},
            "instance_id": "{{ run_id }}" + "x" * 300,
            "version": "{{ params.v }}",
            "tags": {"team": "{{ params.team }}"},
            "taskhub_conn_id": "{{ params.conn }}",
            "no_worker_timeout": timedelta(minutes=1),
            "start_at": "{{ data_interval_end }}",
        }
        assert operator(**given).input == given["input"]
        assert operator(task_id="u", input=numbers()).task_id == "u"


def test_a_mapped_operator_takes_the_function_too() -> None:
    with DAG("d", schedule=None):
        mapped = TaskHubOperator.partial(task_id="t", orchestrator=plain).expand(input=[1, 2])
    assert mapped.unmap({"input": 1}).orchestrator == "plain"


def test_the_example_dag_gives_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    (only,) = runpy.run_path(str(EXAMPLE))["dag"].tasks
    assert only.orchestrator == "greetings"
