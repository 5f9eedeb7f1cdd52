"""``@task.activity``: what a call makes, and what is refused while Airflow parses the DAG."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, task
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.decorators.activity import activity_task
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.operators.taskhub import TaskHubOperator

EXAMPLES = Path(__file__).parents[2] / "dags_examples"
app = App("flights", version="3")


@dataclass(frozen=True)
class Month:
    year: int
    month: int


@app.spark_activity(standalone=True)
def monthly_delays(spark: Any, month: Month) -> int:
    return 7


@app.spark_activity
def inner(spark: Any) -> None: ...


@app.activity(standalone=True)
def plain(year: int) -> None: ...


def of_no_app(spark: Any) -> None: ...


@pytest.fixture(autouse=True)
def dag() -> Iterator[DAG]:
    with DAG("d", schedule=None) as made:
        yield made


def delays(year: int, month: int) -> int: ...


@pytest.mark.parametrize("more", [{}, {"app": app}, {"app": app, "activity": "monthly_delays"}])
def test_a_call_makes_an_operator_that_starts_the_activity(dag: DAG, more: dict[str, Any]) -> None:
    @task.activity(retries=2, **({"activity": monthly_delays} | more))
    def delays(year: int, month: int) -> int: ...

    one = delays(2013, month=12).operator
    assert isinstance(one, TaskHubOperator)
    assert (one.orchestrator, one.input, one.retries) == ("monthly_delays", {"year": 2013, "month": 12}, 2)
    assert (one.task_id, one.operator_name) == ("delays", "@task.activity")
    assert DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag)).get_task("delays")


def test_without_a_name_it_is_the_stubs() -> None:
    @task.activity
    def monthly_delays(month: str) -> int: ...

    assert monthly_delays("{{ ds }}").operator.orchestrator == "monthly_delays"


@pytest.mark.parametrize("activity", ["monthly_delays", monthly_delays, plain])
def test_the_operator_runs_one_activity(dag: DAG, activity: Any) -> None:
    name = activity if isinstance(activity, str) else activity.__name__
    one = TaskHubOperator(task_id="one", activity=activity, input={"year": 2013})
    rows = TaskHubOperator.partial(task_id="rows", activity=activity).expand(input=[1, 2, 3])
    assert one.orchestrator == one.start_trigger_args.trigger_kwargs["orchestrator"] == name
    assert rows.start_trigger_args.trigger_kwargs["orchestrator"] == name
    assert rows.unmap({"input": 2}).orchestrator == name


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "got nothing: give orchestrator, or activity for a task that runs one activity"),
        ({"orchestrator": "o", "activity": "a"}, "got orchestrator='o' and activity='a': give orchestrator, or act"),
        ({"activity": ""}, "activity is '': give the name that an App declares"),
        ({"activity": 7}, "activity is 7: give the name that an App declares"),
        ({"activity": inner}, "activity 'inner' cannot be started by itself: declare it with standalone=True"),
        ({"activity": of_no_app}, "activity is of_no_app, which no App has declared: decorate it"),
    ],
)
def test_the_operator_refuses_what_is_no_activity(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=f"TaskHubOperator 'one': {says}"):
        TaskHubOperator(task_id="one", **given)


def test_rows_are_mapped(dag: DAG) -> None:
    delays_of = activity_task(delays, app=app, activity="monthly_delays")
    mapped = delays_of.partial(year=2013).expand(month=[1, 2]).operator
    assert mapped.operator_name == "@task.activity"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: activity_task(delays, activity=monthly_delays)("2013 or so", 1), "argument 'year' .*not an int"),
        (lambda: activity_task(delays, app=app), "activity is 'delays', which App.'flights'.* declares monthly"),
        (lambda: activity_task(delays, app=app, activity=inner), "'inner' cannot be started .*standalone=True"),
        (lambda: activity_task(delays, activity=of_no_app), "of_no_app, which no App has declared"),
        (lambda: activity_task(delays, activity=inner), "'inner' cannot be started .*standalone=True"),
        (lambda: activity_task(delays, app="flights"), "app is 'flights': give the App object"),
        (lambda: activity_task("monthly_delays"), "write activity='monthly_delays'"),
        (lambda: activity_task(delays, orchestrator="o"), "orchestrator is 'o': use @task.orchestration"),
        (lambda: activity_task(delays, input=7), "input is 7: give it as arguments"),
        (lambda: activity_task(lambda year: year + 1), "worker of the hub runs the activity"),
        (lambda: activity_task(7), "activity=…"),
    ],
)
def test_mistakes_are_refused_at_parse(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(InputError, match=says) as raised:
        make()
    assert "@task.activity" in str(raised.value)


def test_the_example_makes_the_input_that_its_activity_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delitem(sys.modules, "spark_rows_app", raising=False)
    made = runpy.run_path(str(EXAMPLES / "spark_rows.py"))["dag"]
    from airflow_provider_taskhub.app import load_app

    known = load_app("spark_rows_app:app")
    rows = made.get_task("primes")
    assert rows.partial_kwargs["orchestrator"] in known.orchestrators
    assert known.activities["count_primes"].spark
