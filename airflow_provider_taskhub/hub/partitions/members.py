"""The members of a hub: the workers, and the Airflow triggerers that watch the hub. Each has a row in ``{Hub}Members``.

A member renews its row: it writes the row again and again while it lives. A reader counts a member as alive while the
ETag of the row changes, and as silent if the ETag has not changed for some time. Each reader measures this time by its
own monotonic clock; times of two machines are not compared. A worker writes its row before it takes its first
partition, so that other workers count it. A long-lived reader uses :meth:`Members.watch`. A command that needs an
answer now uses :meth:`Members.prove`, which reads the rows several times.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeVar

from airflow_provider_taskhub.clock import SYSTEM_CLOCK, Clock
from airflow_provider_taskhub.codec import Timestamp, compress, decompress, loads
from airflow_provider_taskhub.errors import ConfigurationError, Conflict, InputError, NotFound
from airflow_provider_taskhub.hub import change_hints
from airflow_provider_taskhub.hub.model import WATCHER, HubNames, Member
from airflow_provider_taskhub.hub.partitions.backlog import decode_backlog, encode_backlog
from airflow_provider_taskhub.hub.partitions.lease import Lease, Sightings, finite
from airflow_provider_taskhub.hub.partitions.liveness import NOTHING, Advertisement, decode_signs, encode_signs
from airflow_provider_taskhub.hub.partitions.placement import decode_wanted, encode_wanted
from airflow_provider_taskhub.hub.unreadable_rows import unreadable
from airflow_provider_taskhub.settings import EMBEDDED_LEASE, LeaseTimes
from airflow_provider_taskhub.storage.primitives import Entity, Property, RowOperation, RowVerb, Store, Transact
from airflow_provider_taskhub.worker_pools import DEFAULT_POOL

T = TypeVar("T")
_PART = 60_000
"""The most bytes of compressed function names in one Binary column. Azure's limit is 64 KiB."""
_MAX_PARTS = 12
"""The most columns with compressed function names in a row: 720,000 bytes. Azure's limit for a row is 1 MiB."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]", re.ASCII)
DELETE_AFTER = 2
"""A reader deletes a row that has not changed for this many take times of its worker. A worker that starts later cannot
know that the row does not change, and would count the dead worker. A worker that was only paused writes its row again.
"""
PATIENCE = 1.5
"""If a worker does not renew its row (in a check of workers) or its lease (in a check of partitions) for this many of
its renewal intervals, the check counts the worker as silent."""
PROOF = 120.0
"""The most seconds that a check waits for renewals, to prove which workers are alive. A limit is needed because each
worker chooses its own renewal interval."""


MOST_MISSED = 1000
"""The most workers of which a reader remembers since when it misses them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """The workers of a hub, as one reader sees their rows. Triggerers are left out.

    :param live: the workers that are alive and not stopping.
    :param leaving: full names of workers that are stopping. They are alive, but take no partitions.
    :param silent: the workers whose rows have not changed for their take time.
    :param newcomers: full names of live or stopping workers that this reader has seen for less than their take time.
    :param advertised: what each worker that is not silent advertises about its partitions, by full name.
    :param paces: by full name of each worker with a row: the seconds between its renewals, and its take time in
        seconds.
    """

    live: tuple[Member, ...] = ()
    leaving: frozenset[str] = frozenset()
    silent: tuple[Member, ...] = ()
    newcomers: frozenset[str] = frozenset()
    advertised: Mapping[str, Advertisement] = field(default_factory=dict)
    paces: Mapping[str, tuple[float, float]] = field(default_factory=dict)


UNWATCHED = 20.0
"""A reader must see no watcher (the part of an Airflow triggerer that reads the hub) for this many seconds before it
says that there is none. A triggerer removes its row when no task waits, and writes it again only some seconds after a
task is deferred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    member: Member
    key: str
    etag: str
    leaving: bool
    advertised: Advertisement
    renew: float
    take: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Functions:
    """The functions that a worker declares, as in :class:`.model.Member`."""

    apps: Mapping[str, str] = field(default_factory=dict)
    orchestrators: tuple[str, ...] = ()
    activities: tuple[str, ...] = ()
    accepts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pools: tuple[str, ...] = (DEFAULT_POOL,)
    pool_of: Mapping[str, str] = field(default_factory=dict)
    memory: int | None = None
    memory_of: Mapping[str, int] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)
    limit_names: Mapping[str, str] = field(default_factory=dict)
    slots: int = 0
    spark_slots: int = 0
    spark_activities: frozenset[str] = frozenset()


_NO_FUNCTIONS = _Functions()


class Members:
    """Write and read the members table.

    :param times: lease times that a worker writes into its row, so that readers know how often the row changes.
    :param clock: the clock of this reader.
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
        self._listings: dict[str, _Listing] = {}
        """The last reading of the table, by the key of the row. A row with the same ETag is not decoded again: workers
        scan more often than they renew their rows."""
        self.watching: tuple[Member, ...] | None = None
        """The live watchers as the last :meth:`watch` or :meth:`prove` found them.

        None: not known, because nothing was read yet, or because :meth:`watch` sees no watcher, but has done so for
        less than :data:`UNWATCHED` seconds. Watchers run no work, so no method of this class returns them."""
        self._unwatched: float | None = None
        self._alive: frozenset[str] | None = None
        self._missed: dict[str, float] = {}

    # methods by which a worker writes its own row

    async def announce(self, member: Member) -> None:
        """Write the row of a worker.

        :raises ConfigurationError: the names of its functions do not fit into a row, even compressed.
        """
        columns: dict[str, Property | None] = {
            "Worker": member.worker,
            "Started": member.started,
            "Roles": ",".join(member.roles),
            "Weight": member.weight,
            **_running_columns(member),
            "Leaving": False,
            "Renewed": self._clock.utc_now(),  # for people only; readers watch the ETag
            "RenewSeconds": self._times.renew.total_seconds(),
            "TakeSeconds": self._times.take.total_seconds(),
            **_names_columns(member),
            **_awaited_column(member),
        }
        await self._write(RowVerb.UPSERT_REPLACE, member.worker, columns)

    async def renew(self, member: Member, *, leaving: bool = False, advertised: Advertisement = NOTHING) -> None:
        """Renew the row of a worker. If the row was deleted, write it again, unless the worker is stopping.

        :param leaving: True if the worker is stopping.
        :param advertised: what the worker advertises about its partitions.
        """
        columns: dict[str, Property | None] = {
            **_running_columns(member),
            "Leaving": leaving,
            "Serving": encode_signs(advertised),
            "Moving": advertised.moving,
            "DueSeconds": advertised.due,
            "Wanted": encode_wanted(advertised.wanted),
            "Backlog": encode_backlog(member.backlog),
            "Renewed": self._clock.utc_now(),
            **_awaited_column(member),
        }
        try:
            await self._write(RowVerb.MERGE, member.worker, columns)
        except NotFound:
            if not leaving:
                await self.announce(member)

    async def withdraw(self, worker: str) -> None:
        """Delete the row of a worker. It is no error if the row does not exist."""
        await self._delete(_key(worker), "*")

    # methods for readers of the table

    async def watch(self) -> Roster:
        """Read the rows, and return the workers. A worker counts as alive until its row has not changed for the take
        time of this worker.

        This method deletes rows that have not changed for :data:`DELETE_AFTER` take times.
        """
        listings = await self._read()
        now = self._clock.monotonic()
        self._sightings.keep([listing.key for listing in listings])
        silence = {item.key: self._sightings.note(item.key, (item.etag, 0), now) for item in listings}
        for item in listings:
            if silence[item.key] > DELETE_AFTER * item.take:
                await self._delete(item.key, item.etag)
        self._known = {item.key: self._known.get(item.key, now) for item in listings}
        watching = [item.member for item in listings if _watches(item.member) and silence[item.key] < item.take]
        self._unwatched = None if watching else now if self._unwatched is None else self._unwatched
        known = self._unwatched is None or now - self._unwatched >= UNWATCHED
        self.watching = tuple(watching) if known else None
        listings = [item for item in listings if not _watches(item.member)]
        fresh = [item for item in listings if silence[item.key] < item.take]
        self._note_alive(item.member.worker for item in fresh)
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
        """Read the rows, and return the workers that are alive and not stopping, as :meth:`watch` finds them."""
        return (await self.watch()).live

    async def listed(self) -> frozenset[str]:
        """Read the full names of all workers and triggerers that have a row, whether they are alive or not."""
        return frozenset(item.member.worker for item in await self._read())

    async def pace(self) -> Mapping[str, tuple[float, float]]:
        """Read, for each worker with a row, the seconds between its renewals and its take time in seconds."""
        return _paces(item for item in await self._read() if not _watches(item.member))

    async def prove(self) -> tuple[Member, ...]:
        """Return all workers. ``alive`` says whether the row of the worker has changed while this method watched.

        The rows are read again and again until each has changed: at most for :data:`PATIENCE` renewal intervals of the
        slowest worker, and at most for :data:`PROOF` seconds. A worker whose :data:`PATIENCE` intervals are longer than
        that counts as alive. A worker whose row was deleted meanwhile is left out.
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
            alive |= first.keys() - latest.keys()  # a deleted row cannot change any more: do not wait
        alive |= {key for key, item in first.items() if PATIENCE * item.renew > wait}
        self.watching = tuple(item.member for key, item in latest.items() if _watches(item.member) and key in alive)
        workers = {key: item.member for key, item in latest.items() if not _watches(item.member)}
        self._note_alive(member.worker for key, member in workers.items() if key in alive)
        return tuple(replace(member, alive=key in alive) for key, member in workers.items())

    def gone(self, worker: str, *, patience: float = 0.0) -> bool:
        """Return whether a worker was not alive at the last :meth:`watch` or :meth:`prove`. A worker that stops is
        alive. Before the first reading no worker is gone.

        :param worker: full name of the worker.
        :param patience: for how many seconds this reader must have missed the worker. A long-lived reader needs some:
            a worker that has just started can run an activity before this reader reads its row.
        """
        if self._alive is None or worker in self._alive:
            return False
        now = self._clock.monotonic()
        return now - self._missed.setdefault(worker, now) >= patience

    def _note_alive(self, workers: Iterable[str]) -> None:
        self._alive = alive = frozenset(workers)
        if len(self._missed) > MOST_MISSED:
            self._missed.clear()
        self._missed = {worker: since for worker, since in self._missed.items() if worker not in alive}

    # methods that read and write rows of the table

    async def _read(self) -> list[_Listing]:
        found = [listing async for row in self._store.rows(self._table) if (listing := self._decoded(row)) is not None]
        self._listings = {listing.key: listing for listing in found}
        return found

    def _decoded(self, row: Entity) -> _Listing | None:
        """Return the member in a row. None: the row names no worker.

        If the names of its functions cannot be read, the member is returned without them: it may be alive and own
        partitions.
        """
        known = self._listings.get(row.row_key)
        if known is not None and known.etag == row.etag:
            return known
        functions = _NO_FUNCTIONS
        try:
            functions = _functions(_names(row.properties))
        except InputError as error:
            unreadable(self._table, row.row_key, f"its names cannot be read: {error}")
        listing = _decode(row, functions)
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
            return  # the row was deleted, or its worker has renewed it


def _watches(member: Member) -> bool:
    return WATCHER in member.roles


def _paces(listings: Iterable[_Listing]) -> dict[str, tuple[float, float]]:
    return {item.member.worker: (item.renew, item.take) for item in listings}


def _key(worker: str) -> str:
    """Return the key of a worker's row. The incarnation in the full name makes the key unique."""
    return _UNSAFE.sub("-", worker)[-400:]


def _awaited_column(member: Member) -> dict[str, Property | None]:
    return {"Awaited": change_hints.encode(member.awaited)} if _watches(member) else {}


def _running_columns(member: Member) -> dict[str, Property | None]:
    """Return the columns that say what runs in a worker now."""
    columns: dict[str, Property | None] = {"Running": member.running}
    if member.memory_of:
        columns["MemoryUsed"] = float(member.memory_used)
    if member.spark_activities:
        columns["SparkRunning"] = member.spark_running
    if member.taken_over:
        columns["TakenOver"] = json.dumps(dict(member.taken_over))
    return columns


def _names_columns(member: Member) -> dict[str, Property | None]:
    """Return the columns with the names of a worker's functions: JSON if it fits into one column, else compressed
    parts.
    """
    names: dict[str, object] = {
        "apps": dict(member.apps),
        "orchestrators": member.orchestrators,
        "activities": member.activities,
    }
    if member.accepts:
        names["accepts"] = {name: list(versions) for name, versions in member.accepts.items()}
    if member.pools != (DEFAULT_POOL,):
        names["pools"] = member.pools
    if member.pool_of:
        names["pool_of"] = dict(member.pool_of)
    if member.memory_of:
        names["memory"], names["memory_of"] = member.memory, dict(member.memory_of)
    if member.limits:
        names["limits"] = dict(member.limits)
    if member.limit_names:
        names["limit_names"] = dict(member.limit_names)
    if member.slots:
        names["slots"] = member.slots
    if member.spark_activities:
        names["spark"], names["spark_slots"] = sorted(member.spark_activities), member.spark_slots
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


def _taken_over(value: object) -> dict[str, int]:
    """Return the numbers of a column; none if the column is missing or damaged, because it is only for people."""
    try:
        found = json.loads(value) if isinstance(value, str) else {}
        return {str(worker): int(count) for worker, count in found.items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _decode(entity: Entity, functions: _Functions) -> _Listing | None:
    """Return the member in a row. None: the row names no worker."""
    columns = entity.properties
    worker = columns.get("Worker")
    if not isinstance(worker, str):
        return None
    started = columns.get("Started")
    member = Member(
        worker=worker,
        started=started if isinstance(started, Timestamp) else Timestamp(0),
        roles=tuple(role for role in str(columns.get("Roles") or "").split(",") if role),
        apps=functions.apps,
        orchestrators=functions.orchestrators,
        activities=functions.activities,
        running=int(_number(columns.get("Running"), 0)),
        weight=max(1, int(_number(columns.get("Weight"), 1))),
        accepts=functions.accepts,
        awaited=change_hints.decode(columns.get("Awaited")),
        backlog=decode_backlog(columns.get("Backlog")),
        pools=functions.pools,
        pool_of=functions.pool_of,
        memory=functions.memory,
        memory_of=functions.memory_of,
        limits=functions.limits,
        memory_used=int(_number(columns.get("MemoryUsed"), 0)),
        limit_names=functions.limit_names,
        slots=functions.slots,
        spark_slots=functions.spark_slots,
        spark_activities=functions.spark_activities,
        spark_running=int(_number(columns.get("SparkRunning"), 0)),
        taken_over=_taken_over(columns.get("TakenOver")),
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


def _names(columns: Mapping[str, Property | None]) -> str | bytes:
    """Return the names of a worker's functions as its columns have them: JSON, or compressed JSON."""
    text = columns.get("Names")
    if isinstance(text, str):
        return text
    parts: list[bytes] = []
    while isinstance(part := columns.get(f"Names{len(parts)}"), bytes):
        parts.append(part)
    return b"".join(parts) or "{}"


@lru_cache(maxsize=64)
def _functions(names: str | bytes) -> _Functions:
    """Decode the names of a worker's functions. Cached: each renewal writes the row again, but not with other names.

    :param names: JSON, or compressed JSON.
    :raises InputError: the value is not a JSON object, plain or compressed.
    """
    text = names if isinstance(names, str) else decompress(names)
    found = loads(text, what="what stands there")
    if not isinstance(found, dict):
        raise InputError(f"the value is not a JSON object: {text[:60]!r}")
    return _Functions(
        apps={str(app): str(version) for app, version in _of(found, "apps", dict).items()},
        orchestrators=tuple(map(str, _of(found, "orchestrators", list))),
        activities=tuple(map(str, _of(found, "activities", list))),
        accepts={
            str(name): tuple(map(str, versions))
            for name, versions in _of(found, "accepts", dict).items()
            if isinstance(versions, list)
        },
        pools=tuple(map(str, _of(found, "pools", list))) or (DEFAULT_POOL,),
        pool_of={str(name): str(pool) for name, pool in _of(found, "pool_of", dict).items()},
        memory=_of(found, "memory", int) or None,
        memory_of={str(name): need for name, need in _of(found, "memory_of", dict).items() if isinstance(need, int)},
        limits={str(name): str(number) for name, number in _of(found, "limits", dict).items()},
        limit_names={str(name): str(limit) for name, limit in _of(found, "limit_names", dict).items()},
        slots=_of(found, "slots", int),
        spark_slots=_of(found, "spark_slots", int),
        spark_activities=frozenset(map(str, _of(found, "spark", list))),
    )


def _of(names: Mapping[str, Any], key: str, kind: type[T]) -> T:
    found = names.get(key)
    return found if isinstance(found, kind) else kind()


def _number(value: Property | None, default: float) -> float:
    found = finite(value)
    return default if found is None else found


def participants(
    leases: Iterable[Lease], roster: Roster, free: Collection[int], dead: Collection[str]
) -> frozenset[str]:
    """Return the full names of the workers among which the partitions are divided.

    These are the live workers with a member row and the role ``orchestrator``, and the workers without a member row
    that renew a lease. A worker is left out if it is stopping, is proven dead, or renews none of its leases.

    :param free: numbers of the partitions that may be taken, because no live owner serves them.
    :param dead: full names of workers that are proven dead by their lock files.
    """
    owners = {lease.owner for lease in leases if lease.owner and lease.partition not in free}
    gone = {lease.owner for lease in leases if lease.owner and lease.partition in free} - owners
    listed = {member.worker for member in roster.live if "orchestrator" in member.roles}
    leaving = {lease.owner for lease in leases if lease.owner and lease.draining and not lease.next_owner}
    return frozenset((listed | owners) - gone - leaving - roster.leaving - set(dead))
