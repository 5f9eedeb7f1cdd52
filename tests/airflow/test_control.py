"""What the operators that control an instance send, repeat, refuse, and wait for."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowTaskTimeout, TaskDeferred
from airflow.sdk.execution_time.secrets_masker import mask_secret

from airflow_provider_taskhub.client.purging import PurgeResult
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.engine.identity import next_execution_id
from airflow_provider_taskhub.errors import InputError, InvalidStateError
from airflow_provider_taskhub.hooks import at_parse
from airflow_provider_taskhub.operators import acting, repair
from airflow_provider_taskhub.operators.control import (
    TaskHubRaiseEventOperator,
    TaskHubResumeOperator,
    TaskHubSuspendOperator,
    TaskHubTerminateOperator,
)
from airflow_provider_taskhub.operators.repair import TaskHubPurgeOperator, TaskHubRewindOperator
from airflow_provider_taskhub.tags import GRACE_TAG
from airflow_provider_taskhub.triggers.deferral import BACKSTOP
from tests.airflow.conftest import Task, Ti
from tests.airflow.fake import FakeClient, FakeHub

WHO = "DAG flights, run scheduled__2013-12-01T00:00:00+00:00, task delays"
SIX: list[tuple[Any, dict[str, Any]]] = [
    (TaskHubRaiseEventOperator, {"event_name": "go"}),
    (TaskHubTerminateOperator, {}),
    (TaskHubSuspendOperator, {}),
    (TaskHubResumeOperator, {}),
    (TaskHubRewindOperator, {}),
    (TaskHubPurgeOperator, {}),
]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acting, "WORKER_END_WAIT", timedelta(0))


def task(kind: Any, **more: Any) -> Task:
    return Task(kind(**({"task_id": "delays", "instance_id": "i"} | more)))


# arguments


@pytest.mark.parametrize(("kind", "more"), SIX)
@pytest.mark.parametrize("wrong", ["", " ", 7])
def test_an_id_that_cannot_be_right_is_refused_at_parse(kind: Any, more: dict[str, Any], wrong: Any) -> None:
    with pytest.raises(InputError, match=f"{kind.__name__} 'delays': instance_id is {wrong!r}: give the id of an inst"):
        task(kind, **more, instance_id=wrong)


@pytest.mark.parametrize(("kind", "more"), SIX)
@pytest.mark.parametrize("rendered", ["", "None", None])
def test_an_id_that_is_empty_after_rendering_fails_before_anything_is_sent(
    hub: FakeHub, kind: Any, more: dict[str, Any], rendered: Any
) -> None:
    one = task(kind, **more, instance_id="{{ ti.xcom_pull(task_ids='hub', key='instance_id') }}")
    if kind is TaskHubPurgeOperator and rendered is None:
        rendered = "None"
    one.operator.instance_id = rendered
    with pytest.raises(AirflowFailException, match=r"after rendering: .* of the task of a TaskHubOperator"):
        one.run(Ti())
    assert not hub.requests


@pytest.mark.parametrize(
    ("kind", "more", "text"),
    [
        (TaskHubRaiseEventOperator, {"event_name": ""}, "event_name is ''"),
        (
            TaskHubRaiseEventOperator,
            {"event_name": "go", "data": float("nan")},
            "data of type float cannot be written as JSON",
        ),
        (TaskHubTerminateOperator, {"wait": "yes"}, "wait is 'yes': give True or False"),
        (TaskHubTerminateOperator, {"missing_ok": 1}, "missing_ok is 1"),
        (TaskHubTerminateOperator, {"recurse": None}, "recurse is None"),
        (TaskHubTerminateOperator, {"clean_up": None}, "clean_up is None"),
        (TaskHubSuspendOperator, {"reason": 5}, "reason is 5: give a text"),
        (TaskHubRewindOperator, {"wait_for_completion": "no"}, "wait_for_completion is 'no'"),
        (TaskHubPurgeOperator, {"older_than": timedelta(1)}, "give either instance_id, or one or more of older_than"),
        (TaskHubPurgeOperator, {"instance_id": None}, "give either instance_id"),
        (TaskHubPurgeOperator, {"instance_id": None, "older_than": 30}, "older_than is 30: give a timedelta"),
        (TaskHubPurgeOperator, {"instance_id": None, "older_than": timedelta(-1)}, "not negative"),
        (TaskHubPurgeOperator, {"instance_id": None, "statuses": ["Running"]}, "'Running': choose from Completed"),
        (TaskHubPurgeOperator, {"instance_id": None, "statuses": "Failed"}, r"give a list, for example \['Completed'"),
        (TaskHubPurgeOperator, {"instance_id": None, "tags": ["a"]}, "give a dictionary"),
        (TaskHubPurgeOperator, {"instance_id": None, "prefix": "x", "limit": 0}, "limit is 0"),
        (TaskHubPurgeOperator, {"instance_id": None, "prefix": "x", "rate": -1}, "rate is -1"),
    ],
)
def test_other_arguments_that_cannot_be_right_are_refused_at_parse(kind: Any, more: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        task(kind, **more)


def test_templates_and_outputs_of_tasks_are_taken_at_parse() -> None:
    with DAG("d", schedule=None):
        first = TaskHubSuspendOperator(task_id="first", instance_id="{{ params.id }}", reason="{{ params.why }}")
        second = TaskHubRaiseEventOperator(
            task_id="second", instance_id=first.output["instance_id"], event_name="go", data={"a": [first.output]}
        )
    assert second.upstream_task_ids == {"first"}
    assert at_parse.is_template({"a": ["{% if x %}"]})
    assert not at_parse.is_template({"a": ["plain", 1]})


def test_the_final_statuses_are_the_engines() -> None:
    assert set(repair.FINAL) == {status for status in Status if status.is_final}


@pytest.mark.parametrize(("kind", "more"), SIX[:5])
def test_an_instance_that_does_not_exist_fails_by_its_id_with_the_way_out(
    hub: FakeHub, kind: Any, more: dict[str, Any]
) -> None:
    with pytest.raises(AirflowException, match=r"no instance 'i' in hub Fake: check instance_id.*TaskHubSensor"):
        task(kind, **more).run(Ti())
    assert not hub.events + hub.terminated + hub.reasons


def test_the_link_to_the_page_is_there_before_the_result(hub: FakeHub) -> None:
    ti = Ti()
    with pytest.raises(AirflowException):
        task(TaskHubRaiseEventOperator, event_name="go").run(ti)
    (link,) = ti.xcoms.values()
    assert link.endswith("&id=i")


# events


def test_an_event_is_raised_once_for_all_tries_and_again_after_a_clear(hub: FakeHub) -> None:
    hub.put("i", Status.RUNNING)
    one, first = task(TaskHubRaiseEventOperator, event_name="go", data={"by": "Ada"}), Ti()
    for ti in (first, first.next_try(), first.next_try()):
        one.run(ti)
    assert hub.events == [("i", "go", {"by": "Ada"})]
    one.run(first.cleared(retries=3))
    assert len(hub.events) == 2


def test_an_event_is_not_raised_again_after_continue_as_new(hub: FakeHub) -> None:
    """The event itself may be why the orchestrator has continued as new."""
    hub.put("i", Status.RUNNING, execution_id="1" * 32)
    one, first = task(TaskHubRaiseEventOperator, event_name="go"), Ti()
    one.run(first)
    hub.put("i", Status.RUNNING, execution_id=next_execution_id("1" * 32))
    one.run(first.next_try())
    assert len(hub.events) == 1


def test_a_new_start_of_the_instance_gets_the_event_too(hub: FakeHub) -> None:
    hub.put("i", Status.RUNNING)
    one, first = task(TaskHubRaiseEventOperator, event_name="go"), Ti()
    one.run(first)
    hub.put("i", Status.RUNNING, execution_id="another")
    one.run(first.next_try())
    assert len(hub.events) == 2


def test_an_event_for_an_instance_that_has_ended_fails(hub: FakeHub) -> None:
    hub.end("i", 1)
    with pytest.raises(AirflowException, match=r"'i' has ended \(Completed\)"):
        task(TaskHubRaiseEventOperator, event_name="go").run(Ti())


def test_a_secret_is_not_raised(hub: FakeHub) -> None:
    mask_secret("hunter2-of-the-test")
    hub.put("i", Status.RUNNING)
    one = task(TaskHubRaiseEventOperator, event_name="go", data={"password": "is hunter2-of-the-test"})
    with pytest.raises(AirflowFailException, match=r"data of event 'go'\.password contains a value that"):
        one.run(Ti())
    assert not hub.events


# terminate


@pytest.mark.parametrize(("reason", "text"), [("", f"({WHO})"), ("too expensive", f"too expensive ({WHO})")])
def test_a_termination_names_dag_run_and_task(hub: FakeHub, reason: str, text: str) -> None:
    hub.put("i", Status.RUNNING)
    assert task(TaskHubTerminateOperator, reason=reason).run(Ti()) == "Terminated"
    assert hub.terminated == [("i", f"from Airflow: {text}")]
    assert task(TaskHubTerminateOperator).run(Ti()) == "Terminated", "a repeat changes nothing"
    assert len(hub.terminated) == 1


def test_a_mapped_task_is_named_with_its_index(hub: FakeHub) -> None:
    hub.put("i", Status.RUNNING)
    task(TaskHubTerminateOperator).run(Ti(map_index=3))
    assert hub.terminated[0][1].endswith("task delays[3])")


def test_a_missing_instance_may_be_no_error_for_a_termination(hub: FakeHub) -> None:
    assert task(TaskHubTerminateOperator, missing_ok=True).run(Ti()) is None


@pytest.mark.parametrize("rendered", ["None", "", None])
def test_a_teardown_whose_setup_has_started_nothing_ends_with_success(hub: FakeHub, rendered: str | None) -> None:
    one = task(TaskHubTerminateOperator, missing_ok=True)
    one.operator.instance_id = rendered
    assert one.run(Ti()) is None
    assert not hub.requests
    one.operator.missing_ok = False
    with pytest.raises(AirflowFailException, match=f"instance_id is {rendered!r} after rendering"):
        one.run(Ti())


def test_a_termination_that_takes_long_waits_in_the_triggerer_and_then_confirms(hub: FakeHub) -> None:
    hub.put("i", Status.RUNNING)
    hub.slow = True
    one = task(TaskHubTerminateOperator)
    trigger = one.start(Ti()).trigger
    assert (trigger.instance_id, trigger.owner, trigger.statuses, trigger.end_from_trigger) == ("i", None, [], False)
    assert trigger.orchestrator == "flights_delays", "so that the wait ends when no worker knows it"
    with pytest.raises(TaskDeferred):
        one.finish(Ti(), status="Terminated")  # the instance has ended, but an activity of it still runs
    hub.slow = False
    assert one.finish(Ti(), status="Terminated") == "Terminated"


@pytest.mark.parametrize("status", ["Terminated", "Completed"])
def test_a_run_that_began_after_the_termination_is_left_alone(hub: FakeHub, status: str) -> None:
    """The task of the instance may have retried before the terminating task is resumed."""
    hub.put("i", Status.RUNNING, execution_id="1" * 32)
    hub.slow = True
    one, ti = task(TaskHubTerminateOperator), Ti()
    one.start(ti)
    hub.slow = False
    hub.put("i", Status.RUNNING, execution_id="2" * 32)
    assert one.finish(ti, status=status) == status
    assert one.run(ti.next_try()) == "Terminated", "a retry is about the same run"
    assert not hub.terminated
    one.run(ti.cleared(retries=5))
    assert len(hub.terminated) == 1, "a clear is a new request"


def test_a_lost_answer_is_followed_by_another_request_for_the_same_run(hub: FakeHub) -> None:
    run = "1" * 32
    hub.put("i", Status.RUNNING, execution_id=run)
    hub.slow = True
    one, ti = task(TaskHubTerminateOperator, wait=False), Ti()
    one.run(ti)
    hub.slow = False
    hub.put("i", Status.RUNNING, execution_id=next_execution_id(run))
    one.run(ti.next_try())
    assert len(hub.terminated) == 1, "after continue_as_new it is still the same run"


def test_without_wait_a_termination_is_only_requested(hub: FakeHub) -> None:
    hub.put("i", Status.RUNNING)
    hub.slow = True
    assert task(TaskHubTerminateOperator, wait=False).run(Ti()) == "Running"


@pytest.mark.parametrize(
    ("why", "error"), [("timeout", AirflowTaskTimeout), ("no_worker", AirflowException), ("missing", AirflowException)]
)
def test_a_wait_that_ends_without_the_effect_fails(hub: FakeHub, why: str, error: type[Exception]) -> None:
    hub.put("i", Status.RUNNING)
    hub.slow = True
    one = task(TaskHubTerminateOperator, execution_timeout=timedelta(minutes=1))
    deferred = one.start(Ti())
    assert deferred.trigger.deadline is not None
    assert deferred.timeout > timedelta(minutes=5), "after the trigger's own deadline"
    with pytest.raises(error, match="instance i: it says so; the request is stored"):
        one.finish(Ti(), reason=why, message="it says so")


@pytest.mark.parametrize("other", [{"owner": "another's"}, {"instance_id": "another"}])
def test_the_event_of_another_wait_ends_nothing(hub: FakeHub, other: dict[str, str]) -> None:
    hub.put("i", Status.RUNNING)
    hub.slow = True
    one = task(TaskHubSuspendOperator)
    one.start(Ti())
    with pytest.raises(TaskDeferred) as again:
        one.finish(Ti(), status="Suspended", **other)
    assert again.value.trigger.statuses == ["Suspended"]


# suspend and resume


def test_a_suspension_is_sent_once(hub: FakeHub) -> None:
    hub.put("i", Status.RUNNING)
    for _ in range(2):
        assert task(TaskHubSuspendOperator, reason="maintenance").run(Ti()) == "Suspended"
    assert hub.reasons == [("suspend", f"from Airflow: maintenance ({WHO}) by Airflow: flights.delays")]
    assert task(TaskHubResumeOperator).run(Ti()) == "Running"
    assert hub.instances["i"].status is Status.RUNNING


def test_children_are_suspended_although_their_parent_is_already_and_resumed_with_it(hub: FakeHub) -> None:
    hub.put("i", Status.SUSPENDED)
    assert task(TaskHubSuspendOperator, recurse=True).run(Ti()) == "Suspended"
    assert task(TaskHubResumeOperator, recurse=True).run(Ti()) == "Running"
    assert [why.endswith(" with its children") for _, why in hub.reasons] == [True, True]


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        (TaskHubSuspendOperator, Status.RUNNING, ["Suspended"]),
        (TaskHubResumeOperator, Status.SUSPENDED, ["Pending", "Running", "ContinuedAsNew"]),
    ],
)
def test_a_slow_change_waits_in_the_triggerer_for_its_status(
    hub: FakeHub, kind: Any, before: Status, after: list[str]
) -> None:
    hub.put("i", before)
    hub.slow = True
    one = task(kind)
    assert one.start(Ti()).trigger.statuses == after
    assert one.finish(Ti(), status=after[0]) == after[0]
    assert task(kind, wait=False).run(Ti()) == str(before)


@pytest.mark.parametrize("kind", [TaskHubSuspendOperator, TaskHubResumeOperator])
def test_an_instance_that_has_ended_can_be_neither_suspended_nor_resumed(hub: FakeHub, kind: Any) -> None:
    hub.end("i", 1)
    with pytest.raises(AirflowException, match="has ended"):
        task(kind).run(Ti())


# rewind


@pytest.mark.parametrize("clean_up", [True, False])
@pytest.mark.parametrize("wait", [True, False])
def test_a_terminate_gives_the_time_with_which_the_instance_was_started(
    hub: FakeHub, wait: bool, clean_up: bool
) -> None:
    """A teardown task must not cut a clean-up off that runs already."""
    hub.put("i", Status.RUNNING, tags={GRACE_TAG: "3600"})
    task(TaskHubTerminateOperator, wait=wait, clean_up=clean_up).run(Ti())
    assert hub.graces == [("i", timedelta(hours=1) if clean_up else None)]


@pytest.mark.parametrize(("limit", "most"), [(None, 30.0), (20.0, 19.5), (0.2, 0.0), (60.0, 30.0)])
def test_the_wait_in_the_worker_leaves_time_to_defer(
    hub: FakeHub, monkeypatch: Any, limit: float | None, most: float
) -> None:
    """The time counts from the beginning of the task: what it does before the wait counts, too."""
    given: list[float] = []
    monkeypatch.setattr(acting, "WORKER_END_WAIT", timedelta(seconds=30))

    async def terminate(self: FakeClient, instance_id: str, reason: str, *, timeout: timedelta, **_: Any) -> None:
        given.append(timeout.total_seconds())
        raise TimeoutError

    monkeypatch.setattr(FakeClient, "terminate", terminate)
    hub.put("i", Status.RUNNING)
    more = {} if limit is None else {"execution_timeout": timedelta(seconds=limit)}
    task(TaskHubTerminateOperator, **more).start(Ti())
    assert [seconds <= most for seconds in given] == [True]
    assert limit == 20.0 or given == [most]
    assert limit != 20.0 or given[0] < most


def failed(hub: FakeHub, **tags: str) -> None:
    hub.put("i", Status.RUNNING, tags=tags)
    hub.fail("i", "41 rows rejected")


def test_a_rewind_waits_and_returns_the_output(hub: FakeHub) -> None:
    failed(hub, **{"taskhub.owner": "o"})
    one, ti = task(TaskHubRewindOperator, reason="disk is repaired"), Ti()
    trigger = one.start(ti).trigger
    assert hub.reasons == [("rewind", f"from Airflow: disk is repaired ({WHO})")]
    assert (trigger.owner, trigger.end_from_trigger) == ("o", True)
    assert (ti.xcoms["instance_id"], ti.xcoms["taskhub_owner"]) == ("i", "o"), "so that the triggerer may end the task"
    hub.end("i", {"url": "x"})
    assert one.finish(ti, status="Completed") == {"url": "x"}


@pytest.mark.parametrize(("seconds", "longer"), [("3600", timedelta(hours=1)), (None, timedelta(0))])
def test_the_time_of_the_clean_up_is_added_to_airflow_s_own_limit_of_its_deferral(
    hub: FakeHub, seconds: str | None, longer: timedelta
) -> None:
    """Its trigger waits so long for the clean-up when ``execution_timeout`` is over."""
    failed(hub, **{"taskhub.owner": "o"} | ({} if seconds is None else {GRACE_TAG: seconds}))
    one, ti = task(TaskHubRewindOperator, execution_timeout=timedelta(minutes=1)), Ti()
    timeout = one.start(ti).timeout
    assert timedelta(0) <= timedelta(minutes=1) + BACKSTOP + longer - timeout < timedelta(minutes=1)
    hub.end("i", {"url": "x"})
    assert one.finish(ti, status="Completed") == {"url": "x"}


def test_while_it_waits_the_instance_belongs_to_the_rewinding_task(hub: FakeHub) -> None:
    """The task that started the instance has failed: its watch row would let the sweep terminate what was rewound."""
    failed(hub, **{"taskhub.owner": "o"})
    task(TaskHubRewindOperator).start(Ti(task_id="again"))
    watch = hub.watched["i"]
    assert (watch.dag_id, watch.task_id, watch.owner) == ("flights", "again", "o")


@pytest.mark.parametrize("ended", [False, True])
def test_a_clear_of_the_task_that_has_started_a_rewound_instance_waits_for_it_or_takes_its_result(
    hub: FakeHub, make_task: Any, ended: bool
) -> None:
    starter, ti = make_task(), Ti()
    instance_id = starter.start(ti).trigger.instance_id
    hub.fail(instance_id, "no rows")
    rewinder = Task(TaskHubRewindOperator(task_id="again", instance_id=instance_id))
    assert rewinder.start(Ti(task_id="again")).trigger.instance_id == instance_id
    if ended:
        hub.end(instance_id, 7)
        assert starter.run(ti.cleared()) == 7
    else:
        assert starter.start(ti.cleared()).trigger.instance_id == instance_id
    assert (hub.terminated, len(hub.starts)) == ([], 1 if ended else 2), "an ATTACH puts a lost start again"


def test_a_clear_of_the_rewinding_task_does_not_end_the_instance(hub: FakeHub) -> None:
    """Until the cleared task runs again, its state is None. That ended hours of work, by chance."""
    failed(hub, **{"taskhub.owner": "o"})
    assert task(TaskHubRewindOperator).start(Ti()).trigger.serialize()[1]["cleared_continues"]
    assert hub.watched["i"].cleared_continues


def test_nobody_waits_for_an_instance_that_is_only_rewound(hub: FakeHub) -> None:
    failed(hub, **{"taskhub.owner": "o"})
    task(TaskHubRewindOperator).start(Ti())
    failed(hub, **{"taskhub.owner": "o"})
    assert task(TaskHubRewindOperator, wait_for_completion=False).run(Ti()) == "Pending"
    assert not hub.watched


def test_what_another_deployment_waits_for_stays_that_deployments(hub: FakeHub) -> None:
    failed(hub, **{"taskhub.owner": "o"})
    task(TaskHubRewindOperator).start(Ti())
    hub.watched["i"] = replace(hub.watched["i"], deployment="there")
    failed(hub, **{"taskhub.owner": "o"})
    assert task(TaskHubRewindOperator, wait_for_completion=False).run(Ti()) == "Pending"
    assert hub.watched["i"].deployment == "there"


def test_what_another_task_waits_for_stays_that_tasks(hub: FakeHub) -> None:
    hub.put("i", Status.RUNNING, tags={"taskhub.owner": "o"})
    assert task(TaskHubRewindOperator).start(Ti()).trigger.owner is None
    assert not hub.watched
    assert task(TaskHubRewindOperator).start(Ti().next_try()).trigger.owner is None, "no try has rewound it"


def test_what_an_earlier_try_has_rewound_is_still_this_tasks(hub: FakeHub) -> None:
    failed(hub, **{"taskhub.owner": "o"})
    one, ti = task(TaskHubRewindOperator), Ti()
    one.start(ti)
    for now in (ti.next_try(), ti.cleared()):
        assert one.start(now).trigger.owner == "o"
        assert hub.watched["i"].waiter == str(now.id), "the earlier try may not end it any more"
    assert len(hub.rewound) == 1


def test_what_another_task_has_rewound_meanwhile_is_that_tasks(hub: FakeHub) -> None:
    failed(hub, **{"taskhub.owner": "o"})
    one, ti = task(TaskHubRewindOperator), Ti()
    one.start(ti)
    hub.fail("i", "again")
    hub.put("i", Status.PENDING)
    hub.watched["i"] = replace(hub.watched["i"], task_id="load", waiter="the retry of load")
    with pytest.raises(TaskDeferred) as again:
        one.finish(ti, status="Failed")
    assert again.value.trigger.owner is None
    assert one.start(ti.next_try()).trigger.owner is None
    assert hub.watched["i"].waiter == "the retry of load"


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("watched", [True, False])
def test_a_refused_rewind_gives_the_watch_row_back(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, watched: bool, wait: bool
) -> None:
    """The retry of the instance's task rewinds it at the same moment: the sweep must not end what it waits for."""
    failed(hub, **{"taskhub.owner": "o"})
    one = task(TaskHubRewindOperator, wait_for_completion=wait)
    task(TaskHubRewindOperator).start(Ti(task_id="load"))  # writes a watch row of another task
    load = replace(hub.watched.pop("i"), etag="")
    failed(hub, **{"taskhub.owner": "o"})
    if watched:
        hub.watched["i"] = load

    async def refused(self: FakeClient, instance_id: str, reason: str = "") -> Any:
        hub.put("i", Status.PENDING)
        raise InvalidStateError("instance 'i' is Pending: only a failed one can be rewound")

    monkeypatch.setattr(FakeClient, "rewind", refused)
    with pytest.raises(AirflowException, match="is Pending"):
        one.run(Ti())
    assert [replace(row, etag="") for row in hub.watched.values()] == ([load] if watched else [])


@pytest.mark.parametrize("status", [Status.FAILED, Status.RUNNING])
def test_the_result_of_another_start_is_not_the_rewinding_tasks(hub: FakeHub, status: Status) -> None:
    hub.put("i", status, tags={"taskhub.owner": "o"})
    one, ti = task(TaskHubRewindOperator), Ti()
    one.start(ti)
    hub.put("i", Status.COMPLETED, tags={"taskhub.owner": "another run"}, output="7")
    with pytest.raises(AirflowException, match="started again by another task or program: its result is gone"):
        one.finish(ti, status="Completed")


def test_what_no_airflow_task_has_started_is_not_ended_by_a_kill(hub: FakeHub) -> None:
    failed(hub)
    assert task(TaskHubRewindOperator).start(Ti()).trigger.owner is None
    assert not hub.watched


def test_a_repeated_rewind_looks_first(hub: FakeHub) -> None:
    failed(hub)
    one = task(TaskHubRewindOperator)
    for _ in range(2):
        one.start(Ti())
    assert len(hub.rewound) == 1
    hub.half_rewound.add("i")
    one.start(Ti())
    assert len(hub.rewound) == 2, "one that was interrupted goes on"
    hub.put("i", Status.RUNNING)
    one.start(Ti())
    hub.end("i", 7)
    assert one.run(Ti()) == 7
    failed(hub)
    one.start(Ti())
    assert len(hub.rewound) == 3
    hub.end("i", "no", status=Status.TERMINATED)
    with pytest.raises(AirflowException, match=r"is Terminated: only a failed instance can be rewound. Clear the task"):
        one.run(Ti())


@pytest.mark.parametrize(("final", "error"), [(False, AirflowException), (True, AirflowFailException)])
def test_a_rewind_that_fails_again_fails_the_task(hub: FakeHub, final: bool, error: type[Exception]) -> None:
    failed(hub)
    one = task(TaskHubRewindOperator)
    one.start(Ti())
    hub.fail("i", "42 rows rejected", final=final)
    with pytest.raises(error, match="instance i failed: ValueError: 42 rows rejected") as raised:
        one.finish(Ti(), status="Failed")
    assert type(raised.value) is error


# purge


def test_a_purge_counts_and_a_repeat_finds_nothing(hub: FakeHub) -> None:
    hub.end("i", 1)
    assert [task(TaskHubPurgeOperator).run(Ti()) for _ in range(2)] == [1, 0]
    hub.put("i", Status.RUNNING)
    with pytest.raises(AirflowException, match="terminate it first, then purge it"):
        task(TaskHubPurgeOperator).run(Ti())


def test_a_purge_of_many_selects_by_its_arguments(hub: FakeHub) -> None:
    hub.purges = PurgeResult(purged=7, complete=False)
    one = task(
        TaskHubPurgeOperator,
        instance_id=None,
        older_than=timedelta(days=30),
        statuses=["completed"],
        tags={"airflow.dag_id": "flights"},
        limit=7,
    )
    assert one.run(Ti()) == 7
    assert hub.asked.pop("created_to").tzinfo is not None
    wanted = {"statuses": (Status.COMPLETED,), "prefix": None, "tags": {"airflow.dag_id": "flights"}}
    assert hub.asked == wanted | {"limit": 7, "rate": None}


def test_a_purge_of_many_names_what_could_not_be_purged(hub: FakeHub) -> None:
    hub.purges = PurgeResult(purged=1, complete=False, failed={"x": "no answer"})
    with pytest.raises(AirflowException, match="1 purged, 1 could not be: x: no answer"):
        task(TaskHubPurgeOperator, instance_id=None, prefix="x").run(Ti())


def test_a_rendered_status_that_is_not_final_is_refused(hub: FakeHub) -> None:
    one = task(TaskHubPurgeOperator, instance_id=None, statuses=["{{ params.status }}"])
    one.operator.statuses = ["Running"]
    with pytest.raises(AirflowFailException, match="'Running' is not a final status"):
        one.run(Ti())
    assert not hub.requests
