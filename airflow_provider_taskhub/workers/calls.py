"""One call of a user's activity as values: wire input to argument, result to wire, exception to details. No
processes.
"""

from __future__ import annotations

import traceback
from typing import Any

from airflow_provider_taskhub.codec import dumps, loads
from airflow_provider_taskhub.engine.events import FailureDetails
from airflow_provider_taskhub.engine.failures import message_of, storable, user_frames
from airflow_provider_taskhub.engine.inputs import input_arguments
from airflow_provider_taskhub.engine.registry import ActivityDefinition
from airflow_provider_taskhub.errors import InputError

_MAX_MESSAGE = 32 * 1024
_MAX_TRACE = 64 * 1024
_MAX_CAUSES = 10


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
            "Write large data to a file or table and return its place, or raise the worker's TASKHUB_MAX_RESULT."
        )
    return text


def details(error: BaseException, *, _depth: int = 0) -> FailureDetails:
    """An exception as the history records it; causes (``raise … from``) inside, traces without our own frames.

    Not retriable: ``OrchestrationError(retryable=False)``, any exception with an attribute ``retryable`` that is False,
    and values that do not fit (:class:`InputError`): the next attempt would get the same value.
    """
    cause = error.__cause__
    return FailureDetails(
        error_type=_type_name(type(error)),
        error_message=_cut(message_of(error), _MAX_MESSAGE),
        stack_trace=_cut(storable(_trace(error)), _MAX_TRACE),
        inner_failure=details(cause, _depth=_depth + 1) if cause is not None and _depth < _MAX_CAUSES else None,
        is_non_retriable=isinstance(error, InputError) or getattr(error, "retryable", None) is False,
    )


def _type_name(kind: type) -> str:
    known = kind.__module__ == "builtins" or kind.__module__.startswith("airflow_provider_taskhub.")
    return kind.__qualname__ if known else f"{kind.__module__}.{kind.__qualname__}"


def _trace(error: BaseException) -> str:
    told = traceback.TracebackException(type(error), error, error.__traceback__)
    told.stack = user_frames(error)
    return "".join(told.format(chain=False))


def _cut(text: str, limit: int) -> str:
    """Both ends of a text that is too long: how it began and where it happened."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - limit:,} characters left out …\n{text[-half:]}"
