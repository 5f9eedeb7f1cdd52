"""What a parent is told of a child that has ended."""

from __future__ import annotations

from airflow_provider_taskhub.engine.actions import FIRE_AND_FORGET
from airflow_provider_taskhub.engine.episode import Outbound
from airflow_provider_taskhub.engine.events import (
    ExecutionCompleted,
    ExecutionStarted,
    HistoryEvent,
    OrchestrationInstance,
    Status,
    SubOrchestrationInstanceCompleted,
    SubOrchestrationInstanceFailed,
)


def response(
    started: ExecutionStarted, instance: OrchestrationInstance, completed: ExecutionCompleted
) -> Outbound | None:
    """What the parent is told."""
    parent = started.parent
    if parent is None or FIRE_AND_FORGET in (started.tags or {}):
        return None
    # Our children got their execution id from the action's identity: it is the echo.
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
