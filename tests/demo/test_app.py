"""The examples' orchestrators in memory: stages, the quality gate, retries, what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import first_app
import flights_app
import pytest

from airflow_provider_taskhub import testing
from airflow_provider_taskhub.errors import OrchestrationError

ROWS = {1: 100, 2: 200}


class Pipeline:
    """The four activities, replaced; they note how they were called."""

    def __init__(self, *, rejected: int = 3, lost_rows: int = 0, failures: int = 0) -> None:
        self.rejected, self.lost_rows, self.failures = rejected, lost_rows, failures
        self.calls: list[str] = []

    def ingest(self, part: flights_app.Part) -> dict[str, Any]:
        self.calls.append(f"ingest {list(part.months)}")
        months = {str(month): ROWS[month] for month in part.months}
        return {"folder": "/out", "months": months, "rows": {"flights": sum(months.values())}}

    def monthly(self, part: flights_app.Part) -> dict[str, Any]:
        (month,) = part.months
        self.calls.append(f"month {month} in {part.folder}")
        if self.failures:
            self.failures -= 1
            raise RuntimeError("executor ran out of disk")
        return {"month": month, "rows": ROWS[month] - self.lost_rows, "rejected": {"odd": self.rejected}}

    def yearly(self, work: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(f"year of {[month['month'] for month in work['months']]}")
        return {"totals": {"flights": 294}}

    def publish(self, folder: str) -> dict[str, Any]:
        self.calls.append(f"report in {folder}")
        return {"html": f"{folder}/report.html"}

    def run(self, **job: Any) -> dict[str, Any]:
        activities = {
            "ingest": self.ingest,
            "monthly_delays": self.monthly,
            "yearly_delays": self.yearly,
            "publish": self.publish,
        }
        result = testing.run(flights_app.flights_delays, job, app=flights_app.app, activities=activities)
        assert isinstance(result, dict)
        return result


def test_stages_follow_each_other_and_are_timed() -> None:
    pipeline = Pipeline()
    result = pipeline.run(months=[1, 2])
    assert pipeline.calls[0] == "ingest [1, 2]"
    assert sorted(pipeline.calls[1:3]) == ["month 1 in /out", "month 2 in /out"]
    assert pipeline.calls[3:] == ["year of [1, 2]", "report in /out"]
    assert list(result["stages"]) == ["ingest", "months", "year", "report"]
    assert result["report"] == {"html": "/out/report.html"}
    assert result["rows"] == {"flights": 300}


def test_too_many_rejected_rows_fail_before_the_year() -> None:
    pipeline = Pipeline(rejected=10)
    with pytest.raises(
        OrchestrationError, match=r"20 of 300 rows \(6\.67%\) were rejected, more than .* 5\.00%"
    ) as caught:
        pipeline.run(months=[1, 2])
    assert caught.value.retryable is False
    assert not [call for call in pipeline.calls if call.startswith("year")]


def test_the_threshold_is_the_callers() -> None:
    assert Pipeline(rejected=10).run(months=[1, 2], threshold=0.07)["totals"] == {"flights": 294}


def test_a_month_that_lost_rows_fails() -> None:
    with pytest.raises(OrchestrationError, match="month 1 counted 99 rows of 100"):
        Pipeline(lost_rows=1).run(months=[1])


def test_a_month_is_tried_again_once() -> None:
    pipeline = Pipeline(failures=1)
    assert pipeline.run(months=[1])["totals"] == {"flights": 294}
    assert pipeline.calls.count("month 1 in /out") == 2


def test_a_month_that_fails_twice_fails_the_orchestration() -> None:
    with pytest.raises(OrchestrationError, match="executor ran out of disk"):
        Pipeline(failures=2).run(months=[1])


@pytest.mark.parametrize("months", [[], [0], [13], [1, 1]])
def test_months_that_are_none_are_refused(months: list[int]) -> None:
    pipeline = Pipeline()
    with pytest.raises(OrchestrationError, match="months must be some of 1 to 12, each once"):
        pipeline.run(months=months)
    assert pipeline.calls == []


def test_every_run_has_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLIGHTS_HOME", str(tmp_path))
    ids = ["flights:delays:manual__2026-11-21T10:00:00+00:00:g1", "flights:delays:manual__2026-11-21T10:00:00-00:00:g1"]
    folders = {flights_app.folder_of(each) for each in ids}
    assert len(folders) == 2
    assert {folder.parent for folder in folders} == {tmp_path}
    assert flights_app.folder_of("../../etc").parent == tmp_path
    monkeypatch.delenv("FLIGHTS_HOME")
    monkeypatch.setenv("TASKHUB_HOME", str(tmp_path / "hub"))
    assert flights_app.folder_of("a").parent == tmp_path / "hub" / "flights"


def test_the_first_app_greets() -> None:
    assert testing.run(first_app.greetings, ["Ada", "Grace"], app=first_app.app) == ["Hello, Ada!", "Hello, Grace!"]
