"""Packages of the ``azure`` extra, and the error for one that is missing: one text, wherever it is noticed."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from airflow_provider_taskhub.errors import ConfigurationError


def missing(package: str | None, *, purpose: str = "a hub on Azure Storage") -> ConfigurationError:
    """The error for a package that is not installed.

    :param package: as the import system names it.
    :param purpose: what needs it, for people.
    """
    return ConfigurationError(f"{purpose} needs the package {package!r}: pip install 'airflow-provider-taskhub[azure]'")


def check_installed(packages: Sequence[str]) -> None:
    """Whether packages could be imported, without importing them: Microsoft's take most of a second.

    :raises ConfigurationError: for the first that is missing, naming the extra that brings it.
    """
    for package in packages:
        try:
            found = importlib.util.find_spec(package) is not None
        except ModuleNotFoundError:  # not even the namespace that it is in
            found = False
        if not found:
            raise missing(package)
