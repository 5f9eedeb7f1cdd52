"""Implements tables in SQLite: ETags, merges, entity-group transactions, pages of a query."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from functools import cache
from itertools import groupby
from typing import TypeAlias

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.errors import Conflict, InputError, NotFound
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.storage import rules
from airflow_provider_taskhub.storage.primitives import (
    Entity,
    EtagOf,
    Filter,
    Page,
    RowOperation,
    RowVerb,
    TimeColumn,
    Transact,
)
from airflow_provider_taskhub.storage.sqlite import columns, times
from airflow_provider_taskhub.storage.sqlite.filters import Range, Test, range_of, searches_rows, sql_of, test_of
from airflow_provider_taskhub.storage.sqlite.times import Times
from airflow_provider_taskhub.storage.sqlite.transactions import Change, identifier

MAX_SCANNED = 5_000
"""Largest number of rows that Python tests against the filter for one page. At this limit the page ends early, so that
no read blocks its thread for long."""
MAX_SEARCHED = 25_000
"""Largest number of rows in which SQLite searches for a text or a Timestamp for one page. At this limit the page ends
early, so that no read blocks its thread for long."""
MAX_PAGE_CHARACTERS = 4 * 1024 * 1024
"""A page ends when its stored rows have this many characters."""

Position: TypeAlias = tuple[str, str]
"""Partition key and row key of a row, at which a page ends."""

_MUST_EXIST = frozenset({RowVerb.REPLACE, RowVerb.MERGE, RowVerb.DELETE})
_MERGES = frozenset({RowVerb.MERGE, RowVerb.UPSERT_MERGE})


def transact(change: Change, operation: Transact, resolve: Callable[[EtagOf], str]) -> tuple[str, ...]:
    """Write the rows of an operation. If a row raises an error, the caller undoes all rows.

    :param resolve: function that returns the ETag that an :class:`EtagOf` refers to.
    :returns: the ETag of each row, "" for a deleted row.
    """
    table = change.identifier("tables", operation.table)
    etags: list[str] = []
    for whole, group in groupby(operation.rows, lambda row: row.verb is RowVerb.UPSERT_REPLACE):
        rows = tuple(group)
        etags.extend(_replace(change, table, rows) if whole else [_write(change, table, row, resolve) for row in rows])
    if operation.topic:
        change.touch(operation.topic, 0)
    return tuple(etags)


def _replace(change: Change, table: int, rows: Sequence[RowOperation]) -> list[str]:
    """Insert or replace rows in one SQL statement.

    One statement for each row would be slower: Python releases and takes the GIL again for each statement.
    """
    now, etags, values = change.now(), [], []
    for row in rows:
        etags.append(change.next())
        entity = row.entity
        packed = columns.pack_all(entity.properties)
        values += [table, entity.partition_key, entity.row_key, etags[-1], now, columns.dump(packed)]
        values += times.times_of(packed)
    change.connection.execute(_upsert(len(rows)), values)
    return [_etag(etag) for etag in etags]


@cache
def _upsert(count: int) -> str:
    return (
        "INSERT INTO rows (tbl, pk, rk, etag, ts, data, created, status) "
        f"VALUES {', '.join(['(?, ?, ?, ?, ?, ?, ?, ?)'] * count)} "
        "ON CONFLICT (tbl, pk, rk) DO UPDATE SET etag = excluded.etag, ts = excluded.ts, data = excluded.data, "
        "created = excluded.created, status = excluded.status"
    )


def _write(change: Change, table: int, row: RowOperation, resolve: Callable[[EtagOf], str]) -> str:
    entity = row.entity
    if row.verb is RowVerb.INSERT:
        return _insert(change, table, entity)
    found = change.connection.execute(
        "SELECT number, etag, data, created, status FROM rows WHERE tbl = ? AND pk = ? AND rk = ?",
        (table, entity.partition_key, entity.row_key),
    ).fetchone()
    _check_condition(row, None if found is None else found[1], resolve)
    if row.verb is RowVerb.DELETE:
        change.connection.execute("DELETE FROM rows WHERE number = ?", (found[0],))
        return ""
    packed = columns.pack_all(entity.properties)
    if found is not None and row.verb in _MERGES:
        packed = columns.load(found[2]) | packed
        _check_merged(entity, packed)
    if found is None:
        return _add(change, table, entity, packed)
    return _update(change, found[0], packed, times.times_of(packed), found[3:])


def _check_condition(row: RowOperation, etag: int | None, resolve: Callable[[EtagOf], str]) -> None:
    if row.verb not in _MUST_EXIST:
        return
    if etag is None:
        raise NotFound(f"{rules.place(row.entity)} does not exist")
    wanted = resolve(row.etag) if isinstance(row.etag, EtagOf) else row.etag
    if wanted not in ("*", _etag(etag)):
        raise Conflict(f"{rules.place(row.entity)}: ETag {wanted} is not current")


def _check_merged(entity: Entity, packed: dict[str, columns.Packed]) -> None:
    if rules.surely_fits(len(packed), columns.characters(packed)):
        return
    rules.check_size(
        Entity(partition_key=entity.partition_key, row_key=entity.row_key, properties=columns.unpack_all(packed))
    )


def _update(change: Change, number: int, packed: dict[str, columns.Packed], new: Times, old: Times) -> str:
    etag = change.next()
    values = (etag, change.now(), columns.dump(packed))
    if new == old:  # SQLite writes an index anew for each column that a statement sets
        change.connection.execute("UPDATE rows SET etag = ?, ts = ?, data = ? WHERE number = ?", (*values, number))
    else:
        change.connection.execute(
            "UPDATE rows SET etag = ?, ts = ?, data = ?, created = ?, status = ? WHERE number = ?",
            (*values, *new, number),
        )
    return _etag(etag)


def _insert(change: Change, table: int, entity: Entity) -> str:
    etag = _add(change, table, entity, columns.pack_all(entity.properties), "ON CONFLICT DO NOTHING")
    if not etag:
        raise Conflict(f"{rules.place(entity)} exists")
    return etag


def _add(change: Change, table: int, entity: Entity, packed: dict[str, columns.Packed], conflict: str = "") -> str:
    """Insert a row. :returns: its ETag; "" if the row exists and ``conflict`` says that this is no error."""
    etag = change.next()
    made = change.connection.execute(
        f"INSERT INTO rows (tbl, pk, rk, etag, ts, data, created, status) VALUES (?, ?, ?, ?, ?, ?, ?, ?) {conflict}",
        (
            table,
            entity.partition_key,
            entity.row_key,
            etag,
            change.now(),
            columns.dump(packed),
            *times.times_of(packed),
        ),
    )
    return _etag(etag) if made.rowcount else ""


def _etag(number: int) -> str:
    return f'W/"{number}"'


def get(connection: sqlite3.Connection, table: str, partition_key: str, row_key: str) -> Entity | None:
    found = connection.execute(
        "SELECT pk, rk, etag, ts, data FROM rows WHERE tbl = ? AND pk = ? AND rk = ?",
        (identifier(connection, "tables", table), partition_key, row_key),
    ).fetchone()
    return None if found is None else _Row(*found).entity(None)


def drop(change: Change, table: str) -> None:
    """Delete a table and its rows. It is no error if the table does not exist."""
    row = change.connection.execute("DELETE FROM tables WHERE name = ? RETURNING id", (table,)).fetchone()
    change.forget()
    if row is not None:
        change.connection.execute("DELETE FROM rows WHERE tbl = ?", row)


@dataclass(frozen=True, slots=True)
class _Row:
    partition_key: str
    row_key: str
    etag: int
    ticks: int
    data: str
    time: int = 0
    """The time by which the rows are ordered; 0: they are ordered by their keys."""
    number: int = 0

    @property
    def position(self) -> Position | times.Position:
        """The position at which a page with this row as its last one ends."""
        return (self.time, self.number) if self.number else (self.partition_key, self.row_key)

    def entity(self, select: Collection[str] | None) -> Entity:
        packed = {} if select is not None and not select else columns.load(self.data)
        if select:
            packed = {name: value for name, value in packed.items() if name in select}
        return Entity(
            partition_key=self.partition_key,
            row_key=self.row_key,
            properties=columns.unpack_all(packed),
            etag=_etag(self.etag),
            timestamp=Timestamp(self.ticks),
        )

    def admitted(self, test: Test | None) -> bool:
        if test is None:
            return True
        own: dict[str, columns.Packed] = {
            "PartitionKey": self.partition_key,
            "RowKey": self.row_key,
            "Timestamp": {"t": self.ticks},
        }
        return test(columns.load(self.data) | own)


def query(
    connection: sqlite3.Connection,
    table: str,
    filter: Filter | None,
    *,
    select: Sequence[str] | None,
    limit: int,
    continuation: str | None,
    newest: TimeColumn | None = None,
) -> Page:
    """Read one page of rows. The page ends after ``limit`` rows, or earlier at one of the limits above."""
    number = identifier(connection, "tables", table)
    end: Position | times.Position | None
    if newest is None:
        after = None if continuation is None else _position(continuation)
        end = _end(connection, number, filter, after)
        sql, values = _select(number, filter, after, end)
    else:
        before = None if continuation is None else times.position_of(continuation)
        sql, values, end = times.select(connection, number, filter, newest, after=before, searched=MAX_SEARCHED)
    test = None if filter is None else test_of(filter)
    wanted = None if select is None else frozenset(select)
    entities: list[Entity] = []
    characters = 0
    rows = _rows(connection, sql, values)
    for scanned, row in enumerate(rows, start=1):
        if row.admitted(test):
            characters += len(row.data)
            entities.append(row.entity(wanted))
        if len(entities) == limit or scanned == MAX_SCANNED or characters >= MAX_PAGE_CHARACTERS:
            more = next(rows, None) is not None
            rows.close()
            position = row.position if more else end
            return Page(entities=tuple(entities), continuation=_token(position))
    return Page(entities=tuple(entities), continuation=_token(end))


def _rows(connection: sqlite3.Connection, sql: str, values: list[str | int]) -> Generator[_Row, None, None]:
    """Iterate over the rows of an SQL query. The caller closes the generator to end SQLite's read transaction."""
    cursor = connection.execute(sql, values)
    try:
        for found in cursor:
            yield _Row(*found)
    finally:
        cursor.close()


def _select(
    table: int, filter: Filter | None, after: Position | None, end: Position | None
) -> tuple[str, list[str | int]]:
    """Return SQL, with its parameters, that finds all rows that can match a filter, in the order of their keys.

    :param after: position before the first row; None: begin with the first row of the table.
    :param end: position of the last row; None: no bound.
    """
    where, values = _range(table, filter, after, end)
    if filter is not None:
        clause, bound = sql_of(filter)
        where = f"{where} AND {clause}"
        values.extend(bound)
    return f"SELECT pk, rk, etag, ts, data FROM rows WHERE {where} ORDER BY pk, rk", values


def _end(connection: sqlite3.Connection, table: int, filter: Filter | None, after: Position | None) -> Position | None:
    """Return where a page must end, so that SQLite looks into at most :data:`MAX_SEARCHED` rows.

    :returns: None if no such bound is needed.
    """
    if filter is None or not searches_rows(filter):
        return None
    where, values = _range(table, filter, after, None)
    sql = f"SELECT pk, rk FROM rows WHERE {where} ORDER BY pk, rk LIMIT 1 OFFSET ?"
    found: Position | None = connection.execute(sql, (*values, MAX_SEARCHED - 1)).fetchone()
    return found


def _range(
    table: int, filter: Filter | None, after: Position | None, end: Position | None
) -> tuple[str, list[str | int]]:
    clauses: list[str] = ["tbl = ?"]
    values: list[str | int] = [table]
    for clause, bound in _bounds(range_of(filter, "PartitionKey"), range_of(filter, "RowKey"), after, end):
        clauses.append(clause)
        values.extend(bound)
    return " AND ".join(clauses), values


def _bounds(
    partitions: Range, keys: Range, after: Position | None, end: Position | None
) -> Iterator[tuple[str, Sequence[str | int]]]:
    """Iterate over SQL conditions for the index (tbl, pk, rk), with their parameters.

    Of two lower bounds SQLite might use the wrong one, and each page would then read the partition from its beginning.
    So there is at most one lower and one upper bound. ``end`` is inside the ranges, so it replaces their upper bound.

    :param partitions: range of the partition key.
    :param keys: range of the row key.
    """
    if partitions.single:
        yield "pk = ?", (str(partitions.low),)
        if after is not None:
            yield "rk > ?", (after[1],)
        elif keys.low is not None:
            yield "rk >= ?", (keys.low,)
        high = keys.high if end is None else end[1]
        if high is not None:
            yield "rk <= ?", (high,)
        return
    if after is not None:
        yield "(pk, rk) > (?, ?)", after
    elif partitions.low is not None:
        yield "pk >= ?", (partitions.low,)
    if end is not None:
        yield "(pk, rk) <= (?, ?)", end
    elif partitions.high is not None:
        yield "pk <= ?", (partitions.high,)


def _position(continuation: str) -> Position:
    try:
        partition_key, row_key = json.loads(continuation)
    except ValueError:
        raise InputError(
            f"continuation {continuation!r} does not come from this store; pass Page.continuation"
        ) from None
    return str(partition_key), str(row_key)


def _token(position: Position | times.Position | None) -> str | None:
    return None if position is None else json.dumps(position)
