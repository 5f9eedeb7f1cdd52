"""Imports, in Airflow's scheduler, what each task would otherwise import in a process of its own.

``LocalExecutor`` starts each task as a fork of the scheduler, so the task already has all modules of the scheduler. The
client of the hub and its stores are 100 ms of CPU for a task on SQLite and 300 ms for one on Azure: more than all the
rest of a short task.

Other processes of Airflow do not preload: they import what they need when they need it.
"""

from __future__ import annotations

import importlib
import logging
import sys

from airflow.sdk import conf

_MODULES = (
    "airflow_provider_taskhub.operators.taskhub",
    "airflow_provider_taskhub.client",
    "airflow_provider_taskhub.triggers.task_log",
    "airflow_provider_taskhub.storage.sqlite.store",
    "airflow_provider_taskhub.storage.azure.store",
)


def preload() -> None:
    """Import the modules if this process is a scheduler with a ``LocalExecutor``. An error only leaves a log line."""
    if sys.argv[1:2] != ["scheduler"] or "LocalExecutor" not in conf.get("core", "executor", fallback=""):
        return
    for name in _MODULES:
        try:
            importlib.import_module(name)
        except (
            Exception
        ) as error:  # for example, the packages for Azure are not installed: tasks show errors that matter
            logging.getLogger(__name__).info("not imported in advance: %s: %s", name, error)
