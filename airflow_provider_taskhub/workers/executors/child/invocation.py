"""One call of a user's activity as values: from the stored input to the argument, and from the result to its text.

No processes. What is recorded of an exception: :func:`engine.failures.failure_of`.
"""

from __future__ import annotations

from typing import Any

from airflow_provider_taskhub.codec import dumps, loads
from airflow_provider_taskhub.engine.inputs import input_arguments
from airflow_provider_taskhub.engine.registry import ActivityDefinition
from airflow_provider_taskhub.errors import InputError


def arguments(definition: ActivityDefinition, text: str | None) -> tuple[Any, ...]:
    """What to call the function with, besides a Spark session: one decoded argument, or none.

    :param text: a JSON array of one argument, as DurableTask sends it; None, ``[]`` and ``[null]`` say "no input".
    :raises InputError: naming the activity, for anything that it cannot take.
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
    """A result as one JSON text.

    :param limit: bytes.
    :raises InputError: naming the activity, when JSON cannot express the value or the text is longer than the limit.
    """
    text = dumps(value, what=f"result of activity {definition.name!r}").encode()
    if len(text) > limit:
        raise InputError(
            f"result of activity {definition.name!r} is {len(text):,} bytes of JSON: at most {limit:,}. "
            "Write large data to a file or table and return its path, or raise the worker's TASKHUB_MAX_RESULT."
        )
    return text
