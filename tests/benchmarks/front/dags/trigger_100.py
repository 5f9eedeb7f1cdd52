"""Rows that Airflow's triggerer starts and ends, without a hub. See bench_nothing.py in the folder floor."""

from __future__ import annotations

from airflow.sdk import DAG
from bench_nothing import NothingOperator

with DAG("trigger_100", schedule=None):
    NothingOperator.partial(task_id="hub").expand(number=list(range(100)))
