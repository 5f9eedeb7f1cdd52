"""Read a part of a history, to show it to people. The cost does not depend on the length of the history.

The sentinel counts the committed rows, and the RowKey of a row is its number. So a part is one range of keys. Code that
makes decisions must not use this module: it reads whole histories with ``load``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from airflow_provider_taskhub.concurrency import gather_bounded
from airflow_provider_taskhub.engine.events import (
    EventType,
    ExecutionStarted,
    HistoryEvent,
    SubOrchestrationInstanceCreated,
)
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub.formats.history_rows import Sentinel, row_key
from airflow_provider_taskhub.hub.formats.keys import escape
from airflow_provider_taskhub.hub.history.load import PARALLEL, READINGS, sentinel_of
from airflow_provider_taskhub.hub.history.salvage import readable_event
from airflow_provider_taskhub.hub.model import HubNames
from airflow_provider_taskhub.storage.primitives import And, Compare, Entity, Filter, Store

HEAD = 8
"""The number of rows at the beginning of a history among which the start event is."""
SCAN_PAGES = 60
"""The largest number of pages of the store that one search for children reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPage:
    """A part of the history of an instance's current generation.

    :param events: the readable events of the part, in their order.
    :param numbers: for each of these events its position in the history, from 0.
    :param first: position of the first event of the part. 0: the part begins with the history.
    :param total: number of events of the whole history.
    :param execution_id: execution id of the generation; None: the instance has no history.
    :param start: the event that started the generation; None: it cannot be read, or the instance has no history.
    :param unreadable: one line of text for each thing in the part that cannot be read.
    """

    events: tuple[HistoryEvent, ...] = ()
    numbers: tuple[int, ...] = ()
    first: int = 0
    total: int = 0
    execution_id: str | None = None
    start: ExecutionStarted | None = None
    unreadable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildPage:
    """Some children of an instance's current generation, in the order in which the instance started them.

    :param events: for each child the event of its start.
    :param after: where the next part begins: pass it as ``after``. None: there are no more children.
    """

    events: tuple[SubOrchestrationInstanceCreated, ...] = ()
    after: int | None = None


async def history_page(
    store: Store, names: HubNames, instance_id: str, *, before: int | None = None, limit: int = 1000
) -> HistoryPage:
    """Read the newest events of a history, or the events before a position.

    :param before: position of the first event that is not wanted; None: read the newest events.
    :param limit: largest number of events.
    :raises HistoryUnreadable: the sentinel is damaged.
    """
    for _ in range(READINGS):
        sentinel = await sentinel_of(store, names, instance_id)
        if sentinel is None:
            return HistoryPage()
        run, total = sentinel.execution_id, await _total(store, names, instance_id, sentinel)
        end = total if before is None else max(0, min(before, total))
        first = max(0, end - limit)
        head = await _rows(store, names, instance_id, 0, min(HEAD, first))
        rows = await _rows(store, names, instance_id, first, end)
        read = [row for row in (*head, *rows) if row.properties.get("ExecutionId") == run]
        missing = min(HEAD, first) + end - first - len(read)
        if not missing or not await _replaced(store, names, instance_id, sentinel):
            break
    found = await gather_bounded(partial(readable_event, store, names), read, limit=PARALLEL)
    shown = [
        (int(row.row_key, 16), event)
        for row, (event, _) in zip(read, found, strict=True)
        if int(row.row_key, 16) >= first
    ]
    lost = (f"{missing} of {total} rows are missing",) if missing else ()
    return HistoryPage(
        events=tuple(event for _, event in shown if event is not None),
        numbers=tuple(number for number, event in shown if event is not None),
        first=first,
        total=total,
        execution_id=run,
        start=next((event for event, _ in found if isinstance(event, ExecutionStarted)), None),
        unreadable=(*lost, *(line for _, lines in found for line in lines)),
    )


async def children(store: Store, names: HubNames, instance_id: str, *, after: int = -1, limit: int = 50) -> ChildPage:
    """Read the events with which an instance started children.

    The store looks through the history for these events, so the cost of the last part depends on the length of the
    history. One call reads at most :data:`SCAN_PAGES` pages.

    :param after: read only children of events behind this position; -1: read from the beginning.
    :param limit: largest number of children.
    :raises HistoryUnreadable: the sentinel is damaged.
    """
    sentinel = await sentinel_of(store, names, instance_id)
    if sentinel is None:
        return ChildPage()
    kind = Compare("EventType", "eq", EventType.SubOrchestrationInstanceCreated.name)
    run = Compare("ExecutionId", "eq", sentinel.execution_id)
    end = sentinel.committed_rows
    where = And((*_between(instance_id, after + 1, end), kind, run))
    rows: list[Entity] = []
    continuation: str | None = None
    for _ in range(SCAN_PAGES):
        page = await store.query(names.history, where, limit=limit + 1 - len(rows), continuation=continuation)
        rows.extend(page.entities)
        continuation = page.continuation
        if continuation is None or len(rows) > limit:
            break
    found = await gather_bounded(partial(readable_event, store, names), rows[:limit], limit=PARALLEL)
    more = bool(rows[:limit]) and (len(rows) > limit or continuation is not None)
    return ChildPage(
        events=tuple(event for event, _ in found if isinstance(event, SubOrchestrationInstanceCreated)),
        after=int(rows[:limit][-1].row_key, 16) if more else None,
    )


async def _total(store: Store, names: HubNames, instance_id: str, sentinel: Sentinel) -> int:
    """Return the number of events. If .NET made the last commit, the sentinel does not say it: count the keys."""
    if sentinel.committed_rows is not None:
        return sentinel.committed_rows
    run = Compare("ExecutionId", "eq", sentinel.execution_id)
    where = And((*_between(instance_id, 0, None), run))
    return sum([1 async for _ in store.rows(names.history, where, select=("ExecutionId",))])


async def _rows(store: Store, names: HubNames, instance_id: str, first: int, end: int) -> Sequence[Entity]:
    if first >= end:
        return ()
    return [row async for row in store.rows(names.history, And(_between(instance_id, first, end)))]


def _between(instance_id: str, first: int, end: int | None) -> tuple[Filter, ...]:
    """Return the conditions for the rows from one position to another one; None: to the end, without the sentinel."""
    last = "G" if end is None else row_key(end)  # RowKeys of events are hexadecimal, so they sort before "G"
    own = Compare("PartitionKey", "eq", escape(instance_id))
    return own, Compare("RowKey", "ge", row_key(first)), Compare("RowKey", "lt", last)


async def _replaced(store: Store, names: HubNames, instance_id: str, sentinel: Sentinel) -> bool:
    """Return True if a new generation has begun since the sentinel was read, so that the rows are the new ones'."""
    now = await sentinel_of(store, names, instance_id)
    return now is None or now.execution_id != sentinel.execution_id
