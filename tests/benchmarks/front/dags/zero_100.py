"""Rows that the triggerer starts and ends. Their orchestration is one activity that does nothing."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_provider_taskhub.operators.taskhub import TaskHubOperator

with DAG("zero_100", schedule=None):
    TaskHubOperator.partial(task_id="hub", orchestrator="single").expand(input=list(range(100)))
