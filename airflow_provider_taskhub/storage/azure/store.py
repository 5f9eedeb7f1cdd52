"""Implements the store on Azure Storage, or on its emulator Azurite.

TaskHub itself sends the requests that every orchestration needs (``rest``). All other requests go through Microsoft's
clients (``sdk``). Both share one HTTP session, one credential, one rule for deadlines and retries, and one translation
of errors.

On Azure a unit (ordered steps of storage operations, for example a checkpoint) is not atomic: after an error or a crash
the earlier steps of the unit stay done. The order of the steps of a checkpoint makes this harmless
(docs/concepts/checkpoint.md).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any, TypeVar

from airflow_provider_taskhub.concurrency import gather_bounded
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.storage import rules
from airflow_provider_taskhub.storage.azure.local_wakeups import Listener, Waiter, wakeups_of
from airflow_provider_taskhub.storage.azure.process_wakeups import ProcessWakeups
from airflow_provider_taskhub.storage.azure.rest.account import parse_account
from airflow_provider_taskhub.storage.azure.rest.blobs import Blobs
from airflow_provider_taskhub.storage.azure.rest.messages import Messages
from airflow_provider_taskhub.storage.azure.rest.request import Wire
from airflow_provider_taskhub.storage.azure.rest.rows import Rows
from airflow_provider_taskhub.storage.azure.sdk.blobs import BlobService
from airflow_provider_taskhub.storage.azure.sdk.clients import Clients
from airflow_provider_taskhub.storage.azure.sdk.queues import QueueService
from airflow_provider_taskhub.storage.azure.sdk.tables import TableService
from airflow_provider_taskhub.storage.deletions import answered, holders_of, receipts_kept
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
    Receipt,
    Result,
    Results,
    TimeColumn,
    Transact,
    Unit,
    UpdateMessage,
)
from airflow_provider_taskhub.storage.steps import carry_out

T = TypeVar("T")
PARALLEL = 16
"""Largest number of operations of one step that run at the same time. A higher limit makes a step no faster, neither on
the emulator nor on one partition of Azure."""
GIVEN_BACK = timedelta(seconds=10)
"""An update that hides a message for longer than this plans no wake-up for the time when the message becomes visible.
A shorter update gives the message back to its queue, at once or after a back-off. A longer update keeps the message for
a worker that works on it. This worker usually deletes the message before it becomes visible, so a wake-up would only
cause a useless receive."""


class AzureStore(Paged):
    """A :class:`~airflow_provider_taskhub.storage.primitives.Store` over an Azure Storage account.

    :param connection: a connection string (account key or shared access signature), or the account's address
        (``https://NAME.blob.core.windows.net``) for ``DefaultAzureCredential``.
    :param timeout: longest time of one call with all its retries.
    :param crash: function of a test, awaited before and after each step of a unit; None: no function.
    :raises ConfigurationError: if the connection is not complete, or if a package is missing. The error text never
        contains a part of a secret.
    """

    local = False

    def __init__(self, connection: str, *, timeout: timedelta, crash: CrashPoint | None = None) -> None:
        self._account = parse_account(connection)
        self._crash = crash
        self.requests: Counter[str] = Counter()
        self._wire = Wire(self._account, timeout=timeout, requests=self.requests)
        self._messages = Messages(self._wire)
        self._rows = Rows(self._wire, str(self._account.endpoints["table"]))
        self._blobs = Blobs(self._wire)
        self._clients = Clients(self._wire)
        self._queue_service = QueueService(self._clients)
        self._table_service = TableService(self._clients)
        self._blob_service = BlobService(self._clients)
        self._wakeups = wakeups_of(self._account.describe())
        self._listener = Listener(self._wakeups)
        self._process_wakeups = ProcessWakeups(self._account.describe(), self._wakeups)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> AzureStore:
        async with AsyncExitStack() as opened:  # closes what is already open if a later line fails
            await opened.enter_async_context(self._wire)
            await opened.enter_async_context(self._clients)
            opened.callback(self._process_wakeups.close)
            self._stack = opened.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    def __repr__(self) -> str:
        return f"AzureStore({self.describe()!r})"

    def describe(self) -> str:
        return self._account.describe()

    def container_url(self, container: str) -> str:
        return f"{self._account.endpoints['blob']}/{container}"

    # the methods of Store that write

    async def execute(self, operation: Operation) -> Result:
        await self.packed((operation,))
        rules.check_alone(operation)
        return await self._carry_out(operation)

    async def commit(self, unit: Unit) -> Results:
        for step in unit.steps:
            await self.packed(step.operations)
        rules.check_unit(unit)
        return await carry_out(unit, self._carry_out, self._crash, together=_parallel)

    async def _carry_out(self, operation: Operation) -> Result:
        match operation:
            case PutMessage():
                receipt = await self._messages.put(operation)
                self._wake_receivers(operation.queue, operation.visibility)
                return receipt
            case UpdateMessage():
                return await self._update(operation)
            case DeleteMessage():
                async with receipts_kept(holders_of((operation,))):
                    deleted = await self._messages.delete(operation)
                    answered((operation,), (deleted,))
                return deleted
            case Transact():
                etags = await self._rows.transact(operation)
                if operation.topic:
                    self._wakeups.notify_topic(operation.topic)
                    self._process_wakeups.notify(operation.topic)
                return etags
            case PutBlob():
                return await self._blobs.put(operation)
            case DeleteBlob():
                await self._blob_service.remove(operation)
                return None

    async def _update(self, operation: UpdateMessage) -> Receipt:
        receipt = await self._messages.update(operation)
        if operation.signal and operation.visibility <= GIVEN_BACK:
            self._wake_receivers(operation.queue, operation.visibility)
        return receipt

    def _wake_receivers(self, queue: str, visibility: timedelta) -> None:
        now = asyncio.get_running_loop().time()
        delay = rules.whole_seconds(visibility)
        self._wakeups.notify(queue, now=now, delay=float(delay))
        if not delay:
            self._process_wakeups.notify(queue)

    # the methods of Store for queues

    async def create_queue(self, name: str) -> bool:
        rules.check_queue_name(name)
        return await self._queue_service.create(name)

    async def delete_queue(self, name: str) -> None:
        rules.check_queue_name(name)
        await self._queue_service.delete(name)

    async def list_queues(self, prefix: str) -> list[str]:
        return await self._queue_service.names(prefix)

    async def receive(self, queue: str, *, limit: int, visibility: timedelta) -> list[Message]:
        rules.check_receive(queue, limit, visibility)
        self._listener.receiving(queue)
        return await self._messages.receive(queue, limit=limit, visibility=visibility)

    async def peek(self, queue: str, *, limit: int = MAX_RECEIVE) -> list[Message]:
        rules.check_peek(queue, limit)
        return await self._queue_service.peek(queue, limit=limit)

    async def count(self, queue: str) -> int:
        rules.check_queue_name(queue)
        return await self._queue_service.count(queue)

    async def release_claims(self, holders: Collection[str]) -> int:
        return 0

    async def arrival(self, queues: Sequence[str], timeout: float) -> Sequence[str]:
        self._process_wakeups.listen(queues)
        return await self._listener.arrival(queues, timeout)

    @asynccontextmanager
    async def subscribe(self, name: str) -> AsyncIterator[Callable[[float], Awaitable[None]]]:
        self._process_wakeups.listen(())
        waiter = Waiter()
        self._wakeups.enter((name,), waiter)
        try:
            yield waiter.wait
        finally:
            self._wakeups.leave((name,), waiter)

    # the methods of Store for tables

    async def create_table(self, name: str) -> bool:
        rules.check_table_name(name)
        return await self._table_service.create(name)

    async def delete_table(self, name: str) -> None:
        rules.check_table_name(name)
        await self._table_service.delete(name)

    async def list_tables(self, prefix: str = "") -> list[str]:
        return await self._table_service.names(prefix)

    async def get(self, table: str, partition_key: str, row_key: str) -> Entity | None:
        rules.check_table_name(table)
        rules.check_key("PartitionKey", partition_key)
        rules.check_key("RowKey", row_key)
        return await self._rows.get(table, partition_key, row_key)

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
        if newest is not None:
            raise InputError(f"query of {table!r}: Azure Storage has no index of {newest}")
        return await self._rows.query(table, filter, select=select, limit=limit, continuation=continuation)

    # the methods of Store for blobs

    async def create_container(self, name: str) -> bool:
        rules.check_container_name(name)
        return await self._blob_service.create_container(name)

    async def delete_container(self, name: str) -> None:
        rules.check_container_name(name)
        await self._blob_service.delete_container(name)

    async def get_blob(self, container: str, name: str) -> Blob | None:
        rules.check_blob(container, name)
        return await self._blobs.get(container, name)

    async def get_blob_range(self, container: str, name: str, *, offset: int, length: int) -> bytes | None:
        rules.check_range(container, name, offset, length)
        return await self._blobs.get_range(container, name, offset=offset, length=length)

    async def beside(self, work: Callable[[], T]) -> T:
        return await asyncio.to_thread(work)

    async def list_blobs(self, container: str, prefix: str = "") -> list[BlobInfo]:
        rules.check_container_name(container)
        return await self._blob_service.names(container, prefix)

    async def append_blob(self, container: str, name: str, data: bytes) -> int:
        rules.check_append(container, name, data)
        return await self._blob_service.append(container, name, data)

    # the methods of Store for leases

    async def acquire_lease(self, container: str, name: str | None, *, lease_id: str, seconds: int) -> None:
        rules.check_lease_target(container, name)
        rules.check_lease_id(lease_id)
        rules.check_lease_seconds(seconds)
        await self._blob_service.acquire(container, name, lease_id=lease_id, seconds=seconds)

    async def renew_lease(self, container: str, name: str | None, *, lease_id: str) -> None:
        rules.check_lease_target(container, name)
        rules.check_lease_id(lease_id)
        await self._blob_service.renew(container, name, lease_id=lease_id)

    async def change_lease(self, container: str, name: str | None, *, lease_id: str, new_lease_id: str) -> None:
        rules.check_lease_target(container, name)
        rules.check_lease_id(lease_id)
        rules.check_lease_id(new_lease_id)
        await self._blob_service.change(container, name, lease_id=lease_id, new_lease_id=new_lease_id)

    async def release_lease(self, container: str, name: str | None, *, lease_id: str) -> None:
        rules.check_lease_target(container, name)
        rules.check_lease_id(lease_id)
        await self._blob_service.release(container, name, lease_id=lease_id)


async def _parallel(operations: Sequence[Coroutine[Any, Any, Result]]) -> tuple[Result, ...]:
    """Carry out the operations of a step and return their results. After an error no further operation begins."""
    if len(operations) == 1:  # most steps have only one operation, which needs no task
        return (await operations[0],)

    async def result(operation: Coroutine[Any, Any, Result]) -> Result:
        return await operation

    try:
        return tuple(await gather_bounded(result, operations, limit=PARALLEL))
    finally:
        for operation in operations:
            operation.close()  # without this, Python warns about each coroutine that an error has kept from running
