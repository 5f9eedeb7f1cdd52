"""Define the names, identities and value classes that all packages of the hub share.

The module reads and writes nothing, and decides nothing. It has more than 400 lines because all these classes are
together in one place. Nearly all of them are public.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from typing import Final, Literal, Protocol, TypeAlias

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import FailureDetails, OrchestrationInstance, Status
from airflow_provider_taskhub.errors import ConfigurationError
from airflow_provider_taskhub.intake_limit import IntakeLimit
from airflow_provider_taskhub.lineage import NO_LINEAGE, Lineage
from airflow_provider_taskhub.settings import hub_name
from airflow_provider_taskhub.worker_pools import DEFAULT_POOL

BEGINS_WITHIN = timedelta(seconds=2)
"""Longest time between a request that finds an instance open and the beginning of an activity that relies on it. A
client that has seen the end of an instance waits for as long, and then knows that no activity begins any more."""
FORMAT_VERSION = 1
"""Version of the tables and columns that TaskHub has and DurableTask does not have. This package refuses to open a hub
with a higher version."""
CONTROLS = "Controls"
"""The end of the name of the table that says how many partitions a hub has. Each hub has one, and nothing else has."""

LANES = 4
"""Lanes of a kind of activities, without that of low priority. Callers are spread over them by a hash."""


@lru_cache(maxsize=1024)
def _digest(text: str) -> str:
    """Return a short digest for the name of a queue, for which not every name of an activity or pool is allowed."""
    return sha256(text.encode()).hexdigest()[:10]


@dataclass(frozen=True, slots=True)
class HubNames:
    """Names of the queues, tables and containers of a hub.

    Table names keep the case of the hub name. Names of queues and containers are in lower case.

    :raises ConfigurationError: Azure does not allow the hub name.
    """

    hub: str

    def __post_init__(self) -> None:
        try:
            hub_name(self.hub)
        except ValueError as error:
            raise ConfigurationError(str(error)) from None

    def control(self, partition: int) -> str:
        """Return the name of a partition's control queue. The number in the name has at least two digits."""
        return f"{self.hub.lower()}-control-{partition:02d}"

    @property
    def control_prefix(self) -> str:
        return f"{self.hub.lower()}-control-"

    @property
    def work_items(self) -> str:
        return f"{self.hub.lower()}-workitems"

    @property
    def history(self) -> str:
        return f"{self.hub}History"

    @property
    def instances(self) -> str:
        return f"{self.hub}Instances"

    @property
    def partitions(self) -> str:
        return f"{self.hub}Partitions"

    @property
    def leases(self) -> str:
        return f"{self.hub.lower()}-leases"

    @property
    def large_messages(self) -> str:
        return f"{self.hub.lower()}-largemessages"

    @property
    def app_lease(self) -> str:
        return f"{self.hub.lower()}-applease"

    @property
    def app_lease_info(self) -> str:
        return f"{self.hub.lower()}-appleaseinfo"

    # DurableTask does not have the following queue, tables and containers.

    @property
    def spark_work_items(self) -> str:
        """The queue of Spark activities. They have slots of their own, so that no other activity waits behind them."""
        return f"{self.hub.lower()}-workitems-spark"

    @property
    def limited_prefix(self) -> str:
        return f"{self.hub.lower()}-limit-"

    def limited(self, activity: str) -> str:
        """Return the name of the queue of an activity with a limit, or with a need for memory. The name has a digest,
        as not every name of an activity is allowed in the name of a queue."""
        return self.limited_prefix + _digest(activity)

    def limited_lanes(self, activity: str) -> tuple[str, ...]:
        """Return the names of the lanes of an activity with queues of its own. The last lane is that of low
        priority."""
        return self._lanes("activity", activity)

    def limited_queues(self, activity: str) -> tuple[str, ...]:
        """Return the names of all queues of an activity with queues of its own: the first one, and the lanes."""
        return self.limited(activity), *self.limited_lanes(activity)

    @property
    def pool_prefix(self) -> str:
        return f"{self.hub.lower()}-pool-"

    def pool(self, pool: str, *, spark: bool) -> str:
        """Return the name of the first queue of the activities of a pool of workers.

        :param spark: True: the queue of its Spark activities, which have slots of their own.
        """
        if pool == DEFAULT_POOL:
            return self.spark_work_items if spark else self.work_items
        return self.pool_prefix + _digest(f"{'spark' if spark else 'plain'} {pool}")

    @property
    def lane_prefix(self) -> str:
        return f"{self.hub.lower()}-lane-"

    def lanes(self, pool: str, *, spark: bool) -> tuple[str, ...]:
        """Return the names of the lanes of a pool of workers. The last lane is that of low priority.

        A lane is a queue for the calls of those that have many calls already, so that the calls of others need not wait
        behind them.
        """
        return self._lanes("spark" if spark else "plain", pool)

    def _lanes(self, kind: str, name: str) -> tuple[str, ...]:
        return tuple(self.lane_prefix + _digest(f"{kind} {number} {name}") for number in range(LANES + 1))

    def work_queues(self, pool: str, *, spark: bool) -> tuple[str, ...]:
        """Return the names of all queues of one kind of activities of a pool: the first one, and the lanes."""
        return self.pool(pool, spark=spark), *self.lanes(pool, spark=spark)

    def pool_queues(self, pool: str) -> tuple[str, ...]:
        """Return the names of all queues of a pool of workers."""
        return *self.work_queues(pool, spark=False), *self.work_queues(pool, spark=True)

    @property
    def controls(self) -> str:
        return f"{self.hub}{CONTROLS}"

    @property
    def activities(self) -> str:
        return f"{self.hub}Activities"

    @property
    def completions(self) -> str:
        return f"{self.hub}Completions"

    @property
    def quarantine(self) -> str:
        return f"{self.hub}Quarantine"

    @property
    def members(self) -> str:
        return f"{self.hub}Members"

    @property
    def logs(self) -> str:
        return f"{self.hub.lower()}-logs"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerIdentity:
    """Identity of a worker process: ``name@host/incarnation``. Two processes of one name differ in the incarnation."""

    name: str
    host: str
    incarnation: str

    def __str__(self) -> str:
        return f"{self.name}@{self.host}/{self.incarnation}"


class Tenure(Protocol):
    """The time in which this worker serves a partition: from taking the partition to losing it."""

    @property
    def partition(self) -> int: ...

    @property
    def queue(self) -> str:
        """Name of the partition's control queue."""

    @property
    def epoch(self) -> int:
        """How many owners the partition has had. This count is only for display and logs: no decision depends on it."""

    @property
    def draining(self) -> bool:
        """True if this worker must hand the partition over: it takes no new messages, finishes the running work, and
        then calls :meth:`drained`."""

    @property
    def failover(self) -> Failover | None:
        """The loss of the former owner with which this tenure began. None: the partition was free or handed over."""

    def check(self) -> None:
        """Raise an error if this worker must not serve the partition any more. Call this before each write.

        :raises LeaseLost: the lease is lost, or it was not renewed for the give-up time by this machine's monotonic
            clock.
        """

    def drained(self) -> None:
        """Report that no work of the partition runs in this worker any more. The worker then gives up the lease."""


class TenureListener(Protocol):
    """Is told when this worker takes a partition, must drain it, or has lost it. The thread that renews the worker's
    leases calls these methods, so each method must return at once."""

    def taken(self, tenure: Tenure) -> None: ...

    def asked(self, tenure: Tenure) -> None:
        """Drain the partition because of a handover or a stop: finish the running work, make prefetched messages
        visible, then call ``tenure.drained()``."""

    def lost(self, tenure: Tenure, reason: str) -> None: ...


FunctionKind: TypeAlias = Literal["orchestrator", "activity"]
ORCHESTRATOR: Final = "orchestrator"
ACTIVITY: Final = "activity"
"""The kinds of functions. Roles of workers have the same names: a worker that runs activities has the role
``activity``."""
WATCHER = "watcher"
"""Role of an Airflow triggerer, which waits for instances and runs no functions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldInstance:
    """An instance that a worker has held for long without progress.

    :param instance_id: id of the instance.
    :param seconds: how long, by the worker's own clock, when it wrote its row.
    :param cause: why the last episode of the instance failed; "" if the episode has not ended.
    """

    instance_id: str
    seconds: float
    cause: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What a worker says about instances that it has held for long.

    :param held: instances without progress, the longest first. There may be more.
    :param queued: how many instances have waited for long for their turn, because the worker runs other episodes.
    :param longest: the longest of these waits, in seconds.
    """

    held: tuple[HeldInstance, ...] = ()
    queued: int = 0
    longest: float = 0.0


NO_BACKLOG = Backlog()


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A worker, as its row in ``{Hub}Members`` describes it.

    :param worker: full name: ``name@host/incarnation``.
    :param started: when the worker started, by its own clock.
    :param apps: version of each app, by the app's name.
    :param orchestrators: names of the orchestrators that the worker can run.
    :param activities: names of the activities that the worker can run.
    :param running: how many activities run in the worker now.
    :param roles: ``orchestrator``, ``activity``, or ``watcher`` for a triggerer that runs no functions.
    :param weight: relative share of partitions: a worker of weight 2 serves twice as many as a worker of weight 1.
    :param alive: True while the ETag of the row goes on changing, which shows that the worker lives. No clocks are
        compared. True also for a row that was just written.
    :param accepts: by the name of an orchestrator, the versions of instances that the worker can continue, its own
        version included. An orchestrator that is not listed can continue every version.
    :param awaited: of a triggerer: the fingerprints of the instances that its sensors wait for (``hub.change_hints``).
    :param backlog: the instances that the worker has held for long.
    :param pools: the pools of workers to which it belongs: it runs only activities of these pools.
    :param pool_of: the pool of each activity in ``activities`` that does not belong to the pool ``default``.
    :param memory: how many bytes of memory it has for activities that say what they need; None: not known.
    :param memory_of: for each of these activities, how many bytes one attempt needs.
    :param memory_used: how many bytes those need that run in the worker now.
    :param limits: the limits and rates that its activities declare: the number by kind and name, such as ``2`` of
        ``activity load``, or ``10/m`` of ``rate load``.
    :param limit_names: by the name of an activity with a limit, the name of the limit.
    :param slots: how many activities it runs at once, Spark activities not counted; 0: not known.
    :param spark_slots: how many Spark activities it runs at once; 0: not known.
    :param spark_activities: those of ``activities`` that are Spark activities.
    :param spark_running: how many of those that run are Spark activities.
    :param taken_over: how many attempts of activities it has taken over, by the full name of the lost worker. The
        workers from which it took some last are there.
    """

    worker: str
    started: Timestamp
    roles: tuple[str, ...]
    apps: Mapping[str, str]
    orchestrators: tuple[str, ...]
    activities: tuple[str, ...]
    running: int = 0
    weight: int = 1
    alive: bool = True
    accepts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    awaited: frozenset[int] = frozenset()
    backlog: Backlog = NO_BACKLOG
    pools: tuple[str, ...] = (DEFAULT_POOL,)
    pool_of: Mapping[str, str] = field(default_factory=dict)
    memory: int | None = None
    memory_of: Mapping[str, int] = field(default_factory=dict)
    memory_used: int = 0
    limits: Mapping[str, str] = field(default_factory=dict)
    limit_names: Mapping[str, str] = field(default_factory=dict)
    slots: int = 0
    spark_slots: int = 0
    spark_activities: frozenset[str] = frozenset()
    spark_running: int = 0
    taken_over: Mapping[str, int] = field(default_factory=dict)

    def functions(self, kind: FunctionKind) -> tuple[str, ...]:
        """Return the names of the worker's functions of one kind.

        :param kind: ``orchestrator`` or ``activity``.
        """
        return self.orchestrators if kind == ORCHESTRATOR else self.activities

    def pool(self, activity: str) -> str:
        """Return the pool of one of the worker's activities, to which the worker itself may not belong.

        :param activity: name of the activity.
        """
        return self.pool_of.get(activity, DEFAULT_POOL)

    def is_too_small_for(self, activity: str) -> bool:
        """Return whether one of the worker's activities needs more memory than the worker has.

        :param activity: name of the activity.
        """
        return self.memory is not None and self.memory_of.get(activity, 0) > self.memory

    def has_free_memory_for(self, activity: str) -> bool:
        """Return whether an attempt of one of the worker's activities would have enough memory now.

        :param activity: name of the activity.
        """
        need = self.memory_of.get(activity, 0)
        return not need or self.memory is None or need <= self.memory - self.memory_used

    def sharing(self, limit: str) -> set[str]:
        """Return the activities of this worker that share a limit.

        :param limit: name of the limit.
        """
        return {name for name, its in self.limit_names.items() if its == limit}

    def slots_for(self, *, spark: bool) -> tuple[int, int]:
        """Return how many slots of one kind are taken, and how many there are; 0: not known.

        :param spark: True: the slots of Spark activities; False: the others.
        """
        return (self.spark_running, self.spark_slots) if spark else (self.running - self.spark_running, self.slots)

    def has_free_slot(self, *, spark: bool) -> bool:
        """Return whether a slot of one kind is free. True if it is not known.

        :param spark: True: a slot for Spark activities; False: one for the others.
        """
        taken, slots = self.slots_for(spark=spark)
        return not slots or taken < slots


@dataclass(frozen=True, slots=True, order=True)
class Need:
    """A function that an instance or a message waits for.

    :param version: version of the instance that the orchestrator must continue; "": any version. An activity always
        has "".
    """

    kind: FunctionKind
    name: str
    version: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}" + (f" of version {self.version!r}" if self.version else "")


class RecordState(StrEnum):
    """State of an activity record, that is, of one attempt of an activity."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    LOST = "lost"  # the worker stopped its heartbeats, and another worker claimed the next attempt
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"  # a newer version of this package wrote the state, or the state is damaged: never change it


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityRecord:
    """One attempt of an activity: a row of ``{Hub}Activities``. An optional value that the row does not have is None.

    :param instance: instance id and execution id of the orchestration that called the activity.
    :param task_id: number of the event TaskScheduled of the call.
    :param action_id: identity of the call. All attempts of the call have the same identity.
    :param attempt: number of the attempt, from 1. Attempts that were lost with their worker count too.
    :param name: name of the activity.
    :param state: whether the attempt runs, or how it ended.
    :param worker: full name of the worker that runs or ran the attempt; "": it was cancelled while it waited.
    :param executor: executor of that worker that runs or ran the attempt.
    :param claimed: when the attempt began, by the worker's clock.
    :param renewed: when the worker last wrote the record, by the worker's clock. An attempt that was lost with its
        worker ended at this time, as far as anybody knows.
    :param ended: when the attempt ended, by the worker's clock; None: it has not ended.
    :param progress: progress that the activity reported, between 0 and 1; None: the activity reported none.
    :param message: text that the activity reported last with its progress.
    :param application_id: id of the Spark application; None: the attempt does not use Spark, or has not begun yet.
    :param job_group: name of the Spark job group; with Spark Connect, the tag of the attempt's operations.
    :param spark_session: name of the attempt's Spark Connect session: the server's address, the user and the session's
        id. It is stored before the activity runs, because the session outlives a killed worker. None: no Spark Connect.
    :param spark_ui: address of Spark's web page.
    :param log: name of the attempt's log, for ``InstanceHandle.log``.
    :param result: JSON text; None if there is no result, or if the result is stored in a blob.
    :param failure: why the attempt failed.
    :param lineage: the data that the attempt has declared with ``inlet`` and ``outlet``, if it has succeeded.
    :param saved: the state that this attempt or an earlier one has saved with ``save_state``, as JSON text.
    """

    instance: OrchestrationInstance
    task_id: int
    action_id: str
    attempt: int
    name: str
    state: RecordState
    worker: str
    executor: str
    claimed: Timestamp
    renewed: Timestamp | None = None
    ended: Timestamp | None = None
    progress: float | None = None
    message: str | None = None
    application_id: str | None = None
    job_group: str | None = None
    spark_session: str | None = None
    spark_ui: str | None = None
    log: str | None = None
    result: str | None = None
    failure: FailureDetails | None = None
    lineage: Lineage = NO_LINEAGE
    saved: str | None = None

    @property
    def runs(self) -> bool:
        """Whether the attempt has not ended, as its record says: it runs, or is asked to stop."""
        return self.state in (RecordState.RUNNING, RecordState.CANCELLING)

    def lost(self) -> ActivityRecord:
        """Return the record of the attempt as lost with its worker.

        It ends when its worker was last heard of, by that worker's clock. The time at which another worker or a reader
        notices the loss was rejected: it is another machine's clock, and the attempt would seem to run until then.
        """
        return replace(self, state=RecordState.LOST, ended=self.renewed or self.claimed)


_STAMP = re.compile(r"(\d{1,19})(?:/([0-9a-f]{1,32})/(\d{1,10}))?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """When a message was sent, and by which process. ``facts.precedes`` compares the stamps of two suspensions or
    resumes, to find which of them was sent later.

    :param inserted: when the message was enqueued, by the clock of the storage service. Azure gives whole seconds.
    :param process: id of the process that sent the message; "" for a .NET client, whose messages have no such id.
    :param number: number of the message among the messages of that process.
    """

    inserted: Timestamp
    process: str = ""
    number: int = 0

    def text(self) -> str:
        """Return the stamp as the text of a column: ``ticks/process/number``; if no process is known, ``ticks``."""
        text = f"{self.inserted.ticks}/{self.process}/{self.number}"
        return text if _STAMP.fullmatch(text) else str(self.inserted.ticks)

    @classmethod
    def parse(cls, text: object) -> Stamp | None:
        """Return the stamp that a column contains; None: the value is missing or damaged."""
        found = _STAMP.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            return None
        return cls(inserted=Timestamp(int(found[1])), process=found[2] or "", number=int(found[3] or 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspension:
    """A suspension that arrived before the first checkpoint of its run. The run therefore begins suspended.

    :param run: execution id of the run.
    :param reason: why the user suspended the instance.
    :param by: user who suspended the instance; "" if the message does not name the user.
    :param at: when the message was made, by the clock of the sender.
    """

    run: str
    reason: str
    by: str
    at: Timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """A cancel of an activity by its orchestrator.

    :param number: number of the action that cancels, not of the call.
    :param identity: identity of this action.
    """

    number: int
    identity: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceState:
    """An instance, as its instance row describes it. An optional value that the row does not have is None.

    :param instance_id: id of the instance.
    :param execution_id: execution id of the present generation.
    :param name: name of the orchestrator.
    :param status: status of the instance.
    :param version: version of the app with which the instance was started.
    :param input: JSON text. ``input``, ``output`` and ``custom_status`` are also None if they are stored in a blob and
        the reader did not ask for them.
    :param output: JSON text; if the instance has failed, the text of the error.
    :param custom_status: JSON text.
    :param created: when the instance was started.
    :param updated: when the row was last written.
    :param completed: when the instance ended; None: it has not ended. A row may keep the time of an earlier end: before
        a rewind, or of an earlier run with this id.
    :param scheduled_start: the instance does not begin before this time; None: it begins at once.
    :param restarts: how often this instance id was started before; None: unknown, because a .NET client started it.
    :param tags: tags that the instance was started with.
    :param parent: instance id of the parent that started the instance; None: it has no parent, or a .NET worker ran it.
    :param root: instance id of its oldest ancestor; None: it has no parent, or a .NET worker ran it.
    :param cancel: the last cancel of an activity in this generation; None: it has cancelled none.
    :param failure: details of the failure; None if the row does not have them, as in a row written by .NET.
        ``is_non_retriable`` tells whether a retry makes sense.
    :param released: somebody else than the Airflow task that has started it has rewound it, and that task has not come
        back since.
    :param suspended_by: user who suspended the instance; None: it is not suspended, or the user is not known.
    :param suspended_at: when the instance was suspended, by the clock of the sender. Only for display.
    :param etag: ETag of the row.
    """

    instance_id: str
    execution_id: str | None
    name: str
    status: Status
    version: str = ""
    input: str | None = None
    output: str | None = None
    custom_status: str | None = None
    created: Timestamp | None = None
    updated: Timestamp | None = None
    completed: Timestamp | None = None
    scheduled_start: Timestamp | None = None
    restarts: int | None = None
    tags: Mapping[str, str] | None = None
    parent: str | None = None
    root: str | None = None
    cancel: Cancel | None = None
    failure: FailureDetails | None = None
    released: bool = False
    suspended_by: str | None = None
    suspended_at: Timestamp | None = None
    etag: str = ""

    @property
    def ended(self) -> Timestamp | None:
        """When the instance ended; None: it has not ended."""
        return self.completed if self.status.is_final else None

    @property
    def is_held(self) -> bool:
        """True if the instance is suspended, or begins suspended.

        A rewound instance is Pending as well. Its row still has the time of its failure in ``completed``, so this
        instance does not count as suspended.
        """
        begins_held = self.status is Status.PENDING and self.suspended_at is not None and self.completed is None
        return begins_held or self.status is Status.SUSPENDED


class StartPolicy(StrEnum):
    """What a start does if an instance with this id exists already."""

    REFUSE = "refuse"  # the start raises InstanceExists, whatever the status of the instance
    ATTACH = "attach"  # the start changes nothing; it only sends the start message of a Pending instance again
    REPLACE_FINISHED = "replace_finished"  # a new run replaces an ended instance; if it has not ended: InstanceExists


HUB_ROW = ("hub", "hub")
"""Partition key and row key of the hub row in ``{Hub}Controls``."""
TABLE, BLOB = "table", "blob"
"""Where leases are stored: in rows of ``{Hub}Partitions``, or in blobs of ``{hub}-leases``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubInfo:
    """The properties of a hub, as its hub row describes them.

    :param partitions: number of control queues. It never changes.
    :param lease_store: where the leases are stored: ``table`` or ``blob``.
    :param format_version: version of the tables and columns that DurableTask does not have.
    :param ready: True if the creation of the hub is finished.
    :param intake: the intake limit; None: there is none.
    """

    partitions: int
    lease_store: str = TABLE
    format_version: int = FORMAT_VERSION
    ready: bool = False
    intake: IntakeLimit | None = None


class OwnerState(StrEnum):
    """State of a partition's owner, as an observer of the leases sees it."""

    LIVE = "live"  # the owner renews the lease
    SILENT = "silent"  # the owner did not renew the lease in time: it is dead, paused or cut off from the store
    UNPROVEN = "unproven"  # the lease names an owner; the observer does not know yet whether the owner renews the lease
    KICKED = "kicked"  # an administrator made the owner hand the partition over, and no worker has taken it since
    RELEASED = "released"  # the owner gave the partition up, and no worker has taken it since
    NEW = "new"  # no worker has served the partition yet
    OFFLINE = "offline"  # no worker serves the partition, because an administrator ordered so
    MISSING = "missing"  # the partition has no lease row


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """Which worker serves a partition.

    :param owner: full name of the worker that the lease names; None: the lease names no worker. ``state`` says whether
        this worker is alive.
    :param state: state of the owner.
    :param offline: True if an administrator ordered that no worker serves the partition. A live owner gives the
        partition up when it reads the leases next. The lease of a dead owner keeps the owner's name.
    """

    partition: int
    owner: str | None
    state: OwnerState
    offline: bool = False


MOST_LEFT = 10_000
"""At most so many messages of a failover are counted in each partition, so that the count needs little memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failover:
    """A worker has taken a partition whose owner was lost: it had died, or it renewed its lease no more.

    :param lost: full name of the former owner.
    :param taken_by: full name of the worker that has taken the partition.
    :param at: when, by the clock of ``taken_by``. For people.
    :param silent: seconds from the last renewal of the former owner until the partition was taken, by the clock of the
        store. None: not known, because the lease is in a blob, or another worker had asked for the partition.
    :param proven: True if the former owner was proven dead (:mod:`hub.partitions.incarnation`); False if its lease had
        expired.
    :param messages: how many messages ``taken_by`` has found in the queue that were due there at this time, at most
        :data:`MOST_LEFT`; None: not counted yet.
    :param instances: for how many instances these messages are.
    :param attempts: how many attempts of activities ``taken_by`` has taken over from the former owner, of whatever
        partition; None: not counted yet.
    """

    lost: str
    taken_by: str
    at: Timestamp
    silent: float | None
    proven: bool
    messages: int | None = None
    instances: int | None = None
    attempts: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """A partition: which worker serves it, and how many messages wait. A value that is not known is None.

    :param partition: number of the partition.
    :param queue: name of its control queue.
    :param owner: full name of the worker that the lease names; None: the lease names no worker. ``state`` says whether
        this worker is alive.
    :param state: state of the owner.
    :param next_owner: the worker that takes the partition after a handover; None: no handover is planned.
    :param draining: True while the owner hands the partition over.
    :param epoch: how many owners the partition has had.
    :param owned_since: when the owner took the partition, by the owner's clock.
    :param last_renewal: when the lease was last renewed, by the owner's clock.
    :param messages: approximate number of messages in the queue; None: the queue was not asked.
    :param load: messages in a second, as the owner published them; None: not measured yet.
    :param polled: when the owner last asked the queue for messages, by the owner's clock.
    :param kicked: which administrator last made an owner hand the partition over, when and why; None: nobody did.
    :param offline: True if an administrator ordered that no worker serves the partition.
    :param failover: the last time the owner was lost; None: never, or no TaskHub worker has taken the partition then.
    """

    partition: int
    queue: str
    owner: str | None
    state: OwnerState
    next_owner: str | None
    draining: bool
    epoch: int
    owned_since: Timestamp | None
    last_renewal: Timestamp | None
    messages: int | None = None
    load: float | None = None
    polled: Timestamp | None = None
    kicked: str | None = None
    offline: bool = False
    failover: Failover | None = None


class ControlKind(StrEnum):
    """Kinds of orders that an administrator can give. An order may name a partition or a *node*, that is, workers."""

    OFFLINE = "offline"  # the order: no worker may serve the partition
    PROHIBIT = "prohibit"  # the order: the node may not serve the partition
    CAP = "cap"  # the order: the node, or every worker, may serve at most a given number of partitions
    TURN = "turn"  # the order: each worker may take or ask for at most a given number of partitions in one scan
    DRAIN = "drain"  # the order: the node must hand over all its partitions and take none
    UNKNOWN = "unknown"  # an order that a newer version of this package wrote, or that is damaged


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """An order of an administrator that was not lifted yet: a row of ``{Hub}Controls``.

    :param kind: kind of the order.
    :param partition: the partition that the order is about; None: the order is about no single partition.
    :param node: the workers that the order is about: ``name@host/incarnation``, ``name@host``, ``name`` or ``@host``;
        None: every worker.
    :param value: the limit of a ``cap`` or ``turn``, in partitions.
    :param by: the administrator who gave the order. Only for display.
    :param at: when the order was given, by the administrator's clock. Only for display.
    :param reason: why the order was given. Only for display.
    """

    kind: ControlKind
    partition: int | None = None
    node: str | None = None
    value: int | None = None
    by: str = ""
    at: Timestamp
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What the main process of a worker reports about a partition that the worker serves.

    :param load: messages in a second, smoothed; None: not known yet.
    :param unpolled: seconds since this process last read the queue or processed a message of the queue.
    :param refused: True: the store has answered the last request for messages, and has refused it.
    :param runs: orchestrators of those instances of the partition that ran lately.
    :param lacks: orchestrators that messages wait for and that this worker does not have. The orchestrator that
        messages have waited for longest is first.
    :param failover: the loss of the former owner with which the tenure began, with the numbers so far; None: there was
        none.
    """

    load: float | None = None
    unpolled: float = 0.0
    refused: bool = False
    runs: tuple[Need, ...] = ()
    lacks: tuple[Need, ...] = ()
    failover: Failover | None = None
