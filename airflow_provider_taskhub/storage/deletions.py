"""Keep deletions of messages apart from updates of the same messages.

An update replaces the receipt of a message. A deletion that is sent before the answer of the update has come would use
the old receipt, and the store would refuse it. All stores therefore delete messages within :func:`receipts_kept`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

from airflow_provider_taskhub.storage.primitives import DeleteMessage, Operation, Receipt, ReceiptHolder, Result


def holders_of(operations: Iterable[Operation]) -> list[ReceiptHolder]:
    """Return the objects that hold the receipts of the messages to delete."""
    return [
        operation.message
        for operation in operations
        if isinstance(operation, DeleteMessage) and not isinstance(operation.message, Receipt)
    ]


@asynccontextmanager
async def receipts_kept(holders: Iterable[ReceiptHolder]) -> AsyncIterator[None]:
    """Wait for the updates of these messages that are under way, and allow no other one during the block.

    All callers lock in the same order, so that two of them never wait for each other.
    """
    locks = sorted({id(holder.changing): holder.changing for holder in holders}.items())
    taken = []
    try:
        for _, lock in locks:
            await lock.acquire()
            taken.append(lock)
        yield
    finally:
        for lock in taken:
            lock.release()


def answered(operations: Iterable[Operation], results: Sequence[Result]) -> None:
    """Tell the holders of receipts whether their messages are deleted."""
    for operation, result in zip(operations, results, strict=True):
        if isinstance(operation, DeleteMessage) and not isinstance(operation.message, Receipt):
            operation.message.deletion_answered(deleted=result is not None)
