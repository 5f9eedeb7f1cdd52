"""Where leases are stored: in rows of a table, as DurableTask does by default, or in blobs (``blob_leases``).

This module reads and conditionally writes leases. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from typing import Protocol

from airflow_provider_taskhub.errors import Conflict
from airflow_provider_taskhub.hub.model import TABLE, HubInfo, HubNames
from airflow_provider_taskhub.hub.partitions.blob_leases import BlobLeases
from airflow_provider_taskhub.hub.partitions.lease import Lease, decode_lease, encode_lease
from airflow_provider_taskhub.storage.primitives import And, Compare, Entity, RowOperation, RowVerb, Store, Transact


class Leases(Protocol):
    """The storage of a hub's leases. It must be able to change a lease atomically, on condition that no other worker
    has changed the lease since it was read.
    """

    async def scan(self) -> tuple[Lease, ...]:
        """Return the leases of all partitions, ordered by partition.

        :raises NotFound: the hub does not exist.
        """

    async def read(self, queue: str) -> Lease | None:
        """Return one lease. None: it does not exist."""

    async def asked(self, me: str, queues: Collection[str]) -> tuple[Lease, ...]:
        """Return those leases of ``queues`` whose ``next_owner`` is ``me``. This costs much less than a scan.

        These are the leases of partitions that other workers hand over to ``me``.
        """

    async def write(self, lease: Lease) -> Lease:
        """Write a lease to take, renew or release the partition, if the stored lease still has the ETag ``lease.etag``.

        :returns: the lease with its new ETag.
        :raises Conflict: another worker has changed the lease.
        :raises NotFound: the lease does not exist.
        :raises Unavailable: there was no answer. The lease may have been written.
        """

    async def mark(self, lease: Lease) -> Lease:
        """Write a lease to ask its owner for the partition, or to kick it. Results and errors are those of
        :meth:`write`.
        """

    async def insert(self, queue: str) -> bool:
        """Make the lease of a partition, without an owner. Return False if it exists already."""


def leases_of(store: Store, names: HubNames, info: HubInfo, take: timedelta = timedelta(seconds=30)) -> Leases:
    """Return the lease store that a hub uses.

    :param take: the take time of the worker that will own leases.
    """
    return TableLeases(store, names) if info.lease_store == TABLE else BlobLeases(store, names, take)


class TableLeases:
    """Leases in rows of ``{Hub}Partitions``. Each update replaces the whole row if its ETag has not changed."""

    def __init__(self, store: Store, names: HubNames) -> None:
        self._store = store
        self._names = names

    async def scan(self) -> tuple[Lease, ...]:
        """Return the leases of all partitions, ordered by partition."""
        leases = [
            lease
            async for entity in self._store.rows(self._names.partitions)
            if (lease := decode_lease(entity, self._names)) is not None
        ]
        return tuple(sorted(leases, key=lambda lease: lease.partition))

    async def asked(self, me: str, queues: Collection[str]) -> tuple[Lease, ...]:
        """Return those leases of ``queues`` whose ``next_owner`` is ``me``. This is one request."""
        mine = And((Compare("PartitionKey", "eq", ""), Compare("NextOwner", "eq", me)))
        found = [decode_lease(entity, self._names) async for entity in self._store.rows(self._names.partitions, mine)]
        return tuple(lease for lease in found if lease is not None and lease.queue in queues)

    async def read(self, queue: str) -> Lease | None:
        """Return the lease of a control queue. None: it has no row, or ``queue`` is not the name of a control queue."""
        entity = await self._store.get(self._names.partitions, "", queue)
        return None if entity is None else decode_lease(entity, self._names)

    async def write(self, lease: Lease) -> Lease:
        """Write a lease if the stored lease still has the ETag ``lease.etag``. Return the lease with its new ETag.

        A release sends a wake-up, so that another worker takes the partition before its next scan.

        :raises Conflict: another worker has changed the lease.
        :raises NotFound: the row does not exist.
        :raises Unavailable: there was no answer. The lease may have been written.
        """
        operation = RowOperation(verb=RowVerb.REPLACE, entity=encode_lease(lease), etag=lease.etag)
        table = self._names.partitions
        topic = table if lease.owner is None else ""
        etags = await self._store.execute(Transact(table=table, rows=(operation,), topic=topic))
        assert isinstance(etags, tuple)
        return replace(lease, etag=etags[0])

    async def mark(self, lease: Lease) -> Lease:
        """Write a lease as :meth:`write` does. In a table both are the same operation."""
        return await self.write(lease)

    async def insert(self, queue: str) -> bool:
        """Make the lease of a partition, without an owner. Return False if it exists already."""
        entity = Entity(partition_key="", row_key=queue, properties={"IsDraining": False})
        return await insert_row(self._store, self._names.partitions, entity)


async def insert_row(store: Store, table: str, entity: Entity) -> bool:
    """Insert a row.

    :returns: False if a row with these keys exists already.
    """
    try:
        await store.execute(Transact(table=table, rows=(RowOperation(verb=RowVerb.INSERT, entity=entity),)))
    except Conflict:
        return False
    return True
