"""The intake of a hub: whether it takes another start of a client now, as its intake limit says.

The limit stands in the hub row, which a client reads when it opens. So a hub without a limit costs a client nothing but
one read of this row in ten seconds in which it starts something. The starts of orchestrators never ask here: if their
children were refused or had to wait, instances that run could not end, and the hub would stand still.

What waits is counted by the lengths of the control queues, and not by the instances: finding the Pending ones would
read all rows. A count is used for some seconds, and this client's own starts since then are added to it. Clients do not
know of each other's starts, so each may fill the whole room that it has counted. If the store does not answer, the hub
takes the start: the limit must not be the reason for an outage.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import structlog

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.concurrency import gather_bounded
from airflow_provider_taskhub.errors import InputError, IntakeFull, StorageError
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub.model import HUB_ROW, HubInfo, HubNames
from airflow_provider_taskhub.intake_limit import IntakeLimit, IntakePolicy
from airflow_provider_taskhub.storage.primitives import (
    MAX_RECEIVE,
    Entity,
    Property,
    RowOperation,
    RowVerb,
    Store,
    Transact,
)

T = TypeVar("T")

log = structlog.get_logger(__name__)

KEPT = 10.0
"""Seconds for which a client uses the limit that it has read."""
COUNTED_EVERY = 5.0
"""Seconds for which a count is used while it leaves room."""
REFUSED_BY = 1.0
"""A count that found the hub full is used for this many seconds, so that the client does not count at each refusal."""
DEADLINE = 3.0
"""Longest time in seconds that reading the limit, or a count, may hold up a start."""
_AT_ONCE = 16
"""The most requests of a count at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What a client knows of the messages that wait.

    :param waiting: how many messages waited when the client counted.
    :param age: seconds since then.
    :param made: how many starts it has made since then.
    :param under_way: how many starts this client has begun and not yet finished.
    :param exact: whether the client has looked into the queues. Otherwise ``waiting`` also includes all hidden
        messages.
    """

    waiting: int
    age: float
    made: int
    under_way: int
    exact: bool

    @property
    def about(self) -> int:
        """About how many messages wait now."""
        return self.waiting + self.made + self.under_way

    def is_full(self, limit: IntakeLimit) -> bool:
        """Return True if there is no room for another start."""
        return self.about >= limit.messages

    def is_usable(self, limit: IntakeLimit) -> bool:
        """Return True if this is new enough to take a start or to refuse it. Workers may have begun the starts that the
        client has made since, so these refuse nothing."""
        if self.is_full(limit):
            return self.exact and self.age < REFUSED_BY and not self.made
        return self.age < COUNTED_EVERY


class Intake:
    """Lets the starts of one client into its hub.

    :param info: the hub row, as the client has just read it.
    """

    def __init__(self, store: Store, names: HubNames, info: HubInfo, clock: Clock) -> None:
        self._store, self._names, self._clock = store, names, clock
        self._partitions = info.partitions
        self._limit, self._read_at = info.intake, clock.monotonic()
        self._waiting, self._is_exact, self._counted_at = 0, False, float("-inf")
        self._made = self._under_way = 0
        self._one = asyncio.Lock()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Let one start in, which is made during the ``with`` block.

        :raises IntakeFull: if the limit is reached. Then the code in the block does not run.
        """
        limit = await self._current()
        if limit is None:
            yield
            return
        if not self._counted().is_usable(limit):
            async with self._one:
                if not self._counted().is_usable(limit):
                    await self._count(limit)
        if (found := self._counted()).is_full(limit) and found.exact:
            raise _full(self._names.hub, limit, found.about)
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            self._made += 1

    def _counted(self) -> Counted:
        age = self._clock.monotonic() - self._counted_at
        made, under_way = self._made, self._under_way
        return Counted(waiting=self._waiting, age=age, made=made, under_way=under_way, exact=self._is_exact)

    async def _current(self) -> IntakeLimit | None:
        if self._clock.monotonic() - self._read_at < KEPT:
            return self._limit
        async with self._one:
            if self._clock.monotonic() - self._read_at >= KEPT:
                self._limit = await _answer(read(self._store, self._names), self._limit)
                self._read_at = self._clock.monotonic()
        return self._limit

    async def _count(self, limit: IntakeLimit) -> None:
        made, room = self._made, limit.messages - self._under_way
        asked = count(self._store, self._names, self._partitions, enough=room)
        self._waiting, self._is_exact = await _answer(asked, (0, False))
        self._counted_at = self._clock.monotonic()
        self._made -= made


async def _answer(asked: Awaitable[T], otherwise: T) -> T:
    """Return what is asked of the store, or another value if it does not answer in time."""
    try:
        async with asyncio.timeout(DEADLINE):
            return await asked
    except (StorageError, TimeoutError) as error:
        log.info("intake_unreadable", error=f"{type(error).__name__}: {error}")
        return otherwise


def _full(hub: str, limit: IntakeLimit, waiting: int) -> IntakeFull:
    messages = f"{waiting:,} {'message waits' if waiting == 1 else 'messages wait'}"
    return IntakeFull(
        f"hub {hub!r} takes no new start now: about {messages} for a worker, and its intake limit is "
        f"{limit.messages:,}. Nothing was stored. Start workers, try again later, or raise the limit: "
        "taskhub limits intake NUMBER",
        waits=limit.policy is IntakePolicy.WAIT,
    )


async def count(store: Store, names: HubNames, partitions: int, *, enough: int = 0) -> tuple[int, bool]:
    """Return the approximate number of messages that wait for a worker.

    Cost: one request for each partition. If the queues have ``enough`` messages: one more for each queue that is not
    empty. This leaves out the hidden messages of the queues in which few messages are visible.

    :param partitions: how many partitions the hub has.
    :param enough: below this number it does not matter which messages are hidden.
    :returns: the number, and whether the queues were looked into.
    """
    queues = [names.control(partition) for partition in range(partitions)]
    lengths = dict(zip(queues, await gather_bounded(store.count, queues, limit=_AT_ONCE), strict=True))
    if sum(lengths.values()) < enough:
        return sum(lengths.values()), False

    async def visible(queue: str) -> int:
        found = len(await store.peek(queue, limit=MAX_RECEIVE))
        return max(found, lengths[queue]) if found == MAX_RECEIVE else found

    return sum(await gather_bounded(visible, [queue for queue in queues if lengths[queue]], limit=_AT_ONCE)), True


async def read(store: Store, names: HubNames) -> IntakeLimit | None:
    """Read the intake limit of a hub; None: it has none. Cost: one request."""
    row = await store.get(names.controls, *HUB_ROW)
    return None if row is None else decoded(row.properties)


def decoded(columns: Mapping[str, object]) -> IntakeLimit | None:
    """Return the intake limit in the columns of a hub row; None: it has no limit that this version can read."""
    messages, policy, by = columns.get("IntakeMessages"), columns.get("IntakePolicy"), columns.get("IntakeBy")
    if not isinstance(messages, int) or not isinstance(policy, str):
        return None
    with suppress(InputError, ValueError):
        return IntakeLimit(messages=int(messages), policy=IntakePolicy(policy), by=str(by or ""))
    return None


def ordered(names: HubNames, limit: IntakeLimit | None) -> Transact:
    """Return the write of an administrator's order.

    :param limit: the limit; None: the order is lifted.
    """
    columns: dict[str, Property | None] = {"IntakeMessages": 0, "IntakePolicy": "", "IntakeBy": ""}
    if limit is not None:
        columns = {"IntakeMessages": limit.messages, "IntakePolicy": str(limit.policy), "IntakeBy": limit.by}
    row = Entity(partition_key=HUB_ROW[0], row_key=HUB_ROW[1], properties=columns)
    return Transact(table=names.controls, rows=(RowOperation(verb=RowVerb.MERGE, entity=row, etag="*"),))
