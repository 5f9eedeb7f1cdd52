"""Defaults of the parameters of operators and sensors, from the section ``[taskhub]`` of Airflow's configuration.

They are read when Airflow parses a DAG file. A parameter that the DAG file gives always counts more.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any

from airflow.sdk import conf

from airflow_provider_taskhub.errors import InputError


def choice(option: str, given: Any, choices: Collection[str]) -> Any:
    """Return a parameter that must be one of some texts.

    :param option: the name of the parameter and of its option.
    :param given: the parameter; None: the value of the option, or the first of the choices if the option is empty.
    :raises InputError: if the option has another value.
    """
    if given is not None:
        return given
    found = conf.get("taskhub", option, fallback="").strip() or next(iter(choices))
    if found not in choices:
        raise InputError(f"option [taskhub] {option} is {found!r}: choose from {', '.join(choices)}")
    return str(found)


def seconds(option: str, given: timedelta | float | None, *, least: float = 0.0) -> timedelta | float | None:
    """Return a parameter that is a duration.

    :param option: the name of the parameter and of its option.
    :param given: the parameter; None: the value of the option in seconds, or None if the option is empty.
    :param least: the smallest value that the option may have.
    :raises InputError: if the option is no such number.
    """
    if given is not None:
        return given
    text = conf.get("taskhub", option, fallback="").strip()
    if not text:
        return None
    try:
        found = float(text)
    except ValueError:
        found = float("nan")
    if not least <= found < float("inf"):
        raise InputError(f"option [taskhub] {option} is {text!r}: give seconds, at least {least:g}, or nothing")
    return found
