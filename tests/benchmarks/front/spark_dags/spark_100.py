"""One task, whose orchestration runs 100 small Spark jobs."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_provider_taskhub.operators.taskhub import TaskHubOperator

with DAG("spark_100", schedule=None):
    TaskHubOperator(task_id="hub", orchestrator="many", input=100)
