"""Tables: verbs, ETags, merges, types, transactions, pages."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.errors import Conflict, InputError, NotFound, PayloadTooLarge
from airflow_provider_taskhub.storage.primitives import (
    And,
    Compare,
    Entity,
    EtagOf,
    Int64,
    Property,
    RowOperation,
    RowVerb,
    Store,
    Transact,
)
from tests.storage.contract.conftest import a_few_requests
from tests.waiting import PATIENCE

Elapse = Callable[[float], Awaitable[None]]
INSERT, MERGE, REPLACE, DELETE = RowVerb.INSERT, RowVerb.MERGE, RowVerb.REPLACE, RowVerb.DELETE
UPSERT_MERGE, UPSERT_REPLACE = RowVerb.UPSERT_MERGE, RowVerb.UPSERT_REPLACE

VALUES: dict[str, Property] = {
    "Text": "naïve 😀 'quoted' \"double\" \\ \n\t end ",
    "Empty": "",
    "Yes": True,
    "No": False,
    "Small": -(2**31),
    "Zero": 0,
    "Big": Int64(2**63 - 1),
    "Little": Int64(5),
    "Half": 0.5,
    "Whole": 3.0,
    "Tiny": 5e-324,
    "Time": Timestamp.parse("2026-11-21T08:55:27.2669147Z"),
    "Early": Timestamp.parse("1601-01-01T00:00:00Z"),
    "Late": Timestamp.parse("9999-12-31T23:59:59.9999999Z"),
    "Guid": UUID("12345678-9abc-def0-1234-56789abcdef0"),
    "Bytes": bytes(range(256)),
    "NoBytes": b"",
}


def row(
    verb: RowVerb,
    row_key: str = "1",
    properties: Mapping[str, Property | None] | None = None,
    *,
    etag: str | EtagOf | None = None,
    partition_key: str = "p",
) -> RowOperation:
    entity = Entity(partition_key=partition_key, row_key=row_key, properties=properties or {})
    return RowOperation(verb=verb, entity=entity, etag=etag)


async def write(store: Store, table: str, *rows: RowOperation) -> tuple[str, ...]:
    etags = await store.execute(Transact(table=table, rows=rows))
    assert isinstance(etags, tuple)
    return etags


async def read(store: Store, table: str, row_key: str = "1") -> Entity:
    entity = await store.get(table, "p", row_key)
    assert entity is not None
    return entity


async def keys(store: Store, table: str) -> list[str]:
    return [entity.row_key async for entity in store.rows(table)]


async def test_tables_are_created_listed_by_prefix_and_deleted(store: Store, fresh: str) -> None:
    assert await store.create_table(f"{fresh}b") is True
    assert await store.create_table(f"{fresh}A") is True
    assert await store.create_table(f"{fresh}A") is False
    assert sorted(await store.list_tables(fresh)) == [f"{fresh}A", f"{fresh}b"]
    assert f"{fresh}b" in await store.list_tables()
    await store.delete_table(f"{fresh}A")
    await store.delete_table(f"{fresh}A")  # an absent one is no error
    assert await store.list_tables(fresh) == [f"{fresh}b"]


async def test_a_deleted_table_takes_its_rows_along(store: Store, table: str) -> None:
    await write(store, table, row(INSERT))
    await store.delete_table(table)
    await store.create_table(table)
    assert await keys(store, table) == []


async def test_values_keep_their_types(store: Store, table: str) -> None:
    (etag,) = await write(store, table, row(INSERT, properties=VALUES))
    for entity in (await read(store, table), (await store.query(table)).entities[0]):
        assert entity.properties == VALUES
        for name, value in VALUES.items():
            assert type(entity.properties[name]) is type(value), name
        assert entity.etag == etag
        assert entity.timestamp is not None


async def test_doubles_that_are_no_numbers(store: Store, table: str) -> None:
    await write(store, table, row(INSERT, properties={"A": math.inf, "B": -math.inf, "C": math.nan}))
    found = (await read(store, table)).properties
    assert (found["A"], found["B"]) == (math.inf, -math.inf)
    assert isinstance(found["C"], float)
    assert math.isnan(found["C"])


async def test_the_timestamp_moves_with_every_write(store: Store, table: str) -> None:
    await write(store, table, row(INSERT))
    first = (await read(store, table)).timestamp
    await write(store, table, row(UPSERT_MERGE))
    second = (await read(store, table)).timestamp
    assert first is not None
    assert second is not None
    assert first <= second


async def test_every_write_gets_an_etag_of_its_own(store: Store, table: str) -> None:
    etags = [(await write(store, table, row(UPSERT_REPLACE, properties={"A": 1})))[0] for _ in range(20)]
    assert len(set(etags)) == 20
    assert (await read(store, table)).etag == etags[-1]


async def test_insert_of_an_existing_row_conflicts(store: Store, table: str) -> None:
    await write(store, table, row(INSERT, properties={"A": 1}))
    with pytest.raises(Conflict):
        await write(store, table, row(INSERT, properties={"A": 2}))
    assert (await read(store, table)).properties == {"A": 1}


async def test_of_many_inserts_one_wins(store: Store, table: str) -> None:
    outcomes = await asyncio.gather(
        *(write(store, table, row(INSERT, properties={"A": number})) for number in range(8)), return_exceptions=True
    )
    winners = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, tuple)]
    assert len(winners) == 1
    assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 7
    assert (await read(store, table)).properties == {"A": winners[0]}


@pytest.mark.parametrize("verb", [MERGE, REPLACE, DELETE])
async def test_a_condition_holds_or_conflicts(store: Store, table: str, verb: RowVerb) -> None:
    (first,) = await write(store, table, row(INSERT, properties={"A": 1}))
    (second,) = await write(store, table, row(MERGE, properties={"A": 2}, etag=first))
    with pytest.raises(Conflict):
        await write(store, table, row(verb, properties={"A": 3}, etag=first))
    assert (await read(store, table)).properties == {"A": 2}
    await write(store, table, row(verb, properties={"A": 3}, etag=second))
    found = await store.get(table, "p", "1")
    assert (found is None) if verb is DELETE else (found is not None and found.properties == {"A": 3})


@pytest.mark.parametrize("verb", [MERGE, REPLACE, DELETE])
@pytest.mark.parametrize("etag", ["*", "W/\"datetime'2026-01-01T00%3A00%3A00.0000000Z'\""])
async def test_a_missing_row_is_not_found(store: Store, table: str, verb: RowVerb, etag: str) -> None:
    with pytest.raises(NotFound):
        await write(store, table, row(verb, properties={"A": 1}, etag=etag))


@pytest.mark.parametrize("verb", [MERGE, REPLACE, DELETE])
async def test_a_write_with_a_star_as_etag_ignores_the_etag_of_the_row(store: Store, table: str, verb: RowVerb) -> None:
    await write(store, table, row(INSERT, properties={"A": 1}))
    (etag,) = await write(store, table, row(verb, properties={"A": 2}, etag="*"))
    assert (etag == "") is (verb is DELETE)


@pytest.mark.parametrize(
    ("verb", "expected"),
    [
        (MERGE, {"A": 1, "B": 2, "C": 9}),
        (UPSERT_MERGE, {"A": 1, "B": 2, "C": 9}),
        (REPLACE, {"C": 9}),
        (UPSERT_REPLACE, {"C": 9}),
    ],
)
async def test_merge_keeps_columns_and_replace_drops_them(
    store: Store, table: str, verb: RowVerb, expected: dict[str, Property]
) -> None:
    await write(store, table, row(INSERT, properties={"A": 1, "B": 2, "C": "three"}))
    etag = "*" if verb in (MERGE, REPLACE) else None
    await write(store, table, row(verb, properties={"B": None, "C": 9}, etag=etag))
    assert (await read(store, table)).properties == expected


@pytest.mark.parametrize("verb", [UPSERT_MERGE, UPSERT_REPLACE])
async def test_upsert_inserts_what_is_absent(store: Store, table: str, verb: RowVerb) -> None:
    await write(store, table, row(verb, properties={"A": 1, "B": None}))
    assert (await read(store, table)).properties == {"A": 1}


@pytest.mark.parametrize("there", [(), ("1",), ("1", "2")], ids=["none", "one", "both"])
async def test_an_upsert_does_the_same_whether_its_hint_is_right_or_wrong(
    store: Store, table: str, there: tuple[str, ...]
) -> None:
    for key in there:
        await write(store, table, row(INSERT, key, {"A": 1}))
    hinted = [replace(row(UPSERT_REPLACE, key, {"B": 2}), absent=True) for key in ("1", "2")]
    etags = await write(store, table, *hinted, row(INSERT, "lock"))
    for key, etag in zip(("1", "2"), etags, strict=False):
        found = await read(store, table, key)
        assert (found.properties, found.etag) == ({"B": 2}, etag)
    with pytest.raises(Conflict):
        await write(
            store,
            table,
            *(replace(each, entity=replace(each.entity, properties={})) for each in hinted),
            row(INSERT, "lock"),
        )
    assert (await read(store, table)).properties == {"B": 2}, "refused as a whole"
    (alone,) = await write(store, table, hinted[0])
    assert (await read(store, table)).etag == alone


async def test_a_row_may_have_no_columns_and_empty_keys(store: Store, table: str) -> None:
    await write(store, table, row(INSERT, "", partition_key=""))
    found = await store.get(table, "", "")
    assert found is not None
    assert found.properties == {}


@pytest.mark.parametrize("key", ["it's", "a b", "ü😀", "50%", "a+b", "a=b&c", "(x,y)", "@id:$", '"', "x" * 512, "%2F"])
async def test_keys_come_back_as_they_went(store: Store, table: str, key: str) -> None:
    await write(store, table, row(INSERT, key, {"A": 1}, partition_key=key))
    found = await store.get(table, key, key)
    assert found is not None
    assert (found.partition_key, found.row_key) == (key, key)
    page = await store.query(table, And((Compare("PartitionKey", "eq", key), Compare("RowKey", "eq", key))))
    assert [entity.row_key for entity in page.entities] == [key]
    await write(store, table, row(MERGE, key, {"B": 2}, etag=found.etag, partition_key=key))
    await write(store, table, row(DELETE, key, etag="*", partition_key=key))
    assert await store.get(table, key, key) is None


async def test_keys_that_differ_only_in_case_are_two_rows(store: Store, table: str) -> None:
    await write(store, table, row(INSERT, "a"), row(INSERT, "A"))
    assert await keys(store, table) == ["A", "a"]


async def test_an_absent_table_is_not_found(store: Store, fresh: str) -> None:
    with pytest.raises(NotFound):
        await write(store, fresh, row(INSERT))
    with pytest.raises(NotFound):
        await store.get(fresh, "p", "1")
    with pytest.raises(NotFound):
        await store.query(fresh)


# --- transactions


async def test_a_transaction_is_all(store: Store, table: str) -> None:
    await write(store, table, row(INSERT, "a", {"A": 1}), row(INSERT, "b", {"A": 1}), row(INSERT, "c", {"A": 1}))
    (etag,) = await write(store, table, row(MERGE, "b", {"B": 1}, etag="*"))
    etags = await write(
        store,
        table,
        row(INSERT, "d", {"A": 4}),
        row(REPLACE, "b", {"C": 2}, etag=etag),
        row(DELETE, "a", etag="*"),
        row(UPSERT_MERGE, "c", {"B": 3}),
    )
    assert await keys(store, table) == ["b", "c", "d"]
    assert etags[2] == ""
    for key, position in (("d", 0), ("b", 1), ("c", 3)):
        assert (await read(store, table, key)).etag == etags[position]
    assert (await read(store, table, "b")).properties == {"C": 2}
    assert (await read(store, table, "c")).properties == {"A": 1, "B": 3}


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (row(INSERT, "old"), Conflict),
        (row(MERGE, "old", {"A": 9}, etag="W/\"datetime'2026-01-01T00%3A00%3A00.0000000Z'\""), Conflict),
        (row(DELETE, "absent", etag="*"), NotFound),
        (row(MERGE, "absent", {"A": 9}, etag="*"), NotFound),
    ],
)
async def test_a_transaction_is_nothing_when_a_row_is_refused(
    store: Store, table: str, bad: RowOperation, error: type[Exception]
) -> None:
    (etag,) = await write(store, table, row(INSERT, "old", {"A": 1}))
    with pytest.raises(error):
        await write(store, table, row(INSERT, "x"), row(INSERT, "y"), bad, row(INSERT, "z"))
    assert await keys(store, table) == ["old"]
    assert (await read(store, table, "old")).etag == etag


async def test_100_rows_and_no_more(store: Store, table: str) -> None:
    await write(store, table, *(row(INSERT, f"{number:03}", {"A": number}) for number in range(100)))
    assert len(await keys(store, table)) == 100
    with pytest.raises(InputError, match="101 rows"):
        await write(store, table, *(row(UPSERT_MERGE, f"{number:03}") for number in range(101)))
    with pytest.raises(InputError, match="0 rows"):
        await write(store, table)


async def test_one_partition_and_no_row_twice(store: Store, table: str) -> None:
    with pytest.raises(InputError, match="more than one PartitionKey"):  # Azurite would do it
        await write(store, table, row(INSERT, "a"), row(INSERT, "b", partition_key="q"))
    with pytest.raises(InputError, match="twice"):
        await write(store, table, row(INSERT, "a"), row(DELETE, "a", etag="*"))
    assert await keys(store, table) == []


async def test_4_mib_in_a_transaction_and_no_more(store: Store, table: str) -> None:
    column = "x" * 32_000
    columns: dict[str, Property] = {f"C{number}": column for number in range(13)}
    with pytest.raises(PayloadTooLarge, match="transaction"):
        await write(store, table, *(row(INSERT, str(number), columns) for number in range(11)))
    assert await keys(store, table) == []
    await write(store, table, *(row(INSERT, str(number), columns) for number in range(9)))
    assert len(await keys(store, table)) == 9


async def test_each_table_request_is_counted_by_its_kind(store: Store, table: str) -> None:
    store.requests.clear()
    await write(store, table, row(INSERT, "1"))
    await write(store, table, row(UPSERT_MERGE, "1"))
    await write(store, table, row(UPSERT_REPLACE, "1"))
    await write(store, table, row(MERGE, "1", etag="*"))
    await write(store, table, row(INSERT, "2"), row(REPLACE, "1", etag="*"))
    await write(store, table, row(DELETE, "1", etag="*"))
    await store.get(table, "p", "2")
    await store.query(table)
    assert dict(store.requests) == {
        "table.insert": 1,
        "table.upsert": 2,
        "table.update": 1,
        "table.batch": 1,
        "table.delete": 1,
        "table.get": 1,
        "table.query": 1,
    }


# --- sizes and values that Azure refuses, Azurite or not


async def test_64_kib_in_a_column_and_no_more(store: Store, table: str) -> None:
    good: dict[str, Property] = {"A": "x" * 32_768, "B": b"x" * 65_536, "C": "é" * 32_768, "D": "😀" * 16_384}
    await write(store, table, row(INSERT, properties=good))
    assert (await read(store, table)).properties == good
    bad_values: list[Property] = ["x" * 32_769, b"x" * 65_537, "😀" * 16_385]
    for bad in bad_values:
        with pytest.raises(PayloadTooLarge, match="'A'"):
            await write(store, table, row(UPSERT_MERGE, properties={"A": bad}))


async def test_1_mib_in_a_row_and_no_more(store: Store, table: str) -> None:
    half: dict[str, Property] = {f"A{number}": b"x" * 65_000 for number in range(8)}
    other: dict[str, Property] = {f"B{number}": b"x" * 65_000 for number in range(8)}
    await write(store, table, row(INSERT, properties=half | other))
    with pytest.raises(PayloadTooLarge, match="row"):
        await write(store, table, row(INSERT, "2", half | other | {"C": b"x" * 65_000}))


async def test_252_columns_and_no_more(store: Store, table: str) -> None:
    columns: dict[str, Property] = {f"C{number}": number for number in range(252)}
    await write(store, table, row(INSERT, properties=columns))
    assert len((await read(store, table)).properties) == 252
    with pytest.raises(PayloadTooLarge, match="253 properties"):
        await write(store, table, row(INSERT, "2", columns | {"C252": 0}))


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1])
async def test_int32_has_a_range(store: Store, table: str, value: int) -> None:
    with pytest.raises(InputError, match="wrap it in Int64"):
        await write(store, table, row(INSERT, properties={"A": value}))
    await write(store, table, row(INSERT, properties={"A": Int64(value)}))
    assert (await read(store, table)).properties == {"A": value}


@pytest.mark.parametrize(
    "value",
    [
        Int64(2**63),
        Timestamp.parse("1600-12-31T23:59:59.9999999Z"),
        Timestamp(Timestamp.parse("9999-12-31T23:59:59.9999999Z").ticks + 1),
        "\ud800",
        [1],
    ],
)
async def test_values_out_of_range_are_refused(store: Store, table: str, value: Property) -> None:
    with pytest.raises(InputError, match="'A'"):
        await write(store, table, row(INSERT, properties={"A": value}))


@pytest.mark.parametrize("key", ["a/b", "a\\b", "a#b", "a?b", "a\tb", "a\x7fb", "a\x85b", "\ud800", "x" * 513])
async def test_keys_that_azure_refuses(store: Store, table: str, key: str) -> None:
    with pytest.raises(InputError, match="RowKey"):
        await write(store, table, row(INSERT, key))
    with pytest.raises(InputError, match="PartitionKey"):
        await write(store, table, row(INSERT, partition_key=key))
    with pytest.raises(InputError, match="PartitionKey"):
        await store.get(table, key, "1")


@pytest.mark.parametrize("column", ["PartitionKey", "RowKey", "Timestamp", "a-b", "1a", "", "x" * 256, "a b"])
async def test_columns_that_azure_refuses(store: Store, table: str, column: str) -> None:
    with pytest.raises(InputError, match="column"):
        await write(store, table, row(INSERT, properties={column: 1}))


@pytest.mark.parametrize("name", ["ab", "1abc", "a-b-c", "tables", "x" * 64, ""])
async def test_table_names_that_azure_refuses(store: Store, name: str) -> None:
    with pytest.raises(InputError, match="table name"):
        await store.create_table(name)


async def test_conditions_stand_where_they_belong(store: Store, table: str) -> None:
    for verb in (MERGE, REPLACE, DELETE):
        with pytest.raises(InputError, match="needs an etag"):
            await write(store, table, row(verb))
    for verb in (INSERT, UPSERT_MERGE, UPSERT_REPLACE):
        with pytest.raises(InputError, match="takes no etag"):
            await write(store, table, row(verb, etag="*"))
    with pytest.raises(InputError, match="inside a unit"):
        await write(store, table, row(MERGE, etag=EtagOf(step=0)))


# --- pages


async def fill(store: Store, table: str, partition_key: str, count: int) -> None:
    for start in range(0, count, 100):
        rows = [
            row(INSERT, f"{number:05}", {"A": number}, partition_key=partition_key)
            for number in range(start, min(count, start + 100))
        ]
        await write(store, table, *rows)


async def test_pages_follow_each_other(store: Store, table: str) -> None:
    for partition_key in ("p", "q"):
        await fill(store, table, partition_key, 25)
    found: list[tuple[str, str]] = []
    continuation, pages = None, 0
    while True:
        page = await store.query(table, limit=10, continuation=continuation)
        assert len(page.entities) <= 10
        found += [(entity.partition_key, entity.row_key) for entity in page.entities]
        continuation, pages = page.continuation, pages + 1
        if continuation is None:
            break
        assert pages < 20
    assert found == [(partition, f"{number:05}") for partition in ("p", "q") for number in range(25)]


async def test_pages_of_a_filter(store: Store, table: str) -> None:
    await fill(store, table, "p", 30)
    await fill(store, table, "q", 30)
    wanted = And((Compare("PartitionKey", "eq", "q"), Compare("A", "ge", 3), Compare("RowKey", "lt", "00020")))
    found: list[str] = []
    continuation = None
    for _ in range(30):
        page = await store.query(table, wanted, limit=4, continuation=continuation)
        found += [entity.row_key for entity in page.entities]
        continuation = page.continuation
        if continuation is None:
            break
    assert found == [f"{number:05}" for number in range(3, 20)]
    assert continuation is None


async def test_more_rows_than_a_page(store: Store, table: str) -> None:
    await fill(store, table, "p", 1_100)
    page = await store.query(table)
    assert len(page.entities) <= 1_000
    assert page.continuation is not None
    assert [entity.row_key async for entity in store.rows(table)] == [f"{number:05}" for number in range(1_100)]


async def test_a_limit_of_1_to_1000(store: Store, table: str) -> None:
    for limit in (0, 1001):
        with pytest.raises(InputError, match="limit"):
            await store.query(table, limit=limit)
    with pytest.raises(InputError, match="continuation"):
        await store.query(table, continuation="nonsense")


async def test_select_reads_only_these_columns(store: Store, table: str) -> None:
    (etag,) = await write(store, table, row(INSERT, properties={"A": 1, "B": "two", "C": 3.0}))
    (entity,) = (await store.query(table, Compare("C", "eq", 3.0), select=["B", "Absent"])).entities
    assert entity.properties == {"B": "two"}
    assert (entity.partition_key, entity.row_key, entity.etag) == ("p", "1", etag)
    assert entity.timestamp is not None
    (selected,) = [found async for found in store.rows(table, select=["A"])]
    assert selected.properties == {"A": 1}


async def test_rows_written_during_a_read_do_not_disturb_it(store: Store, table: str) -> None:
    await fill(store, table, "p", 30)
    page = await store.query(table, limit=10)
    await write(store, table, row(INSERT, "00004x"), row(DELETE, "00009", etag="*"), row(DELETE, "00010", etag="*"))
    following = await store.query(table, limit=10, continuation=page.continuation)
    assert following.entities[0].row_key == "00011"


async def test_guids_are_text_nowhere(store: Store, table: str) -> None:
    guid = uuid4()
    await write(store, table, row(INSERT, properties={"A": guid, "B": str(guid)}))
    found = (await read(store, table)).properties
    assert (found["A"], found["B"]) == (guid, str(guid))
    assert isinstance(found["A"], UUID)


# --- news


async def done(store: Store, table: str, news: str) -> None:
    row = RowOperation(verb=UPSERT_MERGE, entity=Entity(partition_key="p", row_key="r"))
    await store.execute(Transact(table=table, rows=(row,), topic=news))


async def test_what_is_done_under_a_name_is_heard_by_whoever_waits_for_it(store: Store, table: str) -> None:
    async with store.subscribe("=one") as one, store.subscribe("=two") as two:
        waiting = asyncio.ensure_future(two(3600.0))
        await done(store, table, "=one")
        await asyncio.wait_for(one(3600.0), PATIENCE)
        assert not waiting.done()
        await done(store, table, "=two")
        await asyncio.wait_for(waiting, PATIENCE)


async def test_news_between_two_looks_is_not_missed(store: Store, table: str) -> None:
    async with store.subscribe("=one") as wait:
        for _ in range(3):
            await done(store, table, "=one")
            await asyncio.wait_for(wait(3600.0), PATIENCE)


async def test_a_transaction_without_a_topic_wakes_no_subscriber(store: Store, table: str) -> None:
    async with store.subscribe("=one") as wait:
        waiting = asyncio.ensure_future(wait(3600.0))
        await done(store, table, "")
        await a_few_requests(store)
        assert not waiting.done()
        await done(store, table, "=one")
        await asyncio.wait_for(waiting, PATIENCE)


async def test_a_subscriber_without_news_waits_only_the_given_seconds(store: Store) -> None:
    async with store.subscribe("=one") as wait:
        await asyncio.wait_for(wait(0.2), PATIENCE)
