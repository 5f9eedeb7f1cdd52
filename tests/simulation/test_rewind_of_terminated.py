"""Rewinding what was terminated: it goes on from where it was, and what had ended is not done again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, TerminationRequested
from airflow_provider_taskhub.engine.context import OrchestrationContext
from airflow_provider_taskhub.engine.events import (
    EventSent,
    ExecutionCompleted,
    ExecutionTerminated,
    FailureDetails,
    OrchestratorStarted,
    Status,
    SubOrchestrationInstanceCreated,
    SubOrchestrationInstanceFailed,
    TaskFailed,
    TaskScheduled,
)
from airflow_provider_taskhub.errors import InputError, Unavailable
from airflow_provider_taskhub.hub.history.rewind_plan import plan
from airflow_provider_taskhub.storage.faults import at, late, lost, unsent
from tests.hub.by_hand import NOW
from tests.simulation.test_rewind import client_over, is_end_of
from tests.simulation.world import RARE_RENEWALS, World, simulate

ENDED = ('["a","s",["k1","k2"],"later"]', {"a": 1, "s": 2, "k1": 1, "k2": 2})


def app(ran: Counter[str]) -> App:
    made = App("family")

    @made.activity
    def quick(name: str) -> str:
        ran[name] += 1
        return name

    @made.activity(record=True)
    async def slow(name: str) -> str:
        ran[name] += 1
        await asyncio.sleep(60.0)
        return name

    @made.orchestrator
    async def kid(ctx: OrchestrationContext) -> list[str]:
        try:
            return [await ctx.call_activity(quick, "k1"), await ctx.call_activity(slow, "k2")]
        except TerminationRequested:
            await ctx.call_activity(slow, "clean")
            raise

    @made.orchestrator
    async def parent(ctx: OrchestrationContext, minutes: int) -> list[Any]:
        first = await ctx.call_activity(quick, "a")
        child = ctx.call_sub_orchestrator(kid, instance_id="kid")
        timer = ctx.create_timer(timedelta(minutes=minutes))
        one = await ctx.call_activity(slow, "s")
        both = await child
        await timer
        return [first, one, both, "later"]

    @made.orchestrator
    async def rounds(ctx: OrchestrationContext, number: int) -> str:
        await ctx.call_activity(quick, f"round {number}")
        if number < 3:
            ctx.continue_as_new(number + 1)
            return ""
        return str(await ctx.wait_for_external_event("go"))

    return made


async def terminated(world: World, name: str = "parent", input: Any = 60) -> None:
    """The instance has ended 30 s after its start, while activities run."""
    await world.client.start(name, input, instance_id="one")
    await world.clock.sleep(30.0)
    state = await world.client.terminate("one", "from Airflow: task marked failed", wait=True)
    assert state.status is Status.TERMINATED


def play(drive: Callable[[World], Any]) -> tuple[Any, dict[str, int]]:
    async def main() -> Any:
        ran: Counter[str] = Counter()
        async with World(app(ran), lease=RARE_RENEWALS) as world:
            await world.join("only")
            found = await drive(world)
            assert not world.defects(), world.defects()
            assert not await world.client.admin.quarantined()
            return found, dict(ran)

    found: tuple[Any, dict[str, int]] = simulate(main)
    return found


async def output(world: World) -> str | None:
    state = await world.wait("one", timedelta(hours=3))
    assert (state.status, state.failure) == (Status.COMPLETED, None)
    await world.settle()
    return state.output


@pytest.mark.rows("K46")
@pytest.mark.parametrize("wait", [0.0, 7200.0], ids=["at once", "after the timer was due"])
def test_a_family_goes_on_from_where_it_was(wait: float) -> None:
    async def drive(world: World) -> Any:
        await terminated(world)
        await world.clock.sleep(wait)
        state = await world.client.rewind("one", "mended", terminated=True)
        assert state.status is Status.PENDING
        return await output(world)

    assert play(drive) == ENDED


def test_an_event_that_had_come_is_there_and_one_that_comes_later_is_taken() -> None:
    async def drive(world: World) -> Any:
        await terminated(world, "rounds", 1)
        await world.client.rewind("one", terminated=True)
        await world.client.raise_event("one", "go", "on")
        return await output(world)

    assert play(drive) == ('"on"', {"round 1": 1, "round 2": 1, "round 3": 1})


def test_it_can_be_terminated_and_rewound_again() -> None:
    async def drive(world: World) -> Any:
        await terminated(world)
        for _ in range(2):
            await world.client.rewind("one", terminated=True)
            await world.clock.sleep(10.0)
            state = await world.client.terminate("one", "again", wait=True)
            assert (state.status, state.output) == (Status.TERMINATED, "again")
        await world.client.rewind("one", terminated=True)
        return await output(world)

    assert play(drive) == (ENDED[0], ENDED[1] | {"s": 4, "k2": 4})


@pytest.mark.parametrize("recurse", [None, False, True], ids=["it has ended first", "it cleans up on", "it ends too"])
def test_a_child_that_was_asked_to_clean_up_is_started_again(recurse: bool | None) -> None:
    """Its clean-up may have undone its work, so it cannot go on from where it was. Else its parent waits for ever."""

    async def drive(world: World) -> Any:
        await world.client.start("parent", 2, instance_id="one")
        await world.clock.sleep(30.0)
        await world.client.terminate("kid", "late", grace=timedelta(minutes=5))
        while len(await world.client.instance("kid").activities()) < 2:
            await world.clock.sleep(1.0)  # the work is cancelled, and then the clean-up begins
        if recurse is None:
            await world.wait("kid")
        await world.client.terminate("one", "from Airflow: task marked failed", recurse=recurse is not False)
        await world.wait("one")
        state = await world.wait("kid")
        assert state.status is Status.TERMINATED
        await world.client.rewind("one", "mended", terminated=True)
        return await output(world)

    found, ran = play(drive)
    assert (found, ran) == (ENDED[0], ENDED[1] | {"k1": 2, "k2": 2, "clean": 1, "s": ran["s"]})
    assert ran["s"] == (1 if recurse is None else 2)


def test_only_who_asks_for_it_rewinds_what_was_terminated() -> None:
    async def drive(world: World) -> Any:
        await terminated(world)
        with pytest.raises(InputError, match=r"is Terminated since .* UTC: only a failed instance can be rewound"):
            await world.client.rewind("one")
        await world.client.start("rounds", 3, instance_id="two")
        await world.client.raise_event("two", "go")
        await world.wait("two")
        with pytest.raises(
            InputError, match=r"is Completed since .* UTC: only a failed or terminated instance can be rewound"
        ):
            await world.client.rewind("two", terminated=True)

    play(drive)


@pytest.mark.rows("K46", "K26")
@pytest.mark.parametrize("fault", [unsent, lost], ids=lambda fault: fault.__name__)
def test_a_rewind_that_is_cut_off_anywhere_is_finished_by_the_next(fault: Callable[[], Any]) -> None:
    """The client dies at its n-th storage call, for every n."""
    number, disturbed = 0, True
    while disturbed:
        number += 1

        async def drive(world: World, number: int = number) -> Any:
            await terminated(world, input=2)
            cut = False
            try:
                await client_over(world, at(number, fault())).rewind("one", terminated=True)
            except Unavailable:
                cut = True
                await world.clock.sleep(5.0)
                with suppress(InputError):  # it goes on already
                    await world.client.rewind("one", terminated=True)
            return await output(world), cut

        (found, disturbed), ran = play(drive)
        assert (found, ran) == ENDED, f"cut off at call {number}"
    assert number > 5


def test_children_that_are_about_to_end_are_waited_for() -> None:
    """The last checkpoint of a child is under way when its parent is rewound."""

    async def drive(world: World) -> Any:
        await world.client.start("parent", 2, instance_id="one")
        await world.clock.sleep(30.0)
        first = world.machines[0]
        first.plan = lambda call: late(5.0) if is_end_of(call, "kid") else None
        await world.client.terminate("one", "from Airflow: the task is failed")
        await world.wait("one")
        await world.client.rewind("one", terminated=True)
        return await output(world)

    assert play(drive) == ENDED


def test_a_suspension_ends_with_the_rewind() -> None:
    async def drive(world: World) -> Any:
        await world.client.start("parent", 2, instance_id="one")
        await world.clock.sleep(30.0)
        await world.client.suspend("one", "wait")
        await world.clock.sleep(10.0)
        await world.client.terminate("one", "from Airflow: execution timeout", wait=True)
        await world.client.rewind("one", terminated=True)
        return await output(world)

    assert play(drive)[0] == ENDED[0]


def test_a_failure_whose_retry_the_termination_has_dropped_is_tried_again() -> None:
    failed = TaskFailed(timestamp=NOW, task_scheduled_id=0, reason="no", failure=None)
    ordered = ExecutionTerminated(timestamp=NOW, input="marked")
    completed = ExecutionCompleted(timestamp=NOW, status=Status.TERMINATED, result="marked")
    call = TaskScheduled(timestamp=NOW, event_id=0, name="a")
    turn = OrchestratorStarted(timestamp=NOW)
    found = plan((turn, call, turn, failed, ordered, completed), terminated=True)
    assert found is not None
    assert found.taken == {1, 3, 4, 5}
    handled = plan((turn, call, turn, failed, turn, ordered, completed), terminated=True)
    assert handled is not None
    assert handled.taken == {5, 6}


@pytest.mark.parametrize("status", [Status.TERMINATED, Status.FAILED])
@pytest.mark.parametrize(("kind", "taken"), [("Terminated", {4, 5}), ("OSError", {1, 2, 3, 4, 5})])
def test_a_child_that_the_code_has_cancelled_stays_ended(status: Status, kind: str, taken: set[int]) -> None:
    """One that has failed before is made again, and the code cancels it again."""
    failure = FailureDetails(error_type=kind, error_message="why")
    past = (
        OrchestratorStarted(timestamp=NOW),
        SubOrchestrationInstanceCreated(timestamp=NOW, event_id=0, name="kid", instance_id="kid"),
        EventSent(timestamp=NOW, event_id=1, name="cancel kid", instance_id="kid", taskhub_cancels=0),
        SubOrchestrationInstanceFailed(timestamp=NOW, task_scheduled_id=0, failure=failure),
        ExecutionTerminated(timestamp=NOW, input="marked"),
        ExecutionCompleted(timestamp=NOW, status=status, result="marked"),
    )
    found = plan(past, terminated=True)
    assert found is not None
    assert (found.taken, found.children) == (taken - ({4} if status is Status.FAILED else set()), ())
