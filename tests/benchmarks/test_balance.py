"""The comparison of balance rules says what was published of the others, and that ours needs one turn."""

from __future__ import annotations

import pytest

from tests.benchmarks.balance import CASES, RULES, run

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
