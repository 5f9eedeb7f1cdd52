"""One call of a user's activity as values: wire input to argument, result to wire, exception to details. No
processes.
"""

from __future__ import annotations

import inspect
import traceback
from types import TracebackType
from typing import Any

from airflow_provider_taskhub.codec import decode, dumps, loads
from airflow_provider_taskhub.engine.events import FailureDetails
from airflow_provider_taskhub.engine.failures import message_of, storable
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
    if value is None and _has_default(definition):
        return ()
    return (decode(value, definition.input_annotation, what=what),)


def _has_default(definition: ActivityDefinition) -> bool:
    positional = [
        parameter
        for parameter in inspect.signature(definition.function).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ][1 if definition.spark else 0 :]
    return bool(positional) and positional[0].default is not inspect.Parameter.empty


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
    lines = traceback.format_exception(type(error), error, _user_frames(error.__traceback__), chain=False)
    return "".join(lines)


def _user_frames(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback below our own frames; all of it when there is nothing else."""
    rest = trace
    while rest is not None and (rest.tb_frame.f_globals.get("__package__") or "").startswith(
        "airflow_provider_taskhub."
    ):
        rest = rest.tb_next
    return rest or trace


def _cut(text: str, limit: int) -> str:
    """Both ends of a text that is too long: how it began and where it happened."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - limit:,} characters left out …\n{text[-half:]}"
