"""The comparison of balance rules measures what the specification measured of the others; ours needs one turn."""

from __future__ import annotations

import statistics

import pytest

from tests.benchmarks.balance import CASES, LIMIT, RULES, RUNS, SPECIFIED, run

SMALL = [case for case in CASES if case[0] <= 32]


@pytest.mark.rows("E46", "E47", "E50")
@pytest.mark.parametrize("case", SMALL, ids=str)
def test_ours_needs_one_turn_and_the_fewest_moves(case: tuple[int, int, int]) -> None:
    partitions, before, after = case
    for seed in range(3):
        turn = run(RULES["TaskHub"], case, together=False, seed=seed)
        together = run(RULES["TaskHub"], case, together=True, seed=seed)
        assert turn.cycles == 1
        assert turn.moves == together.moves == (partitions + -partitions // after if before else 0)
        others = [run(rule, case, together=False, seed=seed) for name, rule in RULES.items() if name != "TaskHub"]
        assert all(other.cycles is None or other.cycles >= 3 for other in others)


@pytest.mark.parametrize("case", [(8, 1, 3), (32, 1, 5), (20, 1, 6)])
def test_the_greedy_rule_never_ends_where_it_was_seen_not_to(case: tuple[int, int, int]) -> None:
    assert run(RULES["Python SDK"], case, together=False, seed=1).cycles is None


OTHERS = [
    (name, case, *figures[CASES.index(case)].partition(",")[0].split(" / "))
    for name, figures in SPECIFIED.items()
    for case in SMALL
    if name != "TaskHub" and "never" not in figures[CASES.index(case)]
]


@pytest.mark.parametrize(("name", "case", "turn", "together"), OTHERS)
def test_the_rules_of_others_need_as_many_cycles_as_the_specification_says(
    name: str, case: tuple[int, int, int], turn: str, together: str
) -> None:
    """So the same is measured: a cycle and a refusal are what they are there."""
    assert {run(RULES[name], case, together=False, seed=seed).cycles for seed in range(5)} == {int(turn)}
    assert median(name, case, RUNS) == pytest.approx(int(together), rel=0.2)


def median(name: str, case: tuple[int, int, int], runs: int) -> float:
    """Of the cycles, all at once; a run that never ends is the longest, not none at all."""
    found = [run(RULES[name], case, together=True, seed=seed).cycles for seed in range(runs)]
    return statistics.median(LIMIT if cycles is None else cycles for cycles in found)


def test_a_run_that_never_ends_counts_as_the_longest() -> None:
    assert median("Python SDK", (20, 1, 6), 5) == LIMIT


def test_no_two_rules_are_the_same() -> None:
    """The Python SDK and .NET v5 differ in whom they steal from: all thieves go for one, or each for any."""
    case = (64, 8, 16)
    cycles = {name: median(name, case, 5) for name in RULES}
    assert cycles["TaskHub"] < cycles[".NET v5"] < cycles["Python SDK"] < cycles[".NET v4"]
