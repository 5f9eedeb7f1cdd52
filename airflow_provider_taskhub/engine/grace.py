"""Terminates that do not end the instance at once. It cleans up first, or its parent waits until its calls have ended.

The message is an ExecutionTerminated with ``TaskHubGrace`` or ``TaskHubCancels``. Sometimes a worker must end an
instance without its code: the instance has not begun, its history is damaged, or its code blocks the worker. Then the
message counts as a normal terminate. A worker of another system ends the instance at once. In the history of an
instance that goes on, an ExecutionTerminated would mislead readers. So the history has the request as an EventRaised
with the name :data:`.validation.TERMINATE_EVENT`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from airflow_provider_taskhub.engine.events import EventRaised, ExecutionTerminated, HistoryEvent
from airflow_provider_taskhub.engine.validation import LONGEST_GRACE, TERMINATE_EVENT, is_own_event
from airflow_provider_taskhub.fast_dataclass import dataclass

ROLE = "grace"
"""The role of the timer that ends the instance when its time is over. The timer's row stores it as ``TaskHubRole``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request to end an instance, but not at once.

    :param reason: why the instance is to end. This text becomes its output.
    :param grace: seconds for the clean-up; 0: there is none.
    :param recurse: whether the instance's children are terminated too, with the same time.
    :param child: name of the instance's orchestrator if the instance's parent has sent the request; else None.
    :param call: number of the parent's call of this instance, if the parent's code has cancelled it. Then no code of
        the instance runs, and it ends when its calls have ended (:mod:`.stopping`). None: it cleans up.
    """

    reason: str | None
    grace: int = 0
    recurse: bool = False
    child: str | None = None
    call: int | None = None


def as_stored(event: HistoryEvent) -> HistoryEvent:
    """Return how the history stores an arriving event: an EventRaised for a terminate with grace or a cancel, else the
    event itself."""
    if not isinstance(event, ExecutionTerminated):
        return event
    if not _is_valid(event.taskhub_grace, event.taskhub_cancels):
        return event
    told = {
        "reason": event.input,
        "grace": event.taskhub_grace,
        "recurse": bool(event.taskhub_recurse),
        "child": event.taskhub_child,
        "call": event.taskhub_cancels,
    }
    return EventRaised(
        timestamp=event.timestamp,
        name=TERMINATE_EVENT,
        input=json.dumps({name: value for name, value in told.items() if value is not None}),
        taskhub_execution_id=event.taskhub_execution_id,
        taskhub_message_id=event.taskhub_message_id,
    )


def request_of(event: HistoryEvent) -> Request | None:
    """Return the request in an event of a history; None: the event has no request."""
    if not isinstance(event, EventRaised) or not is_own_event(event.name):
        return None
    try:
        told = json.loads(event.input or "")
        grace, call, reason, child = (told.get(name) for name in ("grace", "call", "reason", "child"))
    except (ValueError, AttributeError, RecursionError):
        return None
    if not _is_valid(grace, call) or not isinstance(reason, str | None) or not isinstance(child, str | None):
        return None
    return Request(reason=reason, grace=grace or 0, recurse=told.get("recurse") is True, child=child, call=call)


def found(history: Iterable[HistoryEvent]) -> Request | None:
    """Return the request that counts in a history; None: there is none."""
    counts: Request | None = None
    for event in history:
        counts = which_counts(counts, request_of(event))
    return counts


def which_counts(first: Request | None, later: Request | None) -> Request | None:
    """Return the request that counts: the first one. But a cancel by the parent replaces a request to clean up."""
    cancels = later is not None and later.call is not None
    return later if first is None or (cancels and first.call is None) else first


def _is_valid(grace: object, call: object) -> bool:
    if grace is None:
        return type(call) is int
    return call is None and type(grace) is int and 0 < grace <= LONGEST_GRACE.total_seconds()
