"""Finds the part of a value that its reader would get as another type, or without some of its fields.

The JSON of a value does not name classes. The reader of a union takes the first type that fits best, a field with
``init=False`` is not read, and a subclass comes back as the declared class. A value is decoded as the reader does it,
and compared, only if its declared type has such a place.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple
from uuid import UUID

from pydantic import BaseModel
from pydantic_core import SchemaValidator

from airflow_provider_taskhub.fast_dataclass import dataclass

_NO_SCHEMA = frozenset({"metadata", "default", "serialization", "expected", "cls", "config", "function", "values"})
"""Keys of pydantic's schemas whose values are no schemas."""
_CLASSES: Mapping[str, type] = {
    **{kind.__name__: kind for kind in (bool, int, float, str, bytes, complex, list, tuple, set, frozenset, dict)},
    **{kind.__name__: kind for kind in (date, datetime, time, timedelta, deque)},
    "decimal": Decimal,
    "uuid": UUID,
}
"""The classes of pydantic's schemas that do not name their class, by their type."""
_COLLECTIONS = frozenset({"list", "tuple", "set", "frozenset", "dict", "generator"})
"""The types of pydantic's schemas of collections."""
_SCALARS = frozenset({str, int, float, bool, type(None)})
_OF_JSON = _SCALARS | {list, dict}
"""The classes that JSON tells apart."""

Content = Callable[[Any], Any]
"""Returns what is written of a value, in a form that can be compared."""


class Kinds(NamedTuple):
    """The classes that a union allows.

    :param own: those of its values.
    :param inside: those of the elements of collections in it.
    :param generic: the classes of :func:`_generic`. The classes of their fields are among ``inside``.
    """

    own: frozenset[type] = frozenset()
    inside: frozenset[type] = frozenset()
    generic: frozenset[type] = frozenset()

    @property
    def elements(self) -> Kinds:
        return Kinds(self.inside, self.inside, self.generic)

    def __or__(self, other: Kinds) -> Kinds:
        return Kinds(*(mine | its for mine, its in zip(self, other, strict=True)))


_decoded_unions: ContextVar[list[tuple[Kinds, Any]]] = ContextVar("decoded_unions")
"""What a watch has decoded by unions: the classes of the union and the value."""


def mapped(schema: Any, change: Callable[[Any], Any]) -> Any:
    """Return a schema of pydantic with changed parts; the same object if no part changes.

    :param schema: a schema, or a list or dict of schemas.
    :param change: returns a part in its changed form, or the same object.
    """
    if isinstance(schema, dict):
        other = _NO_SCHEMA if isinstance(schema.get("type"), str) else ()  # a dict of fields can have any key
        made = {key: one if key in other else change(one) for key, one in schema.items()}
        return made if any(made[key] is not one for key, one in schema.items()) else schema
    if isinstance(schema, list | tuple):
        items = [change(one) for one in schema]
        return type(schema)(items) if any(new is not old for new, old in zip(items, schema, strict=True)) else schema
    return schema


@dataclass(frozen=True)
class Watch:
    """Decodes values of one declared type, and notes what it decodes by unions.

    :param schema: pydantic's schema of the type.
    :param always: whether each value is decoded. That is needed for a type with a union, or with a field that no
        reader reads.
    :param classes: the dataclasses and models in the type. If one has a subclass, a value must be decoded too.
    """

    schema: Any
    always: bool
    classes: frozenset[type]

    @classmethod
    def of(cls, schema: Any) -> Watch | None:
        """Return the watch of a type; None if each value of the type comes back as it was.

        :param schema: pydantic's schema of the type.
        """
        found = list(_schemas(schema))
        classes = frozenset(one["cls"] for one in found if one["type"] in ("dataclass", "model"))
        definitions = _definitions(found)
        unions = [one["choices"] for one in found if _is_union(one)]
        kinds = (set(_classes(one, definitions, set(), generic=_generic(one, definitions))) for one in unions)
        always = any(not one <= _OF_JSON for one in kinds) or any(map(_unread, classes))
        return cls(schema, always, classes) if always or classes else None

    @cached_property
    def _validator(self) -> SchemaValidator:
        return SchemaValidator(_watched(self.schema, _definitions(_schemas(self.schema))), None, False)

    def lost(self, value: Any, read: Callable[[], Any], content: Content) -> str | None:
        """Return what a reader would not get of a value, with its path and the way out; None if it gets all of it.

        :param value: the value that is written.
        :param read: gives the plain value of its text.
        :param content: what is written of a part.
        """
        if not self.always and not any(one.__subclasses__() for one in self.classes):
            return None
        unions: list[tuple[Kinds, Any]] = []
        token = _decoded_unions.set(unions)
        try:
            decoded = self._validator.validate_python(read())
        except Exception:  # the reader says what does not fit; a validator of the user's code can raise any error
            return None
        finally:
            _decoded_unions.reset(token)
        by_value: dict[int, Kinds] = {}
        for kinds, made in unions:  # one object can stand for equal texts or numbers in several places
            by_value[id(made)] = kinds | by_value.get(id(made), Kinds())
        return _lost(value, decoded, by_value, content)


def _schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and all schemas in it."""
    left = [schema]
    while left:
        one = left.pop()
        left.extend(_inner(one))
        if isinstance(one, dict) and isinstance(one.get("type"), str):
            yield one


def _definitions(schemas: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {one["ref"]: one for one in schemas if "ref" in one}


def _inner(schema: Any) -> list[Any]:
    parts: list[Any] = []

    def keep(part: Any) -> Any:
        parts.append(part)
        return part

    mapped(schema, keep)
    return parts


def _is_union(schema: Mapping[str, Any]) -> bool:
    # Pydantic's schema of a Path has a union too, which no user has declared. Only such unions have this key.
    return schema["type"] == "union" and len(schema["choices"]) > 1 and "custom_error_type" not in schema


def _watched(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """Return a schema whose unions note what they have decoded."""
    made = mapped(schema, lambda one: _watched(one, definitions))
    if not isinstance(made, dict) or not isinstance(made.get("type"), str) or not _is_union(made):
        return made
    choices = schema["choices"]
    generic = _generic(choices, definitions)
    kinds = Kinds(
        frozenset(_classes(choices, definitions, set(), into=False)),
        frozenset(_inside(choices, definitions, set(), generic)),
        generic,
    )

    def note(value: Any) -> Any:
        _decoded_unions.get().append((kinds, value))
        return value

    inner = {key: one for key, one in made.items() if key != "ref"}
    named = {"ref": made["ref"]} if "ref" in made else {}
    return {"type": "function-after", "function": {"type": "no-info", "function": note}, "schema": inner, **named}


def _generic(choices: Sequence[Any], definitions: Mapping[str, Any]) -> frozenset[type]:
    """Return the classes that occur in a union with different fields, such as Box of ``Box[int] | Box[str]``, also in
    fields of such classes. Dicts are among them if the union has several TypedDicts."""
    found: frozenset[type] = frozenset()
    while True:
        schemas = set(_made(choices, definitions, set(), generic=found))
        before, found = found, frozenset(kind for kind, many in Counter(one for one, _ in schemas).items() if many > 1)
        if found == before:
            return found


def _inside(
    schema: Any, definitions: Mapping[str, Any], seen: set[str], generic: Collection[type] = ()
) -> Iterator[type]:
    """Yield the classes of the elements of the lists, dicts and other collections that a schema makes, at any depth.

    :param generic: classes whose fields are treated as elements of a collection.
    """
    if isinstance(schema, dict) and isinstance(kind := schema.get("type"), str):
        if kind == "definition-ref":
            if (ref := schema["schema_ref"]) not in seen:
                seen.add(ref)
                yield from _inside(definitions[ref], definitions, seen, generic)
            return
        own = _class_of(schema)
        elements = _elements(schema) if kind in _COLLECTIONS else _inner(schema) if own in generic else []
        for part in elements:
            yield from _classes(part, definitions, set(), generic=generic)
        if own is not None or kind in _COLLECTIONS:
            return
    for part in _inner(schema):
        yield from _inside(part, definitions, seen, generic)


def _class_of(schema: Mapping[str, Any]) -> type | None:
    """Return the class with fields that a schema makes; None: it makes something else."""
    if schema["type"] == "typed-dict":
        return dict
    own = schema["function"] if schema["type"] == "call" else schema.get("cls")
    return own if isinstance(own, type) else None


def _elements(schema: Mapping[str, Any]) -> list[Any]:
    """Return the schemas of the elements of a collection. The elements of a dict are its values."""
    return _inner({key: part for key, part in schema.items() if key != "keys_schema"})


def _classes(
    schema: Any, definitions: Mapping[str, Any], seen: set[str], *, into: bool = True, generic: Collection[type] = ()
) -> Iterator[type]:
    """Yield the classes of :func:`_made`."""
    return (kind for kind, _ in _made(schema, definitions, seen, into=into, generic=generic))


def _made(
    schema: Any, definitions: Mapping[str, Any], seen: set[str], *, into: bool = True, generic: Collection[type] = ()
) -> Iterator[tuple[type, int]]:
    """Yield the classes of the values that a schema makes. The classes of their fields are not among them.

    A number comes with each class. Two schemas of the same class have two numbers.

    :param into: whether those of the elements of lists, dicts and other collections are among them.
    :param generic: classes whose fields are treated as elements of a collection.
    """
    if isinstance(schema, dict) and isinstance(kind := schema.get("type"), str):
        if kind == "definition-ref":
            if (ref := schema["schema_ref"]) not in seen:
                seen.add(ref)
                yield from _made(definitions[ref], definitions, seen, into=into, generic=generic)
            return
        if kind in ("lax-or-strict", "json-or-python"):  # the other part is the text from which the value is made
            chosen = schema.get("strict_schema") or schema["python_schema"]
            yield from _made(chosen, definitions, seen, into=into, generic=generic)
            return
        if kind == "literal":
            yield from ((type(value), id(schema)) for value in schema["expected"])
            return
        if (own := _class_of(schema)) is not None:
            yield own, id(schema)
            if into and own in generic:
                yield from _made(_inner(schema), definitions, seen, generic=generic)
            return
        if kind in _CLASSES:
            yield _CLASSES[kind], 0
        if kind in _COLLECTIONS:
            for part in _elements(schema) if into else ():
                yield from _made(part, definitions, seen, generic=generic)
            return
    for part in _inner(schema):
        yield from _made(part, definitions, seen, into=into, generic=generic)


def _lost(value: Any, decoded: Any, unions: Mapping[int, Kinds], content: Content) -> str | None:
    left = deque([("value", value, decoded, Kinds())])
    while left:
        path, one, made, known = left.popleft()
        kinds = unions.get(id(made), known)
        own = type(one)
        if own is not type(made):
            if why := _changed(one, made, kinds.own) or _without_fields(one, made):
                return f"{path} is of type {own.__name__}, and {why}"
        else:
            for name in _unread(own):
                if content(getattr(one, name, None)) != content(getattr(made, name, None)):
                    return (
                        f"{path}.{name} would be lost: its field has init=False, so the reader makes a new "
                        f"{own.__name__} without it. Leave init=False out, compute the field from the others in "
                        "__post_init__, or write compare=False if it may be lost"
                    )
        # A union says nothing of the fields of its classes.
        below = Kinds() if _fields(made) and type(made) not in kinds.generic else kinds.elements
        for part, inner, again in _parts(one, made, content):
            if type(inner) is not type(again) or type(inner) not in _SCALARS:
                left.append((f"{path}{part}", inner, again, below))
    return None


def _changed(one: Any, made: Any, kinds: Iterable[type]) -> str | None:
    """Return what is wrong if a union has made a value of another of its types; None if nothing is wrong."""
    if type(one) in (int, bool) and type(made) in (int, float):  # an int is a float for type checkers
        return None
    is_value = isinstance(one, Enum) and isinstance(one, str | int)  # such as a StrEnum, which is its text
    if is_value and one == made and not isinstance(made, Enum):
        return None
    own = [kind for kind in kinds if type(one) is kind or (isinstance(one, kind) and not isinstance(made, kind))]
    if not own or not isinstance(made, tuple(kinds)):
        return None
    way = "a dataclass with a field for each type"
    if _fields(one) and _fields(made):
        way = 'give each class of the union a field with a value of its own, such as kind: Literal["a"] = "a"'
    why = f"comes back as {type(made).__name__}, because its JSON fits both types of the union"
    return f"{why}. Declare one type, or {way}"


def _without_fields(one: Any, made: Any) -> str | None:
    """Return what is wrong if a value comes back as its base class, which does not have all its fields."""
    if not isinstance(one, type(made)) or not (dataclasses.is_dataclass(made) or isinstance(made, BaseModel)):
        return None
    kept = {*_fields(made), *(getattr(made, "model_extra", None) or ())}
    if not (lost := [name for name in _fields(one) if name not in kept and _is_part(one, name)]):
        return None
    base, own = type(made).__name__, type(one).__name__
    return f"comes back as {base}, without {', '.join(lost)}. Declare {own}, or the union {base} | {own}"


def _fields(value: Any) -> Sequence[str]:
    """Return the names of the fields of a dataclass or model; empty for other values."""
    if isinstance(value, BaseModel):
        return tuple(type(value).model_fields)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple(field.name for field in dataclasses.fields(value))
    return ()


def _is_part(value: Any, name: str) -> bool:
    """Return whether a field is a part of its value. A field with ``compare=False`` or ``exclude=True`` is no part."""
    if isinstance(value, BaseModel):
        return not type(value).model_fields[name].exclude
    return next(field.compare for field in dataclasses.fields(value) if field.name == name)


def _unread(kind: type) -> tuple[str, ...]:
    """Return the fields of a dataclass that its reader makes anew, and that are a part of its value."""
    if not dataclasses.is_dataclass(kind):
        return ()
    return tuple(field.name for field in dataclasses.fields(kind) if not field.init and field.compare)


def _parts(one: Any, made: Any, content: Content) -> Iterator[tuple[str, Any, Any]]:
    """Yield the parts that two values have in common: the path of the part, the one and the other."""
    if isinstance(one, Mapping):
        names = made if isinstance(made, Mapping) else _fields(made)
        for key, inner in one.items():
            if key in names:
                yield f".{key}", inner, made[key] if isinstance(made, Mapping) else getattr(made, key, None)
    elif isinstance(one, list | tuple | deque) and isinstance(made, list | tuple | deque):
        for number, (inner, again) in enumerate(zip(one, made, strict=False)):
            yield f"[{number}]", inner, again
    elif isinstance(one, set | frozenset) and isinstance(made, set | frozenset):
        again = sorted(made, key=lambda element: repr(content(element)))
        for number, inner in enumerate(sorted(one, key=lambda element: repr(content(element)))):
            if again:  # it has fewer elements if two of them have become equal
                yield f"[{number}]", inner, again[min(number, len(again) - 1)]
    else:
        known = _fields(made)
        for name in _fields(one):
            if name in known:
                yield f".{name}", getattr(one, name, None), getattr(made, name, None)
