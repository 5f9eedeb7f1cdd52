"""Ends a child whose parent has cancelled it: pure functions over the child's history.

No code of the child runs any more, so any worker can end it. Its open calls are cancelled. Each later episode takes the
answers. After the last answer the child ends and tells its parent, so nothing of the child runs any more.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from airflow_provider_taskhub.engine import grace
from airflow_provider_taskhub.engine.actions import CANCEL, Action, CallSite, Decided, Scope, decide
from airflow_provider_taskhub.engine.children import awaited, cleaning_up
from airflow_provider_taskhub.engine.events import (
    EventSent,
    EventType,
    ExecutionResumed,
    ExecutionStarted,
    ExecutionSuspended,
    HistoryEvent,
    SubOrchestrationInstanceCompleted,
    SubOrchestrationInstanceCreated,
    SubOrchestrationInstanceFailed,
    TaskCompleted,
    TaskFailed,
    TaskScheduled,
)
from airflow_provider_taskhub.engine.identity import child_execution_id, same_start
from airflow_provider_taskhub.engine.pending_waits import CHILD_IDS, MAX_NAMES, Awaits

Call = TaskScheduled | SubOrchestrationInstanceCreated
_ANSWERS = (TaskCompleted, TaskFailed, SubOrchestrationInstanceCompleted, SubOrchestrationInstanceFailed)


def open_calls(history: Iterable[HistoryEvent]) -> dict[int, Call]:
    """Return the calls of activities and children that have no answer, by their numbers.

    Children with the fire-and-forget tag are not included. Children that were asked to clean up before the cancel are
    not included either: they do not answer.

    :param history: the events of the current generation.
    """
    history = tuple(history)
    answered = {event.task_scheduled_id for event in history if isinstance(event, TaskCompleted | TaskFailed)}
    calls: dict[int, Call] = {event.event_id: event for event in history if isinstance(event, TaskScheduled)}
    calls = {number: call for number, call in calls.items() if number not in answered}
    silent = cleaning_up(history)
    return calls | {call.event_id: call for call in awaited(history, cancelled=True) if call not in silent}


def taken(
    past: Sequence[HistoryEvent], new: Iterable[HistoryEvent], request: grace.Request
) -> tuple[list[HistoryEvent], list[tuple[HistoryEvent, str]]]:
    """Return the new events that the child takes, and those that it does not take, each with its reason.

    :param past: its history.
    :param request: the request of the parent, which is in the history or comes now.
    """
    events: list[HistoryEvent] = []
    stale: list[tuple[HistoryEvent, str]] = []
    calls, asked, started = open_calls(past), False, bool(past)
    for event in past:
        asked = asked or grace.request_of(event) == request
    for event in new:
        if isinstance(event, ExecutionStarted) and not started:
            started = True
        elif not asked and grace.request_of(event) == request:
            asked = True
        elif isinstance(event, _ANSWERS) and _fits(event, calls.get(event.task_scheduled_id)):
            del calls[event.task_scheduled_id]
        else:
            stale.append((event, "its parent has cancelled the orchestration, so its code runs no more"))
            continue
        events.append(event)
    if _is_suspended(past):
        time, reason = events[-1].timestamp if events else past[-1].timestamp, request.reason
        events += [ExecutionResumed(timestamp=time, reason=reason)] if events else []
    return events, stale


def cancels(history: Iterable[HistoryEvent], scope: Scope, request: grace.Request, first: int) -> list[Decided]:
    """Return the events and messages that cancel what the child has called and has not cancelled yet.

    :param history: the events of the current generation.
    :param scope: the instance id of the child, its start event, and the time of the episode.
    :param first: number of the first cancel.
    """
    history = tuple(history)
    known = {event.taskhub_cancels for event in history if isinstance(event, EventSent)}
    left = [call for number, call in open_calls(history).items() if number not in known]
    return [decide(_cancel(call, scope, request, first + at), scope) for at, call in enumerate(left)]


def awaits(calls: Iterable[Call]) -> Awaits:
    """Return what the child waits for. :param calls: its calls without an answer."""
    calls = tuple(calls)
    activities = dict.fromkeys(call.name for call in calls if isinstance(call, TaskScheduled))
    children = [call for call in calls if isinstance(call, SubOrchestrationInstanceCreated)]
    names = dict.fromkeys(call.name for call in children)
    return Awaits(
        activities=tuple(activities)[:MAX_NAMES],
        children=tuple(names)[:MAX_NAMES],
        child_ids=tuple(call.instance_id for call in children[:CHILD_IDS]),
        child_count=len(children),
        complete=max(len(activities), len(names)) <= MAX_NAMES,
    )


def _cancel(call: Call, scope: Scope, request: grace.Request, number: int) -> Action:
    child = call if isinstance(call, SubOrchestrationInstanceCreated) else None
    known = child is not None and child.taskhub_action_id is not None
    return Action(
        kind=EventType.EventSent,
        role=CANCEL,
        where=CallSite.of(sys._getframe(0)),
        name=f"{CANCEL} {call.name}",
        number=number,
        input=str(call.event_id),
        instance_id=scope.instance.instance_id if child is None else child.instance_id,
        run=child_execution_id(child.taskhub_action_id or "") if child is not None and known else None,
        request=request,
    )


def _fits(
    event: TaskCompleted | TaskFailed | SubOrchestrationInstanceCompleted | SubOrchestrationInstanceFailed,
    call: Call | None,
) -> bool:
    """Return True if an answer belongs to this call, and not to an earlier call with the same number."""
    if call is None or isinstance(event, TaskCompleted | TaskFailed) is not isinstance(call, TaskScheduled):
        return False
    echo, known = event.taskhub_action_id, call.taskhub_action_id
    return echo is None or known is None or echo == known or same_start(echo, known)


def _is_suspended(past: Sequence[HistoryEvent]) -> bool:
    marks = [event for event in past if isinstance(event, ExecutionSuspended | ExecutionResumed)]
    return bool(marks) and isinstance(marks[-1], ExecutionSuspended)
