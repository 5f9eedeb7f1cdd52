"""What the parts of a hub and those above share: names, identities and plain records. No I/O, no decisions.

This module is longer than others: it is the vocabulary of the hub on one page. It holds values only, nearly all of them
public, and users and the documentation find every one of them in one place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal, Protocol, TypeAlias

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import FailureDetails, OrchestrationInstance, Status
from airflow_provider_taskhub.errors import ConfigurationError
from airflow_provider_taskhub.settings import hub_name

FORMAT_VERSION = 1
"""Of what is ours alone; a hub with a higher one is refused."""


@dataclass(frozen=True, slots=True)
class HubNames:
    """Names of a hub's queues, tables and containers; the hub name's case is kept in tables.

    :raises ConfigurationError: for a hub name that Azure refuses.
    """

    hub: str

    def __post_init__(self) -> None:
        try:
            hub_name(self.hub)
        except ValueError as error:
            raise ConfigurationError(str(error)) from None

    def control(self, partition: int) -> str:
        """Queue of a partition; two digits or more."""
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

    # ours alone

    @property
    def controls(self) -> str:
        return f"{self.hub}Controls"

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
    """A worker process: ``name@host/incarnation``, unique whatever the user sets as a name."""

    name: str
    host: str
    incarnation: str

    def __str__(self) -> str:
        return f"{self.name}@{self.host}/{self.incarnation}"


class Tenure(Protocol):
    """One stay of a partition with this worker, from taken to lost."""

    @property
    def partition(self) -> int: ...

    @property
    def queue(self) -> str:
        """Name of the partition's control queue."""

    @property
    def epoch(self) -> int:
        """Count of owners; for display and records of change only."""

    @property
    def draining(self) -> bool:
        """Asked to hand over: take no new messages, finish what runs, then call :meth:`drained`."""

    def check(self) -> None:
        """Called right before every state-changing operation.

        :raises LeaseLost: when the lease is gone or older than give-up by this machine's monotonic clock.
        """

    def drained(self) -> None:
        """The host has nothing of the partition in its hands any more: the lease may be given up now."""


class TenureListener(Protocol):
    """Who serves partitions. Called from the owner's thread, once per event; must return at once."""

    def taken(self, tenure: Tenure) -> None: ...

    def asked(self, tenure: Tenure) -> None:
        """Drain (handover or stop): finish, make prefetched messages visible, then ``tenure.drained()``."""

    def lost(self, tenure: Tenure, reason: str) -> None: ...


FunctionKind: TypeAlias = Literal["orchestrator", "activity"]
ORCHESTRATOR: Final = "orchestrator"
ACTIVITY: Final = "activity"
"""The kinds of functions; a worker that runs functions of a kind has the role of the same name."""
WATCHER = "watcher"
"""Role of a member that waits for instances on behalf of Airflow's tasks, and runs nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A worker as it lists itself in the hub.

    :param worker: ``name@host/incarnation``. :param started: when, by its own clock.
    :param apps: versions by the app's name. :param orchestrators: names of those that it can run.
    :param activities: names of those that it can run. :param running: activities that run in it.
    :param roles: of ``orchestrator``, ``activity``, or ``watcher`` for a reader that runs nothing.
    :param weight: its share of partitions against that of others.
    :param alive: judged by the reader from the row's ETag still changing (never from clocks); True when just written.
    :param accepts: by orchestrator, the versions of instances that it can continue, its own included. An
        orchestrator that is not listed can continue every version.
    """

    worker: str
    started: Timestamp
    roles: tuple[str, ...]
    apps: Mapping[str, str]
    """App name → version."""
    orchestrators: tuple[str, ...]
    activities: tuple[str, ...]
    running: int = 0
    weight: int = 1
    alive: bool = True
    accepts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def functions(self, kind: FunctionKind) -> tuple[str, ...]:
        """Names of its orchestrators, or of its activities. :param kind: ``orchestrator`` or ``activity``."""
        return self.orchestrators if kind == ORCHESTRATOR else self.activities


@dataclass(frozen=True, slots=True, order=True)
class Need:
    """A function that some work needs.

    :param version: of the instance that an orchestrator runs; "" is any. Activities have none.
    """

    kind: FunctionKind
    name: str
    version: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}" + (f" of version {self.version!r}" if self.version else "")


class RecordState(StrEnum):
    """Of an activity record."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    LOST = "lost"  # superseded: its holder fell silent and another attempt was claimed
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"  # written by a newer version of this package, or damaged: shown, never changed


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityRecord:
    """One attempt of a recorded activity: a row of ``{Hub}Activities``.

    :param instance: the orchestration and its generation. :param task_id: number of its TaskScheduled event.
    :param action_id: of the call, the same for each of its attempts.
    :param attempt: from 1; counts deliveries that were claimed, loss of workers included.
    :param name: of the activity. :param state: what became of the attempt.
    :param worker: that runs or ran it. :param executor: the process of that worker.
    :param claimed: when it began, by the worker's clock. :param ended: when it ended; None: it has not.
    :param progress: between 0 and 1, or None. :param message: what the activity last said of its progress.
    :param application_id: Spark's. :param job_group: Spark's. :param spark_ui: address of Spark's own page.
    :param log: name of its log, for ``InstanceHandle.log``.
    :param result: JSON text; None if it has none, or if it is stored apart.
    :param failure: why it failed.
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
    ended: Timestamp | None = None
    progress: float | None = None
    message: str | None = None
    application_id: str | None = None
    job_group: str | None = None
    spark_ui: str | None = None
    log: str | None = None
    result: str | None = None
    failure: FailureDetails | None = None


_STAMP = re.compile(r"(\d{1,19})(?:/([0-9a-f]{1,32})/(\d{1,10}))?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """When a suspension or resume was sent, as far as that is known (``facts.precedes``).

    :param inserted: when its message was enqueued, by the storage service; Azure tells the second.
    :param process: which process sent it; "" if the message does not say so, as of .NET.
    :param number: how many messages that process had sent by then.
    """

    inserted: Timestamp
    process: str = ""
    number: int = 0

    def text(self) -> str:
        """``ticks``, or ``ticks/process/number``, as our columns hold it."""
        text = f"{self.inserted.ticks}/{self.process}/{self.number}"
        return text if _STAMP.fullmatch(text) else str(self.inserted.ticks)

    @classmethod
    def parse(cls, text: object) -> Stamp | None:
        """Read a column; None when it is missing or damaged."""
        found = _STAMP.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            return None
        return cls(inserted=Timestamp(int(found[1])), process=found[2] or "", number=int(found[3] or 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspension:
    """A suspension that came before the first checkpoint of its run: the run begins with it.

    :param run: execution id of the run. :param by: who ordered it; "" where the message does not say so.
    :param at: when, by that machine's clock.
    """

    run: str
    reason: str
    by: str
    at: Timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceState:
    """An instance as its row says it; large values already fetched when asked for.

    :param instance_id: its id. :param execution_id: of its present generation.
    :param name: of the orchestrator. :param status: its status. :param version: that it was started with.
    :param created: when it was started. :param updated: when its row was last written.
    :param completed: when it ended; None: it has not.
    :param scheduled_start: it does not begin before this time; None: at once.
    :param generation: how often its id was started before; None: unknown, as with a .NET client.
    :param tags: that it was started with.
    :param input, output, custom_status: JSON texts; ``output`` of a failed instance is plain text.
    :param failure: details of the failure where our own column has them (``retryable`` is in its ``is_non_retriable``).
    :param suspended_by: who ordered its suspension; None: it is not suspended, or the order does not say so.
    :param suspended_at: when, by that machine's clock; for people.
    :param etag: of the row.
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
    generation: int | None = None
    tags: Mapping[str, str] | None = None
    failure: FailureDetails | None = None
    suspended_by: str | None = None
    suspended_at: Timestamp | None = None
    etag: str = ""

    @property
    def is_held(self) -> bool:
        """Whether it is suspended, or will be as soon as it begins. One that was rewound is Pending too, but has an end
        in its row."""
        begins_held = self.status is Status.PENDING and self.suspended_at is not None and self.completed is None
        return begins_held or self.status is Status.SUSPENDED


class StartPolicy(StrEnum):
    """What a start does when its instance id is taken."""

    REFUSE = "refuse"  # InstanceExists, whatever its status
    ATTACH = "attach"  # nothing, except that a Pending instance's start message is put again
    REPLACE_FINISHED = "replace_finished"  # a new generation if it has ended; InstanceExists while it runs


TABLE, BLOB = "table", "blob"
"""Lease stores: rows of ``{Hub}Partitions``; blobs of ``{hub}-leases``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubInfo:
    """How a hub is made, as its row says it.

    :param partitions: number of its control queues, fixed for ever.
    :param lease_store: where its leases are: ``table`` or ``blob``.
    :param format_version: of what is stored. :param ready: whether its creation was finished.
    """

    partitions: int
    lease_store: str = TABLE
    format_version: int = FORMAT_VERSION
    ready: bool = False


class OwnerState(StrEnum):
    """What a reader's looks say of who serves a partition."""

    LIVE = "live"  # its owner goes on to renew the lease
    SILENT = "silent"  # its owner has not renewed it when it should have: dead, paused, or cut off from the store
    UNPROVEN = "unproven"  # it has an owner, and the reader has not watched for long enough to say whether it lives
    KICKED = "kicked"  # an administrator made its owner hand it over, and nobody has taken it since
    RELEASED = "released"  # its owner gave it up, and nobody has taken it since
    NEW = "new"  # nobody has served it yet
    OFFLINE = "offline"  # nobody serves it, nor is to, by order
    MISSING = "missing"  # it has no lease row


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """Who serves a partition.

    :param owner: full name of the worker in its lease, alive or not as ``state`` says.
    :param offline: by order nobody is to serve it; a live owner hands it over within a scan, a dead one stays.
    """

    partition: int
    owner: str | None
    state: OwnerState
    offline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """A partition: who serves it, and how much waits.

    :param partition: its number. :param queue: name of its control queue. :param state: whether its owner lives.
    :param next_owner: the worker that is to take it; None: nobody. :param draining: its owner is handing it over.
    :param epoch: count of its owners. :param owned_since: by the owner's clock.
    :param last_renewal: of the lease, by the owner's clock. :param messages: in its queue, about.
    :param owner: of the lease, alive or not as ``state`` says. :param load: messages a second, as its owner
        published it; None: it has not been served for long enough to tell.
    :param offline: by order nobody is to serve it.
    :param polled: when its owner last asked its queue for messages, by the owner's own clock. :param kicked: who made
        an owner hand it over last, and when.
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


class ControlKind(StrEnum):
    """What an administrator can order."""

    OFFLINE = "offline"  # a partition: nobody serves it
    PROHIBIT = "prohibit"  # a partition and a node: that node never serves it
    CAP = "cap"  # of partitions, for a node or for every worker
    TURN = "turn"  # of partitions that a worker takes or asks for in one scan
    DRAIN = "drain"  # a node: it hands everything over and takes nothing
    UNKNOWN = "unknown"  # of a newer version of this package


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """An order in force: a row of ``{Hub}Controls``.

    :param node: ``name@host/incarnation``, ``name@host``, ``name`` or ``@host``; None: every worker.
    :param by, at: who gave it, and when by that machine's clock; for people.
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
    """What a host says of a partition that it serves.

    :param load: messages a second, smoothed; None: not known yet. :param unpolled: seconds since it made progress with
        the queue. :param runs: orchestrators of the partition's instances that ran lately. :param lacks: orchestrators
        that messages wait for and this worker does not have; the longest waiting first.
    """

    load: float | None = None
    unpolled: float = 0.0
    runs: tuple[Need, ...] = ()
    lacks: tuple[Need, ...] = ()
