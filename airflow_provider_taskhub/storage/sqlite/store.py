"""The embedded store: one SQLite file shared by processes, or a private database in memory.

Owns the order of things in a call: rules first, then one work for the journal, counted by kind. A unit is one work, so
it is committed whole or not at all; with ``stepwise`` (the simulation) it goes step by step, as on Azure.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import ExitStack, asynccontextmanager
from copy import copy
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from airflow_provider_taskhub.clock import SYSTEM_CLOCK, Clock
from airflow_provider_taskhub.errors import NotFound
from airflow_provider_taskhub.storage import rules
from airflow_provider_taskhub.storage.primitives import (
    MAX_RECEIVE,
    Blob,
    BlobInfo,
    CrashPoint,
    DeleteBlob,
    DeleteMessage,
    Entity,
    Filter,
    Message,
    Operation,
    Page,
    Paged,
    PutBlob,
    PutMessage,
    Result,
    Results,
    Transact,
    Unit,
    UpdateMessage,
)
from airflow_provider_taskhub.storage.sqlite import blobs, filters, leases, queues, rows
from airflow_provider_taskhub.storage.sqlite.in_memory import InMemory
from airflow_provider_taskhub.storage.sqlite.process_wakeups import heard
from airflow_provider_taskhub.storage.sqlite.shared_file import Reader, SharedFile
from airflow_provider_taskhub.storage.sqlite.store_clock import TICKS
from airflow_provider_taskhub.storage.sqlite.transactions import Change, Work
from airflow_provider_taskhub.storage.steps import carry_out, etag_of, named

T = TypeVar("T")


class SqliteStore(Paged):
    """A :class:`~airflow_provider_taskhub.storage.primitives.Store` in SQLite.

    :param path: the file, made if absent; None: a private database in memory, which works inline under any event loop
        and whose service time is that of ``clock``.
    :param clock: of a file only back-offs and the first anchor of its time are taken from it.
    :param crash: called at each crash point of a unit that goes step by step.
    :param stepwise: carry units out step by step, each operation by itself, instead of as one transaction.
    :param timeout: deadline of one call.
    :param holder: full name of the worker's incarnation that claims messages through this store
        (:meth:`release_claims`); empty: its claims end by their visibility only.
    """

    local = True

    def __init__(
        self,
        path: Path | None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        crash: CrashPoint | None = None,
        stepwise: bool = False,
        timeout: timedelta = timedelta(seconds=30),
        holder: str = "",
    ) -> None:
        self._holder = holder
        self.requests: Counter[str] = Counter()
        self._path = None if path is None else Path(path).expanduser().absolute()
        self._clock = clock
        self._crash = crash
        self._stepwise = stepwise
        self._users = 0
        self._access: InMemory | SharedFile = (
            InMemory(clock) if self._path is None else SharedFile(self._path, clock, timeout.total_seconds())
        )

    async def __aenter__(self) -> SqliteStore:
        """:raises ConfigurationError: for a file that cannot be the hub's, naming it and the way out."""
        self._users += 1
        try:
            await self._access.open()
        except BaseException:
            self._users -= 1
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        self._users -= 1
        if not self._users:
            await self._access.close()

    def describe(self) -> str:
        return "memory" if self._path is None else str(self._path)

    def container_url(self, container: str) -> str:
        # the same for every process and after a move of the file: rows hold it
        return f"taskhub-embedded://blobs/{container}"

    @property
    def commits(self) -> int:
        """Transactions that this process has committed to the file."""
        journal = self._access.journal
        return 0 if journal is None else journal.commits

    # --- writes

    async def execute(self, operation: Operation) -> Result:
        await self.packed((operation,))
        rules.check_alone(operation)
        self.requests[rules.kind_of(operation)] += 1
        result: Result = await self._access.write(lambda change: perform(change, operation, (), self._holder))
        return result

    async def commit(self, unit: Unit) -> Results:
        for step in unit.steps:
            await self.packed(step.operations)
        rules.check_unit(unit)
        if self._stepwise:
            return await carry_out(unit, self.execute, self._crash)
        for step in unit.steps:
            self._count(step.operations)
        results: Results = await self._access.write(lambda change: perform_unit(change, unit, self._holder))
        return results

    def _count(self, operations: Sequence[Operation]) -> None:
        self.requests.update(rules.kind_of(operation) for operation in operations)

    async def _administer(self, work: Work) -> Any:
        self.requests["admin"] += 1
        return await self._access.write(work)

    # --- queues

    async def create_queue(self, name: str) -> bool:
        rules.check_queue_name(name)
        return bool(await self._administer(_creation("queues", name)))

    async def delete_queue(self, name: str) -> None:
        rules.check_queue_name(name)
        await self._administer(lambda change: queues.drop(change, name))

    async def list_queues(self, prefix: str) -> list[str]:
        return await self._names("queues", prefix)

    async def receive(self, queue: str, *, limit: int, visibility: timedelta) -> list[Message]:
        rules.check_receive(queue, limit, visibility)
        self.requests["queue.receive"] += 1
        if not await self._access.read(lambda connection: self._due(queues.earliest(connection, queue))):
            return []  # an empty poll writes nothing
        messages: list[Message] = await self._access.write(
            lambda change: queues.receive(change, queue, limit, visibility, self._holder)
        )
        return messages

    async def release_claims(self, holders: Collection[str]) -> int:
        if not holders:
            return 0
        self.requests["queue.update"] += 1
        released: int = await self._access.write(lambda change: queues.release(change, holders))
        return released

    def held_by(self, holder: str) -> SqliteStore:
        """The same store, opened by the same ``async with``, for another holder of messages."""
        other = copy(self)
        other._holder = holder
        return other

    async def peek(self, queue: str, *, limit: int = MAX_RECEIVE) -> list[Message]:
        rules.check_peek(queue, limit)
        self.requests["queue.peek"] += 1
        now, identity = self._access.now(), self._access.identity
        return await self._access.read(lambda connection: queues.peek(connection, identity, queue, limit, now))

    async def count(self, queue: str) -> int:
        rules.check_queue_name(queue)
        self.requests["admin"] += 1
        return await self._access.read(lambda connection: queues.count(connection, queue))

    async def arrival(self, queues: Sequence[str], timeout: float) -> bool:
        """As the contract says; True only when one of the queues holds a visible message.

        It knows when the next invisible message becomes due, so a delayed one is not found late.
        """
        await self._access.listen(queues)
        deadline = self._clock.monotonic() + timeout
        while True:
            with self._access.waiters.listening(queues) as news:
                due = await self._earliest(queues)
                if self._due(due):
                    return True
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    return False
                waits = [left]
                if due is not None:
                    waits.append((due - self._access.now()) / TICKS)
                if self._access.fallback is not None:
                    waits.append(self._access.fallback)
                await heard(news, min(waits))

    @asynccontextmanager
    async def subscribe(self, name: str) -> AsyncIterator[Callable[[float], Awaitable[None]]]:
        await self._access.listen((name,))
        with ExitStack() as ear:
            news = ear.enter_context(self._access.waiters.listening((name,)))

            async def wait(seconds: float) -> None:
                nonlocal news
                try:
                    await heard(news, seconds)
                finally:
                    if news.done():
                        ear.pop_all().close()
                        news = ear.enter_context(self._access.waiters.listening((name,)))

            yield wait

    async def _earliest(self, names: Sequence[str]) -> int | None:
        """When the next message of any of these queues is visible; an absent queue has none."""
        found: list[int] = []
        for name in names:
            try:
                due = await self._access.read(partial(queues.earliest, queue=name))
            except NotFound:
                continue
            if due is not None:
                found.append(due)
        return min(found, default=None)

    def _due(self, visible: int | None) -> bool:
        return visible is not None and visible <= self._access.now()

    # --- tables

    async def create_table(self, name: str) -> bool:
        rules.check_table_name(name)
        return bool(await self._administer(_creation("tables", name)))

    async def delete_table(self, name: str) -> None:
        rules.check_table_name(name)
        await self._administer(lambda change: rows.drop(change, name))

    async def list_tables(self, prefix: str = "") -> list[str]:
        return await self._names("tables", prefix)

    async def get(self, table: str, partition_key: str, row_key: str) -> Entity | None:
        rules.check_table_name(table)
        rules.check_key("PartitionKey", partition_key)
        rules.check_key("RowKey", row_key)
        self.requests["table.get"] += 1
        return await self._access.read(lambda connection: rows.get(connection, table, partition_key, row_key))

    async def query(
        self,
        table: str,
        filter: Filter | None = None,
        *,
        select: Sequence[str] | None = None,
        limit: int = rules.MAX_PAGE,
        continuation: str | None = None,
    ) -> Page:
        rules.check_query(table, filter, select, limit)
        self.requests["table.query"] += 1
        of_one = filters.range_of(filter, "PartitionKey").single
        return await self._access.read(
            lambda connection: rows.query(
                connection, table, filter, select=select, limit=limit, continuation=continuation
            ),
            reader=Reader.PARTITION if of_one else Reader.LISTING,
        )

    # --- blobs

    async def create_container(self, name: str) -> bool:
        rules.check_container_name(name)
        return bool(await self._administer(_creation("containers", name)))

    async def delete_container(self, name: str) -> None:
        rules.check_container_name(name)
        await self._administer(lambda change: blobs.drop(change, name))

    async def get_blob(self, container: str, name: str) -> Blob | None:
        rules.check_blob(container, name)
        self.requests["blob.get"] += 1
        return await self._access.read(
            lambda connection: blobs.get(connection, container, name), reader=Reader.PARTITION
        )

    async def beside(self, work: Callable[[], T]) -> T:
        return work() if self._path is None else await asyncio.to_thread(work)

    async def list_blobs(self, container: str, prefix: str = "") -> list[BlobInfo]:
        rules.check_container_name(container)
        self.requests["blob.list"] += 1
        return await self._access.read(
            lambda connection: blobs.listing(connection, container, prefix), reader=Reader.LISTING
        )

    async def append_blob(self, container: str, name: str, data: bytes) -> None:
        rules.check_append(container, name, data)
        self.requests["blob.append"] += 1
        await self._access.write(lambda change: blobs.append(change, container, name, data))

    # --- leases

    async def acquire_lease(self, container: str, name: str | None, *, lease_id: str, seconds: int) -> None:
        rules.check_lease_seconds(seconds)
        await self._lease(
            container, name, (lease_id,), lambda change: leases.acquire(change, container, name, lease_id, seconds)
        )

    async def renew_lease(self, container: str, name: str | None, *, lease_id: str) -> None:
        await self._lease(container, name, (lease_id,), lambda change: leases.renew(change, container, name, lease_id))

    async def change_lease(self, container: str, name: str | None, *, lease_id: str, new_lease_id: str) -> None:
        await self._lease(
            container,
            name,
            (lease_id, new_lease_id),
            lambda change: leases.change_id(change, container, name, lease_id, new_lease_id),
        )

    async def release_lease(self, container: str, name: str | None, *, lease_id: str) -> None:
        await self._lease(
            container, name, (lease_id,), lambda change: leases.release(change, container, name, lease_id)
        )

    async def _lease(self, container: str, name: str | None, ids: Sequence[str], work: Work) -> None:
        rules.check_lease_target(container, name)
        for lease_id in ids:
            rules.check_lease_id(lease_id)
        self.requests["blob.lease"] += 1
        await self._access.write(work)

    async def _names(self, kind: str, prefix: str) -> list[str]:
        self.requests["admin"] += 1
        found = await self._access.read(lambda connection: connection.execute(f"SELECT name FROM {kind}").fetchall())
        return sorted(name for (name,) in found if name.startswith(prefix))


# --- works --------------------------------------------------------------------------------------------------------


def perform(change: Change, operation: Operation, earlier: Results, holder: str) -> Result:
    """One operation inside a transaction.

    :param holder: who holds the messages that are claimed.
    :param earlier: results of the unit's earlier steps, for :class:`EtagOf`.
    """
    match operation:  # the most frequent first
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
    """A whole unit: its check right before the first write, then all steps."""
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


def _creation(kind: str, name: str) -> Callable[[Change], bool]:
    def create(change: Change) -> bool:
        sql = f"INSERT INTO {kind} (name) VALUES (?) ON CONFLICT DO NOTHING"
        return change.connection.execute(sql, (name,)).rowcount == 1

    return create
