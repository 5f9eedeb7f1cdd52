"""Values to text and back: JSON, timestamps of 100 ns, gzip.

Owns how a user's value becomes one JSON text and is decoded by an annotation again. Knows nothing of messages or rows.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import accumulate
from typing import Any, get_args

from pydantic import PydanticSchemaGenerationError, PydanticUndefinedAnnotation, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.fast_dataclass import dataclass

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ISO = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?", re.ASCII)

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode  # json.dumps would make an encoder each time

MAX_NESTED = 500
"""Lists and objects inside each other in what is written. Python reads nearly 1,000, but how many depends on what has
called it: what one reader takes, the replay of the same history would not."""
_GZIP = b"\x1f\x8b"
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS = bytes(set(range(256)) - set(_STEPS))


@dataclass(frozen=True, slots=True, order=True)
class Timestamp:
    """A moment in UTC with .NET's resolution of 100 ns, which ``datetime`` cannot hold.

    :param ticks: 100 ns steps since 1970-01-01T00:00:00Z; negative before.
    """

    ticks: int

    @classmethod
    def from_datetime(cls, value: datetime) -> Timestamp:
        """A ``datetime``; one without a zone is taken as UTC."""
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        delta = aware - _EPOCH
        return cls((delta.days * 86_400 + delta.seconds) * 10_000_000 + delta.microseconds * 10)

    @classmethod
    def from_unix_ns(cls, value: int) -> Timestamp:
        return cls(value // 100)

    @classmethod
    def parse(cls, text: str) -> Timestamp:
        """ISO 8601 with up to 9 fractional digits and ``Z``, an offset or nothing (UTC).

        :raises InputError: for any other text.
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
        """As ``datetime`` in UTC, truncated to microseconds."""
        return _EPOCH + timedelta(microseconds=self.ticks // 10)

    def text(self, *, trim: bool = True) -> str:
        """``2026-11-21T08:55:27.2669147Z``; trailing zeros trimmed as Newtonsoft does unless told otherwise."""
        seconds, fraction = divmod(self.ticks, 10_000_000)
        digits = f"{fraction:07d}"
        if trim:
            digits = digits.rstrip("0")
        return f"{_second(seconds)}.{digits}Z" if digits else f"{_second(seconds)}Z"

    def __str__(self) -> str:
        return self.text()


@lru_cache(maxsize=16)
def _second(seconds: int) -> str:
    """A whole second without its zone; those of a worker's messages are few."""
    return (_EPOCH + timedelta(seconds=seconds)).replace(tzinfo=None).isoformat()  # strftime would not pad year 1


@lru_cache(maxsize=16)
def _ticks(second: str) -> int:
    """The same, read. :raises ValueError: for a day or an hour that there is not."""
    return Timestamp.from_datetime(datetime.fromisoformat(second)).ticks


def ticks_of(value: timedelta) -> int:
    """A duration in 100 ns steps."""
    return (value.days * 86_400 + value.seconds) * 10_000_000 + value.microseconds * 10


def dumps(value: Any, *, what: str = "value") -> str:
    """One JSON text, compact and ASCII only (always legal in a queue's XML).

    Dataclasses, pydantic models, dates, UUIDs, enums, sets and paths are written as pydantic writes them.

    :param what: how an error names the value, e.g. ``input of orchestrator 'flights'``.
    :raises InputError: when JSON cannot express the value; NaN and infinities are refused, and :data:`MAX_NESTED`.
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
        return _encode(to_jsonable_python(value, inf_nan_mode="constants"))


def _is_deep(text: str) -> bool:
    if len(text) < 2 * MAX_NESTED or text.count("[") + text.count("{") <= MAX_NESTED:
        return False
    unescaped = text.encode().replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = b"".join(unescaped.split(b'"')[::2]).translate(None, _NO_BRACKETS)  # none of those inside strings
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > MAX_NESTED


def loads(text: str, *, what: str = "value") -> Any:
    """The plain value of a JSON text.

    :raises InputError: when the text is not JSON, or nested deeper than Python reads.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{what} is not JSON: {error}: {text[:100]!r}") from error


@lru_cache(maxsize=1024)
def _adapter(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation)


def decode(value: Any, annotation: Any, *, what: str = "value") -> Any:
    """A plain JSON value as its annotation wants it (a dataclass, a pydantic model, a date, an int in a string …).

    :param annotation: a type, or ``None`` for "as it is".
    :raises InputError: naming the value, the annotation and every mismatch.
    """
    if annotation is None or annotation is Any:
        return value
    try:
        return _adapter_of(annotation, what).validate_python(value)
    except ValidationError as error:
        items = error.errors(include_url=False)
        name = annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
        # The cause is what a validator of the user's own raised; pydantic's error would only say all of this again.
        cause = next((item["ctx"]["error"] for item in items if "error" in item.get("ctx", {})), None)
        text = f"{what} does not fit {name}: {'; '.join(map(_misfit, items))}"
        raise InputError(text) from (cause if isinstance(cause, Exception) else None)


def check_annotation(annotation: Any, *, what: str) -> None:
    """:raises InputError: naming the annotation, when no value could ever be decoded to it."""
    if annotation is not None and annotation is not Any:
        _adapter_of(annotation, what)


def _adapter_of(annotation: Any, what: str) -> TypeAdapter[Any]:
    try:
        try:
            adapter = _adapter(annotation)
        except TypeError:  # an unhashable annotation
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
"""By the first word of pydantic's error types ``int_type``, ``int_parsing`` …"""


def _misfit(item: Any) -> str:
    """One of pydantic's errors: where it is, the value, and what it is not."""
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
"""Of gzip. Measured on 4 MB of JSON (tables of numbers, paths, prose): 40 to 100 ms, against 140 to 230 ms at level 6
and 230 to 440 ms at level 9; the result is 9 to 24 % larger than at level 6, and 9 to 29 % larger than at level 9."""
SLOW = 1024 * 1024
"""Characters or bytes of a text that are (de)compressed in a thread: 10 to 30 ms on the event loop."""


def compress(text: str) -> bytes:
    """gzip of the UTF-8 text, reproducible (no time in the header)."""
    return gzip.compress(text.encode(), LEVEL, mtime=0)


class Packed:
    """A text as a blob holds it, compressed when that is first asked for, and once."""

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
        """Whether :meth:`data` is to be asked for in a thread."""
        return self._data is None and len(self.text) > SLOW

    def data(self) -> bytes:
        if self._data is None:
            self._data = compress(self.text)
        return self._data


def unpacked_size(data: bytes) -> int:
    """Bytes of the text of a blob, as gzip says it at its end."""
    return max(len(data), int.from_bytes(data[-4:], "little") if data[:2] == _GZIP else 0)


def decompress(data: bytes) -> str:
    """The text of a gzip blob, or of a plain one.

    :raises InputError: when it is neither.
    """
    try:
        return (gzip.decompress(data) if data[:2] == _GZIP else data).decode()
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise InputError(f"it is not gzip of UTF-8: {error}") from error
