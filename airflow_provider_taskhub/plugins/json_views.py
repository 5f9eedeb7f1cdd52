"""Values of a hub as the page's JSON. Pure; payloads pass the masker given, or are hidden."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine import events
from airflow_provider_taskhub.engine.events import FailureDetails, HistoryEvent, Status
from airflow_provider_taskhub.engine.failures import headline
from airflow_provider_taskhub.hooks import identity
from airflow_provider_taskhub.hub.model import ActivityRecord, InstanceState, OwnerState, PartitionState
from airflow_provider_taskhub.hub.waiting.reasons import Reason, Why, clock
from airflow_provider_taskhub.plugins.timeline import milliseconds, only
from airflow_provider_taskhub.triggers.outcome import plain, reason
from airflow_provider_taskhub.triggers.task_log import execution

Show = Callable[[str | None], str]
"""How a payload may be shown: masked, or not at all."""
MOST_EVENTS = 500
"""Of a history, from its end."""
_LONGEST = 20_000
_LONGEST_LINE = 240
_WORKS = frozenset({Reason.ACTIVITIES, Reason.CHILDREN})
"""What an instance waits for while something of it runs: the list shows the activities themselves."""
_TOLD = frozenset({Reason.SUSPENDED, Reason.QUARANTINE})
"""Reasons that hold texts of people or of messages, shown like payloads."""


def row(state: InstanceState, done: Mapping[str, int] | None, waits: Sequence[Why], show: Show) -> dict[str, Any]:
    """A line of the list. :param done: counts of the instance's activities; None: not known."""
    return {
        "id": state.instance_id,
        "status": str(state.status),
        "name": state.name,
        "created": milliseconds(state.created),
        "ended": milliseconds(ended(state)),
        "now": now_line(state, waits, show),
        "fault": any(why.reason.is_fault for why in waits),
        "activities": done,
        "airflow": airflow(state),
    }


def ended(state: InstanceState) -> Timestamp | None:
    return (state.completed or state.updated) if state.status.is_final else None


def now_line(state: InstanceState, waits: Sequence[Why], show: Show) -> str:
    """Where the instance stands now: why it failed or was ended, what it waits for, or its progress.

    :param waits: of :meth:`.Client.waiting`, the strongest reason first.
    """
    if state.status in (Status.FAILED, Status.TERMINATED, Status.CANCELED):
        return show(reason(state))[:_LONGEST_LINE]
    if state.status.is_final:
        return ""
    shown = [why for why in waits if why.reason not in _WORKS]
    faults = [why for why in shown if why.reason.is_fault]
    parts = ["" if faults else _custom(state, show), *(f"waits: {_why(why, show)}" for why in faults or shown)]
    return "; ".join(part for part in parts if part)[:_LONGEST_LINE]


def _why(why: Why, show: Show) -> str:
    return show(why.text) if why.reason in _TOLD else why.text


def _custom(state: InstanceState, show: Show) -> str:
    """The custom status as one line."""
    if plain(state.custom_status) in (None, ""):
        return ""
    shown = show(state.custom_status)  # masked first: a joined text has no names, by which secrets are found
    status = plain(shown)
    if isinstance(status, dict) and all(isinstance(value, (str, int, float, bool)) for value in status.values()):
        return " · ".join(f"{name} {value}" for name, value in status.items())
    return status if isinstance(status, str) else shown


def tally(records: Sequence[ActivityRecord]) -> dict[str, int]:
    """Activities of one execution by the state of their last attempt, and how many were retried (after a failure or a
    loss)."""
    last = {record.task_id: record for record in sorted(records, key=lambda record: record.attempt)}
    found = Counter(str(record.state) for record in last.values())
    return {**found, "retried": sum(record.attempt > 1 for record in last.values()), "all": len(last)}


def airflow(state: InstanceState) -> dict[str, Any] | None:
    """The Airflow task that started the instance."""
    tags = state.tags or {}
    if identity.DAG_TAG not in tags:
        return None
    index = tags.get(identity.MAP_TAG, "-1")
    return {
        "dag": tags[identity.DAG_TAG],
        "run": tags.get(identity.RUN_TAG, ""),
        "task": tags.get(identity.TASK_TAG, ""),
        "index": int(index) if index.lstrip("-").isdigit() else -1,
        "try": tags.get(identity.TRY_TAG, ""),
        "generation": tags.get(identity.GENERATION_TAG, ""),
    }


def instance(state: InstanceState, waits: Sequence[Why], show: Show) -> dict[str, Any]:
    """The head of an instance's page."""
    return {
        "id": state.instance_id,
        "execution": state.execution_id,
        "status": str(state.status),
        "name": state.name,
        "version": state.version,
        "created": milliseconds(state.created),
        "ended": milliseconds(ended(state)),
        "now": now_line(state, waits, show),
        "fault": any(why.reason.is_fault for why in waits),
        "remedies": [why.remedy for why in waits if why.remedy and why.reason not in _WORKS],
        "input": show(state.input)[:_LONGEST],
        # before the end, the column holds why the instance was suspended or resumed
        "output": show(state.output)[:_LONGEST] if state.status.is_final else "",
        "custom": show(state.custom_status)[:_LONGEST],
        "failure": failure(state.failure, show),
        "tags": _tags(state.tags or {}, show),
        "airflow": airflow(state),
    }


def _tags(tags: Mapping[str, str], show: Show) -> dict[str, str]:
    """An instance's tags; those that are not written by an Airflow task may hold anything, and are masked."""
    return {
        name: value if name.startswith(identity.RESERVED) else _tag(name, value, show) for name, value in tags.items()
    }


def _tag(name: str, value: str, show: Show) -> str:
    shown = plain(show(json.dumps({name: value}, ensure_ascii=False)))
    return str(shown[name]) if isinstance(shown, dict) else str(shown)


def failure(details: FailureDetails | None, show: Show) -> dict[str, Any] | None:
    if details is None:
        return None
    return {
        "headline": show(headline(details))[:_LONGEST],
        "type": details.error_type,
        "message": show(details.error_message)[:_LONGEST],
        "stack": show(details.stack_trace)[:_LONGEST] if details.stack_trace else None,
        "retryable": not details.is_non_retriable,
    }


def of_task(state: InstanceState) -> dict[str, Any]:
    """A line of the chooser on a task's tab: which instance of the task it is."""
    found = airflow(state) or {}
    return {
        "id": state.instance_id,
        "name": state.name,
        "status": str(state.status),
        "created": milliseconds(state.created),
        "generation": found.get("generation", ""),
        "try": found.get("try", ""),
    }


def served(state: PartitionState | None, partition: int) -> dict[str, Any]:
    """Who serves the instance's partition, and whether it lives."""
    return {
        "partition": partition,
        "owner": state.owner if state else None,
        "state": str(state.state if state else OwnerState.MISSING),
        "offline": bool(state and state.offline),
        "epoch": state.epoch if state else None,
        "draining": bool(state and state.draining),
    }


def activity(record: ActivityRecord, show: Show) -> dict[str, Any]:
    """One attempt, as a click on its bar shows it."""
    return {
        "execution": execution(record),
        "task": record.task_id,
        "attempt": record.attempt,
        "name": record.name,
        "state": str(record.state),
        "worker": record.worker,
        "executor": record.executor,
        "claimed": milliseconds(record.claimed),
        "ended": milliseconds(record.ended),
        "progress": record.progress,
        "message": show(record.message)[:_LONGEST],
        "application": record.application_id,
        "spark_ui": record.spark_ui,
        "log": record.log is not None,
        "result": show(record.result)[:_LONGEST] if record.result else None,
        "failure": failure(record.failure, show),
    }


def history(past: Sequence[HistoryEvent], show: Show) -> dict[str, Any]:
    """The newest events first."""
    names = _names(past)
    first = max(0, len(past) - MOST_EVENTS)
    lines = [
        {
            "n": number,
            "time": milliseconds(_time(past[number])),
            "event": past[number].event_type.name,
            "what": _what(past[number], names),
            "payload": show(_payload(past[number]))[:_LONGEST],
        }
        for number in range(len(past) - 1, first - 1, -1)
    ]
    return {"events": lines, "total": len(past)}


def inputs(past: Sequence[HistoryEvent], show: Show) -> dict[int, str]:
    """What each activity and child was given, by its number."""
    found: dict[int, str] = {}
    for event in past:
        if isinstance(event, events.TaskScheduled):
            found[event.event_id] = show(only(event.input))[:_LONGEST]
        elif isinstance(event, events.SubOrchestrationInstanceCreated):
            found[event.event_id] = show(event.input)[:_LONGEST]
    return found


def _time(event: HistoryEvent) -> Timestamp:
    return event.fired_at if isinstance(event, events.TimerFired) else event.timestamp


def _names(past: Sequence[HistoryEvent]) -> dict[int, str]:
    kinds = (events.TaskScheduled, events.SubOrchestrationInstanceCreated)
    return {event.event_id: event.name for event in past if isinstance(event, kinds)}


def _what(event: HistoryEvent, names: dict[int, str]) -> str:
    match event:
        case events.TaskScheduled() | events.SubOrchestrationInstanceCreated():
            return f"{event.name} #{event.event_id}"
        case (
            events.TaskCompleted()
            | events.TaskFailed()
            | events.SubOrchestrationInstanceCompleted()
            | events.SubOrchestrationInstanceFailed()
        ):
            return f"{names.get(event.task_scheduled_id, '')} #{event.task_scheduled_id}".strip()
        case events.TimerCreated():
            return f"until {clock(event.fire_at)}"
        case events.TimerFired():
            return f"timer #{event.timer_id}"
        case events.ExecutionStarted() | events.EventRaised() | events.EventSent():
            return event.name
        case events.ExecutionCompleted():
            return str(event.status)
    return ""


def _payload(event: HistoryEvent) -> str | None:
    match event:
        case events.TaskFailed() | events.SubOrchestrationInstanceFailed():
            return headline(event.failure) if event.failure else event.reason
        case events.TaskCompleted() | events.SubOrchestrationInstanceCompleted() | events.ExecutionCompleted():
            return event.result
    return getattr(event, "input", None) or getattr(event, "reason", None)
