"""A hub of its own for each test, on either store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.e2e.forked import Commands, commands
from tests.e2e.house import House, housed


@pytest.fixture(scope="session")
def cli() -> Iterator[Commands]:
    with commands() as made:
        yield made


@pytest.fixture(params=["embedded", "azurite"])
def house(request: pytest.FixtureRequest, cli: Commands, tmp_path: Path) -> Iterator[House]:
    connection = f"sqlite:///{tmp_path / 'hub.db'}"
    if request.param == "azurite":
        connection = request.getfixturevalue("azurite")
    with housed(tmp_path, connection, f"House{uuid4().hex[:8]}", cli) as made:
        yield made


@pytest.fixture
def embedded(cli: Commands, tmp_path: Path) -> Iterator[House]:
    with housed(tmp_path, f"sqlite:///{tmp_path / 'hub.db'}", "House", cli) as made:
        yield made
