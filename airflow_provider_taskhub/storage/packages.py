"""Makes the error for a missing package of the ``azure`` extra, so that all modules raise the same error text."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from airflow_provider_taskhub.errors import ConfigurationError


def missing(package: str | None, *, purpose: str = "a hub on Azure Storage") -> ConfigurationError:
    """Return the error for a package that is not installed. The caller raises the error.

    :param package: import name of the package, or None if Python did not tell the name.
    :param purpose: feature that needs the package; the error text begins with this.
    """
    return ConfigurationError(
        f"{purpose} needs the package {package!r}: install TaskHub again with its extra [azure], such as "
        "pip install -c constraints.txt 'PATH[azure]', where PATH is your clone or wheel of TaskHub"
    )


def check_installed(packages: Sequence[str]) -> None:
    """Check that packages are installed, without importing them.

    The check must be fast, and importing Microsoft's packages takes most of a second.

    :param packages: import names of the packages.
    :raises ConfigurationError: for the first missing package. The error names the pip extra that installs the package.
    """
    for package in packages:
        try:
            found = importlib.util.find_spec(package) is not None
        except ModuleNotFoundError:  # the parent package, such as `azure`, is missing too
            found = False
        if not found:
            raise missing(package)
