"""Payloads around both thresholds come through whole, in every alphabet (K30)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.hub.history.payloads import SPILL_BYTES as COLUMN
from airflow_provider_taskhub.hub.messages.envelope import SPILL_BYTES as MESSAGE
from tests.simulation.scenarios import LARGE, app_of
from tests.simulation.world import Effects, World, simulate

ALPHABETS = {"ASCII": "x", "two bytes of UTF-8": "ä", "three": "日", "a pair of surrogates": "𝒳", "escaped": "\u0001"}


def lengths(char: str) -> list[int]:
    """Around the thresholds of a queue, in JSON within JSON, and of a column, in UTF-16."""
    text = json.dumps(char)[1:-1]
    in_queue, in_column = len(json.dumps(text)) - 2, len(text.encode("utf-16-le"))
    near = [MESSAGE // in_queue, (MESSAGE - 700) // in_queue, COLUMN // in_column]
    return sorted({at + step for at in near for step in (-300, -3, -2, -1, 0, 1, 2, 300)})


@pytest.mark.rows("K30")
@pytest.mark.parametrize("char", ALPHABETS.values(), ids=ALPHABETS)
def test_texts_around_both_thresholds_come_through_whole(char: str) -> None:
    async def play() -> Any:
        async with World(app_of(Effects())) as world:
            await world.join("one")
            names = world.client.hub.names
            spilled = []
            for length in lengths(char):
                instance_id = f"of-{length}"
                await world.client.start("bulky", char * length, instance_id=instance_id, tags={"taskhub.watch": "x"})
                state = await world.wait(instance_id)
                assert json.loads(state.input or "") == char * length, length
                assert json.loads(state.output or "") == char * (length - 2), length
                await world.settle()
                spilled.append(len(await world.store.list_blobs(names.large_messages, f"{instance_id}/")))
                await world.client.purge(instance_id)
            assert await world.store.list_blobs(names.large_messages) == []
            return spilled

    spilled = simulate(play)
    assert spilled[0] == 0, "below both everything is in queue and column"
    assert spilled[-1] >= 6, "above both nothing is"
    assert spilled == sorted(spilled)


dots = App("dots", version="1")


@dots.activity(record=True)
def kept(text: str) -> str:
    return text


@dots.orchestrator
async def echo(ctx: OrchestrationContext, text: str) -> str:
    ctx.set_custom_status(await ctx.call_activity(kept, text))
    return await ctx.wait_for_external_event("more", str)


@pytest.mark.rows("K30")
@pytest.mark.parametrize("instance_id", ["Acme Inc.", "a/b.", "a./b", ".", "..", "a/.."])
def test_large_payloads_of_an_id_with_a_dot_at_an_end_come_through_whole(instance_id: str) -> None:
    """No blob name has a segment that ends in a dot, so theirs have their folder's end escaped."""

    async def play() -> Any:
        async with World(dots) as world:
            await world.join("one")
            await world.client.start("echo", LARGE, instance_id=instance_id)
            await world.settle()
            await world.client.suspend(instance_id, LARGE)
            await world.client.resume(instance_id, LARGE)
            await world.client.raise_event(instance_id, "more", LARGE)
            state = await world.wait(instance_id)
            await world.settle()
            assert await world.client.purge(instance_id)
            assert await world.store.list_blobs(world.client.hub.names.large_messages) == []
            assert world.defects() == []
            return [json.loads(text or "null") for text in (state.custom_status, state.output)]

    assert simulate(play) == [LARGE, LARGE]
