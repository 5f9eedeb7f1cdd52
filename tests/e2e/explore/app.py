"""What the workers of an exploration run: one orchestrator that carries out the program which it gets as its input.

Every run of an activity is a line in ``$EFFECTS``: the activity's key, the call and the attempt.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from airflow_provider_taskhub.activity import ActivityInfo, activity_info
from airflow_provider_taskhub.app import (
    App,
    OrchestrationContext,
    OrchestrationError,
    RetryPolicy,
    Task,
    TaskCancelledError,
    TaskFailedError,
    TerminationRequested,
)
from airflow_provider_taskhub.engine.tasks import CancellableTask

app = App("explore", version="1")


def _carry_out(step: dict[str, Any]) -> Any:
    info = activity_info()
    calls = _began(step["key"], info)
    time.sleep(step["seconds"])
    _note(step["key"], info, "end")
    return outcome(step, calls)


def outcome(step: dict[str, Any], calls: int) -> Any:
    """What an activity comes to in this call, from 1."""
    if calls <= step["fails"]:
        text = f"boom {step['key']}"
        if step["final"]:
            raise OrchestrationError(text, retryable=False)
        raise RuntimeError(text)
    return step["value"] * step["times"]


def _began(key: str, info: ActivityInfo) -> int:
    """Note the beginning of a run; returns which call of this step it belongs to, from 1: retries are calls."""
    _note(key, info, "begin")
    with open(_place(info)) as file:
        lines = [line.split() for line in file.read().splitlines()]
    same = {line[2] for line in lines if line[:2] == [key, str(info.execution_id)]}
    return sum(int(task_id) <= info.task_id for task_id in same)


def _note(key: str, info: ActivityInfo, what: str) -> None:
    descriptor = os.open(_place(info), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{key} {info.execution_id} {info.task_id} {info.attempt} {what}\n".encode())
    os.close(descriptor)


def _place(info: ActivityInfo) -> str:
    return os.path.join(os.environ["EFFECTS"], info.instance_id.replace(":", "_"))


@app.activity
def plain(step: dict[str, Any]) -> Any:
    return _carry_out(step)


@app.activity(record=True)
def recorded(step: dict[str, Any]) -> Any:
    return _carry_out(step)


@dataclass(slots=True)
class Built:
    """A task, the step that it was made from, and what it consists of."""

    step: dict[str, Any]
    task: Task[Any]
    began: datetime
    parts: Sequence[Built] = field(default_factory=tuple)


@app.orchestrator
async def program(ctx: OrchestrationContext, given: dict[str, Any]) -> list[Any]:
    try:
        return await _steps(ctx, given)
    except TerminationRequested:
        for _ in range(3):
            await ctx.create_timer(timedelta(seconds=0.2))
        raise


async def _steps(ctx: OrchestrationContext, given: dict[str, Any]) -> list[Any]:
    steps, out = given["steps"], given["out"]
    for at, step in enumerate(steps):
        match step["do"]:
            case "again":
                ctx.continue_as_new({"steps": steps[at + 1 :], "out": out})
                return out
            case "raise":
                raise OrchestrationError(step["text"])
            case "status":
                ctx.set_custom_status(step["value"])
            case "send":
                target = ctx.parent.instance.instance_id if step["to"] == "parent" and ctx.parent else ctx.instance_id
                ctx.send_event(target, step["name"], step["value"])
            case "remind":
                out.append(await _reminded(ctx, step))
            case "set":
                out.append(await _set(ctx, step))
            case _:
                out.append(await _settled(ctx, step))
    return out


async def _reminded(ctx: OrchestrationContext, step: dict[str, Any]) -> Any:
    while True:
        event = ctx.wait_for_external_event(step["name"])
        timer = ctx.create_timer(timedelta(seconds=step["seconds"]))
        if await ctx.when_any([event, timer]) is event:
            timer.cancel()
            return event.get_result()


async def _set(ctx: OrchestrationContext, step: dict[str, Any]) -> set[Any]:
    """Call an activity for each member of a set of texts. Each process may go through a set in an order of its own."""
    parts = {part["key"]: part for part in step["of"]}
    return {await _build(ctx, parts[key]).task for key in set(parts)}


async def _settled(ctx: OrchestrationContext, step: dict[str, Any]) -> Any:
    built = _build(ctx, step)
    try:
        await built.task
    except TaskFailedError as error:
        if not step.get("caught"):
            raise
        return _told(error)
    return _read(ctx, built)


def _build(ctx: OrchestrationContext, step: dict[str, Any]) -> Built:
    parts: list[Built] = []
    task: Task[Any]
    match step["do"]:
        case "activity":
            task = ctx.call_activity(*_call(step), retry=_retry(step))
        case "timer":
            task = ctx.create_timer(timedelta(seconds=step["seconds"]))
        case "event":
            task = ctx.wait_for_external_event(step["name"])
        case "child":
            given = {"steps": step["steps"], "out": []}
            task = ctx.call_sub_orchestrator(
                program, given, instance_id=step["id"], retry=_retry(step), fire_and_forget=step["forget"]
            )
            for sent in step["sends"]:
                ctx.send_event(step["id"], sent["name"], sent["value"])
        case "all":
            parts = [_build(ctx, part) for part in step["of"]]
            task = ctx.when_all([part.task for part in parts])
        case "any":
            parts = [_build(ctx, part) for part in step["of"]]
            task = ctx.when_any([part.task for part in parts])
        case "branch":
            task = ctx.branch(_sequence(ctx, step["of"]))
        case "limit":
            task = ctx.branch(_limited(ctx, step))
        case "cancel":
            task = ctx.branch(_cancelled(ctx, step))
        case other:
            raise OrchestrationError(f"no step {other!r}", retryable=False)
    return Built(step, task, ctx.current_utc_datetime, parts)


async def _sequence(ctx: OrchestrationContext, steps: Sequence[dict[str, Any]]) -> list[Any]:
    values = []
    for step in steps:
        built = _build(ctx, step)
        await built.task
        values.append(_read(ctx, built))
    return values


async def _limited(ctx: OrchestrationContext, step: dict[str, Any]) -> list[Any]:
    try:
        async with ctx.timeout(step["seconds"]):
            built = _build(ctx, step["of"])
            try:
                await built.task
            except TaskFailedError as error:
                return [True, _told(error)]
            return [True, _read(ctx, built)]
    except TimeoutError:
        return [False]


async def _cancelled(ctx: OrchestrationContext, step: dict[str, Any]) -> list[Any]:
    """Call an activity or a child, cancel it some time later, and wait until it has ended."""
    task = _build(ctx, step["of"]).task
    assert isinstance(task, CancellableTask)
    if step["seconds"]:
        await ctx.create_timer(timedelta(seconds=step["seconds"]))
    task.cancel()
    try:
        return [True, await task]
    except TaskCancelledError:
        if "after" in step:
            await _build(ctx, step["after"]).task
        return [False]
    except TaskFailedError as error:
        return [True, _told(error)]


def _call(step: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "recorded" if step["record"] else "plain", step


def _retry(step: dict[str, Any]) -> RetryPolicy | None:
    if step["attempts"] == 1:
        return None
    return RetryPolicy(max_attempts=step["attempts"], first_retry_interval=timedelta(seconds=0.2))


def _read(ctx: OrchestrationContext, built: Built) -> Any:
    """The value of a task that has not failed."""
    match built.step["do"]:
        case "timer":
            return ctx.current_utc_datetime - built.began >= timedelta(seconds=built.step["seconds"])
        case "all":
            return [_read(ctx, part) for part in built.parts]
        case "any":
            winner = built.task.get_result()
            at = next(number for number, part in enumerate(built.parts) if part.task is winner)
            error = winner.get_exception()
            value = _read(ctx, built.parts[at]) if error is None else _told(error)
            if built.step["cancel"]:
                _cancel(built.parts)
            return [at, value]
    return built.task.get_result()


def _cancel(parts: Sequence[Built]) -> None:
    for part in parts:
        # The program says how each child ends.
        if isinstance(part.task, CancellableTask) and part.step["do"] != "child":
            part.task.cancel()


def _told(error: BaseException | None) -> dict[str, str]:
    return {"error": type(error).__name__, "text": str(error)}
