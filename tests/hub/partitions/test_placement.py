"""Which worker should serve a partition, by what its instances need."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_taskhub.hub.model import Member, Need, Service
from airflow_provider_taskhub.hub.partitions.balance import BalancePlan, Row, Rules, plan, seats
from airflow_provider_taskhub.hub.partitions.placement import (
    RECENT,
    Placement,
    Wanted,
    decode_wanted,
    encode_wanted,
    unfit,
)
from airflow_provider_taskhub.virtual_time import START

A, B, C, NOBODYS = (Need("orchestrator", name) for name in ("a", "b", "c", "nobodys"))


def worker(name: str, has: str) -> Member:
    return Member(worker=name, started=START, roles=("orchestrator",), apps={}, orchestrators=tuple(has), activities=())


ONE, TWO, THREE, FULL = worker("one", "a"), worker("two", "b"), worker("three", "c"), worker("full", "abc")


@pytest.mark.parametrize(
    ("wanted", "members", "found"),
    [
        pytest.param(Wanted(runs=(A,)), [ONE, TWO], {"two"}, id="who runs it keeps it"),
        pytest.param(Wanted(runs=(A,)), [ONE, TWO, FULL], {"two"}, id="or anybody who has it"),
        pytest.param(Wanted(lacks=(B,), ripe=False), [ONE, TWO], {"one"}, id="who runs nothing there lets it go"),
        pytest.param(Wanted(runs=(A,), lacks=(B,)), [ONE, TWO, FULL], {"one", "two"}, id="who has everything gets it"),
        pytest.param(Wanted(runs=(A,), lacks=(B,), ripe=False), [ONE, TWO, FULL], {"one", "two"}, id="and at once"),
        pytest.param(Wanted(runs=(A,), lacks=(B,), ripe=False), [ONE, TWO], {"two"}, id="a turn lasts a while"),
        pytest.param(Wanted(runs=(A,), lacks=(B,)), [ONE, TWO], {"one"}, id="then it is the other's turn"),
        pytest.param(Wanted(runs=(A,), lacks=(C, B)), [ONE, TWO, THREE], {"one", "two"}, id="the oldest first"),
        pytest.param(Wanted(lacks=(NOBODYS,)), [ONE, TWO], set(), id="nobody has it: as fair shares say"),
        pytest.param(Wanted(runs=(A,), lacks=(NOBODYS, B)), [ONE, FULL], {"one"}, id="what nobody has does not count"),
        pytest.param(Wanted(runs=(A,), lacks=(NOBODYS,)), [ONE, TWO], {"two"}, id="nor moves anything"),
        pytest.param(Wanted(), [ONE, TWO], set(), id="nothing is needed"),
        pytest.param(Wanted(runs=(A,), lacks=(B,)), [], set(), id="nobody is there"),
    ],
)
def test_who_is_not_to_serve_a_partition(wanted: Wanted, members: list[Member], found: set[str]) -> None:
    assert unfit(wanted, members) == found


def say(placing: Placement, now: float, live: list[Member], **service: Any) -> dict[int, Wanted]:
    return placing.say([3], {3: Service(**service)}, ONE, live, now)


def test_nothing_is_said_while_all_workers_have_the_same() -> None:
    placing = Placement(0.5)
    assert say(placing, 0.0, [], runs=(A,)) == {}
    assert say(placing, 0.0, [worker("other", "a")], runs=(A,)) == {}
    assert say(placing, 0.0, [TWO], runs=(A,)) == {3: Wanted(runs=(A,))}


def test_what_waits_in_vain_is_said_whoever_is_there() -> None:
    assert say(Placement(0.5), 0.0, [], runs=(A,), lacks=(B,)) == {3: Wanted(lacks=(B,))}


def test_a_worker_that_runs_activities_alone_differs_from_nobody() -> None:
    activities = Member(worker="x", started=START, roles=("activity",), apps={}, orchestrators=(), activities=("m",))
    assert say(Placement(0.5), 0.0, [activities], runs=(A,)) == {}


def test_a_partition_is_kept_for_what_it_was_taken_for() -> None:
    """Else fair shares would take it back before its first message was delivered."""
    placing = Placement(0.5)
    placing.ask(3, Wanted(runs=(B,), lacks=(A,)))
    placing.take(3, 100.0)
    assert say(placing, 101.0, [TWO]) == {3: Wanted(runs=(A,), ripe=False)}
    assert say(placing, 101.0, [TWO], lacks=(B,)) == {3: Wanted(runs=(A,), lacks=(B,), ripe=False)}
    assert say(placing, 105.0, [TWO], lacks=(B,)) == {3: Wanted(runs=(A,), lacks=(B,), ripe=True)}
    assert say(placing, 100.0 + RECENT, [TWO]) == {}


def test_an_earlier_stay_says_nothing() -> None:
    placing = Placement(0.5)
    placing.ask(3, Wanted(lacks=(A,)))
    placing.take(3, 100.0)
    assert placing.say([], {}, ONE, [TWO], 101.0) == {}
    assert say(placing, 102.0, [TWO]) == {}


def test_what_is_said_comes_back_and_damage_says_nothing() -> None:
    said = {
        0: Wanted(runs=(A, Need("orchestrator", 'ö"', "2")), lacks=(B,), ripe=False),
        17: Wanted(lacks=(B,)),
    }
    assert decode_wanted(encode_wanted(said)) == said
    assert encode_wanted({}) == ""
    for damaged in (
        None,
        7,
        "",
        "{",
        "[]",
        "[[],{}",
        '[[],{"1":[1,[0],[]]}]',
        '[[["a"]],{}]',
        "3",
        '[{},{"x":[1,[],[]]}]',
    ):
        assert decode_wanted(damaged) == {}


def test_what_is_said_is_bounded() -> None:
    long = [Need("orchestrator", f"{number:0100d}") for number in range(50)]
    runs = {
        number: Wanted(runs=tuple(Need("orchestrator", f"{number}/{n:0100d}") for n in range(50)), lacks=(B,))
        for number in range(64)
    }
    text = encode_wanted(runs)
    assert len(text) <= 30_000
    assert decode_wanted(text) == {number: Wanted(lacks=(B,)) for number in range(64)}
    lacks = {
        number: Wanted(lacks=tuple(Need("orchestrator", f"{number}/{need.name}") for need in long))
        for number in range(1024)
    }
    assert encode_wanted(lacks) == ""


# what fair shares make of it


def rows(owners: str, **asked: str) -> list[Row]:
    return [
        Row(partition=number, owner=owner, next_owner=asked.get(f"p{number}"), load=0.0)
        for number, owner in enumerate(owners)
    ]


def plans(found: list[Row], unfit: dict[int, frozenset[str]], members: str = "ab") -> dict[str, BalancePlan]:
    return {member: plan(found, seats(members), member, Rules(unfit=unfit)) for member in members}


def test_who_is_fit_asks_and_who_is_not_keeps_it_until_then() -> None:
    """The owner gives nothing up by itself: nobody would serve it meanwhile."""
    found = plans(rows("aabb"), {0: frozenset("a")})
    assert 0 in found["b"].ask
    assert all(not one.shed and not one.take for one in found.values())
    assert found["a"].ask, "and takes another one for it"
    assert set(found["a"].ask) <= {2, 3}


def test_nothing_moves_once_every_partition_is_where_it_is_run() -> None:
    bars = {0: frozenset("a"), 1: frozenset("a"), 2: frozenset("a")}
    assert plans(rows("bbba"), bars) == {"a": BalancePlan(), "b": BalancePlan()}
    everything = {number: frozenset("a") for number in range(4)}
    assert plans(rows("bbbb"), everything) == {"a": BalancePlan(), "b": BalancePlan()}


def test_a_partition_that_is_free_goes_to_who_is_fit() -> None:
    found = [Row(partition=0, free=True, next_owner=None), *rows("bb")[1:]]
    assert plans(found, {0: frozenset("b")})["a"].take == (0,)
