"""Leases in blobs: ``{hub}-leases/default/{queue}``, DurableTask's older lease store.

The content of the blob is DurableTask's JSON with further fields of TaskHub. The content alone says which worker owns
the partition: each write is one conditional request under the blob's ETag. A writer that dies, or whose answer is lost,
leaves the old content or the new one, and nothing between them.

The storage service also leases the blob, under the id in the field ``Token``. This second lease is for .NET workers and
for people. After a worker has taken the partition, the blob gets a lease under a new id; a renewal renews this lease,
and a release ends it. If a writer dies before this second step, other workers are not locked out: they may write under
each id that the content names, and without an id if the blob is not leased. Rejected: to change the lease id with each
write and use it as the condition. A worker that asked for a partition and died between the two steps then took the
partition from its live owner, because no worker knew the new id.

Costs: to ask an owner for its partition, or to kick the owner, is one request to the store. To renew, take or release
a lease is two. There is one more if the blob's lease has expired, and two more if the partition is taken while the blob
is leased. To read all leases is one listing and one request for each lease, but workers read them only if something
changes. With leases in a table, each write is one request, and reading them is one request for each 1,000 rows.

This module reads and conditionally writes the blobs. It decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.concurrency import gather_bounded
from airflow_provider_taskhub.errors import Conflict, InputError, LeaseLost, NotFound
from airflow_provider_taskhub.hub.model import HubNames
from airflow_provider_taskhub.hub.partitions.lease import (
    Lease,
    decode_failover,
    encode_failover,
    finite,
    is_control_queue,
)
from airflow_provider_taskhub.hub.unreadable_rows import unreadable
from airflow_provider_taskhub.storage.primitives import Blob, PutBlob, Store

_FOLDER = "default/"
_AT_ONCE = 16
"""Number of blobs that a scan reads at the same time."""
_SECONDS = 15, 60
"""Azure's shortest and longest time of a blob lease, in seconds."""
_KNOWN = ("PartitionId", "Owner", "Token", "Epoch")
"""The fields of the JSON that DurableTask writes."""


class BlobLeases:
    """Leases in blobs. The ``etag`` of a lease is that of its blob.

    :param take: the take time. It is how long the service leases a blob without a renewal, within Azure's 15 to 60 s.
    """

    def __init__(self, store: Store, names: HubNames, take: timedelta = timedelta(seconds=30)) -> None:
        self._store = store
        self._names = names
        self._seconds = round(min(max(take.total_seconds(), _SECONDS[0]), _SECONDS[1]))

    async def scan(self) -> tuple[Lease, ...]:
        """Return the leases of all partitions, ordered by partition: one listing, and one request for each lease."""
        listed = await self._store.list_blobs(self._names.leases, _FOLDER)
        queues = [blob.name.removeprefix(_FOLDER) for blob in listed]
        return await self._read_all(queue for queue in queues if is_control_queue(queue, self._names))

    async def asked(self, me: str, queues: Collection[str]) -> tuple[Lease, ...]:
        """Return those leases of ``queues`` whose ``next_owner`` is ``me``. This is one request for each queue."""
        return tuple(lease for lease in await self._read_all(queues) if lease.next_owner == me)

    async def _read_all(self, queues: Iterable[str]) -> tuple[Lease, ...]:
        found = await gather_bounded(self.read, queues, limit=_AT_ONCE)
        return tuple(sorted((lease for lease in found if lease is not None), key=lambda lease: lease.partition))

    async def read(self, queue: str) -> Lease | None:
        """Return one lease. None: its blob does not exist."""
        blob = await self._store.get_blob(self._names.leases, _FOLDER + queue)
        if blob is None:
            return None
        try:
            columns = content(blob)
        except InputError as error:
            unreadable(self._names.leases, _FOLDER + queue, str(error))
            columns = {}
        return decode_blob(queue, columns, blob.etag)

    async def write(self, lease: Lease) -> Lease:
        """Write a lease if the blob still has the ETag ``lease.etag``. Then let the service lease or release the blob.

        :raises Conflict: another worker has changed the lease.
        :raises NotFound: the blob does not exist.
        :raises Unavailable: there was no answer. The lease may have been written.
        """
        token = None if lease.owner is None else lease.token or str(uuid4())
        written, under = await self._put(lease, token)
        # an error here does no harm: only the content counts, which is written; the next write repeats this step
        with suppress(LeaseLost, NotFound):
            await self._follow(_FOLDER + lease.queue, token, under)
        return written

    async def mark(self, lease: Lease) -> Lease:
        """Write a lease to ask its owner for the partition, or to kick it. The service's lease of the blob does not
        change.
        """
        return (await self._put(lease, lease.token))[0]

    async def _put(self, lease: Lease, token: str | None) -> tuple[Lease, str | None]:
        """Write the content, trying each id under which the blob may be leased.

        :param token: id under which the blob shall be leased after the write. None: the blob shall be released.
        :returns: the written lease, and the id under which the blob is leased now. None: the blob is not leased.
        """
        for under in dict.fromkeys((lease.token, None, *lease.under)):
            written = replace(lease, token=token, under=() if under in (None, token) else (under,))
            operation = PutBlob(
                container=self._names.leases,
                name=_FOLDER + lease.queue,
                data=encode_blob(written),
                content_type="application/json",
                etag=lease.etag,
                lease_id=under,
            )
            try:
                etag = await self._store.execute(operation)
            except LeaseLost:
                continue
            except Conflict:
                break
            assert isinstance(etag, str)
            return replace(written, etag=etag), under
        if await self.read(lease.queue) is None:  # the service gives the same error for a missing blob
            raise NotFound(f"the lease of {lease.queue} is gone")
        raise Conflict(f"the lease of {lease.queue} was changed by another")

    async def _follow(self, name: str, token: str | None, under: str | None) -> None:
        """Lease or release the blob as its content says.

        A change of the lease id does not extend the lease, so the lease is renewed after the change.

        :param token: id under which the blob shall be leased. None: it shall be released.
        :param under: id under which the blob is leased now. None: it is not leased.
        """
        container = self._names.leases
        if under is None:
            if token is not None:
                await self._store.acquire_lease(container, name, lease_id=token, seconds=self._seconds)
        elif token is None:
            await self._store.release_lease(container, name, lease_id=under)
        else:
            if under != token:
                await self._store.change_lease(container, name, lease_id=under, new_lease_id=token)
            await self._store.renew_lease(container, name, lease_id=token)

    async def insert(self, queue: str) -> bool:
        """Make the lease of a partition, without an owner. Return False if it exists already."""
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


def content(blob: Blob) -> dict[str, Any]:
    """Return the JSON object in a blob.

    :raises InputError: the content is not a JSON object.
    """
    try:
        found = json.loads(blob.data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"its content is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise InputError(f"its content is JSON, but no object: {blob.data[:60]!r}")
    return found


def decode_blob(queue: str, columns: Mapping[str, Any], etag: str) -> Lease:
    """Return the lease in a blob's JSON. A field that cannot be read counts as missing."""
    ours = {name.removeprefix("TaskHub"): value for name, value in columns.items() if name.startswith("TaskHub")}
    epoch, renewals = columns.get("Epoch"), ours.get("Renewals")
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
        load=finite(ours.get("Load")),
        polled=_time(ours.get("Polled")),
        previous=_text(ours.get("Previous")),
        released=_text(ours.get("Released")),
        kicked_by=_text(ours.get("Kicked")),
        failover=decode_failover(ours.get("Failover")),
        extra={name: value for name, value in columns.items() if name not in _KNOWN and not name.startswith("TaskHub")},
        token=_id(columns.get("Token")),
        under=() if (under := _id(ours.get("Under"))) is None else (under,),
        etag=etag,
    )


def encode_blob(lease: Lease) -> bytes:
    """Return a blob's JSON: DurableTask's fields, then those fields of TaskHub that have a value.

    A load of 0 is written, because a missing load means "not known yet".
    """
    ours = {
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
        "Failover": encode_failover(lease.failover),
        "Under": lease.under[0] if lease.under else None,
    }
    content = {
        "PartitionId": lease.queue,
        "Owner": lease.owner,
        "Token": lease.token,
        "Epoch": lease.epoch or 0,
        **lease.extra,
        **{f"TaskHub{name}": value for name, value in ours.items() if value or (name == "Load" and value is not None)},
    }
    return json.dumps(content, separators=(",", ":")).encode()


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _id(value: object) -> str | None:
    """Return the value as a lease id. None: the value cannot be a lease id."""
    try:
        return str(UUID(value)) if isinstance(value, str) else None
    except ValueError:
        return None


def _time(value: object) -> Timestamp | None:
    try:
        return Timestamp.parse(value) if isinstance(value, str) else None
    except InputError:
        return None


def _written(value: Timestamp | None) -> str | None:
    return None if value is None else value.text()
