"""Keep messages that cannot be processed, with their content and the cause, in the quarantine table.

If an episode of an instance never ends, the whole instance is in quarantine. Then the rows of its messages have the
execution id of the instance in the column ``Stuck``. The worker that serves the partition does not run this execution,
and puts each further message for it into quarantine. When an administrator puts one of these messages back, all of them
are put back.

If the payload of a message is in a blob, the blob is copied into a folder of the quarantine, which a purge of the
instance does not delete. The copy is written before the row. A crash between the two steps leaves a copy without a row,
but never a row without its payload.
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
    ACTION_UUID,
    Envelope,
    MessageError,
    blob_of,
    decode,
    encode,
    spill,
    unspill,
)
from airflow_provider_taskhub.hub.model import HubNames
from airflow_provider_taskhub.hub.queues.delivery import Delivery
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
"""Largest compressed text, in bytes, that is kept in the row. A larger text is kept in a blob."""
_SHOWN = ("Cause", "InstanceId", "Inserted", "DequeueCount", "Stuck")
"""The columns that :func:`listing` reads if no texts are asked for."""
MAX_FAILURES = 20
"""Failed processings of one message after which the message goes to quarantine."""
MAX_DELIVERIES = 100
"""Deliveries of one message after which the message goes to quarantine, whatever their results were. Deliveries
returned before work began do not count, so a message that only waits is not quarantined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A message in quarantine.

    :param queue: name of the queue that the message came from.
    :param message_id: the id by which an administrator puts the message back or drops it.
    :param cause: why the message is in quarantine.
    :param text: the message's text in the queue. "" if the text was not asked for or is lost.
    :param dequeue_count: how often the message was delivered.
    :param inserted: when the message was put into its queue, by the clock of the storage service.
    :param instance_id: the instance that the message is for. "" if it cannot be read.
    :param stuck: execution id of the instance that is in quarantine as a whole. None: only this message is in
        quarantine.
    :param since: when the row was last written, by the clock of the storage service. None: the row is not written yet.
    :param etag: the ETag of the row.
    :param lost: why the text is lost. None: the text is there, or it was not asked for.
    :param blobs: names of the blobs with the text and with the payload. "" where there is no blob.
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
    """Put a message into quarantine, then delete it from its queue. With this order a crash loses no message.

    :param deletion: the operation that deletes the message from its queue. None: the message also stays in its queue.
    :raises StorageError: the store refused a step. The message is still in its queue.
    """
    name, spilled = _spilled(item.text), None
    if name:
        copy = _blob_name(item, "spilled")  # an earlier try may have made the copy and failed at a later step
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
    """Return whether a message must go to quarantine after this delivery.

    :param failed: True if processing the message has failed in this delivery, False if only the store did not answer.
    """
    return held.deliveries >= MAX_DELIVERIES or (failed and held.envelope.failures >= MAX_FAILURES)


def spent(held: Delivery, error: Exception) -> Quarantined:
    """Return a message that was tried too often, as an entry of the quarantine.

    :param error: the error of the last try.
    """
    counts = f"{held.envelope.failures} failed processings, {held.deliveries} deliveries"
    return of_held(held, f"{counts}, at last {error!r}")


def of_message(queue: str, message: Message, cause: str) -> Quarantined:
    """Return a message that could not be decoded, as an entry of the quarantine.

    :param queue: name of the queue that the message came from.
    :param cause: why the message goes to quarantine.
    """
    return Quarantined(
        queue=queue,
        message_id=message.receipt.message_id,
        cause=cause,
        text=message.text,
        dequeue_count=message.dequeue_count,
        inserted=message.inserted,
    )


def of_held(held: Delivery, cause: str, *, stuck: str | None = None) -> Quarantined:
    """Return a decoded message as an entry of the quarantine.

    :param cause: why the message goes to quarantine.
    :param stuck: see :class:`Quarantined`.
    """
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
    """Return which instances of a partition are in quarantine as a whole.

    :param queue: name of the partition's control queue.
    :param instance_id: ask only about this instance. None: about all instances.
    :returns: pairs of instance id and execution id.
    """
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
    """Return the messages in quarantine, ordered by queue and message id.

    :param bodies: True: read the text of each message too. False: ``text``, ``lost`` and ``blobs`` stay empty.
    :param limit: the most messages to return. None: no limit.
    :param instance_id: return only messages for this instance. None: for all instances.
    """
    found: list[Quarantined] = []
    where = None if instance_id is None else Compare("InstanceId", "eq", instance_id)
    async for entity in store.rows(names.quarantine, where, select=None if bodies else _SHOWN):
        if limit is not None and len(found) >= limit:
            break
        found.append(await _read(store, names, entity, bodies=bodies))
    return found


async def find(store: Store, names: HubNames, message_id: str) -> Quarantined | None:
    """Return a message in quarantine with its text. None: no message in quarantine has this id."""
    async for entity in store.rows(names.quarantine, Compare("RowKey", "eq", message_id)):
        return await _read(store, names, entity, bodies=True)
    return None


async def put_back(store: Store, names: HubNames, item: Quarantined) -> None:
    """Put a message back into its queue as if it were new: the counts of its failures and deliveries begin at 0.

    If the whole instance is in quarantine, all its messages are put back.

    :param item: the message as :func:`find` or :func:`listing` has just returned it.
    :raises Conflict: the row has changed since it was read, because another administrator puts the message back too.
    :raises NotFound: the row does not exist any more: another administrator has put the message back or dropped it.
    :raises InputError: the text or the payload of the message is lost.
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
    # if two callers put this message back at the same time, the ETag of the row lets only one of them continue
    marked = [(item, await _mark(store, names, item))]
    for other in together:
        with suppress(Conflict, NotFound):
            marked.append((other, await _mark(store, names, other)))
    for one, etag in sorted(marked, key=lambda pair: pair[0].inserted):
        text, payload = await _as_new(store, names, one)
        steps = (
            Step(name="payloads", operations=() if payload is None else (payload,)),
            Step(name="again", operations=(PutMessage(queue=one.queue, text=text),)),
        )
        await store.commit(Unit(steps=(*steps, *_removal(names, one, etag))))


async def _mark(store: Store, names: HubNames, item: Quarantined) -> str:
    """Write into the row that its message is being put back. Return the row's new ETag."""
    row = Entity(partition_key=item.queue, row_key=item.message_id, properties={"PutBack": True})
    mark = Transact(table=names.quarantine, rows=(RowOperation(verb=RowVerb.MERGE, entity=row, etag=item.etag),))
    etags = await store.execute(mark)
    assert isinstance(etags, tuple)
    return etags[0]


async def drop(store: Store, names: HubNames, item: Quarantined) -> None:
    """Delete a message from quarantine, with the copies of its text and payload that the quarantine holds. The message
    cannot be put back any more.

    A large payload also has an original blob, which the sender wrote. A purge of the instance deletes this blob. If the
    instance does not exist, no purge will come, so this function deletes the original blob too.

    :param item: the message as :func:`find` or :func:`listing` has just returned it.
    :raises Conflict: the row has changed since it was read, because another administrator puts the message back.
    :raises NotFound: the row does not exist any more: another administrator has put the message back or dropped it.
    """
    name = _spilled(item.text)
    owner = owner_of(name)
    orphan = owner is not None and not await _exists(store, names, owner)
    await store.commit(Unit(steps=_removal(names, item, item.etag, name if orphan else "")))


async def _exists(store: Store, names: HubNames, instance_id: str) -> bool:
    try:
        return await store.get(names.instances, escape(instance_id), "") is not None
    except InputError:  # such an id cannot be a key of a table, so no instance has it
        return False


def _removal(names: HubNames, item: Quarantined, etag: str, orphan: str = "") -> tuple[Step, ...]:
    """Return the steps that delete a row of the quarantine and its blobs.

    :param orphan: name of one more blob to delete. "": none.
    """
    row = Entity(partition_key=item.queue, row_key=item.message_id)
    gone = Transact(table=names.quarantine, rows=(RowOperation(verb=RowVerb.DELETE, entity=row, etag=etag),))
    blobs = tuple(DeleteBlob(container=names.large_messages, name=name) for name in (*item.blobs, orphan) if name)
    return Step(name="row", operations=(gone,)), Step(name="body", operations=blobs)


async def _as_new(store: Store, names: HubNames, item: Quarantined) -> tuple[str, PutBlob | None]:
    """Return the text with which a message is put back, and the blob that must be written first; None: no blob.

    The counts of failures and deliveries are reset. The new message gets the same identity each time it is put back, so
    that a worker recognises a second copy. A text that cannot be decoded is put back unchanged.
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
    # A start message names the ETag that the instance row had when the message was sent. The row may have changed while
    # the message was in quarantine. The ETag is removed, so that the worker does not compare it.
    if message is not None and isinstance(message.event, ExecutionStarted):
        event = replace(message.event, taskhub_row_etag=None)
        envelope = replace(envelope, message=replace(message, event=event))
    known = envelope.activity_id
    if known.version != ACTION_UUID:
        known = uuid5(NAMESPACE, f"quarantine {item.message_id}")
    fresh = replace(envelope, activity_id=known, failures=0, deliveries=0, waiting_since=None, place=None)
    return spill(fresh if message is None else replace(fresh, blob_name=None), names.large_messages)


def _spilled(text: str) -> str:
    """Return the name of the blob that has a message's payload. "": the payload is in the text."""
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
    """Return the text of a message in quarantine and None, or "" and the reason why the text is lost."""
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
