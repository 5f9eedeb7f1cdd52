"""Runs the thread that carries out all writes of a process to one SQLite file.

All stores of a process on one file share one :class:`Writer`. The writer runs the waiting works (functions that change
the database) in one transaction, so they share one fsync. It begins no further work after :data:`MAX_GROUP` works or
:data:`MAX_HOLD` seconds, so it holds the file's lock for a short time. If its transactions follow each other at once
and other processes write too, the writer leaves the lock free for a moment after a commit. The other processes try to
get the lock at random times and find it free. So all processes get an even share. A queue of processes was rejected: a
stopped process would block the queue.
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
from airflow_provider_taskhub.errors import ConfigurationError, StoreReplaced, Throttled, Unavailable
from airflow_provider_taskhub.storage.sqlite.file import RETRY, connect, prepare, retried
from airflow_provider_taskhub.storage.sqlite.process_wakeups import Announcer
from airflow_provider_taskhub.storage.sqlite.store_clock import boot_ticks
from airflow_provider_taskhub.storage.sqlite.transactions import (
    HalfDone,
    Outcome,
    Restored,
    Transactions,
    Work,
    is_busy,
    translated,
)

MAX_GROUP = 512
"""Largest number of works that one transaction runs."""
MAX_HOLD = 0.02
"""Seconds after which a transaction begins no further work. It is then committed, even if more works wait."""
MAX_WAITING = 10_000
"""Largest number of works that can wait for the writer thread. The writer refuses further works with ``Throttled``."""
COURTESY = RETRY[1] * 0.6
"""Longest time in seconds for which the writer leaves the lock free after a commit. It does so only if the transaction
began less than this time after the previous one, and another process has committed since the last check. A process that
waits for the lock tries again after a random time (``RETRY`` in ``file.py``). About half of these times are shorter."""


LONGEST_MISSING = 10.0
"""Seconds. A file that does not exist for so long counts as replaced. A shorter time may be a move and a move back."""


@dataclass(slots=True, eq=False)
class Job:
    """A work for the writer thread, with the future and event loop of the caller that waits for the result.

    :param deadline: time of ``time.monotonic`` after which the writer fails the job instead of beginning the work.
    """

    work: Work
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    deadline: float


class Writer:
    """A thread with one connection, which writes to a file for all stores of this process. See :meth:`share`."""

    _shared: dict[Path, Writer] = {}  # noqa: RUF012  # the writers of this process by file; a fork empties the dict
    _guard = threading.Lock()
    _inherited: frozenset[Path] = frozenset()
    """Files that the parent process had open when it forked this process."""

    @classmethod
    def share(cls, path: Path, clock: Clock, timeout: float) -> Writer:
        """Return this process's writer for a file. Start the writer if the process has none for the file as it is now.

        Each caller must call :meth:`leave` when it does not need the writer any more.

        :raises ConfigurationError: if the file cannot be used.
        """
        if path in cls._inherited:
            raise ConfigurationError(
                f"{path} was open when this process was forked, and SQLite's locks do not survive that; "
                "close the store before the fork, or start the process anew (spawn)"
            )
        with cls._guard:
            writer = cls._shared.get(path)
            if writer is None or writer._is_void:
                prepare(path, clock, timeout)
                writer = cls._shared[path] = cls(path, timeout)
            writer._users += 1
            return writer

    def __init__(self, path: Path, timeout: float) -> None:
        self._path = path
        self._users = 0
        self._connection = connect(path, timeout)
        self.journal = Transactions(self._connection, boot_ticks)
        self._announcer = Announcer(self._connection)
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._file = path.stat().st_ino
        self._version = 0
        self._ended = 0.0
        self._locked: float | None = None
        """Time of ``time.monotonic`` since which no transaction could begin; None: the last one has begun."""
        self._missing: float | None = None
        """Time of ``time.monotonic`` since which the file does not exist; None: it exists."""
        self._is_void = False
        """True once the file was replaced or restored. Stores that are opened later get another writer."""
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="taskhub-writer", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Stop using the writer. The last user ends the thread after all submitted jobs, and blocks until then."""
        with Writer._guard:
            self._users -= 1
            if self._users:
                return
            if Writer._shared.get(self._path) is self:
                del Writer._shared[self._path]
            self._closed = True
        self._jobs.put(None)
        self._thread.join()

    def submit(self, job: Job) -> None:
        """Give a job to the thread. The job's future gets the result on the job's event loop.

        :raises Throttled: if :data:`MAX_WAITING` jobs wait already.
        :raises Unavailable: if the writer has ended.
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
            self._announcer.close()
            self._connection.close()

    def _serve_group(self, first: Job) -> bool:
        """Carry out one transaction, which begins with the job ``first``.

        :returns: False if the thread must end.
        """
        jobs: list[tuple[Job, Outcome]] = []
        began = time.monotonic()
        pressing = began - self._ended < COURTESY
        try:
            retried(self._begin, max(0.0, first.deadline - began))
        except Exception as error:
            # A work that has waited behind another one may have little time left. The lock is older than this time.
            self._locked = self._locked or began
            settle([(first, Outcome(error=_refused(error, time.monotonic() - self._locked)))])
            return True
        self._locked = None
        go_on = True
        try:
            go_on = self._run_group(first, jobs)
            wakeups = self._announcer.prepare([outcome.touched for _, outcome in jobs])
            self.journal.commit()
        except Exception as error:
            self.journal.abandon()
            settle([(job, outcome if outcome.error else Outcome(error=_lost(error))) for job, outcome in jobs])
            return go_on
        settle(jobs)
        self._announcer.announce(wakeups)
        if pressing:  # otherwise the lock was free for some time before this transaction
            self._give_way()
        self._ended = time.monotonic()
        return go_on

    def _begin(self) -> None:
        try:
            if self._path.stat().st_ino != self._file:
                raise self._void("was replaced while it was open")
            self._missing = None
            self.journal.begin()
        except Restored:
            raise self._void("was overwritten or restored while it was open") from None
        except FileNotFoundError:
            self._missing = self._missing or time.monotonic()
            if time.monotonic() - self._missing > LONGEST_MISSING:
                raise self._void("does not exist any more") from None
            raise
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise self._void(f"is damaged, or was overwritten while it was open ({error})") from error
            raise

    def _void(self, what: str) -> StoreReplaced:
        self._is_void = True
        return StoreReplaced(
            f"{self._path} {what}, so nothing more is written to it: open it anew, or start this process again",
            maybe_done=False,
        )

    def _run_group(self, first: Job, jobs: list[tuple[Job, Outcome]]) -> bool:
        """Run the first job and all waiting jobs, until :data:`MAX_GROUP` or :data:`MAX_HOLD` is reached.

        :param jobs: list to which each job is appended with its outcome.
        :returns: False if the thread must end.
        """
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
            jobs.append(
                (
                    job,
                    Outcome(error=Unavailable("the writer thread has not begun the work in time", maybe_done=False)),
                )
            )
            return
        jobs.append((job, Outcome()))  # added before the run, because a failed transaction fails all jobs in the list
        try:
            jobs[-1] = (job, self.journal.run(job.work))
        except HalfDone:
            retried(self.journal.restart, max(0.0, job.deadline - time.monotonic()))
            jobs[:] = [(job, outcome if outcome.error else self.journal.run(job.work)) for job, outcome in jobs]

    def _give_way(self) -> None:
        """Leave the lock free for a moment if another connection has committed since the previous call."""
        try:
            version = self._connection.execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.Error:
            return  # the file is locked for recovery, so no process can write
        if version != self._version:
            self._version = version
            time.sleep(random.uniform(COURTESY / 2, COURTESY))


def settle(jobs: list[tuple[Job, Outcome]]) -> None:
    """Complete the futures of jobs. Each event loop gets one call for all its jobs."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Job, Outcome]]] = {}
    for job, outcome in jobs:
        by_loop.setdefault(job.loop, []).append((job, outcome))
    for loop, part in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle_here, part)
        except RuntimeError:
            continue  # the event loop is closed, so no caller waits any more


def _settle_here(jobs: list[tuple[Job, Outcome]]) -> None:
    for job, outcome in jobs:
        if job.future.done():
            continue
        if outcome.error is not None:
            job.future.set_exception(outcome.error)
        else:
            job.future.set_result(outcome.value)


def _refused(error: Exception, seconds: float) -> Exception:
    """Return the storage error for a transaction that could not begin.

    :param seconds: time for which no transaction could begin.
    """
    if isinstance(error, StoreReplaced):
        return error
    if isinstance(error.__cause__, sqlite3.Error):  # from `retried`, which knows the time of one work only
        return Unavailable(f"another process has locked the file for {seconds:.1f} s", maybe_done=False)
    if isinstance(error, OSError):
        return Unavailable(f"the file does not exist any more, or cannot be read: {error}", maybe_done=False)
    return translated(error)


def _lost(error: Exception) -> Unavailable:
    """Return the storage error for a transaction that failed: the commit may have succeeded, unless SQLite was busy."""
    if isinstance(error, Unavailable):
        return Unavailable(str(error), maybe_done=error.maybe_done)
    busy = isinstance(error, sqlite3.Error) and is_busy(error)
    return Unavailable(f"commit failed: {error}", maybe_done=not busy)


def _forget_parent() -> None:
    """Reset the writers in a child process after a fork, and remember the files that the parent has open.

    The child has no writer thread, and must not use the parent's connections. The child must not open the same files
    either: SQLite's memory was copied by the fork, so SQLite would believe that the child holds the parent's locks.
    """
    Writer._inherited |= frozenset(Writer._shared)
    Writer._shared = {}
    Writer._guard = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)
