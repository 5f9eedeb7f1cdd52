"""What a step costs does not depend on how much is in the file: every statement's plan, and the work that SQLite does.

SQLite's virtual machine tells its work exactly: a step along an index or over a row is a few of its instructions, a
search in a tree of any depth is one. So statements that only search do the same number of them in a hub of any size.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.storage.primitives import DeleteBlob, PutBlob, PutMessage, UpdateMessage
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore
from airflow_provider_taskhub.virtual_time import VirtualClock, run
from tests.hub.in_process_worker import House, house

COPIES = 4_000
"""Instances in the large hub; more take longer and change nothing."""
ONE_ROW = ("SCAN anchor", "SCAN CONSTANT ROW", "SCAN peers")
"""The file's own row; the values of an insert; a row for each process that listens."""

app = App("grown", version="1")


@app.activity(record=True)
def nothing(value: int) -> int:
    return value


@app.orchestrator
async def chain(ctx: OrchestrationContext, length: int) -> int:
    for number in range(length):
        await ctx.call_activity(nothing, number)
    ended: int = await ctx.wait_for_external_event("end", int)
    return ended


class Meter:
    """Instructions of SQLite's virtual machine, by statement."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._now = ""
        self._spent: dict[str, list[int]] = defaultdict(list)

    def _begin(self, statement: str) -> None:
        self._now = statement
        self._spent[statement].append(0)

    def _step(self) -> int:
        if self._now:
            self._spent[self._now][-1] += 1
        return 0

    @contextmanager
    def running(self) -> Iterator[None]:
        self._spent.clear()
        self._connection.set_trace_callback(self._begin)
        self._connection.set_progress_handler(self._step, 1)
        try:
            yield
        finally:
            self._now = ""
            self._connection.set_trace_callback(None)
            self._connection.set_progress_handler(None, 1)

    @property
    def statements(self) -> set[str]:
        """As they were run, values included."""
        return set(self._spent)

    def page(self) -> int:
        """The most that any query of a table took."""
        return max(spent for statement, spent in self.most().items() if "ORDER BY pk, rk" in statement)

    def most(self) -> dict[str, int]:
        """The most of any run, by statement without its values."""
        found: dict[str, int] = defaultdict(int)
        for statement, runs in self._spent.items():
            found[plain(statement)] = max(found[plain(statement)], *runs)
        return dict(found)


def plain(statement: str) -> str:
    """The statement without texts and numbers."""
    kept, inside = [], False
    for part in statement.split("'"):
        if not inside:
            kept.append("".join("?" if letter.isdigit() else letter for letter in part))
        inside = not inside
    return "'…'".join(kept).replace("??", "?").replace("??", "?").replace("??", "?")


def grow(connection: sqlite3.Connection, source: str, copies: range = range(COPIES)) -> None:
    """Copies of all rows of an instance, on both sides of every key, without order; and messages in each queue."""
    connection.execute(
        "INSERT INTO rows (tbl, pk, rk, etag, ts, data) "
        "WITH RECURSIVE copies (n) AS (SELECT ? UNION ALL SELECT n + 1 FROM copies WHERE n + 1 < ?) "
        "SELECT tbl, printf('%08x-', n * 2654435761 % 4294967296) || pk, rk, etag, ts, data "
        "FROM rows CROSS JOIN copies WHERE pk = ?",
        (copies.start, copies.stop, source),
    )
    connection.execute(  # due after everything that the test sends
        "INSERT INTO messages (number, queue, visible, inserted, receipt, dequeues, text) "
        "WITH RECURSIVE copies (n) AS (SELECT ? UNION ALL SELECT n + 4 FROM copies WHERE n + 4 < ?) "
        "SELECT -100 * n - queues.id, queues.id, high + 864000000000 + n, 0, 0, 0, 'later' "
        "FROM queues CROSS JOIN copies CROSS JOIN anchor",
        (copies.start, copies.stop),
    )


async def step(hub: House, clock: VirtualClock, instance_id: str) -> None:
    """Everything that an orchestration and its readers do."""
    client = hub.client
    await client.start("chain", 3, instance_id=instance_id)
    await clock.sleep(5.0)
    await clock.sleep(120.0)
    await client.raise_event(instance_id, "end", 7)
    state = await client.wait(instance_id)
    assert state.status is Status.COMPLETED
    await client.instance(instance_id).history()
    await client.instance(instance_id).activities()
    await client.list(limit=1)
    await client.list(limit=5, prefix=instance_id)
    await client.watches.completions()
    await client.admin.quarantined()
    names, store = client.hub.names, client.hub.store
    await store.execute(PutBlob(container=names.logs, name=f"{instance_id}/kept", data=b"1"))
    await store.append_blob(names.logs, f"{instance_id}/log", b"line")
    await store.get_blob(names.logs, f"{instance_id}/log")
    await store.list_blobs(names.logs, f"{instance_id}/")
    await store.execute(DeleteBlob(container=names.logs, name=f"{instance_id}/kept"))
    later = await store.execute(PutMessage(queue=names.work_items, text="x", visibility=timedelta(hours=1)))
    await store.execute(UpdateMessage(queue=names.work_items, message=later, visibility=timedelta(hours=2)))  # type: ignore[arg-type]  # a put's result is a receipt


def measured(play: Callable[[House, VirtualClock, Meter, sqlite3.Connection], Awaitable[Any]]) -> Any:
    async def scene() -> Any:
        clock = VirtualClock()
        async with SqliteStore(None, clock=clock) as store, house(store, app, clock=clock) as hub:
            connection = store._access._connection  # type: ignore[union-attr]  # what is measured is inside
            assert connection is not None
            hub.backend.sessions._limit = 0  # events find nothing in memory
            for name in ("first", "second", "third"):  # a page is full, with a row behind it
                await step(hub, clock, name)
            return await play(hub, clock, Meter(connection), connection)

    return run(scene())


def test_no_statement_scans_or_sorts() -> None:
    async def play(hub: House, clock: VirtualClock, meter: Meter, connection: sqlite3.Connection) -> set[str]:
        with meter.running():
            await step(hub, clock, "watched")
        wrong = set()
        for statement in meter.statements:
            if statement.split()[0] not in ("SELECT", "INSERT", "UPDATE", "DELETE"):
                continue
            for *_, detail in connection.execute(f"EXPLAIN QUERY PLAN {statement}"):
                scans = detail.startswith("SCAN") and not detail.startswith(ONE_ROW) and "CONSTANT ROWS" not in detail
                if scans or "TEMP B-TREE" in detail:
                    wrong.add(f"{detail}: {plain(statement)}")
        assert len({plain(statement) for statement in meter.statements}) > 25
        return wrong

    assert measured(play) == set()


def test_a_step_does_the_same_work_in_a_hub_of_any_size() -> None:
    async def play(hub: House, clock: VirtualClock, meter: Meter, connection: sqlite3.Connection) -> Any:
        grow(connection, "first", range(COPIES, COPIES + 4))
        with meter.running():
            await step(hub, clock, "5-before")
        before = meter.most()
        grow(connection, "first")
        with meter.running():
            await step(hub, clock, "5-later-")
        return before, meter.most()

    before, later = measured(play)
    assert before.keys() == later.keys()
    # one more: that the row behind those wanted is not wanted
    assert {sql: (before[sql], later[sql]) for sql in before if later[sql] > before[sql] + 1} == {}


def test_a_page_reads_its_rows_and_one_more() -> None:
    """Twice the rows of a page are twice the instructions, and a page of any hub is the same."""

    async def play(hub: House, clock: VirtualClock, meter: Meter, connection: sqlite3.Connection) -> dict[Any, int]:
        grow(connection, "first")
        found = {}
        for prefix in ("", "8", "f"):
            for limit in (20, 40):
                with meter.running():
                    page = await hub.client.list(prefix=prefix, limit=limit)
                assert len(page.instances) == limit
                assert page.continuation is not None
                found[prefix, limit] = meter.page()
        return found

    found = measured(play)
    assert all(found[prefix, 40] < 2.2 * found[prefix, 20] for prefix in ("", "8", "f"))
    assert max(found.values()) < 40 * 25


@pytest.mark.parametrize("limit", [1, 50])
def test_the_page_after_a_page_begins_where_that_ended(limit: int) -> None:
    async def play(hub: House, clock: VirtualClock, meter: Meter, connection: sqlite3.Connection) -> tuple[int, int]:
        grow(connection, "first")
        half = await hub.client.list(prefix="7", limit=1)
        assert half.continuation is not None
        spent = []
        for continuation in (None, half.continuation):
            with meter.running():
                page = await hub.client.list(limit=limit, continuation=continuation)
            assert len(page.instances) == limit
            spent.append(meter.page())
        return spent[0], spent[1]

    first, later = measured(play)
    assert later <= 2 * first
