"""Messages that cannot be processed: kept with their bytes and the cause, never dropped.

An instance whose orchestrator does not come to an end is in quarantine as a whole: its messages are kept here as
*stuck*, with the generation that is. Whoever serves its partition leaves that generation alone, and adds what comes for
it, until one of these messages is put back: then all of them are.

What a spilled message has in its blob is copied into a folder that no instance's purge comes near. A crash
between two steps leaves a copy behind rather than a row without one.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from uuid import uuid5

from airflow_provider_taskhub.codec import Timestamp, compress, decompress
from airflow_provider_taskhub.engine.events import ExecutionStarted
from airflow_provider_taskhub.engine.identity import NAMESPACE
from airflow_provider_taskhub.errors import Conflict, InputError, NotFound
from airflow_provider_taskhub.hub.formats.keys import QUARANTINE_FOLDER, escape, owner_of
from airflow_provider_taskhub.hub.formats.message_envelope import (
    Envelope,
    MessageError,
    blob_of,
    decode,
    encode,
    spill,
    unspill,
)
from airflow_provider_taskhub.hub.model import HubNames
from airflow_provider_taskhub.hub.queues.delivery import ACTION_UUID, Delivery
from airflow_provider_taskhub.hub.unreadable_rows import unreadable
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
"""Deliveries of one message before it is quarantined, whatever they ended in. One that was given back
before anything was begun is none: waiting is no failure, however long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A message that could not be processed.

    :param queue: that it came from. :param message_id: to put it back or drop it. :param cause: why it is here.
    :param dequeue_count: how often it was delivered. :param inserted: when it was sent, by the storage service.
    :param instance_id: that it is for; "" if that cannot be read.
    :param text: the message as it was in the queue; "" when it was not asked for, or is lost.
    :param stuck: the execution id of an instance that is in quarantine with this message; None: only the message is.
    :param since: the storage service's time of the row; None in writes. :param etag: of the row.
    :param lost: why there is no text; None: there is, or it was not asked for.
    :param blobs: where the text, and what a spilled message had in its blob, are kept; "" for neither. None in writes.
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
    lost: str | None = None
    blobs: tuple[str, str] = ("", "")


async def keep(store: Store, names: HubNames, item: Quarantined, deletion: DeleteMessage | None) -> None:
    """Keep, then delete: in that order, so that nothing is lost between.

    :param deletion: None: the message stays in its queue as well.
    :raises StorageError: the message is then still in its queue.
    """
    name, spilled = _spilled(item.text), None
    if name:
        copy = _blob_name(item, "spilled")  # of a try before this one, that ended in front of its last step
        for place in (name, copy):
            blob = await store.get_blob(names.large_messages, place)
            if blob is not None:
                spilled = PutBlob(container=names.large_messages, name=copy, data=blob.data)
                break
        if spilled is None and name not in item.cause:
            item = replace(item, cause=f"{item.cause}; its payload is lost: blob {name!r} does not exist")
    data = compress(item.text)
    text = PutBlob(container=names.large_messages, name=_blob_name(item, "text"), data=data)
    inline = len(data) <= INLINE_BYTES
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
            "BodyBlobName": None if inline else text.name,
            "SpilledBlobName": None if spilled is None else spilled.name,
        },
    )
    row = RowOperation(verb=RowVerb.UPSERT_REPLACE, entity=entity)
    payloads = (*(() if inline else (text,)), *(() if spilled is None else (spilled,)))
    await store.commit(
        Unit(
            steps=(
                Step(name="payloads", operations=payloads),
                Step(name="quarantine", operations=(Transact(table=names.quarantine, rows=(row,)),)),
                Step(name="delete", operations=() if deletion is None else (deletion,)),
            )
        )
    )


def is_spent(held: Delivery, *, failed: bool) -> bool:
    """Whether this was the last try with a message. :param failed: it counts as one; else the store did not answer."""
    return held.deliveries >= MAX_DELIVERIES or (failed and held.envelope.failures >= MAX_FAILURES)


def spent(held: Delivery, error: Exception) -> Quarantined:
    """A message at its limit, with the error that its last try ended in."""
    counts = f"{held.envelope.failures} failed processings, {held.deliveries} deliveries"
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


def of_held(held: Delivery, cause: str, *, stuck: str | None = None) -> Quarantined:
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
            found.add((str(entity.properties.get("InstanceId", "")), str(entity.properties["Stuck"])))
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
    :raises NotFound: as well. :raises InputError: when what was kept of it is gone.
    """
    together = []
    if item.stuck is not None:
        for other in await listing(store, names, instance_id=item.instance_id):
            if other.stuck is not None and other.queue == item.queue and other.message_id != item.message_id:
                together.append(other)
    for one in (item, *together):
        if one.lost is not None:
            raise InputError(f"the text of message {one.message_id} is gone, {one.lost}: drop that message")
        if one.blobs[1] and await store.get_blob(names.large_messages, one.blobs[1]) is None:
            raise InputError(
                f"the payload of message {one.message_id} is gone, blob {one.blobs[1]!r}: drop that message"
            )
    marked = [(item, await _mark(store, names, item))]  # of two at a time one goes on
    for other in together:
        with suppress(Conflict, NotFound):
            marked.append((other, await _mark(store, names, other)))
    for one, etag in sorted(marked, key=lambda pair: pair[0].inserted):
        text, payload = await _afresh(store, names, one)
        steps = (
            Step(name="payloads", operations=() if payload is None else (payload,)),
            Step(name="again", operations=(PutMessage(queue=one.queue, text=text),)),
        )
        await store.commit(Unit(steps=(*steps, *_removal(names, one, etag))))


async def _mark(store: Store, names: HubNames, item: Quarantined) -> str:
    row = Entity(partition_key=item.queue, row_key=item.message_id, properties={"PutBack": True})
    mark = Transact(table=names.quarantine, rows=(RowOperation(verb=RowVerb.MERGE, entity=row, etag=item.etag),))
    etags = await store.execute(mark)
    assert isinstance(etags, tuple)
    return etags[0]


async def drop(store: Store, names: HubNames, item: Quarantined) -> None:
    """For ever, with all that is kept of it. Parameters and errors as in :func:`put_back`, but for what is gone.

    The blob that the message itself was spilled to goes with its instance; where there is none, with this.
    """
    name = _spilled(item.text)
    owner = owner_of(name)
    orphan = owner is not None and not await _exists(store, names, owner)
    await store.commit(Unit(steps=_removal(names, item, item.etag, name if orphan else "")))


async def _exists(store: Store, names: HubNames, instance_id: str) -> bool:
    try:
        return await store.get(names.instances, escape(instance_id), "") is not None
    except InputError:  # no instance can have such an id
        return False


def _removal(names: HubNames, item: Quarantined, etag: str, orphan: str = "") -> tuple[Step, ...]:
    row = Entity(partition_key=item.queue, row_key=item.message_id)
    gone = Transact(table=names.quarantine, rows=(RowOperation(verb=RowVerb.DELETE, entity=row, etag=etag),))
    blobs = tuple(DeleteBlob(container=names.large_messages, name=name) for name in (*item.blobs, orphan) if name)
    return Step(name="row", operations=(gone,)), Step(name="body", operations=blobs)


async def _afresh(store: Store, names: HubNames, item: Quarantined) -> tuple[str, PutBlob | None]:
    """The message without its counts, known by what it was if it is put back twice; nonsense goes back as it is.

    :returns: its text, and the blob to write before it.
    """
    name = _spilled(item.text)
    blob = await store.get_blob(names.large_messages, item.blobs[1]) if item.blobs[1] else None
    try:
        envelope = decode(item.text)
        if blob is not None:
            envelope = unspill(envelope, decompress(blob.data))
    except InputError:
        as_it_was = None if blob is None else PutBlob(container=names.large_messages, name=name, data=blob.data)
        return item.text, as_it_was
    message = envelope.message
    if message is not None and isinstance(message.event, ExecutionStarted):  # much may have happened to its row
        event = replace(message.event, taskhub_row_etag=None)
        envelope = replace(envelope, message=replace(message, event=event))
    known = envelope.activity_id
    if known.version != ACTION_UUID:
        known = uuid5(NAMESPACE, f"quarantine {item.message_id}")
    fresh = replace(envelope, activity_id=known, failures=0, deliveries=0, waiting_since=None)
    return spill(fresh if message is None else replace(fresh, blob_name=None), names.large_messages)


def _spilled(text: str) -> str:
    """Name of the blob that a message was spilled to; "" when it is all in its text."""
    try:
        envelope: Envelope = decode(text)
    except MessageError:
        return ""
    return blob_of(envelope) or ""


def _blob_name(item: Quarantined, what: str) -> str:
    return f"{QUARANTINE_FOLDER}/{item.queue}/{item.message_id}-{what}.json.gz"


async def _read(store: Store, names: HubNames, entity: Entity, *, bodies: bool) -> Quarantined:
    columns = entity.properties
    text, lost = await _text(store, names, entity) if bodies else ("", None)
    inserted, count, stuck = columns.get("Inserted"), columns.get("DequeueCount"), columns.get("Stuck")
    return Quarantined(
        queue=entity.partition_key,
        message_id=entity.row_key,
        cause=str(columns.get("Cause", "")),
        text=text,
        dequeue_count=count if isinstance(count, int) else 0,
        inserted=inserted if isinstance(inserted, Timestamp) else Timestamp(0),
        instance_id=str(columns.get("InstanceId", "")),
        stuck=str(stuck) if stuck else None,
        since=entity.timestamp,
        etag=entity.etag,
        lost=lost,
        blobs=(str(columns.get("BodyBlobName") or ""), str(columns.get("SpilledBlobName") or "")),
    )


async def _text(store: Store, names: HubNames, entity: Entity) -> tuple[str, str | None]:
    """The text of a row, or why there is none."""
    body, name = entity.properties.get("Body"), entity.properties.get("BodyBlobName")
    try:
        if not isinstance(body, bytes):
            blob = await store.get_blob(names.large_messages, str(name)) if name else None
            if blob is None:
                raise InputError(f"blob {name!r} does not exist" if name else "the row has none")
            body = blob.data
        return decompress(body), None
    except InputError as error:
        unreadable(names.quarantine, f"{entity.partition_key} {entity.row_key}", str(error))
        return "", str(error)
