"""Filters, counts and orders the instances of the page's list. No I/O.

Running and failed instances come first, if the user does not choose another order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest, nsmallest
from itertools import islice
from operator import attrgetter
from typing import Protocol

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.hooks.identity import DAG_TAG
from airflow_provider_taskhub.plugins.filters import Order, Wanted
from airflow_provider_taskhub.plugins.index import KINDS, Row

MOST_OFFERED = 50
"""The largest number of DAGs, and of orchestrators, that the page offers as filters."""
_FIRST = (Status.RUNNING, Status.FAILED, Status.SUSPENDED, Status.PENDING)
_GROUPS = (
    *((KINDS[status],) for status in _FIRST),
    tuple(kind for status, kind in KINDS.items() if status not in _FIRST),
)
"""The order of the list: groups of kinds. In a group, the newest instances come first."""
_COLUMNS = {"id": attrgetter("instance_id"), "name": attrgetter("name"), "started": attrgetter("created")}
"""By which field of a row a column of the list is ordered."""


class Tagged(Protocol):
    """An instance, or a row of the index."""

    @property
    def tags(self) -> Mapping[str, str] | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """One page of the list.

    :param rows: the instances on this page.
    :param counts: the number of instances by status, before the filter by status.
    :param total: the number of instances after all filters, on all pages.
    """

    rows: tuple[Row, ...]
    counts: Mapping[str, int]
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """What the page offers as filters: the most frequent ones, at most :data:`MOST_OFFERED` of each.

    :param dags: DAGs.
    :param names: orchestrators.
    """

    dags: tuple[str, ...]
    names: tuple[str, ...]


def visible(dags: Iterable[str], administrator: bool) -> Callable[[Tagged], bool]:
    """Return a function that says whether the user may see an instance.

    A user may see the instances of the DAGs that the user may read. Only administrators may see the other instances.

    :param dags: ids of the DAGs that the user may read.
    :param administrator: True: the user may see every instance.
    """
    readable = frozenset(dags)

    def may(state: Tagged) -> bool:
        return administrator or (state.tags or {}).get(DAG_TAG) in readable

    return may


def seen_by(rows: Sequence[Row], dags: Iterable[str], administrator: bool) -> Sequence[Row]:
    """Return the instances that the user may see, as :func:`visible` says, but faster.

    :param rows: the instances.
    :param dags: ids of the DAGs that the user may read.
    :param administrator: True: the user may see every instance.
    """
    readable = frozenset(dags)
    return rows if administrator else [row for row in rows if row.dag in readable]


def listing(
    rows: Sequence[Row],
    wanted: Wanted,
    *,
    offset: int,
    limit: int,
    now: Timestamp,
    order: Order | None = None,
    reads: Callable[[Row], bool] = lambda row: True,
) -> Listing:
    """Filter, count and order the instances, and return one page of them.

    :param rows: the instances that the user may see, the newest first.
    :param wanted: the filter.
    :param offset: the number of instances on earlier pages.
    :param limit: the largest number of instances on this page.
    :param now: the end of the durations of instances that have not ended.
    :param order: the order that the user has chosen; None: running and failed instances first.
    :param reads: says whether the user may read an instance's error. The user finds no other instances by their errors.
    """
    seen = _matching(rows, wanted, reads)
    counts = Counter(map(attrgetter("kind"), seen))
    groups = _GROUPS if wanted.status is None else ((KINDS[wanted.status],),)
    if order is None:
        page = _in_groups(seen, groups, counts, offset, limit)
    else:
        one = seen if wanted.status is None else [row for row in seen if row.status is wanted.status]
        page = _ordered(one, order, now, offset + limit)[offset:]
    return Listing(
        rows=tuple(page),
        counts={str(status): counts[kind] for status, kind in KINDS.items() if counts[kind]},
        total=sum(counts[kind] for kinds in groups for kind in kinds),
    )


def _in_groups(
    rows: Sequence[Row], groups: Sequence[Sequence[int]], counts: Mapping[int, int], offset: int, limit: int
) -> list[Row]:
    page: list[Row] = []
    left = offset
    for kinds in groups:  # a sort of all instances would be slower
        here = sum(counts[kind] for kind in kinds)
        if left < here and len(page) < limit:
            page += islice((row for row in rows if row.kind in kinds), left, left + limit - len(page))
        left = max(0, left - here)
    return page


def _ordered(rows: Sequence[Row], order: Order, now: Timestamp, most: int) -> list[Row]:
    """Return the first instances in an order. Of instances that are equal in it, the newest comes first.

    An instance without a duration comes last in both directions.
    """

    def duration(row: Row) -> int:
        return (row.completed.ticks if row.completed else now.ticks) - row.created

    select = nlargest if order.descending else nsmallest
    if order.column != "duration":
        return select(most, rows, key=_COLUMNS[order.column])
    lasting = [row for row in rows if row.created and row.status is not Status.PENDING]
    first = select(most, lasting, key=duration)
    if len(first) == most:
        return first
    others = (row for row in rows if not row.created or row.status is Status.PENDING)
    return [*first, *islice(others, most - len(first))]


def chosen(rows: Sequence[Row], wanted: Wanted, *, reads: Callable[[Row], bool]) -> list[Row]:
    """Return the instances that match a filter. Parameters: see :func:`listing`."""
    found = _matching(rows, wanted, reads)
    return [row for row in found if wanted.status is None or row.status is wanted.status]


def offered(rows: Sequence[Row]) -> Offered:
    """Return what the user may choose as a filter. :param rows: the instances that the user may see."""
    return Offered(dags=_most(map(attrgetter("dag"), rows)), names=_most(map(attrgetter("name"), rows)))


def with_error(rows: Iterable[Row], text: str) -> list[Row]:
    """Return the instances whose error contains a text. :param text: the text; its case does not matter."""
    folded = text.lower()
    return [row for row in rows if folded in row.error]


def _matching(rows: Sequence[Row], wanted: Wanted, reads: Callable[[Row], bool]) -> Sequence[Row]:
    """Apply all filters but the one by status. Each filter is one pass, because most of them are not used."""
    rows = _within(rows, wanted)
    if wanted.dag:
        rows = [row for row in rows if row.dag == wanted.dag]
    if wanted.name:
        rows = [row for row in rows if row.name == wanted.name]
    if wanted.tag:
        rows = _tagged(rows, wanted.tag)
    if wanted.error:
        rows = [row for row in with_error(rows, wanted.error) if reads(row)]
    if not wanted.text:
        return rows
    if "=" in wanted.text:
        exact = [row for row in rows if row.instance_id == wanted.text]
        return exact or _tagged(rows, wanted.text)
    text = wanted.text.lower()
    names = {name for name in set(map(attrgetter("name"), rows)) if text in name.lower()}
    return [row for row in rows if row.name in names or text in row.instance_id.lower()]


def _within(rows: Sequence[Row], wanted: Wanted) -> Sequence[Row]:
    """Return the instances that were started in the wanted time, and the one whose whole id is the wanted text."""
    first, last = 0, len(rows)
    if wanted.created_to is not None:
        first = bisect_left(rows, -wanted.created_to.ticks, key=_age)
    if wanted.created_from is not None:
        last = bisect_right(rows, -wanted.created_from.ticks, key=_age)
    if (first, last) == (0, len(rows)):
        return rows
    within = list(rows[first:last])
    if wanted.text:
        within += [row for row in (*rows[:first], *rows[last:]) if row.instance_id == wanted.text]
    return within


def _age(row: Row) -> int:
    return -row.created


def _tagged(rows: Iterable[Row], text: str) -> list[Row]:
    name, equals, value = (part.strip() for part in text.partition("="))
    own, airflow, taskhub = (prefix + name for prefix in ("", "airflow.", "taskhub."))
    if not equals:
        return [row for row in rows if own in row.tags or airflow in row.tags or taskhub in row.tags]
    return [row for row in rows if value in (row.tags.get(own), row.tags.get(airflow), row.tags.get(taskhub))]


def _most(texts: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(sorted(text for text, _ in Counter(texts).most_common(MOST_OFFERED) if text))
