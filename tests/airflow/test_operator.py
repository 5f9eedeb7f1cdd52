"""What a try of a task does about what it finds in the hub, and how an ended instance ends the task."""

from __future__ import annotations

import re
from collections import UserList
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import NEVER_EXPIRE, Asset
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowTaskTimeout,
    TaskDeferred,
)

from airflow_provider_taskhub.clock import SYSTEM_CLOCK
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import HubError, InstanceExists, IntakeFull, Unavailable
from airflow_provider_taskhub.hooks.identity import TaskIdentity
from airflow_provider_taskhub.hooks.taskhub import TaskHubHook
from airflow_provider_taskhub.hub.model import InstanceState, RecordState, StartPolicy
from airflow_provider_taskhub.hub.watches import Watch
from airflow_provider_taskhub.operators.control import TaskHubTerminateOperator
from airflow_provider_taskhub.operators.short_wait import SHORT_WAIT, short_wait
from airflow_provider_taskhub.operators.taskhub import TaskHubOperator
from airflow_provider_taskhub.sensors.taskhub import TaskHubSensor
from airflow_provider_taskhub.settings import load_settings
from airflow_provider_taskhub.triggers.arguments import evaluated
from tests.airflow.conftest import Task, Ti
from tests.airflow.fake import FakeClient, FakeWatches, member, record

ID = "flights:delays:scheduled__2013-12-01T00:00:00+00:00:g{}"


def test_starts_with_a_deterministic_id_and_tags_then_defers(make_task, hub, capsys) -> None:
    task, ti = make_task(input={"year": 2013}, tags={"team": "ops"}, version="3"), Ti()
    deferred = task.start(ti)
    state = hub.instances[ID.format(1)]
    assert (state.name, state.input, state.version) == ("flights_delays", '{"year":2013}', "3")
    assert state.tags == {
        "team": "ops",
        "airflow.dag_id": "flights",
        "airflow.run_id": ti.run_id,
        "airflow.task_id": "delays",
        "airflow.map_index": "-1",
        "airflow.try_number": "1",
        "airflow.max_tries": "2",
        "airflow.logical_date": "2013-12-01T00:00:00+00:00",
        "airflow.data_interval_start": "2013-12-01T00:00:00+00:00",
        "airflow.data_interval_end": "2013-12-01T00:00:00+00:00",
        "taskhub.generation": "1",
        "taskhub.owner": str(ti.id),
        "taskhub.watch": "1",
    }
    _, arguments = deferred.trigger.serialize()
    assert (arguments["instance_id"], arguments["owner"]) == (ID.format(1), str(ti.id))
    assert deferred.method_name == "execute_complete"
    assert arguments["deadline"] is None
    assert ti.xcoms["instance_id"] == ID.format(1)
    (link,) = task.operator.operator_extra_links  # Airflow pushes it when execute() has ended, also by a deferral
    address = link.get_link(task.operator, ti_key=ti)
    assert address.startswith("/plugin/taskhub/taskhub/page/instance?dag_id=flights&")
    assert task.store.values == {}, "the next try finds the first generation in the hub"
    log = capsys.readouterr().out
    assert f"a triggerer now waits for instance {ID.format(1)}: one must run (airflow triggerer)" in log


@pytest.mark.parametrize(("given", "stored"), [({}, None), ({"input": None}, "null")])
def test_an_explicit_none_is_the_input_of_the_instance(make_task, hub, given, stored) -> None:
    make_task(**given).start(Ti())
    assert hub.instances[ID.format(1)].input == stored


def test_a_start_says_first_which_task_waits(make_task, hub, monkeypatch) -> None:
    """So that an instance whose task is killed before any trigger has looked at it is found."""
    monkeypatch.setenv("AIRFLOW__TASKHUB__DEPLOYMENT", "here")
    known = []
    start = FakeClient.start

    async def look(self: FakeClient, *arguments: object, **named: object) -> object:
        known.append(dict(hub.watched))
        return await start(self, *arguments, **named)

    monkeypatch.setattr(FakeClient, "start", look)
    task, ti = make_task(), Ti(map_index=4)
    instance_id = task.start(ti).trigger.instance_id
    watch = Watch(
        instance_id=instance_id,
        deployment="here",
        dag_id="flights",
        run_id=ti.run_id,
        task_id="delays",
        map_index=4,
        owner=str(ti.id),
        generation=1,
        waiter=str(ti.id),
        etag="e1",
    )
    assert known == [{instance_id: watch}]
    hub.put(instance_id, Status.RUNNING)
    task.start(ti.next_try())
    assert hub.watched[instance_id].owner == str(ti.id), "attached to the first try's start"
    assert hub.watched[instance_id].waiter != str(ti.id), "and the first try may not end it any more"
    task.start(ti.next_try().cleared())
    assert {watch.generation for watch in hub.watched.values()} == {1, 2}


def test_a_retry_attaches_to_what_runs(make_task, hub) -> None:
    task, ti = make_task(), Ti()
    task.start(ti)
    hub.put(ID.format(1), Status.RUNNING)
    second = ti.next_try()
    deferred = task.start(second)
    assert len(hub.starts) == 1
    assert deferred.trigger.instance_id == ID.format(1)
    assert deferred.trigger.owner == str(ti.id), "cancels the start that is there, which the first try made"


def test_attaching_to_a_pending_instance_puts_its_message_again(make_task, hub) -> None:
    task, ti = make_task(), Ti()
    task.start(ti)
    task.start(ti.next_try())
    assert hub.starts == [(ID.format(1), StartPolicy.REFUSE), (ID.format(1), StartPolicy.ATTACH)]


def test_a_retry_returns_the_result_of_what_has_completed(make_task, hub) -> None:
    task, ti = make_task(), Ti()
    task.start(ti)
    hub.end(ID.format(1), {"url": "x"})
    assert task.run(ti.next_try()) == {"url": "x"}, "at once, without deferring"
    assert len(hub.starts) == 1
    assert hub.hints == set(), "the hint is not needed any more"


def test_what_ends_at_once_is_returned_without_deferring(make_task, hub, monkeypatch, capsys) -> None:
    start = FakeClient.start
    hub.records[ID.format(1)] = (record(RecordState.COMPLETED),)

    async def and_end(self: FakeClient, *arguments: object, **named: object) -> object:
        state = await start(self, *arguments, **named)
        hub.end(state.instance_id, [1, 2])
        return state

    monkeypatch.setattr(FakeClient, "start", and_end)
    ti = Ti()
    assert make_task().run(ti) == [1, 2]
    assert ti.xcoms["instance_id"] == ID.format(1)
    assert hub.hints == set()
    said = capsys.readouterr().out
    for line in ("hub served by 1 live worker", "attempt 1, completed on a@host/1", "flights_delays is Completed"):
        assert line in said, "the log says what a trigger would have said"


def test_what_fails_at_once_fails_the_task_with_its_own_error(make_task, hub, monkeypatch) -> None:
    start = FakeClient.start

    async def and_fail(self: FakeClient, *arguments: object, **named: object) -> object:
        state = await start(self, *arguments, **named)
        hub.fail(state.instance_id, "nobody approved", final=True)
        return state

    monkeypatch.setattr(FakeClient, "start", and_fail)
    with pytest.raises(AirflowFailException, match="nobody approved"):
        make_task().run(Ti())


def test_a_hub_that_fails_during_the_short_wait_leaves_it_to_the_trigger(make_task, monkeypatch) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise Unavailable("gone")

    monkeypatch.setattr(FakeClient, "wait", fail)
    assert make_task().start(Ti()).trigger.instance_id == ID.format(1)


@pytest.mark.parametrize(
    ("arguments", "ends_here"),
    [
        ({}, True),
        ({"on_failure_callback": print}, True),
        ({"on_success_callback": print}, False),
        ({"outlets": [Asset("rows")]}, False),
        ({"post_execute": print}, False),
        ({"multiple_outputs": True}, False),
        ({"do_xcom_push": False}, True),
    ],
)
def test_a_task_ends_in_the_triggerer_where_nothing_needs_a_worker(make_task, arguments, ends_here) -> None:
    trigger = make_task(**arguments, short_wait=0).start(Ti()).trigger
    assert (trigger.end_from_trigger, trigger.push_output) == (ends_here, "do_xcom_push" not in arguments)


@pytest.mark.parametrize(
    ("arguments", "ends_here"),
    [({}, True), ({"retries": 1}, False), ({"on_failure_callback": print}, False), ({"retry_policy": object()}, False)],
)
def test_a_failure_ends_in_the_triggerer_if_no_retry_follows(make_task, arguments, ends_here) -> None:
    """A retry soon after the deferral could be failed by Airflow, like a resume."""
    assert make_task(**arguments, short_wait=0).start(Ti()).trigger.fail_from_trigger is ends_here


@pytest.mark.parametrize("last", [False, True])
def test_a_failure_of_the_last_try_ends_in_the_triggerer(make_task, last: bool) -> None:
    ti = Ti(try_number=2, max_tries=1 if last else 2)
    assert make_task(retries=2, short_wait=0).start(ti).trigger.fail_from_trigger is last


def test_listeners_are_called_by_a_worker(make_task, hub, monkeypatch) -> None:
    listens = SimpleNamespace(
        on_task_instance_success=SimpleNamespace(get_hookimpls=lambda: [SimpleNamespace(plugin=hub)])
    )
    monkeypatch.setattr("airflow.sdk.listener.get_listener_manager", lambda: SimpleNamespace(hook=listens))
    assert make_task().start(Ti()).trigger.end_from_trigger is False


def test_a_clear_makes_a_new_generation_also_after_success(make_task, hub) -> None:
    task, ti = make_task(), Ti()
    task.start(ti)
    hub.end(ID.format(1), {"url": "old"})
    cleared = ti.cleared()
    deferred = task.start(cleared)
    assert deferred.trigger.instance_id == ID.format(2)
    assert hub.instances[ID.format(2)].status is Status.PENDING
    assert task.store.values["taskhub"] == {"generation": 2, "max_tries": 3}
    assert task.store.retentions == {"taskhub": NEVER_EXPIRE}
    retried = cleared.next_try()
    hub.put(ID.format(2), Status.RUNNING)
    assert task.start(retried).trigger.instance_id == ID.format(2), "an automatic retry keeps the generation"


def test_a_first_try_makes_few_requests_to_airflow_and_reads_the_hub_once_before_its_start(make_task, hub) -> None:
    """Each request costs Airflow's API server and database more than the orchestration costs the hub."""
    task, ti = make_task(), Ti()
    start = FakeClient.start
    before = []

    async def ends_at_once(self: FakeClient, *arguments: object, **named: object) -> object:
        before.append(hub.requests["get"])
        state = await start(self, *arguments, **named)
        hub.end(ID.format(1), {"sum": 1})
        return state

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeClient, "start", ends_at_once)
        assert task.run(ti) == {"sum": 1}
    assert (ti.requests, task.store.requests) == (["push instance_id"], [])
    assert before == [1]
    retried = ti.next_try()
    assert task.run(retried) == {"sum": 1}
    assert retried.requests == ["push _link_TaskHubInstanceLink", "push instance_id"]
    assert task.store.requests == ["get taskhub", "set taskhub"]
    task.run(retried.next_try())
    assert task.store.requests[2:] == ["get taskhub"], "what is stored already is not stored again"


def test_the_link_works_while_a_worker_waits(make_task, hub, monkeypatch) -> None:
    """Airflow itself pushes links when execute() has ended."""
    task, ti = make_task(deferrable=False), Ti()

    def look(trigger: Any) -> dict[str, Any]:
        assert "_link_TaskHubInstanceLink" in ti.xcoms
        hub.end(ID.format(1), 1)
        return {"reason": "reached", "instance_id": trigger.instance_id, "owner": trigger.owner, "message": ""}

    monkeypatch.setattr("airflow_provider_taskhub.operators.taskhub.wait_in_worker", look)
    assert task.run(ti) == 1


def test_a_generation_that_is_not_the_first_is_stored_also_in_a_first_try(make_task, hub) -> None:
    """Its run was deleted and created again. If the first generation is purged, the hub does not tell the number."""
    task = make_task()
    task.start(Ti())
    again = Ti()
    task.start(again)
    assert task.store.values == {"taskhub": {"generation": 2, "max_tries": 2}}
    hub.instances.pop(ID.format(1))
    assert task.start(again.next_try()).trigger.instance_id == ID.format(2)


def test_a_clear_of_a_running_task_ends_the_older_generation_first(make_task, hub) -> None:
    task, ti = make_task(), Ti()
    task.start(ti)
    hub.put(ID.format(1), Status.RUNNING)
    task.start(ti.cleared())
    assert [instance for instance, _ in hub.terminated] == [ID.format(1)]
    assert "cleared" in hub.terminated[0][1]
    assert hub.instances[ID.format(2)].status is Status.PENDING


def test_raising_retries_in_the_dag_file_changes_nothing(make_task, hub) -> None:
    """max_tries is stored, retries come from today's file; only the stored one is compared."""
    task, ti = make_task(retries=2), Ti()
    task.start(ti)
    hub.put(ID.format(1), Status.RUNNING)
    task.operator.retries = 7
    assert task.start(ti.next_try()).trigger.instance_id == ID.format(1)


def test_generation_is_found_in_the_hub_where_the_store_has_forgotten_it(make_task, hub) -> None:
    """[state_store] clear_on_success deletes keys: a later clear must still compute anew."""
    task, ti = make_task(), Ti()
    task.start(ti)
    hub.end(ID.format(1), 1)
    task.store.values.clear()
    assert task.start(ti.cleared()).trigger.instance_id == ID.format(2)


def test_a_lost_store_does_not_lose_a_running_instance(make_task, hub) -> None:
    task, ti = make_task(), Ti()
    task.start(ti)
    hub.put(ID.format(1), Status.RUNNING)
    task.store.values.clear()
    assert task.start(ti.next_try()).trigger.instance_id == ID.format(1)


def test_a_run_deleted_and_made_again_computes_anew(make_task, hub) -> None:
    task = make_task()
    task.start(Ti())
    hub.end(ID.format(1), 1)
    task.store.values.clear()
    assert task.start(Ti()).trigger.instance_id == ID.format(2)


def test_own_instance_id_is_used_as_it_is_and_replaced_by_a_clear(make_task, hub) -> None:
    task, ti = make_task(instance_id="mine"), Ti()
    assert task.start(ti).trigger.instance_id == "mine"
    hub.put("mine", Status.RUNNING)
    assert task.start(ti.next_try()).trigger.instance_id == "mine"
    assert len(hub.starts) == 1
    cleared = ti.cleared()
    assert task.start(cleared).trigger.owner == str(cleared.id)
    assert hub.terminated[0][0] == "mine"
    assert hub.starts[-1] == ("mine", StartPolicy.REPLACE_FINISHED)


def test_own_instance_id_of_another_run_that_is_live_is_refused(make_task, hub) -> None:
    task = make_task(instance_id="mine")
    task.start(Ti(run_id="other"))
    task.store.values.clear()
    with pytest.raises(AirflowException, match=r"'mine' belongs to another run or program, whose instance is Pending"):
        task.operator.execute.__wrapped__(task.operator, task.context(Ti()))


def test_own_instance_id_of_another_run_that_has_ended_is_replaced(make_task, hub) -> None:
    task = make_task(instance_id="mine")
    task.start(Ti(run_id="other"))
    hub.end("mine", 1)
    task.store.values.clear()
    task.start(Ti())
    assert hub.starts[-1] == ("mine", StartPolicy.REPLACE_FINISHED)


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("method", ["watches", "start"])
def test_two_runs_that_start_one_id_at_the_same_moment_do_not_share_it(make_task, hub, monkeypatch, method, ended):
    """Both read the same. Then the other is faster, before this task writes its watch row or after."""
    if ended:
        hub.put("x", Status.COMPLETED, tags={"taskhub.owner": "an older run"})
    mine, others = make_task(instance_id="x", input={"day": 2}), make_task(instance_id="x", input={"day": 1})
    other, faster = Ti(run_id="other"), [True]
    where, name = (FakeWatches, "add") if method == "watches" else (FakeClient, "start")
    whole = getattr(where, name)

    async def second(self: object, *arguments: object, **named: object) -> object:
        if faster:
            faster.clear()
            others.start(other)
        return await whole(self, *arguments, **named)

    monkeypatch.setattr(where, name, second)
    with pytest.raises(AirflowException, match="'x' belongs to another run or program, whose instance is Pending"):
        mine.run(Ti())
    assert hub.instances["x"].tags["airflow.run_id"] == "other"
    assert hub.watched["x"].run_id == "other", "the sweep ends the instance together with the other's task"
    assert hub.watched["x"].owner == str(other.id)


@pytest.mark.parametrize("status", [Status.FAILED, Status.TERMINATED])
def test_a_retry_writes_its_watch_row_before_its_instance_goes_on(make_task, hub, monkeypatch, status) -> None:
    """A rewind deletes a row that is older than the end of the instance. The task could be killed just then."""
    task, ti = make_task(instance_id="x"), Ti()
    task.start(ti)
    hub.end("x", "no", status=status)
    second, waiters = ti.next_try(), []

    def look(whole: Any) -> Any:
        async def looked(*arguments: object, **named: object) -> object:
            waiters.append(hub.watched["x"].waiter)
            return await whole(*arguments, **named)

        return looked

    monkeypatch.setattr(FakeClient, "rewind", look(FakeClient.rewind))
    monkeypatch.setattr(FakeClient, "start", look(FakeClient.start))
    task.start(second)
    assert waiters == [str(second.id)]


def test_the_watch_row_of_a_run_that_has_ended_does_not_stay(make_task, hub) -> None:
    task, ti = make_task(instance_id="x"), Ti()
    task.start(Ti(run_id="other"))
    hub.end("x", 1)
    task.store.values.clear()
    task.start(ti)
    assert hub.watched["x"].owner == str(ti.id)


def test_a_start_whose_answer_was_lost_is_found_by_the_same_try(make_task, hub, monkeypatch) -> None:
    """The store repeated the insertion, and its first one had succeeded."""
    whole, once = FakeClient.start, [InstanceExists("exists already (Pending)")]

    async def lost(self: FakeClient, *arguments: object, **named: object) -> object:
        state = await whole(self, *arguments, **named)
        if once:
            raise once.pop()
        return state

    monkeypatch.setattr(FakeClient, "start", lost)
    ti = Ti()
    assert make_task(instance_id="x").start(ti).trigger.owner == str(ti.id)
    assert hub.starts == [("x", StartPolicy.REFUSE), ("x", StartPolicy.ATTACH)], "its start message is put again"
    assert hub.watched["x"].owner == str(ti.id)


def test_a_retry_does_not_attach_to_what_another_run_has_started_meanwhile(make_task, hub, monkeypatch) -> None:
    task, ti = make_task(instance_id="x"), Ti()
    task.start(ti)
    whole = FakeClient.start

    async def replaced(self: FakeClient, *arguments: object, **named: object) -> object:
        hub.put("x", Status.RUNNING, tags=TaskIdentity.of(Ti(run_id="other")).tags(1))
        return await whole(self, *arguments, **named)

    monkeypatch.setattr(FakeClient, "start", replaced)
    with pytest.raises(AirflowException, match="'x' belongs to another run or program"):
        task.run(ti.next_try())


def test_the_orchestrations_own_error_and_the_failed_attempts_log(make_task, hub, capsys) -> None:
    task, ti = make_task(), Ti()
    task.start(ti)
    hub.fail(ID.format(1), "41 of 8,760 rows rejected")
    hub.failed[ID.format(1)] = SimpleNamespace(name="monthly_delays", task_id=3, attempt=2, log="log-3-2")
    hub.logs["log-3-2"] = "\n".join(f"line {number}" for number in range(80))
    with pytest.raises(AirflowException, match=r"flights_delays.*failed: ValueError: 41 of 8,760 rows") as error:
        task.finish(ti)
    assert not isinstance(error.value, AirflowFailException)
    said = capsys.readouterr().out
    assert re.findall(r"\] (line \d+)", said) == [f"line {number}" for number in range(30, 80)], "the last 50 lines"
    assert "ValueError: 41 of 8,760 rows rejected" in said
    assert "last 50 lines of monthly_delays #3, attempt 2:" in said
    hub.logs["log-3-2"] = "the only one"
    with pytest.raises(AirflowException):
        task.finish(ti)
    assert "last line of monthly_delays #3, attempt 2:" in capsys.readouterr().out


def test_an_error_that_forbids_retries(make_task, hub) -> None:
    task, ti = make_task(), Ti()
    task.start(ti)
    hub.fail(ID.format(1), "nobody approved", final=True)
    with pytest.raises(AirflowFailException, match="nobody approved"):
        task.finish(ti)


def test_a_terminated_instance_fails_with_the_reason(make_task, hub) -> None:
    task, ti = make_task(), Ti()
    task.start(ti)
    hub.end(ID.format(1), "warehouse maintenance", status=Status.TERMINATED)
    with pytest.raises(AirflowException, match="terminated: warehouse maintenance"):
        task.finish(ti)


def test_an_instance_begun_again_meanwhile_is_waited_for(make_task, hub) -> None:
    task, ti = make_task(), Ti()
    task.start(ti)
    with pytest.raises(TaskDeferred):
        task.finish(ti)


@pytest.mark.parametrize("arguments", [{}, {"instance_id": "x"}])
def test_what_a_person_has_rewound_before_the_task_resumed_is_watched_again(make_task, hub, arguments) -> None:
    """The page releases the watch row of an instance that it rewinds, because its task may have ended."""
    task, ti = make_task(**arguments), Ti(map_index=2)
    instance_id = task.start(ti).trigger.instance_id
    before = hub.watched.pop(instance_id)
    hub.put(instance_id, Status.PENDING)
    with pytest.raises(TaskDeferred) as again:
        task.finish(ti, status="Failed")
    assert again.value.trigger.owner == str(ti.id)
    assert replace(hub.watched[instance_id], etag="") == replace(before, etag="")


def test_a_result_leaves_no_watch_row_behind(make_task, hub) -> None:
    task, ti = make_task(), Ti()
    task.start(ti)
    hub.watched.clear()
    hub.end(ID.format(1), 1)
    assert task.finish(ti) == 1
    assert hub.watched == {}


@pytest.mark.parametrize("ended", [True, False])
def test_the_result_of_another_run_is_not_returned(make_task, hub, capsys, ended) -> None:
    """The first run resumes half a minute after the end, and the other run has started the same id meanwhile."""
    task, others, ti = make_task(instance_id="x"), make_task(instance_id="x"), Ti()
    task.start(ti)
    hub.end("x", "mine")
    others.start(Ti(run_id="other"))
    if ended:
        hub.fail("x", "the other's")
    hints, watched = set(hub.hints), dict(hub.watched)
    with pytest.raises(AirflowException, match=r"instance x\) was started again by another task or program: its resul"):
        task.finish(ti, status="Completed")
    assert (hub.hints, hub.watched) == (hints, watched), "the other run's wait is left alone"
    assert "the other's" not in capsys.readouterr().out
    hub.end("x", "the other's")
    assert others.run(Ti(run_id="other", try_number=2)) == "the other's"


def test_the_result_of_another_run_is_not_returned_at_once_either(make_task, hub, monkeypatch) -> None:
    async def replaced(self: FakeClient, instance_id: str, **_: object) -> InstanceState:
        return hub.put(instance_id, Status.COMPLETED, output='"x"', tags={"taskhub.owner": "another"})

    monkeypatch.setattr(FakeClient, "wait", replaced)
    with pytest.raises(AirflowException, match="was started again by another task or program"):
        make_task(instance_id="x").run(Ti())


@pytest.mark.parametrize("other", [{"instance_id": ID.format(1), "owner": "the try before"}, {"instance_id": "else's"}])
def test_the_event_of_another_wait_ends_nothing(make_task, hub, other) -> None:
    """Airflow on SQLite gives the number of a deleted trigger again: a cancelled trigger woke the next try."""
    task, ti = make_task(), Ti()
    task.start(ti)
    hub.end(ID.format(1), {"url": "x"})
    with pytest.raises(TaskDeferred) as again:
        task.finish(ti, **other)
    assert again.value.trigger.serialize() == task.deferred.trigger.serialize()
    assert again.value.kwargs == task.deferred.kwargs
    assert task.finish(ti) == {"url": "x"}


def test_execution_timeout_is_one_absolute_deadline(make_task, hub, monkeypatch) -> None:
    now = Timestamp.parse("2026-03-01T12:00:00Z")
    monkeypatch.setattr(type(SYSTEM_CLOCK), "utc_now", lambda _: now)
    task = make_task(execution_timeout=timedelta(minutes=30))
    deferred = task.start(Ti())
    assert Timestamp.parse(deferred.trigger.deadline) == now + timedelta(minutes=30)
    assert deferred.timeout > timedelta(minutes=30), "only a backstop behind the trigger's own deadline"
    with pytest.raises(TaskDeferred) as again:
        task.finish(Ti(), instance_id="another's")
    assert again.value.trigger.deadline == deferred.trigger.deadline, "waiting again does not begin it anew"
    assert again.value.timeout <= deferred.timeout
    with pytest.raises(AirflowTaskTimeout, match="the instance is terminated"):
        task.finish(Ti(), reason="timeout", message="over; the instance is terminated")


def test_the_short_wait_ends_before_the_deadline(make_task, monkeypatch) -> None:
    """So that the trigger ends the task like any other timeout, instead of an alarm in the middle of the wait."""
    given: list[timedelta | None] = []

    async def wait(self: FakeClient, instance_id: str, *, timeout: timedelta | None = None, **_: object) -> None:
        given.append(timeout)
        raise TimeoutError

    monkeypatch.setattr(FakeClient, "wait", wait)
    make_task(execution_timeout=timedelta(milliseconds=100)).start(Ti())
    assert given == [], "no time is left"
    make_task(execution_timeout=timedelta(hours=1)).start(Ti())
    make_task().start(Ti())
    assert given == [SHORT_WAIT] * 2
    lefts = [timedelta(seconds=seconds) for seconds in (-1, 0.5, 1, 2, 60)]
    assert [short_wait(left, SHORT_WAIT).total_seconds() for left in lefts] == [0, 0, 0.5, 1.5, 1.5]


@pytest.mark.parametrize(
    ("arguments", "known", "waits"),
    [
        ({}, True, [1.5]),
        ({"outlets": [Asset("rows")]}, True, [1.5, 28.5]),
        ({"outlets": [Asset("rows")]}, False, [1.5]),
        ({"outlets": [Asset("rows")], "short_wait": 1}, True, [1]),
        ({"outlets": [Asset("rows")], "short_wait": 0}, True, []),
        ({"short_wait": timedelta(minutes=2)}, True, [1.5, 118.5]),
    ],
)
def test_a_worker_that_must_end_the_task_waits_as_long_as_a_deferral_would_take(
    make_task, hub, monkeypatch, capsys, arguments, known, waits
) -> None:
    """Airflow takes a deferred task back after 30 s. If no worker knows the orchestrator, the task defers at once."""
    given: list[float] = []

    async def wait(self: FakeClient, instance_id: str, *, timeout: timedelta, **_: object) -> None:
        given.append(timeout.total_seconds())
        raise TimeoutError

    monkeypatch.setattr(FakeClient, "wait", wait)
    hub.workers = [member("a@host/1", "flights_delays" if known else "another")]
    make_task(**arguments).start(Ti())
    assert given == waits
    assert make_task(deferrable=False).operator._short_wait() == SHORT_WAIT, "the wait goes on in the worker"
    assert ("this Airflow worker waits up to" in capsys.readouterr().out) is (len(waits) == 2)


@pytest.mark.parametrize("method", ["wait", "start", "get"])
def test_an_alarm_in_the_first_seconds_ends_like_any_other_timeout(make_task, hub, monkeypatch, method) -> None:
    """Airflow raises its timeout wherever the task is just then. It was shown as "Timeout, PID", and nothing ended."""
    whole = getattr(FakeClient, method)
    once = [AirflowTaskTimeout("Timeout, PID: 3045")]

    async def alarmed(self: FakeClient, *arguments: object, **named: object) -> object:
        found = await whole(self, *arguments, **named) if method == "start" else None
        if once:
            raise once.pop()
        return found or await whole(self, *arguments, **named)

    monkeypatch.setattr(FakeClient, method, alarmed)
    task, ti = make_task(execution_timeout=timedelta(minutes=30)), Ti()
    with pytest.raises(AirflowTaskTimeout) as error:
        task.run(ti)
    head = f"orchestration 'flights_delays' (instance {ID.format(1)}): the time limit is over; "
    if method == "get":
        assert str(error.value) == "orchestration 'flights_delays': the time limit is over; nothing was started"
        assert hub.starts == hub.terminated == []
        return
    assert str(error.value) == f"{head}the instance is terminated, nothing of it runs"
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__, "no inner errors of the interrupted wait"
    assert hub.terminated == [(ID.format(1), "from Airflow: execution timeout")]
    assert hub.hints == set()
    task.start(ti.next_try())
    assert hub.starts[-1] == (ID.format(1), StartPolicy.REPLACE_FINISHED)


def test_an_alarm_of_a_try_that_attached_terminates_what_it_attached_to(make_task, hub, monkeypatch) -> None:
    task, ti = make_task(execution_timeout=timedelta(minutes=30)), Ti()
    task.start(ti)
    hub.put(ID.format(1), Status.RUNNING)

    async def alarmed(*_: object, **__: object) -> None:
        raise AirflowTaskTimeout("Timeout, PID: 1")

    monkeypatch.setattr(FakeClient, "wait", alarmed)
    with pytest.raises(AirflowTaskTimeout, match="nothing of it runs"):
        task.run(ti.next_try())
    assert [instance for instance, _ in hub.terminated] == [ID.format(1)]


def test_an_alarm_leaves_what_somebody_else_started_alone(make_task, hub, monkeypatch) -> None:
    task = make_task(instance_id="mine", execution_timeout=timedelta(minutes=30))

    async def alarmed(self: FakeClient, instance_id: str, **_: object) -> None:
        hub.put(instance_id, Status.RUNNING, tags={"taskhub.owner": "another"})
        raise AirflowTaskTimeout("Timeout, PID: 1")

    monkeypatch.setattr(FakeClient, "wait", alarmed)
    with pytest.raises(AirflowTaskTimeout, match="the instance was started again meanwhile: it is not terminated"):
        task.run(Ti())
    assert hub.terminated == []


def test_an_alarm_while_the_hub_is_down_says_that_nothing_was_terminated(make_task, hub, monkeypatch) -> None:
    async def alarmed(self: FakeClient, *_: object, **__: object) -> None:
        hub.down = Unavailable("no answer")
        raise AirflowTaskTimeout("Timeout, PID: 1")

    monkeypatch.setattr(FakeClient, "wait", alarmed)
    with pytest.raises(AirflowTaskTimeout, match="cannot terminate: Unavailable: no answer"):
        make_task(execution_timeout=timedelta(minutes=30)).run(Ti())


def test_what_the_trigger_could_not_terminate_at_the_deadline_the_operator_does(make_task, hub) -> None:
    task, ti = make_task(execution_timeout=timedelta(minutes=30)), Ti()
    task.start(ti)
    with pytest.raises(AirflowTaskTimeout, match="not terminated"):
        task.finish(ti, reason="timeout", message="over; the connection cannot be read: not terminated")
    assert hub.terminated == [(ID.format(1), "from Airflow: execution timeout")]


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("execute_complete", {"event": {"reason": "timeout", "message": "over"}}),
        ("execute_complete", {"event": {"reason": "no_worker", "message": "nobody"}}),
        ("__fail__", {"error": "Trigger timeout"}),
    ],
)
def test_an_end_of_the_wait_leaves_a_newer_start_alone(make_task, hub, method, arguments) -> None:
    task, ti = make_task(instance_id="mine"), Ti(try_number=3)
    owner = task.start(ti).trigger.owner
    hub.put("mine", Status.RUNNING, tags={"taskhub.owner": "a newer start"})
    if "event" in arguments:
        arguments = {"event": {"instance_id": "mine", "owner": owner, "status": None} | arguments["event"]}
    with pytest.raises((AirflowException, AirflowTaskTimeout)):
        task.operator.resume_execution(method, arguments, task.context(ti))
    assert hub.terminated == []


def test_a_deferral_that_timed_out_ends_what_an_older_try_started(make_task, hub) -> None:
    task, ti = make_task(execution_timeout=timedelta(minutes=30)), Ti()
    task.start(ti)
    hub.put(ID.format(1), Status.RUNNING)
    second = ti.next_try()
    task.start(second)
    with pytest.raises(AirflowTaskTimeout):
        task.operator.resume_execution("__fail__", {"error": "Trigger timeout"}, task.context(second))
    assert [instance for instance, _ in hub.terminated] == [ID.format(1)]


def test_a_deferral_that_timed_out_also_ends_the_instance(make_task, hub) -> None:
    """Airflow itself never tells the trigger."""
    task, ti = make_task(execution_timeout=timedelta(minutes=30)), Ti()
    task.start(ti)
    with pytest.raises(AirflowTaskTimeout):
        task.operator.resume_execution("__fail__", {"error": "Trigger timeout"}, task.context(ti))
    assert [instance for instance, _ in hub.terminated] == [ID.format(1)]


def test_a_deferral_that_timed_out_also_ends_what_the_trigger_has_started(make_task, hub) -> None:
    """The trigger names no owner in an XCom: it is the try itself."""
    task, ti = make_task(execution_timeout=timedelta(minutes=30)), Ti()
    ti.xcoms["instance_id"] = "i"
    hub.put("i", Status.RUNNING, tags={"taskhub.owner": str(ti.id)})
    with pytest.raises(AirflowTaskTimeout):
        task.operator.resume_execution("__fail__", {"error": "Trigger timeout"}, task.context(ti))
    assert [instance for instance, _ in hub.terminated] == ["i"]


@pytest.mark.rows("K43")
def test_without_a_worker_the_last_try_leaves_nothing_to_run_unseen(make_task, hub) -> None:
    task, ti = make_task(), Ti()
    task.start(ti)
    with pytest.raises(AirflowException, match="no worker is alive"):
        task.finish(ti, reason="no_worker", message="no worker is alive")
    assert hub.terminated == [], "the next try attaches"
    with pytest.raises(AirflowException):
        task.finish(Ti(try_number=3), reason="no_worker", message="x")
    assert hub.terminated[0][0] == ID.format(1)


def test_on_kill_of_the_operator_terminates_nothing(make_task, hub) -> None:
    task = make_task()
    task.start(Ti())
    task.operator.on_kill()
    assert hub.terminated == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"orchestrator": ""}, "orchestrator is ''"),
        ({"input": object()}, "cannot be written as JSON"),
        ({"instance_id": "x" * 300}, "at most 256"),
        ({"instance_id": "x\uffff"}, r"holds U\+FFFF"),
        ({"tags": {"team": 3}}, "tag 'team' of orchestrator 'flights_delays' is 3: give a text"),
        ({"tags": {3: "team"}}, "tag '3' of orchestrator 'flights_delays' is 3: give a text"),
        ({"tags": {"airflow.dag_id": "x"}}, "is reserved"),
        ({"tags": {"team": "x" * 40_000}}, "at most 32,768"),
        ({"version": "x" * 40_000}, "at most 32,768"),
        ({"tags": "{'team': 'sales'}"}, "tags is the text .* A template of a whole dict needs render_template_as_nat"),
        ({"instance_id": "None"}, "instance_id is 'None', which a template makes of a value that is missing"),
    ],
)
def test_bad_arguments_fail_at_once_and_for_good(make_task, hub, arguments, text) -> None:
    """As after the rendering of templates, which nobody can check at parse."""
    task = make_task()
    for name, value in arguments.items():
        setattr(task.operator, name, value)
    with pytest.raises(AirflowFailException, match=text):
        task.operator.execute.__wrapped__(task.operator, task.context(Ti()))
    assert hub.starts == []


@pytest.mark.parametrize(
    "task",
    [
        TaskHubOperator(task_id="t", orchestrator="o", taskhub_conn_id="gone"),
        TaskHubSensor(task_id="t", instance_id="i", taskhub_conn_id="gone"),
        TaskHubTerminateOperator(task_id="t", instance_id="i", taskhub_conn_id="gone"),
    ],
    ids=lambda task: type(task).__name__,
)
def test_a_wrong_connection_fails_at_once_and_for_good(hub, task) -> None:
    """Also if somebody deletes it while the task waits. A hub that is not there yet, or is down, is tried again."""
    one = Task(task)
    with pytest.raises(AirflowFailException, match="connection 'gone' does not exist: create it with type 'taskhub'"):
        one.run(Ti())
    ended = {"instance_id": "i", "owner": None, "status": None, "reason": "unusable", "message": "connection 'gone'"}
    with pytest.raises(AirflowFailException, match="connection 'gone'"):
        task.execute_complete(one.context(Ti()), ended)
    task.taskhub_conn_id = "taskhub_default"
    hub.down = HubError("there is no hub 'TaskHub': taskhub hub create")
    if not isinstance(task, TaskHubSensor):  # a sensor waits
        with pytest.raises(HubError, match="there is no hub") as error:
            one.run(Ti())
        assert not isinstance(error.value, AirflowFailException)


def test_an_input_with_a_masked_secret_is_refused_without_showing_it(make_task, hub) -> None:
    from airflow.sdk._shared.secrets_masker import _secrets_masker

    masker = _secrets_masker()
    masker.add_mask("s3cr3t-value-9")
    try:
        task = make_task(input={"rows": [{"url": "jdbc://u:s3cr3t-value-9@host"}]})
        with pytest.raises(AirflowFailException, match="masks as a secret") as error:
            task.operator.execute.__wrapped__(task.operator, task.context(Ti()))
    finally:
        masker.reset_masker()
    assert "s3cr3t" not in str(error.value)
    assert hub.starts == []


def test_templates_render_in_input_with_upstream_results() -> None:
    from airflow.sdk import DAG, task

    from airflow_provider_taskhub.operators.taskhub import TaskHubOperator

    with DAG("d", schedule=None):

        @task
        def months() -> list[int]:
            return [1, 2]

        given = months()
        operator = TaskHubOperator(task_id="x", orchestrator="o", input={"months": given, "day": "{{ ds }}"})
    assert operator.upstream_task_ids == {"months"}
    assert {"input", "instance_id", "taskhub_conn_id", "orchestrator"} <= set(operator.template_fields)


def test_the_results_of_mapped_tasks_are_an_input(monkeypatch) -> None:
    """Airflow renders them as sequences that ask for their items one by one; every fan-in has one."""
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import XComSequenceSliceResult
    from airflow.sdk.execution_time.lazy_sequence import LazyXComSequence

    asked = []

    class Comms:
        def send(self, question: object) -> XComSequenceSliceResult:
            asked.append(question)
            return XComSequenceSliceResult(root=[1, {"a": [2]}])

    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", Comms(), raising=False)
    source = SimpleNamespace(key="return_value", operator=SimpleNamespace(dag_id="d", task_id="t"))
    lazy = LazyXComSequence(xcom_arg=source, ti=SimpleNamespace(run_id="r"))
    assert evaluated(lazy) == [1, {"a": [2]}]
    assert len(asked) == 1, "all items with one question"
    given = {"months": (lazy,), "doubled": UserList([3, lazy]), "text": "x"}
    assert evaluated(given) == {"months": [[1, {"a": [2]}]], "doubled": [3, [1, {"a": [2]}]], "text": "x"}


def test_the_log_says_where_no_api_server_looks_after_the_instance(make_task, hub, monkeypatch, capsys) -> None:
    """Their environment may have the connection; the metadata database, which they do not read, may have it, too."""
    told = "add connection 'other' to the option [taskhub] page_connections"
    monkeypatch.setattr(TaskHubHook, "settings", lambda self: load_settings())
    make_task(taskhub_conn_id="other").start(Ti())
    assert told in capsys.readouterr().out
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", "taskhub://")
    make_task(taskhub_conn_id="other").start(Ti(run_id="2"))
    make_task().start(Ti(run_id="3"))
    assert "page_connections" not in capsys.readouterr().out


def test_an_input_is_evaluated_before_it_is_checked(make_task, hub) -> None:
    make_task(input={"months": UserList([3])}).start(Ti())
    assert hub.instances[ID.format(1)].input == '{"months":[3]}'


def test_a_value_that_holds_itself_is_left_to_the_check_of_inputs() -> None:
    given: list[object] = []
    given.append(given)
    assert evaluated(given) is given


def identity(**changes: object) -> TaskIdentity:
    fields = {
        "dag_id": "d",
        "run_id": "r",
        "task_id": "t",
        "map_index": -1,
        "try_number": 1,
        "max_tries": 0,
        "owner": "o",
    }
    return TaskIdentity(**(fields | changes))  # type: ignore[arg-type]


def test_instance_ids_are_distinct_and_legal() -> None:
    from airflow_provider_taskhub.engine.identity import check_instance_id

    parts = [
        identity(),
        identity(map_index=3),
        identity(task_id="t.t"),
        identity(run_id="r:g1"),
        identity(run_id="r[3]"),
        identity(run_id="r/\\#?"),
        identity(run_id="x" * 250, dag_id="y" * 250, task_id="z" * 250),
        identity(run_id="x" * 250, dag_id="y" * 250, task_id="z" * 249),
        identity(run_id="manuell für Ärger"),
    ]
    ids = [check_instance_id(part.instance_id(generation)) for part in parts for generation in (1, 2)]
    assert len(set(ids)) == len(ids)
    assert identity(map_index=3).instance_id(2) == "d:t[3]:r:g2"


@pytest.mark.parametrize("arguments", [{}, {"instance_id": "mine"}, {"wait_for_completion": False}])
def test_a_start_that_the_hub_does_not_take_fails_the_try_and_leaves_nothing(make_task, hub, arguments) -> None:
    hub.full = IntakeFull("hub 'TaskHub' takes no new start now", waits=True)
    task, ti = make_task(**arguments), Ti()
    with pytest.raises(AirflowException, match="hub 'TaskHub' takes no new start now") as error:
        task.run(ti)
    assert not isinstance(error.value, AirflowFailException), "Airflow tries again"
    assert (hub.instances, hub.watched, len(hub.starts)) == ({}, {}, 1)
    assert hub.waits == [None], "the client waits as long as it does for all others"
    hub.full = None
    again = ti.next_try()
    task.start(again) if "wait_for_completion" not in arguments else task.run(again)
    assert len(hub.instances) == 1


@pytest.mark.parametrize(("timeout", "waits"), [(100, 80), (3600, 300)])
def test_a_start_waits_for_room_for_less_than_the_time_of_its_task(make_task, hub, timeout, waits) -> None:
    hub.full = IntakeFull("full", waits=True)
    task = make_task(execution_timeout=timedelta(seconds=timeout))
    with pytest.raises(AirflowException, match="full"):
        task.run(Ti())
    assert hub.waits == [timedelta(seconds=waits)], "so the error of the task says what it has waited for"


def test_a_retry_attaches_to_what_runs_also_if_the_hub_takes_no_new_start(make_task, hub) -> None:
    task, ti = make_task(), Ti()
    task.start(ti)
    watched = dict(hub.watched)
    hub.full = IntakeFull("hub 'TaskHub' takes no new start now")
    task.start(ti.next_try())
    assert (len(hub.instances), hub.watched.keys()) == (1, watched.keys())


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_the_watch_row_of_another_task_stays_if_the_hub_does_not_take_a_start(
    make_task, hub, monkeypatch, when
) -> None:
    other = Watch(
        instance_id="mine", deployment="here", dag_id="other", run_id="r", task_id="t",
        map_index=-1, owner="o", generation=1, waiter="o",
    )  # fmt: skip

    async def full(self: FakeClient, *arguments: object, **named: object) -> object:
        hub.watched["mine"] = other
        raise IntakeFull("full")

    if when == "before":
        hub.watched["mine"] = other
    monkeypatch.setattr(FakeClient, "start", full)
    with pytest.raises(AirflowException, match="full"):
        make_task(instance_id="mine").run(Ti())
    assert hub.watched == {"mine": other}


def test_the_watch_row_of_the_next_try_stays_if_the_hub_does_not_take_a_start(make_task, hub, monkeypatch) -> None:
    async def full(self: FakeClient, *arguments: object, **named: object) -> object:
        hub.watched["mine"] = replace(hub.watched["mine"], waiter="the next try")
        raise IntakeFull("full")

    monkeypatch.setattr(FakeClient, "start", full)
    with pytest.raises(AirflowException, match="full"):
        make_task(instance_id="mine").run(Ti())
    assert hub.watched["mine"].waiter == "the next try"
