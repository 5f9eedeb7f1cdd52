"""Airflow's own time limit of a deferral, behind the trigger's deadline."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_provider_taskhub.clock import SYSTEM_CLOCK
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.triggers.deferral import deferral_timeout

NOW = Timestamp.parse("2026-11-21T10:00:00Z")


@pytest.mark.parametrize(
    ("left", "timeout"),
    [
        (timedelta(hours=1), timedelta(hours=1, minutes=5)),
        (timedelta(0), timedelta(minutes=5)),
        (timedelta(hours=-1), timedelta(minutes=5)),
    ],
    ids=["before the deadline", "at the deadline", "after the deadline"],
)
def test_airflow_gives_the_trigger_five_minutes_more_than_its_deadline(
    monkeypatch: pytest.MonkeyPatch, left: timedelta, timeout: timedelta
) -> None:
    monkeypatch.setattr(type(SYSTEM_CLOCK), "utc_now", lambda _: NOW)
    assert deferral_timeout(NOW + left) == timeout


def test_a_task_without_a_time_limit_defers_without_one() -> None:
    assert deferral_timeout(None) is None
