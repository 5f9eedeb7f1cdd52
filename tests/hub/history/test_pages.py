"""Parts of a history, for people: the right events, and a cost that does not grow with the history."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_taskhub.engine.events import (
    EventRaised,
    ExecutionStarted,
    HistoryEvent,
    OrchestratorStarted,
    SubOrchestrationInstanceCreated,
)
from airflow_provider_taskhub.hub.formats.history_rows import row_key
from airflow_provider_taskhub.hub.history.pages import HistoryPage, children, history_page
from airflow_provider_taskhub.storage.primitives import Entity, RowOperation, RowVerb, Transact
from tests.hub.by_hand import GEN0, NAMES, NOW, start
from tests.hub.history.test_load import GEN1, Bench, play

LONG = 50_000


def past(count: int) -> list[HistoryEvent]:
    first: list[HistoryEvent] = [OrchestratorStarted(timestamp=NOW), start()]
    return [*first, *(EventRaised(timestamp=NOW, name=f"n{number}", input="1") for number in range(2, count))]


def named(page: HistoryPage) -> list[str]:
    return [event.name for event in page.events if isinstance(event, EventRaised)]


def test_the_newest_events_of_a_long_history_cost_four_requests() -> None:
    async def work(bench: Bench) -> None:
        await bench.write(past(LONG))
        bench.store.requests.clear()
        page = await history_page(bench.store, NAMES, "i", limit=500)
        assert bench.store.requests == {"table.get": 1, "table.query": 2}
        assert (page.first, page.total, page.execution_id) == (LONG - 500, LONG, GEN0)
        assert page.numbers == tuple(range(LONG - 500, LONG))
        assert (named(page)[0], named(page)[-1]) == (f"n{LONG - 500}", f"n{LONG - 1}")
        assert isinstance(page.start, ExecutionStarted)
        assert page.unreadable == ()

    play(work)


@pytest.mark.parametrize(
    ("before", "names", "first"),
    [(None, ["n18", "n19"], 18), (6, ["n4", "n5"], 4), (2, [], 0), (0, [], 0), (99, ["n18", "n19"], 18)],
)
def test_earlier_parts_end_before_a_position(before: int | None, names: list[str], first: int) -> None:
    async def work(bench: Bench) -> HistoryPage:
        await bench.write(past(20))
        return await history_page(bench.store, NAMES, "i", before=before, limit=2)

    page = play(work)
    assert (named(page), page.first, page.total) == (names, first, 20)
    assert isinstance(page.start, ExecutionStarted) is (before != 0)


def test_rows_of_an_interrupted_checkpoint_and_of_an_older_generation_do_not_count() -> None:
    async def work(bench: Bench) -> HistoryPage:
        await bench.write(past(30))
        await bench.write([start(GEN1), *past(8)[2:]], GEN1, committed_rows=5)
        return await history_page(bench.store, NAMES, "i")

    page = play(work)
    assert (page.execution_id, page.total, len(page.events), page.unreadable) == (GEN1, 5, 5, ())


def test_a_history_that_dotnet_has_committed_is_counted_by_its_keys() -> None:
    async def work(bench: Bench) -> HistoryPage:
        await bench.write(past(2_500), commit_id=None, committed_rows=None)
        return await history_page(bench.store, NAMES, "i", limit=3)

    page = play(work)
    assert (page.total, named(page)) == (2_500, ["n2497", "n2498", "n2499"])


def test_a_generation_that_begins_during_the_reading_is_shown_instead() -> None:
    async def work(bench: Bench) -> HistoryPage:
        await bench.write(past(1_500))
        bench.store.between = [lambda: bench.write(past(1_300), GEN1)]
        return await history_page(bench.store, NAMES, "i", limit=2_000)

    page = play(work)
    assert (page.execution_id, page.total, page.unreadable) == (GEN1, 1_300, ())


def test_damaged_and_missing_rows_are_said_and_the_others_are_shown() -> None:
    async def work(bench: Bench) -> HistoryPage:
        await bench.write(past(6))

        async def change(verb: RowVerb, number: int, **columns: Any) -> None:
            row = Entity(partition_key="i", row_key=row_key(number), properties=columns)
            await bench.store.execute(
                Transact(table=NAMES.history, rows=(RowOperation(verb=verb, entity=row, etag="*"),))
            )

        await change(RowVerb.MERGE, 3, EventType="EventOfTomorrow")
        await change(RowVerb.DELETE, 4)
        return await history_page(bench.store, NAMES, "i")

    page = play(work)
    assert (page.numbers, named(page)) == ((0, 1, 2, 5), ["n2", "n5"])
    assert page.unreadable[0] == "1 of 6 rows are missing"
    assert "EventOfTomorrow" in page.unreadable[1]


def test_an_instance_without_a_history_has_an_empty_page() -> None:
    async def work(bench: Bench) -> Any:
        return await history_page(bench.store, NAMES, "i"), await children(bench.store, NAMES, "i")

    page, found = play(work)
    assert (page, found.events, found.after) == (HistoryPage(), (), None)


def test_children_come_in_parts() -> None:
    def born(number: int) -> HistoryEvent:
        return SubOrchestrationInstanceCreated(
            timestamp=NOW, event_id=number, name="month", instance_id=f"i:{number}", input="1"
        )

    async def work(bench: Bench) -> list[tuple[list[str], int | None]]:
        mixed = [born(number) if number % 400 == 3 else event for number, event in enumerate(past(2_000))]
        await bench.write(mixed)
        parts, after = [], -1
        while True:
            found = await children(bench.store, NAMES, "i", after=after, limit=2)
            parts.append(([event.instance_id or "" for event in found.events], found.after))
            if found.after is None:
                return parts
            after = found.after

    assert play(work) == [(["i:3", "i:403"], 403), (["i:803", "i:1203"], 1203), (["i:1603"], None)]
