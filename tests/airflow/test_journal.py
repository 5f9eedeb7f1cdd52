"""Lines of a waiting task's log, from snapshots of the instance and the hub's workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.hub.contract import ActivityRecord, RecordState
from airflow_provider_taskhub.triggers.journal import Journal, served_by
from tests.airflow.fake import FakeHub, member, record


def lines(journal: Journal, execution: str, *records: ActivityRecord, **more: Any) -> list[str]:
    state = FakeHub().put("i", Status.RUNNING, execution_id=execution, **more)
    return list(journal.lines(state, records))


def test_a_second_execution_repeats_nothing_of_the_first_and_is_told_apart_from_it() -> None:
    """A retry starts the instance again and a continue-as-new goes on: their activities have the same numbers."""
    tried = record(RecordState.FAILED, execution="try 1", worker="a")
    running = record(RecordState.RUNNING, execution="first", worker="b")
    done = record(RecordState.COMPLETED, execution="first", worker="b")
    again = record(RecordState.RUNNING, execution="second", worker="c")
    journal = Journal()
    assert lines(journal, "first", tried, running) == [
        "monthly_delays #0, attempt 1, running on b",
        "flights_delays is Running",
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
    journal = Journal()
    assert lines(journal, "old", new) == ["flights_delays is Running"]
    assert lines(journal, "new", new)[1:] == ["monthly_delays #0, attempt 1, running on c"]


def test_what_an_instance_says_of_itself_passes_airflows_masker() -> None:
    said = lines(Journal(), "e", custom_status='{"password":"hunter2","months":8}')
    assert said[0] == 'flights_delays says: {"password": "***", "months": 8}'
    assert lines(Journal(), "e", custom_status='{"months":8}')[0] == 'flights_delays says: {"months":8}'


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
