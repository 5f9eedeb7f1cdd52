"""The DAGs of ``make bench-airflow``. Their orchestration is one activity that does nothing."""

from __future__ import annotations

from airflow.sdk import DAG, task

from airflow_provider_taskhub.operators.taskhub import TaskHubOperator

for rows in (1, 100, 500):
    with DAG(f"zero_{rows}", schedule=None):
        for number in range(rows):
            TaskHubOperator(task_id=f"hub_{number}", orchestrator="single", input=number)

with DAG("worker_1", schedule=None):
    TaskHubOperator(task_id="hub", orchestrator="single", input=1, start_on="worker")

with DAG("worker_100", schedule=None):
    TaskHubOperator.partial(task_id="hub", orchestrator="single", start_on="worker").expand(input=list(range(100)))


@task
def nothing(number: int) -> int:
    return number


with DAG("task_1", schedule=None):
    nothing(1)

with DAG("task_100", schedule=None):
    nothing.expand(number=list(range(100)))
