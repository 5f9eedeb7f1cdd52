"""The storage primitives: all that TaskHub asks of a store, on one page.

A :class:`Store` is Azure Storage or one SQLite file; both keep Azure's semantics (visibility, pop receipts, dequeue
counts, ETags, entity-group transactions, leases, sizes and key rules), so that nothing that works on one fails on the
other. Writes are values (:data:`Operation`); a checkpoint is a :class:`Unit` of ordered :class:`Step` of them.

Every call has a deadline, is counted by kind in :attr:`Store.requests`, and raises only the storage errors of
``airflow_provider_taskhub.errors``: ``Conflict``, ``NotFound``, ``LeaseLost``, ``Throttled``, ``Unavailable``,
``PayloadTooLarge``; and ``InputError`` for a name or key that Azure would refuse.

This module is longer than others: it is the contract that every store implements, with the errors of each call, and it
is read as one page. It holds no behaviour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import field
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Protocol, TypeAlias, TypeVar
from uuid import UUID

from airflow_provider_taskhub.codec import SLOW, Packed, Timestamp, decompress, unpacked_size
from airflow_provider_taskhub.fast_dataclass import dataclass

T = TypeVar("T")
MAX_MESSAGE_BYTES = 65_536
"""UTF-8 bytes of a queue message's text."""
MAX_VISIBILITY = timedelta(days=7)
MAX_TRANSACTION_OPERATIONS = 100
MAX_TRANSACTION_BYTES = 4 * 1024 * 1024
MAX_ENTITY_BYTES = 1024 * 1024
MAX_PROPERTY_BYTES = 65_536
"""Of one String (UTF-16) or Binary property."""
MAX_PROPERTIES = 252
MAX_KEY_CHARACTERS = 512
"""UTF-16 units of a PartitionKey or RowKey (1 KiB)."""
MAX_RECEIVE = 32


class Int64(int):
    """An Edm.Int64 property; a plain ``int`` is Edm.Int32."""


Property: TypeAlias = str | bool | int | Int64 | float | Timestamp | UUID | bytes
"""Edm String, Boolean, Int32, Int64, Double, DateTime, Guid, Binary."""


# --- rows ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """A row of a table.

    :param properties: the columns without the keys; ``None`` is not stored by insert and replace and leaves the
        column as it was in a merge, as Azure does. Never holds ``None`` when read.
    :param etag: as read; ignored in writes (conditions are fields of the operations).
    :param timestamp: the service's time of the last change; ``None`` in writes.
    """

    partition_key: str
    row_key: str
    properties: Mapping[str, Property | None] = field(default_factory=dict)
    etag: str = ""
    timestamp: Timestamp | None = None


class RowVerb(StrEnum):
    """What a table operation does to its row."""

    __hash__ = str.__hash__  # Enum's own is a Python function

    INSERT = "insert"  # Conflict if the row exists
    UPSERT_REPLACE = "upsert_replace"
    UPSERT_MERGE = "upsert_merge"
    REPLACE = "replace"  # needs an etag ("*" = any); NotFound without the row
    MERGE = "merge"  # needs an etag ("*" = any); NotFound without the row
    DELETE = "delete"  # needs an etag ("*" = any); NotFound without the row


@dataclass(frozen=True, slots=True, kw_only=True)
class EtagOf:
    """The ETag that an earlier operation of the same unit gave a row, resolved when sent.

    :param step: index of the step in the unit.
    :param operation: index of the operation in the step.
    :param row: index of the row in the operation.
    """

    step: int
    operation: int = 0
    row: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOperation:
    """One row of a table write.

    :param etag: the condition of REPLACE, MERGE and DELETE; must be ``None`` for the other verbs.
    :param absent: of an UPSERT_REPLACE: the row is hardly there. Only a hint: what the store does is the same.
    """

    verb: RowVerb
    entity: Entity
    etag: str | EtagOf | None = None
    absent: bool = False


# --- filters ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Compare:
    """``column operator value``; the columns ``PartitionKey``, ``RowKey`` and ``Timestamp`` are the row's own.

    :param operator: one of eq, ne, gt, ge, lt, le. A row without the column matches nothing, ``ne`` included.
    """

    column: str
    operator: str
    value: Property


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple[Filter, ...]


Filter: TypeAlias = Compare | And | Or


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page of a query, in the order of (PartitionKey, RowKey).

    :param continuation: opaque; pass it on to read the next page; ``None`` at the end.
    """

    entities: tuple[Entity, ...]
    continuation: str | None = None


# --- messages -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The right to update or delete a message: what receive, update and a claimed put give."""

    message_id: str
    pop_receipt: str
    next_visible: Timestamp
    """Time of the storage service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A received message. Times are the storage service's own."""

    text: str
    receipt: Receipt
    dequeue_count: int
    inserted: Timestamp


class ReceiptHolder(Protocol):
    """Something that knows the newest receipt of a message (a renewal may have replaced it)."""

    @property
    def receipt(self) -> Receipt: ...


# --- operations ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PutMessage:
    """Put a message. Result: its :class:`Receipt`, usable at once (an invisible put is a put and a claim).

    :param visibility: delay until it can be received, 0 to 7 days; also how long the claim lasts.
    :param naming: a mark in the text, and the row of an earlier step whose ETag, escaped as in JSON, takes its place.
    :param claimed: its sender holds the message until ``visibility`` is over (:meth:`Store.release_claims`); else the
        message is only delayed.
    """

    queue: str
    text: str
    visibility: timedelta = timedelta(0)
    claimed: bool = False
    naming: tuple[str, EtagOf] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMessage:
    """Set a claimed message's visibility from now, and its text if given. Result: the new :class:`Receipt`.

    :param claimed: its sender goes on holding the message (:meth:`Store.release_claims`); else it is given back.
    :param signal: whether :meth:`Store.arrival` may tell its sender when the message becomes visible.
    :raises Conflict: when the receipt is stale. :raises NotFound: when the message is gone.
    """

    queue: str
    message: Receipt | ReceiptHolder
    visibility: timedelta
    text: str | None = None
    claimed: bool = False
    signal: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteMessage:
    """Delete a claimed message. Result: its id; None, when there was nothing to delete (``quiet``).

    :raises Conflict: when the receipt is stale (redelivered to somebody). :raises NotFound: when it is gone.
    :param quiet: a stale receipt or a missing message is no error: whoever has it now will find it processed.
    """

    queue: str
    message: Receipt | ReceiptHolder
    quiet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Transact:
    """Rows of one table and one partition key, all or nothing. Result: tuple of ETags ("" for a delete).

    One row goes as a plain request, 2 to 100 as an entity-group transaction.

    :param topic: subscribers of this name are told when the transaction is done (:meth:`Store.subscribe`).
    """

    table: str
    rows: tuple[RowOperation, ...]
    topic: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PutBlob:
    """Write a whole block blob. Result: its ETag.

    :param data: its content, or a text whose gzip it is.
    :param if_absent: refuse (Conflict) when the blob exists.
    :param etag: refuse (Conflict) unless the blob has it; one that is gone has not. A lease's operations leave it.
    :param lease_id: needed while the blob is leased; refused (LeaseLost) while it is not.
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
        """Its content."""
        return self.data if isinstance(self.data, bytes) else self.data.data()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteBlob:
    """Delete a blob; a missing one is no error. Result: None."""

    container: str
    name: str


Operation: TypeAlias = PutMessage | UpdateMessage | DeleteMessage | Transact | PutBlob | DeleteBlob
Result: TypeAlias = Receipt | tuple[str, ...] | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Operations that may go in parallel. An empty step is passed over.

    :param name: the crash point before this step, e.g. ``history``; ``after:<name>`` is the one behind it.
    """

    name: str
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Ordered steps of storage operations.

    Azure carries the steps out in order, each step's operations in parallel, and stops at the first error; SQLite
    commits all of them or none.

    :param check: called right before the first write and, on Azure, before each step; raises to refuse (``LeaseLost``).
    """

    steps: tuple[Step, ...]
    check: Callable[[], None] | None = None


Results: TypeAlias = tuple[tuple[Result, ...], ...]
"""Per step, per operation."""


# --- blobs and leases ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    data: bytes
    etag: str
    content_type: str = "application/octet-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobInfo:
    """An item of a listing. Name and size only; a listing never downloads."""

    name: str
    size: int


# --- the store ----------------------------------------------------------------------------------------------------


class Store(Protocol):
    """Queue, table, blob and lease primitives over one account or file. An asynchronous context manager.

    Bound to the event loop that opened it; a second thread opens a second store.
    """

    requests: Counter[str]
    """Requests sent, by kind: ``queue.put``, ``queue.receive``, ``queue.update``, ``queue.delete``, ``queue.peek``,
    ``table.insert``, ``table.upsert``, ``table.update``, ``table.delete``, ``table.batch``, ``table.get``,
    ``table.query``, ``blob.put``, ``blob.append``, ``blob.get``, ``blob.delete``, ``blob.list``, ``blob.lease``,
    ``admin`` (create, delete, list of queues, tables and containers). A unit on SQLite counts its operations too."""

    local: bool
    """Whether every process that shares the store is on this machine (SQLite)."""

    async def __aenter__(self) -> Store: ...

    async def __aexit__(self, *error: object) -> None: ...

    def describe(self) -> str:
        """Where the store is, for people: a path or an account's address. Never a secret."""

    def container_url(self, container: str) -> str:
        """Absolute address of a container, without a slash at its end, as rows hold it."""

    # writes

    async def execute(self, operation: Operation) -> Result:
        """Carry out one operation; errors as in its docstring."""

    async def commit(self, unit: Unit) -> Results:
        """Carry out a unit. An error names its step in ``__notes__`` (``step: history``)."""

    # queues

    async def create_queue(self, name: str) -> bool:
        """Whether it was made (False: it was there). :raises InputError: for a name Azure refuses."""

    async def delete_queue(self, name: str) -> None: ...

    async def list_queues(self, prefix: str) -> list[str]: ...

    async def receive(self, queue: str, *, limit: int, visibility: timedelta) -> list[Message]:
        """Claim up to ``limit`` (1 to 32) visible messages, oldest first where the store can tell."""

    async def release_claims(self, holders: Collection[str]) -> int:
        """Make visible what these holders have claimed in any queue; how many messages that were.

        Only for holders that are proven dead. A message gets its old place back, and its old receipt is stale. SQLite
        knows who holds a message if its store was opened with ``holder``; Azure Storage does not: 0, without a request.
        """

    async def peek(self, queue: str, *, limit: int = MAX_RECEIVE) -> list[Message]:
        """Visible messages, without claiming them (their receipts' pop receipts are empty)."""

    async def count(self, queue: str) -> int:
        """About how many messages the queue holds, invisible ones included."""

    async def arrival(self, queues: Sequence[str], timeout: float) -> bool:
        """Wait until something may be receivable in one of the queues, at most ``timeout`` seconds.

        A hint: True when a put or a visibility change was signalled (SQLite: by any process; Azure: by this one).
        """

    def subscribe(self, name: str) -> AbstractAsyncContextManager[Callable[[float], Awaitable[None]]]:
        """Learn when a transaction with this topic (``Transact.topic``) is done, from the moment the block is entered.

        The block gets a function that waits until there was one since its last call, at most so many seconds. It is
        only a hint: it may be wrong, and it may be missing. The caller must look for itself, now and then also without
        a hint.

        :param name: the topic.
        """

    # tables

    async def create_table(self, name: str) -> bool: ...

    async def delete_table(self, name: str) -> None: ...

    async def list_tables(self, prefix: str = "") -> list[str]: ...

    async def get(self, table: str, partition_key: str, row_key: str) -> Entity | None:
        """One row, or None. :raises NotFound: when the table does not exist."""

    async def query(
        self,
        table: str,
        filter: Filter | None = None,
        *,
        select: Sequence[str] | None = None,
        limit: int = 1000,
        continuation: str | None = None,
    ) -> Page:
        """One page of rows. A page may hold fewer than ``limit`` (1 to 1000) rows, even none, and still go on."""

    def rows(
        self, table: str, filter: Filter | None = None, *, select: Sequence[str] | None = None
    ) -> AsyncIterator[Entity]:
        """All rows, page by page."""

    # blobs

    async def create_container(self, name: str) -> bool: ...

    async def delete_container(self, name: str) -> None: ...

    async def get_blob(self, container: str, name: str) -> Blob | None: ...

    async def get_text(self, container: str, name: str) -> str | None:
        """The text of a blob that holds one, or its gzip. :raises InputError: when it holds neither."""

    async def list_blobs(self, container: str, prefix: str = "") -> list[BlobInfo]:
        """Blobs by name; an absent container lists nothing."""

    async def append_blob(self, container: str, name: str, data: bytes) -> None:
        """Append to an append blob, made if absent. At most 4 MiB a call, 50,000 calls a blob."""

    async def beside(self, work: Callable[[], T]) -> T:
        """Run a long computation in a thread, so that the event loop can go on renewing.

        A store in memory runs it at once: the time of its loop may jump.
        """

    # leases of blobs and containers (``name=None`` is the container itself)

    async def acquire_lease(self, container: str, name: str | None, *, lease_id: str, seconds: int) -> None:
        """15 to 60 seconds. Held under the same id already: renewed. :raises LeaseLost: when another holds it."""

    async def renew_lease(self, container: str, name: str | None, *, lease_id: str) -> None:
        """:raises LeaseLost: when another holds it or it was released."""

    async def change_lease(self, container: str, name: str | None, *, lease_id: str, new_lease_id: str) -> None:
        """:raises LeaseLost: when ``lease_id`` does not hold it."""

    async def release_lease(self, container: str, name: str | None, *, lease_id: str) -> None:
        """:raises LeaseLost: when ``lease_id`` does not hold it."""


CrashPoint: TypeAlias = Callable[[str], Awaitable[None]]
"""Called with the name of each crash point as a unit is carried out; a test's raises to crash there."""


class Paged:
    """What of a store follows from the rest of it."""

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
        """Compress the texts that the operations write; large ones in a thread."""
        for operation in operations:
            if isinstance(operation, PutBlob) and isinstance(operation.data, Packed) and operation.data.is_slow:
                await self.beside(operation.data.data)
