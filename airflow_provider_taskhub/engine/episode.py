"""What an episode of an orchestrator decides: values, carried out by the checkpoint.

The engine says *what* leaves an instance and in which order; queues, rows and blobs are the hub's.
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

    :param event: TaskScheduled → work items; TimerFired → own control queue, visible at ``fire_at``; ExecutionStarted
        (child), EventRaised, SubOrchestrationInstanceCompleted/Failed (to the parent) → the target's control queue.
    :param target: instance (and generation, where one is meant) in the message's ``OrchestrationInstance``; for
        activities and timers the instance itself.
    :param action_id: the action's identity (UUIDv5), sent as the message's ``ActivityId``; None for responses.
    :param context_tags: OrchestrationExecutionContext's tags (activities and children only), the sender's own.
    """

    event: HistoryEvent
    target: OrchestrationInstance
    action_id: str | None = None
    context_tags: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """The outcome of one run of an orchestrator over new events, generations that it went through included.

    :param loaded: instance and generation as loaded: the ``Sender`` of what leaves.
    :param current: the generation at the end of the episode.
    :param switched: the generation changed: ``history`` replaces what is stored from ordinal 0.
    :param history: the events to store: appended, or, if ``switched``, the whole new generation.
    :param first_ordinal: ordinal of ``history[0]``.
    :param outbound: messages to send, in the order decided.
    :param number: OrchestratorStarted events of the loaded generation, this one included (``Episode`` of messages).
    :param status: runtime status at the end; a running instance says RUNNING or SUSPENDED.
    :param custom_status: JSON text, or None for null.
    :param completed: the completion event, when the instance ended in this episode.
    :param awaits: what the instance waits for at the end; nothing when it has ended.
    :param stale: new events that the episode set aside unprocessed (other generation, wrong echo, duplicates), with a
        reason each; their messages are deleted and the reason is logged.
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
        """The ExecutionStarted event is among ``history`` (the instance row then gets all its columns)."""
        return any(isinstance(event, ExecutionStarted) for event in self.history)

    @property
    def output(self) -> str | None:
        """What readers see as the instance's output (completion, terminate, suspend, resume); None: unchanged."""
        completed = self.completed
        if completed is None:
            reasons = [e.reason for e in self.history if isinstance(e, ExecutionSuspended | ExecutionResumed)]
            return reasons[-1] if reasons else None
        if completed.failure is not None:
            return headline(completed.failure)
        return completed.result
