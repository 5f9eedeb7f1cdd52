"""Records OpenTelemetry spans with the names that DurableTask uses.

Tracing is on if the process has a tracer provider (``opentelemetry-instrument taskhub worker …``, or an app that sets
a provider). If tracing is off, OpenTelemetry is not imported and every function returns at once.

The span of an orchestration, of an activity that it calls, of a child or of a timer is made only when that work ends,
by the worker that processes the end. The id of the span was already chosen at the start of the work, so that other
spans could name it as their parent.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import (
    EventSent,
    ExecutionCompleted,
    ExecutionStarted,
    FailureDetails,
    HistoryEvent,
    OrchestrationInstance,
    Status,
    SubOrchestrationInstanceCompleted,
    SubOrchestrationInstanceCreated,
    SubOrchestrationInstanceFailed,
    TaskCompleted,
    TaskFailed,
    TaskScheduled,
    TimerCreated,
    TimerFired,
    TraceContext,
)
from airflow_provider_taskhub.engine.trace_context import context, parts, span_of

SOURCE = "DurableTask.Core"
"""Name of the tracer: the name of DurableTask's ActivitySource."""
_API = "opentelemetry.trace"


def on() -> bool:
    """Return whether tracing is on in this process."""
    api: Any = sys.modules.get(_API)
    return api is not None and not isinstance(api.get_tracer_provider(), api.ProxyTracerProvider)


class _Ids:
    """An id generator for OpenTelemetry's SDK by which the caller can choose the id of the next span.

    :param inner: the generator for all other ids.
    :ivar following: the id of the next span, in hexadecimal digits; None: ``inner`` makes it.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.following: str | None = None

    def generate_span_id(self) -> int:
        given, self.following = self.following, None
        return int(given, 16) if given is not None else self._inner.generate_span_id()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _tracer() -> Any:
    api: Any = sys.modules[_API]
    tracer = api.get_tracer(SOURCE)
    ids = getattr(tracer, "id_generator", None)
    if ids is not None and not isinstance(ids, _Ids):
        tracer.id_generator = _Ids(ids)
    return tracer


def _remote(trace_parent: str | None, trace_state: str | None) -> Any:
    """Return an OpenTelemetry context whose current span is the span of a ``traceparent``.

    :returns: the context; None if ``trace_parent`` is None or not valid.
    """
    api: Any = sys.modules[_API]
    found = parts(trace_parent)
    if found is None:
        return None
    span = api.SpanContext(
        trace_id=int(found[0], 16),
        span_id=int(found[1], 16),
        is_remote=True,
        trace_flags=api.TraceFlags(int(found[2], 16)),
        trace_state=api.TraceState.from_header([trace_state]) if trace_state else None,
    )
    return api.set_span_in_context(api.NonRecordingSpan(span))


def _span(
    name: str,
    kind: str,
    attributes: Mapping[str, Any],
    *,
    parent: Any = None,
    span_id: str | None = None,
    start: Timestamp | None = None,
) -> Any:
    api: Any = sys.modules[_API]
    tracer = _tracer()
    if isinstance(getattr(tracer, "id_generator", None), _Ids):
        tracer.id_generator.following = span_id
    kept = {f"durabletask.{key}": value for key, value in attributes.items() if value not in (None, "")}
    moment = None if start is None else start.ticks * 100
    return tracer.start_span(name, context=parent, kind=api.SpanKind[kind], attributes=kept, start_time=moment)


def _finish(span: Any, failure: FailureDetails | str | None = None, end: Timestamp | None = None) -> None:
    if failure is not None:
        api: Any = sys.modules[_API]
        text = failure if isinstance(failure, str) else failure.error_message
        span.set_status(api.StatusCode.ERROR, text[:1000])
    span.end(None if end is None else end.ticks * 100)


def _context_of(span: Any) -> TraceContext | None:
    found = span.get_span_context()
    if not found.is_valid:
        return None
    parent = f"00-{found.trace_id:032x}-{found.span_id:016x}-{int(found.trace_flags) & 1:02x}"
    return context(parent, found.trace_state.to_header() if found.trace_state else None)


def _named(what: str, name: str, version: str | None) -> str:
    return f"{what}:{name}@({version})" if version else f"{what}:{name}"


# --- spans of clients ---------------------------------------------------------------------------------------------


@contextmanager
def creating(name: str, version: str, instance: OrchestrationInstance) -> Iterator[TraceContext | None]:
    """Record a span for the start of an instance; the ``with`` block sends the start.

    The parent of the span is the caller's current span. The block gets the trace context for the start message; None:
    tracing is off.
    """
    if not on():
        yield None
        return
    attributes = {"type": "orchestration", "task.name": name, "task.version": version, **_of(instance)}
    with _around(_span(_named("create_orchestration", name, version), "PRODUCER", attributes)) as carried:
        yield carried


@contextmanager
def raising(name: str, instance_id: str) -> Iterator[TraceContext | None]:
    """Record a span for an external event that a client raises; the ``with`` block sends the event.

    The block gets the trace context for the message; None: tracing is off.
    """
    if not on():
        yield None
        return
    attributes = {"type": "event", "event.target_instance_id": instance_id}
    with _around(_span(f"orchestration_event:{name}", "PRODUCER", attributes)) as carried:
        yield carried


@contextmanager
def _around(span: Any) -> Iterator[TraceContext | None]:
    failure: str | None = None
    try:
        yield _context_of(span)
    except BaseException as error:
        failure = str(error) or type(error).__name__
        raise
    finally:
        _finish(span, failure)


def _of(instance: OrchestrationInstance) -> dict[str, Any]:
    return {"task.instance_id": instance.instance_id, "task.execution_id": instance.execution_id}


# --- spans of activities ------------------------------------------------------------------------------------------


class ActivitySpan:
    """The span of one attempt of an activity, recorded by the worker that runs the attempt.

    :param event: the event that schedules the activity; it has the trace context of the call.
    :param instance: the instance that called the activity.
    :ivar context: the trace context that spans of the activity's code have as their parent; None: the call has no trace
        context.
    """

    def __init__(self, event: TaskScheduled, instance: OrchestrationInstance) -> None:
        carried = event.parent_trace_context
        self.context = carried
        self._span: Any = None
        if carried is None or not on():
            return
        attributes = {
            "type": "activity",
            "task.name": event.name,
            "task.version": event.version,
            "task.task_id": event.event_id,
            "task.instance_id": instance.instance_id,
        }
        parent = _remote(carried.trace_parent, carried.trace_state)
        self._span = _span(_named("activity", event.name, event.version), "SERVER", attributes, parent=parent)
        self.context = _context_of(self._span) or carried

    def end(self, failure: FailureDetails | str | None = None) -> None:
        """End the span.

        :param failure: why the attempt failed; None: the attempt succeeded.
        """
        if self._span is not None:
            _finish(self._span, failure)


@contextmanager
def joined(trace_parent: str | None, trace_state: str | None) -> Iterator[None]:
    """In the ``with`` block, make new spans of user code children of the span that ``trace_parent`` names.

    If ``trace_parent`` is None or not valid, or if tracing is off, nothing changes.
    """
    api: Any = sys.modules.get("opentelemetry.context")
    remote = _remote(trace_parent, trace_state) if api is not None and on() else None
    if remote is None:
        yield
        return
    token = api.attach(remote)
    try:
        yield
    finally:
        api.detach(token)


# --- spans of orchestrations --------------------------------------------------------------------------------------


def record(
    started: ExecutionStarted | None,
    asked: Mapping[int, HistoryEvent],
    answers: Iterable[HistoryEvent],
    made: Sequence[HistoryEvent],
) -> None:
    """Record spans for all work that has ended in an episode. Call it after the checkpoint of the episode is stored.

    The function does not take the whole history, because reading a long history after each episode would be slow.

    :param started: the start event from the history before the episode; None: the start event is in ``made``.
    :param asked: the events that started the work (an activity, a child or a timer), by the number of the action.
    :param answers: the events that the episode has processed, such as results of activities.
    :param made: the events that the episode has added to the history.
    """
    started = started or next((event for event in made if isinstance(event, ExecutionStarted)), None)
    carried = None if started is None else started.parent_trace_context
    if started is None or carried is None or carried.span_id is None:
        return
    ours = _remote(carried.id, carried.trace_state)
    instance = started.instance
    for event in answers:
        match event:
            case TaskCompleted() | TaskFailed():
                _answered(asked.get(event.task_scheduled_id), event, "activity", ours, instance)
            case SubOrchestrationInstanceCompleted() | SubOrchestrationInstanceFailed():
                _answered(asked.get(event.task_scheduled_id), event, "orchestration", ours, instance)
            case TimerFired():
                _fired(asked.get(event.timer_id), event, started, ours)
    for event in made:
        match event:
            case EventSent() if event.taskhub_cancels is None:
                attributes = {"type": "event", "event.target_instance_id": event.instance_id, **_of(instance)}
                name = event.taskhub_action_id
                span_id = None if name is None else span_of(name)
                span = _span(
                    f"orchestration_event:{event.name}",
                    "PRODUCER",
                    attributes,
                    parent=ours,
                    span_id=span_id,
                    start=event.timestamp,
                )
                _finish(span)
            case ExecutionCompleted():
                _ended(started, event)


def _answered(
    asked: HistoryEvent | None, answer: HistoryEvent, what: str, parent: Any, instance: OrchestrationInstance
) -> None:
    if not isinstance(asked, TaskScheduled | SubOrchestrationInstanceCreated) or asked.taskhub_action_id is None:
        return
    attributes = {
        "type": what,
        "task.name": asked.name,
        "task.version": asked.version,
        "task.task_id": asked.event_id,
        "task.instance_id": asked.instance_id
        if isinstance(asked, SubOrchestrationInstanceCreated)
        else instance.instance_id,
    }
    span = _span(
        _named(what, asked.name, asked.version),
        "CLIENT",
        attributes,
        parent=parent,
        span_id=span_of(asked.taskhub_action_id),
        start=asked.timestamp,
    )
    failed = isinstance(answer, TaskFailed | SubOrchestrationInstanceFailed)
    _finish(span, (getattr(answer, "reason", None) or "failed") if failed else None, answer.timestamp)


def _fired(asked: HistoryEvent | None, fired: TimerFired, started: ExecutionStarted, parent: Any) -> None:
    if not isinstance(asked, TimerCreated):
        return
    attributes = {"type": "timer", "fire_at": fired.fire_at.text(), **_of(started.instance)}
    name = f"orchestration:{started.name}:timer"
    span = _span(name, "INTERNAL", attributes, parent=parent, start=asked.timestamp)
    _finish(span, end=max(fired.fire_at, asked.timestamp))


def _ended(started: ExecutionStarted, completed: ExecutionCompleted) -> None:
    carried = started.parent_trace_context
    assert carried is not None
    attributes = {
        "type": "orchestration",
        "task.name": started.name,
        "task.version": started.version,
        "task.status": str(completed.status),
        **_of(started.instance),
    }
    span = _span(
        _named("orchestration", started.name, started.version),
        "SERVER",
        attributes,
        parent=_remote(carried.trace_parent, carried.trace_state),
        span_id=carried.span_id,
        start=carried.activity_start_time,
    )
    failure = (completed.failure or completed.result or "failed") if completed.status is Status.FAILED else None
    _finish(span, failure, completed.timestamp)
