"""The history of an instance since its last ``continue_as_new``, and values computed from this history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine import grace
from airflow_provider_taskhub.engine.events import (
    EventRaised,
    EventType,
    ExecutionCompleted,
    ExecutionResumed,
    ExecutionSuspended,
    FailureDetails,
    HistoryEvent,
    OrchestratorCompleted,
    OrchestratorStarted,
    Status,
    SubOrchestrationInstanceFailed,
    TaskFailed,
)
from airflow_provider_taskhub.engine.failures import chain

_LIVE = 8 * 1024
"""Bytes of memory of a live orchestrator and its session without its events, rounded up."""
_ROW = 256
"""Bytes of memory of an event and of the task that waits for it, without the event's texts."""
# These tuples are constants for speed: `isinstance(event, A | B)` would build the union again for each replayed event.
_MARKS = (OrchestratorStarted, OrchestratorCompleted)
_FAILURES = (TaskFailed, SubOrchestrationInstanceFailed)
_TEXTS: Mapping[EventType, tuple[str, ...]] = {
    EventType.ExecutionStarted: ("input",),
    EventType.ExecutionCompleted: ("result",),
    EventType.ExecutionTerminated: ("input",),
    EventType.ExecutionSuspended: ("reason",),
    EventType.ExecutionResumed: ("reason",),
    EventType.TaskScheduled: ("input",),
    EventType.TaskCompleted: ("result",),
    EventType.TaskFailed: ("reason", "details"),
    EventType.SubOrchestrationInstanceCreated: ("input",),
    EventType.SubOrchestrationInstanceCompleted: ("result",),
    EventType.SubOrchestrationInstanceFailed: ("reason", "details"),
    EventType.EventSent: ("input",),
    EventType.EventRaised: ("input",),
    EventType.GenericEvent: ("data", "reason"),
}
"""By event type, the fields whose texts can have any length."""


class Past:
    """The history of an instance since its last ``continue_as_new``. Each episode adds events.

    :param events: the history from its beginning; empty for an instance that starts.
    :ivar events: the history.
    :ivar episodes: number of episodes in the history.
    :ivar time: the orchestrator's time in the last episode.
    :ivar last_number: the highest number of an action in the history; -1 if there is no action.
    :ivar completed: whether the history has a completion event.
    :ivar status: final status if ``completed``; else PENDING.
    :ivar request: the request to end the instance that counts; None: there is none.
    :ivar size: estimate of the memory that the live instance uses, in bytes.
    """

    def __init__(self, events: Iterable[HistoryEvent]) -> None:
        self.events: list[HistoryEvent] = []
        self.episodes = 0
        self.time = Timestamp(0)
        self.last_number = -1
        self.completed = False
        self.status = Status.PENDING
        self.request: grace.Request | None = None
        self.size = _LIVE
        self.extend(events)

    def clear(self) -> None:
        """Remove all events, because the instance continues as new. The time is kept, because it never goes back."""
        self.events.clear()
        self.episodes, self.size = 0, _LIVE
        self.last_number = -1
        self.request = None

    def extend(self, events: Iterable[HistoryEvent]) -> None:
        """Append events to the history.

        :param events: the events, in their order.
        """
        for event in events:
            self.events.append(event)
            if event.event_id > self.last_number:
                self.last_number = event.event_id
            self.size += _ROW
            for text in _TEXTS.get(event.event_type, ()):
                self.size += 2 * len(getattr(event, text) or "")  # the text, and the decoded value that code can keep
            if isinstance(event, _MARKS):
                self.episodes += isinstance(event, OrchestratorStarted)
                self.time = max(self.time, event.timestamp)
            elif isinstance(event, _FAILURES):
                self.size += _size_of(event.failure)
            elif isinstance(event, EventRaised):
                self.request = grace.which_counts(self.request, grace.request_of(event))
            elif isinstance(event, ExecutionCompleted):
                self.completed = True
                self.status = event.status

    def flushed(self) -> int:
        """Return the index up to which the history holds all decisions of the code; 0 if it holds none.

        It is the index of the OrchestratorCompleted event of the last episode that did not end suspended: the decisions
        of a suspended instance are stored only after a resume.
        """
        suspended, upto = False, 0
        for at, event in enumerate(self.events):
            if isinstance(event, ExecutionSuspended):
                suspended = True
            elif isinstance(event, ExecutionResumed):
                suspended = False
            elif isinstance(event, OrchestratorCompleted) and not suspended:
                upto = at
        return upto


def _size_of(failure: FailureDetails | None) -> int:
    """Return the number of characters in the texts of a failure and of all its causes."""
    return sum(len(each.error_message) + len(each.stack_trace or "") for each in chain(failure))
