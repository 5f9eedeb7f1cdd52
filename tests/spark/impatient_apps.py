"""The activities of ``connect_apps``, in a process that soon takes its cluster for lost."""

from __future__ import annotations

from airflow_provider_taskhub.workers.executors.child import cluster_executors
from tests.spark.connect_apps import app

__all__ = ["app"]

cluster_executors.LOST_AFTER = 4.0
