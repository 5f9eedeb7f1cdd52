"""Which data the activities of an instance and its children have declared, read from the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import (
    HistoryEvent,
    OrchestrationInstance,
    SubOrchestrationInstanceCompleted,
    SubOrchestrationInstanceCreated,
)
from airflow_provider_taskhub.hub.formats.history_rows import encode_event
from airflow_provider_taskhub.hub.history import activity_records as records
from airflow_provider_taskhub.hub.history import lineage
from airflow_provider_taskhub.hub.model import ActivityRecord, RecordState
from airflow_provider_taskhub.lineage import NO_LINEAGE, Lineage
from airflow_provider_taskhub.settings import Settings
from airflow_provider_taskhub.storage.primitives import Entity, RowOperation, RowVerb, Transact
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore

NOW = Timestamp.parse("2026-11-24T10:00:00Z")


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with SqliteStore(None) as store:
        yield await Client.over(store, Settings(hub="Lineage", partitions=1), create=True)


def record(instance_id: str, task_id: int = 0, *, execution: str = "e", **more: Any) -> ActivityRecord:
    fields: dict[str, Any] = {
        "instance": OrchestrationInstance(instance_id=instance_id, execution_id=execution),
        "task_id": task_id,
        "action_id": "a",
        "attempt": 1,
        "name": "load",
        "state": RecordState.COMPLETED,
        "worker": "w",
        "executor": "1",
        "claimed": NOW,
    }
    return ActivityRecord(**(fields | more))


async def put(client: Client, table: str, entity: Entity) -> None:
    row = RowOperation(verb=RowVerb.INSERT, entity=entity)
    await client.hub.store.execute(Transact(table=table, rows=(row,)))


async def ran(client: Client, *ended: ActivityRecord) -> None:
    for one in ended:
        await put(client, client.hub.names.activities, records.encode(one))


async def past(client: Client, instance_id: str, *events: HistoryEvent) -> None:
    for ordinal, event in enumerate(events):
        entity = encode_event(event, instance_id=instance_id, execution_id="e", ordinal=ordinal)
        await put(client, client.hub.names.history, entity)


def child(task_id: int, instance_id: str) -> SubOrchestrationInstanceCreated:
    return SubOrchestrationInstanceCreated(timestamp=NOW, event_id=task_id, name="sub", instance_id=instance_id)


def came_back(task_id: int) -> SubOrchestrationInstanceCompleted:
    return SubOrchestrationInstanceCompleted(timestamp=NOW, task_scheduled_id=task_id, result="1")


def wrote(*uris: str) -> Lineage:
    return Lineage(outlets=uris)


def test_a_record_keeps_what_was_declared_and_costs_no_column_without() -> None:
    one = record("i", lineage=Lineage(inlets=("s3://b/in",), outlets=("s3://b/2", "s3://b/1")))
    assert records.decode(records.encode(one)) == one
    plain = records.encode(record("i"))
    assert not {"Inlets", "Outlets"} & set(plain.properties)
    assert records.decode(plain).lineage == NO_LINEAGE


@pytest.mark.parametrize("damaged", ["{", "7", '{"a": 1}', "[1, null]"])
def test_a_damaged_column_counts_as_missing(damaged: str) -> None:
    entity = records.encode(record("i"))
    entity.properties = {**entity.properties, "Outlets": damaged}  # type: ignore[misc]
    assert records.decode(entity).lineage == NO_LINEAGE


async def test_all_generations_count_and_only_completed_attempts(client: Client) -> None:
    await ran(
        client,
        record("i", 0, lineage=Lineage(inlets=("s3://b/in",), outlets=("s3://b/2",))),
        record("i", 1, lineage=wrote("s3://b/2", "s3://b/1")),
        record("i", 2, state=RecordState.FAILED, lineage=wrote("s3://b/failed")),
        record("i", 3, state=RecordState.LOST, lineage=wrote("s3://b/lost")),
        record("i", 0, execution="before", lineage=wrote("s3://b/0")),
        record("i2", 0, lineage=wrote("s3://b/of-another-instance")),
    )
    found, left_out = await client.instance("i").lineage()
    assert found == Lineage(inlets=("s3://b/in",), outlets=("s3://b/0", "s3://b/1", "s3://b/2"))
    assert left_out == 0


async def test_only_rows_with_a_declaration_are_sent(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    await ran(client, *(record("i", number, result="x" * 1000) for number in range(50)))
    await ran(client, record("i", 50, result="x" * 1000, lineage=wrote("s3://b/1")))
    sent: Counter[str] = Counter()
    columns: set[str] = set()
    query = client.hub.store.query

    async def counted(table: str, *arguments: Any, **more: Any) -> Any:
        page = await query(table, *arguments, **more)
        sent[table] += len(page.entities)
        for entity in page.entities:
            columns.update(entity.properties)
        return page

    monkeypatch.setattr(client.hub.store, "query", counted)
    assert (await client.instance("i").lineage())[0] == wrote("s3://b/1")
    assert sent == {client.hub.names.activities: 1, client.hub.names.history: 0}
    assert columns == {"State", "Outlets"}


async def test_completed_children_count_and_their_children(client: Client) -> None:
    await past(client, "i", child(0, "done"), child(1, "running"), came_back(0))
    await past(client, "done", child(0, "deep"), came_back(0), child(1, "i"), came_back(1))
    for instance_id in ("i", "done", "running", "deep"):
        await ran(client, record(instance_id, lineage=wrote(f"s3://b/{instance_id}")))
    found, left_out = await client.instance("i").lineage()
    assert (found.outlets, left_out) == (("s3://b/deep", "s3://b/done", "s3://b/i"), 0)


async def test_a_family_that_is_too_large_is_cut_and_says_so(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage, "MAX_INSTANCES", 4)
    events = [event for number in range(6) for event in (child(number, f"c{number}"), came_back(number))]
    await past(client, "i", *events)
    for number in range(6):
        await ran(client, record(f"c{number}", lineage=wrote(f"s3://b/{number}")))
    found, left_out = await client.instance("i").lineage()
    assert (found.outlets, left_out) == (("s3://b/0", "s3://b/1", "s3://b/2"), 3)
