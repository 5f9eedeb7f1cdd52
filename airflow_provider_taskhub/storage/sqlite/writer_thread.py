"""The writer thread of a process: everything that has arrived is one transaction and one fsync.

All stores that a process has on one file share one :class:`Writer`. It holds the file's lock for a short, bounded time;
when other processes write too, it stays away from the lock for a moment after each commit, so that their random tries
find it free: shares are even without a queue of processes that a stopped one could block.
"""

from __future__ import annotations

import asyncio
import os
import queue
import random
import sqlite3
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.errors import ConfigurationError, Throttled, Unavailable
from airflow_provider_taskhub.storage.sqlite.file import RETRY, connect, prepare, retried
from airflow_provider_taskhub.storage.sqlite.process_wakeups import Caller
from airflow_provider_taskhub.storage.sqlite.store_clock import boot_ticks
from airflow_provider_taskhub.storage.sqlite.transactions import (
    HalfDone,
    Outcome,
    Transactions,
    Work,
    is_busy,
    translated,
)

MAX_GROUP = 512
"""Works in one transaction."""
MAX_HOLD = 0.02
"""Seconds after which a transaction takes in no further work."""
MAX_WAITING = 10_000
"""Works that wait for the thread; more are refused."""
COURTESY = RETRY[1] * 0.6
"""Seconds without the lock after a commit while others write; about every second waiting try falls into it."""


@dataclass(slots=True, eq=False)
class Job:
    """A work, and who waits for it.

    :param deadline: on ``time.monotonic``; a job that is later is refused before it is begun.
    """

    work: Work
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    deadline: float


class Writer:
    """One thread, one connection, one journal. Made by :meth:`share`."""

    _shared: dict[Path, Writer] = {}  # noqa: RUF012  # the process's own registry, emptied by a fork
    _guard = threading.Lock()
    _inherited: frozenset[Path] = frozenset()
    """Files that were open when this process was forked."""

    @classmethod
    def share(cls, path: Path, clock: Clock, timeout: float) -> Writer:
        """The process's writer of a file, started by the first user. Give it back by :meth:`leave`.

        :raises ConfigurationError: when the file cannot be used.
        """
        if path in cls._inherited:
            raise ConfigurationError(
                f"{path} was open when this process was forked, and SQLite's locks do not survive that; "
                "close the store before the fork, or start the process anew (spawn)"
            )
        with cls._guard:
            writer = cls._shared.get(path)
            if writer is None:
                prepare(path, clock, timeout)
                writer = cls._shared[path] = cls(path, timeout)
            writer._users += 1
            return writer

    def __init__(self, path: Path, timeout: float) -> None:
        self._path = path
        self._users = 0
        self._connection = connect(path, timeout)
        self.journal = Transactions(self._connection, boot_ticks)
        self._caller = Caller(self._connection)
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._file = path.stat().st_ino
        self._version = 0
        self._ended = 0.0
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="taskhub-writer", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """The last user's leaving ends the thread after what was submitted before. Blocks until then."""
        with Writer._guard:
            self._users -= 1
            if self._users:
                return
            Writer._shared.pop(self._path, None)
            self._closed = True
        self._jobs.put(None)
        self._thread.join()

    def submit(self, job: Job) -> None:
        """Hand a job over; its future is settled on its loop.

        :raises Throttled: when too many wait. :raises Unavailable: when the writer has ended.
        """
        if self._closed:
            raise Unavailable(f"{self._path} is closed", maybe_done=False)
        if self._jobs.qsize() >= MAX_WAITING:
            raise Throttled(f"{MAX_WAITING} operations wait for {self._path}", retry_after=0.1)
        self._jobs.put(job)

    def _serve(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                if not self._serve_group(job):
                    return
        finally:
            self._closed = True
            self._caller.close()
            self._connection.close()

    def _serve_group(self, first: Job) -> bool:
        """One transaction that begins with ``first``. False when the thread is to end."""
        jobs: list[tuple[Job, Outcome]] = []
        pressing = time.monotonic() - self._ended < COURTESY
        try:
            retried(self._begin, max(0.0, first.deadline - time.monotonic()))
        except Exception as error:
            settle([(first, Outcome(error=_refused(error)))])
            return True
        go_on = True
        try:
            go_on = self._run_group(first, jobs)
            calls = self._caller.prepare([outcome.touched for _, outcome in jobs])
            self.journal.commit()
        except Exception as error:
            self.journal.abandon()
            settle([(job, outcome if outcome.error else Outcome(error=_lost(error))) for job, outcome in jobs])
            return go_on
        settle(jobs)
        self._caller.call(calls)
        if pressing:  # else the lock was free for long enough
            self._give_way()
        self._ended = time.monotonic()
        return go_on

    def _begin(self) -> None:
        if self._path.stat().st_ino != self._file:
            raise Unavailable(f"{self._path} was replaced while it was open", maybe_done=False)
        self.journal.begin()

    def _run_group(self, first: Job, jobs: list[tuple[Job, Outcome]]) -> bool:
        """Run the first job and all that have arrived, within bounds. False when the thread is to end."""
        end = time.monotonic() + MAX_HOLD
        job: Job | None = first
        while job is not None:
            self._run_job(job, jobs)
            if len(jobs) >= MAX_GROUP or time.monotonic() > end:
                return True
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return True
        return False

    def _run_job(self, job: Job, jobs: list[tuple[Job, Outcome]]) -> None:
        if job.future.cancelled():
            return
        if time.monotonic() > job.deadline:
            jobs.append((job, Outcome(error=Unavailable("not begun within its deadline", maybe_done=False))))
            return
        jobs.append((job, Outcome()))  # so that a lost transaction settles this one too
        try:
            jobs[-1] = (job, self.journal.run(job.work))
        except HalfDone:
            retried(self.journal.restart, max(0.0, job.deadline - time.monotonic()))
            jobs[:] = [(job, outcome if outcome.error else self.journal.run(job.work)) for job, outcome in jobs]

    def _give_way(self) -> None:
        """Leave the lock alone for a moment if another connection has committed since our last look."""
        try:
            version = self._connection.execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.Error:
            return  # locked for recovery: nobody writes
        if version != self._version:
            self._version = version
            time.sleep(random.uniform(COURTESY / 2, COURTESY))


def settle(jobs: list[tuple[Job, Outcome]]) -> None:
    """Give outcomes to their loops, one call for each loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Job, Outcome]]] = {}
    for job, outcome in jobs:
        by_loop.setdefault(job.loop, []).append((job, outcome))
    for loop, part in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle_here, part)
        except RuntimeError:
            continue  # the loop was closed: nobody waits any more


def _settle_here(jobs: list[tuple[Job, Outcome]]) -> None:
    for job, outcome in jobs:
        if job.future.done():
            continue
        if outcome.error is not None:
            job.future.set_exception(outcome.error)
        else:
            job.future.set_result(outcome.value)


def _refused(error: Exception) -> Exception:
    """A transaction that could not begin."""
    if isinstance(error, OSError):
        return Unavailable(f"the file is gone: {error}", maybe_done=False)
    return translated(error)


def _lost(error: Exception) -> Unavailable:
    """A commit without a clear answer."""
    if isinstance(error, Unavailable):
        return Unavailable(str(error), maybe_done=error.maybe_done)
    busy = isinstance(error, sqlite3.Error) and is_busy(error)
    return Unavailable(f"commit failed: {error}", maybe_done=not busy)


def _forget_parent() -> None:
    """After a fork the child has no thread, and must not touch the parent's connections; nor may it open the same file:
    SQLite would take the parent's locks, which it still remembers, for its own."""
    Writer._inherited |= frozenset(Writer._shared)
    Writer._shared = {}
    Writer._guard = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)
