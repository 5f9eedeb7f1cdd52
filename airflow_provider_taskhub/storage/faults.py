"""A store that fails on purpose, for tests and the simulation.

:class:`FaultyStore` wraps another store. Before each call it asks a plan which fault to simulate: a delay, a refusal, a
lost answer, or a crash. A call without a fault goes to the inner store unchanged. With ``stepwise=True`` the plan sees
each operation of a unit; otherwise the plan sees the unit as one call.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import field
from datetime import timedelta
from typing import TypeAlias, TypeVar

from airflow_provider_taskhub.clock import SYSTEM_CLOCK, Clock
from airflow_provider_taskhub.errors import StorageError, Throttled, Unavailable
from airflow_provider_taskhub.fast_dataclass import dataclass
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
    TimeColumn,
    Unit,
)
from airflow_provider_taskhub.storage.steps import Together, carry_out, one_by_one
from airflow_provider_taskhub.supervision import Supervisor

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of a :class:`FaultyStore`, as its plan sees it before the call is carried out.

    :param number: number of the call in this store, from 1.
    :param kind: kind of the call as in ``Store.requests``; ``unit`` for the commit of a whole unit.
    :param what: the operation, the unit, or the arguments of the call.
    """

    number: int
    kind: str
    what: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong with a call.

    :param delay: seconds that the call waits before it is carried out.
    :param before: error that is raised without carrying out the call. None: no such error.
    :param pause: seconds between the end of the call and its answer.
    :param after: error that is raised after the call was carried out. None: no such error.
    :param straggles: number of seconds. The caller gets an error that leaves open whether the call was carried out, and
        the call is carried out this many seconds later. None: this does not happen.
    """

    delay: float = 0.0
    before: BaseException | None = None
    pause: float = 0.0
    after: BaseException | None = None
    straggles: float | None = None


Plan: TypeAlias = Callable[[Call], Fault | None]
"""Function that says which fault a call gets. It returns None for a call without a fault."""


def refused() -> Fault:
    """Return a fault: the call is not carried out, and the error says so."""
    return Fault(before=Unavailable("connection refused (fault)", maybe_done=False))


def unsent() -> Fault:
    """Return a fault: the call is not carried out, but the error leaves open whether it was."""
    return Fault(before=Unavailable("no answer (fault)", maybe_done=True))


def lost() -> Fault:
    """Return a fault: the call is carried out, but the answer is lost and the caller gets an error."""
    return Fault(after=Unavailable("answer lost (fault)", maybe_done=True))


def throttled(retry_after: float = 1.0) -> Fault:
    """Return a fault: the service refuses the call because the service is busy.

    :param retry_after: seconds after which the error asks the caller to try again.
    """
    return Fault(before=Throttled("server busy (fault)", retry_after=retry_after))


def late(seconds: float) -> Fault:
    """Return a fault: the call is carried out after a delay of this number of seconds."""
    return Fault(delay=seconds)


def straggling(seconds: float) -> Fault:
    """Return a fault: the caller gets an error and continues, and the call is carried out later.

    :param seconds: time between the error and the call.
    """
    return Fault(straggles=seconds)


def at(number: int, fault: Fault, *, kind: str | None = None) -> Plan:
    """Return a plan that gives a fault to exactly one call.

    :param number: which call gets the fault, from 1.
    :param kind: count only calls of this kind; None: count all calls.
    """
    seen: Counter[str] = Counter()

    def plan(call: Call) -> Fault | None:
        if kind is not None and call.kind != kind:
            return None
        seen["calls"] += 1
        return fault if seen["calls"] == number else None

    return plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The probabilities, from 0 to 1, with which :func:`seeded` gives each fault to a call.

    :param longest: longest delay of a late call, and longest ``retry_after`` of a throttled call, in seconds.
    """

    refused: float = 0.0
    unsent: float = 0.0
    lost: float = 0.0
    throttled: float = 0.0
    late: float = 0.0
    longest: float = 1.0
    kinds: Mapping[str, float] = field(default_factory=dict)
    """By the kind of a call the factor for all its probabilities, for example ``{"queue.receive": 0.1}``. A kind that
    is not listed has the factor 1."""


def seeded(seed: int | str, rates: Rates) -> Plan:
    """Return a plan with random faults. The same seed and the same calls give the same faults.

    :param rates: probabilities of the faults.
    """
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
    """A :class:`~airflow_provider_taskhub.storage.primitives.Store` that wraps another store and simulates faults.

    :param inner: store that carries out the calls.
    :param plan: function that says which fault a call gets.
    :param clock: clock that waits for the delays of faults.
    :param crash: function of a test, awaited at each crash point of a unit. It needs ``stepwise``. None: there is none.
    :param stepwise: True: this class carries out units operation by operation. False: the inner store commits each unit
        in one call of kind ``unit``.
    :param together: function that carries out the operations of one step. It needs ``stepwise``.
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
        """Carry out a call with the fault that the plan gives to the call.

        :param kind: kind of the call, for :class:`Call`.
        :param what: the operation, the unit, or the arguments of the call, for :class:`Call`.
        :param do: function that calls the inner store.
        """
        self._calls += 1
        fault = self._plan(Call(number=self._calls, kind=kind, what=what))
        if fault is None:
            return await do()
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
        with suppress(StorageError):  # no error is raised: the caller got one before
            await do()

    # methods that write

    async def execute(self, operation: Operation) -> Result:
        rules.check_operation(operation)
        return await self._through(rules.kind_of(operation), operation, lambda: self._inner.execute(operation))

    async def commit(self, unit: Unit) -> Results:
        if self._stepwise:
            rules.check_unit(unit)
            return await carry_out(unit, self.execute, self._crash, together=self._together)
        return await self._through("unit", unit, lambda: self._inner.commit(unit))

    # methods for queues

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

    async def arrival(self, queues: Sequence[str], timeout: float) -> Sequence[str]:
        """Call the inner store without a fault: a wake-up is only a hint, so losing it is no error."""
        return await self._inner.arrival(queues, timeout)

    def subscribe(self, name: str) -> AbstractAsyncContextManager[Callable[[float], Awaitable[None]]]:
        """Call the inner store without a fault, for the same reason as :meth:`arrival`."""
        return self._inner.subscribe(name)

    # methods for tables

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
        newest: TimeColumn | None = None,
    ) -> Page:
        return await self._through(
            "table.query",
            (table, filter),
            lambda: self._inner.query(
                table, filter, select=select, limit=limit, continuation=continuation, newest=newest
            ),
        )

    # methods for blobs

    async def create_container(self, name: str) -> bool:
        return await self._through("admin", name, lambda: self._inner.create_container(name))

    async def delete_container(self, name: str) -> None:
        await self._through("admin", name, lambda: self._inner.delete_container(name))

    async def get_blob(self, container: str, name: str) -> Blob | None:
        return await self._through("blob.get", (container, name), lambda: self._inner.get_blob(container, name))

    async def get_blob_range(self, container: str, name: str, *, offset: int, length: int) -> bytes | None:
        return await self._through(
            "blob.get",
            (container, name),
            lambda: self._inner.get_blob_range(container, name, offset=offset, length=length),
        )

    async def beside(self, work: Callable[[], T]) -> T:
        return await self._inner.beside(work)

    async def list_blobs(self, container: str, prefix: str = "") -> list[BlobInfo]:
        return await self._through("blob.list", (container, prefix), lambda: self._inner.list_blobs(container, prefix))

    async def append_blob(self, container: str, name: str, data: bytes) -> int:
        return await self._through(
            "blob.append", (container, name), lambda: self._inner.append_blob(container, name, data)
        )

    # methods for leases of blobs and containers

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
