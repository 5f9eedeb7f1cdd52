"""A DAG that tells a waiting orchestration how its load has ended, or that it is late.

The worker: ``taskhub worker --app notify_app:app``. The orchestration: ``taskhub instances start waits_for_load
--id load-1``. Start the DAG with the id of the instance as its run id.
"""

import time
from datetime import timedelta

from airflow.sdk import DAG, AsyncCallback, DeadlineAlert, DeadlineReference, task

from airflow_provider_taskhub.notifications.taskhub import TaskHubRaiseEventNotifier

late = DeadlineAlert(
    reference=DeadlineReference.DAGRUN_QUEUED_AT,
    interval=timedelta(seconds=10),
    callback=AsyncCallback(
        TaskHubRaiseEventNotifier,
        kwargs={"instance_id": "{{ dag_run.dag_run_id }}", "event_name": "late", "data": "the load is late"},
    ),
)


def tell(text: str) -> TaskHubRaiseEventNotifier:
    return TaskHubRaiseEventNotifier(instance_id="{{ run_id }}", event_name="loaded", data=text)


with DAG(dag_id="notify_example", schedule=None, params={"rows": 3, "seconds": 0}, deadline=late) as dag:

    @task(
        on_success_callback=tell("{{ params.rows }} rows are loaded"),
        on_failure_callback=tell("task {{ ti.task_id }} has failed"),
    )
    def load(params=None) -> None:
        time.sleep(params["seconds"])
        if not params["rows"]:
            raise ValueError("there are no rows")

    load()
