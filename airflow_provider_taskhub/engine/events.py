"""The history events of DurableTask.Core, as frozen dataclasses.

Inputs, results, event data and custom statuses are JSON *texts* here; the orchestration context decodes them. Fields
that only TaskHub writes start with ``taskhub_``. These fields are optional, because rows and messages of .NET do not
have them. This module is long because it has one class for each event type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import IntEnum, StrEnum
from typing import ClassVar

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.fast_dataclass import dataclass

REWOUND = "Rewound: "
"""Prefix of the reason in a history row that a rewind has rewritten. After the prefix, the reason has the event type
that the row had before."""


class EventType(IntEnum):
    """The types of events. Numbers and names are those of DurableTask.Core; history rows store the names."""

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
    """The status of an instance, with the names of DurableTask."""

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
        """The number of this status in DurableTask's enum. Messages store the number."""
        return _STATUS_ORDER.index(self)

    @classmethod
    def of_number(cls, number: int) -> Status:
        """Return the status for a number of DurableTask's enum.

        :param number: the number, as in a message.
        """
        return _STATUS_ORDER[number]

    @property
    def is_final(self) -> bool:
        """Whether an instance with this status has ended."""
        return self is Status.COMPLETED or self.is_unsuccessful

    @property
    def is_unsuccessful(self) -> bool:
        """Whether an instance with this status has ended without a result."""
        return self in (Status.FAILED, Status.CANCELED, Status.TERMINATED)


_STATUS_ORDER = tuple(Status)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrchestrationInstance:
    """An instance, and optionally one of its generations. Each ``continue_as_new`` begins a new generation.

    :param instance_id: id of the instance.
    :param execution_id: execution id of the generation; None: unknown, or any generation.
    """

    instance_id: str
    execution_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentInstance:
    """The parent of a child, as the child's start event has it.

    :param name: name of the parent's orchestrator.
    :param instance: instance and execution id of the parent.
    :param task_schedule_id: number of the parent's action that started the child.
    :param version: version of the parent's orchestrator.
    """

    name: str
    instance: OrchestrationInstance
    task_schedule_id: int
    version: str | None = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureDetails:
    """An error as DurableTask records it.

    :param error_type: name of the error's class, with its module.
    :param error_message: text of the error.
    :param stack_trace: stack trace of the user code, as text; None: unknown.
    :param inner_failure: cause of the error; None if it has no cause.
    :param is_non_retriable: whether a retry is forbidden.
    :param properties: additional values that a .NET worker recorded; None: there are none.
    """

    error_type: str
    error_message: str
    stack_trace: str | None = None
    inner_failure: FailureDetails | None = None
    is_non_retriable: bool = False
    properties: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceContext:
    """A W3C trace context, as DurableTask's events carry it in ``ParentTraceContext``.

    :param trace_parent: the W3C ``traceparent`` text.
    :param trace_state: the W3C ``tracestate`` text.
    :param id: ``traceparent`` of the orchestration's own span, in the history of a traced orchestration.
    :param span_id: span id of the orchestration's own span; None: the orchestration is not traced.
    :param activity_start_time: when the orchestration's own span began.
    """

    trace_parent: str | None = None
    trace_state: str | None = None
    id: str | None = None
    span_id: str | None = None
    activity_start_time: Timestamp | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEvent:
    """The fields that all events have.

    :param timestamp: when the event happened.
    :param event_id: number of the action, for an event that an action made; -1 for events that arrive as messages and
        for events that mark an episode.
    :param is_played: whether the event was processed. DurableTask stores this field; TaskHub never reads it.
    :param taskhub_message_id: id of the queue message that brought the event. If the answer to a commit is lost, the
        worker finds this id in the history and knows that the commit succeeded. None: no message brought the event.
    """

    event_type: ClassVar[EventType]

    timestamp: Timestamp
    event_id: int = -1
    is_played: bool = False
    taskhub_message_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionStarted(HistoryEvent):
    """The start of an instance, or its new start after ``continue_as_new``.

    :param taskhub_row_etag: ETag of the instance row that the TaskHub client inserted together with this start; None
        in other starts.
    :param taskhub_children: the children that were started before the ``continue_as_new`` and have not completed, as a
        JSON list (:func:`.children.carried`); None: there are none.
    :param taskhub_depth: how many ancestors wait for a child, each for the next one; None: none is known to wait.
    :param taskhub_root: instance id of the oldest ancestor of a child; None: the instance has no parent, or a .NET
        worker ran the parent.
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
    taskhub_root: str | None = None
    taskhub_depth: int | None = None

    @property
    def root(self) -> str | None:
        """Instance id of the oldest known ancestor; None: the instance has no parent."""
        return self.taskhub_root or (self.parent.instance.instance_id if self.parent is not None else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionCompleted(HistoryEvent):
    """The end of an instance.

    :param status: final status of the instance.
    :param result: result as JSON text; for a failed instance the plain text of the error; for a terminated instance the
        reason of the terminate.
    :param failure: the error of a failed instance; else None.
    """

    event_type = EventType.ExecutionCompleted

    status: Status
    result: str | None = None
    failure: FailureDetails | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionTerminated(HistoryEvent):
    """A request to terminate the instance.

    :param input: reason of the terminate.
    :param taskhub_execution_id: an execution id of the run that the message is for. (A *run* is one start of the
        instance with all that follows, so ``continue_as_new`` does not end it.) None: the sender does not name a run;
        a .NET client never does. Other messages use this field in the same way.
    :param taskhub_recurse: whether the instance's children are terminated too.
    :param taskhub_child: name of the instance's orchestrator if the instance's parent sent this message; else None.
    :param taskhub_grace: seconds for a clean-up by the instance's code; None: the instance ends at once.
    :param taskhub_cancels: number of the call of the parent's code with which the instance was started, if that code
        has cancelled the call. The instance then tells its parent when it has ended; None: another terminate.
    :param taskhub_left_over: whether the message ends only what a failed run has left running. A run that is live, such
        as one that was rewound meanwhile, does not take it.
    """

    event_type = EventType.ExecutionTerminated

    input: str | None = None
    taskhub_execution_id: str | None = None
    taskhub_recurse: bool | None = None
    taskhub_child: str | None = None
    taskhub_grace: int | None = None
    taskhub_cancels: int | None = None
    taskhub_left_over: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScheduled(HistoryEvent):
    """The decision to run an activity.

    :param taskhub_action_id: id that each replay computes again for the same call (``identity.action_id``); None if a
        .NET worker wrote the event.
    """

    event_type = EventType.TaskScheduled

    name: str
    version: str | None = ""
    input: str | None = None
    parent_trace_context: TraceContext | None = None
    tags: Mapping[str, str] | None = None
    taskhub_action_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCompleted(HistoryEvent):
    """The result of an activity.

    :param task_scheduled_id: number of the action that called the activity.
    :param result: result as JSON text.
    :param taskhub_action_id: identity of the action that called the activity; None in answers of a .NET worker.
    """

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
    """The decision to start a child.

    :param reason: ``Rewound: <event type>`` in the row of a child that was rewound together with its parent; None in
        all other rows and in messages.
    """

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
    """The decision to make a timer.

    :param fire_at: when the timer fires.
    :param taskhub_role: for a timer that follows a failed attempt, the retry decision as text
        (:func:`.recorded.retry_role`); for the timer that ends a clean-up, :data:`.grace.ROLE`. None: another timer, or
        .NET or an earlier version of TaskHub wrote the row.
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
        """When the timer fired. The event is made together with the timer, so its timestamp alone can be too early."""
        return max(self.timestamp, self.fire_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrchestratorStarted(HistoryEvent):
    """The beginning of an episode. Its timestamp is the orchestrator's time during the episode."""

    event_type = EventType.OrchestratorStarted


@dataclass(frozen=True, slots=True, kw_only=True)
class OrchestratorCompleted(HistoryEvent):
    """The end of an episode.

    :param taskhub_waits: the waits that the episode began and ended, as text. Only the timeline that people see uses
        it (:class:`.wait_changes.Waits`).
    """

    event_type = EventType.OrchestratorCompleted

    taskhub_waits: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSent(HistoryEvent):
    """The orchestrator has sent an event to an instance, or has cancelled one of its own calls.

    :param taskhub_cancels: number of the call that the orchestrator has cancelled; None: an event was sent.
    """

    event_type = EventType.EventSent

    instance_id: str
    name: str
    input: str | None = None
    taskhub_action_id: str | None = None
    taskhub_cancels: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRaised(HistoryEvent):
    """An external event for the instance.

    :param taskhub_process: id of the process that sent the message; None in a history, and for a .NET client.
    """

    event_type = EventType.EventRaised

    name: str
    input: str | None = None
    parent_trace_context: TraceContext | None = None
    taskhub_process: str | None = None
    taskhub_execution_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinueAsNew(ExecutionCompleted):
    """An event type of DurableTask that no history has: DurableTask never stores it and TaskHub never makes it."""

    event_type = EventType.ContinueAsNew


@dataclass(frozen=True, slots=True, kw_only=True)
class GenericEvent(HistoryEvent):
    """A history row that a rewind has rewritten, or a message that only wakes the instance.

    :param data: in a message: the reason of the rewind, or why an activity did not begin; None in a rewritten row.
    :param reason: ``Rewound: <former event type>`` in a rewritten row.
    :param name: name column of a rewritten row.
    :param original: the other columns of a rewritten row, unchanged; None in a message.
    """

    event_type = EventType.GenericEvent

    data: str | None = None
    reason: str | None = None
    name: str | None = None
    original: Mapping[str, object] | None = None
    taskhub_execution_id: str | None = None

    @property
    def is_rewind(self) -> bool:
        """Whether this is the rewritten row of a completion. Each rewind rewrites exactly one completion."""
        return self.reason == f"{REWOUND}{EventType.ExecutionCompleted.name}"

    @property
    def is_message(self) -> bool:
        """Whether this event came as the message of a rewind and is not a rewritten row.

        A history can have no, one or several such events for one rewind. Other new events can stand before them.
        """
        return self.event_id < 0 and not (self.reason or "").startswith(REWOUND)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryState(HistoryEvent):
    event_type = EventType.HistoryState

    state: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionSuspended(HistoryEvent):
    """A request to suspend the instance.

    :param taskhub_process: as in :class:`EventRaised`.
    :param taskhub_by: user who asked for the suspension, such as ``ann@node7``; None: the client does not name a user.
    """

    event_type = EventType.ExecutionSuspended

    reason: str | None = None
    taskhub_process: str | None = None
    taskhub_by: str | None = None
    taskhub_execution_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionResumed(HistoryEvent):
    """A request to resume the instance.

    :param taskhub_process: as in :class:`EventRaised`.
    """

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
