"""Partition leases as values: DurableTask's row, what each actor writes into it, and what may be done with it.

Pure: no I/O, no clock. A lease lives while its owner keeps changing its row, timed by each watcher on its own monotonic
clock (:class:`Sightings`). ``ExpiresAt`` and the other times are written for people and .NET, never read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import lru_cache
from typing import TypeAlias

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.hub.model import HubNames, Service
from airflow_provider_taskhub.hub.partitions.balance import Row
from airflow_provider_taskhub.storage.primitives import Entity, Int64, Property

EPOCH = "TaskHubEpoch"
"""Our own column; .NET drops it with its next Replace, which costs a number for display and nothing else."""
RENEWALS = "TaskHubRenewals"
"""Counts what the owner wrote: tells its renewals from the asks of others, which prove nothing about it."""
LOAD = "TaskHubLoad"
POLLED = "TaskHubPolled"
PREVIOUS = "TaskHubPrevious"
RELEASED = "TaskHubReleased"
KICKED = "TaskHubKicked"
_COLUMNS = frozenset({"CurrentOwner", "NextOwner", "OwnedSince", "LastRenewal", "ExpiresAt", "IsDraining"})
_OURS = frozenset({EPOCH, RENEWALS, LOAD, POLLED, PREVIOUS, RELEASED, KICKED})
NOBODY = "kicked"
"""Asks for a partition that was kicked: no worker, so whoever is allowed may take it."""
NO_SERVICE = Service()
Life: TypeAlias = tuple[str, int]
"""A tenure, and how many signs of life its owner has given in it."""
_QUEUE = re.compile(r".*-control-(\d{2,})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A row of ``{Hub}Partitions``.

    :param owner: who serves; None: free. :param next_owner: who asked for it.
    :param epoch: count of takes, for display only; None in a row that never had our column.
    :param renewals: number of its owner's last renewal; each that is sent has a higher one, also after one that failed.
    :param load: as its owner published it last; None: it did not know it yet.
    :param polled: when its owner last asked the queue for messages, by the owner's clock, for people.
    :param previous: who had it before; with ``released`` why it was given up, until somebody takes it.
    :param kicked: who made an owner hand it over last, when and why.
    :param token: of a lease that is a blob: the lease id that its owner keeps it under.
    :param under: of such a one: other ids that its blob may still be leased under, since whoever wrote it last may have
        died before it was leased under ``token``, or released.
    :param extra: columns that are not ours to know; they survive our writes.
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
    token: str | None = None
    under: tuple[str, ...] = ()
    extra: Mapping[str, Property | None] = field(default_factory=dict)
    etag: str = ""

    @property
    def partition(self) -> int:
        number = _number(self.queue)
        assert number is not None, self.queue  # decode_lease lets no other name in
        return number

    @property
    def life(self) -> Life:
        """What changes with every sign of life of the owner, and with nothing else.

        The ETag changes too when somebody asks for the partition: a dead owner that is asked for would then be waited
        for all over again. Rows of .NET have no count of renewals, and only their ETag.
        """
        if self.renewals is None or self.epoch is None:
            return self.etag, 0
        return f"{self.owner or ''}/{self.epoch}", self.renewals

    # what its actors write

    def claimed(self, me: str, now: Timestamp, take: timedelta) -> Lease:
        """Taken by ``me``. :param now: the wall clock, for display. :param take: for ``ExpiresAt``, for .NET."""
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
        """Kept by its owner; whoever asked for it stays noted. :param sent: number of the last renewal sent."""
        return replace(
            self,
            last_renewal=now,
            expires_at=now + take,
            draining=draining,
            renewals=max(self.renewals or 0, sent) + 1,
            load=service.load,
            polled=now + timedelta(seconds=-service.unpolled),
        )

    def asked(self, me: str) -> Lease:
        """Wanted by ``me``: a mark changes ``NextOwner`` alone."""
        return replace(self, next_owner=me)

    def kicked(self, by: str, now: Timestamp, reason: str = "") -> Lease:
        """Wanted by an administrator, for anybody."""
        return replace(self, next_owner=NOBODY, kicked_by=f"by {by} at {now.text()}{reason and f': {reason}'}")

    def given_up(self, reason: str = "") -> Lease:
        """Released by its owner; the times stay, and so does whoever asked for it."""
        return replace(self, owner=None, draining=False, previous=self.owner, released=reason or None)

    def same_tenure(self, other: Lease) -> bool:
        """Whether both are of one stay with one owner: asks and renewals change none of these columns.

        An epoch that a .NET writer dropped proves nothing.
        """
        if None not in (self.epoch, other.epoch) and self.epoch != other.epoch:
            return False
        return self.owner == other.owner and self.owned_since == other.owned_since


def decode_lease(entity: Entity, names: HubNames) -> Lease | None:
    """A row as a lease; absent columns have defaults. None: a row that is no partition's."""
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
        extra={name: value for name, value in columns.items() if name not in _COLUMNS and name not in _OURS},
        etag=entity.etag,
    )


def encode_lease(lease: Lease) -> Entity:
    """The whole row; None columns vanish with a Replace, as in the original."""
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
            **lease.extra,
        },
        etag=lease.etag,
    )


def is_control_queue(name: str, names: HubNames) -> bool:
    """Whether a queue is one of the hub's numbered control queues."""
    number = _number(name)
    return number is not None and name == names.control(number)


@lru_cache(maxsize=4096)
def _number(queue: str) -> int | None:
    """A partition's number is asked for several times in each scan of up to 1,024."""
    match = _QUEUE.fullmatch(queue)
    return None if match is None else int(match.group(1))


def _text(value: Property | None) -> str | None:
    return value if isinstance(value, str) and value else None


def _count(value: Property | None) -> int | None:
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None


def finite(value: object) -> float | None:
    """A finite number; None for everything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    with suppress(OverflowError):
        return number if math.isfinite(number := float(value)) else None
    return None


def _time(value: Property | None) -> Timestamp | None:
    return value if isinstance(value, Timestamp) else None


def newer(life: Life, seen: Life) -> bool:
    """Whether ``life`` is a newer sign than ``seen``: a lower number of the same tenure is an older one."""
    return life[0] != seen[0] or life[1] > seen[1]


class Sightings:
    """Since when a watcher has seen no sign of life of each row's writer, by its own monotonic clock.

    Time runs from the moment an *answer* first showed the row so: the write that made it was sent before that, so
    "unchanged for take" is always later than the writer's own "older than give-up".
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Life, float]] = {}

    def note(self, key: str, life: Life, now: float) -> float:
        """Seconds for which there has been no newer sign; 0 at first sight."""
        seen = self._seen.get(key)
        if seen is None or newer(life, seen[0]):
            self._seen[key] = (life, now)
            return 0.0
        return now - seen[1]

    def keep(self, keys: Collection[str]) -> None:
        """Forget rows that are no longer there."""
        for key in self._seen.keys() - set(keys):
            del self._seen[key]


def standing(
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
    """What a row means for the balance, as one worker sees it.

    Free is a row without an owner, of an owner proven dead by its lock file, of one silent for
    ``take``, or one that names this very incarnation although it serves nothing of it: an own claim whose answer
    was lost, or a lease that it gave up by age.

    :param held: whether this worker serves it now. :param unchanged: seconds since its last sign of life.
    :param take: seconds, the owner's own or the watcher's, whichever are more.
    :param patience: a row free for so long is anybody's: whoever should have taken it did not. So is one whose owner's
        death others may be unable to prove.
    :param shared: all others run on this machine and can prove a death too: each waits for its own share.
    :param back: who has just started under the name of who had it before.
    :param successor: who has just started under the owner's name: what the dead one served is for it to take.
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
