"""What ``make crashes`` takes for right and for wrong."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.airflow.crashes.verdict import LIMIT, held, problems
from tests.airflow.crashes.waits import STAGES, Shown, Wait


def shown(status: str, output: object = None, execution: str = "first") -> Shown:
    return Shown(status=status, execution=execution, output=output, why="")


def wait(
    done: str, stage: str, state: str, instances: Sequence[Shown], *, seconds: float = 9.0, way: str = "worker"
) -> Wait:
    made = Wait(done, stage, f"crash_{way}", "r1", execution="first", state=state, seconds=seconds)
    made.instances = instances
    return made


@pytest.mark.parametrize("stage", STAGES)
def test_a_killed_process_must_change_nothing(stage: str) -> None:
    completed = shown("Completed", stage)
    assert problems(wait("scheduler killed", stage, "success", [completed])) == []
    assert problems(wait("scheduler killed", stage, "failed", [completed])) == ["the task is failed"]
    assert problems(wait("scheduler killed", stage, "success", [])) == ["0 instances"]
    assert problems(wait("scheduler killed", stage, "success", [completed, completed])) == ["2 instances"]
    assert problems(wait("scheduler killed", stage, "success", [shown("Terminated")])) == ["the instance is Terminated"]
    assert problems(wait("scheduler killed", stage, "success", [shown("Completed", {"sum": 1})])) == [
        "the output is {'sum': 1}"
    ]
    assert problems(wait("scheduler killed", stage, "success", [shown("Completed", stage, "second")])) == [
        "the instance was started again"
    ]


def test_an_instance_whose_task_was_killed_must_be_terminated_within_a_minute() -> None:
    terminated, running = shown("Terminated"), shown("Running")
    assert held(wait("marked failed", "deferred", "failed", [terminated]))
    assert not held(wait("marked failed", "deferred", "failed", [terminated], seconds=LIMIT + 1))
    assert problems(wait("marked failed", "deferred", "failed", [running])) == ["the instance is Running"]
    assert problems(wait("marked failed", "deferred", "success", [terminated])) == ["the task is success"]


def test_an_instance_that_had_ended_must_stay_as_it_was() -> None:
    completed, terminated = shown("Completed", "ended"), shown("Terminated")
    assert problems(wait("run deleted", "ended", "deleted", [completed])) == []
    assert problems(wait("run deleted", "ended", "deleted", [terminated])) == ["the instance is Terminated"]


@pytest.mark.parametrize("first", ["Completed", "Terminated"])
def test_an_instance_that_just_ends_may_have_either_end(first: str) -> None:
    assert problems(wait("marked success", "firing", "success", [shown(first, "firing")])) == []


def test_a_cleared_task_must_have_a_second_instance_that_completes() -> None:
    first, second = shown("Terminated"), shown("Completed", "deferred", "second")
    assert problems(wait("cleared", "deferred", "success", [first, second])) == []
    assert problems(wait("cleared", "deferred", "success", [first])) == ["1 instances"]
    assert problems(wait("cleared", "deferred", "success", [first, shown("Running")])) == [
        "the second instance is Running"
    ]
