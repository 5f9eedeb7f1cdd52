"""The list of instances: what is wrong or runs comes first, counts by status, a page of it. Pure, but for one scan."""

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
"""Instances that one list looks at; a bigger window says so and is to be narrowed."""
_FIRST = {Status.RUNNING: 0, Status.FAILED: 1, Status.SUSPENDED: 2, Status.PENDING: 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """Instances of a window of time. :param capped: there are more than were looked at."""

    instances: tuple[InstanceState, ...]
    capped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """:param counts: by status, of all that the user may see and the text matches. :param total: behind the filter."""

    rows: tuple[InstanceState, ...]
    counts: Mapping[str, int]
    total: int


async def scan(client: Client, created_from: datetime | None) -> Scan:
    """Read a window, page by page, up to :data:`MOST` instances."""
    found: list[InstanceState] = []
    continuation: str | None = None
    while True:
        page = await client.list(created_from=created_from, limit=1000, continuation=continuation)
        found.extend(page.instances)
        continuation = page.continuation
        if continuation is None or len(found) >= MOST:
            return Scan(instances=tuple(found[:MOST]), capped=continuation is not None or len(found) > MOST)


def visible(dags: Iterable[str], administrator: bool) -> Callable[[InstanceState], bool]:
    """Who may see what: instances of DAGs that the user may read; everything else is for administrators."""
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
    """Filter, count, order, cut.

    :param text: part of an id or orchestrator name, or ``tag=value``.
    """
    seen = [state for state in instances if may(state) and _matches(state, text)]
    counts = Counter(str(state.status) for state in seen)
    chosen = [state for state in seen if status is None or state.status is status]
    chosen.sort(key=lambda state: (_FIRST.get(state.status, 9), -(state.created.ticks if state.created else 0)))
    return Listing(rows=tuple(chosen[offset : offset + limit]), counts=counts, total=len(chosen))


def _matches(state: InstanceState, text: str) -> bool:
    if not text:
        return True
    if "=" in text:
        name, _, value = text.partition("=")
        tags = state.tags or {}
        return any(tags.get(prefix + name.strip()) == value.strip() for prefix in ("", "airflow.", "taskhub."))
    wanted = text.lower()
    return wanted in state.instance_id.lower() or wanted in state.name.lower()
