"""Actions: the decisions of an orchestrator, and the history event and the message that each action becomes."""

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
    ExecutionTerminated,
    HistoryEvent,
    OrchestrationInstance,
    ParentInstance,
    SubOrchestrationInstanceCreated,
    TaskScheduled,
    TimerCreated,
    TimerFired,
)
from airflow_provider_taskhub.engine.grace import Request
from airflow_provider_taskhub.engine.identity import action_id, child_execution_id
from airflow_provider_taskhub.engine.trace_context import context_for_action, span_of
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.tags import FIRE_AND_FORGET, GRACE_TAG, LIMIT_TAG, WATCH_TAG

MAX_HISTORY_INPUT = 1024
"""An input of at most this many characters is also stored in the history, for monitors. A longer input is only in the
message."""
TIMER = "timer"
"""The role (a word in an action's identity) of a timer that user code made. The timer's row does not store the role."""
MAX_DEPTH = 200
"""How many instances may wait for one, each for its child. More are a recursion without an end."""
CANCEL = "cancel"
"""The role of the cancellation of a call. Its row is that of an event which was sent."""
_NOT_INHERITED = frozenset({FIRE_AND_FORGET, GRACE_TAG, LIMIT_TAG, WATCH_TAG})
"""Tags that a child does not inherit from its parent."""


@dataclass(frozen=True, slots=True)
class CallSite:
    """A line of user code that made a decision. Errors show it."""

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
    """One decision of an orchestrator.

    :param kind: type of the history event that the action becomes, such as TaskScheduled.
    :param role: word that enters the action's identity, e.g. ``activity`` or ``retry again 3``.
    :param where: line of user code that made the decision.
    :param name: name of the activity, the child's orchestrator or the event; "" for a timer.
    :param number: number of the action in its generation (it counts from 0 again after ``continue_as_new``); -1 until
        the action has its number.
    :param version: version of the activity or of the child's orchestrator; "" for none.
    :param input: input or event data as JSON text; None for none.
    :param tags: tags that the call itself gives to the activity or child.
    :param fire_at: time when a timer fires; None for other actions.
    :param instance_id: instance id of the child, or of the instance that receives the event. None: another action, or
        a child that gets its default id.
    :param run: execution id of the instance that receives an event, if that instance is a child which the sender still
        awaits; else None.
    :param request: the request to end because of which the sender cancels its child; None: the sender's code does it.
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
    request: Request | None = None

    def __str__(self) -> str:
        detail = f" {self.name!r}" if self.name else ""
        return f"{self.kind.name}{detail} (action {self.number})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What the engine knows when an orchestrator makes a decision: to call an activity, to start a child or a timer, or
    to send an event.

    :param instance: the instance that decides, with its current execution id.
    :param started: the start event of the current generation. It has the orchestrator's name, the tags and the trace
        context.
    :param time: the orchestrator's time.
    :param rewinds: number of rewinds in the history so far. The identity of an action is computed from this number too,
        so that an action after a rewind gets another identity.
    """

    instance: OrchestrationInstance
    started: ExecutionStarted
    time: Timestamp
    rewinds: int = 0


Decided = tuple[HistoryEvent, Outbound | None]


def decide(action: Action, scope: Scope) -> Decided:
    """Return the event that an action adds to the history, and the message that makes a worker carry out the action.

    No message tells of the cancellation of an activity (None): a worker finds it in the history.
    """
    return _BUILD[action.kind](action, scope, identity(action, scope))


def identity(action: Action, scope: Scope) -> str:
    """Return the identity of an action, a UUID made from its content: see :func:`.identity.action_id`."""
    return action_id(
        scope.instance,
        action.number,
        action.role,
        action.name,
        version=action.version,
        input=action.fire_at.text() if action.fire_at else action.input,
        rewinds=scope.rewinds,
    )


def _history_input(input: str | None) -> str | None:
    return input if input is None or len(input) <= MAX_HISTORY_INPUT else None


def _activity(action: Action, scope: Scope, name: str) -> Decided:
    event = TaskScheduled(
        timestamp=scope.time,
        event_id=action.number,
        name=action.name,
        version=action.version,
        input=action.input,
        tags=action.tags or None,
        parent_trace_context=context_for_action(scope.started.parent_trace_context, name),
        taskhub_action_id=name,
    )
    message = Outbound(event=event, target=scope.instance, action_id=name, context_tags=dict(scope.started.tags or {}))
    kept = _history_input(action.input)
    return (event if kept is action.input else replace(event, input=kept)), message


def child_tags(own: Mapping[str, str] | None, parent: Mapping[str, str] | None) -> dict[str, str] | None:
    """Return the tags of a child: the tags that it inherits from its parent, overridden by the tags of its own call.

    :param own: tags that the call of the child gives.
    :param parent: tags of the parent instance.
    :returns: None if there are no tags.
    """
    merged = {key: value for key, value in (parent or {}).items() if key not in _NOT_INHERITED}
    return {**merged, **(own or {})} or None


def default_child_id(instance: OrchestrationInstance, number: int) -> str:
    """Return the instance id of a child whose call gives none.

    :param instance: the parent, with its current execution id.
    :param number: number of the action that starts the child.
    """
    return f"{instance.execution_id}:{number}"


def _child(action: Action, scope: Scope, name: str) -> Decided:
    started = scope.started
    child = OrchestrationInstance(
        instance_id=action.instance_id or default_child_id(scope.instance, action.number),
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
        input=_history_input(action.input),
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
        parent_trace_context=context_for_action(carried, name),
        parent=ParentInstance(
            name=started.name, instance=scope.instance, task_schedule_id=action.number, version=started.version
        ),
        taskhub_root=started.root or scope.instance.instance_id,
        taskhub_depth=None if FIRE_AND_FORGET in (action.tags or {}) else (started.taskhub_depth or 0) + 1,
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
        taskhub_cancels=int(action.input or 0) if action.role == CANCEL else None,
    )
    if action.role == CANCEL:
        return sent, None if receiver == scope.instance.instance_id else _child_termination(action, scope, name)
    raised = EventRaised(
        timestamp=scope.time,
        name=action.name,
        input=action.input,
        parent_trace_context=context_for_action(scope.started.parent_trace_context, name),
        taskhub_execution_id=action.run,
    )
    # The target has no execution id, so that the event also reaches a receiver that has continued as new.
    return sent, Outbound(event=raised, target=OrchestrationInstance(instance_id=receiver), action_id=name)


def because(parent: str, reason: str | None) -> str:
    """Return the reason with which the children of a terminated instance are terminated.

    :param parent: instance id of the parent.
    :param reason: why the parent was terminated; None or "" if that is unknown.
    """
    return f"its parent {parent!r} was terminated{f': {reason}' if reason else ''}"


def _child_termination(action: Action, scope: Scope, name: str) -> Outbound:
    request, parent = action.request, scope.instance.instance_id
    cleans_up = request is not None and request.grace > 0
    event = ExecutionTerminated(
        timestamp=scope.time,
        input=f"its parent {parent!r} has cancelled it" if request is None else because(parent, request.reason),
        taskhub_grace=request.grace if request is not None and cleans_up else None,
        taskhub_cancels=None if cleans_up else int(action.input or 0),
        taskhub_execution_id=action.run,
        taskhub_recurse=True,
        taskhub_child=action.name.removeprefix(f"{CANCEL} "),
    )
    return Outbound(event=event, target=OrchestrationInstance(instance_id=action.instance_id or ""), action_id=name)


_BUILD: dict[EventType, Callable[[Action, Scope, str], Decided]] = {
    EventType.TaskScheduled: _activity,
    EventType.SubOrchestrationInstanceCreated: _child,
    EventType.TimerCreated: _timer,
    EventType.EventSent: _event,
}
