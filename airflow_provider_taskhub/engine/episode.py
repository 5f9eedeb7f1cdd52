"""The result of an episode: the events to store and the messages to send, as plain values.

The engine decides which messages leave an instance, and in which order. The checkpoint writes them to the hub's queues,
rows and blobs.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_taskhub.engine.events import (
    ExecutionCompleted,
    ExecutionResumed,
    ExecutionStarted,
    ExecutionSuspended,
    HistoryEvent,
    OrchestrationInstance,
    Status,
)
from airflow_provider_taskhub.engine.failures import headline
from airflow_provider_taskhub.engine.pending_waits import NOTHING, Awaits
from airflow_provider_taskhub.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbound:
    """An event that leaves the instance as a message.

    :param event: the event in the message. A TaskScheduled goes to the work-item queue. A TimerFired goes to the
        instance's own control queue and is hidden until ``fire_at``. An ExecutionStarted (of a child), EventRaised,
        ExecutionTerminated (to a child) and SubOrchestrationInstanceCompleted/Failed (to the parent) go to the control
        queue of the target.
    :param target: the message's ``OrchestrationInstance``: the instance that the message is for. It has an execution id
        if the message must not reach another generation (after ``continue_as_new``). For activities and timers, the
        target is the sending instance itself.
    :param action_id: identity of the action (a UUIDv5), sent as the message's ``ActivityId``; None for messages that
        no action made, such as responses to the parent.
    :param context_tags: tags of the sending instance, for the message's ``OrchestrationExecutionContext``; only
        activities and children have them. None: no tags.
    """

    event: HistoryEvent
    target: OrchestrationInstance
    action_id: str | None = None
    context_tags: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """The result of one run of an orchestrator over new events.

    If the orchestrator continues as new, its next generation, with an empty history, begins in the same episode.

    :param loaded: instance and execution id before the episode: the ``Sender`` of the messages.
    :param current: instance and execution id at the end of the episode.
    :param switched: whether a new generation began. Then ``history`` replaces all stored rows, from row number 0.
    :param history: the events to store. They are appended to the stored history, or replace it if ``switched``.
    :param first_ordinal: row number of ``history[0]``.
    :param outbound: messages to send, in the order in which they were decided.
    :param number: number of this episode in the loaded generation, from 1: the ``Episode`` field of messages.
    :param status: runtime status at the end of the episode; RUNNING or SUSPENDED for an instance that has not ended.
    :param custom_status: custom status as JSON text; None: no custom status.
    :param completed: the completion event if the instance ended in this episode; else None.
    :param awaits: what the instance waits for at the end of the episode; empty if the instance has ended.
    :param stale: new events that the episode did not use, each with its reason: the event is a duplicate, belongs to
        another generation, or answers another decision. The worker deletes their messages and logs the reasons.
    """

    loaded: OrchestrationInstance
    current: OrchestrationInstance
    switched: bool
    history: tuple[HistoryEvent, ...]
    first_ordinal: int
    outbound: tuple[Outbound, ...]
    number: int
    status: Status
    custom_status: str | None
    completed: ExecutionCompleted | None = None
    awaits: Awaits = NOTHING
    stale: tuple[tuple[HistoryEvent, str], ...] = ()

    @property
    def started(self) -> bool:
        """Whether ``history`` has an ExecutionStarted event. If so, the checkpoint writes the whole instance row."""
        return any(isinstance(event, ExecutionStarted) for event in self.history)

    @property
    def output(self) -> str | None:
        """The output that readers of the instance see after this episode; None: the output does not change.

        After a completion it is the result, the failure's headline, or the reason of a terminate. After a suspend or
        resume it is the reason that the client gave.
        """
        completed = self.completed
        if completed is None:
            reasons = [e.reason for e in self.history if isinstance(e, ExecutionSuspended | ExecutionResumed)]
            return reasons[-1] if reasons else None
        if completed.failure is not None:
            return headline(completed.failure)
        return completed.result
