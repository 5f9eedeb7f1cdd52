"""The index of a hub's instances: what the list needs of each instance, in the memory of the API server.

The list filters, counts and orders all instances of a hub. To read them all for each answer takes seconds in a large
hub. So the index reads them once, page by page. If the store can order them by time, the newest ones and those that the
list shows first are read before the others (:data:`FIRST`). Then the index reads only what has changed:

- The store is asked for rows that it has written since the newest row that the index knew *before the last question
  began*. So the next question finds a row that was written during this one, however long this question takes. Only
  times of the store's own clock are compared. The servers of a storage service may have slightly different clocks. So
  the question goes :data:`OVERLAP` seconds further back, unless that row was read at least so many seconds ago.
- A purged instance leaves no row. So each question also reads the ETags of the next :data:`SLICE` instances in the
  order of their ids. An instance that was not seen in a whole round is forgotten. An instance whose ETag is not the
  known one, though the changes did not have it, is read by its id. So no error lasts longer than two rounds.

The index has at most :data:`MOST` instances, the newest ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from operator import attrgetter
from sys import intern
from typing import TYPE_CHECKING

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.hooks.identity import DAG_TAG
from airflow_provider_taskhub.hooks.masking import masked
from airflow_provider_taskhub.triggers.outcome import reason

if TYPE_CHECKING:
    from airflow_provider_taskhub.client import Client
    from airflow_provider_taskhub.client.listing import InstancePage, Order
    from airflow_provider_taskhub.hub.model import InstanceState

MOST = 250_000
"""The largest number of instances in an index: about 150 MB. If a hub has more, the newest ones are kept, and the page
says so."""
SLICE = 1_000
"""The number of instances that one request reads: while the index is filled, and later to find purged instances."""
OVERLAP = 10.0
"""Seconds by which the clocks of a storage service's servers may differ."""
AT_ONCE = 50
"""The number of instances that are put into the index before requests have their turn."""
FIRST = 50
"""The number of the newest instances, and of the newest ones with each status of :data:`SHOWN_FIRST`, that a new index
reads before the first answer. It is twice the number of instances on a page."""
PAUSE = 0.5
"""Seconds for which a new index reads nothing after these instances, so that the first answer need not wait for it."""
SHOWN_FIRST = (Status.RUNNING, Status.FAILED, Status.SUSPENDED, Status.PENDING)
"""The statuses that come first in the list."""
MOST_REPAIRS = 25
"""The largest number of instances that one question reads by their ids, because their changes were not found."""
MOST_ERROR = 300
"""The largest number of characters of an error that are kept, to find instances by a text in their error."""
KINDS = {status: kind for kind, status in enumerate(Status)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What the list needs of an instance. Fields with the names of :class:`.InstanceState` mean the same.

    :param kind: the position of the status in :class:`.Status`. It is compared and counted much faster than the status.
    :param created: when the instance was started, in ticks; 0: the row does not say it.
    :param dag: the DAG of the Airflow task that started the instance; None: no Airflow task did.
    :param root: True: the instance has no parent.
    :param error: the beginning of the error or of the reason of a termination, masked, in small letters.
    :param etag: says whether the row is up to date. It makes no difference to the list.
    """

    instance_id: str
    execution_id: str | None
    name: str
    status: Status
    kind: int
    created: int
    completed: Timestamp | None
    restarts: int | None
    tags: Mapping[str, str]
    dag: str | None
    root: bool
    error: str
    etag: str = field(default="", compare=False)


def row_of(state: InstanceState) -> Row:
    """Return the row of an instance. Texts that many instances share are kept once.

    :param state: the instance.
    """
    tags = {intern(name): intern(value) for name, value in (state.tags or {}).items()}
    return Row(
        instance_id=state.instance_id,
        execution_id=state.execution_id,
        name=intern(state.name),
        status=state.status,
        kind=KINDS[state.status],
        created=state.created.ticks if state.created else 0,
        completed=state.completed,
        restarts=state.restarts,
        tags=tags,
        dag=tags.get(DAG_TAG),
        root=state.parent is None,
        # masked here, so that nobody can find out a secret by searching for its parts
        error=masked(reason(state))[:MOST_ERROR].lower() if state.status.is_unsuccessful else "",
        etag=state.etag,
    )


class InstanceIndex:
    """The instances of one hub. Use an index only in the event loop of its client.

    :ivar begun: is set when there are instances for a first answer.
    :ivar filled: True: all instances were read once.
    :ivar reads: the number of instances that were read until the index was filled.
    :ivar took: for how long the last question for changes took, in seconds.
    :ivar capped: True: the hub has more instances than the index may have.
    """

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.filled = False
        self.reads = 0
        self.took = 0.0
        self._rows: dict[str, Row] = {}
        self._ordered: tuple[Row, ...] | None = None
        self._lock = asyncio.Lock()  # of the questions: each of them is later than the one before
        self._closed = False
        self._dropped: set[str] = set()
        self._next: str | None = None
        self._unseen: set[str] | None = None  # None: no round has begun
        self._counted = 0  # instances of this round
        self._floor: int | None = None  # the start of the oldest one that is kept
        self.capped = False
        self._newest: _Moment | None = None
        self._mark: _Moment | None = None

    @property
    def reading(self) -> int | None:
        """The number of instances that are known so far; None: all were read once."""
        return None if self.filled else len(self._rows)

    def rows(self) -> tuple[Row, ...]:
        """Return all instances that are known, the newest first."""
        if self._ordered is None:
            rows = sorted(self._rows.values(), key=attrgetter("created"))
            if len(rows) > MOST:
                rows = rows[-MOST:]
                self.capped, self._floor = True, rows[0].created
            self._rows = {row.instance_id: row for row in rows}  # in this order, so that the next sort is fast
            self._ordered = tuple(reversed(rows))
        return self._ordered

    def get(self, instance_id: str) -> Row | None:
        """Return what is known of an instance; None: nothing. :param instance_id: the instance's id."""
        return self._rows.get(instance_id)

    def put(self, rows: Iterable[Row]) -> None:
        """Add instances, or replace what is known of them. :param rows: the instances as they were just read."""
        for row in rows:
            if self._unseen is not None:
                self._unseen.discard(row.instance_id)
            known = self._rows.get(row.instance_id)
            if known is None and self._floor is not None and row.created < self._floor:
                continue
            self._rows[row.instance_id] = row
            if known != row:
                self._ordered = None
        if len(self._rows) > MOST + MOST // 10:
            self.rows()  # only to forget the oldest ones

    def drop(self, instance_id: str) -> None:
        """Forget an instance that was purged. A question that is under way does not bring it back.

        :param instance_id: the instance's id.
        """
        if self._lock.locked():
            self._dropped.add(instance_id)
        self._forget(instance_id)

    def close(self) -> None:
        """End the question that is under way, because its client is closed."""
        self._closed = True

    def open(self) -> None:
        """Allow questions again, with a new client. They go on where the last one has ended."""
        self._closed = False

    async def follow(self, client: Client) -> None:
        """Read all instances if that has not been done. Later, read what has changed, and the next slice.

        After an error the next call goes on where this call has ended.

        :param client: a client of the hub.
        """
        async with self._lock:
            self._dropped.clear()
            begun = asyncio.get_running_loop().time()
            if not self.filled:
                await self._fill(client)
                return
            known = self._newest
            doubtful = await self._read_slice(client)
            await self._read_changes(client)
            self._mark = known
            await self._repair(client, doubtful)
            self.took = asyncio.get_running_loop().time() - begun

    async def _fill(self, client: Client) -> None:
        if client.lists_by_time and not self.reads:
            await self._read_first(client)
        order: Order = "created" if client.lists_by_time else "id"
        while not self._closed:
            page = await client.list(payloads=False, limit=SLICE, continuation=self._next, order=order)
            await self._take(page)
            self.reads += len(page.instances)
            self._next = page.continuation
            self._begin()
            if self._next is None:
                self.filled = True
                return

    async def _read_first(self, client: Client) -> None:
        """Read what the first answer shows, let it go out, and then read more instances with these statuses."""
        if self._mark is None:
            # its time is the latest one in the store, so the first question for changes finds no old ones
            await self._take(await client.list(payloads=False, limit=1, order="changed"))
            self._mark = self._newest
        if not self.begun.is_set():
            page = await client.list(payloads=False, limit=FIRST, order="created")
            await self._take(page)
            if page.continuation is None:
                return  # a small hub: the next page has all instances
            await self._read_statuses(client, FIRST)
            self._begin()
            await asyncio.sleep(PAUSE)
        await self._read_statuses(client, SLICE)

    async def _read_statuses(self, client: Client, limit: int) -> None:
        for status in SHOWN_FIRST:
            await self._take(await client.list(payloads=False, statuses=(status,), limit=limit, order="created"))

    def _begin(self) -> None:
        if self._mark is None:
            self._mark = self._newest  # what is written after the first page was read has a later time
        self.begun.set()

    async def _read_slice(self, client: Client) -> dict[str, Row | None]:
        """Read the next ETags. After the last ones, forget the instances that were not seen in this round.

        :returns: what is known of the instances whose ETag is another one, by their ids.
        """
        if self._unseen is None:
            self._unseen, self._counted = set(self._rows), 0
        page = await client.etags(limit=SLICE, continuation=self._next)
        self._next = page.continuation
        self._unseen.difference_update(page.etags)
        self._counted += len(page.etags)
        if self._next is None:
            self._end_round(self._unseen)
        doubtful: dict[str, Row | None] = {}
        for instance_id, etag in page.etags.items():
            row = self._rows.get(instance_id)
            # an unknown instance of a capped index is probably too old to be kept
            if not self.capped if row is None else row.etag != etag:
                doubtful[instance_id] = row
        return doubtful

    def _end_round(self, gone: Iterable[str]) -> None:
        for instance_id in gone:
            self._forget(instance_id)
        self._unseen = None
        if self.capped and self._counted <= MOST:  # there is room for all again: read those that were left out
            self.capped, self._floor, self.filled, self.reads = False, None, False, 0

    async def _repair(self, client: Client, doubtful: Mapping[str, Row | None]) -> None:
        """Read those doubtful instances by their ids that were not among the changes."""
        left = [name for name, row in doubtful.items() if self._rows.get(name) is row and name not in self._dropped]
        for instance_id in left[:MOST_REPAIRS]:
            state = await client.get(instance_id, payloads=False)
            if state is not None:
                self.put((row_of(state),))

    async def _read_changes(self, client: Client) -> None:
        since = None if self._mark is None else self._mark.asked_from()
        order: Order = "changed" if client.lists_by_time else "id"
        continuation: str | None = None
        while not self._closed:
            page = await client.list(
                payloads=False, changed_since=since, limit=SLICE, continuation=continuation, order=order
            )
            await self._take(page)
            continuation = page.continuation
            if continuation is None:
                return

    async def _take(self, page: InstancePage) -> None:
        if page.newest is not None and (self._newest is None or page.newest > self._newest.time):
            self._newest = _Moment(time=page.newest, read=asyncio.get_running_loop().time())
        for begin in range(0, len(page.instances), AT_ONCE):
            await asyncio.sleep(0)
            states = page.instances[begin : begin + AT_ONCE]
            self.put(row_of(state) for state in states if state.instance_id not in self._dropped)

    def _forget(self, instance_id: str) -> None:
        if self._rows.pop(instance_id, None) is not None:
            self._ordered = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    """A time of the store.

    :param time: the time at which the store has written a row, by its own clock.
    :param read: when that row was read, in seconds of the event loop.
    """

    time: Timestamp
    read: float

    def asked_from(self) -> Timestamp:
        """Return the time since which changes are asked for. No change is lost if a server's clock is late."""
        passed = asyncio.get_running_loop().time() - self.read
        return self.time if passed >= OVERLAP else self.time + timedelta(seconds=-OVERLAP)
