"""Where worlds are kept."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulation.azurite_clock import still_azurite
from tests.simulation.crash import azurite_at
from tests.simulation.world import MEMORY, Place


@pytest.fixture(scope="module")
def azurite_place() -> Iterator[Place]:
    """Azurite under the world's clock."""
    with still_azurite() as still:
        yield azurite_at(lambda clock: still.store())


@pytest.fixture(scope="module", params=["sqlite", "azurite"])
def place(request: pytest.FixtureRequest) -> Place:
    """Each store in turn, under the world's clock."""
    return MEMORY if request.param == "sqlite" else request.getfixturevalue("azurite_place")
