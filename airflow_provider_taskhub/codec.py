"""Converts values to text and back: user's values as JSON, timestamps with a resolution of 100 ns, and gzip.

A user's value is written as one JSON text, and is decoded again by the annotation of a parameter. This module knows
nothing of messages or rows.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import lru_cache
from itertools import accumulate
from typing import Any

from pydantic import (
    PydanticSchemaGenerationError,
    PydanticUndefinedAnnotation,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import SchemaValidator

from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.plain_values import MAX_NESTED, TooDeep, Unwritable, content, is_exact, plain, type_name
from airflow_provider_taskhub.read_back import Watch, mapped

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ISO = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?", re.ASCII)

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode  # json.dumps makes an encoder at each call

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


def dumps(value: Any, annotation: Any = None, *, what: str = "value") -> str:
    """Return a value as compact JSON text. The text has only ASCII characters, so it is valid in a queue message's XML.

    Dataclasses, named tuples and pydantic models are written as objects, sets as sorted lists, numbers of NumPy as
    numbers, and dates, UUIDs, enums and paths as pydantic writes them. :mod:`.plain_values` has the rules.

    :param annotation: the type to which the reader decodes the value; None: it is not known, or there is none.
    :param what: the name of the value in error texts, such as ``input of orchestrator 'flights'``.
    :raises InputError: if JSON cannot express a part of the value (NaN, for example), or would change its meaning (a
        key that is no text), or if a reader who decodes to ``annotation`` would get a part as another type of a union
        or without some of its fields. The text has the path of the part. Also if the value is nested deeper than
        :data:`MAX_NESTED`.
    """
    try:
        text = _text(value, annotation)
    except Unwritable as error:
        kind = "" if hasattr(type(value), "__taskhub_refused__") else f" of type {type(value).__name__}"
        raise InputError(
            f"{what}{kind} cannot be written as JSON: {error}. "
            "Pass plain values, dataclasses, pydantic models or dates."
        ) from error.__cause__
    except (TooDeep, RecursionError) as error:
        raise InputError(
            f"{what} is nested more than {MAX_NESTED} levels deep, which is more than every reader supports, or "
            "contains itself"
        ) from error
    if _is_deep(text):
        raise InputError(
            f"{what} is nested more than {MAX_NESTED} levels deep, which is more than every reader supports"
        )
    if annotation is not None and annotation is not Any and type(value) not in _PLAIN:
        watch = _watch_of(annotation)
        lost = None if watch is None else watch.lost(value, lambda: loads(text), _content)
        if lost is not None:
            raise InputError(f"{what}: {lost}")
    return text


_PLAIN = frozenset({str, int, float, bool, type(None)})


def _content(value: Any) -> Any:
    try:
        return content(value, decode)
    except (Unwritable, TooDeep):
        return repr(value)


def _text(value: Any, annotation: Any) -> str:
    try:
        text = _encode(value)
    except (TypeError, ValueError, RecursionError):
        text = None
    # the encoder comes first, because it finds out whether the value contains itself
    return text if text is not None and is_exact(value) else _encode(plain(value, annotation, decode))


def _is_deep(text: str) -> bool:
    if len(text) < 2 * MAX_NESTED or text.count("[") + text.count("{") <= MAX_NESTED:
        return False
    unescaped = text.encode().replace(b"\\\\", b"").replace(b'\\"', b"")
    outside_strings = b"".join(unescaped.split(b'"')[::2])  # brackets inside of strings do not count
    brackets = outside_strings.translate(None, _NO_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > MAX_NESTED


def one_line(text: str) -> str:
    """Return a text as people read it in one line: control characters and other separators of lines are escaped.

    :param text: any text, for example a name that a user has chosen.
    """
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def loads(text: str, *, what: str = "value") -> Any:
    """Return the value of a JSON text, made of dicts, lists, strings, numbers, booleans and None.

    :param what: the name of the value in error texts.
    :raises InputError: if the text is not JSON, or is nested deeper than Python can read.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{what} is not JSON: {error}: {text[:100]!r}") from error


def decode(value: Any, annotation: Any, *, what: str = "value") -> Any:
    """Convert a plain JSON value to the type of an annotation (a dataclass, a pydantic model, a date …).

    A time without a zone becomes a ``datetime`` in UTC, at any depth of the value.

    :param annotation: the wanted type; None: return the value unchanged.
    :param what: the name of the value in error texts.
    :raises InputError: if the value does not fit the annotation. The text names the value, the annotation and every
        mismatch.
    """
    if annotation is None or annotation is Any:
        return value
    try:
        return _validator_of(annotation, what).validate_python(value)
    except ValidationError as error:
        items = error.errors(include_url=False)
        # If a validator of the user's code has raised an error, this error becomes the cause. Pydantic's own error
        # would only repeat our text.
        cause = next((item["ctx"]["error"] for item in items if "error" in item.get("ctx", {})), None)
        text = f"{what} does not fit {type_name(annotation)}: {'; '.join(map(_misfit, items))}"
        raise InputError(text) from (cause if isinstance(cause, Exception) else None)


def check_annotation(annotation: Any, *, what: str) -> None:
    """Raise an error if no value can be decoded to an annotation; otherwise do nothing.

    :param what: the name of the value in error texts.
    :raises InputError: if pydantic does not support the annotation. The text names the annotation.
    """
    if annotation is not None and annotation is not Any:
        _validator_of(annotation, what)


def is_decodable(annotation: Any) -> bool:
    """Return whether values can be decoded to an annotation."""
    try:
        _validator_of(annotation, "value")
    except (InputError, PydanticUserError):
        return False
    return True


def _validator_of(annotation: Any, what: str) -> TypeAdapter[Any] | SchemaValidator:
    if isinstance(annotation, dict | list | set | tuple | bool | int | float):
        raise InputError(f"{what} is {_shown(annotation)}, which is no type: give a type, such as dict[str, int]")
    try:
        try:
            return _validator(annotation, _order(annotation))
        except TypeError:  # the cache cannot hold an annotation that has no hash
            return _validator.__wrapped__(annotation, "")
    except PydanticSchemaGenerationError as error:
        raise InputError(f"{what}: values cannot be decoded to annotation {annotation!r}") from error
    except PydanticUserError as error:  # such as typing.TypedDict on Python 3.11
        raise InputError(f"{what}: values cannot be decoded to annotation {annotation!r}: {error.message}") from error
    except PydanticUndefinedAnnotation as error:
        raise InputError(
            f"{what}: annotation {annotation!r} cannot be resolved (name {error.name!r} is not defined): "
            "import it where the class is defined"
        ) from error


def _watch_of(annotation: Any) -> Watch | None:
    try:
        return _watch(annotation, _order(annotation))
    except TypeError:  # the cache cannot hold an annotation that has no hash
        return _watch.__wrapped__(annotation, "")


def _order(annotation: Any) -> str:
    """Return what tells apart two annotations that are equal: unions are equal in any order of their types."""
    return "" if isinstance(annotation, type) else repr(annotation)


@lru_cache(maxsize=1024)
def _watch(annotation: Any, order: str) -> Watch | None:
    try:
        adapter = _adapter(annotation)
    except PydanticUserError:  # then the reader gets plain JSON
        return None
    return Watch.of(_adapted(adapter.core_schema))


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    adapter = TypeAdapter(annotation)
    if not adapter.pydantic_complete:
        adapter.rebuild()
    return adapter


@lru_cache(maxsize=1024)
def _validator(annotation: Any, order: str) -> TypeAdapter[Any] | SchemaValidator:
    adapter = _adapter(annotation)
    schema = _adapted(adapter.core_schema)
    # without the last argument, pydantic would take the finished validators of models, which know nothing of UTC
    return adapter if schema is adapter.core_schema else SchemaValidator(schema, None, False)


def _adapted(schema: Any) -> Any:
    """Return a schema of pydantic in which times without a zone become times in UTC, and the JSON of an enum's value
    becomes its member; the same schema without such types.

    Pydantic has no setting for it. A type that says something about zones itself, such as ``NaiveDatetime``, stays.
    Pydantic alone finds a member only by a value that JSON has too, such as a text.
    """
    if isinstance(schema, dict):
        if members := _unfound_members(schema):
            inner = {key: one for key, one in schema.items() if key != "ref"}
            named = {"ref": schema["ref"]} if "ref" in schema else {}
            find = {"type": "no-info", "function": _member_of(members)}
            return {"type": "function-before", "function": find, "schema": inner, **named}
        if schema.get("type") == "datetime" and "tz_constraint" not in schema:
            return {"type": "function-after", "function": {"type": "no-info", "function": _in_utc}, "schema": schema}
    return mapped(schema, _adapted)


def _unfound_members(schema: Mapping[str, Any]) -> Sequence[Enum]:
    """Return the members of an enum that pydantic does not find by the JSON of their values."""
    if schema.get("type") == "enum":
        members: Sequence[Enum] = schema["members"]
        return () if all(isinstance(one.value, str | int) for one in members) else members
    if schema.get("type") == "literal":
        plain = [one for one in schema["expected"] if isinstance(one, str | int)]
        return [one for one in schema["expected"] if isinstance(one, Enum) and one.value not in plain]
    return ()


def _member_of(members: Sequence[Enum]) -> Callable[[Any], Any]:
    """Return a function that gives the member of an enum for the JSON of its value, and any other value as it is."""

    texts = {}
    for member in members:
        with suppress(Unwritable):  # no JSON has the value of such a member
            texts[_text(member.value, None)] = member

    def find(value: Any) -> Any:
        try:
            return value if isinstance(value, Enum) else texts.get(_text(value, None), value)
        except (Unwritable, TooDeep):
            return value

    return find


def _in_utc(value: datetime) -> datetime:
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)


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
