"""Runs a group of works in one SQLite transaction.

A *work* is a function that gets a :class:`Change` and changes the database. If a work raises an error, only the changes
of this work are undone. A savepoint for each work would do this, but a savepoint costs two SQL statements, and most
works that raise an error have changed nothing yet. So a group begins without savepoints. If a work raises after its
first change, the whole group is undone and runs again with savepoints.

:class:`Transactions` also updates the file's ``anchor`` row. This row has the last number that was used for ETags,
message ids and pop receipts, and the largest time that was used.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from airflow_provider_taskhub.errors import NotFound, Unavailable


class Change:
    """Gives a work its transaction: the connection, the store's time, and new numbers.

    :param connection: connection whose transaction has begun.
    :param source: function that returns the ticks of the boot clock, or of the clock that the store was given.
    """

    def __init__(self, connection: sqlite3.Connection, source: Callable[[], int]) -> None:
        self.connection = connection
        self.touched: dict[str, int] = {}
        """Queues and topics whose waiters need a wake-up. The value is the earliest time, in ticks, at which a new
        message of the queue is visible; 0 for a topic."""
        self._source = source
        self._identifiers: dict[tuple[str, str], int] = {}
        row = connection.execute("SELECT sequence, shift, high, identity FROM anchor").fetchone()
        self._sequence: int = row[0]
        self._shift: int = row[1]
        self._high: int = row[2]
        self.identity: int = row[3]

    def now(self) -> int:
        """Return the store's time in ticks. The time never goes back."""
        self._high = max(self._source() + self._shift, self._high)
        return self._high

    @property
    def last(self) -> int:
        """The last number that was used."""
        return self._sequence

    def next(self) -> int:
        """Return a new number for an ETag, a message id or a pop receipt. A file never gets the same number twice."""
        self._sequence += 1
        return self._sequence

    def touch(self, queue: str, visible: int) -> None:
        """Wake the waiters of a queue or topic after the commit.

        :param queue: name of the queue or topic.
        :param visible: time in ticks from which a message of the queue is visible; 0 for a topic.
        """
        self.touched[queue] = min(visible, self.touched.get(queue, visible))

    def identifier(self, kind: str, name: str) -> int:
        """Return the number of a queue, table or container (:func:`identifier`). Remember it for this transaction."""
        number = self._identifiers.get((kind, name))
        if number is None:
            number = self._identifiers[kind, name] = identifier(self.connection, kind, name)
        return number

    def forget(self) -> None:
        """Forget all numbers that :meth:`identifier` remembers, because a table was deleted.

        Names of tables ignore case, so the deleted table may be remembered under several names.
        """
        self._identifiers.clear()

    def keep(self) -> None:
        """Store the last number and the largest time in the ``anchor`` row, right before the commit."""
        self.connection.execute("UPDATE anchor SET sequence = ?, high = ?", (self._sequence, self._high))


Work: TypeAlias = Callable[[Change], Any]


@dataclass(slots=True)
class Outcome:
    """The result of a work, or the error that the work raised."""

    value: Any = None
    error: Exception | None = None
    touched: dict[str, int] = field(default_factory=dict)

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


class HalfDone(Exception):
    """A work raised an error after it had changed something. The transaction must be undone and run again."""


class Restored(Exception):
    """The file has an older or another content than at the last transaction: it was overwritten or restored."""


class Transactions:
    """Runs transactions on one connection, one after another.

    :param connection: connection in autocommit mode (``isolation_level=None``).
    :param source: function that returns the ticks of the boot clock, or of the clock that the store was given.
    """

    def __init__(self, connection: sqlite3.Connection, source: Callable[[], int]) -> None:
        self._connection = connection
        self._source = source
        self._change: Change | None = None
        self._before = 0
        self._guarded = False
        self._identity: int | None = None
        self._sequence = 0
        self.commits = 0
        """Number of committed transactions, for tests and telemetry."""

    def begin(self) -> None:
        """Begin a transaction.

        :raises sqlite3.OperationalError: with the code busy if another process writes.
        :raises Restored: if the file has another content than before.
        """
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            self._change = Change(self._connection, self._source)
            self._check(self._change)
        except BaseException as error:
            self._connection.execute("ROLLBACK")
            if self._identity is not None and (isinstance(error, TypeError) or "no such" in str(error)):
                raise Restored from error  # the file is another program's database, or an empty one
            raise
        self._before = self._connection.total_changes
        self._guarded = False

    def _check(self, change: Change) -> None:
        """Check that the file is the one of the last transaction: the same identity, and no smaller last number.

        The file keeps its number in the file system if another file is copied into it, or if SQLite restores a backup.

        :raises Restored: if it is not.
        """
        if self._identity not in (None, change.identity) or change.last < self._sequence:
            self._change = None
            raise Restored
        self._identity, self._sequence = change.identity, change.last

    def restart(self) -> None:
        """Roll back the current transaction and begin a new one.

        In the new transaction each work has its own savepoint, so that its changes can be undone alone.

        :raises sqlite3.OperationalError: with the code busy if another process writes now. Then the old transaction is
            rolled back, and no new transaction is open.
        """
        self.abandon()
        self.begin()
        self._guarded = True

    def run(self, work: Work) -> Outcome:
        """Run one work inside the transaction.

        :returns: the work's result, or its error if the work has changed nothing or its changes are undone.
        :raises HalfDone: if the work's changes cannot be undone alone. The caller must call :meth:`restart` and run all
            works of the group again.
        :raises Unavailable: if SQLite has undone the whole transaction, because of a full disk or an I/O error.
        """
        change = self._change
        assert change is not None, "run() stands between begin() and commit()"
        change.touched = {}
        before = self._connection.total_changes
        if self._guarded:
            self._connection.execute("SAVEPOINT work")
        try:
            outcome = Outcome(work(change), touched=change.touched)
        except Exception as error:
            if not self._connection.in_transaction:  # SQLite has undone the whole transaction
                self._change = None
                raise Unavailable(f"transaction lost: {error}", maybe_done=False) from error
            if self._guarded:
                self._connection.execute("ROLLBACK TO work")
            elif self._connection.total_changes != before:
                raise HalfDone from error
            outcome = Outcome(error=translated(error))
        except BaseException:
            self.abandon()
            raise
        if self._guarded:
            self._connection.execute("RELEASE work")
        return outcome

    def commit(self) -> None:
        """Commit the transaction. If it has no changes, roll it back instead, because that needs no write."""
        change, self._change = self._change, None
        assert change is not None, "commit() follows begin()"
        if self._connection.total_changes == self._before:
            self._connection.execute("ROLLBACK")
            return
        try:
            change.keep()
            self._connection.execute("COMMIT")
        except BaseException:
            self.abandon()
            raise
        self._sequence = change.last
        self.commits += 1

    def abandon(self) -> None:
        """Undo the transaction. Do nothing if no transaction is open."""
        self._change = None
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")


def translated(error: Exception) -> Exception:
    """Return the storage error ``Unavailable`` for an error of SQLite. Return any other error unchanged."""
    if isinstance(error, sqlite3.Error):
        return Unavailable(f"SQLite: {error}", maybe_done=False)
    return error


def is_busy(error: sqlite3.Error) -> bool:
    """Return True if SQLite refused a statement because another connection holds the lock. The caller should retry."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def identifier(connection: sqlite3.Connection, kind: str, name: str) -> int:
    """Return the number of a queue, table or container.

    :param kind: SQL table that lists the names: ``queues``, ``tables`` or ``containers``.
    :raises NotFound: if the name does not exist.
    """
    row = connection.execute(f"SELECT id FROM {kind} WHERE name = ?", (name,)).fetchone()
    if row is None:
        raise absent(kind.removesuffix("s"), name)
    return int(row[0])


def absent(what: str, name: str) -> NotFound:
    return NotFound(f"{what} {name!r} does not exist")
