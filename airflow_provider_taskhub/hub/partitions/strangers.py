"""Whether workers that are not TaskHub's, DurableTask's for .NET, serve the hub: pure (spec §2.6, §2.7).

They judge leases by their clocks, ours by silence, so both together would serve a partition twice. The app lease keeps
them apart, but a .NET app may do without it. Their rows have none of our columns: a .NET writer drops them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.hub.partitions.leases import Lease


def is_theirs(lease: Lease) -> bool:
    """Whether its owner, dead or alive, is no TaskHub worker."""
    return lease.owner is not None and lease.renewals is None


def served_by_taskhub(leases: Iterable[Lease], members: Collection[object]) -> bool:
    """Whether only TaskHub workers can be what holds the app lease under DurableTask's id, as older versions do.

    :param members: the workers that are listed: only TaskHub's list themselves.
    """
    owned = [lease for lease in leases if lease.owner is not None]
    return not any(map(is_theirs, owned)) and (bool(owned) or bool(members))


class Strangers:
    """Watches for renewals by others, over one worker's looks: no times of two machines are compared."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str | None, Timestamp | None]] = {}

    def look(self, leases: Iterable[Lease]) -> str | None:
        """An owner that is no TaskHub worker and has renewed since the last look; None: there is none.

        By what the row says and not by its ETag: whoever asks a dead owner for its partition changes that, too.
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
