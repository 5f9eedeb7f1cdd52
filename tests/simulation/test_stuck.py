"""A partition that is owned and renewed, but that nobody reads any more: reported, given up and served anew (K12)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from tests.simulation.world import World, simulate


def app() -> App:
    made = App("stuck")

    @made.orchestrator
    async def echo(ctx: OrchestrationContext, value: str) -> str:
        return value

    return made


@pytest.mark.rows("K12", "E66", "E68", "E70")
def test_a_reader_that_died_is_replaced_and_nothing_is_lost() -> None:
    async def play() -> Any:
        async with World(app(), partitions=2) as hub:
            machine = await hub.join("only")
            await asyncio.sleep(10)
            for partition in range(2):
                task = machine.backend._tasks[hub.client.hub.names.control(partition)]
                task.cancel()
            began = hub.clock.monotonic()
            await hub.client.start("echo", "there", instance_id="waiting")
            state = await hub.wait("waiting")
            waited = hub.clock.monotonic() - began
            await hub.clock.sleep(60)  # the other one's turn comes with another scan
            figures = machine.owner.figures
            return (
                state.output,
                waited,
                figures.stuck,
                [entry["partition"] for entry in hub.said("partition_not_polled")],
            )

    output, waited, stuck, reported = simulate(play)
    assert output == '"there"'
    assert 80 < waited < 130, "three of the longest polling intervals"
    assert stuck == 2
    assert sorted(reported) == [0, 1]
