"""Whole-engine tests from plain files: ``tests/simulation/cases/*.toml``, one case a file.

A file has a sentence (``what``), orchestrators (``programs``), a script (``do``) and what must come of it (``expect``).
The form of a file is that of :class:`Case`. :mod:`cases` plays them in virtual time, ``tests/e2e/test_cases.py`` with
worker processes.
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from airflow_provider_taskhub.app import (
    App,
    OrchestrationContext,
    RetryPolicy,
    Task,
    TaskCancelledError,
    TaskFailedError,
    TerminationRequested,
)
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.engine.tasks import CancellableTask

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "recorded": {"record": True},
    "limited": {"limit": 2},
    "timed": {"timeout": timedelta(seconds=5)},
}
"""The activities: their names, and how each is declared."""
FOLDER = Path(__file__).with_name("cases")


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class OneThing(Strict):
    """A table that must have exactly one of some keys."""

    KINDS: ClassVar[tuple[str, ...]]

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        given = [name for name in self.KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of {', '.join(self.KINDS)}, and not {given}")
        return self


class Step(OneThing):
    """A step of a program."""

    KINDS = ("call", "timer", "event", "child", "all", "any", "branch", "again", "say", "fail", "tidy")

    call: str | None = None
    """Call an activity. Its value is this name."""
    timer: float | None = None
    """Wait so many seconds. The value is "due"."""
    event: str | None = None
    """Wait for an event. The value is the event's data; "due" if it has none."""
    child: str | None = None
    """Run a program as a child, whose id is ``<parent>.<program>``."""
    all: list[Step] | None = None
    any: list[Step] | None = None
    """The value is that of the first one. The others are cancelled."""
    branch: list[Step] | None = None
    """A branch with its own steps."""
    again: list[Step] | None = None
    """Continue as new with these steps, and with the values so far. It is the last step."""
    say: str | None = None
    """Set the custom status."""
    fail: str | None = None
    """Raise an error with this text."""
    tidy: list[Step] | None = None
    """Run these steps. If the instance is asked to end meanwhile, run the steps ``clean`` after that."""

    clean: list[Step] = Field(default_factory=list)
    waits: bool = False
    """With ``any``: whether the code waits for the end of the others that it has cancelled."""
    seconds: float = 1.0
    """How long the activity takes."""
    kind: str = "plain"
    """The activity: ``plain``, ``recorded``, ``limited`` (two at once in the hub) or ``timed`` (at most 5 s)."""
    fails: int = 0
    """How many of its first attempts fail. Each attempt that begins counts."""
    final: bool = False
    """Whether its failure is not to be retried."""
    retry: int = 1
    """Maximum number of attempts."""
    pause: float = 1.0
    """Seconds between two attempts."""
    within: float | None = None
    """A limit in seconds, by ``ctx.timeout``. The value is "late" if the time is over."""
    caught: bool = False
    """The code catches a failure. The value is "failed"."""


class Command(OneThing):
    """A command, and the second of virtual time at which it is given."""

    KINDS = (
        "start",
        "suspend",
        "resume",
        "terminate",
        "rewind",
        "restart",
        "purge",
        "send",
        "see",
        "join",
        "kill",
        "drain",
        "cut",
    )

    at: float
    start: str | None = None
    """Start a program. The instance's id is the name of the program, or ``id``."""
    suspend: str | None = None
    resume: str | None = None
    terminate: str | None = None
    """Terminate an instance, and wait for the confirmation."""
    rewind: str | None = None
    restart: str | None = None
    purge: str | None = None
    send: str | None = None
    """Send the event ``name`` with ``data`` to an instance."""
    see: str | None = None
    """Check that an instance has the status ``status``."""
    join: str | None = None
    """A worker starts."""
    kill: str | None = None
    """A worker dies, as under SIGKILL."""
    drain: str | None = None
    """A worker stops, as on SIGTERM."""
    cut: str | None = None
    """For ``seconds``, the store does not answer this worker; "*": it answers no worker."""

    recurse: bool = False
    """Suspend or resume the children too."""
    grace: float | None = None
    """Terminate with so many seconds for a clean-up."""
    id: str | None = None
    count: int = 1
    """Start so many instances: ``<id>-1`` and so on."""
    priority: int | None = None
    name: str = "go"
    data: Any = None
    status: str | None = None
    seconds: float = 0.0
    refused: str | None = None
    """The class of the error with which the command is refused."""


class Outcome(Strict):
    status: str
    output: Any = None


class Expect(Strict):
    done: list[str]
    """The activities that came to their end without an error, in any order. Each counts: nothing runs twice."""
    begun: list[str] | None = None
    """The activities that began; if it is left out, those of ``done``."""
    quiet: list[tuple[float, float]] = Field(default_factory=list)
    """Spans of seconds in which no activity begins."""
    before: list[tuple[str, float]] = Field(default_factory=list)
    """Activities, each with the second before which it has begun."""
    after: list[tuple[str, float]] = Field(default_factory=list)
    """Activities, each with the second after which its last attempt has begun."""
    at_once: int | None = None
    """The largest number of activities that run at the same time."""
    instances: dict[str, Outcome]
    """What becomes of each instance. There are no others."""


class Case(Strict):
    """A file."""

    what: str
    workers: list[str] = Field(default_factory=lambda: ["one"])
    slots: int = 4
    programs: dict[str, list[Step]]
    do: list[Command]
    expect: Expect


Outcomes = dict[str, tuple[str, str | None]]
"""Status and output of each instance."""


def load(path: Path) -> Case:
    """Read a case. A key that does not exist is an error."""
    return Case.model_validate(tomllib.loads(path.read_text()))


def app_of(case: Case, activity: Callable[[Step], Any]) -> App:
    """Return the app with the programs of a case.

    :param activity: what each activity does: a coroutine function.
    """
    app = App("case")

    def made() -> Callable[[dict[str, Any]], Any]:
        async def run(given: dict[str, Any]) -> str:
            step = Step.model_validate(given)
            await activity(step)
            return str(step.call)

        return run

    for kind, options in KINDS.items():
        app.activity(name=kind, **options)(made())
    for name, steps in case.programs.items():
        app.orchestrator(name=name)(_orchestrator(steps))
    return app


def _orchestrator(steps: list[Step]) -> Callable[..., Any]:
    async def orchestrator(ctx: OrchestrationContext, given: dict[str, Any] | None = None) -> list[Any]:
        own = steps if given is None else [Step.model_validate(step) for step in given["steps"]]
        values: list[Any] = [] if given is None else given["values"]
        return await _carry_out(ctx, own, values)

    return orchestrator


async def _carry_out(ctx: OrchestrationContext, steps: list[Step], values: list[Any]) -> list[Any]:
    for step in steps:
        if step.again is not None:
            ctx.continue_as_new({"steps": [one.model_dump() for one in step.again], "values": values})
        elif step.say is not None:
            ctx.set_custom_status(step.say)
        elif step.fail is not None:
            raise ValueError(step.fail)
        elif step.tidy is not None:
            try:
                await _carry_out(ctx, step.tidy, values)
            except TerminationRequested:
                await _carry_out(ctx, step.clean, values)
                raise
        else:
            values.append(await _value(ctx, step))
    return values


async def _value(ctx: OrchestrationContext, step: Step) -> Any:
    try:
        if step.within is None:
            return await _awaited(ctx, step)
        async with ctx.timeout(step.within):
            return await _awaited(ctx, step)
    except TimeoutError:
        return "late"
    except TaskFailedError:
        if not step.caught:
            raise
        return "failed"


async def _awaited(ctx: OrchestrationContext, step: Step) -> Any:
    if step.any is None:
        value = await _task(ctx, step)
    else:
        tasks = [_task(ctx, part) for part in step.any]
        value = (await ctx.when_any(tasks)).get_result()
        for task in tasks:
            if isinstance(task, CancellableTask):
                task.cancel()
        for task in tasks if step.waits else ():
            with suppress(TaskCancelledError):
                await task
    return "due" if value is None else value


def _task(ctx: OrchestrationContext, step: Step) -> Task[Any]:
    if step.call is not None:
        policy = RetryPolicy(max_attempts=step.retry, first_retry_interval=timedelta(seconds=step.pause))
        return ctx.call_activity(step.kind, step.model_dump(), retry=policy)
    if step.timer is not None:
        return ctx.create_timer(timedelta(seconds=step.timer))
    if step.event is not None:
        return ctx.wait_for_external_event(step.event)
    if step.child is not None:
        policy = RetryPolicy(max_attempts=step.retry, first_retry_interval=timedelta(seconds=step.pause))
        return ctx.call_sub_orchestrator(step.child, instance_id=f"{ctx.instance_id}.{step.child}", retry=policy)
    if step.all is not None:
        return ctx.when_all([_task(ctx, part) for part in step.all])
    assert step.branch is not None, f"no step: {step!r}"
    return ctx.branch(_carry_out(ctx, step.branch, []))


def check(expect: Expect, begun: Sequence[str], done: Sequence[str], at_once: int, found: Outcomes) -> None:
    """Compare what came of a case with what it expects.

    :param begun: the activities that began.
    :param done: the activities that came to their end without an error.
    :param at_once: the largest number of activities that ran at the same time.
    :param found: status and output of each instance.
    :raises AssertionError: if the result is not what the case expects.
    """
    assert Counter(done) == Counter(expect.done), f"done: {done}"
    assert Counter(begun) == Counter(expect.done if expect.begun is None else expect.begun), f"begun: {begun}"
    assert expect.at_once is None or at_once == expect.at_once, f"{at_once} at once"
    assert set(found) == set(expect.instances), f"instances: {sorted(found)}"
    for name, outcome in expect.instances.items():
        status, output = found[name]
        assert status == outcome.status, f"{name} is {status}: {output}"
        if status == "Completed":
            assert json.loads(output or "null") == outcome.output, f"{name} has given {output}"
        elif outcome.output is not None:
            assert outcome.output in (output or ""), f"{name} ended with {output}"


async def ask(client: Client, command: Command) -> None:
    """Carry out a command that the client sends to the hub. A terminate returns when it is confirmed."""
    match command:
        case Command(start=str(program)):
            name = command.id or program
            ids = [name] if command.count == 1 else [f"{name}-{number}" for number in range(1, command.count + 1)]
            options = {} if command.priority is None else {"priority": command.priority}
            for instance_id in ids:
                await client.start(program, instance_id=instance_id, **options)
        case Command(suspend=str(instance_id)):
            await client.suspend(instance_id, "paused", recurse=command.recurse)
        case Command(resume=str(instance_id)):
            await client.resume(instance_id, recurse=command.recurse)
        case Command(terminate=str(instance_id)):
            grace = None if command.grace is None else timedelta(seconds=command.grace)
            await client.terminate(instance_id, "stopped", wait=True, grace=grace, timeout=timedelta(minutes=10))
        case Command(rewind=str(instance_id)):
            await client.rewind(instance_id)
        case Command(restart=str(instance_id)):
            await client.restart(instance_id)
        case Command(purge=str(instance_id)):
            await client.purge(instance_id)
        case Command(send=str(instance_id)):
            await client.raise_event(instance_id, command.name, command.data)
        case Command(see=str(instance_id)):
            row = await client.get(instance_id)
            assert (None if row is None else str(row.status)) == command.status, f"{command!r}: {row!r}"
        case _:
            raise AssertionError(f"no command: {command!r}")
