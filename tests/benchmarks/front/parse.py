"""The time that Airflow needs to read a DAG file, in a process that has imported what Airflow's own process has.

Airflow's DAG processor freezes its objects before it starts such a process, so the garbage collector does not visit
them. Without that, one collection of 120 ms would fall into the reading of one file or of the other, by chance.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.airflow.real import ROOT

PARSED = Path(__file__).parent / "parsed"
_PROGRAM = """
import gc, runpy, sys, time
import airflow.sdk, airflow.dag_processing.processor
from airflow.sdk import DAG, task
gc.collect()
gc.freeze()
began = time.perf_counter()
runpy.run_path(sys.argv[1])
print((time.perf_counter() - began) * 1000)
"""
DEADLINE = 120.0
"""Seconds for one process."""


def parse_times(times: int) -> list[float]:
    """Return milliseconds of a DAG file with every operator above those of a file without, one value a pair."""
    with tempfile.TemporaryDirectory(prefix="taskhub-parse-") as home:
        once(home, "every_operator")  # compiles
        return [once(home, "every_operator") - once(home, "empty") for _ in range(times)]


def once(home: str, name: str) -> float:
    """Return the milliseconds in which a new process reads one of the files."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "TASKHUB"))}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(PARSED / f"{name}.py")],
        env=kept | {"AIRFLOW_HOME": home, "AIRFLOW__CORE__LOAD_EXAMPLES": "False"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=True,
    )
    return float(done.stdout.split()[-1])
