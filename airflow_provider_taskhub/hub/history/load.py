"""Reading an instance's history back: the generation that counts, payloads fetched, half commits cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from airflow_provider_taskhub.engine.events import HistoryEvent
from airflow_provider_taskhub.errors import Conflict, InputError, StorageError
from airflow_provider_taskhub.hub.contract import HubNames
from airflow_provider_taskhub.hub.history.payloads import blob_columns, restore
from airflow_provider_taskhub.hub.history.records import (
    SENTINEL,
    RecordError,
    Sentinel,
    decode_event,
    decode_sentinel,
)
from airflow_provider_taskhub.hub.keys import escape
from airflow_provider_taskhub.storage.primitives import Compare, Entity, Store
from airflow_provider_taskhub.values import dataclass

PARALLEL = 16
READINGS = 5
"""How often a history of several pages is read again because it was changed meanwhile."""


class HistoryUnreadable(StorageError):
    """A row of a history or a payload is missing or damaged. ``salvage`` reads the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """An instance's stored history: of its current generation, committed rows only.

    :param sentinel: None when the instance has no history.
    :param surplus: rows that a half commit left behind the committed ones.
    :param tails: whether an earlier, longer generation left rows behind them.
    :param blobs: to which its rows are spilled.
    """

    past: tuple[HistoryEvent, ...] = ()
    sentinel: Sentinel | None = None
    surplus: int = 0
    tails: bool = False
    blobs: tuple[str, ...] = ()

    @property
    def begun(self) -> bool:
        """Whether anything counts: of a first checkpoint that was cut off between two transactions nothing does."""
        return self.sentinel is not None and (self.sentinel.complete or bool(self.past))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The same as rows of the table.

    :param committed: of the current generation, as stored: spilled columns are not fetched.
    """

    committed: tuple[Entity, ...] = ()
    sentinel: Sentinel | None = None
    surplus: int = 0
    tails: bool = False


async def load(store: Store, names: HubNames, instance_id: str) -> Loaded:
    """The history of an instance.

    :raises HistoryUnreadable: when a row or a payload is missing or damaged. :raises StorageError: as the store says.
    """
    rows = await load_rows(store, names, instance_id)
    while rows.sentinel is not None:
        try:
            past = await decoded(store, names, rows.committed)
        except HistoryUnreadable:
            before, rows = rows.sentinel, await load_rows(store, names, instance_id)
            if rows.sentinel is not None and rows.sentinel.etag == before.etag:
                raise
            continue  # the blobs went with their generation while it was read
        blobs = tuple(name for row in rows.committed for name in blob_columns(row).values())
        return Loaded(past=past, sentinel=rows.sentinel, surplus=rows.surplus, tails=rows.tails, blobs=blobs)
    return Loaded()


async def load_rows(store: Store, names: HubNames, instance_id: str) -> Rows:
    """The rows of an instance's history that count. Errors as for :func:`load`."""
    return _counted(*await table_rows(store, names, instance_id))


async def table_rows(store: Store, names: HubNames, instance_id: str) -> tuple[Entity | None, list[Entity]]:
    """The sentinel's row and the rows of all events, of every generation, as they were at one moment.

    A page is of one moment; between two pages a former owner may continue as new, or a client may rewind. Each of them
    changes the sentinel together with its rows, so its ETag stays the same while the rows do not change. The
    sentinel is in the last page. So the first page, which tells that there are more, is read a second time.

    :raises Conflict: when others change it again and again.
    """
    key = escape(instance_id)
    mine = Compare("PartitionKey", "eq", key)
    first = await store.query(names.history, mine)
    if first.continuation is None:
        return _parted(first.entities)
    lock = await lock_of(store, names, instance_id)
    for _ in range(READINGS):
        before = lock
        lock, rows = _parted([entity async for entity in store.rows(names.history, mine)])
        if (before and before.etag) == (lock and lock.etag):
            return lock, rows
    raise Conflict(f"the history of {instance_id!r} was changed during each of {READINGS} readings")


def _parted(entities: Sequence[Entity]) -> tuple[Entity | None, list[Entity]]:
    lock = next((entity for entity in entities if entity.row_key == SENTINEL), None)
    return lock, sorted((entity for entity in entities if entity is not lock), key=lambda row: row.row_key)


def _counted(lock: Entity | None, rows: Sequence[Entity]) -> Rows:
    if lock is None:
        return Rows()
    sentinel = _sentinel(lock)
    current = generation(rows, sentinel.execution_id)
    committed = sentinel.committed(len(current))
    if committed > len(current):
        found = f"{len(current)} of its {committed} rows are there"
        raise HistoryUnreadable(f"history of {lock.partition_key!r}, generation {sentinel.execution_id}: {found}")
    surplus, tails = len(current) - committed, len(rows) > len(current)
    return Rows(committed=tuple(current[:committed]), sentinel=sentinel, surplus=surplus, tails=tails)


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


async def lock_of(store: Store, names: HubNames, instance_id: str) -> Entity | None:
    """The sentinel's row, whatever it says: its ETag is the instance's lock."""
    return await store.get(names.history, escape(instance_id), SENTINEL)


def _sentinel(lock: Entity) -> Sentinel:
    try:
        return decode_sentinel(lock)
    except RecordError as error:
        raise HistoryUnreadable(str(error)) from error


def generation(rows: Sequence[Entity], execution_id: str) -> list[Entity]:
    """Rows up to the first of another generation: a shorter generation leaves old tails behind (spec §2.4).

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
    gate = asyncio.Semaphore(PARALLEL)

    async def restored(at: int, wanted: Mapping[str, str]) -> None:
        async with gate:
            rows[at] = await _restored(store, names, rows[at], wanted)

    spilled = [(at, wanted) for at, entity in enumerate(rows) if (wanted := blob_columns(entity))]
    await asyncio.gather(*(restored(at, wanted) for at, wanted in spilled))


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
