"""The emulator for tests: one per session, in memory, on free ports.

The fixture is registered by the root ``conftest.py`` (``pytest_plugins = ["tests.azurite"]``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_taskhub.demo.azurite import Azurite, install

FOLDER = Path(__file__).parents[1] / ".azurite"


@pytest.fixture(scope="session")
def azurite() -> Iterator[str]:
    """The connection string of a running Azurite; installs it when it is not there yet."""
    install(FOLDER)
    with Azurite(FOLDER) as running:
        yield running.connection
