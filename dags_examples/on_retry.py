"""A retry goes on from before the failure: activities that have completed do not run again.

While Airflow runs this DAG, also run ``taskhub worker --app on_retry_app:app``. Each task fails at its first try.
``repaired_by_hand`` fails again at each retry, until somebody runs ``taskhub instances rewind`` with its instance id.
"""

from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG

from airflow_provider_taskhub.operators.taskhub import TaskHubOperator

with DAG(
    dag_id="on_retry",
    schedule=None,
    params={"folder": str(Path.home() / "taskhub-reports")},
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},
) as dag:
    folder = "{{ params.folder }}/{{ run_id }}"
    TaskHubOperator(task_id="go_on", orchestrator="monthly_report", input=f"{folder}/go_on")
    TaskHubOperator(
        task_id="compute_anew", orchestrator="monthly_report", input=f"{folder}/compute_anew", on_retry="restart"
    )
    TaskHubOperator(
        task_id="repaired_by_hand", orchestrator="monthly_report", input=f"{folder}/by_hand", on_retry="attach"
    )
