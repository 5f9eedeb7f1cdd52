"""The scans of a worker: again and again it reads the member rows and leases of the hub, and takes free partitions.

The functions of ``balance``, ``lease`` and ``liveness`` decide; this module reads, calls them, and carries out their
plan. A scan reads the leases only if the member rows say that something may have changed, or before the worker takes a
partition.

The module has more than 400 lines because reading, planning and writing share what one scan has seen.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.errors import Conflict, HubError, NotFound, StorageError, Unavailable
from airflow_provider_taskhub.hub.model import Failover, Member
from airflow_provider_taskhub.hub.partitions.balance import BalancePlan, Seat, plan
from airflow_provider_taskhub.hub.partitions.differences import Differences
from airflow_provider_taskhub.hub.partitions.dotnet_workers import DotnetWorkers, owned_by_dotnet
from airflow_provider_taskhub.hub.partitions.held_partitions import HeldPartitions
from airflow_provider_taskhub.hub.partitions.hosting import ScanningWorker
from airflow_provider_taskhub.hub.partitions.lease import Lease, Life, Sightings, balance_row
from airflow_provider_taskhub.hub.partitions.lease_stores import Leases
from airflow_provider_taskhub.hub.partitions.liveness import MAX_LATENESS, LeaseMap
from airflow_provider_taskhub.hub.partitions.members import Members, Roster, participants
from airflow_provider_taskhub.hub.partitions.metrics import LeaseMetrics
from airflow_provider_taskhub.hub.partitions.orders import Controls, Orders, orders
from airflow_provider_taskhub.hub.partitions.placement import Placement, Wanted, unfit
from airflow_provider_taskhub.settings import LeaseTimes

log = structlog.get_logger("taskhub.partitions")

TAKEN_OVER, EXPIRED = "taken over", "expired"
"""Why a partition was free to take although its lease names an owner: that is proven dead, or its lease has expired."""
_MAX_UNANSWERED = 3
"""If the store answered no write of a lease in this many scans in a row, this worker writes no lease for a while. A
call of :meth:`Scanner.collect` counts as a scan."""
_LONGEST = 8
"""The longest time without such writes, as a multiple of the shortest one. The time doubles with each further scan
whose writes the store did not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What a scan has read.

    :param silence: for each partition, the seconds without a sign of life of its owner.
    :param dead: full names of workers that are proven dead.
    """

    leases: Sequence[Lease]
    silence: Mapping[int, float]
    roster: Roster
    orders: Orders
    dead: Collection[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedHub:
    """The parts of a hub that scans read and write.

    :param partitions: number of partitions of the hub.
    """

    leases: Leases
    partitions: int
    members: Members
    controls: Controls


class Scanner:
    """Scans the hub for one worker.

    :param holding: the partitions that the worker owns.
    :param stopping: event that is set when this worker stops, and takes no more partitions.
    """

    def __init__(
        self,
        hub: ScannedHub,
        worker: ScanningWorker,
        holding: HeldPartitions,
        *,
        times: LeaseTimes,
        clock: Clock,
        stopping: asyncio.Event,
        metrics: LeaseMetrics,
    ) -> None:
        self._leases, self._partitions, self._members, self._controls = (
            hub.leases,
            hub.partitions,
            hub.members,
            hub.controls,
        )
        self._me, self._dead, self._may_take, self._services = (
            worker.me,
            worker.dead,
            worker.may_take,
            worker.services,
        )
        self._placing = Placement(times.scan.total_seconds())
        self._live: Sequence[Member] = ()
        self._holding = holding
        self._differences = Differences(worker.me, times)
        self._take_after = times.take
        self._take = times.take.total_seconds()
        self._takes: Mapping[str, float] = {}
        self._every = times.scan.total_seconds()
        self._clock = clock
        self._stopping = stopping
        self._metrics = metrics
        self._sightings = Sightings()
        self._dotnet_workers = DotnetWorkers()
        # The patience is how long an owner counts as alive without advertising a new renewal. If scans are less
        # frequent than renewals, the member rows are always too old to show that, so the patience is 0 and each scan
        # reads leases.
        self._patience = times.renew.total_seconds() + MAX_LATENESS if times.scan <= times.renew else 0.0
        self._map = LeaseMap(self._sightings, self._patience)
        self._due = float("inf")
        self._waiting_since: float | None = None
        self._waiting_for: set[str] = set()
        self._renewed: dict[int, tuple[Life, Timestamp]] = {}  # by partition: a sign of life, when the store got it
        self._unanswered = 0
        self._unanswered_at = 0.0

    def pace(self, every: float) -> float:
        """Return the seconds to the next scan.

        This is less than ``every`` if a lease expires or a member row is late before that. Otherwise a partition of a
        dead worker would wait for two scans.

        :param every: seconds between two scans, with jitter.
        """
        return min(every, self._due)

    @property
    def waiting(self) -> bool:
        """Whether this worker waits for partitions that it has asked for.

        The worker stops waiting after the take time, because the owner that should hand over may be blocked.
        """
        since = self._waiting_since
        return since is not None and self._clock.monotonic() - since <= self._take

    async def scan(self, member: Member) -> None:
        """Read what other workers do, and take, ask for, or hand over partitions.

        :param member: this worker's member row.
        :raises StorageError: the store did not answer, and nothing was done.
        :raises HubError: workers of DurableTask for .NET serve the hub.
        """
        roster, controls, dead = await self._members.watch(), await self._controls.read(), self._dead()
        await self._remove_dead(roster, dead)
        self._differences.compare(roster, member, dead)
        self._live = [other for other in roster.live if other.worker != self._me and other.worker not in dead]
        ordered = orders(controls, self._workers(roster))
        advertised = (
            None if self._waiting_for or self._holding.refused else self._advertised_leases(roster, ordered, dead)
        )
        if (
            advertised is not None
            and self._plan(seen := self._seen(advertised, roster, ordered, dead), member) == BalancePlan()
        ):
            owners = {lease.owner for lease in advertised if lease.owner} - {self._me}
            # scan again when an advertisement is so late that it counts as late; an earlier scan would see nothing new
            late = [roster.advertised[owner].due + MAX_LATENESS for owner in owners]
            # scan again also when an owner has advertised no new renewal for the time of the patience
            late += [self._patience - seen.silence[lease.partition] for lease in advertised if lease.owner in owners]
            self._due = min([self._due, *(left + 0.1 for left in late)])
            return  # nothing has changed and the plan is empty, so no lease needs to be read
        leases = [lease for lease in await self._leases.scan() if lease.partition < self._partitions]
        if (dotnet_owner := self._dotnet_workers.find_renewal(leases)) is not None:
            raise HubError(
                f"the hub is served by {dotnet_owner!r}, which renews partitions as DurableTask for .NET does: "
                "the workers of a hub are all TaskHub's or all .NET. Stop the .NET app and start this worker again, or "
                "give this worker another hub (TASKHUB_HUB)"
            )
        self._map.read(leases)
        self._holding.compare(leases)
        self._sightings.keep([lease.queue for lease in leases])
        ordered = orders(controls, self._workers(roster) | {lease.owner for lease in leases if lease.owner})
        seen = self._seen(leases, roster, ordered, dead)
        self._waiting_for = {
            lease.queue for lease in leases if lease.next_owner == self._me and lease.owner not in (None, self._me)
        }
        self._waiting_since = (self._waiting_since or self._clock.monotonic()) if self._waiting_for else None
        if "orchestrator" in member.roles and await self._may_take():
            await self._carry_out(self._plan(seen, member), seen)

    def wanted(self, member: Member) -> dict[int, Wanted]:
        """Return what this worker publishes about the needs of its partitions, by partition number.

        :param member: this worker's member row.
        """
        held = self._holding.leases
        return self._placing.say(held, self._services(), member, self._live, self._clock.monotonic())

    def _advertised_leases(self, roster: Roster, ordered: Orders, dead: Collection[str]) -> Sequence[Lease] | None:
        """Return all leases, as the member rows describe them. None: the leases must be read."""
        return self._map.by_advertisements(
            self._partitions,
            roster.advertised,
            mine=self._holding.leases,
            me=self._me,
            offline=ordered.rules.offline,
            dead=dead,
            now=self._clock.monotonic(),
        )

    def _workers(self, roster: Roster) -> set[str]:
        return {self._me, *(member.worker for member in roster.live)}

    def _seen(self, leases: Sequence[Lease], roster: Roster, ordered: Orders, dead: Collection[str]) -> _Seen:
        """Combine what was read, and compute for how long each owner has been silent."""
        now = self._clock.monotonic()
        silence = {lease.partition: self._sightings.note(lease.queue, lease.life, now) for lease in leases}
        self._renewed |= {
            lease.partition: (lease.life, lease.changed) for lease in leases if lease.changed and not lease.next_owner
        }
        owners = {lease.owner for lease in leases if lease.owner}
        self._takes = {owner: self._take_from(owner, roster) for owner in owners}
        left = (self._takes[lease.owner] - silence[lease.partition] for lease in leases if lease.owner)
        self._due = min((seconds for seconds in left if seconds > 0), default=float("inf")) + self._every / 20
        return _Seen(leases=leases, silence=silence, roster=roster, orders=ordered, dead=dead)

    def _take_from(self, owner: str, roster: Roster) -> float:
        """Return the seconds of silence after which other workers may take a lease of ``owner``.

        This is the larger of this worker's take time and the owner's own. For a worker without a member row it is the
        last known value. For a worker of DurableTask for .NET it is this worker's take time.
        """
        if owner in roster.paces:
            return max(self._take, roster.paces[owner][1])
        return self._takes.get(owner, self._take)

    def _plan(self, seen: _Seen, member: Member) -> BalancePlan:
        """Compute which partitions this worker should take, ask for, or hand over."""
        if "orchestrator" not in member.roles:
            return BalancePlan()
        successors = {_name(worker): worker for worker in sorted(seen.roster.newcomers - set(seen.dead))}
        if self._me in seen.roster.newcomers:
            successors[_name(self._me)] = self._me
        shared = {_host(worker) for worker in self._workers(seen.roster)} == {_host(self._me)}
        rows = [
            balance_row(
                lease,
                me=self._me,
                held=lease.partition in self._holding,
                unchanged=seen.silence[lease.partition],
                take=self._takes.get(lease.owner or "", self._take),
                patience=2.5 * self._every,
                dead=seen.dead,
                shared=shared,
                successor=successors.get(_name(lease.owner or "")),
                back=successors.get(_name(lease.previous or "")),
            )
            for lease in seen.leases
        ]
        free = {row.partition for row in rows if row.free}
        self._metrics.seen(max((seen.silence[number] for number in free - seen.orders.rules.offline), default=0.0))
        members = participants(seen.leases, seen.roster, free, seen.dead) | {self._me}
        weights = {other.worker: other.weight for other in (*seen.roster.live, member)}
        seats = {
            worker: Seat(
                weight=weights.get(worker, 1),
                cap=seen.orders.caps.get(worker),
                newcomer=worker in seen.roster.newcomers and worker != self._me,
            )
            for worker in members - seen.orders.drained
        }
        return plan(rows, seats, self._me, replace(seen.orders.rules, unfit=self._unfit(seen, member, seats)))

    def _unfit(self, seen: _Seen, member: Member, seats: Mapping[str, Seat]) -> dict[int, frozenset[str]]:
        """Return, by partition, the workers that cannot run what the partition's instances need, although another
        worker that may take the partition can.
        """
        mine = self.wanted(member)
        if not mine and not any(advertised.wanted for advertised in seen.roster.advertised.values()):
            return {}
        counts = Counter(lease.owner for lease in seen.leases)
        others = [*(other for other in seen.roster.live if other.worker != self._me), member]
        found = {}
        for lease in seen.leases:
            if lease.owner is None or (wanted := self._wanted_by(lease, seen.roster, mine)) is None:
                continue
            able = []
            for other in others:
                seat = seats.get(other.worker)
                room = seat is not None and (seat.cap is None or counts[other.worker] < seat.cap)
                if (room or other.worker == lease.owner) and seen.orders.rules.allow(lease.partition, other.worker):
                    able.append(other)
            found[lease.partition] = unfit(wanted, able)
        return found

    def _wanted_by(self, lease: Lease, roster: Roster, mine: Mapping[int, Wanted]) -> Wanted | None:
        """Return what the owner of a partition publishes about its needs. None: it publishes nothing."""
        if lease.owner == self._me:
            return mine.get(lease.partition)
        advertised = roster.advertised.get(lease.owner or "")
        return None if advertised is None else advertised.wanted.get(lease.partition)

    def _writes_unanswered(self) -> bool:
        """Return whether this worker writes no leases for now, because the store did not answer its last writes.

        A claim without an answer may have succeeded. Then the lease names this worker, which does not serve the
        partition, and each further claim renews the lease. So this worker pauses long enough for other workers to see
        that the lease is not renewed, and to take the partition.
        """
        if self._unanswered < _MAX_UNANSWERED:
            return False
        pause = (self._take + 5 * self._every) * min(_LONGEST, 1 << (self._unanswered - _MAX_UNANSWERED))
        return self._clock.monotonic() - self._unanswered_at < pause

    def answered(self) -> None:
        """Note that the store answered another write than that of a lease: this worker may write leases again."""
        self._unanswered = 0

    async def _write(self, writes: Sequence[Awaitable[bool]]) -> None:
        """Carry out the lease writes of one scan, and count the scans in a row in which the store answered none.

        If the scan is cancelled, its writes count as unanswered.
        """
        if writes:
            self._unanswered, self._unanswered_at = self._unanswered + 1, self._clock.monotonic()
            if any(await asyncio.gather(*writes)):
                self._unanswered = 0

    async def _carry_out(self, decided: BalancePlan, seen: _Seen) -> None:
        """Carry out a plan: hand over, take, and ask for partitions."""
        if self._stopping.is_set():
            return
        by_number = {lease.partition: lease for lease in seen.leases}
        for number in decided.shed:
            if number in self._holding:
                self._holding.shed(number, self._why(number, seen.orders))
        if self._writes_unanswered():
            return
        # this worker did not poll all its queues, so it takes only partitions that other workers leave free for long
        if self._holding.stalled and self._others(seen.roster):
            left = (number for number in decided.take if seen.silence[number] > 5 * self._every)
            decided = BalancePlan(take=tuple(left))
        claims = [self._claim(by_number[number], seen.silence[number]) for number in decided.take]
        for number in decided.ask:
            self._placing.ask(number, self._wanted_by(by_number[number], seen.roster, {}))
        # a .NET owner is not asked: a dead one does not answer, and beside a live one this worker does not run
        asks = [self._ask(by_number[number]) for number in decided.ask if not owned_by_dotnet(by_number[number])]
        await self._write([*claims, *asks])
        if decided.ask:
            # the member row is written at once, so that the owners see the request at their next scan
            self._holding.changed.set()

    def _others(self, roster: Roster) -> bool:
        """Return whether another live worker can own partitions."""
        return any(member.worker != self._me and "orchestrator" in member.roles for member in roster.live)

    def _why(self, partition: int, ordered: Orders) -> str:
        """Return the reason for which this worker gives up a partition that no worker has asked for."""
        if partition in ordered.rules.offline:
            return "it was taken offline"
        if self._me in ordered.drained:
            return "this worker is drained"
        return "above the cap" if ordered.rules.allow(partition, self._me) else "prohibited to this worker"

    async def _claim(self, lease: Lease, unchanged: float) -> bool:
        """Claim a partition: take it by a conditional write of its lease.

        :param unchanged: seconds since the last sign of life of the former owner.
        :returns: whether the store answered in time.
        """
        sent, now, change = self._clock.monotonic(), self._clock.utc_now(), self._change(lease)
        claim = lease.claimed(self._me, now, self._take_after)
        if change in (TAKEN_OVER, EXPIRED):
            assert lease.owner is not None
            lost = Failover(
                lost=lease.owner,
                taken_by=self._me,
                at=now,
                silent=None,
                proven=change == TAKEN_OVER,
            )
            claim = replace(claim, failover=lost)
        try:
            claimed = await self._leases.write(claim)
        except (Conflict, NotFound):
            # this is normal: another worker was faster
            log.debug("partition_taken_by_another", partition=lease.partition)
            return True
        except StorageError as error:  # the write may have succeeded; the next scan reads the lease
            log.warning("partition_not_taken", partition=lease.partition, error=str(error))
            return not isinstance(error, Unavailable)
        if (tenure := self._holding.take_up(claimed, sent)) is None:
            return False
        self._placing.take(lease.partition, self._clock.monotonic())
        self._metrics.taken(change)
        log.info(
            "partition_owner_changed",
            partition=lease.partition,
            previous=claimed.previous,
            owner=self._me,
            change=change,
            reason=lease.released,
            silent=round(unchanged, 1),
            epoch=claimed.epoch,
        )
        life, renewed = self._renewed.get(lease.partition, (None, None))
        if tenure.failover is not None and renewed is not None and life == lease.life:
            self._holding.note_silence(lease.partition, renewed)
        return True

    def _change(self, lease: Lease) -> str:
        """Return in one or two words why the partition was free to take."""
        if lease.owner is None:
            return "new" if lease.previous is None else "handed over" if lease.next_owner == self._me else "released"
        if lease.owner == self._me:
            return "resumed"
        return TAKEN_OVER if lease.owner in self._dead() else EXPIRED

    async def _ask(self, lease: Lease) -> bool:
        """Ask the owner of a partition to hand it over to this worker.

        :returns: whether the store answered.
        """
        try:
            await self._leases.mark(lease.asked(self._me))
        except StorageError as error:
            log.debug("partition_not_asked_for", partition=lease.partition, error=str(error))
            return not isinstance(error, Unavailable)
        self._waiting_for.add(lease.queue)
        self._waiting_since = self._waiting_since or self._clock.monotonic()
        return True

    async def collect(self) -> None:
        """Read only the partitions that other workers hand over to this worker, and take those that were released.

        :raises StorageError: the store does not answer.
        """
        leases = await self._leases.asked(self._me, self._waiting_for)
        if not leases:
            self._waiting_since = None  # the next scan finds out whether this worker still waits for a partition
        released = [lease for lease in leases if lease.owner is None and lease.partition not in self._holding]
        if released and not self._stopping.is_set() and not self._writes_unanswered() and await self._may_take():
            await self._write([self._claim(lease, 0.0) for lease in released])

    async def _remove_dead(self, roster: Roster, dead: Collection[str]) -> None:
        """Remove the member rows of workers that are proven dead."""
        for member in (*roster.live, *roster.silent):
            if member.worker in dead:
                await self._members.withdraw(member.worker)


def _name(worker: str) -> str:
    """Return the part of a worker's full name that all its incarnations share: ``name@host``."""
    return worker.rpartition("/")[0]


def _host(worker: str) -> str:
    """Return the host in a worker's full name."""
    return _name(worker).rpartition("@")[2]
