"""The DAGs of dags_examples/ that the tests run in a real Airflow."""

from __future__ import annotations

import runpy
from pathlib import Path

from airflow.sdk import DAG

NAMES = (
    "approval",
    "by_function",
    "control",
    "ends",
    "first",
    "lineage",
    "mapping",
    "notify",
    "on_retry",
    "outputs",
    "sensor",
    "spark_rows",
    "taskflow",
    "time_limits",
    "waiting",
    "zero_slot",
)

for name in NAMES:
    found = runpy.run_path(str(Path(__file__).parents[3] / "dags_examples" / f"{name}.py"))
    globals().update({one.dag_id: one for one in found.values() if isinstance(one, DAG)})
