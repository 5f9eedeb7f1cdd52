"""Change hints: rows that tell one Airflow triggerer to read an instance again, because the instance has changed.

A completion hint announces an end to the Airflow task that started the instance. A sensor waits for more: for a status
that is not final, for a custom status, for an awaited event, and for instances that no Airflow task has started. So a
triggerer publishes in its member row for which instances its sensors wait. Each worker reads the member rows anyway, at
each scan of the partitions. If a checkpoint changes what a sensor can see of such an instance, the checkpoint writes a
change hint for each of these triggerers. An instance that no sensor waits for costs nothing.

The hints of a triggerer are rows of the table ``{Hub}Completions`` under a PartitionKey of its own. A hint proves
nothing, and may be lost: a triggerer also reads the instances themselves, a few at a time.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable
from zlib import crc32

from airflow_provider_taskhub.hub.formats.keys import escape, unescape
from airflow_provider_taskhub.hub.model import HubNames, Member
from airflow_provider_taskhub.storage.primitives import (
    And,
    Compare,
    Entity,
    RowOperation,
    RowVerb,
    Store,
    Transact,
)

PREFIX = "watcher:"
"""Beginning of the PartitionKey of change hints. The name of the triggerer follows."""
_AFTER_PREFIX = "watcher;"
"""The first text that sorts behind all texts that begin with :data:`PREFIX`."""
MOST = 15_000
"""The most instances that one triggerer publishes: 4 bytes each must fit into one column of 64 KiB."""


def fingerprint(instance_id: str) -> int:
    """Return a number of 32 bits for an instance id. Two ids may have the same number: then some hints are useless."""
    return crc32(instance_id.encode())


def encode(fingerprints: Collection[int]) -> bytes:
    """Encode fingerprints for a column of the member row. If there are more than :data:`MOST`, the rest is left out."""
    chosen = sorted(fingerprints)[:MOST]
    return struct.pack(f">{len(chosen)}I", *chosen)


def decode(value: object) -> frozenset[int]:
    """Decode a column that :func:`encode` has written. Anything else yields an empty set: hints may be missing."""
    if not isinstance(value, bytes) or len(value) % 4:
        return frozenset()
    return frozenset(struct.unpack(f">{len(value) // 4}I", value))


class AwaitedInstances:
    """The instances that sensors wait for, as this process last read it from the member rows of the triggerers."""

    def __init__(self) -> None:
        self._watchers: tuple[tuple[str, frozenset[int]], ...] = ()

    def update(self, watchers: Iterable[Member]) -> None:
        """Replace what is known. Any thread may call this method. :param watchers: the live triggerers."""
        self._watchers = tuple([(one.worker, one.awaited) for one in watchers if one.awaited])

    def hints(self, names: HubNames, instance_id: str) -> tuple[Transact, ...]:
        """Return the writes of the change hints of an instance: one for each triggerer whose sensors wait for it."""
        if not self._watchers:
            return ()
        number = fingerprint(instance_id)
        rows = [hint(watcher, instance_id) for watcher, awaited in self._watchers if number in awaited]
        puts = [RowOperation(verb=RowVerb.UPSERT_REPLACE, entity=row) for row in rows]
        return tuple([Transact(table=names.completions, rows=(put,)) for put in puts])


def hint(watcher: str, instance_id: str, *, etag: str = "") -> Entity:
    """Return the row of a change hint.

    :param watcher: full name of the triggerer that the hint is for.
    :param etag: the ETag of the stored row; "": the row is not stored yet.
    """
    return Entity(partition_key=PREFIX + escape(watcher), row_key=escape(instance_id), etag=etag)


async def read(store: Store, names: HubNames, watcher: str) -> dict[str, str]:
    """Read the change hints for a triggerer: the ETag of each hint, by instance id. :param watcher: its full name."""
    rows = store.rows(names.completions, Compare("PartitionKey", "eq", PREFIX + escape(watcher)))
    return {unescape(row.row_key): row.etag async for row in rows}


async def read_all(store: Store, names: HubNames) -> dict[str, list[Entity]]:
    """Read the change hints for all triggerers, by the full name of the triggerer."""
    wanted = And((Compare("PartitionKey", "ge", PREFIX), Compare("PartitionKey", "lt", _AFTER_PREFIX)))
    found: dict[str, list[Entity]] = {}
    async for row in store.rows(names.completions, wanted):
        found.setdefault(unescape(row.partition_key.removeprefix(PREFIX)), []).append(row)
    return found
