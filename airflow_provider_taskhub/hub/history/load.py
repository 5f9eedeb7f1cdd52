"""Read the history of an instance: the committed rows of its current generation, with their large columns.

A generation is a part of a run: one begins at the start, and one at each ``continue_as_new``. A new generation
overwrites the rows of the old one from the first row on. If the old one was longer, its last rows stay in the table,
and readers ignore them. The sentinel is the last row of the history. It counts the committed rows, and its ETag is the
lock of the instance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.concurrency import gather_bounded
from airflow_provider_taskhub.engine import grace
from airflow_provider_taskhub.engine.events import EventRaised, EventType, HistoryEvent, OrchestrationInstance
from airflow_provider_taskhub.engine.pending_waits import Awaits
from airflow_provider_taskhub.engine.validation import TERMINATE_EVENT
from airflow_provider_taskhub.errors import Conflict, InputError, StorageError
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub.formats.history_rows import (
    SENTINEL,
    RecordError,
    Sentinel,
    decode_event,
    decode_sentinel,
    row_key,
)
from airflow_provider_taskhub.hub.formats.keys import escape
from airflow_provider_taskhub.hub.formats.payload_spill import blob_columns, restore
from airflow_provider_taskhub.hub.formats.waits_column import encode_awaits
from airflow_provider_taskhub.hub.model import HubNames
from airflow_provider_taskhub.storage.primitives import And, Compare, Entity, RowOperation, RowVerb, Store, Transact

PARALLEL = 16
"""How many blobs of one history are read at the same time."""
READINGS = 5
"""How many times a history of several pages is read at most. A reading is only used if no other process changed the
history during the reading; a reader with ``growing`` also accepts that rows were added."""


class HistoryUnreadable(StorageError):
    """A history row (an event or the sentinel), or the blob of a large column, is missing or damaged.

    :func:`.salvage.salvage` reads the events of the current generation that are still readable.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The history of an instance's current generation.

    :param past: events of the committed rows.
    :param sentinel: the sentinel; None: the instance has no history.
    :param uncommitted_rows: number of rows behind the committed rows. An interrupted checkpoint wrote them.
    :param has_old_rows: True if rows of an earlier, longer generation follow in the table.
    :param blobs: names of the blobs that hold large columns of the rows.
    """

    past: tuple[HistoryEvent, ...] = ()
    sentinel: Sentinel | None = None
    uncommitted_rows: int = 0
    has_old_rows: bool = False
    blobs: tuple[str, ...] = ()

    @property
    def begun(self) -> bool:
        """True if a checkpoint of this generation counts. If the very first checkpoint was interrupted between two of
        its transactions, the rows that it wrote do not count. A sentinel that only stores a suspension from before the
        first checkpoint does not count either."""
        return self.sentinel is not None and (self.sentinel.complete or bool(self.past))


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRows:
    """The history of an instance's current generation, as rows of the table. See :class:`Loaded`.

    :param committed: committed rows as they are stored. Columns in blobs are not read.
    """

    committed: tuple[Entity, ...] = ()
    sentinel: Sentinel | None = None
    uncommitted_rows: int = 0
    has_old_rows: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """All rows of an instance in the history table, of every generation.

    :param lock: row of the sentinel; None: there is no sentinel.
    :param rows: rows of the events, sorted by RowKey.
    :param torn: True if other processes changed the rows during each reading, so that the rows may not fit together.
    """

    lock: Entity | None = None
    rows: Sequence[Entity] = ()
    torn: bool = False

    def whole(self, instance_id: str) -> Reading:
        """Return this reading if its rows fit together.

        :raises Conflict: other processes changed the rows during each reading (``torn``).
        """
        if self.torn:
            raise Conflict(torn_text(f"the history of {instance_id!r}"))
        return self


def torn_text(what: str) -> str:
    """Return the error text for a history that other processes changed during each reading."""
    return f"{what} was changed during each of {READINGS} readings"


async def load(store: Store, names: HubNames, instance_id: str, *, growing: bool = False) -> Loaded:
    """Read the history of an instance.

    :param growing: True for a reader that runs beside the owner, which may append rows meanwhile (:func:`table_rows`).
    :raises HistoryUnreadable: a row, or the blob of a large column, is missing or damaged.
    :raises Conflict: other processes changed the history during each reading.
    :raises StorageError: the store has failed.
    """
    rows = await load_rows(store, names, instance_id, growing=growing)
    while rows.sentinel is not None:
        try:
            past = await decoded(store, names, rows.committed)
        except HistoryUnreadable:
            before, rows = rows.sentinel, await load_rows(store, names, instance_id, growing=growing)
            now = rows.sentinel
            if now is not None and (now.etag == before.etag or (growing and now.execution_id == before.execution_id)):
                raise
            continue  # a new generation began meanwhile and deleted the blobs of the old one: read the history again
        blobs = tuple(name for row in rows.committed for name in blob_columns(row).values())
        return Loaded(
            past=past,
            sentinel=rows.sentinel,
            uncommitted_rows=rows.uncommitted_rows,
            has_old_rows=rows.has_old_rows,
            blobs=blobs,
        )
    return Loaded()


async def load_rows(store: Store, names: HubNames, instance_id: str, *, growing: bool = False) -> HistoryRows:
    """Read the committed history rows of an instance's current generation. Parameters and errors: see :func:`load`."""
    found = (await table_rows(store, names, instance_id, growing=growing)).whole(instance_id)
    return _counted(found.lock, found.rows)


async def table_rows(store: Store, names: HubNames, instance_id: str, *, growing: bool = False) -> Reading:
    """Read the sentinel and all event rows of an instance, of every generation, as they were at one moment.

    The store returns the rows in pages. Between two pages, a former owner may begin a new generation, or a client may
    rewind. Both change the sentinel in the same transaction as the rows. So if the sentinel has the same ETag before
    and after a reading, the rows did not change during the reading. The sentinel is in the last page. Therefore the
    function first reads one page. If there are more pages, it reads the sentinel alone and then all pages.

    :param growing: True for a reader that runs beside the owner, while the owner appends rows. Then a reading is also
        valid if the next reading finds all rows that the sentinel of the first one counts, with the same ETags.
    :returns: the rows. :attr:`Reading.torn` is True if other processes changed them during each reading.
    """
    key = escape(instance_id)
    mine = Compare("PartitionKey", "eq", key)
    first = await store.query(names.history, mine)
    if first.continuation is None:
        return _parted(first.entities)
    before = Reading(lock=await lock_of(store, names, instance_id))
    for number in range(READINGS):
        now = _parted([entity async for entity in store.rows(names.history, mine)])
        if (before.lock and before.lock.etag) == (now.lock and now.lock.etag):
            return now
        if growing and number and _kept(before, now):
            return before
        before = now
    return replace(before, torn=True)


def _kept(before: Reading, now: Reading) -> bool:
    """Return True if all rows that the sentinel of one reading counts have the same ETags in the next reading. These
    rows then did not change between the two readings."""
    if before.lock is None:
        return False
    try:
        committed = decode_sentinel(before.lock).committed(len(before.rows))
    except RecordError:
        return False
    end = row_key(committed)
    first, second = ({row.row_key: row.etag for row in read.rows if row.row_key < end} for read in (before, now))
    return first == second


def _parted(entities: Sequence[Entity]) -> Reading:
    lock = next((entity for entity in entities if entity.row_key == SENTINEL), None)
    rows = sorted((entity for entity in entities if entity is not lock), key=lambda row: row.row_key)
    return Reading(lock=lock, rows=rows)


def _counted(lock: Entity | None, rows: Sequence[Entity]) -> HistoryRows:
    if lock is None:
        return HistoryRows()
    sentinel = _sentinel(lock)
    current = generation(rows, sentinel.execution_id)
    committed = sentinel.committed(len(current))
    if committed > len(current):
        found = f"{len(current)} of its {committed} rows are there"
        raise HistoryUnreadable(f"history of {lock.partition_key!r}, generation {sentinel.execution_id}: {found}")
    uncommitted_rows, has_old_rows = len(current) - committed, len(rows) > len(current)
    return HistoryRows(
        committed=tuple(current[:committed]),
        sentinel=sentinel,
        uncommitted_rows=uncommitted_rows,
        has_old_rows=has_old_rows,
    )


async def decoded(store: Store, names: HubNames, rows: Sequence[Entity]) -> tuple[HistoryEvent, ...]:
    """Decode the events of rows. The large columns of the rows are read from their blobs.

    :raises HistoryUnreadable: a row or blob is damaged, or a blob is missing.
    """
    kept = list(rows)
    await _restore(store, names, kept)
    try:
        return tuple(decode_event(entity) for entity in kept)
    except RecordError as error:
        raise HistoryUnreadable(str(error)) from error


async def sentinel_of(store: Store, names: HubNames, instance_id: str) -> Sentinel | None:
    """Read the sentinel of an instance.

    :returns: None if the instance has no history.
    :raises HistoryUnreadable: the row of the sentinel is damaged.
    """
    lock = await lock_of(store, names, instance_id)
    return None if lock is None else _sentinel(lock)


async def mark_unreadable(store: Store, names: HubNames, instance_id: str, cause: str) -> None:
    """Write into the sentinel that the history cannot be read. Readers that do not read the history show this text.

    If there is no sentinel, or it has this text already, nothing is written. The next checkpoint of the instance
    overwrites the text. A terminate, for example, makes a checkpoint even if the history cannot be read.

    :param cause: what cannot be read.
    :raises Conflict: another process wrote the sentinel at the same time.
    """
    lock = await lock_of(store, names, instance_id)
    text = encode_awaits(Awaits(unreadable=cause))
    if lock is None or lock.properties.get("TaskHubAwaits") == text:
        return
    row = Entity(partition_key=lock.partition_key, row_key=SENTINEL, properties={"TaskHubAwaits": text})
    merge = RowOperation(verb=RowVerb.MERGE, entity=row, etag=lock.etag)
    await store.execute(Transact(table=names.history, rows=(merge,)))


async def lock_of(store: Store, names: HubNames, instance_id: str) -> Entity | None:
    """Read the row of the sentinel without decoding it; None: there is no sentinel. The ETag of this row is the lock of
    the instance."""
    return await store.get(names.history, escape(instance_id), SENTINEL)


def _sentinel(lock: Entity) -> Sentinel:
    try:
        return decode_sentinel(lock)
    except RecordError as error:
        raise HistoryUnreadable(str(error)) from error


def generation(rows: Sequence[Entity], execution_id: str) -> list[Entity]:
    """Return the rows of one generation. Rows of an earlier, longer generation may follow them in the table.

    :param rows: rows sorted by RowKey.
    :param execution_id: execution id of the generation.
    """
    found: list[Entity] = []
    for entity in rows:
        if entity.properties.get("ExecutionId") != execution_id:
            break
        found.append(entity)
    return found


async def _restore(store: Store, names: HubNames, rows: list[Entity]) -> None:
    """Replace, in the list, each row that has columns in blobs by the complete row. Few rows have such columns, so only
    these rows get an asyncio task."""

    async def restored(spilled: tuple[int, Mapping[str, str]]) -> None:
        at, wanted = spilled
        rows[at] = await _restored(store, names, rows[at], wanted)

    spilled = [(at, wanted) for at, entity in enumerate(rows) if (wanted := blob_columns(entity))]
    await gather_bounded(restored, spilled, limit=PARALLEL)


async def _restored(store: Store, names: HubNames, entity: Entity, wanted: Mapping[str, str]) -> Entity:
    texts: dict[str, str] = {}
    for column, name in wanted.items():
        try:
            texts[column] = await payload(store, names, name)
        except InputError as error:
            where = f"history row {entity.row_key} of {entity.partition_key!r}"
            raise HistoryUnreadable(f"{where}: {error}") from error
    return restore(entity, texts)


async def payload(store: Store, names: HubNames, name: str) -> str:
    """Read the text of a blob.

    :raises InputError: the blob is missing or damaged, or its name is invalid.
    """
    try:
        text = await store.get_text(names.large_messages, name)
    except InputError as error:
        raise InputError(f"blob {name!r}: {error}") from error
    if text is None:
        raise InputError(f"blob {name!r} is gone")
    return text


async def request_to_end(store: Store, names: HubNames, instance: OrchestrationInstance) -> grace.Request | None:
    """Return the request because of which an instance ends, without reading its whole history; None: there is none.

    :param instance: the instance, with the execution id of its generation.
    """
    event = EventType.EventRaised.name
    own = (
        Compare("PartitionKey", "eq", escape(instance.instance_id)),
        Compare("EventType", "eq", event),
        Compare("Name", "eq", TERMINATE_EVENT),
    )
    counts: grace.Request | None = None
    async for entity in store.rows(names.history, And(own), select=("ExecutionId", "Input")):
        columns = entity.properties
        if columns.get("ExecutionId") != instance.execution_id:
            continue  # an earlier, longer generation has left this row
        text = columns.get("Input")
        raised = EventRaised(timestamp=Timestamp(0), name=TERMINATE_EVENT, input=text if isinstance(text, str) else "")
        request = grace.request_of(raised) or grace.Request(reason=None)  # a long text is in a blob
        counts = grace.which_counts(counts, request)
    return counts
