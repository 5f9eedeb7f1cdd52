"""A partition's lease as a value: DurableTask's columns, what each worker may write, and when a partition is free.

Pure: no I/O, no clock. A lease is valid while its owner keeps changing it. Each reader measures this by its own
monotonic clock (:class:`Sightings`). ``ExpiresAt`` and the other times are written for people and for .NET, and are
never used for a decision.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import lru_cache
from typing import TypeAlias

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.hub.model import Failover, HubNames, Service
from airflow_provider_taskhub.hub.partitions.balance import Row
from airflow_provider_taskhub.storage.primitives import Entity, Int64, Property

EPOCH = "TaskHubEpoch"
"""The column with the number of owners that the partition has had. Only TaskHub has this column. A .NET worker that
replaces the row removes it; then only a number for display is lost."""
RENEWALS = "TaskHubRenewals"
"""The column that counts how often owners have taken or renewed the lease. When another worker asks for the partition,
the number stays the same, because such a write proves nothing about the owner."""
LOAD = "TaskHubLoad"
POLLED = "TaskHubPolled"
PREVIOUS = "TaskHubPrevious"
RELEASED = "TaskHubReleased"
KICKED = "TaskHubKicked"
FAILOVER = "TaskHubFailover"
_COLUMNS = frozenset({"CurrentOwner", "NextOwner", "OwnedSince", "LastRenewal", "ExpiresAt", "IsDraining"})
_OURS = frozenset({EPOCH, RENEWALS, LOAD, POLLED, PREVIOUS, RELEASED, KICKED, FAILOVER})
NOBODY = "kicked"
"""The value of ``NextOwner`` in a lease that an administrator has kicked. No worker has this name, so any worker that
is allowed may take the partition."""
NO_SERVICE = Service()
"""The state of a partition about which the host says nothing."""
Life: TypeAlias = tuple[str, int]
"""A text that identifies a tenure, and the number of signs of life that its owner has given."""
_QUEUE = re.compile(r".*-control-(\d{2,})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The lease of a partition: a row of ``{Hub}Partitions`` or a blob.

    :param queue: name of the partition's control queue.
    :param owner: full name of the worker that owns the partition. None: the partition is free.
    :param next_owner: full name of the worker that has asked for the partition. None: no worker has asked.
    :param owned_since: when the owner took the partition, by the owner's clock.
    :param last_renewal: when the owner last renewed the lease, by the owner's clock.
    :param expires_at: when the lease ends, by the owner's clock. Only .NET workers use it.
    :param draining: whether the owner is handing the partition over.
    :param epoch: number of owners so far, for display only. None: no TaskHub worker has written the lease.
    :param renewals: number of the owner's last renewal. Each renewal that is sent has a higher number than the one
        before, also after a failed one.
    :param load: messages in a second, as the owner last published it. None: the owner did not know it.
    :param polled: when the owner last polled the queue, by the owner's clock. For people.
    :param previous: full name of the former owner. None: no former owner is known.
    :param released: why the former owner released the partition. None after another worker has taken it.
    :param kicked_by: which administrator last made an owner hand the partition over, when and why.
    :param failover: the last time the owner was lost. It stays when the partition is handed over.
    :param changed: when the row that was read was last changed, by the clock of the store; None: the lease is in a
        blob, or it was updated by an advertisement.
    :param token: only for a lease in a blob: the id under which the owner leases the blob.
    :param under: only for a lease in a blob: other ids under which the blob may still be leased. The last writer may
        have died before it leased the blob under ``token`` or released it.
    :param extra: columns that this package does not know. They are written back unchanged.
    :param etag: the ETag of the row or blob.
    """

    queue: str
    owner: str | None = None
    next_owner: str | None = None
    owned_since: Timestamp | None = None
    last_renewal: Timestamp | None = None
    expires_at: Timestamp | None = None
    draining: bool = False
    epoch: int | None = None
    renewals: int | None = None
    load: float | None = None
    polled: Timestamp | None = None
    previous: str | None = None
    released: str | None = None
    kicked_by: str | None = None
    failover: Failover | None = None
    changed: Timestamp | None = None
    token: str | None = None
    under: tuple[str, ...] = ()
    extra: Mapping[str, Property | None] = field(default_factory=dict)
    etag: str = ""

    @property
    def partition(self) -> int:
        """The number of the partition."""
        number = _number(self.queue)
        assert number is not None, self.queue  # decode_lease accepts only names with a number
        return number

    @property
    def life(self) -> Life:
        """A value that changes with each sign of life of the owner, and with nothing else.

        The ETag is not enough: it also changes when another worker asks for the partition, and a dead owner would then
        look alive. Leases of DurableTask for .NET have no count of renewals, so only their ETag is used.
        """
        if self.renewals is None or self.epoch is None:
            return self.etag, 0
        return f"{self.owner or ''}/{self.epoch}", self.renewals

    # methods that return what owners, other workers and administrators write

    def claimed(self, me: str, now: Timestamp, take: timedelta) -> Lease:
        """Return the lease as ``me`` writes it to take the partition.

        :param now: the wall clock, for display.
        :param take: for ``ExpiresAt``, which .NET workers read.
        """
        return replace(
            self,
            owner=me,
            next_owner=None,
            owned_since=now,
            last_renewal=now,
            expires_at=now + take,
            draining=False,
            epoch=(self.epoch or 0) + 1,
            renewals=(self.renewals or 0) + 1,
            load=None,
            polled=None,
            previous=self.owner or self.previous,
            released=None,
            token=None,
            under=self.under if self.token is None else (self.token, *self.under),
        )

    def renewed(
        self, now: Timestamp, take: timedelta, *, draining: bool, service: Service = NO_SERVICE, sent: int = 0
    ) -> Lease:
        """Return the lease as its owner writes it to renew it. ``next_owner`` stays if another worker has asked.

        :param now: the wall clock, for display.
        :param take: for ``ExpiresAt``, which .NET workers read.
        :param sent: number of the last renewal that was sent.
        """
        return replace(
            self,
            last_renewal=now,
            expires_at=now + take,
            draining=draining,
            renewals=max(self.renewals or 0, sent) + 1,
            load=service.load,
            polled=now + timedelta(seconds=-service.unpolled),
            failover=_counted(self.failover, service.failover),
        )

    def asked(self, me: str) -> Lease:
        """Return the lease as ``me`` writes it to ask the owner for the partition. Only ``NextOwner`` changes."""
        return replace(self, next_owner=me)

    def kicked(self, by: str, now: Timestamp, reason: str = "") -> Lease:
        """Return the lease as an administrator writes it to kick the owner: to make it hand the partition over."""
        return replace(self, next_owner=NOBODY, kicked_by=f"by {by} at {now.text()}{reason and f': {reason}'}")

    def given_up(self, reason: str = "") -> Lease:
        """Return the lease as its owner writes it to release the partition. Its times do not change."""
        return replace(self, owner=None, draining=False, previous=self.owner, released=reason or None)

    def same_tenure(self, other: Lease) -> bool:
        """Return whether both values belong to the same tenure: no worker has taken the partition between the two
        writes.

        The compared columns change neither by renewals nor when a worker asks for the partition. An epoch (the number
        of owners so far) is compared only if both values have one, because a .NET worker removes it.
        """
        if None not in (self.epoch, other.epoch) and self.epoch != other.epoch:
            return False
        return self.owner == other.owner and self.owned_since == other.owned_since


def decode_lease(entity: Entity, names: HubNames) -> Lease | None:
    """Return the lease in a row of the table. None: the row is not that of a partition."""
    if entity.partition_key != "" or not is_control_queue(entity.row_key, names):
        return None
    columns = entity.properties
    return Lease(
        queue=entity.row_key,
        owner=_text(columns.get("CurrentOwner")),
        next_owner=_text(columns.get("NextOwner")),
        owned_since=_time(columns.get("OwnedSince")),
        last_renewal=_time(columns.get("LastRenewal")),
        expires_at=_time(columns.get("ExpiresAt")),
        draining=columns.get("IsDraining") is True,
        epoch=_count(columns.get(EPOCH)),
        renewals=_count(columns.get(RENEWALS)),
        load=finite(columns.get(LOAD)),
        polled=_time(columns.get(POLLED)),
        previous=_text(columns.get(PREVIOUS)),
        released=_text(columns.get(RELEASED)),
        kicked_by=_text(columns.get(KICKED)),
        failover=decode_failover(columns.get(FAILOVER)),
        changed=entity.timestamp,
        extra={name: value for name, value in columns.items() if name not in _COLUMNS and name not in _OURS},
        etag=entity.etag,
    )


def encode_lease(lease: Lease) -> Entity:
    """Return the row of a lease. Columns with None disappear when the row is replaced, as DurableTask does it."""
    return Entity(
        partition_key="",
        row_key=lease.queue,
        properties={
            "CurrentOwner": lease.owner,
            "NextOwner": lease.next_owner,
            "OwnedSince": lease.owned_since,
            "LastRenewal": lease.last_renewal,
            "ExpiresAt": lease.expires_at,
            "IsDraining": lease.draining,
            EPOCH: None if lease.epoch is None else Int64(lease.epoch),
            RENEWALS: None if lease.renewals is None else Int64(lease.renewals),
            LOAD: lease.load,
            POLLED: lease.polled,
            PREVIOUS: lease.previous,
            RELEASED: lease.released,
            KICKED: lease.kicked_by,
            FAILOVER: encode_failover(lease.failover),
            **lease.extra,
        },
        etag=lease.etag,
    )


def decode_failover(value: object) -> Failover | None:
    """Return the failover in a column; None if there is none, or if the column is damaged."""
    try:
        found = json.loads(value) if isinstance(value, str) else None
        if not found:
            return None
        known = {name: found[name] for name in Failover.__dataclass_fields__ if name in found}
        return Failover(**{**known, "at": Timestamp.parse(found["at"])})
    except (ValueError, TypeError, KeyError):  # it is only for people
        return None


def _counted(stored: Failover | None, counted: Failover | None) -> Failover | None:
    """Return the stored loss with the numbers that its taker has counted."""
    if stored is None or counted is None or (stored.at, stored.taken_by) != (counted.at, counted.taken_by):
        return stored
    return replace(counted, silent=stored.silent)


def encode_failover(failover: Failover | None) -> str | None:
    if failover is None:
        return None
    return json.dumps(
        {
            "lost": failover.lost,
            "taken_by": failover.taken_by,
            "at": failover.at.text(),
            "silent": failover.silent,
            "proven": failover.proven,
            "messages": failover.messages,
            "instances": failover.instances,
            "attempts": failover.attempts,
        },
        separators=(",", ":"),
    )


def is_control_queue(name: str, names: HubNames) -> bool:
    """Return whether a name is that of one of the hub's control queues."""
    number = _number(name)
    return number is not None and name == names.control(number)


@lru_cache(maxsize=4096)
def _number(queue: str) -> int | None:
    """Return the number at the end of a queue's name. Cached, because each scan needs it several times."""
    match = _QUEUE.fullmatch(queue)
    return None if match is None else int(match.group(1))


def _text(value: Property | None) -> str | None:
    return value if isinstance(value, str) and value else None


def _count(value: Property | None) -> int | None:
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None


def finite(value: object) -> float | None:
    """Return the value as a float if it is a finite number. Otherwise None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    with suppress(OverflowError):
        return number if math.isfinite(number := float(value)) else None
    return None


def _time(value: Property | None) -> Timestamp | None:
    return value if isinstance(value, Timestamp) else None


def newer(life: Life, seen: Life) -> bool:
    """Return whether ``life`` is a newer sign of life than ``seen``. In the same tenure, the higher number is newer."""
    return life[0] != seen[0] or life[1] > seen[1]


class Sightings:
    """Remembers for each row how long a reader has seen no new sign of life in it, by the reader's own monotonic clock.

    The time begins when an *answer* first showed the row in this state. The owner sent its write before that answer. So
    "unchanged for the take time" always comes later than the owner's own "older than the give-up time".
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Life, float]] = {}

    def note(self, key: str, life: Life, now: float) -> float:
        """Note what a row shows now. Return the seconds since its last new sign of life, 0 when it is seen for the
        first time.

        :param key: key of the row.
        :param now: monotonic time.
        """
        seen = self._seen.get(key)
        if seen is None or newer(life, seen[0]):
            self._seen[key] = (life, now)
            return 0.0
        return now - seen[1]

    def keep(self, keys: Collection[str]) -> None:
        """Forget the rows that do not exist any more.

        :param keys: keys of the rows that exist.
        """
        for key in self._seen.keys() - set(keys):
            del self._seen[key]


def balance_row(
    lease: Lease,
    *,
    me: str,
    held: bool,
    unchanged: float,
    take: float,
    patience: float,
    dead: Collection[str],
    shared: bool = False,
    successor: str | None = None,
    back: str | None = None,
) -> Row:
    """Return a lease as the balance sees it, for one worker.

    A partition is free in four cases: it has no owner; its owner is proven dead by its lock file; its owner was silent
    for ``take``; or the lease names this worker, which does not serve the partition. The last case happens if the
    answer to a claim was lost, or if this worker gave the partition up because its lease was too old.

    :param me: full name of this worker.
    :param held: whether this worker serves the partition now.
    :param unchanged: seconds since the last sign of life of the owner.
    :param take: seconds of silence after which the partition is free: the owner's own take time or this worker's,
        whichever is longer.
    :param patience: after this many further seconds any worker may take a free partition, even if the plan gives it to
        another one. The other worker may be unable to take it, or to prove the owner's death.
    :param dead: full names of workers that are proven dead.
    :param shared: all other workers run on this machine, so that they can prove a death too. Then each takes only its
        own share.
    :param successor: a new incarnation of the owner. If the owner is proven dead, the successor takes its partitions.
        None: there is no successor.
    :param back: a new incarnation of the former owner, which gets the partition back if it has too few. None: there is
        none.
    """
    if held:
        return Row(partition=lease.partition, owner=me, next_owner=lease.next_owner, load=lease.load)
    if lease.owner == me:
        return Row(partition=lease.partition, next_owner=me, free=True, load=lease.load)
    silent = unchanged >= take
    proven = lease.owner in dead
    inherited = proven and lease.next_owner is None and successor is not None
    free = lease.owner is None or proven or silent
    grace = patience if lease.owner is None or inherited or (proven and shared) else 0.0 if proven else take + patience
    return Row(
        partition=lease.partition,
        owner=None if free else lease.owner,
        next_owner=None if silent and lease.owner is None else successor if inherited else lease.next_owner,
        free=free,
        silent=silent and lease.owner is not None,
        overdue=free and unchanged >= grace,
        back=back,
        load=lease.load,
    )
