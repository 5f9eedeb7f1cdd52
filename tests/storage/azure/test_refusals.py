"""What is said while an account refuses requests."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from airflow_provider_taskhub.errors import AccessDenied
from airflow_provider_taskhub.storage.azure.rest.refusals import START, Refusals, refusals_of

START_SECONDS = int(START)
ERROR = AccessDenied("put into queue 'q': the storage account refused the credentials (403)")


def test_a_refusal_is_said_at_once_then_once_a_minute_and_its_end_too() -> None:
    now = 0.0
    refusals = Refusals(monotonic=lambda: now)
    with capture_logs() as logs:
        refusals.accepted("queue.get")
        for second in range(130):
            now = float(second)
            refusals.refused("queue.put", ERROR, account="http://acct/q")
            refusals.refused("table.get", ERROR, account="http://acct/q")
        refusals.accepted("queue.put")
        refusals.accepted("table.get")
        refusals.accepted("table.get")
    assert [entry["event"] for entry in logs] == ["store_refused"] * 3 + ["store_accepts_again"]
    assert [entry["seconds"] for entry in logs] == [0, 60, 120, 129]
    assert logs[0]["account"] == "http://acct/q"
    assert logs[0]["error"] == str(ERROR)
    assert logs[1]["requests"] == "queue.put, table.get"
    assert logs[3]["refused"] == 260


@pytest.mark.parametrize("every", [1, 20])
def test_one_kind_of_request_may_be_refused_while_the_others_are_not(every: int) -> None:
    now = 0.0
    refusals = Refusals(monotonic=lambda: now)
    refusals.accepted("queue.get")
    with capture_logs() as logs:
        for kind in ("queue.put", "queue.get"):
            refusals.refused(kind, ERROR, account="http://acct/q")
        for second in range(100):
            now = float(second)
            refusals.accepted("queue.get")
            if second % every == 0:
                refusals.refused("queue.put", ERROR, account="http://acct/q")
        now = 99.0 + 61.0
        refusals.accepted("queue.get")
    assert [entry["event"] for entry in logs] == ["store_refused", "store_refused", "store_accepts_again"]


def test_the_end_is_said_soon_although_one_kind_of_request_is_rare() -> None:
    now = 0.0
    refusals = Refusals(monotonic=lambda: now)
    refusals.accepted("queue.get")
    with capture_logs() as logs:
        for kind in ("blob.get", "table.get", "queue.get"):
            refusals.refused(kind, ERROR, account="http://acct/q")
        now = 3.0
        refusals.accepted("queue.get")
        now = 3.1
        refusals.refused("table.get", ERROR, account="http://acct/t")  # was under way
        now = 3.2
        refusals.accepted("table.get")
        refusals.accepted("queue.put")
        assert [entry["event"] for entry in logs] == ["store_refused"], "a request may still be under way"
        now = 5.0
        refusals.accepted("queue.put")
    assert [entry["event"] for entry in logs] == ["store_refused", "store_accepts_again"]
    assert (logs[1]["seconds"], logs[1]["refused"]) == (5, 4)


def test_all_stores_of_a_process_on_one_account_share_them() -> None:
    assert refusals_of("one") is refusals_of("one")
    assert refusals_of("one") is not refusals_of("two")


def test_a_process_that_is_refused_at_its_start_says_so_itself_and_is_logged_only_if_it_goes_on() -> None:
    now = 0.0
    refusals = Refusals(monotonic=lambda: now)
    with capture_logs() as logs:
        for second in range(START_SECONDS):
            now = float(second)
            refusals.refused("table.get", ERROR, account="http://acct/t")
        assert logs == []
        now = float(START_SECONDS)
        refusals.refused("table.get", ERROR, account="http://acct/t")
        refusals.accepted("table.get")
    assert [entry["event"] for entry in logs] == ["store_refused", "store_accepts_again"]
    assert logs[0]["refused"] == START_SECONDS + 1
    with capture_logs() as logs:
        refusals.refused("table.get", ERROR, account="http://acct/t")
    assert [entry["event"] for entry in logs] == ["store_refused"], "an account that has accepted: at once"
