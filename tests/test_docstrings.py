"""Every public callable says what it does and what each of its parameters means; every setting has its text."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from airflow_provider_taskhub import settings
from tests.test_public_names import public, signature

NAMES = dict(public())
SKIPPED = ("self", "cls", "args", "kwargs")
INTERNAL = (
    "airflow_provider_taskhub.app.OrchestrationContext",
    "airflow_provider_taskhub.app.Registry",
    "airflow_provider_taskhub.client.Client",
    "airflow_provider_taskhub.client.HubAdmin",
    "airflow_provider_taskhub.client.InstanceHandle",
)
"""Classes of which users get instances and make none: their constructors are not for users."""


def text_of(name: str) -> str:
    """A docstring with those that it refers to for its parameters."""
    value = NAMES[name]
    text = inspect.getdoc(getattr(value, "__func__", value)) or ""
    for reference in re.findall(r"(?:Short for|arameters(?: and errors)? (?:as in|of)) :\w+:`([\w.]+)`", text):
        (meant,) = {one for one in NAMES if one.endswith(f".{reference}") and one != name and one.startswith(name[:28])}
        text += text_of(meant)
    return text


def documented(text: str) -> set[str]:
    found = re.findall(r":(?:param|ivar) ([\w, *]+):", text)
    return {name.strip(" *") for names in found for name in names.split(",")}


def described() -> list[str]:
    """Public callables and properties; plain data has its text in its class's docstring."""
    return [
        name
        for name, value in NAMES.items()
        if isinstance(value, property | staticmethod | classmethod)
        or inspect.isroutine(value)
        or inspect.isclass(value)
    ]


@pytest.mark.parametrize("name", described())
def test_a_public_name_has_a_docstring_with_all_its_parameters(name: str) -> None:
    value, text = NAMES[name], text_of(name)
    assert text, f"{name} has no docstring"
    assert not text.startswith(f"{name.rpartition('.')[2]}("), f"{name} has only what dataclass made"
    found: Any = signature(value)
    if found is None or name in INTERNAL or (isinstance(value, type) and issubclass(value, BaseModel)):
        return
    if isinstance(value, type) and issubclass(value, Exception) and "__init__" not in vars(value):
        return
    wanted = {one for one in found.parameters if not one.startswith("_") and one not in SKIPPED}
    assert wanted <= documented(text), f"{name} says nothing of {sorted(wanted - documented(text))}"


@pytest.mark.parametrize("model", [settings.Settings, settings.LeaseTimes, settings.SparkSettings])
def test_every_setting_has_its_text(model: type[BaseModel]) -> None:
    tree = ast.parse(Path(settings.__file__).read_text())
    (body,) = [node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == model.__name__]
    told = documented(inspect.getdoc(model) or "")
    for one, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(following, ast.Expr) and isinstance(one, ast.AnnAssign):
            told.add(ast.unparse(one.target))
    assert set(model.model_fields) <= told, sorted(set(model.model_fields) - told)
