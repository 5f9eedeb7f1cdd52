"""What an orchestrator decided, and the history event and message that each decision becomes."""

from __future__ import annotations

import linecache
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import CodeType, FrameType

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.episode import Outbound
from airflow_provider_taskhub.engine.events import (
    EventRaised,
    EventSent,
    EventType,
    ExecutionStarted,
    HistoryEvent,
    OrchestrationInstance,
    ParentInstance,
    SubOrchestrationInstanceCreated,
    TaskScheduled,
    TimerCreated,
    TimerFired,
)
from airflow_provider_taskhub.engine.identity import action_id, child_execution_id
from airflow_provider_taskhub.engine.trace_context import passed_on, span_of
from airflow_provider_taskhub.fast_dataclass import dataclass

HISTORY_INPUT = 1024
"""Characters up to which an input is kept in its scheduling event too, for monitors; the message always has it."""
FIRE_AND_FORGET = "FireAndForget"
"""Tag of a child whose parent does not wait."""
WATCH_TAG = "taskhub.watch"
"""Tag of an instance that an Airflow task waits for: its end is announced in ``{Hub}Completions``."""
TIMER = "timer"
"""The role of a timer of the user's own. Its row does not need it."""
_OWN_TAGS = frozenset({FIRE_AND_FORGET, WATCH_TAG})
"""Tags that a child does not inherit."""


@dataclass(frozen=True, slots=True)
class CallSite:
    """A line of the user's code."""

    code: CodeType
    line: int

    @classmethod
    def of(cls, frame: FrameType) -> CallSite:
        return cls(frame.f_code, frame.f_lineno)

    def __str__(self) -> str:
        source = linecache.getline(self.code.co_filename, self.line).strip()
        place = f"{os.path.basename(self.code.co_filename)}:{self.line} in {self.code.co_name}"
        return f"{place}: `{source}`" if source else place


@dataclass(slots=True, kw_only=True)
class Action:
    """One decision.

    :param kind: type of the scheduling event. :param role: word for its identity, e.g. ``activity`` or ``retry again``.
    :param name: of the activity, child or event. :param instance_id: of the child, or the event's receiver; None: the
        child's default. :param run: of an event's receiver, if it is a child that has not answered yet.
    """

    kind: EventType
    role: str
    where: CallSite
    name: str = ""
    number: int = -1
    version: str = ""
    input: str | None = None
    tags: Mapping[str, str] | None = None
    fire_at: Timestamp | None = None
    instance_id: str | None = None
    run: str | None = None

    def __str__(self) -> str:
        detail = f" {self.name!r}" if self.name else ""
        return f"{self.kind.name}{detail} (action {self.number})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Where a decision is made: the generation, its start, the orchestrator's time, the rewinds so far."""

    instance: OrchestrationInstance
    started: ExecutionStarted
    time: Timestamp
    rewinds: int = 0


Decided = tuple[HistoryEvent, Outbound]


def decide(action: Action, scope: Scope) -> Decided:
    """The scheduling event of an action, and the message that carries it out."""
    return _BUILD[action.kind](action, scope, identity(action, scope))


def identity(action: Action, scope: Scope) -> str:
    """The identity of an action."""
    return action_id(
        scope.instance,
        action.number,
        action.role,
        action.name,
        version=action.version,
        input=action.fire_at.text() if action.fire_at else action.input,
        rewinds=scope.rewinds,
    )


def _kept(input: str | None) -> str | None:
    return input if input is None or len(input) <= HISTORY_INPUT else None


def _activity(action: Action, scope: Scope, name: str) -> Decided:
    event = TaskScheduled(
        timestamp=scope.time,
        event_id=action.number,
        name=action.name,
        version=action.version,
        input=action.input,
        tags=action.tags or None,
        parent_trace_context=passed_on(scope.started.parent_trace_context, name),
        taskhub_action_id=name,
    )
    message = Outbound(event=event, target=scope.instance, action_id=name, context_tags=dict(scope.started.tags or {}))
    kept = _kept(action.input)
    return (event if kept is action.input else replace(event, input=kept)), message


def child_tags(own: Mapping[str, str] | None, parent: Mapping[str, str] | None) -> dict[str, str] | None:
    """Tags of a child: its parent's, overridden by its own."""
    merged = {key: value for key, value in (parent or {}).items() if key not in _OWN_TAGS}
    return {**merged, **(own or {})} or None


def _child(action: Action, scope: Scope, name: str) -> Decided:
    started = scope.started
    child = OrchestrationInstance(
        instance_id=action.instance_id or f"{scope.instance.execution_id}:{action.number}",
        execution_id=child_execution_id(name),
    )
    tags = child_tags(action.tags, started.tags)
    carried = started.parent_trace_context
    created = SubOrchestrationInstanceCreated(
        timestamp=scope.time,
        event_id=action.number,
        name=action.name,
        instance_id=child.instance_id,
        version=action.version,
        input=_kept(action.input),
        client_span_id=None if carried is None or carried.span_id is None else span_of(name),
        tags=tags,
        taskhub_action_id=name,
    )
    start = ExecutionStarted(
        timestamp=scope.time,
        instance=child,
        name=action.name,
        version=action.version,
        input=action.input,
        tags=tags,
        parent_trace_context=passed_on(carried, name),
        parent=ParentInstance(
            name=started.name, instance=scope.instance, task_schedule_id=action.number, version=started.version
        ),
    )
    return created, Outbound(event=start, target=child, action_id=name, context_tags=dict(started.tags or {}))


def _timer(action: Action, scope: Scope, name: str) -> Decided:
    fire_at = action.fire_at or scope.time
    created = TimerCreated(
        timestamp=scope.time,
        event_id=action.number,
        fire_at=fire_at,
        taskhub_action_id=name,
        taskhub_role=None if action.role == TIMER else action.role,
    )
    fired = TimerFired(timestamp=scope.time, timer_id=action.number, fire_at=fire_at, taskhub_action_id=name)
    return created, Outbound(event=fired, target=scope.instance, action_id=name)


def _event(action: Action, scope: Scope, name: str) -> Decided:
    receiver = action.instance_id or ""
    sent = EventSent(
        timestamp=scope.time,
        event_id=action.number,
        instance_id=receiver,
        name=action.name,
        input=action.input,
        taskhub_action_id=name,
    )
    raised = EventRaised(
        timestamp=scope.time,
        name=action.name,
        input=action.input,
        parent_trace_context=passed_on(scope.started.parent_trace_context, name),
        taskhub_execution_id=action.run,
    )
    # No execution id: whatever generation the receiver is in.
    return sent, Outbound(event=raised, target=OrchestrationInstance(instance_id=receiver), action_id=name)


_BUILD: dict[EventType, Callable[[Action, Scope, str], Decided]] = {
    EventType.TaskScheduled: _activity,
    EventType.SubOrchestrationInstanceCreated: _child,
    EventType.TimerCreated: _timer,
    EventType.EventSent: _event,
}
