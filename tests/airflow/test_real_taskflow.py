"""Task functions in a real Airflow: the DAGs of ``dags_examples/taskflow.py`` and ``spark_rows.py``."""

from __future__ import annotations

from tests.airflow.real import RealAirflow


def returned(real: RealAirflow, run: str, task_id: str, index: int = -1, dag_id: str = "taskflow") -> object:
    entries = f"{real.path(dag_id, run, task_id)}/xcomEntries/return_value"
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
    real.log("taskflow_wrong", run, having="argument 'month' does not fit int: value: 'June' is not an int")
    assert (
        real.request("GET", "/taskhub/api/instance", params={"id": f"taskflow_wrong:hub:{run}:g1"}).status_code == 404
    )


def test_spark_functions_are_rows(real: RealAirflow) -> None:
    run = real.trigger("spark_rows")
    real.reaches("spark_rows", run, "success", task_id="total")
    assert returned(real, run, "total", dag_id="spark_rows") == 46
    assert [returned(real, run, "primes", index, "spark_rows") for index in (0, 1)] == [25, 21]
    row = real.get(f"{real.path('spark_rows', run, 'primes')}/xcomEntries/instance_id", map_index=1)["value"]
    shown = real.instance(row)
    assert (shown["instance"]["name"], shown["instance"]["input"]) == ("count_primes", '{"first":100,"end":200}')
    assert [bool(one["application"]) for one in shown["activities"]] == [True]
