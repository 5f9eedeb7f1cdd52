"""Extract, transform and load with values that tasks hand on, as in Airflow's tutorial of the TaskFlow API."""

from airflow.sdk import DAG, task

with DAG(dag_id="taskflow_etl", schedule=None, tags=["example"]):

    @task.activity
    def extract() -> list[float]: ...

    @task.orchestration
    def transform(orders: list[float]) -> dict[str, float]: ...

    @task.activity
    def load(total: float, day: str) -> None: ...

    @task.activity
    def report(summary: str) -> str: ...

    orders = extract()
    summary = transform(orders)
    load(summary["total"], "{{ ds }}")
    # the same value in the older way, as a template
    report("{{ ti.xcom_pull(task_ids='transform', key='total') }}") << summary
