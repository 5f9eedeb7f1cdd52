"""W3C trace contexts as DurableTask's events carry them. Pure: nothing here knows of OpenTelemetry.

Ids of spans are made from what they stand for, so that an episode which is run again names the very same ones. A
context goes on also where nobody records: then what comes later has the last recorded span for its parent.
"""

from __future__ import annotations

import re
from dataclasses import replace
from hashlib import sha256

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import ExecutionStarted, OrchestrationInstance, TraceContext

MAX_STATE = 513
"""Characters of a trace state; DurableTask drops a longer one."""
_PARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")


def parts(trace_parent: str | None) -> tuple[str, str, str] | None:
    """Trace id, span id and flags of a ``traceparent``; None when it is none."""
    match = None if trace_parent is None else _PARENT.fullmatch(trace_parent)
    return None if match is None else (match[1], match[2], match[3])


def span_of(name: str) -> str:
    """The span id of what has this name."""
    return sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def context(trace_parent: str, trace_state: str | None) -> TraceContext:
    """The context that a message carries."""
    kept = trace_state if trace_state and len(trace_state) <= MAX_STATE else None
    return TraceContext(trace_parent=trace_parent, trace_state=kept)


def begun(started: ExecutionStarted, instance: OrchestrationInstance, now: Timestamp) -> ExecutionStarted:
    """The start of a traced orchestration with the id and begin of its span, as its history keeps them."""
    carried = started.parent_trace_context
    found = None if carried is None else parts(carried.trace_parent)
    if carried is None or found is None or carried.span_id is not None:
        return started
    span = span_of(f"{instance.instance_id} {instance.execution_id}")
    name = f"00-{found[0]}-{span}-{found[2]}"
    return replace(started, parent_trace_context=replace(carried, id=name, span_id=span, activity_start_time=now))


def context_for_action(carried: TraceContext | None, action: str) -> TraceContext | None:
    """What an action of an orchestration carries: its own span's id, if the orchestration is recorded.

    :param carried: of the orchestration's start. :param action: identity of the action.
    """
    if carried is None:
        return None
    found = parts(carried.trace_parent)
    if found is None or carried.span_id is None:
        return TraceContext(trace_parent=carried.trace_parent, trace_state=carried.trace_state)
    return context(f"00-{found[0]}-{span_of(action)}-{found[2]}", carried.trace_state)
