"""Sensors for a custom status and an awaited event, and a person's answer as an event, in a real Airflow."""

from __future__ import annotations

import pytest

from tests.airflow.real import RealAirflow, started, until

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="session")
def real() -> RealAirflow:
    return started()


@pytest.mark.parametrize(("answer", "end"), [("Publish", "flights is published"), ("Reject", "flights is rejected")])
def test_a_persons_answer_reaches_the_orchestration_as_an_event(real: RealAirflow, answer: str, end: str) -> None:
    run = real.trigger("approval")
    for task_id in ("counted", "asked"):
        real.reaches("approval", run, "success", task_id=task_id)
    until("the question", lambda: real.task("approval", run, "decide")["state"] == "awaiting_input")
    path = f"{real.path('approval', run, 'decide')}/-1/hitlDetails"
    replied = real.request("PATCH", path, json={"chosen_options": [answer]})
    assert replied.status_code == 200, replied.text
    real.reaches("approval", run, "success", task_id="publish")
    output = real.get(f"{real.path('approval', run, 'publish')}/xcomEntries/return_value")["value"]
    assert output == end


def test_a_sensor_ends_in_the_triggerer(real: RealAirflow) -> None:
    """The sensors of this DAG begin before the orchestration is where they want it, at least one of them."""
    run = real.trigger("approval")
    logs = []
    for task_id in ("counted", "asked"):
        real.reaches("approval", run, "success", task_id=task_id)
        logs.append(real.log("approval", run, task_id))
    assert "the task ends in the triggerer" in "".join(logs)
    assert "the task continues in a worker" not in "".join(logs)
    real.taskhub("instances", "terminate", f"publication-{run}")
