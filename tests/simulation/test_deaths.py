"""A worker dies before or after any storage call; another finishes, and nobody can tell (K26, K27, K29).

A failure prints the line that reproduces it. ``TASKHUB_DEATHS=all`` dies at every point instead of a sample.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from airflow_provider_taskhub.hub.contract import RecordState
from tests.simulation.scenarios import SCENARIOS, Scenario, app_of
from tests.simulation.world import AFTER, BEFORE, Death, Effects, Ended, World, simulate

SAMPLE = 24
"""Deaths of each scenario in CI."""


@dataclass(slots=True)
class Run:
    """One life of a scenario. :param attempts: attempts of recorded activities: (instance, task) → states."""

    ended: Ended
    calls: int
    points: dict[str, int]
    effects: Effects
    hints: tuple[str, ...]
    attempts: dict[tuple[str, int], list[RecordState]] = field(default_factory=dict)


def live(scenario: Scenario, death: Death | None = None) -> Run:
    """The scenario on one worker; when it dies, a second one comes."""
    effects = Effects()

    async def play() -> Run:
        async with World(app_of(effects)) as world:
            first = await world.join("first", death=death)

            async def follow() -> None:
                await first.died.wait()
                await world.join("second")

            following = asyncio.ensure_future(follow())
            await scenario.drive(world)
            ended = await world.ended()
            following.cancel()
            run = Run(ended, first.calls, dict(first.points), effects, await world.client.completions())
            for instance_id in ended.states:
                for record in await world.client.activities(instance_id):
                    run.attempts.setdefault((instance_id, record.task_id), []).append(record.state)
            return run

    found = simulate(play)
    assert isinstance(found, Run)
    return found


def deaths(run: Run) -> list[Death]:
    """Everywhere that a worker can die: around each storage call, and at each crash point each time."""
    found = [Death(point=number, side=side) for number in range(1, run.calls + 1) for side in (BEFORE, AFTER)]
    for name, times in run.points.items():
        side, _, point = name.partition("-")
        found += [Death(point=point, side=side, count=count) for count in range(1, times + 1)]
    return found


def sample(scenario: Scenario, run: Run) -> list[Death]:
    every = deaths(run)
    if os.environ.get("TASKHUB_DEATHS") == "all":
        return every
    named = [death for death in every if not isinstance(death.point, int) and death.count == 1]
    return named + random.Random(scenario.name).sample(every, min(len(every), max(0, SAMPLE - len(named))))


def compare(scenario: Scenario, undisturbed: Run, run: Run) -> None:
    assert run.ended.states == undisturbed.ended.states
    assert run.ended.histories == undisturbed.ended.histories
    assert run.hints == undisturbed.hints
    assert set(run.attempts) == set(undisturbed.attempts)
    for place, states in run.attempts.items():
        assert states[-1] is RecordState.COMPLETED, place
        assert all(state is RecordState.LOST for state in states[:-1]), place
        assert len(states) <= 2, f"{place}: one death cost more than one attempt"
    kept = sum(count for (name, _), count in run.effects.ran.items() if name == "kept")
    assert kept <= sum(map(len, run.attempts.values())), "each run of a recorded activity has a record"


def reproduced(scenario: Scenario, death: Death) -> str:
    return f"reproduce: TASKHUB_DEATH={death} pytest tests/simulation/test_deaths.py -k 'every and {scenario}'"


def wanted() -> Iterator[Death]:
    line = os.environ.get("TASKHUB_DEATH")
    if line:
        side, point, count = line.split("-")
        yield Death(point=int(point) if point.isdigit() else point, side=side, count=int(count))


@pytest.mark.rows("K26", "K27", "K28", "K29")
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=str)
def test_every_death_is_made_good(scenario: Scenario) -> None:
    undisturbed = live(scenario)
    for death in list(wanted()) or sample(scenario, undisturbed):
        try:
            compare(scenario, undisturbed, live(scenario, death))
        except Exception as error:
            raise AssertionError(reproduced(scenario, death)) from error


def test_the_scenarios_end_as_they_should() -> None:
    """The comparison above is worth something only if the undisturbed runs are right."""
    ends: dict[str, Any] = {
        name: live(SCENARIOS[name]).ended.states["one"][:2]
        for name in ("chain", "fan", "parent", "timers", "events", "counter", "failing", "raising", "terminate")
    }
    assert ends == {
        "chain": ("Completed", "3"),
        "fan": ("Completed", "210"),
        "parent": ("Completed", "12"),
        "timers": ("Completed", "23"),
        "events": ("Completed", "[0,1,2,3,4]"),
        "counter": ("Completed", "[0,1,2,3]"),
        "failing": ("Completed", "[2,true]"),
        "raising": ("Failed", "TaskFailedError: broken 8"),
        "terminate": ("Terminated", "enough"),
    }


def test_a_watched_instance_is_announced_once_it_has_ended() -> None:
    assert live(SCENARIOS["chain"]).hints == ("one",)
