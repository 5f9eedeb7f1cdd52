"""Azurite whose time is the tests' own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulation.azurite_clock import still_azurite
from tests.simulation.crash import azurite_at
from tests.simulation.world import Place


@pytest.fixture(scope="session")
def emulator() -> Iterator[Place]:
    """One for all scenarios, each of which removes its hub."""
    with still_azurite() as still:
        yield azurite_at(lambda clock: still.store())
