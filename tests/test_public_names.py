"""Every public name, with its parameters, stands in ``public_names.txt``: an accidental addition or removal fails.

Public is what a module's ``__all__`` names, and the attributes without an underscore of the classes among them. After a
change that you mean, write the file anew: ``python -m tests.test_public_names``.
"""

from __future__ import annotations

import enum
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import airflow_provider_taskhub as package

PINNED = Path(__file__).parent / "public_names.txt"
DEFAULT = type("Default", (), {"__repr__": lambda self: "…"})()
"""Shown for every default: its value may change without a change of the name."""
MODULES = (
    "airflow_provider_taskhub",
    "airflow_provider_taskhub.activity",
    "airflow_provider_taskhub.app",
    "airflow_provider_taskhub.client",
    "airflow_provider_taskhub.errors",
    "airflow_provider_taskhub.hooks.taskhub",
    "airflow_provider_taskhub.links.taskhub",
    "airflow_provider_taskhub.operators.taskhub",
    "airflow_provider_taskhub.sensors.taskhub",
    "airflow_provider_taskhub.settings",
    "airflow_provider_taskhub.testing",
    "airflow_provider_taskhub.triggers.taskhub",
)
"""What a user imports. Every other module is internal."""


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
    """The parameters of a callable without their types; "" for anything else."""
    found = signature(value)
    if found is None:
        return ""
    bare = [one.replace(annotation=inspect.Parameter.empty) for one in found.parameters.values()]
    named = [one for one in bare if not one.name.startswith("_")]
    shown = [one if one.default is one.empty else one.replace(default=DEFAULT) for one in named]
    return str(found.replace(parameters=shown, return_annotation=inspect.Signature.empty))


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


@pytest.mark.parametrize("name", MODULES)
def test_all_names_are_sorted_and_there(name: str) -> None:
    module: ModuleType = importlib.import_module(name)
    assert list(module.__all__) == sorted(module.__all__)
    assert all(hasattr(module, item) for item in module.__all__)


if __name__ == "__main__":
    PINNED.write_text("\n".join(lines()) + "\n")
