"""Operators that the triggerer starts and ends. Their orchestration is one activity that does nothing."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_provider_taskhub.operators.taskhub import TaskHubOperator

with DAG("zero_1", schedule=None):
    for number in range(1):
        TaskHubOperator(task_id=f"hub_{number}", orchestrator="single", input=number)
