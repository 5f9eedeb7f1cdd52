"""An AIRFLOW_HOME of its own, set before Airflow is imported anywhere in this process; a fake hub; a task's context."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

_HOME = Path(tempfile.mkdtemp(prefix="taskhub-airflow-"))
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)
os.environ.update(
    AIRFLOW_HOME=str(_HOME),
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__CORE__UNIT_TEST_MODE="True",
    AIRFLOW__CORE__DAGS_FOLDER=str(_HOME / "dags"),
    AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{_HOME}/airflow.db",
    TASKHUB_HOME=str(_HOME / "taskhub"),
)

import pytest  # noqa: E402  # imports Airflow through its plugins

from tests.airflow.fake import FakeHub, install  # noqa: E402
from tests.airflow.real import RealAirflow, started  # noqa: E402


@pytest.fixture(scope="session")
def real() -> RealAirflow:
    return started()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    """A fake hub that every hook of this test uses."""
    fake = FakeHub()
    install(fake, monkeypatch)
    return fake


@dataclass
class Ti:
    """A task instance as an operator's context has it; every try has an id of its own."""

    dag_id: str = "flights"
    run_id: str = "scheduled__2013-12-01T00:00:00+00:00"
    task_id: str = "delays"
    map_index: int = -1
    try_number: int = 1
    max_tries: int = 2
    id: Any = field(default_factory=uuid4)
    xcoms: dict[str, Any] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)

    def xcom_push(self, key: str, value: Any) -> None:
        self.requests.append(f"push {key}")
        self.xcoms[key] = value

    def xcom_pull(self, *, task_ids: str, key: str, map_indexes: int) -> Any:
        assert (task_ids, map_indexes) == (self.task_id, self.map_index)
        return self.xcoms.get(key)

    def next_try(self, **changes: Any) -> Ti:
        return replace(self, id=uuid4(), try_number=self.try_number + 1, xcoms={}, requests=[], **changes)

    def cleared(self, retries: int = 2) -> Ti:
        """As Airflow clears: a new try, with retries on top of the tries so far."""
        return self.next_try(max_tries=self.try_number + retries)


@dataclass
class Store:
    """task_state_store: one per task instance, survives tries and clears."""

    values: dict[str, Any] = field(default_factory=dict)
    retentions: dict[str, Any] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)

    def get(self, key: str, default: Any = None) -> Any:
        self.requests.append(f"get {key}")
        return self.values.get(key, default)

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:
        self.requests.append(f"set {key}")
        self.values[key] = value
        self.retentions[key] = retention


@dataclass
class Task:
    """Runs tries of one operator as Airflow does."""

    operator: Any
    store: Store = field(default_factory=Store)
    deferred: Any = None

    def context(self, ti: Ti) -> dict[str, Any]:
        when = datetime(2013, 12, 1, tzinfo=UTC)
        return {
            "ti": ti,
            "task_state_store": self.store,
            "logical_date": when,
            "data_interval_start": when,
            "data_interval_end": when,
        }

    def start(self, ti: Ti) -> Any:
        """Run ``execute``; the deferral."""
        from airflow.sdk.exceptions import TaskDeferred

        with pytest.raises(TaskDeferred) as deferred:
            self.operator.execute.__wrapped__(self.operator, self.context(ti))
        self.deferred = deferred.value
        return self.deferred

    def run(self, ti: Ti) -> Any:
        """Run ``execute``; what it returns."""
        return self.operator.execute.__wrapped__(self.operator, self.context(ti))

    def finish(self, ti: Ti, **event: Any) -> Any:
        """Resume with an event, of the trigger of the last deferral if nothing else is said."""
        trigger = self.deferred.trigger
        waited = {"instance_id": trigger.instance_id, "owner": trigger.owner}
        payload = {"reason": "reached", "status": None, "message": ""} | waited | event
        kwargs = {**(self.deferred.kwargs or {}), "event": payload}
        return self.operator.resume_execution(self.deferred.method_name, kwargs, self.context(ti))


@pytest.fixture
def make_task(hub: FakeHub) -> Callable[..., Task]:
    from airflow_provider_taskhub.operators.taskhub import TaskHubOperator

    def make(**arguments: Any) -> Task:
        return Task(TaskHubOperator(**({"task_id": "delays", "orchestrator": "flights_delays"} | arguments)))

    return make
