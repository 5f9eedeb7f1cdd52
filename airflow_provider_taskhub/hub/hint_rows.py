"""Deletes hints, many with one request. All hints are rows of the table ``{Hub}Completions``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial

from airflow_provider_taskhub.concurrency import gather_bounded
from airflow_provider_taskhub.errors import Conflict, NotFound
from airflow_provider_taskhub.storage.primitives import Entity, RowOperation, RowVerb, Store, Transact

TOGETHER = 100
"""The most rows that one request deletes: Azure's limit for a transaction."""
AT_ONCE = 16
"""The largest number of requests that are sent at the same time."""


async def delete(store: Store, table: str, rows: Iterable[Entity]) -> None:
    """Delete rows. A row that was written again after its ETag was read stays. It is no error if a row does not exist.

    :param table: the table ``{Hub}Completions``.
    :param rows: different rows, of any partitions. An ETag of "" deletes the row even if it was written again.
    """
    partitions: dict[str, list[RowOperation]] = defaultdict(list)
    for row in rows:
        bare = Entity(partition_key=row.partition_key, row_key=row.row_key)
        partitions[row.partition_key].append(RowOperation(verb=RowVerb.DELETE, entity=bare, etag=row.etag or "*"))
    groups = [
        operations[first : first + TOGETHER]
        for operations in partitions.values()
        for first in range(0, len(operations), TOGETHER)
    ]
    await gather_bounded(partial(_delete, store, table), groups, limit=AT_ONCE)


async def _delete(store: Store, table: str, rows: Sequence[RowOperation]) -> None:
    """Delete rows of one partition.

    The store refuses all rows if one of them was written again or does not exist. Then each half is tried alone, so
    one such row costs about 14 requests and not a request for each row.
    """
    try:
        await store.execute(Transact(table=table, rows=tuple(rows)))
    except (Conflict, NotFound):
        if (half := len(rows) // 2) > 0:
            await _delete(store, table, rows[:half])
            await _delete(store, table, rows[half:])
