"""What we write is what Microsoft's own clients read, and the other way round: nothing of ours stands in between."""

# ruff: noqa: TID253 -- their clients are what this module is about; nothing imports it but pytest

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from azure.core import MatchConditions
from azure.core.exceptions import ResourceExistsError, ResourceModifiedError, ResourceNotFoundError
from azure.data.tables import EdmType, EntityProperty, UpdateMode
from azure.data.tables.aio import TableClient
from azure.storage.blob import ContentSettings
from azure.storage.blob.aio import BlobClient, BlobLeaseClient, ContainerClient
from azure.storage.queue.aio import QueueClient

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.errors import Conflict, LeaseLost, NotFound
from airflow_provider_taskhub.storage.azure.store import AzureStore
from airflow_provider_taskhub.storage.primitives import (
    BlobInfo,
    Compare,
    DeleteBlob,
    DeleteMessage,
    Entity,
    Int64,
    Property,
    PutBlob,
    PutMessage,
    Receipt,
    RowOperation,
    RowVerb,
    Transact,
    UpdateMessage,
)

NOW, SOON = timedelta(0), timedelta(seconds=60)
TEXTS = (
    "plain",
    '{"$type":"DurableTask.AzureStorage.MessageData","Name":"<b>&amp;\\"\'"}',
    "<QueueMessage>&lt;]]>&#38;</QueueMessage>",
    "Grüße, 東京 😀 \ufeff\u2028",
    "  spaces\tand\nlines  ",
    "=" * 8,
    "eyJhIjoxfQ==",  # looks like Base64 and is none
)
GUID = UUID("00112233-4455-6677-8899-aabbccddeeff")
KEY = "it's 100% 'ü' &+="
ROW: dict[str, Property] = {
    "Text": "Grüße, 東京 😀 <&>\"'",
    "Empty": "",
    "Yes": True,
    "No": False,
    "Small": -(2**31),
    "Large": Int64(2**63 - 1),
    "SmallAsLarge": Int64(1),
    "Half": 0.5,
    "Whole": 3.0,
    "Huge": math.inf,
    "When": Timestamp.parse("2026-11-21T08:55:27.2669147Z"),
    "First": Timestamp.parse("1601-01-01T00:00:00Z"),
    "Id": GUID,
    "Bytes": bytes(range(256)),
}
SAME = ("Text", "Empty", "Yes", "No", "Half", "Whole", "Huge", "Id", "Bytes")
"""Columns whose values are the same Python objects here and there."""


@pytest.fixture
async def store(azurite: str) -> AsyncIterator[AzureStore]:
    async with AzureStore(azurite, timeout=timedelta(seconds=30)) as opened:
        yield opened


@pytest.fixture
async def name(store: AzureStore) -> str:
    """A queue, a table and a container of this name."""
    fresh = f"t{uuid4().hex[:16]}"
    await asyncio.gather(store.create_queue(fresh), store.create_table(fresh), store.create_container(fresh))
    return fresh


@pytest.fixture
async def queue(azurite: str, name: str) -> AsyncIterator[QueueClient]:
    """As a .NET client's default: no encode or decode policies."""
    async with QueueClient.from_connection_string(azurite, name) as client:
        yield client


@pytest.fixture
async def table(azurite: str, name: str) -> AsyncIterator[TableClient]:
    async with TableClient.from_connection_string(azurite, name) as client:
        yield client


@pytest.fixture
async def container(azurite: str, name: str) -> AsyncIterator[ContainerClient]:
    async with ContainerClient.from_connection_string(
        azurite, name, max_single_put_size=1 << 18, max_block_size=1 << 18
    ) as client:
        yield client


def row(verb: RowVerb, *, etag: str | None = None, **columns: Property) -> RowOperation:
    return RowOperation(verb=verb, entity=Entity(partition_key=KEY, row_key="", properties=columns), etag=etag)


# --- messages


@pytest.mark.parametrize("text", TEXTS)
async def test_their_queue_client_reads_our_message(
    store: AzureStore, queue: QueueClient, name: str, text: str
) -> None:
    put = await store.execute(PutMessage(queue=name, text=text))
    assert isinstance(put, Receipt)
    assert [each.content for each in await queue.peek_messages()] == [text]
    received = await queue.receive_message(visibility_timeout=60)
    assert received is not None
    assert (received.content, received.id, received.dequeue_count) == (text, put.message_id, 1)
    await queue.delete_message(received)
    assert await store.count(name) == 0


@pytest.mark.parametrize("text", TEXTS)
async def test_we_read_their_queue_clients_message(store: AzureStore, queue: QueueClient, name: str, text: str) -> None:
    sent = await queue.send_message(text)
    [peeked] = await store.peek(name)
    [message] = await store.receive(name, limit=1, visibility=SOON)
    assert peeked.text == message.text == text
    assert peeked.receipt.message_id == message.receipt.message_id == sent.id
    assert message.dequeue_count == 1
    assert sent.inserted_on is not None
    assert message.inserted == Timestamp.from_datetime(sent.inserted_on)


async def test_receipts_go_from_one_to_the_other(store: AzureStore, queue: QueueClient, name: str) -> None:
    ours = await store.execute(PutMessage(queue=name, text="ours", visibility=SOON))
    assert isinstance(ours, Receipt)
    theirs = await queue.update_message(
        ours.message_id, ours.pop_receipt, content="<theirs> & ü", visibility_timeout=60
    )
    with pytest.raises(Conflict):
        await store.execute(DeleteMessage(queue=name, message=ours))
    renewed = Receipt(message_id=str(theirs.id), pop_receipt=str(theirs.pop_receipt), next_visible=ours.next_visible)
    given_back = await store.execute(UpdateMessage(queue=name, message=renewed, visibility=NOW))
    assert isinstance(given_back, Receipt)
    [message] = await store.receive(name, limit=1, visibility=SOON)
    assert message.text == "<theirs> & ü"
    await queue.delete_message(message.receipt.message_id, message.receipt.pop_receipt)
    with pytest.raises(NotFound):
        await store.execute(DeleteMessage(queue=name, message=message.receipt))


async def test_our_messages_never_expire(store: AzureStore, queue: QueueClient, name: str) -> None:
    await store.execute(PutMessage(queue=name, text="x"))
    [message] = await queue.peek_messages()
    assert message.expires_on is not None
    assert message.expires_on.year == 9999


# --- rows


async def test_their_table_client_reads_our_row(store: AzureStore, table: TableClient, name: str) -> None:
    written = await store.execute(Transact(table=name, rows=(row(RowVerb.INSERT, **ROW),)))
    entity = await table.get_entity(KEY, "")
    assert {column: entity[column] for column in SAME} == {column: ROW[column] for column in SAME}
    assert entity["Small"] == -(2**31)
    assert isinstance(entity["Small"], int)  # a plain int is Edm.Int32
    assert entity["Large"] == EntityProperty(2**63 - 1, EdmType.INT64)
    assert entity["SmallAsLarge"] == EntityProperty(1, EdmType.INT64)
    assert isinstance(entity["Whole"], float)
    assert entity["When"] == datetime(2026, 11, 21, 8, 55, 27, 266914, UTC)  # they read microseconds
    assert entity["When"].tables_service_value == "2026-11-21T08:55:27.2669147Z"  # it holds all 100 ns
    assert entity["First"] == datetime(1601, 1, 1, tzinfo=UTC)
    assert (entity.metadata["etag"],) == written


@pytest.mark.parametrize("batch", [False, True], ids=["single", "batch"])
async def test_we_read_their_table_clients_row(store: AzureStore, table: TableClient, name: str, batch: bool) -> None:
    theirs = {
        "PartitionKey": KEY,
        "RowKey": "",
        **{column: ROW[column] for column in (*SAME, "Small")},
        "Large": EntityProperty(2**63 - 1, EdmType.INT64),
        "SmallAsLarge": EntityProperty(1, EdmType.INT64),
        "When": datetime(2026, 11, 21, 8, 55, 27, 266914, UTC),
        "First": datetime(1601, 1, 1, tzinfo=UTC),
    }
    if batch:
        await table.submit_transaction([("create", theirs), ("create", {"PartitionKey": KEY, "RowKey": "b"})])
    else:
        await table.create_entity(theirs)
    entity = await store.get(name, KEY, "")
    assert entity is not None
    expected = {**ROW, "When": Timestamp.parse("2026-11-21T08:55:27.266914Z")}
    assert entity.properties == expected
    assert {key: type(value) for key, value in entity.properties.items()} == {
        key: type(value) for key, value in expected.items()
    }
    page = await store.query(name, Compare("Large", "eq", Int64(2**63 - 1)))
    assert page.entities == (entity,)


async def test_our_batch_is_theirs_to_read_and_filter(store: AzureStore, table: TableClient, name: str) -> None:
    rows = tuple(
        RowOperation(
            verb=RowVerb.INSERT,
            entity=Entity(partition_key=KEY, row_key=f"{number:03}", properties={**ROW, "N": Int64(number)}),
        )
        for number in range(100)
    )
    etags = await store.execute(Transact(table=name, rows=rows))
    found = [each async for each in table.query_entities("PartitionKey eq @key and N ge 90L", parameters={"key": KEY})]
    assert [each["RowKey"] for each in found] == [f"{number:03}" for number in range(90, 100)]
    assert tuple(each.metadata["etag"] for each in found) == etags[90:]  # type: ignore[index]
    by_id = [
        each
        async for each in table.query_entities(
            "Id eq @id and When eq @when",
            parameters={
                "id": GUID,
                "when": found[0]["When"],
            },
        )
    ]
    assert len(by_id) == 100


async def test_etags_go_from_one_to_the_other(store: AzureStore, table: TableClient, name: str) -> None:
    [ours] = await store.execute(Transact(table=name, rows=(row(RowVerb.INSERT, n=1),)))  # type: ignore[misc]
    theirs = (
        await table.update_entity(
            {"PartitionKey": KEY, "RowKey": "", "n": 2},
            mode=UpdateMode.MERGE,
            etag=ours,
            match_condition=MatchConditions.IfNotModified,
        )
    )["etag"]
    with pytest.raises(Conflict):
        await store.execute(Transact(table=name, rows=(row(RowVerb.REPLACE, etag=ours, n=3),)))
    await store.execute(Transact(table=name, rows=(row(RowVerb.REPLACE, etag=theirs, n=4),)))
    with pytest.raises(ResourceModifiedError):
        await table.delete_entity(KEY, "", etag=theirs, match_condition=MatchConditions.IfNotModified)
    with pytest.raises(ResourceExistsError):
        await table.create_entity({"PartitionKey": KEY, "RowKey": ""})
    entity = await store.get(name, KEY, "")
    assert entity is not None
    assert entity.properties == {"n": 4}


# --- blobs

BLOB_NAMES = ("a/b.json.gz", "it's 100% ü?#&+.txt")


@pytest.mark.parametrize("blob_name", BLOB_NAMES)
@pytest.mark.parametrize("size", [0, 1000, 3 * 1024 * 1024])
async def test_their_blob_client_reads_our_blob(
    store: AzureStore, container: ContainerClient, name: str, blob_name: str, size: int
) -> None:
    data = (bytes(range(256)) * (size // 256 + 1))[:size]
    etag = await store.execute(PutBlob(container=name, name=blob_name, data=data, content_type="application/json"))
    download = await container.get_blob_client(blob_name).download_blob()
    assert await download.readall() == data
    assert download.properties.etag == etag
    assert download.properties.content_settings.content_type == "application/json"
    assert [each.name async for each in container.list_blobs()] == [blob_name]


@pytest.mark.parametrize("blob_name", BLOB_NAMES)
async def test_we_read_their_blob_clients_blob(
    store: AzureStore, container: ContainerClient, name: str, blob_name: str
) -> None:
    data = bytes(range(256)) * 4000  # 1 MB
    blob: BlobClient = container.get_blob_client(blob_name)
    # in blocks, as their client writes large blobs; and marked as compressed, which must not tempt our reader
    await blob.upload_blob(
        data, content_settings=ContentSettings(content_type="text/plain", content_encoding="gzip"), max_concurrency=2
    )
    found = await store.get_blob(name, blob_name)
    assert found is not None
    assert found.data == data
    assert found.content_type == "text/plain"
    assert found.etag == (await blob.get_blob_properties()).etag
    assert await store.list_blobs(name) == [BlobInfo(name=blob_name, size=len(data))]
    await store.execute(DeleteBlob(container=name, name=blob_name))
    with pytest.raises(ResourceNotFoundError):
        await blob.get_blob_properties()


async def test_append_blobs_are_shared(store: AzureStore, container: ContainerClient, name: str) -> None:
    await store.append_blob(name, "log", b"ours,")
    blob: BlobClient = container.get_blob_client("log")
    await blob.append_block(b"theirs,")
    await store.append_blob(name, "log", b"ours")
    assert await (await blob.download_blob()).readall() == b"ours,theirs,ours"


async def test_our_store_renews_and_releases_a_lease_that_their_blob_client_took(
    store: AzureStore, container: ContainerClient, name: str
) -> None:
    await store.execute(PutBlob(container=name, name="b", data=b"x"))
    lease = BlobLeaseClient(container.get_blob_client("b"))
    await lease.acquire(lease_duration=15)
    with pytest.raises(LeaseLost):
        await store.acquire_lease(name, "b", lease_id=str(uuid4()), seconds=15)
    await store.renew_lease(name, "b", lease_id=lease.id)
    await store.execute(PutBlob(container=name, name="b", data=b"y", lease_id=lease.id))
    await store.release_lease(name, "b", lease_id=lease.id)
    with pytest.raises(ResourceExistsError):
        await lease.renew()
