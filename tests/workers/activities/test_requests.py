"""The request of an attempt has what the activity was declared with, and what its call says."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.engine.events import TaskScheduled
from airflow_provider_taskhub.workers.activities.runner import request_of
from airflow_provider_taskhub.workers.executors.attempt_values import Crashes
from tests.hub.by_hand import NOW, held


@pytest.mark.rows("D34")
@pytest.mark.parametrize("timeout", [None, timedelta(seconds=90)])
def test_a_request_has_the_timeout_of_its_activity(timeout: timedelta | None) -> None:
    app = App("requests")
    app.activity(name="load", timeout=timeout)(lambda: None)
    event = TaskScheduled(timestamp=NOW, event_id=3, name="load")
    request = request_of(held(event), event, app.activities["load"], attempt=2, crashes=Crashes(), begin_by=5.0)
    assert (request.name, request.task_id, request.attempt, request.begin_by) == ("load", 3, 2, 5.0)
    assert request.timeout == timeout


def test_a_request_has_the_settings_that_only_a_spark_application_can_have() -> None:
    app = App("requests")
    conf = {"spark.jars": "a.jar", "spark.sql.shuffle.partitions": 8}
    app.spark_activity(name="load", conf=conf)(lambda spark: None)
    event = TaskScheduled(timestamp=NOW, event_id=3, name="load")
    request = request_of(held(event), event, app.activities["load"], attempt=1, crashes=Crashes(), begin_by=5.0)
    assert request.application == {"spark.jars": "a.jar"}
