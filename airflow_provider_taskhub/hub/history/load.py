"""Reading an instance's history back: the generation that counts, payloads fetched, half commits cut off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from airflow_provider_taskhub.concurrency import gather_bounded
from airflow_provider_taskhub.engine.events import HistoryEvent
from airflow_provider_taskhub.engine.pending_waits import Awaits
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
from airflow_provider_taskhub.storage.primitives import Compare, Entity, RowOperation, RowVerb, Store, Transact

PARALLEL = 16
READINGS = 5
"""How often a history of several pages is read again because it was changed meanwhile."""


class HistoryUnreadable(StorageError):
    """A row of a history or a payload is missing or damaged. ``salvage`` reads the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """An instance's stored history: of its current generation, committed rows only.

    :param sentinel: None when the instance has no history.
    :param uncommitted_rows: rows of the generation behind the committed ones, which a half commit left.
    :param has_old_rows: True if rows of an earlier, longer generation follow.
    :param blobs: to which its rows are spilled.
    """

    past: tuple[HistoryEvent, ...] = ()
    sentinel: Sentinel | None = None
    uncommitted_rows: int = 0
    has_old_rows: bool = False
    blobs: tuple[str, ...] = ()

    @property
    def begun(self) -> bool:
        """Whether anything counts: of a first checkpoint that was cut off between two transactions nothing does."""
        return self.sentinel is not None and (self.sentinel.complete or bool(self.past))


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRows:
    """The same as rows of the table.

    :param committed: of the current generation, as stored: spilled columns are not fetched.
    """

    committed: tuple[Entity, ...] = ()
    sentinel: Sentinel | None = None
    uncommitted_rows: int = 0
    has_old_rows: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The rows of a history's table partition, of every generation.

    :param lock: the sentinel's row. :param rows: of all events, by their keys.
    :param torn: whether others changed them during every reading: they may be of different moments.
    """

    lock: Entity | None = None
    rows: Sequence[Entity] = ()
    torn: bool = False

    def whole(self, instance_id: str) -> Reading:
        """The same. :raises Conflict: when it is torn."""
        if self.torn:
            raise Conflict(torn_text(f"the history of {instance_id!r}"))
        return self


def torn_text(what: str) -> str:
    """What is said of a history that could not be read as it was at one moment."""
    return f"{what} was changed during each of {READINGS} readings"


async def load(store: Store, names: HubNames, instance_id: str, *, growing: bool = False) -> Loaded:
    """The history of an instance.

    :param growing: as for :func:`table_rows`.
    :raises HistoryUnreadable: when a row or a payload is missing or damaged. :raises StorageError: as the store says.
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
            continue  # the blobs went with their generation while it was read
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
    """The rows of an instance's history that count. Parameter and errors as for :func:`load`.

    :raises Conflict: when others change them during every reading.
    """
    found = (await table_rows(store, names, instance_id, growing=growing)).whole(instance_id)
    return _counted(found.lock, found.rows)


async def table_rows(store: Store, names: HubNames, instance_id: str, *, growing: bool = False) -> Reading:
    """The sentinel's row and the rows of all events, of every generation, as they were at one moment.

    A page is of one moment; between two pages a former owner may continue as new, or a client may rewind. Each of them
    changes the sentinel together with its rows, so its ETag stays the same while the rows do not change. The
    sentinel is in the last page. So the first page, which tells that there are more, is read a second time.

    :param growing: for those who only look, beside the owner that goes on appending rows: a reading counts, too, when
        the next one finds the rows that its sentinel counts unchanged. It is then what was there when that sentinel was
        read, whatever was written since.
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
    """Whether the rows that the sentinel of a reading counts are the same in the next reading: no other version of one
    of them was there between the two, where that sentinel was read."""
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
    """The events of rows, payloads fetched. :raises HistoryUnreadable: when one is missing or damaged."""
    kept = list(rows)
    await _restore(store, names, kept)
    try:
        return tuple(decode_event(entity) for entity in kept)
    except RecordError as error:
        raise HistoryUnreadable(str(error)) from error


async def sentinel_of(store: Store, names: HubNames, instance_id: str) -> Sentinel | None:
    """The last checkpoint, with its ETag and the storage service's time of it; None without one.

    :raises HistoryUnreadable: when its row is damaged.
    """
    lock = await lock_of(store, names, instance_id)
    return None if lock is None else _sentinel(lock)


async def mark_unreadable(store: Store, names: HubNames, instance_id: str, cause: str) -> None:
    """Write into the sentinel that the history cannot be read, once: readers that do not read histories show it.

    The next checkpoint of the instance, as that of a terminate, overwrites it.

    :param cause: what cannot be read. :raises Conflict: when another wrote the sentinel meanwhile.
    """
    lock = await lock_of(store, names, instance_id)
    text = encode_awaits(Awaits(unreadable=cause))
    if lock is None or lock.properties.get("TaskHubAwaits") == text:
        return
    row = Entity(partition_key=lock.partition_key, row_key=SENTINEL, properties={"TaskHubAwaits": text})
    merge = RowOperation(verb=RowVerb.MERGE, entity=row, etag=lock.etag)
    await store.execute(Transact(table=names.history, rows=(merge,)))


async def lock_of(store: Store, names: HubNames, instance_id: str) -> Entity | None:
    """The sentinel's row, whatever it says: its ETag is the instance's lock."""
    return await store.get(names.history, escape(instance_id), SENTINEL)


def _sentinel(lock: Entity) -> Sentinel:
    try:
        return decode_sentinel(lock)
    except RecordError as error:
        raise HistoryUnreadable(str(error)) from error


def generation(rows: Sequence[Entity], execution_id: str) -> list[Entity]:
    """Rows up to the first of another generation: rows of an earlier, longer generation may follow.

    :param rows: by their keys.
    """
    found: list[Entity] = []
    for entity in rows:
        if entity.properties.get("ExecutionId") != execution_id:
            break
        found.append(entity)
    return found


async def _restore(store: Store, names: HubNames, rows: list[Entity]) -> None:
    """Put spilled columns back, in place. Few rows have any: the others cost a look, not a task each."""

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
    """The text of a blob. :raises InputError: when it is gone or damaged, or no blob can have such a name."""
    try:
        text = await store.get_text(names.large_messages, name)
    except InputError as error:
        raise InputError(f"blob {name!r}: {error}") from error
    if text is None:
        raise InputError(f"blob {name!r} is gone")
    return text
