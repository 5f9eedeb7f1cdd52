"""Turns a user's value into values that JSON has, or refuses it with the path of the part that JSON cannot express.

:func:`.codec.dumps` asks this module only for a value that Python's own JSON encoder cannot write, or would write with
another meaning: it writes a named tuple as a list, and every key as a text. The types of NumPy and pandas are known by
the modules that the user's code has imported, so this package imports neither.
"""

from __future__ import annotations

import operator
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import lru_cache
from io import IOBase
from math import isfinite, isnan
from types import CoroutineType, NoneType
from typing import Any, get_args

from pydantic import BaseModel, Secret, SecretBytes, SecretStr
from pydantic_core import PydanticSerializationError, to_jsonable_python

MAX_NESTED = 500
"""Largest depth of lists and objects inside each other in a text that is written.

Python reads nearly 1,000 levels, but the number depends on the depth of the call stack. Without a lower limit one
reader could read a value, and a replay of the same history could fail to read it."""
_SCALARS = frozenset({str, int, float, bool, NoneType})
_CONTAINERS = frozenset({dict, list, tuple})
_EXACT = _SCALARS | _CONTAINERS
_TEXT = frozenset({str})
_LISTS = (list, tuple, deque)
_SETS = (set, frozenset)

Decode = Callable[[Any, Any], Any]
"""A function that decodes a plain value to a type, as the reader of the JSON text does."""


class Unwritable(Exception):
    """A part of a value has no form in JSON.

    :param why: what the part is, and perhaps what to give in its place.
    :ivar path: the way from the value to the part, such as ``.a[0].mean``.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
        self.path = ""

    def __str__(self) -> str:
        return f"value{self.path} {self.why}"


class TooDeep(Exception):
    """A value is nested deeper than :data:`MAX_NESTED`, or contains itself."""


def is_exact(value: Any) -> bool:
    """Return whether a value has only the types that Python's JSON encoder writes without a change of their meaning.

    :param value: a value that does not contain itself.
    """
    left = [value]
    while left:
        one = left.pop()
        kind = type(one)
        if kind in _SCALARS:
            continue
        if kind not in _CONTAINERS or (kind is dict and not _TEXT.issuperset(map(type, one))):
            return False
        parts = one.values() if kind is dict else one
        kinds = set(map(type, parts))  # most parts are scalars, and this looks at them without a loop in Python
        if not kinds <= _EXACT:
            return False
        if not kinds <= _SCALARS:
            left.extend(part for part in parts if type(part) in _CONTAINERS)
    return True


def plain(value: Any, annotation: Any, decode: Decode) -> Any:
    """Return a value as dicts with texts as keys, lists, texts, finite numbers, booleans and None.

    A key that is no text is kept as a text only if the reader gets the key back: the declared type says so.

    :param value: any value.
    :param annotation: the type to which the reader decodes the value; None: it is not known, or there is none.
    :param decode: decodes a part to a type.
    :raises Unwritable: JSON cannot express a part. The text has the path of the part.
    :raises TooDeep: the value is nested too deeply, or contains itself.
    """
    walk = _Walk(decode)
    found = walk.plain(value, 0)
    if walk.doubtful and not walk.reads_back(found, annotation, value):
        walk.keys = _Keys.REFUSED
        walk.plain(value, 0)
    return found


def content(value: Any, decode: Decode) -> Any:
    """Return what is written of a value, in a form that can be compared: keys that are no texts have their types in it.

    :param value: any value.
    :param decode: decodes a part to a type.
    :raises Unwritable: JSON cannot express a part.
    :raises TooDeep: the value is nested too deeply, or contains itself.
    """
    return _Walk(decode, _Keys.MARKED).plain(value, 0)


def type_name(annotation: Any) -> str:
    """Return a type as the user's code has it, for error texts."""
    return annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)


_MAX_BITS = 14_000
"""Python reads and writes integers of at most 4,300 decimal digits. This is a little less."""


class _Keys(Enum):
    """What a walk does with a key that is no text."""

    KEPT = "as a text"
    REFUSED = "as an error"
    MARKED = "as a text with its type, so that two values can be compared"


class _Walk:
    """One walk through a value.

    :ivar keys: what becomes of keys that are no texts.
    :ivar doubtful: whether such a key was met, and only a declared type can make the key again.
    :ivar misfit: how the value does not fit its declared type; "" if it fits, or if no type is known.
    :ivar note: why a type such as dict[int, str] must be declared, as the rest of a sentence.
    """

    def __init__(self, decode: Decode, keys: _Keys = _Keys.KEPT) -> None:
        self._decode = decode
        self.keys = keys
        self.doubtful = False
        self.misfit = self.note = ""

    def reads_back(self, made: Any, annotation: Any, value: Any) -> bool:
        """Return whether a reader who decodes ``made`` to a type gets the keys of ``value``."""
        if annotation is None:
            self.misfit = ""
            self.note = " where a function takes or returns the value (events, clients and Airflow know no type)"
            return False
        try:
            again = self._decode(made, annotation)
        except Exception as error:  # a validator of the user's code can raise any error
            self.misfit = str(error)
            return False
        if content(again, self._decode) == content(value, self._decode):
            return True
        self.misfit, self.note = "", f": with {type_name(annotation)}, the value comes back as {again!r:.100}"
        return False

    def plain(self, value: Any, depth: int) -> Any:
        kind: Any = type(value)
        if kind is int and value.bit_length() > _MAX_BITS:
            raise Unwritable("has more than 4,200 digits, too many for a reader: give a text, such as hex()")
        if kind is str or kind is int or kind is bool or value is None:
            return value
        if depth > MAX_NESTED:
            raise TooDeep
        if isinstance(value, Enum):
            return self.plain(value.value, depth + 1)
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return _finite(float(value))
        if isinstance(value, dict):
            return self._of_dict(value, depth)
        if isinstance(value, tuple) and (names := getattr(kind, "_fields", None)):
            return self._of_fields(value, dict(zip(names, value, strict=False)), depth)
        if isinstance(value, tuple) and (names := getattr(value, "__fields__", None)):
            return self._of_fields(value, _of_row(names, value), depth)
        if isinstance(value, _LISTS):
            return self._of_items(value, depth)
        if isinstance(value, _SETS):
            return _sorted(self._of_items(value, depth))
        if names := _dataclass_fields(kind):
            return self._of_fields(value, {name: getattr(value, name) for name in names}, depth)
        return self._of_other(value, depth)

    def _of_dict(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        made = {}
        for key, item in value.items():
            name = str.__str__(key) if isinstance(key, str) and not isinstance(key, Enum) else self._name(key)
            try:
                made[name] = self.plain(item, depth + 1)
            except Unwritable as refused:
                refused.path = f".{name}{refused.path}"
                raise
        return made

    def _name(self, key: Any) -> str:
        if isinstance(key, Enum) and isinstance(key, str):
            return str.__str__(key)
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(key, numpy.generic):
            key = key.item()
        try:
            (name,) = to_jsonable_python({key: None})
        except (PydanticSerializationError, TypeError, ValueError):
            name = None
        if self.keys is _Keys.REFUSED or name is None:
            kind = type(key)
            way = f"declare a type such as dict[{kind.__name__}, str]{self.note}"
            if self.misfit:
                way = f"make the value fit its declared type: {self.misfit}"
            raise Unwritable(
                f"has the key {key!r:.100} of type {kind.__name__}, and JSON has only texts as keys: "
                f"use texts{f', or {way}' if self._makes(kind, name, key) else ''}"
            )
        self.doubtful = True
        return f"{type(key).__qualname__} {name}" if self.keys is _Keys.MARKED else str(name)

    def _makes(self, kind: type, name: str | None, key: Any) -> bool:
        """Return whether a reader can make a key from its text, if the type of the key is declared."""
        try:
            return name is not None and bool(self._decode(name, kind) == key)
        except Exception:  # there is no reader for the type, or code of the user has raised an error
            return False

    def _of_items(self, value: Any, depth: int) -> list[Any]:
        made: list[Any] = []
        for item in value:
            try:
                made.append(self.plain(item, depth + 1))
            except Unwritable as refused:
                refused.path = f"[{len(made)}]{refused.path}"
                raise
        return made

    def _of_fields(self, value: Any, given: dict[str, Any], depth: int) -> dict[str, Any]:
        """Return a dataclass or named tuple as an object. Its own type may make the keys of its dicts again."""
        before, keys = self.doubtful, self.keys
        self.doubtful, self.keys = False, _Keys.KEPT if keys is _Keys.REFUSED else keys
        made = self._of_dict(given, depth)
        self.keys = keys
        if self.doubtful and keys is not _Keys.MARKED:
            self.doubtful = not self.reads_back(made, type(value), value)
            if self.doubtful and keys is _Keys.REFUSED:
                self._of_dict(given, depth)
        self.doubtful = self.doubtful or before
        return made

    def _of_other(self, value: Any, depth: int) -> Any:
        if hasattr(type(value), "__taskhub_refused__"):
            raise Unwritable(value.__taskhub_refused__)
        if isinstance(value, IOBase):  # otherwise it would be written as a list of its lines
            raise Unwritable("is an open file: read it, or give its path")
        numpy, pandas = sys.modules.get("numpy"), sys.modules.get("pandas")
        if pandas is not None and (value is pandas.NaT or value is pandas.NA):
            raise Unwritable(f"is {value}: give None, or leave it out")
        if numpy is not None and isinstance(value, numpy.generic):
            if isinstance(value, numpy.datetime64 | numpy.timedelta64):
                return _of_numpy_time(value, numpy)
            item = value.item()
            if not isinstance(item, numpy.generic):
                return self.plain(item, depth + 1)
        if isinstance(value, datetime):
            if self.keys is _Keys.MARKED and value.tzinfo is None:
                value = value.replace(tzinfo=UTC)  # as the reader gets it
            if getattr(value, "nanosecond", 0):  # a Timestamp of pandas
                return value.isoformat()
        try:
            made = to_jsonable_python(_with_sorted_sets(value), inf_nan_mode="constants")
        except (PydanticSerializationError, TypeError, ValueError, RecursionError) as error:
            # An error about an unknown type has no line of user code. As a cause, it would hide the line of the user.
            raise Unwritable(_why(value, error)) from (None if "unknown type" in str(error) else error)
        if isinstance(made, str):
            if made in _NOT_FINITE and not isfinite(float(value)):
                raise Unwritable(f"is {made}, which is no number in JSON: give None, or leave it out")
            return made
        return self.plain(made, depth + 1)


def _of_row(names: Sequence[str], values: tuple[Any, ...]) -> dict[str, Any]:
    """Return the columns of a ``Row`` of PySpark.

    :raises Unwritable: if two columns have the same name, or a time has lost its zone.
    """
    found = dict(zip(names, values, strict=False))
    for name, value in found.items():
        if isinstance(value, datetime) and value.tzinfo is None and value.astimezone().utcoffset():
            zone = value.astimezone().tzname()
            raise Unwritable(
                f"is a row whose time {name!r} is in the zone of this process, {zone}, and does not say so: start the "
                "worker with TZ=UTC, or give a text, such as with date_format()"
            )
    if len(found) < len(names):
        twice = next(name for at, name in enumerate(names) if name in names[:at])
        raise Unwritable(f"is a row with two columns {twice!r}: give them names of their own, such as with .alias()")
    return found


_NOT_FINITE = frozenset({"NaN", "sNaN", "-NaN", "Infinity", "-Infinity"})
"""Texts of a Decimal that is no number."""
_INSTEAD = {
    "ndarray": "give a list, such as its .tolist()",
    "Series": "give a list, such as its .tolist()",
    "Index": "give a list, such as its .tolist()",
    "DataFrame": 'give a list of objects, such as its .to_dict("records"), or write the data and return a Reference',
    "range": "give a list",
    "dict_keys": "give a list",
    "dict_values": "give a list",
    "dict_items": "give a list",
    "bytes": "give a text, such as its base64",
}
"""What to give in place of a value, by the name of its type."""


def _why(value: Any, error: Exception) -> str:
    if isinstance(value, CoroutineType):
        return f"is the coroutine of {value.__qualname__}, which was not awaited: write await before the call"
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    name = kind.__qualname__ if package == "builtins" else f"{package}.{kind.__name__}"
    instead = _INSTEAD.get(kind.__name__)
    known = package in ("builtins", "numpy", "pandas", "pyspark")
    return f"is of type {name}: {instead if instead and known else error}"


def _finite(value: float) -> float:
    if isfinite(value):
        return value
    shown = "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"
    raise Unwritable(f"is {shown}, which is no number in JSON: give None, or leave it out")


def _of_numpy_time(value: Any, numpy: Any) -> str:
    if numpy.isnat(value):
        raise Unwritable("is NaT: give None, or leave it out")
    if isinstance(value, numpy.datetime64):
        return str(value)
    raise Unwritable("is of type numpy.timedelta64: give a timedelta, such as its .astype('timedelta64[us]').item()")


def _sorted(made: list[Any]) -> list[Any]:
    """Sort the items of a set, so that the same set has the same text in each process."""
    try:
        return sorted(made)
    except TypeError:  # items of several types
        return sorted(made, key=repr)


class _SortedSet(set[Any]):
    """A set that gives its elements in the order in which they are written."""

    def __iter__(self) -> Iterator[Any]:
        return iter(_in_order(list(set.__iter__(self))))


class _SortedFrozenSet(frozenset[Any]):
    """A frozenset that gives its elements in the order in which they are written."""

    def __iter__(self) -> Iterator[Any]:
        return iter(_in_order(list(frozenset.__iter__(self))))


def _in_order(elements: list[Any]) -> list[Any]:
    """Return the elements of a set in an order that is the same in each process."""
    kinds = set(map(type, elements))
    if kinds == {str} or kinds <= {int, float}:
        return sorted(elements)
    return sorted(elements, key=lambda element: repr(to_jsonable_python(element, inf_nan_mode="constants")))


def _with_sorted_sets(value: Any) -> Any:
    """Return a model in which each set is a sorted one. The model itself does not change; other values stay.

    A set stays a set, because pydantic writes the field of a model by the field's annotation.
    """
    if isinstance(value, Secret | SecretStr | SecretBytes):
        raise Unwritable("has a secret, which the hub must not store: let the activity read the secret itself")
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
        given = {field.name: getattr(value, field.name, None) for field in fields(value)}
    elif isinstance(value, BaseModel):
        given = dict(value.__dict__)
    else:
        return value
    changed = {name: new for name, old in given.items() if (new := _with_sorted_sets(old)) is not old}
    if not changed:
        return value
    changed_copy = copy(value)
    for name, new in changed.items():
        object.__setattr__(changed_copy, name, new)  # also if the class is frozen
    return changed_copy


@lru_cache(maxsize=1024)
def _dataclass_fields(kind: Any) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass; empty for other types, and if pydantic has rules of its own."""
    if not is_dataclass(kind) or hasattr(kind, "__pydantic_serializer__"):
        return ()
    return tuple(field.name for field in fields(kind))
