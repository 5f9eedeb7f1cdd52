"""Find the worker that serves an instance, for a caller that must speak to the worker directly.

A program that only sends a message does not need this module, because the queue of an instance never changes.
:class:`Routes` reads the owners of all partitions once, and uses them until a worker answers that it is not the owner.
Then :class:`Routes` reads the lease of this partition again: only the lease says which worker is the owner.
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
"""The pauses between reads of a partition's owner, while the partition has no owner or has moved to another worker."""


class Routes:
    """Knows which worker owns which partition, as last read. Use an object of this class in one event loop only.

    After a single read of the leases nobody can say whether an owner is alive: the owner's state is then ``UNPROVEN``.

    :param observer: the observer of this reader.
    """

    def __init__(self, observer: LeaseObserver, names: HubNames, clock: Clock = SYSTEM_CLOCK) -> None:
        self._observer = observer
        self._names = names
        self._clock = clock

    async def map(self) -> Mapping[int, Ownership]:
        """Read the owners of all partitions now, and return them by partition number."""
        await self._observer.refresh()
        return {number: self._observer.ownership(number) for number in range(self._observer.partitions)}

    async def owner(self, instance_id: str) -> Ownership:
        """Return the owner of an instance's partition, as last read. If it was never read, read all owners now."""
        partition = self._partition(instance_id)
        if partition not in self._observer.leases:
            await self._observer.refresh()
        return self._observer.ownership(partition)

    async def refresh(self, instance_id: str) -> Ownership:
        """Read the owner of an instance's partition now, and return it."""
        partition = self._partition(instance_id)
        await self._observer.refresh_one(partition)
        return self._observer.ownership(partition)

    def _partition(self, instance_id: str) -> int:
        return partition_of(instance_id, self._observer.partitions)

    async def call(
        self, instance_id: str, ask: Callable[[str], Awaitable[T]], *, timeout: timedelta = timedelta(minutes=1)
    ) -> T:
        """Call ``ask`` with the owner of an instance, and return its result.

        :param ask: called with the full name of a worker. It must raise ``LeaseLost`` if the worker answers that it is
            not the owner. Its other errors go to the caller.
        :param timeout: how long to look for the owner. It must be longer than a handover takes, and longer than it
            takes until another worker has taken the partition of a dead one.
        :raises HubError: in that time no worker was found that serves the instance.
        """
        owner = (await self.owner(instance_id)).owner
        if owner is not None:
            with suppress(LeaseLost):
                return await ask(owner)

        # the first call comes without a pause: most likely the partition has moved since the owners were read
        async def ask_anew() -> T:
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
