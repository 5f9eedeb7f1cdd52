"""Whether workers of DurableTask for .NET serve the hub. Pure.

A .NET worker judges a lease by its own clock, a TaskHub worker by how long its row does not change. Together they would
serve a partition twice. The app lease keeps them apart, but a .NET app may run without it. A row that a .NET worker has
written has none of our columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.hub.partitions.lease import Lease


def is_theirs(lease: Lease) -> bool:
    """Whether the owner of the lease, dead or alive, is not a TaskHub worker."""
    return lease.owner is not None and lease.renewals is None


def served_by_taskhub(leases: Iterable[Lease], members: Collection[object]) -> bool:
    """Whether the app lease under DurableTask's id can only be held by TaskHub workers of an older version.

    :param members: the listed workers: only TaskHub workers list themselves.
    """
    owned = [lease for lease in leases if lease.owner is not None]
    return not any(map(is_theirs, owned)) and (bool(owned) or bool(members))


class DotnetWorkers:
    """Finds renewals by .NET workers, from one look to the next: no times of two machines are compared."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str | None, Timestamp | None]] = {}

    def look(self, leases: Iterable[Lease]) -> str | None:
        """The owner of a lease that is not a TaskHub worker and has renewed since the last look; None: there is none.

        The renewal time is compared, not the ETag: a worker that asks a dead owner for its partition changes the ETag.
        """
        found = None
        for lease in leases:
            if not is_theirs(lease):
                self._seen.pop(lease.queue, None)
                continue
            sign = lease.owner, lease.last_renewal
            if self._seen.setdefault(lease.queue, sign) != sign:
                found = lease.owner
            self._seen[lease.queue] = sign
        return found
