"""Finds the children to terminate when their parent is terminated: pure functions over the parent's history.

If the terminate message has ``TaskHubRecurse``, each child that has not completed gets a terminate message too. This
message has the child's execution id, so that it cannot end a later run of the same instance id. It also has the name of
the child's orchestrator, because perhaps the child has not begun yet. A child that has failed gets a message that ends
its activities and children. They may still run, because a rewind could use their results. A child with DurableTask's
fire-and-forget tag gets no message.
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
from airflow_provider_taskhub.engine.failures import is_terminated
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
    """Return the events that created those children of this generation that have not answered and were not cancelled.

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


def failed(history: Iterable[HistoryEvent]) -> tuple[SubOrchestrationInstanceCreated, ...]:
    """Return the events that created the failed children of this generation. Their activities may still run.

    Of several children with one instance id, the last one is returned. Children with the fire-and-forget tag are not
    included. Children of a .NET parent are not included either: .NET does not record their runs, so others may use
    their ids now.

    :param history: the events of the current generation.
    """
    history, found = tuple(history), dict[str, SubOrchestrationInstanceCreated]()
    ends = {
        event.task_scheduled_id
        for event in history
        if isinstance(event, SubOrchestrationInstanceFailed) and not is_terminated(event)
    }
    for event in history:
        if isinstance(event, SubOrchestrationInstanceCreated) and event.event_id in ends:
            found[event.instance_id] = event
    return tuple(
        event
        for event in found.values()
        if event.taskhub_action_id is not None and FIRE_AND_FORGET not in (event.tags or {})
    )


def cleaning_up(history: Iterable[HistoryEvent]) -> tuple[SubOrchestrationInstanceCreated, ...]:
    """Return the events of children that were asked to clean up with their parent. Such a child sends no answer.

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
    """Return the children that have not answered, also those that were started before a ``continue_as_new``.

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
    """Return the messages that end the open children of an instance, and what its failed children have left running.

    :param history: the events of the instance since the last ``continue_as_new``, with the ExecutionTerminated event or
        the request to end.
    :param instance_id: instance id of the parent.
    :param time: timestamp of the messages.
    :returns: an empty list if the children go on. The terminate decides this; without one, the request to end decides.
    """
    history = tuple(history)
    request = grace.found(history)
    terminated = next((event for event in reversed(history) if isinstance(event, ExecutionTerminated)), None)
    if not (terminated.taskhub_recurse if terminated else request and request.recurse):
        return []
    if terminated is None:  # the children that were asked to end are not terminated: they still clean up
        reason, seconds = (None, None) if request is None else (request.reason, request.grace or None)
        found = tuple(map(_child, awaited(history)))
    else:
        reason, seconds, found = terminated.input, None, unfinished(history, cancelled=True)
    why = because(instance_id, reason)
    return [*(_termination(child, why, time) for child in found), *_of_failed(history, why, time, seconds)]


def left_over(
    history: Iterable[HistoryEvent], terminate: ExecutionTerminated, instance_id: str, time: Timestamp
) -> list[Outbound]:
    """Return the messages that terminate the children of an instance that had failed when its terminate came.

    Unlike the children of a terminated instance, these children answer, because their parent may be rewound.

    :param history: the events of the instance since the last ``continue_as_new``.
    :param terminate: the terminate message.
    :param instance_id: instance id of the parent.
    :param time: timestamp of the messages.
    """
    history, why, seconds = tuple(history), because(instance_id, terminate.input), terminate.taskhub_grace
    found = (child for child in unfinished(history, cancelled=True) if child.execution_id is not None)
    return [
        *(_termination(child, why, time, seconds=seconds, answers=True) for child in found),
        *_of_failed(history, why, time, seconds),
    ]


def requests(history: Iterable[HistoryEvent], instance_id: str, time: Timestamp) -> list[Outbound]:
    """Return the messages that ask the open children of earlier generations to end, because their parent is asked to.

    They also end what the failed children have left running. An open child of the current generation gets its message
    when its call is cancelled. If a cancel ends the clean-up of the parent early, the parent also ends the children
    that it has asked to clean up.

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
    found, seconds = (*_earlier(history), *cut_short), request.grace or None
    return [
        *(_termination(child, why, time, seconds=seconds) for child in found),
        *_of_failed(history, why, time, seconds),
    ]


def _of_failed(history: Iterable[HistoryEvent], reason: str, time: Timestamp, seconds: int | None) -> list[Outbound]:
    """Return the messages that end what the failed children of this generation have left running."""
    found = map(_child, failed(history))
    return [_termination(child, reason, time, seconds=seconds, left_over=True) for child in found]


def _termination(
    child: Child,
    reason: str,
    time: Timestamp,
    *,
    seconds: int | None = None,
    answers: bool = False,
    left_over: bool = False,
) -> Outbound:
    event = ExecutionTerminated(
        timestamp=time,
        input=reason,
        taskhub_execution_id=child.execution_id,
        taskhub_recurse=True,
        taskhub_child=None if answers else child.name,
        taskhub_grace=seconds,
        taskhub_left_over=left_over or None,
    )
    return Outbound(event=event, target=OrchestrationInstance(instance_id=child.instance_id))


def _earlier(history: Iterable[HistoryEvent]) -> list[Child]:
    """Return the children that were started before a ``continue_as_new``."""
    starts = [event for event in history if isinstance(event, ExecutionStarted)]
    return [child for start in starts for child in _parsed(start.taskhub_children or "[]")]


def reports_end(history: Iterable[HistoryEvent]) -> bool:
    """Return True if an instance sends its outcome to its parent.

    It does not if it was terminated together with the parent, which could take the outcome for a failure. A child that
    the parent's code has cancelled does send it, because that code waits for it.

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
