"""Operators that workers start. Their orchestration is one activity that does nothing."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_provider_taskhub.operators.taskhub import TaskHubOperator

with DAG("worker_1", schedule=None):
    TaskHubOperator(task_id="hub", orchestrator="single", input=1, start_on="worker")

with DAG("worker_100", schedule=None):
    TaskHubOperator.partial(task_id="hub", orchestrator="single", start_on="worker").expand(input=list(range(100)))
