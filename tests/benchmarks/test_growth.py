"""The measurement of growth itself, small: goals beside figures. Idle and waiting take their minutes at any size."""

from __future__ import annotations

import pytest

from tests.benchmarks.findings import Finding
from tests.benchmarks.growth import PARTS, main, table
from tests.benchmarks.histories import LONG, long_history, replayed


@pytest.mark.parametrize("part", [part for part in PARTS if part in ("replay", "neighbour", "size")])
@pytest.mark.process
def test_a_part_comes_to_its_end(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--parts", part, "--scale", "0.01", "--rounds", "1"]) == 0
    shown = capsys.readouterr().out
    assert part in shown
    assert "<=" in shown or ">=" in shown


def test_unknown_parts_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--parts", "idle,nothing"])
    assert "'nothing' is none of replay, idle, waiting, neighbour, size, workers, page" in capsys.readouterr().err


def test_a_goal_is_an_upper_or_a_lower_bound() -> None:
    def finding(value: float, goal: float | None, *, most: bool = True) -> Finding:
        return Finding(part="p", what="w", value=value, unit="", goal=goal, most=most)

    assert [finding(1.0, 1.0).met, finding(1.1, 1.0).met, finding(9.0, None).met] == [True, False, True]
    assert [finding(0.9, 1.0, most=False).met, finding(1.0, 1.0, most=False).met] == [False, True]
    assert table([finding(1.0, 2.0), finding(3.0, 2.0), finding(1.0, None)]).row_count == 3


@pytest.mark.parametrize("name", LONG)
def test_a_long_history_is_as_long_as_asked_and_is_replayed_to_its_end(name: str) -> None:
    past = long_history(name, LONG[name], 400)
    assert 380 <= len(past) <= 430
    assert replayed(past) > 0
