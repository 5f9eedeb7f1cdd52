"""Gives one store access to an SQLite file that many processes share.

One writer thread carries out all writes of the process. Each store has its own connections for reads.
"""

from __future__ import annotations

import asyncio
import enum
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.errors import StorageError, Unavailable
from airflow_provider_taskhub.retries import Retries, retry
from airflow_provider_taskhub.storage.sqlite.file import RETRY, connect, retried
from airflow_provider_taskhub.storage.sqlite.process_wakeups import (
    FALLBACK,
    Waiters,
    addresses_of,
    register,
    unregister,
)
from airflow_provider_taskhub.storage.sqlite.queues import all_earliest
from airflow_provider_taskhub.storage.sqlite.store_clock import TICKS, boot_ticks
from airflow_provider_taskhub.storage.sqlite.transactions import Transactions, Work, is_busy, translated
from airflow_provider_taskhub.storage.sqlite.writer_thread import Job, Writer
from airflow_provider_taskhub.storage.wakeups import WakeupReceiver

T = TypeVar("T")


class Reader(enum.Enum):
    """Names the threads that carry out reads that can take long. Each thread has its own connection.

    A single thread was rejected: a listing of many instances would delay the workers, which read histories.
    """

    PARTITION = "partition"
    """The thread that reads rows of one partition key, such as a history, and single blobs."""
    LISTING = "listing"
    """The thread that reads rows of many partition keys, and names of blobs."""


class SharedFile:
    """Access of one store to an SQLite file. Short reads run on the event loop, long ones in threads (:class:`Reader`).

    :param path: path of the file.
    :param clock: clock of the caller, for retries and for :func:`prepare`.
    :param timeout: seconds after which a write without an answer fails, and for which a read waits for a locked file.
    """

    def __init__(self, path: Path, clock: Clock, timeout: float) -> None:
        self._path = path
        self._clock = clock
        self._timeout = timeout
        self._locked = Retries(after=(_Busy,), within=timeout, first=sum(RETRY) / 2, factor=1.0, jitter=0.6)
        self._opened: _Opened | None = None
        self._listening = asyncio.Lock()
        self._receiver: WakeupReceiver | None = None
        self._has_no_socket = False
        self._unanswered: dict[asyncio.Future[Any], float] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self.waiters, self.topics = Waiters(self._soon_visible), Waiters()
        self.identity = 0

    async def open(self) -> None:
        if self._opened is None:
            self._opened = await asyncio.to_thread(_Opened, self._path, self._clock, self._timeout)
            self.identity = self._opened.identity

    async def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is None:
            return
        try:
            if self._receiver is not None:
                receiver, self._receiver = self._receiver, None
                receiver.close()
                await self._submit(opened, lambda change: unregister(change, receiver.address))
        finally:
            await asyncio.to_thread(opened.close)

    @property
    def journal(self) -> Transactions:
        return self._current().writer.journal

    def _current(self) -> _Opened:
        if self._opened is None:
            raise Unavailable(f"{self._path} is not open", maybe_done=False)
        if self._opened.process != os.getpid():
            raise Unavailable(
                f"{self._path} was opened before a fork; close it before the fork, or start the process anew (spawn)",
                maybe_done=False,
            )
        return self._opened

    def now(self) -> int:
        return boot_ticks() + self._current().shift

    async def write(self, work: Work) -> Any:
        """Run a work (a function that changes the database), and return its result.

        The writer thread runs the work in its next transaction.
        """
        return await self._submit(self._current(), work)

    async def _submit(self, opened: _Opened, work: Work) -> Any:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        opened.writer.submit(Job(work, loop, future, time.monotonic() + self._timeout))
        # This is a little later than the job's deadline, because the writer itself fails a job that it has not begun.
        self._unanswered[future] = loop.time() + self._timeout * 1.1
        if self._alarm is None:
            self._alarm = loop.call_at(self._unanswered[future], self._expire)
        try:
            return await future
        finally:
            del self._unanswered[future]

    def _expire(self) -> None:
        """Fail each write whose deadline is over.

        All writes share one timer, because a timer for each write would cost more time than most works take.
        """
        loop, self._alarm = asyncio.get_running_loop(), None
        for future, deadline in self._unanswered.items():  # this dict has the order of the deadlines
            if deadline > loop.time():  # all later writes have later deadlines
                self._alarm = loop.call_at(deadline, self._expire)
                return
            if not future.done():
                future.set_exception(Unavailable(f"no answer from {self._path} within {self._timeout:g} s"))

    async def read(self, reading: Callable[[sqlite3.Connection], T], *, reader: Reader | None = None) -> T:
        """Call a function that reads the database, and return its result.

        :param reading: function that gets a connection.
        :param reader: thread that calls the function; None: the event loop, for reads of well under a millisecond.
        """
        if reader is not None:
            return await self._current().readers[reader].read(reading)
        try:
            return self.glance(reading)
        except _Busy:
            pass  # This is rare. The first try does not use the retry loop below, because the loop makes reads slower.

        async def again() -> T:
            return self.glance(reading)

        try:
            return await retry(again, self._locked, self._clock)
        except _Busy:
            raise Unavailable(f"another process keeps {self._path} locked", maybe_done=False) from None

    def glance(self, reading: Callable[[sqlite3.Connection], T]) -> T:
        """Call a function that reads the database, once, on the event loop.

        :raises _Busy: if another process recovers the file after a process was killed.
        """
        try:
            return reading(self._current().connection)
        except sqlite3.Error as error:
            raise (_Busy() if is_busy(error) else translated(error)) from error

    def _signal(self, names: Sequence[str] | None) -> None:
        for waiters in (self.waiters, self.topics):
            waiters.signal(names)

    def _soon_visible(self, names: Sequence[str]) -> list[str] | None:
        """Return those of the queues that have a message which is visible before the next look.

        :returns: None if the file cannot be read now: the tasks that wait try it themselves, and meet its errors.
        """
        try:
            found = self.glance(partial(all_earliest, names=names))
            limit = self.now() + int(FALLBACK * TICKS)
        except StorageError:
            return None
        return [name for name, visible in found.items() if visible <= limit]

    async def listen(self, queues: Sequence[str]) -> None:
        """Create the socket for wake-ups from other processes, if this store does not have the socket yet."""
        async with self._listening:
            if self._receiver is None and not self._has_no_socket:
                try:
                    receiver = WakeupReceiver(addresses_of(self._path), self._signal)
                except OSError:  # no folder for a socket: the file is looked at once a second
                    self._has_no_socket = True
                    return
                try:
                    await self.write(lambda change: register(change, receiver.address))
                except BaseException:
                    receiver.close()
                    raise
                self._receiver = receiver


class _Busy(Unavailable):
    """A read found the file locked. The caller tries again."""

    def __init__(self) -> None:
        super().__init__("another process is recovering the file", maybe_done=False)


class _Opened:
    """The connections and threads of an open store. A thread opens and closes them, because the disk may be slow."""

    def __init__(self, path: Path, clock: Clock, timeout: float) -> None:
        self.process = os.getpid()
        self.writer = Writer.share(path, clock, timeout)
        try:
            self.connection = _connect(path, timeout)
            anchor = "SELECT shift, identity FROM anchor"
            row = retried(lambda: self.connection.execute(anchor).fetchone(), timeout)
            self.shift: int = row[0]
            self.identity: int = row[1]
            self.readers = {kind: _ReaderThread(path, timeout, kind) for kind in Reader}
        except BaseException:
            self.writer.leave()
            raise

    def close(self) -> None:
        for reader in self.readers.values():
            reader.close()
        self.connection.close()
        self.writer.leave()


class _ReaderThread:
    """One thread for reads, with its connection."""

    def __init__(self, path: Path, timeout: float, kind: Reader) -> None:
        self._timeout = timeout
        self._connection = _connect(path, timeout)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"taskhub-{kind.value}")

    async def read(self, reading: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._read, reading)

    def _read(self, reading: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return retried(lambda: reading(self._connection), self._timeout)
        except sqlite3.Error as error:
            raise translated(error) from error

    def close(self) -> None:
        self._thread.shutdown()
        self._connection.close()


def _connect(path: Path, timeout: float) -> sqlite3.Connection:
    connection = connect(path, timeout)
    retried(lambda: connection.execute("PRAGMA query_only = ON"), timeout)
    return connection
