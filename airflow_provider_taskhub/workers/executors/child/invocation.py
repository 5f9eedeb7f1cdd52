"""Decodes the stored input of an activity to the argument of its function, and encodes the result as JSON text.

This module knows nothing of processes. :func:`engine.failures.failure_of` says what is stored of an exception.
"""

from __future__ import annotations

from typing import Any

from airflow_provider_taskhub.codec import dumps, loads
from airflow_provider_taskhub.engine.inputs import input_arguments
from airflow_provider_taskhub.engine.registry import ActivityDefinition
from airflow_provider_taskhub.errors import InputError


def arguments(definition: ActivityDefinition, text: str | None) -> tuple[Any, ...]:
    """Return the arguments for a call of the activity's function: one decoded argument, or an empty tuple.

    The Spark session of a Spark activity is not in the result; the caller adds it.

    :param text: the input as DurableTask stores it, a JSON array of one argument. None, ``[]`` and ``[null]`` mean that
        there is no input.
    :raises InputError: if the function cannot take this input. The text names the activity.
    """
    what = f"input of activity {definition.name!r}"
    values = [] if text is None else loads(text, what=what)
    if not isinstance(values, list):
        values = [values]
    if len(values) > 1:
        raise InputError(f"{what} has {len(values)} arguments: an activity takes exactly one; pass one object instead")
    value = values[0] if values else None
    if not definition.takes_input:
        if value is not None:
            raise InputError(f"{what} is {dumps(value)[:100]}, but its function has no parameter for it")
        return ()
    assert definition.parameter is not None
    return input_arguments(definition.function, definition.parameter, definition.input_annotation, value, what=what)


def result_text(definition: ActivityDefinition, value: Any, limit: int) -> bytes:
    """Return the result of an activity as JSON text.

    :param limit: largest size of the text, in bytes.
    :raises InputError: if JSON cannot express the value, or the text is larger than the limit. The text of the error
        names the activity.
    """
    text = dumps(value, what=f"result of activity {definition.name!r}").encode()
    if len(text) > limit:
        raise InputError(
            f"result of activity {definition.name!r} is {len(text):,} bytes of JSON: at most {limit:,}. "
            "Write large data to a file or table and return its path, or raise the worker's TASKHUB_MAX_RESULT."
        )
    return text
