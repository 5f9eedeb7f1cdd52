"""What the Airflow task reports when its instance has ended: the output, or the error and the failed attempt's log."""

from __future__ import annotations

import re
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_taskhub.hooks.outputs import plain
from airflow_provider_taskhub.tags import OWNER_TAG
from airflow_provider_taskhub.triggers.grace import grace_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_provider_taskhub.client import Client
    from airflow_provider_taskhub.engine.events import FailureDetails
    from airflow_provider_taskhub.hub.model import InstanceState
    from airflow_provider_taskhub.triggers.grace import Confirmation

OVERDUE = "the time limit is over"
EXECUTION_TIMEOUT = "from Airflow: execution timeout"
"""Reason with which an instance is terminated when the task's time limit is over."""
UNUSABLE = "unusable"
"""Reason of the event with which a wait ends whose connection or arguments are wrong."""
LOG_LINES = 50
"""Lines of the failed attempt's log that the task's log shows."""
_FRAME = re.compile(r"\s+at [\w.$/<>]+\(")
"""A frame of one of Java's stack traces."""


def overdue_sensor(state: InstanceState | None) -> str:
    """Return why a sensor fails at its time limit. The text says whether the instance exists.

    Most often the user gave a wrong instance id.

    :param state: the instance's state; None: it is not in the hub.
    """
    if state is None:
        return f"{OVERDUE}, and there is no such instance in the hub: it never appeared, or it was purged"
    return f"{OVERDUE}; it is {state.status}"


def early_end(state: InstanceState) -> str:
    """Return why a sensor fails whose instance has ended before it reached what the sensor waits for."""
    from airflow_provider_taskhub.engine.events import Status

    text = f"instance {state.instance_id} {state.status.lower()}"
    if state.status is Status.COMPLETED:
        return f"{text} before it reached what this sensor waits for"
    return f"{text}: {reason(state)}"


def error_class(ended_by: str) -> type[AirflowException]:
    """Return the class of the error of a wait that has ended without an answer.

    :param ended_by: the reason in the trigger's event. ``unusable`` is a wrong connection or argument, which a retry
        does not change.
    """
    found: type[AirflowException] = AirflowFailException if ended_by == UNUSABLE else AirflowException
    return found


async def terminate_owned(
    client: Client,
    instance_id: str,
    owner: str | None,
    why: str,
    *,
    within: Confirmation,
    wait: bool = True,
    clean_up: bool = True,
    waiter: str | None = None,
) -> str:
    """Terminate an instance that has not ended. If it was started with a time for its clean-up, it gets this time.

    The owner tag alone does not say who may terminate the instance: a rewound instance keeps the tag of its first
    start, and then a later try of the task, or another task, waits for it. The watch row names that try.

    :param owner: the value of the tag ``taskhub.owner`` that the instance must have. Another value means that another
        task has started the instance again, so the instance is not terminated.
    :param why: the reason of the termination.
    :param within: the caller's limit of this call. The time for the clean-up is added to it.
    :param wait: True: wait until nothing of the instance runs any more.
    :param clean_up: False: do not wait if the instance may clean up.
    :param waiter: the id of the task instance whose try asks for the termination. If the watch row names another one,
        the instance is not terminated. None: do not read the watch row.
    :returns: a sentence about the result, for the task's log and its error.
    """
    state = await client.get(instance_id, payloads=False)
    if state is None:
        return "there is no such instance"
    if state.status.is_final:
        return "the instance has ended already"
    if (state.tags or {}).get(OWNER_TAG) != owner:
        return "the instance was started again meanwhile: it is not terminated"
    if waiter is not None:
        watch = await client.watches.get(instance_id)
        if watch is not None and watch.waiter not in ("", waiter):
            return "another task, or another try of this task, waits for the instance: it is not terminated"
    within.add(grace := grace_of(state))
    wait = wait and (clean_up or grace is None)
    await client.terminate(instance_id, why, wait=wait, grace=grace)
    if not wait:
        return "a termination is requested" + ("" if grace is None else f"; the instance may clean up for {grace}")
    await client.watches.forget([instance_id])
    return "the instance is terminated, nothing of it runs"


async def failed_log(client: Client, instance_id: str) -> tuple[str, list[str]] | None:
    """Return a title and the last lines of the failed attempt's log; None if no attempt failed or stored a log."""
    attempt = await client.instance(instance_id).failed_attempt()
    if attempt is None:
        return None
    title = f"{attempt.name} #{attempt.task_id}, attempt {attempt.attempt}"
    text = await client.instance(instance_id).log(attempt.log)
    return title, _without_java_stacks(text.splitlines())[-LOG_LINES:]


def _without_java_stacks(lines: Iterable[str]) -> list[str]:
    """Leave out the frames of Java's stack traces. Spark writes hundreds of them, and the lines of the user's code
    would not be among the last ones."""
    kept: list[str] = []
    for is_frame, group in groupby(lines, key=lambda line: _FRAME.match(line) is not None):
        found = list(group)
        kept += [f"\t... {len(found)} lines of Java's stack trace"] if is_frame and len(found) > 1 else found
    return kept


async def log_failure(client: Client, state: InstanceState, log: Any) -> None:
    """Write the causes of a failed instance and the failed attempt's last lines to the task's log.

    :param state: the state of an ended instance; one that has not failed is ignored.
    :param log: the task's logger.
    """
    from airflow_provider_taskhub.engine.events import Status

    if state.status is Status.FAILED:
        log_causes(state, log)
        log_attempt(await failed_log(client, state.instance_id), log)


def log_causes(state: InstanceState, log: Any) -> None:
    """Write the error of an instance and its causes to the task's log. An instance without an error is ignored."""
    for cause in causes(state.failure):
        log.error(cause)


def log_attempt(attempt: tuple[str, list[str]] | None, log: Any) -> None:
    """Write the failed attempt's last lines to the task's log. :param attempt: what :func:`failed_log` returned."""
    if attempt is not None:
        title, lines = attempt
        log.error("last %s of %s:", "line" if len(lines) == 1 else f"{len(lines)} lines", title)
        for line in lines:
            log.info(line)


def reason(state: InstanceState) -> str:
    """Return one line about a failed or terminated instance: its error, or the reason of its termination."""
    from airflow_provider_taskhub.engine.failures import headline  # not at the top: it would slow down DAG parsing

    if state.failure is not None:
        return headline(state.failure)
    text = plain(state.output)
    return str(text) if text else "no reason given"


def causes(failure: FailureDetails | None) -> Iterator[str]:
    """Yield the error and its causes with their stack traces: the error of the instance, its cause, and so on.

    At most 10 errors are yielded.
    """
    from airflow_provider_taskhub.engine.failures import chain, headline

    for depth, each in enumerate(islice(chain(failure), 10)):
        head = "caused by " if depth else ""
        trace = f"\n{each.stack_trace.rstrip()}" if each.stack_trace else ""
        yield f"{head}{headline(each)}{trace}"


def retryable(state: InstanceState) -> bool:
    """Return whether Airflow may retry the task: False after ``OrchestrationError(retryable=False)``."""
    return state.failure is None or not state.failure.is_non_retriable
