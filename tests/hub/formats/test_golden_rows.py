"""Every recorded row of the history and instances tables, decoded by our types and encoded again (K52, K53)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from airflow_provider_taskhub.codec import Timestamp, decompress
from airflow_provider_taskhub.engine.events import ExecutionStarted, HistoryEvent
from airflow_provider_taskhub.hub.formats import instance_rows
from airflow_provider_taskhub.hub.formats.history_rows import (
    SENTINEL,
    decode_event,
    decode_sentinel,
    encode_event,
    encode_sentinel,
)
from airflow_provider_taskhub.hub.formats.keys import unescape
from airflow_provider_taskhub.hub.formats.large_texts import text_of_blob
from airflow_provider_taskhub.hub.formats.message_envelope import blob_of, decode, unspill
from airflow_provider_taskhub.hub.formats.payload_spill import blob_columns, restore, spill_columns
from airflow_provider_taskhub.hub.model import HubNames
from airflow_provider_taskhub.storage.primitives import Entity, PutBlob
from tests.golden import NAMES, Recording, RowWrite, load
from tests.hub.formats.rows import edm, from_state, from_write, plain, same_json, theirs

NESTED = ("OrchestrationInstance", "ParentInstance", "Tags", "FailureDetails", "ParentTraceContext")


def container_url(recording: Recording) -> str:
    return f"http://127.0.0.1:11000/devstoreaccount1/{recording.hub.lower()}-largemessages"


def blobs(recording: Recording) -> dict[str, str]:
    """Name → text of every payload blob that the recording ever shows."""
    found: dict[str, str] = {}
    for state in recording.states.values():
        container = state["blobs"].get(f"{recording.hub.lower()}-largemessages", {"items": {}})
        found |= {name: item["text"] for name, item in container["items"].items()}
    return found


def written_history() -> Iterator[tuple[Recording, Entity]]:
    for name in NAMES:
        recording = load(name)
        writes = [write for batch in recording.history for write in batch] + list(recording.writes("History"))
        for write in writes:
            if write.verb != "DELETE":
                yield recording, from_write(write.columns)


def stored_history() -> Iterator[tuple[Recording, Entity]]:
    for name in NAMES:
        recording = load(name)
        for state in recording.states:
            for row in recording.rows(state, "History"):
                yield recording, from_state(row)


def again(recording: Recording, entity: Entity) -> Entity:
    """A history row through our types: spilled columns fetched, decoded, encoded and spilled again."""
    texts = {column: blobs(recording)[name] for column, name in blob_columns(entity).items()}
    event = decode_event(restore(entity, texts))
    encoded = encode_event(
        event,
        instance_id=unescape(entity.partition_key),
        execution_id=str(entity.properties["ExecutionId"]),
        ordinal=int(entity.row_key, 16),
    )
    tokens = iter(int(name.split("-")[-2], 16) for name in blob_columns(entity).values())
    spilled, made = spill_columns(encoded, f"{recording.hub.lower()}-largemessages", token=lambda: next(tokens))
    assert {blob.name: decompress(blob.body) for blob in made} == {
        name: texts[column] for column, name in blob_columns(entity).items()
    }
    return spilled


def check_history(rows: Iterator[tuple[Recording, Entity]]) -> Counter[str]:
    checked: Counter[str] = Counter()
    for recording, entity in rows:
        if entity.row_key == SENTINEL:
            sentinel = decode_sentinel(entity)
            kept = encode_sentinel(sentinel, instance_id=unescape(entity.partition_key))
            assert edm(kept) == edm(entity), recording.name
            checked["sentinel"] += 1
            continue
        kept = again(recording, entity)
        assert same_json(edm(kept), NESTED) == same_json(edm(entity), NESTED), recording.name
        checked[str(entity.properties["EventType"])] += 1
        checked["spilled columns"] += len(blob_columns(entity))
    return checked


@pytest.mark.rows("K52", "K53", "K30")
def test_every_history_row_written() -> None:
    assert check_history(written_history()) == {
        "EventRaised": 9,
        "EventSent": 1,
        "ExecutionCompleted": 41,
        "ExecutionResumed": 1,
        "ExecutionStarted": 45,
        "ExecutionSuspended": 1,
        "ExecutionTerminated": 2,
        "GenericEvent": 4,
        "OrchestratorCompleted": 228,
        "OrchestratorStarted": 224,
        "SubOrchestrationInstanceCompleted": 2,
        "SubOrchestrationInstanceCreated": 4,
        "SubOrchestrationInstanceFailed": 1,
        "TaskCompleted": 205,
        "TaskFailed": 11,
        "TaskScheduled": 220,
        "TimerCreated": 8,
        "TimerFired": 6,
        "sentinel": 225,
        "spilled columns": 6,
    }


@pytest.mark.rows("K52", "K53", "K30")
def test_every_history_row_stored() -> None:
    assert check_history(stored_history()) == {
        "EventRaised": 12,
        "EventSent": 1,
        "ExecutionCompleted": 43,
        "ExecutionResumed": 1,
        "ExecutionStarted": 53,
        "ExecutionSuspended": 3,
        "ExecutionTerminated": 4,
        "GenericEvent": 4,
        "OrchestratorCompleted": 243,
        "OrchestratorStarted": 239,
        "SubOrchestrationInstanceCompleted": 2,
        "SubOrchestrationInstanceCreated": 4,
        "SubOrchestrationInstanceFailed": 1,
        "TaskCompleted": 206,
        "TaskFailed": 11,
        "TaskScheduled": 224,
        "TimerCreated": 10,
        "TimerFired": 7,
        "sentinel": 53,
        "spilled columns": 6,
    }


# --- instances ----------------------------------------------------------------------------------------------------


def check_created(
    recording: Recording, write: RowWrite, starts: dict[str, HistoryEvent], spilled: list[PutBlob]
) -> None:
    """A start's row is made again from its message."""
    entity = from_write(write.columns)
    updated = entity.properties["LastUpdatedTime"]
    assert isinstance(updated, Timestamp)
    start = starts[str(entity.properties["ExecutionId"])]
    assert isinstance(start, ExecutionStarted)
    made, own = instance_rows.created_row(
        start,
        names=HubNames(recording.hub),
        now=updated,
        container_url=container_url(recording),
        message_blob=next((blob for blob in spilled if blob.name.startswith(f"{entity.partition_key}/")), None),
    )
    assert own == ()
    assert edm(made) == edm(entity), recording.name


def events_of(batch: Sequence[RowWrite]) -> tuple[list[HistoryEvent], list[PutBlob]]:
    """What a transaction of the history stored, and what its rows had spilled."""
    events, spilled = [], []
    for write in batch:
        entity = from_write(write.columns) if write.verb != "DELETE" else None
        if entity is not None and entity.row_key != SENTINEL:
            texts = dict.fromkeys(blob_columns(entity), "x" * 40_000)
            spilled += [PutBlob(container="", name=name, data=b"") for name in blob_columns(entity).values()]
            events.append(decode_event(restore(entity, texts)))
    return events, spilled


def check_merged(recording: Recording, write: RowWrite, events: list[HistoryEvent], spilled: list[PutBlob]) -> None:
    """A checkpoint's merge is made again from the events that it stored."""
    entity = from_write(write.columns)
    status, completed = entity.properties["CustomStatus"], entity.properties.get("CompletedTime", Timestamp(0))
    assert isinstance(status, str)
    assert isinstance(completed, Timestamp)
    made, own = instance_rows.merged(
        events,
        instance_id=unescape(entity.partition_key),
        execution_id=str(entity.properties["ExecutionId"]),
        custom_status=None if status == "null" else status,
        names=HubNames(recording.hub),
        now=completed,
        container_url=container_url(recording),
        history_blobs=spilled,
    )
    assert own == ()
    assert same_json(theirs(made), NESTED) == same_json(edm(entity), NESTED), (recording.name, write.n)


@pytest.mark.rows("K52")
def test_every_instance_row_written_is_made_again() -> None:
    checked: Counter[str] = Counter()
    for name in NAMES:
        recording = load(name)
        starts, messages = started(recording)
        pending: dict[str, tuple[list[HistoryEvent], list[PutBlob]]] = {}
        for _, item in sorted(
            [(batch[0].n, batch) for batch in recording.history] + [(w.n, w) for w in recording.writes("Instances")],
            key=lambda pair: pair[0],
        ):
            if isinstance(item, tuple):
                if item[0].verb == "DELETE":
                    continue
                events, spilled = pending.setdefault(str(item[0].columns["PartitionKey"]), ([], []))
                more, blobs_made = events_of(item)
                events += more
                spilled += blobs_made
            elif item.verb == "POST":
                check_created(recording, item, starts, messages)
                checked["created"] += 1
            elif "ExecutionId" in item.columns:
                check_merged(recording, item, *pending.pop(str(item.columns["PartitionKey"])))
                checked["merged"] += 1
            else:
                assert set(item.columns) - {"LastUpdatedTime@odata.type"} == {
                    "PartitionKey",
                    "RowKey",
                    "RuntimeStatus",
                    "LastUpdatedTime",
                }
                checked["rewound"] += 1
        assert pending == {}, name
    assert checked == {"created": 39, "merged": 224, "rewound": 1}


def started(recording: Recording) -> tuple[dict[str, HistoryEvent], list[PutBlob]]:
    """Starts by execution id, and the blobs that start messages were spilled to."""
    starts: dict[str, HistoryEvent] = {}
    spilled: list[PutBlob] = []
    for put in recording.messages:
        envelope = decode(plain(put.text))
        if (blob := blob_of(envelope)) is not None:
            spilled.append(PutBlob(container="", name=blob, data=b""))
            envelope = unspill(envelope, blobs(recording)[blob])
        assert envelope.message is not None
        if isinstance(envelope.message.event, ExecutionStarted):
            starts[str(envelope.message.instance.execution_id)] = envelope.message.event
    return starts, spilled


@pytest.mark.rows("K53", "K56")
def test_every_instance_row_stored_is_read() -> None:
    checked: Counter[str] = Counter()
    for name in NAMES:
        recording = load(name)
        for moment in recording.states:
            for row in recording.rows(moment, "Instances"):
                entity = from_state(row)
                check_state(recording, entity)
                checked[str(entity.properties["RuntimeStatus"])] += 1
    assert checked == {"Completed": 33, "Failed": 6, "Pending": 28, "Running": 8, "Suspended": 2, "Terminated": 4}


def check_state(recording: Recording, entity: Entity) -> None:
    """Field by field, texts in blobs included."""
    url = container_url(recording)
    state = instance_rows.decode_instance(entity, container_url=url)
    large = instance_rows.large_texts(entity, container_url=url)
    texts = {field: text_of_blob(blob, blobs(recording)[blob]) for field, blob in large.items()}
    assert all(getattr(state, field) is None for field in large)
    state = instance_rows.fill(state, texts)
    columns = entity.properties
    found = {
        "Name": state.name,
        "Version": state.version,
        "ExecutionId": state.execution_id,
        "RuntimeStatus": str(state.status),
        "CreatedTime": state.created,
        "LastUpdatedTime": state.updated,
        "CompletedTime": state.completed,
        "ScheduledStartTime": state.scheduled_start,
        "Generation": state.restarts,
        "TaskHubName": recording.hub,
    }
    assert found == {name: columns.get(name) for name in found}
    assert (state.instance_id, state.failure) == (unescape(entity.partition_key), None)
    assert state.tags == json.loads(str(columns["Tags"]))
    assert state.custom_status == (None if (text := columns.get("CustomStatus")) in ("null", None) else text)
    for field in ("input", "output"):
        text = columns.get(field.capitalize())
        assert getattr(state, field) == texts.get(field, text)
        assert (field in texts) == str(text).startswith("http://")
    assert set(columns) <= {*found, "Tags", "CustomStatus", "Input", "Output"}
