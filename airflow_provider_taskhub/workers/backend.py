"""Runs the queue readers of a worker's partitions, its sessions (instances in memory), and its two dispatchers.

The backend uses neither threads nor processes. News about leases arrives as calls of :class:`TenureListener` methods on
its event loop, and a :class:`Runner` runs the activities. So the simulation and ``testing.run`` use the same code as a
worker process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import structlog

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.registry import Registry
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import (
    ACTIVITY,
    NO_BACKLOG,
    ORCHESTRATOR,
    Member,
    Service,
    Tenure,
    WorkerIdentity,
)
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.hub.queues.message_blobs import MessageBlobs
from airflow_provider_taskhub.hub.queues.reader import ControlReader, ReaderContext
from airflow_provider_taskhub.memory import memory_text
from airflow_provider_taskhub.settings import Settings
from airflow_provider_taskhub.storage.primitives import AZURE_CONNECTIONS
from airflow_provider_taskhub.supervision import Supervisor
from airflow_provider_taskhub.worker_pools import DEFAULT_POOL
from airflow_provider_taskhub.workers.activities.activity_limits import declared_limits, shared_limits
from airflow_provider_taskhub.workers.activities.begins import Begins
from airflow_provider_taskhub.workers.activities.local_queues import LocalQueues
from airflow_provider_taskhub.workers.activities.processor import Activities
from airflow_provider_taskhub.workers.activities.recorded import RecordedActivities
from airflow_provider_taskhub.workers.activities.responses import Responses
from airflow_provider_taskhub.workers.activities.runner import Runner
from airflow_provider_taskhub.workers.activities.work_queues import WorkQueues
from airflow_provider_taskhub.workers.activities.work_readers import Source, WorkReaders
from airflow_provider_taskhub.workers.demand import Demand
from airflow_provider_taskhub.workers.dispatch import Dispatcher
from airflow_provider_taskhub.workers.missing_functions import MissingFunctions
from airflow_provider_taskhub.workers.orchestrations.call_lanes import CallLanes
from airflow_provider_taskhub.workers.orchestrations.instance_limits import InstanceLimits
from airflow_provider_taskhub.workers.orchestrations.loading import LoadedInstance
from airflow_provider_taskhub.workers.orchestrations.processor import Orchestrations
from airflow_provider_taskhub.workers.orchestrations.sessions import LONG, LONGEST_WAIT, Sessions
from airflow_provider_taskhub.workers.peers import Peers

log = structlog.get_logger(__name__)

IDLE_CHECKS = 6
"""How often the worker searches for idle sessions within one idle timeout (the setting ``session_idle``)."""
BACKLOG_CHECKS = 6
"""How often the worker searches for instances without progress within :data:`.sessions.LONG` seconds."""
SETTLING = 256
"""The largest number of activities that have ended while their responses are still being written."""
MOST_LOST = 20
"""The most lost workers for which a worker remembers how many attempts it has taken over from each."""
POLLS_MISSED = 3
"""A worker gives a partition up if it did not poll its queue for this many times the longest polling interval."""
STOP_PATIENCE = 60.0
"""Longest time that a stopping worker waits until its messages are given back to their queues, in seconds."""
PARTITION_DRAIN = 60.0
"""Longest time that the handover of a partition waits for running episodes, in seconds."""


def _close_at_once(instance_id: str, close: Callable[[], None]) -> None:
    close()


@dataclass(frozen=True, slots=True)
class _Station:
    """What runs the work items of one reader."""

    source: Source
    activities: Activities
    dispatcher: Dispatcher


class Backend:
    """Does all work of a worker on its event loop. It implements :class:`TenureListener`."""

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
        """Create the backend; :meth:`start` begins the work.

        :param runner: runs the user's activity functions.
        :param me: the identity of this worker.
        :param peers: the other workers of the hub.
        :param roles: whether this worker runs orchestrations, activities, or both.
        :param closes: closes an orchestrator that is removed from memory, so that its ``finally`` blocks run. It gets
            the instance id and the function that closes the orchestrator.
        """
        times = settings.lease_times
        self.hub, self.roles = hub, tuple(roles)
        self._settings, self._peers, self._closes = settings, peers, closes
        self.quarantined = 0
        """Number of messages that this worker has moved to quarantine since its start."""
        self.backlog = NO_BACKLOG
        """The instances that this worker has held for long. Any thread may read it."""
        self.taken_over: Mapping[str, int] = {}
        """How many attempts of activities this worker has taken over, by the lost worker. Any thread may read it."""
        self.draining = False
        self.supervisor = Supervisor(hub.clock)
        self.message_blobs = MessageBlobs(hub.store, hub.names, hub.clock)
        self._registry, self._pools = registry, settings.pool_names
        self._runnable = registry.runnable(self._pools, settings.worker_memory)
        self._limits = shared_limits(
            hub,
            registry,
            self._runnable,
            me=me,
            peers=peers,
            times=times,
            end_sessions=runner.end_sessions,
            taken_over=self._count_taken_over,
        )
        self.readers = WorkReaders(
            hub, registry, self._pools, self._runnable, self._limits, context=self._reader_context(), settings=settings
        )
        self.queues = LocalQueues(
            (self.readers.plain, self.readers.spark),
            takes_work=ACTIVITY in self.roles and DEFAULT_POOL in self._pools,
            settings=settings,
            clock=hub.clock,
            supervisor=self.supervisor,
        )
        self.absences = MissingFunctions(hub, peers.live, settings.no_worker_timeout, pause=times.scan)
        self.demand = Demand(hub.clock)
        self.sessions: Sessions[LoadedInstance] = Sessions(
            extended=settings.session_idle > timedelta(0), rested=self._close_evicted, dropped=self._close_evicted
        )
        instance_limits = InstanceLimits(
            hub,
            serves=lambda: [reader.tenure.partition for reader in self.queues],
            advanced=self.queues.poll_soon,
            met=lambda: self._queues_of_work.look_soon(),
        )
        self._queues_of_work = WorkQueues(
            hub,
            registry.activities,
            self._pools,
            self._runnable,
            peers.live,
            self.absences,
            queue_made=self.readers.queue_made,
            pool_made=self.readers.pool_made,
            default_served=self.readers.default_served,
            look=instance_limits.look,
            visibility=times.visibility,
        )
        self.calls = CallLanes(
            hub.names, hub.info.partitions, self.readers.queues, self.readers.limited, self.readers.lanes
        )
        self.processor = Orchestrations(
            hub=hub,
            registry=registry,
            sessions=self.sessions,
            queues=self.queues,
            absences=self.absences,
            demand=self.demand,
            limits=instance_limits,
            kept_generations=settings.kept_generations,
            calls=self.calls,
        )
        self.orchestrations = Dispatcher("orchestrations", self.processor, settings.orchestrations)

        def activities(source: Source) -> Activities:
            work_items = source.items
            responses = Responses(hub, work_items, self.queues)
            begins = Begins(hub, work_items, responses)
            recorded = RecordedActivities(
                hub=hub,
                runner=runner,
                me=me,
                times=times,
                peers=peers,
                work_items=work_items,
                begins=begins,
                responses=responses,
                spark_master=settings.spark.master,
                embedded=settings.embedded,
                limits=source.limits,
                taken_over=self._count_taken_over,
            )
            return Activities(
                hub=hub,
                registry=registry,
                runner=runner,
                times=times,
                work_items=work_items,
                begins=begins,
                responses=responses,
                recorded=recorded,
                absences=self.absences,
                limited=None if source.own else self.readers.limited,
                runnable=self._runnable,
                spark=source.spark,
            )

        self._stations = tuple(
            _Station(
                source,
                work := activities(source),
                Dispatcher(source.name, work, source.items.slots.limit + SETTLING),
            )
            for source in self.readers
        )

    @property
    def running(self) -> int:
        """The number of activities that run in this worker."""
        return self.readers.running

    @property
    def memory(self) -> int:
        """How many bytes of memory this worker has for activities that say what they need."""
        return self.readers.memory.total

    @property
    def memory_used(self) -> int:
        """How many bytes of memory the activities need that run in this worker."""
        return self.readers.memory.used

    @property
    def slots(self) -> Mapping[str, tuple[int, int]]:
        """By kind of activities, ``plain`` or ``spark``: how many slots are taken, and how many there are."""
        return self.readers.slots

    def current_row(self, member: Member) -> Member:
        """Return the row of this worker with what runs in it now.

        :param member: the row as it was when the worker started.
        """
        return replace(
            member,
            running=self.running,
            spark_running=self.slots["spark"][0],
            memory_used=self.memory_used,
            taken_over=self.taken_over,
            backlog=self.backlog,
        )

    def _reader_context(self) -> ReaderContext:
        """Return what all readers of this worker share."""
        return ReaderContext(
            store=self.hub.store,
            names=self.hub.names,
            clock=self.hub.clock,
            visibility=self._settings.lease_times.visibility,
            max_polling=self._settings.max_polling,
            quarantined=self._count_quarantined,
            deleted=self.message_blobs.add,
            supervisor=self.supervisor,
        )

    def services(self) -> Mapping[int, Service]:
        """Return the load and progress of each partition that this worker serves.

        Any thread may call this method, but only one thread at a time.
        """
        now = self.hub.clock.monotonic()
        return {reader.tenure.partition: self._service(reader, now) for reader in self.queues}

    def _service(self, reader: ControlReader, now: float) -> Service:
        ran, lacks = self.demand.of(reader.tenure.partition)
        lost = reader.failover
        return Service(
            load=reader.load(now),
            unpolled=now - reader.progressed,
            refused=reader.refused,
            runs=ran,
            lacks=lacks,
            failover=None if lost is None else replace(lost, attempts=self.taken_over.get(lost.lost, 0)),
        )

    # start and stop

    def start(self) -> None:
        """Start all loops of the worker on the running event loop."""
        if self._settings.session_idle > timedelta(0):
            self.supervisor.keep("sessions", self._evict)
        self.supervisor.keep("absences", self.absences.run)
        self.supervisor.keep("message blobs", self.message_blobs.run)
        self._peers.watch(self.hub, self.supervisor)
        self._warn_of_connections()
        if ORCHESTRATOR in self.roles:
            self.supervisor.keep("orchestrations", self._orchestrate)
            self.supervisor.keep("backlog", self._watch_backlog)
            self.supervisor.keep("waiting events", self._end_waits)
        if ACTIVITY in self.roles:
            for limits in {id(one): one for one in self._limits.values()}.values():
                limits.start(self.supervisor)
            self._warn_of_needs()
            self.supervisor.keep("memory", self.readers.memory.run)
            for station in self._stations:
                name, items = station.source.name, station.source.items
                self.supervisor.keep(name, station.dispatcher.run)
                self.supervisor.keep(f"overdue {name}", items.return_overdue)
                self.supervisor.keep(f"unrecorded {name}", station.activities.watch)
                self.supervisor.keep(items.reader.name, items.reader.run)
        self.supervisor.keep("queues of work items", self._queues_of_work.run)

    async def _orchestrate(self) -> None:
        # The calls of the first fan-out would all go to a first queue, in front of everybody, if there were no lanes.
        await self._queues_of_work.tried.wait()
        await self.orchestrations.run()

    def _warn_of_needs(self) -> None:
        """Log which activities this worker cannot run because they need more memory than it has."""
        needs = [
            f"{name} ({memory_text(need, at_least=True)})"
            for name, need in sorted(self._registry.memory_of.items())
            if need > self.memory and self._registry.activities[name].pool in self._pools
        ]
        if needs:
            log.warning("activities_exceed_memory", activities=", ".join(needs), memory=memory_text(self.memory))

    def _warn_of_connections(self) -> None:
        """Log that this worker may do much more at once than it has connections to Azure Storage."""
        settings = self._settings
        at_once = settings.orchestrations if ORCHESTRATOR in self.roles else 0
        if ACTIVITY in self.roles:
            at_once += settings.slots + settings.spark_slots
        if not settings.embedded and at_once > 2 * AZURE_CONNECTIONS:
            log.warning("more_work_than_connections", at_once=at_once, connections=AZURE_CONNECTIONS)

    async def drain(self, timeout: float) -> None:
        """Stop taking work items, give back those whose activity has not begun, and wait for the running activities.

        :param timeout: the seconds after which running activities are cancelled and given back.
        """
        self.draining = True
        if ACTIVITY in self.roles:
            await asyncio.gather(*(self._drain(station, timeout) for station in self._stations))

    async def _drain(self, station: _Station, timeout: float) -> None:
        await station.source.items.reader.stop()
        self.supervisor.end(station.dispatcher.name)
        await station.source.items.return_waiting()
        await station.dispatcher.drain(timeout)

    async def stop(self) -> None:
        """End all loops. Call this method after the partitions were given up."""
        self.processor.stopping = True
        await self.orchestrations.drain(1.0)
        for station in self._stations:
            await station.dispatcher.drain(1.0)
        await self.supervisor.close(STOP_PATIENCE)

    # partitions (the methods of TenureListener, called on this event loop)

    def taken(self, tenure: Tenure) -> None:
        """Start to read the queue of a partition that this worker has taken."""
        if ORCHESTRATOR not in self.roles:
            return
        reader = ControlReader(
            self._reader_context(),
            tenure=tenure,
            limit=self._settings.buffer,
            limit_bytes=self._settings.buffer_bytes,
            deliver=self._deliver,
        )
        self.calls.lost(tenure.partition)  # what an episode has added after the last stay
        self.queues.add(reader)
        self.demand.begin(tenure.partition)
        self.supervisor.keep(tenure.queue, reader.run)

    def asked(self, tenure: Tenure) -> None:
        """Start to hand a partition over, for example because another worker asks for it or this worker stops."""
        reader = self.queues.get(tenure.queue)
        if reader is None:
            tenure.drained()
            return
        log.info("partition_draining", partition=tenure.partition)
        self.supervisor.spawn(self._hand_over(reader), name=f"drain {tenure.queue}")

    def lost(self, tenure: Tenure, reason: str) -> None:
        """Forget a partition whose lease this worker has lost, and give its messages back."""
        reader = self.queues.get(tenure.queue)
        if reader is None or reader.tenure is not tenure:
            return
        self.queues.remove(reader)
        self._forget(tenure.partition)
        reader.stopping = True
        left = self.sessions.close(reader)
        self.supervisor.end(tenure.queue)
        # Giving messages back is safe without the lease: if another worker has received a message, the pop receipt of
        # this worker is invalid.
        self.supervisor.spawn(reader.give_back(left, begun=False), name=f"give back {tenure.queue}")

    async def _hand_over(self, reader: ControlReader) -> None:
        """Hand a partition over: make its waiting messages visible, finish its episodes, then give up its lease."""
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
        finally:  # other workers must get the partition even after an error
            if self.queues.remove(reader):
                self._forget(reader.tenure.partition)
                self.supervisor.end(reader.queue)
            reader.tenure.drained()

    def _forget(self, partition: int) -> None:
        self.demand.end(partition)
        self.calls.lost(partition)

    # deliveries, quarantine and idle sessions

    def _close_evicted(self, live: LoadedInstance) -> None:
        """Close the orchestrator of an instance when it is removed from memory, with or without the history."""
        if (close := live.execution.release()) is not None:
            self._closes(live.execution.instance.instance_id, close)

    def _deliver(self, reader: ControlReader, held: Delivery) -> None:
        self.sessions.deliver(reader, held, now=self.hub.clock.monotonic())
        # This worker has found the message by a poll, so other queues may have messages too. A dequeue count of 0 would
        # mean that this worker has put the message itself.
        if held.in_queue and held.dequeue_count and not (self.hub.store.local or reader.signalled):
            self.queues.poll_soon()

    async def _watch_backlog(self) -> None:
        """Look for instances that make no progress, log each once, and keep them for the worker's row."""
        known: set[str] = set()
        while True:
            if self.backlog == NO_BACKLOG:  # else the row of this worker would name what it does not hold any more
                await self.sessions.until_occupied()
            await self.hub.clock.sleep(LONG / BACKLOG_CHECKS)
            self.backlog = self.sessions.backlog(self.hub.clock.monotonic())
            for one in self.backlog.held:
                if one.instance_id not in known:
                    cause = one.cause or "its episode has not ended"
                    log.warning("instance_held", instance_id=one.instance_id, seconds=round(one.seconds), cause=cause)
            known = {one.instance_id for one in self.backlog.held}

    def _count_taken_over(self, worker: str) -> None:
        counts = {**self.taken_over}
        counts[worker] = counts.pop(worker, 0) + 1  # the last one comes last
        self.taken_over = dict([*counts.items()][-MOST_LOST:])

    def _count_quarantined(self) -> None:
        self.quarantined += 1

    async def _end_waits(self) -> None:
        while True:
            await self.sessions.until_held()
            await self.hub.clock.sleep(LONGEST_WAIT / 4)
            self.sessions.end_waits(now=self.hub.clock.monotonic())

    async def _evict(self) -> None:
        idle = self._settings.session_idle.total_seconds()
        while True:
            await self.hub.clock.sleep(idle / IDLE_CHECKS)
            self.sessions.evict_idle(before=self.hub.clock.monotonic() - idle)


def member_of(
    registry: Registry, settings: Settings, me: WorkerIdentity, roles: Sequence[str], started: Timestamp
) -> Member:
    """Return the row of a worker as it is when the worker starts.

    :param started: when it starts.
    """
    member = Member(
        worker=str(me),
        started=started,
        roles=tuple(roles),
        apps=registry.apps,
        orchestrators=tuple(registry.orchestrators) if ORCHESTRATOR in roles else (),
        activities=(),
        weight=settings.weight,
        accepts=registry.accepts if ORCHESTRATOR in roles else {},
        pools=settings.pool_names,
        memory=settings.worker_memory,
    )
    if ACTIVITY not in roles:
        return member
    return replace(
        member,
        activities=tuple(registry.activities),
        pool_of=registry.pool_of,
        memory_of=registry.memory_of,
        limits=declared_limits(registry),
        limit_names=registry.limit_names,
        slots=settings.slots,
        spark_slots=settings.spark_slots,
        spark_activities=registry.spark_activities,
    )
