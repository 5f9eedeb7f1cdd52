"""The demo itself, on two months: a real Airflow, real workers, real Spark, a real kill; and Ctrl-C at any point."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import flights_spark
import pytest

from airflow_provider_taskhub.demo.command import _months
from airflow_provider_taskhub.demo.processes import marked
from airflow_provider_taskhub.errors import ConfigurationError
from tests.demo import plain
from tests.waiting import until

pytestmark = pytest.mark.process

TASKHUB = Path(sys.executable).with_name("taskhub")
CHECKOUT = Path(__file__).parents[2]
BUSY = 250.0
"""Seconds of patience with a demo, which starts Airflow and Spark."""


class Running:
    """``taskhub demo`` as a child, its output read line by line."""

    def __init__(self, folder: Path, *arguments: str, env: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [TASKHUB, "demo", "--folder", folder, "--months", "1,2", *arguments],
            cwd=CHECKOUT,
            env={**os.environ, "COLUMNS": "160", "PYTHONUNBUFFERED": "1", **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def until(self, text: str) -> None:
        """Wait until the output has a text."""
        self.happens(f"the demo prints {text!r}", lambda: text in self.output)

    def happens(self, what: str, look: Callable[[], bool]) -> None:
        """Wait for a condition. The end of the demo before it is an error."""

        def seen() -> bool:
            ended = self.process.poll() is not None
            assert look() or not ended, f"not before the end: {what}\n{self.output}"
            return look()

        until(what, seen, seconds=BUSY)

    def mark(self) -> str:
        """By which everything of this demo is found, while it runs."""
        path = self.folder / "logs" / "mark"
        assert path.exists(), self.output
        return path.read_text()

    def end(self, *, limit: float = BUSY) -> int:
        status = self.process.wait(limit)
        self._reader.join(BUSY)
        return status


@contextmanager
def running(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> Iterator[Running]:
    demo = Running(folder, *arguments, env=env)
    try:
        yield demo
    finally:
        if demo.process.poll() is None:
            demo.process.send_signal(signal.SIGINT)
            demo.process.wait(BUSY)


@pytest.mark.parametrize(("storage", "spark"), [("sqlite", "local"), ("azurite", "connect")])
def test_numbers_are_right_although_a_worker_was_killed(tmp_path: Path, storage: str, spark: str) -> None:
    with running(tmp_path, "--storage", storage, "--spark", spark) as demo:
        demo.until("the hub is at")
        mark = demo.mark()
        assert demo.end(limit=500) == 0, demo.output
    assert marked(mark) == []
    (result,) = json.loads((tmp_path / "result.json").read_text())
    _check_numbers(result["answer"])
    _check_attempts(result)
    assert f"killed worker {result['victim']}" in demo.output
    assert result["url"] in demo.output
    report = Path(result["answer"]["report"]["html"])
    assert report.as_uri() in demo.output
    assert "<svg" in report.read_text(encoding="utf-8")


def _check_numbers(answer: dict[str, Any]) -> None:
    expected = plain.answer(flights_spark.data_folder(), (1, 2))
    assert answer["totals"]["flights"] == expected.flights
    assert answer["totals"]["cancelled"] == expected.cancelled
    assert answer["totals"]["mean_arr_delay"] == pytest.approx(expected.mean_arr_delay, rel=1e-12)
    assert answer["rejected"] == expected.rejected
    assert {c["carrier"]: (c["flights"], c["on_time"]) for c in answer["carriers"]} == expected.carriers
    assert [(r["origin"], r["dest"]) for r in answer["worst_routes"]] == [r[:2] for r in expected.routes]
    assert set(answer["stages"]) == {"ingest", "months", "year", "report"}


def _check_attempts(result: dict[str, Any]) -> None:
    """The victim's month was lost and run again by the other; everything completed exactly once."""
    attempts = result["attempts"]
    completed = [a["activity"] for a in attempts if a["state"] == "completed"]
    assert sorted(completed) == ["ingest", "month 01", "month 02", "yearly_delays"]
    lost = [a for a in attempts if a["state"] == "lost"]
    assert lost
    assert {a["worker"].partition("@")[0] for a in lost} == {result["victim"]}
    assert f"month {result['month']:02d}" in {a["activity"] for a in lost}
    again = [a for a in attempts if a["attempt"] > 1]
    assert {a["activity"] for a in again} == {a["activity"] for a in lost}
    assert result["victim"] not in {a["worker"].partition("@")[0] for a in again}


@pytest.mark.parametrize("point", ["the hub is at", "Airflow is up at", "killed worker"])
def test_ctrl_c_leaves_no_process(tmp_path: Path, point: str) -> None:
    with running(tmp_path) as demo:
        demo.until(point)
        mark = demo.mark()
        demo.happens("its first process runs", lambda: bool(marked(mark)))
        demo.process.send_signal(signal.SIGINT)
        assert demo.end() == 130, demo.output
    assert "nothing is left running" in demo.output
    assert marked(mark) == []


def test_a_failure_ends_with_a_status_and_the_log_that_tells_why(tmp_path: Path) -> None:
    with running(tmp_path, env={"JAVA_HOME": str(tmp_path / "no-java")}) as demo:
        assert demo.end() == 1
    assert "the demo failed: the DAG run failed" in demo.output
    assert "java" in demo.output.lower()
    assert "--- worker-alpha" in demo.output


def test_two_demos_in_one_folder_are_refused(tmp_path: Path) -> None:
    import fcntl

    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with running(tmp_path) as demo:
            assert demo.end() == 2
    assert "another demo runs in" in demo.output


@pytest.mark.parametrize(
    ("option", "value", "known"),
    [("storage", "redis", "sqlite or azurite"), ("spark", "yarn", "local, standalone or connect")],
)
def test_an_unknown_storage_or_spark_is_refused(tmp_path: Path, option: str, value: str, known: str) -> None:
    with running(tmp_path, f"--{option}", value) as demo:
        assert demo.end() == 2
    assert f"{option} {value!r} is not known: use {known}" in demo.output


@pytest.mark.parametrize(
    ("text", "months"), [("1,2", (1, 2)), ("1-12", tuple(range(1, 13))), ("7", (7,)), ("3,1-2", (1, 2, 3))]
)
def test_months_are_read_from_numbers_and_ranges(text: str, months: tuple[int, ...]) -> None:
    assert _months(text) == months


@pytest.mark.parametrize("text", ["", "0", "13", "1,1", "1-", "a", "5-3", "1;2"])
def test_months_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="months"):
        _months(text)
