"""Lists instances page by page. The store applies the filters that it supports; the client applies the others."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub.history.queries import matches, query_filter
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import InstanceState

SCAN_PAGES = 50
"""The largest number of pages that one call reads from the store. After that the call returns what it has found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstancePage:
    """A page of instances.

    :param instances: the instances, in the order of their ids.
    :param continuation: pass this text to ``Client.list`` for the next page; None: this is the last page. A page with a
        continuation may have few instances or none.
    """

    instances: tuple[InstanceState, ...]
    continuation: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The filters of a list. The fields mean the same as the parameters of ``Client.list``."""

    statuses: tuple[Status, ...] = ()
    created_from: datetime | None = None
    created_to: datetime | None = None
    prefix: str = ""
    tags: Mapping[str, str] | None = None


async def page(hub: Hub, wanted: Wanted, *, limit: int = 100, continuation: str | None = None) -> InstancePage:
    """Read one page of instances.

    :param wanted: the filters.
    :param limit: the largest number of instances to return, from 1 to 1000.
    :param continuation: ``InstancePage.continuation`` of the previous page; None: read the first page.
    """
    where = query_filter(
        statuses=wanted.statuses,
        created_from=Timestamp.from_datetime(wanted.created_from) if wanted.created_from else None,
        created_to=Timestamp.from_datetime(wanted.created_to) if wanted.created_to else None,
        prefix=wanted.prefix,
    )
    found: list[InstanceState] = []
    for _ in range(SCAN_PAGES):
        rows = await hub.store.query(hub.names.instances, where, limit=limit - len(found), continuation=continuation)
        states = [hub.state_of(entity) for entity in rows.entities if entity.row_key == ""]
        found.extend(state for state in states if matches(state, prefix=wanted.prefix, tags=wanted.tags))
        continuation = rows.continuation
        if continuation is None or len(found) >= limit:
            break
    return InstancePage(instances=tuple(found), continuation=continuation)
