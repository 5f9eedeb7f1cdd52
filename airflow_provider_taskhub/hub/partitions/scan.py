"""Looking at what others do, and taking what is free: one worker's scans.

Decisions are those of ``balance``, ``leases`` and ``signs``; this module only reads, asks them, and carries out the
answer. What a scan does not need to read it does not read; before anything is done, everything is.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.errors import Conflict, HubError, NotFound, StorageError, Unavailable
from airflow_provider_taskhub.hub.model import Member
from airflow_provider_taskhub.hub.partitions.balance import BalancePlan, Seat, plan
from airflow_provider_taskhub.hub.partitions.differences import Differences
from airflow_provider_taskhub.hub.partitions.dotnet_workers import DotnetWorkers, is_theirs
from airflow_provider_taskhub.hub.partitions.held_partitions import HeldPartitions
from airflow_provider_taskhub.hub.partitions.hosting import ScanningWorker
from airflow_provider_taskhub.hub.partitions.lease import Lease, Sightings, standing
from airflow_provider_taskhub.hub.partitions.lease_stores import Leases
from airflow_provider_taskhub.hub.partitions.liveness import PUNCTUAL, LeaseMap
from airflow_provider_taskhub.hub.partitions.members import Members, Roster, participants
from airflow_provider_taskhub.hub.partitions.metrics import LeaseMetrics
from airflow_provider_taskhub.hub.partitions.orders import Controls, Orders, orders
from airflow_provider_taskhub.hub.partitions.placement import Placement, Wanted, unfit
from airflow_provider_taskhub.settings import LeaseTimes

log = structlog.get_logger("taskhub.partitions")

_DEAF = 3
"""Turns in a row whose writes all went without an answer, after which this worker writes no lease for a while."""
_LONGEST = 8
"""Such a while is at most so many times longer than the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What a scan saw. :param silence: seconds without a sign of life, by partition."""

    leases: Sequence[Lease]
    silence: Mapping[int, float]
    roster: Roster
    orders: Orders
    dead: Collection[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedHub:
    """What scans read and write.

    :param partitions: number of partitions of the hub.
    """

    leases: Leases
    partitions: int
    members: Members
    controls: Controls


class Scanner:
    """One worker's scans.

    :param holding: what the worker holds. :param stopping: set when this worker takes nothing more.
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
        self._strangers = DotnetWorkers()
        # where scans are rarer than signs, each sign is as old as a scan, and proves too little
        self._patience = times.renew.total_seconds() + PUNCTUAL if times.scan <= times.renew else 0.0
        self._map = LeaseMap(self._sightings, self._patience)
        self._due = float("inf")
        self._waiting_since: float | None = None
        self._waiting_for: set[str] = set()
        self._unheard = 0
        self._unheard_at = 0.0

    def pace(self, every: float) -> float:
        """Seconds to the next scan: fewer than ``every`` when a lease runs out, or a sign is late, before that.

        Else an orphan waits for two scans.
        """
        return min(every, self._due)

    @property
    def waiting(self) -> bool:
        """Whether partitions are on their way here. Only for a while: whoever should hand over may be stuck."""
        since = self._waiting_since
        return since is not None and self._clock.monotonic() - since <= self._take

    async def scan(self, member: Member) -> None:
        """Look, and do what is to be done.

        :param member: this worker. :raises StorageError: no answer; nothing was done.
        :raises HubError: workers of .NET serve the hub.
        """
        roster, controls, dead = await self._members.watch(), await self._controls.read(), self._dead()
        await self._bury(roster, dead)
        self._differences.compare(roster, member, dead)
        self._live = [other for other in roster.live if other.worker != self._me and other.worker not in dead]
        ordered = orders(controls, self._workers(roster))
        told = None if self._waiting_for else self._told(roster, ordered, dead)
        if told is not None and self._plan(seen := self._seen(told, roster, ordered, dead), member) == BalancePlan():
            owners = {lease.owner for lease in told if lease.owner} - {self._me}
            # a little after a word is late, or it would be looked for once more in vain
            late = [roster.advertised[owner].due + PUNCTUAL for owner in owners]
            # nor does an old word that came late count as a sign
            late += [self._patience - seen.silence[lease.partition] for lease in told if lease.owner in owners]
            self._due = min([self._due, *(left + 0.1 for left in late)])
            return  # all is as it should be, by what its owners say: no lease need be read
        leases = [lease for lease in await self._leases.scan() if lease.partition < self._partitions]
        if (stranger := self._strangers.look(leases)) is not None:
            raise HubError(
                f"the hub is served by {stranger!r}, which renews partitions as DurableTask for .NET does: the workers "
                "of a hub are all TaskHub's or all .NET. Stop the .NET app and start this worker again, or give this "
                "worker another hub (TASKHUB_HUB)"
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
        """What this worker publishes about the needs of its partitions. :param member: this worker."""
        held = self._holding.leases
        return self._placing.say(held, self._services(), member, self._live, self._clock.monotonic())

    def _told(self, roster: Roster, ordered: Orders, dead: Collection[str]) -> Sequence[Lease] | None:
        return self._map.told(
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
        now = self._clock.monotonic()
        silence = {lease.partition: self._sightings.note(lease.queue, lease.life, now) for lease in leases}
        owners = {lease.owner for lease in leases if lease.owner}
        self._takes = {owner: self._take_from(owner, roster) for owner in owners}
        left = (self._takes[lease.owner] - silence[lease.partition] for lease in leases if lease.owner)
        self._due = min((seconds for seconds in left if seconds > 0), default=float("inf")) + self._every / 20
        return _Seen(leases=leases, silence=silence, roster=roster, orders=ordered, dead=dead)

    def _take_from(self, owner: str, roster: Roster) -> float:
        """Seconds of silence after which an owner's leases are taken: no fewer than by its own times.

        Whoever is not listed, a worker of .NET, is judged by ours; whose line is gone by what it said last.
        """
        if owner in roster.paces:
            return max(self._take, roster.paces[owner][1])
        return self._takes.get(owner, self._take)

    def _plan(self, seen: _Seen, member: Member) -> BalancePlan:
        if "orchestrator" not in member.roles:
            return BalancePlan()
        heirs = {_name(worker): worker for worker in sorted(seen.roster.newcomers - set(seen.dead))}
        if self._me in seen.roster.newcomers:
            heirs[_name(self._me)] = self._me
        shared = {_host(worker) for worker in self._workers(seen.roster)} == {_host(self._me)}
        rows = [
            standing(
                lease,
                me=self._me,
                held=lease.partition in self._holding,
                unchanged=seen.silence[lease.partition],
                take=self._takes.get(lease.owner or "", self._take),
                patience=2.5 * self._every,
                dead=seen.dead,
                shared=shared,
                heir=heirs.get(_name(lease.owner or "")),
                back=heirs.get(_name(lease.previous or "")),
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
        """By partition, the workers that cannot run what waits there while another worker with room for it can."""
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
        if lease.owner == self._me:
            return mine.get(lease.partition)
        advertised = roster.advertised.get(lease.owner or "")
        return None if advertised is None else advertised.wanted.get(lease.partition)

    def _deaf(self) -> bool:
        """Whether to leave the leases to those who hear what has become of their writes.

        What this worker claims is then its own by the row, renewed with each claim, and served by nobody. So it pauses
        for longer than others need to see the row silent and what it does not take overdue.
        """
        if self._unheard < _DEAF:
            return False
        pause = (self._take + 5 * self._every) * min(_LONGEST, 1 << (self._unheard - _DEAF))
        return self._clock.monotonic() - self._unheard_at < pause

    def heard(self) -> None:
        """A write of another kind was answered: this worker hears again."""
        self._unheard = 0

    async def _write(self, writes: Sequence[Awaitable[bool]]) -> None:
        """Claims and asks of one turn; one that is cut off has had no answer either."""
        if writes:
            self._unheard, self._unheard_at = self._unheard + 1, self._clock.monotonic()
            if any(await asyncio.gather(*writes)):
                self._unheard = 0

    async def _carry_out(self, decided: BalancePlan, seen: _Seen) -> None:
        if self._stopping.is_set():
            return
        by_number = {lease.partition: lease for lease in seen.leases}
        for number in decided.shed:
            if number in self._holding:
                self._holding.shed(number, self._why(number, seen.orders))
        if self._deaf():
            return
        if self._holding.stalled and self._others(seen.roster):  # what stood still here: only what they leave free
            left = (number for number in decided.take if seen.silence[number] > 5 * self._every)
            decided = BalancePlan(take=tuple(left))
        claims = [self._claim(by_number[number], seen.silence[number]) for number in decided.take]
        for number in decided.ask:
            self._placing.ask(number, self._wanted_by(by_number[number], seen.roster, {}))
        # a .NET owner is not asked: a dead one does not answer, a live one keeps this worker out
        asks = [self._ask(by_number[number]) for number in decided.ask if not is_theirs(by_number[number])]
        await self._write([*claims, *asks])
        if decided.ask:
            self._holding.changed.set()  # their owners see at their next scan that somebody waits, not at a renewal

    def _others(self, roster: Roster) -> bool:
        return any(member.worker != self._me and "orchestrator" in member.roles for member in roster.live)

    def _why(self, partition: int, ordered: Orders) -> str:
        """Why a partition is given up although nobody has asked for it."""
        if partition in ordered.rules.offline:
            return "it was taken offline"
        if self._me in ordered.drained:
            return "this worker is drained"
        return "above the cap" if ordered.rules.allow(partition, self._me) else "prohibited to this worker"

    async def _claim(self, lease: Lease, unchanged: float) -> bool:
        """Whether there was an answer in time."""
        sent = self._clock.monotonic()
        claim = lease.claimed(self._me, self._clock.utc_now(), self._take_after)
        try:
            claimed = await self._leases.write(claim)
        except (Conflict, NotFound):
            log.debug("partition_taken_by_another", partition=lease.partition)  # normal, not an error
            return True
        except StorageError as error:  # never taken as ownership; if it was written, the next scan says so
            log.warning("partition_not_taken", partition=lease.partition, error=str(error))
            return not isinstance(error, Unavailable)
        if self._holding.take_up(claimed, sent) is None:
            return False
        self._placing.take(lease.partition, self._clock.monotonic())
        change = self._change(lease)
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
        return True

    def _change(self, lease: Lease) -> str:
        """In a word, why the partition was free to take."""
        if lease.owner is None:
            return "new" if lease.previous is None else "handed over" if lease.next_owner == self._me else "released"
        if lease.owner == self._me:
            return "resumed"
        return "taken over" if lease.owner in self._dead() else "expired"

    async def _ask(self, lease: Lease) -> bool:
        """Whether there was an answer."""
        try:
            await self._leases.mark(lease.asked(self._me))
        except StorageError as error:
            log.debug("partition_not_asked_for", partition=lease.partition, error=str(error))
            return not isinstance(error, Unavailable)
        self._waiting_for.add(lease.queue)
        self._waiting_since = self._waiting_since or self._clock.monotonic()
        return True

    async def collect(self) -> None:
        """Look at the partitions that are on their way here alone, and take what has been released.

        :raises StorageError: no answer.
        """
        leases = await self._leases.asked(self._me, self._waiting_for)
        if not leases:
            self._waiting_since = None  # the next scan says whether anything is still to come
        released = [lease for lease in leases if lease.owner is None and lease.partition not in self._holding]
        if released and not self._stopping.is_set() and not self._deaf() and await self._may_take():
            await self._write([self._claim(lease, 0.0) for lease in released])

    async def _bury(self, roster: Roster, dead: Collection[str]) -> None:
        """Workers proven dead leave the list at once."""
        for member in (*roster.live, *roster.silent):
            if member.worker in dead:
                await self._members.withdraw(member.worker)


def _name(worker: str) -> str:
    """Of a worker's incarnations: ``name@host``."""
    return worker.rpartition("/")[0]


def _host(worker: str) -> str:
    return _name(worker).rpartition("@")[2]
