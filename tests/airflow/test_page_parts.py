"""The parts of an instance's page: its parent, its children, its history in parts, and why it stands still."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
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
from airflow_provider_taskhub.hub.history.places import LimitKind, LimitState, Place
from airflow_provider_taskhub.hub.model import Member, Ownership, OwnerState, RecordState
from airflow_provider_taskhub.hub.waiting.reasons import QuarantinedMessage
from airflow_provider_taskhub.instance_limit import InstanceLimit
from airflow_provider_taskhub.lineage import Lineage
from airflow_provider_taskhub.plugins import instance_parts, json_views, shown_instances, web
from tests.airflow.fake import NOW, FakeHub, member, record
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


def declared(
    *inlets: str, written: tuple[str, ...] = (), state: RecordState = RecordState.COMPLETED, **more: Any
) -> Any:
    return record(state, lineage=Lineage(inlets=inlets, outlets=written), **more)


def test_the_data_of_completed_activities_of_all_generations_without_one_more_request(page: Page, hub: FakeHub) -> None:
    hub.put("mine", Status.RUNNING, tags=TAGS)
    hub.records["mine"] = (
        declared("s3://b/2", "s3://b/1", written=("s3://b/out",)),
        declared("s3://b/1", written=("s3://b/old",), execution="earlier"),
        declared("s3://b/lost", state=RecordState.LOST, task_id=1),
    )
    _, answer = get(page, "instance?id=mine")
    assert answer["lineage"] == {"inlets": ["s3://b/1", "s3://b/2"], "outlets": ["s3://b/old", "s3://b/out"], "more": 0}
    assert [one["lineage"]["outlets"] for one in answer["activities"]] == [["s3://b/out"], []]
    assert (hub.requests["activities"], hub.requests["lineage"]) == (1, 0)


def test_uris_are_masked_bounded_and_hidden_as_all_payloads(
    page: Page, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_views, "MOST_URIS", 2)
    hub.put("mine", Status.RUNNING, tags=TAGS)
    hub.records["mine"] = (declared(*(f"s3://b/{n}?token=hush" for n in range(5)), written=("s3://b/out",)),)
    _, answer = get(page, "instance?id=mine")
    assert answer["lineage"] == {
        "inlets": ["s3://b/0?token=***", "s3://b/1?token=***"], "outlets": ["s3://b/out"], "more": 3
    }  # fmt: skip
    monkeypatch.setattr(shown_instances, "require", _refuses)
    _, answer = get(page, "instance?id=mine")
    hidden = {"inlets": [shown_instances.HIDDEN], "outlets": [shown_instances.HIDDEN], "more": 0}
    assert [answer["lineage"], answer["activities"][0]["lineage"]] == [hidden, hidden]


def _refuses(*_: Any) -> None:
    from fastapi import HTTPException

    raise HTTPException(403, "not yours")


OWNED = Ownership(partition=2, owner="b@other/2", state=OwnerState.LIVE)


@dataclass(frozen=True, kw_only=True)
class Standstill:
    """Why an instance stands still, and what is said about it.

    :param state: fields of its row. :param workers: those of the hub. :param facts: as :attr:`FakeHub.facts`.
    :param text: how the text on its page begins. :param listed: the same for the list, if it says less.
    """

    state: dict[str, Any] = field(default_factory=dict)
    workers: tuple[Member, ...] = (member(),)
    facts: dict[str, Any] = field(default_factory=dict)
    text: str
    listed: str = ""
    remedy: str
    tab: str | None


_FIRST = Place(key="", number=0, held=True, instance=OrchestrationInstance(instance_id="first", execution_id="e"))
NIGHTLY = LimitState(name="nightly", kind=LimitKind.INSTANCES, declared=1, places={0: _FIRST})
STANDSTILLS = {
    "no worker knows it": Standstill(
        state={"name": "unknown"},
        text="no live worker knows orchestrator 'unknown'. Alive: a@host/1 (flights 3)",
        remedy="Correct the name, or start a worker with the app that declares it: taskhub worker --app MODULE:APP",
        tab="workers",
    ),
    "wrong version": Standstill(
        state={"version": "7"},
        workers=(replace(member(), accepts={"flights_delays": ("3",)}),),
        text="no live worker accepts version '7' of orchestrator 'flights_delays'. Alive: a@host/1",
        remedy="Start a worker whose app has that version, or declares it compatible",
        tab="workers",
    ),
    "the owner of its partition lacks the app": Standstill(
        workers=(member(), member("b@other/2", "else")),
        facts={"served": OWNED},
        text="partition 2 is owned by b@other/2, which cannot run orchestrator 'flights_delays'; a@host/1 can run it",
        remedy="Load the same apps in all workers of the hub",
        tab="partitions",
    ),
    "suspended": Standstill(
        state={"status": Status.SUSPENDED, "suspended_by": "ann@node7", "output": "payday"},
        text="suspended by ann@node7: payday",
        listed="suspended by ann@node7",  # the reason is a payload, which a list need not read
        remedy="To resume it: taskhub instances resume mine",
        tab=None,
    ),
    "in quarantine": Standstill(
        facts={"quarantined": (QuarantinedMessage(message_id="m7", cause="ValueError: token=hush", stuck=True),)},
        text="it is in quarantine: ValueError: token=***",
        remedy="Fix the cause, then: taskhub quarantine put-back m7",
        tab="quarantine",
    ),
    "no place of its limit": Standstill(
        state={"status": Status.PENDING, "tags": TAGS | InstanceLimit(name="nightly", instances=1).tags},
        facts={"limits": {(LimitKind.INSTANCES, "nightly"): NIGHTLY}},
        text="its turn: at most 1 instance with the limit 'nightly' run at once, now first",
        remedy="",
        tab="limits",
    ),
    "offline": Standstill(
        facts={"served": replace(OWNED, offline=True), "offline_by": "ann", "offline_reason": "new disk"},
        text="partition 2 was taken offline by ann (new disk)",
        remedy="To bring it back: taskhub partitions online 2",
        tab="partitions",
    ),
}


WISHED = ("suspended", "no place of its limit")


@pytest.mark.parametrize("name", STANDSTILLS)
def test_why_an_instance_stands_still_is_said_in_the_list_and_on_its_page(page: Page, hub: FakeHub, name: str) -> None:
    case = STANDSTILLS[name]
    hub.put("mine", **({"status": Status.RUNNING, "tags": TAGS} | case.state))
    hub.workers, hub.facts["mine"] = case.workers, case.facts
    (row,) = get(page, "instances?window=all")[1]["rows"]
    assert row["now"].startswith(f"waits: {case.listed or case.text}")
    said = get(page, "instance?id=mine")[1]["instance"]
    (note,) = said["waits"]
    assert note["text"].startswith(case.text)
    assert (note["remedy"], note["tab"]) == (case.remedy, case.tab)
    assert row["fault"] == said["fault"] == note["fault"] == (name not in WISHED), "somebody wants it so"
