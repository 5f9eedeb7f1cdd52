"""``@task.orchestration`` in a real Airflow: the DAG of ``dags_examples/taskflow.py``."""

from __future__ import annotations

import pytest

from tests.airflow.real import RealAirflow

pytestmark = pytest.mark.timeout(600)


def returned(real: RealAirflow, run: str, task_id: str, index: int = -1) -> object:
    entries = f"{real.path('taskflow', run, task_id)}/xcomEntries/return_value"
    return real.get(entries, map_index=index)["value"]


def test_stubs_take_values_templates_and_outputs_of_tasks_mapped_ones_too(real: RealAirflow) -> None:
    run = real.trigger("taskflow", year=2023)
    for task_id in ("first", "best"):
        real.reaches("taskflow", run, "success", task_id=task_id)
    assert returned(real, run, "first") == {"month": 12, "sales": 168}
    assert real.get(f"{real.path('taskflow', run, 'first')}/xcomEntries/sales")["value"] == 168
    rows = [returned(real, run, "sales", index) for index in range(3)]
    assert rows == [{"month": month, "sales": 46 + 10 * month} for month in (1, 2, 3)]
    assert returned(real, run, "best") == "month 3 had the highest sales: 76"
    row = real.get(f"{real.path('taskflow', run, 'sales')}/xcomEntries/instance_id", map_index=1)["value"]
    instance = real.instance(row)["instance"]
    assert (instance["name"], instance["input"]) == ("month_sales", '{"year":"2023","month":2}')


def test_a_rendered_argument_of_a_wrong_type_fails_the_row_and_starts_nothing(real: RealAirflow) -> None:
    run = real.trigger("taskflow_wrong", month="June")
    assert real.reaches("taskflow_wrong", run, "failed")["try_number"] == 1, "a retry would not help"
    assert "argument 'month' does not fit int: value: 'June' is not an int" in real.log("taskflow_wrong", run)
    assert (
        real.request("GET", "/taskhub/api/instance", params={"id": f"taskflow_wrong:hub:{run}:g1"}).status_code == 404
    )
