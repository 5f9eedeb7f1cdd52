"""Orchestrator code that blocks the worker's event loop: the recorded attempts stand still before others take them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_taskhub.engine.events import OrchestrationInstance
from airflow_provider_taskhub.hub.model import ActivityRecord, RecordState
from airflow_provider_taskhub.settings import EMBEDDED_LEASE
from airflow_provider_taskhub.virtual_time import START
from airflow_provider_taskhub.workers.activities.heartbeat import RecordedAttempt, RunningAttempts

GIVE_UP = EMBEDDED_LEASE.give_up.total_seconds()


class Clock:
    """A clock that another thread could read while the event loop stands still."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        await asyncio.Event().wait()


def attempt_of(clock: Clock, running: RunningAttempts, *, longest_pause: float) -> tuple[RecordedAttempt, list[bool]]:
    record = ActivityRecord(
        instance=OrchestrationInstance(instance_id="one", execution_id="e"),
        task_id=0,
        attempt=1,
        name="load",
        state=RecordState.RUNNING,
        worker="me",
        action_id="a",
        executor="",
        claimed=START,
    )
    hub: Any = SimpleNamespace(clock=clock)
    made = RecordedAttempt(
        hub,
        EMBEDDED_LEASE,
        held=None,  # type: ignore[arg-type]  # nothing is asked of the store here
        record=record,
        etag="1",
        renewed=clock.now,
        longest_pause=longest_pause,
        running_attempts=running,
    )
    paused = list[bool]()
    made._pause.follow(paused.append)
    running.add(made)
    return made, paused


@pytest.mark.rows("D99")
def test_an_attempt_stands_still_when_its_record_is_not_renewed_in_time() -> None:
    clock, running = Clock(), RunningAttempts()
    _, paused = attempt_of(clock, running, longest_pause=60.0)
    _, cannot_pause = attempt_of(clock, running, longest_pause=0.0)
    clock.now += GIVE_UP - 0.01
    running.look()
    assert paused == []
    clock.now += 0.01
    running.look()
    running.look()
    assert (paused, cannot_pause) == ([True], [])


async def test_it_goes_on_when_its_record_was_renewed() -> None:
    """The loop runs again. The renewal is answered before the guard looks."""
    clock, running = Clock(), RunningAttempts()
    attempt, paused = attempt_of(clock, running, longest_pause=60.0)
    clock.now += GIVE_UP
    running.look()
    attempt._renewed = clock.now
    guarding = asyncio.ensure_future(attempt._guard())
    await asyncio.sleep(0)
    assert paused == [True, False]
    guarding.cancel()


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_an_attempt_that_is_being_ended_does_not_stand_still(when: str) -> None:
    """It would never end."""
    clock, running = Clock(), RunningAttempts()
    attempt, paused = attempt_of(clock, running, longest_pause=60.0)

    def pause(on: bool) -> None:
        paused.append(on)
        attempt._ended = True

    attempt._pause.follow(pause)
    attempt._ended = when == "before"
    clock.now += GIVE_UP
    running.look()
    assert paused == ([] if when == "before" else [True, False])
