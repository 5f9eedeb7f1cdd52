"""The parts of an instance's page: its parent, its children, its history in parts, and why it stands still."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_taskhub.engine import events
from airflow_provider_taskhub.engine.events import (
    FailureDetails,
    HistoryEvent,
    OrchestrationInstance,
    ParentInstance,
    Status,
)
from airflow_provider_taskhub.engine.pending_waits import AwaitedEvent, Awaits
from airflow_provider_taskhub.plugins import instance_parts, json_views, web
from tests.airflow.fake import NOW, FakeHub
from tests.airflow.test_page_actions import TAGS, Page, audit_log, entries, page

__all__ = ["audit_log", "entries", "page"]  # the fixtures

OTHER = {"airflow.dag_id": "other"}


def started(instance_id: str = "mine", parent: str | None = None) -> HistoryEvent:
    family = ParentInstance(name="year", instance=OrchestrationInstance(instance_id=parent), task_schedule_id=3)
    return events.ExecutionStarted(
        timestamp=NOW,
        instance=OrchestrationInstance(instance_id=instance_id, execution_id="e"),
        name="flights_delays",
        parent=family if parent else None,
    )


def born(number: int) -> HistoryEvent:
    return events.SubOrchestrationInstanceCreated(
        timestamp=NOW, event_id=number, name="month", instance_id=f"mine:{number}", input="1"
    )


def get(page: Page, path: str, role: str = "user") -> tuple[int, Any]:
    with page.as_(role) as client:
        answer = client.get(f"/api/{path}")
    return answer.status_code, answer.json()


@pytest.mark.parametrize(
    ("tags", "role", "parent"),
    [
        (TAGS, "user", {"id": "year", "name": "flights_delays", "status": "Running"}),
        (OTHER, "user", None),
        (OTHER, "op", {"id": "year", "name": "flights_delays", "status": "Running"}),
    ],
)
def test_the_parent_is_there_for_those_who_may_see_it(
    page: Page, hub: FakeHub, tags: Any, role: str, parent: Any
) -> None:
    hub.put("mine", Status.RUNNING, tags=TAGS, created=NOW)
    hub.put("year", Status.RUNNING, tags=tags)
    hub.histories["mine"] = [started(parent="year")]
    assert get(page, "instance?id=mine", role)[1]["parent"] == parent


def test_an_instance_without_a_parent_or_with_a_purged_one_has_none(page: Page, hub: FakeHub) -> None:
    hub.put("mine", Status.RUNNING, tags=TAGS)
    assert get(page, "instance?id=mine")[1]["parent"] is None
    hub.histories["mine"] = [started()]
    assert get(page, "instance?id=mine")[1]["parent"] is None
    hub.histories["mine"] = [started(parent="gone")]
    assert get(page, "instance?id=mine")[1]["parent"] is None


def test_children_come_in_parts_with_their_status(page: Page, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_parts, "MOST_CHILDREN", 2)
    hub.put("mine", Status.RUNNING, tags=TAGS)
    hub.histories["mine"] = [started(), born(0), born(1), born(2), born(3)]
    hub.put("mine:0", Status.COMPLETED, tags=TAGS, name="month", created=NOW, completed=NOW)
    hub.put("mine:2", Status.RUNNING, tags=OTHER)
    hub.put(
        "mine:3", Status.FAILED, tags=TAGS, failure=FailureDetails(error_type="ValueError", error_message="no data")
    )
    _, first = get(page, "instance/children?id=mine")
    assert [(one["id"], one["name"], one["status"]) for one in first["children"]] == [
        ("mine:0", "month", "Completed"),
        ("mine:1", "month", None),
    ]
    assert first["children"][0]["ended"] == first["children"][0]["created"]
    _, rest = get(page, f"instance/children?id=mine&after={first['after']}")
    assert [(one["id"], one["status"], one["now"]) for one in rest["children"]] == [
        ("mine:3", "Failed", "ValueError: no data")
    ], "mine:2 belongs to a DAG that the user may not read"
    assert rest["after"] is None


@pytest.mark.parametrize("path", ["instance/children?", "instance/history?before=3&"])
@pytest.mark.parametrize(("instance_id", "tags"), [("mine", OTHER), ("mine", None), ("nobodys", TAGS)])
def test_parts_of_what_a_user_may_not_see_are_not_there(
    page: Page, hub: FakeHub, path: str, instance_id: str, tags: Any
) -> None:
    hub.put("mine", Status.RUNNING, tags=tags)
    assert get(page, f"{path}id={instance_id}")[0] == 404


def test_a_long_history_is_read_and_shown_in_parts(page: Page, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_views, "MOST_EVENTS", 3)
    monkeypatch.setattr(web, "MOST_DRAWN", 5)
    hub.put("mine", Status.RUNNING, tags=TAGS)
    hub.histories["mine"] = [started(), *(born(number) for number in range(1, 10))]
    _, answer = get(page, "instance?id=mine")
    numbers = [event["n"] for event in answer["history"]["events"]]
    assert (numbers, answer["history"]["first"], answer["history"]["total"]) == ([9, 8, 7], 7, 10)
    assert answer["history"]["execution"] == "e"
    assert (len(answer["timeline"]["lanes"]), answer["timeline"]["first"]) == (5, 5)
    _, part = get(page, "instance/history?id=mine&before=7")
    assert ([event["n"] for event in part["events"]], part["first"]) == ([6, 5, 4], 4)
    _, part = get(page, "instance/history?id=mine&before=1")
    assert ([(event["n"], event["event"]) for event in part["events"]], part["first"]) == (
        [(0, "ExecutionStarted")],
        0,
    )


def test_payloads_of_earlier_events_are_hidden_like_all_others(page: Page, hub: FakeHub) -> None:
    hub.put("mine", Status.RUNNING, tags=TAGS)
    given = '{"password": "hunter2"}'
    hub.histories["mine"] = [events.EventRaised(timestamp=NOW, name="go", input=given)]
    _, part = get(page, "instance/history?id=mine&before=1")
    assert "hunter2" not in part["events"][0]["payload"]


def test_awaited_events_are_named_and_a_fault_names_the_tab(page: Page, hub: FakeHub) -> None:
    hub.put("mine", Status.RUNNING, tags=TAGS, custom_status='"quality gate"')
    hub.awaits["mine"] = Awaits(events=(AwaitedEvent(name="approve", since=NOW),))
    _, answer = get(page, "instance?id=mine")
    (event,) = answer["instance"]["waits"]
    assert (event["kind"], event["events"], event["fault"], event["tab"]) == ("event", ["approve"], False, None)
    assert answer["instance"]["custom_line"] == "quality gate"
    hub.put("other", Status.RUNNING, tags=TAGS, name="unknown")
    (lack,) = get(page, "instance?id=other")[1]["instance"]["waits"]
    assert (lack["kind"], lack["fault"], lack["tab"]) == ("no_worker_knows_orchestrator", True, "workers")
    assert lack["remedy"]
