"""What a sensor's trigger waits for besides the end, when it sees it, what it costs, and that the task ends there."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk._shared.module_loading import import_string
from airflow.triggers.base import TaskSuccessEvent

from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.engine.pending_waits import LONGEST_NAME, AwaitedEvent, Awaits
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.triggers import awaited_moment
from airflow_provider_taskhub.triggers.awaited_moment import AwaitedMoment
from airflow_provider_taskhub.triggers.taskhub import TaskHubTrigger
from tests.airflow.fake import NOW, FakeHub
from tests.airflow.test_trigger import FakeXComs, after, ending, event_of, fired, play, waiting, without_connection

__all__ = ["without_connection"]  # a fixture
SENSOR: dict[str, Any] = {"owner": None, "orchestrator": "", "may_be_missing": True}


def awaiting(name: str) -> Awaits:
    return Awaits(events=(AwaitedEvent(name=name[:LONGEST_NAME], since=NOW),))


def test_conditions_are_serialised() -> None:
    path, arguments = TaskHubTrigger(instance_id="i", custom_status="custom_status", awaited_event="go").serialize()
    assert import_string(path)(**arguments).serialize() == (path, arguments)
    assert (arguments["custom_status"], arguments["awaited_event"]) == ("custom_status", "go")


def test_a_custom_status_ends_the_wait_when_it_is_as_wanted(hub: FakeHub) -> None:
    async def scenario() -> None:
        hub.put("i", Status.RUNNING)
        after(20, lambda: hub.put("i", Status.RUNNING, custom_status='{"rows": 900}'))
        after(40, lambda: hub.put("i", Status.RUNNING, custom_status='{"rows": 1100}'))
        event = await fired(waiting(**SENSOR, custom_status="custom_status.rows > 1000"))
        assert (event["reason"], event["status"], event["met"]) == ("reached", "Running", True)
        assert 40 <= asyncio.get_running_loop().time() < 43

    play(scenario)


@pytest.mark.parametrize("name", ["approval", "a" * (LONGEST_NAME + 50)])
def test_an_awaited_event_ends_the_wait(hub: FakeHub, name: str) -> None:
    async def scenario() -> None:
        hub.put("i", Status.RUNNING)
        hub.awaits["i"] = awaiting("another")
        after(40, lambda: hub.awaits.update(i=awaiting(name)))
        event = await fired(waiting(**SENSOR, awaited_event=name))
        assert (event["status"], event["met"]) == ("Running", True)
        assert 40 <= asyncio.get_running_loop().time() < 43

    play(scenario)


def test_an_end_without_the_condition_is_not_what_was_wanted(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeXComs(monkeypatch, owner=None)  # type: ignore[arg-type]

    async def scenario() -> None:
        hub.put("i", Status.RUNNING)
        after(40, lambda: hub.end("i", 7))
        event = (await event_of(ending(monkeypatch, **SENSOR, awaited_event="approval"))).payload
        assert (event["reason"], event["status"], event["met"]) == ("reached", "Completed", False)

    play(scenario)


def test_a_condition_that_raises_ends_the_wait_with_its_error(hub: FakeHub) -> None:
    async def scenario() -> None:
        hub.put("i", Status.RUNNING, custom_status='{"rows": "many"}')
        event = await fired(waiting(**SENSOR, custom_status="custom_status.rows > 1000"))
        assert event["reason"] == "unusable"
        assert "'custom_status.rows > 1000', which raised TypeError" in event["message"]
        assert '{"rows": "many"}' in event["message"]

    play(scenario)


def test_a_condition_that_blocks_ends_its_wait_and_takes_no_thread_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """With real time, because virtual time does not pass while a thread works."""
    monkeypatch.setattr(awaited_moment, "LONGEST", 0.01)
    leave, threads = threading.Event(), []

    def blocks(custom_status: Any) -> bool:
        threads.append(threading.current_thread())
        return leave.wait(5)

    monkeypatch.setattr(awaited_moment, "compiled", lambda condition: blocks)
    moment = AwaitedMoment((), "checks:blocks", None)

    async def scenario() -> None:
        state = FakeHub().put("i", Status.RUNNING, custom_status="1")
        with pytest.raises(InputError, match="'checks:blocks', which raised TimeoutError: it has not ret"):
            await moment.shown_by(state, ())

    try:
        asyncio.run(scenario())
        assert [thread.daemon for thread in threads] == [True], "no thread of the loop, and it ends with the process"
    finally:
        leave.set()


def test_a_function_that_cannot_be_imported_here_ends_the_wait_with_its_name(hub: FakeHub) -> None:
    async def scenario() -> None:
        event = await fired(waiting(**SENSOR, custom_status="nowhere.at.all:half"))
        assert event["reason"] == "unusable"
        assert "'nowhere.at.all:half', which cannot be imported here" in event["message"]

    play(scenario)


@pytest.mark.parametrize(
    ("condition", "pushed"), [({"awaited_event": "go"}, {}), ({}, {"return_value": 7})], ids=["moment", "end"]
)
def test_a_sensor_ends_in_the_triggerer(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, condition: dict[str, str], pushed: dict[str, Any]
) -> None:
    airflow = FakeXComs(monkeypatch, owner=None)  # type: ignore[arg-type]

    async def scenario() -> None:
        hub.put("i", Status.RUNNING, tags={"taskhub.owner": "of an operator"})
        after(3, lambda: hub.awaits.update(i=awaiting("go")) if condition else hub.end("i", 7))
        assert type(await event_of(ending(monkeypatch, **SENSOR, **condition))) is TaskSuccessEvent
        assert asyncio.get_running_loop().time() < 8, "without the pause before a worker resumes the task"
        assert airflow.pushed == pushed

    play(scenario)


def test_a_wait_for_another_instance_is_not_ended(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeXComs(monkeypatch, instance_id="another", owner=None)  # type: ignore[arg-type]

    async def scenario() -> None:
        hub.end("i", 7)
        assert type(await event_of(ending(monkeypatch, **SENSOR))) is not TaskSuccessEvent

    play(scenario)


def test_waits_for_moments_cost_what_waits_for_ends_cost(hub: FakeHub) -> None:
    async def cost(waits: int, **condition: str) -> int:
        names = [f"i{number}" for number in range(waits)]
        for name in names:
            hub.put(name, Status.RUNNING)
        triggers = [asyncio.create_task(fired(waiting(**SENSOR | {"instance_id": name} | condition))) for name in names]
        await asyncio.sleep(60)
        hub.requests.clear()
        await asyncio.sleep(60)
        total = sum(hub.requests.values())
        for one in triggers:
            one.cancel()
        await asyncio.gather(*triggers, return_exceptions=True)
        return total

    async def scenario() -> None:
        ends = await cost(50)
        assert await cost(50, awaited_event="go") == pytest.approx(ends, abs=5)
        assert await cost(200, custom_status="custom_status.rows > 1") == pytest.approx(ends, abs=5)

    play(scenario, timedelta(hours=1))
