"""A DAG file without operators, beside which :mod:`.every_operator` is timed."""

from datetime import timedelta

from airflow.sdk import DAG, task

with DAG("empty", schedule=None, default_args={"retry_delay": timedelta(seconds=1)}):

    @task
    def nothing() -> None:
        return

    nothing()
