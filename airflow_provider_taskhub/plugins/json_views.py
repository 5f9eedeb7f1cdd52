"""Turns instances, activities and events into the JSON of the page. No I/O.

The functions get a function ``show`` that masks a payload, or hides it from a user without the right to see it.

A generation is the part of a run between two calls of ``continue_as_new``. Each generation numbers its activities anew.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine import events
from airflow_provider_taskhub.engine.events import FailureDetails, HistoryEvent
from airflow_provider_taskhub.engine.failures import headline, place_of
from airflow_provider_taskhub.hooks import identity
from airflow_provider_taskhub.hooks.outputs import plain
from airflow_provider_taskhub.hub.history.pages import HistoryPage
from airflow_provider_taskhub.hub.model import ActivityRecord, InstanceState, OwnerState, PartitionState, RecordState
from airflow_provider_taskhub.hub.waiting.reasons import Reason, Why, clock
from airflow_provider_taskhub.plugins.timeline import milliseconds, only
from airflow_provider_taskhub.triggers.outcome import reason
from airflow_provider_taskhub.triggers.task_log import execution

Show = Callable[[str | None], str]
"""Returns a payload as the user may see it: masked, or replaced by a notice that the user lacks the right."""
MOST_EVENTS = 500
"""The largest number of events in one part of a history. The page shows the newest part, and earlier ones on demand."""
MOST_URIS = 200
"""The largest number of inlets, and of outlets, on an instance's page."""
_LONGEST = 20_000
_LONGEST_LINE = 240
_WORKS = frozenset({Reason.ACTIVITIES, Reason.CHILDREN})
"""Reasons that the page does not show, because the list shows the running activities and children themselves."""
_MASKED = frozenset({Reason.SUSPENDED, Reason.QUARANTINE, Reason.HELD})
"""Reasons whose texts contain texts of users or of messages. They are masked like payloads."""


_TABS = {
    Reason.QUARANTINE: "quarantine",
    Reason.CHILD_HELD: "quarantine",
    Reason.OFFLINE: "partitions",
    Reason.UNSERVED: "partitions",
    Reason.NOT_OWNER: "partitions",
    Reason.HELD: "partitions",
    Reason.LIMIT: "limits",
    Reason.QUEUED: "workers",
    Reason.NO_ORCHESTRATOR: "workers",
    Reason.VERSION: "workers",
    Reason.NO_ACTIVITY: "workers",
    Reason.NO_POOL: "workers",
    Reason.NO_MEMORY: "workers",
    Reason.NO_CHILD: "workers",
}
"""The tab of the page that shows more about a reason."""


def row(state: InstanceState, done: Mapping[str, int] | None, waits: Sequence[Why], show: Show) -> dict[str, Any]:
    """Return one line of the list of instances.

    :param state: the instance.
    :param done: the numbers of the instance's activities by state; None: not known.
    :param waits: why the instance makes no progress.
    :param show: masks or hides a payload.
    """
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
    """Return when the instance ended; None if it has not ended."""
    return (state.completed or state.updated) if state.status.is_final else None


def now_line(state: InstanceState, waits: Sequence[Why], show: Show) -> str:
    """Return one line about the current situation of an instance.

    The line says why the instance failed or was terminated, what it waits for, or its custom status.

    :param state: the instance.
    :param waits: the result of :meth:`.InstanceHandle.waiting`, the most important reason first.
    :param show: masks or hides a payload.
    """
    if state.status.is_unsuccessful:
        return show(reason(state))[:_LONGEST_LINE]
    if state.status.is_final:
        return ""
    shown = [*filter(_stands_still, waits)]
    faults = [why for why in shown if why.reason.is_fault]
    parts = ["" if faults else _custom(state, show), *(f"waits: {_why(why, show)}" for why in faults or shown)]
    return "; ".join(part for part in parts if part)[:_LONGEST_LINE]


def _stands_still(why: Why) -> bool:
    """Return whether a reason is more than that activities or children run: something that they need may be taken."""
    return why.reason not in _WORKS or bool(why.more)


def _why(why: Why, show: Show) -> str:
    return show(why.line) if why.reason in _MASKED else why.line


def _custom(state: InstanceState, show: Show) -> str:
    """Return the custom status as one line; "" if there is none."""
    if plain(state.custom_status) in (None, ""):
        return ""
    shown = show(state.custom_status)  # masked as JSON, because the masker finds secrets by the names of JSON fields
    status = plain(shown)
    if isinstance(status, dict) and all(isinstance(value, (str, int, float, bool)) for value in status.values()):
        return " · ".join(f"{name} {value}" for name, value in status.items())
    return status if isinstance(status, str) else shown


def lineage(records: Sequence[ActivityRecord], show: Show) -> dict[str, Any]:
    """Return the data that the completed activities of an instance have declared, each URI once.

    A URI passes ``show``, because its query can have a secret that only Airflow knows.

    :param records: the activity records of all generations, as :meth:`.InstanceHandle.lineage` reads them.
    :returns: ``inlets`` and ``outlets``, each at most :data:`MOST_URIS`; ``more``: how many URIs are left out.
    """
    done = [record.lineage for record in records if record.state is RecordState.COMPLETED]
    inlets = sorted({show(uri) for one in done for uri in one.inlets})
    outlets = sorted({show(uri) for one in done for uri in one.outlets})
    more = sum(max(0, len(uris) - MOST_URIS) for uris in (inlets, outlets))
    return {"inlets": inlets[:MOST_URIS], "outlets": outlets[:MOST_URIS], "more": more}


def tally(records: Sequence[ActivityRecord]) -> dict[str, int]:
    """Count the activities of one generation by the state of their last attempt.

    The result also has the number of activities with several attempts (``retried``), and of all activities (``all``).

    :param records: the activity records of one generation.
    """
    last = {record.task_id: record for record in sorted(records, key=lambda record: record.attempt)}
    found = Counter(str(record.state) for record in last.values())
    return {**found, "retried": sum(record.attempt > 1 for record in last.values()), "all": len(last)}


def airflow(state: InstanceState) -> dict[str, Any] | None:
    """Return the ids of the Airflow task that started the instance; None if no Airflow task started it."""
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
    """Return the upper part of an instance's page: its state, payloads, tags and error."""
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
        "custom_line": "" if state.status.is_final else _custom(state, show)[:_LONGEST_LINE],
        "waits": [] if state.status.is_final else [wait(why, show) for why in waits if _stands_still(why)],
        "input": show(state.input)[:_LONGEST],
        # before the end, the column "Output" contains the reason of a suspension or a resume
        "output": show(state.output)[:_LONGEST] if state.status.is_final else "",
        "custom": show(state.custom_status)[:_LONGEST],
        "failure": failure(state.failure, show),
        "tags": _tags(state.tags or {}, show),
        "airflow": airflow(state),
    }


def wait(why: Why, show: Show) -> dict[str, Any]:
    """Return one reason why an instance does not continue, with the way out.

    ``tab`` of the result is the tab of the page where a person can change something, or None.
    """
    return {
        "kind": str(why.reason),
        "text": _why(why, show),
        "remedy": why.remedy,
        "fault": why.reason.is_fault,
        "events": list(why.events),
        "tab": _TABS.get(why.reason),
    }


def _tags(tags: Mapping[str, str], show: Show) -> dict[str, str]:
    """Return the instance's tags. Tags that TaskHub wrote stay unchanged. All other tags go through ``show``.

    :param show: returns a JSON text as the user may see it: with its secrets masked, or a notice instead of the text.
    """
    return {
        name: value if name.startswith(identity.RESERVED) else _tag(name, value, show) for name, value in tags.items()
    }


def _tag(name: str, value: str, show: Show) -> str:
    shown = plain(show(json.dumps({name: value}, ensure_ascii=False)))
    return str(shown[name]) if isinstance(shown, dict) else str(shown)


def failure(details: FailureDetails | None, show: Show) -> dict[str, Any] | None:
    """Return an error for the page; None if there is no error."""
    if details is None:
        return None
    return {
        "headline": show(headline(details))[:_LONGEST],
        "type": details.error_type,
        "message": show(details.error_message)[:_LONGEST],
        "at": show(at)[:_LONGEST] if (at := place_of(details)) else None,
        "stack": show(details.stack_trace)[:_LONGEST] if details.stack_trace else None,
        "retryable": not details.is_non_retriable,
    }


def of_task(state: InstanceState) -> dict[str, Any]:
    """Return one entry of the list in which a user selects one of a task's instances."""
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
    """Return which worker owns the instance's partition, and whether this worker is alive.

    :param state: the state of the partition; None: not known.
    :param partition: the number of the partition.
    """
    return {
        "partition": partition,
        "owner": state.owner if state else None,
        "state": str(state.state if state else OwnerState.MISSING),
        "offline": bool(state and state.offline),
        "epoch": state.epoch if state else None,
        "draining": bool(state and state.draining),
    }


def activity(record: ActivityRecord, show: Show) -> dict[str, Any]:
    """Return the details of one attempt, which the page shows after a click on the attempt's bar."""
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
        "lineage": lineage((record,), show),
    }


def history(page: HistoryPage, show: Show) -> dict[str, Any]:
    """Return the newest :data:`MOST_EVENTS` events of a part of the history, the newest first.

    ``first`` of the result is the position of its oldest event, ``total`` the number of events of the whole history,
    and ``execution`` the generation to which the history belongs.
    """
    names = _names(page.events)
    shown = [*zip(page.numbers, page.events, strict=True)][-MOST_EVENTS:]
    lines = [
        {
            "n": number,
            "time": milliseconds(_time(event)),
            "event": event.event_type.name,
            "what": _what(event, names),
            "payload": show(_payload(event))[:_LONGEST],
        }
        for number, event in reversed(shown)
    ]
    cut = len(page.events) > len(shown)
    return {
        "events": lines,
        "first": shown[0][0] if cut else page.first,
        "total": page.total,
        "execution": page.execution_id,
    }


def inputs(past: Sequence[HistoryEvent], show: Show) -> dict[int, str]:
    """Return the inputs of the activities and children by task id."""
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
