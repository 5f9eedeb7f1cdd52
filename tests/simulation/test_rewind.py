"""Rewinding: what failed, or was cut off by the failure, is done again, and nothing else is (K46)."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.engine.context import OrchestrationContext
from airflow_provider_taskhub.engine.events import (
    ExecutionCompleted,
    FailureDetails,
    HistoryEvent,
    OrchestratorStarted,
    Status,
    TaskFailed,
    TaskScheduled,
)
from airflow_provider_taskhub.engine.retry import RetryPolicy
from airflow_provider_taskhub.errors import InputError, InstanceNotFound, Unavailable
from airflow_provider_taskhub.hub.history.rewind_plan import plan
from airflow_provider_taskhub.hub.model import InstanceState, RecordState, StartPolicy
from airflow_provider_taskhub.hub.rewind import CHECKPOINT
from airflow_provider_taskhub.storage.faults import Call, Fault, FaultyStore, Plan, at, late, lost, unsent
from airflow_provider_taskhub.storage.primitives import PutMessage, RowOperation, RowVerb, Transact
from airflow_provider_taskhub.virtual_time import VirtualClock
from tests.hub.by_hand import NOW, start
from tests.simulation.world import RARE_RENEWALS, World, simulate


class Lab:
    """An app whose activities fail until they are told otherwise, and count what they did."""

    def __init__(self) -> None:
        self.broken = True
        self.trouble = "not yet"
        self.width = 60
        self.ran: Counter[str] = Counter()
        self.app = app = App("lab")

        @app.activity
        def good(name: str) -> str:
            self.ran[name] += 1
            return name

        @app.activity
        def bad(name: str) -> str:
            self.ran[name] += 1
            if self.broken:
                raise ValueError(f"{name} {self.trouble}")
            return name

        @app.activity
        def never(name: str) -> str:
            self.ran[name] += 1
            raise ValueError(f"{name} never")

        @app.activity(record=True)
        async def tardy(what: tuple[str, float, str]) -> str:
            name, seconds, text = what
            self.ran[name] += 1
            await asyncio.sleep(seconds)
            if self.broken:
                raise ValueError(text)
            return name

        @app.activity
        def flaky(name: str) -> str:
            self.ran[name] += 1
            if self.ran[name] == 1:
                raise ValueError(f"{name} at first")
            return name

        @app.activity(record=True)
        async def kept(name: str) -> str:
            self.ran[name] += 1
            await asyncio.sleep(1.0)
            if self.broken:
                raise ValueError(f"{name} not yet")
            return name

        @app.activity(record=True)
        async def lasts(name: str) -> str:
            self.ran[name] += 1
            await asyncio.sleep(5.0)
            return name

        @app.activity(record=True)
        async def slow(name: str) -> str:
            self.ran[name] += 1
            await asyncio.sleep(60.0)
            return name

        @app.orchestrator
        async def plain(ctx: OrchestrationContext) -> list[str]:
            first = await ctx.call_activity("good", "a")
            return [first, await ctx.call_activity("bad", "b"), await ctx.call_activity("good", "c")]

        @app.orchestrator
        async def recorded(ctx: OrchestrationContext) -> str:
            return await ctx.call_activity("kept", "k")

        @app.orchestrator
        async def retried(ctx: OrchestrationContext) -> list[str]:
            policy = RetryPolicy(max_attempts=3, first_retry_interval=timedelta(seconds=5))
            first = await ctx.call_activity("good", "a")
            return [first, await ctx.call_activity("bad", "b", retry_policy=policy)]

        @app.orchestrator
        async def handled(ctx: OrchestrationContext) -> list[str]:
            try:
                await ctx.call_activity("never", "n")
            except Exception:
                await ctx.call_activity("good", "instead")
            return [await ctx.call_activity("bad", "b")]

        @app.orchestrator
        async def cleans(ctx: OrchestrationContext) -> str:
            try:
                return await ctx.call_activity("bad", "b")
            except Exception:
                await ctx.call_activity("good", "cleanup")
                raise

        @app.orchestrator
        async def tidies(ctx: OrchestrationContext, how: tuple[str, str, int, float]) -> list[str]:
            """Passes a's failure on; b fails, or is tried again, while it cleans up."""
            cleanup, text, attempts, wait = how
            tries = RetryPolicy(max_attempts=attempts, first_retry_interval=timedelta(seconds=wait))
            twice = RetryPolicy(max_attempts=2, first_retry_interval=timedelta(seconds=1))
            calls = [
                ctx.call_activity("tardy", ("a", 1.0, "no store")),
                ctx.call_activity("tardy", ("b", 5.0, text), retry_policy=tries),
            ]
            try:
                return await ctx.when_all(calls)
            except Exception:
                await ctx.call_activity(cleanup, "cleanup", retry_policy=twice)
                raise

        @app.orchestrator
        async def delegates(ctx: OrchestrationContext) -> list[str]:
            """Passes an activity's failure on; a child fails while it cleans up."""
            calls = [ctx.call_activity("bad", "a"), ctx.call_sub_orchestrator("waits", "w", instance_id="w")]
            try:
                return [await call for call in calls]
            except Exception:
                await ctx.call_activity("slow", "cleanup")
                raise

        @app.orchestrator
        async def follows(ctx: OrchestrationContext) -> list[str]:
            """Would have gone on with each of the others that came while it cleaned up."""
            calls = [ctx.call_activity("bad", "a"), *(ctx.call_activity("lasts", f"x{count}") for count in range(4))]
            found = []
            try:
                while calls:
                    done = await ctx.when_any(calls)
                    calls.remove(done)
                    found.append(ctx.call_activity("good", f"{done.get_result()}-then"))
                return sorted([await call for call in found])
            except Exception:
                await ctx.call_activity("slow", "cleanup")
                raise

        @app.orchestrator
        async def waits(ctx: OrchestrationContext, name: str) -> str:
            return await ctx.call_activity("tardy", (name, 5.0, "no store"))

        @app.orchestrator
        async def persists(ctx: OrchestrationContext) -> str:
            """Tries again by itself, and cleans up when that was in vain."""
            try:
                return await ctx.call_activity("bad", "b")
            except Exception:
                await ctx.create_timer(timedelta(seconds=10))
            try:
                return await ctx.call_activity("bad", "b")
            except Exception:
                await ctx.call_activity("good", "cleanup")
                raise

        @app.orchestrator
        async def optional(ctx: OrchestrationContext) -> list[str]:
            """Decides nothing between the failure that it handles and the one that it ends with."""
            first, second = ctx.call_activity("bad", "a"), ctx.call_activity("tardy", ("b", 5.0, "no store"))
            found = []
            with suppress(Exception):
                found.append(await first)
            return [*found, await second]

        @app.orchestrator
        async def falls_back(ctx: OrchestrationContext) -> list[str]:
            """Handles a failure with the text of the one that it ends with, while that activity runs."""
            first = ctx.call_activity("tardy", ("a", 1.0, "no store"))
            second = ctx.call_activity("tardy", ("b", 5.0, "no store"))
            try:
                found = await first
            except Exception:
                found = await ctx.call_activity("good", "instead")
            return [found, await second]

        @app.orchestrator
        async def backwards(ctx: OrchestrationContext, attempts: int) -> list[str]:
            """Has not looked at a's failure yet when it ends with b's."""
            twice = RetryPolicy(max_attempts=2, first_retry_interval=timedelta(seconds=1))
            tries = RetryPolicy(max_attempts=attempts, first_retry_interval=timedelta(seconds=5))
            first = ctx.call_activity("bad", "a", retry_policy=twice if attempts > 1 else None)
            second = ctx.call_activity("tardy", ("b", 5.0, "no store"), retry_policy=tries)
            return [await second, await first]

        @app.orchestrator
        async def fan(ctx: OrchestrationContext) -> list[str]:
            calls = [ctx.call_activity("good", "a"), ctx.call_activity("bad", "b"), ctx.call_activity("slow", "s")]
            return await ctx.when_all(calls)

        @app.orchestrator
        async def both(ctx: OrchestrationContext) -> list[str]:
            policy = RetryPolicy(max_attempts=2, first_retry_interval=timedelta(seconds=5))
            other = RetryPolicy(max_attempts=9, first_retry_interval=timedelta(seconds=7))
            calls = [
                ctx.call_activity("bad", "b", retry_policy=policy),
                ctx.call_activity("bad", "c", retry_policy=other),
            ]
            return await ctx.when_all(calls)

        @app.orchestrator
        async def timed(ctx: OrchestrationContext) -> list[str]:
            timer = ctx.create_timer(timedelta(minutes=5))
            found = await ctx.call_activity("bad", "b")
            await timer
            return [found, str((ctx.current_utc_datetime.minute, ctx.current_utc_datetime.second >= 0))]

        @app.orchestrator
        async def due(ctx: OrchestrationContext) -> str:
            timer = ctx.create_timer(timedelta(minutes=5))
            found = await ctx.call_activity("kept", "k")
            await timer
            return found

        @app.orchestrator
        async def child(ctx: OrchestrationContext, name: str) -> str:
            await ctx.call_activity("good", f"{name}-first")
            return await ctx.call_activity("bad", f"{name}-then")

        @app.orchestrator
        async def middle(ctx: OrchestrationContext, name: str) -> str:
            return await ctx.call_sub_orchestrator("child", name, instance_id=f"child-of-{name}")

        @app.orchestrator
        async def parent(ctx: OrchestrationContext) -> list[str]:
            first = await ctx.call_activity("good", "a")
            return [first, await ctx.call_sub_orchestrator("middle", "m", instance_id="middle")]

        @app.orchestrator
        async def lasting(ctx: OrchestrationContext, name: str) -> str:
            await ctx.create_timer(timedelta(minutes=2))
            return name

        @app.orchestrator
        async def mixed(ctx: OrchestrationContext) -> list[str]:
            """Fails while one child still runs; that one ends while nobody listens."""
            calls = [
                ctx.call_sub_orchestrator("lasting", "l", instance_id="lasting"),
                ctx.call_sub_orchestrator("child", "x", instance_id="x"),
            ]
            return [*await ctx.when_all(calls), await ctx.call_activity("bad", "b")]

        @app.orchestrator
        async def tree(ctx: OrchestrationContext, depth: int) -> list[Any]:
            """Fails in its last level, while a child runs in each."""
            runs = ctx.call_sub_orchestrator("lasting", "l", instance_id=f"lasting-{depth}")
            if depth:
                return await ctx.when_all([runs, ctx.call_sub_orchestrator("tree", depth - 1)])
            return await ctx.when_all([runs, ctx.call_activity("bad", "b")])

        @app.orchestrator
        async def wide(ctx: OrchestrationContext) -> int:
            """Its failures are more rows than one transaction takes."""
            calls = [ctx.call_activity("bad", f"b{number}") for number in range(self.width)]
            found = []
            for call in calls:
                with suppress(Exception):
                    found.append(await call)
            if len(found) < len(calls):
                raise RuntimeError(f"{len(calls) - len(found)} failed")
            return len(found)

        @app.orchestrator
        async def wrong(ctx: OrchestrationContext) -> str:
            found = await ctx.call_activity("good", "a")
            if self.broken:
                raise RuntimeError("a bug")
            return found

        @app.orchestrator
        async def again(ctx: OrchestrationContext, generation: int) -> str:
            if generation < 2:
                ctx.continue_as_new(generation + 1)
                return ""
            return await ctx.call_activity("bad", "b")


HOUR = timedelta(hours=1)
Drive = Callable[[World, Lab], Awaitable[Any]]


def play(drive: Drive, *, skew: timedelta = timedelta(0)) -> Any:
    """:param skew: of the worker's clock."""

    async def main() -> Any:
        lab = Lab()
        async with World(lab.app, lease=RARE_RENEWALS) as world:
            await world.join("one", skew=skew)
            found = await drive(world, lab)
            assert not world.defects(), world.defects()
            assert not await world.client.admin.quarantined()
            return found

    return simulate(main)


async def failed(world: World, name: str, input: Any = None) -> InstanceState:
    await world.client.start(name, input, instance_id="one")
    state = await world.wait("one")
    assert state.status is Status.FAILED, state
    return state


def rewound(name: str, *, wait: float = 0.0, input: Any = None) -> tuple[str | None, dict[str, int]]:
    """Fail, mend, rewind, and wait for the end: the output, and what ran how often."""

    async def drive(world: World, lab: Lab) -> Any:
        await failed(world, name, input)
        await world.clock.sleep(wait)
        lab.broken = False
        assert (await world.client.rewind("one", "mended")).status is Status.PENDING
        state = await world.wait("one")
        assert (state.status, state.failure) == (Status.COMPLETED, None)
        await world.settle()
        return state.output, dict(lab.ran)

    found: tuple[str | None, dict[str, int]] = play(drive)
    return found


@pytest.mark.rows("K46")
@pytest.mark.parametrize(
    ("name", "output", "ran"),
    [
        ("plain", '["a","b","c"]', {"a": 1, "b": 2, "c": 1}),
        ("recorded", '"k"', {"k": 2}),
        ("retried", '["a","b"]', {"a": 1, "b": 4}),
        ("handled", '["b"]', {"n": 1, "instead": 1, "b": 2}),
        ("falls_back", '["instead","b"]', {"a": 1, "instead": 1, "b": 2}),
        ("cleans", '"b"', {"b": 2, "cleanup": 1}),
        ("fan", '["a","b","s"]', {"a": 1, "b": 2, "s": 1}),
        ("both", '["b","c"]', {"b": 3, "c": 2}),
        ("parent", '["a","m-then"]', {"a": 1, "m-first": 1, "m-then": 2}),
        ("wrong", '"a"', {"a": 1}),
        ("wide", "60", {f"b{number}": 2 for number in range(60)}),
    ],
)
def test_only_what_failed_is_done_again(name: str, output: str, ran: dict[str, int]) -> None:
    assert rewound(name) == (output, ran)


@pytest.mark.rows("K46")
@pytest.mark.parametrize(
    ("name", "input", "output", "ran"),
    [
        ("tidies", ["slow", "b's", 1, 1.0], '["a","b"]', {"a": 2, "b": 2, "cleanup": 1}),
        ("tidies", ["slow", "no store", 1, 1.0], '["a","b"]', {"a": 2, "b": 2, "cleanup": 1}),
        ("tidies", ["slow", "b's", 2, 1.0], '["a","b"]', {"a": 2, "b": 3, "cleanup": 1}),
        ("tidies", ["slow", "b's", 2, 600.0], '["a","b"]', {"a": 2, "b": 2, "cleanup": 1}),
        ("tidies", ["flaky", "b's", 1, 1.0], '["a","b"]', {"a": 2, "b": 1, "cleanup": 2}),
        ("delegates", None, '["a","w"]', {"a": 2, "w": 2, "cleanup": 1}),
        (
            "follows",
            None,
            '["a-then","x0-then","x1-then","x2-then","x3-then"]',
            {"a": 2, "cleanup": 1}
            | {f"x{count}": 1 for count in range(4)}
            | {f"{name}-then": 1 for name in ("a", "x0", "x1", "x2", "x3")},
        ),
        ("persists", None, '"b"', {"b": 3, "cleanup": 1}),
    ],
    ids=[
        "b fails",
        "with the same text",
        "b gives up",
        "b waits",
        "the cleanup is retried",
        "a child",
        "others complete",
        "by itself",
    ],
)
def test_what_was_done_about_a_failure_that_was_passed_on_is_taken_back_with_it(
    name: str, input: Any, output: str, ran: dict[str, int]
) -> None:
    """Else the orchestrator comes to the old failure again, or does not fit its history, whatever was mended."""
    assert rewound(name, input=input) == (output, ran)


@pytest.mark.rows("K46")
@pytest.mark.parametrize(
    ("name", "input", "output", "ran"),
    [
        ("optional", None, '["a","b"]', {"a": 2, "b": 2}),
        ("backwards", 1, '["b","a"]', {"a": 2, "b": 2}),
        ("backwards", 3, '["b","a"]', {"a": 3, "b": 4}),
    ],
    ids=["handled", "not seen yet", "given up while another is retried"],
)
def test_a_failure_that_nothing_was_decided_after_is_done_again(
    name: str, input: Any, output: str, ran: dict[str, int]
) -> None:
    """Whether it was handled the history does not tell: what must be mended once must not fail again at once."""
    assert rewound(name, input=input) == (output, ran)


@pytest.mark.rows("K46", "K47")
def test_the_generation_that_failed_is_rewound() -> None:
    assert rewound("again", input=0) == ('"b"', {"b": 2})


@pytest.mark.rows("K46")
@pytest.mark.parametrize(
    "wait", [1.0, pytest.param(3600.0, marks=pytest.mark.long)], ids=["still to fire", "fired while nobody listened"]
)
def test_a_timer_that_was_open_fires_again(wait: float) -> None:
    output, ran = rewound("timed", wait=wait)
    assert output is not None
    assert output.startswith('["b"')
    assert ran == {"b": 2}


@pytest.mark.rows("K33", "K46", "K59")
@pytest.mark.parametrize("skew", [HOUR, -HOUR], ids=["ahead", "behind"])
def test_a_timer_fires_in_its_time_whatever_the_clocks_of_worker_and_client(skew: timedelta) -> None:
    async def drive(world: World, lab: Lab) -> float:
        await failed(world, "timed")
        await world.clock.sleep(60.0)
        lab.broken = False
        hub = replace(world.client.hub, clock=VirtualClock(skew=skew))
        await Client(hub, world.settings.lease_times).rewind("one")
        assert (await world.wait("one")).status is Status.COMPLETED
        return world.clock.monotonic()

    assert 300.0 <= round(play(drive, skew=-skew / 2), 6) < 302.0


@pytest.mark.rows("K46")
def test_what_is_decided_before_the_message_of_a_rewind_comes_is_decided_anew() -> None:
    """The timer wakes it first. The record of the attempt that failed must not answer the one after the rewind."""

    async def drive(world: World, lab: Lab) -> Any:
        await failed(world, "due")
        await world.clock.sleep(600.0)
        lab.broken = False
        slow = client_over(world, lambda call: late(60.0) if "GenericEvent" in put_text(call) else None)
        await slow.rewind("one")
        await world.settle()
        state = await world.wait("one")
        return state.status, state.output, dict(lab.ran)

    assert play(drive) == (Status.COMPLETED, '"k"', {"k": 2})


def put_text(call: Call) -> str:
    return call.what.text if isinstance(call.what, PutMessage) else ""


def client_over(world: World, plan: Plan) -> Client:
    """A client with a way to the store of its own."""
    store = FaultyStore(world.store, plan, clock=world.clock, stepwise=True)
    return Client(replace(world.client.hub, store=store), world.settings.lease_times)


@pytest.mark.rows("K46", "K48")
@pytest.mark.parametrize(
    "wait", [1.0, pytest.param(3600.0, marks=pytest.mark.long)], ids=["still runs", "ended while nobody listened"]
)
def test_children_are_rewound_and_those_that_ended_meanwhile_answer_again(wait: float) -> None:
    async def drive(world: World, lab: Lab) -> Any:
        await failed(world, "mixed")
        await world.clock.sleep(wait)
        lab.broken = False
        await world.client.rewind("one")
        state = await world.wait("one")
        return state.output, dict(lab.ran), {row.instance_id: row.status for row in await listed(world)}

    output, ran, rows = play(drive)
    assert output == '["l","x-then","b"]'
    assert ran == {"x-first": 1, "x-then": 2, "b": 1}
    assert set(rows.values()) == {Status.COMPLETED}


async def listed(world: World) -> tuple[InstanceState, ...]:
    return (await world.client.list()).instances


@pytest.mark.rows("K46")
def test_children_that_run_are_waited_for_once_for_a_whole_tree() -> None:
    """As each of them may have answered just before its parent was rewound."""

    async def drive(world: World, lab: Lab) -> tuple[float, str | None]:
        await failed(world, "tree", 3)
        lab.broken = False
        began = world.clock.monotonic()
        await world.client.rewind("one", "mended")
        seconds = world.clock.monotonic() - began
        return seconds, (await world.wait("one")).output

    seconds, output = play(drive)
    assert output == '["l",["l",["l",["l","b"]]]]'
    assert CHECKPOINT <= seconds < 2 * CHECKPOINT


@pytest.mark.rows("K46")
def test_what_fails_again_can_be_rewound_again() -> None:
    async def drive(world: World, lab: Lab) -> Any:
        await failed(world, "retried")
        for _ in range(3):
            await world.client.rewind("one")
            assert (await world.wait("one")).status is Status.FAILED
        lab.broken = False
        await world.client.rewind("one")
        return (await world.wait("one")).output, dict(lab.ran)

    assert play(drive) == ('["a","b"]', {"a": 1, "b": 13}), "each rewind begins the retry policy of 3 attempts anew"


@pytest.mark.rows("K46")
def test_a_child_that_is_gone_is_started_again() -> None:
    async def drive(world: World, lab: Lab) -> Any:
        await failed(world, "parent")
        await world.client.purge("child-of-m")
        lab.broken = False
        await world.client.rewind("one")
        return (await world.wait("one")).output, dict(lab.ran)

    assert play(drive) == ('["a","m-then"]', {"a": 1, "m-first": 2, "m-then": 2})


@pytest.mark.rows("K46")
def test_a_child_that_was_terminated_is_started_again() -> None:
    async def drive(world: World, lab: Lab) -> Any:
        lab.broken = False
        await world.client.start("mixed", instance_id="one")
        await world.clock.sleep(10.0)
        await world.client.terminate("lasting", "by mistake")
        assert (await world.wait("one")).status is Status.FAILED
        await world.client.rewind("one")
        return (await world.wait("one")).output, dict(lab.ran)

    assert play(drive) == ('["l","x-then","b"]', {"x-first": 1, "x-then": 1, "b": 1})


@pytest.mark.rows("K46")
@pytest.mark.parametrize("whose", ["ours", ".NET's"])
@pytest.mark.parametrize("wait", [0.0, 60.0], ids=["still runs", "has completed"])
def test_a_child_that_was_rewound_by_itself_is_not_started_again(wait: float, whose: str) -> None:
    async def drive(world: World, lab: Lab) -> Any:
        await failed(world, "parent")
        lab.broken = False
        if whose != "ours":
            await without_identities(world, "middle")
        await world.client.rewind("child-of-m")
        await world.clock.sleep(wait)
        await world.client.rewind("one")
        return (await world.wait("one")).output, dict(lab.ran)

    assert play(drive) == ('["a","m-then"]', {"a": 1, "m-first": 1, "m-then": 2})


@pytest.mark.rows("K25", "K46")
def test_a_child_that_answers_just_before_its_parent_is_rewound_answers_again() -> None:
    """Its checkpoint is under way: the answer was put, for a parent that has ended, and its row still says Running."""

    def slow(call: Call) -> Fault | None:
        return late(2.0) if is_end_of(call, "middle") else None

    async def drive(world: World, lab: Lab) -> Any:
        await world.join("two", plan=slow)
        world.machines[0].plan = slow
        await world.clock.sleep(60.0)  # a partition each: what is put for one's own is kept until the checkpoint stands
        await failed(world, "parent")
        lab.broken = False
        await world.client.rewind("middle")
        while not world.said("message_discarded"):
            await world.clock.sleep(0.1)
        assert {row.instance_id: row.status for row in await listed(world)}["middle"] is not Status.COMPLETED
        await world.client.rewind("one")
        return (await world.wait("one")).output, dict(lab.ran)

    assert play(drive) == ('["a","m-then"]', {"a": 1, "m-first": 1, "m-then": 2})


def is_end_of(call: Call, instance_id: str) -> bool:
    """Whether an instance's row is to say that it has ended."""
    if not isinstance(call.what, Transact) or not call.what.table.endswith("Instances"):
        return False
    rows = [row.entity for row in call.what.rows if row.entity is not None]
    return any(row.partition_key == instance_id and "CompletedTime" in row.properties for row in rows)


@pytest.mark.rows("K46")
@pytest.mark.parametrize("whose", ["ours", ".NET's"])
def test_a_child_whose_id_was_started_anew_is_started_again(whose: str) -> None:
    async def drive(world: World, lab: Lab) -> Any:
        await failed(world, "parent")
        lab.broken = False
        if whose != "ours":
            await without_identities(world, "middle")
        await world.client.start("child", "n", instance_id="child-of-m", policy=StartPolicy.REPLACE_FINISHED)
        await world.wait("child-of-m")
        await world.client.rewind("one")
        return (await world.wait("one")).output, dict(lab.ran)

    assert play(drive) == ('["a","m-then"]', {"a": 1, "m-first": 2, "m-then": 2, "n-first": 1, "n-then": 1})


async def without_identities(world: World, instance_id: str) -> None:
    """Make the rows that created an instance's children as .NET writes them."""
    async for row in world.store.rows(world.client.hub.names.history):
        if row.partition_key == instance_id and row.properties.get("EventType") == "SubOrchestrationInstanceCreated":
            kept = {name: value for name, value in row.properties.items() if not name.startswith("TaskHub")}
            assert len(kept) < len(row.properties)
            change = RowOperation(verb=RowVerb.REPLACE, entity=replace(row, properties=kept), etag=row.etag)
            await world.store.execute(Transact(table=world.client.hub.names.history, rows=(change,)))


@pytest.mark.rows("K46")
def test_an_attempt_that_is_done_again_has_a_record_of_its_own() -> None:
    async def drive(world: World, lab: Lab) -> Any:
        await failed(world, "recorded")
        lab.broken = False
        await world.client.rewind("one")
        await world.wait("one")
        return [(record.attempt, record.state) for record in await world.client.instance("one").activities()]

    assert play(drive) == [(1, RecordState.FAILED), (2, RecordState.COMPLETED)]


@pytest.mark.rows("K28", "K46")
def test_failures_of_more_bytes_than_a_transaction_takes_are_rewound() -> None:
    """Each failure is short enough for its row, and many of them fit into a transaction, but not 99."""

    async def drive(world: World, lab: Lab) -> Any:
        lab.width, lab.trouble = 99, "\\" * 6_500
        await failed(world, "wide")
        lab.broken = False
        await world.client.rewind("one")
        return (await world.wait("one")).output, set(lab.ran.values())

    assert play(drive) == ("99", {2})


@pytest.mark.rows("K46")
@pytest.mark.parametrize("status", ["Completed", "Terminated", "Running"])
def test_only_what_has_failed_can_be_rewound(status: str) -> None:
    async def drive(world: World, lab: Lab) -> Any:
        lab.broken = False
        await world.client.start("timed", instance_id="one")
        await world.clock.sleep(2.0)
        if status == "Terminated":
            await world.client.terminate("one", "enough", wait=True)
        if status == "Completed":
            await world.wait("one")
        with pytest.raises(InputError, match=f"is {status}"):
            await world.client.rewind("one")
        with pytest.raises(InstanceNotFound):
            await world.client.rewind("two")

    play(drive)


@pytest.mark.rows("K46")
@pytest.mark.long
def test_what_failed_before_its_id_was_started_anew_is_not_rewound() -> None:
    """Its history is there until the new start runs."""

    async def drive(world: World, lab: Lab) -> Any:
        await failed(world, "plain")
        lab.broken = False
        at = world.clock.utc_now().datetime() + timedelta(hours=1)
        await world.client.start("again", 0, instance_id="one", policy=StartPolicy.REPLACE_FINISHED, start_at=at)
        with pytest.raises(InputError, match="is Pending"):
            await world.client.rewind("one")
        state = await world.wait("one", timedelta(hours=2))
        return state.status, state.output, dict(lab.ran)

    assert play(drive) == (Status.COMPLETED, '"b"', {"a": 1, "b": 2})


@pytest.mark.rows("K46")
def test_a_start_that_comes_into_a_rewind_wins() -> None:
    async def drive(world: World, lab: Lab) -> Any:
        await failed(world, "plain")
        lab.broken = False
        rewinding = asyncio.ensure_future(client_over(world, slow_mark).rewind("one"))
        await world.clock.sleep(30.0)
        await world.client.start("again", 0, instance_id="one", policy=StartPolicy.REPLACE_FINISHED)
        with pytest.raises(InputError, match="is Completed"):
            await rewinding
        return (await world.wait("one")).output, dict(lab.ran)

    assert play(drive) == ('"b"', {"a": 1, "b": 2})


@pytest.mark.rows("K46", "K29")
def test_what_fails_again_before_its_row_says_rewound_is_failed() -> None:
    """A timer that was due wakes it while its client is slow."""

    async def drive(world: World, lab: Lab) -> Any:
        await failed(world, "timed")
        await world.clock.sleep(600.0)
        state = await client_over(world, slow_mark).rewind("one")
        return state.status, dict(lab.ran)

    assert play(drive) == (Status.FAILED, {"b": 2})


def slow_mark(call: Call) -> Fault | None:
    """The instance row is late."""
    return late(60.0) if isinstance(call.what, Transact) and call.what.table.endswith("Instances") else None


@pytest.mark.rows("K46", "K26")
@pytest.mark.parametrize("fault", [unsent, lost], ids=lambda fault: fault.__name__)
@pytest.mark.parametrize(
    ("name", "wait"),
    [
        ("plain", 0.0),
        ("fan", 0.0),
        ("fan", 100.0),
        *(pytest.param(name, 0.0, marks=pytest.mark.long) for name in ("mixed", "wide")),
    ],
)
def test_a_rewind_that_is_cut_off_anywhere_is_finished_by_the_next(
    name: str, wait: float, fault: Callable[[], Any]
) -> None:
    """The client dies at its n-th storage call, for every n. With "fan", an activity runs or has ended meanwhile."""
    undisturbed = rewound(name, wait=wait)

    def cut(number: int) -> tuple[Any, bool]:
        async def drive(world: World, lab: Lab) -> Any:
            await failed(world, name)
            await world.clock.sleep(wait)
            lab.broken = False
            disturbed = True
            try:
                await client_over(world, at(number, fault())).rewind("one", "mended")
                disturbed = False
            except Unavailable:
                await world.clock.sleep(30.0)
                try:
                    await world.client.rewind("one", "mended")
                except InputError:  # it goes on by itself, or has ended, as the row says
                    state = await world.client.get("one")
                    assert state is not None
                    assert state.status in (Status.PENDING, Status.COMPLETED)
            state = await world.wait("one")
            await world.settle()
            return (state.output, dict(lab.ran)), disturbed

        found: tuple[Any, bool] = play(drive)
        return found

    number = 0
    while True:
        number += 1
        found, disturbed = cut(number)
        assert found == undisturbed, f"cut off at call {number}"
        if not disturbed:
            break
    assert number > 5


def steps(work: Callable[[], Any]) -> int:
    """Lines of Python that were run."""
    count = 0

    def line(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return line

    before = sys.gettrace()
    sys.settrace(line)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def test_planning_takes_as_many_steps_as_there_are_failures() -> None:
    """All of them with the text that the orchestration failed with, one turn after they came."""
    failure = FailureDetails(error_type="ValueError", error_message="no store")

    def history(width: int) -> list[HistoryEvent]:
        return [
            OrchestratorStarted(timestamp=NOW),
            start(),
            *(TaskScheduled(timestamp=NOW, event_id=number, name="bad") for number in range(width)),
            OrchestratorStarted(timestamp=NOW),
            *(TaskFailed(timestamp=NOW, task_scheduled_id=number, failure=failure) for number in range(width)),
            OrchestratorStarted(timestamp=NOW),
            ExecutionCompleted(timestamp=NOW, event_id=width, status=Status.FAILED, failure=failure),
        ]

    few, many = history(200), history(400)
    rewinding = plan(many)
    assert rewinding is not None
    assert len(rewinding.taken) == 801
    assert steps(lambda: plan(many)) < 2.2 * steps(lambda: plan(few))
