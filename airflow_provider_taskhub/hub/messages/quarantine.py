"""Messages that cannot be processed: kept with their bytes and the cause, never dropped (K35, K42).

An instance whose orchestrator does not come to an end is in quarantine as a whole: its messages are kept here as
*stuck*, with the generation that is. Whoever serves its partition leaves that generation alone, and adds what comes for
it, until one of these messages is put back: then all of them are (DESIGN §9).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from uuid import uuid5

from airflow_provider_taskhub.codec import Timestamp, compress, decompress
from airflow_provider_taskhub.engine.events import ExecutionStarted
from airflow_provider_taskhub.engine.identity import NAMESPACE
from airflow_provider_taskhub.errors import Conflict, NotFound
from airflow_provider_taskhub.hub.contract import HubNames
from airflow_provider_taskhub.hub.messages.envelope import MessageError, decode, encode
from airflow_provider_taskhub.hub.messages.held import ACTION_UUID, Held
from airflow_provider_taskhub.storage.primitives import (
    And,
    Compare,
    DeleteBlob,
    DeleteMessage,
    Entity,
    Message,
    PutBlob,
    PutMessage,
    RowOperation,
    RowVerb,
    Step,
    Store,
    Transact,
    Unit,
)

INLINE_BYTES = 60_000
_SHOWN = ("Cause", "InstanceId", "Inserted", "DequeueCount", "Stuck")
MAX_FAILURES = 20
"""Failed processings of one message before it is quarantined."""
MAX_DELIVERIES = 100
"""Deliveries of one message before it is quarantined, whatever they ended in (DESIGN §6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A row of ``{Hub}Quarantine``.

    :param text: the message as it was in the queue; "" when it was not asked for.
    :param stuck: the execution id of an instance that is in quarantine with this message; None: only the message is.
    :param since: the storage service's time of the row; None in writes. :param etag: of the row.
    """

    queue: str
    message_id: str
    cause: str
    text: str
    dequeue_count: int
    inserted: Timestamp
    instance_id: str = ""
    stuck: str | None = None
    since: Timestamp | None = None
    etag: str = ""


def unit(names: HubNames, item: Quarantined, deletion: DeleteMessage) -> Unit:
    """Keep, then delete: in that order, so that nothing is lost between."""
    data = compress(item.text)
    inline = len(data) <= INLINE_BYTES
    blob = _blob_name(item)
    entity = Entity(
        partition_key=item.queue,
        row_key=item.message_id,
        properties={
            "Cause": item.cause[:8000],
            "InstanceId": item.instance_id,
            "Inserted": item.inserted,
            "DequeueCount": item.dequeue_count,
            "Stuck": item.stuck,
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
            Step(name="delete", operations=(deletion,)),
        )
    )


def is_spent(held: Held, *, failed: bool) -> bool:
    """Whether this was the last try with a message. :param failed: it counts as one; else the store did not answer."""
    return held.dequeue_count >= MAX_DELIVERIES or (failed and held.envelope.failures >= MAX_FAILURES)


def spent(held: Held, error: Exception) -> Quarantined:
    """A message at its limit, with the error that its last try ended in."""
    counts = f"{held.envelope.failures} failed processings, {held.dequeue_count} deliveries"
    return of_held(held, f"{counts}, at last {error!r}")


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


def of_held(held: Held, cause: str, *, stuck: str | None = None) -> Quarantined:
    """A message that was decoded and could not be processed. :param stuck: as in :class:`Quarantined`."""
    return Quarantined(
        queue=held.queue,
        message_id=held.message_id,
        cause=cause,
        text=encode(held.envelope),
        dequeue_count=held.dequeue_count,
        inserted=held.inserted,
        instance_id=held.message.instance.instance_id,
        stuck=stuck,
    )


async def stuck(store: Store, names: HubNames, queue: str, instance_id: str | None = None) -> set[tuple[str, str]]:
    """Instances of a partition that are in quarantine as a whole. :returns: their ids, with the execution ids."""
    conditions = [Compare("PartitionKey", "eq", queue), Compare("Stuck", "gt", "")]
    if instance_id is not None:
        conditions.append(Compare("InstanceId", "eq", instance_id))
    found = set()
    async for entity in store.rows(names.quarantine, And(tuple(conditions)), select=("InstanceId", "Stuck", "PutBack")):
        if not entity.properties.get("PutBack"):
            found.add((str(entity.properties["InstanceId"]), str(entity.properties["Stuck"])))
    return found


async def listing(
    store: Store, names: HubNames, *, bodies: bool = True, limit: int | None = None, instance_id: str | None = None
) -> list[Quarantined]:
    """What is in quarantine, in the order of queues.

    :param bodies: with texts. :param limit: at most so many. :param instance_id: only messages for this one.
    """
    found: list[Quarantined] = []
    where = None if instance_id is None else Compare("InstanceId", "eq", instance_id)
    async for entity in store.rows(names.quarantine, where, select=None if bodies else _SHOWN):
        if limit is not None and len(found) >= limit:
            break
        found.append(await _read(store, names, entity, bodies=bodies))
    return found


async def find(store: Store, names: HubNames, message_id: str) -> Quarantined | None:
    """A message in quarantine."""
    async for entity in store.rows(names.quarantine, Compare("RowKey", "eq", message_id)):
        return await _read(store, names, entity, bodies=True)
    return None


async def put_back(store: Store, names: HubNames, item: Quarantined) -> None:
    """Into its queue again, as if it were new: its failures are forgotten. Of a stuck instance all messages go.

    :param item: as just found. :raises Conflict: when somebody else has put it back or dropped it since.
    :raises NotFound: as well.
    """
    marked = [(item, await _mark(store, names, item))]  # of two at a time one goes on
    if item.stuck is not None:
        for other in await listing(store, names, instance_id=item.instance_id):
            if other.stuck is not None and other.queue == item.queue and other.message_id != item.message_id:
                with suppress(Conflict, NotFound):
                    marked.append((other, await _mark(store, names, other)))
    for one, etag in sorted(marked, key=lambda pair: pair[0].inserted):
        again = PutMessage(queue=one.queue, text=_afresh(one))
        await store.commit(Unit(steps=(Step(name="again", operations=(again,)), *_removal(names, one, etag))))


async def _mark(store: Store, names: HubNames, item: Quarantined) -> str:
    row = Entity(partition_key=item.queue, row_key=item.message_id, properties={"PutBack": True})
    mark = Transact(table=names.quarantine, rows=(RowOperation(verb=RowVerb.MERGE, entity=row, etag=item.etag),))
    etags = await store.execute(mark)
    assert isinstance(etags, tuple)
    return etags[0]


async def drop(store: Store, names: HubNames, item: Quarantined) -> None:
    """For ever. Parameters and errors as in :func:`put_back`."""
    await store.commit(Unit(steps=_removal(names, item, item.etag)))


def _removal(names: HubNames, item: Quarantined, etag: str) -> tuple[Step, ...]:
    row = Entity(partition_key=item.queue, row_key=item.message_id)
    gone = Transact(table=names.quarantine, rows=(RowOperation(verb=RowVerb.DELETE, entity=row, etag=etag),))
    blob = DeleteBlob(container=names.large_messages, name=_blob_name(item))
    inline = len(compress(item.text)) <= INLINE_BYTES
    return Step(name="row", operations=(gone,)), Step(name="body", operations=() if inline else (blob,))


def _afresh(item: Quarantined) -> str:
    """The message without its counts, known by what it was if it is put back twice; nonsense goes back as it is."""
    try:
        envelope = decode(item.text)
    except MessageError:
        return item.text
    message = envelope.message
    if message is not None and isinstance(message.event, ExecutionStarted):  # much may have happened to its row
        event = replace(message.event, taskhub_row_etag=None)
        envelope = replace(envelope, message=replace(message, event=event))
    name = envelope.activity_id
    if name.version != ACTION_UUID:
        name = uuid5(NAMESPACE, f"quarantine {item.message_id}")
    return encode(replace(envelope, activity_id=name, failures=0, deliveries=0))


def _blob_name(item: Quarantined) -> str:
    return f"quarantine/{item.queue}/{item.message_id}.json.gz"


async def _read(store: Store, names: HubNames, entity: Entity, *, bodies: bool) -> Quarantined:
    columns = entity.properties
    body = columns.get("Body")
    if bodies and not isinstance(body, bytes):
        blob = await store.get_blob(names.large_messages, str(columns.get("BodyBlobName", "")))
        body = blob.data if blob else b""
    inserted, count, stuck = columns.get("Inserted"), columns.get("DequeueCount"), columns.get("Stuck")
    return Quarantined(
        queue=entity.partition_key,
        message_id=entity.row_key,
        cause=str(columns.get("Cause", "")),
        text=decompress(body) if isinstance(body, bytes) and body else "",
        dequeue_count=count if isinstance(count, int) else 0,
        inserted=inserted if isinstance(inserted, Timestamp) else Timestamp(0),
        instance_id=str(columns.get("InstanceId", "")),
        stuck=str(stuck) if stuck else None,
        since=entity.timestamp,
        etag=entity.etag,
    )
