"""A user's DAG file, as a type checker sees it."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_taskhub.notifications.taskhub import TaskHubRaiseEventNotifier
from airflow_provider_taskhub.operators.taskhub import TaskHubOperator
from airflow_provider_taskhub.sensors.taskhub import TaskHubSensor
from airflow_provider_taskhub.triggers.events import TaskHubEventTrigger

with DAG("flights", schedule=None):
    delays = TaskHubOperator(
        task_id="delays",
        orchestrator="flights_delays",
        input={"year": "{{ logical_date.year }}"},
        tags={"team": "air"},
        no_worker_timeout=timedelta(minutes=5),
        execution_timeout=timedelta(hours=2),
    )
    other = TaskHubSensor(task_id="other", instance_id="f-1", statuses=["Running"], timeout=3600)
    ended = TaskHubEventTrigger(dag_ids=["flights"], statuses=["Failed"], tags={"team": "air"}, poll_interval=30)
    tell = TaskHubRaiseEventNotifier(instance_id="f-1", event_name="loaded", data={"rows": 3})
