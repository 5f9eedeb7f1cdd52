"""The balance as a pure function: fair, at once, with the fewest moves, and still where nothing is to be done."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_taskhub.hub.partitions.balance import Plan, Row, plan

Owners = list[str | None]


def rows_of(owners: Sequence[str | None]) -> list[Row]:
    return [Row(partition=number, owner=owner, free=owner is None) for number, owner in enumerate(owners)]


def apply(owners: Owners, member: str, decided: Plan) -> int:
    """Carry a plan out to the end of its handovers; how many partitions changed their owner."""
    for number in (*decided.take, *decided.ask):
        owners[number] = member
    return len(decided.take) + len(decided.ask)


def turn_together(owners: Owners, members: Sequence[str]) -> tuple[int, int]:
    """Everybody reads, then everybody acts. How many were taken from nobody, and how many moved."""
    rows = rows_of(owners)
    plans = {member: plan(rows, members, {}, member) for member in members}
    wanted = Counter(number for decided in plans.values() for number in (*decided.take, *decided.ask))
    assert not wanted or max(wanted.values()) == 1, "two members want the same partition"
    for member, decided in plans.items():
        assert all(rows[number].free for number in decided.take)
        apply(owners, member, decided)
    return sum(len(p.take) for p in plans.values()), sum(len(p.ask) for p in plans.values())


def turn_by_turn(owners: Owners, members: Sequence[str]) -> tuple[int, int]:
    """One after another, each on what the one before has left."""
    taken = moved = 0
    for member in members:
        decided = plan(rows_of(owners), members, {}, member)
        apply(owners, member, decided)
        taken, moved = taken + len(decided.take), moved + len(decided.ask)
    return taken, moved


def spread(owners: Sequence[str | None], members: Sequence[str]) -> int:
    counts = Counter(owners)
    return max(counts[member] for member in members) - min(counts[member] for member in members)


def fewest_moves(owners: Sequence[str | None], members: Sequence[str]) -> int:
    """By trying every choice of who gets the remainder. What leavers hold must move, what is free is no move."""
    counts = Counter(owner for owner in owners if owner in members)
    share, rest = divmod(len(owners), len(members))
    leavers = sum(owner is not None and owner not in members for owner in owners)
    surplus = min(
        sum(max(0, counts[member] - share - (member in favoured)) for member in members)
        for favoured in itertools.combinations(members, rest)
    )
    return surplus + leavers


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Owners, list[str]]:
    members = [f"w{number}" for number in range(draw(st.integers(1, 6)))]
    owner = st.sampled_from([None, *members, "leaver1", "leaver2"])
    return draw(st.lists(owner, min_size=1, max_size=24)), members


@pytest.mark.rows("E46", "E47", "E50", "K07", "T35", "T36")
@given(clusters())
@settings(max_examples=400, deadline=None)
def test_one_turn_together_ends_fair_with_the_fewest_moves(cluster: tuple[Owners, list[str]]) -> None:
    owners, members = cluster
    fewest = fewest_moves(owners, members)
    taken, moved = turn_together(owners, members)
    assert spread(owners, members) <= 1
    assert all(owner in members for owner in owners)
    assert moved == fewest
    assert turn_together(owners, members) == (0, 0)
    assert taken + moved <= len(owners)


@pytest.mark.rows("E46", "E47", "K07")
@given(clusters(), st.randoms(use_true_random=False))
@settings(max_examples=300, deadline=None)
def test_turn_by_turn_ends_fair_within_three_turns(cluster: tuple[Owners, list[str]], order: random.Random) -> None:
    owners, members = cluster
    for _ in range(3):
        order.shuffle(members)
        turn_by_turn(owners, members)
    assert spread(owners, members) <= 1
    assert turn_by_turn(owners, members) == (0, 0)


@pytest.mark.rows("E47", "T38")
@pytest.mark.parametrize(
    ("partitions", "before", "after", "moves"),
    [(8, 1, 3, 5), (32, 1, 5, 25), (20, 1, 6, 16), (32, 1, 2, 16), (16, 0, 4, 0), (1024, 32, 64, 512), (4, 4, 9, 0)],
)
def test_the_published_cases_need_one_turn(partitions: int, before: int, after: int, moves: int) -> None:
    """The six cases of the comparison with the original rules, which need 4 to 71 cycles or never end; and spares."""
    owners: Owners = [f"w{number % before}" if before else None for number in range(partitions)]
    members = [f"w{number}" for number in range(after)]
    assert turn_together(owners, members)[1] == moves
    assert spread(owners, members) <= 1


@pytest.mark.rows("E36")
@pytest.mark.parametrize("hosts", [2, 3, 4, 7])
def test_a_cold_start_moves_nothing(hosts: int) -> None:
    owners: Owners = [None] * 16
    assert turn_together(owners, [f"w{number}" for number in range(hosts)]) == (16, 0)


@pytest.mark.rows("E48", "K08", "T79")
@given(clusters(), st.lists(st.floats(0, 100), min_size=24, max_size=24))
@settings(max_examples=100, deadline=None)
def test_a_fair_cluster_is_left_alone_whatever_its_loads(cluster: tuple[Owners, list[str]], noise: list[float]) -> None:
    owners, members = cluster
    turn_together(owners, members)
    for shift in range(10):
        loads = {number: noise[(number + shift) % 24] for number in range(len(owners))}
        assert all(plan(rows_of(owners), members, loads, member) == Plan() for member in members)


@pytest.mark.rows("E51", "K07")
def test_a_rolling_restart_moves_only_what_the_restarted_worker_had() -> None:
    owners: Owners = [f"w{number % 4}" for number in range(16)]
    for number in range(4):
        before = list(owners)
        owners = [None if owner == f"w{number}" else owner for owner in owners]
        assert turn_together(owners, [f"w{index}" for index in range(4)]) == (4, 0)
        assert owners == before


def test_the_least_loaded_partitions_move() -> None:
    rows = rows_of(["a", "a", "a", "a"])
    assert plan(rows, ["a", "b"], {0: 9.0, 1: 0.5, 2: 8.0, 3: 0.1}, "b") == Plan(ask=(3, 1))


@pytest.mark.rows("T51", "K09")
def test_a_partition_on_its_way_counts_for_its_heir_and_is_asked_for_once() -> None:
    rows = [
        Row(partition=0, owner="a", next_owner="b"),
        Row(partition=1, owner="a", next_owner="b"),
        Row(partition=2, owner="a"),
        Row(partition=3, owner="a"),
    ]
    assert plan(rows, ["a", "b"], {}, "b") == Plan()
    assert plan(rows, ["a", "b", "c"], {}, "c") == Plan()  # what it lacks is still on its way to b
    arrived = rows_of(["b", "b", "a", "a"])
    assert plan(arrived, ["a", "b", "c"], {}, "c") == Plan(ask=(0,))


@pytest.mark.rows("T51")
def test_a_released_partition_goes_to_its_heir() -> None:
    rows = [Row(partition=0, next_owner="b", free=True), Row(partition=1, owner="a")]
    assert plan(rows, ["a", "b"], {}, "b") == Plan(take=(0,))
    assert plan(rows, ["a", "b"], {}, "a") == Plan()


@pytest.mark.rows("E34", "T87")
def test_what_its_heir_does_not_take_is_anybodys() -> None:
    rows = [Row(partition=0, next_owner="b", free=True, overdue=True), Row(partition=1, owner="a")]
    assert plan(rows, ["a", "b"], {}, "a") == Plan(take=(0,))


def test_an_heir_that_is_gone_inherits_nothing() -> None:
    rows = [Row(partition=0, owner="a", next_owner="dead"), Row(partition=1, next_owner="dead", free=True)]
    assert plan(rows, ["a"], {}, "a") == Plan(take=(1,))


def test_what_a_leaver_still_serves_is_asked_for_not_taken() -> None:
    assert plan(rows_of(["leaver", "leaver", None]), ["a"], {}, "a") == Plan(take=(2,), ask=(0, 1))


@pytest.mark.rows("E26")
def test_a_newcomer_without_partitions_counts_itself() -> None:
    decided = plan(rows_of([None, None, "b", "b"]), ["a", "b"], {}, "a")
    assert decided == Plan(take=(0, 1))


def test_who_is_no_member_does_nothing() -> None:
    assert plan(rows_of([None, None]), ["b"], {}, "a") == Plan()
