"""Keeps a private database in memory, for tests, the simulation and ``testing.run``.

The caller's thread runs all calls. The database uses no other thread, no lock, and only the clock that its caller
gives. So the database works under an event loop with virtual time.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.errors import Unavailable
from airflow_provider_taskhub.storage.sqlite import file
from airflow_provider_taskhub.storage.sqlite.process_wakeups import Waiters
from airflow_provider_taskhub.storage.sqlite.shared_file import Reader
from airflow_provider_taskhub.storage.sqlite.store_clock import clock_ticks
from airflow_provider_taskhub.storage.sqlite.transactions import HalfDone, Transactions, Work, translated

T = TypeVar("T")


class InMemory:
    """Access to a private database in memory. The content survives :meth:`close` until the next :meth:`open`."""

    identity = 0

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._connection: sqlite3.Connection | None = None
        self._source: Callable[[], int] = lambda: 0
        self.waiters = self.topics = Waiters()
        self.journal: Transactions | None = None

    async def open(self) -> None:
        if self._connection is None:
            self._source = clock_ticks(self._clock)
            self._connection = file.memory(self._source())
            self.journal = Transactions(self._connection, self._source)

    async def close(self) -> None:
        """Do nothing: the content stays for the next :meth:`open`."""

    def now(self) -> int:
        return self._source()

    async def write(self, work: Work) -> Any:
        """Run a work (a function that changes the database) in a transaction of its own, and return the work's result.

        Other tasks of the event loop run first, as in a store that does I/O.
        """
        await asyncio.sleep(0)
        if self.journal is None:
            raise Unavailable("the store is not open", maybe_done=False)
        self.journal.begin()
        try:
            outcome = self.journal.run(work)
        except HalfDone:
            self.journal.restart()
            outcome = self.journal.run(work)
        self.journal.commit()
        self.waiters.signal(outcome.touched)
        return outcome.result()

    async def read(self, reading: Callable[[sqlite3.Connection], T], *, reader: Reader | None = None) -> T:
        del reader  # all reads run on the event loop
        await asyncio.sleep(0)
        return self.glance(reading)

    def glance(self, reading: Callable[[sqlite3.Connection], T]) -> T:
        if self._connection is None:
            raise Unavailable("the store is not open", maybe_done=False)
        try:
            return reading(self._connection)
        except sqlite3.Error as error:
            raise translated(error) from error

    async def listen(self, queues: Sequence[str]) -> None:
        """Do nothing: only this process can write, and :meth:`write` wakes the waiters."""
