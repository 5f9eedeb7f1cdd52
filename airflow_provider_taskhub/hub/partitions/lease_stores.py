"""Where leases are kept: rows of a table, DurableTask's default, or leased blobs (``blobs``): one contract.

Owns reading and conditionally writing lease rows. Decides nothing.
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
    """A lease store: any store of named objects with an atomic conditional update will do."""

    async def scan(self) -> tuple[Lease, ...]:
        """Every partition's lease, by partition; what is no partition's is left out. :raises NotFound: no such hub."""

    async def read(self, queue: str) -> Lease | None:
        """One lease, or None when it is gone."""

    async def asked(self, me: str, queues: Collection[str]) -> tuple[Lease, ...]:
        """Those of ``queues`` that ``me`` has asked for and does not have yet; for much less than a scan."""

    async def write(self, lease: Lease) -> Lease:
        """Write a lease as its owner, who takes, renews or releases it, if it is still as its ``etag`` says.

        :returns: it, with its new one. :raises Conflict: somebody changed it. :raises NotFound: it is gone.
        :raises Unavailable: no answer: it may have been written.
        """

    async def mark(self, lease: Lease) -> Lease:
        """As :meth:`write`, for those who ask its owner for something: an ask, a kick."""

    async def insert(self, queue: str) -> bool:
        """Make the lease of a partition, born given up. False: it was there."""


def leases_of(store: Store, names: HubNames, info: HubInfo, take: timedelta = timedelta(seconds=30)) -> Leases:
    """The lease store that a hub uses. :param take: of the worker that will hold leases."""
    return TableLeases(store, names) if info.lease_store == TABLE else BlobLeases(store, names, take)


class TableLeases:
    """Leases as rows of ``{Hub}Partitions``: every update replaces the whole row under its ETag.

    A lease's ``etag`` stands for the state that was read or written.
    """

    def __init__(self, store: Store, names: HubNames) -> None:
        self._store = store
        self._names = names

    async def scan(self) -> tuple[Lease, ...]:
        """Every partition's lease, by partition; rows that are no partition's are left out."""
        leases = [
            lease
            async for entity in self._store.rows(self._names.partitions)
            if (lease := decode_lease(entity, self._names)) is not None
        ]
        return tuple(sorted(leases, key=lambda lease: lease.partition))

    async def asked(self, me: str, queues: Collection[str]) -> tuple[Lease, ...]:
        """One request, whose answer holds these rows alone."""
        mine = And((Compare("PartitionKey", "eq", ""), Compare("NextOwner", "eq", me)))
        found = [decode_lease(entity, self._names) async for entity in self._store.rows(self._names.partitions, mine)]
        return tuple(lease for lease in found if lease is not None and lease.queue in queues)

    async def read(self, queue: str) -> Lease | None:
        """One lease, or None when its row is gone."""
        entity = await self._store.get(self._names.partitions, "", queue)
        return None if entity is None else decode_lease(entity, self._names)

    async def write(self, lease: Lease) -> Lease:
        """Write a lease on condition that it is still as its ``etag`` says. Returns it with its new ETag.

        A release is announced under the table's name: another worker takes the partition before its next scan.

        :raises Conflict: somebody changed it. :raises NotFound: its row is gone.
        :raises Unavailable: no answer: it may have been written.
        """
        operation = RowOperation(verb=RowVerb.REPLACE, entity=encode_lease(lease), etag=lease.etag)
        table = self._names.partitions
        topic = table if lease.owner is None else ""
        etags = await self._store.execute(Transact(table=table, rows=(operation,), topic=topic))
        assert isinstance(etags, tuple)
        return replace(lease, etag=etags[0])

    async def mark(self, lease: Lease) -> Lease:
        """As :meth:`write`: a row is the whole lease."""
        return await self.write(lease)

    async def insert(self, queue: str) -> bool:
        """Make the lease of a partition, born given up. False: it was there."""
        entity = Entity(partition_key="", row_key=queue, properties={"IsDraining": False})
        return await insert_row(self._store, self._names.partitions, entity)


async def insert_row(store: Store, table: str, entity: Entity) -> bool:
    """Insert a row. False: there is one with its keys."""
    try:
        await store.execute(Transact(table=table, rows=(RowOperation(verb=RowVerb.INSERT, entity=entity),)))
    except Conflict:
        return False
    return True
