"""What triggers ask Airflow together: each question gets an answer from after it, and one error is everybody's."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_taskhub.hooks.taskhub import TaskHubHook
from airflow_provider_taskhub.triggers.shared_requests import _SHARED, shared_settings, state_of
from tests.waiting import PATIENCE


def task(name: str, *, map_index: int = -1, run_id: str = "r") -> SimpleNamespace:
    return SimpleNamespace(dag_id="d", run_id=run_id, task_id=name, map_index=map_index)


class Airflow:
    """Answers when it is told to: each answer holds the number of the request."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        self.asked: list[tuple[str, list[str], int | None]] = []
        self.may_answer = threading.Semaphore(0)
        self.arrived = asyncio.Semaphore(0)
        self.loop = asyncio.get_running_loop()
        self.error: Exception | None = None
        monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(self.states))

    def states(self, *, dag_id: str, run_ids: list[str], task_ids: list[str], map_index: int | None) -> Any:
        self.asked.append((run_ids[0], task_ids, map_index))
        number = len(self.asked)
        self.loop.call_soon_threadsafe(self.arrived.release)
        assert self.may_answer.acquire(timeout=PATIENCE)
        if self.error is not None:
            raise self.error
        return {run_ids[0]: dict.fromkeys(task_ids, number)}

    async def request(self) -> None:
        """Wait until the next request has arrived."""
        async with asyncio.timeout(PATIENCE):
            await self.arrived.acquire()


@pytest.fixture
async def airflow(monkeypatch: pytest.MonkeyPatch) -> Airflow:
    return Airflow(monkeypatch)


async def test_questions_that_come_during_a_request_share_the_next_one(airflow: Airflow) -> None:
    first = asyncio.ensure_future(state_of(task("a")))
    await airflow.request()
    later = [asyncio.ensure_future(state_of(task(name))) for name in ("b", "a", "c")]
    await asyncio.sleep(0)
    airflow.may_answer.release(2)
    assert await first == {"r": {"a": 1}}
    assert await asyncio.gather(*later) == [{"r": {"a": 2, "b": 2, "c": 2}}] * 3
    assert airflow.asked == [("r", ["a"], -1), ("r", ["a", "b", "c"], -1)]
    shared = _SHARED[asyncio.get_running_loop()]
    assert (shared.collecting, shared.turns) == ({}, {}), "nothing stays for a run that nobody asks about"


async def test_rows_of_a_mapped_task_and_other_runs_are_told_apart(airflow: Airflow) -> None:
    airflow.may_answer.release(2)
    rows = [task("m", map_index=0), task("m", map_index=1), task("m", map_index=1, run_id="other")]
    await asyncio.gather(*map(state_of, rows))
    assert sorted(airflow.asked, key=str) == [("other", ["m"], 1), ("r", ["m"], None)]


async def test_a_row_is_not_taken_for_a_task_of_the_same_name(airflow: Airflow) -> None:
    """Airflow's answer has the key ``load_1`` for row 1 of ``load`` and for the task ``load_1``."""
    airflow.may_answer.release(2)
    found = await asyncio.gather(state_of(task("load", map_index=1)), state_of(task("load_1")))
    assert airflow.asked == [("r", ["load"], 1), ("r", ["load_1"], -1)]
    assert found == [{"r": {"load": 1}}, {"r": {"load_1": 2}}]


async def test_an_error_is_everybodys_and_the_next_question_is_asked_anew(airflow: Airflow) -> None:
    airflow.error = ConnectionError("no answer")
    airflow.may_answer.release(2)
    found = await asyncio.gather(state_of(task("a")), state_of(task("b")), return_exceptions=True)
    assert [str(error) for error in found] == ["no answer"] * 2
    airflow.error = None
    assert await state_of(task("a")) == {"r": {"a": 2}}


async def test_who_is_cancelled_takes_nobody_elses_answer_away(airflow: Airflow) -> None:
    asking = [asyncio.ensure_future(state_of(task(name))) for name in ("a", "b")]
    await airflow.request()
    asking[0].cancel()
    airflow.may_answer.release()
    assert await asking[1] == {"r": {"a": 1, "b": 1}}


async def test_a_connection_that_cannot_be_read_is_read_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [ConnectionError("no answer"), "settings"]

    async def asettings(hook: TaskHubHook) -> Any:
        await asyncio.sleep(0)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return f"{answer} of {hook.taskhub_conn_id}"

    monkeypatch.setattr(TaskHubHook, "asettings", asettings)
    found = await asyncio.gather(shared_settings("c"), shared_settings("c"), return_exceptions=True)
    assert [str(error) for error in found] == ["no answer"] * 2
    assert await asyncio.gather(shared_settings("c"), shared_settings("c")) == ["settings of c"] * 2
