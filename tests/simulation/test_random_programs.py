"""Random programs while workers die at random storage calls: the long form is ``make simulate-programs``."""

from __future__ import annotations

import pytest

from tests.simulation.random_programs import explored
from tests.simulation.world import MEMORY, WHOLE, Place


@pytest.mark.rows("K26", "K27")
@pytest.mark.parametrize(("seed", "place", "faulty"), [(1, MEMORY, False), (2, MEMORY, True), (3, WHOLE, False)])
def test_programs_come_to_what_the_model_says(seed: int, place: Place, faulty: bool) -> None:
    wrong, programs, deaths = explored(seed, place=place, faulty=faulty)
    assert dict(wrong) == {}
    assert len(programs) == 20
    assert deaths >= 1


def test_a_child_that_begins_after_its_parent_has_ended_is_waited_for() -> None:
    wrong, _, _ = explored(110, branches=False)
    assert dict(wrong) == {}
