"""Reads rows newest first, by SQL indexes of their times and of their status.

A row with a :data:`CREATED` has a copy of it in the SQL column ``created``. Its :data:`STATUS` is copied to the SQL
column ``status``, but not if it is :data:`COMMON`: most rows have this status, so the newest of them are found soon
without an index. Other rows have NULL in both SQL columns, and are in no index of this module.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.storage.primitives import And, Compare, Filter, TimeColumn
from airflow_provider_taskhub.storage.sqlite.columns import Packed
from airflow_provider_taskhub.storage.sqlite.filters import sql_of

CREATED: TimeColumn = "CreatedTime"
STATUS = "RuntimeStatus"
COMMON = "Completed"

Times: TypeAlias = tuple[int | None, str | None]
"""The SQL columns ``created``, in ticks, and ``status`` of a row."""
Position: TypeAlias = tuple[int, int]
"""The time in ticks and the number of a row, at which a page ends."""

_BOUNDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "eq": "="}


def times_of(columns: Mapping[str, Packed]) -> Times:
    """Return the SQL columns of a row. :param columns: its packed properties."""
    packed = columns.get(CREATED)
    created = packed.get("t") if isinstance(packed, dict) else None
    if created is None:
        return None, None
    status = columns.get(STATUS)
    return created, status if isinstance(status, str) and status != COMMON else None


def select(
    connection: sqlite3.Connection,
    table: int,
    filter: Filter | None,
    newest: TimeColumn,
    *,
    after: Position | None,
    searched: int,
) -> tuple[str, list[str | int], Position | None]:
    """Return SQL, with its parameters, that finds all rows that can match a filter, the newest first.

    Rows without a :data:`CREATED` are left out. The last two columns of each found row are its :data:`Position`.

    :param newest: the column whose latest time comes first.
    :param after: position before the first row; None: begin with the newest row.
    :param searched: the largest number of rows into which SQLite looks for one page.
    :returns: also the position at which the page must end, so that SQLite looks into no more rows; None: no bound.
    """
    column = "created" if newest == CREATED else "ts"
    index = "rows_created" if newest == CREATED else "rows_changed"
    clauses = ["tbl = ?", "created IS NOT NULL"]
    values: list[str | int] = [table]
    rest: list[Filter] = []
    for part in _parts(filter):
        if bound := _bound(part, newest):
            clauses.append(f"{column} {bound[0]} ?")
            values.append(bound[1])
        elif newest == CREATED and (status := _uncommon(part)) is not None:
            index = "rows_status"
            clauses.append("status = ?")
            values.append(status)
        else:
            rest.append(part)
    if after is not None:
        clauses.append(f"{column} <= ? AND ({column} < ? OR number < ?)")
        values += [after[0], *after]
    source, order = f"FROM rows INDEXED BY {index}", f"ORDER BY {column} DESC, number DESC"
    where = " AND ".join(clauses)
    end: Position | None = None
    if rest:
        sql = f"SELECT {column}, number {source} WHERE {where} {order} LIMIT 1 OFFSET ?"
        end = connection.execute(sql, (*values, searched - 1)).fetchone()
        if end is not None:
            where += f" AND {column} >= ? AND ({column} > ? OR number >= ?)"
            values += [end[0], *end]
    for part in rest:
        clause, bounds = sql_of(part)
        where += f" AND {clause}"
        values += bounds
    return f"SELECT pk, rk, etag, ts, data, {column}, number {source} WHERE {where} {order}", values, end


def _parts(filter: Filter | None) -> Iterator[Filter]:
    """Iterate over filters that all must match."""
    if isinstance(filter, And):
        for part in filter.parts:
            yield from _parts(part)
    elif filter is not None:
        yield filter


def _bound(part: Filter, newest: TimeColumn) -> tuple[str, int] | None:
    """Return the condition on the time by which rows are ordered: an SQL operator and ticks; None: there is none."""
    if not isinstance(part, Compare) or part.column != newest or not isinstance(part.value, Timestamp):
        return None
    sign = _BOUNDS.get(part.operator)
    return None if sign is None else (sign, part.value.ticks)


def _uncommon(part: Filter) -> str | None:
    """Return the wanted status if the index of statuses has all rows that match; None: it has not."""
    if not isinstance(part, Compare) or (part.column, part.operator) != (STATUS, "eq"):
        return None
    return part.value if isinstance(part.value, str) and part.value != COMMON else None


def position_of(continuation: str) -> Position:
    """Return the position that a page has ended at.

    :raises InputError: if it is not of this order.
    """
    try:
        time, number = json.loads(continuation)
    except (TypeError, ValueError):
        time = number = None
    if not isinstance(time, int) or not isinstance(number, int):
        raise InputError(f"continuation {continuation!r} is not of a list with the newest rows first")
    return time, number
