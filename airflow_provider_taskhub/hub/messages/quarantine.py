"""Messages that cannot be processed: kept with their bytes and the cause, never dropped (K35, K42)."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_taskhub.codec import Timestamp, compress, decompress
from airflow_provider_taskhub.hub.contract import HubNames
from airflow_provider_taskhub.hub.messages.envelope import encode
from airflow_provider_taskhub.hub.messages.held import Held
from airflow_provider_taskhub.storage.primitives import (
    DeleteMessage,
    Entity,
    Message,
    PutBlob,
    Receipt,
    ReceiptHolder,
    RowOperation,
    RowVerb,
    Step,
    Store,
    Transact,
    Unit,
)

INLINE_BYTES = 60_000
MAX_FAILURES = 20
"""Failed processings of one message before it is quarantined."""
MAX_DELIVERIES = 100
"""Deliveries of one message before it is quarantined, whatever they ended in (DESIGN §6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A row of ``{Hub}Quarantine``."""

    queue: str
    message_id: str
    cause: str
    text: str
    dequeue_count: int
    inserted: Timestamp
    instance_id: str = ""


def unit(names: HubNames, item: Quarantined, message: Receipt | ReceiptHolder) -> Unit:
    """Keep, then delete: in that order, so that nothing is lost between."""
    data = compress(item.text)
    inline = len(data) <= INLINE_BYTES
    blob = f"quarantine/{item.queue}/{item.message_id}.json.gz"
    entity = Entity(
        partition_key=item.queue,
        row_key=item.message_id,
        properties={
            "Cause": item.cause[:8000],
            "InstanceId": item.instance_id,
            "Inserted": item.inserted,
            "DequeueCount": item.dequeue_count,
            "Body": data if inline else None,
            "BodyBlobName": None if inline else blob,
        },
    )
    row = RowOperation(verb=RowVerb.UPSERT_REPLACE, entity=entity)
    keep = () if inline else (PutBlob(container=names.large_messages, name=blob, data=data),)
    return Unit(
        steps=(
            Step(name="payloads", operations=keep),
            Step(name="quarantine", operations=(Transact(table=names.quarantine, rows=(row,)),)),
            Step(name="delete", operations=(DeleteMessage(queue=item.queue, message=message, quiet=True),)),
        )
    )


def of_message(queue: str, message: Message, cause: str) -> Quarantined:
    """A message that could not even be decoded."""
    return Quarantined(
        queue=queue,
        message_id=message.receipt.message_id,
        cause=cause,
        text=message.text,
        dequeue_count=message.dequeue_count,
        inserted=message.inserted,
    )


def of_held(held: Held, cause: str) -> Quarantined:
    """A message that was decoded and could not be processed."""
    return Quarantined(
        queue=held.queue,
        message_id=held.message_id,
        cause=cause,
        text=encode(held.envelope),
        dequeue_count=held.dequeue_count,
        inserted=held.inserted,
        instance_id=held.message.instance.instance_id,
    )


async def listing(store: Store, names: HubNames) -> list[Quarantined]:
    """Everything in quarantine, texts included."""
    found = []
    async for entity in store.rows(names.quarantine):
        columns = entity.properties
        body = columns.get("Body")
        if not isinstance(body, bytes):
            blob = await store.get_blob(names.large_messages, str(columns.get("BodyBlobName", "")))
            body = blob.data if blob else b""
        inserted, count = columns.get("Inserted"), columns.get("DequeueCount")
        found.append(
            Quarantined(
                queue=entity.partition_key,
                message_id=entity.row_key,
                cause=str(columns.get("Cause", "")),
                text=decompress(body) if body else "",
                dequeue_count=count if isinstance(count, int) else 0,
                inserted=inserted if isinstance(inserted, Timestamp) else Timestamp(0),
                instance_id=str(columns.get("InstanceId", "")),
            )
        )
    return found
