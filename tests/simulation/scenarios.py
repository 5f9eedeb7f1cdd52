"""Orchestrations that together use everything, and what drives each of them from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.client import InstanceLimit
from airflow_provider_taskhub.engine.context import OrchestrationContext
from airflow_provider_taskhub.engine.events import TaskCompleted
from airflow_provider_taskhub.engine.retry import RetryPolicy
from airflow_provider_taskhub.errors import TaskCancelledError
from airflow_provider_taskhub.hub.model import InstanceState, RecordState
from tests.simulation.world import Effects, World, running

LARGE = "ä" * 60_000
"""Over both thresholds of a spill, in UTF-8 and in UTF-16."""


def app_of(effects: Effects) -> App:
    """The app that all scenarios are declared in."""
    app = App("simulated", version="1")

    def note(name: str, argument: Any) -> None:
        effects.ran[name, argument] += 1

    @app.activity
    def hop(number: int) -> int:
        note("hop", number)
        return number + 1

    @app.activity(record=True)
    async def kept(number: int) -> int:
        note("kept", number)
        await asyncio.sleep(2.0)
        return number * 10

    @app.activity(record=True)
    async def endless(number: int) -> None:
        await asyncio.sleep(600.0)
        note("all of endless", number)

    @app.activity
    async def idle(number: int) -> None:
        await asyncio.sleep(600.0)
        note("all of idle", number)

    @app.activity
    def shaky(number: int) -> int:
        note("shaky", number)
        if running().task_id < 2 * number:  # by its place in the history: an attempt that is run again ends the same
            raise ValueError(f"shaky {number}")
        return number

    @app.activity
    def broken(number: int) -> int:
        note("broken", number)
        raise ValueError(f"broken {number}")

    @app.activity
    def large(text: str) -> str:
        return text[:-1]

    @app.orchestrator
    async def hedged(ctx: OrchestrationContext, number: int) -> list[Any]:
        tasks = [ctx.call_activity(endless, number), ctx.call_activity(idle, number)]
        await ctx.create_timer(timedelta(seconds=3))
        told: list[Any] = []
        for task in tasks:
            task.cancel()
        for task in tasks:
            try:
                told.append(await task)
            except TaskCancelledError as error:
                told.append(str(error))
        return [*told, await ctx.call_activity(hop, number)]

    @app.orchestrator
    async def chain(ctx: OrchestrationContext, length: int) -> int:
        value = 0
        for step in range(length):
            value = await ctx.call_activity("hop", value)
            ctx.set_custom_status({"step": step})
        return value

    @app.activity
    async def step(number: int) -> int:
        await asyncio.sleep(0.2)
        return number + 1

    @app.orchestrator
    async def plod(ctx: OrchestrationContext, length: int) -> int:
        value = 0
        for _ in range(length):
            value = await ctx.call_activity("step", value)
        return value

    @app.orchestrator
    async def fan(ctx: OrchestrationContext, width: int) -> int:
        return sum(await ctx.when_all([ctx.call_activity("hop", number) for number in range(width)]))

    @app.orchestrator
    async def child(ctx: OrchestrationContext, number: int) -> int:
        both = [ctx.call_activity("hop", 0), ctx.call_activity("kept", number)]  # before it has a row
        return sum(await ctx.when_all(both))

    @app.orchestrator
    async def parent(ctx: OrchestrationContext, width: int) -> int:
        calls = [
            ctx.call_sub_orchestrator("child", number, instance_id=f"{ctx.instance_id}-{number}")
            for number in range(width)
        ]
        return sum(await ctx.when_all(calls))

    @app.orchestrator
    async def listener(ctx: OrchestrationContext, first: bool) -> int:
        """Continues as new in its first episode, and has another after it was told."""
        if first:
            ctx.continue_as_new(False)
            return 0
        return await ctx.call_activity("hop", await ctx.wait_for_external_event("go", int)) - 1

    @app.orchestrator
    async def again(ctx: OrchestrationContext, generation: int) -> int:
        """Each generation's child has the same id, and is told something as it is started."""
        child = ctx.call_sub_orchestrator("listener", True, instance_id=f"{ctx.instance_id}-child")
        ctx.send_event(f"{ctx.instance_id}-child", "go", generation)
        heard: int = await child
        if generation < 2:
            ctx.continue_as_new(generation + 1)
        return heard

    @app.orchestrator
    async def timers(ctx: OrchestrationContext) -> float:
        began = ctx.current_utc_datetime
        await ctx.create_timer(timedelta(seconds=3))
        await ctx.when_any([ctx.create_timer(timedelta(seconds=20)), ctx.create_timer(timedelta(seconds=60))])
        passed = (ctx.current_utc_datetime - began).total_seconds()
        return 23 if passed >= 23 else passed

    @app.orchestrator
    async def events(ctx: OrchestrationContext, count: int) -> list[int]:
        return [await ctx.wait_for_external_event("go", int) for _ in range(count)]

    @app.orchestrator
    async def sender(ctx: OrchestrationContext, count: int) -> None:
        for number in range(count):
            ctx.send_event(f"{ctx.instance_id}-to", "go", number)
        await ctx.call_activity("hop", 100)

    @app.orchestrator
    async def counter(ctx: OrchestrationContext, total: list[int]) -> list[int]:
        total = [*total, await ctx.wait_for_external_event("add", int)]
        if len(total) < 4:
            await ctx.call_activity("hop", len(total))
            ctx.set_custom_status(len(total))
            ctx.continue_as_new(total)
        return sorted(total)

    @app.orchestrator
    async def spread(ctx: OrchestrationContext, generation: int) -> int:
        """Continues as new into a history of more than one transaction."""
        if generation == 0:
            await ctx.call_activity("hop", 1000)
            ctx.continue_as_new(1)
            return 0
        return sum(await ctx.when_all([ctx.call_activity("hop", number) for number in range(120)]))

    @app.orchestrator
    async def failing(ctx: OrchestrationContext) -> list[Any]:
        policy = RetryPolicy(max_attempts=4, first_retry_interval=timedelta(seconds=5))
        first = await ctx.call_activity("shaky", 2, retry_policy=policy)
        try:
            await ctx.call_activity("broken", 7)
        except Exception as error:
            return [first, "broken 7" in str(error)]
        return [first, None]

    @app.orchestrator
    async def raising(ctx: OrchestrationContext) -> None:
        await ctx.call_activity("broken", 8)

    @app.orchestrator
    async def patient(ctx: OrchestrationContext) -> None:
        await ctx.call_activity("hop", 1)
        await ctx.wait_for_external_event("never")

    @app.orchestrator
    async def busy(ctx: OrchestrationContext) -> None:
        await ctx.call_activity("endless", 1)

    @app.orchestrator
    async def family(ctx: OrchestrationContext, depth: int) -> None:
        """Two children: one runs an activity, the other has such children itself."""
        calls = [ctx.call_sub_orchestrator("busy", instance_id=f"{ctx.instance_id}-busy")]
        if depth > 1:
            calls.append(ctx.call_sub_orchestrator("family", depth - 1, instance_id=f"{ctx.instance_id}-family"))
        await ctx.when_all(calls)

    @app.orchestrator
    async def bulky(ctx: OrchestrationContext, text: str) -> str:
        ctx.set_custom_status("half way")
        return await ctx.call_activity("large", await ctx.call_activity("large", text))

    @app.orchestrator
    async def rolling(ctx: OrchestrationContext, text: str) -> str:
        """Continues as new with large payloads, a carried event's among them."""
        text = await ctx.call_activity("large", text)
        if len(text) > len(LARGE) - 4:
            ctx.set_custom_status(text)
            ctx.continue_as_new(text)
            return ""
        return await ctx.wait_for_external_event("more", str)

    @app.orchestrator
    async def recorded(ctx: OrchestrationContext, width: int) -> int:
        first = await ctx.call_activity("kept", 100)
        return first + sum(await ctx.when_all([ctx.call_activity("kept", number) for number in range(width)]))

    return app


def limited_app_of(effects: Effects) -> App:
    """An app of its own, because each activity with a limit has a queue that its workers read in all their lives."""
    app = App("simulated", version="1")
    running_now: set[int] = set()

    @app.activity(limit=1)
    async def scarce(number: int) -> int:
        assert not running_now, f"{running_now} run beside {number}"
        effects.ran["scarce", number] += 1
        running_now.add(number)
        try:
            await asyncio.sleep(1.0)
        finally:
            running_now.discard(number)
        return number

    @app.orchestrator
    async def limited(ctx: OrchestrationContext, width: int) -> int:
        return sum(await ctx.when_all([ctx.call_activity(scarce, number) for number in range(width)]))

    return app


def turns_app_of(effects: Effects) -> App:
    """An app whose instances are started with a limit of one."""
    app = App("simulated", version="1")
    running_now: set[str] = set()

    @app.activity(record=True)
    async def alone(number: int) -> int:
        name = running().instance.instance_id
        assert running_now <= {name}, f"{running_now} run beside {name}"
        effects.ran["alone", number] += 1
        running_now.add(name)
        try:
            await asyncio.sleep(1.0)
        finally:
            running_now.discard(name)
        return number

    @app.orchestrator
    async def turn(ctx: OrchestrationContext, number: int) -> int:
        return await ctx.call_activity(alone, number)

    return app


Drive = Callable[[World], Awaitable[Sequence[InstanceState]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """An orchestration, started and driven; ``drive`` returns when everything that it started has ended.

    :param unordered: its output lists events in the order of their arrival.
    :param app_of: makes the app that it is declared in.
    """

    name: str
    drive: Drive
    unordered: bool = False
    app_of: Callable[[Effects], App] = app_of

    def __str__(self) -> str:
        return self.name


def _simple(orchestrator: str, input: Any = None, **start: Any) -> Drive:
    async def drive(world: World) -> list[InstanceState]:
        await world.client.start(orchestrator, input, instance_id="one", **start)
        return [await world.wait("one")]

    return drive


async def _events(world: World) -> list[InstanceState]:
    await world.client.start("events", 5, instance_id="one")
    for number in range(5):
        await world.client.raise_event("one", "go", number)
        await world.clock.sleep(0.4 * number)
    return [await world.wait("one")]


async def _turns(world: World) -> list[InstanceState]:
    limit, names = InstanceLimit(name="turns", instances=1), ("one", "one-second", "one-third")
    for number, name in enumerate(names):
        await world.client.start("turn", number, instance_id=name, limit=limit)
        await world.clock.sleep(0.2)
    return [await world.wait(name) for name in names]


async def _counter(world: World) -> list[InstanceState]:
    await world.client.start("counter", [], instance_id="one")
    for number in range(4):
        await world.client.raise_event("one", "add", number)
        await world.clock.sleep(0.3 * number)
    return [await world.wait("one")]


async def _rolling(world: World) -> list[InstanceState]:
    await world.client.start("rolling", LARGE, instance_id="one")
    await world.client.raise_event("one", "more", LARGE)
    return [await world.wait("one")]


async def _sender(world: World) -> list[InstanceState]:
    await world.client.start("events", 6, instance_id="one-to")
    await world.clock.sleep(0.5)
    await world.client.start("sender", 5, instance_id="one")
    ended = await world.wait("one")
    await world.settle()  # a sixth event may only be ours
    await world.client.raise_event("one-to", "go", 99)
    return [ended, await world.wait("one-to")]


async def _terminate(world: World) -> list[InstanceState]:
    await world.client.start("patient", instance_id="one")
    while not any(isinstance(event, TaskCompleted) for event in await world.client.instance("one").history()):
        await world.clock.sleep(0.25)
    await world.client.terminate("one", "enough")
    return [await world.wait("one")]


async def _cancel(world: World) -> list[InstanceState]:
    await world.client.start("busy", instance_id="one")
    while not any(record.state is RecordState.RUNNING for record in await world.client.instance("one").activities()):
        await world.clock.sleep(0.25)
    await world.clock.sleep(
        3 * world.settings.lease_times.renew.total_seconds()
    )  # it has looked whether its instance has ended
    await world.client.terminate("one", "enough")
    return [await world.wait("one")]


FAMILY = ("one", "one-busy", "one-family", "one-family-busy")


async def _family(world: World) -> list[InstanceState]:
    await world.client.start("family", 2, instance_id="one")
    for name in FAMILY[1::2]:
        while not any(record.state is RecordState.RUNNING for record in await world.client.instance(name).activities()):
            await world.clock.sleep(0.25)
    await world.clock.sleep(3 * world.settings.lease_times.renew.total_seconds())
    await world.client.terminate("one", "enough")
    return [await world.wait(name) for name in FAMILY]


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="chain", drive=_simple("chain", 3, tags={"taskhub.watch": "1"})),
        Scenario(name="fan", drive=_simple("fan", 20)),
        Scenario(name="parent", drive=_simple("parent", 2)),
        Scenario(name="again", drive=_simple("again", 0)),
        Scenario(name="timers", drive=_simple("timers")),
        Scenario(name="events", drive=_events, unordered=True),
        Scenario(name="counter", drive=_counter, unordered=True),
        Scenario(name="sender", drive=_sender, unordered=True),
        Scenario(name="failing", drive=_simple("failing")),
        Scenario(name="raising", drive=_simple("raising")),
        Scenario(name="terminate", drive=_terminate),
        Scenario(name="cancel", drive=_cancel),
        Scenario(name="hedged", drive=_simple("hedged", 3)),
        Scenario(name="family", drive=_family),
        Scenario(name="bulky", drive=_simple("bulky", LARGE)),
        Scenario(name="rolling", drive=_rolling),
        Scenario(name="recorded", drive=_simple("recorded", 3)),
        Scenario(name="limited", drive=_simple("limited", 3), app_of=limited_app_of),
        Scenario(name="turns", drive=_turns, app_of=turns_app_of),
        Scenario(name="wide", drive=_simple("fan", 100)),  # its first checkpoint takes more than one transaction
        Scenario(name="spread", drive=_simple("spread", 0)),
    )
}
