"""Ending the children of an instance together with it: pure functions over its history.

A terminate with ``TaskHubRecurse`` is sent on to every child that has not completed. The message names the child's
start, so that it ends no later run of that id, and the child's orchestrator, for a child that has not begun. Children
with DurableTask's tag for fire and forget go on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.actions import FIRE_AND_FORGET
from airflow_provider_taskhub.engine.episode import Outbound
from airflow_provider_taskhub.engine.events import (
    ExecutionStarted,
    ExecutionTerminated,
    HistoryEvent,
    OrchestrationInstance,
    SubOrchestrationInstanceCompleted,
    SubOrchestrationInstanceCreated,
    SubOrchestrationInstanceFailed,
)
from airflow_provider_taskhub.engine.identity import child_execution_id
from airflow_provider_taskhub.fast_dataclass import dataclass

MAX_CARRIED = 16_000
"""Characters of the list of children that a generation passes on; a longer list loses its oldest children."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A child that has not completed.

    :param execution_id: of its start; None: its parent was run by .NET, which does not record it.
    :param name: of its orchestrator.
    """

    instance_id: str
    execution_id: str | None
    name: str


def unfinished(history: Iterable[HistoryEvent]) -> tuple[Child, ...]:
    """The children of this generation and of earlier ones that have not completed."""
    earlier: list[Child] = []
    waiting: dict[int, Child] = {}
    for event in history:
        match event:
            case SubOrchestrationInstanceCreated() if FIRE_AND_FORGET not in (event.tags or {}):
                action = event.taskhub_action_id
                waiting[event.event_id] = Child(
                    instance_id=event.instance_id,
                    execution_id=None if action is None else child_execution_id(action),
                    name=event.name,
                )
            case SubOrchestrationInstanceCompleted() | SubOrchestrationInstanceFailed():
                waiting.pop(event.task_scheduled_id, None)
            case ExecutionStarted() if event.taskhub_children:
                earlier = _parsed(event.taskhub_children)
    return (*earlier, *waiting.values())


def carried(history: Iterable[HistoryEvent]) -> str | None:
    """The list of open children that a generation passes on when it continues as new; None: there are none."""
    entries = [json.dumps([child.instance_id, child.execution_id, child.name]) for child in unfinished(history)]
    while entries and sum(map(len, entries)) + len(entries) > MAX_CARRIED:
        del entries[0]
    return f"[{','.join(entries)}]" if entries else None


def terminations(history: Iterable[HistoryEvent], instance_id: str, time: Timestamp) -> list[Outbound]:
    """The messages that end the children of an instance that is terminated; none unless the terminate asks for it.

    :param history: of the generation, with the terminate. :param instance_id: of the parent.
    """
    history = tuple(history)
    terminated = next((event for event in reversed(history) if isinstance(event, ExecutionTerminated)), None)
    if terminated is None or not terminated.taskhub_recurse:
        return []
    why = f": {terminated.input}" if terminated.input else ""
    return [
        Outbound(
            event=ExecutionTerminated(
                timestamp=time,
                input=f"its parent {instance_id!r} was terminated{why}",
                taskhub_execution_id=child.execution_id,
                taskhub_recurse=True,
                taskhub_child=child.name,
            ),
            target=OrchestrationInstance(instance_id=child.instance_id),
        )
        for child in unfinished(history)
    ]


def reports_end(history: Iterable[HistoryEvent]) -> bool:
    """Whether an instance reports its end to its parent. It does not if the parent has terminated it.

    The parent may not have ended yet: it would take the report for a failure of the child.
    """
    return not any(isinstance(event, ExecutionTerminated) and event.taskhub_child is not None for event in history)


def _parsed(text: str) -> list[Child]:
    with suppress(ValueError, TypeError):  # a damaged list costs the terminate of some children, not the instance
        return [
            Child(instance_id=str(one), execution_id=start, name=str(name)) for one, start, name in json.loads(text)
        ]
    return []
