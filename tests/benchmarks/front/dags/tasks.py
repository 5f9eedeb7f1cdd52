"""Tasks that do nothing, in Airflow's workers. Each workload has a file of its own: a task reads its whole file."""

from __future__ import annotations

from airflow.sdk import DAG, task


@task
def nothing(number: int) -> int:
    return number


with DAG("task_1", schedule=None):
    nothing(1)

with DAG("task_100", schedule=None):
    nothing.expand(number=list(range(100)))
