"""For any workflow and any order of answers: a live orchestrator and a replayed one make the same episodes.

``Play`` makes every episode several ways and compares them whole. What is checked here besides is the shape that every
history must have, and that the outcome does not depend on how answers are batched, duplicated or delayed.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_taskhub.app import App, OrchestrationContext, RetryPolicy, Task, TaskFailedError
from airflow_provider_taskhub.engine.episode import Outbound
from airflow_provider_taskhub.engine.events import (
    EventRaised,
    ExecutionCompleted,
    ExecutionResumed,
    ExecutionStarted,
    ExecutionSuspended,
    HistoryEvent,
    OrchestratorCompleted,
    OrchestratorStarted,
    Status,
    SubOrchestrationInstanceCreated,
    TaskScheduled,
    TimerCreated,
    TimerFired,
)
from tests.engine.play import Play

Step = tuple[Any, ...]
NAMES = st.sampled_from(["a", "b", "c"])
LEAF = st.one_of(
    st.tuples(st.just("activity"), NAMES),
    st.tuples(st.just("child"), NAMES),
    st.tuples(st.just("timer"), st.integers(1, 20 * 86_400)),
    st.tuples(st.just("event"), NAMES),
)
STEP = st.one_of(
    LEAF,
    st.tuples(st.just("all"), st.lists(LEAF, max_size=4)),
    st.tuples(st.just("any"), st.lists(LEAF, min_size=1, max_size=3)),
    st.tuples(st.just("send"), NAMES),
    st.tuples(st.just("status"), st.integers()),
    st.tuples(st.just("spawn"), LEAF),
    st.tuples(st.just("retry"), st.integers(1, 3)),
    st.just(("again",)),
)
INNER = st.recursive(
    st.one_of(LEAF, STEP.filter(lambda step: step[0] != "again")),
    lambda step: st.one_of(
        st.tuples(st.just("branch"), st.lists(step, max_size=3)),
        st.tuples(st.just("limit"), st.integers(0, 20), st.lists(step, max_size=3)),
        st.tuples(st.just("branches"), st.lists(st.lists(step, max_size=3), max_size=3)),
        st.tuples(st.just("first"), st.lists(st.lists(step, max_size=2), min_size=1, max_size=3), st.booleans()),
        st.tuples(st.just("left"), st.lists(step, max_size=2)),
    ),
    max_leaves=6,
)
PROGRAM = st.lists(st.one_of(STEP, INNER), max_size=6)
BRANCHES = st.tuples(st.just("branches"), st.lists(st.lists(LEAF, max_size=3), max_size=3))
BATCHED = st.lists(st.one_of(STEP, BRANCHES), max_size=6)
"""Without limits and races of several steps, whose outcome depends on what comes first."""

app = App("random")


def task(ctx: OrchestrationContext, leaf: Step) -> Task[Any]:
    match leaf:
        case ("activity", name):
            return ctx.call_activity(name, [str(ctx.new_guid()), ctx.current_utc_datetime.isoformat()])
        case ("child", name):
            return ctx.call_sub_orchestrator(name, 1)
        case ("timer", seconds):
            return ctx.create_timer(timedelta(seconds=seconds))
        case ("event", name):
            return ctx.wait_for_external_event(name)
        case ("retry", attempts):
            return ctx.call_activity("flaky", 0, retry=RetryPolicy(max_attempts=attempts))
    raise AssertionError(leaf)


@app.orchestrator
async def random(ctx: OrchestrationContext, program: list[Any]) -> Any:
    return await steps_of(ctx, program)


async def branch_of(ctx: OrchestrationContext, program: list[Any]) -> Any:
    try:
        return await steps_of(ctx, program)
    except CancelledError:
        ctx.send_event("other", "undo", str(ctx.new_guid()))
        if program and program[0][0] == "activity":
            await ctx.call_activity("undo")
        raise


async def steps_of(ctx: OrchestrationContext, program: list[Any]) -> Any:
    results: list[Any] = []
    for at, step in enumerate(program):
        kind, *rest = step
        try:
            if kind == "all":
                results.append(await ctx.when_all([task(ctx, tuple(leaf)) for leaf in rest[0]]))
            elif kind == "any":
                tasks = [task(ctx, tuple(leaf)) for leaf in rest[0]]
                results.append(tasks.index(await ctx.when_any(tasks)))
            elif kind == "send":
                ctx.send_event("other", rest[0], at)
            elif kind == "status":
                ctx.set_custom_status(rest[0])
            elif kind == "spawn":
                task(ctx, tuple(rest[0]))
            elif kind == "branch":
                results.append(await ctx.branch(branch_of(ctx, rest[0])))
            elif kind == "branches":
                results.append(await ctx.when_all([ctx.branch(branch_of(ctx, part)) for part in rest[0]]))
            elif kind == "first":
                parts = [ctx.branch(branch_of(ctx, part)) for part in rest[0]]
                results.append(parts.index(await ctx.when_any(parts)))
                if rest[1]:
                    for part in parts:
                        part.cancel()
            elif kind == "left":
                ctx.branch(branch_of(ctx, rest[0]))
            elif kind == "limit":
                async with ctx.timeout(rest[0]) as limit:
                    results.append(await steps_of(ctx, rest[1]))
                results.append(limit.expired())
            elif kind == "again":
                ctx.continue_as_new(program[at + 1 :])
                return None
            else:
                results.append(await task(ctx, tuple(step)))
        except (TaskFailedError, TimeoutError) as error:
            results.append(f"{type(error).__name__}: {error}")
    return results


def waiting(play: Play, answered: set[int]) -> list[Outbound]:
    """Messages of the current generation that nobody has answered."""
    return [
        outbound
        for at, outbound in enumerate(play.outbound)
        if at not in answered and not isinstance(outbound.event, EventRaised) and current(play, outbound)
    ]


def current(play: Play, outbound: Outbound) -> bool:
    event = outbound.event
    owner = event.parent.instance if isinstance(event, ExecutionStarted) and event.parent else outbound.target
    return owner == play.instance


@settings(max_examples=150)
@given(program=PROGRAM, data=st.data())
@pytest.mark.rows("K20", "K21", "K27", "D59")
def test_live_and_replayed_are_the_same(program: list[Step], data: st.DataObject) -> None:
    play = Play(app)
    play.start("random", program)
    answered: set[int] = set()
    for _ in range(30):
        if play.live.is_finished:
            break
        play.wait(seconds=data.draw(st.integers(-5, 5)))
        play.take(*batch(play, answered, data))
        check_history(play)
    assert play.live.instance == play.instance


def batch(play: Play, answered: set[int], data: st.DataObject) -> list[HistoryEvent]:
    events: list[HistoryEvent] = []
    for outbound in data.draw(st.permutations(waiting(play, answered)))[: data.draw(st.integers(0, 4))]:
        answered.add(play.outbound.index(outbound))
        fails = isinstance(outbound.event, TaskScheduled) and data.draw(st.booleans())
        events += [play.failed(outbound) if fails else play.done(outbound, 1)] * data.draw(st.sampled_from([1, 1, 2]))
    events += [play.raised(name, 1) for name in data.draw(st.lists(NAMES, max_size=2))]
    control = data.draw(st.sampled_from(["", "", "", "suspend", "resume"]))
    if control:
        kind = ExecutionSuspended if control == "suspend" else ExecutionResumed
        events.insert(data.draw(st.integers(0, len(events))), kind(timestamp=play.now))
    return events


def check_history(play: Play) -> None:
    """What every history must look like."""
    past = play.past
    assert isinstance(past[0], OrchestratorStarted)
    assert isinstance(past[1], ExecutionStarted)
    assert isinstance(past[-1], OrchestratorCompleted)
    times = [event.timestamp for event in past if isinstance(event, OrchestratorStarted | OrchestratorCompleted)]
    assert times == sorted(times)
    scheduled = [event.event_id for event in past if event.event_id >= 0]
    assert len(set(scheduled)) == len(scheduled)
    answers = Counter(
        event.timer_id if isinstance(event, TimerFired) else event.task_scheduled_id
        for event in past
        if isinstance(event, TimerFired) or hasattr(event, "task_scheduled_id")
    )
    assert all(count == 1 for count in answers.values())
    assert set(answers) <= set(scheduled)
    completions = [event for event in past if isinstance(event, ExecutionCompleted)]
    assert len(completions) == int(play.live.is_finished)
    opened = (TaskScheduled, SubOrchestrationInstanceCreated, TimerCreated)
    ids = [event.taskhub_action_id for event in past if isinstance(event, opened)]
    assert None not in ids
    assert len(set(ids)) == len(ids)


def settle(program: list[Step], sizes: Iterator[int]) -> str | None:
    """Run to the end: everything is answered in the order sent, in batches of the given sizes."""
    play = Play(app)
    play.start("random", program, with_events=[play.raised(name, 7) for name in ("a", "b", "c") * 8])
    answered: set[int] = set()
    for size in sizes:
        if play.live.is_finished:
            assert play.last.status is Status.COMPLETED
            return play.last.output
        ready = sorted(waiting(play, answered), key=lambda outbound: isinstance(outbound.event, TimerFired))[:size]
        answered |= {play.outbound.index(outbound) for outbound in ready}
        play.take(*(play.done(outbound, 1) for outbound in ready))
    raise AssertionError("it does not end")


@settings(max_examples=60)
@given(program=BATCHED, sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_batches_do_not_matter(program: list[Step], sizes: list[int]) -> None:
    one_by_one = settle(program, iter([1] * 200))
    assert settle(program, iter((sizes * 200)[:200])) == one_by_one


def steps(name: str, count: int) -> tuple[int, int]:
    """Tasks looked at while a workflow of ``count`` activities runs live, and while its history is replayed."""
    from airflow_provider_taskhub.engine.registry import Registry
    from airflow_provider_taskhub.engine.replay import Execution, run
    from tests.engine.play import INSTANCE, START

    calls = Counter[str]()
    own = App("sizes")

    @own.orchestrator
    async def chain(ctx: OrchestrationContext, n: int) -> None:
        for _ in range(n):
            calls["turn"] += 1
            await ctx.call_activity("a")

    @own.orchestrator
    async def fan(ctx: OrchestrationContext, n: int) -> None:
        await ctx.when_all([counted(ctx.call_activity("a"), calls) for _ in range(n)])

    registry = Registry.of([own])
    live = Execution(registry, (), instance=INSTANCE)
    start = ExecutionStarted(timestamp=START, instance=INSTANCE, name=name, input=str(count))
    outbound = list(live.advance([start], now=START).outbound)
    play = Play(own)
    for at in range(count):
        outbound += live.advance([play.done(outbound[at])], now=START).outbound
    assert live.is_finished
    ran = sum(calls.values())
    run(registry, live.history[:-4], [live.history[-3]], instance=INSTANCE, now=START)
    return ran, sum(calls.values()) - ran


def counted(task: Task[Any], calls: Counter[str]) -> Task[Any]:
    class Count:
        combines = False

        def settled(self, child: Task[Any]) -> None:
            calls["settled"] += 1

    task.join(Count())  # type: ignore[arg-type]
    return task


@pytest.mark.parametrize("name", ["chain", "fan"])
def test_work_grows_with_the_history_and_not_faster(name: str) -> None:
    """Live, each answer costs one step whatever lies behind it; a replay costs each step once."""
    assert steps(name, 1000) == (1000, 1000)
