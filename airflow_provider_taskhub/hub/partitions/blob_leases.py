"""Leases as leased blobs: ``{hub}-leases/default/{queue}``, DurableTask's older store.

The blob's content is DurableTask's JSON with members of our own. The content is the lease: every write of it is one
request under the blob's ETag, refused unless the blob is as it was read, whoever writes. So whoever loses an answer, or
dies, leaves the lease as it was or as it meant it, never in between; an ask or a kick touches nothing else.

That the service leases the blob too, under an id that is published as ``Token``, is for .NET and for people. It follows
the content: a take brings a new id (a theft changes the old one), a renewal renews it, a release ends it. Whoever dies
before that step locks nobody out: others may write under any id that the content names, and under none once the blob is
not leased. Rejected: the id as the condition, changed with every write as by a thief: an asker that died between the
change and the content then took the partition from its live owner, since nobody knew the new id.

What that costs: one request for an ask or a kick; two for a renewal, a take or a release (put, lease); one more where
the blob's lease ran out, two more for a theft while it has not; a listing and a request for each lease where all are
looked at, which nobody does while nothing moves. Rows of a table cost one request each, and a listing one for every
1,000 of them.

Owns reading and conditionally writing the blobs. Decides nothing.
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
from airflow_provider_taskhub.hub.partitions.lease import Lease, finite, is_control_queue
from airflow_provider_taskhub.hub.unreadable_rows import unreadable
from airflow_provider_taskhub.storage.primitives import Blob, PutBlob, Store

_FOLDER = "default/"
_AT_ONCE = 16
"""Blobs read at a time by a scan."""
_SECONDS = 15, 60
"""Azure's bounds of a blob lease."""
_KNOWN = ("PartitionId", "Owner", "Token", "Epoch")


class BlobLeases:
    """Leases as blobs. A lease's ``etag`` is its blob's.

    :param take: how long the service keeps a blob leased without a renewal, within its bounds of 15 to 60 s.
    """

    def __init__(self, store: Store, names: HubNames, take: timedelta = timedelta(seconds=30)) -> None:
        self._store = store
        self._names = names
        self._seconds = round(min(max(take.total_seconds(), _SECONDS[0]), _SECONDS[1]))

    async def scan(self) -> tuple[Lease, ...]:
        """Every partition's lease, by partition: one listing, and one request for each."""
        listed = await self._store.list_blobs(self._names.leases, _FOLDER)
        queues = [blob.name.removeprefix(_FOLDER) for blob in listed]
        return await self._read_all(queue for queue in queues if is_control_queue(queue, self._names))

    async def asked(self, me: str, queues: Collection[str]) -> tuple[Lease, ...]:
        """A request for each."""
        return tuple(lease for lease in await self._read_all(queues) if lease.next_owner == me)

    async def _read_all(self, queues: Iterable[str]) -> tuple[Lease, ...]:
        found = await gather_bounded(self.read, queues, limit=_AT_ONCE)
        return tuple(sorted((lease for lease in found if lease is not None), key=lambda lease: lease.partition))

    async def read(self, queue: str) -> Lease | None:
        """One lease, or None when its blob is gone."""
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
        """Write a lease as its owner, if it is still as its ``etag`` says, and lease or release its blob accordingly.

        :raises Conflict: somebody changed it. :raises NotFound: its blob is gone.
        :raises Unavailable: no answer: it may have been written.
        """
        token = None if lease.owner is None else lease.token or str(uuid4())
        written, under = await self._put(lease, token)
        with suppress(LeaseLost, NotFound):  # the next write finds out
            await self._follow(_FOLDER + lease.queue, token, under)
        return written

    async def mark(self, lease: Lease) -> Lease:
        """Write what others want of a lease; as :meth:`write`, but its blob stays leased, or not, as it is."""
        return (await self._put(lease, lease.token))[0]

    async def _put(self, lease: Lease, token: str | None) -> tuple[Lease, str | None]:
        """Write the content under whichever id the blob is leased. Returns that, too; None: it is not leased."""
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
        if await self.read(lease.queue) is None:  # which the service tells from a changed one by no code
            raise NotFound(f"the lease of {lease.queue} is gone")
        raise Conflict(f"the lease of {lease.queue} was changed by another")

    async def _follow(self, name: str, token: str | None, under: str | None) -> None:
        """Have the blob leased as its content says. A change does not extend a lease: it is renewed at once."""
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
        """Make the lease of a partition, born given up. False: it was there."""
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
    """Parse a blob's content. :raises InputError: when it is not a JSON object."""
    try:
        found = json.loads(blob.data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"its content is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise InputError(f"its content is JSON, but no object: {blob.data[:60]!r}")
    return found


def decode_blob(queue: str, columns: Mapping[str, Any], etag: str) -> Lease:
    """A blob's content as a lease. DurableTask's has four members; a member that cannot be read counts as absent."""
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
        extra={name: value for name, value in columns.items() if name not in _KNOWN and not name.startswith("TaskHub")},
        token=_id(columns.get("Token")),
        under=() if (under := _id(ours.get("Under"))) is None else (under,),
        etag=etag,
    )


def encode_blob(lease: Lease) -> bytes:
    """DurableTask's members, then ours where they say something: a load of 0 does, since none is one not known yet."""
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
    """A lease id; what is none, nothing is leased under."""
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
