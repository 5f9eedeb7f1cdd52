"""A DAG of the team ops, which viewers of other teams may not read."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_provider_taskhub.operators.taskhub import TaskHubOperator

with DAG("secret", schedule=None):
    TaskHubOperator(task_id="hub", orchestrator="sums", input=[5])
