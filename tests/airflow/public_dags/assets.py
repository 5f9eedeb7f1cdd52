"""DAGs that start each other by assets, as in Airflow's examples of assets."""

from airflow.sdk import DAG, Asset, asset, task

from airflow_provider_taskhub.operators.taskhub import TaskHubOperator

orders, prices = Asset("s3://shop/orders"), Asset("s3://shop/prices")

with DAG(dag_id="produces_orders", schedule="@daily", tags=["example"]):
    TaskHubOperator(task_id="orders", orchestrator="orders", input="{{ ds }}", outlets=[orders])

with DAG(dag_id="produces_prices", schedule=None, tags=["example"]):

    @task.activity(activity="prices", outlets=[prices])
    def new_prices(day: str) -> None: ...

    new_prices("{{ data_interval_end | ds }}")

with DAG(dag_id="consumes_both", schedule=(orders & prices), tags=["example"]):
    TaskHubOperator(
        task_id="sales",
        orchestrator="sales",
        input=["{{ run_id }}", "{{ inlet_events }}"],
        inlets=[orders, prices],
        outlets=[Asset("s3://shop/sales")],
    )

with DAG(dag_id="consumes_either", schedule=(orders | prices), tags=["example"]):
    TaskHubOperator(task_id="checked", orchestrator="check", inlets=[orders])


@asset(schedule=orders)
def largest_order() -> int:
    return 1
