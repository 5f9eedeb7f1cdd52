"""An Airflow task with ``terminate_grace`` is cleared while the family of its instance cleans up, on real workers."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_provider_taskhub.client import handle
from airflow_provider_taskhub.engine.context import OrchestrationContext
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.hooks.identity import TaskIdentity
from airflow_provider_taskhub.no_input import NO_INPUT
from airflow_provider_taskhub.tags import GRACE_TAG
from airflow_provider_taskhub.triggers.reactions import StartDecision
from airflow_provider_taskhub.triggers.start_or_attach import Counter, StartRequest, launch
from tests.simulation.test_grace import Clusters, play
from tests.simulation.world import World

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
