"""How an ended instance ends its Airflow task: the result, or the orchestration's own error with the failed log."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow_provider_taskhub.hooks.identity import OWNER_TAG

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_taskhub.client import Client
    from airflow_provider_taskhub.engine.events import FailureDetails
    from airflow_provider_taskhub.hub.model import InstanceState

OVERDUE = "the time limit is over"
EXECUTION_TIMEOUT = "from Airflow: execution timeout"
"""Reason of the termination."""
LOG_LINES = 50
"""Of the failed attempt, in the task's log."""


def plain(text: str | None) -> Any:
    """A JSON text as its value; text that is not JSON (of a failed instance) as it is."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


async def terminate_owned(client: Client, instance_id: str, owner: str | None, why: str) -> str:
    """Terminate an instance that is live and of the start that ``owner`` made, and wait until nothing of it runs.

    :returns: how that went, for the task's log and its error.
    """
    state = await client.get(instance_id, payloads=False)
    if state is None or state.status.is_final:
        return "the instance has ended already"
    if (state.tags or {}).get(OWNER_TAG) != owner:
        return "the instance was started again meanwhile: it is not terminated"
    await client.terminate(instance_id, why, wait=True)
    await client.watches.forget([instance_id])
    return "the instance is terminated, nothing of it runs"


async def failed_log(client: Client, instance_id: str) -> tuple[str, list[str]] | None:
    """Title and last lines of the failed attempt's log; None where no attempt failed or kept a log."""
    attempt = await client.instance(instance_id).failed_attempt()
    if attempt is None:
        return None
    title = f"{attempt.name} #{attempt.task_id}, attempt {attempt.attempt}"
    return title, (await client.instance(instance_id).log(attempt.log, last=LOG_LINES)).splitlines()[-LOG_LINES:]


def reason(state: InstanceState) -> str:
    """One line: the orchestration's own error, or why it was terminated."""
    from airflow_provider_taskhub.engine.failures import headline  # here: DAG parsing imports this module

    if state.failure is not None:
        return headline(state.failure)
    said = plain(state.output)
    return str(said) if said else "no reason given"


def causes(failure: FailureDetails | None) -> Iterator[str]:
    """The error and what caused it, outermost first, with their stack traces."""
    from airflow_provider_taskhub.engine.failures import headline

    depth = 0
    while failure is not None and depth < 10:
        head = "caused by " if depth else ""
        trace = f"\n{failure.stack_trace.rstrip()}" if failure.stack_trace else ""
        yield f"{head}{headline(failure)}{trace}"
        failure, depth = failure.inner_failure, depth + 1


def retryable(state: InstanceState) -> bool:
    """Whether the task may be retried: not after ``OrchestrationError(retryable=False)``."""
    return state.failure is None or not state.failure.is_non_retriable
