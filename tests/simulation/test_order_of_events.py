"""Events arrive in the order in which they were sent: those of one sender, and one that answers another's."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.client import Client
from tests.simulation.world import Place, World, simulate

app = App("order")


@app.orchestrator
async def collect(ctx: OrchestrationContext, count: int) -> list[Any]:
    return [await ctx.wait_for_external_event("e") for _ in range(count)]


async def another(hub: World) -> Client:
    """A client of another process: it counts its messages apart."""
    return await Client.over(hub.store, hub.settings, clock=hub.clock)


@pytest.mark.rows("K16")
@pytest.mark.parametrize("suspended", [False, True], ids=["running", "suspended"])
@pytest.mark.parametrize("behind", [False, True], ids=["served", "behind"])
def test_two_senders_within_a_second(place: Place, suspended: bool, behind: bool) -> None:
    """Each event was sent after the answer to the one before, by two processes in turn. One counts far ahead.

    The worker takes them one by one, or many in one batch, because its partition had no worker for a while.
    """

    async def play() -> Any:
        async with World(app, partitions=1, place=place) as hub:
            one, two = hub.client, await another(hub)
            for _ in range(50):
                one.hub.sequence()
            worker = await hub.join("only")
            await one.start("collect", 8, instance_id="i")
            await hub.clock.sleep(1.3)
            if suspended:
                await one.suspend("i")
                await hub.clock.sleep(2.1)
            if behind:
                await worker.stop()
            for number in range(8):
                await (two if number % 2 else one).raise_event("i", "e", number)
            if behind:
                await hub.join("next")
            if suspended:
                await hub.clock.sleep(2.0)
                await two.resume("i")
            return (await hub.wait("i")).output, not hub.defects()

    assert simulate(play) == ("[0,1,2,3,4,5,6,7]", True)
