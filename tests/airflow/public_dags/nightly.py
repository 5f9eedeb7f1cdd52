"""Defaults of all tasks, callbacks, a pool, trigger rules and short cuts, as in Airflow's tutorial and its examples."""

from datetime import timedelta

from airflow.providers.standard.operators.latest_only import LatestOnlyOperator
from airflow.sdk import DAG, task

from airflow_provider_taskhub.operators.taskhub import TaskHubOperator


def tell(context) -> None:
    print(context["task_instance"])


with DAG(
    dag_id="nightly",
    schedule="0 2 * * *",
    user_defined_macros={"bucket": "s3://shop"},
    default_args={
        "retries": 2,
        "retry_delay": timedelta(minutes=5),
        "execution_timeout": timedelta(hours=2),
        "on_failure_callback": tell,
    },
    tags=["example"],
):

    @task.short_circuit
    def is_workday(logical_date=None) -> bool:
        return logical_date.weekday() < 5

    @task.orchestration(orchestrator="load", doc_md="One source.", weight_rule="upstream")
    def load(source: str, day: str, folder: str = "raw") -> dict[str, int]: ...

    orders = load.override(task_id="orders", pool="shop")("orders", "{{ ds }}")
    prices = load.override(task_id="prices", on_success_callback=tell)("prices", "{{ macros.ds_add(ds, -1) }}")
    stock = load.override(task_id="stock", on_execute_callback=tell)("stock", "{{ ds }}", "{{ bucket }}/raw")
    report = TaskHubOperator(task_id="report", orchestrator="report", input=[orders, prices["rows"]])
    alarm = TaskHubOperator(task_id="alarm", orchestrator="alarm", input="{{ run_id }}", trigger_rule="one_failed")
    tidy = TaskHubOperator(
        task_id="tidy", orchestrator="tidy", trigger_rule="all_done", wait_for_completion=False, depends_on_past=True
    )
    is_workday() >> [orders, prices, stock]
    [report, stock] >> alarm >> tidy
    LatestOnlyOperator(task_id="latest_only") >> report
