"""The page's data: order, counts, rights, masks, the timeline; and its application without a browser."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine import events
from airflow_provider_taskhub.engine.events import FailureDetails, OrchestrationInstance, Status
from airflow_provider_taskhub.hub.history.pages import HistoryPage
from airflow_provider_taskhub.hub.model import InstanceState, OwnerState, PartitionState, RecordState
from airflow_provider_taskhub.hub.partitions.hashing import partition_of
from airflow_provider_taskhub.hub.waiting.reasons import Reason, Snapshot, Why, why
from airflow_provider_taskhub.plugins import json_views
from airflow_provider_taskhub.plugins import taskhub as taskhub_plugin
from airflow_provider_taskhub.plugins.filters import Wanted, order_of
from airflow_provider_taskhub.plugins.index import Row, row_of
from airflow_provider_taskhub.plugins.listing import MOST_OFFERED, chosen, listing, offered, seen_by, visible
from airflow_provider_taskhub.plugins.taskhub import LazyApplication, TaskHubPlugin
from airflow_provider_taskhub.plugins.timeline import MOST_LANES, timeline
from airflow_provider_taskhub.plugins.web import page_connections
from tests.airflow.fake import NOW, FakeHub, member, record


def at(seconds: float) -> Timestamp:
    return Timestamp(NOW.ticks + int(seconds * 10_000_000))


def ms(seconds: float) -> float:
    return at(seconds).ticks / 10_000


def state(status: Status, number: int = 0, *, dag: str | None = "flights", **more: Any) -> InstanceState:
    fields: dict[str, Any] = {
        "instance_id": f"i{number}",
        "execution_id": "e",
        "name": "flights_delays",
        "status": status,
        "created": at(number),
        "tags": {"airflow.dag_id": dag} if dag else None,
    }
    return InstanceState(**(fields | more))


def shown(text: str | None) -> str:
    return text or ""


def rows_of(*states: InstanceState) -> list[Row]:
    """As the index has them: the newest first."""
    return sorted(map(row_of, states), key=lambda row: row.created, reverse=True)


def found(rows: list[Row], wanted: Wanted, **more: Any) -> list[str]:
    return [row.instance_id for row in listing(rows, wanted, offset=0, limit=10, **{"now": NOW} | more).rows]


def test_what_runs_or_is_wrong_comes_first() -> None:
    order = (
        Status.COMPLETED, Status.FAILED, Status.PENDING, Status.RUNNING, Status.TERMINATED, Status.RUNNING,
        Status.SUSPENDED,
    )  # fmt: skip
    rows = rows_of(*(state(status, number) for number, status in enumerate(order)))
    whole = listing(rows, Wanted(), offset=0, limit=10, now=NOW)
    expected = ["i5", "i3", "i1", "i6", "i2", "i4", "i0"]
    assert [row.instance_id for row in whole.rows] == expected
    assert whole.counts == {
        "Running": 2, "Failed": 1, "Pending": 1, "Completed": 1, "Terminated": 1, "Suspended": 1,
    }  # fmt: skip
    for limit in (1, 2, 3, 7):
        parts = [listing(rows, Wanted(), offset=offset, limit=limit, now=NOW) for offset in range(0, 7, limit)]
        assert [row.instance_id for part in parts for row in part.rows] == expected, limit
        assert {part.total for part in parts} == {7}
    page = listing(rows, Wanted(status=Status.RUNNING), offset=1, limit=1, now=NOW)
    assert ([row.instance_id for row in page.rows], page.total, sum(page.counts.values())) == (["i3"], 2, 7)


@pytest.mark.parametrize(
    ("sort", "ids"),
    [
        ("status", ["i2", "i1", "i4", "i3", "i0"]),
        ("-status", ["i3", "i0", "i4", "i1", "i2"]),
        ("ended", ["i1", "i3", "i0", "i4", "i2"]),
        ("-ended", ["i0", "i3", "i1", "i4", "i2"]),
        ("started", ["i0", "i1", "i2", "i3", "i4"]),
        ("-started", ["i4", "i3", "i2", "i1", "i0"]),
        ("-id", ["i4", "i3", "i2", "i1", "i0"]),
        ("name", ["i3", "i1", "i0", "i4", "i2"]),
        ("-name", ["i4", "i2", "i3", "i1", "i0"]),
        ("duration", ["i3", "i1", "i2", "i0", "i4"]),
        ("-duration", ["i0", "i2", "i1", "i3", "i4"]),
    ],
)
def test_the_list_has_the_order_that_the_user_chooses(sort: str, ids: list[str]) -> None:
    """Of equal ones the newest comes first; what runs lasts until now; what has no duration or end comes last."""
    rows = rows_of(
        state(Status.COMPLETED, 0, name="load", completed=at(30)),
        state(Status.FAILED, 1, name="load", completed=at(3)),
        state(Status.RUNNING, 2, name="write"),
        state(Status.COMPLETED, 3, name="load", completed=at(4)),
        state(Status.PENDING, 4, name="write"),
    )
    order = order_of(sort)
    assert found(rows, Wanted(), order=order, now=at(12)) == ids
    parts = [listing(rows, Wanted(), offset=offset, limit=2, now=at(12), order=order) for offset in (0, 2, 4)]
    assert [row.instance_id for part in parts for row in part.rows] == ids
    assert {part.total for part in parts} == {5}
    completed = [name for name in ids if name in ("i0", "i3")]
    assert found(rows, Wanted(status=Status.COMPLETED), order=order, now=at(12)) == completed


@pytest.mark.parametrize(
    ("text", "ids"),
    [("I1", ["i1"]), ("load", ["i0"]), ("dag_id=other", ["i1"]), ("airflow.dag_id=other", ["i1"]), ("team=x", [])],
)
def test_text_finds_ids_names_and_tags(text: str, ids: list[str]) -> None:
    rows = rows_of(state(Status.RUNNING, 0, name="load_weather"), state(Status.RUNNING, 1, dag="other"))
    assert found(rows, Wanted(text=text)) == ids


FILTERED = [
    state(Status.FAILED, 0, name="load", failure=FailureDetails(error_type="E", error_message="41 Rows rejected")),
    state(Status.TERMINATED, 1, dag="other", output='"rows are wrong"'),
    state(Status.COMPLETED, 2, name="load", output="rows", tags={"airflow.dag_id": "other", "team": "x"}),
    state(Status.RUNNING, 3, dag=None, tags={"team": "y", "taskhub.owner": "o"}, parent="i0", root="i0"),
]


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        (Wanted(), ["i3", "i0", "i2", "i1"]),
        (Wanted(dag="other"), ["i2", "i1"]),
        (Wanted(dag="oth"), []),
        (Wanted(name="load"), ["i0", "i2"]),
        (Wanted(tag="team"), ["i3", "i2"]),
        (Wanted(tag="team = x"), ["i2"]),
        (Wanted(tag="owner=o"), ["i3"]),
        (Wanted(error="rows"), ["i0", "i1"]),
        (Wanted(error="ROWS REJECTED"), ["i0"]),
        (Wanted(created_from=at(1)), ["i3", "i2", "i1"]),
        (Wanted(created_to=at(1)), ["i0", "i1"]),
        (Wanted(created_from=at(1), created_to=at(2)), ["i2", "i1"]),
        (Wanted(created_from=at(1), text="i"), ["i3", "i2", "i1"]),
        (Wanted(created_from=at(1), text="i0"), ["i0"]),
        (Wanted(created_to=at(1), text="i3", status=Status.RUNNING), ["i3"]),
        (Wanted(dag="other", name="load", tag="team=x", created_from=at(2)), ["i2"]),
        (Wanted(roots=True), ["i0", "i2", "i1"]),
        (Wanted(roots=True, tag="team"), ["i2"]),
        (Wanted(dag="other", error="rows", status=Status.FAILED), []),
    ],
)
def test_filters_can_be_combined(wanted: Wanted, ids: list[str]) -> None:
    rows = rows_of(*FILTERED)
    assert found(rows, wanted) == ids
    assert sorted(row.instance_id for row in chosen(rows, wanted, reads=lambda row: True)) == sorted(ids)


@pytest.mark.parametrize(
    ("wanted", "shown", "children", "elsewhen"),
    [
        (Wanted(), 4, 0, 0),
        (Wanted(roots=True), 3, 1, 0),
        (Wanted(created_from=at(1)), 3, 0, 1),
        (Wanted(created_from=at(1), roots=True), 2, 1, 1),
        (Wanted(created_to=at(2), roots=True), 3, 0, 0),
        (Wanted(created_to=at(2), tag="team"), 1, 0, 1),
        (Wanted(created_from=at(1), text="i0"), 1, 0, 0),
        (Wanted(created_from=at(2), name="load", status=Status.COMPLETED), 1, 0, 0),
        (Wanted(created_from=at(2), name="load", status=Status.FAILED), 0, 0, 1),
        (Wanted(status=Status.FAILED, roots=True), 1, 0, 0),
    ],
)
def test_what_the_filters_by_time_and_parent_leave_out_is_counted(
    wanted: Wanted, shown: int, children: int, elsewhen: int
) -> None:
    page = listing(rows_of(*FILTERED), wanted, offset=0, limit=1, now=NOW)
    assert (page.total, page.children, page.elsewhen) == (shown, children, elsewhen)


def test_an_error_that_the_user_may_not_read_finds_nothing() -> None:
    rows = rows_of(*FILTERED)
    assert found(rows, Wanted(error="rows"), reads=lambda row: row.dag == "other") == ["i1"]
    assert chosen(rows, Wanted(error="rows"), reads=lambda row: False) == []


def test_the_page_offers_the_most_frequent_dags_and_orchestrators() -> None:
    many = [state(Status.RUNNING, number, dag=f"d{number}") for number in range(MOST_OFFERED + 5)]
    twice = [state(Status.RUNNING, 100 + number, dag=f"d{number}", name="load") for number in range(MOST_OFFERED)]
    offers = offered(rows_of(*many, *twice, state(Status.RUNNING, 999, dag=None)))
    assert offers.dags == tuple(sorted(f"d{number}" for number in range(MOST_OFFERED)))
    assert offers.names == ("flights_delays", "load")


def test_a_user_sees_the_instances_of_readable_dags_and_an_administrator_sees_all() -> None:
    mine, others, nobodys = state(Status.RUNNING), state(Status.RUNNING, dag="x"), state(Status.RUNNING, dag=None)
    reader, administrator = visible({"flights"}, False), visible(set(), True)
    assert [reader(one) for one in (mine, others, nobodys)] == [True, False, False]
    assert [administrator(one) for one in (mine, others, nobodys)] == [True, True, True]
    rows = [row_of(one) for one in (mine, others, nobodys)]
    assert list(seen_by(rows, {"flights"}, False)) == rows[:1]
    assert list(seen_by(rows, set(), True)) == rows


@pytest.mark.parametrize(
    ("one", "line"),
    [
        (state(Status.RUNNING, custom_status='{"months":8}'), "months 8"),
        (state(Status.RUNNING, custom_status='"quality gate"'), "quality gate"),
        (state(Status.RUNNING, custom_status="null"), ""),
        (state(Status.PENDING, scheduled_start=at(60)), "waits: its start is scheduled for 2026-11-21 10:01:00 UTC"),
        (
            state(Status.PENDING, name="unknown"),
            "waits: no live worker knows orchestrator 'unknown'. Alive: a@host/1 (flights 3); "
            "they know: flights_delays",
        ),
        (
            state(Status.SUSPENDED, output="payday", suspended_by="ann@node7"),
            "waits: suspended by ann@node7: payday",
        ),
        (state(Status.TERMINATED, output='"from Airflow: task marked failed"'), "from Airflow: task marked failed"),
        (state(Status.FAILED, failure=FailureDetails(error_type="E", error_message="m")), "E: m"),
        (state(Status.FAILED, output="E: of .NET"), "E: of .NET"),
        (state(Status.COMPLETED, output="1"), ""),
    ],
)
def test_one_line_says_where_an_instance_stands(one: InstanceState, line: str) -> None:
    assert json_views.now_line(one, why(Snapshot(state=one, members=(member(),), now=NOW)), shown) == line


@pytest.mark.parametrize("status", [Status.SUSPENDED, Status.RUNNING])
def test_the_reason_of_a_suspension_or_its_end_is_no_output(status: Status) -> None:
    assert json_views.instance(state(status, output="back"), (), shown)["output"] == ""
    assert json_views.instance(state(Status.COMPLETED, output='"back"'), (), shown)["output"] == '"back"'


def test_an_instance_says_how_to_mend_what_it_waits_for() -> None:
    lost = state(Status.PENDING, name="unknown")
    found = why(Snapshot(state=lost, members=(member(),), now=NOW))
    shown_there = json_views.instance(lost, found, shown)
    assert (shown_there["fault"], json_views.row(lost, None, found, shown)["fault"]) == (True, True)
    assert [one["remedy"] for one in shown_there["waits"]] == [one.remedy for one in found]
    assert all(one["remedy"] and one["fault"] and one["tab"] == "workers" for one in shown_there["waits"])
    works = Why(reason=Reason.ACTIVITIES, text="activity 'load'", remedy="none needed")
    assert json_views.instance(lost, (works,), shown)["waits"] == []
    assert json_views.row(lost, None, (works,), shown)["fault"] is False


def test_what_it_waits_for_stands_beside_its_progress_and_faults_come_first() -> None:
    one = state(Status.RUNNING, custom_status='"quality gate"')
    event = Why(reason=Reason.EVENTS, text="event 'approve'")
    works = Why(reason=Reason.ACTIVITIES, text="activity 'load'")
    alone = Why(reason=Reason.NO_TRIGGERER, text="no triggerer")
    lacks = Why(reason=Reason.NO_ACTIVITY, text="no live worker knows activity 'load'")
    assert json_views.now_line(one, (event, works), shown) == "quality gate; waits: event 'approve'"
    assert json_views.now_line(one, (works, alone), shown) == "quality gate; waits: no triggerer"
    full = replace(works, more="at most 2 of 'load' run in the hub, now a #0, and 1 call waits")
    assert json_views.now_line(one, (full,), shown) == f"quality gate; waits: activity 'load'; {full.more}"
    assert [one["text"] for one in json_views.instance(one, (works, full), shown)["waits"]] == [full.line]
    assert json_views.now_line(one, (event, lacks), shown) == "waits: no live worker knows activity 'load'"
    kept = Why(reason=Reason.QUARANTINE, text="payload of a message")
    assert json_views.now_line(one, (kept,), lambda text: "***" if text else "") == "waits: ***"


def test_lanes_of_one_activity_are_told_apart_by_what_differs_in_their_inputs() -> None:
    def labels(*given: str | None, name: str = "monthly") -> list[str]:
        calls = [
            events.TaskScheduled(timestamp=Timestamp(0), event_id=number, name=name, input=one)
            for number, one in enumerate(given)
        ]
        return [str(lane["label"]) for lane in timeline(calls, [], lambda text: text or "")["lanes"]]

    def label(given: str | None) -> str:
        return labels(given)[0]

    sites = [
        '[{"day":"2026-11-26","site":"a northern site","pause":12}]',
        '[{"day":"2026-11-26","site":"x","pause":12}]',
    ]
    assert labels(*sites, name="usage") == ["usage(site=a northern site, …)", "usage(site=x, pause=12, …)"]
    assert labels('[{"a":1,"b":2}]', '[{"a":1,"b":2}]') == ["monthly(a=1, b=2)"] * 2

    assert label('[{"folder":"/a/very/long/folder/of/a/run","months":[5]}]') == "monthly(months=[5], …)"
    assert label('[{"month":5,"slow":true}]') == "monthly(month=5, slow=true)"
    assert label(f'["{"x" * 50}"]') == 'monthly("xxxxxxxxxxxxxxxxxxxx…)'
    assert label("[null]") == "monthly"
    assert label("[7]") == "monthly(7)"
    assert label('[{"cut off') == 'monthly([{"cut off)'


def test_the_timeline_puts_attempts_of_an_activity_in_one_lane() -> None:
    started = events.OrchestratorStarted(timestamp=at(0))
    history = [
        started,
        events.ExecutionStarted(timestamp=at(0), instance=OrchestrationInstance(instance_id="i"), name="o"),
        events.TaskScheduled(timestamp=at(0), event_id=0, name="month", input="[5]"),
        events.TaskScheduled(timestamp=at(0), event_id=1, name="plain", input="[]"),
        events.TimerCreated(timestamp=at(0), event_id=2, fire_at=at(60)),
        events.OrchestratorCompleted(timestamp=at(1)),
        events.OrchestratorStarted(timestamp=at(8)),
        events.TaskCompleted(timestamp=at(8), task_scheduled_id=1),
        events.EventRaised(timestamp=at(9), name="approve"),
    ]
    lost = record(RecordState.LOST, claimed=at(2), ended=at(5), worker="a")
    again = record(RecordState.RUNNING, attempt=2, claimed=at(6), worker="b", progress=0.5)
    drawn = timeline(history, [lost, again], shown)
    assert [(lane["label"], lane["kind"]) for lane in drawn["lanes"]] == [
        ("month(5)", "activity"),
        ("plain", "activity"),
        ("timer", "timer"),
    ]
    month, plain, timer = (lane["bars"] for lane in drawn["lanes"])
    assert [(bar["start"], bar["end"], bar["state"], bar["worker"]) for bar in month] == [
        (ms(2), ms(5), "lost", "a"),
        (ms(5), ms(6), "slot", None),
        (ms(6), None, "running", "b"),
    ]
    assert plain == [{"start": ms(0), "end": ms(8), "state": "completed", "worker": None}]
    assert timer == [{"start": ms(0), "end": None, "state": "waiting", "until": ms(60)}]
    assert drawn["episodes"] == [[ms(0), ms(1)], [ms(8), None]]
    assert drawn["marks"] == [
        {"time": ms(9), "kind": "event", "text": "event approve"},
        {"time": ms(5), "kind": "lost", "text": "a lost"},
    ]


def test_a_call_that_is_retried_keeps_its_lane() -> None:
    """A retry is a new action with a number of its own; calls with other inputs, or side by side, are others."""
    history = [
        *(events.TaskScheduled(timestamp=at(0), event_id=n, name="month", input=f"[{n // 2}]") for n in range(4)),
        events.TaskFailed(timestamp=at(1), task_scheduled_id=2),
        events.TimerCreated(timestamp=at(1), event_id=4, fire_at=at(2)),
        events.TaskScheduled(timestamp=at(2), event_id=5, name="month", input="[1]"),
        events.TaskFailed(timestamp=at(3), task_scheduled_id=5),
        events.TaskScheduled(timestamp=at(4), event_id=6, name="month", input="[1]"),
        events.TaskCompleted(timestamp=at(5), task_scheduled_id=6),
    ]
    records = [
        record(RecordState.FAILED, task_id=2, claimed=at(0), ended=at(1)),
        record(RecordState.LOST, task_id=5, claimed=at(2), ended=at(2)),
        record(RecordState.FAILED, task_id=5, attempt=2, claimed=at(2), ended=at(3)),
    ]
    drawn = {
        lane["task"]: [(bar.get("task"), bar.get("try"), bar.get("attempt"), bar["state"]) for bar in lane["bars"]]
        for lane in timeline(history, records, shown)["lanes"]
        if lane["kind"] == "activity"
    }
    waits = [(None, None, None, "scheduled")]
    assert drawn == {
        0: waits,
        1: waits,
        2: [(None, None, 1, "failed"), (5, 2, 1, "lost"), (5, 2, 2, "failed"), (6, 3, None, "completed")],
        3: waits,
    }


def test_a_wide_fan_out_is_bounded() -> None:
    history = [events.TaskScheduled(timestamp=at(n), event_id=n, name="x") for n in range(MOST_LANES + 7)]
    drawn = timeline(history, [], shown)
    assert (len(drawn["lanes"]), drawn["more"]) == (MOST_LANES, 7)


def test_history_is_newest_first_and_bounded() -> None:
    past = tuple(events.TaskScheduled(timestamp=at(n), event_id=n, name="x", input="[1]") for n in range(700))
    whole = HistoryPage(events=past, numbers=tuple(range(700)), total=700, execution_id="e")
    made = json_views.history(whole, lambda text: "***" if text else "")
    assert (made["total"], len(made["events"]), made["first"]) == (700, json_views.MOST_EVENTS, 200)
    assert made["events"][0] == {
        "n": 699,
        "time": ms(699),
        "event": "TaskScheduled",
        "what": "x #699",
        "payload": "***",
    }


@pytest.mark.parametrize(("url", "base"), [("http://a.test:8080", ""), ("http://a.test/air/flow/", "/air/flow")])
def test_the_views_in_airflows_ui_begin_with_the_path_of_its_base_url(
    monkeypatch: pytest.MonkeyPatch, url: str, base: str
) -> None:
    """Airflow's UI opens these addresses as they are."""
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", url)
    found = {(view["href"].partition("?")[0], view["icon"]) for view in taskhub_plugin._views()}
    page = f"{base}/taskhub/page"
    assert found == {(f"{page}/{name}", f"{page}/assets/icon.svg") for name in ("instances", "instance")}


def test_the_plugin_is_what_airflow_expects() -> None:
    views_of = {view["destination"]: view for view in TaskHubPlugin.external_views}
    assert set(views_of) == {"nav", "task_instance"}
    assert len({view["url_route"] for view in TaskHubPlugin.external_views}) == 2
    prefix = TaskHubPlugin.fastapi_apps[0]["url_prefix"]
    assert not prefix.startswith(("/api/v2", "/ui", "/execution", "/auth", "/pluginsv2"))
    assert page_connections() == ["taskhub_default"]


class Manager:
    """An auth manager of two roles: ``admin``, and readers by their DAGs."""

    def is_authorized_view(self, *, access_view: Any, user: Any) -> bool:
        return bool(user.name != "stranger")

    def is_authorized_connection(self, *, method: str, user: Any) -> bool:
        return bool(user.name == "admin")

    def get_authorized_dag_ids(self, *, user: Any, method: str) -> set[str]:
        return set(user.dags)

    def is_authorized_dag(self, *, method: str, access_entity: Any, details: Any, user: Any) -> bool:
        return user.name == "admin" or (details.id in user.dags and access_entity.name not in user.without)


@pytest.fixture
def ask(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Ask the application as some user; (status, answer)."""
    import airflow.api_fastapi.app
    from airflow.api_fastapi.core_api import security
    from fastapi.testclient import TestClient

    from airflow_provider_taskhub.plugins.web import make_app

    monkeypatch.setattr(airflow.api_fastapi.app, "get_auth_manager", Manager)
    monkeypatch.setattr(security, "get_auth_manager", Manager)
    monkeypatch.setattr(security.DagModel, "get_team_name", staticmethod(lambda dag_id: None))

    def ask(path: str, name: str = "admin", *, dags: tuple[str, ...] = (), without: tuple[str, ...] = ()) -> Any:
        app = make_app()
        app.dependency_overrides[security.get_user] = lambda: SimpleNamespace(name=name, dags=dags, without=without)
        with TestClient(app) as client:
            answer = client.get(path)
        return answer.status_code, answer.json()

    return ask


@pytest.fixture
def filled(hub: FakeHub) -> FakeHub:
    more = {"created": NOW, "input": '{"password":"hunter2","year":2013}', "output": '"done"'}
    hub.put("mine", Status.COMPLETED, tags={"airflow.dag_id": "flights"}, **more)
    hub.put("theirs", Status.COMPLETED, tags={"airflow.dag_id": "other"}, **more)
    hub.put("nobodys", Status.COMPLETED, tags=None, **more)
    hub.records["mine"] = (record(RecordState.COMPLETED, log="log", ended=at(1)),)
    hub.logs["log"] = "secret line"
    return hub


def test_lists_are_filtered_by_the_dags_that_the_user_may_read(ask: Any, filled: FakeHub) -> None:
    def ids(*who: Any, **more: Any) -> set[str]:
        status, answer = ask("/api/instances?window=all", *who, **more)
        assert status == 200
        assert sum(answer["counts"].values()) == len(answer["rows"]), "counts tell no more than rows"
        return {row["id"] for row in answer["rows"]}

    assert ids("admin") == {"mine", "theirs", "nobodys"}
    assert ids("vera", dags=("flights",)) == {"mine"}
    assert ids("vera") == set()


def test_rights_are_asked_for_once_for_each_dag(ask: Any, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.api_fastapi.core_api import security

    asked: list[str] = []
    real = security.requires_access_dag

    def counted(method: Any, entity: Any, dag_id: str) -> Any:
        asked.append(dag_id)
        return real(method, entity, dag_id)

    monkeypatch.setattr(security, "requires_access_dag", counted)
    for number in range(30):
        hub.put(f"i{number}", Status.RUNNING, tags={"airflow.dag_id": f"dag-{number % 3}"}, created=NOW)
    hub.put("nobodys", Status.RUNNING, tags=None, created=NOW)
    status, answer = ask("/api/instances?window=all&limit=200")
    assert (status, len(answer["rows"])) == (200, 31)
    assert sorted(asked) == ["dag-0", "dag-1", "dag-2"]


def test_an_instance_that_may_not_be_seen_does_not_exist(ask: Any, filled: FakeHub) -> None:
    hidden = ask("/api/instance?id=theirs", "vera", dags=("flights",))
    assert hidden == (404, {"detail": "there is no instance 'theirs', or you may not see it"})
    assert ask("/api/instance?id=nobodys", "vera", dags=("flights",))[0] == 404
    assert ask("/api/log?id=theirs&task=0&attempt=1", "vera", dags=("flights",))[0] == 404
    assert ask("/api/instances", "stranger")[0] == 403


def test_payloads_pass_airflows_masker_and_need_the_right_to_task_instances(ask: Any, filled: FakeHub) -> None:
    _, answer = ask("/api/instance?id=mine", "vera", dags=("flights",))
    assert answer["instance"]["input"] == '{"password": "***", "year": 2013}'
    _, answer = ask("/api/instance?id=mine", "vera", dags=("flights",), without=("TASK_INSTANCE",))
    assert "hunter2" not in str(answer)
    assert answer["instance"]["input"] == "(needs the right to read task instances of this DAG)"


def test_an_instance_says_whether_the_owner_of_its_partition_lives(ask: Any, filled: FakeHub) -> None:
    lease: dict[str, Any] = {"owner": "a@host/1", "epoch": 7, "draining": False, "offline": True}
    number = partition_of("mine", 4)
    rest = {"queue": "q", "next_owner": None, "owned_since": None, "last_renewal": None}
    filled.serving = (PartitionState(partition=number, state=OwnerState.SILENT, **lease, **rest),)
    status, answer = ask("/api/instance?id=mine")
    assert (status, answer["served"]) == (200, {"partition": number, "state": "silent"} | lease)
    gone = {"partition": 3, "owner": None, "state": "missing", "offline": False, "epoch": None, "draining": False}
    assert json_views.served(None, 3) == gone


def test_logs_need_the_right_to_task_logs(ask: Any, filled: FakeHub) -> None:
    path = "/api/log?id=mine&task=0&attempt=1"
    assert ask(path, "vera", dags=("flights",)) == (200, {"text": "secret line", "lines": 2000})
    assert ask(path, "vera", dags=("flights",), without=("TASK_LOGS",))[0] == 403
    filled.logs = dict.fromkeys(filled.logs, "connects with password=hunter2")
    assert ask(path, "vera", dags=("flights",))[1]["text"] == "connects with password=***"


def test_trouble_is_said_and_is_no_500(ask: Any, filled: FakeHub) -> None:
    from airflow_provider_taskhub.errors import HubError, Unavailable

    assert ask("/api/instances?window=never")[0] == 422
    assert ask("/api/instances?sort=size")[0] == 422
    filled.down = Unavailable("no answer within 30 s")
    assert ask("/api/instances") == (503, {"detail": "no answer within 30 s"})
    filled.down = HubError("there is no hub 'TaskHub'")
    assert ask("/api/instances") == (409, {"detail": "there is no hub 'TaskHub'"})


def test_a_page_that_many_look_at_costs_one_scan(hub: FakeHub, filled: FakeHub) -> None:
    import asyncio

    from airflow_provider_taskhub.plugins.client_cache import IDLE, client_cache_of
    from airflow_provider_taskhub.settings import load_settings
    from airflow_provider_taskhub.virtual_time import run

    async def scenario() -> None:
        desk = client_cache_of(load_settings())
        answers = [desk.once("members", lambda client: client.admin.workers()) for _ in range(50)]
        assert len(await asyncio.gather(*answers)) == 50
        assert (hub.requests["members"], hub.opened) == (1, 1)
        await asyncio.sleep(2)
        await desk.once("members", lambda client: client.admin.workers())
        assert (hub.requests["members"], hub.opened) == (2, 1), "asked again, over the same client"
        await asyncio.sleep(3 * IDLE)
        assert hub.open_now == 0
        await desk.once("members", lambda client: client.admin.workers())
        assert hub.opened == 2

    run(scenario())


async def test_the_application_is_built_at_its_first_request() -> None:
    app = LazyApplication()
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": "http", "method": "GET", "path": "/page/instances", "headers": [], "query_string": b""}
    await app(scope | {"http_version": "1.1", "scheme": "http", "server": ("x", 1), "root_path": ""}, receive, send)
    assert sent[0]["status"] == 200
    headers = dict(sent[0]["headers"])
    assert b"default-src 'none'" in headers[b"content-security-policy"]
