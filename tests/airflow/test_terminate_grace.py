"""``terminate_grace``: wherever Airflow ends an instance, the instance has the time for its clean-up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowTaskTimeout, TaskDeferred

from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import InstanceExists, InvalidStateError
from airflow_provider_taskhub.hub.model import StartPolicy
from airflow_provider_taskhub.tags import GRACE_TAG
from airflow_provider_taskhub.triggers.deferral import BACKSTOP, deferral_timeout
from airflow_provider_taskhub.triggers.grace import Confirmation, grace_of
from airflow_provider_taskhub.triggers.start_or_attach import TERMINATE_DEADLINE, _terminate
from airflow_provider_taskhub.triggers.sweep import AGAIN, EVERY, SETTLE
from airflow_provider_taskhub.triggers.taskhub import CONFIRM_DEADLINE
from airflow_provider_taskhub.virtual_time import VirtualClock, run
from tests.airflow.conftest import Ti
from tests.airflow.fake import FakeClient, FakeHub, member
from tests.airflow.test_start_trigger import Airflow, event_of
from tests.airflow.test_sweep import FakeAirflow, sweep, watched
from tests.airflow.test_trigger import fired, killed, waiting

HOUR = timedelta(hours=1)
TAGS = {"taskhub.owner": "me", GRACE_TAG: "3600"}


@pytest.fixture
def asked(hub: FakeHub) -> Callable[[], list[timedelta | None]]:
    """The times that were given so far."""
    return lambda: [grace for _, grace in hub.graces]


def cleans_up(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Instances end so many seconds after a terminate, and who waits for their end waits so long."""
    terminate = FakeClient.terminate

    async def slow(client: FakeClient, *given: Any, wait: bool = False, **named: Any) -> Any:
        if wait:
            await asyncio.sleep(seconds)
        return await terminate(client, *given, wait=wait, **named)

    monkeypatch.setattr(FakeClient, "terminate", slow)


@pytest.mark.parametrize("grace", [None, timedelta(seconds=1.5), HOUR])
def test_the_time_is_stored_with_the_instance(make_task: Any, hub: FakeHub, grace: timedelta | None) -> None:
    make_task(terminate_grace=grace).start(Ti())
    (instance,) = hub.instances.values()
    assert grace_of(instance) == (timedelta(seconds=2) if grace and grace < HOUR else grace)
    assert (GRACE_TAG in (instance.tags or {})) is (grace is not None)


@pytest.mark.parametrize("text", ["", "0", "-5", "1.5", "x", "²", "518401", "9" * 30])
def test_a_damaged_tag_is_no_time(hub: FakeHub, text: str) -> None:
    hub.put("i", Status.RUNNING, tags={GRACE_TAG: text})
    assert grace_of(hub.instances["i"]) is None


def test_an_instance_that_the_triggerer_starts_has_it_too(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        server = Airflow(monkeypatch)
        trigger = server.trigger(terminate_grace=timedelta(minutes=2))
        started = asyncio.ensure_future(event_of(trigger))
        await asyncio.sleep(1)
        (instance,) = hub.instances.values()
        assert grace_of(instance) == timedelta(minutes=2)
        server.state = "failed"
        started.cancel()
        with pytest.raises(asyncio.CancelledError):
            await started
        await trigger.on_kill()
        assert hub.graces == [(instance.instance_id, timedelta(minutes=2))]

    run(scenario())


@pytest.mark.parametrize("end", ["at the deadline", "by a mark"])
@pytest.mark.parametrize(("seconds", "ends"), [(CONFIRM_DEADLINE + 3500, True), (CONFIRM_DEADLINE + 3700, False)])
def test_a_trigger_gives_it_and_waits_for_the_clean_up(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, asked: Any, end: str, seconds: float, ends: bool
) -> None:
    """A retry that begins sooner would attach to the instance that ends."""

    async def scenario() -> None:
        hub.put("i", Status.RUNNING, tags=TAGS)
        cleans_up(monkeypatch, seconds)
        past = (VirtualClock(asyncio.get_running_loop()).utc_now() + timedelta(seconds=-90)).text()
        trigger = waiting(deadline=past)
        trigger._task_instance = killed(monkeypatch, "failed")
        began = asyncio.get_running_loop().time()
        if end == "by a mark":
            await trigger.on_kill()
        else:
            event = await fired(trigger)
            told = "nothing of it runs" if ends else f"has not ended within {CONFIRM_DEADLINE + 3600:g} s"
            assert told in event["message"]
        took = asyncio.get_running_loop().time() - began
        assert took == pytest.approx(min(seconds, CONFIRM_DEADLINE + 3600), abs=1.0)
        assert asked() == ([HOUR] if ends else [])
        assert hub.instances["i"].status is (Status.TERMINATED if ends else Status.RUNNING)

    run(scenario())


def test_airflow_s_own_limit_of_the_deferral_leaves_time_for_it(
    make_task: Any, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        clock = VirtualClock()
        monkeypatch.setattr("airflow_provider_taskhub.triggers.deferral.SYSTEM_CLOCK", clock)
        deadline = clock.utc_now() + timedelta(minutes=1)
        assert deferral_timeout(deadline, HOUR) == timedelta(minutes=1) + BACKSTOP + HOUR
        assert deferral_timeout(deadline) == timedelta(minutes=1) + BACKSTOP
        assert deferral_timeout(None, HOUR) is None

    run(scenario())
    asked = list[timedelta | None]()
    monkeypatch.setattr(
        "airflow_provider_taskhub.operators.taskhub.deferral_timeout", lambda deadline, grace: asked.append(grace)
    )
    make_task(terminate_grace=HOUR).start(Ti())
    assert asked == [HOUR]


def timed_out(task: Any, ti: Ti) -> Any:
    """Resume the task as Airflow does when its deferral has timed out."""
    return task.operator.resume_execution("__fail__", {"error": "Trigger timeout"}, task.context(ti))


@pytest.mark.parametrize("by_trigger", [False, True])
def test_a_task_whose_deferral_timed_out_waits_for_the_clean_up_in_the_triggerer(
    make_task: Any, hub: FakeHub, monkeypatch: pytest.MonkeyPatch, by_trigger: bool
) -> None:
    """It holds no worker slot for this time. If a trigger has started the task, Airflow's limit has no time for it."""
    hub.slow = True
    task, ti = make_task(execution_timeout=timedelta(minutes=30), terminate_grace=HOUR), Ti()
    instance_id = task.start(ti).trigger.instance_id
    if by_trigger:
        del ti.xcoms["taskhub_owner"]
    with pytest.raises(TaskDeferred) as deferred:
        timed_out(task, ti)
    assert hub.graces == [(instance_id, HOUR)], "it begins at once"
    assert deferred.value.timeout == BACKSTOP + HOUR
    trigger = deferred.value.trigger
    assert (trigger.instance_id, trigger.owner) == (instance_id, str(ti.id))
    hub.slow = False

    async def ends() -> Any:
        monkeypatch.setattr(trigger, "clock", VirtualClock(asyncio.get_running_loop()))
        trigger.deadline = trigger.clock.utc_now().text()
        cleans_up(monkeypatch, 3000)
        return await fired(trigger)

    event = run(ends())
    assert event["message"].endswith("nothing of it runs")
    task.deferred = deferred.value
    with pytest.raises(AirflowTaskTimeout, match="nothing of it runs"):
        task.finish(ti, **event)


def test_without_a_triggerer_the_task_fails_when_its_second_deferral_has_timed_out(
    make_task: Any, hub: FakeHub
) -> None:
    hub.slow = True
    task, ti = make_task(execution_timeout=timedelta(minutes=30), terminate_grace=HOUR), Ti()
    task.start(ti)
    with pytest.raises(TaskDeferred):
        timed_out(task, ti)
    with pytest.raises(AirflowTaskTimeout):
        timed_out(task, ti)


def test_a_task_whose_instance_has_ended_is_not_deferred_again(make_task: Any, hub: FakeHub) -> None:
    task, ti = make_task(execution_timeout=timedelta(minutes=30), terminate_grace=HOUR), Ti()
    hub.end(task.start(ti).trigger.instance_id, "from Airflow: execution timeout", status=Status.TERMINATED)
    with pytest.raises(AirflowTaskTimeout):
        timed_out(task, ti)
    assert hub.graces == []


@pytest.mark.parametrize("reason", ["timeout", "no_worker"])
def test_a_worker_that_ends_the_task_gives_it(make_task: Any, hub: FakeHub, asked: Any, reason: str) -> None:
    task, ti = make_task(execution_timeout=timedelta(minutes=30), terminate_grace=HOUR), Ti(try_number=3)
    task.start(ti)
    with pytest.raises((AirflowTaskTimeout, AirflowException)):
        task.finish(ti, reason=reason, message="over")
    assert asked() == [HOUR]


def test_an_alarm_in_the_worker_gives_it(
    make_task: Any, hub: FakeHub, asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def alarmed(*_: object, **__: object) -> None:
        raise AirflowTaskTimeout("Timeout, PID: 1")

    monkeypatch.setattr(FakeClient, "wait", alarmed)
    with pytest.raises(AirflowTaskTimeout, match="nothing of it runs"):
        make_task(execution_timeout=timedelta(minutes=30), terminate_grace=HOUR).run(Ti())
    assert asked() == [HOUR]


def test_a_worker_waits_for_the_clean_up_in_addition() -> None:
    async def scenario() -> None:
        began = asyncio.get_running_loop().time()
        within = Confirmation(10.0)

        async def ends() -> None:
            async with within:
                within.add(HOUR)
                within.add(None)
                await asyncio.sleep(1e6)

        with pytest.raises(TimeoutError):
            await ends()
        assert asyncio.get_running_loop().time() - began == 3610.0
        assert str(within) == "the termination was sent, but the instance has not ended within 3610 s"
        async with Confirmation(None) as endless:
            endless.add(HOUR)
            await asyncio.sleep(1e6)

    run(scenario())


def test_the_sweep_gives_it_and_asks_again_only_after_the_clean_up(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched(hub, tags=TAGS)
    hub.slow = True  # it does not end

    async def scenario() -> None:
        await asyncio.sleep(SETTLE + 2 * EVERY)
        assert hub.graces == [("i", HOUR)]
        await asyncio.sleep(3600 + AGAIN - SETTLE - 2 * EVERY)
        assert len(hub.graces) == 1
        await asyncio.sleep(SETTLE + 3 * EVERY)
        assert hub.graces == [("i", HOUR)] * 2

    sweep(hub, FakeAirflow(t="failed"), scenario)


def test_a_clear_gives_it_to_the_instance_that_still_runs(make_task: Any, hub: FakeHub) -> None:
    task, ti = make_task(terminate_grace=HOUR), Ti()
    first = task.start(ti).trigger.instance_id
    assert task.start(ti.cleared()).trigger.instance_id != first
    assert hub.graces == [(first, HOUR)]


@pytest.mark.parametrize(("seconds", "ends"), [(TERMINATE_DEADLINE + 3500, True), (TERMINATE_DEADLINE + 3700, False)])
def test_the_next_run_of_a_cleared_task_waits_for_the_clean_up(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, seconds: float, ends: bool
) -> None:
    """Else the clean-up could delete what the next run makes."""

    async def scenario() -> None:
        hub.put("i", Status.RUNNING, tags=TAGS)
        cleans_up(monkeypatch, seconds)
        client: Any = FakeClient(hub)
        told = await _terminate(client, hub.instances["i"])
        assert ("it is terminated" in told) is ends
        assert (f"within {TERMINATE_DEADLINE + 3600:g} s" in told) is not ends
        assert asyncio.get_running_loop().time() == pytest.approx(min(seconds, TERMINATE_DEADLINE + 3600))

    run(scenario())


def test_without_a_worker_the_next_run_of_a_cleared_task_does_not_wait_for_a_clean_up(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the older instance runs then."""

    async def scenario() -> None:
        hub.put("i", Status.RUNNING, tags=TAGS)
        hub.workers = (member(alive=False),)
        cleans_up(monkeypatch, 1e6)
        client: Any = FakeClient(hub)
        assert "has not ended within 60 s" in await _terminate(client, hub.instances["i"])
        assert asyncio.get_running_loop().time() == pytest.approx(TERMINATE_DEADLINE)

    run(scenario())


def test_the_next_run_of_a_cleared_task_waits_only_once(
    make_task: Any, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an id that the user chose, the new instance cannot start before the older one has ended."""
    task, ti = make_task(instance_id="chosen", terminate_grace=HOUR), Ti()
    task.start(ti)
    hub.slow = True
    with pytest.raises(InstanceExists):
        task.run(ti.cleared())
    assert hub.graces == [("chosen", HOUR)]


def test_what_has_cleaned_up_starts_from_its_beginning_after_a_clear(
    make_task: Any, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be rewound, because what it had is gone."""
    task, ti = make_task(terminate_grace=HOUR), Ti()
    instance_id = task.start(ti).trigger.instance_id
    hub.end(instance_id, "from Airflow: task marked failed", status=Status.TERMINATED)
    hub.damaged[instance_id] = InvalidStateError("it was asked to end with time for a clean-up")
    assert task.start(ti.cleared()).trigger.instance_id == instance_id
    assert hub.starts[-1] == (instance_id, StartPolicy.REPLACE_FINISHED)


def test_the_time_of_the_start_counts_after_a_change_of_the_dag(make_task: Any, hub: FakeHub, asked: Any) -> None:
    ti = Ti()
    make_task(terminate_grace=HOUR).start(ti)
    later = make_task(execution_timeout=timedelta(minutes=30))
    with pytest.raises(TaskDeferred) as deferred:
        timed_out(later, ti)
    assert asked() == [HOUR]
    assert deferred.value.timeout == BACKSTOP + HOUR


def test_an_instance_without_it_ends_at_once(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, asked: Any) -> None:
    async def scenario() -> None:
        hub.put("i", Status.RUNNING, tags={"taskhub.owner": "me"})
        trigger = waiting()
        trigger._task_instance = killed(monkeypatch, "failed")
        await trigger.on_kill()
        assert asked() == [None]

    run(scenario())
