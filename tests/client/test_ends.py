"""Which instances have ended since some time of the store's clock, on every store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from airflow_provider_taskhub.client import Client, Status
from airflow_provider_taskhub.client import ends as module
from airflow_provider_taskhub.client.ends import End
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.hub.formats.keys import escape
from airflow_provider_taskhub.settings import Settings
from airflow_provider_taskhub.storage.azure.store import AzureStore
from airflow_provider_taskhub.storage.primitives import Entity, RowOperation, RowVerb, Store, Transact
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore


@pytest.fixture(params=["sqlite", "azurite"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    made: Store = SqliteStore(None)
    if request.param == "azurite":
        made = AzureStore(request.getfixturevalue("azurite"), timeout=timedelta(seconds=30))
    async with made as store:
        yield await Client.over(store, Settings(hub=f"Ends{uuid4().hex[:12]}", partitions=1), create=True)


async def later(client: Client, moment: Timestamp) -> Timestamp:
    """A time of the store after another one: the clock of a store may have steps of milliseconds."""
    while (found := await client.ends.now()) <= moment:
        pass
    return found


async def write(client: Client, instance_id: str, **columns: Any) -> None:
    row = Entity(partition_key=escape(instance_id), row_key="", properties={"Name": "sums"} | columns)
    operation = RowOperation(verb=RowVerb.UPSERT_REPLACE, entity=row)
    await client.hub.store.execute(Transact(table=client.hub.names.instances, rows=(operation,)))


async def found(client: Client, moment: Timestamp) -> list[End]:
    return [end async for page in client.ends.since(moment) for end in page]


async def test_only_what_has_ended_since_then_is_found(client: Client) -> None:
    await write(client, "before", RuntimeStatus="Completed")
    moment = await later(client, await client.ends.now())
    await later(client, moment)
    await write(client, "a/b", RuntimeStatus="Failed", ExecutionId="e", Tags='{"x":"y"}', Output='"big"')
    await write(client, "runs", RuntimeStatus="Running")
    await write(client, "suspended", RuntimeStatus="Suspended")
    (end,) = await found(client, moment)
    assert (end.instance_id, end.execution_id, end.name, end.status) == ("a/b", "e", "sums", Status.FAILED)
    assert (end.tags, end.completed) == ({"x": "y"}, None)
    assert moment < end.written <= await client.ends.now()
    assert await found(client, end.written) == []


async def test_many_ends_come_in_pages(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    moment = await client.ends.now()
    await later(client, moment)
    for number in range(5):
        await write(client, f"i{number}", RuntimeStatus="Completed")
    monkeypatch.setattr(module, "PAGE", 2)
    pages = [len(page) async for page in client.ends.since(moment)]
    assert (max(pages), sum(pages)) == (2, 5)


async def test_the_clock_of_the_store_is_its_own(client: Client) -> None:
    first = await client.ends.now()
    assert first <= await client.ends.now()
    assert await client.watches.completions() == (), "the row of the clock is no hint"
