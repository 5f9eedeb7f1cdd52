"""A worker dies before or after any storage call; another finishes, and nobody can tell (K26, K27, K29).

And all else that can go wrong at a storage call (``lives.Kind``): here a sample of it, in ``make crash`` all. A failure
prints the line that reproduces it. ``TASKHUB_DEATHS=all`` dies at every point instead of a sample.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any

import pytest

from tests.simulation.crash import go_through, main
from tests.simulation.lives import DEATHS, Damage, Kind, Trouble, troubles, undisturbed
from tests.simulation.scenarios import SCENARIOS, Scenario
from tests.simulation.world import MEMORY, WHOLE, Place

SAMPLE = 24
"""Deaths of each scenario: a half of them in ``make test``, the other half in ``make test-all``."""
OTHERS = tuple(kind for kind in Kind if kind not in DEATHS)
QUICK = ("chain", "recorded")
"""Scenarios of ``make quick``: activities without and with a record of their own."""
each_scenario = pytest.mark.parametrize(
    "scenario",
    [pytest.param(each, marks=() if each.name in QUICK else pytest.mark.long) for each in SCENARIOS.values()],
    ids=str,
)


each_half = pytest.mark.parametrize("half", [0, 1], ids=["half", "other half"])
CANCELLED = "activity '{}' was cancelled by the orchestrator"


def sample(scenario: Scenario, half: int) -> list[Trouble] | None:
    """A half of: every named point once, and some of all others; None: everything."""
    if os.environ.get("TASKHUB_DEATHS") == "all":
        return [] if half else None
    run = undisturbed(scenario)
    every = [wrong for kind in DEATHS for wrong in troubles(kind, run)]
    named = [wrong for wrong in every if not isinstance(wrong.point, int) and wrong.count == 1]
    others = random.Random(scenario.name).sample(every, min(len(every), max(0, SAMPLE - len(named))))
    return [*named, *others][half::2]


def check(scenario: Scenario, kinds: Sequence[Kind], place: Place, **options: Any) -> None:
    told = [line for _, count in go_through(scenario, kinds, place, **options) for line in count.told]
    assert not told, "\n".join(told)


@pytest.mark.rows("K26", "K27", "K28", "K29")
@each_scenario
@each_half
def test_every_death_is_made_good(scenario: Scenario, half: int) -> None:
    check(scenario, DEATHS, MEMORY, only=sample(scenario, half))


@pytest.mark.rows("K10", "K26", "K27", "K37", "K39")
@each_scenario
@each_half
def test_everything_else_that_goes_wrong_at_a_call_is_made_good(scenario: Scenario, half: int) -> None:
    check(scenario, OTHERS, MEMORY, sample=4, half=half)
    check(scenario, (Kind.AFTER, Kind.LOST, Kind.UNHEARD, Kind.TWICE), WHOLE, sample=2, half=half)


@pytest.mark.rows("K26", "K36", "K57")
@pytest.mark.long
def test_a_child_is_started_again_under_its_id_whatever_overtakes_or_repeats_what() -> None:
    """Its next start is as little taken for the one before as what it is told meanwhile, though its worker died."""
    check(SCENARIOS["again"], (Kind.LOST, Kind.OVERTAKEN, Kind.BACKWARDS, Kind.LEFT), MEMORY)


@pytest.mark.rows("K10", "K26", "K27", "K28", "K29", "K37")
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=str)
def test_so_it_is_on_azurite(scenario: Scenario, azurite_place: Place) -> None:
    kinds = random.Random(scenario.name).sample(tuple(Kind), 4)
    check(scenario, kinds, azurite_place, sample=1)


def test_the_scenarios_end_as_they_should() -> None:
    """The comparison above is worth something only if the undisturbed runs are right."""
    ends: dict[str, Any] = {
        "chain": ("Completed", "3"),
        "fan": ("Completed", "210"),
        "parent": ("Completed", "12"),
        "again": ("Completed", "2"),
        "timers": ("Completed", "23"),
        "events": ("Completed", "[0,1,2,3,4]"),
        "counter": ("Completed", "[0,1,2,3]"),
        "failing": ("Completed", "[2,true]"),
        "raising": ("Failed", "activity 'broken' failed: ValueError: broken 8"),
        "terminate": ("Terminated", "enough"),
        "cancel": ("Terminated", "enough"),
        "hedged": ("Completed", f'["{CANCELLED.format("endless")}","{CANCELLED.format("idle")}",4]'),
        "family": ("Terminated", "enough"),
    }
    assert ends == {name: undisturbed(SCENARIOS[name]).ended.states["one"][:2] for name in ends}


def test_a_watched_instance_is_announced_once_it_has_ended() -> None:
    assert undisturbed(SCENARIOS["chain"]).hints == ("one",)


def test_the_command_counts_what_it_goes_through(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--store", "sqlite", "--scenario", "raising", "--kind", "before", "--kind", "twice"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[-3:] == [str(damage) for damage in Damage]
    run = undisturbed(SCENARIOS["raising"])
    before = len(list(troubles(Kind.BEFORE, run)))
    assert before > run.calls, "each call, and each time of each named point"
    assert [line.split()[:7] for line in lines[:1]] == [["sqlite", "before", "1", str(before), "0", "0", "0"]]
    assert lines[-1].split()[:2] == ["all", "1"]
