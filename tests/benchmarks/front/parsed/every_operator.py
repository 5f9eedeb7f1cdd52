"""A DAG file with every operator, sensor and decorator of TaskHub."""

from datetime import timedelta

from airflow.sdk import DAG, task

from airflow_provider_taskhub.operators.control import (
    TaskHubRaiseEventOperator,
    TaskHubResumeOperator,
    TaskHubSuspendOperator,
    TaskHubTerminateOperator,
)
from airflow_provider_taskhub.operators.repair import TaskHubPurgeOperator, TaskHubRewindOperator
from airflow_provider_taskhub.operators.taskhub import TaskHubOperator
from airflow_provider_taskhub.sensors.taskhub import TaskHubSensor

with DAG("every_operator", schedule=None, default_args={"retry_delay": timedelta(seconds=1)}):
    named = {"instance_id": "load-{{ run_id }}"}
    TaskHubOperator(task_id="load", orchestrator="load", input=["flights"], **named)
    TaskHubOperator.partial(task_id="months", orchestrator="month").expand(input=list(range(12)))
    TaskHubSensor(task_id="begun", statuses=["Running"], **named)
    TaskHubRaiseEventOperator(task_id="ready", event_name="ready", data={"day": "2013-12-01"}, **named)
    TaskHubSuspendOperator(task_id="suspend", **named)
    TaskHubResumeOperator(task_id="resume", **named)
    TaskHubTerminateOperator(task_id="terminate", **named)
    TaskHubRewindOperator(task_id="rewind", **named)
    TaskHubPurgeOperator(task_id="purge", older_than=timedelta(days=30))

    @task.orchestration(orchestrator="report")
    def report(month: int) -> None: ...

    report(1)
