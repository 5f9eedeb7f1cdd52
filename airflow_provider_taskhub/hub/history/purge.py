"""Purge: delete everything that is stored of an ended instance, and nothing of other instances.

The instance row is deleted last, so that a second purge can finish an interrupted purge. Each row is deleted only if
its ETag has not changed since it was read. The sentinel (the last row of the history) is deleted first. So if the
instance is started again during the purge, the data of the new start stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from airflow_provider_taskhub.concurrency import gather_bounded
from airflow_provider_taskhub.engine.events import OrchestrationInstance
from airflow_provider_taskhub.engine.identity import same_start
from airflow_provider_taskhub.errors import Conflict, InvalidStateError, NotFound
from airflow_provider_taskhub.hub import log_hints, watches
from airflow_provider_taskhub.hub.formats.history_rows import SENTINEL
from airflow_provider_taskhub.hub.formats.keys import blob_prefixes, escape, history_folder, log_folder, owns
from airflow_provider_taskhub.hub.history.activity_records import results_of
from airflow_provider_taskhub.hub.model import HubNames, InstanceState
from airflow_provider_taskhub.storage.primitives import (
    MAX_TRANSACTION_OPERATIONS,
    Compare,
    DeleteBlob,
    Entity,
    RowOperation,
    RowVerb,
    Step,
    Store,
    Transact,
    Unit,
)
from airflow_provider_taskhub.tags import OWNER_TAG, WATCH_TAG

PARALLEL = 8
"""The most transactions of one purge that run at the same time."""
_ROW_BLOB = "/instance-"
"""Part of the names of blobs that hold texts of the instance row. Such a name is a hash of the text, so a new start
with the same text uses the same blob. Therefore these blobs are deleted after the row, whose deletion fails if the
instance was started again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredParts:
    """Everything that is stored of an instance, as it was read before the deletion.

    :param row: the instance row.
    :param history: rows of the history, the sentinel included.
    :param records: activity records.
    :param hint: the completion hint; None: there is none.
    :param watch: the watch row of the Airflow task that started the instance; None: there is none.
    :param log_hints: rows that say how far logs of the instance have grown.
    :param blobs: names of the blobs with large payloads.
    :param logs: names of the logs of activities.
    """

    row: InstanceState
    history: tuple[Entity, ...]
    records: tuple[Entity, ...]
    hint: Entity | None
    watch: Entity | None
    log_hints: tuple[Entity, ...]
    blobs: tuple[str, ...]
    logs: tuple[str, ...]


class Watched(InvalidStateError):
    """An Airflow task may still read the instance: its watch row is there."""


async def purge(store: Store, names: HubNames, row: InstanceState, *, watched: bool = True) -> None:
    """Delete an ended instance. The caller has checked that the instance has ended.

    :param row: the instance row, just read.
    :param watched: False: do not delete an instance that has a watch row.
    :raises Watched: the instance has a watch row, and ``watched`` is False.
    :raises Conflict: the instance was started again, rewound or purged since the row was read.
    """
    found = await _read(store, names, row)
    if found.watch is not None and not watched:
        raise Watched(f"an Airflow task may still read instance {row.instance_id!r}")
    if await _etag(store, names, row.instance_id) != row.etag:
        raise Conflict(f"instance {row.instance_id!r} was changed during the purge, and was not deleted")
    await _delete(store, names, found)


async def purge_activities(store: Store, names: HubNames, instance: OrchestrationInstance) -> None:
    """Delete logs and large results that activities of one generation wrote after the instance was purged.

    :param instance: the instance, with the execution id of the generation.
    """
    logs = await store.list_blobs(names.logs, log_folder(instance))
    results = await store.list_blobs(names.large_messages, results_of(instance))
    await _remove(store, names.logs, (blob.name for blob in logs))
    await _remove(store, names.large_messages, (blob.name for blob in results))


async def _etag(store: Store, names: HubNames, instance_id: str) -> str | None:
    entity = await store.get(names.instances, escape(instance_id), "")
    return None if entity is None else entity.etag


async def _read(store: Store, names: HubNames, row: InstanceState) -> StoredParts:
    """Read everything that is stored of an instance.

    A client that starts the id again writes the instance row first. So if the row has not changed after this reading,
    everything that was read belongs to the ended run. A parent that starts the id again writes no row first. Such a
    start shows in the execution id of the sentinel.

    :raises Conflict: the history belongs to another run than the row.
    """
    key = escape(row.instance_id)
    history, records, hint, watch, blobs, logs = await asyncio.gather(
        _keys(store, names.history, key),
        _keys(store, names.activities, key),
        store.get(names.completions, "", key),
        _watch(store, names, row),
        _blobs(store, names, row.instance_id),
        store.list_blobs(names.logs, f"{history_folder(row.instance_id)}/"),
    )
    grown = await _log_hints(store, names, row)
    lock = next((entity for entity in history if entity.row_key == SENTINEL), None)
    current = None if lock is None else lock.properties.get("ExecutionId")
    # A sentinel without a readable execution id is damaged. The purge deletes it too.
    if isinstance(current, str) and not same_start(current, row.execution_id):
        raise Conflict(f"instance {row.instance_id!r} is being started again")
    names_of_logs = tuple(blob.name for blob in logs)
    return StoredParts(
        row=row,
        history=history,
        records=records,
        hint=hint,
        watch=watch,
        log_hints=grown,
        blobs=blobs,
        logs=names_of_logs,
    )


async def _watch(store: Store, names: HubNames, row: InstanceState) -> Entity | None:
    """Read the watch row; None: there is no such row, or it belongs to a newer start of the instance."""
    owner = (row.tags or {}).get(OWNER_TAG)
    if owner is None:
        return None
    entity = await store.get(names.completions, watches.PARTITION, escape(row.instance_id))
    return entity if entity is not None and entity.properties.get("Owner") == owner else None


async def _log_hints(store: Store, names: HubNames, row: InstanceState) -> tuple[Entity, ...]:
    """Read the log hints, which only instances with the tag for Airflow tasks can have."""
    return await log_hints.of_instance(store, names, row.instance_id) if WATCH_TAG in (row.tags or {}) else ()


async def _keys(store: Store, table: str, key: str) -> tuple[Entity, ...]:
    rows = store.rows(table, Compare("PartitionKey", "eq", key), select=("ExecutionId",))
    return tuple([entity async for entity in rows])


async def _blobs(store: Store, names: HubNames, instance_id: str) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for prefix in blob_prefixes(instance_id):
        for blob in await store.list_blobs(names.large_messages, prefix):
            if owns(instance_id, blob.name):
                found[blob.name] = None
    return tuple(found)


async def _delete(store: Store, names: HubNames, found: StoredParts) -> None:
    locks = [row for row in found.history if row.row_key == SENTINEL]
    events = [row for row in found.history if row.row_key != SENTINEL]
    room = MAX_TRANSACTION_OPERATIONS - len(locks)
    if found.history:
        await store.execute(_deletion(names.history, (*locks, *events[:room])))
    later = [*_groups(names.history, events[room:]), *_groups(names.activities, found.records)]
    if found.hint is not None:
        later.append(_deletion(names.completions, (found.hint,)))
    if found.watch is not None:
        later.append(_deletion(names.completions, (found.watch,)))
    later.extend(_groups(names.completions, found.log_hints))
    await _all(store, later)
    await _remove(store, names.logs, found.logs)
    await _remove(store, names.large_messages, (name for name in found.blobs if _ROW_BLOB not in name))
    row = Entity(partition_key=escape(found.row.instance_id), row_key="", etag=found.row.etag)
    await store.execute(_deletion(names.instances, (row,)))
    await _remove(store, names.large_messages, (name for name in found.blobs if _ROW_BLOB in name))


def _deletion(table: str, rows: Sequence[Entity]) -> Transact:
    return Transact(
        table=table, rows=tuple(RowOperation(verb=RowVerb.DELETE, entity=row, etag=row.etag) for row in rows)
    )


def _groups(table: str, rows: Sequence[Entity]) -> list[Transact]:
    size = MAX_TRANSACTION_OPERATIONS
    return [_deletion(table, rows[start : start + size]) for start in range(0, len(rows), size)]


async def _all(store: Store, transactions: Sequence[Transact]) -> None:
    """Run the transactions, a few at the same time. If a row does not exist any more, its whole transaction fails; then
    the rows of this transaction are deleted one by one."""

    async def one(transaction: Transact) -> None:
        try:
            await store.execute(transaction)
        except NotFound:
            for row in transaction.rows:
                await _single(store, transaction.table, row)

    await gather_bounded(one, transactions, limit=PARALLEL)


async def _single(store: Store, table: str, row: RowOperation) -> None:
    try:
        await store.execute(Transact(table=table, rows=(row,)))
    except NotFound:
        return


async def _remove(store: Store, container: str, names: Iterable[str]) -> None:
    blobs = tuple(DeleteBlob(container=container, name=name) for name in names)
    for start in range(0, len(blobs), MAX_TRANSACTION_OPERATIONS):
        step = Step(name="blobs", operations=blobs[start : start + MAX_TRANSACTION_OPERATIONS])
        await store.commit(Unit(steps=(step,)))
