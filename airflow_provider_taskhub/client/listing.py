"""Lists instances page by page. The store applies the filters that it supports; the client applies the others."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Literal, TypeAlias

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub.formats.instance_rows import ERROR_COLUMNS, PARENT, SLIM_COLUMNS
from airflow_provider_taskhub.hub.formats.keys import unescape
from airflow_provider_taskhub.hub.history.queries import between, matches, query_filter
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import InstanceState
from airflow_provider_taskhub.storage.primitives import Entity, Filter, Page, TimeColumn

SCAN_PAGES = 50
"""The largest number of pages that one call reads from the store. After that the call returns what it has found."""
DECODED = 25
"""The number of rows that are decoded before other tasks of the event loop have their turn."""
COUNTED_COLUMNS = ("RuntimeStatus", "Tags", PARENT)
"""The columns that :func:`count` reads of each row."""
Order: TypeAlias = Literal["id", "created", "changed"]
"""In which order instances are listed: by their ids, the newest first, or the one that was written last first."""
_NEWEST: Mapping[Order, TimeColumn | None] = {"id": None, "created": "CreatedTime", "changed": "Timestamp"}
_WITH_ERROR = tuple(status for status in Status if status.is_unsuccessful)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstancePage:
    """A page of instances.

    :param instances: the instances, in the wanted order.
    :param continuation: pass this text to ``Client.list`` for the next page; None: this is the last page. A page with a
        continuation may have few instances or none.
    :param newest: the latest time at which the store has written one of these instances, by the clock of the store.
        Pass it to ``Client.list`` as ``changed_since``. None: the page has no instances.
    """

    instances: tuple[InstanceState, ...]
    continuation: str | None = None
    newest: Timestamp | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EtagPage:
    """A page of ETags.

    :param etags: the ETags of instances by their ids.
    :param continuation: pass this text to ``Client.etags`` for the next page; None: this is the last page.
    """

    etags: Mapping[str, str]
    continuation: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The filters of a list. The fields mean the same as the parameters of ``Client.list``."""

    statuses: tuple[Status, ...] = ()
    created_from: datetime | None = None
    created_to: datetime | None = None
    prefix: str = ""
    tags: Mapping[str, str] | None = None
    changed_since: Timestamp | None = None
    orchestrator: str = ""
    roots: bool = False
    failed_since: datetime | None = None

    @property
    def where(self) -> Filter | None:
        """The filter that the store applies; None: all instances."""
        return query_filter(
            statuses=self.statuses,
            created_from=_ticks(self.created_from),
            created_to=_ticks(self.created_to),
            prefix=self.prefix,
            changed_since=self.changed_since,
            orchestrator=self.orchestrator,
            failed_since=_ticks(self.failed_since),
        )

    def takes(self, state: InstanceState) -> bool:
        """Return whether an instance that the store has found matches all filters."""
        return matches(state, prefix=self.prefix, tags=self.tags, roots=self.roots)


async def page(
    hub: Hub,
    wanted: Wanted,
    *,
    payloads: bool = True,
    limit: int = 100,
    continuation: str | None = None,
    order: Order = "id",
) -> InstancePage:
    """Read one page of instances.

    :param wanted: the filters.
    :param payloads: False: leave out the texts that ``Client.list`` names.
    :param limit: the largest number of instances to return, from 1 to 1000.
    :param continuation: ``InstancePage.continuation`` of the previous page; None: read the first page.
    :param order: the order of the instances.
    :raises InputError: if the store cannot list the instances in this order.
    """
    where = wanted.where
    newest = _NEWEST[order]
    # a short list of changes is read whole: a second query for its errors would look into the whole table again. A list
    # in the order of times is read whole too: it comes from a store in a local file, which reads whole rows anyway.
    whole = payloads or newest is not None or wanted.changed_since is not None
    found: list[InstanceState] = []
    stamps: list[Timestamp | None] = []
    for _ in range(SCAN_PAGES):
        left = limit - len(found)
        if whole:
            rows = await hub.store.query(
                hub.names.instances, where, limit=left, continuation=continuation, newest=newest
            )
        else:
            rows = await _slim(hub, where, left, continuation)
        for number, entity in enumerate(rows.entities):
            if number % DECODED == 0:
                await asyncio.sleep(0)
            state = hub.state_of(entity)
            if entity.row_key == "" and wanted.takes(state):
                found.append(_without_payloads(state) if whole and not payloads else state)
                stamps.append(entity.timestamp)
        continuation = rows.continuation
        if continuation is None or len(found) >= limit:
            break
    last = max(filter(None, stamps), default=None)
    return InstancePage(instances=tuple(found), continuation=continuation, newest=last)


async def count(hub: Hub, wanted: Wanted) -> dict[Status, int]:
    """Count instances by status, in the order of :class:`.Status`. Only the columns that the filters need are read.

    :param wanted: the filters.
    """
    found: Counter[Status] = Counter()
    number = 0
    async for entity in hub.store.rows(hub.names.instances, wanted.where, select=COUNTED_COLUMNS):
        if number % DECODED == 0:
            await asyncio.sleep(0)
        number += 1
        state = hub.state_of(entity)
        if entity.row_key == "" and wanted.takes(state):
            found[state.status] += 1
    return {status: found[status] for status in Status if found[status]}


async def etags(hub: Hub, *, limit: int = 1000, continuation: str | None = None) -> EtagPage:
    """Read the ETags of one page of instances. Parameters: as of :func:`page`."""
    rows = await hub.store.query(hub.names.instances, select=(), limit=limit, continuation=continuation)
    found = {unescape(row.partition_key): row.etag for row in rows.entities if row.row_key == ""}
    return EtagPage(etags=found, continuation=rows.continuation)


async def _slim(hub: Hub, where: Filter | None, limit: int, continuation: str | None) -> Page:
    """Read a page of rows without payloads, and then the errors of those rows that have one.

    If a row was written between the two queries, it has no error here: its next change is another one.
    """
    page = await hub.store.query(
        hub.names.instances, where, select=SLIM_COLUMNS, limit=limit, continuation=continuation
    )
    wanted = [row.partition_key for row in page.entities if row.properties.get("RuntimeStatus") in _WITH_ERROR]
    if not wanted:
        return page
    bounds = between(wanted[0], wanted[-1], _WITH_ERROR)
    errors = {
        (row.partition_key, row.row_key, row.etag): row.properties
        async for row in hub.store.rows(hub.names.instances, bounds, select=ERROR_COLUMNS)
    }

    def joined(row: Entity) -> Entity:
        error = errors.get((row.partition_key, row.row_key, row.etag))
        return row if error is None else replace(row, properties={**row.properties, **error})

    return replace(page, entities=tuple(map(joined, page.entities)))


def _ticks(time: datetime | None) -> Timestamp | None:
    return None if time is None else Timestamp.from_datetime(time)


def _without_payloads(state: InstanceState) -> InstanceState:
    output = state.output if state.status.is_unsuccessful else None
    return replace(state, input=None, custom_status=None, output=output)
