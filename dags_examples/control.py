"""DAGs that control instances. While Airflow runs them, also run ``taskhub worker --app control_app:app``."""

from datetime import timedelta
from pathlib import Path

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

# A load that waits for its source. Another branch suspends it during a maintenance, and then tells it to begin.
with DAG(dag_id="control_events", schedule=None):
    load_id = "load-{{ run_id }}"  # chosen here, so that every task can name the instance
    TaskHubOperator(task_id="load", orchestrator="nightly_load", input=["flights", "weather"], instance_id=load_id)
    begun = TaskHubSensor(task_id="begun", instance_id=load_id, statuses=["Running"])
    suspend = TaskHubSuspendOperator(task_id="suspend", instance_id=load_id, reason="maintenance of the source")
    ready = TaskHubRaiseEventOperator(
        task_id="ready", instance_id=load_id, event_name="source_ready", data={"day": "2013-12-01"}
    )
    resume = TaskHubResumeOperator(task_id="resume", instance_id=load_id)
    begun >> suspend >> ready >> resume

# A report that fails. Its cause is repaired, and the instance continues from before its failure.
with DAG(dag_id="control_rewind", schedule=None, params={"folder": str(Path.home() / "taskhub-reports")}):
    report_id = "report-{{ run_id }}"
    report = TaskHubOperator(
        task_id="report", orchestrator="publish_report", input="{{ params.folder }}", instance_id=report_id
    )

    @task(trigger_rule="all_failed")
    def repair(folder: str) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)

    again = TaskHubRewindOperator(task_id="again", instance_id=report_id, reason="the folder is there now")
    report >> repair("{{ params.folder }}") >> again

# The end of an instance, and of all that is old.
with DAG(dag_id="control_cleanup", schedule=None, params={"instance": "load-of-yesterday"}):
    stop = TaskHubTerminateOperator(
        task_id="stop", instance_id="{{ params.instance }}", reason="superseded", missing_ok=True
    )
    purge_one = TaskHubPurgeOperator(task_id="purge_one", instance_id="{{ params.instance }}")
    purge_old = TaskHubPurgeOperator(
        task_id="purge_old", older_than=timedelta(days=30), statuses=["Completed"], limit=10_000
    )
    stop >> purge_one >> purge_old
