"""Group commit, savepoints, deadlines and bounds of the writer thread; ranges of the index in queries."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_taskhub.errors import Conflict, InputError, LeaseLost, NotFound, Throttled, Unavailable
from airflow_provider_taskhub.storage.primitives import (
    And,
    BlobInfo,
    Compare,
    DeleteMessage,
    Entity,
    Filter,
    Or,
    Page,
    Property,
    PutBlob,
    PutMessage,
    Receipt,
    RowOperation,
    RowVerb,
    Step,
    Transact,
    Unit,
)
from airflow_provider_taskhub.storage.sqlite import blobs, rows, writer_thread
from airflow_provider_taskhub.storage.sqlite.file import connect
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore
from airflow_provider_taskhub.storage.sqlite.writer_thread import Writer
from tests.waiting import PATIENCE, until_async


def insert(key: str, partition_key: str = "p") -> Transact:
    entity = Entity(partition_key=partition_key, row_key=key)
    return Transact(table="Rows", rows=(RowOperation(verb=RowVerb.INSERT, entity=entity),))


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    return tmp_path / "hub.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    async with SqliteStore(path, timeout=timedelta(seconds=PATIENCE)) as opened:
        await opened.create_queue("abc")
        await opened.create_table("Rows")
        yield opened


@pytest.fixture
def begun(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """It is set once the writer thread has taken a job and begins a transaction for it."""
    begin, event = Writer._begin, threading.Event()

    def tell(writer: Writer) -> None:
        event.set()
        begin(writer)

    monkeypatch.setattr(Writer, "_begin", tell)
    return event


async def jobs_wait(store: SqliteStore, count: int) -> None:
    """Wait until so many jobs wait behind the one that the writer thread has taken."""
    jobs = store._access._current().writer._jobs  # type: ignore[union-attr]  # the only way to see them
    await until_async(f"{count} jobs wait", lambda: jobs.qsize() == count)


async def test_what_arrives_together_shares_a_commit(store: SqliteStore) -> None:
    before = store.commits
    await asyncio.gather(*(store.execute(PutMessage(queue="abc", text=str(number))) for number in range(1000)))
    assert await store.count("abc") == 1000
    assert 1 <= store.commits - before <= 50


async def test_a_refused_unit_undoes_only_itself(store: SqliteStore) -> None:
    await store.execute(insert("taken"))
    before = store.commits

    def unit(number: int) -> Unit:
        key = "taken" if number in (5, 7) else f"{number:02}"
        put = PutMessage(queue="abc", text=str(number))
        return Unit(steps=(Step(name="put", operations=(put,)), Step(name="row", operations=(insert(key),))))

    outcomes = await asyncio.gather(*(store.commit(unit(number)) for number in range(10)), return_exceptions=True)
    assert [number for number, outcome in enumerate(outcomes) if isinstance(outcome, Conflict)] == [5, 7]
    assert sum(isinstance(outcome, BaseException) for outcome in outcomes) == 2
    assert store.commits - before < 10
    texts = {message.text for message in await store.peek("abc")}
    assert texts == {str(number) for number in range(10) if number not in (5, 7)}
    assert len(texts) == await store.count("abc") == 8  # nothing of the group was done twice


async def test_any_error_of_a_check_refuses_only_its_unit(store: SqliteStore) -> None:
    def refuse() -> None:
        raise LeaseLost("old")

    def broken() -> None:
        raise ZeroDivisionError

    def unit(check: object) -> Unit:
        put = PutMessage(queue="abc", text="x")
        return Unit(steps=(Step(name="put", operations=(put,)),), check=check)  # type: ignore[arg-type]  # any of them

    outcomes = await asyncio.gather(
        *(store.commit(unit(check)) for check in (None, refuse, broken, None)), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [tuple, LeaseLost, ZeroDivisionError, tuple]
    assert await store.count("abc") == 2


async def test_what_changes_nothing_commits_nothing(store: SqliteStore) -> None:
    await store.execute(insert("taken"))
    before = store.commits
    with pytest.raises(Conflict):
        await store.execute(insert("taken"))
    assert await store.create_queue("abc") is False
    assert await store.receive("abc", limit=1, visibility=timedelta(seconds=1)) == []
    assert store.commits == before


async def test_a_foreign_lock_is_waited_for(store: SqliteStore, path: Path, begun: threading.Event) -> None:
    with sqlite3.connect(path, isolation_level=None, check_same_thread=False) as foreign:
        foreign.execute("BEGIN IMMEDIATE")
        waiting = asyncio.ensure_future(store.execute(PutMessage(queue="abc", text="x")))
        await until_async("the writer has it", begun.is_set)
        for _ in range(5):
            assert await store.count("abc") == 0  # reads do not wait
        assert not waiting.done()
        foreign.execute("ROLLBACK")
        await asyncio.wait_for(waiting, PATIENCE)
    assert await store.count("abc") == 1


async def test_a_foreign_lock_is_not_waited_for_longer_than_the_deadline(path: Path) -> None:
    async with SqliteStore(path, timeout=timedelta(seconds=0.3)) as store:
        await store.create_queue("abc")
        with sqlite3.connect(path, isolation_level=None) as foreign:
            foreign.execute("BEGIN IMMEDIATE")
            async with asyncio.timeout(PATIENCE):  # the lock is held until all have their outcomes
                outcomes = await asyncio.gather(
                    *(store.execute(PutMessage(queue="abc", text="x")) for _ in range(3)), return_exceptions=True
                )
            assert all(isinstance(outcome, Unavailable) for outcome in outcomes)
            foreign.execute("ROLLBACK")
        await store.execute(PutMessage(queue="abc", text="y"))


async def test_a_locked_file_is_told_with_the_time_of_the_lock(path: Path) -> None:
    """The second write has waited behind the first one, and has no time left when its turn comes."""
    async with SqliteStore(path, timeout=timedelta(seconds=0.3)) as store:
        with closing(connect(path, 1.0)) as other:
            other.execute("BEGIN IMMEDIATE")
            writes = [store.create_queue(name) for name in ("first", "second")]
            errors = await asyncio.gather(*writes, return_exceptions=True)
    told = [re.fullmatch(r"another process has locked the file for ([0-9.]+) s", str(error)) for error in errors]
    assert all(found is not None and float(found.group(1)) >= 0.3 for found in told), errors


async def test_too_many_waiting_operations_are_throttled(
    store: SqliteStore, path: Path, begun: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_thread, "MAX_WAITING", 5)
    with sqlite3.connect(path, isolation_level=None) as foreign:
        foreign.execute("BEGIN IMMEDIATE")
        waiting = [asyncio.ensure_future(store.execute(PutMessage(queue="abc", text="0")))]
        await until_async("the writer has it", begun.is_set)
        waiting += [asyncio.ensure_future(store.execute(PutMessage(queue="abc", text=str(n)))) for n in range(1, 10)]
        await jobs_wait(store, 5)
        refused = [task for task in waiting if task.done() and isinstance(task.exception(), Throttled)]
        assert len(refused) == 4
        foreign.execute("ROLLBACK")
        await asyncio.wait(waiting)
    assert await store.count("abc") == 6


async def test_a_cancelled_caller_leaves_the_writer_well(
    store: SqliteStore, path: Path, begun: threading.Event
) -> None:
    with sqlite3.connect(path, isolation_level=None) as foreign:
        foreign.execute("BEGIN IMMEDIATE")
        waiting = [asyncio.ensure_future(store.execute(PutMessage(queue="abc", text=str(n)))) for n in range(3)]
        await until_async("the writer has the first one", begun.is_set)
        await jobs_wait(store, 2)
        waiting[2].cancel()
        await asyncio.sleep(0)
        foreign.execute("ROLLBACK")
        await asyncio.wait(waiting)
    assert await store.count("abc") == 2


async def test_the_writer_leaves_the_lock_free_after_another_connection_has_committed(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a busy process takes the lock again before others try. Without other writers, it loses no time."""
    pauses: list[float] = []
    # no time passes between two transactions, as under load
    monkeypatch.setattr(writer_thread, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=pauses.append))

    async def put(count: int) -> None:
        for _ in range(count):  # the thread pauses after the answer, and before the next transaction
            await store.execute(PutMessage(queue="abc", text="x"))

    await put(3)
    pauses.clear()
    await put(3)
    assert pauses == []
    with sqlite3.connect(path, isolation_level=None) as foreign:
        foreign.execute("CREATE TABLE elsewhere (value)")
    await put(3)
    (pause,) = pauses
    assert 0 < pause <= writer_thread.COURTESY


def test_a_connection_has_no_busy_handler(path: Path) -> None:
    """SQLite's own handler waits longer and longer, so that a process that waits loses to those that come later."""
    with closing(connect(path, 60.0)) as connection:
        assert connection.execute("PRAGMA busy_timeout").fetchone() == (0,)


async def test_a_full_disk_is_told_and_survived(store: SqliteStore, path: Path) -> None:
    """The page limit of the writer's connection stands for the disk."""
    connection = store._access.journal._connection  # type: ignore[union-attr]  # the only way to a full disk
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    outcomes = await asyncio.gather(
        *(store.execute(PutMessage(queue="abc", text="x" * 60_000)) for _ in range(5)), return_exceptions=True
    )
    assert all(isinstance(outcome, Unavailable) and "full" in str(outcome) for outcome in outcomes)
    connection.execute("PRAGMA max_page_count = 1000000")
    await store.execute(PutMessage(queue="abc", text="x"))
    assert await store.count("abc") == 1


async def test_stores_of_two_threads_share_the_writer(store: SqliteStore, path: Path) -> None:
    def other() -> int:
        async def use() -> int:
            async with SqliteStore(path) as mine:
                await asyncio.gather(*(mine.execute(PutMessage(queue="abc", text="t")) for _ in range(50)))
                return sum(thread.name == "taskhub-writer" for thread in threading.enumerate())

        return asyncio.run(use())

    counts = await asyncio.gather(
        asyncio.to_thread(other), *(store.execute(PutMessage(queue="abc", text="m")) for _ in range(50))
    )
    assert counts[0] == 1
    assert await store.count("abc") == 100


async def test_a_long_scan_is_cut_into_pages(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_SCANNED", 10)
    entities = [Entity(partition_key="p", row_key=f"{n:02}", properties={"A": n}) for n in range(35)]
    inserts = tuple(RowOperation(verb=RowVerb.INSERT, entity=entity) for entity in entities)
    await store.execute(Transact(table="Rows", rows=inserts))
    page = await store.query("Rows", Compare("A", "eq", 33))
    assert page.entities == ()
    assert page.continuation is not None
    assert [entity.row_key async for entity in store.rows("Rows", Compare("A", "eq", 33))] == ["33"]


@pytest.mark.parametrize("listing", ["instances", "blobs"])
async def test_a_listing_delays_no_history_and_no_payload(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, listing: str
) -> None:
    """The listing ends only after the other reads have ended."""
    await store.create_container("payloads")
    await store.execute(PutBlob(container="payloads", name="large", data=b"payload"))
    await store.execute(insert("1"))
    begun, go_on = threading.Event(), threading.Event()
    query, names = rows.query, blobs.listing

    def slow_query(connection: sqlite3.Connection, table: str, filter: Filter | None, **more: Any) -> Page:
        if filter is None:
            begun.set()
            go_on.wait()
        return query(connection, table, filter, **more)

    def slow_names(connection: sqlite3.Connection, container: str, prefix: str) -> list[BlobInfo]:
        begun.set()
        go_on.wait()
        return names(connection, container, prefix)

    monkeypatch.setattr(rows, "query", slow_query)
    monkeypatch.setattr(blobs, "listing", slow_names)
    wanted: Awaitable[object] = store.query("Rows") if listing == "instances" else store.list_blobs("payloads")
    listed = asyncio.ensure_future(wanted)
    try:
        assert await asyncio.to_thread(begun.wait, PATIENCE)
        async with asyncio.timeout(PATIENCE):
            history = await store.query("Rows", Compare("PartitionKey", "eq", "p"))
            payload = await store.get_blob("payloads", "large")
        assert not listed.done()
    finally:
        go_on.set()
    assert [entity.row_key for entity in history.entities] == ["1"]
    assert payload is not None
    assert payload.data == b"payload"
    await listed


@pytest.mark.parametrize("spread", [False, True], ids=["one partition", "many"])
async def test_a_search_for_a_text_is_cut_into_pages(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, spread: bool
) -> None:
    """SQLite passes over what is not wanted; the page ends where it has looked at enough, and the next one goes on."""
    monkeypatch.setattr(rows, "MAX_SEARCHED", 10)
    for n in range(40):
        entity = Entity(partition_key=f"p{n:02}" if spread else "p", row_key=f"{n:02}", properties={"A": f"a{n}"})
        await store.execute(Transact(table="Rows", rows=(RowOperation(verb=RowVerb.INSERT, entity=entity),)))
    wanted: Filter = Compare("A", "eq", "a33")
    if not spread:
        wanted = And((Compare("PartitionKey", "eq", "p"), wanted))
    pages, continuation = [], None
    while True:
        page = await store.query("Rows", wanted, continuation=continuation)
        pages.append([entity.row_key for entity in page.entities])
        if (continuation := page.continuation) is None:
            break
    assert pages == [[], [], [], ["33"], []]
    either = Or((Compare("A", "eq", "a1"), Compare("A", "eq", "a12")))
    assert [entity.row_key async for entity in store.rows("Rows", either)] == ["01", "12"]
    page = await store.query("Rows", Or((Compare("A", "eq", "a3"), Compare("A", "eq", "a4"))), limit=1)
    assert [entity.row_key for entity in page.entities] == ["03"]
    assert page.continuation is not None


async def test_a_search_for_a_timestamp_is_cut_into_pages(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """No index has the Timestamps, so a search looks into each row; no page may take long."""
    monkeypatch.setattr(rows, "MAX_SEARCHED", 10)
    for n in range(25):
        entity = Entity(partition_key=f"p{n:02}", row_key="", properties={})
        await store.execute(Transact(table="Rows", rows=(RowOperation(verb=RowVerb.INSERT, entity=entity),)))
    last = await store.get("Rows", "p23", "")
    assert last is not None
    assert last.timestamp is not None
    pages, continuation = [], None
    while True:
        page = await store.query("Rows", Compare("Timestamp", "ge", last.timestamp), continuation=continuation)
        pages.append([entity.partition_key for entity in page.entities])
        if (continuation := page.continuation) is None:
            break
    assert pages == [[], [], ["p23", "p24"]]


@pytest.mark.parametrize("text", ["", "plain", 'quo"ted', "back\\slash", "é", "tab\t", "</&'>", "\x7f"])
async def test_a_text_is_found_however_it_is_written(store: SqliteStore, text: str) -> None:
    others: dict[str, dict[str, Property]] = {
        "none": {},
        "number": {"A": 1},
        "longer": {"A": f"{text}x"},
        "within": {"B": f'"A":"{text}"', "A": "-"},
    }
    others["it"] = {"A": text}
    for key, values in others.items():
        entity = Entity(partition_key="p", row_key=key, properties=values)
        await store.execute(Transact(table="Rows", rows=(RowOperation(verb=RowVerb.INSERT, entity=entity),)))
    assert [entity.row_key async for entity in store.rows("Rows", Compare("A", "eq", text))] == ["it"]
    other = And((Compare("A", "ne", text), Compare("PartitionKey", "eq", "p")))
    assert [entity.row_key async for entity in store.rows("Rows", other)] == ["longer", "within"]


async def test_a_page_has_a_bound_of_bytes(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_PAGE_CHARACTERS", 50_000)
    for number in range(6):
        entity = Entity(partition_key="p", row_key=str(number), properties={"A": "x" * 20_000})
        await store.execute(Transact(table="Rows", rows=(RowOperation(verb=RowVerb.INSERT, entity=entity),)))
    page = await store.query("Rows")
    assert len(page.entities) == 3
    assert [entity.row_key async for entity in store.rows("Rows")] == list("012345")


PARTITION, ROW = "PartitionKey", "RowKey"


@pytest.mark.parametrize(
    ("filter", "after", "end", "constraint"),
    [
        (Compare(PARTITION, "eq", "p"), None, None, "(tbl=? AND pk=?)"),
        (And((Compare(PARTITION, "eq", "p"), Compare(ROW, "ge", "5"))), None, None, "(tbl=? AND pk=? AND rk>?)"),
        (Compare(PARTITION, "eq", "p"), ("p", "7"), None, "(tbl=? AND pk=? AND rk>?)"),
        (Compare(PARTITION, "eq", "p"), ("p", "7"), ("p", "9"), "(tbl=? AND pk=? AND rk>? AND rk<?)"),
        (
            And((Compare(PARTITION, "ge", "p"), Compare(PARTITION, "lt", "q"))),
            None,
            None,
            "(tbl=? AND pk>? AND pk<?)",
        ),
        (
            Or((Compare(PARTITION, "eq", "p"), And((Compare(PARTITION, "eq", "q"), Compare("A", "eq", 1))))),
            None,
            None,
            "(tbl=? AND pk>? AND pk<?)",
        ),
        (None, ("p", "7"), None, "(tbl=? AND (pk,rk)>(?,?))"),
        (Compare("A", "eq", "x"), None, ("p", "9"), "(tbl=? AND (pk,rk)<(?,?))"),
        (Compare("A", "eq", "x"), ("p", "7"), ("p", "9"), "(tbl=? AND (pk,rk)>(?,?) AND (pk,rk)<(?,?))"),
    ],
)
async def test_queries_by_key_walk_only_their_range(
    store: SqliteStore,
    path: Path,
    filter: Filter | None,
    after: tuple[str, str] | None,
    end: tuple[str, str] | None,
    constraint: str,
) -> None:
    sql, values = rows._select(1, filter, after, end)
    connection = sqlite3.connect(path)
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)]
    connection.close()
    assert plan == [f"SEARCH rows USING INDEX rows_key {constraint}"]  # one range, and no sort behind it


async def test_memory_and_file_give_the_same_errors_for_a_closed_store() -> None:
    store = SqliteStore(None)
    with pytest.raises(Unavailable, match="not open"):
        await store.create_queue("abc")
    with pytest.raises(Unavailable, match="not open"):
        await store.count("abc")


async def test_a_message_of_another_file_is_not_found(store: SqliteStore, tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "other.db") as other:
        await other.create_queue("abc")
        receipt = await other.execute(PutMessage(queue="abc", text="x"))
        assert isinstance(receipt, Receipt)
    await store.execute(PutMessage(queue="abc", text="x"))
    for message_id in (receipt.message_id, "no guid"):
        foreign = Receipt(message_id=message_id, pop_receipt=receipt.pop_receipt, next_visible=receipt.next_visible)
        with pytest.raises(NotFound):
            await store.execute(DeleteMessage(queue="abc", message=foreign))
    with pytest.raises(InputError):
        await store.count("Not A Queue")
