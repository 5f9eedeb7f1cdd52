"""Converts values to text and back: user's values as JSON, timestamps with a resolution of 100 ns, and gzip.

A user's value is written as one JSON text, and is decoded again by the annotation of a parameter. This module knows
nothing of messages or rows.
"""

from __future__ import annotations

import gzip
import json
import operator
import re
import zlib
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import accumulate
from typing import Any, get_args

from pydantic import BaseModel, PydanticSchemaGenerationError, PydanticUndefinedAnnotation, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.fast_dataclass import dataclass

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ISO = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?", re.ASCII)

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode  # json.dumps makes an encoder at each call

MAX_NESTED = 500
"""Largest depth of lists and objects inside each other in a text that is written.

Python reads nearly 1,000 levels, but the number depends on the depth of the call stack. Without a lower limit one
reader could read a value, and a replay of the same history could fail to read it."""
_GZIP = b"\x1f\x8b"
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS = bytes(set(range(256)) - set(_STEPS))


@dataclass(frozen=True, slots=True, order=True)
class Timestamp:
    """A time in UTC with .NET's resolution of 100 ns. A ``datetime`` has a resolution of only 1 µs.

    :param ticks: number of 100 ns steps since 1970-01-01T00:00:00Z; negative for earlier times.
    """

    ticks: int

    @classmethod
    def from_datetime(cls, value: datetime) -> Timestamp:
        """Return the timestamp of a ``datetime``. A ``datetime`` without a time zone counts as UTC."""
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        delta = aware - _EPOCH
        return cls((delta.days * 86_400 + delta.seconds) * 10_000_000 + delta.microseconds * 10)

    @classmethod
    def from_unix_ns(cls, value: int) -> Timestamp:
        """Return the timestamp of a number of nanoseconds since 1970 (Unix time)."""
        return cls(value // 100)

    @classmethod
    def parse(cls, text: str) -> Timestamp:
        """Return the timestamp of an ISO 8601 text.

        The text may have up to 9 digits after the decimal point, of which 7 are used. It ends with ``Z``, with an
        offset, or without a zone, which means UTC.

        :raises InputError: if the text has another form.
        """
        match = _ISO.fullmatch(text)
        if match is None:
            raise InputError(f"not an ISO 8601 time: {text!r}")
        whole, fraction, zone = match.groups()
        try:
            ticks = _ticks(whole) + int((fraction or "0").ljust(9, "0")[:7])
        except ValueError as error:
            raise InputError(f"not an ISO 8601 time: {text!r} ({error})") from error
        if zone and zone != "Z":
            digits = zone[1:].replace(":", "")
            offset = (int(digits[:2]) * 60 + int(digits[2:])) * 600_000_000
            ticks += -offset if zone[0] == "+" else offset
        return cls(ticks)

    def __add__(self, other: timedelta) -> Timestamp:
        return Timestamp(self.ticks + ticks_of(other))

    def __sub__(self, other: Timestamp) -> timedelta:
        return timedelta(microseconds=(self.ticks - other.ticks) / 10)

    def datetime(self) -> datetime:
        """Return the time as ``datetime`` in UTC, rounded down to microseconds."""
        return _EPOCH + timedelta(microseconds=self.ticks // 10)

    def text(self, *, trim: bool = True) -> str:
        """Return the time as ISO 8601 text, such as ``2026-11-21T08:55:27.2669147Z``.

        :param trim: True: omit trailing zeros of the fraction, as Newtonsoft.Json does. False: always write 7 digits.
        """
        seconds, fraction = divmod(self.ticks, 10_000_000)
        digits = f"{fraction:07d}"
        if trim:
            digits = digits.rstrip("0")
        return f"{_second(seconds)}.{digits}Z" if digits else f"{_second(seconds)}Z"

    def __str__(self) -> str:
        return self.text()


@lru_cache(maxsize=16)
def _second(seconds: int) -> str:
    """Return whole seconds since 1970 as ISO 8601 text without zone. The cache helps, as many times share a second."""
    return (_EPOCH + timedelta(seconds=seconds)).replace(tzinfo=None).isoformat()  # strftime would write year 1 as "1"


@lru_cache(maxsize=16)
def _ticks(second: str) -> int:
    """Return the ticks of an ISO 8601 text of whole seconds.

    :raises ValueError: if the text has a day or an hour that does not exist.
    """
    return Timestamp.from_datetime(datetime.fromisoformat(second)).ticks


def ticks_of(value: timedelta) -> int:
    """Return the number of 100 ns steps in a duration."""
    return (value.days * 86_400 + value.seconds) * 10_000_000 + value.microseconds * 10


def dumps(value: Any, *, what: str = "value") -> str:
    """Return a value as compact JSON text. The text has only ASCII characters, so it is valid in a queue message's XML.

    Dataclasses, pydantic models, dates, UUIDs, enums, sets and paths are written as pydantic writes them. The elements
    of a set are sorted, because the order of a set differs from process to process.

    :param what: the name of the value in error texts, such as ``input of orchestrator 'flights'``.
    :raises InputError: if JSON cannot express the value (NaN and infinities, for example), or if the value is nested
        deeper than :data:`MAX_NESTED`.
    """
    try:
        text = _text(value)
    except (PydanticSerializationError, TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"{what} of type {type(value).__name__} cannot be written as JSON: {error}. "
            "Pass plain values, dataclasses, pydantic models or dates."
        ) from error
    if _is_deep(text):
        raise InputError(
            f"{what} is nested more than {MAX_NESTED} levels deep, which is more than every reader supports"
        )
    return text


def _text(value: Any) -> str:
    try:
        return _encode(value)
    except (TypeError, ValueError, RecursionError):
        return _encode(to_jsonable_python(_with_sorted_sets(value), inf_nan_mode="constants"))


class _SortedSet(set[Any]):
    """A set that gives its elements in the order in which they are written."""

    def __iter__(self) -> Iterator[Any]:
        return iter(_sorted(set.__iter__(self)))


class _SortedFrozenSet(frozenset[Any]):
    """A frozenset that gives its elements in the order in which they are written."""

    def __iter__(self) -> Iterator[Any]:
        return iter(_sorted(frozenset.__iter__(self)))


def _sorted(elements: Iterable[Any]) -> list[Any]:
    """Return the elements of a set in an order that is the same in each process."""
    listed = list(elements)
    kinds = set(map(type, listed))
    if kinds == {str} or kinds <= {int, float}:
        return sorted(listed)
    return sorted(listed, key=lambda element: _encode(to_jsonable_python(element, inf_nan_mode="constants")))


def _with_sorted_sets(value: Any) -> Any:
    """Return a value in which each set is a sorted one. The value itself does not change.

    A set stays a set, because pydantic writes the field of a model by the field's annotation.
    """
    if isinstance(value, set | frozenset):
        kind = _SortedSet if isinstance(value, set) else _SortedFrozenSet
        return kind(map(_with_sorted_sets, value))
    if type(value) in (list, tuple):
        items = [_with_sorted_sets(item) for item in value]
        return value if all(map(operator.is_, items, value)) else type(value)(items)
    if type(value) is dict:
        items = [_with_sorted_sets(item) for item in value.values()]
        return value if all(map(operator.is_, items, value.values())) else dict(zip(value, items, strict=True))
    if is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name, None) for field in dataclass_fields(value)}
    elif isinstance(value, BaseModel):
        fields = dict(value.__dict__)
    else:
        return value
    changed = {name: new for name, old in fields.items() if (new := _with_sorted_sets(old)) is not old}
    if not changed:
        return value
    changed_copy = copy(value)
    for name, new in changed.items():
        object.__setattr__(changed_copy, name, new)  # also if the class is frozen
    return changed_copy


def _is_deep(text: str) -> bool:
    if len(text) < 2 * MAX_NESTED or text.count("[") + text.count("{") <= MAX_NESTED:
        return False
    unescaped = text.encode().replace(b"\\\\", b"").replace(b'\\"', b"")
    outside_strings = b"".join(unescaped.split(b'"')[::2])  # brackets inside of strings do not count
    brackets = outside_strings.translate(None, _NO_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > MAX_NESTED


def loads(text: str, *, what: str = "value") -> Any:
    """Return the value of a JSON text, made of dicts, lists, strings, numbers, booleans and None.

    :param what: the name of the value in error texts.
    :raises InputError: if the text is not JSON, or is nested deeper than Python can read.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{what} is not JSON: {error}: {text[:100]!r}") from error


@lru_cache(maxsize=1024)
def _adapter(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation)


def decode(value: Any, annotation: Any, *, what: str = "value") -> Any:
    """Convert a plain JSON value to the type of an annotation (a dataclass, a pydantic model, a date …).

    :param annotation: the wanted type; None: return the value unchanged.
    :param what: the name of the value in error texts.
    :raises InputError: if the value does not fit the annotation. The text names the value, the annotation and every
        mismatch.
    """
    if annotation is None or annotation is Any:
        return value
    try:
        return _adapter_of(annotation, what).validate_python(value)
    except ValidationError as error:
        items = error.errors(include_url=False)
        name = annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
        # If a validator of the user's code has raised an error, this error becomes the cause. Pydantic's own error
        # would only repeat our text.
        cause = next((item["ctx"]["error"] for item in items if "error" in item.get("ctx", {})), None)
        text = f"{what} does not fit {name}: {'; '.join(map(_misfit, items))}"
        raise InputError(text) from (cause if isinstance(cause, Exception) else None)


def check_annotation(annotation: Any, *, what: str) -> None:
    """Raise an error if no value can be decoded to an annotation; otherwise do nothing.

    :param what: the name of the value in error texts.
    :raises InputError: if pydantic does not support the annotation. The text names the annotation.
    """
    if annotation is not None and annotation is not Any:
        _adapter_of(annotation, what)


def _adapter_of(annotation: Any, what: str) -> TypeAdapter[Any]:
    try:
        try:
            adapter = _adapter(annotation)
        except TypeError:  # the cache cannot hold an annotation that has no hash
            adapter = TypeAdapter(annotation)
        if not adapter.pydantic_complete:
            adapter.rebuild()
    except PydanticSchemaGenerationError as error:
        raise InputError(f"{what}: values cannot be decoded to annotation {annotation!r}") from error
    except PydanticUndefinedAnnotation as error:
        raise InputError(
            f"{what}: annotation {annotation!r} cannot be resolved (name {error.name!r} is not defined): "
            "import it where the class is defined"
        ) from error
    return adapter


_KINDS = {
    "int": "an int",
    "float": "a float",
    "string": "a str",
    "bool": "a bool",
    "list": "a list",
    "tuple": "a list",
    "dict": "an object",
    "date": "a date",
    "datetime": "a datetime",
    "time": "a time",
    "decimal": "a number",
    "uuid": "a UUID",
}
"""For the first word of pydantic's error types (``int_type``, ``int_parsing`` …): what the value should be."""


def _misfit(item: Any) -> str:
    """Describe one of pydantic's errors: the place, the value, and the type that the value does not have."""
    place = "value" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in item["loc"])
    kind, _, rest = item["type"].partition("_")
    if item["type"] == "missing":
        return f"{place}: {item['msg']}"
    if item["type"] in ("dataclass_type", "model_type", "model_attributes_type"):
        return f"{place}: {_shown(item['input'])} is not an object"
    if kind in _KINDS and (rest in ("type", "parsing") or rest.endswith("_parsing")):
        return f"{place}: {_shown(item['input'])} is not {_KINDS[kind]}"
    return f"{place}: {item['msg'].removeprefix('Value error, ')}; it is {_shown(item['input'])}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}…"


LEVEL = 1
"""Compression level of gzip: the fastest.

Measured on 4 MB of JSON (tables of numbers, paths, prose): level 1 takes 40 to 100 ms, level 6 takes 140 to 230 ms, and
level 9 takes 230 to 440 ms. The result of level 1 is 9 to 24 % larger than that of level 6, and 9 to 29 % larger than
that of level 9."""
SLOW = 1024 * 1024
"""A text that is larger than this (in characters or bytes) is compressed and decompressed in a thread.

A text of this size would block the event loop for 10 to 30 ms."""


def compress(text: str) -> bytes:
    """Return the UTF-8 text as gzip. The header has no time, so the same text always gives the same bytes."""
    return gzip.compress(text.encode(), LEVEL, mtime=0)


class Packed:
    """A text that is stored in a blob as gzip. It is compressed at the first call of :meth:`data`, and only once."""

    __slots__ = ("_data", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._data: bytes | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Packed) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    @property
    def is_slow(self) -> bool:
        """Whether :meth:`data` takes so long that the caller should call it in a thread."""
        return self._data is None and len(self.text) > SLOW

    def data(self) -> bytes:
        """Return the text as gzip. Only the first call compresses the text; later calls return the same bytes."""
        if self._data is None:
            self._data = compress(self.text)
        return self._data


def unpacked_size(data: bytes) -> int:
    """Return the size in bytes of the text in a blob: gzip, whose last four bytes hold the size, or plain UTF-8."""
    return max(len(data), int.from_bytes(data[-4:], "little") if data[:2] == _GZIP else 0)


def decompress(data: bytes) -> str:
    """Return the text of a blob. The blob is gzip or plain UTF-8.

    :raises InputError: if the blob is neither.
    """
    try:
        return (gzip.decompress(data) if data[:2] == _GZIP else data).decode()
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise InputError(f"it is not gzip of UTF-8: {error}") from error
