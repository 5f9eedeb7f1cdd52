"""References to data: which annotations open them, what is stored, and what is refused when an app is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Annotated,  # noqa: F401  # used by an annotation that is a text
    Any,
)

import pytest

from airflow_provider_taskhub.activity import Reference
from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.codec import dumps, loads
from airflow_provider_taskhub.engine.references import Frame, opened, stored
from airflow_provider_taskhub.engine.registry import Registry
from airflow_provider_taskhub.errors import ConfigurationError, InputError
from airflow_provider_taskhub.testing import run
from airflow_provider_taskhub.workers.executors.child.invocation import arguments, opened_arguments

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Reader:
    """Stands for a Spark session and its reader: says what is loaded."""

    def __init__(self) -> None:
        self.read, self._format, self._options = self, "", {}  # type: ignore[var-annotated]

    def format(self, name: str) -> Reader:
        self._format = name
        return self

    def options(self, **options: str) -> Reader:
        self._options = options
        return self

    def load(self, path: str) -> str:
        return f"{self._format} {path} {self._options}"


@dataclass
class Work:
    number: int


def taking(annotation: str, *, spark: bool = True) -> Registry:
    app = App("references")

    def take(spark: Any, data: Any) -> Any:
        return data

    def plain(data: Any) -> Any:
        return data

    function = take if spark else plain
    function.__annotations__["data"] = annotation
    (app.spark_activity if spark else app.activity)(function)
    return Registry.of([app])


@pytest.mark.parametrize(
    ("annotation", "given", "taken"),
    [
        ("DataFrame", {"path": "/a"}, "parquet /a {}"),
        ("DataFrame | None", None, None),
        ("DataFrame | None", {"path": "/a", "rows": 7}, "parquet /a {}"),
        ("list[DataFrame]", [{"path": "/a"}, {"path": "/b", "format": "csv", "options": {"header": "true"}}],
         ["parquet /a {}", "csv /b {'header': 'true'}"]),
        ("tuple[int, DataFrame]", [3, {"path": "/a"}], (3, "parquet /a {}")),
        ("dict[str, list[DataFrame]]", {"x": [{"path": "/a"}]}, {"x": ["parquet /a {}"]}),
        ("Annotated[DataFrame, 'months']", {"path": "/a"}, "parquet /a {}"),
        ("Reference", {"path": "/a"}, Reference("/a")),
        ("list[Work]", [{"number": 1}], [Work(1)]),
    ],
)  # fmt: skip
def test_an_input_is_opened_where_its_annotation_has_a_data_frame(annotation: str, given: Any, taken: Any) -> None:
    """The class is imported for type checkers only, so that a worker without Spark can load the app."""
    name = "take"
    definition = taking(annotation).activities[name]
    decoded = arguments(definition, dumps([given]))
    (found,) = opened_arguments(definition, decoded, Reader())
    assert found == taken


def test_a_class_that_is_there_when_the_app_is_loaded_counts_too() -> None:
    from pyspark.sql import DataFrame as Real

    assert stored(list[Real]) == list[Reference]
    assert stored(Real) is Reference
    unchanged = dict[str, int]
    assert stored(unchanged) is unchanged


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"path": "/a", "fromat": "csv"}, "unknown key 'fromat', did you mean 'format'?"),
        ({"format": "csv"}, "path"),
        ("/a", "input of activity 'take'"),
    ],
)
def test_an_input_that_is_no_reference_is_refused_by_name(given: Any, text: str) -> None:
    with pytest.raises(InputError, match="input of activity 'take'") as caught:
        arguments(taking("DataFrame").activities["take"], dumps([given]))
    assert text in str(caught.value)


def test_a_data_frame_without_a_session_is_refused_when_the_app_is_loaded() -> None:
    with pytest.raises(ConfigurationError, match=r"parameter 'data' of .*plain is a DataFrame.*@app.spark_activity"):
        taking("list[DataFrame]", spark=False)
    app = App("references")

    @app.orchestrator
    async def sums(ctx: OrchestrationContext, frame: DataFrame) -> int:
        return 0

    with pytest.raises(ConfigurationError, match=r"parameter 'frame' of .*sums is a DataFrame"):
        Registry.of([app])


@pytest.mark.parametrize(("path", "format"), [("", "parquet"), (None, "parquet"), ("/a", "")])
def test_a_reference_names_what_is_wrong(path: Any, format: str) -> None:
    with pytest.raises(InputError, match=r"Reference: (path|format) is (''|None): give a text"):
        Reference(path, format)


def test_a_reference_is_plain_json() -> None:
    assert loads(dumps(Reference("/a", rows=3))) == {
        "path": "/a",
        "format": "parquet",
        "rows": 3,
        "published": False,
        "options": {},
    }
    assert opened({"n": [Reference("/a"), 1]}, lambda one: one.path) == {"n": ["/a", 1]}
    assert stored(Frame) is Reference


def test_an_orchestration_hands_references_from_one_activity_to_the_next() -> None:
    app = App("references")

    @app.spark_activity
    def month(spark: SparkSession, number: int) -> Reference:
        return Reference(f"/months/{number}", rows=number)

    @app.spark_activity
    def year(spark: SparkSession, months: list[DataFrame]) -> list[str]:
        return [str(one) for one in months]

    @app.orchestrator
    async def whole(ctx: OrchestrationContext, numbers: list[int]) -> list[str]:
        months = [await ctx.call_activity(month, number) for number in numbers]
        assert [one.rows for one in months] == numbers
        return await ctx.call_activity(year, months)

    assert run(whole, [1, 2], app=app, spark=Reader()) == ["parquet /months/1 {}", "parquet /months/2 {}"]
