"""What a worker claims with its puts it can run at once: others help with a wide fan-out."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext, TaskFailedError
from airflow_provider_taskhub.hub.queues.reader import Reader
from tests.simulation.world import World, simulate

SLOTS = 2


def app() -> App:
    made = App("claims")

    @made.activity
    async def slow(number: int) -> int:
        await asyncio.sleep(0.5)
        return number

    @made.activity(queue_timeout=timedelta(seconds=1))
    async def impatient(number: int) -> int:
        await asyncio.sleep(2.0)
        return number

    @made.orchestrator
    async def wait_for_all(ctx: OrchestrationContext, width: int) -> list[str]:
        calls = [ctx.call_activity(impatient, number) for number in range(width)]
        said = []
        for call in calls:
            try:
                said.append(f"ran {await call}")
            except TaskFailedError as error:
                said.append(error.details.error_type if error.details else "")
        return said

    @made.orchestrator
    async def fan(ctx: OrchestrationContext, width: int) -> int:
        return sum(await ctx.when_all([ctx.call_activity(slow, number) for number in range(width)]))

    return made


def test_episodes_side_by_side_claim_no_more_than_the_free_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    most: list[int] = []
    adopt = Reader.adopt

    def watched(reader: Reader, held: Any) -> None:
        adopt(reader, held)
        if reader.queue.endswith("workitems"):
            most.append(len([one for one in reader.held() if not one.gone]))

    monkeypatch.setattr(Reader, "adopt", watched)

    async def play() -> Any:
        async with World(app(), activities=SLOTS) as hub:
            await hub.join("only")
            ids = [f"fan-{number}" for number in range(8)]
            await asyncio.gather(*(hub.client.start("fan", 6, instance_id=name) for name in ids))
            return [(await hub.wait(name)).output for name in ids]

    assert simulate(play) == ["15"] * 8
    assert most, "nothing was handed over in memory"
    assert max(most) <= SLOTS


@pytest.mark.rows("D67")
def test_an_activity_that_waited_too_long_for_a_slot_fails_and_says_so() -> None:
    """``queue_timeout`` covers the wait before the first delivery, ``timeout`` the run."""

    async def play() -> Any:
        async with World(app(), activities=SLOTS) as hub:
            await hub.join("only")
            await hub.client.start("wait_for_all", 4, instance_id="one")
            return json.loads((await hub.wait("one")).output or "null")

    assert simulate(play) == ["ran 0", "ran 1", "QueueTimeout", "QueueTimeout"]
