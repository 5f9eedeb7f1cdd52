"""An operator whose success updates an asset: only an Airflow worker can end it."""

from __future__ import annotations

from airflow.sdk import DAG, Asset

from airflow_provider_taskhub.operators.taskhub import TaskHubOperator

with DAG("outlet_1", schedule=None):
    TaskHubOperator(task_id="hub", orchestrator="paused", input=3.0, outlets=[Asset("bench")])
