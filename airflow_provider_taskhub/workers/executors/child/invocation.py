"""Decodes the stored input of an activity to the argument of its function, and encodes the result as JSON text.

This module knows nothing of processes. :func:`engine.failures.failure_of` says what is stored of an exception.
"""

from __future__ import annotations

from typing import Any

from airflow_provider_taskhub.codec import dumps, loads
from airflow_provider_taskhub.engine.inputs import input_arguments
from airflow_provider_taskhub.engine.references import Reference, is_frame, opened
from airflow_provider_taskhub.engine.registry import ActivityDefinition
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.no_input import NO_INPUT


class ResultTooLarge(InputError):
    """A result is larger than the hub takes.

    :param text: the result as JSON.
    """

    def __init__(self, message: str, text: bytes) -> None:
        super().__init__(message)
        self.text = text


_BY_REFERENCE = "write the data, for example with publish(), and return Reference(path, rows=…)"


def arguments(definition: ActivityDefinition, text: str | None) -> tuple[Any, ...]:
    """Return the arguments for a call of the activity's function: one decoded argument, or an empty tuple.

    The Spark session of a Spark activity is not in the result; the caller adds it. References are not opened yet.

    :param text: the input as DurableTask stores it, a JSON array of one argument. None and ``[]`` mean that there is no
        input; ``[null]`` is the input None.
    :raises InputError: if the function cannot take this input. The text names the activity.
    """
    what = f"input of activity {definition.name!r}"
    values = [] if text is None else loads(text, what=what)
    if not isinstance(values, list):
        values = [values]
    if len(values) > 1:
        raise InputError(f"{what} has {len(values)} arguments: an activity takes exactly one; pass one object instead")
    value = values[0] if values else NO_INPUT
    if not definition.takes_input:
        if value is not None and value is not NO_INPUT:
            raise InputError(f"{what} is {dumps(value)[:100]}, but its function has no parameter for it")
        return ()
    assert definition.parameter is not None
    return input_arguments(definition.function, definition.parameter, definition.input_annotation, value, what=what)


def opened_arguments(definition: ActivityDefinition, given: tuple[Any, ...], spark: Any) -> tuple[Any, ...]:
    """Return the arguments of a Spark activity with a DataFrame in place of each reference that the function opens.

    Spark reads the data only when the function uses them, but it lists the files and reads their schema now.

    :param given: what :func:`arguments` has returned.
    :param spark: the session of the attempt.
    :raises Exception: Spark's error if it cannot read the data. Its text names the path.
    """
    if not definition.opens_references:
        return given

    def load(reference: Reference) -> Any:
        if reference.published:
            from airflow_provider_taskhub.publishing import read_published

            return read_published(spark, reference.path, format=reference.format, options=reference.options)
        return spark.read.format(reference.format).options(**reference.options).load(reference.path)

    return tuple(opened(value, load) for value in given)


def result_text(definition: ActivityDefinition, value: Any, limit: int) -> bytes:
    """Return the result of an activity as JSON text.

    :param limit: largest size of the text, in bytes.
    :raises InputError: if JSON cannot express the value. The text of the error names the activity.
    :raises ResultTooLarge: if the text is larger than the limit.
    """
    what = f"result of activity {definition.name!r}"
    if is_frame(type(value)):
        raise InputError(f"{what} is a DataFrame, whose rows are still in Spark: {_BY_REFERENCE}")
    text = dumps(value, definition.result_annotation, what=what).encode()
    if len(text) > limit:
        message = (
            f"{what} is {len(text):,} bytes of JSON: at most {limit:,}. "
            f"For large data, {_BY_REFERENCE}; or raise the worker's TASKHUB_MAX_RESULT"
        )
        raise ResultTooLarge(message, text)
    return text
