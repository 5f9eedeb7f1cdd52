"""Finds the children to terminate when their parent is terminated: pure functions over the parent's history.

If the terminate message has ``TaskHubRecurse``, each child that has not completed gets a terminate message too. So does
each child that has failed: its activities and children may go on, for a rewind that nobody will ask for. This message
has the child's execution id, so that it cannot end a later run of the same instance id. It also has the name of the
child's orchestrator, because perhaps the child has not begun yet. A child with DurableTask's fire-and-forget tag gets
no message.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine import grace
from airflow_provider_taskhub.engine.actions import because
from airflow_provider_taskhub.engine.episode import Outbound
from airflow_provider_taskhub.engine.events import (
    EventSent,
    ExecutionStarted,
    ExecutionTerminated,
    HistoryEvent,
    OrchestrationInstance,
    SubOrchestrationInstanceCompleted,
    SubOrchestrationInstanceCreated,
    SubOrchestrationInstanceFailed,
)
from airflow_provider_taskhub.engine.identity import child_execution_id
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.tags import FIRE_AND_FORGET

MAX_CARRIED = 16_000
"""Maximum characters of the list of open children that an instance passes on at ``continue_as_new``. The oldest
children are removed from a longer list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A child that has not completed, or has failed.

    :param instance_id: instance id of the child.
    :param execution_id: execution id with which the child started; None if a .NET worker ran the parent, because .NET
        does not record this id.
    :param name: name of the child's orchestrator.
    """

    instance_id: str
    execution_id: str | None
    name: str


def awaited(history: Iterable[HistoryEvent], *, cancelled: bool = False) -> tuple[SubOrchestrationInstanceCreated, ...]:
    """Return the events that created the children of this generation that have neither completed nor been cancelled.

    Children with the fire-and-forget tag are not included, because the orchestrator does not wait for their end.

    :param history: the events of the current generation.
    :param cancelled: whether the children that were cancelled and have not ended are returned, too.
    """
    waiting: dict[int, SubOrchestrationInstanceCreated] = {}
    for event in history:
        match event:
            case SubOrchestrationInstanceCreated() if FIRE_AND_FORGET not in (event.tags or {}):
                waiting[event.event_id] = event
            case SubOrchestrationInstanceCompleted() | SubOrchestrationInstanceFailed():
                waiting.pop(event.task_scheduled_id, None)
            case EventSent() if event.taskhub_cancels is not None and not cancelled:
                waiting.pop(event.taskhub_cancels, None)
    return tuple(waiting.values())


def failed(history: Iterable[HistoryEvent]) -> list[Child]:
    """Return the children of this generation that have failed or were terminated, so that something may run for them.

    Children with the fire-and-forget tag are not included.

    :param history: the events of the current generation.
    """
    history = tuple(history)
    ends = {event.task_scheduled_id for event in history if isinstance(event, SubOrchestrationInstanceFailed)}
    created = (event for event in history if isinstance(event, SubOrchestrationInstanceCreated))
    return [_child(one) for one in created if one.event_id in ends and FIRE_AND_FORGET not in (one.tags or {})]


def cleaning_up(history: Iterable[HistoryEvent]) -> tuple[SubOrchestrationInstanceCreated, ...]:
    """Return the events that created the children that were asked to clean up with their parent: they do not answer it.

    :param history: the events of the current generation.
    """
    history, before, asked = tuple(history), set[int](), set[int | None]()
    request: grace.Request | None = None
    for event in history:
        request = grace.which_counts(request, grace.request_of(event))
        if isinstance(event, SubOrchestrationInstanceCreated) and request is None:
            before.add(event.event_id)
        elif isinstance(event, EventSent) and request is not None and request.call is None and request.recurse:
            asked.add(event.taskhub_cancels)
    return tuple(event for event in awaited(history, cancelled=True) if event.event_id in before & asked)


def unfinished(history: Iterable[HistoryEvent], *, cancelled: bool = False) -> tuple[Child, ...]:
    """Return the children that have not completed, also those that were started before a ``continue_as_new``.

    Children with the fire-and-forget tag are not included.

    :param history: the events since the last ``continue_as_new``.
    :param cancelled: whether the children that were cancelled and have not ended are returned, too.
    """
    history = tuple(history)
    return (*_earlier(history), *map(_child, awaited(history, cancelled=cancelled)))


def carried(history: Iterable[HistoryEvent]) -> str | None:
    """Return the open children as text. If the instance continues as new, the next start event carries this text.

    :param history: the events from the last ``continue_as_new`` until this one.
    :returns: a JSON list of at most :data:`MAX_CARRIED` characters; None if there are no open children.
    """
    entries = [json.dumps([child.instance_id, child.execution_id, child.name]) for child in unfinished(history)]
    while entries and sum(map(len, entries)) + len(entries) > MAX_CARRIED:
        del entries[0]
    return f"[{','.join(entries)}]" if entries else None


def terminations(history: Iterable[HistoryEvent], instance_id: str, time: Timestamp) -> list[Outbound]:
    """Return the messages that terminate the open children of an instance, and what runs for those that have failed.

    :param history: the events of the instance since the last ``continue_as_new``, with the ExecutionTerminated event or
        the request to end.
    :param instance_id: instance id of the parent.
    :param time: timestamp of the messages.
    :returns: an empty list if neither the terminate nor the request to end includes the children, so that they go on.
    """
    history = tuple(history)
    request = grace.found(history)
    terminated = next((event for event in reversed(history) if isinstance(event, ExecutionTerminated)), None)
    if not (terminated.taskhub_recurse if terminated else request and request.recurse):
        return []
    if terminated is None:  # what was asked to end with its parent still cleans up
        reason = None if request is None else request.reason
        found = tuple(map(_child, awaited(history)))
    else:
        reason, found = terminated.input, unfinished(history, cancelled=True)
    return [_termination(child, because(instance_id, reason), time) for child in (*found, *failed(history))]


def left_over(
    history: Iterable[HistoryEvent], terminate: ExecutionTerminated, instance_id: str, time: Timestamp
) -> list[Outbound]:
    """Return the messages that terminate what runs of the children of an instance that has already ended.

    :param history: the events of the instance since the last ``continue_as_new``. It has failed or was terminated.
    :param terminate: a terminate message that has come after the end.
    :param instance_id: instance id of the parent.
    :param time: timestamp of the messages.
    :returns: an empty list if the message is not for the children, or if they were terminated with the instance.
    """
    history = tuple(history)
    if not terminate.taskhub_recurse or ends_children(history):
        return []
    why = because(instance_id, terminate.input)
    found = (*unfinished(history, cancelled=True), *failed(history))
    return [_termination(child, why, time, seconds=terminate.taskhub_grace) for child in found]


def ends_children(history: Iterable[HistoryEvent]) -> bool:
    """Return whether an instance was terminated, or asked to end, with its children.

    :param history: the events of the instance since the last ``continue_as_new``.
    """
    history = tuple(history)
    request = grace.found(history)
    terminated = any(event.taskhub_recurse for event in history if isinstance(event, ExecutionTerminated))
    return terminated or (request is not None and request.recurse)


def requests(history: Iterable[HistoryEvent], instance_id: str, time: Timestamp) -> list[Outbound]:
    """Return the messages that ask the open children of earlier generations to end, because their parent is asked to.

    They also end what runs for the children that have failed. The open children of the current generation get theirs
    with their cancels. A parent whose clean-up is cut short by a cancel also ends the children that it has asked to
    clean up.

    :param history: the events of the instance since the last ``continue_as_new``, with the request to end.
    :param instance_id: instance id of the parent.
    :param time: timestamp of the messages.
    """
    history = tuple(history)
    request = grace.found(history)
    if request is None or not request.recurse:
        return []
    why = because(instance_id, request.reason)
    cut_short = () if request.call is None else map(_child, cleaning_up(history))
    found = (*_earlier(history), *cut_short, *failed(history))
    return [_termination(child, why, time, seconds=request.grace or None) for child in found]


def _termination(child: Child, reason: str, time: Timestamp, *, seconds: int | None = None) -> Outbound:
    event = ExecutionTerminated(
        timestamp=time,
        input=reason,
        taskhub_execution_id=child.execution_id,
        taskhub_recurse=True,
        taskhub_child=child.name,
        taskhub_grace=seconds,
    )
    return Outbound(event=event, target=OrchestrationInstance(instance_id=child.instance_id))


def _earlier(history: Iterable[HistoryEvent]) -> list[Child]:
    """Return the children that were started before a ``continue_as_new``."""
    starts = [event for event in history if isinstance(event, ExecutionStarted)]
    return [child for start in starts for child in _parsed(start.taskhub_children or "[]")]


def reports_end(history: Iterable[HistoryEvent]) -> bool:
    """Return whether an instance sends its outcome to its parent: False if the child was terminated with its parent.

    A parent that has not ended yet would treat such an outcome as a failure of the child. The parent's code waits for
    the end of a child that it has cancelled.

    :param history: the events of the child.
    """
    history = tuple(history)
    ends = [event for event in history if isinstance(event, ExecutionTerminated)]
    if any(event.taskhub_child is not None and event.taskhub_cancels is None for event in ends):
        return False
    request = grace.found(history)
    return request is None or request.child is None or request.call is not None


def _child(created: SubOrchestrationInstanceCreated) -> Child:
    action = created.taskhub_action_id
    return Child(
        instance_id=created.instance_id,
        execution_id=None if action is None else child_execution_id(action),
        name=created.name,
    )


def _parsed(text: str) -> list[Child]:
    # A damaged list must not stop the instance. The children in the damaged list are then not terminated.
    with suppress(ValueError, TypeError):
        return [
            Child(instance_id=str(one), execution_id=start, name=str(name)) for one, start, name in json.loads(text)
        ]
    return []
