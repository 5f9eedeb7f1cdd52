"""An async generator that an orchestrator leaves early runs its clean-up, and a replay runs it in the same order."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import OrchestrationContext
from airflow_provider_taskhub.engine.events import Status
from tests.engine.play import Play, played

Pages = AsyncGenerator[str, None]


async def pages(ctx: OrchestrationContext, name: str = "page") -> Pages:
    try:
        while True:
            yield await ctx.call_activity(name)
    finally:
        await ctx.create_timer(timedelta(hours=1))
        await ctx.call_activity(f"clean {name}")


async def by_break(ctx: OrchestrationContext) -> str:
    async for _ in pages(ctx):
        break
    return "done"


async def by_break_and_on(ctx: OrchestrationContext) -> str:
    async for _ in pages(ctx):
        break
    await ctx.wait_for_external_event("go")
    return "done"


async def by_return(ctx: OrchestrationContext) -> str:
    found = pages(ctx)
    await anext(found)
    return "done"


async def by_error(ctx: OrchestrationContext) -> str:
    found = pages(ctx)
    async for _ in found:
        raise OSError("mine")
    return "done"


async def by_continuing(ctx: OrchestrationContext) -> str:
    async for _ in pages(ctx):
        ctx.continue_as_new()
        break
    return "again"


async def in_a_branch(ctx: OrchestrationContext) -> str:
    await ctx.branch(by_break(ctx))
    return "done"


async def in_a_cycle(ctx: OrchestrationContext) -> str:
    found: list[Any] = [pages(ctx)]
    found.append(found)
    await anext(found[0])
    del found
    await ctx.create_timer(timedelta(minutes=1))
    return "done"


def called(play: Play) -> list[str]:
    return [name for message in play.outbound if (name := getattr(message.event, "name", None))]


@pytest.mark.parametrize("code", [by_break, by_return, by_error, by_continuing, in_a_branch])
def test_the_orchestrator_ends_after_the_clean_up(code: Callable[..., Any]) -> None:
    play, said = played(code)
    play.answer("p")
    assert called(play) == ["page"]
    assert play.last.status is Status.RUNNING
    play.wait(hours=1)
    play.answer()
    assert called(play) == ["page", "clean page"]
    assert play.last.status is Status.RUNNING
    play.answer()
    if code is by_continuing:
        assert play.last.switched
    elif code is by_error:
        assert play.last.completed is not None
        assert play.last.completed.result == "mine"
    else:
        assert play.last.output == '"done"'
    assert said == []


def test_the_clean_up_begins_at_once_and_runs_beside_the_code() -> None:
    play, _ = played(by_break_and_on)
    play.answer("p")
    play.wait(hours=1)
    play.answer()
    clean = play.outbound[-1]
    play.take(play.raised("go"))
    assert play.last.status is Status.RUNNING
    play.take(play.done(clean))
    assert play.last.output == '"done"'


def test_those_that_the_end_finds_are_closed_the_newest_first() -> None:
    async def code(ctx: OrchestrationContext) -> None:
        found: list[Any] = [pages(ctx, "a"), pages(ctx, "b"), pages(ctx, "never begun")]
        found.append(found)
        await anext(found[0])
        await anext(found[1])

    play, _ = played(code)
    play.answer()
    play.answer()
    play.wait(hours=1)
    newest, oldest = play.outbound[-2:]
    play.take(play.done(newest))
    assert called(play) == ["a", "b", "clean b"]
    play.take(play.done(oldest))
    assert called(play) == ["a", "b", "clean b", "clean a"]


@pytest.fixture
def new_objects() -> Iterator[None]:
    """Python searches for cycles only when the test asks, and only among new objects: a whole search takes 30 s when
    many tests have run in this process."""
    gc.disable()
    gc.freeze()
    yield
    gc.unfreeze()
    gc.enable()


@pytest.mark.usefixtures("new_objects")
def test_one_that_is_found_in_a_cycle_is_closed_at_the_end() -> None:
    play, _ = played(in_a_cycle)
    play.answer("p")
    gc.collect()
    play.wait(minutes=1)
    play.answer()
    assert play.last.status is Status.RUNNING
    play.wait(hours=1)
    play.answer()
    assert called(play) == ["page", "clean page"]


@pytest.mark.usefixtures("new_objects")
@pytest.mark.parametrize("collects", [False, True])
def test_a_search_for_cycles_while_the_code_runs_changes_nothing(collects: bool) -> None:
    async def code(ctx: OrchestrationContext) -> None:
        found: list[Any] = [pages(ctx, "a")]
        found.append(found)
        await anext(found[0])
        del found
        later = pages(ctx, "b")
        await anext(later)
        if collects:
            gc.collect()
        await ctx.call_activity("last")

    play, _ = played(code)
    for _ in range(3):
        play.answer()
    play.wait(hours=1)
    for timer in play.outbound[-2:]:
        play.take(play.done(timer))
    assert called(play) == ["a", "b", "last", "clean b", "clean a"]


CONTEXTS = """
import contextvars, gc
from airflow_provider_taskhub.engine import async_generators

variables = [contextvars.ContextVar(str(number), default=0) for number in range(50)]
gc.set_threshold(1)
for round in range(300):
    for variable in variables:
        variable.set(round)
        contextvars.copy_context()
"""


@pytest.mark.process
def test_a_search_for_cycles_may_begin_while_python_copies_a_context() -> None:
    """A search that changed a context variable made Python crash."""
    done = subprocess.run([sys.executable, "-c", CONTEXTS], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_error_of_the_clean_up_fails_the_orchestrator() -> None:
    play, _ = played(by_break)
    play.answer("p")
    play.wait(hours=1)
    play.answer()
    play.take(play.failed(play.outbound[-1], "dirty"))
    assert play.last.completed is not None
    assert (play.last.status, play.last.completed.result) == (Status.FAILED, "dirty")


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_terminated_or_removed_orchestrator_drops_it_without_a_word() -> None:
    async def code(ctx: OrchestrationContext) -> None:
        found = pages(ctx)
        await anext(found)
        await ctx.wait_for_external_event("go")

    play, said = played(code)
    play.answer("p")
    play.live.close()
    gc.collect()
    assert called(play) == ["page"]
    assert said == []
