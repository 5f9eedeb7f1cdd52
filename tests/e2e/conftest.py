"""A hub of its own for each test, on either store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.e2e.house import House, housed


@pytest.fixture(params=["embedded", "azurite"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    connection = f"sqlite:///{tmp_path / 'hub.db'}"
    if request.param == "azurite":
        connection = request.getfixturevalue("azurite")
    with housed(tmp_path, connection, f"House{uuid4().hex[:8]}") as made:
        yield made


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[House]:
    with housed(tmp_path, f"sqlite:///{tmp_path / 'hub.db'}", "House") as made:
        yield made
