"""Works in transactions: one transaction for a group of them.

A *work* is a function over a :class:`Change`; what it raises undoes only itself. Most of those that raise have changed
nothing yet, so savepoints, two statements a work, are made only in a group that has met another one. The journal owns
the sequence (ETags, message ids, pop receipts) and the largest time given out, both kept in the file's ``anchor`` row.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from airflow_provider_taskhub.errors import NotFound, Unavailable


class Change:
    """What a work may use inside its transaction.

    :param connection: in a transaction. :param source: boot ticks, or ticks of a given clock.
    """

    def __init__(self, connection: sqlite3.Connection, source: Callable[[], int]) -> None:
        self.connection = connection
        self.touched: dict[str, int] = {}
        """What there is news of: queues, with the earliest time at which something in them is visible; other names."""
        self._source = source
        self._identifiers: dict[tuple[str, str], int] = {}
        row = connection.execute("SELECT sequence, shift, high, identity FROM anchor").fetchone()
        self._sequence: int = row[0]
        self._shift: int = row[1]
        self._high: int = row[2]
        self.identity: int = row[3]

    def now(self) -> int:
        """The store's time in ticks, never before any time given out earlier."""
        self._high = max(self._source() + self._shift, self._high)
        return self._high

    def next(self) -> int:
        """A number that the file has never given out."""
        self._sequence += 1
        return self._sequence

    def touch(self, queue: str, visible: int) -> None:
        """Note that a message of the queue can be received from ``visible`` on."""
        self.touched[queue] = min(visible, self.touched.get(queue, visible))

    def identifier(self, kind: str, name: str) -> int:
        """As :func:`identifier`; asked once in a transaction."""
        number = self._identifiers.get((kind, name))
        if number is None:
            number = self._identifiers[kind, name] = identifier(self.connection, kind, name)
        return number

    def forget(self) -> None:
        """One of them is dropped, whatever case its name was asked for in."""
        self._identifiers.clear()

    def keep(self) -> None:
        """Write sequence and time back, as the last statement before the commit."""
        self.connection.execute("UPDATE anchor SET sequence = ?, high = ?", (self._sequence, self._high))


Work: TypeAlias = Callable[[Change], Any]


@dataclass(slots=True)
class Outcome:
    """What a work returned, or raised."""

    value: Any = None
    error: Exception | None = None
    touched: dict[str, int] = field(default_factory=dict)

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


class HalfDone(Exception):
    """A work has raised behind its first change; the transaction has that change and cannot be committed."""


class Transactions:
    """Transactions on one connection, one after another.

    :param connection: in autocommit mode (``isolation_level=None``).
    """

    def __init__(self, connection: sqlite3.Connection, source: Callable[[], int]) -> None:
        self._connection = connection
        self._source = source
        self._change: Change | None = None
        self._before = 0
        self._guarded = False
        self.commits = 0
        """Transactions committed, for tests and telemetry."""

    def begin(self) -> None:
        """:raises sqlite3.OperationalError: busy, when another process writes."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            self._change = Change(self._connection, self._source)
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._before = self._connection.total_changes
        self._guarded = False

    def restart(self) -> None:
        """Undo the transaction and begin it anew, each work with a savepoint.

        :raises sqlite3.OperationalError: busy, when another process was faster; nothing is left then.
        """
        self.abandon()
        self.begin()
        self._guarded = True

    def run(self, work: Work) -> Outcome:
        """Carry out one work of the transaction; its error undoes only itself.

        :raises HalfDone: when it cannot be undone alone: all works of the group go again after :meth:`restart`.
        :raises Unavailable: when the whole transaction is lost (a full disk, an I/O error).
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
            if not self._connection.in_transaction:  # SQLite has rolled everything back by itself
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
        """Make the transaction durable; one in which nothing changed costs no write."""
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
        self.commits += 1

    def abandon(self) -> None:
        """Undo the transaction, if there still is one."""
        self._change = None
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")


def translated(error: Exception) -> Exception:
    """SQLite's own errors as the storage error that they mean; every other error as it is."""
    if isinstance(error, sqlite3.Error):
        return Unavailable(f"SQLite: {error}", maybe_done=False)
    return error


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection holds the lock: try again."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def identifier(connection: sqlite3.Connection, kind: str, name: str) -> int:
    """The number of a queue, table or container (``kind`` is the SQL table that lists them).

    :raises NotFound: naming it.
    """
    row = connection.execute(f"SELECT id FROM {kind} WHERE name = ?", (name,)).fetchone()
    if row is None:
        raise absent(kind.removesuffix("s"), name)
    return int(row[0])


def absent(what: str, name: str) -> NotFound:
    return NotFound(f"{what} {name!r} does not exist")
