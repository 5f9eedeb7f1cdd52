"""The backend of a worker: readers for the partitions it serves, sessions, the two dispatchers, and their lifetimes.

Knows neither threads nor processes: leases come in as :class:`TenureListener` calls on this loop, user activities go
out through a :class:`Runner`. So the simulation and ``testing.run`` run the very code of production.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import structlog

from airflow_provider_taskhub.engine.registry import Registry
from airflow_provider_taskhub.errors import StorageError
from airflow_provider_taskhub.hub.contract import ACTIVITY, ORCHESTRATOR, Member, Service, Tenure, WorkerIdentity
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.messages.control import WORK_EVENTS, ControlReader, Reader
from airflow_provider_taskhub.hub.messages.held import Held, Offered
from airflow_provider_taskhub.hub.messages.outbound import Letter
from airflow_provider_taskhub.hub.messages.sessions import Sessions
from airflow_provider_taskhub.settings import Settings
from airflow_provider_taskhub.supervision import Supervisor
from airflow_provider_taskhub.workers.absences import Absences
from airflow_provider_taskhub.workers.activities import Activities
from airflow_provider_taskhub.workers.demand import Demand
from airflow_provider_taskhub.workers.dispatch import Dispatcher
from airflow_provider_taskhub.workers.live import Live
from airflow_provider_taskhub.workers.orchestrations import Orchestrations
from airflow_provider_taskhub.workers.runner import Runner

log = structlog.get_logger(__name__)

IDLE_CHECKS = 6
"""Looks for idle sessions within one idle timeout."""
RELEASE_CHECK = 3600.0
"""Seconds between two looks for free partitions beside the scans, when no news comes."""
DEATH_CHECK = 0.1
"""Seconds between two looks at the lock files of this machine's other workers; a look asks the store nothing."""
POLLS_WHILE_BUSY = 80
"""Receives a second, over all partitions, that traffic in one of them may cost (50 ms a partition at four)."""
SETTLING = 256
"""Activities that have ended, and whose responses are on their way to the store."""
POLLS_MISSED = 3
"""Longest polling intervals without a poll after which a partition counts as stuck (K12)."""
LAST_WORKS = 60.0
"""Seconds that a stopping worker waits for messages on their way back into their queues."""
PARTITION_DRAIN = 60.0
"""Seconds that a handover waits for the episodes under way."""


def _here(instance_id: str, close: Callable[[], None]) -> None:
    close()


class Backend:
    """All that a worker does on its own loop. A :class:`TenureListener`."""

    def __init__(
        self,
        *,
        hub: Hub,
        registry: Registry,
        runner: Runner,
        me: WorkerIdentity,
        settings: Settings,
        roles: Sequence[str] = (ORCHESTRATOR, ACTIVITY),
        predecessors: Callable[[], Collection[str]] = tuple,
        died: Callable[[], None] = lambda: None,
        members: Callable[[], Coroutine[Any, Any, Sequence[Member]]],
        closes: Callable[[str, Callable[[], None]], None] = _here,
    ) -> None:
        """
        :param predecessors: full names of the workers that are proven dead.
        :param died: called when partitions may be free: another worker is proven dead, and its messages can be received
            again, or has released them.
        :param closes: closes an orchestrator that is evicted (runs its ``finally`` blocks), given the instance id.
        """
        self._predecessors, self._died = predecessors, died
        self.hub, self.roles = hub, tuple(roles)
        self._closes = closes
        self._registry = registry
        self._settings = settings
        self._visibility = settings.lease_times.visibility
        self._readers: dict[str, ControlReader] = {}
        self.quarantined = 0
        """Messages that this worker has brought into quarantine since its start."""
        self.supervisor = Supervisor(hub.clock)
        self._hurried = float("-inf")
        self.draining = False
        self.absences = Absences(hub, members, settings.no_worker_timeout, pause=settings.lease_times.scan)
        self.demand = Demand(hub.clock)
        self.sessions: Sessions[Live] = Sessions(
            extended=settings.session_idle > timedelta(0), rested=self._put_aside, dropped=self._put_aside
        )
        self.processor = Orchestrations(
            hub=hub,
            registry=registry,
            sessions=self.sessions,
            claims=self._claims,
            promise=self._promise,
            adopt=self._adopt,
            absences=self.absences,
            demand=self.demand,
        )
        self.orchestrations = Dispatcher("orchestrations", self.processor, settings.orchestrations)
        self.work = Activities(
            hub=hub,
            registry=registry,
            runner=runner,
            me=me,
            times=settings.lease_times,
            limit=settings.activities,
            reader=self._work_reader,
            dead=lambda worker: worker in predecessors(),
            absences=self.absences,
            claims=self._claims,
            adopt=self._adopt,
            offer=self._offer,
        )
        self.activities = Dispatcher("activities", self.work, settings.activities + SETTLING)

    @property
    def buffered(self) -> int:
        """Messages prefetched and not yet taken into an episode."""
        return sum(reader.buffered for reader in self._readers.values())

    @property
    def oldest_poll(self) -> float:
        """Seconds since the least recently polled partition was polled (K12); 0 without partitions."""
        now = self.hub.clock.monotonic()
        return max((now - reader.last_poll for reader in self._readers.values()), default=0.0)

    def services(self) -> Mapping[int, Service]:
        """Load and progress of each partition served; from any thread, in turns of the same caller."""
        now = self.hub.clock.monotonic()
        return {reader.tenure.partition: self._service(reader, now) for reader in tuple(self._readers.values())}

    def _service(self, reader: ControlReader, now: float) -> Service:
        ran, lacks = self.demand.of(reader.tenure.partition)
        return Service(load=reader.load(now), unpolled=now - reader.progressed, runs=ran, lacks=lacks)

    # lifetimes

    def start(self) -> None:
        """Begin to work, on the running loop."""
        if self._settings.session_idle > timedelta(0):
            self.supervisor.keep("sessions", self._evict)
        self.supervisor.keep("absences", self.absences.run)
        if self._predecessors is not tuple:
            self.supervisor.keep("deaths", self._watch_deaths)
            self.supervisor.keep("releases", self._hear_releases)
        if ORCHESTRATOR in self.roles:
            self.supervisor.keep("orchestrations", self.orchestrations.run)
        if ACTIVITY in self.roles:
            self.supervisor.keep("activities", self.activities.run)
            self.supervisor.keep("overdue", self.work.relieve)
            self.supervisor.keep("plain activities", self.work.watch)
            self.supervisor.keep(self.work.reader.queue, self.work.reader.run)

    async def drain(self, timeout: float) -> None:
        """Take nothing new, give back what has not begun, let what runs end.

        :param timeout: seconds until what still runs is cancelled and given back.
        """
        self.draining = True
        if ACTIVITY in self.roles:
            await self.work.reader.stop()
            self.supervisor.end("activities")
            await self.work.reader.give_back(self.work.slots.clear(), begun=False)
            await self.activities.drain(timeout)

    async def stop(self) -> None:
        """After the partitions are given up: end every loop."""
        await self.orchestrations.drain(1.0)
        await self.activities.drain(1.0)
        await self.supervisor.close(LAST_WORKS)

    # partitions (TenureListener, on this loop)

    def taken(self, tenure: Tenure) -> None:
        if ORCHESTRATOR not in self.roles:
            return
        reader = ControlReader(
            store=self.hub.store,
            names=self.hub.names,
            tenure=tenure,
            clock=self.hub.clock,
            visibility=self._visibility,
            max_polling=self._settings.max_polling,
            limit=self._settings.buffer,
            limit_bytes=self._settings.buffer_bytes,
            deliver=self._deliver,
            quarantined=self._count_quarantined,
            supervisor=self.supervisor,
        )
        self._readers[tenure.queue] = reader
        self.demand.begin(tenure.partition)
        self.supervisor.keep(tenure.queue, reader.run)

    def asked(self, tenure: Tenure) -> None:
        reader = self._readers.get(tenure.queue)
        if reader is None:
            tenure.drained()
            return
        log.info("partition_draining", partition=tenure.partition)
        self.supervisor.spawn(self._hand_over(reader), name=f"drain {tenure.queue}")

    def lost(self, tenure: Tenure, reason: str) -> None:
        reader = self._readers.get(tenure.queue)
        if reader is None or reader.tenure is not tenure:
            return
        del self._readers[tenure.queue]
        self.demand.end(tenure.partition)
        reader.stopping = True
        left = self.sessions.close(reader)
        self.supervisor.end(tenure.queue)
        # safe without the lease: receipts decide
        self.supervisor.spawn(reader.give_back(left, begun=False), name=f"give back {tenure.queue}")

    async def _hand_over(self, reader: ControlReader) -> None:
        """Finish the episodes under way, make everything else visible at once, then let the lease go (K58)."""
        try:
            await reader.stop()
            left = self.sessions.close(reader)
            await reader.give_back(left, begun=False)
            try:
                async with asyncio.timeout(PARTITION_DRAIN):
                    await self.sessions.settled(reader)
            except TimeoutError:
                log.warning("drain_timeout", partition=reader.tenure.partition)
            await reader.give_back(reader.held())
        finally:  # even after an error, other workers must get the partition
            if self._readers.get(reader.queue) is reader:
                del self._readers[reader.queue]
                self.demand.end(reader.tenure.partition)
                self.supervisor.end(reader.queue)
            reader.tenure.drained()

    # messages

    def _put_aside(self, live: Live) -> None:
        """Only its history is kept, or nothing."""
        if (close := live.execution.rest()) is not None:
            self._closes(live.execution.instance.instance_id, close)

    def _deliver(self, reader: ControlReader, held: Held) -> None:
        self.sessions.deliver(reader, held)
        # a count of 0: claimed by our own put, never received
        if held.in_queue and held.dequeue_count and not (self.hub.store.local or reader.told):
            self._hurry()

    def _hurry(self) -> None:
        """A message that was found in one partition ends the back-off of all.

        On Azure nothing tells a reader of a put on another machine, and each of P queues backs off alone up to 30 s:
        clients that start one orchestration after another would find every time a queue that has been quiet for P
        turns, and wait as long again. The original has it so; measured: seconds for each start in turn. Where the store
        has told of the message, it tells of the others too, and the looks would only cost.
        """
        now, pace = self.hub.clock.monotonic(), len(self._readers) / POLLS_WHILE_BUSY
        if now - self._hurried >= pace:
            self._hurried = now
            for reader in self._readers.values():
                reader.hurry(pace)

    def _work_reader(self, room: Callable[[], int], deliver: Callable[[Held], None]) -> Reader:
        return Reader(
            store=self.hub.store,
            names=self.hub.names,
            queue=self.hub.names.work_items,
            carries=WORK_EVENTS,
            runs=lambda held: getattr(held.message.event, "name", None) in self._registry.activities,
            clock=self.hub.clock,
            visibility=self._visibility,
            max_polling=self._settings.max_polling,
            room=room,
            deliver=deliver,
            quarantined=self._count_quarantined,
            supervisor=self.supervisor,
        )

    def _count_quarantined(self) -> None:
        self.quarantined += 1

    def _claims(self, queue: str) -> tuple[int, timedelta]:
        """How many messages this worker may claim with a put, and for how long (DESIGN §6)."""
        if queue == self.hub.names.work_items:
            work = self.work.reader
            may = ACTIVITY in self.roles and not work.stopping and not work.overlooked
            return self.work.slots.free if may else 0, self._visibility
        reader = self._readers.get(queue)
        if reader is None or reader.stopping or reader.overlooked:
            return 0, self._visibility
        return max(0, self._settings.buffer - reader.buffered), self._visibility

    def _promise(self, mail: Sequence[Letter]) -> AbstractContextManager[None]:
        """Keep the slots that a checkpoint under way claims work items for."""
        work_items = self.hub.names.work_items
        return self.work.promised(sum(made.claim is not None and made.queue == work_items for made in mail))

    def _adopt(self, messages: Sequence[Held]) -> None:
        """Hand over what a commit claimed, or give it to whoever reads the queue: slots may be fewer than they were."""
        back = []
        for held in messages:
            reader: Reader | None = self._readers.get(held.queue)
            if held.queue == self.hub.names.work_items:
                reader = self.work.reader if self.work.slots.free > 0 else None
            if reader is None or reader.stopping:
                back.append(held)
            else:
                reader.adopt(held)
        if back:
            self.supervisor.spawn(self.work.reader.give_back(back, begun=False), name="give back")

    def _offer(self, response: Offered) -> bool:
        reader = self._readers.get(response.queue)
        full = reader is not None and reader.buffered_bytes >= self._settings.buffer_bytes
        if reader is None or reader.stopping or reader.overlooked or full:
            return False
        reader.offer(response)
        return True

    async def _hear_releases(self) -> None:
        """Scan at once when a worker has released a partition; on one machine the store announces a release."""
        async with self.hub.store.hearing(self.hub.names.partitions) as news:
            while True:
                await news(RELEASE_CHECK)
                self._died()

    async def _watch_deaths(self) -> None:
        """Release the messages of dead workers at once; otherwise they stay invisible until their time is over."""
        known: frozenset[str] = frozenset()
        while True:
            dead, pause = frozenset(self._predecessors()), DEATH_CHECK
            if fresh := dead - known:
                try:
                    released = await self.hub.store.release_claims(fresh)
                except StorageError as error:
                    pause = 1.0
                    log.warning("claims_not_released", workers=sorted(fresh), error=str(error))
                else:
                    known = dead
                    if released:
                        log.info("claims_released", workers=sorted(fresh), messages=released)
                    self._died()
            await self.hub.clock.sleep(pause)

    async def _evict(self) -> None:
        idle = self._settings.session_idle.total_seconds()
        while True:
            await self.hub.clock.sleep(idle / IDLE_CHECKS)
            self.sessions.evict_idle(before=self.hub.clock.monotonic() - idle)
