"""A store that fails on purpose: for tests and the simulation.

:class:`FaultyStore` asks its plan before every call and does what the plan says: be late, refuse, lose the answer after
doing it, crash. Without a fault a call goes through unchanged. Given ``stepwise``, it carries units out operation by
operation, so that the plan sees each of them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeAlias, TypeVar

from airflow_provider_taskhub.clock import SYSTEM_CLOCK, Clock
from airflow_provider_taskhub.errors import StorageError, Throttled, Unavailable
from airflow_provider_taskhub.storage import rules
from airflow_provider_taskhub.storage.primitives import (
    MAX_RECEIVE,
    Blob,
    BlobInfo,
    CrashPoint,
    Entity,
    Filter,
    Message,
    Operation,
    Page,
    Paged,
    Result,
    Results,
    Store,
    Unit,
)
from airflow_provider_taskhub.storage.steps import Together, carry_out, one_by_one
from airflow_provider_taskhub.supervision import Supervisor

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What is about to be done.

    :param number: of this store's calls, from 1. :param kind: as in ``Store.requests``; ``unit`` for a whole commit.
    :param what: the operation, the unit, or the arguments.
    """

    number: int
    kind: str
    what: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens to a call.

    :param delay: seconds before it is done. :param before: raised instead of doing it.
    :param after: raised after it was done. :param pause: seconds between doing it and its answer.
    :param straggles: it is not done now, and nobody can know; so many seconds later it is done after all.
    """

    delay: float = 0.0
    before: BaseException | None = None
    pause: float = 0.0
    after: BaseException | None = None
    straggles: float | None = None


Plan: TypeAlias = Callable[[Call], Fault | None]


def refused() -> Fault:
    """Not done, and known not to be."""
    return Fault(before=Unavailable("connection refused (fault)", maybe_done=False))


def unsent() -> Fault:
    """Not done, but nobody can know."""
    return Fault(before=Unavailable("no answer (fault)", maybe_done=True))


def lost() -> Fault:
    """Done, its answer lost."""
    return Fault(after=Unavailable("answer lost (fault)", maybe_done=True))


def throttled(retry_after: float = 1.0) -> Fault:
    return Fault(before=Throttled("server busy (fault)", retry_after=retry_after))


def late(seconds: float) -> Fault:
    return Fault(delay=seconds)


def straggling(seconds: float) -> Fault:
    """Overtaken on its way: its sender gives up, goes on, and then it arrives."""
    return Fault(straggles=seconds)


def at(number: int, fault: Fault, *, kind: str | None = None) -> Plan:
    """A plan with one fault, at the n-th call (of a kind, or of all)."""
    seen: Counter[str] = Counter()

    def plan(call: Call) -> Fault | None:
        if kind is not None and call.kind != kind:
            return None
        seen["calls"] += 1
        return fault if seen["calls"] == number else None

    return plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Probabilities of a seeded plan, of one call each.

    :param longest: seconds that a late call is late at most; how late is drawn evenly.
    """

    refused: float = 0.0
    unsent: float = 0.0
    lost: float = 0.0
    throttled: float = 0.0
    late: float = 0.0
    longest: float = 1.0
    kinds: Mapping[str, float] = field(default_factory=dict)
    """Factors on all probabilities by kind, e.g. ``{"queue.receive": 0.1}``; 1 for kinds that are not there."""


def seeded(seed: int | str, rates: Rates) -> Plan:
    """Faults drawn at random: the same seed and the same calls give the same faults."""
    dice = random.Random(seed)
    choices: Sequence[tuple[float, Callable[[], Fault]]] = (
        (rates.refused, refused),
        (rates.unsent, unsent),
        (rates.lost, lost),
        (rates.throttled, lambda: throttled(dice.uniform(0, rates.longest))),
        (rates.late, lambda: late(dice.uniform(0, rates.longest))),
    )

    def plan(call: Call) -> Fault | None:
        drawn = dice.random()
        factor = rates.kinds.get(call.kind, 1.0)
        for probability, make in choices:
            drawn -= probability * factor
            if drawn < 0:
                return make()
        return None

    return plan


class FaultyStore(Paged):
    """A :class:`~airflow_provider_taskhub.storage.primitives.Store` over another one, and a plan of faults.

    :param crash: with ``stepwise``, awaited at each crash point of a unit.
    :param stepwise: carry units out here, operation by operation; else the inner store commits them and the plan sees
        one call of kind ``unit``. :param together: with ``stepwise``, how the operations of one step are carried out.
    """

    def __init__(
        self,
        inner: Store,
        plan: Plan,
        *,
        clock: Clock = SYSTEM_CLOCK,
        crash: CrashPoint | None = None,
        stepwise: bool = False,
        together: Together = one_by_one,
    ) -> None:
        self._inner = inner
        self._plan = plan
        self._clock = clock
        self._crash = crash
        self._stepwise = stepwise
        self._together = together
        self._calls = 0
        self._under_way = Supervisor(clock)
        self.local = inner.local
        self.requests = inner.requests

    async def __aenter__(self) -> FaultyStore:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._inner.__aexit__(*error)

    def describe(self) -> str:
        return f"{self._inner.describe()} (with faults)"

    def container_url(self, container: str) -> str:
        return self._inner.container_url(container)

    async def _through(self, kind: str, what: object, do: Callable[[], Awaitable[T]]) -> T:
        """Do it, with what the plan says about it."""
        self._calls += 1
        fault = self._plan(Call(number=self._calls, kind=kind, what=what)) or Fault()
        if fault.delay:
            await self._clock.sleep(fault.delay)
        if fault.before is not None:
            raise fault.before
        if fault.straggles is not None:
            self._under_way.spawn(self._arrive(fault.straggles, do))
            raise Unavailable("overtaken (fault)", maybe_done=True)
        result = await do()
        if fault.pause:
            await self._clock.sleep(fault.pause)
        if fault.after is not None:
            raise fault.after
        return result

    async def _arrive(self, seconds: float, do: Callable[[], Awaitable[object]]) -> None:
        await self._clock.sleep(seconds)
        with suppress(StorageError):  # nobody hears the answer
            await do()

    # writes

    async def execute(self, operation: Operation) -> Result:
        rules.check_operation(operation)
        return await self._through(rules.kind_of(operation), operation, lambda: self._inner.execute(operation))

    async def commit(self, unit: Unit) -> Results:
        if self._stepwise:
            rules.check_unit(unit)
            return await carry_out(unit, self.execute, self._crash, together=self._together)
        return await self._through("unit", unit, lambda: self._inner.commit(unit))

    # queues

    async def create_queue(self, name: str) -> bool:
        return await self._through("admin", name, lambda: self._inner.create_queue(name))

    async def delete_queue(self, name: str) -> None:
        await self._through("admin", name, lambda: self._inner.delete_queue(name))

    async def list_queues(self, prefix: str) -> list[str]:
        return await self._through("admin", prefix, lambda: self._inner.list_queues(prefix))

    async def receive(self, queue: str, *, limit: int, visibility: timedelta) -> list[Message]:
        return await self._through(
            "queue.receive", queue, lambda: self._inner.receive(queue, limit=limit, visibility=visibility)
        )

    async def release_claims(self, holders: Collection[str]) -> int:
        return await self._through("queue.update", holders, lambda: self._inner.release_claims(holders))

    async def peek(self, queue: str, *, limit: int = MAX_RECEIVE) -> list[Message]:
        return await self._through("queue.peek", queue, lambda: self._inner.peek(queue, limit=limit))

    async def count(self, queue: str) -> int:
        return await self._through("admin", queue, lambda: self._inner.count(queue))

    async def arrival(self, queues: Sequence[str], timeout: float) -> bool:
        """A hint cannot fail: it goes through without the plan."""
        return await self._inner.arrival(queues, timeout)

    def subscribe(self, name: str) -> AbstractAsyncContextManager[Callable[[float], Awaitable[None]]]:
        """As :meth:`arrival`."""
        return self._inner.subscribe(name)

    # tables

    async def create_table(self, name: str) -> bool:
        return await self._through("admin", name, lambda: self._inner.create_table(name))

    async def delete_table(self, name: str) -> None:
        await self._through("admin", name, lambda: self._inner.delete_table(name))

    async def list_tables(self, prefix: str = "") -> list[str]:
        return await self._through("admin", prefix, lambda: self._inner.list_tables(prefix))

    async def get(self, table: str, partition_key: str, row_key: str) -> Entity | None:
        what = (table, partition_key, row_key)
        return await self._through("table.get", what, lambda: self._inner.get(table, partition_key, row_key))

    async def query(
        self,
        table: str,
        filter: Filter | None = None,
        *,
        select: Sequence[str] | None = None,
        limit: int = rules.MAX_PAGE,
        continuation: str | None = None,
    ) -> Page:
        return await self._through(
            "table.query",
            (table, filter),
            lambda: self._inner.query(table, filter, select=select, limit=limit, continuation=continuation),
        )

    # blobs

    async def create_container(self, name: str) -> bool:
        return await self._through("admin", name, lambda: self._inner.create_container(name))

    async def delete_container(self, name: str) -> None:
        await self._through("admin", name, lambda: self._inner.delete_container(name))

    async def get_blob(self, container: str, name: str) -> Blob | None:
        return await self._through("blob.get", (container, name), lambda: self._inner.get_blob(container, name))

    async def beside(self, work: Callable[[], T]) -> T:
        return await self._inner.beside(work)

    async def list_blobs(self, container: str, prefix: str = "") -> list[BlobInfo]:
        return await self._through("blob.list", (container, prefix), lambda: self._inner.list_blobs(container, prefix))

    async def append_blob(self, container: str, name: str, data: bytes) -> None:
        await self._through("blob.append", (container, name), lambda: self._inner.append_blob(container, name, data))

    # leases

    async def acquire_lease(self, container: str, name: str | None, *, lease_id: str, seconds: int) -> None:
        await self._through(
            "blob.lease",
            ("acquire", container, name),
            lambda: self._inner.acquire_lease(container, name, lease_id=lease_id, seconds=seconds),
        )

    async def renew_lease(self, container: str, name: str | None, *, lease_id: str) -> None:
        await self._through(
            "blob.lease",
            ("renew", container, name),
            lambda: self._inner.renew_lease(container, name, lease_id=lease_id),
        )

    async def change_lease(self, container: str, name: str | None, *, lease_id: str, new_lease_id: str) -> None:
        await self._through(
            "blob.lease",
            ("change", container, name),
            lambda: self._inner.change_lease(container, name, lease_id=lease_id, new_lease_id=new_lease_id),
        )

    async def release_lease(self, container: str, name: str | None, *, lease_id: str) -> None:
        await self._through(
            "blob.lease",
            ("release", container, name),
            lambda: self._inner.release_lease(container, name, lease_id=lease_id),
        )
