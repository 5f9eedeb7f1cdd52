"""``testing.run``: what users test their orchestrations with runs the code of production, under a jumping clock."""

from __future__ import annotations

import asyncio
import itertools
import threading
import traceback
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.activity import activity_info
from airflow_provider_taskhub.app import App, OrchestrationContext, RetryPolicy
from airflow_provider_taskhub.errors import ConfigurationError, OrchestrationError, TaskFailedError
from airflow_provider_taskhub.testing import Event, run
from airflow_provider_taskhub.workers.orchestrations import watchdog

app = App("tested", version="1")


@dataclass(frozen=True)
class Order:
    number: int


@app.activity
def double(x: int) -> int:
    return 2 * x


@app.activity
def who() -> list[Any]:
    info = activity_info()
    return [info.name, info.attempt, info.task_id]


@app.spark_activity
def counted(spark: Any, n: int) -> int:
    return int(spark.range(n).count())


@app.orchestrator
async def doubles(ctx: OrchestrationContext, n: int) -> list[int]:
    return await ctx.when_all([ctx.call_activity(double, i) for i in range(n)])


@app.orchestrator
async def patient(ctx: OrchestrationContext, _: Any) -> str:
    approval = ctx.wait_for_external_event("approve")
    deadline = ctx.create_timer(timedelta(days=30))
    if await ctx.when_any([approval, deadline]) is deadline:
        raise OrchestrationError("nobody approved", retryable=False)
    return str(approval.get_result())


@app.orchestrator
async def calls(ctx: OrchestrationContext, name: str) -> Any:
    return await ctx.call_activity(name, 5)


@app.orchestrator
async def informed(ctx: OrchestrationContext, _: Any) -> Any:
    return await ctx.call_activity(who)


@app.orchestrator
async def stubborn(ctx: OrchestrationContext, _: Any) -> str:
    policy = RetryPolicy(max_attempts=3, first_retry_interval=timedelta(hours=1))
    try:
        await ctx.call_activity("flaky", retry_policy=policy)
    except TaskFailedError as error:
        return str(error)
    return "fine"


def test_activities_declared_and_replaced() -> None:
    assert run(doubles, 4, app=app) == [0, 2, 4, 6]
    assert run(doubles, 4, app=app, activities={"double": lambda x: -x}) == [0, -1, -2, -3]
    assert run("doubles", "2", app=app) == [0, 2], "an input is decoded by its annotation"


def test_a_replacement_gets_what_the_activity_itself_gets() -> None:
    own, got = App("own"), []

    @own.activity
    def load(order: Order = Order(7)) -> Order:  # a frozen dataclass
        raise NotImplementedError

    @own.orchestrator
    async def both(ctx: OrchestrationContext) -> list[int]:
        orders = [await ctx.call_activity(load, Order(3)), await ctx.call_activity(load)]
        return [order.number for order in orders] + [await ctx.call_activity("theirs", Order(5))]

    def replacement(order):  # type: ignore[no-untyped-def]
        got.append(order)
        return order

    def theirs(order: Order) -> int:
        return order.number

    assert run(both, app=own, activities={"load": replacement, "theirs": theirs}) == [3, 7, 5]
    assert got == [Order(3), Order(7)]


def test_a_month_of_waiting_is_not_lived_through_and_ends_as_written() -> None:
    with pytest.raises(OrchestrationError, match="nobody approved") as caught:
        run(patient, app=app)
    assert not caught.value.retryable


def test_events_arrive_when_they_are_said_to() -> None:
    assert run(patient, app=app, events=[Event(name="approve", data="ann", after=timedelta(days=29))]) == "ann"
    with pytest.raises(OrchestrationError, match="nobody approved"):
        run(patient, app=app, events=[Event(name="approve", data="ann", after=timedelta(days=31))])


def test_retries_wait_virtually_and_give_up() -> None:
    tries: list[int] = []

    def flaky() -> None:
        tries.append(1)
        raise ValueError("not today")

    assert run(stubborn, app=app, activities={"flaky": flaky}) == "not today"
    assert len(tries) == 3


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_what_ends_a_script_only_fails_an_activity(kind: type[BaseException]) -> None:
    def leaves() -> None:
        raise kind("enough")

    assert run(stubborn, app=app, activities={"flaky": leaves}) == "enough"


def test_an_activity_knows_its_call() -> None:
    assert run(informed, app=app) == ["who", 1, 0]


def test_spark_must_be_given_or_replaced() -> None:
    with pytest.raises(OrchestrationError, match="needs Spark: replace it"):
        run(calls, "counted", app=app)
    assert run(calls, "counted", app=app, activities={"counted": lambda n: n}) == 5


def test_what_is_not_declared_is_named() -> None:
    with pytest.raises(ConfigurationError, match="'nowhere' is in none of the given apps"):
        run("nowhere", app=app)
    with pytest.raises(OrchestrationError, match="no live worker has had activity 'nothing'"):
        run(calls, "nothing", app=app)


async def alone(ctx: OrchestrationContext, x: int) -> int:
    return x + 1


def test_a_function_that_no_app_declares_runs_by_itself() -> None:
    assert run(alone, 1) == 2


def test_a_running_loop_is_named_with_the_way_out() -> None:
    async def inside() -> list[int]:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(ConfigurationError, match=r"event loop runs.*plain `def`.*asyncio\.to_thread\(run, …\)"):
                run(doubles, 3, app=app)
        return await asyncio.to_thread(run, doubles, 3, app=app)

    assert asyncio.run(inside()) == [0, 2, 4]


@app.activity
def broken(_: Any) -> None:
    raise KeyError("missing in activity")


async def misspelt(ctx: OrchestrationContext, _: Any) -> None:
    raise KeyError("missing in orchestrator")


@pytest.mark.parametrize(
    ("started", "given"), [(misspelt, None), ("calls", "broken")], ids=["orchestrator", "activity"]
)
def test_the_traceback_of_a_failure_ends_with_the_file_and_line_of_the_user(started: Any, given: Any) -> None:
    with pytest.raises(OrchestrationError) as caught:
        run(started, given, app=app)
    printed = "".join(traceback.format_exception(caught.value)).rstrip()
    last = printed[printed.rindex('  File "') :].splitlines()
    assert last[0].startswith(f'  File "{__file__}", line ')
    assert last[1].strip().startswith('raise KeyError("missing in ')


@pytest.mark.parametrize("name", ["endless", "parent_of_endless"])
def test_an_orchestrator_that_never_waits_fails_with_its_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "TICK", 0.01)
    monkeypatch.setattr(watchdog, "STUCK", 0.2)
    own = App("own")

    @own.orchestrator
    async def endless(ctx: OrchestrationContext) -> None:
        while True:
            pass

    @own.orchestrator
    async def parent_of_endless(ctx: OrchestrationContext) -> None:
        await ctx.call_sub_orchestrator(endless)

    with pytest.raises(OrchestrationError, match=r"the episode did not end .* in endless: `(while True:|pass)`"):
        run(name, app=own)


def test_an_orchestrator_at_a_breakpoint_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "TICK", 0.01)
    monkeypatch.setattr(watchdog, "STUCK", 0.02)
    looks = threading.Event()
    monkeypatch.setattr(watchdog.EpisodeInterrupter, "stuck", _noting(looks))
    debugger = types.ModuleType("pdb")
    exec("def wait(looks): looks.wait()", debugger.__dict__)
    own = App("own")

    @own.orchestrator
    async def stops(ctx: OrchestrationContext) -> int:
        debugger.wait(looks)
        return 7

    assert run(stops, app=own) == 7


def _noting(looks: threading.Event) -> Callable[..., None]:
    """Return the method with a note that it was called more than once."""
    method, count = watchdog.EpisodeInterrupter.stuck, itertools.count()

    def stuck(self: watchdog.EpisodeInterrupter, running: watchdog.Running) -> None:
        method(self, running)
        if next(count):
            looks.set()

    return stuck
