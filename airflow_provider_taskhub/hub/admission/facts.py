"""Define the input and the output of admission: the message, the facts about its instance, and the verdict.

Admission decides what the worker does with a message, before any code of the instance runs.

The times of messages and of the sentinel come from the storage service. Admission does not use the clock of a worker.
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
SUSPENSIONS = (ExecutionSuspended, ExecutionResumed)
SOON_CEILING = 4.0
LATER_CEILING = 600.0


class Verdict(StrEnum):
    """What the worker does with a message."""

    PROCESS = "process"  # the next episode processes the message
    DISCARD = "discard"  # delete the message, and log the reason
    DEFER = "defer"  # hide the message for a while; no failure is counted
    HOLD = "hold"  # keep the message in memory until another message of its instance comes, at most two minutes
    RETRY_SOON = "retry_soon"  # a checkpoint is under way: hide the message for 0.1, 0.2 … 4 s, and count a failure
    RETRY_LATER = "retry_later"  # hide the message for 2, 4 … 600 s, and count a failure; at the limit: quarantine
    ORPHAN = "orphan"  # no run exists for the message, but a start may come: discard the message after two minutes
    NEEDS_ROW = "needs_row"  # read the instance row and the time of the last checkpoint, then judge the message again
    RECORD = "record"  # a suspension or resume came before the first checkpoint: store it in the sentinel
    REFUSE = "refuse"  # the run of a child never begins: store its name in the sentinel, and answer its start
    END = "end"  # a terminate came before the first checkpoint: commit start, terminate and completion together


class MessageKind(StrEnum):
    """Kind of a message."""

    CLIENT_START = "start by a client"
    CHILD_START = "start by a parent"
    ANSWER = "answer"
    EVENT = "event"
    SUSPENSION = "suspend or resume"
    TERMINATE = "terminate"
    REWIND = "rewind"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFacts:
    """The columns of the instance row that admission uses.

    :param execution_id: execution id of the run that the row belongs to; None: the instance has no row.
    :param status: status of the instance.
    :param restarts: how often the instance id was started before this run; None: unknown.
    :param due: time of a scheduled start; None: the run starts at once.
    """

    execution_id: str | None = None
    status: Status | None = None
    restarts: int | None = None
    due: Timestamp | None = None

    @property
    def pending(self) -> bool:
        return self.status is Status.PENDING

    @property
    def ended(self) -> bool:
        return self.status is not None and self.status.is_final


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts about an instance that admission uses. The stored run is the run that the sentinel names.

    :param execution_id: execution id in the sentinel; None: the instance has no history.
    :param ended: names of earlier runs under this id (``identity.run_name``).
    :param checkpointed: time of the sentinel's last change, by the storage service; None: not read, or no sentinel.
    :param scheduled: event ids of the events in the history that scheduled an activity, child or timer.
    :param final: True if the history ends with a completion.
    :param rewound: whether the history has the mark of a rewind. ``continue_as_new`` removes it.
    :param parent: parent that started the stored run; None: a client started it.
    :param fire_and_forget: True if the parent does not wait for the stored run.
    :param seen: identities of messages that were processed: the history has the event of such a message, or the
        sentinel lists the identity.
    :param suspension_stamp: stamp of the newest suspension or resume that was processed, in any run of this id.
    :param row: the instance row; None: it was not read.
    """

    execution_id: str | None = None
    ended: Set[str] = frozenset()
    checkpointed: Timestamp | None = None
    scheduled: Set[int] = frozenset()
    final: bool = False
    rewound: bool = False
    parent: ParentInstance | None = None
    fire_and_forget: bool = False
    seen: Set[str] = frozenset()
    suspension_stamp: Stamp | None = None
    row: RowFacts | None = None

    @property
    def live(self) -> bool:
        """True if there is a stored run that has not ended."""
        return self.execution_id is not None and not self.final

    def processed(self, identity: str) -> bool:
        """Return True if the message with this identity was processed already.

        This is the first rule of admission. A worker that reloads an instance applies this rule again.
        """
        return identity in self.seen

    def ended_with(self, execution_id: str | None) -> Set[str]:
        """Return the names of the earlier runs and of one more run.

        :param execution_id: execution id of the one more run; None: there is no such run.
        """
        return self.ended if execution_id is None else {*self.ended, run_name(execution_id)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """The parts of a received message that admission uses.

    :param event: event that the message carries.
    :param execution_id: generation that the message is for; None: the current generation.
    :param identity: identity of the message, the same in each delivery (``Delivery.identity``).
    :param stamp: when the message was enqueued, and by which process.
    :param now: present time, by the clock of the storage service. The value may be a little old.
    :param sender: orchestration that sent the message, with its generation; None: a client sent the message.
    :param deliveries: how many deliveries of the message a worker has certainly or possibly begun to process; this one
        included.
    :param failures: how often the message was returned to the queue with a counted failure.
    :param spent: True if the next counted failure exceeds the limit.
    :param waited: True if this worker has held the message in memory for as long as it may.
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
    waited: bool = False

    @property
    def kind(self) -> MessageKind:
        event = self.event
        if isinstance(event, ExecutionStarted):
            return MessageKind.CLIENT_START if event.parent is None else MessageKind.CHILD_START
        if scheduling_id(event) is not None:
            return MessageKind.ANSWER
        if isinstance(event, EventRaised):
            return MessageKind.EVENT
        if isinstance(event, SUSPENSIONS):
            return MessageKind.SUSPENSION
        return MessageKind.TERMINATE if isinstance(event, ExecutionTerminated) else MessageKind.REWIND

    @property
    def run(self) -> str | None:
        """Execution id of a generation of the run that the message is for; None: the message names no run."""
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
    """The result of admission for one message.

    :param verdict: what the worker does with the message.
    :param reason: why, as a text for the log.
    :param pause: how long a deferred message is hidden. Then it is judged again.
    :param forgotten: True if a discarded message was for an instance of which nothing is stored. The worker then also
        deletes the blob with the payload of the message: the purge of the instance may have come before this blob.
    """

    verdict: Verdict
    reason: str = ""
    pause: timedelta = timedelta(0)
    forgotten: bool = False


def scheduling_id(event: HistoryEvent) -> int | None:
    """Return the number of the action that an answer belongs to; None if the event is not an answer."""
    match event:
        case TaskCompleted() | TaskFailed() | SubOrchestrationInstanceCompleted() | SubOrchestrationInstanceFailed():
            return event.task_scheduled_id
        case TimerFired():
            return event.timer_id
        case _:
            return None


def precedes(one: Stamp, other: Stamp) -> bool:
    """Return True if a suspension or resume was sent before another one, or if both are the same message.

    A process numbers its messages, so the numbers give the order of two messages of one process. For messages of two
    processes, the times of the queue give the order. Azure's times have whole seconds. If both messages have the same
    second, neither precedes the other: then the message that is processed later wins.
    """
    if one.process and one.process == other.process:
        return one.number <= other.number
    return one.inserted < other.inserted


def newest(one: Stamp | None, other: Stamp | None) -> Stamp | None:
    """Return the stamp of the message that was sent later; None stands for no message, as argument and as result."""
    if one is None or other is None:
        return one or other
    return other if precedes(one, other) else one


def delay(verdict: Verdict, failures: int) -> timedelta:
    """Return how long a message with a counted failure is hidden.

    RETRY_SOON: 0.1, 0.2 … 4 s. ORPHAN: 0.1, 0.4 … 102 s. RETRY_LATER: 2, 4 … 600 s.

    :param failures: how many failures were counted before this one.
    """
    if verdict is Verdict.ORPHAN:
        return timedelta(seconds=0.1 * 4**failures)
    if verdict is Verdict.RETRY_SOON:
        return timedelta(seconds=min(SOON_CEILING, 0.1 * 2 ** min(failures, 10)))
    return timedelta(seconds=min(LATER_CEILING, 2.0 ** min(failures + 1, 10)))


def unknown_delay(dequeue_count: int) -> timedelta:
    """Return how long to hide a message that needs an orchestrator or activity which this worker lacks: 2, 4 … 15 s."""
    return timedelta(seconds=min(15.0, 2.0 * max(1, dequeue_count)))
