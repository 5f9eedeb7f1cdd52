"""Executors that die, hang, or have to be killed; and hosts that do."""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta

import psutil
import pytest
from structlog.testing import capture_logs

from airflow_provider_taskhub.clock import SYSTEM_CLOCK
from airflow_provider_taskhub.workers.executors import process_session
from airflow_provider_taskhub.workers.executors.attempt_values import ActivityOutcome
from airflow_provider_taskhub.workers.executors.pause import Pause
from airflow_provider_taskhub.workers.executors.pool import ExecutorPool, ExecutorTimes
from airflow_provider_taskhub.workers.executors.spawn import launch
from tests.waiting import PATIENCE, until_async
from tests.workers.conftest import Logs, PoolMaker, alive, request, started

SOON = timedelta(seconds=0.3)
BAD = "raise RuntimeError('edited badly, password=hunter2')\n"
GOOD = "from tests.workers.apps import app\n"


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("exit", "exited with code 7"),
        ("kill", "was killed by signal 9 (SIGKILL); likely out of memory"),
        ("segfault", "was killed by signal 11 (SIGSEGV)"),
    ],
)
async def test_a_crash_is_told_with_its_last_words_and_costs_nothing_else(
    pool: ExecutorPool, logs: Logs, how: str, told: str
) -> None:
    outcome = await pool.run(request("crash", how))
    assert outcome.crashed
    assert not outcome.shared
    assert outcome.failure is not None
    assert outcome.failure.error_message == f"executor plain-1.1, running activity 'crash', {told}"
    assert not outcome.failure.is_non_retriable
    lines = logs.lines("attempt.log")
    assert lines[0] == outcome.log_tail[0] == "last words"
    if how == "segfault":  # where it was, as Python's fault handler tells it
        assert lines[1] == "Fatal Python error: Segmentation fault"
        assert any("in crash" in line for line in outcome.log_tail)
    else:
        assert lines == ["last words"]
    assert (await pool.run(request("greet", "again"))).executor == "plain-1.2"


async def test_a_crash_ends_its_neighbours_as_crashed_too(pool: ExecutorPool, tmp_path: pathlib.Path) -> None:
    neighbour = asyncio.create_task(pool.run(request("meet", [str(tmp_path), "n"])))
    await until_async("the neighbour runs", lambda: started(tmp_path, "n"))
    culprit = await pool.run(request("crash", "kill"))
    outcome = await neighbour
    assert outcome.crashed
    assert (culprit.shared, outcome.shared) == (True, True), "nobody knows whose doing it was"
    assert outcome.failure is not None
    assert "running activity 'meet'" in outcome.failure.error_message


async def test_suspects_run_one_at_a_time(pool: ExecutorPool, tmp_path: pathlib.Path) -> None:
    """Each has the executor for itself: it waits for those on board, and others wait for it."""
    neighbour = asyncio.create_task(pool.run(request("meet", [str(tmp_path), "n"])))
    await until_async("the neighbour runs", lambda: started(tmp_path, "n"))
    suspects = [asyncio.create_task(pool.run(request("crash", "exit", alone=True))) for _ in range(3)]
    await asyncio.sleep(0)
    other = asyncio.create_task(pool.run(request("greet", "you")))
    await asyncio.sleep(0)
    assert [seat.load for seat in pool._seats] == [1, 0], "nobody is put beside the neighbour, which would hold it up"
    (tmp_path / "n.go").touch()
    assert (await neighbour).result == '"n"'
    outcomes = await asyncio.gather(*suspects)
    assert pool._seats[0].backoff == 0, "it is clear whose doing it was: nothing is wrong with the executors"
    assert [(outcome.crashed, outcome.shared) for outcome in outcomes] == [(True, False)] * 3
    assert [outcome.executor for outcome in outcomes] == ["plain-1.1", "plain-1.2", "plain-1.3"]
    assert (await other).executor == "plain-1.4"


async def test_beside_suspects_the_other_work_goes_on(make_pool: PoolMaker, tmp_path: pathlib.Path) -> None:
    pool = await make_pool(processes=2)
    suspect = asyncio.create_task(pool.run(request("meet", [str(tmp_path), "s"], alone=True)))
    await until_async("the suspect runs", lambda: started(tmp_path, "s"))
    for number in range(4):
        assert (await pool.run(request("greet", str(number)))).executor == "plain-2.1"
    crash = asyncio.create_task(pool.run(request("crash", "kill")))
    assert not (await crash).shared, "the suspect was not on board"
    (tmp_path / "s.go").touch()
    assert (await suspect).executor == "plain-1.1"
    three = await asyncio.gather(*(pool.run(request("greet", "x")) for _ in range(3)))
    assert "plain-1.1" in {outcome.executor for outcome in three}, "it takes everybody again"


async def test_a_suspect_that_gives_up_waiting_leaves_the_place_to_others(
    pool: ExecutorPool, tmp_path: pathlib.Path
) -> None:
    neighbour = asyncio.create_task(pool.run(request("meet", [str(tmp_path), "n"])))
    await until_async("the neighbour runs", lambda: started(tmp_path, "n"))
    suspect = asyncio.create_task(pool.run(request("greet", "suspect", alone=True)))
    other = asyncio.create_task(pool.run(request("greet", "other")))
    await asyncio.sleep(0)
    suspect.cancel()
    assert (await other).result == '"Hello, other!"'
    (tmp_path / "n.go").touch()
    await neighbour
    assert pool.free == 4


async def test_a_kill_by_the_reaper_tells_why_it_had_to_end(pool: ExecutorPool, tmp_path: pathlib.Path) -> None:
    """Its worker was blocked for so long that another worker may run the next attempt."""
    pause = Pause(kill_after=0.0)
    run = asyncio.create_task(pool.run(request("meet", [str(tmp_path), "m"]), pause=pause))
    await until_async("it runs", lambda: started(tmp_path, "m"))
    pause.put_off(SYSTEM_CLOCK.monotonic())
    outcome = await run
    assert (outcome.crashed, outcome.shared) == (True, False)
    assert outcome.failure is not None
    assert outcome.failure.error_message == (
        "executor plain-1.1, running activity 'meet', was killed because the records of its attempts were not renewed "
        "in time"
    )
    assert (await pool.run(request("greet", "x"))).executor == "plain-1.2"


async def test_a_crash_after_a_late_renewal_is_told_as_a_crash(pool: ExecutorPool, tmp_path: pathlib.Path) -> None:
    pause = Pause(kill_after=0.0)
    pause.put_off(SYSTEM_CLOCK.monotonic() + PATIENCE)
    outcome = await pool.run(request("crash", "exit"), pause=pause)
    assert outcome.failure is not None
    assert outcome.failure.error_message.endswith("exited with code 7")


async def test_a_second_try_after_a_crash_succeeds(pool: ExecutorPool, tmp_path: pathlib.Path) -> None:
    marker = str(tmp_path / "marker")
    assert (await pool.run(request("crash_once", marker))).crashed
    assert (await pool.run(request("crash_once", marker))).result == '"survived"'


async def test_nothing_of_a_dead_executor_is_left_when_its_outcome_is_told(
    pool: ExecutorPool, tmp_path: pathlib.Path
) -> None:
    run = asyncio.create_task(pool.run(request("children", [str(tmp_path), "c"])))
    pids = [int(pid) for pid in (await until_async("children", lambda: started(tmp_path, "c"))).split()]
    assert all(alive(pid) for pid in pids)
    assert len({os.getpgid(pid) for pid in pids}) == 2, "one of them has made a group of its own"
    os.kill(pids[0], signal.SIGKILL)
    assert (await run).crashed
    assert not any(alive(pid) for pid in pids)


@pytest.mark.rows("D34")
async def test_a_timeout_asks_first(pool: ExecutorPool, tmp_path: pathlib.Path) -> None:
    outcome = await pool.run(request("meet", [str(tmp_path), "m"], timeout=SOON))
    assert outcome.failure is not None
    assert outcome.failure.error_type == "TimeoutError"
    assert outcome.failure.error_message == "activity 'meet' ran longer than its timeout of 0.3 s and was stopped"
    assert not outcome.crashed
    assert (await pool.run(request("greet", "x"))).executor == "plain-1.1", "nobody had to be killed"


@pytest.mark.rows("D34")
async def test_a_timeout_kills_who_does_not_listen(make_pool: PoolMaker, tmp_path: pathlib.Path) -> None:
    pool = await make_pool(times=ExecutorTimes(grace=SOON))
    neighbour = asyncio.create_task(pool.run(request("meet", [str(tmp_path), "n"])))
    await until_async("the neighbour runs", lambda: started(tmp_path, "n"))
    outcome = await pool.run(request("stubborn", [str(tmp_path), "s"], timeout=SOON))
    assert outcome.failure is not None
    assert outcome.failure.error_message == (
        "activity 'stubborn' ran longer than its timeout of 0.3 s and was killed with its executor"
    )
    assert not outcome.crashed, "a timeout counts as a failure of the activity"
    assert not alive(int(started(tmp_path, "s") or 0))
    beside = await neighbour
    assert beside.crashed
    assert beside.shared
    assert beside.failure is not None
    assert "was killed because activity 'stubborn' exceeded its timeout" in beside.failure.error_message


async def test_an_async_activity_is_cancelled(pool: ExecutorPool, tmp_path: pathlib.Path) -> None:
    run = asyncio.create_task(pool.run(request("sleepy", [str(tmp_path), "s"])))
    await until_async("it runs", lambda: started(tmp_path, "s"))
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert (tmp_path / "s.ended").exists(), "its finally has run before the cancellation was through"
    assert (await pool.run(request("greet", "x"))).executor == "plain-1.1"


async def test_a_cancelled_activity_runs_no_more_when_the_cancellation_is_through(
    make_pool: PoolMaker, tmp_path: pathlib.Path
) -> None:
    pool = await make_pool(times=ExecutorTimes(grace=SOON))
    run = asyncio.create_task(pool.run(request("stubborn", [str(tmp_path), "s"])))
    pid = int(await until_async("it runs", lambda: started(tmp_path, "s")))
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert not alive(pid)
    assert pool.free == 4


async def test_a_second_cancellation_kills_at_once(make_pool: PoolMaker, tmp_path: pathlib.Path) -> None:
    pool = await make_pool(times=ExecutorTimes(grace=timedelta(hours=1)))
    run = asyncio.create_task(pool.run(request("stubborn", [str(tmp_path), "s"])))
    pid = int(await until_async("it runs", lambda: started(tmp_path, "s")))
    run.cancel()
    await asyncio.sleep(0)
    assert not run.done()
    run.cancel()
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(asyncio.CancelledError):
            await run
    assert not alive(pid)


async def test_nobody_is_put_beside_an_activity_that_is_being_stopped(
    make_pool: PoolMaker, tmp_path: pathlib.Path
) -> None:
    pool = await make_pool(times=ExecutorTimes(grace=timedelta(seconds=1)))
    run = asyncio.create_task(pool.run(request("stubborn", [str(tmp_path), "s"])))
    await until_async("it runs", lambda: started(tmp_path, "s"))
    run.cancel()
    await asyncio.sleep(0)
    outcome = await pool.run(request("greet", "x"))
    assert outcome.result == '"Hello, x!"'
    assert outcome.executor == "plain-1.2"
    await asyncio.gather(run, return_exceptions=True)


async def test_cancelling_who_still_waits_runs_nothing(make_pool: PoolMaker, tmp_path: pathlib.Path) -> None:
    pool = await make_pool(size=1)
    first = asyncio.create_task(pool.run(request("meet", [str(tmp_path), "first"])))
    await until_async("the only slot is taken", lambda: started(tmp_path, "first"))
    second = asyncio.create_task(pool.run(request("meet", [str(tmp_path), "second"])))
    third = asyncio.create_task(pool.run(request("greet", "third")))
    await asyncio.sleep(0)
    second.cancel()
    (tmp_path / "first.go").touch()
    assert (await first).result == '"first"'
    assert (await third).result == '"Hello, third!"'
    with pytest.raises(asyncio.CancelledError):
        await second
    assert started(tmp_path, "second") is None
    assert pool.free == 1


async def test_a_held_gil_stops_neither_host_nor_others(make_pool: PoolMaker, tmp_path: pathlib.Path) -> None:
    """The interpreter of one executor stands still."""
    times = ExecutorTimes(ping=timedelta(seconds=0.1), silence=timedelta(hours=1))
    pool = await make_pool(processes=2, times=times)
    held = asyncio.create_task(pool.run(request("hold_gil", [str(tmp_path), "g"])))
    pid = int(await until_async("it holds", lambda: started(tmp_path, "g")))
    for number in range(20):  # on the other executor, since this one is busier
        assert (await pool.run(request("greet", str(number)))).executor == "plain-2.1"
    assert not held.done()
    await pool.stop(timedelta(0))
    assert (await held).crashed
    assert not alive(pid)


async def test_an_executor_that_holds_its_gil_is_killed_for_its_silence(
    make_pool: PoolMaker, tmp_path: pathlib.Path
) -> None:
    times = ExecutorTimes(ping=timedelta(seconds=0.1), silence=timedelta(seconds=1))
    pool = await make_pool(times=times)
    outcome = await pool.run(request("hold_gil", [str(tmp_path), "g"]))
    pid = int(started(tmp_path, "g") or 0)
    assert outcome.crashed
    assert outcome.failure is not None
    assert "was killed because it gave no sign of life for 1 s" in outcome.failure.error_message
    assert not alive(pid)


async def test_stop_ends_what_runs_and_leaves_nothing(make_pool: PoolMaker, tmp_path: pathlib.Path) -> None:
    pool = await make_pool()
    run = asyncio.create_task(pool.run(request("stubborn", [str(tmp_path), "s"])))
    pid = int(await until_async("it runs", lambda: started(tmp_path, "s")))
    await pool.stop(SOON)
    outcome = await run
    assert outcome.crashed
    assert not alive(pid)
    late = await pool.run(request("greet", "late"))
    assert late.crashed
    assert late.failure is not None
    assert "the worker is stopping" in late.failure.error_message


async def test_stop_waits_for_what_runs(make_pool: PoolMaker, tmp_path: pathlib.Path) -> None:
    pool = await make_pool()
    run = asyncio.create_task(pool.run(request("meet", [str(tmp_path), "m"])))
    await until_async("it runs", lambda: started(tmp_path, "m"))
    stop = asyncio.create_task(pool.stop(timedelta(seconds=60)))
    await asyncio.sleep(0)
    (tmp_path / "m.go").touch()
    await stop
    assert (await run).result == '"m"'


@pytest.fixture
def brittle(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
    """Writes the source of ``brittle_app``, which is ``GOOD`` at first."""
    module = tmp_path / "brittle_app.py"
    module.write_text(GOOD)
    monkeypatch.syspath_prepend(str(tmp_path))
    return module.write_text


async def test_an_activity_waits_for_an_app_that_is_mended(make_pool: PoolMaker, brittle: Callable[[str], int]) -> None:
    """Starts are repeated and logged; the activity that waits loses nothing by them."""
    pool = await make_pool(apps=["brittle_app:app"])
    brittle(BAD)
    assert (await pool.run(request("crash", "exit"))).crashed
    with capture_logs() as logs:
        waiting = asyncio.create_task(pool.run(request("greet", "x")))
        failed = await until_async(
            "a second failed start", lambda: [line for line in logs if line["event"] == "executor_failed_to_start"][1:]
        )
        assert "RuntimeError: edited badly" in failed[0]["error"]
        assert "brittle_app.py" in failed[0]["stack_trace"]
        assert failed[0]["again_in"] is not None
    assert not waiting.done()
    brittle(GOOD)
    assert (await waiting).result == '"Hello, x!"'


async def test_an_activity_that_waits_too_long_for_an_executor_fails_and_says_why(
    make_pool: PoolMaker, brittle: Callable[[str], int]
) -> None:
    times = ExecutorTimes(patience=timedelta(seconds=1.5))
    pool = await make_pool(apps=["brittle_app:app"], times=times)
    brittle(BAD)
    assert (await pool.run(request("crash", "exit"))).crashed
    outcome = await pool.run(request("greet", "x"))
    assert not outcome.crashed, "no executor was lost by it: it must not be tried again as after a crash"
    assert outcome.failure is not None
    assert outcome.failure.error_type == "ExecutorUnavailable"
    text = outcome.failure.error_message
    assert text.startswith("activity 'greet' got no executor: the worker could not start an executor for ")
    assert "executor_failed_to_start in the log of worker" in text
    assert "RuntimeError: edited badly" in text
    assert "brittle_app.py" in (outcome.failure.stack_trace or "")
    assert "hunter2" not in repr(outcome.failure)
    brittle(GOOD)
    assert (await pool.run(request("greet", "x"))).result == '"Hello, x!"'


async def test_a_suspect_does_not_wait_for_an_executor_that_does_not_come(
    make_pool: PoolMaker, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "fragile_app.py"
    module.write_text("from tests.workers.apps import app\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    pool = await make_pool(apps=["fragile_app:app"], processes=2)
    # Another size than before: Python takes a module of the same second and size from its cache.
    module.write_text("raise RuntimeError('this module was edited badly')\n")
    assert (await pool.run(request("crash", "exit"))).crashed
    async with asyncio.timeout(PATIENCE):
        assert (await pool.run(request("greet", "x", alone=True))).executor == "plain-2.1"


async def test_an_executor_that_is_not_ready_in_time_is_killed(make_pool: PoolMaker) -> None:
    with pytest.raises(Exception, match="not ready within 0 s"):
        await make_pool(times=ExecutorTimes(start=timedelta(0)))


async def test_a_start_that_is_cancelled_leaves_nothing(make_pool: PoolMaker) -> None:
    before = {child.pid for child in psutil.Process().children()}
    start = asyncio.create_task(make_pool(processes=2))
    await until_async(
        "reaper, two executors", lambda: len({child.pid for child in psutil.Process().children()} - before) == 3
    )
    begun = {child.pid for child in psutil.Process().children()} - before
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert not any(alive(pid) for pid in begun)


@pytest.mark.process
async def test_a_launch_that_is_cancelled_at_any_turn_leaves_nothing() -> None:
    """Before the pool knows of the process, too."""
    turns = 0
    while True:
        before = set(psutil.Process().children())
        starting = asyncio.create_task(launch(lock_fd=None))
        for _ in range(turns):
            await asyncio.sleep(0)
        if starting.done():
            break
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert set(psutil.Process().children()) <= before, f"cancelled after {turns} turns"
        turns += 1
    process = await starting
    process_session.kill(process.pid)
    await process.ended
    process.close()
    assert turns > 2


HOST = """
import asyncio, sys
from tests.workers.conftest import APP, Logs, request
from airflow_provider_taskhub.settings import SparkSettings
from airflow_provider_taskhub.workers.executors.pause import Pause
from airflow_provider_taskhub.workers.executors.pool import ExecutorConfig, ExecutorPool

async def main():
    config = ExecutorConfig(apps=(APP,), spark=SparkSettings(), lock_fd=int(sys.argv[1]))
    pool = ExecutorPool(config, size=4, logs=Logs(), processes=2)
    await pool.start()
    folder = sys.argv[2]
    await asyncio.gather(pool.run(request("children", [folder, "c"])), pool.run(request("hold_gil", [folder, "g"])))

asyncio.run(main())
"""


@pytest.mark.process
async def test_a_killed_host_takes_its_executors_along_and_frees_its_lock(tmp_path: pathlib.Path) -> None:
    """No process of a dead worker goes on, not even one whose interpreter stands still."""
    lock = tmp_path / "lock"
    descriptor = os.open(lock, os.O_CREAT | os.O_RDWR)
    host = subprocess.Popen(  # noqa: ASYNC220  # returns once it is started, and nothing else runs here
        [sys.executable, "-c", HOST, str(descriptor), str(tmp_path)],
        pass_fds=(descriptor,),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)},
    )
    try:
        children = await until_async("an executor with children", lambda: started(tmp_path, "c"))
        held = await until_async("an executor with a held GIL", lambda: started(tmp_path, "g"))
        pids = [int(pid) for pid in (*children.split(), held)]
        executors = [child.pid for child in psutil.Process(host.pid).children()]
        assert all(holds(pid, lock) for pid in executors), "each executor inherited the lock"
    finally:
        host.kill()
        host.wait()
        os.close(descriptor)
    await until_async("all of them are gone", lambda: not any(alive(pid) for pid in [*pids, *executors]))
    assert not any(process_session.members(pid) for pid in executors)


def holds(pid: int, path: pathlib.Path) -> bool:
    return str(path) in {file.path for file in psutil.Process(pid).open_files()}


async def test_the_host_is_told_why_a_deaf_executor_died(pool: ExecutorPool, tmp_path: pathlib.Path) -> None:
    run: asyncio.Task[ActivityOutcome] = asyncio.create_task(pool.run(request("meet", [str(tmp_path), "m"])))
    pid = int(await until_async("it runs", lambda: started(tmp_path, "m")))
    os.kill(pid, signal.SIGTERM)
    outcome = await run
    assert outcome.crashed
    assert outcome.failure is not None
    assert "was killed by signal 15 (SIGTERM)" in outcome.failure.error_message


async def test_only_an_executor_that_still_runs_activities_is_killed_by_a_stop(
    make_pool: PoolMaker, tmp_path: pathlib.Path
) -> None:
    idle, busy = await make_pool(), await make_pool()
    attempt = asyncio.create_task(busy.run(request("stubborn", [str(tmp_path), "a"])))
    await until_async("it runs", lambda: started(tmp_path, "a"))
    with capture_logs() as logs:
        await idle.stop(timedelta(0))
        await busy.stop(timedelta(0))
    told = [entry["reason"] for entry in logs if entry["event"] == "executor_ended"]
    assert told == ["ended because its worker stopped", "was killed because its worker stopped"]
    assert (await attempt).crashed
