"""Supervisor, owned and first: nothing is left running, and no loop is left dead."""

from __future__ import annotations

import ast
import asyncio
from itertools import pairwise
from pathlib import Path

import pytest
from structlog.testing import capture_logs

import airflow_provider_taskhub
from airflow_provider_taskhub import virtual_time
from airflow_provider_taskhub.supervision import FAILING, RESTARTS, SETTLED, Supervisor, first, owned

CLOCK = virtual_time.VirtualClock()


def test_a_failed_loop_is_started_again_after_a_growing_bounded_pause() -> None:
    starts: list[float] = []

    async def loop() -> None:
        starts.append(CLOCK.monotonic())
        raise RuntimeError("odd")

    async def main() -> None:
        supervisor = Supervisor(CLOCK)
        supervisor.keep("reader", loop)
        await CLOCK.sleep(300.0)
        assert supervisor.failing == ("reader",)
        assert supervisor.restarts["reader"] == len(starts) - 1
        await supervisor.close()
        assert not supervisor.loops
        assert not supervisor.failing

    with capture_logs() as logs:
        virtual_time.run(main())
    pauses = [round(after - before, 3) for before, after in pairwise(starts)]
    assert pauses[:4] == [0.1, 0.2, 0.4, 0.8]
    assert pauses[-1] == RESTARTS.longest
    failed = [entry for entry in logs if entry["event"] == "loop_failed"]
    assert len(failed) == len(starts)
    assert (failed[0]["loop"], str(failed[0]["exc_info"])) == ("reader", "odd")


def test_a_loop_that_ran_long_begins_anew_with_the_shortest_pause_and_counts_as_live() -> None:
    runs = 0

    async def loop() -> None:
        nonlocal runs
        runs += 1
        await CLOCK.sleep(0.0 if runs <= FAILING else SETTLED + 1)
        raise RuntimeError("odd")

    async def main() -> None:
        supervisor = Supervisor(CLOCK)
        supervisor.keep("reader", loop)
        await CLOCK.sleep(10.0)
        assert supervisor.failing == ("reader",)
        await CLOCK.sleep(53.5)
        assert not supervisor.failing
        before = supervisor.restarts["reader"]
        await CLOCK.sleep(20.0)
        assert supervisor.restarts["reader"] == before + 1
        await supervisor.close()

    virtual_time.run(main())


def test_a_loop_survives_that_something_inside_it_was_cancelled_but_ends_when_it_is_cancelled_itself() -> None:
    starts = 0

    async def loop() -> None:
        nonlocal starts
        starts += 1
        waiting = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(1.0, waiting.cancel)
        await waiting

    async def main() -> None:
        supervisor = Supervisor(CLOCK)
        task = supervisor.keep("reader", loop)
        await CLOCK.sleep(1.5)
        assert starts == 2
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()
        assert not supervisor.loops

    virtual_time.run(main())


def test_a_loop_that_returns_is_over_and_a_name_is_kept_once() -> None:
    async def main() -> None:
        supervisor = Supervisor(CLOCK)
        ended = supervisor.keep("once", lambda: CLOCK.sleep(1.0))
        older = supervisor.keep("reader", lambda: CLOCK.sleep(1000.0))
        supervisor.keep("reader", lambda: CLOCK.sleep(1000.0))
        await CLOCK.sleep(2.0)
        assert ended.done()
        assert older.cancelled()
        assert supervisor.loops == ("reader",)
        await supervisor.close()

    virtual_time.run(main())


def test_close_lets_single_works_end_within_its_patience_and_waits_for_all() -> None:
    ended: list[str] = []

    async def work(name: str, seconds: float) -> None:
        try:
            await CLOCK.sleep(seconds)
            ended.append(name)
        except asyncio.CancelledError:
            await CLOCK.sleep(1.0)
            ended.append(f"{name} cut off")
            raise

    async def main() -> None:
        supervisor = Supervisor(CLOCK)
        supervisor.spawn(work("short", 5.0))
        supervisor.spawn(work("long", 500.0))
        await supervisor.close(10.0)
        assert ended == ["short", "long cut off"]

    virtual_time.run(main())


def test_the_error_of_a_single_work_is_logged_unless_its_caller_is_told() -> None:
    async def work() -> None:
        raise RuntimeError("odd")

    async def main() -> None:
        supervisor = Supervisor(CLOCK)
        supervisor.spawn(work(), name="give back")
        with pytest.raises(RuntimeError, match="odd"):
            await supervisor.spawn(work(), name="asked", awaited=True)

    with capture_logs() as logs:
        virtual_time.run(main())
    assert [(entry["event"], entry["task"]) for entry in logs] == [("task_failed", "give back")]


def test_what_a_block_owns_is_over_when_the_block_is() -> None:
    async def main() -> None:
        async with owned() as start:
            task = start(CLOCK.sleep(1000.0))
        assert task.cancelled()

    virtual_time.run(main())


def test_first_ends_with_the_first_and_leaves_nothing_running() -> None:
    async def main() -> None:
        await first(CLOCK.sleep(1.0), CLOCK.sleep(1000.0))
        assert CLOCK.monotonic() == 1.0
        assert len(asyncio.all_tasks()) == 1

    virtual_time.run(main())


STARTS = ("create_task", "ensure_future", "Task", "TaskGroup")


def starts_tasks(source: str) -> list[int]:
    """The lines of a module that start a task by any name: of asyncio, of a loop, or imported from asyncio."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(attr="create_task" | "ensure_future" | "TaskGroup"):
                found.append(node.lineno)
            case ast.Call(func=func) if ast.unparse(func).partition("[")[0] == "asyncio.Task":
                found.append(node.lineno)
            case ast.ImportFrom(module=str(module), names=names) if module.partition(".")[0] == "asyncio":
                found += [node.lineno for one in names if one.name in STARTS]
            case ast.Import(names=names):  # under another name, the lines above would miss it
                found += [node.lineno for one in names if one.name.partition(".")[0] == "asyncio" and one.asname]
    return found


def test_only_supervision_starts_tasks() -> None:
    """ruff knows ``asyncio.create_task``; a loop's own ``create_task`` it cannot know."""
    package = Path(airflow_provider_taskhub.__file__).parent
    sources = {str(path.relative_to(package)): path.read_text() for path in sorted(package.rglob("*.py"))}
    assert starts_tasks(sources.pop("supervision.py"))
    found = [f"{name}:{line}" for name, source in sources.items() for line in starts_tasks(source)]
    assert not found, found


@pytest.mark.parametrize(
    "line",
    [
        "asyncio.create_task(work())",
        "asyncio.get_running_loop().create_task(work())",
        "asyncio.ensure_future(work())",
        "asyncio.Task(work())",
        "asyncio.Task[None](work(), loop=loop)",
        "asyncio.TaskGroup()",
        "from asyncio import create_task",
        "from asyncio.tasks import Task",
        "import asyncio as aio",
    ],
)
def test_every_way_to_start_a_task_is_seen(line: str) -> None:
    assert starts_tasks(line) == [1]


def test_the_type_of_a_task_starts_none() -> None:
    assert not starts_tasks("task: asyncio.Task[None] | None = None")
