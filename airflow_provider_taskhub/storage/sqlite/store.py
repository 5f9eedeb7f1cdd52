"""Implements the embedded store: one SQLite file that several processes share, or a private database in memory.

Each call first checks its arguments by Azure's rules, then counts the request, and then runs one function, called a
work, on the database. A unit (ordered steps of operations, for example a checkpoint) is one work, so one transaction
commits the whole unit. With ``stepwise`` the store carries out a unit step by step, as Azure does; the simulation needs
this.
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
from airflow_provider_taskhub.storage import rules
from airflow_provider_taskhub.storage.deletions import answered, holders_of, receipts_kept
from airflow_provider_taskhub.storage.primitives import (
    MAX_RECEIVE,
    Blob,
    BlobInfo,
    CrashPoint,
    Entity,
    Filter,
    Message,
    Operation,
    Page,
    Paged,
    Result,
    Results,
    TimeColumn,
    Unit,
)
from airflow_provider_taskhub.storage.sqlite import blobs, filters, leases, queues, rows
from airflow_provider_taskhub.storage.sqlite.in_memory import InMemory
from airflow_provider_taskhub.storage.sqlite.process_wakeups import wait_for_wakeup
from airflow_provider_taskhub.storage.sqlite.queues import all_earliest
from airflow_provider_taskhub.storage.sqlite.shared_file import Reader, SharedFile
from airflow_provider_taskhub.storage.sqlite.store_clock import TICKS
from airflow_provider_taskhub.storage.sqlite.transactions import Work
from airflow_provider_taskhub.storage.sqlite.works import creation, perform, perform_unit
from airflow_provider_taskhub.storage.steps import carry_out

T = TypeVar("T")


class SqliteStore(Paged):
    """A :class:`~airflow_provider_taskhub.storage.primitives.Store` in SQLite.

    :param path: path of the SQLite file, which is created if it does not exist. None: a private database in memory,
        which uses no threads, works under any event loop, and takes its time from ``clock``.
    :param clock: clock of the caller. A store with a file uses this clock only for timeouts and retries, and to set the
        store's time when the file is new or the machine was restarted.
    :param crash: function of a test, awaited at each crash point of a unit if ``stepwise`` is True; None: no function.
    :param stepwise: True: carry out a unit step by step, each operation in its own transaction. False: carry out a unit
        in one transaction.
    :param timeout: a write to the file fails if it has no answer after about this time, and a read fails if the file is
        locked for this time. A database in memory ignores it.
    :param holder: full name of the worker incarnation that receives messages through this store. Empty: the store does
        not record who has received a message, and :meth:`release_claims` cannot make the messages visible.
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
        """Open the store.

        :raises ConfigurationError: if the file cannot be a hub's file. The text names the file and a way out.
        """
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
        # Rows store this URL. It has no file path, so it stays valid if the file is moved, or if another Docker
        # container has the file under another path.
        return f"taskhub-embedded://blobs/{container}"

    @property
    def commits(self) -> int:
        """Number of transactions that this process has committed to the file."""
        journal = self._access.journal
        return 0 if journal is None else journal.commits

    # --- the methods of Store that write

    async def execute(self, operation: Operation) -> Result:
        await self.packed((operation,))
        rules.check_alone(operation)
        self.requests[rules.kind_of(operation)] += 1
        if holders := holders_of((operation,)):
            async with receipts_kept(holders):
                result = await self._perform(operation)
                answered((operation,), (result,))
                return result
        return await self._perform(operation)

    async def _perform(self, operation: Operation) -> Result:
        result: Result = await self._access.write(lambda change: perform(change, operation, (), self._holder))
        return result

    async def commit(self, unit: Unit) -> Results:
        for step in unit.steps:
            await self.packed(step.operations)
        rules.check_unit(unit)
        if self._stepwise:
            return await carry_out(unit, self.execute, self._crash)
        operations = [operation for step in unit.steps for operation in step.operations]
        self._count(operations)
        if holders := holders_of(operations):
            async with receipts_kept(holders):
                results = await self._perform_unit(unit)
                answered(operations, [result for step in results for result in step])
                return results
        return await self._perform_unit(unit)

    async def _perform_unit(self, unit: Unit) -> Results:
        results: Results = await self._access.write(lambda change: perform_unit(change, unit, self._holder))
        return results

    def _count(self, operations: Sequence[Operation]) -> None:
        self.requests.update(rules.kind_of(operation) for operation in operations)

    async def _administer(self, work: Work) -> Any:
        self.requests["admin"] += 1
        return await self._access.write(work)

    # --- the methods of Store for queues

    async def create_queue(self, name: str) -> bool:
        rules.check_queue_name(name)
        return bool(await self._administer(creation("queues", name)))

    async def delete_queue(self, name: str) -> None:
        rules.check_queue_name(name)
        await self._administer(lambda change: queues.drop(change, name))

    async def list_queues(self, prefix: str) -> list[str]:
        return await self._names("queues", prefix)

    async def receive(self, queue: str, *, limit: int, visibility: timedelta) -> list[Message]:
        rules.check_receive(queue, limit, visibility)
        self.requests["queue.receive"] += 1
        visible = await self._access.read(partial(queues.earliest, queue=queue))
        if visible is None or visible > self._access.now():
            return []  # a poll of a queue without visible messages needs no write transaction
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
        """Return a store object for another holder of messages. It shares the connection of this store.

        :param holder: full name of the worker incarnation that receives messages through the returned object.
        """
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

    async def arrival(self, queues: Sequence[str], timeout: float) -> Sequence[str]:
        """Wait until one of the queues has a visible message (see :meth:`Store.arrival`).

        Unlike Azure, this store returns only queues with visible messages. The store knows when the next invisible
        message becomes visible, and returns at that time.
        """
        await self._access.listen(queues)
        deadline = self._clock.monotonic() + timeout
        while True:
            with self._access.waiters.listening(queues) as woken:
                visible = await self._access.read(partial(all_earliest, names=queues))
                now, left = self._access.now(), deadline - self._clock.monotonic()
                if (found := [queue for queue, at in visible.items() if at <= now]) or left <= 0:
                    return found
                await wait_for_wakeup(woken, min([left, *((at - now) / TICKS for at in visible.values())]))

    @asynccontextmanager
    async def subscribe(self, name: str) -> AsyncIterator[Callable[[float], Awaitable[None]]]:
        await self._access.listen((name,))
        with ExitStack() as entered:
            woken = entered.enter_context(self._access.topics.listening((name,)))

            async def wait(seconds: float) -> None:
                nonlocal woken
                try:
                    await wait_for_wakeup(woken, seconds)
                finally:
                    if woken.done():
                        entered.pop_all().close()
                        woken = entered.enter_context(self._access.topics.listening((name,)))

            yield wait

    # --- the methods of Store for tables

    async def create_table(self, name: str) -> bool:
        rules.check_table_name(name)
        return bool(await self._administer(creation("tables", name)))

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
        newest: TimeColumn | None = None,
    ) -> Page:
        rules.check_query(table, filter, select, limit)
        self.requests["table.query"] += 1
        one_partition = filters.range_of(filter, "PartitionKey").single
        return await self._access.read(
            lambda connection: rows.query(
                connection, table, filter, select=select, limit=limit, continuation=continuation, newest=newest
            ),
            reader=Reader.PARTITION if one_partition else Reader.LISTING,
        )

    # --- the methods of Store for blobs

    async def create_container(self, name: str) -> bool:
        rules.check_container_name(name)
        return bool(await self._administer(creation("containers", name)))

    async def delete_container(self, name: str) -> None:
        rules.check_container_name(name)
        await self._administer(lambda change: blobs.drop(change, name))

    async def get_blob(self, container: str, name: str) -> Blob | None:
        rules.check_blob(container, name)
        self.requests["blob.get"] += 1
        return await self._access.read(
            lambda connection: blobs.get(connection, container, name), reader=Reader.PARTITION
        )

    async def get_blob_range(self, container: str, name: str, *, offset: int, length: int) -> bytes | None:
        rules.check_range(container, name, offset, length)
        self.requests["blob.get"] += 1
        return await self._access.read(
            lambda connection: blobs.part(connection, container, name, offset, length), reader=Reader.PARTITION
        )

    async def beside(self, work: Callable[[], T]) -> T:
        return work() if self._path is None else await asyncio.to_thread(work)

    async def list_blobs(self, container: str, prefix: str = "") -> list[BlobInfo]:
        rules.check_container_name(container)
        self.requests["blob.list"] += 1
        return await self._access.read(
            lambda connection: blobs.listing(connection, container, prefix), reader=Reader.LISTING
        )

    async def append_blob(self, container: str, name: str, data: bytes) -> int:
        rules.check_append(container, name, data)
        self.requests["blob.append"] += 1
        return int(await self._access.write(lambda change: blobs.append(change, container, name, data)))

    # --- the methods of Store for leases

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
