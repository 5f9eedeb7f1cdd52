"""What orchestrator code calls of asyncio is refused with the line of user code and with what to use instead."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Generator
from typing import Any

import aiohttp
import anyio
import httpx
import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.engine.events import FailureDetails, Status
from airflow_provider_taskhub.engine.failures import place_of
from tests.engine.play import Play

pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")


async def step(ctx: OrchestrationContext) -> Any:
    return await ctx.call_activity("step")


async def timeout(ctx: OrchestrationContext) -> None:
    async with asyncio.timeout(0):
        await step(ctx)


async def wait_for(ctx: OrchestrationContext) -> None:
    await asyncio.wait_for(step(ctx), 3)


async def wait_for_task(ctx: OrchestrationContext) -> None:
    await asyncio.wait_for(ctx.call_activity("step"), 0)


async def task_group(ctx: OrchestrationContext) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(step(ctx))


async def gather(ctx: OrchestrationContext) -> None:
    await asyncio.gather(step(ctx), ctx.call_activity("step"))


async def waits(ctx: OrchestrationContext) -> None:
    await asyncio.wait([ctx.call_activity("step")])  # type: ignore[type-var]  # the mistake that is tested


async def waits_for_coroutines(ctx: OrchestrationContext) -> None:
    await asyncio.wait([step(ctx)])  # type: ignore[type-var]


async def as_completed(ctx: OrchestrationContext) -> None:
    for one in asyncio.as_completed([step(ctx)]):
        await one


async def create_task(ctx: OrchestrationContext) -> None:
    await asyncio.create_task(step(ctx))


async def ensure_future(ctx: OrchestrationContext) -> None:
    await asyncio.ensure_future(step(ctx))


async def shield(ctx: OrchestrationContext) -> None:
    await asyncio.shield(step(ctx))


async def sleep(ctx: OrchestrationContext) -> None:
    await asyncio.sleep(1)


async def sleep_zero(ctx: OrchestrationContext) -> None:
    await asyncio.sleep(0)


async def to_thread(ctx: OrchestrationContext) -> None:
    await asyncio.to_thread(len, "x")


async def queue(ctx: OrchestrationContext) -> None:
    await asyncio.Queue[int]().get()


async def call_later(ctx: OrchestrationContext) -> None:
    asyncio.get_running_loop().call_later(1, print)


async def run(ctx: OrchestrationContext) -> None:
    asyncio.run(step(ctx))


async def anyio_sleep(ctx: OrchestrationContext) -> None:
    await anyio.sleep(1)


async def anyio_group(ctx: OrchestrationContext) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(step, ctx)


async def anyio_limit(ctx: OrchestrationContext) -> None:
    with anyio.fail_after(1):
        await step(ctx)


async def http(ctx: OrchestrationContext) -> None:
    async with aiohttp.ClientSession() as session:
        await session.get("http://localhost")


async def other_http(ctx: OrchestrationContext) -> None:
    await httpx.AsyncClient().get("http://localhost")


def generator(ctx: OrchestrationContext) -> Generator[Any, Any, None]:
    yield asyncio.sleep(1)


def generator_gather(ctx: OrchestrationContext) -> Generator[Any, Any, None]:
    yield asyncio.gather(ctx.call_activity("step"))


def plain(ctx: OrchestrationContext) -> None:
    asyncio.create_task(step(ctx))  # noqa: RUF006  # it is refused


TIMER, LIMIT, TASKS = "Use `await ctx.create_timer", "Use `async with ctx.timeout(", "Use `ctx.when_all("
ACTIVITY, EVENT = "Use an activity", "Use `ctx.wait_for_external_event"
FORMS = [
    (timeout, "asyncio.timeout", LIMIT),
    (wait_for, "asyncio.wait_for", LIMIT),
    (wait_for_task, "asyncio.wait_for", LIMIT),
    (task_group, "asyncio.TaskGroup", TASKS),
    (gather, "asyncio.gather", TASKS),
    (waits, "asyncio.wait", TASKS),
    (waits_for_coroutines, "asyncio.wait", TASKS),
    (as_completed, "asyncio.as_completed", TASKS),
    (create_task, "asyncio.create_task", TASKS),
    (ensure_future, "asyncio.ensure_future", TASKS),
    (shield, "asyncio.shield", TASKS),
    (sleep, "asyncio.sleep", TIMER),
    (sleep_zero, "asyncio.sleep", TIMER),
    (to_thread, "asyncio.to_thread", ACTIVITY),
    (queue, "asyncio.Queue.get", EVENT),
    (call_later, "loop.call_later", TIMER),
    (run, "asyncio.run", ACTIVITY),
    (anyio_sleep, "anyio.sleep", TIMER),
    (anyio_group, "anyio.create_task_group", TASKS),
    (anyio_limit, "anyio.fail_after", LIMIT),
    (http, "aiohttp (loop.create_future)", ACTIVITY),
    (other_http, "httpx (sniffio.current_async_library)", ACTIVITY),
    (generator, "asyncio.sleep", TIMER),
    (generator_gather, "asyncio.gather", TASKS),
    (plain, "asyncio.create_task", TASKS),
]


def failed(function: Callable[..., Any]) -> FailureDetails:
    app = App("refused")
    app.orchestrator(name="work")(function)
    play = Play(app)
    play.start("work")
    assert play.last.status is Status.FAILED
    assert play.last.completed is not None
    assert play.last.completed.failure is not None
    return play.last.completed.failure


def told(function: Callable[..., Any], called: str, hint: str) -> None:
    failure = failed(function)
    assert (failure.error_type, failure.is_non_retriable) == ("OrchestrationError", True)
    text = failure.error_message
    lines, first = inspect.getsourcelines(function)
    place = f"test_asyncio.py:{first + 1} in {function.__name__}: `{lines[1].strip().partition('  #')[0]}"
    assert place in text
    assert f"{called} " in text
    assert hint in text
    assert "it waits with ctx.when_all, ctx.when_any, ctx.create_timer, ctx.timeout and ctx.branch" in text


@pytest.mark.parametrize(("function", "called", "hint"), FORMS, ids=lambda value: getattr(value, "__name__", ""))
def test_it_is_refused_with_the_line_and_with_what_to_use(function: Callable[..., Any], called: str, hint: str) -> None:
    told(function, called, hint)


@pytest.mark.parametrize(("function", "called", "hint"), FORMS, ids=lambda value: getattr(value, "__name__", ""))
async def test_it_is_refused_in_a_task_too_and_does_nothing_to_the_task_and_its_loop(
    function: Callable[..., Any], called: str, hint: str
) -> None:
    """A worker runs orchestrator code in a task of its event loop."""
    me, before = asyncio.current_task(), asyncio.all_tasks()
    told(function, called, hint)
    await asyncio.sleep(0)
    assert asyncio.current_task() is me
    assert me is not None
    assert me.cancelling() == 0
    assert asyncio.all_tasks() == before


async def test_orchestrator_code_has_no_current_task_and_the_loop_comes_back() -> None:
    seen: list[Any] = []

    async def look(ctx: OrchestrationContext) -> None:
        loop = asyncio.get_running_loop()
        seen.append((asyncio.current_task(), loop.is_running(), loop.is_closed(), loop.get_debug()))

    app = App("looks")
    app.orchestrator(name="work")(look)
    loop = asyncio.get_running_loop()
    Play(app).start("work")
    assert set(seen) == {(None, True, False, False)}
    assert asyncio.get_running_loop() is loop


async def test_an_async_generator_that_orchestrator_code_leaves_is_not_closed_on_the_loop_of_the_worker() -> None:
    before = asyncio.all_tasks()

    async def leave(ctx: OrchestrationContext) -> Any:
        async def steps() -> Any:
            try:
                yield await ctx.call_activity("step")
            finally:
                ctx.set_custom_status("closed")

        async for value in steps():
            return value
        return None

    app = App("leaves")
    app.orchestrator(name="work")(leave)
    play = Play(app)
    play.start("work")
    play.answer(7)
    assert (play.last.output, play.last.custom_status) == ("7", '"closed"')
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("kind", [asyncio.Lock, asyncio.Semaphore])
def test_a_lock_for_which_a_branch_would_have_to_wait_is_refused(kind: Callable[[], Any]) -> None:
    async def work(ctx: OrchestrationContext) -> None:
        lock = kind()

        async def one() -> None:
            async with lock:
                await ctx.call_activity("step")

        await ctx.when_all([ctx.branch(one()), ctx.branch(one())])

    text = failed(work).error_message
    assert re.search(
        rf"asyncio\.{kind.__name__} cannot be used .*test_asyncio\.py:\d+ in one: `async with lock:`", text
    )
    assert "Do the steps one after the other in one branch" in text


def test_the_line_is_of_the_code_that_has_called_and_not_of_its_caller() -> None:
    async def outer(ctx: OrchestrationContext) -> None:
        await sleep(ctx)

    failure = failed(outer)
    line = sleep.__code__.co_firstlineno + 1
    assert f"test_asyncio.py:{line} in sleep: `await asyncio.sleep(1)`" in failure.error_message
    assert place_of(failure) == f"{__file__}:{line}, in sleep"


def test_an_error_of_user_code_is_not_taken_for_a_refusal() -> None:
    async def broken(ctx: OrchestrationContext) -> None:
        raise RuntimeError("no current task")

    failure = failed(broken)
    assert (failure.error_type, failure.error_message) == ("RuntimeError", "no current task")


def test_a_wait_for_a_future_is_refused() -> None:
    async def waiting(ctx: OrchestrationContext) -> None:
        await asyncio.Future()

    assert "awaited Future at test_asyncio.py" in failed(waiting).error_message
