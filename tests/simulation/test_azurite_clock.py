"""Azurite under a jumping clock: however long a request takes in truth, it takes no time of the simulation's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import uuid4

import pytest

from airflow_provider_taskhub.storage.azure.store import AzureStore
from airflow_provider_taskhub.storage.primitives import (
    DeleteBlob,
    Entity,
    PutBlob,
    PutMessage,
    RowOperation,
    RowVerb,
    Transact,
)
from tests.simulation.azurite_clock import still_azurite
from tests.simulation.world import simulate


@asynccontextmanager
async def others_poll() -> AsyncIterator[None]:
    """Run a task beside the block that sleeps again and again. Each sleep can make the virtual time jump."""

    async def poll() -> None:
        for _ in range(100_000):
            await asyncio.sleep(0.1)

    polling = asyncio.create_task(poll())
    try:
        yield
    finally:
        polling.cancel()


def calls(store: AzureStore) -> list[tuple[str, Awaitable[object]]]:
    """A request of each kind, of our own and of Microsoft's clients."""
    mine, next_ = str(uuid4()), str(uuid4())
    row = RowOperation(verb=RowVerb.INSERT, entity=Entity(partition_key="p", row_key="r"))
    second = timedelta(seconds=1)
    return [
        ("create_queue", store.create_queue("queue")),
        ("put", store.execute(PutMessage(queue="queue", text="text"))),
        ("receive", store.receive("queue", limit=1, visibility=second)),
        ("peek", store.peek("queue")),
        ("count", store.count("queue")),
        ("list_queues", store.list_queues("q")),
        ("delete_queue", store.delete_queue("queue")),
        ("create_table", store.create_table("Table")),
        ("insert", store.execute(Transact(table="Table", rows=(row,)))),
        ("get", store.get("Table", "p", "r")),
        ("query", store.query("Table")),
        ("list_tables", store.list_tables("T")),
        ("delete_table", store.delete_table("Table")),
        ("create_container", store.create_container("container")),
        ("put_blob", store.execute(PutBlob(container="container", name="blob", data=b"data"))),
        ("get_blob", store.get_blob("container", "blob")),
        ("append_blob", store.append_blob("container", "log", b"data")),
        ("list_blobs", store.list_blobs("container")),
        ("delete_blob", store.execute(DeleteBlob(container="container", name="log"))),
        ("acquire_lease", store.acquire_lease("container", None, lease_id=mine, seconds=60)),
        ("renew_lease", store.renew_lease("container", None, lease_id=mine)),
        ("change_lease", store.change_lease("container", None, lease_id=mine, new_lease_id=next_)),
        ("release_lease", store.release_lease("container", None, lease_id=next_)),
        ("delete_container", store.delete_container("container")),
    ]


@pytest.mark.process
def test_a_request_takes_no_virtual_time() -> None:
    """Else deadlines of 30 s pass within milliseconds, and a worker that starts gives up on a store that answers."""

    async def play() -> dict[str, float]:
        took: dict[str, float] = {}
        loop = asyncio.get_running_loop()
        async with still.store() as store, others_poll():
            for name, call in calls(store):
                began = loop.time()
                await call
                took[name] = loop.time() - began
                await asyncio.sleep(1.0)
        return took

    with still_azurite() as still:
        took = simulate(play)
    assert not {name: seconds for name, seconds in took.items() if seconds}
