"""An Airflow task with ``terminate_grace`` is cleared while the family of its instance cleans up, on real workers."""

from __future__ import annotations

import asyncio
import re
from collections import Counter as Counts
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.client import handle
from airflow_provider_taskhub.engine.context import OrchestrationContext
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import TaskFailedError
from airflow_provider_taskhub.hooks.identity import TaskIdentity
from airflow_provider_taskhub.no_input import NO_INPUT
from airflow_provider_taskhub.storage.faults import late
from airflow_provider_taskhub.tags import GRACE_TAG, OWNER_TAG
from airflow_provider_taskhub.triggers.reactions import OnClear, StartDecision
from airflow_provider_taskhub.triggers.start_or_attach import Counter, StartRequest, launch
from tests.simulation.test_grace import Clusters, play
from tests.simulation.test_one_writer import client_over
from tests.simulation.world import World, simulate

GRACE = timedelta(minutes=20)
FIRST = TaskIdentity(dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=1, max_tries=0, owner="first")
CLEARED = replace(FIRST, try_number=2, max_tries=1, owner="second")


def of(task: TaskIdentity) -> StartRequest:
    return StartRequest(
        task=task,
        orchestrator="parent",
        input=NO_INPUT,
        version="",
        instance_id=None,
        tags={GRACE_TAG: f"{GRACE.total_seconds():g}"},
        deployment="here",
    )


def families(depth: int) -> Clusters:
    """Parents that do not clean up. Their last descendant does, for 30 seconds."""
    clusters = Clusters(closing=30, record=True)

    @clusters.app.orchestrator
    async def parent(ctx: OrchestrationContext) -> None:
        await ctx.call_sub_orchestrator("middle" if depth > 1 else "one")

    @clusters.app.orchestrator
    async def middle(ctx: OrchestrationContext) -> None:
        await ctx.call_sub_orchestrator("one")

    return clusters


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("end", ["the task was killed", "task marked failed"])
def test_the_next_run_waits_for_the_clean_up_of_the_family(
    end: str, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parents have ended already. A killed task gets a new instance, and a marked one would go on with its own."""
    clusters = families(depth)
    monkeypatch.setattr(handle, "TERMINATION_ENDS", timedelta(seconds=1))  # a rewind must not wait for the clean-up

    async def drive(world: World) -> None:
        first = await launch(world.client, of(FIRST), counter=None, remember=lambda _: None)
        while not any(line.startswith("work") for line in clusters.noted):
            await world.clock.sleep(0.1)
        await world.client.terminate(first.instance_id, f"from Airflow: {end}", grace=GRACE)
        assert (await world.wait(first.instance_id)).status is Status.TERMINATED
        await world.clock.sleep(3.0)
        assert "ends" not in clusters.noted[-1], "the last descendant still cleans up"
        began = world.clock.monotonic()
        counter = Counter(generation=1, max_tries=0)
        second = await launch(world.client, of(CLEARED), counter=counter, remember=lambda _: None)
        assert second.reaction in (StartDecision.START, StartDecision.REPLACE)
        assert 10.0 < world.clock.monotonic() - began < 35.0
        assert re.fullmatch("close .+ ends", clusters.noted[-1])
        await world.client.terminate(second.instance_id, "from Airflow: the test is over", wait=True)

    play(clusters, drive)


async def rewound(world: World, instance_id: str, *, waits: bool) -> None:
    """Rewind an instance as a person does, or as a ``TaskHubRewindOperator`` that waits for its end."""
    state = await world.wait(instance_id)
    if waits:
        other = replace(FIRST, task_id="again", owner="rewinder")
        owner = (state.tags or {})[OWNER_TAG]
        watch = other.watch(instance_id, deployment="here", owner=owner, generation=1, cleared_continues=True)
        await world.client.watches.add(watch)
    await world.client.rewind(instance_id, "the disk is there")
    if waits:
        await world.client.watches.release(instance_id, "another run")
        found = await world.client.get(instance_id)
        assert found is not None
        assert not found.released
        await world.client.watches.release(instance_id, state.execution_id)


@pytest.mark.parametrize("waits", [False, True], ids=["a person", "a task that waits"])
@pytest.mark.parametrize("ended", [True, False], ids=["has ended", "runs"])
def test_a_task_that_is_cleared_takes_once_what_somebody_has_rewound(ended: bool, waits: bool) -> None:
    """What was done is not done again. After that, a clear computes anew, and so does one while the task waits."""
    app, begun = App("months"), Counts[int]()

    @app.activity(record=True)
    async def month(number: int) -> int:
        begun[number] += 1
        if number == 2 and begun[2] == 1:
            raise OSError("no disk")
        await asyncio.sleep(5.0)
        return number

    @app.orchestrator
    async def parent(ctx: OrchestrationContext) -> int:
        return sum(await ctx.when_all([ctx.call_activity(month, number) for number in range(3)]))

    async def go() -> None:
        async with World(app) as world:
            await world.join("one")
            task = replace(of(FIRST), on_clear=OnClear.RESTART)
            first = await launch(world.client, task, counter=None, remember=lambda _: None)
            await world.wait(first.instance_id)
            await world.clock.sleep(10.0)
            await rewound(world, first.instance_id, waits=waits)
            going = await world.wait(first.instance_id) if ended else await world.client.get(first.instance_id)
            assert going is not None
            assert going.released
            counter = Counter(generation=1, max_tries=0)
            cleared = replace(task, task=CLEARED)
            second = await launch(world.client, cleared, counter=counter, remember=lambda _: None)
            assert (second.instance_id, second.reaction) == (
                first.instance_id,
                StartDecision.RETURN if ended else StartDecision.ATTACH,
            )
            state = await world.wait(first.instance_id)
            assert (state.output, state.released, dict(begun)) == ("3", False, {0: 1, 1: 1, 2: 2})
            counter = Counter(generation=1, max_tries=1)
            again = replace(task, task=replace(CLEARED, try_number=3, max_tries=2, owner="third"))
            third = await launch(world.client, again, counter=counter, remember=lambda _: None)
            assert third.instance_id != first.instance_id
            assert (await world.wait(third.instance_id)).output == "3"
            assert not world.defects()

    simulate(go)


def test_an_instance_that_its_own_task_has_rewound_is_not_released() -> None:
    app = App("raises")

    @app.orchestrator
    async def parent(ctx: OrchestrationContext) -> None:
        await ctx.wait_for_external_event("go")
        raise ValueError("again")

    async def go() -> None:
        async with World(app) as world:
            await world.join("one")
            first = await launch(world.client, of(FIRST), counter=None, remember=lambda _: None)
            await world.client.raise_event(first.instance_id, "go")
            await world.wait(first.instance_id)
            await world.clock.sleep(1.0)
            retried = of(replace(FIRST, try_number=2, owner="second"))
            second = await launch(world.client, retried, counter=Counter(generation=1, max_tries=0), remember=print)
            assert second.reaction is StartDecision.REWIND
            state = await world.client.get(first.instance_id)
            assert state is not None
            assert (state.status, state.released) == (Status.PENDING, False)

    simulate(go)


def test_a_parent_that_wakes_during_the_rewind_of_its_children_is_released_too() -> None:
    """The first child that is rewound ends before the last one is."""
    app, begun = App("years"), Counts[int]()

    @app.activity(record=True)
    async def month(number: int) -> int:
        begun[number] += 1
        if begun[number] == 1:
            raise OSError("no disk")
        return number

    @app.orchestrator
    async def year(ctx: OrchestrationContext, number: int) -> int:
        await ctx.call_activity(month, number)
        return number

    @app.orchestrator
    async def parent(ctx: OrchestrationContext) -> int:
        tasks = [ctx.call_sub_orchestrator(year, number, instance_id=f"y{number}") for number in range(4)]
        for task in tasks:
            with suppress(TaskFailedError):
                await task
        return sum(await ctx.when_all(tasks))

    async def go() -> None:
        async with World(app) as world:
            await world.join("one")
            first = await launch(world.client, of(FIRST), counter=None, remember=lambda _: None)
            assert (await world.wait(first.instance_id)).status is Status.FAILED
            await world.clock.sleep(10.0)
            seen = set[Status]()
            slow = client_over(world, lambda call: late(0.5))
            rewinding = world.spawn(slow.rewind(first.instance_id, "the disk is there"))
            while not rewinding.done():
                state = await world.client.get(first.instance_id)
                assert state is not None
                seen.add(state.status)
                await world.clock.sleep(0.1)
            await rewinding
            state = await world.wait(first.instance_id)
            assert (state.output, state.released) == ("6", True)
            assert Status.RUNNING in seen or Status.COMPLETED in seen, "it has gone on before the rewind marked it"

    simulate(go)
