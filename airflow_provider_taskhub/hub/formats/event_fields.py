"""Define the members of DurableTask's history events. The code that encodes and decodes messages and history rows uses
this table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Flag, auto
from functools import cached_property

from airflow_provider_taskhub.engine import events as ev
from airflow_provider_taskhub.engine.events import EventType, HistoryEvent
from airflow_provider_taskhub.hub.formats.json_values import Kind

HISTORY = "DurableTask.Core.History."
"""The .NET namespace of the event classes."""


class FieldPlace(Flag):
    """Where a member of an event is written: in messages, in history rows, or in both."""

    MESSAGE = auto()
    ROW = auto()
    BOTH = MESSAGE | ROW


@dataclass(frozen=True, slots=True, kw_only=True)
class EventField:
    """A member of an event.

    :param name: name in JSON and name of the column.
    :param field: name of the Python field.
    :param kind: kind of the member's value.
    :param required: True: an event without this member cannot be read. False: the Python field has a default.
    :param taskhub_only: True: DurableTask does not have this member. The member is written only if it has a value.
    :param where: whether messages, history rows or both have the member.
    """

    name: str
    field: str
    kind: Kind
    required: bool = False
    taskhub_only: bool = False
    where: FieldPlace = FieldPlace.BOTH


def _members_in(where: FieldPlace, members: tuple[EventField, ...]) -> tuple[EventField, ...]:
    return tuple(member for member in members if where in member.where)


@dataclass(frozen=True, kw_only=True)
class EventLayout:
    """How events of one class are written. The order of the members is DurableTask's.

    :param cls: the Python class of the events.
    :param before: members that are written before ``EventType``.
    :param after: members that are written after ``EventType``.
    :param own: members that DurableTask does not have. They are written last.
    """

    cls: type[HistoryEvent]
    before: tuple[EventField, ...]
    after: tuple[EventField, ...]
    own: tuple[EventField, ...]

    @cached_property
    def name(self) -> str:
        """Name of the class in DurableTask."""
        name = self.cls.event_type.name
        return name if name == "GenericEvent" else f"{name}Event"

    @property
    def members(self) -> tuple[EventField, ...]:
        return (*self.before, *self.after, *BASE, *self.own)

    @cached_property
    def row(self) -> tuple[EventField, ...]:
        """The members that a history row has."""
        return _members_in(FieldPlace.ROW, self.members)

    @cached_property
    def message(self) -> tuple[tuple[EventField, ...], tuple[EventField, ...]]:
        """The members that a message has before ``EventType``, and the members after ``EventType``."""
        return _members_in(FieldPlace.MESSAGE, self.before), _members_in(
            FieldPlace.MESSAGE, (*self.after, *BASE, *self.own)
        )


def _text(name: str, field: str, *, required: bool = False) -> EventField:
    return EventField(name=name, field=field, kind=Kind.TEXT, required=required)


def _taskhub(name: str, field: str, where: FieldPlace = FieldPlace.BOTH) -> EventField:
    return EventField(name=name, field=field, kind=Kind.TEXT, taskhub_only=True, where=where)


EVENT_ID = EventField(name="EventId", field="event_id", kind=Kind.INT)
BASE = (
    EVENT_ID,
    EventField(name="IsPlayed", field="is_played", kind=Kind.BOOL),
    EventField(name="Timestamp", field="timestamp", kind=Kind.TIME, required=True),
)
"""Members that every event has. They are written after the other members of DurableTask."""

_ACTION_ID = _taskhub("TaskHubActionId", "taskhub_action_id")
_ROLE = _taskhub("TaskHubRole", "taskhub_role", FieldPlace.ROW)
_MESSAGE_ID = _taskhub("TaskHubMessageId", "taskhub_message_id", FieldPlace.ROW)
_ROW_ETAG = _taskhub("TaskHubRowEtag", "taskhub_row_etag", FieldPlace.MESSAGE)
_PROCESS = _taskhub("TaskHubProcess", "taskhub_process", FieldPlace.MESSAGE)
_BY = _taskhub("TaskHubBy", "taskhub_by")
_WAITS = _taskhub("TaskHubWaits", "taskhub_waits", FieldPlace.ROW)
_EXECUTION_ID = _taskhub("TaskHubExecutionId", "taskhub_execution_id", FieldPlace.MESSAGE)
_RECURSE = EventField(name="TaskHubRecurse", field="taskhub_recurse", kind=Kind.BOOL, taskhub_only=True)
_CHILD = _taskhub("TaskHubChild", "taskhub_child")
_GRACE = EventField(name="TaskHubGrace", field="taskhub_grace", kind=Kind.INT, taskhub_only=True)
_CANCELS = EventField(name="TaskHubCancels", field="taskhub_cancels", kind=Kind.INT, taskhub_only=True)
_LEFT_OVER = EventField(
    name="TaskHubLeftOver", field="taskhub_left_over", kind=Kind.BOOL, taskhub_only=True, where=FieldPlace.MESSAGE
)
_CHILDREN = _taskhub("TaskHubChildren", "taskhub_children", FieldPlace.ROW)
_ROOT = _taskhub("TaskHubRoot", "taskhub_root")
_DEPTH = EventField(name="TaskHubDepth", field="taskhub_depth", kind=Kind.INT, taskhub_only=True)

_NAME = _text("Name", "name", required=True)
_VERSION = _text("Version", "version")
_INPUT = _text("Input", "input")
_RESULT = _text("Result", "result")
_REASON = _text("Reason", "reason")
_DETAILS = _text("Details", "details")
_REWIND_MARK = EventField(name="Reason", field="reason", kind=Kind.TEXT, where=FieldPlace.ROW)
_INSTANCE_ID = _text("InstanceId", "instance_id", required=True)
_TASK = EventField(name="TaskScheduledId", field="task_scheduled_id", kind=Kind.INT, required=True)
_FIRE_AT = EventField(name="FireAt", field="fire_at", kind=Kind.TIME, required=True)
_TAGS = EventField(name="Tags", field="tags", kind=Kind.TAGS)
_TRACE = EventField(name="ParentTraceContext", field="parent_trace_context", kind=Kind.TRACE)
_FAILURE = EventField(name="FailureDetails", field="failure", kind=Kind.FAILURE)
_COMPLETION = (
    EventField(name="OrchestrationStatus", field="status", kind=Kind.STATUS, required=True),
    _RESULT,
    _FAILURE,
)
_STARTED = (
    EventField(name="ParentInstance", field="parent", kind=Kind.PARENT),
    _NAME,
    _VERSION,
    _INPUT,
    _TAGS,
    _text("Correlation", "correlation"),
    _TRACE,
    EventField(name="ScheduledStartTime", field="scheduled_start_time", kind=Kind.TIME),
    EventField(name="Generation", field="generation", kind=Kind.INT),
    EventField(name="GenerateNewTrace", field="generate_new_trace", kind=Kind.BOOL),
)
_REWOUND = (_REASON, _text("ParentExecutionId", "parent_execution_id"), _text("InstanceId", "instance_id"), _TRACE)


def _layout(
    cls: type[HistoryEvent], *after: EventField, before: tuple[EventField, ...] = (), own: tuple[EventField, ...] = ()
) -> EventLayout:
    return EventLayout(cls=cls, before=before, after=after, own=(*own, _MESSAGE_ID))


_INSTANCE = EventField(name="OrchestrationInstance", field="instance", kind=Kind.INSTANCE, required=True)
_IDENTIFIED = (_ACTION_ID,)

LAYOUT_OF: Mapping[type[HistoryEvent], EventLayout] = {
    layout.cls: layout
    for layout in (
        _layout(ev.ExecutionStarted, *_STARTED, before=(_INSTANCE,), own=(_ROW_ETAG, _CHILDREN, _ROOT, _DEPTH)),
        _layout(ev.ExecutionCompleted, *_COMPLETION),
        _layout(ev.ExecutionTerminated, _INPUT, own=(_EXECUTION_ID, _RECURSE, _CHILD, _GRACE, _CANCELS, _LEFT_OVER)),
        _layout(ev.TaskScheduled, _NAME, _VERSION, _INPUT, _TRACE, _TAGS, own=_IDENTIFIED),
        _layout(ev.TaskCompleted, _TASK, _RESULT, own=_IDENTIFIED),
        _layout(ev.TaskFailed, _TASK, _REASON, _DETAILS, _FAILURE, own=_IDENTIFIED),
        _layout(
            ev.SubOrchestrationInstanceCreated,
            _NAME,
            _VERSION,
            _INSTANCE_ID,
            _INPUT,
            _text("ClientSpanId", "client_span_id"),
            _TAGS,
            _REWIND_MARK,
            own=_IDENTIFIED,
        ),
        _layout(ev.SubOrchestrationInstanceCompleted, _TASK, _RESULT, own=_IDENTIFIED),
        _layout(ev.SubOrchestrationInstanceFailed, _TASK, _REASON, _DETAILS, _FAILURE, own=_IDENTIFIED),
        _layout(ev.TimerCreated, _FIRE_AT, own=(_ACTION_ID, _ROLE)),
        _layout(
            ev.TimerFired,
            EventField(name="TimerId", field="timer_id", kind=Kind.INT, required=True),
            _FIRE_AT,
            own=_IDENTIFIED,
        ),
        _layout(ev.OrchestratorStarted),
        _layout(ev.OrchestratorCompleted, own=(_WAITS,)),
        _layout(ev.EventSent, _INSTANCE_ID, _NAME, _INPUT, own=(*_IDENTIFIED, _CANCELS)),
        _layout(ev.EventRaised, _NAME, _INPUT, _TRACE, own=(_EXECUTION_ID, _PROCESS)),
        _layout(ev.ContinueAsNew, *_COMPLETION),
        _layout(ev.GenericEvent, before=(_text("Data", "data"),), own=(_EXECUTION_ID,)),
        _layout(ev.ExecutionSuspended, _REASON, own=(_EXECUTION_ID, _PROCESS, _BY)),
        _layout(ev.ExecutionResumed, _REASON, own=(_EXECUTION_ID, _PROCESS)),
        _layout(ev.ExecutionRewound, *_REWOUND),
    )
}
"""The layout of each event class that DurableTask.AzureStorage 2.9 can write. HistoryState is missing, because only
other backends of DurableTask write HistoryState."""
LAYOUTS: Mapping[EventType, EventLayout] = {layout.cls.event_type: layout for layout in LAYOUT_OF.values()}
"""The same layouts by event type."""
