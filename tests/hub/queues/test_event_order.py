"""Which event a process sent before another one, and which ones have arrived: decisions by values."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_taskhub.hub.queues import event_order
from airflow_provider_taskhub.hub.queues.event_order import MAX_SENDERS, SentEvents, is_missing, with_arrived

RUN, OTHER = ("i", "a"), ("i", "b")


def sends(sent: SentEvents, run: tuple[str, str], number: int) -> int | None:
    with sent.next(run, number) as before:
        return before


def test_each_event_names_the_one_before_it_to_the_same_run() -> None:
    sent = SentEvents()
    found = [sends(sent, run, number) for number, run in enumerate((RUN, OTHER, RUN, RUN, OTHER), 1)]
    assert found == [None, None, 1, 3, 2]


def fails(sent: SentEvents, run: tuple[str, str], number: int) -> None:
    with sent.next(run, number):
        raise TimeoutError


def test_an_event_that_was_not_sent_is_named_by_no_other() -> None:
    sent = SentEvents()
    found = []
    for number in (2, 4):
        with pytest.raises(TimeoutError):
            fails(sent, RUN, number - 1)
        found.append(sends(sent, RUN, number))
    assert found == [None, 2]


def test_the_runs_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_order, "MAX_RUNS", 2)
    sent = SentEvents()
    assert [sends(sent, ("i", str(number)), number) for number in (1, 2, 1, 3, 1, 2)] == [None, None, 1, None, 1, None]


@pytest.mark.parametrize(
    ("after", "process", "missing"),
    [(None, "p", False), (4, "p", False), (5, "p", False), (6, "p", True), (1, "new", True), (1, "", False)],
)
def test_an_event_waits_for_the_one_before_it(after: int | None, process: str, missing: bool) -> None:
    assert is_missing(after, process, {"p": 5, "q": 90}) is missing


def test_a_process_that_may_be_forgotten_waits_for_nothing() -> None:
    arrived: Mapping[str, int] = {}
    for number in range(MAX_SENDERS):
        assert is_missing(1, "new", arrived)
        arrived = with_arrived(arrived, f"p{number}", 1)
    assert not is_missing(1, "new", arrived)
    arrived = with_arrived(with_arrived(arrived, "p0", 2), "new", 1)
    assert len(arrived) == MAX_SENDERS
    assert "p1" not in arrived, "it has sent nothing for the longest time"
    assert {**arrived, "p0": 2, "new": 1} == arrived


@given(st.permutations(range(1, 9)))
def test_whatever_comes_first_they_are_taken_in_order(arrivals: list[int]) -> None:
    taken: list[int] = []
    arrived: Mapping[str, int] = {}
    here: list[int] = []
    for number in arrivals:
        here = sorted([*here, number])
        for one in list(here):
            if not is_missing(one - 1 or None, "p", arrived):
                here.remove(one)
                taken.append(one)
                arrived = with_arrived(arrived, "p", one)
    assert taken == list(range(1, 9))
