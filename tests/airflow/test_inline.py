"""``dag.test()``: everything in one process, triggers inline, no Airflow services."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG, task

from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.operators.taskhub import TaskHubOperator
from tests.airflow.fake import FakeHub


@pytest.fixture(scope="module")
def database() -> None:
    from airflow.utils.db import initdb

    initdb()


def make_dag(dag_id: str) -> DAG:
    with DAG(dag_id, schedule=None) as dag:

        @task
        def months() -> list[int]:
            return [1, 2]

        @task
        def check(result: dict[str, Any]) -> None:
            assert result == {"sum": 3}

        check(TaskHubOperator(task_id="hub", orchestrator="flights_delays", input={"months": months()}).output)
    return dag


def written(dag: DAG) -> DAG:
    """In the database, as Airflow 3.3 wants it before ``dag.test()``."""
    from airflow.models.dagbundle import DagBundleModel
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.serialization.definitions.dag import SerializedDAG
    from airflow.serialization.serialized_objects import LazyDeserializedDAG
    from airflow.utils.session import create_session

    with create_session() as session:
        if session.get(DagBundleModel, "dags-folder") is None:
            session.add(DagBundleModel(name="dags-folder"))
            session.commit()
        lazy = LazyDeserializedDAG.from_dag(dag)
        SerializedDAG.bulk_write_to_db("dags-folder", None, [lazy], session=session)
        SerializedDagModel.write_dag(lazy, bundle_name="dags-folder", session=session)
    return dag


@pytest.mark.long
def test_a_dag_waits_inline(database: None, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.airflow.fake import FakeClient

    start = FakeClient.start

    async def and_run(self: FakeClient, *arguments: Any, **named: Any) -> Any:
        state = await start(self, *arguments, **named)
        hub.end(state.instance_id, {"sum": 3})
        return state

    async def not_at_once(*_: Any, **__: Any) -> None:
        raise TimeoutError

    monkeypatch.setattr(FakeClient, "start", and_run)
    monkeypatch.setattr(FakeClient, "wait", not_at_once)  # so that it is deferred
    run = written(make_dag("inline")).test()
    states = {ti.task_id: str(ti.state) for ti in run.get_task_instances()}
    assert states == {"months": "success", "hub": "success", "check": "success"}
    (instance,) = hub.instances.values()
    assert instance.status is Status.COMPLETED
    assert instance.instance_id == f"inline:hub:{run.run_id}:g1"


@pytest.mark.long
def test_a_dag_fails_inline_with_the_orchestrations_error(
    database: None, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.airflow.fake import FakeClient

    start = FakeClient.start

    async def and_fail(self: FakeClient, *arguments: Any, **named: Any) -> Any:
        state = await start(self, *arguments, **named)
        hub.fail(state.instance_id, "41 rows rejected")
        return state

    monkeypatch.setattr(FakeClient, "start", and_fail)
    run = written(make_dag("inline_fails")).test()
    states = {ti.task_id: str(ti.state) for ti in run.get_task_instances()}
    assert (states["hub"], states["check"]) == ("failed", "upstream_failed")
