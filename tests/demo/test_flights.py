"""The flights example's Spark against plain pandas, on real data; and what it does when it runs again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flights_report
import flights_spark
import pytest

from tests.demo import plain

pytestmark = pytest.mark.process

MONTHS = (1, 2)


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture(scope="module")
def folder(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("flights"))
    flights_spark.ingest(spark.newSession(), path, 2013, MONTHS)
    return path


@pytest.fixture(scope="module")
def months(spark: Any, folder: str) -> list[dict[str, Any]]:
    return [flights_spark.month(spark.newSession(), folder, 2013, month) for month in MONTHS]


@pytest.fixture(scope="module")
def answer(spark: Any, folder: str, months: list[dict[str, Any]]) -> dict[str, Any]:
    return flights_spark.year(spark.newSession(), folder, 2013, months)


@pytest.fixture(scope="module")
def expected() -> plain.Answer:
    return plain.answer(flights_spark.data_folder(), MONTHS)


def test_numbers_equal_a_plain_pandas_computation(answer: dict[str, Any], folder: str, expected: plain.Answer) -> None:
    totals, by = answer["totals"], json.loads((Path(folder) / "year" / "answer.json").read_text())["by"]
    assert (totals["flights"], totals["cancelled"]) == (expected.flights, expected.cancelled)
    assert answer["rejected"] == expected.rejected
    assert expected.flights + sum(expected.rejected.values()) == expected.rows == 27_004 + 24_951
    assert totals["mean_dep_delay"] == pytest.approx(expected.mean_dep_delay, rel=1e-12)
    assert totals["mean_arr_delay"] == pytest.approx(expected.mean_arr_delay, rel=1e-12)
    assert {c["carrier"]: (c["flights"], c["on_time"]) for c in answer["carriers"]} == expected.carriers
    worst = [(r["origin"], r["dest"], r["mean_arr_delay"]) for r in answer["worst_routes"]]
    assert [w[:2] for w in worst] == [r[:2] for r in expected.routes]
    assert [w[2] for w in worst] == pytest.approx([r[2] for r in expected.routes], rel=1e-12)
    assert {w["weather"]: w["flights"] for w in by["weather"]} == {k: v[0] for k, v in expected.weather.items()}
    assert [w["mean_arr_delay"] for w in by["weather"]] == pytest.approx(
        [expected.weather[w["weather"]][1] for w in by["weather"]], rel=1e-12
    )
    assert {a["age"]: a["flights"] for a in by["ages"]} == expected.ages


def test_a_month_that_runs_again_replaces_itself(spark: Any, folder: str, months: list[dict[str, Any]]) -> None:
    left = Path(folder) / "monthly" / ".2013-01-killed"
    left.mkdir()
    (left / "part-0.parquet").write_text("half a file of an attempt that was killed")
    again = flights_spark.month(spark.newSession(), folder, 2013, 1)
    assert again == months[0]
    assert sorted(p.name for p in (Path(folder) / "monthly").iterdir()) == ["2013-01.parquet", "2013-02.parquet"]


def test_ingest_that_runs_again_leaves_the_same_files(spark: Any, folder: str) -> None:
    before = sorted(p.relative_to(folder).as_posix() for p in Path(folder, "flights").iterdir())
    again = flights_spark.ingest(spark.newSession(), folder, 2013, MONTHS)
    assert again["months"] == {"1": 27_004, "2": 24_951}
    assert again["rows"] == {"flights": 51_955, "weather": 26_115, "planes": 3_322, "airports": 1_458, "airlines": 16}
    assert sorted(p.relative_to(folder).as_posix() for p in Path(folder, "flights").iterdir()) == before
    assert not list(Path(folder).glob(".*"))


def test_a_month_counted_twice_is_refused(spark: Any, folder: str, months: list[dict[str, Any]]) -> None:
    with pytest.raises(ValueError, match="twice"):
        flights_spark.year(spark.newSession(), folder, 2013, [*months, months[0]])


def test_a_year_that_differs_from_its_months_is_refused(spark: Any, folder: str, months: list[dict[str, Any]]) -> None:
    wrong = [months[0], {**months[1], "on_time": months[1]["on_time"] + 1}]
    with pytest.raises(ValueError, match="on_time of the year is"):
        flights_spark.year(spark.newSession(), folder, 2013, wrong)


def test_rejected_rows_are_kept_with_their_reason(spark: Any, folder: str, months: list[dict[str, Any]]) -> None:
    rows = spark.read.parquet(str(Path(folder) / "rejected" / "2013-01.parquet"))
    assert {r["reason"]: r["count"] for r in rows.groupBy("reason").count().collect()} == months[0]["rejected"]
    assert {r["dest"] for r in rows.where("reason = 'destination not in airports'").collect()} == {
        "BQN", "PSE", "SJU", "STT",
    }  # fmt: skip


def test_the_report_is_one_page_with_every_chart(answer: dict[str, Any], folder: str) -> None:
    made = flights_report.publish(Path(folder))
    html = Path(made["html"]).read_text(encoding="utf-8")
    assert made["bytes"] == len(html.encode()) < 200_000
    assert html.count("<svg ") == 6
    assert not any(mark in html for mark in ("http:", "https:", "<script", "<link", "@import", "url("))
    assert f"{answer['totals']['flights']:,}" in html
    assert all(f"{r['origin']} → {r['dest']}" in html for r in answer["worst_routes"])
    assert "$" not in html
    assert flights_report.publish(Path(folder)) == made


def test_the_report_escapes_what_the_data_says(folder: str) -> None:
    answer = json.loads((Path(folder) / "year" / "answer.json").read_text())
    answer["by"]["carriers"][0]["name"] = "<script>alert(1)</script>"
    answer["rejected"] = {"<b>": 1}
    html = flights_report.page(answer)
    assert "<script" not in html
    assert "<td>&lt;b&gt;" in html
