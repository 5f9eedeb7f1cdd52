"""Orders to all instances that match the list's filter: what they would change, rights, results and the audit log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import InvalidStateError, Unavailable
from airflow_provider_taskhub.plugins import batches
from tests.airflow.fake import NOW, FakeHub
from tests.airflow.test_page_actions import TAGS, Page, audit_log, entries, page

__all__ = ["audit_log", "entries", "page"]  # the fixtures

OTHER = {"airflow.dag_id": "other"}


def get(page: Page, path: str, role: str = "user") -> tuple[int, Any]:
    with page.as_(role) as client:
        answer = client.get(f"/api/{path}")
    return answer.status_code, answer.json()


def post(page: Page, action: str, targets: Any, role: str = "user", **more: Any) -> tuple[int, Any]:
    with page.as_(role) as client:
        answer = client.post(f"/api/instances/{action}", json={"targets": targets, **more})
    return answer.status_code, answer.json()


def codes(answer: tuple[int, Any]) -> list[tuple[str, int]]:
    assert answer[0] == 200, answer
    return [(one["id"], one["code"]) for one in answer[1]["results"]]


def test_targets_are_what_matches_and_what_the_order_and_the_user_may_change(page: Page, hub: FakeHub) -> None:
    hub.put("a", Status.RUNNING, tags=TAGS, created=NOW)
    hub.put("b", Status.COMPLETED, tags=TAGS)
    hub.put("c", Status.RUNNING, tags=TAGS, name="load")
    hub.put("d", Status.RUNNING, tags=OTHER)
    hub.put("e", Status.SUSPENDED, tags=TAGS)
    status, answer = get(page, "targets?action=terminate&window=all")
    assert status == 200
    assert answer["targets"] == [
        {"id": "a", "execution": "e", "status": "Running"},
        {"id": "c", "execution": "e", "status": "Running"},
        {"id": "e", "execution": "e", "status": "Suspended"},
    ]
    assert {name: answer[name] for name in ("matching", "able", "forbidden", "after", "capped")} == {
        "matching": 4, "able": 3, "forbidden": 0, "after": None, "capped": False,
    }  # fmt: skip

    def ids(query: str, role: str = "user") -> list[str]:
        return [one["id"] for one in get(page, f"targets?window=all&{query}", role)[1]["targets"]]

    assert ids("action=terminate&text=load") == ["c"]
    assert ids("action=terminate&status=running") == ["a", "c"]
    assert ids("action=resume") == ["e"]
    assert ids("action=purge") == ["b"]
    assert ids("action=terminate", "op") == ["a", "c", "d", "e"]


def test_who_may_only_look_has_no_targets_and_no_orders(page: Page, hub: FakeHub) -> None:
    hub.put("a", Status.RUNNING, tags=TAGS)
    _, answer = get(page, "targets?action=terminate&window=all", "viewer")
    assert (answer["targets"], answer["matching"], answer["forbidden"]) == ([], 1, 1)
    assert get(page, "orders", "viewer")[1]["orders"] == []
    assert get(page, "orders", "user")[1]["orders"] == list(batches.BATCHES)


def test_targets_come_in_parts_that_do_not_move(page: Page, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MOST_TARGETS", 2)
    for name in "abcde":
        hub.put(name, Status.RUNNING, tags=TAGS)
    parts, after = [], ""
    while after is not None:
        _, answer = get(page, f"targets?action=suspend&window=all&after={after}")
        parts.append([one["id"] for one in answer["targets"]])
        assert answer["able"] == 5
        after = answer["after"]
    assert parts == [["a", "b"], ["c", "d"], ["e"]]


@pytest.mark.parametrize("query", ["action=raise-event", "action=terminate&window=year", "action=purge&status=Lost"])
def test_a_filter_or_order_that_does_not_exist_is_refused(page: Page, query: str) -> None:
    assert get(page, f"targets?{query}")[0] == 422


def test_each_instance_of_a_batch_is_checked_ordered_and_audited_by_itself(
    page: Page, hub: FakeHub, entries: Callable[[], list[Any]]
) -> None:
    hub.put("mine", Status.RUNNING, tags=TAGS)
    hub.put("again", Status.RUNNING, tags=TAGS, execution_id="f")
    hub.put("hidden", Status.RUNNING, tags=OTHER)
    answer = post(
        page,
        "terminate",
        [
            {"id": "mine", "execution": "e", "status": "Running"},
            {"id": "again", "execution": "e"},
            {"id": "hidden"},
            {"id": "nobodys"},
        ],
        reason="wrong year",
        children=False,
    )
    assert codes(answer) == [("mine", 200), ("again", 409), ("hidden", 404), ("nobodys", 404)]
    assert "started again meanwhile" in answer[1]["results"][1]["text"]
    assert hub.ordered == [("terminate", "mine", "from Airflow: user on TaskHub's page: wrong year", False)]
    (entry,) = entries()
    assert (entry.event, entry.owner, entry.dag, entry.extra["instance_id"]) == (
        "taskhub.terminate", "user", "flights", "mine",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("action", "status"),
    [
        ("terminate", Status.RUNNING), ("suspend", Status.RUNNING), ("resume", Status.SUSPENDED),
        ("rewind", Status.FAILED), ("restart", Status.COMPLETED), ("purge", Status.COMPLETED),
    ],
)  # fmt: skip
def test_every_order_over_a_filter_reaches_the_hub(page: Page, hub: FakeHub, action: str, status: Status) -> None:
    hub.put("a", status, tags=TAGS)
    hub.put("b", status, tags=TAGS)
    _, answer = get(page, f"targets?window=all&action={action}")
    assert codes(post(page, action, answer["targets"])) == [("a", 200), ("b", 200)]
    assert sorted(done[:2] for done in hub.ordered) == [(action, "a"), (action, "b")]


def test_a_repair_over_a_filter_clears_each_task(page: Page, hub: FakeHub) -> None:
    for name in "ab":
        hub.put(name, Status.FAILED, tags=TAGS | {"airflow.run_id": name})
    hub.put("c", Status.FAILED)
    _, answer = get(page, "targets?window=all&action=repair", role="admin")
    assert codes(post(page, "repair", answer["targets"])) == [("a", 200), ("b", 200)]
    assert sorted(body["dag_run_id"] for _, _, body in page.airflow.asked if not body["dry_run"]) == ["a", "b"]


def test_a_user_without_the_right_is_refused_for_each_instance(
    page: Page, hub: FakeHub, entries: Callable[[], list[Any]]
) -> None:
    hub.put("mine", Status.RUNNING, tags=TAGS)
    assert codes(post(page, "terminate", [{"id": "mine"}], "viewer")) == [("mine", 403)]
    assert (hub.ordered, entries()) == ([], [])


@pytest.mark.parametrize(
    ("error", "code"), [(InvalidStateError("has ended"), 409), (Unavailable("no answer", maybe_done=True), 503)]
)
def test_a_refusal_of_the_hub_does_not_stop_the_others(page: Page, hub: FakeHub, error: Exception, code: int) -> None:
    hub.put("mine", Status.RUNNING, tags=TAGS)
    hub.refuses = error
    assert codes(post(page, "suspend", [{"id": "mine"}, {"id": "nobodys"}])) == [("mine", code), ("nobodys", 404)]


@pytest.mark.parametrize(
    ("action", "targets", "more", "status"),
    [
        ("terminate", [], {}, 422),
        ("terminate", [{"id": f"i{n}"} for n in range(batches.MOST_ORDERS + 1)], {}, 422),
        ("terminate", [{"id": "a"}, {"id": "a"}], {}, 422),
        ("terminate", [{"id": "a", "reason": "x"}], {}, 422),
        ("suspend", [{"id": "a"}], {"children": True}, 422),
        ("restart", [{"id": "a"}], {"new_id": True}, 422),
        ("raise-event", [{"id": "a"}], {}, 404),
    ],
)
def test_what_is_no_batch_is_refused_as_a_whole(
    page: Page, hub: FakeHub, action: str, targets: Any, more: Any, status: int
) -> None:
    assert post(page, action, targets, **more)[0] == status
    assert hub.ordered == []


def test_a_batch_needs_the_content_type_json(page: Page, hub: FakeHub) -> None:
    with page.as_("user") as client:
        assert client.post("/api/instances/terminate", content='{"targets": [{"id": "a"}]}').status_code == 415
