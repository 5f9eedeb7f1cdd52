"""Makes the readers of a worker's queues of work items. Knows in which queues the calls of its activities wait.

Light work never waits behind Spark: each kind of activities has its own queues and slots. The calls of a pool of
workers, or of an activity with a limit or a need for memory, wait in queues of their own, and share the slots of their
kind. All have lanes for the further calls of those that have many calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from airflow_provider_taskhub.engine.registry import Registry
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.hub.queues.lane_reader import LaneReader
from airflow_provider_taskhub.hub.queues.reader import WORK_EVENTS, Reader, ReaderContext
from airflow_provider_taskhub.settings import Settings
from airflow_provider_taskhub.storage.primitives import MAX_RECEIVE
from airflow_provider_taskhub.worker_pools import DEFAULT_POOL
from airflow_provider_taskhub.workers.activities.activity_limits import Admission
from airflow_provider_taskhub.workers.activities.memory import PATIENCE, WorkerMemory
from airflow_provider_taskhub.workers.activities.slots import Slots
from airflow_provider_taskhub.workers.activities.turns import Turns
from airflow_provider_taskhub.workers.activities.work_items import WorkItems


@dataclass(frozen=True, slots=True)
class Source:
    """A reader of work items.

    :param name: what it reads, for the log.
    :param items: the reader, and the slots of its work items.
    :param limits: the limits of the activity that has the queue; None: it has none, or the queue is not that of an
        activity.
    :param spark: whether its activities are Spark activities.
    :param own: whether the queue is that of one activity.
    """

    name: str
    items: WorkItems
    limits: Admission | None
    spark: bool
    own: bool = False


class WorkReaders:
    """The readers of a worker's work items.

    :param pools: the pools of workers to which this worker belongs.
    :param runnable: the activities that this worker runs.
    :param limits: the limits of these activities, by the names of the activities.
    :ivar plain: the work items of the queue of most activities.
    :ivar spark: the work items of the queue of Spark activities.
    :ivar queues: by the name of an activity, the queue of its calls, if it is not that of most activities.
    :ivar lanes: by the name of an activity, its lanes, the one of low priority last. An activity that is not here has
        none yet: its calls all wait in one queue.
    :ivar limited: the first queues of activities that have queues of their own, as far as they exist.
    :ivar memory: the memory of this worker, of which some activities need a part.
    """

    def __init__(
        self,
        hub: Hub,
        registry: Registry,
        pools: Collection[str],
        runnable: Collection[str],
        limits: Mapping[str, Admission],
        *,
        context: ReaderContext,
        settings: Settings,
    ) -> None:
        self._hub, self._registry, self._pools, self._limits, self._context = hub, registry, pools, limits, context
        self._read_pools = {DEFAULT_POOL} & {*pools}
        """The pools whose queues this worker reads: its own, as far as their queues exist, and perhaps ``default``."""
        self._slots = (
            Slots(settings.slots, hub.clock),
            Slots(settings.spark_slots, hub.clock),
        )
        self.memory = WorkerMemory(settings.worker_memory, self._slots, hub)
        self._runnable = runnable
        names, activities = hub.names, registry.activities
        self.queues = {name: names.spark_work_items for name, one in activities.items() if one.spark}
        self.lanes: dict[str, tuple[str, ...]] = {}
        self.limited: dict[str, str] = {}
        self._sources: dict[str, list[Source]] = {}
        """By pool, the readers of its queues."""
        self._made: set[str] = set()
        """The pools whose queues exist."""
        for pool in (DEFAULT_POOL, *(one for one in pools if one != DEFAULT_POOL)):
            self._sources[pool] = [*self._of_pool(pool, spark=False), *self._of_pool(pool, spark=True)]
        own = [name for name, one in activities.items() if one.has_queue and name in runnable]
        self._of_activities = [self._of_activity(name, limits.get(name)) for name in own]
        of_default = [one.items for one in self._sources[DEFAULT_POOL] if one.items.slots in self._slots]
        self.plain, self.spark = of_default

    def __iter__(self) -> Iterator[Source]:
        for sources in self._sources.values():
            yield from sources
        yield from self._of_activities

    @property
    def running(self) -> int:
        """The number of activities that run in this worker."""
        return sum(slots.busy for slots in self._slots)

    @property
    def slots(self) -> Mapping[str, tuple[int, int]]:
        """By kind of activities, ``plain`` or ``spark``: how many slots are taken, and how many there are."""
        return {kind: (its.busy, its.limit) for kind, its in zip(("plain", "spark"), self._slots, strict=True)}

    def default_served(self, served: bool) -> None:
        """Read the queues of the pool ``default``, to which this worker does not belong, if it has no live worker."""
        if served == (DEFAULT_POOL in self._read_pools):
            self._read_pools ^= {DEFAULT_POOL}
            self._freed(DEFAULT_POOL)

    def pool_made(self, pool: str) -> None:
        """Use the queues of a pool, which now exist."""
        for name, one in self._registry.activities.items():
            if one.pool == pool and pool != DEFAULT_POOL and name not in self.limited:
                self.queues[name] = self._hub.names.pool(pool, spark=one.spark)
            if one.pool == pool and not one.has_queue:
                self.lanes[name] = self._hub.names.lanes(pool, spark=one.spark)
        self._made.add(pool)
        if pool in self._pools:
            self._read_pools.add(pool)
        if pool in self._sources:
            self._freed(pool)

    def queue_made(self, activity: str, queue: str) -> None:
        """Use the queues of an activity that has its own, which now exist. :param queue: the first one."""
        self.queues[activity] = self.limited[activity] = queue
        self.lanes[activity] = self._hub.names.limited_lanes(activity)
        if activity in self._limits:
            self._limits[activity].open()
        for source in self._of_activities:
            if queue in source.items.reader.queues:
                source.items.reader.freed()

    def _freed(self, pool: str) -> None:
        for source in self._sources[pool]:
            source.items.reader.freed()

    def _runs(self, held: Delivery) -> bool:
        """Return True if this worker can run the activity of a work item."""
        return getattr(held.message.event, "name", "") in self._runnable

    def _of_pool(self, pool: str, *, spark: bool) -> Iterator[Source]:
        """Make the readers of a pool's queues of one kind: of the first queue, and of the lanes."""
        clock, names, kind = self._hub.clock, self._hub.names, self._slots[spark]
        slots = kind if pool == DEFAULT_POOL else Slots(kind.limit, clock, shared=kind)
        lane_slots = Slots(kind.limit, clock, shared=kind)
        turns = Turns(slots, lane_slots, clock)

        def came(held: Delivery) -> None:
            more = held.envelope.more
            if more is not None and pool in self._made and held.deliveries <= 1 and self._runs(held):
                lanes.look(more)
            slots.put(held)

        def room(reader: Reader, of: Callable[[], int]) -> int:
            return of() if pool in self._read_pools and not reader.stopping else 0

        first = Reader(
            self._context,
            queue=names.pool(pool, spark=spark),
            carries=WORK_EVENTS,
            room=lambda: room(first, turns.first_room),
            deliver=came,
            polled=turns.first_polled,
            runs=self._runs,
        )
        of_pool = "" if pool == DEFAULT_POOL else f" of pool {pool}"
        name = f"spark activities{of_pool}" if spark else f"activities{of_pool}"
        yield Source(name, WorkItems(first, slots, may_claim=turns.may_claim), None, spark)
        lanes = LaneReader(
            self._context,
            lanes=names.lanes(pool, spark=spark),
            own=any(one.spark is spark and one.pool == pool for one in self._registry.activities.values()),
            room=lambda: room(lanes, turns.lanes_room) if pool in self._made else 0,
            deliver=lane_slots.put,
            polled=turns.lanes_polled,
            runs=self._runs,
        )
        turns.between(first, lanes)
        yield Source(f"lanes of {name}", WorkItems(lanes, lane_slots), None, spark)

    def _of_activity(self, name: str, limits: Admission | None) -> Source:
        """Return the source of the calls of an activity with queues of its own."""
        spark, need = self._registry.activities[name].spark, self._registry.activities[name].memory
        kind, clock, had_place = self._slots[spark], self._hub.clock, float("-inf")
        slots = Slots(kind.limit, clock, shared=kind)

        def deliver(held: Delivery) -> None:
            if limits is not None:
                limits.expect(held, reader)
            slots.put(held)

        def places() -> int:
            nonlocal had_place
            room = MAX_RECEIVE if limits is None else limits.room(reader)
            had_place = clock.monotonic() if room else had_place
            return room

        def fits() -> int:
            if reader.stopping or name not in self.limited:
                return 0
            return min(slots.room, MAX_RECEIVE if share is None else share.room())

        others = (lambda: None) if limits is None else limits.freed
        reader = LaneReader(
            self._context,
            first=self._hub.names.limited(name),
            lanes=self._hub.names.limited_lanes(name),
            own=True,
            room=lambda: min(places(), fits()),
            deliver=deliver,
            polled=others,
            failed=others,
        )

        def has_place() -> bool:
            # Others that share the limit may have the place at each look, and free it in between.
            return places() > 0 or clock.monotonic() - had_place <= PATIENCE

        share = None
        if need is not None:
            share = self.memory.share(reader, slots, need, has_place=has_place)
        if limits is not None:
            limits.join(reader, lambda: fits() > 0)
        return Source(f"activities {name}", WorkItems(reader, slots), limits, spark, own=True)
