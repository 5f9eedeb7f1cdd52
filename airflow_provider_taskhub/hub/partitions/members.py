"""Who is there: one row of ``{Hub}Members`` per worker, renewed while it lives.

A member is alive while its row's ETag changes, as each reader sees it by its own monotonic clock; no times are
compared. A worker is listed before it takes its first partition, so that others count it. Long-lived readers use
:meth:`Members.watch`; a command that wants an answer now uses :meth:`Members.prove`, which reads twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from airflow_provider_taskhub.clock import SYSTEM_CLOCK, Clock
from airflow_provider_taskhub.codec import Timestamp, compress, decompress, loads
from airflow_provider_taskhub.errors import ConfigurationError, Conflict, InputError, NotFound
from airflow_provider_taskhub.hub.model import WATCHER, HubNames, Member
from airflow_provider_taskhub.hub.partitions.lease import Lease, Sightings, finite
from airflow_provider_taskhub.hub.partitions.liveness import NOTHING, Advertisement, decode_signs, encode_signs
from airflow_provider_taskhub.hub.partitions.placement import decode_wanted, encode_wanted
from airflow_provider_taskhub.hub.unreadable_rows import unreadable
from airflow_provider_taskhub.settings import EMBEDDED_LEASE, LeaseTimes
from airflow_provider_taskhub.storage.primitives import Entity, Property, RowOperation, RowVerb, Store, Transact

T = TypeVar("T")
_PART = 60_000
"""Bytes of one Binary column of names; Azure's limit is 64 KiB."""
_MAX_PARTS = 12
"""Names of a worker, compressed: 720,000 bytes, within Azure's 1 MiB a row."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]", re.ASCII)
FORGET = 2
"""A row silent for so many of its own take times is removed by whoever watches: a newcomer, who cannot know that it is
silent, would count it. A worker that was only paused lists itself anew."""
PATIENCE = 1.5
"""Renewal intervals of a worker without a renewal, after which it counts as silent."""
PROOF = 120.0
"""Seconds that a proof takes at most: how seldom a worker renews is what it says itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """The members as one watcher sees them.

    :param live: those that take part. :param leaving: workers that are stopping: alive, but take nothing any more.
    :param silent: the rest. :param newcomers: those that this watcher has seen for less than their take time.
    :param advertised: what those that are not silent say of their partitions.
    :param paces: seconds between renewals, and of the take time, as each worker listed says them.
    """

    live: tuple[Member, ...] = ()
    leaving: frozenset[str] = frozenset()
    silent: tuple[Member, ...] = ()
    newcomers: frozenset[str] = frozenset()
    advertised: Mapping[str, Advertisement] = field(default_factory=dict)
    paces: Mapping[str, tuple[float, float]] = field(default_factory=dict)


UNWATCHED = 20.0
"""Seconds for which a reader sees no watcher before it says that there is none: a triggerer without waits leaves, and
one comes seconds after a task is deferred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    member: Member
    key: str
    etag: str
    leaving: bool
    advertised: Advertisement
    renew: float
    take: float


class Members:
    """The members table, as a worker writes it and as anybody reads it.

    :param times: advertised in an announced row, so that readers know when to expect a change.
    :param clock: of this reader.
    """

    def __init__(
        self, store: Store, names: HubNames, *, times: LeaseTimes = EMBEDDED_LEASE, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._store = store
        self._table = names.members
        self._times = times
        self._clock = clock
        self._sightings = Sightings()
        self._known: dict[str, float] = {}
        self.watching: tuple[Member, ...] | None = None
        """Live watchers, as of the last :meth:`watch` or :meth:`prove`. None: not known, before the first, and while
        :meth:`watch` has seen none for less than :data:`UNWATCHED`. They run nothing, so no other method of this class
        returns them."""
        self._unwatched: float | None = None

    # a worker's own row

    async def announce(self, member: Member) -> None:
        """List a worker, or list it anew.

        :raises ConfigurationError: when its names do not fit into a row even compressed.
        """
        columns: dict[str, Property | None] = {
            "Worker": member.worker,
            "Started": member.started,
            "Roles": ",".join(member.roles),
            "Weight": member.weight,
            "Running": member.running,
            "Leaving": False,
            "Renewed": self._clock.utc_now(),  # for people; every renewal changes the ETag by changing anything
            "RenewSeconds": self._times.renew.total_seconds(),
            "TakeSeconds": self._times.take.total_seconds(),
            **_names_columns(member),
        }
        await self._write(RowVerb.UPSERT_REPLACE, member.worker, columns)

    async def renew(self, member: Member, *, leaving: bool = False, advertised: Advertisement = NOTHING) -> None:
        """Show that a worker is alive, and its partitions; a row that somebody removed meanwhile is made again."""
        columns: dict[str, Property | None] = {
            "Running": member.running,
            "Leaving": leaving,
            "Serving": encode_signs(advertised),
            "Moving": advertised.moving,
            "DueSeconds": advertised.due,
            "Wanted": encode_wanted(advertised.wanted),
            "Renewed": self._clock.utc_now(),
        }
        try:
            await self._write(RowVerb.MERGE, member.worker, columns)
        except NotFound:
            if not leaving:
                await self.announce(member)

    async def withdraw(self, worker: str) -> None:
        """Remove a worker's row; one that is gone is no error."""
        await self._delete(_key(worker), "*")

    # readers

    async def watch(self) -> Roster:
        """The members as this long-lived reader sees them: a row is believed until silent for its own take time."""
        listings = await self._read()
        now = self._clock.monotonic()
        self._sightings.keep([listing.key for listing in listings])
        silence = {item.key: self._sightings.note(item.key, (item.etag, 0), now) for item in listings}
        for item in listings:
            if silence[item.key] > FORGET * item.take:
                await self._delete(item.key, item.etag)
        self._known = {item.key: self._known.get(item.key, now) for item in listings}
        watching = [item.member for item in listings if _watches(item.member) and silence[item.key] < item.take]
        self._unwatched = None if watching else now if self._unwatched is None else self._unwatched
        known = self._unwatched is None or now - self._unwatched >= UNWATCHED
        self.watching = tuple(watching) if known else None
        listings = [item for item in listings if not _watches(item.member)]
        fresh = [item for item in listings if silence[item.key] < item.take]
        return Roster(
            live=tuple(item.member for item in fresh if not item.leaving),
            leaving=frozenset(item.member.worker for item in fresh if item.leaving),
            silent=tuple(replace(item.member, alive=False) for item in listings if item not in fresh),
            newcomers=frozenset(item.member.worker for item in fresh if now - self._known[item.key] < item.take),
            advertised={
                item.member.worker: replace(item.advertised, due=item.advertised.due - silence[item.key])
                for item in fresh
            },
            paces=_paces(listings),
        )

    async def live(self) -> tuple[Member, ...]:
        """Those of :meth:`watch` that take part."""
        return (await self.watch()).live

    async def pace(self) -> Mapping[str, tuple[float, float]]:
        """Seconds between renewals, and of the take time, of each worker listed."""
        return _paces(item for item in await self._read() if not _watches(item.member))

    async def prove(self) -> tuple[Member, ...]:
        """All workers, with ``alive`` as proven now: a row must change within :data:`PATIENCE` of its own intervals.

        Polls until every row has changed or had its chance; at most :data:`PROOF` seconds: a row that needs longer than
        that is not proven dead, and counts as alive.
        """
        began = self._clock.monotonic()
        first = {item.key: item for item in await self._read()}
        wait = min(PATIENCE * max((item.renew for item in first.values()), default=0.0), PROOF)
        alive: set[str] = set()
        latest = first
        while first.keys() - alive and (left := began + wait - self._clock.monotonic()) > 0:
            await self._clock.sleep(min(left, max(0.1, wait / 10)))
            latest = {item.key: item for item in await self._read()}
            alive |= {key for key, item in latest.items() if key not in first or item.etag != first[key].etag}
            alive |= first.keys() - latest.keys()  # withdrawn: nothing left to wait for
        alive |= {key for key, item in first.items() if PATIENCE * item.renew > wait}
        self.watching = tuple(item.member for key, item in latest.items() if _watches(item.member) and key in alive)
        workers = {key: item.member for key, item in latest.items() if not _watches(item.member)}
        return tuple(replace(member, alive=key in alive) for key, member in workers.items())

    # rows

    async def _read(self) -> list[_Listing]:
        return [listing async for row in self._store.rows(self._table) if (listing := self._decoded(row)) is not None]

    def _decoded(self, row: Entity) -> _Listing | None:
        """A worker whose names cannot be read is listed without names: it is alive, and holds partitions."""
        names: Mapping[str, Any] = {}
        try:
            names = _names(row.properties)
        except InputError as error:
            unreadable(self._table, row.row_key, f"its names cannot be read: {error}")
        listing = _decode(row, names)
        if listing is None:
            unreadable(self._table, row.row_key, "it names no worker")
        return listing

    async def _write(self, verb: RowVerb, worker: str, columns: Mapping[str, Property | None]) -> None:
        entity = Entity(partition_key="member", row_key=_key(worker), properties=columns)
        etag = "*" if verb is RowVerb.MERGE else None
        row = RowOperation(verb=verb, entity=entity, etag=etag)
        await self._store.execute(Transact(table=self._table, rows=(row,)))

    async def _delete(self, key: str, etag: str) -> None:
        row = RowOperation(verb=RowVerb.DELETE, entity=Entity(partition_key="member", row_key=key), etag=etag)
        try:
            await self._store.execute(Transact(table=self._table, rows=(row,)))
        except (NotFound, Conflict):
            return  # gone already, or alive after all


def _watches(member: Member) -> bool:
    return WATCHER in member.roles


def _paces(listings: Iterable[_Listing]) -> dict[str, tuple[float, float]]:
    return {item.member.worker: (item.renew, item.take) for item in listings}


def _key(worker: str) -> str:
    """A row key for ``name@host/incarnation``; the incarnation alone makes it unique."""
    return _UNSAFE.sub("-", worker)[-400:]


def _names_columns(member: Member) -> dict[str, Property | None]:
    """What a worker can do: plain JSON where it fits into one column, else compressed and split."""
    names: dict[str, object] = {
        "apps": dict(member.apps),
        "orchestrators": member.orchestrators,
        "activities": member.activities,
    }
    if member.accepts:
        names["accepts"] = {name: list(versions) for name, versions in member.accepts.items()}
    text = json.dumps(names, separators=(",", ":"))
    if len(text) <= _PART // 2:
        return {"Names": text}
    data = compress(text)
    parts = [data[start : start + _PART] for start in range(0, len(data), _PART)]
    if len(parts) > _MAX_PARTS:
        raise ConfigurationError(
            f"worker {member.worker} declares {len(member.orchestrators)} orchestrators and {len(member.activities)} "
            f"activities: {len(data)} bytes of names, at most {_PART * _MAX_PARTS}. Split the app or shorten the names."
        )
    return {f"Names{index}": part for index, part in enumerate(parts)}


def _decode(entity: Entity, names: Mapping[str, Any]) -> _Listing | None:
    """A member from its row; None if the row is not a member's. :param names: its functions, as the row has them."""
    columns = entity.properties
    worker = columns.get("Worker")
    if not isinstance(worker, str):
        return None
    started = columns.get("Started")
    member = Member(
        worker=worker,
        started=started if isinstance(started, Timestamp) else Timestamp(0),
        roles=tuple(role for role in str(columns.get("Roles") or "").split(",") if role),
        apps={str(app): str(version) for app, version in _of(names, "apps", dict).items()},
        orchestrators=tuple(map(str, _of(names, "orchestrators", list))),
        activities=tuple(map(str, _of(names, "activities", list))),
        running=int(_number(columns.get("Running"), 0)),
        weight=max(1, int(_number(columns.get("Weight"), 1))),
        accepts={
            str(name): tuple(map(str, versions))
            for name, versions in _of(names, "accepts", dict).items()
            if isinstance(versions, list)
        },
    )
    return _Listing(
        member=member,
        key=entity.row_key,
        etag=entity.etag,
        leaving=columns.get("Leaving") is True,
        advertised=Advertisement(
            signs=decode_signs(columns.get("Serving")),
            moving=columns.get("Moving") is True,
            due=_number(columns.get("DueSeconds"), 0.0),
            wanted=decode_wanted(columns.get("Wanted")),
        ),
        renew=max(0.0, _number(columns.get("RenewSeconds"), 10.0)),
        take=max(0.0, _number(columns.get("TakeSeconds"), 30.0)),
    )


def _names(columns: Mapping[str, Property | None]) -> dict[str, Any]:
    """:raises InputError: when it is not the gzip of a JSON object."""
    text = columns.get("Names")
    if not isinstance(text, str):
        parts: list[bytes] = []
        while isinstance(part := columns.get(f"Names{len(parts)}"), bytes):
            parts.append(part)
        text = decompress(b"".join(parts)) if parts else "{}"
    found = loads(text, what="what stands there")
    if not isinstance(found, dict):
        raise InputError(f"the value is not a JSON object: {text[:60]!r}")
    return found


def _of(names: Mapping[str, Any], key: str, kind: type[T]) -> T:
    found = names.get(key)
    return found if isinstance(found, kind) else kind()


def _number(value: Property | None, default: float) -> float:
    found = finite(value)
    return default if found is None else found


def participants(
    leases: Iterable[Lease], roster: Roster, free: Collection[int], dead: Collection[str]
) -> frozenset[str]:
    """Workers that count for fair shares: those that list themselves, and those that renew a lease without a row.

    Workers that leave, that are proven dead, or whose leases have all fallen silent do not count.

    :param free: partitions that may be taken.
    """
    owners = {lease.owner for lease in leases if lease.owner and lease.partition not in free}
    gone = {lease.owner for lease in leases if lease.owner and lease.partition in free} - owners
    listed = {member.worker for member in roster.live if "orchestrator" in member.roles}
    leaving = {lease.owner for lease in leases if lease.owner and lease.draining and not lease.next_owner}
    return frozenset((listed | owners) - gone - leaving - roster.leaving - set(dead))
