"""Finding the worker that serves an instance, for whoever must speak to that worker and not to its queue.

Messages need none of this: an instance's queue never changes. A map of owners is read once and believed until a worker
answers that it is not the owner; then that one entry is read again. Takes nobody's word for an owner but the lease's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

from airflow_provider_taskhub.clock import SYSTEM_CLOCK, Clock
from airflow_provider_taskhub.errors import HubError, LeaseLost
from airflow_provider_taskhub.hub.model import HubNames, Ownership
from airflow_provider_taskhub.hub.partitions.hashing import partition_of
from airflow_provider_taskhub.hub.partitions.observer import LeaseObserver
from airflow_provider_taskhub.retries import Retries, retry

T = TypeVar("T")

_MOVING = Retries(after=(LeaseLost,), first=0.1, longest=2.0)
"""Looks at an entry of the map that is still wrong, or empty."""


class Routes:
    """Who serves what, as far as this reader knows. Belongs to one event loop.

    Answers tell live owners from silent ones as far as ``observer`` has proven it: after one reading an owner is
    unproven.

    :param observer: of this reader.
    """

    def __init__(self, observer: LeaseObserver, names: HubNames, clock: Clock = SYSTEM_CLOCK) -> None:
        self._observer = observer
        self._names = names
        self._clock = clock

    async def map(self) -> Mapping[int, Ownership]:
        """Who serves every partition; read now."""
        await self._observer.refresh()
        return {number: self._observer.ownership(number) for number in range(self._observer.partitions)}

    async def owner(self, instance_id: str) -> Ownership:
        """Who serves an instance, as last read."""
        partition = self._partition(instance_id)
        if partition not in self._observer.leases:
            await self._observer.refresh()
        return self._observer.ownership(partition)

    async def refresh(self, instance_id: str) -> Ownership:
        """As :meth:`owner`, with this one entry read now."""
        partition = self._partition(instance_id)
        await self._observer.refresh_one(partition)
        return self._observer.ownership(partition)

    def _partition(self, instance_id: str) -> int:
        return partition_of(instance_id, self._observer.partitions)

    async def call(
        self, instance_id: str, ask: Callable[[str], Awaitable[T]], *, timeout: timedelta = timedelta(minutes=1)
    ) -> T:
        """What ``ask`` gets from the owner of an instance.

        :param ask: given a worker's full name; raises ``LeaseLost`` for the answer "I am not the owner".
        :param timeout: a handover, and a take-over from who has died, must fit in it.
        :raises HubError: when no owner was found in that time. What else ``ask`` raises goes through.
        """
        owner = (await self.owner(instance_id)).owner
        if owner is not None:
            with suppress(LeaseLost):
                return await ask(owner)

        async def ask_anew() -> T:  # at once: most likely the partition has moved since the map was read
            nonlocal owner
            owner = (await self.refresh(instance_id)).owner
            if owner is None:
                raise LeaseLost(f"instance {instance_id!r} has no owner")
            return await ask(owner)

        try:
            return await retry(ask_anew, replace(_MOVING, within=timeout.total_seconds()), self._clock)
        except LeaseLost:
            raise HubError(
                f"no worker serves instance {instance_id!r} (partition {self._partition(instance_id)} "
                f"of hub {self._names.hub!r}; last known owner: {owner or 'none'}): is a worker running?"
            ) from None
