"""Reading a history back while others change it: all of one moment, and no request more than that takes (K28)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_taskhub import virtual_time
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.engine.events import EventRaised, EventType, HistoryEvent, OrchestratorStarted
from airflow_provider_taskhub.engine.identity import next_execution_id
from airflow_provider_taskhub.errors import Conflict
from airflow_provider_taskhub.hub.formats.history_rows import (
    SENTINEL,
    Sentinel,
    encode_event,
    encode_sentinel,
    row_key,
)
from airflow_provider_taskhub.hub.formats.payload_spill import spill_columns
from airflow_provider_taskhub.hub.history.load import READINGS, HistoryUnreadable, Loaded, load
from airflow_provider_taskhub.hub.history.rewind_plan import locked
from airflow_provider_taskhub.hub.history.salvage import salvage
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import HubInfo
from airflow_provider_taskhub.settings import LeaseTimes
from airflow_provider_taskhub.storage.faults import FaultyStore
from airflow_provider_taskhub.storage.primitives import (
    Blob,
    DeleteBlob,
    Entity,
    Page,
    RowOperation,
    RowVerb,
    Store,
    Transact,
)
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore
from airflow_provider_taskhub.virtual_time import VirtualClock
from tests.hub.by_hand import GEN0, NAMES, NOW, later

INFO = HubInfo(partitions=1, ready=True)
LONG = 1_200
"""Rows of two pages."""
GEN1 = next_execution_id(GEN0)


class Disturbed(FaultyStore):
    """Something happens between the first page of a reading and the next one, as often as it is given, or in front of
    the first payload."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, lambda call: None)
        self.between: list[Callable[[], Awaitable[None]]] = []
        self.before_payloads: list[Callable[[], Awaitable[None]]] = []

    async def get_blob(self, container: str, name: str) -> Blob | None:
        if self.before_payloads:
            await self.before_payloads.pop(0)()
        return await super().get_blob(container, name)

    async def query(self, table: str, *args: Any, continuation: str | None = None, **more: Any) -> Page:
        if continuation is not None and self.between:
            await self.between.pop(0)()
        return await super().query(table, *args, continuation=continuation, **more)


class Bench:
    """An instance's history in a store."""

    def __init__(self, store: Store) -> None:
        self.store = Disturbed(store)
        self.etag: str | None = None

    async def write(
        self, events: Sequence[HistoryEvent], execution_id: str = GEN0, *, first: int = 0, **sentinel: Any
    ) -> None:
        """A commit, as an owner makes it."""
        rows = []
        for ordinal, event in enumerate(events, first):
            entity = encode_event(event, instance_id="i", execution_id=execution_id, ordinal=ordinal)
            entity, blobs = spill_columns(entity, NAMES.large_messages)
            for blob in blobs:
                await self.store.execute(blob)
            rows.append(RowOperation(verb=RowVerb.UPSERT_REPLACE, entity=entity))
        count = first + len(events)
        known = Sentinel(
            execution_id=execution_id,
            complete=True,
            checkpoint_completed=later(count),
            commit_id="c",
            committed_rows=count,
        )
        lock = encode_sentinel(replace(known, **sentinel), instance_id="i")
        verb = RowVerb.INSERT if self.etag is None else RowVerb.MERGE
        for start in range(0, len(rows), 90):
            group = (*rows[start : start + 90], RowOperation(verb=verb, entity=lock, etag=self.etag))
            etags = await self.store.execute(Transact(table=NAMES.history, rows=group))
            assert isinstance(etags, tuple)
            self.etag, verb = etags[-1], RowVerb.MERGE

    async def load(self) -> Loaded:
        self.store.requests.clear()
        return await load(self.store, NAMES, "i")


def play(work: Callable[[Bench], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with SqliteStore(None, clock=VirtualClock()) as store:
            await store.create_table(NAMES.history)
            await store.create_container(NAMES.large_messages)
            return await work(Bench(store))

    return virtual_time.run(main())


def raised(count: int, text: str = "old") -> list[HistoryEvent]:
    return [EventRaised(timestamp=NOW, name=text, input=str(number)) for number in range(count)]


@pytest.mark.rows("K28")
@pytest.mark.parametrize(
    ("rows", "requests"),
    [(3, {"table.query": 1}), (LONG, {"table.query": 3, "table.get": 1})],
    ids=["one page", "two pages"],
)
def test_a_history_costs_one_request_unless_it_has_several_pages(rows: int, requests: dict[str, int]) -> None:
    async def work(bench: Bench) -> None:
        await bench.write(raised(rows))
        assert len((await bench.load()).past) == rows
        assert bench.store.requests == requests

    play(work)


@pytest.mark.rows("K28")
def test_a_generation_that_begins_between_two_pages_is_read_whole() -> None:
    """The first page told of the generation before: with the new sentinel nothing of it counted, under a valid ETag."""

    async def work(bench: Bench) -> Loaded:
        await bench.write(raised(LONG))
        bench.store.between = [lambda: bench.write(raised(4, "new"), GEN1)]
        return await bench.load()

    loaded = play(work)
    assert loaded.sentinel.execution_id == GEN1
    assert [event.name for event in loaded.past] == ["new"] * 4


@pytest.mark.rows("K28", "K46")
def test_a_rewind_between_two_pages_is_read_whole() -> None:
    async def work(bench: Bench) -> Loaded:
        await bench.write(raised(LONG))

        bench.store.between = [lambda: _rewind(bench, 0, LONG - 1)]
        return await bench.load()

    past = play(work).past
    assert [event.event_type is EventType.GenericEvent for event in (past[0], past[-1])] == [True, True]


@pytest.mark.rows("K28")
def test_a_history_that_changes_with_every_reading_is_given_up() -> None:
    async def work(bench: Bench) -> int:
        await bench.write(raised(LONG))

        async def grow() -> None:
            await bench.write([OrchestratorStarted(timestamp=NOW)], first=LONG)

        bench.store.between = [grow] * (READINGS + 3)
        with pytest.raises(Conflict, match="was changed during each of 5 readings"):
            await bench.load()
        return len(bench.store.between)

    assert play(work) == 3


async def _rewind(bench: Bench, *ordinals: int) -> None:
    rows = {row.row_key: row async for row in bench.store.rows(NAMES.history)}
    marked = [
        RowOperation(
            verb=RowVerb.REPLACE,
            entity=replace(row, properties={**row.properties, "EventType": "GenericEvent"}),
            etag=row.etag,
        )
        for row in (rows[row_key(ordinal)] for ordinal in ordinals)
    ]
    etags = await bench.store.execute(locked(NAMES, marked, GEN0, rows[SENTINEL].etag, commit_id="rewind"))
    assert isinstance(etags, tuple)
    bench.etag = etags[-1]


async def _read(bench: Bench, how: str) -> tuple[tuple[HistoryEvent, ...], tuple[str, ...]]:
    client = Client(Hub(store=bench.store, names=NAMES, info=INFO, clock=VirtualClock()), LeaseTimes())
    if how == "history":
        return await client.instance("i").history(), ()
    return await client.instance("i").readable_history()


READERS = pytest.mark.parametrize("how", ["history", "readable_history"])


@pytest.mark.rows("K28")
@READERS
def test_a_client_reads_a_history_that_its_owner_adds_to_all_the_time(how: str) -> None:
    """It failed with status 5 for as long as a busy instance ran."""

    async def work(bench: Bench) -> Any:
        await bench.write(raised(LONG))

        async def grow() -> None:
            nonlocal count
            await bench.write(raised(90, "later"), first=count)
            count += 90

        count = LONG
        bench.store.between = [grow] * 100
        events, unreadable = await _read(bench, how)
        return events, unreadable, 100 - len(bench.store.between)

    events, unreadable, pages = play(work)
    assert unreadable == ()
    assert len(events) == LONG + 90
    assert [event.name for event in events] == ["old"] * LONG + ["later"] * 90
    assert pages <= 3, "two readings are enough"


@pytest.mark.rows("K28", "K46")
@READERS
def test_a_client_notices_a_rewind_that_the_owner_goes_on_from_at_once(how: str) -> None:
    """The first page was read before the rewind, the second one after it and after what the owner has added since."""

    async def work(bench: Bench) -> Any:
        await bench.write(raised(LONG))

        async def rewind() -> None:
            await _rewind(bench, 0, LONG - 1)
            await grow()

        async def grow() -> None:
            nonlocal count
            await bench.write(raised(1, "later"), first=count)
            count += 1

        count = LONG
        bench.store.between = [rewind] + [grow] * 100
        return await _read(bench, how)

    events, unreadable = play(work)
    assert unreadable == ()
    assert [event.event_type is EventType.GenericEvent for event in (events[0], events[LONG - 1])] == [True, True]


@pytest.mark.rows("K28")
def test_a_client_takes_no_row_of_a_half_commit_that_another_commit_wrote_over() -> None:
    """Rows behind the committed ones may still be of the half commit on one page, and of the next commit on another."""

    async def work(bench: Bench) -> Any:
        await bench.write(raised(900))
        await bench.write(raised(200, "half"), first=900, committed_rows=900, complete=False)

        async def again() -> None:
            await bench.write(raised(300, "whole"), first=900)
            bench.store.between = [grow] * 100

        async def grow() -> None:
            nonlocal count
            await bench.write(raised(1, "later"), first=count)
            count += 1

        count = 1_200
        bench.store.between = [again]
        return [event.name for event in (await _read(bench, "history"))[0][:1_200]]

    assert play(work) == ["old"] * 900 + ["whole"] * 300


@pytest.mark.rows("K28")
def test_a_client_is_shown_a_history_that_begins_anew_with_every_reading_with_a_line_on_that() -> None:
    async def work(bench: Bench) -> Any:
        await bench.write(raised(LONG))

        async def anew() -> None:
            nonlocal execution_id
            execution_id = next_execution_id(execution_id)
            await bench.write(raised(LONG), execution_id)

        execution_id = GEN0
        bench.store.between = [anew] * 100
        with pytest.raises(Conflict, match="the history of 'i' was changed during each of 5 readings"):
            await _read(bench, "history")
        with pytest.raises(Conflict, match="the history of 'i' was changed during each of 5 readings"):
            await salvage(bench.store, NAMES, "i")  # the owner's, who ends the instance by it
        bench.store.between = [anew] * 100
        _, unreadable = await _read(bench, "readable_history")
        return unreadable, 100 - len(bench.store.between)

    unreadable, readings = play(work)
    assert unreadable[0].startswith("the history was changed during each of 5 readings: the rows that are shown may be")
    assert readings == READINGS


@pytest.mark.rows("K28", "K46")
def test_a_client_is_told_of_a_payload_that_is_gone_though_the_owner_goes_on() -> None:
    async def work(bench: Bench) -> Any:
        await bench.write([EventRaised(timestamp=NOW, name="old", input="x" * 40_000), *raised(LONG)])
        (blob,) = await bench.store.list_blobs(NAMES.large_messages)
        await bench.store.execute(DeleteBlob(container=NAMES.large_messages, name=blob.name))

        async def grow() -> None:
            nonlocal count
            await bench.write(raised(1, "later"), first=count)
            count += 1

        count = LONG + 1
        bench.store.between = [grow] * 100
        with pytest.raises(HistoryUnreadable, match="is gone"):
            await _read(bench, "history")
        assert 100 - len(bench.store.between) == 4, "two readings, and two again: it is the same generation"
        return await _read(bench, "readable_history")

    events, (line,) = play(work)
    assert len(events) > LONG
    assert line.endswith("is gone")


@pytest.mark.rows("K28")
def test_rows_behind_what_was_committed_never_count_whatever_the_sentinel_says() -> None:
    async def work(bench: Bench) -> tuple[int, int]:
        await bench.write(raised(10), committed_rows=7)
        loaded = await bench.load()
        return len(loaded.past), loaded.uncommitted_rows

    assert play(work) == (7, 3)


@pytest.mark.rows("K28")
@pytest.mark.parametrize("lost", [0, 4, 9])
def test_a_history_that_lacks_rows_is_not_taken_for_a_shorter_one(lost: int) -> None:
    async def work(bench: Bench) -> None:
        await bench.write(raised(10))
        entity = Entity(partition_key="i", row_key=row_key(lost))
        row = RowOperation(verb=RowVerb.DELETE, entity=entity, etag="*")
        await bench.store.execute(Transact(table=NAMES.history, rows=(row,)))
        with pytest.raises(HistoryUnreadable, match="9 of its 10 rows are there"):
            await bench.load()

    play(work)


def test_what_dotnet_committed_counts_whole() -> None:
    """It leaves our columns as they are, and they say nothing of what it has added."""

    async def work(bench: Bench) -> int:
        await bench.write(raised(10), committed_rows=7)
        merge = Entity(partition_key="i", row_key=SENTINEL, properties={"CheckpointCompletedTimestamp": later(99)})
        row = RowOperation(verb=RowVerb.MERGE, entity=merge, etag="*")
        await bench.store.execute(Transact(table=NAMES.history, rows=(row,)))
        return len((await bench.load()).past)

    assert play(work) == 10


@pytest.mark.rows("K47")
@pytest.mark.parametrize("how", ["load", "salvage"])
def test_payloads_that_go_with_their_generation_while_it_is_read_are_not_missed(how: str) -> None:
    async def work(bench: Bench) -> Any:
        await bench.write([EventRaised(timestamp=NOW, name="old", input="x" * 40_000)])
        (blob,) = await bench.store.list_blobs(NAMES.large_messages)

        async def switch() -> None:
            await bench.write(raised(4, "new"), GEN1)
            await bench.store.execute(DeleteBlob(container=NAMES.large_messages, name=blob.name))

        bench.store.before_payloads = [switch]
        if how == "load":
            return (await bench.load()).past, ()
        found = await salvage(bench.store, NAMES, "i")
        return found.events, found.unreadable

    events, unreadable = play(work)
    assert [event.name for event in events] == ["new"] * 4
    assert unreadable == ()
