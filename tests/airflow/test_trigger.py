"""The trigger under a jumping clock: what it asks the hub, what it survives, when it fires, when it cancels."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.models.trigger import Trigger
from airflow.sdk._shared.module_loading import import_string
from airflow.triggers.base import TaskSuccessEvent, TriggerEvent

from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.engine.pending_waits import AwaitedEvent, Awaits
from airflow_provider_taskhub.errors import AccessDenied, HubError, InputError, Throttled, Unavailable
from airflow_provider_taskhub.hooks.outputs import MAX_OUTPUT_BYTES
from airflow_provider_taskhub.hooks.taskhub import TaskHubHook, settings_without_connection
from airflow_provider_taskhub.hub.model import InstanceState, Member, RecordState
from airflow_provider_taskhub.hub.waiting.reasons import Reason, Why, unreadable_history
from airflow_provider_taskhub.hub.watches import Watch
from airflow_provider_taskhub.settings import Settings
from airflow_provider_taskhub.triggers import shared_client
from airflow_provider_taskhub.triggers.settling import SETTLE
from airflow_provider_taskhub.triggers.task_end import LARGEST_OUTPUT
from airflow_provider_taskhub.triggers.task_log import ProgressLog
from airflow_provider_taskhub.triggers.taskhub import TaskHubTrigger
from airflow_provider_taskhub.triggers.watcher import IN_TURN, SOON, WatchedInstance, Watcher
from airflow_provider_taskhub.virtual_time import VirtualClock, run
from tests.airflow.fake import NOW, FakeHub, member, record

OWNER = {"taskhub.owner": "me"}
REFERENCE = {
    "taskhub_conn_id": "taskhub_default",
    "instance_id": "i",
    "execution_id": "e",
    "size": MAX_OUTPUT_BYTES + 4,  # the JSON has brackets and quotes
}


@pytest.fixture(autouse=True)
def without_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection, so the default settings; clocks of the loop that runs."""

    async def without(self: Any) -> Any:
        return settings_without_connection(self.taskhub_conn_id)

    monkeypatch.setattr(TaskHubHook, "asettings", without)


def waiting(**arguments: Any) -> TaskHubTrigger:
    trigger = TaskHubTrigger(**({"instance_id": "i", "owner": "me", "orchestrator": "flights_delays"} | arguments))
    trigger.clock = VirtualClock(asyncio.get_running_loop())
    return trigger


async def fired(trigger: TaskHubTrigger) -> dict[str, Any]:
    events = [event.payload async for event in trigger.run()]
    assert len(events) == 1
    return events[0]


def after(seconds: float, do: Callable[[], Any]) -> None:
    asyncio.get_running_loop().call_later(seconds, do)


def play(scenario: Callable[[], Coroutine[Any, Any, Any]], limit: timedelta = timedelta(days=2)) -> Any:
    return run(scenario(), limit=limit)


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Lines of the task's log."""
    return re.findall(r"^\S+ \[\w+ *\] (.*?) *\[airflow_provider", capsys.readouterr().out, re.M)


def test_serialises_to_plain_values_and_back() -> None:
    trigger = TaskHubTrigger(instance_id="i", owner="me", statuses=["Running"], deadline="2026-01-01T00:00:00Z")
    path, arguments = trigger.serialize()
    assert import_string(path)(**arguments).serialize() == (path, arguments)
    assert Trigger(path, arguments).kwargs == arguments


def test_arguments_of_another_version_are_swallowed() -> None:
    assert TaskHubTrigger(instance_id="i", some_old_argument=1).instance_id == "i"


def test_fires_at_once_for_what_has_ended_before(hub: FakeHub) -> None:
    async def scenario() -> None:
        hub.put("i", Status.COMPLETED, tags=OWNER)
        assert await fired(waiting()) == {
            "reason": "reached",
            "instance_id": "i",
            "owner": "me",
            "status": "Completed",
            "message": "",
            "met": False,
        }
        assert asyncio.get_running_loop().time() < 1

    play(scenario)


@pytest.mark.parametrize("reason", ["a worker is needed", "the instance failed"])
@pytest.mark.parametrize(("end", "fires"), [(0.0, SETTLE), (3.0, SETTLE), (60.0, 60.0)])
def test_it_hands_a_task_back_once_the_process_that_deferred_it_has_surely_ended(
    hub: FakeHub,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    end: float,
    fires: float,
    reason: str,
) -> None:
    """Airflow fails a task that goes on before its scheduler has heard of that process's end (apache/airflow#67287)."""
    assert SETTLE >= 30, "the race was seen 27 s behind a deferral"
    failed = reason == "the instance failed"
    airflow = FakeXComs(monkeypatch)

    async def scenario() -> None:
        hub.put("i", Status.RUNNING, tags=OWNER)
        after(end, lambda: hub.fail("i", "no") if failed else hub.end("i", 1))
        trigger = ending(monkeypatch, end_from_trigger=failed)
        assert (await fired(trigger))["reason"] == "reached"
        assert fires <= asyncio.get_running_loop().time() < fires + 2
        assert airflow.pushed == {}

    play(scenario)
    told = [line for line in said(capsys) if "continues in a worker" in line]
    if end > SETTLE:
        assert told == [], "at once"
    else:
        (line,) = told
        ended, seconds = re.match(
            r"the wait for (\w+) has ended; the task continues in a worker in (\d+) s, ", line
        ).groups()
        assert (ended, float(seconds)) == ("i", pytest.approx(SETTLE - end, abs=2))
        assert line.endswith(", because Airflow may fail a task that is resumed sooner")


@pytest.mark.parametrize(
    ("executor", "seconds"),
    [
        ("CeleryExecutor", 3.0),
        ("airflow.providers.celery.executors.celery_executor.CeleryExecutor", 3.0),
        ("LocalExecutor", SETTLE),
        ("KubernetesExecutor", SETTLE),
        ("CeleryExecutor,KubernetesExecutor", SETTLE),
        ("CeleryExecutor;team=LocalExecutor", SETTLE),
    ],
)
def test_celery_alone_takes_a_task_back_at_once(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, executor: str, seconds: float
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", executor)

    async def scenario() -> None:
        hub.put("i", Status.RUNNING, tags=OWNER)
        after(3.0, lambda: hub.end("i", 1))
        assert (await fired(ending(monkeypatch, end_from_trigger=False)))["reason"] == "reached"
        assert seconds <= asyncio.get_running_loop().time() < seconds + 2

    play(scenario)


class FakeXComs:
    """What the current try of the task waits for, and what was pushed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, instance_id: str = "i", owner: str = "me") -> None:
        from airflow.sdk.execution_time.xcom import XCom

        self.values = {"instance_id": instance_id, "taskhub_owner": owner}
        self.pushed: dict[str, Any] = {}
        self.refuses: Exception | None = None
        monkeypatch.setattr(XCom, "aget_one", self.get)
        monkeypatch.setattr(XCom, "aset", self.set)

    async def get(self, *, key: str, **place: Any) -> Any:
        assert place == {"dag_id": "d", "task_id": "t", "run_id": "r", "map_index": -1}
        return self.values.get(key)

    async def set(self, *, key: str, value: Any, **place: Any) -> None:
        assert place == {"dag_id": "d", "task_id": "t", "run_id": "r", "map_index": -1}
        if self.refuses is not None:
            raise self.refuses
        self.pushed[key] = value


def ending(monkeypatch: pytest.MonkeyPatch, state: str | None = "deferred", **arguments: Any) -> TaskHubTrigger:
    """A trigger as a triggerer runs it; Airflow says that its task is in this state."""
    trigger = waiting(**({"end_from_trigger": True} | arguments))
    trigger.trigger_id = 1
    trigger._task_instance = killed(monkeypatch, state)
    return trigger


async def event_of(trigger: TaskHubTrigger) -> Any:
    (event,) = [event async for event in trigger.run()]
    return event


@pytest.mark.parametrize(
    ("output", "push", "pushed"),
    [
        ({"sum": [1, None]}, True, {"return_value": {"sum": [1, None]}}),
        (0, True, {"return_value": 0}),
        (None, True, {}),
        ({"sum": 1}, False, {}),
        ("x" * MAX_OUTPUT_BYTES, True, {"return_value": {"taskhub_output": REFERENCE}}),
        ("x" * MAX_OUTPUT_BYTES, False, {}),
    ],
)
def test_where_nothing_needs_a_worker_it_ends_the_task_at_once_with_its_xcom(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, output: Any, push: bool, pushed: dict[str, Any]
) -> None:
    airflow = FakeXComs(monkeypatch)

    async def scenario() -> None:
        hub.put("i", Status.RUNNING, tags=OWNER)
        after(3, lambda: hub.end("i", [output] if isinstance(output, str) else output))
        assert type(await event_of(ending(monkeypatch, push_output=push))) is TaskSuccessEvent
        assert asyncio.get_running_loop().time() < 5
        assert airflow.pushed == pushed

    play(scenario)


@pytest.mark.parametrize(
    "odd",
    ["the task was cleared", "another start is waited for", "another instance", "XCom is refused", "output too large"],
)
def test_a_task_that_may_not_end_here_is_handed_back(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, odd: str) -> None:
    """The number of a deleted trigger may belong to another task's trigger by now, whose task would end."""
    waited = {"another start is waited for": {"owner": "x"}, "another instance": {"instance_id": "j"}}
    airflow = FakeXComs(monkeypatch, **waited.get(odd, {}))
    airflow.refuses = ValueError("too large") if odd == "XCom is refused" else None
    monkeypatch.setenv("AIRFLOW__TASKHUB__MAX_OUTPUT_BYTES", str(2 * LARGEST_OUTPUT))

    async def scenario() -> None:
        hub.put("i", Status.RUNNING, tags=OWNER)
        after(3, lambda: hub.end("i", ["x" * (LARGEST_OUTPUT if odd == "output too large" else 1)]))
        trigger = ending(monkeypatch, None if odd == "the task was cleared" else "deferred")
        event = await event_of(trigger)
        assert (type(event), event.payload["reason"], airflow.pushed) == (TriggerEvent, "reached", {})
        assert asyncio.get_running_loop().time() >= SETTLE

    play(scenario)


@pytest.mark.parametrize("fails_now", [True, False])
def test_an_end_that_is_another_one_meanwhile_is_left_to_a_worker(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, fails_now: bool
) -> None:
    """Another client may rewind or start the instance again between the two readings of it."""
    airflow, ended = FakeXComs(monkeypatch), Watcher.ended

    async def changed(self: Watcher, instance_id: str) -> Any:
        if fails_now:
            hub.fail("i", "no")
        else:
            hub.end("i", 1)
        return await ended(self, instance_id)

    monkeypatch.setattr(Watcher, "ended", changed)

    async def scenario() -> None:
        hub.put("i", Status.RUNNING, tags=OWNER)
        after(3, lambda: hub.end("i", 1) if fails_now else hub.fail("i", "no"))
        event = await event_of(ending(monkeypatch, fail_from_trigger=True))
        assert (type(event), airflow.pushed) == (TriggerEvent, {})

    play(scenario)


def test_a_hint_ends_the_wait_and_is_removed(hub: FakeHub) -> None:
    async def scenario() -> None:
        hub.put("i", Status.RUNNING)
        hub.hints.add("somebody else's")
        after(60, lambda: hub.end("i", 1))
        assert (await fired(waiting()))["status"] == "Completed"
        assert 60 <= asyncio.get_running_loop().time() < 62
        await asyncio.sleep(1)
        assert hub.hints == {"somebody else's"}

    play(scenario)


def test_an_instance_that_cannot_be_read_is_the_trouble_of_its_own_wait(
    hub: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was read again and again in front of all new waits, and each time the client was opened anew."""

    async def scenario() -> None:
        hub.damaged["bad"] = InputError("row 'x' is damaged")
        for instance_id in ("bad", "i"):
            hub.put(instance_id, Status.RUNNING)
        bad = asyncio.ensure_future(fired(waiting(instance_id="bad")))
        await asyncio.sleep(5)
        other = asyncio.ensure_future(fired(waiting()))
        await asyncio.sleep(5)
        hub.end("i", 1)
        assert (await other)["status"] == "Completed"
        assert asyncio.get_running_loop().time() < 15
        assert (hub.opened, bad.done()) == (1, False)
        del hub.damaged["bad"]
        hub.end("bad", 1)
        assert (await bad)["status"] == "Completed"

    play(scenario)
    troubles = [line for line in said(capsys) if "read" in line]
    assert troubles == [
        "instance bad cannot be read, trying again: InputError: row 'x' is damaged",
        "instance bad can be read again",
    ]


def test_an_end_without_a_hint_is_seen_by_reading_in_turn(hub: FakeHub) -> None:
    """.NET workers leave no hints."""

    async def scenario() -> None:
        ids = [f"i{number}" for number in range(IN_TURN * 10)]
        for instance_id in ids:
            hub.put(instance_id, Status.RUNNING)
        triggers = [asyncio.ensure_future(fired(waiting(instance_id=i))) for i in ids]
        await asyncio.sleep(30)
        hub.put(ids[-1], Status.FAILED)
        assert (await triggers[-1])["status"] == "Failed"
        assert asyncio.get_running_loop().time() <= 30 + len(ids) / IN_TURN + 2
        for trigger in triggers:
            trigger.cancel()

    play(scenario)


def test_a_short_instance_is_seen_soon_after_its_wait_has_begun(hub: FakeHub) -> None:
    """Airflow's triggerer passes events on once a second. An end that is seen a second late costs two."""

    async def scenario() -> None:
        hub.put("i", Status.RUNNING)
        after(SOON - 0.1, lambda: hub.end("i", 1))
        assert (await fired(waiting()))["status"] == "Completed"
        assert asyncio.get_running_loop().time() == pytest.approx(SOON, abs=0.05)
        assert hub.requests["completions"] == 2

    play(scenario)


@pytest.mark.parametrize("waits", [1, IN_TURN, 50, 1000])
def test_requests_per_interval_do_not_grow_with_the_number_of_waits(hub: FakeHub, waits: int) -> None:
    async def scenario() -> None:
        for number in range(waits):
            hub.put(f"i{number}", Status.RUNNING)
        triggers = [asyncio.ensure_future(fired(waiting(instance_id=f"i{n}"))) for n in range(waits)]
        await asyncio.sleep(60.5)  # every wait has read its row by now
        assert hub.requests["get"] >= waits
        hub.requests.clear()
        await asyncio.sleep(100)
        turn = 100 * min(waits, IN_TURN)
        counted = dict(hub.requests)
        assert counted == {
            "completions": 100,
            "get": turn,
            "activities": turn,
            "log_hints": 20,
            "members": pytest.approx(20, abs=4),
            "waiting_of": pytest.approx(120, abs=4),
        }
        assert hub.opened == 1, "one client for all"
        for trigger in triggers:
            trigger.cancel()

    play(scenario)


def test_all_waits_of_a_fan_out_end_together(hub: FakeHub) -> None:
    async def scenario() -> None:
        ids = [f"i{number}" for number in range(300)]
        for instance_id in ids:
            hub.put(instance_id, Status.RUNNING)
        after(100, lambda: [hub.end(instance_id, 1) for instance_id in ids])
        events = await asyncio.gather(*(fired(waiting(instance_id=i)) for i in ids))
        assert {event["status"] for event in events} == {"Completed"}
        assert asyncio.get_running_loop().time() < 106
        await asyncio.sleep(15)
        assert hub.open_now == 0, "nobody waits: the client is closed"
        assert hub.attending == 0, "and it is not listed as a watcher any more"
        assert hub.hints == set()

    play(scenario)


@pytest.mark.parametrize("error", [Unavailable("gone"), Throttled("slow", retry_after=7), OSError("x"), KeyError("y")])
def test_errors_of_the_hub_are_survived(hub: FakeHub, error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    """An exception in a trigger fails its task."""

    async def scenario() -> None:
        hub.put("i", Status.RUNNING)

        def up() -> None:
            hub.down = None

        after(10, lambda: setattr(hub, "down", error))
        after(3600, up)
        after(3700, lambda: hub.end("i", 1))
        asked = hub.requests
        assert (await fired(waiting()))["status"] == "Completed"
        assert asked.total() < 10 * 4 + 3600 / 30 * 2 + 200 * 4, "backs off while the hub is down"

    play(scenario)
    lines = said(capsys)
    assert sum("trying again" in line for line in lines) == 1, "said once, not per poll"
    assert "the hub can be read again" in lines


def test_a_hub_that_cannot_be_used_ends_the_wait_in_time(hub: FakeHub) -> None:
    async def scenario() -> None:
        hub.put("i", Status.RUNNING)
        after(10, lambda: setattr(hub, "down", HubError("hub 'Flights' is of format 2, newer than this package")))
        event = await fired(waiting(no_worker_timeout=600))
        assert event["reason"] == "no_worker"
        assert "newer than this package" in event["message"]
        assert 600 < asyncio.get_running_loop().time() < 640

    play(scenario)


def test_an_instance_that_is_gone_is_reported(hub: FakeHub) -> None:
    async def scenario() -> None:
        assert (await fired(waiting()))["reason"] == "missing"

    play(scenario)


def test_a_sensor_waits_for_an_instance_that_is_not_there_yet(hub: FakeHub) -> None:
    async def scenario() -> None:
        after(30, lambda: hub.put("i", Status.RUNNING))
        event = await fired(waiting(owner=None, orchestrator="", statuses=["Running"], may_be_missing=True))
        assert (event["reason"], event["status"]) == ("reached", "Running")

    play(scenario)


def test_a_sensors_log_says_that_there_is_no_such_instance_and_when_it_appears(
    hub: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        after(30, lambda: hub.put("i", Status.RUNNING))
        after(60, hub.instances.clear)
        after(90, lambda: hub.end("i", 1))
        await fired(waiting(owner=None, orchestrator="", may_be_missing=True))

    play(scenario)
    assert said(capsys)[1:] == [
        "no such instance yet: i is not in the hub; waiting until it appears",
        "instance i is there now",
        "flights_delays is Running",
        "instance i is not in the hub any more; waiting until it appears again",
        "instance i is there now",
        "flights_delays is Completed",
    ]


def test_the_log_says_who_serves_and_each_change_once(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> None:
        hub.put("i", Status.PENDING)
        after(5, lambda: hub.put("i", Status.RUNNING, custom_status='{"months":8}'))
        after(6, lambda: hub.records.update(i=(record(RecordState.RUNNING, task_id=3),)))
        lost = record(RecordState.LOST, task_id=3)
        after(20, lambda: hub.records.update(i=(lost, record(RecordState.RUNNING, task_id=3, attempt=2, worker="b"))))
        done = record(RecordState.COMPLETED, task_id=3, attempt=2, worker="b")
        after(30, lambda: hub.records.update(i=(lost, done)))
        after(40, lambda: hub.end("i", 1, custom_status='{"months":8}'))
        await fired(waiting())

    play(scenario)
    assert said(capsys)[1:] == [
        "hub served by 1 live worker: a@host/1 (flights 3); it knows 'flights_delays'",
        "flights_delays is Pending",
        "flights_delays is Running",
        'custom status of flights_delays: {"months":8}',
        "monthly_delays #3, attempt 1, running on a@host/1",
        "monthly_delays #3, attempt 1, lost on a@host/1: its worker is silent; the next attempt waits for a free slot",
        "monthly_delays #3, attempt 2, running on b",
        "monthly_delays #3, attempt 2, completed on b",
        "flights_delays is Completed",
    ]


def test_the_log_tells_progress_when_it_changes_at_most_once_a_minute(
    hub: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier = record(RecordState.FAILED, task_id=7, execution="an earlier one")
    done = (record(RecordState.COMPLETED, task_id=0), record(RecordState.FAILED, task_id=1))
    lost = record(RecordState.LOST, task_id=2, progress=0.9)
    other = record(RecordState.RUNNING, task_id=10)

    def report(second: int) -> None:
        message = f"second\n{second}, password=hunter2"
        running = record(RecordState.RUNNING, task_id=2, attempt=2, progress=0.25, message=message)
        hub.records["i"] = (earlier, *done, lost, running, other)

    async def scenario() -> None:
        hub.put("i", Status.RUNNING)
        for second in range(401):
            after(second, partial(report, second))
        after(3600, lambda: hub.end("i", 1))
        await fired(waiting())

    play(scenario)
    line = (
        r"progress of flights_delays: recorded activities: 1 completed, 1 failed, "
        r"2 running \(monthly_delays #2 25 % second (\d+), password=\*\*\*, monthly_delays #10\)"
    )
    told = [re.fullmatch(line, one) for one in said(capsys) if "progress" in one]
    *seconds, last = [int(found[1]) for found in told if found]
    assert len(told) == len(seconds) + 1
    assert last == 400, "the last change, and nothing after it for an hour"
    assert seconds == pytest.approx([60, 120, 180, 240, 300, 360], abs=6)


def test_the_log_tells_which_activities_without_a_record_are_awaited(
    hub: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        hub.put("i", Status.RUNNING)
        hub.workers = (replace(member(), activities=("load", "clean"), orchestrators=("flights_delays", "month")),)
        hub.awaits["i"] = Awaits(activities=("load", "clean"), children=("month",))
        after(100, lambda: hub.records.update(i=(record(RecordState.COMPLETED),)))
        after(200, lambda: hub.end("i", 1))
        await fired(waiting())

    play(scenario)
    awaits = "awaits activities 'load', 'clean' and child 'month'"
    assert [line for line in said(capsys) if "progress" in line] == [
        f"progress of flights_delays: {awaits}",
        f"progress of flights_delays: recorded activities: 1 completed; {awaits}",
    ]


@pytest.mark.rows("K43")
@pytest.mark.parametrize(
    ("workers", "text"),
    [
        ((), "no worker is alive"),
        ((member("a", alive=False),), "no worker is alive"),
        ((member("b@h/1", "load_weather"),), r"Alive: b@h/1 \(flights 3\); they know: load_weather"),
        (
            (replace(member("b@h/1", "load_weather"), activities=("flights_delays",)),),
            "'flights_delays' is an activity: declare it with standalone=True",
        ),
    ],
)
def test_without_a_worker_that_knows_the_orchestrator_it_fails_in_time(hub: FakeHub, workers: Any, text: str) -> None:
    async def scenario() -> dict[str, Any]:
        hub.put("i", Status.PENDING)
        hub.workers = workers
        event = await fired(waiting(no_worker_timeout=600))
        assert 600 <= asyncio.get_running_loop().time() < 620
        return event

    event = play(scenario)
    assert event["reason"] == "no_worker"
    assert re.search(text, event["message"])
    assert "'flights_delays' for 600 s" in event["message"]


AWAITS_LOAD = Awaits(activities=("laod",))


def test_an_activity_that_nobody_knows_is_said_and_ends_the_wait_in_time(
    hub: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> dict[str, Any]:
        hub.put("i", Status.RUNNING)
        after(100, lambda: hub.awaits.update(i=AWAITS_LOAD))
        event = await fired(waiting(no_worker_timeout=20))
        assert 120 <= asyncio.get_running_loop().time() < 130
        return event

    event = play(scenario)
    assert event["reason"] == "no_worker"
    assert "for 20 s: no live worker knows activity 'laod'" in event["message"]
    (line,) = [line for line in said(capsys) if "waits:" in line]
    assert line.startswith("flights_delays waits: no live worker knows activity 'laod'")


ELSEWHERE = replace(member("c@h/1", "load_weather", "flights_delay"), activities=("load", "stop"))


@pytest.mark.parametrize(
    ("missing", "text"),
    [
        ("orchestrator", "no live worker has known orchestrator 'flights_delays' for 10 s"),
        ("activity", "it could not run for 10 s: no live worker knows activity 'laod'"),
        ("child", "it could not run for 10 s: it awaits child 'load_weathr'"),
        ("version", "it could not run for 10 s: no live worker accepts version '4'"),
    ],
)
def test_what_no_worker_has_while_their_apps_agree_ends_the_wait_in_seconds(
    hub: FakeHub, missing: str, text: str
) -> None:
    async def scenario() -> dict[str, Any]:
        names = () if missing == "orchestrator" else ("flights_delays",)
        one = replace(ELSEWHERE, orchestrators=(*ELSEWHERE.orchestrators, *names), accepts={"flights_delays": ("3",)})
        hub.workers = (one, replace(one, worker="d@h/1"))
        hub.put("i", Status.RUNNING, version="4" if missing == "version" else "3")
        hub.awaits["i"] = {"activity": AWAITS_LOAD, "child": Awaits(children=("load_weathr",))}.get(missing, Awaits())
        event = await fired(waiting())
        assert 10 <= asyncio.get_running_loop().time() < 20
        return event

    event = play(scenario)
    assert event["reason"] == "no_worker"
    assert text in event["message"]
    assert "A task with no_worker_timeout waits longer" in event["message"]
    near = {"orchestrator": "'flights_delay'", "activity": "'load'", "child": "'load_weather'"}.get(missing)
    if near:
        assert f"did you mean {near}? If not, start a worker with the app that declares it: taskhub" in event["message"]


OTHER_APP = replace(ELSEWHERE, apps={"flights": "4"})


@pytest.mark.parametrize(
    ("workers", "arguments"),
    [
        ((ELSEWHERE, replace(OTHER_APP, worker="d@h/1")), {}),
        ((ELSEWHERE, replace(ELSEWHERE, worker="d@h/1", activities=("load",))), {}),
        ((replace(ELSEWHERE, apps={}),), {}),
        ((replace(ELSEWHERE, roles=("activity",)),), {}),
        ((), {}),
        ((ELSEWHERE,), {"no_worker_timeout": 600}),
    ],
    ids=["another version", "another activity", "unreadable", "no such role", "no worker", "the task says how long"],
)
def test_a_rollout_and_a_time_limit_of_the_task_are_waited_for(
    hub: FakeHub, workers: tuple[Member, ...], arguments: dict[str, Any]
) -> None:
    async def scenario() -> None:
        hub.put("i", Status.PENDING)
        hub.workers = workers
        after(300, lambda: setattr(hub, "workers", (member(),)))
        after(310, lambda: hub.end("i", 1))
        assert (await fired(waiting(**arguments)))["reason"] == "reached"

    play(scenario)


def test_apps_that_agree_only_for_a_moment_do_not_end_the_wait(hub: FakeHub) -> None:
    """As at the start of all workers: the first one has come, and the others have not."""

    async def scenario() -> None:
        hub.put("i", Status.PENDING)
        hub.workers = ()
        after(60, lambda: setattr(hub, "workers", (ELSEWHERE,)))
        after(66, lambda: setattr(hub, "workers", (ELSEWHERE, member())))
        after(80, lambda: hub.end("i", 1))
        assert (await fired(waiting()))["reason"] == "reached"

    play(scenario)


def test_the_restart_of_the_only_worker_with_an_app_is_waited_for_also_by_a_new_wait(hub: FakeHub) -> None:
    async def scenario() -> None:
        hub.put("i", Status.RUNNING)
        hub.put("j", Status.PENDING)
        hub.workers = (member(), replace(OTHER_APP, worker="d@h/1"))
        after(60, lambda: setattr(hub, "workers", hub.workers[1:]))
        after(500, lambda: setattr(hub, "workers", (member("a@host/2"), *hub.workers)))
        after(510, lambda: (hub.end("i", 1), hub.end("j", 1)))
        begun = asyncio.ensure_future(fired(waiting()))
        await asyncio.sleep(100)
        assert (await fired(waiting(instance_id="j")))["reason"] == (await begun)["reason"] == "reached"

    play(scenario)


def test_an_instance_needs_no_worker_before_its_scheduled_start(hub: FakeHub) -> None:
    async def scenario() -> None:
        hub.put("i", Status.PENDING, scheduled_start=NOW + timedelta(days=1))
        hub.workers = (ELSEWHERE,)
        after(3000, lambda: hub.end("i", 1))
        assert (await fired(waiting()))["reason"] == "reached"

    play(scenario)


def test_a_version_that_nobody_accepts_ends_the_wait_in_time(hub: FakeHub) -> None:
    async def scenario() -> dict[str, Any]:
        hub.put("i", Status.PENDING, version="4")
        hub.workers = (replace(member(), accepts={"flights_delays": ("3",)}),)
        return await fired(waiting(no_worker_timeout=20))

    event = play(scenario)
    assert event["reason"] == "no_worker"
    assert "no live worker accepts version '4'" in event["message"]


@pytest.mark.parametrize("waits", [1, 60])
def test_the_log_says_what_an_instance_waits_for_and_that_it_goes_on(
    hub: FakeHub, capsys: pytest.CaptureFixture[str], waits: int
) -> None:
    """Also of one whose turn to be looked at comes seldom: workers are the same for all."""

    async def scenario() -> None:
        for number in range(waits - 1):
            hub.put(f"i{number}", Status.RUNNING)
        hub.put("i", Status.RUNNING)
        hub.awaits["i"] = Awaits(events=(AwaitedEvent(name="approve", since=NOW),))
        others = [asyncio.ensure_future(fired(waiting(instance_id=f"i{n}"))) for n in range(waits - 1)]
        after(50, lambda: setattr(hub, "workers", (member("b@h/1", "load_weather"),)))
        after(58, lambda: setattr(hub, "workers", (member(),)))
        after(150, lambda: hub.awaits.clear())
        after(250, lambda: hub.end("i", 1))
        await fired(waiting())
        for other in others:
            other.cancel()

    play(scenario)
    lines = [line for line in said(capsys) if "waits:" in line or "continues" in line]
    mine = list(dict.fromkeys(lines))
    assert mine[0].startswith("flights_delays waits: event 'approve' since 2026-11-21 10:00:00 UTC")
    told = "no live worker knows orchestrator 'flights_delays'. Alive: b@h/1"
    assert sum(told in line for line in lines) == waits, "every wait, whosever turn it is"
    assert mine[-1] == "flights_delays continues"


def test_the_log_says_nothing_of_triggerers_and_nothing_goes_on_after_the_end(
    hub: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    """The trigger runs in a triggerer, which may not be listed in the hub yet."""

    async def scenario() -> None:
        hub.put("i", Status.RUNNING, tags={"taskhub.watch": "1"})
        hub.unwatched = True
        hub.awaits["i"] = Awaits(events=(AwaitedEvent(name="approve", since=NOW),))
        after(50, lambda: hub.end("i", 1))
        await fired(waiting())

    play(scenario)
    lines = said(capsys)
    assert [line for line in lines if "triggerer" in line] == []
    assert [line for line in lines if "waits:" in line] != []
    assert lines[-1] == "flights_delays is Completed"


def test_a_worker_that_comes_back_in_time_keeps_the_wait(hub: FakeHub) -> None:
    async def scenario() -> None:
        hub.put("i", Status.PENDING)
        hub.workers = ()
        after(590, lambda: setattr(hub, "workers", (member(),)))
        after(1000, lambda: setattr(hub, "workers", ()))
        after(1500, lambda: hub.end("i", 1))
        assert (await fired(waiting(no_worker_timeout=600)))["reason"] == "reached"

    play(scenario)


def test_the_deadline_terminates_confirms_and_fires(hub: FakeHub) -> None:
    async def scenario() -> None:
        hub.put("i", Status.RUNNING, tags=OWNER)
        deadline = VirtualClock(asyncio.get_running_loop()).utc_now() + timedelta(seconds=90)
        event = await fired(waiting(deadline=deadline.text()))
        assert (event["reason"], hub.instances["i"].status) == ("timeout", Status.TERMINATED)
        assert "nothing of it runs" in event["message"]
        assert 90 <= asyncio.get_running_loop().time() < 93
        assert hub.hints == set()

    play(scenario)


def past() -> str:
    return (VirtualClock(asyncio.get_running_loop()).utc_now() + timedelta(seconds=-90)).text()


@pytest.mark.parametrize(("waits", "ended"), [("this try", True), ("", True), ("the next try", False)])
def test_what_another_try_or_task_waits_for_is_not_terminated(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, waits: str, ended: bool
) -> None:
    """A triggerer that was paused goes on after its deadline. A rewound instance has the owner of its first try."""

    async def scenario() -> None:
        watch = Watch(
            instance_id="i",
            deployment="here",
            dag_id="d",
            run_id="r",
            task_id="t",
            map_index=-1,
            owner="me",
            generation=1,
            waiter=waits,
        )
        for end in (lambda trigger: fired(trigger), lambda trigger: trigger.on_kill()):
            hub.terminated.clear()
            hub.put("i", Status.RUNNING, tags=OWNER)
            hub.watched["i"] = watch
            trigger = waiting(deadline=past())
            trigger._task_instance = killed(monkeypatch, "failed")
            await end(trigger)
            assert bool(hub.terminated) is ended

    play(scenario)


def test_without_a_triggerer_until_after_the_deadline_it_still_terminates(hub: FakeHub) -> None:
    async def scenario() -> None:
        hub.put("i", Status.RUNNING, tags=OWNER)
        event = await fired(waiting(deadline=past()))
        assert (event["reason"], hub.instances["i"].status) == ("timeout", Status.TERMINATED)
        assert "nothing of it runs" in event["message"]

    play(scenario)


@pytest.mark.parametrize(("failures", "terminated"), [(2, True), (1000, False)])
def test_after_the_deadline_the_connection_is_asked_for_a_few_times(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, failures: int, terminated: bool
) -> None:
    async def scenario() -> None:
        hub.put("i", Status.RUNNING, tags=OWNER)
        answers = [RuntimeError("API server is not there")] * failures

        async def flaky(self: Any) -> Any:
            if answers:
                raise answers.pop()
            return settings_without_connection(self.taskhub_conn_id)

        monkeypatch.setattr(TaskHubHook, "asettings", flaky)
        event = await fired(waiting(deadline=past()))
        assert event["reason"] == "timeout"
        assert ("nothing of it runs" if terminated else "not terminated") in event["message"]
        assert bool(hub.terminated) is terminated
        assert asyncio.get_running_loop().time() < 180, "before Airflow's own limit, behind the deadline, is over"

    play(scenario)


def test_the_deadline_of_a_sensor_terminates_nothing(hub: FakeHub) -> None:
    async def scenario() -> None:
        hub.put("i", Status.RUNNING)
        deadline = VirtualClock(asyncio.get_running_loop()).utc_now() + timedelta(seconds=90)
        event = await fired(waiting(owner=None, orchestrator="", deadline=deadline.text()))
        assert event["reason"] == "timeout"
        assert hub.terminated == []

    play(scenario)


@pytest.mark.parametrize("change", ["key", "nothing", "hub", "unreadable"])
def test_a_wait_whose_key_is_refused_reads_the_connection_again(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], change: str
) -> None:
    """After a rotation of the account's key the trigger went on with the old one for ever.

    :param change: what the connection says after the rotation: the new key, still the old one, another hub; or Airflow
        does not answer for some time.
    """
    now, valid, read = {"key": "b2xk", "hub": "Rotated"}, "b2xk", 0

    async def asettings(self: Any) -> Settings:
        nonlocal read
        read += 1
        if change == "unreadable" and valid == "bmV3" and asyncio.get_running_loop().time() < 100:
            raise RuntimeError("API server is not there")
        account = f"AccountName=acc;AccountKey={now['key']};EndpointSuffix=core.windows.net"
        return Settings(hub=now["hub"], connection=f"DefaultEndpointsProtocol=https;{account}")

    @asynccontextmanager
    async def opened(settings: Settings, *, create: bool = False) -> AsyncIterator[Any]:
        hub.down = None if f"AccountKey={valid};" in (settings.secret or "") else AccessDenied("403")
        async with hub.open(settings, create=create) as client:
            yield client

    monkeypatch.setattr(TaskHubHook, "asettings", asettings)
    monkeypatch.setattr(shared_client, "open_client", opened)

    async def scenario() -> None:
        nonlocal valid
        hub.put("i", Status.RUNNING)
        wait = asyncio.ensure_future(fired(waiting(orchestrator="")))
        await asyncio.sleep(30)
        assert read == 1
        valid, hub.down = "bmV3", AccessDenied("403")
        now.update({} if change == "nothing" else {"key": "bmV3"})
        now.update({"hub": "Other"} if change == "hub" else {})
        await asyncio.sleep(60)
        hub.end("i", 1)
        await asyncio.sleep(120)
        assert read >= 2
        assert wait.done() == (change in ("key", "unreadable"))
        if not wait.done():
            now.update(key="bmV3", hub="Rotated")
        assert (await wait)["status"] == "Completed"
        assert asyncio.get_running_loop().time() < 30 + 60 + 120 + 35

    play(scenario)
    lines = said(capsys)
    assert [line for line in lines if "new credentials" in line] == [
        "connection taskhub_default has new credentials: using them"
    ]
    assert "bmV3" not in "\n".join(lines)


# -- kills --


def killed(monkeypatch: pytest.MonkeyPatch, state: str | None, *, map_index: int = -1) -> SimpleNamespace:
    """The task instance of a trigger, and what Airflow says its state is now."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    def states(**asked: Any) -> dict[str, Any]:
        assert asked == {"dag_id": "d", "task_ids": ["t"], "run_ids": ["r"], "map_index": map_index}
        return {} if state == "gone" else {"r": {"t" if map_index < 0 else f"t_{map_index}": state}}

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(states))
    return SimpleNamespace(id="this try", dag_id="d", task_id="t", run_id="r", map_index=map_index)


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ("failed", "marked failed"),
        ("success", "marked success"),
        ("skipped", "task skipped"),
        (None, "cleared"),
        ("gone", "run was deleted"),
    ],
)
@pytest.mark.parametrize("map_index", [-1, 4])
def test_a_kill_terminates_the_instance_and_gives_the_reason(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, state: str | None, why: str, map_index: int
) -> None:
    async def scenario() -> None:
        hub.put("i", Status.RUNNING, tags=OWNER)
        trigger = waiting()
        trigger._task_instance = killed(monkeypatch, state, map_index=map_index)
        await trigger.on_kill()
        assert hub.instances["i"].status is Status.TERMINATED
        assert why in hub.terminated[0][1]
        assert hub.hints == set(), "nobody will come for this hint"

    play(scenario)


@pytest.mark.parametrize(("state", "ended"), [(None, False), ("failed", True), ("gone", True)])
def test_a_clear_ends_nothing_if_the_cleared_task_waits_for_the_same_instance_again(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, state: str | None, ended: bool
) -> None:
    async def scenario() -> None:
        hub.put("i", Status.RUNNING, tags=OWNER)
        trigger = waiting(cleared_continues=True)
        trigger._task_instance = killed(monkeypatch, state)
        await trigger.on_kill()
        assert bool(hub.terminated) is ended

    play(scenario)


@pytest.mark.parametrize(
    "state", ["deferred", "scheduled", "queued", "running", "restarting", "up_for_retry", "up_for_reschedule"]
)
def test_a_trigger_that_was_moved_or_superseded_terminates_nothing(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """Only "deferred" used to count as waiting, so that a task that was just being resumed lost its instance."""

    async def scenario() -> None:
        hub.put("i", Status.RUNNING, tags=OWNER)
        trigger = waiting()
        trigger._task_instance = killed(monkeypatch, state)
        await trigger.on_kill()
        assert hub.terminated == []

    play(scenario)


def test_a_late_kill_leaves_a_newer_start_alone(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        hub.put("i", Status.RUNNING, tags={"taskhub.owner": "the next try"})
        trigger = waiting()
        trigger._task_instance = killed(monkeypatch, "failed")
        await trigger.on_kill()
        assert hub.terminated == []

    play(scenario)


def test_a_kill_after_the_end_is_harmless(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        hub.put("i", Status.COMPLETED, tags=OWNER)
        trigger = waiting()
        trigger._task_instance = killed(monkeypatch, "success")
        await trigger.on_kill()
        assert hub.terminated == []

    play(scenario)


def test_a_kill_goes_on_although_airflow_cancels_it_again(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        hub.put("i", Status.RUNNING, tags=OWNER)
        hub.down = Unavailable("no answer")
        trigger = waiting()
        trigger._task_instance = killed(monkeypatch, "failed")
        kill = asyncio.ensure_future(trigger.on_kill())
        await asyncio.sleep(1)
        kill.cancel()
        with pytest.raises(asyncio.CancelledError):
            await kill
        hub.down = None
        await asyncio.sleep(30)
        assert hub.instances["i"].status is Status.TERMINATED

    play(scenario)


def test_a_shutdown_of_the_triggerer_terminates_nothing(hub: FakeHub) -> None:
    async def scenario() -> None:
        hub.put("i", Status.RUNNING, tags=OWNER)
        trigger = waiting()
        task = asyncio.ensure_future(fired(trigger))
        await asyncio.sleep(10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await trigger.cleanup()
        await asyncio.sleep(30)
        assert hub.terminated == []
        assert hub.open_now == 0

    play(scenario)


def test_a_sensors_trigger_never_cancels(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        hub.put("i", Status.RUNNING)
        trigger = waiting(owner=None)
        trigger._task_instance = killed(monkeypatch, "failed")
        await trigger.on_kill()
        assert hub.terminated == []

    play(scenario)


def test_a_connection_that_cannot_be_read_is_asked_for_again(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        hub.put("i", Status.COMPLETED)
        answers = [RuntimeError("API server is not there"), None]

        async def flaky(self: Any) -> Any:
            if (error := answers.pop(0)) is not None:
                raise error
            return settings_without_connection(self.taskhub_conn_id)

        monkeypatch.setattr(TaskHubHook, "asettings", flaky)
        assert (await fired(waiting()))["reason"] == "reached"

    play(scenario)


def test_a_connection_that_is_gone_is_reported(hub: FakeHub) -> None:
    async def scenario() -> None:
        event = await fired(waiting(taskhub_conn_id="gone"))
        assert event["reason"] == "unusable"
        assert "connection 'gone' does not exist" in event["message"]

    play(scenario)


def test_a_wait_that_ends_while_reasons_are_read_does_not_disturb_the_others(hub: FakeHub) -> None:
    why = unreadable_history("stays", "a damaged row")

    async def scenario() -> None:
        clock = VirtualClock(asyncio.get_running_loop())
        watcher = Watcher(lambda: nullcontext(), interval=timedelta(seconds=1), clock=clock)  # type: ignore[arg-type, return-value]
        waits = {
            name: WatchedInstance(instance_id=name, state=hub.put(name, Status.RUNNING)) for name in ("gone", "stays")
        }
        watcher._waits = {name: [wait] for name, wait in waits.items()}

        async def waiting_of(states: Any, **_: Any) -> dict[str, Any]:
            del watcher._waits["gone"]
            return {state.instance_id: (why,) for state in states}

        await watcher._explain_all(SimpleNamespace(admin=SimpleNamespace(waiting_of=waiting_of)))  # type: ignore[arg-type]
        assert waits["stays"].whys == (why,)

    play(scenario)


def test_a_number_that_changes_is_no_new_line_of_progress() -> None:
    state, log = InstanceState(instance_id="i", execution_id="e", name="o", status=Status.RUNNING), ProgressLog()

    def lines(more: str, now: float, text: str = "activity 'load'") -> list[str]:
        return [*log.lines(state, (), (Why(reason=Reason.ACTIVITIES, text=text, more=more),), now)]

    assert lines("1 call waits", 0.0) == []
    assert lines("2 calls wait", 1000.0) == ["progress of o: awaits activity 'load'; 2 calls wait"]
    assert lines("3 calls wait", 2000.0) == []
    assert lines("3 calls wait", 3000.0, "activity 'save'") == ["progress of o: awaits activity 'save'; 3 calls wait"]
