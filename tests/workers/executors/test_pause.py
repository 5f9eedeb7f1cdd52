"""A paused attempt runs no step, nor does a process that it has started, and it ends like any other one."""

from __future__ import annotations

import asyncio
import math
import pathlib
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import psutil
import pytest

from airflow_provider_taskhub import virtual_time
from airflow_provider_taskhub.clock import SYSTEM_CLOCK
from airflow_provider_taskhub.engine.events import FailureDetails
from airflow_provider_taskhub.hub.model import ActivityRecord, RecordState
from airflow_provider_taskhub.settings import AZURE_LEASE
from airflow_provider_taskhub.virtual_time import VirtualClock
from airflow_provider_taskhub.workers.activities import heartbeat
from airflow_provider_taskhub.workers.activities.cancellation import Fate
from airflow_provider_taskhub.workers.activities.heartbeat import RecordedAttempt
from airflow_provider_taskhub.workers.executors import process_session
from airflow_provider_taskhub.workers.executors.attempt_values import ActivityOutcome
from airflow_provider_taskhub.workers.executors.executor import Executor
from airflow_provider_taskhub.workers.executors.pause import Pause
from airflow_provider_taskhub.workers.executors.pool import ExecutorPool
from airflow_provider_taskhub.workers.executors.process import ExecutorProcess, ExecutorTimes
from airflow_provider_taskhub.workers.executors.protocol import Cancel, Done, Failed, Ready
from airflow_provider_taskhub.workers.executors.remote_attempt import RemoteAttempt
from tests.waiting import PATIENCE, until_async
from tests.workers.conftest import PoolMaker, alive, request, started

SOON = timedelta(seconds=0.3)


def stopped(pids: list[int]) -> list[bool]:
    return [psutil.Process(pid).status() == psutil.STATUS_STOPPED for pid in pids]


async def test_a_pause_stops_every_process_of_the_executor_and_its_end_lets_them_go_on(
    pool: ExecutorPool, tmp_path: pathlib.Path
) -> None:
    pause = Pause()
    run = asyncio.create_task(pool.run(request("children", [str(tmp_path), "c"]), pause=pause))
    pids = [int(pid) for pid in (await until_async("children", lambda: started(tmp_path, "c"))).split()]
    for _ in range(2):
        pause.set(True)
        await until_async("all stand still", lambda: all(stopped(pids)))
        pause.set(False)
        await until_async("all go on", lambda: not any(stopped(pids)))
    pause.set(True)
    run.cancel()
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(asyncio.CancelledError):
            await run
    assert not any(alive(pid) for pid in pids), "a process that stands still cannot stop by itself, so it is killed"
    assert (await pool.run(request("greet", "x"))).executor == "plain-1.2"


async def test_an_attempt_stands_still_although_its_host_cannot_say_so(
    pool: ExecutorPool, tmp_path: pathlib.Path
) -> None:
    """The host is stopped, or user code blocks its event loop: nobody puts off the time that it has set."""
    pause = Pause()
    run = asyncio.create_task(pool.run(request("children", [str(tmp_path), "c"]), pause=pause))
    pids = [int(pid) for pid in (await until_async("children", lambda: started(tmp_path, "c"))).split()]
    pause.put_off(SYSTEM_CLOCK.monotonic())
    await until_async("all stand still", lambda: all(stopped(pids)))
    pause.put_off(SYSTEM_CLOCK.monotonic() + PATIENCE)
    await until_async("all go on", lambda: not any(stopped(pids)))
    pause.put_off(SYSTEM_CLOCK.monotonic())
    run.cancel()
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(asyncio.CancelledError):
            await run
    assert not any(alive(pid) for pid in pids), "another worker may run the next attempt: no time for a clean-up"


async def test_the_time_of_a_pause_does_not_count_for_the_timeout(make_pool: PoolMaker, tmp_path: pathlib.Path) -> None:
    pool, pause = await make_pool(processes=2), Pause()
    pause.set(True)
    run = asyncio.create_task(pool.run(request("meet", [str(tmp_path), "a"], timeout=SOON), pause=pause))
    await until_async("it has an executor", lambda: pool.free < 4)
    for name in "bcd":
        beside = await pool.run(request("meet", [str(tmp_path), name], timeout=SOON))
        assert beside.failure is not None
        assert beside.executor == "plain-2.1", "an executor that stands still gets nothing new"
    assert not run.done()
    assert started(tmp_path, "a") is None
    pause.set(False)
    outcome = await run
    assert outcome.failure is not None
    assert outcome.failure.error_type == "TimeoutError"


async def test_what_waits_for_a_paused_executor_gets_it_when_the_pause_ends(
    pool: ExecutorPool, tmp_path: pathlib.Path
) -> None:
    pause = Pause()
    run = asyncio.create_task(pool.run(request("meet", [str(tmp_path), "m"]), pause=pause))
    await until_async("it runs", lambda: started(tmp_path, "m"))
    pause.set(True)
    waits = asyncio.create_task(pool.run(request("greet", "x")))
    await asyncio.sleep(0)
    pause.set(False)
    assert (await waits).result == '"Hello, x!"'
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> ExecutorProcess:
    """An executor's process that runs as long as nobody kills it, under a clock that jumps."""
    monkeypatch.setattr(process_session, "stop", lambda session: None)
    monkeypatch.setattr(process_session, "resume", lambda session: None)
    observer: Any = None
    reaper: Any = None
    made = ExecutorProcess("one", observer, reaper=reaper, times=ExecutorTimes(), clock=VirtualClock())
    child: Any = SimpleNamespace(
        pid=1, alive=True, writer=SimpleNamespace(is_closing=lambda: False, writelines=lambda frames: None)
    )
    made._child, made.answers_pings = child, True
    return made


def test_a_paused_process_is_not_killed_for_its_silence(
    process: ExecutorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its host asks again after the pause, and then the whole time begins anew."""
    killed: list[float] = []

    async def play() -> float:
        assert process._child is not None
        monkeypatch.setattr(process, "begin_kill", lambda why: killed.append(asyncio.get_running_loop().time()))
        watch = asyncio.create_task(process._watch(process._child))
        await asyncio.sleep(30.0)
        process.pause(True)
        await asyncio.sleep(1000.0)
        assert not killed
        process.pause(False)
        await watch
        return process.paused_for

    assert virtual_time.run(play()) == 1000.0
    assert 1030.0 + 60.0 <= killed[0] <= 1030.0 + 70.0


@pytest.mark.parametrize("hears", [True, False])
def test_who_is_told_to_stop_while_a_neighbour_stands_still_has_its_grace_after_the_pause(
    process: ExecutorProcess, monkeypatch: pytest.MonkeyPatch, hears: bool
) -> None:
    """It cannot hear it before. A kill would end the neighbour too, which may go on after the pause."""
    neighbour, grace = 1, ExecutorTimes().grace.total_seconds()
    killed: list[float] = []

    async def play() -> None:
        monkeypatch.setattr(process, "send", AsyncMock())
        ended = asyncio.get_running_loop().create_future()
        attempt: Any = SimpleNamespace(number=2, ended=ended)
        executor: Any = SimpleNamespace(_stopping=0, _process=process, _times=ExecutorTimes(), _clock=VirtualClock())
        executor._stands_still = lambda number: number == neighbour

        async def kill(attempt: Any, why: str) -> None:
            killed.append(asyncio.get_running_loop().time())

        executor._kill_for, executor._ends_within = kill, partial(Executor._ends_within, executor)
        process.pause(True)
        stopping = asyncio.create_task(Executor._stop(executor, attempt, "was cancelled"))
        await asyncio.sleep(1000.0)
        assert (executor._stopping, killed) == (1, [])
        process.pause(False)
        await asyncio.sleep(0.9 * grace)
        assert not stopping.done()
        if hears:
            ended.set_result(None)
        await stopping
        assert executor._stopping == 0

    virtual_time.run(play())
    assert killed == ([] if hears else [pytest.approx(1000.0 + grace, abs=1.0)])


class Blocked:
    """An attempt with a record whose worker is blocked for ten minutes, 5 s after its beginning.

    The record was renewed at the beginning. So the reaper lets the executor stand still after 20 s, in the midst of
    that time, and after it the worker renews the record, which nobody has taken over.
    """

    ends = 605.0

    def __init__(self, process: ExecutorProcess, monkeypatch: pytest.MonkeyPatch, timeout: float) -> None:
        monkeypatch.setattr(process, "send", AsyncMock(side_effect=self._hear))
        configure: Any = SimpleNamespace(name="plain-1.1", spark=False, max_log=100, lock_fd=None)
        reaper: Any = None
        logs: Any = None
        self._make = lambda: Executor(
            configure, reaper=reaper, logs=logs, log="log", clock=VirtualClock(), times=ExecutorTimes()
        )
        self._process, self._timeout, self.killed, self.resumed = process, timeout, list[str](), list[float]()
        now = VirtualClock().monotonic
        monkeypatch.setattr(process_session, "resume", lambda session: self.resumed.append(now()))
        monkeypatch.setattr(process, "stop_at", lambda due, *, kills: setattr(process, "_due", (due, kills)))
        monkeypatch.setattr(process, "kill", self._kill)
        monkeypatch.setattr(RecordedAttempt, "_replace_row", AsyncMock())
        monkeypatch.setattr(RecordedAttempt, "_unchanged", AsyncMock(return_value=True))
        monkeypatch.setattr(heartbeat, "fate_of", AsyncMock(return_value=Fate.OPEN))

    async def _hear(self, message: Any) -> None:
        if isinstance(message, Cancel):
            failure = FailureDetails(error_type="Cancelled", error_message="")
            self.executor.received(Failed(number=message.number, failure=failure, cancelled=True))

    async def _kill(self, reason: str) -> None:
        self.killed.append(reason)
        self.executor._attempts[1].end(None)

    async def play(self, *, works: float) -> tuple[ActivityOutcome, float]:
        """Return the outcome, and when it came. :param works: seconds for which the executor must run for a result."""
        self.executor = self._make()
        self.executor.ready, self.executor._process = Ready(activities={}), self._process
        loop: Any = asyncio.get_running_loop()
        sent = request("job", timeout=timedelta(seconds=self._timeout))
        clock = VirtualClock()
        record = ActivityRecord(
            instance=sent.instance,
            task_id=0,
            action_id="action",
            attempt=1,
            name="job",
            state=RecordState.RUNNING,
            worker="one@host/1",
            executor="",
            claimed=clock.utc_now(),
        )
        hub: Any = SimpleNamespace(clock=clock)
        held: Any = None
        attempt = RecordedAttempt(hub, AZURE_LEASE, held, record, "etag", renewed=0.0, longest_pause=math.inf)
        runner: Any = SimpleNamespace(run=lambda sent, *, progress, pause: self.executor.run(sent, progress, pause))
        running = asyncio.create_task(attempt.run(runner, sent))
        await asyncio.sleep(5.0)
        loop._jumping.now += self.ends - 5.0  # nothing runs meanwhile: user code has the loop
        await asyncio.sleep(works - 20.0)
        if not running.done():
            self.executor.received(Done(number=1))
        outcome = await running
        return outcome, loop.time()


def test_a_blocked_worker_does_not_count_the_time_for_which_the_executor_stood_still(
    process: ExecutorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline of the attempt has passed when the worker goes on, but the executor has run for 20 s only."""
    blocked = Blocked(process, monkeypatch, 60.0)
    outcome, _ = virtual_time.run(blocked.play(works=59.0))
    assert outcome.failure is None
    assert blocked.resumed == [pytest.approx(blocked.ends, abs=0.1)], "the overdue renewal is made at once"


def test_after_its_worker_was_blocked_an_attempt_still_has_its_whole_timeout_and_no_more(
    process: ExecutorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked, ended = Blocked(process, monkeypatch, 60.0), list[float]()
    end = RemoteAttempt.end
    monkeypatch.setattr(
        RemoteAttempt, "end", lambda one, answer: (ended.append(asyncio.get_running_loop().time()), end(one, answer))
    )
    outcome, _ = virtual_time.run(blocked.play(works=90.0))
    assert outcome.failure is not None
    assert outcome.failure.error_message == "activity 'job' ran longer than its timeout of 60 s and was stopped"
    assert ended == [pytest.approx(blocked.ends + 60.0 - 20.0, abs=1.0)]


def test_a_timeout_that_was_over_before_the_executor_stood_still_ends_the_attempt(
    process: ExecutorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocked worker could not tell. The executor hears nothing, and another worker may run the next attempt."""
    blocked = Blocked(process, monkeypatch, 15.0)
    outcome, at = virtual_time.run(blocked.play(works=25.0))
    assert outcome.failure is not None
    assert outcome.failure.error_type == "TimeoutError"
    assert blocked.killed == ["was killed because activity 'job' exceeded its timeout while it stood still"]
    assert at <= blocked.ends + 5.0


class Told:
    """The process of an executor: it notes what it gets."""

    def __init__(self) -> None:
        self.paused, self.orders = False, list[object]()

    def pause(self, on: bool) -> None:
        self.paused = on
        self.orders.append("stop" if on else "go on")

    def stop_at(self, due: float, *, kills: bool) -> None:
        self.orders.append(("killed at" if kills else "stands still at", due))


async def test_the_reaper_hears_of_a_pause_and_does_not_end_it_when_the_time_of_a_neighbour_is_put_off() -> None:
    configure: Any = SimpleNamespace(name="plain-1.1", spark=False, max_log=100, lock_fd=None)
    anything: Any = None
    executor = Executor(
        configure, reaper=anything, logs=anything, log="log", clock=VirtualClock(), times=ExecutorTimes()
    )
    process: Any = Told()
    executor._process = process
    one, neighbour = Pause(), Pause()
    executor._pauses = {1: one, 2: neighbour}
    one.due, neighbour.due = 50.0, 20.0
    for pause in (one, neighbour):
        pause.follow(executor._carry_out_pauses)
    assert process.orders[-1] == ("stands still at", 20.0)
    process.orders.clear()
    one.set(True)
    neighbour.put_off(90.0)
    still = ("stands still at", -math.inf)
    assert process.orders == ["stop", still, still]
    one.set(False)
    assert process.orders[3:] == ["go on", ("stands still at", 50.0)]
