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
from airflow_provider_taskhub.errors import InputError, StorageError
from airflow_provider_taskhub.triggers import awaited_moment
from airflow_provider_taskhub.triggers.awaited_moment import AwaitedMoment
from airflow_provider_taskhub.triggers.taskhub import TaskHubTrigger
from airflow_provider_taskhub.triggers.watcher import IN_TURN
from tests.airflow.fake import NOW, FakeHub, FakeInstance
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
        return leave.wait()

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


CONDITIONS: list[dict[str, Any]] = [
    {"statuses": ["Suspended"]},
    {"custom_status": "custom_status.rows > 1"},
    {"awaited_event": "go"},
    {},
]
"""One for each thing that a sensor waits for. Without a condition it waits for the end."""


def reach(hub: FakeHub, name: str, condition: dict[str, Any]) -> None:
    """Bring an instance to the moment that a sensor waits for."""
    match list(condition):
        case ["statuses"]:
            hub.put(name, Status.SUSPENDED)
        case ["custom_status"]:
            hub.put(name, Status.RUNNING, custom_status='{"rows": 2}')
        case ["awaited_event"]:
            hub.change(name, awaiting("go"))
        case _:
            hub.put(name, Status.FAILED)  # of another client, so there is no completion hint


def sensors(names: list[str], condition: dict[str, Any]) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(fired(waiting(**SENSOR | {"instance_id": name} | condition))) for name in names]


@pytest.mark.parametrize("condition", CONDITIONS, ids=["status", "custom status", "event", "foreign end"])
@pytest.mark.parametrize("there", [True, False], ids=["running", "not started"])
def test_a_thousand_sensors_see_their_moments_within_two_intervals(
    hub: FakeHub, condition: dict[str, Any], there: bool
) -> None:
    names = [f"i{number}" for number in range(1_000)]

    async def scenario() -> None:
        if there:
            for name in names:
                hub.put(name, Status.RUNNING)
        waits = sensors(names, condition)
        await asyncio.sleep(60.5)
        if not there:
            for name in names:
                hub.put(name, Status.RUNNING)
        for name in names:
            reach(hub, name, condition)
        async with asyncio.timeout(2):  # the interval is a second
            assert {event["reason"] for event in await asyncio.gather(*waits)} == {"reached"}

    play(scenario, timedelta(hours=1))


@pytest.mark.parametrize("waits", [1, IN_TURN, 50, 1000])
def test_the_requests_of_sensors_do_not_grow_with_their_number(hub: FakeHub, waits: int) -> None:
    """One request per interval more than the waits of operators need."""

    async def scenario() -> None:
        names = [f"i{number}" for number in range(waits)]
        for name in names:
            hub.put(name, Status.RUNNING)
        running = sensors(names, {"awaited_event": "go"})
        await asyncio.sleep(60.5)
        assert hub.requests["await_changes"] == 1, "all new waits of an interval are published together"
        hub.requests.clear()
        await asyncio.sleep(100)
        turn = 100 * min(waits, IN_TURN)
        assert dict(hub.requests) == {
            "completions": 100,
            "changes": 100,
            "get": turn,
            "activities": turn,
            "members": pytest.approx(20, abs=4),
            "waiting_of": pytest.approx(120, abs=4),
        }
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    play(scenario, timedelta(hours=1))


def test_a_change_before_the_workers_know_of_the_sensor_is_seen_when_they_know(hub: FakeHub) -> None:
    """A worker learns at its next scan for which instances sensors wait. It writes no hints before."""
    names = [f"i{number}" for number in range(50 * IN_TURN)]

    async def scenario() -> None:
        hub.silent = True
        waits = sensors(names, {"custom_status": "custom_status.rows > 1"})
        await asyncio.sleep(0.9)
        reach(hub, names[-1], {"custom_status": ""})
        async with asyncio.timeout(2):
            assert (await waits.pop())["met"]
        for one in waits:
            one.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    play(scenario)


def test_a_change_without_a_hint_is_seen_by_reading_in_turn(hub: FakeHub) -> None:
    """.NET workers leave no hints."""
    names = [f"i{number}" for number in range(10 * IN_TURN)]

    async def scenario() -> None:
        hub.silent = True
        for name in names:
            hub.put(name, Status.RUNNING)
        waits = sensors(names, {"awaited_event": "go"})
        await asyncio.sleep(30)
        reach(hub, names[-1], {"awaited_event": "go"})
        async with asyncio.timeout(12):
            assert (await waits.pop())["met"]
        for one in waits:
            one.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    play(scenario)


def test_sensors_are_published_again_after_the_hub_was_away(hub: FakeHub) -> None:
    """The hub forgets a triggerer that does not answer. What has changed meanwhile is read once more."""
    names = [f"i{number}" for number in range(50 * IN_TURN)]

    async def scenario() -> None:
        waits = sensors(names, {"statuses": ["Running"]})
        await asyncio.sleep(30)
        hub.down, hub.awaited = StorageError("away"), frozenset()
        await asyncio.sleep(5)
        reach_status(names[7])
        hub.down = None
        async with asyncio.timeout(6):
            assert (await waits[7])["met"]
        reach_status(names[8])
        async with asyncio.timeout(2):
            assert (await waits[8])["met"]
        for one in waits:
            one.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    def reach_status(name: str) -> None:
        hub.put(name, Status.RUNNING)

    play(scenario)


def test_a_hint_for_a_wait_that_has_ended_is_deleted(hub: FakeHub) -> None:
    async def scenario() -> None:
        hub.put("i", Status.RUNNING)
        hub.put("j", Status.RUNNING)
        gone, stays = sensors(["i", "j"], {"awaited_event": "go"})
        await asyncio.sleep(5)
        gone.cancel()
        await asyncio.sleep(1)
        hub.change("i")
        await asyncio.sleep(2)
        assert hub.changes == {}
        stays.cancel()
        await asyncio.gather(gone, stays, return_exceptions=True)

    play(scenario)


def test_a_hint_that_is_written_while_its_instance_is_read_stays(hub: FakeHub) -> None:
    """Else the change after the reading would be seen late."""
    activities = FakeInstance.activities

    async def scenario(monkeypatch: pytest.MonkeyPatch) -> None:
        names = [f"i{number}" for number in range(50 * IN_TURN)]
        for name in names:
            hub.put(name, Status.RUNNING)
        waits = sensors(names, {"custom_status": "custom_status.rows > 1"})
        await asyncio.sleep(30)

        async def changes_then(self: FakeInstance) -> Any:
            if self.id == names[-1] and hub.instances[self.id].custom_status == "{}":
                reach(hub, self.id, {"custom_status": ""})  # the row was read just before
            return await activities(self)

        monkeypatch.setattr(FakeInstance, "shown_activities", changes_then)
        hub.put(names[-1], Status.RUNNING, custom_status="{}")
        async with asyncio.timeout(3):
            assert (await waits.pop())["met"]
        for one in waits:
            one.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    with pytest.MonkeyPatch.context() as monkeypatch:
        play(lambda: scenario(monkeypatch))
