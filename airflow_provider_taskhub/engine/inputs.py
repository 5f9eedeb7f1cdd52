"""Inputs of orchestrators and activities: their defaults, their types, and unknown keys.

A key that a dataclass, a TypedDict or a pydantic model does not have raises an error that names the key. Pydantic alone
would ignore the key, and the field of a misspelt key would keep its default unnoticed. If a type itself says what
happens with unknown keys (``model_config = ConfigDict(extra="ignore")``, ``__pydantic_config__``), its rule applies.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeGuard

import typing_extensions
from pydantic import AliasChoices, AliasPath, BaseModel

from airflow_provider_taskhub.codec import decode
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.near_names import did_you_mean
from airflow_provider_taskhub.no_input import NO_INPUT

_TYPE_KEY = "$type"
"""Key under which Newtonsoft, the JSON library of .NET, writes the name of a class. It is never an unknown key."""
_CHANGEABLE = (list, dict, set, bytearray, BaseModel)
_SHOWN = 10
"""Maximum number of known keys that an error lists."""


def input_arguments(
    function: Callable[..., Any], parameter: str, annotation: Any, value: Any, *, what: str, recorded: bool = False
) -> tuple[Any, ...]:
    """Decode an input and return the arguments that pass it to a function.

    :param function: the orchestrator or activity.
    :param parameter: name of the parameter that takes the input.
    :param annotation: type of this parameter; None for any type.
    :param value: the input as a plain JSON value. ``NO_INPUT``: the call gave no input, so the parameter's default is
        used. If there is no default, None is decoded in its place. None is an input like others.
    :param what: how an error names the value, e.g. ``input of orchestrator 'flights'``.
    :param recorded: whether the instance has already run with this input. Unknown keys are then ignored, because a
        replay must not fail where the first run did not. A None that does not fit then means "no input", because
        earlier versions wrote both in the same way. Any other value of a wrong type is refused always.
    :returns: one argument; an empty tuple if the parameter's default is used.
    :raises InputError: the value does not fit its type, or has an unknown key. The error text names the key or field.
    """
    if value is NO_INPUT:
        if has_default(function, parameter):
            return _default(function, parameter)
        value = None
    try:
        decoded = decode(value, annotation, what=what)
    except InputError as error:
        if value is None and recorded and has_default(function, parameter):
            return _default(function, parameter)
        if misspelt := "; ".join(_unknown_key_text(*found) for found in _unknown_at_top(value, annotation)):
            raise InputError(f"{error}; {misspelt}") from error.__cause__
        raise
    if not recorded and annotation is not None:
        refuse_unknown_keys(value, decoded, annotation, what=what)
    return (decoded,)


def _default(function: Callable[..., Any], parameter: str) -> tuple[Any, ...]:
    """Return the argument for a parameter's default: a copy if code can change it. Without the copy, a change would be
    seen by the next replay, and by other instances."""
    default = _declared_default(function, parameter)
    if isinstance(default, _CHANGEABLE) or dataclasses.is_dataclass(default):
        return (copy.deepcopy(default),)
    return ()


def has_default(function: Callable[..., Any], parameter: str) -> bool:
    """Return whether a parameter of a function has a default."""
    return _declared_default(function, parameter) is not inspect.Parameter.empty


@lru_cache(maxsize=4096)
def _declared_default(function: Callable[..., Any], parameter: str) -> Any:
    return inspect.signature(function).parameters[parameter].default


def refuse_unknown_keys(raw: Any, decoded: Any, annotation: Any, *, what: str) -> None:
    """Raise an error if decoding dropped a key, at any depth of the value.

    :param raw: the plain JSON value.
    :param decoded: the value after decoding.
    :param annotation: the type that ``raw`` was decoded to.
    :param what: how an error names the value.
    :raises InputError: a key was dropped. The text has the key, its path and the most similar known key.
    """
    for found in _unknown(raw, decoded, annotation, "value"):
        raise InputError(f"{what}: {_unknown_key_text(*found)}")


def _unknown_key_text(path: str, key: str, known: frozenset[str]) -> str:
    question = did_you_mean(key, known, 1)
    hint = f", {question}" if question else ""
    listed = ", ".join(sorted(known)[:_SHOWN]) + (" …" if len(known) > _SHOWN else "") or "none"
    return f"{path} has an unknown key {key!r}{hint} (known keys: {listed})"


_Found = Iterator[tuple[str, str, frozenset[str]]]


def _unknown_at_top(raw: Any, annotation: Any) -> _Found:
    """Yield the unknown keys of a value that could not be decoded, but not those of values inside the value.

    A misspelt key is a likely cause: the required field with the correct name is then missing.
    """
    kinds = [kind for kind in _members(annotation) if kind is not type(None)]
    if not isinstance(raw, dict) or len(kinds) != 1:
        return
    names = _field_names(kinds[0])
    if names:
        yield from _extra(raw, names, "value")


def _field_names(kind: Any) -> set[str]:
    """Return the names and aliases of the fields of a type; an empty set for a type without fields."""
    if typing_extensions.is_typeddict(kind):
        return set(_hints(kind))
    if not isinstance(kind, type) or not (issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind)):
        return set()
    described = getattr(kind, "__pydantic_fields__", {})
    names = {*described, *getattr(kind, "__dataclass_fields__", {})}
    aliases = (_aliases(field.validation_alias or field.alias) for field in described.values())
    return names.union(*aliases)


def _unknown(raw: Any, decoded: Any, annotation: Any, path: str) -> _Found:
    """Yield each key that decoding dropped: the path of its object, the key, and the known keys of its object."""
    if isinstance(raw, dict):
        if isinstance(decoded, BaseModel):
            yield from _of_model(raw, decoded, path)
        elif dataclasses.is_dataclass(decoded) and not isinstance(decoded, type):
            yield from _of_dataclass(raw, decoded, path)
        elif isinstance(decoded, Mapping):
            yield from _of_mapping(raw, decoded, annotation, path)
    elif isinstance(raw, list) and isinstance(decoded, list | tuple) and len(raw) == len(decoded):
        inner = _items_of(annotation)
        for number, (item, made) in enumerate(zip(raw, decoded, strict=True)):
            yield from _unknown(item, made, inner, f"{path}[{number}]")


def _of_model(raw: dict[str, Any], decoded: BaseModel, path: str) -> _Found:
    kind = type(decoded)
    validators = kind.__pydantic_decorators__.model_validators.values()
    if any(validator.info.mode != "after" for validator in validators):
        return  # a validator of the user runs before pydantic and can use keys that are no fields
    names: dict[str, str] = {}
    for name, field in kind.model_fields.items():
        aliases = tuple(_aliases(field.validation_alias or field.alias))
        by_name = kind.model_config.get("populate_by_name") or kind.model_config.get("validate_by_name")
        names |= dict.fromkeys((*aliases, name) if by_name or not aliases else aliases, name)
    if kind.model_config.get("extra") is None:
        yield from _extra(raw, {*names, *kind.model_computed_fields}, path)
    for key, item in raw.items():
        if key in names:
            field = kind.model_fields[names[key]]
            yield from _unknown(item, getattr(decoded, names[key], None), field.annotation, f"{path}.{key}")


def _aliases(alias: str | AliasPath | AliasChoices | None) -> Iterator[str]:
    if isinstance(alias, AliasChoices):
        for choice in alias.choices:
            yield from _aliases(choice)
    elif isinstance(alias, AliasPath):
        yield str(alias.path[0])
    elif alias is not None:
        yield alias


def _of_dataclass(raw: dict[str, Any], decoded: Any, path: str) -> _Found:
    kind = type(decoded)
    decorators = getattr(kind, "__pydantic_decorators__", None)
    if decorators is not None and any(one.info.mode != "after" for one in decorators.model_validators.values()):
        return
    fields = kind.__dataclass_fields__
    aliased = {
        alias
        for field in getattr(kind, "__pydantic_fields__", {}).values()
        for alias in _aliases(field.validation_alias or field.alias)
    }
    if _config(kind).get("extra") is None:
        yield from _extra(raw, {*fields, *aliased}, path)
    hints = _hints(kind)
    for key, item in raw.items():
        if key in fields:
            yield from _unknown(item, getattr(decoded, key, None), hints.get(key), f"{path}.{key}")


def _of_mapping(raw: dict[str, Any], decoded: Mapping[Any, Any], annotation: Any, path: str) -> _Found:
    kinds = [kind for kind in _members(annotation) if typing_extensions.is_typeddict(kind)]
    if not kinds:
        inner = next((args[1] for kind in _members(annotation) if len(args := typing.get_args(kind)) == 2), None)
        if len(raw) == len(decoded):
            for (key, item), made in zip(raw.items(), decoded.values(), strict=True):
                yield from _unknown(item, made, inner, f"{path}.{key}")
        return
    if len(decoded) < len(raw) and not any("extra" in _config(kind) for kind in kinds):
        dropped = {key: item for key, item in raw.items() if key not in decoded}
        yield from _extra(dropped, {key for kind in kinds for key in _hints(kind)}, path)
    hints = {key: hint for kind in kinds for key, hint in _hints(kind).items()}
    for key, item in raw.items():
        if key in decoded:
            yield from _unknown(item, decoded[key], hints.get(key), f"{path}.{key}")


def _extra(raw: Iterable[str], known: Iterable[str], path: str) -> _Found:
    names = frozenset(known)
    for key in raw:
        if key not in names and key != _TYPE_KEY:
            yield path, key, names


def _config(kind: Any) -> Mapping[str, Any]:
    """Return the pydantic configuration of a dataclass or TypedDict; empty if it has none."""
    found = getattr(kind, "__pydantic_config__", None)
    return found if isinstance(found, Mapping) else {}


def _hints(kind: Any) -> Mapping[str, Any]:
    """Return the types of the fields by name. If one type cannot be resolved, all types are None."""
    try:
        return typing_extensions.get_type_hints(kind, include_extras=False)
    except (NameError, AttributeError, TypeError):
        return dict.fromkeys(getattr(kind, "__annotations__", {}))


def _members(annotation: Any) -> Iterator[Any]:
    """Yield the types of a union, each without a wrapper like ``Annotated``. A type that is no union yields itself."""
    origin = typing.get_origin(annotation)
    if _is_wrapper(origin):
        yield from _members(typing.get_args(annotation)[0])
    elif origin in (typing.Union, types.UnionType):
        for member in typing.get_args(annotation):
            yield from _members(member)
    elif isinstance(annotation, typing_extensions.TypeAliasType):
        yield from _members(annotation.__value__)
    elif annotation is not None:
        yield annotation


def _is_wrapper(origin: Any) -> TypeGuard[Any]:
    return origin in (
        typing.Annotated,
        typing_extensions.Required,
        typing_extensions.NotRequired,
        typing_extensions.ReadOnly,
    )


def _items_of(annotation: Any) -> Any:
    """Return the type of the items of a list or tuple; None if the items do not all have the same type."""
    for kind in _members(annotation):
        arguments = [one for one in typing.get_args(kind) if one is not Ellipsis]
        if len(arguments) == 1:
            return arguments[0]
    return None
