"""The comparison of two runs: calls matched by name and order, places where texts differ, and rights."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine import events
from airflow_provider_taskhub.engine.events import FailureDetails, HistoryEvent, Status
from airflow_provider_taskhub.plugins import comparing
from airflow_provider_taskhub.plugins.comparison import MOST_DIFFERENCES, Call, calls_of, differences, matched, pairs
from airflow_provider_taskhub.plugins.shown_instances import HIDDEN
from tests.airflow.fake import NOW, FakeHub
from tests.airflow.test_page_actions import TAGS, Page, audit_log, entries, page
from tests.airflow.test_page_parts import get

__all__ = ["audit_log", "entries", "page"]  # the fixtures


def at(seconds: float) -> Timestamp:
    return Timestamp(NOW.ticks + int(seconds * 10_000_000))


def called(number: int, name: str, seconds: float = 0, input: str = "[1]") -> HistoryEvent:
    return events.TaskScheduled(timestamp=at(seconds), event_id=number, name=name, input=input)


def completed(number: int, seconds: float, result: str = "1") -> HistoryEvent:
    return events.TaskCompleted(timestamp=at(seconds), event_id=-1, task_scheduled_id=number, result=result)


def failed(number: int, seconds: float) -> HistoryEvent:
    failure = FailureDetails(error_type="ValueError", error_message="no data")
    return events.TaskFailed(timestamp=at(seconds), event_id=-1, task_scheduled_id=number, failure=failure)


def call(name: str, input: str = "1", kind: str = "activity") -> Call:
    return Call(kind=kind, name=name, input=input, begun=NOW)


def names(found: list[tuple[Call | None, Call | None]]) -> list[tuple[str | None, str | None]]:
    return [tuple(f"{one.name}{one.input}" if one else None for one in pair) for pair in found]  # type: ignore[misc]


def test_calls_are_matched_by_name_and_order() -> None:
    one = [call("load", "1"), call("load", "2"), call("check"), call("report")]
    other = [call("load", "8"), call("check"), call("clean"), call("load", "9"), call("load", "10"), call("report")]
    assert names(matched(one, other)) == [
        ("load1", "load8"),
        ("load2", "load9"),
        (None, "load10"),
        ("check1", "check1"),
        (None, "clean1"),
        ("report1", "report1"),
    ]
    assert names(matched(other, one))[-1] == ("report1", "report1")
    assert names(matched([], one[:2])) == [(None, "load1"), (None, "load2")]
    assert names(matched([call("load")], [call("load", kind="child")])) == [(None, "load1"), ("load1", None)]


def test_a_call_has_its_retries_in_it() -> None:
    history = [called(0, "load"), called(1, "check"), failed(0, 2), called(2, "load", 3), completed(1, 4),
               completed(2, 7, '"x"'), called(3, "load", 8, "[2]")]  # fmt: skip
    load, check, second = calls_of(history)
    assert (load.tries, load.outcome, load.begun, load.ended, load.result) == (2, "completed", at(0), at(7), '"x"')
    assert (check.tries, check.outcome, check.ended) == (1, "completed", at(4))
    assert (second.input, second.tries, second.outcome, second.ended) == ("2", 1, "open", None)
    (only,) = calls_of([called(0, "load"), failed(0, 2)])
    assert (only.outcome, only.result) == ("failed", "ValueError: no data")


def test_children_are_calls_and_ends_of_calls_that_are_not_known_are_left_out() -> None:
    history = [
        events.SubOrchestrationInstanceCreated(timestamp=NOW, event_id=0, name="month", instance_id="c", input="5"),
        completed(7, 1),
        events.SubOrchestrationInstanceCompleted(timestamp=at(3), event_id=-1, task_scheduled_id=0, result="6"),
    ]
    (child,) = calls_of(history)
    assert (child.kind, child.name, child.input, child.ended, child.result) == ("child", "month", "5", at(3), "6")


def test_equal_and_hidden_payloads_of_calls() -> None:
    def shown(text: str | None) -> str:
        return text or ""

    def hidden(text: str | None) -> str:
        return HIDDEN if text else ""

    one = calls_of([called(0, "load"), completed(0, 1, "1"), called(1, "check"), completed(1, 2)])
    other = calls_of([called(0, "load"), completed(0, 5, "2")])
    load, check = pairs(one, other, (shown, shown))
    assert (load["same_input"], load["same_result"]) == (True, False)
    assert (load["one"]["ended"] - load["one"]["begun"], load["other"]["ended"] - load["other"]["begun"]) == (1e3, 5e3)
    assert (check["name"], check["other"], check["same_input"]) == ("check", None, None)
    load, _ = pairs(one, other, (shown, hidden))
    assert (load["same_input"], load["same_result"], load["other"]["result"]) == (None, None, HIDDEN)


@pytest.mark.parametrize(
    ("one", "other", "places"),
    [
        ('{"a":1,"b":{"c":[1,2]}}', '{"b":{"c":[1,2]},"a":1}', []),
        ('{"a":1}', '{"a":2}', [("a", "1", "2")]),
        ('{"a":{"b":[1,{"c":"x"}]}}', '{"a":{"b":[1,{"c":"y"},3]}}', [("a.b[1].c", '"x"', '"y"'),
                                                                     ("a.b[2]", None, "3")]),
        ('{"a":null}', "{}", [("a", "null", None)]),
        ("{}", '{"a":null}', [("a", None, "null")]),
        ("1", "true", [("", "1", "true")]),
        ("", "[1]", [("", None, "[1]")]),
        ("ValueError: x", "3", [("", '"ValueError: x"', "3")]),
        ("", "", []),
    ],
)  # fmt: skip
def test_texts_differ_at_places(one: str, other: str, places: list[tuple[str, str | None, str | None]]) -> None:
    found = differences(one, other)
    assert found == [{"path": path, "one": left, "other": right} for path, left, right in places]


def test_differences_are_bounded_and_hidden_texts_have_none() -> None:
    found = differences(str([*range(500)]), str([*range(1, 501)]))
    assert found is not None
    assert len(found) == MOST_DIFFERENCES
    assert differences(HIDDEN, "1") is None


def test_two_runs_side_by_side(page: Page, hub: FakeHub) -> None:
    hub.put("mine", Status.COMPLETED, tags=TAGS, created=NOW, completed=at(9), input='{"y":1}', output="1", version="3")
    hub.put("yours", Status.RUNNING, tags=TAGS, created=at(5), input='{"y":2}')
    hub.histories["mine"] = [called(0, "load"), completed(0, 1)]
    hub.histories["yours"] = [called(0, "load", 5)]
    status, answer = get(page, "compare?id=mine&other=yours")
    assert status == 200
    assert [(answer[run]["id"], answer[run]["status"], answer[run]["version"]) for run in ("one", "other")] == [
        ("mine", "Completed", "3"), ("yours", "Running", ""),
    ]  # fmt: skip
    assert answer["input"] == [{"path": "y", "one": "1", "other": "2"}]
    assert answer["output"] == [{"path": "", "one": "1", "other": None}]
    (load,) = answer["calls"]
    assert (load["one"]["outcome"], load["other"]["outcome"], answer["events"]) == ("completed", "open", None)


def test_only_the_first_events_of_long_histories_are_compared(
    page: Page, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparing, "MOST_EVENTS", 3)
    for name in ("mine", "yours"):
        hub.put(name, Status.RUNNING, tags=TAGS)
        hub.histories[name] = [called(number, "load") for number in range(5)]
    _, answer = get(page, "compare?id=mine&other=yours")
    assert (len(answer["calls"]), answer["events"]) == (3, 3)


def test_secrets_are_masked_before_texts_are_compared(page: Page, hub: FakeHub) -> None:
    hub.put("mine", Status.RUNNING, tags=TAGS, input='{"password": "hunter2"}')
    hub.put("yours", Status.RUNNING, tags=TAGS, input='{"password": "hunter3"}')
    _, answer = get(page, "compare?id=mine&other=yours")
    assert answer["input"] == [], "not even that they differ is said"


@pytest.mark.parametrize(
    ("tags", "name", "status"), [({"airflow.dag_id": "x"}, "flights_delays", 404), (TAGS, "load", 422)]
)
def test_a_run_that_may_not_be_seen_or_is_of_another_orchestrator(
    page: Page, hub: FakeHub, tags: Any, name: str, status: int
) -> None:
    hub.put("mine", Status.RUNNING, tags=TAGS)
    hub.put("yours", Status.RUNNING, tags=tags, name=name)
    assert get(page, "compare?id=mine&other=yours")[0] == status
    assert get(page, "compare?id=yours&other=mine")[0] == status
    assert get(page, "compare?id=mine&other=nobodys")[0] == 404
