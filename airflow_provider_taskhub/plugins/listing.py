"""Filters, counts and orders the instances of the page's list. Only :func:`scan` does I/O.

Running and failed instances come first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.hooks.identity import DAG_TAG

if TYPE_CHECKING:
    from airflow_provider_taskhub.client import Client
    from airflow_provider_taskhub.hub.model import InstanceState

MOST = 5_000
"""The largest number of instances that one scan reads. If a time window has more, the page says so, and the user can
choose a shorter window."""
_FIRST = {Status.RUNNING: 0, Status.FAILED: 1, Status.SUSPENDED: 2, Status.PENDING: 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The instances of a time window.

    :param instances: the instances that were read.
    :param capped: True: the window has more instances than were read.
    """

    instances: tuple[InstanceState, ...]
    capped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """One page of the list.

    :param rows: the instances on this page.
    :param counts: the number of instances by status, before the filter by status.
    :param total: the number of instances after all filters, on all pages.
    """

    rows: tuple[InstanceState, ...]
    counts: Mapping[str, int]
    total: int


async def scan(client: Client, created_from: datetime | None) -> Scan:
    """Read the instances of a time window, page by page, up to :data:`MOST` instances.

    :param client: a client of the hub.
    :param created_from: read only instances created at this time or later; None: all.
    """
    found: list[InstanceState] = []
    continuation: str | None = None
    while True:
        page = await client.list(created_from=created_from, limit=1000, continuation=continuation)
        found.extend(page.instances)
        continuation = page.continuation
        if continuation is None or len(found) >= MOST:
            return Scan(instances=tuple(found[:MOST]), capped=continuation is not None or len(found) > MOST)


def visible(dags: Iterable[str], administrator: bool) -> Callable[[InstanceState], bool]:
    """Return a function that says whether the user may see an instance.

    A user may see the instances of the DAGs that the user may read. Only administrators may see the other instances.

    :param dags: ids of the DAGs that the user may read.
    :param administrator: True: the user may see every instance.
    """
    readable = frozenset(dags)

    def may(state: InstanceState) -> bool:
        return administrator or (state.tags or {}).get(DAG_TAG) in readable

    return may


def listing(
    instances: Sequence[InstanceState],
    may: Callable[[InstanceState], bool],
    *,
    status: Status | None,
    text: str,
    offset: int,
    limit: int,
) -> Listing:
    """Filter, count and order the instances, and return one page of them.

    :param instances: all instances of the time window.
    :param may: says whether the user may see an instance.
    :param status: show only instances with this status; None: with any status.
    :param text: show only instances with this text in their id or orchestrator name, or with this ``tag=value``.
    :param offset: the number of instances on earlier pages.
    :param limit: the largest number of instances on this page.
    """
    seen = chosen(instances, may, status=None, text=text)
    counts = Counter(str(state.status) for state in seen)
    rows = [state for state in seen if status is None or state.status is status]
    rows.sort(key=lambda state: (_FIRST.get(state.status, 9), -(state.created.ticks if state.created else 0)))
    return Listing(rows=tuple(rows[offset : offset + limit]), counts=counts, total=len(rows))


def chosen(
    instances: Sequence[InstanceState], may: Callable[[InstanceState], bool], *, status: Status | None, text: str
) -> list[InstanceState]:
    """Return the instances that match a filter. Parameters: see :func:`listing`."""
    return [
        state
        for state in instances
        if may(state) and (status is None or state.status is status) and _matches(state, text)
    ]


def _matches(state: InstanceState, text: str) -> bool:
    if not text:
        return True
    if "=" in text:
        name, _, value = text.partition("=")
        tags = state.tags or {}
        return any(tags.get(prefix + name.strip()) == value.strip() for prefix in ("", "airflow.", "taskhub."))
    wanted = text.lower()
    return wanted in state.instance_id.lower() or wanted in state.name.lower()
