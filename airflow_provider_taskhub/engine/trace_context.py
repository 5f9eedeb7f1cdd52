"""W3C trace contexts in DurableTask's events: pure functions that do not need OpenTelemetry.

Span ids are computed from the instance or action that the span is for, so that an episode that runs again makes the
same ids. A trace context is passed on even if an orchestration records no span: later spans then have the last recorded
span as their parent.
"""

from __future__ import annotations

import re
from dataclasses import replace
from hashlib import sha256

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import ExecutionStarted, OrchestrationInstance, TraceContext

MAX_STATE = 513
"""Maximum characters of a trace state. A longer trace state is dropped, as in DurableTask."""
_PARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")


def parts(trace_parent: str | None) -> tuple[str, str, str] | None:
    """Return the trace id, the span id and the flags of a ``traceparent`` text; None if the text is not valid."""
    match = None if trace_parent is None else _PARENT.fullmatch(trace_parent)
    return None if match is None else (match[1], match[2], match[3])


def span_of(name: str) -> str:
    """Return a span id computed from a name.

    :param name: unique name of the instance or action of the span.
    """
    return sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def context(trace_parent: str, trace_state: str | None) -> TraceContext:
    """Return a trace context for a message.

    :param trace_parent: the W3C ``traceparent`` text.
    :param trace_state: the W3C ``tracestate`` text; a text longer than :data:`MAX_STATE` is dropped.
    """
    kept = trace_state if trace_state and len(trace_state) <= MAX_STATE else None
    return TraceContext(trace_parent=trace_parent, trace_state=kept)


def begun(started: ExecutionStarted, instance: OrchestrationInstance, now: Timestamp) -> ExecutionStarted:
    """Return the start event with the id and the start time of the orchestration's own span, as histories store them.

    :param started: the start event that arrived.
    :param instance: instance and execution id of the orchestration.
    :param now: when the span begins.
    :returns: the event with the span. The same event if it has no trace context, if the trace context is not valid, or
        if it already has a span.
    """
    carried = started.parent_trace_context
    found = None if carried is None else parts(carried.trace_parent)
    if carried is None or found is None or carried.span_id is not None:
        return started
    span = span_of(f"{instance.instance_id} {instance.execution_id}")
    name = f"00-{found[0]}-{span}-{found[2]}"
    return replace(started, parent_trace_context=replace(carried, id=name, span_id=span, activity_start_time=now))


def context_for_action(carried: TraceContext | None, action: str) -> TraceContext | None:
    """Return the trace context for the message of an action.

    If the orchestration has a span of its own, the context has a span id computed from the action. Otherwise it is the
    context of the orchestration's start.

    :param carried: trace context of the orchestration's start event; None if the event has none.
    :param action: identity of the action.
    :returns: None if ``carried`` is None.
    """
    if carried is None:
        return None
    found = parts(carried.trace_parent)
    if found is None or carried.span_id is None:
        return TraceContext(trace_parent=carried.trace_parent, trace_state=carried.trace_state)
    return context(f"00-{found[0]}-{span_of(action)}-{found[2]}", carried.trace_state)
