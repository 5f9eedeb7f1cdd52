"""Filters of a query, twice: the part about keys as SQL over the index, all of it as a function over a loaded row.

The SQL admits every row that the filter admits and never scans outside the keys' range; what it admits too much, the
function removes. So the semantics stand in one place, in Python, and a query by partition stays a range of the index.
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
"""Whether a row is admitted: its packed properties, with PartitionKey, RowKey and Timestamp among them."""

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
    """The filter as a function. A row without the column, or with another type in it, matches nothing."""
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
    """Inclusive bounds of a key; None: open."""

    low: str | None = None
    high: str | None = None

    @property
    def single(self) -> bool:
        return self.low is not None and self.low == self.high


def range_of(filter: Filter | None, column: str) -> Range:
    """The smallest range of a key outside which the filter admits nothing."""
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


def sifts(filter: Filter) -> bool:
    """Whether :func:`sql_of` looks into the rows themselves."""
    if isinstance(filter, Compare):
        return _text_of(filter) is not None
    return any(sifts(part) for part in filter.parts)


def _text_of(compare: Compare) -> str | None:
    """What stands in the stored text of every row that a comparison admits; None: nothing that is sure to be there.

    A row that is not wanted is then passed over by SQLite, without the GIL, instead of being taken apart in Python.
    """
    value = compare.value
    if compare.operator != "eq" or not isinstance(value, str) or compare.column in _STORED:
        return None
    plain = value.isascii() and value.isprintable() and not {'"', "\\"} & set(value)
    return f'"{compare.column}":"{value}"' if plain else None  # as `columns.dump` writes it


def sql_of(filter: Filter) -> tuple[str, list[str | int]]:
    """A condition over pk, rk and ts that admits at least what the filter admits, and its parameters.

    The unary plus keeps SQLite from answering an OR by several index searches and a sort: the range is chosen by us.
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
