"""Find out whether the owners of partitions are alive, for people and monitors.

A lease also names an owner that is dead, and times of two machines are never compared. An owner is alive if it goes on
renewing its lease, so each answer needs at least two reads of the lease. The observer only reads, and no worker decides
anything by the observer's answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from airflow_provider_taskhub.clock import SYSTEM_CLOCK, Clock
from airflow_provider_taskhub.hub.model import BLOB, Control, HubInfo, HubNames, Ownership, OwnerState
from airflow_provider_taskhub.hub.partitions.lease import NOBODY, Lease, newer
from airflow_provider_taskhub.hub.partitions.lease_stores import leases_of
from airflow_provider_taskhub.hub.partitions.members import PATIENCE, PROOF, Members
from airflow_provider_taskhub.hub.partitions.orders import Controls, orders
from airflow_provider_taskhub.settings import AZURE_LEASE, LeaseTimes
from airflow_provider_taskhub.storage.primitives import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Watched:
    """What a reader knows about a lease. All times are in seconds of the reader's monotonic clock.

    :param lease: the lease as last read.
    :param since: when the answer to a read first showed the newest sign of life of the owner: a renewal of the lease.
    :param before: when the last read began whose answer still showed an older sign of life. None: there was no such
        read.
    :param last: when the last read of all began.
    """

    lease: Lease
    since: float
    before: float | None
    last: float


class LeaseObserver:
    """Reads the leases of a hub, and remembers earlier reads. Use an observer in one event loop only.

    :param info: the number of partitions of the hub, and where its leases are stored.
    :param times: lease times for owners whose own times are not known: .NET workers, and workers without a row.
    """

    def __init__(
        self,
        store: Store,
        names: HubNames,
        info: HubInfo,
        *,
        times: LeaseTimes = AZURE_LEASE,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.partitions = info.partitions
        """How many partitions the hub has."""
        self._leases = leases_of(store, names, info)
        self._costly = info.lease_store == BLOB
        self._names = names
        self._members = Members(store, names, clock=clock)
        self._controls = Controls(store, names)
        self._times = times
        self._clock = clock
        self._watched: dict[int, _Watched] = {}
        self._pace: Mapping[str, tuple[float, float]] = {}
        self._offline: frozenset[int] = frozenset()
        self.controls: tuple[Control, ...] = ()
        """The orders of administrators that are in force, as last read."""
        self._one = asyncio.Lock()
        """Allows one read at a time. If two reads run in parallel, the older answer may come last, and its older ETag
        would look like a new sign of life. In leases of TaskHub the number of renewals prevents this, but leases of
        DurableTask for .NET have no such number."""

    @property
    def leases(self) -> dict[int, Lease]:
        """The leases by partition number, as last read."""
        return {number: watched.lease for number, watched in self._watched.items()}

    @property
    def paces(self) -> Mapping[str, tuple[float, float]]:
        """For each worker with a row, the seconds between its renewals and its take time in seconds, as last read."""
        return self._pace

    async def refresh(self) -> None:
        """Read once: all leases, the renewal and take times of the workers, and the orders of administrators."""
        async with self._one:
            began = self._clock.monotonic()
            leases = await self._with_orders(self._leases.scan())
            now = self._clock.monotonic()
            self._watched = {lease.partition: self._note(lease, began, now) for lease in leases}

    async def refresh_one(self, partition: int) -> None:
        """Read once: one lease, the renewal and take times of the workers, and the orders of administrators.

        This costs three requests, however many leases the hub has.
        """
        async with self._one:
            began = self._clock.monotonic()
            lease = await self._with_orders(self._leases.read(self._names.control(partition)))
            if lease is None:
                self._watched.pop(partition, None)
            else:
                self._watched[partition] = self._note(lease, began, self._clock.monotonic())

    async def _with_orders(self, reading: Awaitable[T]) -> T:
        """Await a read of leases, and meanwhile read the workers' times and the orders. Return the read leases."""
        found, self._pace, self.controls = await asyncio.gather(reading, self._members.pace(), self._controls.read())
        self._offline = orders(self.controls, ()).rules.offline
        return found

    async def prove(self, partition: int | None = None) -> None:
        """Read the leases again and again, until it is known for each owner whether it is alive.

        This takes at most :data:`PATIENCE` renewal intervals of the slowest owner, and at most :data:`PROOF` seconds.
        If an owner renews its leases too seldom for that, its state stays ``UNPROVEN``. The leases are read about ten
        times, so that this method ends soon after the last owner has renewed. If all leases are read and they are
        blobs, they are read three times only, because each time costs a request for each lease.

        :param partition: prove only the owner of this partition. None: all owners.
        """
        end = self._clock.monotonic() + PROOF
        read = self.refresh if partition is None else partial(self.refresh_one, partition)
        await read()
        readings = 2 if self._costly and partition is None else 10
        step = max(0.1, min(self._unproven(partition), PROOF) / readings + 0.01)
        while (left := min(self._unproven(partition), end - self._clock.monotonic())) > 0:
            await self._clock.sleep(min(left + 0.01, step))
            await read()

    def ownership(self, partition: int) -> Ownership:
        """Return the owner of a partition and its state, as last read."""
        watched, offline = self._watched.get(partition), partition in self._offline
        if watched is None:
            return Ownership(partition=partition, owner=None, state=OwnerState.MISSING, offline=offline)
        return Ownership(partition=partition, owner=watched.lease.owner, state=self._state(watched), offline=offline)

    def longest_patience(self) -> tuple[float, str]:
        """Return the seconds after which each live owner has renewed its leases, and the owner that needs the longest.

        Partitions without an owner, offline partitions, and leases with a number beyond the hub's partitions do not
        count. If no partition counts, the result is 0 and "".
        """
        owned = (
            (PATIENCE * self._paces(lease)[0], lease.owner)
            for number, lease in self.leases.items()
            if lease.owner is not None and number < self.partitions and number not in self._offline
        )
        return max(owned, default=(0.0, ""))

    def _state(self, watched: _Watched) -> OwnerState:
        """Return the state of a partition's owner, as far as the reads have proven it."""
        lease = watched.lease
        if lease.owner is None:
            if lease.partition in self._offline:
                return OwnerState.OFFLINE
            if lease.next_owner == NOBODY:
                return OwnerState.KICKED
            return OwnerState.NEW if lease.previous is None and not lease.epoch else OwnerState.RELEASED
        renew, take = self._paces(lease)
        if watched.last - watched.since >= PATIENCE * renew:
            return OwnerState.SILENT
        if watched.before is None or watched.since - watched.before >= take:
            return OwnerState.UNPROVEN
        return OwnerState.KICKED if lease.next_owner == NOBODY else OwnerState.LIVE

    def _unproven(self, partition: int | None) -> float:
        """Return the seconds for which an owner must still be watched: without a renewal in this time, it is silent.

        :param partition: watch only the owner of this partition. None: the time is long enough for all owners.
        :returns: 0 if the state of each owner is known already.
        """
        return max(
            (
                watched.since + PATIENCE * self._paces(watched.lease)[0] - watched.last
                for number, watched in self._watched.items()
                if number < self.partitions
                and partition in (None, number)
                and self._state(watched) is OwnerState.UNPROVEN
            ),
            default=0.0,
        )

    def _paces(self, lease: Lease) -> tuple[float, float]:
        """Return the seconds between the renewals of a lease's owner, and its take time in seconds."""
        own = self._times.renew.total_seconds(), self._times.take.total_seconds()
        return self._pace.get(lease.owner or "", own)

    def _note(self, lease: Lease, began: float, now: float) -> _Watched:
        """Return what is known about a lease after one more read.

        :param began: when the read began.
        :param now: when its answer came.
        """
        watched = self._watched.get(lease.partition)
        if watched is None:
            return _Watched(lease=lease, since=now, before=None, last=began)
        if newer(lease.life, watched.lease.life):
            return _Watched(lease=lease, since=now, before=watched.last, last=began)
        return replace(watched, lease=lease, last=began)
