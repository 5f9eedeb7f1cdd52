"""The messages that tell a parent that its child has ended, or cannot start."""

from __future__ import annotations

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.episode import Outbound
from airflow_provider_taskhub.engine.events import (
    ExecutionCompleted,
    ExecutionStarted,
    ExecutionTerminated,
    FailureDetails,
    HistoryEvent,
    OrchestrationInstance,
    ParentInstance,
    Status,
    SubOrchestrationInstanceCompleted,
    SubOrchestrationInstanceFailed,
)
from airflow_provider_taskhub.engine.failures import TERMINATED
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


def refusal(started: ExecutionStarted, parent: ParentInstance, text: str, time: Timestamp) -> Outbound:
    """Return the message that tells a parent that its child cannot start. No retry policy starts the child again.

    :param started: start event of the child.
    :param parent: the parent that the start names.
    :param text: why the child cannot start.
    :param time: timestamp of the message.
    """
    failure = FailureDetails(error_type="OrchestrationError", error_message=text, is_non_retriable=True)
    event = SubOrchestrationInstanceFailed(
        timestamp=time,
        task_scheduled_id=parent.task_schedule_id,
        reason=text,
        failure=failure,
        taskhub_action_id=started.instance.execution_id,
    )
    return Outbound(event=event, target=parent.instance)


def start_of_cancelled(
    event: ExecutionTerminated, instance: OrchestrationInstance, sender: OrchestrationInstance | None, time: Timestamp
) -> ExecutionStarted:
    """Return a start for a child that is terminated before it begins, as far as the message of its parent tells.

    :param event: the message.
    :param instance: the child, with the execution id of the run.
    :param sender: the parent; None: it is unknown.
    :param time: timestamp of the start.
    """
    parent = None
    if event.taskhub_cancels is not None and sender is not None:
        parent = ParentInstance(name="", instance=sender, task_schedule_id=event.taskhub_cancels)
    return ExecutionStarted(timestamp=time, instance=instance, name=event.taskhub_child or "", parent=parent)


def _terminated(completed: ExecutionCompleted) -> FailureDetails:
    return FailureDetails(error_type=TERMINATED, error_message=completed.result or "nobody has given a reason")
