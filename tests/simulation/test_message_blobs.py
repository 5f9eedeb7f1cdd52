"""The blobs of large messages are deleted some time after their messages, and never while a message names them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.codec import Packed, Timestamp
from airflow_provider_taskhub.engine.events import EventRaised, OrchestrationInstance
from airflow_provider_taskhub.hub.formats.message_envelope import Envelope, TaskMessage, encode
from airflow_provider_taskhub.hub.queues import message_blobs
from airflow_provider_taskhub.storage.faults import FaultyStore, refused
from airflow_provider_taskhub.storage.primitives import PutBlob, PutMessage
from tests.simulation.world import RARE_RENEWALS, World, simulate

LARGE = "x" * 50_000
ROUNDS = 8
QUIET = message_blobs.QUIET


async def blobs(hub: World) -> list[str]:
    """The blobs of messages, each as the type of its event."""
    found = await hub.store.list_blobs(hub.client.hub.names.large_messages, "one/message-")
    return sorted(blob.name.rsplit("-", 1)[1].removesuffix(".json.gz") for blob in found)


def app(going: asyncio.Event | None = None, fails: list[str] | None = None) -> App:
    made = App("rounds")

    @made.activity
    async def work(given: str) -> str:
        if going is not None:
            await going.wait()
        if fails:
            raise ValueError(fails.pop())
        return given

    @made.orchestrator
    async def rounds(ctx: OrchestrationContext, number: int) -> None:
        """A round has a large input, a large result and a large event."""
        await ctx.call_activity("work", LARGE)
        await ctx.wait_for_external_event("next")
        if number < ROUNDS:
            ctx.continue_as_new(number + 1)

    @made.orchestrator
    async def once(ctx: OrchestrationContext, given: str) -> str:
        return str(await ctx.call_activity("work", given))

    return made


def test_an_orchestration_that_never_ends_keeps_no_blobs_of_messages() -> None:
    async def whole() -> tuple[list[str], list[str], list[str]]:
        async with World(app(), lease=RARE_RENEWALS) as hub:
            await hub.join("only")
            await hub.client.start("rounds", 1, instance_id="one")
            for _ in range(ROUNDS - 1):
                await hub.clock.sleep(30.0)
                await hub.client.raise_event("one", "next", LARGE)
            await hub.clock.sleep(30.0)
            before = await blobs(hub)
            await hub.clock.sleep(QUIET - 45.0)
            later = await blobs(hub)
            await hub.clock.sleep(60.0)
            return before, later, await blobs(hub)

    before, later, after = simulate(whole)
    assert before == [*["EventRaised"] * (ROUNDS - 1), *["TaskScheduled"] * ROUNDS], "responses are not messages here"
    assert later == ["EventRaised", "TaskScheduled"], "those of the last round"
    assert after == []


def test_blobs_of_messages_that_are_not_processed_stay() -> None:
    """A work item that runs, an event of a suspended instance, and the input that the instance row names."""

    async def whole() -> tuple[list[str], Any]:
        going = asyncio.Event()
        async with World(app(going), lease=RARE_RENEWALS) as hub:
            await hub.join("only")
            await hub.client.start("once", LARGE, instance_id="one")
            await hub.clock.sleep(2 * QUIET)
            found = await blobs(hub)
            going.set()
            return found, await hub.wait("one")

    found, ended = simulate(whole)
    assert found == ["ExecutionStarted", "TaskScheduled"]
    assert ended.output == json.dumps(LARGE)


def test_blobs_that_the_store_refuses_to_delete_are_tried_again_and_their_number_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(message_blobs, "MAX_WAITING", 3)

    async def whole() -> tuple[list[str], list[str], int]:
        async with World(app(), lease=RARE_RENEWALS) as hub:
            only = await hub.join("only")
            failing = FaultyStore(hub.store, lambda call: refused())
            monkeypatch.setattr(only.backend.message_blobs, "_store", failing)
            await hub.client.start("rounds", 1, instance_id="one")
            for _ in range(ROUNDS - 1):
                await hub.clock.sleep(30.0)
                await hub.client.raise_event("one", "next", LARGE)
            await hub.clock.sleep(2 * QUIET)
            refusals = len(hub.said("message_blobs_left"))
            before = await blobs(hub)
            monkeypatch.undo()
            await hub.clock.sleep(120.0)
            return before, await blobs(hub), refusals

    before, after, refusals = simulate(whole)
    assert len(before) == 2 * ROUNDS - 1
    assert len(after) == len(before) - 3
    assert refusals > 3


OTHERS = [
    "two/history-0.json.gz",
    f"two/message-{uuid4().hex}-EventRaised.json.gz",
    f"one/message-{uuid4().hex}-ExecutionStarted.json.gz",
]


@pytest.mark.parametrize("name", OTHERS, ids=["another-kind", "another-instance", "the-input"])
def test_a_message_cannot_make_a_worker_delete_another_blob(name: str) -> None:
    async def whole() -> bool:
        async with World(app(), lease=RARE_RENEWALS) as hub:
            names, event = hub.client.hub.names, EventRaised(timestamp=Timestamp(0), name="next")
            target = OrchestrationInstance(instance_id="one")
            forged = Envelope(activity_id=uuid4(), message=TaskMessage(event=event, instance=target))
            other = PutBlob(container=names.large_messages, name=name, data=Packed(encode(forged)))
            await hub.store.execute(other)
            wrapper = encode(replace(forged, message=None, blob_name=other.name))
            await hub.store.execute(PutMessage(queue=hub.client.hub.queue_of("one"), text=wrapper))
            await hub.join("only")
            await hub.client.start("rounds", ROUNDS, instance_id="one")
            await hub.wait("one")
            await hub.clock.sleep(2 * QUIET)
            return await hub.store.get_blob(names.large_messages, other.name) is not None

    assert simulate(whole)
