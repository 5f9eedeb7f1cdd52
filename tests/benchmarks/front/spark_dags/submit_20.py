"""The way without TaskHub: an application of Spark for each task."""

from __future__ import annotations

import os

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG

with DAG("submit_20", schedule=None):
    SparkSubmitOperator.partial(
        task_id="submit", application=os.environ["BENCH_SPARK_JOB"], max_active_tis_per_dag=4
    ).expand(name=[f"job-{number}" for number in range(20)])
