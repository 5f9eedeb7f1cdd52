"""The message that tells a parent that its child has ended."""

from __future__ import annotations

from airflow_provider_taskhub.engine.episode import Outbound
from airflow_provider_taskhub.engine.events import (
    ExecutionCompleted,
    ExecutionStarted,
    FailureDetails,
    HistoryEvent,
    OrchestrationInstance,
    Status,
    SubOrchestrationInstanceCompleted,
    SubOrchestrationInstanceFailed,
)
from airflow_provider_taskhub.tags import FIRE_AND_FORGET


def response(
    started: ExecutionStarted, instance: OrchestrationInstance, completed: ExecutionCompleted
) -> Outbound | None:
    """Return the message that tells the parent of a child's end.

    :param started: start event of the child.
    :param instance: instance and execution id of the child.
    :param completed: completion event of the child.
    :returns: None if the instance has no parent, or has the fire-and-forget tag.
    """
    parent = started.parent
    if parent is None or FIRE_AND_FORGET in (started.tags or {}):
        return None
    # The response must carry the identity of the parent's action. The child's execution id was made from that identity,
    # so the execution id is sent in its place.
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
            failure=_terminated(completed) if completed.status is Status.TERMINATED else completed.failure,
            taskhub_action_id=echo,
        )
    return Outbound(event=event, target=parent.instance)


def _terminated(completed: ExecutionCompleted) -> FailureDetails:
    return FailureDetails(error_type="Terminated", error_message=completed.result or "nobody has given a reason")
