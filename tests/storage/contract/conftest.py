"""Every store behind one fixture: the same tests run over memory, a file, and a real Azurite."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.storage.azure.store import AzureStore
from airflow_provider_taskhub.storage.primitives import Store
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore
from airflow_provider_taskhub.storage.sqlite.store_clock import TICKS

KINDS = ("memory", "file", "azurite")


class ManualClock:
    """Time that moves only when a test says so."""

    def __init__(self) -> None:
        self._start = Timestamp.parse("2026-11-21T08:55:27.2669147Z")
        self._now = 0.0
        self._numbers = itertools.count()
        self._sleeping: list[tuple[float, int, asyncio.Future[None]]] = []

    def utc_now(self) -> Timestamp:
        return Timestamp(self._start.ticks + round(self._now * TICKS))

    def monotonic(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleeping, (self._now + max(0.0, seconds), next(self._numbers), future))
        await future

    async def advance(self, seconds: float) -> None:
        """Move on, waking every sleeper at its time, and let all of them run."""
        end = self._now + seconds
        await settle()
        while self._sleeping and self._sleeping[0][0] <= end:
            self._now, _, future = heapq.heappop(self._sleeping)
            if not future.done():
                future.set_result(None)
            await settle()
        self._now = end
        await settle()


async def settle() -> None:
    """Give every task that is ready its turn."""
    for _ in range(20):
        await asyncio.sleep(0)


async def a_few_requests(store: Store) -> None:
    """Let a task that waits in the store run. What must not end its wait must not have ended it after this."""
    for _ in range(5):
        await store.list_queues("none")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def clock() -> ManualClock:
    """The clock of the store in memory."""
    return ManualClock()


@pytest.fixture
async def store(kind: str, clock: ManualClock, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    async with _made(kind, clock, tmp_path, request) as made:
        yield made


@asynccontextmanager
async def _made(kind: str, clock: ManualClock, folder: Path, request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    store: Store
    if kind == "memory":
        store = SqliteStore(None, clock=clock)
    elif kind == "file":
        store = SqliteStore(folder / "hub.db")
    else:
        store = AzureStore(request.getfixturevalue("azurite"), timeout=timedelta(seconds=30))
    async with store:
        yield store


@pytest.fixture
def elapse(kind: str, clock: ManualClock) -> Callable[[float], Awaitable[None]]:
    """Let the store's time go on: at once in memory, really elsewhere."""
    return clock.advance if kind == "memory" else asyncio.sleep


@pytest.fixture
def fresh() -> str:
    """A name that nobody else in the shared account has: a queue, a table and a container may bear it."""
    return f"t{uuid4().hex[:16]}"


@pytest.fixture
async def queue(store: Store, fresh: str) -> str:
    await store.create_queue(fresh)
    return fresh


@pytest.fixture
async def table(store: Store, fresh: str) -> str:
    await store.create_table(fresh)
    return fresh


@pytest.fixture
async def container(store: Store, fresh: str) -> str:
    await store.create_container(fresh)
    return fresh
