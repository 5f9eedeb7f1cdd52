"""Turns the filter of a query into SQL and into a Python function.

The SQL finds the rows by their keys in the index. It returns all rows that match the filter, and perhaps some rows that
do not match. The Python function then tests each returned row by the whole filter. So only the Python function has the
exact semantics, and a query of one partition key reads only one range of the index.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.storage.primitives import And, Compare, Filter
from airflow_provider_taskhub.storage.sqlite.columns import Packed, kind_and_value, pack

Columns: TypeAlias = Mapping[str, Packed]
Test: TypeAlias = Callable[[Columns], bool]
"""Function that says whether a row matches a filter. The function gets the row's packed properties together with its
PartitionKey, RowKey and Timestamp."""

_FUNCTIONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "ge": operator.ge,
    "lt": operator.lt,
    "le": operator.le,
}
_SIGNS = {"eq": "=", "ne": "<>", "gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_STORED = {"PartitionKey": "pk", "RowKey": "rk", "Timestamp": "ts"}


def test_of(filter: Filter) -> Test:
    """Return the filter as a function. A comparison never matches if the column is missing or has another type."""
    if isinstance(filter, Compare):
        return _test_compare(filter)
    parts = [test_of(part) for part in filter.parts]
    if isinstance(filter, And):
        return lambda columns: all(part(columns) for part in parts)
    return lambda columns: any(part(columns) for part in parts)


def _test_compare(compare: Compare) -> Test:
    function = _FUNCTIONS[compare.operator]
    column = compare.column
    kind, wanted = kind_and_value(pack(compare.value))

    def test(columns: Columns) -> bool:
        packed = columns.get(column)
        if packed is None:
            return False
        found_kind, found = kind_and_value(packed)
        return found_kind == kind and function(found, wanted)

    return test


@dataclass(frozen=True, slots=True)
class Range:
    """The keys from ``low`` to ``high``; both belong to the range. None: the range has no bound on this side."""

    low: str | None = None
    high: str | None = None

    @property
    def single(self) -> bool:
        """True if the range has exactly one value."""
        return self.low is not None and self.low == self.high


def range_of(filter: Filter | None, column: str) -> Range:
    """Return a range of a key that contains the keys of all rows that match the filter.

    :param column: ``PartitionKey`` or ``RowKey``.
    """
    if filter is None:
        return Range()
    if isinstance(filter, Compare):
        return _range_compare(filter) if filter.column == column else Range()
    parts = [range_of(part, column) for part in filter.parts]
    lows = [part.low for part in parts if part.low is not None]
    highs = [part.high for part in parts if part.high is not None]
    if isinstance(filter, And):
        return Range(max(lows, default=None), min(highs, default=None))
    return Range(
        min(lows) if len(lows) == len(parts) else None,
        max(highs) if len(highs) == len(parts) else None,
    )


def _range_compare(compare: Compare) -> Range:
    value = str(compare.value)
    match compare.operator:
        case "eq":
            return Range(value, value)
        case "gt" | "ge":
            return Range(value, None)
        case "lt" | "le":
            return Range(None, value)
    return Range()


def searches_rows(filter: Filter) -> bool:
    """Return True if the SQL of :func:`sql_of` looks into each row of the table, and not only into the index."""
    if isinstance(filter, Compare):
        return filter.column == "Timestamp" or _text_of(filter) is not None
    return any(searches_rows(part) for part in filter.parts)


def _text_of(compare: Compare) -> str | None:
    """Return a text that the stored JSON of each matching row contains; None if there is no such text.

    With this text SQLite itself skips most rows that do not match. That is faster than parsing each row in Python, and
    SQLite does not hold the GIL meanwhile.
    """
    value = compare.value
    if compare.operator != "eq" or not isinstance(value, str) or compare.column in _STORED:
        return None
    plain = value.isascii() and value.isprintable() and not {'"', "\\"} & set(value)
    # `columns.dump` writes exactly this text, so SQLite finds it in the stored JSON
    return f'"{compare.column}":"{value}"' if plain else None


def sql_of(filter: Filter) -> tuple[str, list[str | int]]:
    """Return an SQL condition and its parameters. All rows that match the filter fulfil the condition; others may too.

    The unary plus before a column forbids SQLite to use an index for this column. Otherwise SQLite might answer an OR
    by several index searches and a sort. :func:`range_of` gives the range of the index instead.
    """
    if isinstance(filter, Compare):
        stored = _STORED.get(filter.column)
        if stored is None:
            text = _text_of(filter)
            return ("1", []) if text is None else ("instr(data, ?)", [text])
        value = filter.value.ticks if isinstance(filter.value, Timestamp) else str(filter.value)
        return f"+{stored} {_SIGNS[filter.operator]} ?", [value]
    compiled = [sql_of(part) for part in filter.parts]
    word = " AND " if isinstance(filter, And) else " OR "
    return f"({word.join(sql for sql, _ in compiled)})", [value for _, values in compiled for value in values]
