"""What the failure of a call says that waited to begin longer than its ``queue_timeout``."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.workers.activities.processor import expired


@pytest.mark.parametrize(
    ("options", "waited_for"),
    [
        ({}, "a free slot"),
        ({"limit": 1}, "a place of its limit 'load' or a free slot"),
        ({"rate": "5/s", "limit_name": "partner"}, "a place of its rate 'partner' or a free slot"),
        ({"memory": "1g"}, "memory or a free slot"),
    ],
    ids=["slot", "limit", "rate", "memory"],
)
def test_the_failure_names_what_the_call_waited_for(options: dict[str, Any], waited_for: str) -> None:
    app = App("a")
    app.activity(name="load", queue_timeout=timedelta(seconds=5), **options)(lambda: None)
    failure = expired(app.activities["load"], timedelta(seconds=45))
    assert failure.error_type == "QueueTimeout"
    assert failure.error_message == (
        f"activity 'load' waited 0:00:45 for {waited_for}, longer than its queue_timeout of 0:00:05"
    )
