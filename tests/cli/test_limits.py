"""``taskhub limits`` on an embedded hub."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from airflow_provider_taskhub.cli.main import app
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import OrchestrationInstance
from airflow_provider_taskhub.hub.history import places
from airflow_provider_taskhub.hub.model import ActivityRecord, HubNames, RecordState
from airflow_provider_taskhub.hub.partitions.administration import create_hub
from airflow_provider_taskhub.storage.primitives import PutMessage
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore

NAMES = HubNames("TaskHub")


def taskhub(*arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return str(result.output)


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub in which one of two places of "load" is held, and two of three calls wait."""
    file = tmp_path / "hub.db"
    monkeypatch.setenv("TASKHUB_HOME", str(tmp_path))
    monkeypatch.setenv("TASKHUB_CONNECTION", f"sqlite:///{file}")
    limit = places.Limit(activity="load", places=2)
    record = ActivityRecord(
        instance=OrchestrationInstance(instance_id="monday", execution_id="e"),
        task_id=3,
        action_id="a",
        attempt=1,
        name="load",
        state=RecordState.RUNNING,
        worker="one@host/1",
        executor="",
        claimed=Timestamp(0),
    )

    async def make() -> None:
        async with SqliteStore(file) as store:
            await create_hub(store, NAMES, 1)
            await store.create_queue(NAMES.limited("load"))
            await store.execute(places.declared(NAMES, limit))
            for name in "abc":
                await store.execute(PutMessage(queue=NAMES.limited("load"), text=name))
            for place in (await places.places_of(store, NAMES, limit))[1:]:
                await store.execute(places.taken(NAMES, place, record))

    asyncio.run(make())


def test_a_row_for_each_activity_with_a_limit() -> None:
    lines = taskhub("limits").splitlines()
    assert [line.split() for line in lines[-2:]] == [
        ["activity", "limit", "running", "waiting", "who"],
        ["load", "2", "1", "2", "monday", "#3"],
    ]


def test_as_json() -> None:
    assert json.loads(taskhub("limits", "--json")) == [
        {
            "activity": "load",
            "limit": 2,
            "running": 1,
            "waiting": 2,
            "holders": [{"instance_id": "monday", "task_id": 3, "attempt": 1, "worker": "one@host/1"}],
        }
    ]


def test_the_queues_of_limits_are_deleted_with_the_hub(tmp_path: Path) -> None:
    taskhub("hub", "delete", "--yes")

    async def left() -> list[str]:
        async with SqliteStore(tmp_path / "hub.db") as store:
            return await store.list_queues("taskhub-")

    assert asyncio.run(left()) == []
