"""Evaluates the condition with which ``TaskHubSensor`` waits for a custom status.

A condition is a text: an expression of Jinja, in which ``custom_status`` is the instance's custom status, or the path
of a function, ``package.module:function``, that takes the custom status. A trigger is stored as JSON, so a function
itself cannot be given.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from airflow_provider_taskhub.errors import InputError

_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_FOR_EXAMPLE = "for example \"custom_status.rows > 1000\", or the path of a function: 'package.module:function'"


def check(where: str, condition: Any) -> None:
    """Check a condition while the DAG file is parsed. The module of a function is found and read, but not imported.

    :param where: names the sensor, for the error.
    :param condition: the condition.
    :raises InputError: if the condition is no text, is no expression of Jinja, or names a function that does not exist.
    """
    if not isinstance(condition, str) or not condition.strip():
        raise InputError(f"{where}: custom_status is {condition!r}: give an expression, {_FOR_EXAMPLE}")
    if _PATH.fullmatch(condition):
        _check_function(where, condition)
        return
    if "{{" in condition or "{%" in condition:
        raise InputError(f"{where}: custom_status is {condition!r}: write the expression without braces")
    try:
        _expression(condition)
    except Exception as error:  # TemplateSyntaxError, whose module must not be imported for a DAG without a condition
        raise InputError(f"{where}: custom_status is {condition!r}: {error}; give {_FOR_EXAMPLE}") from None


def compiled(condition: str) -> Callable[[Any], bool]:
    """Return a function that evaluates the condition for one custom status. It may import the user's module.

    :param condition: the condition, as :func:`check` has accepted it.
    :raises InputError: if the function cannot be imported.
    """
    if not _PATH.fullmatch(condition):
        return _by_expression(condition)
    module, _, name = condition.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except Exception as error:  # the user's module may raise any error
        raise InputError(f"custom_status is {condition!r}, which cannot be imported here: {error!r}") from error
    return lambda custom_status: bool(function(custom_status))


def _by_expression(condition: str) -> Callable[[Any], bool]:
    from jinja2 import UndefinedError

    expression = _expression(condition)

    def holds(custom_status: Any) -> bool:
        try:
            return bool(expression(custom_status=custom_status))
        except UndefinedError:  # the custom status does not have that part yet
            return False

    return holds


@cache
def _expression(condition: str) -> Callable[..., Any]:
    from jinja2.sandbox import SandboxedEnvironment

    return SandboxedEnvironment(cache_size=0).compile_expression(condition)


def _check_function(where: str, path: str) -> None:
    module, _, name = path.partition(":")
    spec = _spec(module)
    if spec is None:
        raise InputError(
            f"{where}: custom_status is {path!r}: there is no module {module!r} here. It must be importable by the "
            "DAG processor, the workers and the triggerer of Airflow"
        )
    names = _names(spec.origin) if spec.origin and spec.origin.endswith(".py") else None
    if names is not None and name not in names:
        raise InputError(f"{where}: custom_status is {path!r}: module {module!r} has no function {name!r}")


def _spec(module: str) -> ModuleSpec | None:
    """Find a module without an import of its packages. ``importlib.util.find_spec`` would import them."""
    found: ModuleSpec | None = None
    places: Sequence[str] | None = None
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        found = PathFinder.find_spec(".".join(parts[:count]), places)
        if found is None:
            return None
        places = found.submodule_search_locations or ()
    return found


def _names(file: str) -> set[str] | None:
    """Return the names that a module's top level defines or imports by ``def``, ``class``, ``import`` or ``x = 1``.

    Names of other statements, such as ``async def``, ``for`` or ``a, b = 1, 2``, are not in the result.

    :returns: the names. None: they cannot be known without running the module, because the file cannot be read or
        parsed, has ``import *``, or has an ``if``, ``try``, ``with`` or annotated assignment at its top level.
    """
    try:
        body = ast.parse(Path(file).read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return None
    found: set[str] = set()
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Assign(targets=targets):
                found.update(target.id for target in targets if isinstance(target, ast.Name))
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                found.update((alias.asname or alias.name).partition(".")[0] for alias in aliases)
            case ast.If() | ast.Try() | ast.With() | ast.AnnAssign():
                return None  # names in branches are known only when the module runs
            case _:
                pass
    return None if "*" in found else found
