"""Checks arguments of operators and sensors while Airflow parses the DAG file.

A value that is a template is known only when the task runs. These functions accept every template, and the operator
checks the rendered value at the beginning of its ``execute``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from airflow_provider_taskhub.errors import InputError


def is_template(value: Any) -> bool:
    """Return whether a value, or a part of it, is known only when the task runs: Jinja, or the output of a task."""
    from airflow.sdk.definitions._internal.mixins import ResolveMixin

    if isinstance(value, str):
        return "{{" in value or "{%" in value
    if isinstance(value, Mapping):
        return any(is_template(item) for pair in value.items() for item in pair)
    if isinstance(value, list | tuple | set | frozenset):
        return any(is_template(item) for item in value)
    return isinstance(value, ResolveMixin)


def check_name(where: str, parameter: str, value: Any, way_out: str) -> None:
    """Check a parameter that must be a text which is not empty.

    :param where: the operator and its task id, for the error.
    :param parameter: the parameter's name.
    :param value: the value, or a template.
    :param way_out: says what to give, for the error.
    :raises InputError: if the value is neither a template nor a text with characters.
    """
    if not is_template(value) and (not isinstance(value, str) or not value.strip()):
        raise InputError(f"{where}: {parameter} is {value!r}: {way_out}")


def check_text(where: str, parameter: str, value: Any) -> None:
    """Check a parameter that must be a text and may be empty. :raises InputError: if it is no text."""
    if not is_template(value) and not isinstance(value, str):
        raise InputError(f"{where}: {parameter} is {value!r}: give a text")


def check_flag(where: str, parameter: str, value: Any) -> None:
    """Check a parameter that must be True or False. :raises InputError: if it is another value."""
    if not isinstance(value, bool):
        raise InputError(f"{where}: {parameter} is {value!r}: give True or False")


def check_value(where: str, parameter: str, value: Any, values: Collection[str]) -> None:
    """Check a parameter that is no template and must be one of some texts. :raises InputError: if it is none."""
    if not isinstance(value, str) or value not in values:
        raise InputError(f"{where}: {parameter} is {value!r}: choose from {', '.join(values)}")


def check_choice(where: str, parameter: str, value: Any, choices: Collection[str]) -> None:
    """Check a parameter that must be one of some texts, in upper or lower case. :raises InputError: if it is none."""
    known = {choice.lower() for choice in choices}
    if not is_template(value) and (not isinstance(value, str) or value.lower() not in known):
        raise InputError(f"{where}: {parameter} is {value!r}: choose from {', '.join(choices)}")
