"""The backend of a worker: readers for the partitions it serves, sessions, the two dispatchers, and their lifetimes.

It knows neither threads nor processes: leases come in as :class:`TenureListener` calls on this loop, and a
:class:`Runner` runs user activities. So the simulation and ``testing.run`` run the same code as a worker process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta

import structlog

from airflow_provider_taskhub.engine.registry import Registry
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import ACTIVITY, ORCHESTRATOR, Service, Tenure, WorkerIdentity
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.hub.queues.reader import WORK_EVENTS, ControlReader, Reader
from airflow_provider_taskhub.settings import Settings
from airflow_provider_taskhub.supervision import Supervisor
from airflow_provider_taskhub.workers.activities.local_queues import ServedQueues
from airflow_provider_taskhub.workers.activities.processor import Activities
from airflow_provider_taskhub.workers.activities.recorded import Recorded
from airflow_provider_taskhub.workers.activities.responses import Responses
from airflow_provider_taskhub.workers.activities.runner import Runner
from airflow_provider_taskhub.workers.activities.slots import Slots
from airflow_provider_taskhub.workers.activities.work_items import WorkItems
from airflow_provider_taskhub.workers.demand import Demand
from airflow_provider_taskhub.workers.dispatch import Dispatcher
from airflow_provider_taskhub.workers.missing_functions import MissingFunctions
from airflow_provider_taskhub.workers.orchestrations.loading import LoadedInstance
from airflow_provider_taskhub.workers.orchestrations.processor import Orchestrations
from airflow_provider_taskhub.workers.orchestrations.sessions import Sessions
from airflow_provider_taskhub.workers.peers import Peers

log = structlog.get_logger(__name__)

IDLE_CHECKS = 6
"""How often idle sessions are looked for within one idle timeout."""
SETTLING = 256
"""Activities that have ended while their responses are still being written, at most."""
POLLS_MISSED = 3
"""A partition counts as stuck after so many of the longest polling intervals without a poll."""
STOP_PATIENCE = 60.0
"""Seconds that a stopping worker waits until its messages are back in their queues."""
PARTITION_DRAIN = 60.0
"""Seconds that the handover of a partition waits for the episodes that run."""


def _close_at_once(instance_id: str, close: Callable[[], None]) -> None:
    close()


class Backend:
    """Everything that a worker does on its event loop. It is a :class:`TenureListener`."""

    def __init__(
        self,
        *,
        hub: Hub,
        registry: Registry,
        runner: Runner,
        me: WorkerIdentity,
        settings: Settings,
        peers: Peers,
        roles: Sequence[str] = (ORCHESTRATOR, ACTIVITY),
        closes: Callable[[str, Callable[[], None]], None] = _close_at_once,
    ) -> None:
        """
        :param peers: the hub's other workers.
        :param closes: closes an orchestrator that is evicted (runs its ``finally`` blocks), given the instance id.
        """
        times = settings.lease_times
        self.hub, self.roles = hub, tuple(roles)
        self._settings, self._peers, self._closes = settings, peers, closes
        self.quarantined = 0
        """Messages that this worker has brought into quarantine since its start."""
        self.draining = False
        self.supervisor = Supervisor(hub.clock)
        self.work_items = self._work_items(registry.activities)
        self.queues = ServedQueues(
            self.work_items,
            takes_work=ACTIVITY in self.roles,
            settings=settings,
            clock=hub.clock,
            supervisor=self.supervisor,
        )
        self.absences = MissingFunctions(hub, peers.live, settings.no_worker_timeout, pause=times.scan)
        self.demand = Demand(hub.clock)
        self.sessions: Sessions[LoadedInstance] = Sessions(
            extended=settings.session_idle > timedelta(0), rested=self._close_evicted, dropped=self._close_evicted
        )
        self.processor = Orchestrations(
            hub=hub,
            registry=registry,
            sessions=self.sessions,
            queues=self.queues,
            absences=self.absences,
            demand=self.demand,
        )
        self.orchestrations = Dispatcher("orchestrations", self.processor, settings.orchestrations)
        responses = Responses(hub, self.work_items, self.queues)
        self._work = Activities(
            hub=hub,
            registry=registry,
            runner=runner,
            times=times,
            work_items=self.work_items,
            responses=responses,
            recorded=Recorded(
                hub=hub,
                runner=runner,
                me=me,
                times=times,
                peers=peers,
                work_items=self.work_items,
                responses=responses,
            ),
            absences=self.absences,
        )
        self.activities = Dispatcher("activities", self._work, settings.activities + SETTLING)

    def _work_items(self, activities: Collection[str]) -> WorkItems:
        slots = Slots(self._settings.activities, self.hub.clock)
        reader = Reader(
            store=self.hub.store,
            names=self.hub.names,
            queue=self.hub.names.work_items,
            carries=WORK_EVENTS,
            runs=lambda held: getattr(held.message.event, "name", None) in activities,
            clock=self.hub.clock,
            visibility=self._settings.lease_times.visibility,
            max_polling=self._settings.max_polling,
            room=lambda: 0 if reader.stopping else slots.room,
            deliver=slots.put,
            quarantined=self._count_quarantined,
            supervisor=self.supervisor,
        )
        return WorkItems(reader, slots)

    def services(self) -> Mapping[int, Service]:
        """Load and progress of each partition that this worker serves. Any thread may call it, one at a time."""
        now = self.hub.clock.monotonic()
        return {reader.tenure.partition: self._service(reader, now) for reader in self.queues}

    def _service(self, reader: ControlReader, now: float) -> Service:
        ran, lacks = self.demand.of(reader.tenure.partition)
        return Service(load=reader.load(now), unpolled=now - reader.progressed, runs=ran, lacks=lacks)

    # lifetimes

    def start(self) -> None:
        """Start to work on the running event loop."""
        if self._settings.session_idle > timedelta(0):
            self.supervisor.keep("sessions", self._evict)
        self.supervisor.keep("absences", self.absences.run)
        self._peers.watch(self.hub, self.supervisor)
        if ORCHESTRATOR in self.roles:
            self.supervisor.keep("orchestrations", self.orchestrations.run)
        if ACTIVITY in self.roles:
            self.supervisor.keep("activities", self.activities.run)
            self.supervisor.keep("overdue", self.work_items.return_overdue)
            self.supervisor.keep("plain activities", self._work.watch)
            self.supervisor.keep(self.work_items.reader.queue, self.work_items.reader.run)

    async def drain(self, timeout: float) -> None:
        """Take no new activities, give back those that have not begun, and let the running ones end.

        :param timeout: seconds after which running activities are cancelled and given back.
        """
        self.draining = True
        if ACTIVITY in self.roles:
            await self.work_items.reader.stop()
            self.supervisor.end("activities")
            await self.work_items.return_waiting()
            await self.activities.drain(timeout)

    async def stop(self) -> None:
        """End every loop, after the partitions were given up."""
        await self.orchestrations.drain(1.0)
        await self.activities.drain(1.0)
        await self.supervisor.close(STOP_PATIENCE)

    # partitions (TenureListener, on this loop)

    def taken(self, tenure: Tenure) -> None:
        if ORCHESTRATOR not in self.roles:
            return
        reader = ControlReader(
            store=self.hub.store,
            names=self.hub.names,
            tenure=tenure,
            clock=self.hub.clock,
            visibility=self._settings.lease_times.visibility,
            max_polling=self._settings.max_polling,
            limit=self._settings.buffer,
            limit_bytes=self._settings.buffer_bytes,
            deliver=self._deliver,
            quarantined=self._count_quarantined,
            supervisor=self.supervisor,
        )
        self.queues.add(reader)
        self.demand.begin(tenure.partition)
        self.supervisor.keep(tenure.queue, reader.run)

    def asked(self, tenure: Tenure) -> None:
        reader = self.queues.get(tenure.queue)
        if reader is None:
            tenure.drained()
            return
        log.info("partition_draining", partition=tenure.partition)
        self.supervisor.spawn(self._hand_over(reader), name=f"drain {tenure.queue}")

    def lost(self, tenure: Tenure, reason: str) -> None:
        reader = self.queues.get(tenure.queue)
        if reader is None or reader.tenure is not tenure:
            return
        self.queues.remove(reader)
        self.demand.end(tenure.partition)
        reader.stopping = True
        left = self.sessions.close(reader)
        self.supervisor.end(tenure.queue)
        # safe without the lease: receipts decide
        self.supervisor.spawn(reader.give_back(left, begun=False), name=f"give back {tenure.queue}")

    async def _hand_over(self, reader: ControlReader) -> None:
        """Finish the running episodes, make all other messages visible at once, then release the lease."""
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
            if self.queues.remove(reader):
                self.demand.end(reader.tenure.partition)
                self.supervisor.end(reader.queue)
            reader.tenure.drained()

    # messages

    def _close_evicted(self, live: LoadedInstance) -> None:
        """Only its history is kept, or nothing."""
        if (close := live.execution.rest()) is not None:
            self._closes(live.execution.instance.instance_id, close)

    def _deliver(self, reader: ControlReader, held: Delivery) -> None:
        self.sessions.deliver(reader, held)
        # a count of 0: claimed by our own put, never received
        if held.in_queue and held.dequeue_count and not (self.hub.store.local or reader.signalled):
            self.queues.poll_soon()

    def _count_quarantined(self) -> None:
        self.quarantined += 1

    async def _evict(self) -> None:
        idle = self._settings.session_idle.total_seconds()
        while True:
            await self.hub.clock.sleep(idle / IDLE_CHECKS)
            self.sessions.evict_idle(before=self.hub.clock.monotonic() - idle)
