"""``@task.spark_activity``: what a call makes, and what is refused while Airflow parses the DAG."""

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
from airflow_provider_taskhub.decorators.spark_activity import spark_activity_task
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
    @task.spark_activity(retries=2, **({"activity": monthly_delays} | more))
    def delays(year: int, month: int) -> int: ...

    one = delays(2013, month=12).operator
    assert isinstance(one, TaskHubOperator)
    assert (one.orchestrator, one.input, one.retries) == ("monthly_delays", {"year": 2013, "month": 12}, 2)
    assert (one.task_id, one.operator_name) == ("delays", "@task.spark_activity")
    assert DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag)).get_task("delays")


def test_without_a_name_it_is_the_stubs() -> None:
    @task.spark_activity
    def monthly_delays(month: str) -> int: ...

    assert monthly_delays("{{ ds }}").operator.orchestrator == "monthly_delays"


def test_rows_are_mapped(dag: DAG) -> None:
    delays_of = spark_activity_task(delays, app=app, activity="monthly_delays")
    mapped = delays_of.partial(year=2013).expand(month=[1, 2]).operator
    assert mapped.operator_name == "@task.spark_activity"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: spark_activity_task(delays, activity=monthly_delays)("2013 or so", 1), "argument 'year' .*not an int"),
        (lambda: spark_activity_task(delays, app=app), "activity is 'delays', which App.'flights'.* declares monthly"),
        (lambda: spark_activity_task(delays, app=app, activity=inner), "'inner' cannot be started .*standalone=True"),
        (
            lambda: spark_activity_task(delays, app=app, activity=plain),
            "@task.orchestration.orchestrator='plain'",
        ),
        (lambda: spark_activity_task(delays, activity=of_no_app), "of_no_app, which no App has declared"),
        (lambda: spark_activity_task(delays, activity=inner), "'inner' cannot be started .*standalone=True"),
        (lambda: spark_activity_task(delays, app="flights"), "app is 'flights': give the App object"),
        (lambda: spark_activity_task("monthly_delays"), "write activity='monthly_delays'"),
        (lambda: spark_activity_task(delays, orchestrator="o"), "orchestrator is 'o': use @task.orchestration"),
        (lambda: spark_activity_task(delays, input=7), "input is 7: give it as arguments"),
        (lambda: spark_activity_task(lambda year: year + 1), "worker of the hub runs the activity"),
        (lambda: spark_activity_task(7), "activity=…"),
    ],
)
def test_mistakes_are_refused_at_parse(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(InputError, match=says) as raised:
        make()
    assert "@task.spark_activity" in str(raised.value)


def test_the_example_makes_the_input_that_its_activity_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delitem(sys.modules, "spark_rows_app", raising=False)
    made = runpy.run_path(str(EXAMPLES / "spark_rows.py"))["dag"]
    from airflow_provider_taskhub.app import load_app

    known = load_app("spark_rows_app:app")
    rows = made.get_task("primes")
    assert rows.partial_kwargs["orchestrator"] in known.orchestrators
    assert known.activities["count_primes"].spark
