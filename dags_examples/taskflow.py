"""Orchestrations as task functions. While Airflow runs this DAG, also run ``taskhub worker --app taskflow_app:app``.

Each stub has the parameters of an orchestrator. Airflow's parse of this file checks the arguments.
"""

from airflow.sdk import DAG, Param, task

with DAG(dag_id="taskflow", schedule=None, params={"year": Param(2025, type="integer")}) as dag:

    @task
    def months() -> list[int]:
        return [1, 2, 3]

    # several parameters: the orchestrator gets {"year": ..., "month": ...}
    @task.orchestration(orchestrator="month_sales", retries=2)
    def sales(year: int, month: int) -> dict[str, int]: ...

    # one parameter: the orchestrator gets the list itself
    @task.orchestration(orchestrator="best_month")
    def best(months: list[dict[str, int]]) -> str: ...

    first = sales.override(task_id="first")(2024, 12)
    best(sales.partial(year="{{ params.year }}").expand(month=months())) << first
