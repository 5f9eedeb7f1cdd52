"""Turns operations and units of the embedded store into works: functions that run inside a transaction.

A unit is a list of steps, and each step has operations. One transaction carries out all steps of a unit.
"""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_taskhub.storage.primitives import (
    DeleteBlob,
    DeleteMessage,
    Operation,
    PutBlob,
    PutMessage,
    Result,
    Results,
    Transact,
    Unit,
    UpdateMessage,
)
from airflow_provider_taskhub.storage.sqlite import blobs, queues, rows
from airflow_provider_taskhub.storage.sqlite.transactions import Change
from airflow_provider_taskhub.storage.steps import etag_of, named


def perform(change: Change, operation: Operation, earlier: Results, holder: str) -> Result:
    """Carry out one operation inside a transaction.

    :param earlier: results of the unit's earlier steps, to which an :class:`EtagOf` refers.
    :param holder: full name of the worker that holds the messages which the operation claims.
    """
    match operation:  # the most frequent operation is tested first, for speed
        case Transact():
            return rows.transact(change, operation, lambda reference: etag_of(reference, earlier))
        case PutMessage():
            return queues.put(change, named(operation, earlier), holder)
        case DeleteMessage():
            return queues.delete(change, operation)
        case UpdateMessage():
            return queues.update(change, operation, holder)
        case PutBlob():
            return blobs.put(change, operation)
        case DeleteBlob():
            blobs.delete(change, operation)
    return None


def perform_unit(change: Change, unit: Unit, holder: str) -> Results:
    """Carry out a whole unit inside one transaction.

    The unit's check is called right before the first write. It raises ``LeaseLost`` if the caller must not write any
    more.

    :param holder: full name of the worker that holds the messages which the unit claims.
    """
    if unit.check is not None:
        unit.check()
    results: list[tuple[Result, ...]] = []
    for step in unit.steps:
        earlier = tuple(results)
        try:
            results.append(tuple([perform(change, operation, earlier, holder) for operation in step.operations]))
        except Exception as error:
            error.add_note(f"step: {step.name}")
            raise
    return tuple(results)


def creation(kind: str, name: str) -> Callable[[Change], bool]:
    """Return a work that creates a queue, table or container, and returns False if the name existed already.

    :param kind: SQL table that lists the names: ``queues``, ``tables`` or ``containers``.
    """

    def create(change: Change) -> bool:
        sql = f"INSERT INTO {kind} (name) VALUES (?) ON CONFLICT DO NOTHING"
        return change.connection.execute(sql, (name,)).rowcount == 1

    return create
