"""A paused attempt runs no step, nor does a process that it has started, and it ends like any other one."""

from __future__ import annotations

import asyncio
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
from airflow_provider_taskhub.virtual_time import VirtualClock
from airflow_provider_taskhub.workers.executors import process_session
from airflow_provider_taskhub.workers.executors.executor import Executor
from airflow_provider_taskhub.workers.executors.pause import Pause
from airflow_provider_taskhub.workers.executors.pool import ExecutorPool
from airflow_provider_taskhub.workers.executors.process import ExecutorProcess, ExecutorTimes
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
        executor: Any = SimpleNamespace(_stopping=0, _process=process, _times=ExecutorTimes())
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
