"""Azurite's ceiling: the requests of a workload alone, by an ideal client.

It sends what the request budget allows (11 an orchestration of one activity; 4 of queues and 2 history rows an activity
of a fan-out) over TaskHub's own request layer, from one event loop: no engine, no receives (every put is a claim), no
renewals, no executor. Nothing waits for a delete. TaskHub itself puts no message for a response that its own session
takes (9 requests, and 2 of queues): with ``direct`` this client does not either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from datetime import timedelta
from typing import Any, Self, TypeAlias

from airflow_provider_taskhub.demo.azurite import Azurite
from airflow_provider_taskhub.storage.azure.store import AzureStore
from airflow_provider_taskhub.storage.primitives import (
    DeleteMessage,
    Entity,
    PutMessage,
    Receipt,
    RowOperation,
    RowVerb,
    Transact,
)
from tests.benchmarks.ceiling import Checkpoint, Orchestration, Row, envelope
from tests.benchmarks.cpu import SERVICE

SLOTS = 16
"""Activities that respond at once, and puts of one checkpoint: the emulator gains nothing from more."""
BATCH = 99
"""History rows of one transaction, beside the sentinel."""
_CLAIM = timedelta(seconds=300)
_CONTROL, _WORK = "ceiling-control", "ceiling-workitems"
_INSTANCES, _HISTORY = "CeilingInstances", "CeilingHistory"

Token: TypeAlias = tuple[str, Receipt]
"""A message: its queue, and by what it is deleted."""


class Requests:
    """A :class:`~tests.benchmarks.ceiling.Hub` over a fresh emulator. An asynchronous context manager.

    :param direct: responses are no messages; who takes one deletes the activity's message.
    """

    def __init__(self, azurite: Azurite, *, direct: bool = False) -> None:
        self._direct = direct
        self.others: Mapping[str, int] = {SERVICE: azurite.pid}
        self._store = AzureStore(azurite.connection, timeout=timedelta(seconds=60))
        self._slots = asyncio.Semaphore(SLOTS)
        self._behind: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        await self._store.__aenter__()
        for name in (_CONTROL, _WORK):
            await self._store.create_queue(name)
        for name in (_INSTANCES, _HISTORY):
            await self._store.create_table(name)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.settled()
        await self._store.__aexit__(*error)

    @property
    def sent(self) -> int:
        """Requests so far."""
        return self._store.requests.total()

    async def settled(self) -> None:
        """Return once nothing is under way any more."""
        while self._behind:
            await asyncio.wait(self._behind)

    async def start(self, of: Orchestration, row: Row, message: str) -> Token:
        of.state["row"] = (await self._transact(_INSTANCES, [_insert(of.id, "", row)]))[0]
        return await self._put(_CONTROL, message)

    async def checkpoint(self, of: Orchestration, value: Checkpoint) -> Sequence[Token]:
        works = await asyncio.gather(*(self._put_in_turn(text) for text in value.works))
        rows = [_insert(of.id, f"{ordinal:016X}", row) for ordinal, row in enumerate(value.history, of.rows)]
        for begin in range(0, len(rows), BATCH):
            lock = _merge(of.id, "sentinel", value.sentinel, of.state.get("sentinel"))
            of.state["sentinel"] = (await self._transact(_HISTORY, [*rows[begin : begin + BATCH], lock]))[-1]
        if value.works:  # the activities may begin
            self._later(self._finish(of, value))
        else:
            await self._finish(of, value)
        return works

    async def respond(self, of: Orchestration, work: Any, text: str) -> Token:
        token: Token = work
        if not self._direct:
            async with self._slots:
                event = {"TaskScheduledId": 0, "Result": "7", "TaskHubActionId": of.id}
                token = await self._put(_CONTROL, envelope("TaskCompleted", of.id, event))
                self._later(self._delete(work))
        return token

    async def _finish(self, of: Orchestration, value: Checkpoint) -> None:
        if value.row is not None:
            async with of.row:  # the first may still be under way
                merge = _merge(of.id, "", value.row, of.state["row"])
                of.state["row"] = (await self._transact(_INSTANCES, [merge]))[0]
        for token in value.consumed:
            self._later(self._delete(token))

    async def _put_in_turn(self, text: str) -> Token:
        async with self._slots:
            return await self._put(_WORK, text)

    async def _put(self, name: str, text: str) -> Token:
        receipt = await self._store.execute(PutMessage(queue=name, text=text, visibility=_CLAIM))
        assert isinstance(receipt, Receipt)
        return name, receipt

    async def _delete(self, token: Token) -> None:
        queue, receipt = token
        await self._store.execute(DeleteMessage(queue=queue, message=receipt))

    async def _transact(self, table: str, rows: Sequence[RowOperation]) -> tuple[str, ...]:
        etags = await self._store.execute(Transact(table=table, rows=tuple(rows)))
        assert isinstance(etags, tuple)
        return etags

    def _later(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)


def _insert(partition: str, key: str, row: Row) -> RowOperation:
    return RowOperation(verb=RowVerb.INSERT, entity=Entity(partition_key=partition, row_key=key, properties=row))


def _merge(partition: str, key: str, row: Row, etag: str | None) -> RowOperation:
    """Under the row's ETag; without one it is the first."""
    if etag is None:
        return _insert(partition, key, row)
    return RowOperation(
        verb=RowVerb.MERGE, entity=Entity(partition_key=partition, row_key=key, properties=row), etag=etag
    )
