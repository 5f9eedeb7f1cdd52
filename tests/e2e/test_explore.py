"""A short exploration, and that its comparison sees what it must: the long one is ``make explore``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.explore.driver import explore, miscalled
from tests.e2e.explore.generator import make
from tests.e2e.explore.model import Expected, differences, predict
from tests.e2e.house import House


@pytest.mark.rows("K06", "K22", "K26", "K27", "K46")
async def test_random_programs_come_to_what_the_model_says_while_workers_are_killed(embedded: House) -> None:
    found = await explore(embedded, [make(7, number) for number in range(24)], seed=7)
    assert [(mismatch.instance_id, *mismatch.texts) for mismatch in found.mismatches] == []
    assert found.kills >= 1
    assert found.instances >= 24


def activity(key: str, **more: Any) -> dict[str, Any]:
    step = {"do": "activity", "key": key, "record": True, "value": 3, "times": 1, "seconds": 0.0, "fails": 0}
    return step | {"final": False, "attempts": 1} | more


def event(name: str, *, raised: bool = True) -> dict[str, Any]:
    return {"do": "event", "name": name, "raised": raised}


def expected(*steps: dict[str, Any], orders: Any = ()) -> Expected:
    return predict({"id": "x", "steps": list(steps), "orders": list(orders)}).instances["x"]


def raised(name: str, value: Any) -> dict[str, Any]:
    return {"at": 0.0, "do": "event", "to": "x", "name": name, "value": value}


def told(wanted: Expected, output: Any, *, status: str = "Completed", custom_status: Any = None) -> str:
    return "; ".join(differences(wanted, status=status, output=output, custom_status=custom_status))


def test_the_same_seed_gives_the_same_programs() -> None:
    programs = [make(3, number) for number in range(50)]
    assert programs == [make(3, number) for number in range(50)]
    assert programs != [make(4, number) for number in range(50)]
    text = json.dumps([make(3, number) for number in range(300)])
    tasks = ("activity", "timer", "event", "child", "all", "any", "branch", "limit", "remind", "set")
    kinds = (*tasks, "again", "send", "status", "raise")
    for kind in (*kinds, "suspend", "resume", "terminate"):
        assert f'"do": "{kind}"' in text, kind


def test_every_program_can_be_predicted() -> None:
    for number in range(500):
        program = make(5, number)
        assert program["id"] in predict(program).instances


def test_a_wrong_result_is_seen() -> None:
    wanted = expected(activity("k."), {"do": "status", "value": 5})
    assert told(wanted, [3], custom_status=5) == ""
    assert "returned [4]" in told(wanted, [4], custom_status=5)
    assert "custom status is None, not 5" in told(wanted, [3])
    assert "is Failed with no" in told(wanted, "no", status="Failed")
    assert "is Terminated" in told(wanted, "", status="Terminated")


def test_a_termination_is_legal_only_where_somebody_terminates() -> None:
    wanted = expected(activity("k."), orders=[{"at": 0.0, "do": "terminate", "to": "x"}])
    assert told(wanted, "", status="Terminated") == ""
    assert told(wanted, [3]) == ""
    assert "returned [4]" in told(wanted, [4])


def test_an_event_is_taken_once_in_any_order() -> None:
    wanted = expected(event("own"), event("own"), orders=[raised("OWN", 1), raised("own", 2), raised("own", 3)])
    assert told(wanted, [2, 1]) == told(wanted, [1, 3]) == ""
    assert "taken once more" in told(wanted, [1, 1])
    assert "taken once more" in told(wanted, [1, 4])


def test_events_that_one_client_sends_are_taken_in_their_order() -> None:
    remind = {"do": "remind", "name": "A", "seconds": 0.1}
    wanted = expected(event("a"), remind, event("b"), orders=[raised("A", 7), raised("b", 8), raised("a", 5)])
    assert told(wanted, [7, 5, 8]) == ""
    assert "'a' were taken in the order [1, 0]" in told(wanted, [5, 7, 8])


def test_a_set_is_written_sorted() -> None:
    wanted = expected({"do": "set", "of": [activity("k.", value=7), activity("l.", value=5)]})
    assert told(wanted, [[5, 7]]) == ""
    assert "returned" in told(wanted, [[7, 5]])


def test_whatever_comes_first_of_any_is_legal_and_what_never_comes_is_not() -> None:
    race = {"do": "any", "of": [activity("k."), event("a"), event("never", raised=False)], "cancel": True}
    wanted = expected(race, orders=[raised("a", 9)])
    assert told(wanted, [[0, 3]]) == told(wanted, [[1, 9]]) == ""
    assert "returned" in told(wanted, [[2, 9]])


def test_failures_have_their_type_and_their_cause() -> None:
    fails = activity("k.", fails=2, attempts=2)
    wanted = expected(fails | {"caught": True})
    assert told(wanted, [{"error": "TaskFailedError", "text": "activity failed: boom k."}]) == ""
    assert "returned" in told(wanted, [{"error": "TaskFailedError", "text": "boom k2."}])
    assert "returned" in told(wanted, [3])
    uncaught = expected(fails)
    headline = "activity 'recorded' failed: RuntimeError: boom k."
    assert told(uncaught, headline, status="Failed") == ""
    assert "failed with 'boom k.'" in told(uncaught, "boom k.", status="Failed")
    child = {"do": "child", "id": None, "steps": [fails], "attempts": 1, "forget": False, "sends": []}
    assert told(expected(child), f"child orchestration 'program' failed: {headline}", status="Failed") == ""
    assert told(expected(activity("k.", fails=1, attempts=2)), [3]) == ""


def test_calls_and_attempts_of_activities_are_counted() -> None:
    steps = [activity("k.", fails=1, attempts=3), activity("l.", fails=9, attempts=3, final=True)]
    prediction = predict({"id": "x", "steps": steps, "orders": []})

    def wrong(*lines: str) -> str:
        return "; ".join(miscalled(prediction, lines))

    right = ("k. e 0 1 begin", "k. e 0 1 end", "k. e 2 1 begin", "l. e 4 1 begin")
    assert wrong(*right) == ""
    assert wrong(*right, "k. e 2 2 begin") == "", "its first attempt died with its worker"
    assert "attempt 1 of k., e 2: begin 2 times" in wrong(*right, "k. e 2 1 begin")
    assert "k. was called 3 times, not 2 to 2" in wrong(*right, "k. e 3 1 begin")
    assert "l. was called 0 times, not 1 to 1" in wrong(*right[:3])
