"""Payloads around both thresholds come through whole, in every alphabet (K30)."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_taskhub import codec
from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.hub.formats.message_envelope import SPILL_BYTES as MESSAGE
from airflow_provider_taskhub.hub.formats.payload_spill import SPILL_BYTES as COLUMN
from airflow_provider_taskhub.storage.faults import Call, Fault, Plan, lost, refused, throttled, unsent
from airflow_provider_taskhub.storage.primitives import PutBlob
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


# --- each once ----------------------------------------------------------------------------------------------------


def noise(size: int, seed: int = 1) -> str:
    return "".join(random.Random(seed).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=size))


@dots.activity
def plain(text: str) -> str:
    return text[::-1]


@dots.orchestrator
async def carries(ctx: OrchestrationContext, text: str) -> str:
    found: str = await ctx.call_activity("kept", text)
    other: str = await ctx.call_activity("plain", found)
    ctx.set_custom_status(found)
    for _ in range(3):
        await ctx.wait_for_external_event("go")
    return other


async def carried(world: World) -> tuple[list[str], list[str]]:
    """Names of the blobs that workers have put, in their order, and of all that are there."""
    await world.client.start("carries", noise(100_000), instance_id="one")
    for _ in range(3):
        await world.clock.sleep(60.0)
        await world.client.raise_event("one", "go")
    state = await world.wait("one")
    assert json.loads(state.output or "") == noise(100_000)[::-1]
    await world.settle()
    operations = [done.operation for done in world.tape]
    puts = [put.name for put in operations if isinstance(put, PutBlob) and put.name.endswith(".gz")]
    return puts, [blob.name for blob in await world.store.list_blobs(world.client.hub.names.large_messages)]


@pytest.mark.rows("K30")
@pytest.mark.parametrize("apart", [False, True], ids=["one worker", "two workers"])
def test_whatever_is_written_to_a_blob_is_compressed_and_written_once(
    monkeypatch: pytest.MonkeyPatch, apart: bool
) -> None:
    packed: list[str] = []
    real = codec.compress
    monkeypatch.setattr(codec, "compress", lambda text: (packed.append(text), real(text))[1])

    async def play() -> Any:
        async with World(dots) as world:
            for name, roles in ROLES[apart].items():
                await world.join(name, roles=roles)
            return await carried(world)

    puts, there = simulate(play)
    assert len(puts) == len(set(puts)), "a custom status that stays is not written again either"
    assert len(packed) == len(there) == len(puts) + 1, "the client put the start"


ROLES = {False: {"one": ("orchestrator", "activity")}, True: {"decides": ("orchestrator",), "does": ("activity",)}}


@pytest.mark.rows("K30", "K29")
@pytest.mark.parametrize("fault", [refused, unsent, lost, throttled], ids=lambda fault: fault.__name__)
def test_a_commit_that_is_tried_again_writes_its_payloads_to_the_same_blobs(fault: Callable[[], Fault]) -> None:
    def plan() -> Plan:
        seen: Counter[str] = Counter()

        def some(call: Call) -> Fault | None:
            """The second and third write of each kind end in the fault."""
            seen[call.kind] += 1
            return fault() if call.kind in ("table.batch", "blob.put") and seen[call.kind] in (2, 3) else None

        return some

    async def play() -> Any:
        async with World(dots) as world:
            await world.join("one", plan=plan())
            found = await carried(world)
            assert world.said("checkpoint_unsettled")
            return found

    puts, there = simulate(play)
    assert len(puts) > len(set(puts))
    rows = [re.sub("-[0-9A-F]{8}-", "-*-", name) for name in there if "/history-" in name]
    assert len(rows) == len(set(rows)) == 4, "each try left a blob of its own, that nothing names"


@pytest.mark.rows("K30")
def test_the_input_of_an_instance_is_read_once_with_its_history() -> None:
    async def play() -> Any:
        async with World(dots) as world:
            first = await world.join("first")
            await world.client.start("carries", noise(100_000), instance_id="one")
            await world.clock.sleep(60.0)
            await first.stop()
            await world.join("second")
            await world.clock.sleep(10.0)
            world.store.requests.clear()
            await world.client.raise_event("one", "go")
            await world.clock.sleep(10.0)
            return world.store.requests["blob.get"]

    assert simulate(play) == 4, "three columns of the history, and the custom status of the row"
