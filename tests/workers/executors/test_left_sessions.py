"""Sessions that dead executors have left on a Spark Connect server are ended, and the end is confirmed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_taskhub.engine.events import FailureDetails
from airflow_provider_taskhub.settings import SparkSettings
from airflow_provider_taskhub.spark_connect import ConnectServer
from airflow_provider_taskhub.workers.executors.attempt_values import ActivityOutcome
from airflow_provider_taskhub.workers.executors.executor import ExecutorError
from airflow_provider_taskhub.workers.executors.left_sessions import LeftSessions
from airflow_provider_taskhub.workers.executors.pool import ExecutorConfig, ExecutorPool
from tests.workers.conftest import Logs, request

MASTER = "sc://spark/;token=s3cret"
KILLED = FailureDetails(error_type="Killed", error_message="the executor was killed")


class Watch:
    """A clock whose sleeps end at once, and count."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class Answered(LeftSessions):
    """The server's answers are given: for each try, a reason, or None for a confirmed end."""

    def __init__(self, *answers: str | None, patience: float = 60.0) -> None:
        clock: Any = Watch()
        super().__init__(MASTER, None, clock, patience=patience)
        self.answers = list(answers)
        self.asked: list[tuple[str, ...]] = []

    async def _ask(self, sessions: Sequence[str]) -> Mapping[str, str | None]:
        self.asked.append(tuple(sessions))
        answer = self.answers.pop(0)
        return dict.fromkeys(sessions, answer) if answer != "nothing" else {}


def names(count: int) -> tuple[str, ...]:
    return tuple(ConnectServer.parse(MASTER).new_session() for _ in range(count))


async def test_the_end_is_asked_for_until_it_is_confirmed_and_then_never_again() -> None:
    one, two = names(2)
    left = Answered("away", "nothing", None, None)
    await left.end((one,))
    assert left.asked == [(one,)] * 3
    await left.end((one, two))
    assert left.asked[3:] == [(two,)], "a confirmed end is remembered"
    await left.end((one, two))
    await left.end(())
    assert len(left.asked) == 4


async def test_a_server_that_stays_away_is_an_error_after_the_patience() -> None:
    (one,) = names(1)
    left = Answered(*["away"] * 20, patience=10.0)
    with pytest.raises(ExecutorError, match="an earlier attempt left running on Spark may still run: away"):
        await left.end((one,))
    assert len(left.asked) == 5, "after 0, 1, 3, 7 and 10 s"


async def test_the_end_of_a_lost_attempt_of_this_worker_is_tried_once() -> None:
    (one,) = names(1)
    left = Answered("away", None)
    await left.end_own(one, once=True)
    assert left.asked == [(one,)]
    await left.end((one,))
    assert left.asked == [(one,)] * 2, "the next attempt tries again"


async def test_the_end_of_another_attempt_of_this_worker_is_tried_until_it_is_confirmed_or_the_patience_ends() -> None:
    one, two = names(2)
    left = Answered("away", "away", None, *["away"] * 5, patience=10.0)
    await left.end_own(one, once=False)
    assert left.asked == [(one,)] * 3
    await left.end_own(two, once=False)
    assert left.asked[3:] == [(two,)] * 5, "then the log says so"


@pytest.mark.parametrize(
    ("outcome", "once"),
    [
        (ActivityOutcome(failure=KILLED, crashed=True), True),
        (ActivityOutcome(failure=KILLED), False),
        (None, False),
    ],
    ids=["lost", "timed out", "cancelled"],
)
async def test_only_a_lost_attempt_leaves_the_end_of_its_session_to_the_next_attempt(
    outcome: ActivityOutcome | None, once: bool
) -> None:
    """The executor of the attempt was killed."""
    (one,) = names(1)
    ends: list[tuple[str, bool]] = []
    ended = asyncio.Event()
    ended.set()

    async def run(*arguments: object) -> ActivityOutcome:
        if outcome is None:
            raise asyncio.CancelledError
        return outcome

    async def executor_for(ticket: object) -> Any:
        return SimpleNamespace(run=run, ended=ended)

    async def end_own(session: str, *, once: bool) -> None:
        ends.append((session, once))

    config = ExecutorConfig(apps=("x:app",), spark=SparkSettings(master=MASTER))
    pool: Any = ExecutorPool(config, size=1, logs=Logs())
    pool._assignment = SimpleNamespace(executor_for=executor_for, release=lambda executor, kind: None)
    pool._left = SimpleNamespace(end_own=end_own)
    with suppress(asyncio.CancelledError):
        assert await pool.run(request("load", spark=True, spark_session=one)) is outcome
    assert ends == [(one, once)]


async def test_a_session_of_another_server_is_refused_without_a_call() -> None:
    left = Answered()
    with pytest.raises(ExecutorError, match="give all workers of a hub the same TASKHUB_SPARK__MASTER") as raised:
        await left.end((ConnectServer.parse("sc://elsewhere").new_session(),))
    assert "s3cret" not in str(raised.value)
