"""What Airflow's scheduler imports for its tasks."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from airflow_provider_taskhub.plugins import preload as module

_CODE = """
import sys
sys.argv = ["airflow", sys.argv[1]]
from airflow.sdk.plugins_manager import AirflowPlugin
from airflow_provider_taskhub.plugins.taskhub import TaskHubPlugin
ours = {"client", "operators.taskhub", "storage.sqlite.store", "storage.azure.store", "triggers.task_log"}
def loaded():
    return sorted(name for name in ours if f"airflow_provider_taskhub.{name}" in sys.modules)
assert loaded() == []
TaskHubPlugin.on_load()
print(loaded())
"""
_ALL = ["client", "operators.taskhub", "storage.azure.store", "storage.sqlite.store", "triggers.task_log"]


@pytest.mark.process
@pytest.mark.parametrize(
    ("component", "executor", "expected"),
    [
        ("scheduler", "LocalExecutor", _ALL),
        ("scheduler", "CeleryExecutor,airflow.executors.local_executor.LocalExecutor", _ALL),
        ("scheduler", "CeleryExecutor", []),
        ("triggerer", "LocalExecutor", []),
        ("dag-processor", "LocalExecutor", []),
    ],
)
def test_only_a_scheduler_that_forks_its_tasks_imports_what_they_need(
    component: str, executor: str, expected: list[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CODE, component],
        env=os.environ | {"AIRFLOW__CORE__EXECUTOR": executor},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.splitlines()[-1] == str(expected)


def test_what_cannot_be_imported_stops_neither_the_scheduler_nor_the_rest(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_MODULES", ("not_installed_in_tests", "this"))
    monkeypatch.setattr(sys, "argv", ["airflow", "scheduler"])
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "LocalExecutor")
    sys.modules.pop("this", None)
    with caplog.at_level("INFO"):
        module.preload()
    assert "this" in sys.modules
    assert "not imported in advance: not_installed_in_tests" in caplog.text
