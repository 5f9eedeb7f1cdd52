"""Filters: every operator on every type, nesting, quotes, ranges of keys."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.storage.primitives import (
    And,
    Compare,
    Entity,
    Filter,
    Int64,
    Or,
    Property,
    RowOperation,
    RowVerb,
    Store,
    Transact,
)

FUNCTIONS: dict[str, Callable[[Any, Any], bool]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "gt", "ge", "lt", "le")
}
ORDERED: dict[str, Sequence[Property]] = {
    "String": ["", "a", "b", "b'quoted'", "ba", "ü"],
    "Int32": [-(2**31), -5, 0, 7, 30, 2**31 - 1],
    "Int64": [Int64(-(2**63)), Int64(-5), Int64(0), Int64(7), Int64(30), Int64(2**53 + 1), Int64(2**63 - 1)],
    "Double": [-2.5, 0.0, 0.5, 7.0, 30.25, 1e15],
    "DateTime": [
        Timestamp.parse("1601-01-01T00:00:00Z"),
        Timestamp.parse("2026-11-21T08:55:27.265Z"),  # Azurite compares milliseconds, see below for 100 ns
        Timestamp.parse("2026-11-21T08:55:27.2661477Z"),
        Timestamp.parse("2026-11-21T08:55:27.267Z"),
        Timestamp.parse("9999-12-31T23:59:59.9999999Z"),
    ],
}
EQUAL_ONLY: dict[str, Sequence[Property]] = {
    "Boolean": [True, False],
    "Guid": [UUID(int=1), UUID("12345678-9abc-def0-1234-56789abcdef0")],
    "Binary": [b"", b"\x00", b"\xff\x00", b"text"],
}


def insert(row_key: str, partition_key: str = "p", **properties: Property) -> RowOperation:
    entity = Entity(partition_key=partition_key, row_key=row_key, properties=properties)
    return RowOperation(verb=RowVerb.INSERT, entity=entity)


async def matching(store: Store, table: str, filter: Filter) -> list[str]:
    return [entity.row_key async for entity in store.rows(table, filter)]


def labelled(values: Sequence[Property]) -> dict[str, Property]:
    return {f"{position:02}": value for position, value in enumerate(values)}


@pytest.mark.parametrize("edm", [*ORDERED, *EQUAL_ONLY])
async def test_every_operator_on_every_type(store: Store, table: str, edm: str) -> None:
    rows = labelled(ORDERED.get(edm) or EQUAL_ONLY[edm])
    await store.execute(Transact(table=table, rows=tuple(insert(key, A=value) for key, value in rows.items())))
    for name in FUNCTIONS if edm in ORDERED else ("eq", "ne"):
        for value in rows.values():
            expected = [key for key, found in rows.items() if FUNCTIONS[name](found, value)]
            assert await matching(store, table, Compare("A", name, value)) == expected, (name, value)


@pytest.mark.parametrize("kind", ["memory", "file"], indirect=True)
async def test_times_are_compared_to_100_ns_and_doubles_to_the_last_bit(store: Store, table: str) -> None:
    moment = Timestamp.parse("2026-11-21T08:55:27.2669147Z").ticks
    values: list[Property] = [Timestamp(moment - 1), Timestamp(moment), 1e300, 1.0000000000000002]
    rows = tuple(insert(str(position), A=value) for position, value in enumerate(values))
    await store.execute(Transact(table=table, rows=rows))
    assert await matching(store, table, Compare("A", "lt", Timestamp(moment))) == ["0"]
    assert await matching(store, table, Compare("A", "gt", 1.0)) == ["2", "3"]
    assert await matching(store, table, Compare("A", "eq", 1e300)) == ["2"]


@pytest.mark.parametrize("kind", ["memory", "file"], indirect=True)
async def test_values_of_another_type_match_nothing(store: Store, table: str) -> None:
    """Stricter than Azurite, so that a filter that forgets ``Int64`` is found before it meets Azure."""
    rows = (insert("1", A=1), insert("2", A=Int64(1)), insert("3", A=1.0), insert("4", A="1"), insert("5", A=True))
    await store.execute(Transact(table=table, rows=rows))
    values: list[Property] = [1, Int64(1), 1.0, "1", True]
    for position, value in enumerate(values, start=1):
        assert await matching(store, table, Compare("A", "eq", value)) == [str(position)]


@pytest.mark.parametrize("name", list(FUNCTIONS))
async def test_a_row_without_the_column_matches_nothing(store: Store, table: str, name: str) -> None:
    await store.execute(Transact(table=table, rows=(insert("without", B=1), insert("with", A=1))))
    expected = ["with"] if FUNCTIONS[name](1, 1) else []
    assert await matching(store, table, Compare("A", name, 1)) == expected


@pytest.fixture
async def grid(store: Store, table: str) -> str:
    """Partitions a, b, c with rows 1 to 4; column N counts, column S alternates."""
    for position, partition_key in enumerate("abc"):
        rows = [
            insert(f"{partition_key}{number}", partition_key, N=4 * position + number, S=("even", "odd")[number % 2])
            for number in range(1, 5)
        ]
        await store.execute(Transact(table=table, rows=tuple(rows)))
    return table


PARTITION = "PartitionKey"
ROW = "RowKey"


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        (Compare(PARTITION, "eq", "b"), "b1 b2 b3 b4"),
        (Compare(PARTITION, "ne", "b"), "a1 a2 a3 a4 c1 c2 c3 c4"),
        (Compare(PARTITION, "gt", "b"), "c1 c2 c3 c4"),
        (Compare(PARTITION, "ge", "b"), "b1 b2 b3 b4 c1 c2 c3 c4"),
        (Compare(PARTITION, "lt", "b"), "a1 a2 a3 a4"),
        (Compare(PARTITION, "le", "b"), "a1 a2 a3 a4 b1 b2 b3 b4"),
        (Compare(PARTITION, "eq", "none"), ""),
        (Compare(ROW, "ge", "b3"), "b3 b4 c1 c2 c3 c4"),
        (And((Compare(PARTITION, "eq", "b"), Compare(ROW, "gt", "b2"))), "b3 b4"),
        (And((Compare(PARTITION, "ge", "a"), Compare(PARTITION, "lt", "c"), Compare("S", "eq", "odd"))), "a1 a3 b1 b3"),
        (Or((Compare(PARTITION, "eq", "a"), Compare(PARTITION, "eq", "c"))), "a1 a2 a3 a4 c1 c2 c3 c4"),
        (
            Or(
                (
                    And((Compare(PARTITION, "eq", "a"), Compare(ROW, "eq", "a2"))),
                    And((Compare(PARTITION, "eq", "c"), Compare(ROW, "eq", "c4"))),
                )
            ),
            "a2 c4",
        ),
        (Or((Compare(PARTITION, "eq", "a"), Compare("N", "eq", 12))), "a1 a2 a3 a4 c4"),
        (And((Or((Compare("N", "lt", 3), Compare("N", "gt", 10))), Compare("S", "ne", "odd"))), "a2 c4"),
        (And((Compare(PARTITION, "eq", "a"), Compare(PARTITION, "eq", "b"))), ""),
        (And((Or((Compare("N", "eq", 1),)),)), "a1"),
        (
            And(
                (
                    Compare(PARTITION, "gt", "a"),
                    Or((And((Compare("S", "eq", "odd"), Compare("N", "le", 5))), Compare("N", "eq", 10))),
                )
            ),
            "b1 c2",
        ),
    ],
)
async def test_nesting_and_ranges_of_keys(store: Store, grid: str, filter: Filter, expected: str) -> None:
    assert await matching(store, grid, filter) == expected.split()


async def test_the_timestamp_can_be_compared(store: Store, table: str) -> None:
    await store.execute(Transact(table=table, rows=(insert("1"),)))
    written = await store.get(table, "p", "1")
    assert written is not None
    assert written.timestamp is not None
    before, after = written.timestamp + timedelta(seconds=-1), written.timestamp + timedelta(seconds=1)
    assert await matching(store, table, Compare("Timestamp", "gt", before)) == ["1"]
    assert await matching(store, table, Compare("Timestamp", "gt", after)) == []
    assert await matching(store, table, Compare("Timestamp", "lt", after)) == ["1"]


@pytest.mark.parametrize("text", ["it's", "''", "a' or 'b' eq 'b", "ü & %20 + ?", '"', "\\"])
async def test_quotes_in_values_are_values(store: Store, table: str, text: str) -> None:
    await store.execute(Transact(table=table, rows=(insert("1", A=text), insert("2", A="other"))))
    assert await matching(store, table, Compare("A", "eq", text)) == ["1"]
    assert await matching(store, table, Compare("A", "ne", text)) == ["2"]


@pytest.mark.parametrize(
    "filter",
    [
        Compare("A", "like", "x"),
        Compare("A b", "eq", "x"),
        Compare("A eq 1 or B", "eq", 1),
        Compare("PartitionKey", "eq", 1),
        Compare("Timestamp", "eq", "2026"),
        Compare("A", "eq", 2**31),
        And(()),
        Or((And(()),)),
        Or(tuple(Compare("A", "eq", number) for number in range(16))),
    ],
)
async def test_filters_that_azure_refuses(store: Store, table: str, filter: Filter) -> None:
    with pytest.raises(InputError):
        await store.query(table, filter)


async def test_15_comparisons_are_allowed(store: Store, grid: str) -> None:
    assert await matching(store, grid, Or(tuple(Compare("N", "eq", number) for number in range(15)))) == (
        ["a1", "a2", "a3", "a4", "b1", "b2", "b3", "b4", "c1", "c2", "c3", "c4"]
    )


async def test_rows_of_an_empty_partition_key_are_told_from_the_others(store: Store, table: str) -> None:
    """Hints of ended instances and watch rows share a table: each is read without the other."""
    for operation in (insert("hint", partition_key=""), insert("watch", partition_key="watch", Deployment="here")):
        await store.execute(Transact(table=table, rows=(operation,)))
    assert await matching(store, table, Compare("PartitionKey", "eq", "")) == ["hint"]
    mine = And((Compare("PartitionKey", "eq", "watch"), Compare("Deployment", "eq", "here")))
    assert await matching(store, table, mine) == ["watch"]
