"""The demo's Airflow as its REST API answers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_taskhub.demo import standalone
from airflow_provider_taskhub.demo.processes import Processes
from airflow_provider_taskhub.demo.standalone import Airflow, AirflowError


class Answers(Airflow):
    """Answers from a list, in order, with the requests kept."""

    def __init__(self, folder: Path, *answers: Any) -> None:
        super().__init__(Processes(folder), home=folder, dags=folder, env={})
        self.answers = list(answers)
        self.asked: list[str] = []

    def _request(self, method: str, path: str, body: Any) -> Any:
        self.asked.append(f"{method} {path}")
        answer = self.answers.pop(0)
        if answer is None:
            raise AirflowError("did not answer")
        if isinstance(answer, int):
            raise AirflowError(f"answered {answer}", answer)
        return answer

    def _log(self, component: str) -> Path:
        return self._home / component


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    taken: list[float] = []

    async def pause(seconds: float) -> None:
        taken.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", pause)
    return taken


async def test_a_busy_database_is_asked_again(tmp_path: Path, pauses: list[float]) -> None:
    airflow = Answers(tmp_path, 500, 503, {"state": "running"})
    assert await airflow.run_state("flights", "r") == "running"
    assert (len(airflow.asked), pauses) == (3, [1, 1])


async def test_a_run_whose_first_request_was_not_answered_is_there(tmp_path: Path) -> None:
    airflow = Answers(tmp_path, {"dags": [{"dag_id": "flights"}]}, 500, 409)
    await airflow.trigger("flights", "r", {})
    assert not airflow.answers


async def test_a_request_fails_after_the_last_try_if_the_database_stays_busy(tmp_path: Path) -> None:
    airflow = Answers(tmp_path, *[500] * 20)
    with pytest.raises(AirflowError, match="answered 500"):
        await airflow.run_state("flights", "r")
    assert len(airflow.asked) == standalone.BUSY_TRIES


async def test_a_server_that_does_not_answer_in_time_is_asked_again(tmp_path: Path) -> None:
    airflow = Answers(tmp_path, None, {"state": "running"})
    assert await airflow.run_state("flights", "r") == "running"
    airflow = Answers(tmp_path, {"dags": [{"dag_id": "flights"}]}, None, 409)
    await airflow.trigger("flights", "r", {})
    assert not airflow.answers


async def test_a_refusal_is_told_at_once(tmp_path: Path) -> None:
    airflow = Answers(tmp_path, 404)
    with pytest.raises(AirflowError, match="answered 404"):
        await airflow.run_state("flights", "r")
    assert len(airflow.asked) == 1
