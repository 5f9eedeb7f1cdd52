"""Find out whether workers of DurableTask for .NET serve the hub. Pure: no I/O, no clock.

A .NET worker judges a lease by its own clock, and a TaskHub worker by how long the lease does not change. Together they
could serve a partition twice. The app lease keeps them apart, but a .NET app may run without an app lease. A lease that
a .NET worker has written has none of TaskHub's columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.hub.partitions.lease import Lease


def owned_by_dotnet(lease: Lease) -> bool:
    """Return whether a lease has an owner that is a .NET worker, alive or dead."""
    return lease.owner is not None and lease.renewals is None


def served_by_taskhub(leases: Iterable[Lease], members: Collection[object]) -> bool:
    """Return whether only TaskHub workers of an older version can hold the app lease under DurableTask's id.

    Older versions used this id, and .NET workers use it.

    :param leases: the leases of all partitions.

    :param members: the workers that have a member row. .NET workers have none.
    """
    owned = [lease for lease in leases if lease.owner is not None]
    return not any(map(owned_by_dotnet, owned)) and (bool(owned) or bool(members))


class DotnetWorkers:
    """Find renewals by .NET workers between two reads of the leases. The times of two machines are not compared."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str | None, Timestamp | None]] = {}

    def find_renewal(self, leases: Iterable[Lease]) -> str | None:
        """Return the name of a .NET worker that has renewed a lease since the last call. None: there is none.

        The renewal times in the leases are compared and not the ETags, because a worker that asks a dead owner for its
        partition changes the ETag.
        """
        found = None
        for lease in leases:
            if not owned_by_dotnet(lease):
                self._seen.pop(lease.queue, None)
                continue
            sign = lease.owner, lease.last_renewal
            if self._seen.setdefault(lease.queue, sign) != sign:
                found = lease.owner
            self._seen[lease.queue] = sign
        return found
