"""Azurite whose time is the tests' own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_provider_taskhub.jumping import JumpingClock
from airflow_provider_taskhub.storage.azure import AzureStore
from tests.simulation.crash import azurite_at
from tests.simulation.still import around, still_azurite
from tests.simulation.world import Place

LEASES = ("acquire_lease", "renew_lease", "change_lease", "release_lease")
"""Requests that time stands still for, too: with blob leases they are what partitions are held by."""


@pytest.fixture(scope="session")
def emulator() -> Iterator[Place]:
    """One for all scenarios, each of which removes its hub."""
    with still_azurite() as still:

        def opened(_: JumpingClock) -> AzureStore:
            store = still.store()
            for name in LEASES:
                around(still, store, name)
            return store

        yield azurite_at(opened)
