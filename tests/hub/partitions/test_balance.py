"""The balance as a pure function: fair, at once, with the fewest moves, and still where nothing is to be done."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_taskhub.hub.partitions.balance import NO_RULES, BalancePlan, Row, Rules, Seat, plan, seats, shares
from airflow_provider_taskhub.hub.partitions.lease import Lease, balance_row

Owners = list[str | None]
Loads = Mapping[int, float]


def rows_of(owners: Sequence[str | None], loads: Loads | None = None) -> list[Row]:
    return [
        Row(partition=number, owner=owner, free=owner is None, load=(loads or {}).get(number, 0.0))
        for number, owner in enumerate(owners)
    ]


def apply(owners: Owners, member: str, decided: BalancePlan) -> int:
    """Carry a plan out to the end of its handovers; how many partitions changed their owner."""
    for number in decided.shed:
        if owners[number] == member:
            owners[number] = None
    for number in (*decided.take, *decided.ask):
        owners[number] = member
    return len(decided.take) + len(decided.ask)


def turn_together(
    owners: Owners,
    members: Sequence[str] | Mapping[str, Seat],
    *,
    rules: Rules = NO_RULES,
    loads: Loads | None = None,
) -> tuple[int, int]:
    """Everybody reads, then everybody acts. How many were taken from nobody, and how many moved."""
    rows = rows_of(owners, loads)
    sitting = members if isinstance(members, Mapping) else seats(members)
    everybody = sorted({*sitting, *(owner for owner in owners if owner)})
    plans = {member: plan(rows, sitting, member, rules) for member in everybody}
    wanted = Counter(number for decided in plans.values() for number in (*decided.take, *decided.ask))
    assert not wanted or max(wanted.values()) == 1, "two members want the same partition"
    for member, decided in plans.items():
        assert all(rows[number].free for number in decided.take)
        assert all(rules.allow(number, member) for number in (*decided.take, *decided.ask))
        for number in decided.shed:
            owners[number] = None
    for member, decided in plans.items():
        apply(owners, member, replace(decided, shed=()))
    return sum(len(p.take) for p in plans.values()), sum(len(p.ask) for p in plans.values())


def turn_by_turn(owners: Owners, members: Sequence[str]) -> tuple[int, int]:
    """One after another, each on what the one before has left."""
    taken = moved = 0
    for member in members:
        decided = plan(rows_of(owners), seats(members), member)
        apply(owners, member, decided)
        taken, moved = taken + len(decided.take), moved + len(decided.ask)
    return taken, moved


def counts_of(owners: Sequence[str | None], members: Sequence[str] | Mapping[str, Seat]) -> list[int]:
    counts = Counter(owners)
    return sorted(counts[member] for member in members)


def spread(owners: Sequence[str | None], members: Sequence[str] | Mapping[str, Seat]) -> int:
    counts = counts_of(owners, members)
    return counts[-1] - counts[0]


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


def names(number: int) -> list[str]:
    return [f"w{index}" for index in range(number)]


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Owners, list[str]]:
    members = names(draw(st.integers(1, 6)))
    owner = st.sampled_from([None, *members, "leaver1", "leaver2"])
    return draw(st.lists(owner, min_size=1, max_size=24)), members


# --- by number ----------------------------------------------------------------------------------------------------


@pytest.mark.rows("E46", "E47", "E50", "K07", "T35", "T36")
@given(clusters())
@settings(max_examples=400)
def test_one_turn_together_ends_fair_with_the_fewest_moves(cluster: tuple[Owners, list[str]]) -> None:
    owners, members = cluster
    fewest = fewest_moves(owners, members)
    leavers = sum(owner is not None and owner not in members for owner in owners)
    taken, moved = turn_together(owners, members)
    assert spread(owners, members) <= 1
    assert all(owner in members for owner in owners)
    assert moved == fewest
    assert turn_together(owners, members) == (0, 0)
    assert taken + moved <= len(owners)
    assert moved >= leavers


@pytest.mark.rows("E46", "E47", "K07")
@given(clusters(), st.randoms(use_true_random=False))
@settings(max_examples=300)
def test_turn_by_turn_ends_fair_within_three_turns(cluster: tuple[Owners, list[str]], order: random.Random) -> None:
    owners, members = cluster
    for _ in range(3):
        order.shuffle(members)
        turn_by_turn(owners, members)
    assert spread(owners, members) <= 1
    assert turn_by_turn(owners, members) == (0, 0)


@pytest.mark.rows("E46", "E47", "E50")
@given(st.integers(1, 1024), st.integers(1, 64), st.integers(1, 64), st.randoms(use_true_random=False))
@settings(max_examples=25)
def test_a_thousand_partitions_are_fair_after_one_turn(
    partitions: int, before: int, after: int, chance: random.Random
) -> None:
    members = names(after)
    owners: Owners = [chance.choice([None, *names(before)]) for _ in range(partitions)]
    turn_together(owners, members)
    assert spread(owners, members) <= 1
    assert turn_together(owners, members) == (0, 0)


@pytest.mark.rows("E47", "T38", "E27", "E37", "E38", "E39", "E40")
@pytest.mark.parametrize(
    ("partitions", "before", "after", "moves"),
    [(8, 1, 3, 5), (32, 1, 5, 25), (20, 1, 6, 16), (32, 1, 2, 16), (16, 0, 4, 0), (1024, 32, 64, 512), (4, 4, 9, 0)],
)
def test_the_published_cases_need_one_turn(partitions: int, before: int, after: int, moves: int) -> None:
    """The six cases of the comparison with the original rules, which need 4 to 71 cycles or never end; and spares."""
    owners: Owners = [f"w{number % before}" if before else None for number in range(partitions)]
    members = names(after)
    assert turn_together(owners, members)[1] == moves
    assert spread(owners, members) <= 1


@pytest.mark.rows("E36", "E41")
@pytest.mark.parametrize("hosts", [2, 3, 4, 7])
def test_a_cold_start_moves_nothing(hosts: int) -> None:
    owners: Owners = [None] * 16
    assert turn_together(owners, names(hosts)) == (16, 0)


@pytest.mark.rows("E48", "K08")
@pytest.mark.parametrize(("partitions", "hosts"), [(32, 5), (7, 3), (64, 64), (5, 9), (128, 17)])
def test_a_thousand_turns_of_a_stable_cluster_move_nothing(partitions: int, hosts: int) -> None:
    owners: Owners = [None] * partitions
    turn_together(owners, names(hosts))
    rows, sitting = rows_of(owners), seats(names(hosts))
    chance = random.Random(f"{partitions}/{hosts}")
    for _ in range(1000):
        chance.shuffle(rows)
        member = chance.choice(names(hosts))
        assert plan(rows, sitting, member) == BalancePlan()


@pytest.mark.rows("E50", "K07")
@given(clusters(), st.sets(st.sampled_from(names(6))))
@settings(max_examples=200)
def test_any_change_of_hosts_costs_the_fewest_moves(cluster: tuple[Owners, list[str]], others: set[str]) -> None:
    owners, members = cluster
    turn_together(owners, members)
    new = sorted(others) or members
    fewest = fewest_moves(owners, new)
    assert turn_together(owners, new)[1] == fewest


@pytest.mark.rows("E51", "K07")
@given(st.integers(1, 40), st.integers(2, 6), st.data())
@settings(max_examples=100)
def test_a_rolling_restart_moves_only_what_the_restarted_worker_had(
    partitions: int, hosts: int, data: st.DataObject
) -> None:
    """A worker that is back before its lease runs out gets its own partitions, and nothing else moves."""
    owners: Owners = [None] * partitions
    turn_together(owners, names(hosts))
    for number in data.draw(st.permutations(range(hosts))):
        before = list(owners)
        had = before.count(f"w{number}")
        restarted = f"w{number}"
        decided = {}
        for member in names(hosts):
            proven = member == restarted or data.draw(st.booleans())  # it runs on the same machine
            rows = [
                balance_row(
                    Lease(queue=f"h-control-{partition:02}", owner=f"old {owner}" if owner == restarted else owner),
                    me=member,
                    held=owner == member != restarted,
                    unchanged=3.0,
                    take=30.0,
                    patience=25.0,
                    dead={f"old {restarted}"} if proven else set(),
                    successor=restarted if owner == restarted else None,
                )
                for partition, owner in enumerate(owners)
            ]
            listed = names(hosts) if proven else [*names(hosts), f"old {restarted}"]
            decided[member] = plan(rows, seats(listed), member)
        assert all(decided[member] == BalancePlan() for member in decided if member != f"w{number}")
        assert len(decided[f"w{number}"].take) == had
        assert not decided[f"w{number}"].ask


@pytest.mark.rows("T51", "K09", "E42", "E43")
def test_a_partition_on_its_way_counts_for_its_heir_and_is_asked_for_once() -> None:
    rows = [
        Row(partition=0, owner="a", next_owner="b"),
        Row(partition=1, owner="a", next_owner="b"),
        Row(partition=2, owner="a"),
        Row(partition=3, owner="a"),
    ]
    assert plan(rows, seats("ab"), "b") == BalancePlan()
    assert plan(rows, seats("abc"), "c") == BalancePlan()  # what it lacks is still on its way to b
    arrived = rows_of(["b", "b", "a", "a"])
    assert plan(arrived, seats("abc"), "c") == BalancePlan(ask=(0,))


@pytest.mark.rows("T51")
def test_a_released_partition_goes_to_its_heir() -> None:
    rows = [Row(partition=0, next_owner="b", free=True), Row(partition=1, owner="a")]
    assert plan(rows, seats("ab"), "b") == BalancePlan(take=(0,))
    assert plan(rows, seats("ab"), "a") == BalancePlan()


@pytest.mark.rows("E34", "T87")
def test_what_its_heir_does_not_take_is_anybodys() -> None:
    rows = [Row(partition=0, next_owner="b", free=True, overdue=True), Row(partition=1, owner="a")]
    assert plan(rows, seats("ab"), "a") == BalancePlan(take=(0,))


@pytest.mark.rows("T27", "T87")
def test_an_orphan_goes_to_who_has_proof_of_it_not_to_a_newcomer_who_must_watch_it_first() -> None:
    rows = [Row(partition=number, free=True, silent=True) for number in range(2)] + rows_of(["x", "x", "b", "b"])[2:]
    sitting = {"b": Seat(), "c": Seat(newcomer=True)}
    assert plan(rows, sitting, "b") == BalancePlan(take=(0, 1))
    assert plan(rows, sitting, "c") == BalancePlan(ask=(2, 3)), "its share comes by handover"
    assert plan(rows, {"b": Seat(), "c": Seat()}, "c") == BalancePlan(take=(0, 1))


def test_an_heir_that_is_gone_inherits_nothing() -> None:
    rows = [Row(partition=0, owner="a", next_owner="dead"), Row(partition=1, next_owner="dead", free=True)]
    assert plan(rows, seats("a"), "a") == BalancePlan(take=(1,))


def test_what_a_leaver_still_serves_is_asked_for_not_taken() -> None:
    assert plan(rows_of(["leaver", "leaver", None]), seats("a"), "a") == BalancePlan(take=(2,), ask=(0, 1))


@pytest.mark.rows("E26")
def test_a_newcomer_without_partitions_counts_itself() -> None:
    decided = plan(rows_of([None, None, "b", "b"]), seats("ab"), "a")
    assert decided == BalancePlan(take=(0, 1))


@pytest.mark.rows("T67")
def test_who_is_no_member_takes_nothing_and_gives_up_what_it_has() -> None:
    assert plan(rows_of([None, None, "a"]), seats("b"), "a") == BalancePlan(shed=(2,))


@pytest.mark.rows("T32", "E79")
@pytest.mark.parametrize("turn", [0, 1, 3])
def test_a_member_takes_at_most_so_many_in_a_turn(turn: int) -> None:
    rules = Rules(turn=turn)
    rows = [*rows_of([None, None, "b", "b", "b", "b"]), Row(partition=6, next_owner="a", free=True)]
    decided = plan(rows, seats("ab"), "a", rules)
    assert len(decided.take) + len(decided.ask) == turn
    owners: Owners = ["a"] * 8
    turns = 0
    while turn and spread(owners, "ab") > 1:
        turn_together(owners, "ab", rules=rules)
        turns += 1
    assert turns == (-(-4 // turn) if turn else 0)


# --- by weight, up to a cap ---------------------------------------------------------------------------------------


@st.composite
def seated(draw: st.DrawFn) -> tuple[Owners, dict[str, Seat]]:
    owners, members = draw(clusters())
    caps = st.one_of(st.none(), st.integers(0, 8))
    return owners, {member: Seat(weight=draw(st.integers(1, 4)), cap=draw(caps)) for member in members}


@pytest.mark.rows("E52", "T31", "T37")
@given(seated())
@settings(max_examples=300)
def test_shares_are_by_weight_and_never_above_a_cap(cluster: tuple[Owners, dict[str, Seat]]) -> None:
    owners, members = cluster
    targets = shares(len(owners), members, Counter(owner for owner in owners if owner in members))
    assert all(seat.cap is None or targets[member] <= seat.cap for member, seat in members.items())
    room = sum(len(owners) if seat.cap is None else seat.cap for seat in members.values())
    assert sum(targets.values()) == min(len(owners), room)
    for member, seat in members.items():  # nobody could get one more without being fuller than another by one
        for other, their in members.items():
            if seat.cap is None or targets[member] < seat.cap:
                assert (targets[other] - 1) / their.weight < (targets[member] + 1) / seat.weight
    turn_together(owners, members)
    held = Counter(owners)
    assert {member: held[member] for member in members} == targets
    before = list(owners)
    assert turn_together(owners, members) == (0, 0)
    assert owners == before


@pytest.mark.rows("T08", "T31", "T38")
def test_a_lowered_cap_sheds_what_nobody_has_room_for_and_a_raised_one_takes_it() -> None:
    owners: Owners = ["a"] * 4 + ["b"] * 4
    capped = {"a": Seat(cap=2), "b": Seat(cap=4)}
    turn_together(owners, capped)
    assert counts_of(owners, capped) == [2, 4]
    assert owners.count(None) == 2
    turn_together(owners, {"a": Seat(cap=2), "b": Seat()})
    assert counts_of(owners, capped) == [2, 6]
    assert plan(rows_of(["a", "a"]), {"a": Seat(cap=0)}, "a") == BalancePlan(shed=(0, 1))


@pytest.mark.rows("T31")
def test_what_was_asked_for_before_the_cap_was_lowered_is_not_taken() -> None:
    rows = [Row(partition=0, owner="a"), Row(partition=1, next_owner="a", free=True), Row(partition=2, owner="b")]
    assert plan(rows, {"a": Seat(cap=1), "b": Seat()}, "a") == BalancePlan()
    assert plan(rows, {"a": Seat(cap=1), "b": Seat()}, "b") == BalancePlan(take=(1,))


@pytest.mark.rows("T31", "T33", "T34")
def test_overdue_is_no_excuse() -> None:
    rows = [Row(partition=number, next_owner="b", free=True, overdue=True) for number in range(4)]
    rules = Rules(offline=frozenset({0}), barred={1: frozenset({"a"})})
    assert plan(rows, {"a": Seat(cap=1), "b": Seat()}, "a", rules).take == (2,)


# --- bars ---------------------------------------------------------------------------------------------------------


@st.composite
def barred(draw: st.DrawFn) -> tuple[Owners, list[str], Rules]:
    owners, members = draw(clusters())
    owners = owners[:7]
    members = members[:4]
    numbers = range(len(owners))
    rules = Rules(
        offline=draw(st.frozensets(st.sampled_from(numbers), max_size=2)),
        barred={
            number: draw(st.frozensets(st.sampled_from(members))) for number in draw(st.sets(st.sampled_from(numbers)))
        },
    )
    return owners, members, rules


def fairest(partitions: int, members: Sequence[str], rules: Rules) -> list[int]:
    """Numbers per member of the fairest assignment that is allowed, by trying all."""
    choices = [[member for member in members if rules.allow(number, member)] or [None] for number in range(partitions)]
    return min(counts_of(choice, members)[::-1] for choice in itertools.product(*choices))


@pytest.mark.rows("T33", "T34", "T61", "T63", "T64", "E46")
@given(barred())
@settings(max_examples=250)
def test_bars_are_kept_and_what_they_leave_is_as_fair_as_it_can_be(case: tuple[Owners, list[str], Rules]) -> None:
    owners, members, rules = case
    turn_together(owners, members, rules=rules)
    for number, owner in enumerate(owners):
        if owner is None:
            assert not any(rules.allow(number, member) for member in members)
        else:
            assert rules.allow(number, owner)
    assert counts_of(owners, members)[::-1] == fairest(len(owners), members, rules)
    before = list(owners)
    assert turn_together(owners, members, rules=rules) == (0, 0)
    assert owners == before


@pytest.mark.rows("T64", "T65", "T34", "T59")
def test_an_owner_gives_up_what_it_may_not_serve() -> None:
    rules = Rules(offline=frozenset({0}), barred={1: frozenset({"a"})})
    rows = rows_of(["a", "a", "a", "b"])
    assert plan(rows, seats("ab"), "a", rules).shed == (0, 1)
    assert plan(rows, seats("ab"), "b", rules) == BalancePlan(ask=(1,))


# --- loads --------------------------------------------------------------------------------------------------------


def loads_by_member(owners: Sequence[str | None], loads: Loads, members: Sequence[str]) -> list[float]:
    sums = dict.fromkeys(members, 0.0)
    for number, owner in enumerate(owners):
        assert owner is not None
        sums[owner] += loads.get(number, 0.0)
    return sorted(sums.values())


@pytest.mark.rows("T79", "E48", "K08")
@given(st.integers(1, 8), st.integers(2, 6), st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_equal_members_with_noisy_loads_move_nothing(each: int, hosts: int, noise: random.Random) -> None:
    owners: Owners = [None] * (each * hosts)
    turn_together(owners, names(hosts))
    for _ in range(30):
        loads = {number: 100 * noise.uniform(0.8, 1.2) for number in range(len(owners))}
        assert turn_together(owners, names(hosts), loads=loads) == (0, 0)


@pytest.mark.rows("T77", "T78", "E52")
@given(clusters(), st.lists(st.floats(0, 100), min_size=24, max_size=24))
@settings(max_examples=200)
def test_uneven_loads_are_evened_out_and_then_left_alone(
    cluster: tuple[Owners, list[str]], values: list[float]
) -> None:
    owners, members = cluster
    loads = dict(enumerate(values))

    def turn() -> tuple[int, int]:
        moved = turn_together(owners, members, loads=loads)
        if spread(owners, members) > 1:  # the first half of an exchange
            assert turn_together(owners, members, loads=loads) == moved == (0, 1)
        return moved

    turn()
    for _ in range(len(owners) * len(members) + 1):
        before = loads_by_member(owners, loads, members)
        moved = turn()
        after = loads_by_member(owners, loads, members)
        assert spread(owners, members) <= 1, "loads never cost fairness by number"
        if moved == (0, 0):
            break
        assert sum(load * load for load in after) < sum(load * load for load in before)
    else:
        pytest.fail("loads never come to rest")


@pytest.mark.rows("T77", "T78")
def test_an_overloaded_member_exchanges_a_busy_partition_for_a_quiet_one() -> None:
    loads = {0: 40.0, 1: 50.0, 2: 1.0, 3: 1.0}
    owners: Owners = ["a", "a", "b", "b"]
    assert plan(rows_of(owners, loads), seats("ab"), "a") == BalancePlan(), "who has little to do begins"
    assert turn_together(owners, "ab", loads=loads) == (0, 1)
    assert turn_together(owners, "ab", loads=loads) == (0, 1)
    assert owners == ["b", "a", "a", "b"]
    assert loads_by_member(owners, loads, "ab") == [41.0, 51.0]
    assert turn_together(owners, "ab", loads=loads) == (0, 0)


@pytest.mark.rows("T77", "T79")
def test_an_exchange_ends_although_nobody_knows_the_load_of_what_has_just_moved() -> None:
    """What has moved is not turned back, and until all loads are known nothing else moves for them."""
    rows = rows_of(["a", "a", "b", "b", "a", "b"], {0: 40.0, 1: 50.0, 2: 1.0, 3: 1.0, 4: 45.0, 5: 1.0})
    rows[0] = replace(rows[0], owner="b", load=None)
    assert plan(rows, seats("ab"), "a").ask == (2,)
    rows[2] = replace(rows[2], owner="a", load=None)
    assert plan(rows, seats("ab"), "a") == plan(rows, seats("ab"), "b") == BalancePlan()


@pytest.mark.rows("T77", "T31")
def test_who_has_no_room_is_given_nothing_for_its_load() -> None:
    rows = rows_of(["a", "a", "b", "b"], {0: 40.0, 1: 50.0, 2: 1.0, 3: 1.0})
    assert plan(rows, {"a": Seat(), "b": Seat(cap=2)}, "b") == BalancePlan()


@pytest.mark.rows("T79")
def test_loads_of_next_to_nothing_move_nothing() -> None:
    owners: Owners = ["a", "a", "b", "b"]
    assert turn_together(owners, "ab", loads={0: 0.4, 1: 0.5}) == (0, 0)


def test_the_least_loaded_partitions_move_when_numbers_are_unequal() -> None:
    rows = rows_of(["a", "a", "a", "a"], {0: 9.0, 1: 0.5, 2: 8.0, 3: 0.1})
    assert plan(rows, seats("ab"), "b") == BalancePlan(ask=(3, 1))


@pytest.mark.rows("E51")
def test_who_has_come_back_gets_what_was_its_own_and_not_what_others_once_had() -> None:
    """Everybody is new to who has just started; who lacks nothing has nothing to come back to."""
    had = ["b"] * 3 + ["d"] * 3 + [None] * 3
    rows = [replace(row, back=back) for row, back in zip(rows_of(["a"] * 6 + ["b"] * 3), had, strict=True)]
    assert plan(rows, seats(["a", "b", "d"]), "d").ask == (3, 4, 5)
