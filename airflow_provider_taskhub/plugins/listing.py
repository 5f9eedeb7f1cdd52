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
from operator import attrgetter, itemgetter
from typing import Any, Protocol

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.hooks.identity import DAG_TAG
from airflow_provider_taskhub.plugins.filters import Order, Wanted
from airflow_provider_taskhub.plugins.index import KINDS, SHOWN_FIRST, Row

MOST_OFFERED = 50
"""The largest number of DAGs, and of orchestrators, that the page offers as filters."""
_GROUPS = (
    *((KINDS[status],) for status in SHOWN_FIRST),
    tuple(kind for status, kind in KINDS.items() if status not in SHOWN_FIRST),
)
"""The order of the list: groups of kinds. In a group, the newest instances come first."""
_RANKS = {kind: rank for rank, kind in enumerate((*map(KINDS.__getitem__, SHOWN_FIRST), *_GROUPS[-1]))}


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
    :param children: the number of instances that only the filter by parents leaves out.
    :param elsewhen: the number of instances that only the filter by time leaves out.
    """

    rows: tuple[Row, ...]
    counts: Mapping[str, int]
    total: int
    children: int = 0
    elsewhen: int = 0


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
    within = _matching(_within(rows, wanted), wanted, reads)
    seen = _rooted(within, wanted)
    others = _rooted(_matching(rows, wanted, reads), wanted) if _limits_time(wanted) else seen
    counts = Counter(map(attrgetter("kind"), seen))
    groups = _GROUPS if wanted.status is None else ((KINDS[wanted.status],),)
    if order is None:
        page = _in_groups(seen, groups, counts, offset, limit)
    else:
        one = _of_status(seen, wanted)
        page = _ordered(one, order, now, offset + limit)[offset:]
    total = sum(counts[kind] for kinds in groups for kind in kinds)
    return Listing(
        rows=tuple(page),
        counts={str(status): counts[kind] for status, kind in KINDS.items() if counts[kind]},
        total=total,
        children=len(_of_status(within, wanted)) - total,
        elsewhen=len(_of_status(others, wanted)) - total,
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

    An instance without a value, such as an end, comes last in both directions.
    """
    value = _VALUES[order.column](now)
    valued = [(found, row) for row in rows if (found := value(row)) is not None]
    select = nlargest if order.descending else nsmallest
    first = [row for _, row in select(most, valued, key=itemgetter(0))]
    if len(valued) == len(rows) or len(first) == most:
        return first
    others = (row for row in rows if value(row) is None)
    return [*first, *islice(others, most - len(first))]


def _duration(now: Timestamp) -> Callable[[Row], int | None]:
    def duration(row: Row) -> int | None:
        if not row.created or row.status is Status.PENDING:
            return None
        end = _end(row)
        return (now.ticks if end is None else end) - row.created

    return duration


def _end(row: Row) -> int | None:
    return row.completed.ticks if row.completed and row.status.is_final else None


_VALUES: Mapping[str, Callable[[Timestamp], Callable[[Row], Any]]] = {
    "status": lambda now: lambda row: _RANKS[row.kind],
    "id": lambda now: attrgetter("instance_id"),
    "name": lambda now: attrgetter("name"),
    "started": lambda now: attrgetter("created"),
    "ended": lambda now: _end,
    "duration": _duration,
}
"""By column of the list, the function that returns the value by which a row is ordered; None: the row has none."""


def chosen(rows: Sequence[Row], wanted: Wanted, *, reads: Callable[[Row], bool]) -> list[Row]:
    """Return the instances that match a filter. Parameters: see :func:`listing`."""
    found = _rooted(_matching(_within(rows, wanted), wanted, reads), wanted)
    return [*_of_status(found, wanted)]


def offered(rows: Sequence[Row]) -> Offered:
    """Return what the user may choose as a filter. :param rows: the instances that the user may see."""
    return Offered(dags=_most(map(attrgetter("dag"), rows)), names=_most(map(attrgetter("name"), rows)))


def with_error(rows: Iterable[Row], text: str) -> list[Row]:
    """Return the instances whose error contains a text. :param text: the text; its case does not matter."""
    folded = text.lower()
    return [row for row in rows if folded in row.error]


def _matching(rows: Sequence[Row], wanted: Wanted, reads: Callable[[Row], bool]) -> Sequence[Row]:
    """Apply all filters but those by status, time and parent. Each filter is one pass: most of them are not used."""
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


def _of_status(rows: Sequence[Row], wanted: Wanted) -> Sequence[Row]:
    return rows if wanted.status is None else [row for row in rows if row.status is wanted.status]


def _rooted(rows: Sequence[Row], wanted: Wanted) -> Sequence[Row]:
    return [row for row in rows if row.root] if wanted.roots else rows


def _limits_time(wanted: Wanted) -> bool:
    return wanted.created_from is not None or wanted.created_to is not None


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
