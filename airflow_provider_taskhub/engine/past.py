"""The history of the current generation, with what is counted over it: time, episodes, action numbers, memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import (
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

_LIVE = 8 * 1024
"""Bytes of a live orchestrator and its session beside its events, rounded up: coroutine, context, maps, sets."""
_ROW = 256
"""Bytes of an event, and of what waits for it, beside its texts."""
_MARKS = (OrchestratorStarted, OrchestratorCompleted)
_FAILURES = (TaskFailed, SubOrchestrationInstanceFailed)
# asked of every event that is replayed: a union written in place would be made anew each time, which costs most of it
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
"""Members of events that are texts of any length."""


class Past:
    """See the module. Grows by every episode.

    :param events: the history from its beginning; empty for an instance that starts.
    :ivar episodes: how many are in the history. :ivar time: the orchestrator's last time.
    :ivar last_number: the highest number of an action; -1: there is none.
    :ivar completed: whether the history has its completion; ``status`` is then the final status.
    :ivar size: estimate of the memory that the live instance holds, in bytes.
    """

    def __init__(self, events: Iterable[HistoryEvent]) -> None:
        self.events: list[HistoryEvent] = []
        self.episodes = 0
        self.time = Timestamp(0)
        self.last_number = -1
        self.completed = False
        self.status = Status.PENDING
        self.size = _LIVE
        self.extend(events)

    def clear(self) -> None:
        """The next generation begins. The orchestrator's time goes on."""
        self.events.clear()
        self.episodes, self.size = 0, _LIVE
        self.last_number = -1

    def extend(self, events: Iterable[HistoryEvent]) -> None:
        """Add events of the history, in their order."""
        for event in events:
            self.events.append(event)
            if event.event_id > self.last_number:
                self.last_number = event.event_id
            self.size += _ROW
            for text in _TEXTS.get(event.event_type, ()):
                self.size += 2 * len(getattr(event, text) or "")  # and once more as the value that the code may hold
            if isinstance(event, _MARKS):
                self.episodes += isinstance(event, OrchestratorStarted)
                self.time = max(self.time, event.timestamp)
            elif isinstance(event, _FAILURES):
                self.size += _size_of(event.failure)
            elif isinstance(event, ExecutionCompleted):
                self.completed = True
                self.status = event.status

    def flushed(self) -> int:
        """How far the history holds every decision: up to the end of its last episode that did not end suspended."""
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
    """Characters of an error and of what it was caused by."""
    size = 0
    while failure is not None:
        size += len(failure.error_message) + len(failure.stack_trace or "")
        failure = failure.inner_failure
    return size
