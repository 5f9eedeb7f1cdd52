"""The interface of a store: the operations on queues, tables, blobs and leases that TaskHub uses.

A :class:`Store` is an Azure Storage account or one SQLite file. Both have Azure's semantics (visibility, pop receipts,
dequeue counts, ETags, entity-group transactions, leases, limits of sizes and keys). So code that works on one store
also works on the other. Each write is a value (:data:`Operation`). Writes that belong together, such as a checkpoint,
are a :class:`Unit`: a sequence of :class:`Step`, and each step is a group of operations.

Every call has a deadline, and :attr:`Store.requests` counts every call by its kind. A call raises only the storage
errors of ``airflow_provider_taskhub.errors``: ``Conflict``, ``NotFound``, ``LeaseLost``, ``Throttled``,
``Unavailable``, ``PayloadTooLarge``. It raises ``InputError`` for a name or key that Azure would refuse.

This module has more than 400 lines, because a reader wants the whole interface with its errors in one place. It has
almost no code.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import field
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Literal, Protocol, TypeAlias, TypeVar
from uuid import UUID

from airflow_provider_taskhub.codec import SLOW, Packed, Timestamp, decompress, unpacked_size
from airflow_provider_taskhub.fast_dataclass import dataclass

T = TypeVar("T")
MAX_MESSAGE_BYTES = 65_536
"""Largest text of a queue message, in bytes as UTF-8."""
MAX_VISIBILITY = timedelta(days=7)
"""Longest time for which a message can be invisible."""
MAX_TRANSACTION_OPERATIONS = 100
"""Most rows in one entity-group transaction."""
MAX_TRANSACTION_BYTES = 4 * 1024 * 1024
"""Largest request of one entity-group transaction, in bytes."""
MAX_ENTITY_BYTES = 1024 * 1024
"""Largest table row, in bytes."""
MAX_PROPERTY_BYTES = 65_536
"""Largest value of one String property (as UTF-16) or Binary property, in bytes."""
MAX_PROPERTIES = 252
"""Most properties in one table row; the keys and ``Timestamp`` do not count."""
MAX_KEY_CHARACTERS = 512
"""Largest PartitionKey or RowKey, in UTF-16 code units of two bytes."""
AZURE_CONNECTIONS = 128
"""Maximum number of requests to Azure Storage that a process has under way. Others wait for a connection."""
MAX_RECEIVE = 32
"""Most messages that one receive or peek can return."""


class Int64(int):
    """The value of a table property of type Edm.Int64. A plain ``int`` is stored as Edm.Int32."""


Property: TypeAlias = str | bool | int | Int64 | float | Timestamp | UUID | bytes
"""The value of a table property, as Edm String, Boolean, Int32, Int64, Double, DateTime, Guid or Binary."""


# --- classes for rows ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """A row of a table.

    :param properties: the columns without the keys. As in Azure, an insert or replace does not store a column whose
        value is ``None``, and a merge does not change it. A row that was read has no ``None`` values.
    :param etag: ETag of the row when it was read. Writes ignore this field: :class:`RowOperation` has the condition.
    :param timestamp: time of the row's last change, by the clock of the storage service; ``None`` in writes.
    """

    partition_key: str
    row_key: str
    properties: Mapping[str, Property | None] = field(default_factory=dict)
    etag: str = ""
    timestamp: Timestamp | None = None


class RowVerb(StrEnum):
    """The kind of write that a table operation does to its row."""

    __hash__ = str.__hash__  # Enum.__hash__ is a Python function and therefore slower

    INSERT = "insert"  # raises Conflict if the row exists
    UPSERT_REPLACE = "upsert_replace"
    UPSERT_MERGE = "upsert_merge"
    REPLACE = "replace"  # needs an ETag ("*" matches any ETag); raises NotFound if the row does not exist
    MERGE = "merge"  # needs an ETag ("*" matches any ETag); raises NotFound if the row does not exist
    DELETE = "delete"  # needs an ETag ("*" matches any ETag); raises NotFound if the row does not exist


@dataclass(frozen=True, slots=True, kw_only=True)
class EtagOf:
    """A reference to the ETag that an earlier step of the same unit gives to a row.

    A unit (:class:`Unit`) is a list of steps that a store carries out in order. The ETag is not known when the unit is
    made. The store replaces the reference by the ETag when the earlier step is done.

    :param step: index of the earlier step in the unit.
    :param operation: index of the operation in that step.
    :param row: index of the row in that operation.
    """

    step: int
    operation: int = 0
    row: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOperation:
    """The write of one table row.

    :param etag: ETag that the stored row must have. REPLACE, MERGE and DELETE need it; the other verbs take ``None``.
    :param absent: True if the row of an UPSERT_REPLACE probably does not exist yet. The result of the write does not
        depend on this hint; Azure may answer faster.
    """

    verb: RowVerb
    entity: Entity
    etag: str | EtagOf | None = None
    absent: bool = False


# --- classes for filters of queries -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition on one column of a row: ``column operator value``. A row without the column never matches.

    :param column: name of a property, or ``PartitionKey``, ``RowKey`` or ``Timestamp``.
    :param operator: ``eq``, ``ne``, ``gt``, ``ge``, ``lt`` or ``le``. Even ``ne`` does not match a missing column.
    :param value: the constant that the column's value is compared with.
    """

    column: str
    operator: str
    value: Property


@dataclass(frozen=True, slots=True)
class And:
    """A filter that matches a row if all its parts match the row."""

    parts: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """A filter that matches a row if at least one of its parts matches the row."""

    parts: tuple[Filter, ...]


Filter: TypeAlias = Compare | And | Or
TimeColumn: TypeAlias = Literal["CreatedTime", "Timestamp"]
"""A column by which a store that is :attr:`Store.local` can order the rows of a query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of a query's rows, in the order of (PartitionKey, RowKey), or the newest first.

    :param continuation: opaque text that the caller passes to :meth:`Store.query` to read the next page; ``None`` on
        the last page.
    """

    entities: tuple[Entity, ...]
    continuation: str | None = None


# --- classes for messages -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The right to update or delete a message. A receive, an update and a put each return a new receipt."""

    message_id: str
    pop_receipt: str
    next_visible: Timestamp
    """Time at which the message becomes visible, by the clock of the storage service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message that was received or peeked. Its times come from the clock of the storage service."""

    text: str
    receipt: Receipt
    dequeue_count: int
    inserted: Timestamp


class ReceiptHolder(Protocol):
    """The one object of a process that knows the newest receipt of a message.

    Each update of the message makes its old receipt stale. So code that changes the message holds :attr:`changing` from
    reading the receipt until it has stored the new one. A store does the same for a deletion: it waits for the update
    that is under way, and then uses the receipt that this update has returned.
    """

    @property
    def receipt(self) -> Receipt: ...

    @property
    def changing(self) -> asyncio.Lock: ...

    def deletion_answered(self, *, deleted: bool) -> None:
        """Note the answer of the store to a deletion. The store calls this before it frees :attr:`changing`.

        :param deleted: False: nothing was deleted, because the receipt is stale or the message does not exist.
        """


# --- classes for operations: all kinds of writes ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PutMessage:
    """Put a message into a queue. Result: the message's :class:`Receipt`, with which the sender can update or delete
    the message without receiving it first.

    :param visibility: time until the message can be received, 0 to 7 days.
    :param naming: a placeholder in the text, and a row that an earlier step of the unit writes. The store replaces the
        placeholder by the row's ETag, escaped as in JSON. None: the text has no placeholder.
    :param claimed: True if the sender keeps the message, to process it before ``visibility`` is over;
        :meth:`Store.release_claims` can then end this time early. False if the message is only delayed.
    """

    queue: str
    text: str
    visibility: timedelta = timedelta(0)
    claimed: bool = False
    naming: tuple[str, EtagOf] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMessage:
    """Change how long a received message stays invisible, and its text. Result: the new :class:`Receipt`.

    :param message: receipt of the message.
    :param visibility: time from now until the message is visible again.
    :param text: new text of the message; None: the text stays.
    :param claimed: True if the caller keeps working on the message, so that :meth:`Store.release_claims` applies to
        it; False if the caller gives the message back to the queue.
    :param signal: True if :meth:`Store.arrival` in this process should return when the message becomes visible. False:
        no wake-up is needed.
    :raises Conflict: if the receipt is stale.
    :raises NotFound: if the message does not exist any more.
    """

    queue: str
    message: Receipt
    visibility: timedelta
    text: str | None = None
    claimed: bool = False
    signal: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteMessage:
    """Delete a received message. Result: the message's id; None if ``quiet`` is set and nothing was deleted.

    :param message: receipt of the message, or the object that holds it. The holder learns the answer.
    :param quiet: True if a stale receipt or a missing message is not an error, so that the other operations of the unit
        are carried out.
    :raises Conflict: if the receipt is stale, because another worker has received the message.
    :raises NotFound: if the message does not exist any more.
    """

    queue: str
    message: Receipt | ReceiptHolder
    quiet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Transact:
    """Write rows of one table with one partition key: all rows or none. Result: the ETag of each row ("" if deleted).

    Azure gets one row as a plain request, and 2 to 100 rows as an entity-group transaction.

    :param topic: name whose subscribers wake up when the transaction is done (:meth:`Store.subscribe`); empty: none.
    """

    table: str
    rows: tuple[RowOperation, ...]
    topic: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PutBlob:
    """Write a whole block blob. Result: the blob's new ETag.

    :param data: content of the blob; or a text in a :class:`Packed`, which compresses the text with gzip.
    :param if_absent: True if the blob must not exist yet.
    :param etag: ETag that the blob must have; None: any. Lease operations do not change a blob's ETag.
    :param lease_id: id of the lease that the caller holds on the blob. Without this id, a leased blob cannot be
        written. None: the caller holds no lease.
    :raises Conflict: if ``if_absent`` is set and the blob exists. Or if ``etag`` is given, and the blob has another
        ETag or does not exist.
    :raises LeaseLost: if another lease is active, or if ``lease_id`` is given and no lease is active.
    """

    container: str
    name: str
    data: bytes | Packed
    content_type: str = "application/octet-stream"
    if_absent: bool = False
    etag: str | None = None
    lease_id: str | None = None

    @property
    def body(self) -> bytes:
        """Content of the blob, compressed if ``data`` is a text."""
        return self.data if isinstance(self.data, bytes) else self.data.data()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteBlob:
    """Delete a blob. It is no error if the blob does not exist. Result: None."""

    container: str
    name: str


Operation: TypeAlias = PutMessage | UpdateMessage | DeleteMessage | Transact | PutBlob | DeleteBlob
Result: TypeAlias = Receipt | tuple[str, ...] | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Operations of a unit that may be carried out in parallel. A store skips a step without operations.

    :param name: name of the step, such as ``history``. Tests can stop a process at the crash point ``<name>`` before
        the step, and at the crash point ``after:<name>`` after the step.
    """

    name: str
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Ordered steps of storage operations, for example a checkpoint.

    Azure carries out the steps in order, the operations of one step in parallel, and stops at the first error. SQLite
    commits all steps in one transaction.

    :param check: function that the store calls right before the first write and, on Azure, before each step. It raises
        ``LeaseLost`` if the caller must not write any more. None: there is no such function.
    """

    steps: tuple[Step, ...]
    check: Callable[[], None] | None = None


Results: TypeAlias = tuple[tuple[Result, ...], ...]
"""Results of a unit: for each step a tuple with the result of each operation."""


# --- classes for blobs --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """A blob that was read."""

    data: bytes
    etag: str
    content_type: str = "application/octet-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobInfo:
    """One blob in a listing: its name, and its size in bytes. A listing does not download contents."""

    name: str
    size: int


# --- the interface of a store -------------------------------------------------------------------------------------


class Store(Protocol):
    """Queues, tables, blobs and leases of one Azure Storage account or one SQLite file.

    A store is an asynchronous context manager. Only the event loop that opened a store may use it. Another thread
    opens a store of its own.
    """

    requests: Counter[str]
    """Number of requests that this store has sent, by kind: ``queue.put``, ``queue.receive``, ``queue.update``,
    ``queue.delete``, ``queue.peek``, ``table.insert``, ``table.upsert``, ``table.update``, ``table.delete``,
    ``table.batch``, ``table.get``, ``table.query``, ``blob.put``, ``blob.append``, ``blob.get``, ``blob.delete``,
    ``blob.list``, ``blob.lease``, ``admin`` (create, delete and list queues, tables and containers; count the messages
    of a queue). SQLite counts each operation of a unit, as Azure does."""

    local: bool
    """True if all processes that share the store run on this machine. This holds for SQLite. Such a store also has
    indexes of times, for :meth:`query` with ``newest``."""

    async def __aenter__(self) -> Store: ...

    async def __aexit__(self, *error: object) -> None: ...

    def describe(self) -> str:
        """Return where the store is, as a text for people: a file path or an account's address, without secrets."""

    def container_url(self, container: str) -> str:
        """Return the absolute URL of a container, without a slash at its end. Table rows store this URL."""

    # methods that write

    async def execute(self, operation: Operation) -> Result:
        """Carry out one operation. The operation's class documents its result and its errors."""

    async def commit(self, unit: Unit) -> Results:
        """Carry out a unit. An error has the name of its step in ``__notes__``, for example ``step: history``."""

    # methods for queues

    async def create_queue(self, name: str) -> bool:
        """Create a queue.

        :returns: True if the queue was created, False if it existed already.
        :raises InputError: if Azure refuses the name.
        """

    async def delete_queue(self, name: str) -> None: ...

    async def list_queues(self, prefix: str) -> list[str]: ...

    async def receive(self, queue: str, *, limit: int, visibility: timedelta) -> list[Message]:
        """Receive visible messages. Each returned message is invisible to other workers for the time ``visibility``.

        SQLite returns the oldest messages first. Azure does not promise an order.

        :param limit: most messages to return, 1 to 32.
        """

    async def release_claims(self, holders: Collection[str]) -> int:
        """Make all messages visible that dead workers have received, in any queue.

        Each message gets its old place in its queue back, and its old receipt becomes stale. SQLite stores the name of
        the worker with each message that a store with ``holder`` receives. Azure Storage cannot store the name: there
        this method sends no request and returns 0.

        :param holders: full names of worker incarnations that are proven dead.
        :returns: number of messages that became visible.
        """

    async def peek(self, queue: str, *, limit: int = MAX_RECEIVE) -> list[Message]:
        """Return visible messages without receiving them: they stay visible, and their pop receipts are empty."""

    async def count(self, queue: str) -> int:
        """Return the approximate number of messages in the queue, invisible ones included."""

    async def arrival(self, queues: Sequence[str], timeout: float) -> Sequence[str]:
        """Wait until one of the queues may have a visible message, at most ``timeout`` seconds.

        :returns: those of the queues into which a message was put, or in which one became visible; empty: the time is
            over. SQLite learns this from all processes; Azure learns it from the processes of this machine and user
            only. The result is a hint: the caller must still poll.
        """

    def subscribe(self, name: str) -> AbstractAsyncContextManager[Callable[[float], Awaitable[None]]]:
        """Subscribe to a topic: learn when a transaction with this ``Transact.topic`` is done.

        ``async with`` returns a function. The function waits until such a transaction is done, at most the given number
        of seconds. Transactions since the function's last call count too. The function's return is only a hint that
        rows may have changed: a hint may be wrong, and may be lost. So the caller must read the rows, and must read
        them from time to time also without a hint.

        :param name: the topic.
        """

    # methods for tables

    async def create_table(self, name: str) -> bool: ...

    async def delete_table(self, name: str) -> None: ...

    async def list_tables(self, prefix: str = "") -> list[str]: ...

    async def get(self, table: str, partition_key: str, row_key: str) -> Entity | None:
        """Return one row; None if the row does not exist.

        :raises NotFound: if the table does not exist.
        """

    async def query(
        self,
        table: str,
        filter: Filter | None = None,
        *,
        select: Sequence[str] | None = None,
        limit: int = 1000,
        continuation: str | None = None,
        newest: TimeColumn | None = None,
    ) -> Page:
        """Return one page of a table's rows.

        A page may have fewer than ``limit`` rows, or no rows, although more pages follow. Only a page with
        ``continuation=None`` is the last page.

        :param filter: condition for the rows; None: all rows.
        :param select: names of the columns to return; empty: only the keys; None: all columns.
        :param limit: most rows in the page, 1 to 1000.
        :param continuation: ``continuation`` of the previous page; None: the first page.
        :param newest: the column whose latest time comes first. Rows without a ``CreatedTime`` are left out. A filter
            for a ``RuntimeStatus`` other than Completed, or for times in this column, is answered from an index. None:
            the rows are in the order of their keys.
        :raises InputError: if ``newest`` is given and the store is not :attr:`local`: Azure has no such index.
        """

    def rows(
        self, table: str, filter: Filter | None = None, *, select: Sequence[str] | None = None
    ) -> AsyncIterator[Entity]:
        """Iterate over all rows that match the filter; None: all rows of the table. The rows are read page by page."""

    # methods for blobs

    async def create_container(self, name: str) -> bool: ...

    async def delete_container(self, name: str) -> None: ...

    async def get_blob(self, container: str, name: str) -> Blob | None: ...

    async def get_blob_range(self, container: str, name: str, *, offset: int, length: int) -> bytes | None:
        """Return a part of a blob; None if the blob does not exist.

        :param offset: number of the first byte, from 0. Behind the end of the blob the result is empty.
        :param length: most bytes to return, at least 1. The result is shorter if the blob ends earlier.
        """

    async def get_text(self, container: str, name: str) -> str | None:
        """Return the text of a blob whose content is UTF-8 text, or gzip of a text; None if the blob does not exist.

        :raises InputError: if the content is neither.
        """

    async def list_blobs(self, container: str, prefix: str = "") -> list[BlobInfo]:
        """Return the container's blobs in the order of their names; an empty list if the container does not exist."""

    async def append_blob(self, container: str, name: str, data: bytes) -> int:
        """Append data to an append blob, and return the size of the blob after that. Create the blob if it does not
        exist.

        :param data: 1 byte to 4 MiB. One blob takes at most 50,000 appends.
        """

    async def beside(self, work: Callable[[], T]) -> T:
        """Run a long computation in a thread, so that the event loop can renew leases meanwhile.

        A store in memory runs the computation on the event loop instead: the loop of a test may use virtual time, which
        would run on while a thread works.
        """

    # methods for leases of blobs and containers; ``name=None`` means the container itself

    async def acquire_lease(self, container: str, name: str | None, *, lease_id: str, seconds: int) -> None:
        """Acquire a lease of a blob or container. If a lease with the id ``lease_id`` is active, renew it.

        :param name: name of the blob; None: the container itself.
        :param seconds: duration of the lease, 15 to 60 seconds.
        :raises LeaseLost: if a lease with another id is active.
        """

    async def renew_lease(self, container: str, name: str | None, *, lease_id: str) -> None:
        """Renew a lease for the duration with which it was acquired.

        :raises LeaseLost: if the lease was released, or if a lease with another id replaced it.
        """

    async def change_lease(self, container: str, name: str | None, *, lease_id: str, new_lease_id: str) -> None:
        """Give an active lease a new id, so that another worker can hold it.

        :raises LeaseLost: if no lease with the id ``lease_id`` is active.
        """

    async def release_lease(self, container: str, name: str | None, *, lease_id: str) -> None:
        """Release a lease.

        :raises LeaseLost: if ``lease_id`` is not the id of the lease.
        """


CrashPoint: TypeAlias = Callable[[str], Awaitable[None]]
"""Function of a test that a store calls with the name of each crash point of a unit. It raises to simulate a crash."""


class Paged:
    """Base class of stores, with the methods that need only other methods of :class:`Store`."""

    async def rows(
        self: Store, table: str, filter: Filter | None = None, *, select: Sequence[str] | None = None
    ) -> AsyncIterator[Entity]:
        continuation: str | None = None
        while True:
            page = await self.query(table, filter, select=select, continuation=continuation)
            for entity in page.entities:
                yield entity
            continuation = page.continuation
            if continuation is None:
                return

    async def get_text(self: Store, container: str, name: str) -> str | None:
        blob = await self.get_blob(container, name)
        if blob is None:
            return None
        unpack = partial(decompress, blob.data)
        return await self.beside(unpack) if unpacked_size(blob.data) > SLOW else unpack()

    async def packed(self: Store, operations: Iterable[Operation]) -> None:
        """Compress in a thread the large texts that are written to blobs. Small texts are compressed when needed."""
        for operation in operations:
            if isinstance(operation, PutBlob) and isinstance(operation.data, Packed) and operation.data.is_slow:
                await self.beside(operation.data.data)
