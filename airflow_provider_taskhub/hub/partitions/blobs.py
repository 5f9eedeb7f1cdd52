"""Leases as leased blobs: ``{hub}-leases/default/{queue}``, DurableTask's older store (spec §2.7, §4.2).

The blob's content is DurableTask's JSON with members of our own. Its lease id is published there as ``Token``, so that
others can *change* the lease: that is the atomic step. Every write gives the blob a new lease id, and is refused unless
the blob still has the id that was read; so a renewal that came in between refuses a thief, as an ETag would. Rejected:
keeping one id for a whole tenure, as DurableTask does: a thief that has read the blob before a renewal would then take
it from a live owner.

What that costs: three requests for a renewal or an ask (change, renew, put), as many for the first take of a blob that
nobody leases (acquire, read, put), one more for a release, and for a blob whose lease ran out (change refused, acquire,
read, put); a listing and a request for each lease where all are looked at, which nobody does while nothing moves. Rows
of a table cost one request each, and one for every 1,000 of them (T84, T85).

Owns reading and conditionally writing the blobs. Decides nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.errors import Conflict, LeaseLost, NotFound
from airflow_provider_taskhub.hub.contract import HubNames
from airflow_provider_taskhub.hub.partitions.leases import Lease, is_control_queue
from airflow_provider_taskhub.storage.primitives import Blob, PutBlob, Store

_FOLDER = "default/"
_AT_ONCE = 16
"""Blobs read at a time by a scan."""
_SECONDS = 15, 60
"""Azure's bounds of a blob lease."""
_KNOWN = ("PartitionId", "Owner", "Token", "Epoch", "TaskHubStamp")


class BlobLeases:
    """Leases as blobs. A lease's ``etag`` is the lease id of its last write, which its content repeats.

    :param take: how long the service keeps a blob leased without a renewal, within its bounds of 15 to 60 s. Only a
        writer that died between two requests makes anybody wait for it: all others publish the id.
    """

    def __init__(self, store: Store, names: HubNames, take: timedelta = timedelta(seconds=30)) -> None:
        self._store = store
        self._names = names
        self._seconds = round(min(max(take.total_seconds(), _SECONDS[0]), _SECONDS[1]))
        self._tried: dict[str, tuple[str, str]] = {}
        """Queue → the id read and the id proposed for it, of a write whose outcome is unknown: proposed again."""

    async def scan(self) -> tuple[Lease, ...]:
        """Every partition's lease, by partition: one listing, and one request for each."""
        listed = await self._store.list_blobs(self._names.leases, _FOLDER)
        queues = [blob.name.removeprefix(_FOLDER) for blob in listed]
        return await self._read_all(queue for queue in queues if is_control_queue(queue, self._names))

    async def asked(self, me: str, queues: Collection[str]) -> tuple[Lease, ...]:
        """A request for each."""
        return tuple(lease for lease in await self._read_all(queues) if lease.next_owner == me)

    async def _read_all(self, queues: Iterable[str]) -> tuple[Lease, ...]:
        limit = asyncio.Semaphore(_AT_ONCE)

        async def read(queue: str) -> Lease | None:
            async with limit:
                return await self.read(queue)

        found = await asyncio.gather(*map(read, queues))
        return tuple(sorted((lease for lease in found if lease is not None), key=lambda lease: lease.partition))

    async def read(self, queue: str) -> Lease | None:
        """One lease, or None when its blob is gone."""
        blob = await self._store.get_blob(self._names.leases, _FOLDER + queue)
        return None if blob is None else decode_blob(queue, blob)

    async def write(self, lease: Lease) -> Lease:
        """Write a lease on condition that it is still as its ``etag`` says. Returns it with its new one.

        :raises Conflict: somebody changed it. :raises NotFound: its blob is gone.
        :raises Unavailable: no answer: it may have been written, or may be leased under an id that only a repeated call
            knows.
        """
        name, read = _FOLDER + lease.queue, lease.etag
        tried = self._tried.get(lease.queue)
        token = tried[1] if tried is not None and tried[0] == read else str(uuid4())
        self._tried[lease.queue] = (read, token)
        try:
            await self._seize(name, read, token, lease.queue)
            data = encode_blob(replace(lease, etag=token))
            await self._store.execute(
                PutBlob(
                    container=self._names.leases,
                    name=name,
                    data=data,
                    content_type="application/json",
                    lease_id=token,
                )
            )
        except LeaseLost as lost:
            self._tried.pop(lease.queue, None)
            raise Conflict(f"the lease of {lease.queue} was changed by another") from lost
        except (Conflict, NotFound):
            self._tried.pop(lease.queue, None)
            raise
        self._tried.pop(lease.queue, None)
        if lease.owner is None:
            with suppress(LeaseLost, NotFound):  # the next taker need not know the id
                await self._store.release_lease(self._names.leases, name, lease_id=token)
        return replace(lease, etag=token)

    async def _seize(self, name: str, read: str, token: str, queue: str) -> None:
        """Lease the blob under ``token`` if it is as it was read.

        A change of the id that was read is that in one step, and renewed at once, since a change does not extend it
        (E45). A blob that is not leased is leased first and then compared: nobody can write it meanwhile.
        """
        container = self._names.leases
        try:
            if not read:
                raise LeaseLost("never leased")
            await self._store.change_lease(container, name, lease_id=read, new_lease_id=token)
            await self._store.renew_lease(container, name, lease_id=token)
        except LeaseLost:
            await self._store.acquire_lease(container, name, lease_id=token, seconds=self._seconds)
            now = await self.read(queue)
            if now is None or now.etag not in (read, token):
                with suppress(LeaseLost, NotFound):
                    await self._store.release_lease(container, name, lease_id=token)
                raise Conflict(f"the lease of {queue} was changed by another") from None

    async def insert(self, queue: str) -> bool:
        """Make the lease of a partition, born given up (T29). False: it was there (E04)."""
        operation = PutBlob(
            container=self._names.leases,
            name=_FOLDER + queue,
            data=encode_blob(Lease(queue=queue)),
            content_type="application/json",
            if_absent=True,
        )
        try:
            await self._store.execute(operation)
        except (Conflict, LeaseLost):
            return False
        return True


def decode_blob(queue: str, blob: Blob) -> Lease:
    """A blob's content as a lease; DurableTask's own has four members, damaged content none."""
    try:
        found = json.loads(blob.data)
    except ValueError:
        found = {}
    columns: dict[str, Any] = found if isinstance(found, dict) else {}
    ours = {name.removeprefix("TaskHub"): value for name, value in columns.items() if name.startswith("TaskHub")}
    epoch, renewals, load = columns.get("Epoch"), ours.get("Renewals"), ours.get("Load")
    return Lease(
        queue=queue,
        owner=_text(columns.get("Owner")),
        next_owner=_text(ours.get("NextOwner")),
        owned_since=_time(ours.get("OwnedSince")),
        last_renewal=_time(ours.get("LastRenewal")),
        expires_at=_time(ours.get("ExpiresAt")),
        draining=ours.get("IsDraining") is True,
        epoch=epoch if isinstance(epoch, int) else None,
        renewals=renewals if isinstance(renewals, int) else None,
        load=float(load) if isinstance(load, int | float) else 0.0,
        polled=_time(ours.get("Polled")),
        previous=_text(ours.get("Previous")),
        released=_text(ours.get("Released")),
        kicked_by=_text(ours.get("Kicked")),
        extra={name: value for name, value in columns.items() if name not in _KNOWN and not name.startswith("TaskHub")},
        etag=_text(ours.get("Stamp")) or _text(columns.get("Token")) or "",
    )


def encode_blob(lease: Lease) -> bytes:
    """DurableTask's members, then ours where they say something; ``etag`` is the id that it is written under."""
    ours = {
        "Stamp": lease.etag,
        "NextOwner": lease.next_owner,
        "OwnedSince": _written(lease.owned_since),
        "LastRenewal": _written(lease.last_renewal),
        "ExpiresAt": _written(lease.expires_at),
        "IsDraining": lease.draining,
        "Renewals": lease.renewals,
        "Load": lease.load,
        "Polled": _written(lease.polled),
        "Previous": lease.previous,
        "Released": lease.released,
        "Kicked": lease.kicked_by,
    }
    content = {
        "PartitionId": lease.queue,
        "Owner": lease.owner,
        "Token": lease.etag if lease.owner is not None else None,
        "Epoch": lease.epoch or 0,
        **lease.extra,
        **{f"TaskHub{name}": value for name, value in ours.items() if value},
    }
    return json.dumps(content, separators=(",", ":")).encode()


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _time(value: object) -> Timestamp | None:
    try:
        return Timestamp.parse(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _written(value: Timestamp | None) -> str | None:
    return None if value is None else value.text()
