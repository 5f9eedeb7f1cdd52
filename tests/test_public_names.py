"""Every public name stands in ``public_names.txt``, with its parameters and their defaults: a change by accident fails.

Public is what a module's ``__all__`` names, and the attributes without an underscore of the classes among them. A new
module with ``__all__`` is public too. Types are not pinned here: ``tests/typing`` has examples of them. After a change
that you mean, write the file anew: ``python -m tests.test_public_names``.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import airflow_provider_taskhub as package

PINNED = Path(__file__).parent / "public_names.txt"
INTERNAL = (
    "airflow_provider_taskhub.fast_dataclass",
    "airflow_provider_taskhub.hub.partitions.capabilities",
    "airflow_provider_taskhub.workers.executors.pool",
)
"""Modules that no user imports. Their ``__all__`` only tells mypy which names they pass on from other modules."""


def declared() -> list[str]:
    """Every module of the package with an ``__all__`` that is not empty, found without an import."""
    root = Path(package.__file__).parent
    found = []
    for path in root.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            match node:
                case ast.Assign(targets=[ast.Name(id="__all__")]) | ast.AnnAssign(target=ast.Name(id="__all__")):
                    if node.value is not None and ast.unparse(node.value) not in ("[]", "()"):
                        parts = path.relative_to(root.parent).with_suffix("").parts
                        found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return sorted(found)


MODULES = [name for name in declared() if name not in INTERNAL]
"""What a user imports. Every other module is internal."""


class Shown:
    """A default as its text. An address would be another one in each process, so the text has none."""

    def __init__(self, value: Any) -> None:
        self.text = re.sub(r" at 0x[0-9a-f]+", "", repr(value))

    def __repr__(self) -> str:
        return self.text


def public() -> Iterator[tuple[str, Any]]:
    """Every public name with its object; members of a class under the class's name."""
    seen: set[int] = set()
    for name in MODULES:
        module = importlib.import_module(name)
        for item in module.__all__:
            value = getattr(module, item)
            yield f"{name}.{item}", value
            if inspect.isclass(value) and value.__module__.startswith(package.__name__) and id(value) not in seen:
                seen.add(id(value))
                yield from members(f"{name}.{item}", value)


def members(prefix: str, owner: type) -> Iterator[tuple[str, Any]]:
    """Public attributes that the class, or a base class of this package, declares, but none that it overrides."""
    own = [one for one in owner.__mro__ if one.__module__.startswith(package.__name__)]
    foreign = [one for one in owner.__mro__ if one not in own]
    found = {name for base in own for name in (*inspect.get_annotations(base), *vars(base))}
    for name in sorted(found):
        if not name.startswith("_") and not any(name in vars(base) for base in foreign):
            yield f"{prefix}.{name}", inspect.getattr_static(owner, name, None)


def parameters(value: Any) -> str:
    """The parameters of a callable with their defaults and without their types; "" for anything else."""
    found = signature(value)
    if found is None:
        return ""
    bare = [one.replace(annotation=inspect.Parameter.empty) for one in found.parameters.values()]
    named = [one for one in bare if not one.name.startswith("_")]
    shown = [one if one.default is one.empty else one.replace(default=default(value, one)) for one in named]
    return str(found.replace(parameters=shown, return_annotation=inspect.Signature.empty))


def default(owner: Any, parameter: inspect.Parameter) -> Shown:
    """The default of a parameter; for a field with a factory, what the factory makes."""
    if repr(parameter.default) != "<factory>":
        return Shown(parameter.default)
    field = fields(owner)[parameter.name]
    return Shown(field.default_factory())


def fields(owner: Any) -> dict[str, Any]:
    """The fields of a dataclass or of a model of pydantic."""
    if dataclasses.is_dataclass(owner):
        return {one.name: one for one in dataclasses.fields(owner)}
    return dict(owner.model_fields)


def signature(value: Any) -> inspect.Signature | None:
    """The signature of a callable; None for anything else, and for a class whose constructor nobody calls."""
    value = getattr(value, "__func__", value)
    if isinstance(value, type) and issubclass(value, enum.Enum):
        return None
    if not inspect.isroutine(value) and not inspect.isclass(value):
        return None
    try:
        return inspect.signature(value)
    except (TypeError, ValueError):
        return None


def lines() -> list[str]:
    return [f"{name}{parameters(value)}" for name, value in public()]


def test_public_names_are_the_pinned_ones() -> None:
    assert lines() == PINNED.read_text().splitlines(), f"if you mean the change: python -m {__name__}"


def test_the_modules_that_are_internal_in_spite_of_their_names_exist() -> None:
    assert set(INTERNAL) < set(declared())


@pytest.mark.parametrize("name", MODULES)
def test_all_names_are_sorted_and_there(name: str) -> None:
    module: ModuleType = importlib.import_module(name)
    assert list(module.__all__) == sorted(module.__all__)
    assert all(hasattr(module, item) for item in module.__all__)


if __name__ == "__main__":
    PINNED.write_text("\n".join(lines()) + "\n")
