"""Sensors for a custom status and an awaited event, and a person's answer as an event, in a real Airflow."""

from __future__ import annotations

import pytest

from tests.airflow.real import RealAirflow
from tests.waiting import until


@pytest.mark.parametrize(("answer", "end"), [("Publish", "flights is published"), ("Reject", "flights is rejected")])
def test_a_persons_answer_reaches_the_orchestration_as_an_event(real: RealAirflow, answer: str, end: str) -> None:
    run = real.trigger("approval")
    for task_id in ("counted", "enough", "asked"):
        real.reaches("approval", run, "success", task_id=task_id)
    until("the question", lambda: real.task("approval", run, "decide")["state"] == "awaiting_input")
    until("the end of the task's process", lambda: real.left_worker("approval", run, "decide"))
    path = f"{real.path('approval', run, 'decide')}/-1/hitlDetails"
    replied = real.request("PATCH", path, json={"chosen_options": [answer]})
    assert replied.status_code == 200, replied.text
    real.reaches("approval", run, "success", task_id="publish")
    output = real.get(f"{real.path('approval', run, 'publish')}/xcomEntries/return_value")["value"]
    assert output == end


def test_a_sensor_ends_in_the_triggerer_when_the_event_is_awaited(real: RealAirflow) -> None:
    run = real.trigger("moment", instance="of-the-moment")
    real.reaches("moment", run, "deferred")
    real.taskhub("instances", "start", "waits", "--id", "of-the-moment")
    real.reaches("moment", run, "success")
    log = real.log("moment", run, having="the task ends in the triggerer")
    assert "the task continues in a worker" not in log
    assert real.status("of-the-moment") == "Running"
    real.taskhub("instances", "terminate", "of-the-moment")


def test_sensors_that_use_no_triggerer(real: RealAirflow) -> None:
    run = real.trigger("sensor_example", instance="of-the-sensors")
    real.reaches("sensor_example", run, "running", task_id="in_the_worker")
    real.reaches("sensor_example", run, "up_for_reschedule", task_id="rescheduled")
    real.taskhub("instances", "start", "pause", "--id", "of-the-sensors", "--input", "1")
    for task_id in ("in_the_worker", "in_the_triggerer", "rescheduled"):
        real.reaches("sensor_example", run, "success", task_id=task_id)
    log = real.log("sensor_example", run, task_id="in_the_worker")
    assert "this Airflow worker waits for instance of-the-sensors" in log
    assert "a triggerer now waits" not in log
