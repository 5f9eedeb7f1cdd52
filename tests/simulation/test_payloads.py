"""Payloads around both thresholds come through whole, in every alphabet (K30)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_taskhub.hub.history.payloads import SPILL_BYTES as COLUMN
from airflow_provider_taskhub.hub.messages.envelope import SPILL_BYTES as MESSAGE
from tests.simulation.scenarios import app_of
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
