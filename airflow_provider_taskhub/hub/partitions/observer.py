"""Whether those who own partitions serve them, as far as one reader's looks prove it: for people and monitors.

A lease row that names an owner says nothing of its life, and times of two machines are never compared: an owner lives
when its renewals are seen to go on, so every answer rests on at least two looks. Reads only; no worker decides by
this, and nobody takes a partition for it.
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
    """A lease over this reader's looks, in seconds of its monotonic clock.

    :param since: when an answer first showed its last sign of life. :param before: when the last look began that did
        not show it yet; None: there was none. :param last: when the last look at it began.
    """

    lease: Lease
    since: float
    before: float | None
    last: float


class LeaseObserver:
    """A hub's leases as one reader sees them. Remembers what it saw; belongs to one event loop.

    :param times: of leases whose owner does not list its own: workers of .NET, and those that were forgotten.
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
        """That the hub should have."""
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
        """The orders in force, as last read."""
        self._one = asyncio.Lock()
        """One look at a time: of two under way the older reading may come last, and what the other had read already
        would count as a new sign of life. A count of renewals tells them apart, but rows of .NET have none."""

    @property
    def leases(self) -> dict[int, Lease]:
        """By partition, as last read."""
        return {number: watched.lease for number, watched in self._watched.items()}

    @property
    def paces(self) -> Mapping[str, tuple[float, float]]:
        """Seconds between renewals, and of the take time, of each worker listed, as last read."""
        return self._pace

    async def refresh(self) -> None:
        """Read everything once."""
        async with self._one:
            began = self._clock.monotonic()
            leases = await self._with_orders(self._leases.scan())
            now = self._clock.monotonic()
            self._watched = {lease.partition: self._note(lease, began, now) for lease in leases}

    async def refresh_one(self, partition: int) -> None:
        """Read one lease, and what is said of workers and orders: three requests, however many leases there are."""
        async with self._one:
            began = self._clock.monotonic()
            lease = await self._with_orders(self._leases.read(self._names.control(partition)))
            if lease is None:
                self._watched.pop(partition, None)
            else:
                self._watched[partition] = self._note(lease, began, self._clock.monotonic())

    async def _with_orders(self, reading: Awaitable[T]) -> T:
        found, self._pace, self.controls = await asyncio.gather(reading, self._members.pace(), self._controls.read())
        self._offline = orders(self.controls, ()).rules.offline
        return found

    async def prove(self, partition: int | None = None) -> None:
        """Look until it is proven of every owner, or of one partition's, whether it lives.

        At most :data:`PATIENCE` of its renewal intervals, and :data:`PROOF` seconds: who is unproven then stays so.
        Some ten looks, so that it ends soon after the last renewal; three at all leases that are blobs, a request each.
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
        """Who serves a partition, as of the last look."""
        watched, offline = self._watched.get(partition), partition in self._offline
        if watched is None:
            return Ownership(partition=partition, owner=None, state=OwnerState.MISSING, offline=offline)
        return Ownership(partition=partition, owner=watched.lease.owner, state=self._state(watched), offline=offline)

    def longest_patience(self) -> tuple[float, str]:
        """Seconds after which every owner that lives has renewed, as of the last look, and for whom it takes so long.

        Nobody's partitions, offline ones and rows beyond the hub's partitions ask for none.
        """
        owned = (
            (PATIENCE * self._paces(lease)[0], lease.owner)
            for number, lease in self.leases.items()
            if lease.owner is not None and number < self.partitions and number not in self._offline
        )
        return max(owned, default=(0.0, ""))

    def _state(self, watched: _Watched) -> OwnerState:
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
        """Seconds until it is proven: of whom nothing new is heard, by silence."""
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
        """Seconds between renewals of its owner, and until others take it."""
        own = self._times.renew.total_seconds(), self._times.take.total_seconds()
        return self._pace.get(lease.owner or "", own)

    def _note(self, lease: Lease, began: float, now: float) -> _Watched:
        watched = self._watched.get(lease.partition)
        if watched is None:
            return _Watched(lease=lease, since=now, before=None, last=began)
        if newer(lease.life, watched.lease.life):
            return _Watched(lease=lease, since=now, before=watched.last, last=began)
        return replace(watched, lease=lease, last=began)
