"""Queries that return the newest rows first: their order, their filters and pages, and that an index answers them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.storage.primitives import (
    And,
    Compare,
    Entity,
    Filter,
    Or,
    RowOperation,
    RowVerb,
    Transact,
)
from airflow_provider_taskhub.storage.sqlite import rows, times
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore
from airflow_provider_taskhub.storage.sqlite.transactions import identifier

NOW = Timestamp.parse("2026-11-21T08:55:27.2669147Z")
FAILED = Compare("RuntimeStatus", "eq", "Failed")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with SqliteStore(tmp_path / "hub.db") as store:
        await store.create_table("abc")
        await store.create_table("other")
        yield store


async def write(store: SqliteStore, key: str, verb: RowVerb = RowVerb.INSERT, **columns: Any) -> None:
    entity = Entity(partition_key=key, row_key="", properties=columns)
    etag = None if verb in (RowVerb.INSERT, RowVerb.UPSERT_REPLACE, RowVerb.UPSERT_MERGE) else "*"
    await store.execute(Transact(table="abc", rows=(RowOperation(verb=verb, entity=entity, etag=etag),)))


async def put(store: SqliteStore, key: str, hours: float, status: str = "Completed", **columns: Any) -> None:
    await write(store, key, CreatedTime=NOW + timedelta(hours=hours), RuntimeStatus=status, **columns)


async def newest(store: SqliteStore, filter: Filter | None = None, *, limit: int = 1000, **more: Any) -> str:
    """Return the keys of all found rows, read in pages."""
    found, continuation = [], None
    while True:
        asked = {"newest": "CreatedTime"} | more
        page = await store.query("abc", filter, limit=limit, continuation=continuation, **asked)
        found += [row.partition_key for row in page.entities]
        continuation = page.continuation
        if continuation is None:
            return " ".join(found)


async def test_the_newest_come_first_in_pages_of_any_size(store: SqliteStore) -> None:
    for key, hours in {"a": 2, "b": 5, "c": 1, "d": 5, "e": 5, "f": 4}.items():
        await put(store, key, hours)
    await write(store, "none", RuntimeStatus="Failed")
    await write(store, "text", CreatedTime="yesterday")
    for limit in range(1, 8):
        assert await newest(store, limit=limit) == "e d b f a c"


async def test_every_verb_keeps_the_order_and_the_status(store: SqliteStore) -> None:
    for key in "abcd":
        await put(store, key, 0, "Running")
    await write(store, "a", RowVerb.MERGE, RuntimeStatus="Failed")
    await write(store, "b", RowVerb.REPLACE, CreatedTime=NOW + timedelta(hours=2), RuntimeStatus="Failed")
    await write(store, "c", RowVerb.UPSERT_REPLACE, CreatedTime=NOW + timedelta(hours=1), RuntimeStatus="Failed")
    await write(store, "d", RowVerb.UPSERT_MERGE, CreatedTime=NOW + timedelta(hours=3))
    await write(store, "e", RowVerb.UPSERT_MERGE, CreatedTime=NOW + timedelta(hours=4), RuntimeStatus="Failed")
    assert await newest(store) == "e d b c a"
    assert await newest(store, FAILED) == "e b c a"
    assert await newest(store, Compare("RuntimeStatus", "eq", "Running")) == "d"
    await write(store, "a", RowVerb.MERGE, RuntimeStatus="Completed")
    await write(store, "b", RowVerb.DELETE)
    await write(store, "c", RowVerb.UPSERT_REPLACE, Other=1)
    await write(store, "e", RowVerb.REPLACE, Other=1)
    assert (await newest(store), await newest(store, FAILED)) == ("d a", "")


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        (FAILED, "f d b"),
        (Compare("RuntimeStatus", "eq", "Completed"), "e c a"),
        (Compare("RuntimeStatus", "ne", "Failed"), "e c a"),
        (Or((FAILED, Compare("N", "eq", 1))), "f d c b"),
        (And((FAILED, Compare("N", "eq", 1))), "b"),
        (And((FAILED, Compare("CreatedTime", "ge", NOW + timedelta(hours=3)))), "f d"),
        (And((FAILED, And((Compare("PartitionKey", "ge", "b"), Compare("PartitionKey", "lt", "f"))))), "d b"),
        (Compare("CreatedTime", "gt", NOW + timedelta(hours=3)), "f e d"),
        (Compare("CreatedTime", "lt", NOW + timedelta(hours=3)), "b a"),
        (Compare("CreatedTime", "ne", NOW + timedelta(hours=3)), "f e d b a"),
    ],
)
@pytest.mark.parametrize("searched", [2, 25_000])
async def test_filters_choose_among_them(
    store: SqliteStore, filter: Filter, expected: str, searched: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "MAX_SEARCHED", searched)
    for hours, key in enumerate("abcdef", start=1):
        await put(store, key, hours, "Failed" if key in "bdf" else "Completed", N=1 if key in "bc" else 2)
    for limit in (1, 2, 1000):
        assert await newest(store, filter, limit=limit) == expected


async def test_what_was_written_last_comes_first(store: SqliteStore) -> None:
    for key in "abcd":
        await put(store, key, 0)
    (second,) = [row async for row in store.rows("abc", Compare("PartitionKey", "eq", "b"))]
    await write(store, "a", RowVerb.MERGE, RuntimeStatus="Failed")
    assert second.timestamp is not None
    since = Compare("Timestamp", "gt", second.timestamp)
    for limit in (1, 1000):
        assert await newest(store, limit=limit, newest="Timestamp") == "a d c b"
        assert await newest(store, since, limit=limit, newest="Timestamp") == "a d c"
        assert await newest(store, And((since, FAILED)), limit=limit, newest="Timestamp") == "a"


@pytest.mark.parametrize(
    ("newest", "filter", "index"),
    [
        ("CreatedTime", None, "rows_created (tbl=? AND created>?)"),
        ("CreatedTime", Compare("CreatedTime", "le", NOW), "rows_created (tbl=? AND created>? AND created<?)"),
        ("CreatedTime", FAILED, "rows_status (tbl=? AND status=? AND created>?)"),
        ("Timestamp", Compare("Timestamp", "gt", NOW), "rows_changed (tbl=? AND ts>?)"),
    ],
)
async def test_an_index_answers_without_a_sort(store: SqliteStore, newest: Any, filter: Any, index: str) -> None:
    def plan(connection: Any) -> list[str]:
        table = identifier(connection, "tables", "abc")
        sql, values, _ = times.select(connection, table, filter, newest, after=None, searched=10)
        return [step[3] for step in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)]

    assert await store._access.read(plan) == [f"SEARCH rows USING INDEX {index}"]


async def test_a_continuation_of_another_order_is_refused(store: SqliteStore) -> None:
    for key in "ab":
        await put(store, key, 0)
    page = await store.query("abc", limit=1)
    for continuation in (page.continuation, "x", "[1]", "3"):
        with pytest.raises(InputError, match="newest"):
            await store.query("abc", newest="CreatedTime", continuation=continuation)
