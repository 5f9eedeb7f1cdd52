"""Types that a trigger can be given: those of JSON's values, and lists, dicts and unions of them.

A trigger's arguments are stored as JSON, so a type is written as its name, or as a list of a name and the inner types:
``["list", ["dict", "str", "int"]]`` is ``list[dict[str, int]]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from airflow_provider_taskhub.errors import InputError

_PLAIN: Mapping[str, Any] = {
    **{kind.__name__: kind for kind in (bool, int, float, str, list, dict)},
    "None": NoneType,
    "Any": Any,
}
_UNION = "|"


def written(annotation: Any) -> Any:
    """Return a type as JSON; None: it is, or contains, another type. :param annotation: the type."""
    name = next((name for name, kind in _PLAIN.items() if kind is annotation), None)
    if name is not None:
        return name
    origin = get_origin(annotation)
    inner = [written(one) for one in get_args(annotation)]
    if origin not in (list, dict, Union, UnionType) or None in inner:
        return None
    return [origin.__name__ if origin in (list, dict) else _UNION, *inner]


def check(value: Any, types: Mapping[str, Any]) -> None:
    """Check parts of an input.

    :param value: the input.
    :param types: the types of parts, as :func:`written` returns them, by the key of the part; "": the whole input.
    :raises InputError: if a part is missing, or does not fit its type.
    """
    from airflow_provider_taskhub.codec import decode, dumps, loads

    for name, form in types.items():
        what = f"argument {name!r}" if name else "the input"
        if name and (not isinstance(value, Mapping) or name not in value):
            raise InputError(f"{what} is missing")
        decode(loads(dumps(value[name] if name else value, what=what)), _read(form), what=what)


def _read(form: Any) -> Any:
    if isinstance(form, str):
        return _PLAIN[form]
    name, *inner = form
    parts = tuple(map(_read, inner))
    return reduce(or_, parts) if name == _UNION else _PLAIN[name][parts]
