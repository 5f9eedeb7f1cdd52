"""Airflow with its metadata in SQLite, as after ``airflow standalone``: a newcomer's first run works there too."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.airflow.real import RealAirflow

pytestmark = pytest.mark.process


@pytest.fixture
def on_sqlite() -> Iterator[RealAirflow]:
    with tempfile.TemporaryDirectory(prefix="taskhub-real-", ignore_cleanup_errors=True) as home:
        airflow = RealAirflow(Path(home), postgres=False)
        try:
            airflow.start()
            yield airflow
        finally:
            airflow.stop()


def test_tasks_end_with_the_output_or_the_error_of_their_orchestrations(on_sqlite: RealAirflow) -> None:
    assert on_sqlite.env["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].startswith("sqlite:")
    sums, fails = on_sqlite.trigger("sums"), on_sqlite.trigger("fails")
    on_sqlite.reaches("sums", sums, "success")
    on_sqlite.reaches("fails", fails, "failed")
    assert on_sqlite.xcom("sums", sums) == {"sum": 14, "run": sums}
    on_sqlite.log("fails", fails, having="rows rejected")
