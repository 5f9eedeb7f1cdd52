"""Reads the types of the parts of an input from the annotation of an orchestrator's parameter."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

from airflow_provider_taskhub.triggers.arguments import standalone_parameter

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def input_parameter(function: Callable[..., Any]) -> str | None:
    """Return the name of the parameter that takes the input; None: the function takes none.

    :param function: an orchestrator, or an activity that can be started by itself.
    """
    alone = standalone_parameter(function)
    if alone is not None:
        return alone or None
    positional = [one.name for one in inspect.signature(function).parameters.values() if one.kind in _POSITIONAL]
    return positional[1] if len(positional) > 1 else None


def type_of_input(function: Callable[..., Any]) -> Any:
    """Return the annotation of the input; None: any type, or no input.

    :param function: as for :func:`input_parameter`.
    :raises InputError: if the annotation uses a name that the function's module does not have.
    """
    from airflow_provider_taskhub.engine.registry import annotation_of

    return annotation_of(function, input_parameter(function))


def fields_of(annotation: Any) -> dict[str, tuple[Any, bool]]:
    """Return the fields of a dataclass, TypedDict or pydantic model: by name, the type and whether it is required.

    The result is empty for other types, and for types that decide themselves what they do with keys (with aliases, a
    pydantic configuration or validators): only a worker's decoding can check these.
    """
    from pydantic import BaseModel
    from typing_extensions import get_type_hints, is_typeddict

    kinds = [*members_of(annotation)]
    if len(kinds) != 1 or hasattr(kinds[0], "__pydantic_config__"):
        return {}
    kind = kinds[0]
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        decorated = kind.__pydantic_decorators__.model_validators
        aliased = any(field.alias or field.validation_alias for field in kind.model_fields.values())
        if decorated or kind.model_config or aliased:
            return {}
        return {name: (field.annotation, field.is_required()) for name, field in kind.model_fields.items()}
    try:
        hints = get_type_hints(kind, include_extras=True)
    except (NameError, AttributeError, TypeError):
        return {}
    if is_typeddict(kind):
        # __required_keys__ misses NotRequired where annotations are texts
        return {name: _of_key(hint, name in kind.__required_keys__) for name, hint in hints.items()}
    if not dataclasses.is_dataclass(kind) or hasattr(kind, "__pydantic_decorators__"):
        return {}
    if any(isinstance(hint, dataclasses.InitVar) for hint in hints.values()):
        return {}
    return {
        one.name: (
            hints.get(one.name),
            one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING,
        )
        for one in dataclasses.fields(kind)
        if one.init
    }


def _of_key(hint: Any, required: bool) -> tuple[Any, bool]:
    """Return the type of a TypedDict's key, and whether the key is required."""
    origin = typing.get_origin(hint)
    if origin in (typing.Required, typing.NotRequired):
        return typing.get_args(hint)[0], origin is typing.Required
    return hint, required


def members_of(annotation: Any) -> Iterator[Any]:
    """Yield the types of a union except None, each without ``Annotated``. A type that is no union yields itself."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        yield from members_of(typing.get_args(annotation)[0])
    elif origin in (typing.Union, types.UnionType):
        for member in typing.get_args(annotation):
            yield from members_of(member)
    elif annotation is not None and annotation is not type(None):
        yield annotation
