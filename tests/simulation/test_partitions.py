"""The partition service simulated, in short (``make simulate HOURS=1000`` is the long form); and what it catches."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from itertools import chain

import pytest

from airflow_provider_taskhub.errors import LeaseLost
from airflow_provider_taskhub.hub.partitions.balance import Rules
from airflow_provider_taskhub.hub.partitions.lease import Lease
from airflow_provider_taskhub.hub.partitions.owner import PartitionOwner
from airflow_provider_taskhub.hub.partitions.tenure import LeaseTenure
from airflow_provider_taskhub.settings import LeaseTimes
from tests.simulation.partitions import Shape, Violation, shape_of, simulate

Break = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.rows("T86", "T87", "T83", "T14", "T15", "T18", "T20", "T40", "T89", "E25", "E46", "E48", "E54", "K09")
@pytest.mark.parametrize("seed", [4, 6, *(pytest.param(seed, marks=pytest.mark.long) for seed in (7, 11, 12))])
def test_no_partition_has_two_owners_and_each_is_served_again_whatever_happens(seed: int) -> None:
    world = simulate(seed, 0.3)
    assert world.events["taken"] > 0


@pytest.mark.rows("K43", "T86", "T87", "E48")
@pytest.mark.parametrize("seed", [9, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2, 4))])
def test_whatever_happens_to_hosts_with_different_apps(seed: int) -> None:
    """A partition comes to rest with a host that has all that its instances need."""
    assert simulate(seed, 0.2, differ=True).events["taken"] > 0


@pytest.mark.rows("K43")
def test_partitions_that_rest_where_nothing_can_be_run_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rules, "suits", Rules.allow)
    with pytest.raises(Violation, match=r"rests with .* are fit"):
        simulate(4, 0.2, differ=True)


@pytest.mark.rows("T17", "T88", "E59", "K33", "D96")
@pytest.mark.long
def test_wall_clocks_decide_nothing() -> None:
    """The same world with every wall clock right: everything happens at the same moments to the same hosts."""
    off, right = simulate(11, 0.3), simulate(11, 0.3, skewed=False)
    assert off.events["clock"] > 0
    assert off.digest.hexdigest() == right.digest.hexdigest()


@pytest.mark.rows("T86", "T87")
@pytest.mark.long
def test_a_seed_is_played_the_same_way_again() -> None:
    assert simulate(4, 0.1).digest.hexdigest() == simulate(4, 0.1).digest.hexdigest()


# what each promise is worth: without it the simulation finds two owners


def ages_from_answers(patch: pytest.MonkeyPatch) -> None:
    """T16 broken: a lease's age counts from when its answer arrived."""
    begin, renew = LeaseTenure.__init__, LeaseTenure.renewed

    def begun(self: LeaseTenure, **named: object) -> None:
        clock = named["clock"]
        begin(self, **(named | {"sent": clock.monotonic()}))  # type: ignore[arg-type,attr-defined]

    def renewed(self: LeaseTenure, lease: Lease, sent: float) -> None:
        renew(self, lease, self._clock.monotonic())

    patch.setattr(LeaseTenure, "__init__", begun)
    patch.setattr(LeaseTenure, "renewed", renewed)


def ages_by_wall_clocks(patch: pytest.MonkeyPatch) -> None:
    """T17 broken: a lease's age is told by the wall clock, which is set now and then."""
    begin, renew = LeaseTenure.__init__, LeaseTenure.renewed

    def wall(tenure: LeaseTenure) -> float:
        return tenure._clock.utc_now().ticks / 1e7

    def begun(self: LeaseTenure, **named: object) -> None:
        begin(self, **named)  # type: ignore[arg-type]
        self._sent = wall(self) - (self._clock.monotonic() - self._sent)

    def renewed(self: LeaseTenure, lease: Lease, sent: float) -> None:
        renew(self, lease, wall(self) - (self._clock.monotonic() - sent))

    patch.setattr(LeaseTenure, "__init__", begun)
    patch.setattr(LeaseTenure, "renewed", renewed)
    patch.setattr(LeaseTenure, "left", lambda self: self._sent + self._give_up - wall(self))


def no_watchdog(patch: pytest.MonkeyPatch) -> None:
    """T20 broken: only a scan or a renewal that gets through notices that a lease is too old."""
    patch.setattr(PartitionOwner, "expire", lambda self: 1.0)


def no_check_of_ages(patch: pytest.MonkeyPatch) -> None:
    """T21 broken: the check looks at a flag, not at the age."""

    def check(self: LeaseTenure) -> None:
        if self._reason is not None:
            raise LeaseLost("no longer served here")

    patch.setattr(LeaseTenure, "check", check)


@pytest.mark.parametrize(
    ("broken", "found_before", "caught"),
    [
        pytest.param(ages_from_answers, 149, r"is served by .* and .* \(T86\)", marks=pytest.mark.rows("T16")),
        pytest.param(ages_by_wall_clocks, 1, r"is (served|read) by .* and .*", marks=pytest.mark.rows("T17")),
        pytest.param(no_watchdog, 11, r"is read by .* and .* \(T20\)", marks=pytest.mark.rows("T20", "E25")),
        pytest.param(no_check_of_ages, 1, r"is served by .* and .* \(T86\)", marks=pytest.mark.rows("T21")),
    ],
)
def test_a_broken_promise_is_caught(
    broken: Break, found_before: int, caught: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    story = first_violation(found_before)
    assert re.search(caught, story)
    assert "python -m tests.simulation.partitions --seed" in story


def first_violation(found_before: int) -> str:
    """What the simulation says, of hubs with few partitions and late answers, which are quick to play.

    Every other seed is one in which an age that is counted wrongly kills soonest: others look often, and take right
    after a worker must have given up.

    :param found_before: the seed that the search found last time. It is played first, because a whole search may take
        20 s. If a change of the code makes it play otherwise, the search finds another one.
    """
    late = [seed for seed in range(1, 400) if is_late(shape_of(seed, 0.4))]
    sharp = [seed for seed in late if is_sharp(shape_of(seed, 0.4).times)]
    blunt = [seed for seed in late if seed not in sharp]
    for seed in (found_before, *chain.from_iterable(zip(sharp, blunt, strict=False))):
        try:
            simulate(seed, 0.4)
        except Violation as violation:
            return str(violation)
    return "nothing found"


def is_late(shape: Shape) -> bool:
    return shape.partitions <= 8 and shape.times.give_up - shape.times.renew >= timedelta(seconds=15)


def is_sharp(times: LeaseTimes) -> bool:
    return times.take - times.give_up < timedelta(seconds=1) and times.scan < timedelta(seconds=5)
