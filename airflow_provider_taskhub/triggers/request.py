"""Makes the request to start an instance out of the arguments of an operator or of the trigger that starts its task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.hooks.deployment import deployment
from airflow_provider_taskhub.triggers.arguments import date_tags, moment, problems
from airflow_provider_taskhub.triggers.grace import grace_tags
from airflow_provider_taskhub.triggers.instance_limits import of_run
from airflow_provider_taskhub.triggers.reactions import OnClear, OnRetry
from airflow_provider_taskhub.triggers.start_or_attach import StartRequest

if TYPE_CHECKING:
    from airflow_provider_taskhub.hooks.identity import TaskIdentity


def request_of(
    arguments: Any,
    given: Any,
    task: TaskIdentity,
    context: Mapping[str, Any],
    *,
    on_retry: OnRetry = OnRetry.REWIND,
    on_clear: OnClear = OnClear.REWIND,
) -> StartRequest:
    """Check the rendered arguments of a task, and return what to start.

    :param arguments: the operator or its trigger. Both have the arguments as attributes of the same names.
    :param given: the input, evaluated; ``NO_INPUT``: none.
    :param task: the try of the Airflow task.
    :param context: Airflow's context of the task.
    :param on_retry: what to do with an instance of this task that has ended without a result.
    :param on_clear: what the first try after a clear does with such an instance.
    :raises InputError: if an argument is wrong. A retry would not help.
    """
    if arguments._python_text is not None:
        raise InputError(arguments._python_text)
    version, tags = arguments.version or "", arguments.tags or {}
    for problem in problems(arguments.orchestrator, given, arguments.instance_id, version, tags):
        raise InputError(problem)
    return StartRequest(
        task=task,
        orchestrator=arguments.orchestrator,
        input=given,
        version=version,
        instance_id=arguments.instance_id or None,
        tags={**tags, **date_tags(context), **grace_tags(arguments.terminate_grace)},
        deployment=deployment(),
        on_retry=on_retry,
        on_clear=on_clear,
        start_at=moment(arguments.start_at),
        limit=arguments.instance_limit,
        priority=of_run(arguments.instance_priority, arguments.instance_limit, task.run_id, context.get("dag_run")),
        waits=arguments.wait_for_completion,
    )
