"""A deletion never races the renewal of its message: what is done is not delivered again."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.storage.faults import Call, Fault, lost
from airflow_provider_taskhub.storage.primitives import DeleteMessage, Receipt
from tests.simulation.scenarios import SCENARIOS, app_of
from tests.simulation.world import MEMORY, WHOLE, Effects, Place, World, simulate


def again(hub: World) -> list[Any]:
    """What was deleted a second time, or was delivered although its work was done."""
    deleted = [one for one in hub.tape if isinstance(one.operation, DeleteMessage)]
    second = [one for one in deleted if isinstance(one.operation.message, Receipt)]
    return second + [one for one in hub.logs if one["event"] in ("deletion_refused", "message_discarded")]


@pytest.mark.rows("K37", "K39")
@pytest.mark.parametrize("place", [MEMORY, WHOLE], ids=str)
@pytest.mark.parametrize("name", ["chain", "fan", "parent", "counter", "failing", "terminate", "cancel", "recorded"])
def test_a_renewal_under_way_at_every_deletion_changes_nothing(name: str, place: Place) -> None:
    """Control messages, work items, and work items whose answer went to the instance in memory."""

    def played(*, renewing: bool) -> Any:
        effects = Effects()

        async def play() -> Any:
            async with World(app_of(effects), place=place) as hub:
                only = await hub.join("only", renewing=renewing)
                await SCENARIOS[name].drive(hub)
                ended = await hub.ended()
                return ended, effects.ran, again(hub), only.store.renewals

        return simulate(play)

    *expected, _ = played(renewing=False)
    *found, renewals = played(renewing=True)
    assert renewals, "no deletion met a renewal"
    assert found == expected


def _timed(ran: list[int]) -> App:
    app = App("timed")

    @app.activity
    async def act(hundredths: int) -> int:
        ran.append(hundredths)
        await asyncio.sleep(hundredths / 100)
        return hundredths

    @app.orchestrator
    async def fan(ctx: OrchestrationContext, lengths: list[int]) -> int:
        await ctx.when_all([ctx.call_activity(act, one) for one in lengths])
        await ctx.create_timer(timedelta(seconds=30))  # what comes again is not told from a first delivery by the end
        return len(lengths)

    return app


LENGTHS = list(range(60, 260, 5))


@pytest.mark.rows("K37", "K39")
@pytest.mark.parametrize("place", [MEMORY, WHOLE], ids=str)
@pytest.mark.parametrize(
    "fault", [Fault(pause=0.35), Fault(delay=0.2, pause=0.15)], ids=["late answer", "late request and answer"]
)
def test_an_activity_that_ends_at_any_moment_of_its_renewal_runs_once(place: Place, fault: Fault) -> None:
    """The renewals are the worker's own; some of the activities end during one of them."""
    ran: list[int] = []

    def slow(call: Call) -> Fault | None:
        return fault if call.kind == "queue.update" else None

    async def play() -> Any:
        async with World(_timed(ran), place=place, activities=len(LENGTHS)) as hub:
            await hub.join("only", plan=slow)
            await hub.client.start("fan", LENGTHS, instance_id="one")
            await hub.wait("one")
            await hub.ended()
            return again(hub)

    assert simulate(play) == []
    assert sorted(ran) == LENGTHS


@pytest.mark.rows("K37", "K39")
@pytest.mark.parametrize("place", [MEMORY, WHOLE], ids=str)
@pytest.mark.parametrize("workers", [1, 2])
def test_what_was_done_before_the_answer_of_its_renewal_was_lost_does_not_run_again(workers: int, place: Place) -> None:
    """Nobody knows the valid receipt then. The message comes again. Its worker deletes it, and so does another one."""
    ran: list[int] = []

    def deaf(call: Call) -> Fault | None:
        return lost() if call.kind == "queue.update" else None

    async def play() -> Any:
        async with World(_timed(ran), place=place, activities=len(LENGTHS)) as hub:
            for number in range(workers):
                await hub.join(f"w{number}", plan=deaf)
            await hub.client.start("fan", LENGTHS, instance_id="one")
            await hub.wait("one")
            await hub.ended()
            return hub.said("deletion_refused")

    refused = simulate(play)
    assert sorted(ran) == LENGTHS
    assert refused
    assert all(one["log_level"] == "warning" and one["instance_id"] == "one" for one in refused)
