"""Keep the partitions that a worker owns: renew their leases, hand them over, and give up those with too old a lease.

The host (the main process of the worker) is told of each change. The time from taking a partition to losing it is a
tenure; an error with one partition ends only the tenure of this partition. This module takes no partitions and does not
decide which worker should have which partition: ``scan`` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any

import structlog

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.codec import Timestamp
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
"""The longest time for draining a partition, that is, for finishing the work that runs there before another worker
takes the partition. After this time the partition is given up even if work still runs; the store refuses the commits of
this work."""
_POLLED = timedelta(seconds=1)
"""If the time of the last poll in a lease has grown by this time, the owner has polled the queue again. A smaller
difference comes from the owner's two clocks."""
_WRITES = 3
"""How often the write of one renewal or release is tried if other workers change the lease at the same time."""
_LONGEST = 16
"""If a worker stops polling the queues of its partitions, it leaves free partitions to others for a time. Each time
that this happens again soon, the time doubles. The longest time is the first one times this number."""


@dataclass(slots=True, eq=False)
class HeldPartition:
    """The tenure of a partition, and what is needed to write its lease.

    :ivar sent: number of the last renewal that was sent, whether or not it succeeded.
    :ivar lock: lets only one task at a time write the lease.
    :ivar drain: the task that drains the partition and releases its lease. None: no drain has begun.
    :ivar silent: seconds for which the lost owner had not renewed the lease when this worker took the partition.
    """

    tenure: LeaseTenure
    over: asyncio.Event
    """Set when no work of the partition runs in this worker any more (it is drained), or when the tenure has ended."""
    sent: int
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    drain: asyncio.Task[None] | None = None
    silent: float | None = None

    def told(self, lease: Lease) -> Lease:
        """Return the lease with what this worker has found out about the loss of the former owner."""
        if self.silent is None or lease.failover is None:
            return lease
        return replace(lease, failover=replace(lease.failover, silent=self.silent))


class HeldPartitions:
    """The partitions that one worker owns.

    Call the methods only on the event loop that made the object. Any thread may use :meth:`expire`, :meth:`lose` and
    :attr:`tenures`.

    :param leases: the store of the leases.
    :param host: the worker that serves the partitions.
    :param deadline: the most seconds for one attempt to write a lease.
    :param began: function that is called after a partition was taken.
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
        self._longest_unpolled = host.longest_unpolled.total_seconds()
        self._pause = 0.0
        self._paused_until = self._others_polled = float("-inf")
        self._polls: dict[int, tuple[str | None, Timestamp, int]] = {}  # by partition: owner, last poll, growths
        self._metrics = metrics
        self._began = began
        self._tasks = Tasks(clock)
        self._outages = Outages(log, clock.monotonic)
        self._held: dict[int, HeldPartition] = {}
        self._snapshot: tuple[HeldPartition, ...] = ()
        self._services: Mapping[int, Service] = {}
        self.changed = asyncio.Event()
        """Set when the worker must write its member row at once: it has taken or released a partition, it has asked
        another worker for one, or the needs of its partitions (:class:`.placement.Wanted`) have changed. All workers
        read this row to compute which worker gets which partition."""

    def __contains__(self, partition: int) -> bool:
        return partition in self._held

    def __iter__(self) -> Iterator[HeldPartition]:
        return iter(self._snapshot)

    @property
    def tenures(self) -> tuple[LeaseTenure, ...]:
        """The tenures of the partitions that this worker serves now. Any thread may read them."""
        return tuple(held.tenure for held in self._snapshot if not held.tenure.ended)

    @property
    def leases(self) -> Mapping[int, Lease]:
        """The leases of this worker's partitions, by partition number, as they were last written or read."""
        return {tenure.partition: tenure.lease for tenure in self.tenures}

    def signs(self) -> dict[int, Sign]:
        """Return what the member row says about each partition of this worker: epoch, number of the last renewal, load.

        All workers read these same values, so that all compute the same plan of which worker gets which partition.
        """
        return {
            held.tenure.partition: Sign(held.tenure.epoch, held.sent, held.tenure.lease.load)
            for held in self._snapshot
            if not held.tenure.ended
        }

    @property
    def stalled(self) -> bool:
        """Whether this worker leaves free partitions to others for a time: it did not poll a queue of its own."""
        return self._clock.monotonic() < self._paused_until

    @property
    def draining(self) -> bool:
        """Whether a partition of this worker is being drained."""
        return any(held.tenure.draining for held in self._snapshot)

    def take_up(self, lease: Lease, sent: float) -> LeaseTenure | None:
        """Begin to serve a partition after this worker has written itself into the lease.

        :param sent: monotonic time at which this write was sent.
        :returns: the tenure. None: the answer to the write came so late that the lease is already too old.
        """
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

    # --- the age of leases: give up a partition in time --------------------------------------------------------------

    def expire(self) -> float:
        """End each tenure whose last confirmed renewal is too old. May be called from any thread. Does no I/O.

        :returns: seconds after which this method must be called again, unless a partition is taken before.
        """
        soonest = self._give_up
        for held in self._snapshot:
            left = held.tenure.left()
            if left <= 0:
                self.lose(held, f"no renewal was confirmed for {self._give_up:g} s")
            elif not held.tenure.ended:
                soonest = min(soonest, left)
        return max(0.01, soonest)

    # --- renewals of leases: in parallel, each with a time limit -----------------------------------------------------

    def attempts(self, services: Mapping[int, Service]) -> list[Coroutine[Any, Any, bool]]:
        """Return for each partition a coroutine that renews the lease. The coroutine returns False if this fails.

        A partition whose renewals fail is kept until the give-up time.

        :param services: the state of the partitions, which the renewals write into the leases.
        """
        self._services = services
        self._look_for_unpolled()
        return [self._attempt("partition_not_renewed", self._renew, held) for held in self]

    async def _attempt(self, event: str, write: Callable[[HeldPartition], object], held: HeldPartition) -> bool:
        where = {"partition": held.tenure.partition, "left": round(held.tenure.left(), 1)}
        return await attempt(event, partial(write, held), self._deadline, self._outages, **where)  # type: ignore[arg-type]

    async def _renew(self, held: HeldPartition) -> None:
        """Renew a lease. If another worker has changed the lease, read it and try again."""
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
        lease = held.tenure.lease.renewed(
            self._clock.utc_now(),
            self._take,
            draining=held.tenure.draining,
            service=self._service(held),
            sent=held.sent,
        )
        return held.told(lease)

    def _service(self, held: HeldPartition) -> Service:
        return self._services.get(held.tenure.partition, NO_SERVICE)

    def _look_for_unpolled(self) -> None:
        """Give up each partition whose queue this worker has not polled for too long. While this worker renews the
        lease, no other worker can take the partition.

        If the store refuses to read the queue, for example because it is busy, it perhaps refuses all workers alike.
        Then another owner would not help. So such a partition is given up only while other workers poll their queues.
        """
        others_poll = self._clock.monotonic() - self._others_polled <= self._longest_unpolled
        for held in self:
            service = self._service(held)
            unpolled = service.unpolled
            if service.refused and not others_poll:
                continue
            if unpolled > self._longest_unpolled and not held.tenure.draining:
                log.error("partition_not_polled", partition=held.tenure.partition, seconds=round(unpolled, 1))
                self._metrics.not_polled += 1
                self._stall()
                self._begin_drain(held, f"its queue was not polled for {unpolled:.0f} s", DRAIN)

    @property
    def refused(self) -> bool:
        """Whether the store has refused for some time to read the queue of a partition of this worker.

        Then :meth:`compare` needs the leases of the other workers, which say when their queues were polled.
        """
        services = [self._service(held) for held in self]
        return any(service.refused and service.unpolled > self._longest_unpolled / 2 for service in services)

    def _note_polls(self, leases: Iterable[Lease]) -> None:
        """Note whether another worker has polled one of its queues since the last call.

        The times of one owner are compared with each other, never with a time of this worker. They are read while this
        worker is refused. The first increase does not count, because that poll may be from before an outage of the
        whole store.
        """
        if not self.refused:
            self._polls.clear()
            return
        for lease in leases:
            if lease.owner in (None, self._me) or lease.polled is None:
                continue
            owner, polled, growths = self._polls.get(lease.partition, (None, lease.polled, 0))
            if owner != lease.owner:
                self._polls[lease.partition] = (lease.owner, lease.polled, 0)
            elif lease.polled >= polled + _POLLED:
                self._polls[lease.partition] = (owner, lease.polled, growths + 1)
                if growths:
                    self._others_polled = self._clock.monotonic()

    def _stall(self) -> None:
        """Leave free partitions to other workers, at first for as long as a queue must be unpolled until
        :meth:`_look_for_unpolled` finds it. If it happens again soon, double the time.
        """
        now = self._clock.monotonic()
        if now < self._paused_until:
            return
        again = now - self._paused_until < 3 * self._pause
        self._pause = min(2 * self._pause, _LONGEST * self._longest_unpolled) if again else self._longest_unpolled
        self._paused_until = now + self._pause

    # --- changes of a lease by other workers -------------------------------------------------------------------------

    async def _reread(self, held: HeldPartition) -> None:
        """Read a lease that was changed: another worker asks for the partition or has taken it, or an answer was lost.

        Reading does not prolong the tenure: only a confirmed renewal does.
        """
        tenure = held.tenure
        current = await self._leases.read(tenure.queue)
        if current is None:
            self.lose(held, "its row was deleted")
        elif not current.same_tenure(tenure.lease):
            self.lose(held, f"it was taken by {current.owner}" if current.owner else "it was taken away")
        else:
            tenure.lease = current
            self._drain_if_asked(held, current)

    def note_silence(self, partition: int, renewed: Timestamp) -> None:
        """Note for people how long the lost owner of a partition had been silent when this worker took it.

        Both times must come from the store's clock. So a separate task reads the lease again, to get the time at which
        the store has written it. The next renewal stores the result. A failure is only logged.

        :param renewed: when the lost owner last renewed the lease, by the clock of the store.
        """
        if (held := self._held.get(partition)) is not None:
            note = partial(self._note_silence, held, renewed)
            self._tasks.spawn(attempt("lost_owner_not_timed", note, self._deadline, self._outages, partition=partition))

    async def _note_silence(self, held: HeldPartition, renewed: Timestamp) -> None:
        stored = await self._leases.read(held.tenure.queue)
        if stored is not None and stored.changed is not None and stored.same_tenure(held.tenure.lease):
            held.silent = max(0.0, round((stored.changed - renewed).total_seconds(), 1))

    def compare(self, leases: Iterable[Lease]) -> None:
        """Compare the leases with the partitions that this worker owns.

        If another worker asks for a partition, the partition is drained. If another worker has taken it, or if its
        lease was deleted, the tenure ends.

        :param leases: all leases as they were just read.
        """
        found = {lease.partition: lease for lease in leases}
        self._note_polls(found.values())
        for held in self:
            lease = found.get(held.tenure.partition)
            if held.tenure.ended:
                continue
            if lease is None:
                self.lose(held, "its row was deleted")
            elif lease.owner not in (None, self._me):
                self.lose(held, f"it was taken by {lease.owner}")
            elif lease.same_tenure(held.tenure.lease):
                self._drain_if_asked(held, lease)

    def _drain_if_asked(self, held: HeldPartition, lease: Lease) -> None:
        """Drain the partition if a worker or an administrator has asked for it."""
        if lease.next_owner == NOBODY:
            self._begin_drain(held, f"kicked {lease.kicked_by or ''}".rstrip(), DRAIN)
        elif lease.next_owner not in (None, self._me):
            self._begin_drain(held, f"handed over to {lease.next_owner}", DRAIN)

    # --- hand partitions over: drain them, then release their leases -------------------------------------------------

    def shed(self, partition: int, reason: str) -> None:
        """Drain a partition and release it, so that another worker can take it."""
        self._begin_drain(self._held[partition], reason, DRAIN)

    def shed_all(self, reason: str, limit: timedelta = DRAIN) -> list[asyncio.Task[None]]:
        """Drain and release all partitions.

        :param limit: the longest time for each drain.
        :returns: the running drains.
        """
        for held in self:
            self._begin_drain(held, reason, limit)
        return [held.drain for held in self if held.drain is not None]

    def _begin_drain(self, held: HeldPartition, reason: str, limit: timedelta) -> None:
        """Tell the host to drain a partition. Do nothing if the host was told before."""
        if held.tenure.ask():
            log.info("partition_asked", partition=held.tenure.partition, reason=reason)
            self._tell(self._listener.asked, held.tenure)
            held.drain = self._tasks.spawn(self._drain(held, reason, limit.total_seconds()))

    async def _drain(self, held: HeldPartition, reason: str, limit: float) -> None:
        """Wait until the host has drained the partition, at most ``limit`` seconds, and release the lease.

        The tenure ends before the lease is released, so that never two workers read the queue.
        """
        await self._attempt("partition_not_marked", self._renew, held)
        if not await within(self._clock, held.over, limit):
            log.warning("partition_not_drained", partition=held.tenure.partition, seconds=limit)
        self.lose(held, reason)
        # the lease is released even if it was too old: then other workers do not have to wait until they may take it
        await self._release(held, reason)
        self._forget(held)

    async def _release(self, held: HeldPartition, reason: str) -> None:
        """Release a lease. If that fails, other workers can take the partition only after the take time."""
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
            await self._leases.write(held.told(held.tenure.lease.given_up(reason)))

    # --- the end of a tenure -----------------------------------------------------------------------------------------

    def lose(self, held: HeldPartition, reason: str) -> None:
        """End a tenure and tell the host. Only the first call for a tenure does this. Any thread may call this."""
        if not held.tenure.end(reason):
            return
        self._metrics.lost += 1
        log.info("partition_lost", partition=held.tenure.partition, reason=reason, epoch=held.tenure.epoch)
        self._tell(self._listener.lost, held.tenure, reason)
        self._tasks.post(held.over.set)
        if held.drain is None:  # a running drain calls _forget after it has released the lease
            self._tasks.post(lambda: self._forget(held))

    def _forget(self, held: HeldPartition) -> None:
        if self._held.get(held.tenure.partition) is held:
            del self._held[held.tenure.partition]
            self._snapshot = tuple(self._held.values())
            self.changed.set()

    def _tell(self, callback: Callable[..., None], *arguments: object) -> None:
        """Call the host's listener. An error of the listener is logged and ends nothing."""
        try:
            callback(*arguments)
        except Exception:
            log.exception("listener_failed", callback=callback.__name__)

    async def end(self) -> None:
        """End all tenures without writing to the store, and tell the host."""
        for held in self:
            self.lose(held, "the worker ended")
        await self._tasks.close()
