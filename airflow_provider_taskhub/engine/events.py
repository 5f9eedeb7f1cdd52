"""History events: DurableTask.Core's, as frozen values. One class for each type, hence the length of this module.

Inputs, results, event payloads and custom statuses are JSON *texts* here; decoding them is the context's work.
Members that are ours alone start with ``taskhub_`` and are optional: a .NET row or message without them is handled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import IntEnum, StrEnum
from typing import ClassVar

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.fast_dataclass import dataclass

REWOUND = "Rewound: "
"""How the reason of a row begins that a rewind rewrote; its former event type follows."""


class EventType(IntEnum):
    """DurableTask.Core's numbers; member names are its names in table rows."""

    ExecutionStarted = 0
    ExecutionCompleted = 1
    ExecutionFailed = 2
    ExecutionTerminated = 3
    TaskScheduled = 4
    TaskCompleted = 5
    TaskFailed = 6
    SubOrchestrationInstanceCreated = 7
    SubOrchestrationInstanceCompleted = 8
    SubOrchestrationInstanceFailed = 9
    TimerCreated = 10
    TimerFired = 11
    OrchestratorStarted = 12
    OrchestratorCompleted = 13
    EventSent = 14
    EventRaised = 15
    ContinueAsNew = 16
    GenericEvent = 17
    HistoryState = 18
    ExecutionSuspended = 19
    ExecutionResumed = 20
    ExecutionRewound = 21


class Status(StrEnum):
    """The status of an instance, by DurableTask's names."""

    RUNNING = "Running"
    COMPLETED = "Completed"
    CONTINUED_AS_NEW = "ContinuedAsNew"
    FAILED = "Failed"
    CANCELED = "Canceled"
    TERMINATED = "Terminated"
    PENDING = "Pending"
    SUSPENDED = "Suspended"

    @property
    def number(self) -> int:
        """The value of DurableTask's enum, which stands in messages."""
        return _STATUS_ORDER.index(self)

    @classmethod
    def of_number(cls, number: int) -> Status:
        """The status of a value of DurableTask's enum. :param number: as a message has it."""
        return _STATUS_ORDER[number]

    @property
    def is_final(self) -> bool:
        """Whether an instance with this status has ended."""
        return self in (Status.COMPLETED, Status.FAILED, Status.CANCELED, Status.TERMINATED)


_STATUS_ORDER = tuple(Status)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrchestrationInstance:
    """An instance and, where known, the generation of it that is meant."""

    instance_id: str
    execution_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentInstance:
    """Who started a child: the parent and the number of its scheduling event."""

    name: str
    instance: OrchestrationInstance
    task_schedule_id: int
    version: str | None = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureDetails:
    """An error as DurableTask records it.

    :param error_type: name of its class, with its module. :param error_message: its text.
    :param stack_trace: of the user's code, as text. :param inner_failure: its cause.
    :param is_non_retriable: whether no retry may follow.
    :param properties: more that a .NET worker recorded.
    """

    error_type: str
    error_message: str
    stack_trace: str | None = None
    inner_failure: FailureDetails | None = None
    is_non_retriable: bool = False
    properties: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceContext:
    """W3C trace context of DurableTask's ``ParentTraceContext``."""

    trace_parent: str | None = None
    trace_state: str | None = None
    id: str | None = None
    span_id: str | None = None
    activity_start_time: Timestamp | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEvent:
    """What every event of a history has. Its class tells its kind.

    :param timestamp: when it happened. :param is_played: for DurableTask; always False here.
    :param event_id: the action number of a scheduling event; -1 for everything that arrives or is bookkeeping.
    :param taskhub_message_id: queue message id of the message that brought the event: a commit whose answer was lost is
        recognised by it.
    """

    event_type: ClassVar[EventType]

    timestamp: Timestamp
    event_id: int = -1
    is_played: bool = False
    taskhub_message_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionStarted(HistoryEvent):
    """
    :param taskhub_row_etag: ETag of the instance row that our client inserted with this start.
    :param taskhub_children: the children of earlier generations that have not completed (``family.carried``).
    """

    event_type = EventType.ExecutionStarted

    instance: OrchestrationInstance
    name: str
    input: str | None = None
    version: str | None = ""
    parent: ParentInstance | None = None
    tags: Mapping[str, str] | None = None
    correlation: str | None = None
    parent_trace_context: TraceContext | None = None
    scheduled_start_time: Timestamp | None = None
    generation: int | None = None
    generate_new_trace: bool = False
    taskhub_row_etag: str | None = None
    taskhub_children: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionCompleted(HistoryEvent):
    """:param result: JSON of the result; of a failed orchestration the bare message."""

    event_type = EventType.ExecutionCompleted

    status: Status
    result: str | None = None
    failure: FailureDetails | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionTerminated(HistoryEvent):
    """
    :param taskhub_execution_id: names the run that the message is for, by the execution id of any of its generations;
        None: the sender does not say, as of .NET. The same in all messages that have it.
    :param taskhub_recurse: the instance's children end with it.
    :param taskhub_child: name of the instance's orchestrator, if its parent has sent the message; else None.
    """

    event_type = EventType.ExecutionTerminated

    input: str | None = None
    taskhub_execution_id: str | None = None
    taskhub_recurse: bool | None = None
    taskhub_child: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScheduled(HistoryEvent):
    """:param taskhub_action_id: the action's identity."""

    event_type = EventType.TaskScheduled

    name: str
    version: str | None = ""
    input: str | None = None
    parent_trace_context: TraceContext | None = None
    tags: Mapping[str, str] | None = None
    taskhub_action_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCompleted(HistoryEvent):
    """:param taskhub_action_id: echo of the request's identity; None from .NET."""

    event_type = EventType.TaskCompleted

    task_scheduled_id: int
    result: str | None = None
    taskhub_action_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFailed(HistoryEvent):
    event_type = EventType.TaskFailed

    task_scheduled_id: int
    reason: str | None = None
    details: str | None = None
    failure: FailureDetails | None = None
    taskhub_action_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubOrchestrationInstanceCreated(HistoryEvent):
    """:param reason: ``Rewound: <type>`` in the row of a child that was rewound with its parent; None in a message."""

    event_type = EventType.SubOrchestrationInstanceCreated

    name: str
    instance_id: str
    version: str | None = ""
    input: str | None = None
    client_span_id: str | None = None
    tags: Mapping[str, str] | None = None
    reason: str | None = None
    taskhub_action_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubOrchestrationInstanceCompleted(HistoryEvent):
    event_type = EventType.SubOrchestrationInstanceCompleted

    task_scheduled_id: int
    result: str | None = None
    taskhub_action_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubOrchestrationInstanceFailed(HistoryEvent):
    event_type = EventType.SubOrchestrationInstanceFailed

    task_scheduled_id: int
    reason: str | None = None
    details: str | None = None
    failure: FailureDetails | None = None
    taskhub_action_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerCreated(HistoryEvent):
    """:param taskhub_role: of the timer behind a failed attempt: what its retry policy decided, as ``recorded`` writes
    it. None: another timer, or the row is of .NET or of an earlier version.
    """

    event_type = EventType.TimerCreated

    fire_at: Timestamp
    taskhub_action_id: str | None = None
    taskhub_role: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired(HistoryEvent):
    event_type = EventType.TimerFired

    timer_id: int
    fire_at: Timestamp
    taskhub_action_id: str | None = None

    @property
    def fired_at(self) -> Timestamp:
        """When it fired. The event is made together with its timer, so its timestamp may be too early."""
        return max(self.timestamp, self.fire_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrchestratorStarted(HistoryEvent):
    """Its timestamp is the orchestrator's current time in the episode."""

    event_type = EventType.OrchestratorStarted


@dataclass(frozen=True, slots=True, kw_only=True)
class OrchestratorCompleted(HistoryEvent):
    """:param taskhub_waits: waits that the episode began and ended, for people (:class:`.waits.Waits`)."""

    event_type = EventType.OrchestratorCompleted

    taskhub_waits: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSent(HistoryEvent):
    event_type = EventType.EventSent

    instance_id: str
    name: str
    input: str | None = None
    taskhub_action_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRaised(HistoryEvent):
    event_type = EventType.EventRaised

    name: str
    input: str | None = None
    parent_trace_context: TraceContext | None = None
    taskhub_execution_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinueAsNew(ExecutionCompleted):
    """Read only: DurableTask never stores it."""

    event_type = EventType.ContinueAsNew


@dataclass(frozen=True, slots=True, kw_only=True)
class GenericEvent(HistoryEvent):
    """What a rewind leaves in place of a failed event, and what it sends as its message.

    :param data: of the message only. :param reason: ``Rewound: <type>`` in a rewritten row.
    :param original: the other columns of a rewritten row, as they were; None in a message.
    """

    event_type = EventType.GenericEvent

    data: str | None = None
    reason: str | None = None
    name: str | None = None
    original: Mapping[str, object] | None = None
    taskhub_execution_id: str | None = None

    @property
    def is_rewind(self) -> bool:
        """Whether it stands for a completion that was taken back: of each rewind one row does."""
        return self.reason == f"{REWOUND}{EventType.ExecutionCompleted.name}"

    @property
    def is_message(self) -> bool:
        """Whether a rewind has sent it: one or more, before or after what else wakes the instance, or none."""
        return self.event_id < 0 and not (self.reason or "").startswith(REWOUND)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryState(HistoryEvent):
    event_type = EventType.HistoryState

    state: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionSuspended(HistoryEvent):
    """:param taskhub_process: names the client process that has sent the message; None in a history.
    :param taskhub_by: who ordered it, such as ``ann@node7``; None where the client does not say so.
    """

    event_type = EventType.ExecutionSuspended

    reason: str | None = None
    taskhub_process: str | None = None
    taskhub_by: str | None = None
    taskhub_execution_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionResumed(HistoryEvent):
    """:param taskhub_process: as in :class:`ExecutionSuspended`."""

    event_type = EventType.ExecutionResumed

    reason: str | None = None
    taskhub_process: str | None = None
    taskhub_execution_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionRewound(HistoryEvent):
    event_type = EventType.ExecutionRewound

    reason: str | None = None
    parent_execution_id: str | None = None
    instance_id: str | None = None
    parent_trace_context: TraceContext | None = None
