"""Encode and decode DurableTask's values in JSON.

In messages, objects have a member ``$type``, and enums are numbers. In columns of rows, objects have no ``$type``, and
enums are names. The module ``event_fields`` says which values an event has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import Enum, auto
from functools import lru_cache
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import (
    FailureDetails,
    OrchestrationInstance,
    ParentInstance,
    Status,
    TraceContext,
)
from airflow_provider_taskhub.errors import InputError

CORE = "DurableTask.Core."
_SHOWN = 60


class Kind(Enum):
    """Type of a field of a DurableTask event or message. It decides how the value is converted to JSON and back."""

    TEXT = auto()
    INT = auto()
    BOOL = auto()
    TIME = auto()
    STATUS = auto()
    INSTANCE = auto()
    PARENT = auto()
    FAILURE = auto()
    TRACE = auto()
    TAGS = auto()

    __hash__ = object.__hash__  # Enum.__hash__ is slower: it is written in Python. Each event looks up several kinds.


OBJECTS = frozenset({Kind.INSTANCE, Kind.PARENT, Kind.FAILURE, Kind.TRACE, Kind.TAGS})
"""Kinds that a row stores as JSON text. A missing value is stored as ``null``."""


PLAIN = frozenset({Kind.TEXT, Kind.INT, Kind.BOOL})
"""Kinds whose values are the same in Python and in JSON."""


# --- writing ------------------------------------------------------------------------------------------------------


def write(kind: Kind, value: Any, *, typed: bool) -> Any:
    """Convert a member's value to JSON.

    :param typed: True: write the form of messages, in which objects begin with ``$type``. Dictionaries have no
        ``$type``.
    :raises InputError: a tag has a name that .NET cannot read.
    """
    if value is None:
        return None
    writer = _WRITERS.get(kind)
    return value if writer is None else writer(value, typed)


def _typed(typed: bool, name: str) -> dict[str, Any]:
    return {"$type": CORE + name} if typed else {}


def _write_instance(value: OrchestrationInstance, typed: bool) -> dict[str, Any]:
    return {
        **_typed(typed, "OrchestrationInstance"),
        "InstanceId": value.instance_id,
        "ExecutionId": value.execution_id,
    }


def _write_parent(value: ParentInstance, typed: bool) -> dict[str, Any]:
    return {
        **_typed(typed, "ParentInstance"),
        "Name": value.name,
        "OrchestrationInstance": _write_instance(value.instance, typed),
        "TaskScheduleId": value.task_schedule_id,
        "Version": value.version,
    }


def _write_failure(value: FailureDetails, typed: bool) -> dict[str, Any]:
    return {
        **_typed(typed, "FailureDetails"),
        "ErrorType": value.error_type,
        "ErrorMessage": value.error_message,
        "StackTrace": value.stack_trace,
        "InnerFailure": None if value.inner_failure is None else _write_failure(value.inner_failure, typed),
        "IsNonRetriable": value.is_non_retriable,
        "Properties": None if value.properties is None else dict(value.properties),
    }


def _write_trace(value: TraceContext, typed: bool) -> dict[str, Any]:
    # DurableTask writes no $type in a trace context, because .NET knows its class from the declaration of the member.
    start = value.activity_start_time
    return {
        "TraceParent": value.trace_parent,
        "TraceState": value.trace_state,
        "Id": value.id,
        "SpanId": value.span_id,
        # .NET writes a time of the type DateTimeOffset with "+00:00" in place of "Z".
        "ActivityStartTime": None if start is None else start.text().replace("Z", "+00:00"),
    }


def _write_tags(value: Mapping[str, str], typed: bool) -> dict[str, str]:
    if "$type" in value:
        raise InputError("a tag cannot be named '$type': .NET takes it for the type of the dictionary")
    return dict(value)


_WRITERS: Mapping[Kind, Callable[[Any, bool], Any]] = {
    Kind.TIME: lambda value, typed: value.text(),
    Kind.STATUS: lambda value, typed: value.number if typed else str(value),
    Kind.INSTANCE: _write_instance,
    Kind.PARENT: _write_parent,
    Kind.FAILURE: _write_failure,
    Kind.TRACE: _write_trace,
    Kind.TAGS: _write_tags,
}


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_NAN, _INFINITY = "NaN", "Infinity"


def dumps(value: Any) -> str:
    """Encode a value as compact JSON in ASCII. Such a text can stand unchanged in the XML of a request to a queue.

    :raises InputError: JSON cannot express the value. For example, properties of a failure may be any Python objects.
    """
    try:
        text = to_json(value, ensure_ascii=True, inf_nan_mode="constants").decode()
    except (PydanticSerializationError, ValueError):
        text = _NAN
    if _NAN not in text and _INFINITY not in text:
        return text
    try:
        return _ENCODER.encode(value)  # this encoder is slower, but its error says what is wrong
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"a value cannot be written as JSON: {error}") from error


# --- reading ------------------------------------------------------------------------------------------------------


class JsonObject:
    """A decoded JSON object. A member is found whether its name is in upper or lower case, as in .NET.

    :param where: path of the object for error texts, such as ``TaskMessage.Event``.
    """

    __slots__ = ("_spelling", "_values", "where")

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise InputError(f"{where} is {shown(value)}, not an object")
        self.where = where
        self._values = value
        self._spelling: Mapping[str, str] | None = None

    def raw(self, name: str) -> Any:
        """Return a member without conversion; None if the member is missing or null."""
        return self._find(name, None)

    def _find(self, name: str, missing: Any) -> Any:
        value = self._values.get(name, self)  # all writers of today spell the name like this
        if value is not self:
            return value
        if self._spelling is None:
            self._spelling = _spelt(tuple(self._values))
        other = self._spelling.get(name.lower())
        return missing if other is None else self._values[other]

    def has(self, name: str) -> bool:
        """Return True if the object has this member and the member is not null."""
        return self.raw(name) is not None

    def is_null(self, name: str) -> bool:
        """Return True if the object has this member and the member is null."""
        return self._find(name, self) is None

    def get(self, name: str, kind: Kind) -> Any:
        """Return a member's value; None if the member is missing or null.

        :raises InputError: the value is not of the kind. The error text names the member.
        """
        value = self._find(name, None)
        return None if value is None else _READERS[kind](value, f"{self.where}.{name}")

    def need(self, name: str, kind: Kind) -> Any:
        """Return a member's value.

        :raises InputError: the member is missing or null, or its value is not of the kind.
        """
        value = self.get(name, kind)
        if value is None:
            raise InputError(f"{self.where} has no {name}")
        return value


@lru_cache(maxsize=256)
def _spelt(names: tuple[str, ...]) -> Mapping[str, str]:
    """Return the names by their lower-case form. Most objects have the same few sets of names, so a cache helps."""
    return {name.lower(): name for name in names}


def shown(value: Any) -> str:
    """Return a short text of a value, for an error text."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def read(kind: Kind, value: Any, where: str) -> Any:
    """Convert a member's value from JSON. None stays None.

    :param where: path of the member, for error texts.
    :raises InputError: the value is not of the kind.
    """
    if value is None:
        return None
    return _READERS[kind](value, where)


def _read_text(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    raise InputError(f"{where} is {shown(value)}, not a text")


def _read_int(value: Any, where: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and -(2**31) <= value < 2**31:
        return value
    raise InputError(f"{where} is {shown(value)}, not a 32-bit integer")


def _read_bool(value: Any, where: str) -> bool:
    if isinstance(value, bool):
        return value
    raise InputError(f"{where} is {shown(value)}, not true or false")


def _read_time(value: Any, where: str) -> Timestamp:
    if isinstance(value, str):
        try:
            return Timestamp.parse(value)
        except (InputError, OverflowError):
            pass
    raise InputError(f"{where} is {shown(value)}, not an ISO 8601 time")


def _read_status(value: Any, where: str) -> Status:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(Status):
        return Status.of_number(value)
    if isinstance(value, str):
        for status in Status:
            if status.lower() == value.lower():
                return status
    raise InputError(f"{where} is {shown(value)}, not one of {', '.join(Status)}")


def _read_instance(value: Any, where: str) -> OrchestrationInstance:
    members = JsonObject(value, where)
    return OrchestrationInstance(
        instance_id=members.need("InstanceId", Kind.TEXT), execution_id=members.get("ExecutionId", Kind.TEXT)
    )


def _read_parent(value: Any, where: str) -> ParentInstance:
    members = JsonObject(value, where)
    return ParentInstance(
        name=members.get("Name", Kind.TEXT) or "",
        instance=members.need("OrchestrationInstance", Kind.INSTANCE),
        task_schedule_id=members.get("TaskScheduleId", Kind.INT) or 0,
        version=members.get("Version", Kind.TEXT),
    )


def _read_failure(value: Any, where: str) -> FailureDetails:
    members = JsonObject(value, where)
    properties = members.raw("Properties")
    if properties is not None and not isinstance(properties, dict):
        raise InputError(f"{where}.Properties is {shown(properties)}, not an object")
    return FailureDetails(
        error_type=members.get("ErrorType", Kind.TEXT) or "",
        error_message=members.get("ErrorMessage", Kind.TEXT) or "",
        stack_trace=members.get("StackTrace", Kind.TEXT),
        inner_failure=members.get("InnerFailure", Kind.FAILURE),
        is_non_retriable=members.get("IsNonRetriable", Kind.BOOL) or False,
        properties=None if properties is None else _without_type(properties),
    )


def _read_trace(value: Any, where: str) -> TraceContext:
    members = JsonObject(value, where)
    return TraceContext(
        trace_parent=members.get("TraceParent", Kind.TEXT),
        trace_state=members.get("TraceState", Kind.TEXT),
        id=members.get("Id", Kind.TEXT),
        span_id=members.get("SpanId", Kind.TEXT),
        activity_start_time=members.get("ActivityStartTime", Kind.TIME),
    )


def _read_tags(value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise InputError(f"{where} is {shown(value)}, not an object of texts")
    tags = _without_type(value)
    return {name: "" if text is None else _read_text(text, f"{where}.{name}") for name, text in tags.items()}


def _without_type(value: dict[str, Any]) -> dict[str, Any]:
    """Return a dictionary without the member ``$type`` that .NET writes."""
    return {name: member for name, member in value.items() if name != "$type"}


_READERS: Mapping[Kind, Callable[[Any, str], Any]] = {
    Kind.TEXT: _read_text,
    Kind.INT: _read_int,
    Kind.BOOL: _read_bool,
    Kind.TIME: _read_time,
    Kind.STATUS: _read_status,
    Kind.INSTANCE: _read_instance,
    Kind.PARENT: _read_parent,
    Kind.FAILURE: _read_failure,
    Kind.TRACE: _read_trace,
    Kind.TAGS: _read_tags,
}
