"""Reading an instance's history back: the generation that counts, payloads fetched, half commits cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from airflow_provider_taskhub.codec import decompress
from airflow_provider_taskhub.engine.events import HistoryEvent
from airflow_provider_taskhub.errors import StorageError
from airflow_provider_taskhub.hub.contract import HubNames
from airflow_provider_taskhub.hub.history.payloads import blob_columns, restore
from airflow_provider_taskhub.hub.history.records import (
    SENTINEL,
    Sentinel,
    decode_event,
    decode_sentinel,
)
from airflow_provider_taskhub.hub.keys import escape
from airflow_provider_taskhub.storage.primitives import Compare, Entity, Store
from airflow_provider_taskhub.values import dataclass

PARALLEL = 16


class HistoryUnreadable(StorageError):
    """A payload blob that the history names does not exist."""


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

    :raises HistoryUnreadable: when a payload is missing. :raises StorageError: as the store says.
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
    """The rows that count of an instance's history."""
    sentinel: Sentinel | None = None
    rows: list[Entity] = []
    async for entity in store.rows(names.history, Compare("PartitionKey", "eq", escape(instance_id))):
        if entity.row_key == SENTINEL:
            sentinel = decode_sentinel(entity)
        else:
            rows.append(entity)
    if sentinel is None:
        return Rows()
    current = _generation(rows, sentinel.execution_id)
    committed = sentinel.committed(len(current))
    surplus, tails = len(current) - committed, len(rows) > len(current)
    return Rows(committed=tuple(current[:committed]), sentinel=sentinel, surplus=surplus, tails=tails)


async def decoded(store: Store, names: HubNames, rows: Sequence[Entity]) -> tuple[HistoryEvent, ...]:
    """The events of rows, payloads fetched. :raises HistoryUnreadable: when one is missing."""
    kept = list(rows)
    await _restore(store, names, kept)
    return tuple(decode_event(entity) for entity in kept)


async def sentinel_of(store: Store, names: HubNames, instance_id: str) -> Sentinel | None:
    """The last checkpoint, with its ETag and the storage service's time of it; None without one."""
    entity = await store.get(names.history, escape(instance_id), SENTINEL)
    return None if entity is None else decode_sentinel(entity)


def _generation(rows: list[Entity], execution_id: str) -> list[Entity]:
    """Rows up to the first of another generation: a shorter generation leaves old tails behind (spec §2.4)."""
    found: list[Entity] = []
    for entity in sorted(rows, key=lambda row: row.row_key):
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
        blob = await store.get_blob(names.large_messages, name)
        if blob is None:
            raise HistoryUnreadable(f"history row {entity.row_key} of {entity.partition_key!r}: blob {name!r} is gone")
        texts[column] = decompress(blob.data)
    return restore(entity, texts)
