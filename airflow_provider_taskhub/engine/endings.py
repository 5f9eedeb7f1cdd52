"""What is told of an orchestration that ended: to the instance row (Output), and to the parent (spec §2.5, §7.2)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from airflow_provider_taskhub.engine.actions import Outbound
from airflow_provider_taskhub.engine.decisions import FIRE_AND_FORGET
from airflow_provider_taskhub.engine.events import (
    ExecutionCompleted,
    ExecutionResumed,
    ExecutionStarted,
    ExecutionSuspended,
    HistoryEvent,
    OrchestrationInstance,
    Status,
    SubOrchestrationInstanceCompleted,
    SubOrchestrationInstanceFailed,
)

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:\S*")


def response(
    started: ExecutionStarted, instance: OrchestrationInstance, completed: ExecutionCompleted
) -> Outbound | None:
    """What the parent is told."""
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


def output(completed: ExecutionCompleted | None, history: Sequence[HistoryEvent]) -> str | None:
    """The instance row's Output (spec §2.5)."""
    if completed is None:
        reasons = [e.reason for e in history if isinstance(e, ExecutionSuspended | ExecutionResumed)]
        return _plain(reasons[-1]) if reasons else None
    if completed.failure is not None:
        return f"{completed.failure.error_type}: {completed.failure.error_message}"
    return completed.result if completed.status is Status.COMPLETED else _plain(completed.result)


def _plain(reason: str | None) -> str | None:
    """A text for a column where .NET takes an absolute URI for a blob's address: such a reason is quoted (K60)."""
    return json.dumps(reason) if reason is not None and _URI.fullmatch(reason) else reason
