"""Trimming: delete the activity records of old generations of an instance that continues as new again and again.

With a record, its log and its large result are deleted. Nothing that may still be needed is deleted: no attempt that
runs, and no record whose work item may come again, because a worker finds in the record that the work is done.

The module keeps no state. It finds what is old in the table itself. So what an interrupted trimming has left is found
by the next one.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from itertools import groupby

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import OrchestrationInstance
from airflow_provider_taskhub.engine.identity import HALF, generation_of, later_execution_id
from airflow_provider_taskhub.errors import Conflict, NotFound
from airflow_provider_taskhub.hub.formats.history_rows import SENTINEL
from airflow_provider_taskhub.hub.formats.keys import escape
from airflow_provider_taskhub.hub.model import HubNames, RecordState
from airflow_provider_taskhub.storage.primitives import (
    MAX_TRANSACTION_OPERATIONS,
    And,
    Compare,
    DeleteBlob,
    Entity,
    Or,
    RowOperation,
    RowVerb,
    Step,
    Store,
    Transact,
    Unit,
)

EVERY = 10
"""An instance is trimmed in each tenth generation, so that the other generations need no requests for it."""
MAX_ROWS = 500
"""The most rows that one request reads, and about the most that one trimming deletes, with two blobs for each."""
MAX_PAGES = 10
"""The most requests for rows in one trimming. More than one is needed behind rows of attempts that have not ended."""
QUIET = timedelta(minutes=10)
"""A record is deleted only if the store has written it so long before the last checkpoint. Until then, a copy of its
work item may come again, and would run the activity again if there were no record."""
_DONE = (str(RecordState.COMPLETED), str(RecordState.FAILED))
_COLUMNS = ("ExecutionId", "TaskId", "State", "Log", "ResultBlobName")


def is_due(instance: OrchestrationInstance, kept: int) -> bool:
    """Return True if an instance that has just begun a new generation should be trimmed.

    :param instance: the instance, with the execution id of the new generation.
    :param kept: number of earlier generations that are kept; 0: all.
    """
    number = generation_of(instance.execution_id or "")
    return kept > 0 and number > kept and number % EVERY == 0


async def trim(store: Store, names: HubNames, instance: OrchestrationInstance, *, kept: int) -> int:
    """Delete the activity records of old generations of an instance, with their logs and large results.

    One call reads and deletes a bounded number of records, the oldest first. The next call deletes the rest.

    :param instance: the instance, with the execution id of its current generation.
    :param kept: number of generations before the current one whose records stay.
    :returns: the number of deleted records.
    """
    key, current = escape(instance.instance_id), instance.execution_id or ""
    before = generation_of(current) - kept
    first_kept = later_execution_id(current, before)
    counting = first_kept[:-8]
    within = (
        Compare("PartitionKey", "eq", key),
        Compare("RowKey", "ge", current[:HALF]),
        Compare("RowKey", "lt", f"{current[:HALF]}g"),  # after all hex digits
        # the id of the first generation ends with random digits, so its rows are behind those of the later ones
        Or((Compare("RowKey", "lt", first_kept), Compare("RowKey", "ge", f"{counting}g"))),
    )
    lock = await store.get(names.history, key, SENTINEL)
    if lock is None or lock.timestamp is None:
        return 0
    read: list[Entity] = []
    rows: list[Entity] = []
    continuation: str | None = None
    for _ in range(MAX_PAGES):
        page = await store.query(
            names.activities, And(within), select=_COLUMNS, limit=MAX_ROWS, continuation=continuation
        )
        read += page.entities
        rows = old_records(read, before=before, now=lock.timestamp)
        continuation = page.continuation
        if continuation is None or len(rows) >= MAX_ROWS:
            break
    blobs = [
        DeleteBlob(container=container, name=name)
        for row in rows
        for container, column in ((names.logs, "Log"), (names.large_messages, "ResultBlobName"))
        if isinstance(name := row.properties.get(column), str) and name
    ]
    size = MAX_TRANSACTION_OPERATIONS
    # The rows are deleted last: they name the blobs, so an interrupted trimming loses none.
    for start in range(0, len(blobs), size):
        await store.commit(Unit(steps=(Step(name="trim", operations=tuple(blobs[start : start + size])),)))
    deleted = 0
    for start in range(0, len(rows), size):
        some = rows[start : start + size]
        operations = tuple(RowOperation(verb=RowVerb.DELETE, entity=row, etag=row.etag) for row in some)
        try:
            await store.execute(Transact(table=names.activities, rows=operations))
        except (
            Conflict,
            NotFound,
        ):  # a purge, or another owner of the partition, was faster: the next call looks again
            return deleted
        deleted += len(some)
    return deleted


def old_records(rows: Iterable[Entity], *, before: int, now: Timestamp) -> list[Entity]:
    """Return the rows that can be deleted: all attempts of each old call whose last attempt has completed or failed.

    :param rows: rows of activity records of one run, in the order of their keys.
    :param before: number of the first generation whose records stay.
    :param now: time of the last checkpoint, by the clock of the store.
    """
    found: list[Entity] = []
    for execution_id, calls in groupby(rows, lambda row: row.properties.get("ExecutionId")):
        if not isinstance(execution_id, str) or generation_of(execution_id) >= before:
            continue
        for _, attempts in groupby(calls, lambda row: row.properties.get("TaskId")):
            call = [*attempts]
            last = call[-1]
            done = last.properties.get("State") in _DONE
            if done and last.timestamp is not None and now - last.timestamp >= QUIET:
                found += call
    return found
