"""The DAG files of ``make bench-airflow``."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.definitions.mappedoperator import MappedOperator

from tests.benchmarks.front.figures import WORKLOADS
from tests.benchmarks.front.parse import PARSED
from tests.benchmarks.front.stage import HERE


def dags(monkeypatch: pytest.MonkeyPatch, *paths: Path) -> dict[str, Any]:
    """Read DAG files as Airflow does: each DAG counts, also one whose variable was used again."""
    from airflow.sdk.definitions._internal.contextmanager import DagContext

    DagContext.autoregistered_dags.clear()
    monkeypatch.setattr(DagContext, "current_autoregister_module_name", __name__)
    for path in paths:
        runpy.run_path(str(path))
    found = {dag.dag_id: dag for dag, _ in DagContext.autoregistered_dags}
    assert all(isinstance(dag, DAG) for dag in found.values())
    return found


def test_every_workload_has_its_dag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE / "floor"))
    found = dags(monkeypatch, *sorted((HERE / "dags").glob("*.py")))
    assert {each.dag for each in WORKLOADS.values()} == found.keys()
    assert {len(dag.tasks) for dag in found.values()} == {1}
    for name in found:
        if name.startswith(("zero", "trigger")):
            (task,) = found[name].tasks
            assert task.start_from_trigger
            (rows,) = task.expand_input.value.values() if isinstance(task, MappedOperator) else ([None],)
            assert len(rows) == int(name.rpartition("_")[2])
            assert name.startswith("trigger") or not task.placement().success
    assert found["worker_1"].tasks[0].placement().start


async def test_the_trigger_of_the_floor_ends_its_task_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE / "floor"))
    from airflow.sdk._shared.module_loading import import_string
    from airflow.triggers.base import TaskSuccessEvent
    from bench_nothing import NothingOperator

    arguments = NothingOperator.start_trigger_args
    trigger = import_string(arguments.trigger_cls)(**arguments.trigger_kwargs)
    assert trigger.serialize() == (arguments.trigger_cls, arguments.trigger_kwargs)
    assert [type(event) async for event in trigger.run()] == [TaskSuccessEvent]


def test_the_file_with_every_operator_has_every_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    import airflow_provider_taskhub.operators.control as control
    import airflow_provider_taskhub.operators.repair as repair

    kinds = {task.task_type for task in dags(monkeypatch, PARSED / "every_operator.py")["every_operator"].tasks}
    assert kinds >= {"TaskHubOperator", "TaskHubSensor", *control.__all__, *repair.__all__}
    assert [task.task_id for task in dags(monkeypatch, PARSED / "empty.py")["empty"].tasks] == ["nothing"]


@pytest.mark.process
def test_a_file_with_every_operator_loads_only_these_modules_of_the_engine_and_the_hub() -> None:
    """Airflow reads DAG files for ever. The engine's events alone take a third of the time that the file may take."""
    code = f"""
import airflow.sdk, runpy, sys
runpy.run_path({str(PARSED / "every_operator.py")!r})
names = [name.split('.')[1:] for name in sys.modules if name.startswith('airflow_provider_taskhub.')]
print(sorted('.'.join(parts) for parts in names if parts[0] in ('engine', 'hub', 'client', 'storage', 'settings')))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    allowed = ["engine", "engine.inputs", "engine.references", "engine.registry", "engine.retry", "engine.validation"]
    assert done.stdout.splitlines()[-1] == str(allowed)
