"""Lines of a waiting task's log, from snapshots of the instance and the hub's workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.engine.identity import next_execution_id
from airflow_provider_taskhub.hub.model import ActivityRecord, RecordState
from airflow_provider_taskhub.triggers.task_log import TaskLog, served_by
from tests.airflow.fake import FakeHub, member, record


def lines(journal: TaskLog, execution: str, *records: ActivityRecord, **more: Any) -> list[str]:
    state = FakeHub().put("i", Status.RUNNING, execution_id=execution, **more)
    return list(journal.lines(state, records))


def test_a_second_execution_repeats_nothing_of_the_first_and_is_told_apart_from_it() -> None:
    """A retry starts the instance again and a continue-as-new goes on: their activities have the same numbers."""
    tried = record(RecordState.FAILED, execution="try 1", worker="a")
    running = record(RecordState.RUNNING, execution="first", worker="b")
    done = record(RecordState.COMPLETED, execution="first", worker="b")
    again = record(RecordState.RUNNING, execution="second", worker="c")
    journal = TaskLog()
    assert lines(journal, "first", tried, running) == [
        "flights_delays is Running",
        "monthly_delays #0, attempt 1, running on b",
    ]
    assert lines(journal, "second", tried, done) == [
        "monthly_delays #0, attempt 1, completed on b",
        "flights_delays has begun a new execution: numbers of activities and attempts begin again",
    ]
    assert lines(journal, "second", tried, done, again) == ["monthly_delays #0, attempt 1, running on c"]
    assert lines(journal, "second", tried, done, again) == []


def test_an_execution_that_began_between_the_reads_of_the_first_look_is_told() -> None:
    """The instance's row is read before its records."""
    new = record(RecordState.RUNNING, execution="new", worker="c")
    journal = TaskLog()
    assert lines(journal, "old", new) == ["flights_delays is Running"]
    assert lines(journal, "new", new)[1:] == ["monthly_delays #0, attempt 1, running on c"]


def test_what_an_instance_says_of_itself_passes_airflows_masker() -> None:
    said = lines(TaskLog(), "e", custom_status='{"password":"hunter2","months":8}')
    assert said[1] == 'custom status of flights_delays: {"password": "***", "months": 8}'
    assert lines(TaskLog(), "e", custom_status='{"months":8}')[1] == 'custom status of flights_delays: {"months":8}'


@pytest.mark.parametrize("status", Status)
def test_the_status_comes_first_while_the_instance_lives_and_last_when_it_has_ended(status: Status) -> None:
    state = FakeHub().put("i", status, custom_status='"half"')
    said = list(TaskLog().lines(state, [record(RecordState.COMPLETED)]))
    others = ["monthly_delays #0, attempt 1, completed on a@host/1", 'custom status of flights_delays: "half"']
    told = f"flights_delays is {status}"
    assert said == ([*others, told] if status.is_final else [told, *others])


def generations(number: int) -> list[str]:
    """Execution ids of one start that continues as new."""
    found = ["5" * 32]
    while len(found) < number:
        found.append(next_execution_id(found[-1]))
    return found


def test_executions_that_were_over_before_the_first_look_or_between_two_looks_are_counted() -> None:
    ids = generations(8)
    journal = TaskLog()
    assert lines(journal, ids[3]) == [
        "flights_delays is Running",
        "flights_delays continued as new before this wait began: this is execution 4",
    ]
    again = "numbers of activities and attempts begin again"
    assert lines(journal, ids[4]) == [f"flights_delays has begun a new execution: {again}"]
    assert lines(journal, ids[7]) == [f"flights_delays has begun a new execution (3 since the last check): {again}"]
    assert lines(journal, ids[7]) == []
    assert lines(TaskLog(), ids[0]) == ["flights_delays is Running"]


def test_executions_of_another_start_are_not_counted() -> None:
    """Nobody knows how many there were: the number in an id counts the executions of its own start."""
    journal = TaskLog()
    list(lines(journal, generations(2)[1]))
    assert lines(journal, "a" * 16 + generations(10)[9][16:]) == [
        "flights_delays has begun a new execution: numbers of activities and attempts begin again"
    ]


@pytest.mark.parametrize(
    ("workers", "text"),
    [
        ((), "no worker of the hub is alive"),
        ((replace(member("a triggerer"), roles=("watcher",)),), "no worker of the hub is alive"),
        ((member("a"),), "hub served by 1 live worker: a (flights 3); it knows 'flights_delays'"),
        ((member("a", "x"),), "hub served by 1 live worker: a (flights 3); it does not know 'flights_delays'"),
        (
            (member("a"), member("b", "x")),
            "hub served by 2 live workers: a (flights 3), b (flights 3); 1 of them knows 'flights_delays'",
        ),
        (
            (member("a"), member("b")),
            "hub served by 2 live workers: a (flights 3), b (flights 3); 2 of them know 'flights_delays'",
        ),
        (
            (member("a", "x"), member("b", "x")),
            "hub served by 2 live workers: a (flights 3), b (flights 3); none of them knows 'flights_delays'",
        ),
    ],
)
def test_a_sentence_says_who_serves_the_hub(workers: tuple[Any, ...], text: str) -> None:
    assert served_by(workers, "flights_delays") == text
