"""A pool of real executor processes: results, failures, logs, progress, limits."""

from __future__ import annotations

import asyncio
import json
import pathlib
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from airflow_provider_taskhub.clock import SYSTEM_CLOCK
from airflow_provider_taskhub.engine.events import OrchestrationInstance, TraceContext
from airflow_provider_taskhub.errors import ConfigurationError
from airflow_provider_taskhub.lineage import NO_LINEAGE, Lineage
from airflow_provider_taskhub.settings import SparkSettings
from airflow_provider_taskhub.workers.executors import process_session
from airflow_provider_taskhub.workers.executors.attempt_values import ActivityProgress, ActivityRequest
from airflow_provider_taskhub.workers.executors.executor import Executor, ExecutorError
from airflow_provider_taskhub.workers.executors.pool import ExecutorConfig, ExecutorLimits, ExecutorPool
from airflow_provider_taskhub.workers.executors.process import ExecutorProcess
from airflow_provider_taskhub.workers.executors.scheduling import ExecutorKind
from tests.breaking import Breaker
from tests.waiting import PATIENCE, until_async
from tests.workers.conftest import Logs, PoolMaker, alive, request, started


async def test_results_travel_as_json(pool: ExecutorPool) -> None:
    outcome = await pool.run(request("greet", "Wörld"))
    assert json.loads(outcome.result or "") == "Hello, Wörld!"
    assert outcome.failure is None
    assert not outcome.crashed
    assert outcome.executor == "plain-1.1"
    assert (await pool.run(request("nothing", input=None))).result == "null"
    typed = await pool.run(request("typed", {"year": 2013, "start": "2013-01-01"}))
    assert json.loads(typed.result or "") == {"kind": "Job", "year": 2014, "day": "2013-01-01"}


async def test_async_activities_share_the_loop(pool: ExecutorPool) -> None:
    assert (await pool.run(request("asynchronous", "on"))).result == '"on MainThread"'


async def test_activities_share_threads_but_no_context(pool: ExecutorPool) -> None:
    marks = [json.loads((await pool.run(request("mark", text))).result or "") for text in "abcdefgh"]
    assert [before for before, _ in marks] == ["none"] * 8
    assert len({thread for _, thread in marks}) < 8, "a thread is taken again once its activity is over"


@pytest.mark.rows("K51")
async def test_an_activity_knows_its_call(pool: ExecutorPool) -> None:
    carried = TraceContext(trace_parent=f"00-{'a' * 32}-{'b' * 16}-01", trace_state="vendor=x")
    more = {"action_id": "same", "attempt": 3, "tags": {"dag": "flights"}, "trace": carried}
    outcome = await pool.run(request("info", input=None, **more))
    known = json.loads(outcome.result or "")
    assert {**known, "pid": 0} == {
        "instance": "inst",
        "attempt": 3,
        "key": "same",
        "name": "info",
        "tags": {"dag": "flights"},
        "trace": [carried.trace_parent, "vendor=x"],
        "pid": 0,
    }


@pytest.mark.parametrize("name", ["greet", "asynchronous"])
async def test_an_attempt_that_comes_too_late_does_not_begin(pool: ExecutorPool, name: str) -> None:
    """The worker and its executors measure with one clock."""
    now = SYSTEM_CLOCK.monotonic()
    late = await pool.run(request(name, "you", begin_by=now - 0.001))
    assert (late.too_late, late.crashed, late.result) == (True, False, None)
    outcome = await pool.run(request(name, "you", begin_by=now + 3600.0))
    assert outcome.result
    assert not outcome.too_late


async def test_progress_reaches_the_host_before_the_outcome(pool: ExecutorPool) -> None:
    heard: list[ActivityProgress] = []
    await pool.run(request("report", input=None), progress=heard.append)
    assert heard[0] == ActivityProgress(executor="plain-1.1")
    assert (heard[1].fraction, heard[1].message) == (0.25, "a quarter")
    assert (heard[-1].fraction, heard[-1].message) == (1.0, "almost")


async def test_the_outcome_of_a_success_has_what_the_activity_declared(pool: ExecutorPool) -> None:
    outcome = await pool.run(request("declaring", "all"))
    assert outcome.lineage == Lineage(inlets=("s3://bucket/in",), outlets=("s3://bucket/out",))
    assert (await pool.run(request("greet", "you"))).lineage == NO_LINEAGE
    failed = await pool.run(request("declaring", "fail"))
    assert (failed.failure is not None, failed.lineage) == (True, NO_LINEAGE)


async def test_a_wrong_declaration_fails_the_activity(pool: ExecutorPool) -> None:
    for name, arguments, text in (
        ("declaring", {"input": '["wrong"]'}, "'monthly' is not a URI"),
        ("declaring_unrecorded", {"input": None}, "declare it with @app.activity(record=True)"),
    ):
        failure = (await pool.run(request(name, **arguments))).failure
        assert failure is not None
        assert (failure.error_type, failure.is_non_retriable) == ("InputError", True)
        assert text in failure.error_message


async def test_an_activity_waits_until_its_state_is_stored(pool: ExecutorPool) -> None:
    stored: list[ActivityProgress] = []

    def heard(news: ActivityProgress) -> None:
        if news.confirm is not None:
            stored.append(news)
            if news.saved != '"second"':
                news.confirm()

    run = asyncio.create_task(pool.run(request("keeps", [{"job": 7}, "second", None], saved="[1]"), progress=heard))
    await until_async("the second state is asked for", lambda: len(stored) == 2)
    assert not run.done(), "it waits for the second answer"
    assert stored[1].confirm is not None
    stored[1].confirm()
    outcome = await run
    assert json.loads(outcome.result or "") == [[1], {"job": 7}, "second", None]
    assert [news.saved for news in stored] == ['{"job":7}', '"second"', "null"]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (request("keeps_without_a_record", 1), "save_state(): this activity has no record that could keep the value"),
        (request("keeps_on_the_loop", 1), "write await asyncio.to_thread(save_state, value)"),
        (request("keeps", ["x" * 30_001]), "the value has 30,003 characters as JSON, at most 30,000"),
    ],
    ids=["record", "loop", "size"],
)
async def test_a_state_that_cannot_be_stored_fails_the_activity(
    pool: ExecutorPool, call: ActivityRequest, text: str
) -> None:
    failure = (await pool.run(call)).failure
    assert failure is not None
    assert text in failure.error_message


@pytest.mark.parametrize("name", ["cleans_up", "cleans_up_on_the_loop"])
async def test_a_call_that_only_cleans_up_is_asked_to_stop_from_the_beginning(pool: ExecutorPool, name: str) -> None:
    assert (await pool.run(request(name, 1, saved="7", clean_up=True))).result == '"True 7"'
    assert (await pool.run(request(name, 1, saved="7"))).result == '"False 7"'


async def test_an_async_activity_saves_its_state_in_a_thread(pool: ExecutorPool) -> None:
    def heard(news: ActivityProgress) -> None:
        if news.confirm is not None:
            news.confirm()

    assert (await pool.run(request("keeps_in_a_thread", 5), progress=heard)).result == "5"


async def test_an_activity_that_waits_for_its_state_can_be_cancelled(pool: ExecutorPool) -> None:
    asked = asyncio.Event()
    run = asyncio.create_task(
        pool.run(request("keeps", ["never stored"]), progress=lambda news: asked.set() if news.confirm else None)
    )
    await asked.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert (await pool.run(request("greet", "Ann"))).result == '"Hello, Ann!"', "its executor was not killed"


async def test_a_listener_that_fails_costs_nothing(pool: ExecutorPool) -> None:
    def listen(_: ActivityProgress) -> None:
        raise RuntimeError("not my day")

    assert (await pool.run(request("report", input=None), progress=listen)).result == '"done"'


@pytest.mark.parametrize(
    ("name", "arguments", "error_type", "message", "final"),
    [
        ("fail", ["plain"], "RuntimeError", "boom", False),
        ("fail", ["final"], "OrchestrationError", "never again", True),
        ("fail", ["refused"], "tests.workers.apps.Refused", "no", True),
        ("fail", ["exit"], "SystemExit", "3", False),
        ("fail", ["interrupt"], "KeyboardInterrupt", "enough", False),
        ("fail_async", [], "SystemExit", "4", False),
        ("fail_beside", [], "SystemExit", "4", False),
        ("unserialisable", [], "InputError", "result of activity 'unserialisable' of type lock", True),
        ("typed", [{"year": 1}], "InputError", "start: Field required", True),
        ("unheard_of", [], "UnknownActivity", "'unheard_of'", False),
    ],
)
async def test_a_failed_activity_reports_its_error_and_the_executor_goes_on(
    pool: ExecutorPool, name: str, arguments: list[object], error_type: str, message: str, final: bool
) -> None:
    outcome = await pool.run(request(name, *arguments))
    assert outcome.failure is not None
    assert outcome.failure.error_type == error_type
    assert message in outcome.failure.error_message
    assert outcome.failure.is_non_retriable is final
    assert outcome.result is None
    assert not outcome.crashed
    assert (await pool.run(request("greet", "you"))).executor == outcome.executor, "the executor lives on"


async def test_a_failure_brings_its_cause_and_the_users_own_trace(pool: ExecutorPool) -> None:
    failure = (await pool.run(request("fail", "cause"))).failure
    assert failure is not None
    assert failure.inner_failure is not None
    assert (failure.inner_failure.error_type, failure.inner_failure.error_message) == ("KeyError", "'month'")
    assert "tests/workers/apps.py" in (failure.stack_trace or "")
    assert "child.py" not in (failure.stack_trace or "")


async def test_an_input_and_a_result_of_5_mb_arrive_whole(pool: ExecutorPool) -> None:
    outcome = await pool.run(request("greet", "x" * 5_000_000))
    assert len(outcome.result or "") == 5_000_000 + len('"Hello, !"')


async def test_another_executor_takes_the_place_of_one_that_has_begun_enough(
    make_pool: PoolMaker, tmp_path: pathlib.Path
) -> None:
    pool = await make_pool(limits=ExecutorLimits(activities=2))
    long = asyncio.create_task(pool.run(request("meet", [str(tmp_path), "long"])))
    await until_async("it has begun", lambda: started(tmp_path, "long"))
    old = int(started(tmp_path, "long") or "")

    async def pid() -> int:
        return int(json.loads((await pool.run(request("info"))).result or "")["pid"])

    assert await pid() == old
    await until_async("another one is ready", lambda: pool._seats[0].executor and pool._seats[0].executor.pid != old)
    new = await pid()
    assert new != old
    assert alive(old), "an activity runs in it"
    (tmp_path / "long.go").touch()
    assert (await long).failure is None
    await until_async("the old one has ended", lambda: not alive(old))
    assert await pid() == new, "the second attempt of the new one"


async def test_another_executor_takes_the_place_of_one_that_has_too_much_memory(make_pool: PoolMaker) -> None:
    pool = await make_pool(limits=ExecutorLimits(memory=400 * 1024 * 1024))
    (seat,) = [seat for seat in pool._seats if seat.kind is ExecutorKind.PLAIN]
    assert seat.executor is not None
    old = seat.executor.pid
    assert (await pool.run(request("greet", "Ann"))).failure is None
    assert (await pool.run(request("keeps_memory", 400))).failure is None
    await until_async("another one is ready", lambda: seat.executor and seat.executor.pid != old)
    assert (await pool.run(request("greet", "Ann"))).failure is None


async def test_an_executor_that_has_run_nothing_stays_whatever_its_memory_is(
    make_pool: PoolMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a limit that is too low, each new one would be replaced at once."""
    measured: list[int] = []

    def memory(session: int) -> int:
        measured.append(session)
        return 10

    monkeypatch.setattr(process_session, "memory", memory)
    pool = await make_pool(limits=ExecutorLimits(memory=1))
    (seat,) = [seat for seat in pool._seats if seat.kind is ExecutorKind.PLAIN]
    await until_async("it was measured twice", lambda: len(measured) >= 2)
    assert seat.starts == 1
    assert (await pool.run(request("greet", "Ann"))).failure is None
    await until_async("another one has its place", lambda: seat.starts == 2)


async def test_an_executor_stays_if_no_other_one_starts(make_pool: PoolMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(self: Executor, environment: object) -> None:
        raise ExecutorError("no room")

    pool = await make_pool(limits=ExecutorLimits(activities=1))
    executor = pool._seats[0].executor
    monkeypatch.setattr(Executor, "start", start)
    with capture_logs() as logs:
        assert (await pool.run(request("greet", "Ann"))).failure is None
        await until_async("the start has failed", lambda: "executor_not_replaced" in [one["event"] for one in logs])
    assert (await pool.run(request("greet", "Eve"))).result == '"Hello, Eve!"'
    assert pool._seats[0].executor is executor


async def test_output_goes_to_the_log_of_its_attempt(pool: ExecutorPool, logs: Logs, tmp_path: pathlib.Path) -> None:
    both = [asyncio.create_task(pool.run(request("talk", [str(tmp_path), name], log=f"{name}.log"))) for name in "ab"]
    for name in "ab":
        await until_async(f"{name} talks", lambda name=name: started(tmp_path, name))
    for name in "ab":
        (tmp_path / f"{name}.go").touch()
    outcomes = await asyncio.gather(*both)
    for name, outcome in zip("ab", outcomes, strict=True):
        lines = logs.lines(f"{name}.log")
        plain = [line for line in lines if "WARNING" not in line]
        kinds = ("stdout", "stderr", "bytes", "thread")
        expected = [f"{name} {turn} {kind}" for turn in ("first", "second") for kind in kinds]
        assert plain == [*expected, f"{name} unfinished"]
        assert [line.split(" ", 2)[2] for line in lines if "WARNING" in line] == [
            f"WARNING {name}: first logging",
            f"WARNING {name}: second logging",
        ]
        assert list(outcome.log_tail) == lines


async def test_output_of_async_activities_is_kept_apart(pool: ExecutorPool, logs: Logs) -> None:
    await asyncio.gather(*(pool.run(request("talk_async", name, log=name)) for name in "abc"))
    assert {name: logs.lines(name) for name in "abc"} == {name: [f"{name} before", f"{name} after"] for name in "abc"}


async def test_logs_are_bounded_and_say_so(make_pool: PoolMaker, logs: Logs) -> None:
    pool = await make_pool(max_log=15_000)
    outcome = await pool.run(request("chatter", 5_000))
    assert len(logs.written["attempt.log"]) < 15_100
    assert logs.lines("attempt.log")[-1] == "[taskhub] log truncated after 15,000 bytes"
    assert len(outcome.log_tail) == 50
    assert outcome.log_tail[-1] == "[taskhub] log truncated after 15,000 bytes"


async def test_logs_travel_in_batches(pool: ExecutorPool, logs: Logs) -> None:
    outcome = await pool.run(request("chatter", 10_000))
    assert len(logs.lines("attempt.log")) == 10_000
    assert logs.batches < 100
    assert outcome.log_tail == tuple(f"line {number:09d}" for number in range(9_950, 10_000))


async def test_storage_that_fails_costs_log_lines_only(make_pool: PoolMaker) -> None:
    async def refuse(name: str, data: bytes) -> None:
        raise OSError("disk full")

    pool = await make_pool(logs=refuse)
    outcome = await pool.run(request("chatter", 3))
    assert outcome.result == "null"
    assert outcome.log_tail == ("line 000000000", "line 000000001", "line 000000002")


async def test_what_children_of_the_only_attempt_wrote_is_in_its_log_too(pool: ExecutorPool, logs: Logs) -> None:
    assert (await pool.run(request("fork", input=None))).result == "0"
    outcome = await pool.run(request("shell", input=None))
    assert outcome.log_tail == ("from a subprocess",)
    await pool.stop(timedelta(0))
    assert logs.lines("attempt.log") == ["from the fork", "from a subprocess"]
    assert logs.lines("executors/worker/plain-1.1.log") == ["from the fork", "from a subprocess"]


async def test_what_one_of_several_attempts_wrote_is_in_the_executors_log(
    pool: ExecutorPool, logs: Logs, tmp_path: pathlib.Path
) -> None:
    waiting = asyncio.create_task(pool.run(request("meet", [str(tmp_path), "a"], log="a.log")))
    await until_async("a has begun", lambda: started(tmp_path, "a"))
    assert (await pool.run(request("shell", input=None))).failure is None
    (tmp_path / "a.go").touch()
    await waiting
    await pool.stop(timedelta(0))
    assert logs.lines("executors/worker/plain-1.1.log") == ["from a subprocess"]
    assert not {"attempt.log", "a.log"} & logs.written.keys()


async def test_a_thousand_activities_at_once_get_their_own_results_from_two_executors(make_pool: PoolMaker) -> None:
    pool = await make_pool(size=8, processes=2)
    numbers = [pool.run(request("greet", str(number), task_id=number)) for number in range(1000)]
    outcomes = await asyncio.gather(*numbers)
    assert [outcome.result for outcome in outcomes] == [json.dumps(f"Hello, {number}!") for number in range(1000)]
    assert {outcome.executor for outcome in outcomes} == {"plain-1.1", "plain-2.1"}


@pytest.mark.parametrize(("size", "cores", "plain"), [(12, 3, 3), (2, 3, 2), (2, None, 1)])
async def test_there_is_a_plain_executor_for_each_core(
    make_pool: PoolMaker, monkeypatch: pytest.MonkeyPatch, size: int, cores: int | None, plain: int
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    pool = await make_pool(size=size, processes=None)
    assert len(pool._seats) == plain + 1, "one more is for Spark"
    outcomes = await asyncio.gather(*(pool.run(request("greet", "you", task_id=number)) for number in range(24)))
    assert {outcome.executor for outcome in outcomes} == {f"plain-{number}.1" for number in range(1, plain + 1)}


async def test_no_more_at_once_than_asked_for_and_every_instance_gets_its_turn(
    make_pool: PoolMaker, tmp_path: pathlib.Path
) -> None:
    pool = await make_pool(size=2)
    order: list[str] = []

    async def run(name: str, instance: str) -> None:
        known = OrchestrationInstance(instance_id=instance)
        await pool.run(request("meet", [str(tmp_path), name], instance=known))
        order.append(name)

    names = ["w1", "w2", "w3", "w4"]
    runs = [asyncio.create_task(run(name, "wide")) for name in names]
    await until_async("both slots are taken", lambda: started(tmp_path, "w1") and started(tmp_path, "w2"))
    runs.append(asyncio.create_task(run("small", "small")))
    await asyncio.sleep(0)
    assert pool.free == 0
    assert not started(tmp_path, "w3")
    (tmp_path / "w1.go").touch()
    await until_async("the next of the wide one", lambda: started(tmp_path, "w3"))
    (tmp_path / "w2.go").touch()
    await until_async("the small one goes before the rest of the wide one", lambda: started(tmp_path, "small"))
    assert not started(tmp_path, "w4")
    for name in (*names, "small"):
        (tmp_path / f"{name}.go").touch()
    await asyncio.gather(*runs)
    assert sorted(order) == ["small", *names]
    assert pool.free == 2


@pytest.mark.parametrize(
    ("app", "told"),
    [
        ("tests.workers.broken_app:app", "a_module_that_nobody_has"),
        ("tests.workers.apps:nope", "nope"),
        ("tests.workers.exiting_app:app", "SystemExit"),
    ],
)
@pytest.mark.process
async def test_an_app_that_does_not_load_is_told_at_the_start(app: str, told: str) -> None:
    pool = ExecutorPool(ExecutorConfig(apps=(app,), spark=SparkSettings()), size=1, logs=Logs())
    with pytest.raises(ConfigurationError, match=told):
        await pool.start()
    await pool.stop(timedelta(0))


async def test_each_loop_of_the_pool_is_started_again_when_it_breaks(
    make_pool: PoolMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaker = Breaker(monkeypatch)
    pool = await make_pool()
    for name in tuple(breaker.fuses):
        before = breaker.starts[name]
        breaker.blow(name)
        await until_async(name, lambda name=name, before=before: breaker.starts[name] > before)
        assert json.loads((await pool.run(request("greet", name))).result or "") == f"Hello, {name}!"
    assert {name.split()[0] for name in breaker.fuses} == {"executor", "output", "places", "watch"}


async def test_an_attempt_ends_when_its_worker_meets_a_defect_while_it_kills_what_the_executor_left(
    pool: ExecutorPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: ExecutorProcess, session: int) -> None:
        raise RuntimeError("odd")

    monkeypatch.setattr(ExecutorProcess, "_kill_leftovers", broken)
    async with asyncio.timeout(PATIENCE):
        outcome = await pool.run(request("crash", "kill"))
    assert outcome.crashed
    monkeypatch.undo()
    assert (await pool.run(request("greet", "again"))).result == '"Hello, again!"'
