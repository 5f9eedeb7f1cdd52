"""Recorded instances as values: their messages, and their checkpoints one by one."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_taskhub.engine.events import (
    EventType,
    ExecutionStarted,
    HistoryEvent,
    TimerFired,
)
from airflow_provider_taskhub.hub.formats.history_rows import decode_event
from airflow_provider_taskhub.hub.formats.keys import unescape
from airflow_provider_taskhub.hub.formats.message_envelope import Envelope, decode
from tests.golden import Recording, RowWrite
from tests.hub.formats.rows import from_write

ANSWERS = (EventType.TaskCompleted, EventType.TaskFailed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message as it was put. :param n: number of the call."""

    n: int
    envelope: Envelope

    @property
    def event(self) -> HistoryEvent:
        assert self.envelope.message is not None
        return self.envelope.message.event


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One checkpoint of one instance.

    :param incoming: the events that it took, as their messages brought them. :param sent: what it put before.
    :param status: the CustomStatus that the instance row got. :param output: its Output, if it was written.
    """

    instance_id: str
    execution_id: str
    switched: bool
    first_ordinal: int
    rows: tuple[HistoryEvent, ...]
    incoming: tuple[HistoryEvent, ...]
    sent: tuple[Envelope, ...]
    custom_status: str | None
    output: str | None


def messages(recording: Recording) -> list[Message]:
    """Every message, fetched from its blob where it was spilled."""
    blobs: dict[str, str] = {}
    for state in recording.states.values():
        for name, container in state["blobs"].items():
            if name.endswith("-largemessages"):
                blobs |= {blob: item["text"] for blob, item in container["items"].items()}
    found = []
    for put in recording.messages:
        envelope = decode(put.text)
        if envelope.message is None:
            assert envelope.blob_name is not None
            envelope = decode(blobs[envelope.blob_name])
        found.append(Message(n=put.n, envelope=envelope))
    return found


def _transactions(recording: Recording) -> Iterator[tuple[int, str, list[RowWrite], Mapping[str, Any]]]:
    """Checkpoints: number of the last call, instance, event rows, sentinel. Several batches of one are put together."""
    pending: dict[str, list[RowWrite]] = defaultdict(list)
    for batch in recording.history:
        events = [write for write in batch if write.columns and write.columns["RowKey"] != "sentinel"]
        sentinel = next((write.columns for write in batch if write.columns.get("RowKey") == "sentinel"), None)
        if sentinel is None or not events or any(write.verb == "DELETE" for write in batch):
            continue
        key = sentinel["PartitionKey"]
        pending[key] += events
        if sentinel["IsCheckpointComplete"]:
            yield batch[0].n, key, pending.pop(key), sentinel


def checkpoints(recording: Recording) -> list[Checkpoint]:
    """All checkpoints in order."""
    texts = {
        blob: item["text"]
        for state in recording.states.values()
        for container in state["blobs"].values()
        for blob, item in container["items"].items()
        if "text" in item
    }
    left = messages(recording)
    known: dict[str, str] = {}
    found = []
    for n, key, writes, sentinel in _transactions(recording):
        instance_id, execution_id = unescape(key), sentinel["ExecutionId"]
        rows = tuple(decode_event(from_write(_whole(write.columns, texts))) for write in writes)
        switched = known.get(instance_id, execution_id) != execution_id or _is_second_generation(rows)
        mine = [m for m in left if _target(m) == instance_id and m.n < n and _arrives(m)]
        if switched:
            incoming = [m.event for m in mine]
        else:
            played = [row for row in rows if row.is_played]
            incoming = [_brought(row, mine) for row in played]
        sent = [
            m
            for m in left
            if m.n < n
            and m.envelope.sender is not None
            and m.envelope.sender.instance_id == instance_id
            and m.event.event_type not in ANSWERS
        ]
        left = [m for m in left if m not in sent or _arrives(m)]
        left = [m for m in left if not (_target(m) == instance_id and m.event in incoming)]
        left = [replace(m, envelope=replace(m.envelope, sender=None)) if m in sent else m for m in left]
        merged = _merge(recording, key, n)
        found.append(
            Checkpoint(
                instance_id=instance_id,
                execution_id=execution_id,
                switched=switched,
                first_ordinal=int(writes[0].columns["RowKey"], 16),
                rows=rows,
                incoming=tuple(incoming),
                sent=tuple(m.envelope for m in sent),
                custom_status=merged.get("CustomStatus"),
                output=_fetched(merged.get("Output"), texts),
            )
        )
        known[instance_id] = execution_id
    return found


def _is_second_generation(rows: tuple[HistoryEvent, ...]) -> bool:
    """Its head ends with an OrchestratorCompleted that counts as played."""
    return any(row.event_type is EventType.OrchestratorCompleted and row.is_played for row in rows)


def _target(message: Message) -> str:
    assert message.envelope.message is not None
    return message.envelope.message.instance.instance_id


def _arrives(message: Message) -> bool:
    return message.event.event_type is not EventType.TaskScheduled


def _brought(row: HistoryEvent, mine: list[Message]) -> HistoryEvent:
    for message in mine:
        event = message.event
        if event.event_type is row.event_type and event.timestamp == row.timestamp:
            return event
    raise AssertionError(f"no message brought {row}")


def _whole(columns: Mapping[str, Any], texts: Mapping[str, str]) -> dict[str, Any]:
    """The columns with spilled texts put back."""
    whole = dict(columns)
    for name in columns:
        if name.endswith("BlobName") and columns[name]:
            whole[name.removesuffix("BlobName")] = texts[whole.pop(name)]
    return whole


def _merge(recording: Recording, key: str, after: int) -> Mapping[str, Any]:
    for write in recording.writes("Instances"):
        if write.n > after and write.columns["PartitionKey"] == key and write.verb == "PATCH":
            return write.columns
    return {}


def _fetched(output: str | None, texts: Mapping[str, str]) -> str | None:
    if output is None or "://" not in output:
        return output
    return next(text for blob, text in texts.items() if output.endswith(blob))


def shape(event: HistoryEvent) -> dict[str, Any]:
    """What must be equal: all but times, our own members, and the differences that are listed (see test_golden)."""
    members: dict[str, Any] = {"type": event.event_type.name}
    for name in ("event_id", "is_played", "task_scheduled_id", "timer_id", "name", "version", "reason", "status"):
        if hasattr(event, name):
            members[name] = getattr(event, name)
    for name in ("tags", "generation", "parent", "instance_id", "data"):
        if hasattr(event, name):
            members[name] = getattr(event, name) or None
    if isinstance(event, ExecutionStarted):
        members["id"] = event.instance.instance_id
    for name in ("input", "result"):
        if hasattr(event, name):
            members[name] = parsed(getattr(event, name))
    if isinstance(event, TimerFired) and event.is_played:
        members["fire_at"] = event.fire_at
    return members


def parsed(text: str | None) -> Any:
    """JSON as a value, anything else as it is; null is absent."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text
