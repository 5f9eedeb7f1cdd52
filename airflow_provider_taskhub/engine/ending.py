"""How an instance ends: what its parent is told, and the episode of an instance that nobody can run. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.actions import Episode, Outbound
from airflow_provider_taskhub.engine.decisions import FIRE_AND_FORGET
from airflow_provider_taskhub.engine.events import (
    ExecutionCompleted,
    ExecutionStarted,
    FailureDetails,
    HistoryEvent,
    OrchestrationInstance,
    OrchestratorCompleted,
    OrchestratorStarted,
    Status,
    SubOrchestrationInstanceCompleted,
    SubOrchestrationInstanceFailed,
)
from airflow_provider_taskhub.errors import InputError


def response_of(
    started: ExecutionStarted, instance: OrchestrationInstance, completed: ExecutionCompleted
) -> Outbound | None:
    """What the parent is told of a child's end; None for an instance without parent, or one that nobody waits for."""
    parent = started.parent
    if parent is None or FIRE_AND_FORGET in (started.tags or {}):
        return None
    # Our children got their execution id from the action's identity: it is the echo (DESIGN §7).
    echo = instance.execution_id
    event: HistoryEvent
    if completed.status is Status.COMPLETED:
        event = SubOrchestrationInstanceCompleted(
            timestamp=completed.timestamp,
            task_scheduled_id=parent.task_schedule_id,
            result=completed.result,
            taskhub_action_id=echo,
        )
    else:
        event = SubOrchestrationInstanceFailed(
            timestamp=completed.timestamp,
            task_scheduled_id=parent.task_schedule_id,
            reason=completed.result,
            failure=completed.failure,
            taskhub_action_id=echo,
        )
    return Outbound(event=event, target=parent.instance)


def refuse(
    past: Sequence[HistoryEvent],
    new: Sequence[HistoryEvent],
    failure: FailureDetails,
    *,
    instance_id: str,
    now: Timestamp,
    custom_status: str | None = None,
) -> Episode:
    """The episode that fails an instance without running its orchestrator (K43).

    :param past: the current generation's history. :param new: what arrived; a start among it if ``past`` has none.
    :raises InputError: neither has a start.
    """
    started = next((event for event in (*past, *new) if isinstance(event, ExecutionStarted)), None)
    if started is None:
        raise InputError(f"instance {instance_id!r} has no ExecutionStarted in its history")
    instance = OrchestrationInstance(instance_id=instance_id, execution_id=started.instance.execution_id)
    time = max([now, *(event.timestamp for event in past if isinstance(event, OrchestratorStarted))])
    completed = ExecutionCompleted(
        timestamp=time,
        event_id=max((event.event_id for event in past), default=-1) + 1,
        status=Status.FAILED,
        result=failure.error_message,
        failure=failure,
    )
    history: tuple[HistoryEvent, ...] = (
        OrchestratorStarted(timestamp=time),
        *(replace(event, is_played=True) for event in new),
        completed,
        OrchestratorCompleted(timestamp=time),
    )
    response = response_of(started, instance, completed)
    return Episode(
        loaded=instance,
        current=instance,
        switched=False,
        history=history,
        first_ordinal=len(past),
        outbound=() if response is None else (response,),
        number=sum(isinstance(event, OrchestratorStarted) for event in past) + 1,
        status=Status.FAILED,
        custom_status=custom_status,
        completed=completed,
        started=any(isinstance(event, ExecutionStarted) for event in new),
        output=f"{failure.error_type}: {failure.error_message}",
    )
