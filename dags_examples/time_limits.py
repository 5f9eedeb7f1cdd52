"""Time limits. Both tasks fail, and nothing runs after that.

While Airflow runs this DAG, also run ``taskhub worker --app control_app:app``.
"""

from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_taskhub.operators.taskhub import TaskHubOperator

with DAG(dag_id="time_limits", schedule=None) as dag:
    # the orchestration waits for an event that nobody raises
    TaskHubOperator(
        task_id="too_late",
        orchestrator="nightly_load",
        input=["flights"],
        execution_timeout=timedelta(seconds=10),
        tags={"team": "sales"},
    )
    # no live worker has this orchestrator
    TaskHubOperator(task_id="no_worker", orchestrator="not_deployed", no_worker_timeout=timedelta(seconds=10))
