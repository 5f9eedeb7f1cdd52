"""The answer of a child comes after the checkpoint that started the child was cut off. Its parent waits for code."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.engine.context import OrchestrationContext
from airflow_provider_taskhub.engine.events import OrchestrationInstance, SubOrchestrationInstanceCompleted
from airflow_provider_taskhub.hub.admission.rules import PARENT_STARTS
from tests.simulation.world import RARE_RENEWALS, Death, Place, World, simulate


def app_of(*, middle: bool) -> App:
    """:param middle: whether the app has the parent of the child that answers."""
    app = App("family", version="1")

    @app.orchestrator
    async def top(ctx: OrchestrationContext, rounds: int) -> int:
        answer = 0
        for number in range(rounds):
            answer = await ctx.call_sub_orchestrator("middle", number + 1 == rounds, instance_id="middle")
        return answer

    @app.orchestrator
    async def child(ctx: OrchestrationContext) -> int:
        return 7

    if middle:

        @app.orchestrator(name="middle")
        async def parent(ctx: OrchestrationContext, last: bool) -> int:
            return await ctx.call_sub_orchestrator("child", instance_id="child") if last else 0

    return app


async def cut_off(
    place: Place, *, rounds: int, gap: float, suspended: float = 0.0, **settings: Any
) -> tuple[str | None, list[str]]:
    """Let a worker die in the checkpoint that has started the child. Only after a gap a worker has the parent's code.

    :param rounds: 0: a client starts the parent. 1: an instance starts the parent. 2: the parent's id has an ended run.
    :param suspended: how long the instance ``one`` is suspended when that worker comes, in seconds.
    :returns: the result, and the causes of what is in quarantine.
    """
    async with World(app_of(middle=True), place=place, partitions=1, **settings) as world:
        first = await world.join("first", death=Death(point="history", count=max(1, 2 * rounds)))
        if rounds:
            await world.client.start("top", rounds, instance_id="one")
        else:
            await world.client.start("middle", True, instance_id="one")
        await first.died.wait()
        await world.join("second", app=app_of(middle=False))
        await world.clock.sleep(gap)
        child = await world.client.get("child")
        assert child is not None
        assert child.status.is_final, "it has answered"
        if suspended:
            await world.client.suspend("one")
        await world.join("third")
        if suspended:
            await world.clock.sleep(suspended)
            await world.client.resume("one")
        state = await world.wait("one", timedelta(hours=1))
        await world.ended()
        return state.output, [kept.cause for kept in await world.client.admin.quarantined()]


@pytest.mark.rows("K31", "K35")
@pytest.mark.parametrize("rounds", [0, 1, 2], ids=["of a client", "a child", "a child started again"])
def test_the_answer_of_a_child_waits_as_long_as_its_parent_waits_for_code(place: Place, rounds: int) -> None:
    """Such an answer comes only once: if it is lost or goes to quarantine, the parent waits forever."""
    assert simulate(lambda: cut_off(place, rounds=rounds, gap=300.0)) == ("7", [])


@pytest.mark.rows("K31", "K35")
def test_the_answer_of_a_child_waits_for_a_parent_that_is_suspended(place: Place) -> None:
    """The parent's first checkpoint is that of the suspension: it does not have the child's start."""
    settings = {} if place.shared else {"lease": RARE_RENEWALS}
    assert simulate(lambda: cut_off(place, rounds=0, gap=120.0, suspended=1800.0, **settings)) == ("7", [])


@pytest.mark.rows("K30", "K46")
def test_the_answer_of_a_child_whose_parent_was_purged_is_discarded_with_its_payload_after_an_hour() -> None:
    async def play() -> tuple[bool, int, tuple[str, ...]]:
        async with World(app_of(middle=True), partitions=1, lease=RARE_RENEWALS) as world:
            await world.join("only")
            hub, began = world.client.hub, world.clock.monotonic()
            now = hub.clock.utc_now()
            answer = SubOrchestrationInstanceCompleted(timestamp=now, task_scheduled_id=0, result="x" * 60_000)
            parent = OrchestrationInstance(instance_id="purged", execution_id="a" * 32)
            await hub.send(hub.message_to(answer, parent))
            await world.settle()
            hours = (world.clock.monotonic() - began) / PARENT_STARTS.total_seconds()
            blobs = await world.store.list_blobs(hub.names.large_messages)
            return 1.0 <= hours < 1.1, len(blobs), tuple(kept.cause for kept in await world.client.admin.quarantined())

    assert simulate(play) == (True, 0, ())
