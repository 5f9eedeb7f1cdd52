"""Read what is readable of a damaged history, to show it and to end the instance. No replay ever uses the result.

Each row and each blob is read separately, so a damaged or missing one does not hide the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from airflow_provider_taskhub.concurrency import gather_bounded
from airflow_provider_taskhub.engine.events import HistoryEvent
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub.formats.history_rows import RecordError, Sentinel, decode_event, decode_sentinel
from airflow_provider_taskhub.hub.formats.payload_spill import blob_columns, restore
from airflow_provider_taskhub.hub.history.load import (
    PARALLEL,
    READINGS,
    Reading,
    generation,
    lock_of,
    payload,
    table_rows,
    torn_text,
)
from airflow_provider_taskhub.hub.model import HubNames
from airflow_provider_taskhub.storage.primitives import Entity, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Salvage:
    """The readable parts of a history.

    :param events: readable events of the current generation, in their order.
    :param unreadable: one line of text for each part that cannot be read; empty: everything can be read.
    :param lock: row of the sentinel, not decoded; None: there is no sentinel, and so no history.
    :param sentinel: the decoded sentinel; None: there is no sentinel, or its row is damaged.
    :param execution_id: execution id of the generation; None: no row contains it.
    """

    events: tuple[HistoryEvent, ...] = ()
    unreadable: tuple[str, ...] = ()
    lock: Entity | None = None
    sentinel: Sentinel | None = None
    execution_id: str | None = None


async def salvage(store: Store, names: HubNames, instance_id: str, *, growing: bool = False) -> Salvage:
    """Read what is readable of an instance's history.

    :param growing: True for a reader that only shows the history: the owner may append rows meanwhile (see
        :func:`table_rows`). If other processes change the history during each reading, such a reader gets the last
        reading, with a line in ``unreadable``.
    :returns: the readable parts. If a part was unreadable in each reading because a new generation began meanwhile, the
        result is the last reading.
    :raises Conflict: other processes changed the history during each reading, and ``growing`` is False.
    :raises StorageError: the store has failed.
    """
    for _ in range(READINGS):
        reading = await table_rows(store, names, instance_id, growing=growing)
        if not growing:
            reading.whole(instance_id)
        found = await _salvage(store, names, reading)
        if reading.torn:
            line = f"{torn_text('the history')}: the rows that are shown may be of different moments"
            return replace(found, unreadable=(line, *found.unreadable))
        if not found.unreadable or _same(await lock_of(store, names, instance_id), reading.lock, growing=growing):
            break  # else a new generation began meanwhile and deleted the blobs of the old one: read again
    return found


def _same(one: Entity | None, other: Entity | None, *, growing: bool) -> bool:
    """Return True if no row was deleted between two readings of the sentinel.

    :param growing: True: added rows are allowed. While a generation lasts, rows are only added, so it is enough that
        the execution ids are equal.
    """
    if one is None or other is None:
        return one is other
    generations = [lock.properties.get("ExecutionId") for lock in (one, other)]
    return one.etag == other.etag or (growing and generations[0] == generations[1])


async def _salvage(store: Store, names: HubNames, reading: Reading) -> Salvage:
    lock, rows = reading.lock, reading.rows
    if lock is None:
        return Salvage(unreadable=("the history has no sentinel: its rows do not count",) if rows else ())
    unreadable: list[str] = []
    sentinel: Sentinel | None = None
    try:
        sentinel = decode_sentinel(lock)
    except RecordError as error:
        unreadable.append(str(error))
    execution_id = sentinel.execution_id if sentinel is not None else _first_generation(rows)
    current = generation(rows, execution_id) if execution_id is not None else []
    committed = len(current) if sentinel is None else sentinel.committed(len(current))
    if committed > len(current):
        unreadable.append(f"{committed - len(current)} of {committed} rows are missing")
    read = await gather_bounded(partial(readable_event, store, names), current[:committed], limit=PARALLEL)
    return Salvage(
        events=tuple(event for event, _ in read if event is not None),
        unreadable=(*unreadable, *(line for _, lines in read for line in lines)),
        lock=lock,
        sentinel=sentinel,
        execution_id=execution_id,
    )


def _first_generation(rows: Sequence[Entity]) -> str | None:
    """Return the execution id in the first row. It belongs to the current generation, because each new generation
    overwrites the first row."""
    found = rows[0].properties.get("ExecutionId") if rows else None
    return found if isinstance(found, str) else None


async def readable_event(store: Store, names: HubNames, row: Entity) -> tuple[HistoryEvent | None, list[str]]:
    """Decode one row. Columns whose blob cannot be read are omitted from the event.

    :returns: the event, or None if it cannot be decoded; and one line of text for each damage.
    """
    wanted, lines = blob_columns(row), list[str]()
    texts: dict[str, str] = {}
    for column, name in wanted.items():
        try:
            texts[column] = await payload(store, names, name)
        except InputError as error:
            lines.append(f"{column} of history row {row.row_key}: {error}")
    try:
        return decode_event(_without(restore(row, texts), wanted.keys() - texts.keys())), lines
    except RecordError as error:
        return None, [*lines, str(error)]


def _without(row: Entity, lost: set[str]) -> Entity:
    if not lost:
        return row
    return replace(row, properties={name: value for name, value in row.properties.items() if name not in lost})
