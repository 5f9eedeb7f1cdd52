"""What admission asks and answers: the message as it is judged, the facts of its instance, and the verdicts.

Times of messages and of the sentinel come from the storage service, so no clock of a worker matters.
"""

from __future__ import annotations

from collections.abc import Set
from datetime import timedelta
from enum import StrEnum

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import (
    EventRaised,
    ExecutionResumed,
    ExecutionStarted,
    ExecutionSuspended,
    ExecutionTerminated,
    HistoryEvent,
    OrchestrationInstance,
    ParentInstance,
    Status,
    SubOrchestrationInstanceCompleted,
    SubOrchestrationInstanceFailed,
    TaskCompleted,
    TaskFailed,
    TimerFired,
)
from airflow_provider_taskhub.engine.identity import run_name
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub.model import Stamp

SECOND = 10_000_000
STEERING = (ExecutionSuspended, ExecutionResumed)
SOON_CEILING = 4.0
LATER_CEILING = 600.0


class Verdict(StrEnum):
    PROCESS = "process"  # it goes into the episode
    DISCARD = "discard"  # it is deleted, and the log says why
    DEFER = "defer"  # it is hidden for a while, and no failure is counted
    RETRY_SOON = "retry_soon"  # a checkpoint is under way: 0.1, 0.2 … 4 s, counted
    RETRY_LATER = "retry_later"  # 2, 4 … 600 s, counted; at the limit it goes to quarantine
    ORPHAN = "orphan"  # none is there, but a start may come: it waits two minutes, then it is discarded
    NEEDS_ROW = "needs_row"  # what decides, the instance row or the time of the last checkpoint, was not read yet
    RECORD = "record"  # a suspension or resume before the first checkpoint: it is stored in the sentinel
    END = "end"  # a terminate before the first checkpoint: start, terminate and completion are one checkpoint


class Kind(StrEnum):
    CLIENT_START = "start by a client"
    CHILD_START = "start by a parent"
    ANSWER = "answer"
    EVENT = "event"
    ORDER = "suspend or resume"
    TERMINATE = "terminate"
    REWIND = "rewind"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What the instance row says.

    :param execution_id: None: there is no row. :param generation: its count of starts.
    :param due: when it is scheduled to start.
    """

    execution_id: str | None = None
    status: Status | None = None
    generation: int | None = None
    due: Timestamp | None = None

    @property
    def pending(self) -> bool:
        return self.status is Status.PENDING

    @property
    def ended(self) -> bool:
        return self.status is not None and self.status.is_final


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of an instance.

    :param execution_id: of the sentinel; None when there is no history.
    :param ended: names of earlier runs under this id (``identity.run_name``).
    :param checkpointed: the storage service's time of the sentinel's last change; None: not read, or no sentinel.
    :param scheduled: event ids of the scheduling events in the history.
    :param final: the history ends in a completion. :param parent: who has started the stored run.
    :param seen: identities of messages whose events are in the history, or that the sentinel remembers.
    :param steered: stamp of the newest suspension or resume that was taken, in any run.
    :param row: None: not read.
    """

    execution_id: str | None = None
    ended: Set[str] = frozenset()
    checkpointed: Timestamp | None = None
    scheduled: Set[int] = frozenset()
    final: bool = False
    parent: ParentInstance | None = None
    seen: Set[str] = frozenset()
    steered: Stamp | None = None
    row: Row | None = None

    @property
    def live(self) -> bool:
        """Whether there is a stored run that has not ended."""
        return self.execution_id is not None and not self.final

    def ended_with(self, execution_id: str | None) -> Set[str]:
        """The earlier runs, and one more."""
        return self.ended if execution_id is None else {*self.ended, run_name(execution_id)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """A message, as far as it is judged.

    :param execution_id: the generation that it is addressed to; None: whatever is current.
    :param identity: by what a redelivery is known (``Delivery.identity``).
    :param stamp: when it was enqueued, and by whom. :param now: the storage service's time, or one shortly before.
    :param sender: the orchestration that has sent it, with its generation; None: a client has.
    :param deliveries: how often somebody has begun to process it, or may have; this time included.
    :param failures: how often it was given back as failed. :param spent: once more is one time too many.
    """

    event: HistoryEvent
    execution_id: str | None
    identity: str
    stamp: Stamp
    now: Timestamp
    sender: OrchestrationInstance | None = None
    deliveries: int = 1
    failures: int = 0
    spent: bool = False

    @property
    def kind(self) -> Kind:
        event = self.event
        if isinstance(event, ExecutionStarted):
            return Kind.CLIENT_START if event.parent is None else Kind.CHILD_START
        if scheduling_id(event) is not None:
            return Kind.ANSWER
        if isinstance(event, EventRaised):
            return Kind.EVENT
        if isinstance(event, STEERING):
            return Kind.ORDER
        return Kind.TERMINATE if isinstance(event, ExecutionTerminated) else Kind.REWIND

    @property
    def run(self) -> str | None:
        """The run that it is for, by the execution id of one of its generations; None: it does not say."""
        event = self.event
        if isinstance(event, ExecutionStarted):
            return event.instance.execution_id
        if scheduling_id(event) is not None:
            return self.execution_id
        named: str | None = getattr(event, "taskhub_execution_id", None)
        return named

    @property
    def age(self) -> timedelta:
        return self.now - self.stamp.inserted


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """
    :param pause: until a deferred message may be processed, or has to be judged again.
    :param forgotten: nothing is left of what a discarded message was for: its payload is deleted too. A purge may have
        come before the payload was written.
    """

    verdict: Verdict
    reason: str = ""
    pause: timedelta = timedelta(0)
    forgotten: bool = False


def scheduling_id(event: HistoryEvent) -> int | None:
    """The action number that an answer is for; None for everything else."""
    match event:
        case TaskCompleted() | TaskFailed() | SubOrchestrationInstanceCompleted() | SubOrchestrationInstanceFailed():
            return event.task_scheduled_id
        case TimerFired():
            return event.timer_id
        case _:
            return None


def precedes(one: Stamp, other: Stamp) -> bool:
    """Whether a suspension or resume was sent before another one, or is the same one again.

    One process numbers what it sends. Of two processes the queue's time tells the order; within one second of Azure's
    clock nothing does, and neither precedes the other: the one that is processed later then counts.
    """
    if one.process and one.process == other.process:
        return one.number <= other.number
    return one.inserted < other.inserted


def newest(one: Stamp | None, other: Stamp | None) -> Stamp | None:
    """The stamp that was sent last."""
    if one is None or other is None:
        return one or other
    return other if precedes(one, other) else one


def delay(verdict: Verdict, failures: int) -> timedelta:
    """Until a counted message comes again: soon 0.1, 0.2 … 4 s; orphans 0.1, 0.4 … 102 s; later 2, 4 … 600 s."""
    if verdict is Verdict.ORPHAN:
        return timedelta(seconds=0.1 * 4**failures)
    if verdict is Verdict.RETRY_SOON:
        return timedelta(seconds=min(SOON_CEILING, 0.1 * 2 ** min(failures, 10)))
    return timedelta(seconds=min(LATER_CEILING, 2.0 ** min(failures + 1, 10)))


def unknown_delay(dequeue_count: int) -> timedelta:
    """Until a message comes again whose orchestrator or activity this worker does not have: 2, 4 … 15 s."""
    return timedelta(seconds=min(15.0, 2.0 * max(1, dequeue_count)))
