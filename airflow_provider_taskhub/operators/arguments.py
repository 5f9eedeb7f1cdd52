"""Evaluates and checks the arguments that a DAG gives to the operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_taskhub.hooks import identity

if TYPE_CHECKING:
    from airflow.sdk import Context


def problems(
    orchestrator: str, given: Any, instance_id: str | None, version: str, tags: Mapping[str, str]
) -> Iterator[str]:
    """Yield an error text for each wrong argument of the operator. A retry cannot help with such errors.

    :param given: the input as :func:`evaluated` has returned it.
    """
    from airflow_provider_taskhub.codec import dumps, loads
    from airflow_provider_taskhub.engine.identity import check_new_instance_id
    from airflow_provider_taskhub.engine.validation import check_column, check_tags
    from airflow_provider_taskhub.errors import InputError

    if not orchestrator or not isinstance(orchestrator, str):
        yield f"orchestrator is {orchestrator!r}: give the name that an App declares"
    try:
        text = dumps(given, what=f"input of orchestrator {orchestrator!r}")
        if instance_id:
            check_new_instance_id(instance_id)
    except InputError as error:
        yield str(error)
        return
    if _holds_secret(loads(text)):
        yield (
            "the input contains a value that Airflow masks as a secret, and the hub stores inputs as plain text: "
            "pass the name of a connection, and read the secret in the activity"
        )
    try:
        check_column(version, f"version of orchestrator {orchestrator!r}")
        check_tags(tags, f"orchestrator {orchestrator!r}")
    except InputError as error:
        yield str(error)
        return
    for name in tags:
        if name.startswith(identity.RESERVED):
            reserved = " or ".join(identity.RESERVED)
            yield f"tag {name!r} is reserved: names that start with {reserved} are TaskHub's. Use another name"


def check_on_retry(where: str, on_retry: str) -> None:
    """Check the parameter ``on_retry``, when Airflow parses the DAG.

    :param where: the operator and its task id, for the error.
    :param on_retry: the operator's argument.
    :raises InputError: if it is none of the known values.
    """
    from airflow_provider_taskhub.errors import InputError
    from airflow_provider_taskhub.operators.reactions import OnRetry

    if on_retry not in list(OnRetry):
        raise InputError(f"{where}: on_retry is {on_retry!r}: choose from {', '.join(OnRetry)}")


def evaluated(value: Any) -> Any:
    """Return the value with lists in place of Airflow's lazy sequences, which are the results of mapped tasks."""
    from airflow.sdk.execution_time.lazy_sequence import LazyXComSequence

    def plainly(item: Any) -> Any:
        if isinstance(item, LazyXComSequence):
            return item[:]  # reads all items with one request
        if type(item) is dict:
            return {key: plainly(inner) for key, inner in item.items()}
        if isinstance(item, Sequence) and not isinstance(item, str | bytes | bytearray):
            return [plainly(inner) for inner in item]
        return item

    try:
        return plainly(value)
    except RecursionError:
        return value  # the value is nested too deep, and writing it as JSON raises the error for the user


def date_tags(context: Context) -> dict[str, str]:
    """Return the run's logical date and data interval as tags. A run that an asset triggered has no such dates."""
    named = {
        identity.LOGICAL_DATE_TAG: context.get("logical_date"),
        identity.INTERVAL_START_TAG: context.get("data_interval_start"),
        identity.INTERVAL_END_TAG: context.get("data_interval_end"),
    }
    return {name: value.isoformat() for name, value in named.items() if value is not None}


def _holds_secret(value: Any) -> bool:
    """Return whether a text inside a JSON value contains a secret that Airflow's masker knows."""
    from airflow.sdk.log import redact

    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str) and redact(item) != item:
            return True
        if isinstance(item, dict):
            pending.extend((*item.keys(), *item.values()))
        elif isinstance(item, list):
            pending.extend(item)
    return False


def seconds(value: timedelta | float | None) -> float | None:
    """Return a duration in seconds; None for None. :param value: a timedelta, or a number of seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else value
