"""Orders of the page's users to one instance: who may give them, what is refused, and what Airflow's audit log says."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.engine.identity import next_execution_id
from airflow_provider_taskhub.errors import InputError, InstanceExists, InstanceNotFound, InvalidStateError, Unavailable
from airflow_provider_taskhub.plugins import clearing, orders
from airflow_provider_taskhub.plugins.actions import ACTIONS, actions_of
from tests.airflow.fake import NOW, FakeHub

TAGS = {
    "airflow.dag_id": "flights",
    "airflow.run_id": "r",
    "airflow.task_id": "hub",
    "airflow.map_index": "3",
}
ROLES = ("viewer", "user", "op", "admin")
"""The roles of Airflow's SimpleAuthManager. The users of the tests have the names of their roles."""
STATUS = {"repair": Status.FAILED, "rewind": Status.FAILED, "restart": Status.COMPLETED, "purge": Status.COMPLETED}
"""The status that an instance must have for an action; Running for all others."""


@pytest.fixture(scope="session")
def audit_log() -> None:
    from airflow import settings
    from airflow.models import Log

    settings.configure_orm()
    Log.__table__.create(bind=settings.engine, checkfirst=True)


@pytest.fixture
def entries(audit_log: None) -> Callable[[], list[Any]]:
    from airflow.models import Log
    from airflow.utils.session import create_session
    from sqlalchemy import delete, select

    def read() -> list[Any]:
        with create_session() as session:
            found = session.scalars(select(Log).order_by(Log.id)).all()
            return [
                SimpleNamespace(
                    event=one.event, owner=one.owner, dag=one.dag_id, run=one.run_id, task=one.task_id,
                    index=one.map_index, extra=json.loads(one.extra),
                )
                for one in found
            ]  # fmt: skip

    with create_session() as session:
        session.execute(delete(Log))
    return read


@dataclass
class AirflowApi:
    """Airflow's own API, as far as the page uses it. :ivar asked: path, headers and body of each request."""

    answer: tuple[int, Any] = (200, {"task_instances": [{"task_id": "hub", "map_index": 3}, {"task_id": "report"}]})
    asked: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        body = json.loads((await receive())["body"])
        self.asked.append((scope["raw_path"].decode(), headers, body))
        status, answer = self.answer
        content = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": content})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


@dataclass
class Page:
    """The page's application with Airflow's own SimpleAuthManager, used by one user."""

    app: Any
    airflow: AirflowApi

    def as_(self, role: str) -> Any:
        from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
        from airflow.api_fastapi.core_api import security
        from fastapi.testclient import TestClient

        user = SimpleAuthManagerUser(username=role, role=role)
        self.app.dependency_overrides[security.get_user] = lambda: user
        return TestClient(self.app)

    def post(self, action: str, order: Any = None, role: str = "user", **more: Any) -> tuple[int, Any]:
        body = {"id": "mine"} | (order or {})
        if action == "raise-event":
            body = {"name": "go"} | body
        with self.as_(role) as client:
            answer = client.post(f"/api/instance/{action}", **(more or {"json": body}))
        return answer.status_code, answer.json()


@pytest.fixture
def page(hub: FakeHub, entries: Any, monkeypatch: pytest.MonkeyPatch) -> Page:
    import airflow.api_fastapi.app
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
    from airflow.api_fastapi.core_api import security

    from airflow_provider_taskhub.plugins.web import make_app

    manager = SimpleAuthManager()
    monkeypatch.setattr(manager, "get_authorized_dag_ids", lambda *, user, method: {"flights"})
    monkeypatch.setattr(airflow.api_fastapi.app, "get_auth_manager", lambda: manager)
    monkeypatch.setattr(security, "get_auth_manager", lambda: manager)
    monkeypatch.setattr(security.DagModel, "get_team_name", staticmethod(lambda dag_id: None))
    airflow = AirflowApi()
    monkeypatch.setattr(clearing, "_airflow", lambda: airflow)
    return Page(make_app(), airflow)


def put(hub: FakeHub, action: str = "", **more: Any) -> None:
    hub.put("mine", STATUS.get(action, Status.RUNNING), **({"tags": TAGS, "created": NOW} | more))


# what an order does


@pytest.mark.parametrize(
    ("action", "order", "expected"),
    [
        ("terminate", {"reason": " wrong year "}, ("from Airflow: user on TaskHub's page: wrong year", True)),
        ("terminate", {"children": False}, ("from Airflow: user on TaskHub's page", False)),
        ("suspend", {"reason": "x"}, ("from Airflow: user on TaskHub's page: x", "user (Airflow)")),
        ("resume", {"reason": "x"}, ("from Airflow: user on TaskHub's page: x",)),
        ("rewind", {"reason": "x"}, ("from Airflow: user on TaskHub's page: x",)),
        ("restart", {}, (False,)),
        ("restart", {"new_id": True}, (True,)),
        ("raise-event", {"name": "approve", "data": {"by": "ann"}}, ("approve", {"by": "ann"})),
        ("raise-event", {"name": "approve"}, ("approve", None)),
        ("purge", {}, ()),
    ],
)
def test_an_order_reaches_the_hub_with_the_users_name(
    page: Page, hub: FakeHub, action: str, order: Any, expected: tuple[Any, ...]
) -> None:
    put(hub, action)
    shown = "new" if order.get("new_id") else "mine"
    assert page.post(action, order) == (200, {"id": shown, "text": ACTIONS[action].done})
    assert hub.ordered == [(action.replace("-", "_"), "mine", *expected)]


def test_after_an_order_the_page_shows_the_new_state_at_once(page: Page, hub: FakeHub) -> None:
    """Answers are kept for 1.5 s; the one from before the order must not be shown after it."""
    put(hub)
    with page.as_("user") as client:
        assert client.get("/api/instance?id=mine").json()["instance"]["status"] == "Running"
        assert client.post("/api/instance/suspend", json={"id": "mine"}).status_code == 200
        hub.put("mine", Status.SUSPENDED, created=NOW)
        assert client.get("/api/instance?id=mine").json()["instance"]["status"] == "Suspended"


# repair: the one order that goes to Airflow


@pytest.mark.parametrize(("index", "ids"), [("3", [["hub", 3]]), ("-1", ["hub"])])
def test_a_repair_clears_the_task_in_the_users_name(page: Page, hub: FakeHub, index: str, ids: Any) -> None:
    put(hub, "repair", tags=TAGS | {"airflow.map_index": index})
    page.airflow.answer = (200, {"task_instances": [{"task_id": "hub", "map_index": int(index)}]})
    sent = {"authorization": "Bearer x", "cookie": "_token=y", "x-other": "z"}
    status, answer = page.post("repair", json={"id": "mine", "reason": "file is there"}, headers=sent)
    assert (status, answer["text"]) == (200, ACTIONS["repair"].done)
    (_, _, first), (path, headers, body) = page.airflow.asked
    assert first == body | {"dry_run": True}, "it looks before it clears"
    assert path == "/api/v2/dags/flights/clearTaskInstances"
    assert (headers["authorization"], headers["cookie"], "x-other" in headers) == ("Bearer x", "_token=y", False)
    assert body == {
        "dry_run": False,
        "dag_run_id": "r",
        "task_ids": ids,
        "only_failed": True,
        "include_downstream": True,
        "reset_dag_runs": True,
        "note": "from Airflow: user on TaskHub's page: file is there",
    }
    assert [done[:2] for done in hub.ordered] == [("rewind", "mine")], "whatever on_clear is, the task waits for it"


@pytest.mark.parametrize(
    ("answer", "status", "told"),
    [
        (
            (200, {"task_instances": []}),
            409,
            "task 'hub' of run 'r' has not failed, so there is nothing to clear. If a retry",
        ),
        ((200, {"task_instances": [{"task_id": "report"}]}), 409, "task 'hub' of run 'r' has not failed"),
        ((403, {"detail": "Forbidden"}), 403, "Airflow refuses to clear the task: Forbidden"),
        ((404, {"detail": "Dag Run id r not found"}), 404, "Airflow refuses to clear the task: Dag Run id r not found"),
        ((500, "broken"), 500, "Airflow refuses to clear the task: "),
    ],
)
def test_a_repair_that_airflow_refuses_says_why(
    page: Page, hub: FakeHub, answer: tuple[int, Any], status: int, told: str
) -> None:
    put(hub, "repair")
    page.airflow.answer = answer
    found, said = page.post("repair")
    assert found == status
    assert [body["dry_run"] for _, _, body in page.airflow.asked] == [True], "nothing is cleared"
    assert told in said["detail"]
    assert hub.ordered == []


@pytest.mark.parametrize(
    ("ids", "status"),
    [
        (("flights:hub[3]:r:g1", "flights:hub[3]:r:g2"), 409),
        (("flights:hub[3]:r:g1",), 200),
        (("flights:hub[3]:r:g1:00000001", "flights:hub[3]:r:g2"), 200),
        (("chosen:g1", "chosen:g2"), 200),
    ],
)
def test_a_repair_is_for_the_newest_instance_of_the_task(
    page: Page, hub: FakeHub, ids: tuple[str, ...], status: int
) -> None:
    """A clear of the task would let the newest one go on, and not this one."""
    for one in ids:
        hub.put(one, Status.FAILED, tags=TAGS, created=NOW)
    found, said = page.post("repair", json={"id": ids[0]})
    assert (found, bool(page.airflow.asked)) == (status, status == 200)
    if status != 200:
        assert "was cleared since, and now has instance 'flights:hub[3]:r:g2': repair that one" in said["detail"]


def test_credentials_are_in_no_text() -> None:
    assert "secret" not in repr(clearing.Sender("ann", {"authorization": "Bearer secret"}))


# rights


@pytest.mark.parametrize("action", ACTIONS)
def test_an_order_needs_the_right_to_edit_runs_of_the_dag(page: Page, hub: FakeHub, entries: Any, action: str) -> None:
    answers = {}
    for role in ROLES:
        put(hub, action)
        answers[role] = page.post(action, role=role)[0]
    assert answers == {"viewer": 403, "user": 200, "op": 200, "admin": 200}
    assert [one.owner for one in entries()] == ["user", "op", "admin"], "what was refused is not in the audit log"


@pytest.mark.parametrize("tags", [None, TAGS | {"airflow.dag_id": "secret"}])
def test_an_instance_that_a_user_may_not_see_does_not_exist_for_orders(page: Page, hub: FakeHub, tags: Any) -> None:
    """Without a DAG, or of a DAG that the user may not read: the answer is that of an instance that is not there."""
    put(hub, tags=tags)
    told = (404, {"detail": "there is no instance 'mine', or you may not see it"})
    assert page.post("suspend", role="user") == told
    assert hub.ordered == []
    del hub.instances["mine"]
    assert page.post("suspend", role="admin") == told


def test_an_instance_without_a_dag_is_for_administrators(page: Page, hub: FakeHub) -> None:
    put(hub, tags=None)
    assert {role: page.post("suspend", role=role)[0] for role in ROLES} == {
        "viewer": 404,
        "user": 404,
        "op": 200,
        "admin": 200,
    }


def test_an_answer_names_the_actions_that_the_user_may_take(page: Page, hub: FakeHub) -> None:
    put(hub)
    found = {}
    for role in ROLES:
        with page.as_(role) as client:
            found[role] = client.get("/api/instance?id=mine").json()["actions"]
    allowed = ["raise-event", "suspend", "terminate"]
    assert found == {"viewer": [], "user": allowed, "op": allowed, "admin": allowed}


@pytest.mark.parametrize(
    ("status", "more", "names"),
    [
        (Status.PENDING, {}, ("raise-event", "suspend", "terminate")),
        (Status.PENDING, {"completed": NOW}, ("raise-event", "suspend", "terminate", "rewind")),
        (Status.PENDING, {"restarts": 1}, ("raise-event", "suspend", "terminate", "restart")),
        (Status.PENDING, {"restarts": 1, "completed": NOW}, ("raise-event", "suspend", "terminate", "rewind")),
        (Status.RUNNING, {"restarts": 1}, ("raise-event", "suspend", "terminate")),
        (Status.SUSPENDED, {}, ("raise-event", "resume", "terminate")),
        (Status.FAILED, {}, ("rewind", "restart", "purge")),
        (Status.FAILED, {"tags": TAGS}, ("repair", "rewind", "restart", "purge")),
        (Status.COMPLETED, {}, ("restart", "purge")),
        (Status.TERMINATED, {}, ("restart", "purge")),
    ],
)
def test_the_status_says_which_actions_there_are(
    hub: FakeHub, status: Status, more: dict[str, Any], names: tuple[str, ...]
) -> None:
    """A Pending instance was perhaps rewound or started again by an order that was interrupted: it can be repeated."""
    assert actions_of(hub.put("i", status, **more)) == names
    assert set(names) <= set(ACTIONS)


@pytest.mark.parametrize("action", ["rewind", "restart"])
def test_an_interrupted_order_can_be_repeated(page: Page, hub: FakeHub, action: str) -> None:
    """The row is Pending already, and the message that wakes the instance was not sent."""
    hub.put("mine", Status.PENDING, tags=TAGS, created=NOW)
    assert page.post(action, {"status": "Pending"})[0] == 200
    assert [order[0] for order in hub.ordered] == [action]


# other web sites, and requests that are no orders


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_only_json_is_an_order(page: Page, hub: FakeHub, kind: str) -> None:
    """A browser sends the other types from any web site, with Airflow's cookie, without asking Airflow first."""
    put(hub)
    status, answer = page.post("terminate", content=b'{"id": "mine"}', headers={"content-type": kind} if kind else {})
    assert (status, hub.ordered) == (415, [])
    assert "Content-Type: application/json" in answer["detail"]


def test_an_order_of_another_web_site_is_refused(page: Page, hub: FakeHub) -> None:
    put(hub)
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200)):
        assert page.post("suspend", json={"id": "mine"}, headers={"sec-fetch-site": site})[0] == status
    token = {"sec-fetch-site": "cross-site", "authorization": "Bearer x"}
    assert page.post("suspend", json={"id": "mine"}, headers=token)[0] == 200, "a page cannot send a user's token"
    assert len(hub.ordered) == 2


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"{", "Invalid JSON"),
        (b"[]", "Input should be an object"),
        (b"{}", "id: Field required"),
        (b'{"id": "mine", "reasn": "x"}', "reasn: Extra inputs are not permitted"),
        (b'{"id": "mine", "children": "no"}', "children: Input should be a valid boolean"),
        (b'{"id": "mine", "status": "Broken"}', "status: Input should be"),
        (json.dumps({"id": "mine", "reason": "x" * 1001}).encode(), "reason: String should have at most 1000"),
    ],
)
def test_an_order_that_cannot_be_read_is_refused_and_says_what_is_wrong(
    page: Page, hub: FakeHub, body: bytes, told: str
) -> None:
    put(hub)
    status, answer = page.post("terminate", content=body, headers={"content-type": "application/json; charset=utf-8"})
    assert (status, hub.ordered) == (422, [])
    assert told in answer["detail"]


def test_an_order_is_bounded(page: Page, hub: FakeHub) -> None:
    put(hub)
    data = "x" * (orders.MOST_BYTES - 100)
    assert page.post("raise-event", {"data": data})[0] == 200
    status, answer = page.post("raise-event", {"data": data + 200 * "x"})
    assert (status, answer) == (413, {"detail": "the order is larger than 256 KiB: store the data elsewhere"})


def test_there_is_no_other_action_and_no_other_hub(page: Page, hub: FakeHub) -> None:
    put(hub)
    status, answer = page.post("delete")
    assert (status, "there are terminate, suspend" in answer["detail"]) == (404, True)
    assert page.post("suspend", {"conn": "another"})[0] == 404
    assert hub.ordered == []


# what the user saw


def test_an_order_to_another_run_than_the_user_saw_is_refused(page: Page, hub: FakeHub, entries: Any) -> None:
    put(hub, execution_id="second")
    status, answer = page.post("terminate", {"execution": "first"})
    assert (status, hub.ordered, entries()) == (409, [], [])
    assert "was started again meanwhile" in answer["detail"]
    assert page.post("terminate", {"execution": "second"})[0] == 200


@pytest.mark.parametrize(("saw", "status"), [(0, 200), (1, 200), (2, 409)])
def test_an_order_reaches_a_run_that_has_continued_as_new_since(
    page: Page, hub: FakeHub, saw: int, status: int
) -> None:
    """Else nobody could stop a run that continues as new all the time. The last id is of another start, as in .NET."""
    first = "0123456789abcdef" * 2
    seen = (first, next_execution_id(first), "f" * 32)
    put(hub, execution_id=next_execution_id(next_execution_id(first)))
    assert page.post("terminate", {"execution": seen[saw], "status": "Running"})[0] == status


@pytest.mark.parametrize(
    ("action", "now", "saw", "told"),
    [
        ("purge", Status.COMPLETED, "Failed", "was Failed and is Completed now"),
        ("purge", Status.PENDING, "Failed", "is Pending now: terminate it first"),
        ("restart", Status.COMPLETED, "Failed", "was Failed and is Completed now"),
        ("rewind", Status.PENDING, "Failed", "was Failed and is Pending now"),
        ("rewind", Status.COMPLETED, None, "is Completed now: only a failed instance can be rewound"),
        ("repair", Status.PENDING, None, "is Pending now: only a failed instance can be repaired"),
    ],
)
def test_an_order_about_an_end_that_is_no_longer_true_is_refused(
    page: Page, hub: FakeHub, action: str, now: Status, saw: str | None, told: str
) -> None:
    put(hub)
    hub.instances["mine"] = replace(hub.instances["mine"], status=now)
    status, answer = page.post(action, {"status": saw})
    assert (status, hub.ordered) == (409, [])
    assert told in answer["detail"]


def test_a_running_instance_may_have_become_another_status_meanwhile(page: Page, hub: FakeHub) -> None:
    hub.put("mine", Status.PENDING, tags=TAGS)
    assert page.post("terminate", {"status": "Running"})[0] == 200


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (InvalidStateError("it has ended"), 409, "it has ended. Load the page again to see its state"),
        (InstanceExists("it runs"), 409, "it runs. Load the page again to see its state"),
        (InstanceNotFound("it is gone"), 404, "it is gone"),
        (InputError("password=hunter2 is too long"), 422, "password=*** is too long"),
        (Unavailable("no answer", maybe_done=False), 503, "no answer; nothing was done"),
        (Unavailable("no answer"), 503, "no answer; perhaps the order was carried out: load the page again before you"),
    ],
)
def test_a_refusal_of_the_hub_is_said(page: Page, hub: FakeHub, error: Exception, status: int, told: str) -> None:
    put(hub)
    hub.refuses = error
    code, answer = page.post("suspend")
    assert (code, answer["detail"].startswith(told)) == (status, True), answer


def test_what_has_ended_is_not_terminated_and_what_is_gone_is_not_purged(page: Page, hub: FakeHub) -> None:
    put(hub, "purge")
    status, answer = page.post("terminate")
    assert (status, "there is nothing to terminate" in answer["detail"]) == (409, True)


# Airflow's audit log


def test_the_audit_log_says_who_did_what_to_which_task(page: Page, hub: FakeHub, entries: Any) -> None:
    put(hub)
    page.post("terminate", {"reason": "password=hunter2", "children": False})
    page.post("raise-event", {"name": "approve", "data": {"token": "hunter2"}})
    first, second = entries()
    assert (first.event, first.owner) == ("taskhub.terminate", "user")
    assert (first.dag, first.run, first.task, first.index) == ("flights", "r", "hub", 3)
    facts = {"hub": "TaskHub", "instance_id": "mine", "execution_id": "e"}
    assert first.extra == facts | {"reason": "password=***", "children": False}
    assert (second.event, second.extra) == ("taskhub.raise-event", facts | {"event": "approve"})


def test_without_an_audit_log_nothing_is_done(page: Page, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    import airflow.models
    from sqlalchemy.exc import OperationalError

    def broken(**more: Any) -> None:
        raise OperationalError("INSERT", {}, Exception("database is locked"))

    monkeypatch.setattr(airflow.models, "Log", broken)
    put(hub)
    status, answer = page.post("terminate")
    assert (status, hub.ordered) == (503, [])
    assert "nothing was done, because Airflow's audit log cannot be written" in answer["detail"]
