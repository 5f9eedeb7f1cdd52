"""A large output stays in the hub, and tasks hand a reference on.

While Airflow runs this DAG, also run ``taskhub worker --app outputs_app:app``.
"""

from airflow.sdk import DAG, Param, task

from airflow_provider_taskhub.hooks.taskhub import TaskHubHook
from airflow_provider_taskhub.operators.taskhub import TaskHubOperator

with DAG(dag_id="outputs", schedule=None, params={"rows": Param(20_000, type="integer")}) as dag:
    # about 400 KB: the XCom of this task is a reference
    rows = TaskHubOperator(task_id="rows", orchestrator="many_rows", input="{{ params.rows }}")

    # the operator opens the reference before it starts the orchestration
    TaskHubOperator(task_id="count", orchestrator="count_rows", input=rows.output)

    @task
    def last(output: list[str]) -> str:
        whole: list[str] = TaskHubHook.output(output)
        return whole[-1]

    last(rows.output)
