"""Reading a history back while others change it: all of one moment, and no request more than that takes (K28)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_taskhub import jumping
from airflow_provider_taskhub.engine.events import EventRaised, EventType, HistoryEvent, OrchestratorStarted
from airflow_provider_taskhub.engine.identity import next_execution_id
from airflow_provider_taskhub.errors import Conflict
from airflow_provider_taskhub.hub.history.load import READINGS, HistoryUnreadable, Loaded, load
from airflow_provider_taskhub.hub.history.payloads import spill_columns
from airflow_provider_taskhub.hub.history.records import (
    SENTINEL,
    Sentinel,
    encode_event,
    encode_sentinel,
    row_key,
)
from airflow_provider_taskhub.hub.history.rewind import locked
from airflow_provider_taskhub.hub.history.salvage import salvage
from airflow_provider_taskhub.jumping import JumpingClock
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
from airflow_provider_taskhub.storage.sqlite import SqliteStore
from tests.hub.make import GEN0, NAMES, NOW, later

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
        async with SqliteStore(None, clock=JumpingClock()) as store:
            await store.create_table(NAMES.history)
            await store.create_container(NAMES.large_messages)
            return await work(Bench(store))

    return jumping.run(main())


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

        async def rewind() -> None:
            rows = {row.row_key: row async for row in bench.store.rows(NAMES.history)}
            group = [rows[row_key(ordinal)] for ordinal in (0, LONG - 1)]
            marked = [
                RowOperation(
                    verb=RowVerb.REPLACE,
                    entity=replace(row, properties={**row.properties, "EventType": "GenericEvent"}),
                    etag=row.etag,
                )
                for row in group
            ]
            await bench.store.execute(locked(NAMES, marked, GEN0, rows[SENTINEL].etag))

        bench.store.between = [rewind]
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


@pytest.mark.rows("K28")
def test_rows_behind_what_was_committed_never_count_whatever_the_sentinel_says() -> None:
    async def work(bench: Bench) -> tuple[int, int]:
        await bench.write(raised(10), committed_rows=7)
        loaded = await bench.load()
        return len(loaded.past), loaded.surplus

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
