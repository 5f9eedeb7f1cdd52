"""Helps to run one attempt of an activity: makes its request and its trace span, defines the executor pool's interface.

Other modules store the outcome and send the response.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import structlog

from airflow_provider_taskhub import tracing
from airflow_provider_taskhub.engine.events import FailureDetails, TaskScheduled
from airflow_provider_taskhub.engine.registry import ActivityDefinition
from airflow_provider_taskhub.hub.formats.keys import log_name
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.spark_conf import application_conf
from airflow_provider_taskhub.tags import SPARK_PARENT_TAGS, WATCH_TAG
from airflow_provider_taskhub.workers.executors.attempt_values import (
    ActivityOutcome,
    ActivityProgress,
    ActivityRequest,
    Crashes,
)
from airflow_provider_taskhub.workers.executors.pause import Pause

log = structlog.get_logger(__name__)


class Runner(Protocol):
    """Runs the user's activity functions: the executor pool of a worker, or a function of a test."""

    async def run(
        self,
        request: ActivityRequest,
        *,
        progress: Callable[[ActivityProgress], None] | None = None,
        pause: Pause | None = None,
    ) -> ActivityOutcome: ...

    async def end_sessions(self, sessions: Sequence[str]) -> None:
        """End Spark Connect sessions that dead workers have left, and wait for the server's answer.

        :raises ExecutorError: if the server has not confirmed the end in time. The log has said so.
        """


def request_of(
    held: Delivery,
    event: TaskScheduled,
    definition: ActivityDefinition,
    *,
    attempt: int,
    crashes: Crashes,
    begin_by: float,
) -> ActivityRequest:
    """Return the request that asks the runner for one attempt.

    :param held: the work item of the activity.
    :param event: the event that scheduled the activity.
    :param attempt: the number of the attempt, from 1.
    :param crashes: counts the executors that died under this activity. After some deaths the activity runs alone in an
        executor.
    :param begin_by: as :class:`ActivityRequest` has it.
    """
    instance = held.message.instance
    return ActivityRequest(
        name=event.name,
        version=event.version or "",
        input=event.input,
        instance=instance,
        task_id=event.event_id,
        action_id=action_of(held, event),
        attempt=attempt,
        tags=event.tags or {},
        timeout=definition.timeout,
        spark=definition.spark,
        alone=crashes.suspect,
        log=log_name(instance, event.event_id, attempt),
        application=application_conf(definition.spark_conf),
        spark_conf=_spark_conf(held.message.context_tags) if definition.spark else None,
        watched=WATCH_TAG in (held.message.context_tags or {}),
        begin_by=begin_by,
    )


def _spark_conf(tags: Mapping[str, str] | None) -> dict[str, str]:
    """Return the configuration of the attempt's Spark session that the instance's tags contain.

    Only OpenLineage's settings are taken, because a worker's Spark must not be changed by whoever starts an instance.
    """
    return {name: value for name, value in (tags or {}).items() if name.startswith(SPARK_PARENT_TAGS)}


async def traced(
    event: TaskScheduled,
    request: ActivityRequest,
    run: Callable[[ActivityRequest], Coroutine[Any, Any, ActivityOutcome]],
) -> ActivityOutcome:
    """Run an attempt within its trace span, and return its outcome.

    The activity gets the trace context even if this worker records no spans.

    :param run: runs the request.
    """
    if event.parent_trace_context is None:
        return await run(request)
    span = tracing.ActivitySpan(event, request.instance)
    failure: FailureDetails | str | None = "the attempt was cancelled"
    try:
        outcome = await run(replace(request, trace=span.context))
        failure = outcome.failure
        return outcome
    finally:
        span.end(failure)


def warn_of_crash(request: ActivityRequest, outcome: ActivityOutcome) -> None:
    """Log that the executor of an attempt has crashed. The caller runs the next attempt."""
    log.warning(
        "executor_crashed",
        activity=request.name,
        instance_id=request.instance.instance_id,
        task_id=request.task_id,
        attempt=request.attempt,
        error=outcome.failure.error_message if outcome.failure else "",
    )


def action_of(held: Delivery, event: TaskScheduled) -> str:
    """Return the identity of the action that scheduled the activity.

    A work item of a .NET worker has no identity of an action; then the id of the message is returned.
    """
    return event.taskhub_action_id or str(held.envelope.activity_id)
