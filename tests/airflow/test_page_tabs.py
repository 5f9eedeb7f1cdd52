"""The page's tabs Partitions, Workers, Limits and Quarantine: what they show to whom, and the orders."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import OrchestrationInstance
from airflow_provider_taskhub.hub.history.places import LimitKind, LimitState, Place
from airflow_provider_taskhub.hub.model import Control, ControlKind, Failover, OwnerState, PartitionState
from airflow_provider_taskhub.hub.queues.quarantine import Quarantined
from airflow_provider_taskhub.plugins.administration import ACTIONS, MOST_MESSAGES
from tests.airflow.fake import NOW, FakeHub, member
from tests.airflow.test_page_actions import ROLES, Page, audit_log, entries, page

__all__ = ["audit_log", "entries", "page"]  # the fixtures

MS = NOW.ticks / 10_000


def partition(number: int, owner: str | None = "a@host/1", **more: Any) -> PartitionState:
    fields: dict[str, Any] = {
        "partition": number,
        "queue": f"hub-control-0{number}",
        "owner": owner,
        "state": OwnerState.LIVE if owner else OwnerState.NEW,
        "next_owner": None,
        "draining": False,
        "epoch": 7,
        "owned_since": NOW,
        "last_renewal": NOW,
    }
    return PartitionState(**(fields | more))


def order(kind: ControlKind, **more: Any) -> Control:
    return Control(kind=kind, by="ann", at=NOW, **more)


def message(number: int = 0, **more: Any) -> Quarantined:
    fields: dict[str, Any] = {
        "queue": "hub-control-00",
        "message_id": f"m{number}",
        "cause": "ValueError: password=hunter2",
        "text": "",
        "dequeue_count": 20,
        "inserted": NOW,
        "instance_id": "mine",
        "since": NOW,
    }
    return Quarantined(**(fields | more))


def limit(name: str, kind: LimitKind, *ids: str, **more: Any) -> LimitState:
    places = {
        number: Place(key=name, number=number, held=True, instance=OrchestrationInstance(instance_id=one))
        for number, one in enumerate(ids)
    }
    return LimitState(name=name, kind=kind, declared=12, places=places, **more)


@pytest.fixture
def full(hub: FakeHub) -> FakeHub:
    failover = Failover(
        lost="b@host/2", taken_by="a@host/1", at=NOW, silent=0.4, proven=True, messages=4, instances=1, attempts=2
    )
    first = partition(0, messages=4, load=0.5, kicked="ann: password=hunter2", failover=failover)
    hub.serving = (first, partition(1, None, offline=True))
    hub.controls = (
        order(ControlKind.OFFLINE, partition=1, reason="token=hunter2"),
        order(ControlKind.DRAIN, node="a@host"),
        order(ControlKind.CAP, value=3),
    )
    hub.workers = (replace(member(), taken_over={"b@host/2": 3}), member("b@other/2", alive=False))
    hub.quarantine = (message(), message(1, stuck="e", instance_id=""))
    hub.limits = (
        limit(
            "load", LimitKind.ACTIVITY, *[f"i{number}" for number in range(12)], waiting=3, oldest=Timestamp(10_000_000)
        ),
        limit("nightly", LimitKind.INSTANCES, ordered=5, by="ann", waiting=0),
    )
    return hub


def get(page: Page, path: str, role: str = "admin") -> tuple[int, Any]:
    with page.as_(role) as client:
        answer = client.get(f"/api/{path}")
    return answer.status_code, answer.json()


def post(page: Page, path: str, body: Any, role: str = "admin") -> tuple[int, Any]:
    with page.as_(role) as client:
        answer = client.post(f"/api/{path}", json=body)
    return answer.status_code, answer.json()


# what the tabs show


def test_partitions_with_their_owners_and_orders(page: Page, full: FakeHub) -> None:
    status, answer = get(page, "partitions")
    first, second = answer["partitions"]
    assert (status, answer["hub"], answer["may"]) == (200, "TaskHub", True)
    assert first == {
        "partition": 0, "queue": "hub-control-00", "owner": "a@host/1", "state": "live", "next_owner": None,
        "draining": False, "epoch": 7, "owned_since": MS, "last_renewal": MS, "polled": None, "messages": 4,
        "load": 0.5, "kicked": "ann: password=***", "offline": False, "orders": [],
        "failover": {
            "lost": "b@host/2",
            "at": MS,
            "silent": 0.4,
            "proven": True,
            "messages": 4,
            "instances": 1,
            "attempts": 2,
        },
    }  # fmt: skip
    assert second["failover"] is None
    assert (second["owner"], second["state"], second["offline"]) == (None, "new", True)
    offline = {"kind": "offline", "text": "offline", "node": None, "by": "ann", "at": MS, "reason": "token=***"}
    assert second["orders"] == [offline]
    assert [one["text"] for one in answer["orders"]] == ["a@host is drained", "every worker: at most 3 partitions"]


def test_workers_with_their_apps_and_partitions(page: Page, full: FakeHub) -> None:
    _, answer = get(page, "workers")
    first, second = answer["workers"]
    assert (first["worker"], first["alive"], first["apps"], first["partitions"]) == (
        "a@host/1",
        True,
        {"flights": "3"},
        [0],
    )
    assert (first["taken_over"], second["taken_over"]) == ({"b@host/2": 3}, {})
    assert (first["drained"]["by"], first["orchestrators"]) == ("ann", ["flights_delays"])
    assert (second["alive"], second["partitions"], second["drained"]) == (False, [], None)


def test_limits_with_who_runs_and_how_many_wait(page: Page, full: FakeHub) -> None:
    _, answer = get(page, "limits")
    load, nightly = answer["limits"]
    assert load == {
        "kind": "activity", "name": "load", "limit": 12, "shown": "12", "declared": 12, "by": None, "running": 12,
        "waiting": 3, "oldest": 1_000.0, "ids": [f"i{number}" for number in range(10)], "more": 2,
    }  # fmt: skip
    assert (nightly["kind"], nightly["limit"], nightly["declared"], nightly["by"]) == ("instances", 5, 12, "ann")


def test_limits_are_for_those_who_may_edit_runs(page: Page, full: FakeHub) -> None:
    seen = {}
    for role in ROLES:
        status, answer = get(page, "limits", role)
        ids = answer["limits"][0]["ids"] is not None if status == 200 else None
        seen[role] = status, ids, post(page, "limit/set", ORDERS["limit/set"], role)[0]
    assert seen == {
        "viewer": (403, None, 403), "user": (200, False, 200), "op": (200, True, 200), "admin": (200, True, 200)
    }  # fmt: skip
    assert len(full.ordered) == 3


def test_quarantine_with_causes_and_bounded(page: Page, full: FakeHub) -> None:
    _, answer = get(page, "quarantine")
    assert answer["messages"][0] == {
        "id": "m0", "queue": "hub-control-00", "instance": "mine", "since": MS, "inserted": MS, "deliveries": 20,
        "cause": "ValueError: password=***", "stuck": False,
    }  # fmt: skip
    assert (answer["messages"][1]["stuck"], answer["more"]) == (True, False)
    full.quarantine = tuple(message(number, since=Timestamp(number)) for number in range(MOST_MESSAGES + 50))
    full.requests.clear()
    with page.as_("admin") as client:
        answer = client.get("/api/quarantine").json()
    assert (len(answer["messages"]), answer["more"]) == (MOST_MESSAGES, True)


def test_what_belongs_to_dags_is_for_administrators(page: Page, full: FakeHub) -> None:
    seen = {}
    for role in ROLES:
        partitions, workers = get(page, "partitions", role), get(page, "workers", role)
        names = workers[1]["workers"][0]["orchestrators"]
        seen[role] = partitions[0], workers[0], names is not None, workers[1]["may"], get(page, "quarantine", role)[0]
    reader, administrator = (200, 200, False, False, 403), (200, 200, True, True, 200)
    assert seen == {"viewer": reader, "user": reader, "op": administrator, "admin": administrator}


# orders

ORDERS: dict[str, dict[str, Any]] = {
    "partition/kick": {"partition": 0},
    "partition/offline": {"partition": 0},
    "partition/online": {"partition": 1},
    "worker/drain": {"worker": "a@host"},
    "worker/undrain": {"worker": "a@host"},
    "limit/set": {"name": "load", "kind": "activity", "number": 4},
    "message/put-back": {"id": "m0"},
    "message/drop": {"id": "m0"},
}


def test_there_is_a_test_for_each_order() -> None:
    assert set(ORDERS) == {f"{thing}/{name}" for thing, names in ACTIONS.items() for name in names}


@pytest.mark.parametrize(
    ("path", "told", "done"),
    [
        ("partition/kick", "a@host/1 is asked to hand partition 0 over", ("kick", "op (Airflow)", 0, "why")),
        ("partition/offline", "Partition 0 goes offline", ("offline", "op (Airflow)", [0], "why")),
        ("partition/online", "Partition 1 is online again", ("online", "op (Airflow)", [1])),
        ("worker/drain", "a@host hands over its partitions", ("drain", "op (Airflow)", "a@host", "why")),
        ("worker/undrain", "a@host may take partitions again", ("undrain", "op (Airflow)", "a@host")),
        ("limit/set", "At most 4 run at once", ("limit", "op (Airflow)", "load", "activity", 4)),
        ("message/put-back", "The message is in its queue again", ("put_back", "m0")),
        ("message/drop", "The message is deleted", ("drop", "m0")),
    ],
)
def test_an_order_reaches_the_hub_with_the_name_of_who_gave_it(
    page: Page, full: FakeHub, entries: Any, path: str, told: str, done: tuple[Any, ...]
) -> None:
    status, answer = post(page, path, ORDERS[path] | {"reason": "why"}, "op")
    assert (status, answer["text"].startswith(told)) == (200, True), answer
    assert full.ordered == [done]
    (entry,) = entries()
    assert (entry.event, entry.owner, entry.dag) == (f"taskhub.{path.replace('/', '.')}", "op", None)
    assert entry.extra == {"hub": "TaskHub", "reason": "why"} | ORDERS[path]


@pytest.mark.parametrize("path", [path for path in ORDERS if path != "limit/set"])
def test_orders_about_the_hub_are_for_administrators(page: Page, full: FakeHub, entries: Any, path: str) -> None:
    assert [post(page, path, ORDERS[path], role)[0] for role in ("viewer", "user")] == [403, 403]
    assert (full.ordered, entries()) == ([], [])
    with page.as_("admin") as client:
        form = client.post(f"/api/{path}", data={"id": "m0"})
    assert (form.status_code, full.ordered) == (415, [])


@pytest.mark.parametrize(
    ("path", "body", "status", "told"),
    [
        ("partition/kick", {"partition": 0, "epoch": 6}, 409, "has another owner meanwhile"),
        ("partition/kick", {"partition": 1}, 409, "no worker owns partition 1"),
        ("partition/kick", {"partition": 9}, 404, "hub 'TaskHub' has partitions 0 to 3, not 9"),
        ("partition/kick", {"partition": -1}, 422, "partition: Input should be greater than or equal to 0"),
        ("partition/online", {"partition": 0}, 409, "is not offline by order"),
        ("worker/drain", {"worker": "gone@host"}, 404, "no worker has the name 'gone@host' now"),
        ("worker/undrain", {"worker": "b@other"}, 409, "b@other is not drained"),
        ("limit/set", {"name": "gone", "kind": "activity", "number": 1}, 422, "'gone' is the name of no limit"),
        ("limit/set", {"name": "load", "kind": "activity", "number": 0}, 422, "number: Input should be greater"),
        (
            "limit/set",
            {"name": "load", "kind": "other"},
            422,
            "kind: Input should be 'activity', 'rate' or",
        ),
        ("message/put-back", {"id": "gone"}, 404, "somebody has put it back or dropped it"),
        ("message/drop", {"id": "gone"}, 404, "somebody has put it back or dropped it"),
        ("message/burn", {"id": "m0"}, 404, "no action message/burn"),
    ],
)
def test_an_order_that_is_no_longer_right_is_refused(
    page: Page, full: FakeHub, path: str, body: Any, status: int, told: str
) -> None:
    code, answer = post(page, path, body)
    assert (code, told in answer["detail"]) == (status, True), answer
    assert full.ordered == []


def test_a_kick_of_the_owner_that_the_user_saw_is_carried_out(page: Page, full: FakeHub) -> None:
    assert post(page, "partition/kick", {"partition": 0, "epoch": 7})[0] == 200


def test_the_tabs_are_pages(page: Page, hub: FakeHub) -> None:
    with page.as_("viewer") as client:
        for name in ("partitions", "workers", "limits", "quarantine"):
            text = client.get(f"/page/{name}").text
            assert f"/taskhub/page/assets/{name}.js" in text
            assert client.get(f"/page/assets/{name}.js").status_code == 200
        assert client.get("/page/secrets").status_code == 404
