"""Azurite whose time is the tests' own; and the configuration of the logs, which some tests reset."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from tests.simulation.azurite_clock import still_azurite
from tests.simulation.crash import azurite_at
from tests.simulation.world import Place


@pytest.fixture(scope="session")
def emulator() -> Iterator[Place]:
    """One for all scenarios, each of which removes its hub."""
    with still_azurite() as still:
        yield azurite_at(lambda clock: still.store())


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """Tests of other folders that run in this process read logs in the form that Airflow has configured."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)
