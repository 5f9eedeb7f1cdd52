"""Whole-engine tests from plain files. Each is played on a store in which a worker can die between any two writes, on
one in which checkpoints are whole, and on Azurite."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.case_files import FOLDER, load
from tests.simulation.cases import play
from tests.simulation.world import MEMORY, WHOLE, Place

FILES = sorted(FOLDER.glob("*.toml"))
KINDS = {
    "start",
    "suspend",
    "terminate",
    "cancel",
    "timeout",
    "retry",
    "rewind",
    "restart",
    "continue",
    "purge",
    "backfill",
    "failover",
}
each_file = pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])


def test_there_are_cases_of_each_kind() -> None:
    kinds = {file.stem.partition("-")[0] for file in FILES}
    assert kinds == KINDS
    assert len(FILES) >= 60


@pytest.mark.rows("D109")
@pytest.mark.parametrize("place", [MEMORY, WHOLE], ids=str)
@each_file
def test_a_case_ends_as_its_file_says(file: Path, place: Place) -> None:
    play(load(file), place)


@each_file
def test_a_case_ends_so_on_azurite(file: Path, azurite_place: Place) -> None:
    play(load(file), azurite_place)
