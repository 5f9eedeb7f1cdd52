"""The partitions that a worker holds: renew, watch their ages, hand over, give up, and tell the host.

Takes nothing and decides nothing about shares: that is ``scan``'s. No error ends anything but the tenure it is about.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import structlog

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.errors import Conflict, NotFound, StorageError
from airflow_provider_taskhub.hub.model import Service
from airflow_provider_taskhub.hub.partitions.bounded import Tasks, attempt, within
from airflow_provider_taskhub.hub.partitions.hosting import PartitionHost
from airflow_provider_taskhub.hub.partitions.lease import NO_SERVICE, NOBODY, Lease
from airflow_provider_taskhub.hub.partitions.lease_stores import Leases
from airflow_provider_taskhub.hub.partitions.liveness import Sign
from airflow_provider_taskhub.hub.partitions.metrics import LeaseMetrics
from airflow_provider_taskhub.hub.partitions.tenure import LeaseTenure
from airflow_provider_taskhub.settings import LeaseTimes
from airflow_provider_taskhub.telemetry import Outages

log = structlog.get_logger("taskhub.partitions")

DRAIN = timedelta(seconds=30)
"""Longest a handover may take; then the partition is given up with whatever still runs, whose commits are refused."""
_WRITES = 3
"""Tries of one renewal or release against changes by others."""
_LONGEST = 16
"""After one partition after the other has stood still here, this worker holds back so many times longer, at most."""


@dataclass(slots=True, eq=False)
class HeldPartition:
    """A tenure and what its owner needs to write its row: one writer at a time.

    :ivar sent: number of the last renewal that was sent, whatever came of it.
    """

    tenure: LeaseTenure
    over: asyncio.Event
    """Drained, or ended in any other way."""
    sent: int
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    drain: asyncio.Task[None] | None = None


class HeldPartitions:
    """What one worker holds. Methods belong to the event loop that made it, except :meth:`expire`, :attr:`tenures`.

    :param host: the worker that serves what is held.
    :param deadline: seconds that one attempt at a row may take. :param began: called when a tenure has begun.
    """

    def __init__(
        self,
        leases: Leases,
        host: PartitionHost,
        *,
        times: LeaseTimes,
        deadline: float,
        clock: Clock,
        metrics: LeaseMetrics,
        began: Callable[[], None],
    ) -> None:
        self._leases = leases
        self._me = host.name
        self._take = times.take
        self._give_up = times.give_up.total_seconds()
        self._deadline = deadline
        self._clock = clock
        self._listener = host.listener
        self._stuck = host.stuck.total_seconds()
        self._pause = 0.0
        self._paused_until = float("-inf")
        self._metrics = metrics
        self._began = began
        self._tasks = Tasks(clock)
        self._outages = Outages(log, clock.monotonic)
        self._held: dict[int, HeldPartition] = {}
        self._snapshot: tuple[HeldPartition, ...] = ()
        self._services: Mapping[int, Service] = {}
        self.changed = asyncio.Event()
        """Set when something was taken or let go: others go by what this worker says that it holds."""

    def __contains__(self, partition: int) -> bool:
        return partition in self._held

    def __iter__(self) -> Iterator[HeldPartition]:
        return iter(self._snapshot)

    @property
    def tenures(self) -> tuple[LeaseTenure, ...]:
        """What is held now; from any thread."""
        return tuple(held.tenure for held in self._snapshot if not held.tenure.ended)

    @property
    def leases(self) -> Mapping[int, Lease]:
        """The rows of what is held, as they were last written or read."""
        return {tenure.partition: tenure.lease for tenure in self.tenures}

    def signs(self) -> dict[int, Sign]:
        """What is held, for the others: what its rows say, so that all plan by the same."""
        return {
            held.tenure.partition: Sign(held.tenure.epoch, held.sent, held.tenure.lease.load)
            for held in self._snapshot
            if not held.tenure.ended
        }

    @property
    def stalled(self) -> bool:
        """Whether to leave partitions to others: what was served here stood still, and would again."""
        return self._clock.monotonic() < self._paused_until

    @property
    def draining(self) -> bool:
        return any(held.tenure.draining for held in self._snapshot)

    def take_up(self, lease: Lease, sent: float) -> LeaseTenure | None:
        """Serve what was claimed by a write sent at ``sent``. None: its answer came too late to act on."""
        over = asyncio.Event()
        tenure = LeaseTenure(
            lease=lease,
            sent=sent,
            give_up=self._give_up,
            clock=self._clock,
            on_drained=lambda: self._tasks.post(over.set),
        )
        if tenure.left() <= 0:
            return None
        self._tell(self._listener.taken, tenure)
        self._held[lease.partition] = HeldPartition(tenure, over, lease.renewals or 0)
        self._snapshot = tuple(self._held.values())
        self._began()
        self.changed.set()
        return tenure

    # --- ages -----------------------------------------------------------------------------------------------------

    def expire(self) -> float:
        """End every tenure past its give-up age. From any thread; does no I/O.

        :returns: seconds after which it must be called again, unless a tenure begins before.
        """
        soonest = self._give_up
        for held in self._snapshot:
            left = held.tenure.left()
            if left <= 0:
                self.lose(held, f"no renewal was confirmed for {self._give_up:g} s")
            elif not held.tenure.ended:
                soonest = min(soonest, left)
        return max(0.01, soonest)

    # --- renewals: in parallel, under a deadline --------------------------------------------------------------------

    def attempts(self, services: Mapping[int, Service]) -> list[Coroutine[Any, Any, bool]]:
        """One try to renew each. Whatever fails keeps its lease until give-up.

        :param services: what the host says of its partitions, published with their leases.
        """
        self._services = services
        self._look_for_stuck()
        return [self._attempt("partition_not_renewed", self._renew, held) for held in self]

    async def _attempt(self, event: str, write: Callable[[HeldPartition], object], held: HeldPartition) -> bool:
        where = {"partition": held.tenure.partition, "left": round(held.tenure.left(), 1)}
        return await attempt(event, partial(write, held), self._deadline, self._outages, **where)  # type: ignore[arg-type]

    async def _renew(self, held: HeldPartition) -> None:
        async with held.lock:
            for _ in range(_WRITES):
                if held.tenure.ended:
                    return
                lease, sent = self._renewed(held), self._clock.monotonic()
                held.sent = lease.renewals or 0
                try:
                    held.tenure.renewed(await self._leases.write(lease), sent)
                    self._metrics.renewed(self._clock.monotonic() - sent)
                except Conflict:
                    await self._reread(held)
                except NotFound:
                    self.lose(held, "its row was deleted")
                else:
                    return
            raise Conflict(f"the lease of partition {held.tenure.partition} keeps being changed by others")

    def _renewed(self, held: HeldPartition) -> Lease:
        return held.tenure.lease.renewed(
            self._clock.utc_now(),
            self._take,
            draining=held.tenure.draining,
            service=self._service(held),
            sent=held.sent,
        )

    def _service(self, held: HeldPartition) -> Service:
        return self._services.get(held.tenure.partition, NO_SERVICE)

    def _look_for_stuck(self) -> None:
        """What is renewed and not served is worse than lost: nobody else may take it."""
        for held in self:
            unpolled = self._service(held).unpolled
            if unpolled > self._stuck and not held.tenure.draining:
                log.error("partition_not_polled", partition=held.tenure.partition, seconds=round(unpolled, 1))
                self._metrics.stuck += 1
                self._stall()
                self._begin_drain(held, f"its queue was not polled for {unpolled:.0f} s", DRAIN)

    def _stall(self) -> None:
        """Hold back for as long as it takes to see that a partition stands still, and twice as long the next time."""
        now = self._clock.monotonic()
        if now < self._paused_until:
            return
        again = now - self._paused_until < 3 * self._pause
        self._pause = min(2 * self._pause, _LONGEST * self._stuck) if again else self._stuck
        self._paused_until = now + self._pause

    # --- what others have done to a row -----------------------------------------------------------------------------

    async def _reread(self, held: HeldPartition) -> None:
        """Somebody changed the row: an ask, an own write whose answer was lost, or the end.

        The age stays that of the last confirmed renewal; what was read only tells whose the row is.
        """
        tenure = held.tenure
        current = await self._leases.read(tenure.queue)
        if current is None:
            self.lose(held, "its row was deleted")
        elif not current.same_tenure(tenure.lease):
            self.lose(held, f"it was taken by {current.owner}" if current.owner else "it was taken away")
        else:
            tenure.lease = current
            self._heed(held, current)

    def compare(self, leases: Iterable[Lease]) -> None:
        """What all rows say of what is held: asked for, taken, or gone."""
        found = {lease.partition: lease for lease in leases}
        for held in self:
            lease = found.get(held.tenure.partition)
            if held.tenure.ended:
                continue
            if lease is None:
                self.lose(held, "its row was deleted")
            elif lease.owner not in (None, self._me):
                self.lose(held, f"it was taken by {lease.owner}")
            elif lease.same_tenure(held.tenure.lease):
                self._heed(held, lease)

    def _heed(self, held: HeldPartition, lease: Lease) -> None:
        if lease.next_owner == NOBODY:
            self._begin_drain(held, f"kicked {lease.kicked_by or ''}".rstrip(), DRAIN)
        elif lease.next_owner not in (None, self._me):
            self._begin_drain(held, f"handed over to {lease.next_owner}", DRAIN)

    # --- handover ---------------------------------------------------------------------------------------------------

    def shed(self, partition: int, reason: str) -> None:
        """Hand one over, to whoever may have it."""
        self._begin_drain(self._held[partition], reason, DRAIN)

    def shed_all(self, reason: str, limit: timedelta = DRAIN) -> list[asyncio.Task[None]]:
        """Hand everything over. The drains, under way."""
        for held in self:
            self._begin_drain(held, reason, limit)
        return [held.drain for held in self if held.drain is not None]

    def _begin_drain(self, held: HeldPartition, reason: str, limit: timedelta) -> None:
        if held.tenure.ask():
            log.info("partition_asked", partition=held.tenure.partition, reason=reason)
            self._tell(self._listener.asked, held.tenure)
            held.drain = self._tasks.spawn(self._drain(held, reason, limit.total_seconds()))

    async def _drain(self, held: HeldPartition, reason: str, limit: float) -> None:
        """Asked → draining → given up, bounded. The tenure ends before its row is released: never two readers."""
        await self._attempt("partition_not_marked", self._renew, held)
        if not await within(self._clock, held.over, limit):
            log.warning("partition_not_drained", partition=held.tenure.partition, seconds=limit)
        self.lose(held, reason)
        await self._release(held, reason)  # also after a loss by age: if the row is still ours, others need not wait
        self._forget(held)

    async def _release(self, held: HeldPartition, reason: str) -> None:
        """Give the row up. A failure makes others wait for the take time, nothing else."""
        tenure = held.tenure
        for _ in range(_WRITES):
            if await self._attempt("partition_not_released", partial(self._write_release, reason=reason), held):
                return
            with suppress(StorageError, TimeoutError):
                async with asyncio.timeout(self._deadline):
                    current = await self._leases.read(tenure.queue)
                if current is None or not current.same_tenure(tenure.lease):
                    return
                tenure.lease = current

    async def _write_release(self, held: HeldPartition, reason: str) -> None:
        async with held.lock:
            await self._leases.write(held.tenure.lease.given_up(reason))

    # --- the end ----------------------------------------------------------------------------------------------------

    def lose(self, held: HeldPartition, reason: str) -> None:
        """End a tenure and report it, once; from any thread."""
        if not held.tenure.end(reason):
            return
        self._metrics.lost += 1
        log.info("partition_lost", partition=held.tenure.partition, reason=reason, epoch=held.tenure.epoch)
        self._tell(self._listener.lost, held.tenure, reason)
        self._tasks.post(held.over.set)
        if held.drain is None:  # a drain forgets it once the row is released
            self._tasks.post(lambda: self._forget(held))

    def _forget(self, held: HeldPartition) -> None:
        if self._held.get(held.tenure.partition) is held:
            del self._held[held.tenure.partition]
            self._snapshot = tuple(self._held.values())
            self.changed.set()

    def _tell(self, callback: Callable[..., None], *arguments: object) -> None:
        """A listener's error is its own: it is reported and ends nothing."""
        try:
            callback(*arguments)
        except Exception:
            log.exception("listener_failed", callback=callback.__name__)

    async def end(self) -> None:
        """The worker ends, without a word to the store: report the losses."""
        for held in self:
            self.lose(held, "the worker ended")
        await self._tasks.close()
