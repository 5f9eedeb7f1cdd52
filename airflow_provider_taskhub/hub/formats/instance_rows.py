"""Rows of the instances table: what readers see of an instance.

Owns the columns of a start, of a checkpoint, of a repair, and of a reader's view. Never decides when a row is written.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.episode import Episode
from airflow_provider_taskhub.engine.events import (
    ExecutionCompleted,
    ExecutionResumed,
    ExecutionStarted,
    ExecutionSuspended,
    ExecutionTerminated,
    FailureDetails,
    GenericEvent,
    HistoryEvent,
    Status,
)
from airflow_provider_taskhub.engine.failures import headline
from airflow_provider_taskhub.engine.identity import same_start
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.hub.formats import json_values
from airflow_provider_taskhub.hub.formats.json_values import Kind
from airflow_provider_taskhub.hub.formats.keys import escape, unescape
from airflow_provider_taskhub.hub.formats.large_texts import LargeTexts, blob_at, status_blob
from airflow_provider_taskhub.hub.formats.payload_spill import utf16_bytes
from airflow_provider_taskhub.hub.model import HubNames, InstanceState
from airflow_provider_taskhub.storage.primitives import (
    MAX_PROPERTY_BYTES,
    Entity,
    Property,
    PutBlob,
    RowOperation,
    RowVerb,
    Transact,
)

FAILURE_BYTES = 30 * 1024
"""UTF-16 bytes of our own failure column; longer stack traces and messages are cut."""
FAILURE = "TaskHubFailure"
"""Our own column: FailureDetails of a failed instance as JSON; DurableTask keeps only their text."""
SUSPENDED = "TaskHubSuspended"
"""Our own column: ``ticks:who`` of the suspension that holds the instance; "" once it was resumed."""
_MESSAGE_SPILL = re.compile(r"/message-[0-9a-f]{32}-ExecutionStarted\.json\.gz$")


def _history_spill(event: str, column: str) -> re.Pattern[str]:
    return re.compile(rf"/history-[0-9A-F]{{16}}-{event}-[0-9A-F]{{8}}-{column}\.json\.gz$")


_STARTED_INPUT = _history_spill("ExecutionStarted", "Input")
_COMPLETED_RESULT = _history_spill("ExecutionCompleted", "Result")
_FINAL = frozenset(status.value for status in Status if status.is_final)
_NEVER = re.compile(r"(?!)")
_LARGE = {"input": "Input", "output": "Output", "custom_status": "CustomStatus"}
_ADDRESSED = (("input", "Input"), ("output", "Output"))
"""Fields of :class:`InstanceState` whose texts may lie in blobs, and their columns."""


# --- writing ------------------------------------------------------------------------------------------------------


def created_row(
    event: ExecutionStarted,
    *,
    names: HubNames,
    now: Timestamp,
    container_url: str,
    message_blob: PutBlob | None = None,
) -> tuple[Entity, tuple[PutBlob, ...]]:
    """A Pending row for a start, to be inserted, or to replace that of a finished instance.

    :param container_url: of the hub's large-message container.
    :param message_blob: what the start message was spilled to, if it was; the row then points there.
    :returns: the row, and blobs to write before it.
    """
    instance_id = event.instance.instance_id
    texts = LargeTexts(names, container_url, instance_id, () if message_blob is None else (message_blob,))
    properties: dict[str, Property | None] = {
        "Input": texts.place(event.input, "Input", _MESSAGE_SPILL),
        "CreatedTime": event.timestamp,
        "Name": event.name,
        "Version": event.version,
        "RuntimeStatus": Status.PENDING.value,
        "LastUpdatedTime": now,
        "TaskHubName": names.hub,
        "ScheduledStartTime": event.scheduled_start_time,
        "ExecutionId": event.instance.execution_id,
        "Generation": event.generation,
        "Tags": _tags(event.tags),
    }
    return _row(instance_id, properties), tuple(texts.blobs)


def changed(names: HubNames, merge: Entity, etag: str | None) -> Transact:
    """The write of columns that have changed; an end is told to whoever waits for it (:func:`ended`).

    :param etag: of the row; None: there was none. One that has come since stays: the write may be old, and late.
    """
    verb = RowVerb.INSERT if etag is None else RowVerb.MERGE
    row = RowOperation(verb=verb, entity=merge, etag=etag)
    over = merge.properties.get("RuntimeStatus") in _FINAL
    return Transact(table=names.instances, rows=(row,), topic=ended(names, merge.partition_key) if over else "")


def ended(names: HubNames, key: str) -> str:
    """Under what name the end of an instance is told; no queue has it. :param key: the row's PartitionKey."""
    return f"={zlib.crc32(f'{names.instances}/{key}'.encode()):08x}"


def merge_row(
    episode: Episode,
    *,
    names: HubNames,
    now: Timestamp,
    container_url: str,
    history_blobs: Sequence[PutBlob],
    unprojected_events: Sequence[HistoryEvent] = (),
    told: str | None = None,
) -> tuple[Entity, tuple[PutBlob, ...]]:
    """What a checkpoint merges into the row: :func:`merged` of the events that it stores.

    :param unprojected_events: events of the history that the row does not show; a later generation does not need them.
    """
    return merged(
        episode.history if episode.switched else (*unprojected_events, *episode.history),
        instance_id=episode.current.instance_id,
        execution_id=episode.current.execution_id,
        custom_status=episode.custom_status,
        names=names,
        now=now,
        container_url=container_url,
        history_blobs=history_blobs,
        told=told,
    )


def merged(
    events: Sequence[HistoryEvent],
    *,
    instance_id: str,
    execution_id: str | None,
    custom_status: str | None,
    names: HubNames,
    now: Timestamp,
    container_url: str,
    history_blobs: Sequence[PutBlob] = (),
    told: str | None = None,
) -> tuple[Entity, tuple[PutBlob, ...]]:
    """The columns that new events change, to be merged: ``RuntimeStatus`` by a start, an end, suspend and resume alone.

    :param events: as stored in the history by this checkpoint. :param now: becomes ``CompletedTime``.
    :param history_blobs: what the history's rows have spilled; the row points there instead of keeping a second copy.
    :param told: the custom status that the row has: a large one is not written again.
    :returns: the row, and blobs to write before it.
    """
    texts = LargeTexts(names, container_url, instance_id, history_blobs)
    properties: dict[str, Property | None] = {
        "CustomStatus": texts.status(custom_status, told=told),
        "ExecutionId": execution_id,
        "TaskHubName": names.hub,
    }
    for event in events:
        properties["LastUpdatedTime"] = event.timestamp
        properties |= _changes(event, texts, now)
    return _row(instance_id, properties), tuple(texts.blobs)


def _told(event: HistoryEvent) -> Status | None:
    """The status that an event gives its instance; None: it stays as it is."""
    match event:
        case ExecutionStarted() | ExecutionResumed():
            return Status.RUNNING
        case ExecutionSuspended():
            return Status.SUSPENDED
        case ExecutionTerminated():
            return Status.TERMINATED
        case ExecutionCompleted():
            return event.status
    return None


def _changes(event: HistoryEvent, texts: LargeTexts, now: Timestamp) -> dict[str, Property | None]:
    status = _told(event)
    if status is None:
        return {}
    return {"RuntimeStatus": status.value, **_columns(event, texts, now)}


def _columns(event: HistoryEvent, texts: LargeTexts, now: Timestamp) -> dict[str, Property | None]:
    match event:
        case ExecutionStarted():
            return {
                "Name": event.name,
                "Version": event.version,
                "CreatedTime": event.timestamp,
                "Tags": _tags(event.tags),
                "Generation": event.generation,
                "ScheduledStartTime": event.scheduled_start_time,
                "Input": texts.place(event.input, "Input", _STARTED_INPUT),
            }
        case ExecutionCompleted():
            return _completion(event, texts, now)
        case ExecutionTerminated():
            return {"CompletedTime": now, "Output": texts.place(event.input, "Output", _NEVER)}
        case ExecutionSuspended() | ExecutionResumed():
            return {"Output": texts.place(event.reason, "Output", _NEVER), SUSPENDED: _suspended(event)}
    return {}


def _suspended(event: ExecutionSuspended | ExecutionResumed) -> str | None:
    """None keeps the column: an instance that begins suspended has it from before its start."""
    if isinstance(event, ExecutionResumed):
        return ""
    return None if event.taskhub_by is None else f"{event.timestamp.ticks}:{event.taskhub_by}"


def _completion(event: ExecutionCompleted, texts: LargeTexts, now: Timestamp) -> dict[str, Property | None]:
    failed = event.failure is not None
    output = event.result if event.failure is None else headline(event.failure)
    changes: dict[str, Property | None] = {
        "CompletedTime": now,
        # "" for none: a merge would keep what a suspension or an earlier failure left there
        "Output": texts.place(output or "", "Output", _NEVER if failed else _COMPLETED_RESULT),
    }
    if event.failure is not None:
        changes[FAILURE] = _failure(event.failure)
    return changes


def _failure(failure: FailureDetails) -> str:
    """JSON of a failure that fits its column: first the causes lose their stack traces, then texts are cut."""
    text = json_values.dumps(json_values.write(Kind.FAILURE, failure, typed=False))
    if utf16_bytes(text) <= FAILURE_BYTES:
        return text
    short = replace(
        failure,
        error_type=failure.error_type[:200],
        error_message=failure.error_message[:1000],
        stack_trace=failure.stack_trace and failure.stack_trace[-1000:],
        inner_failure=None,
        properties=None,
    )
    return json_values.dumps(json_values.write(Kind.FAILURE, short, typed=False))


def _tags(tags: Mapping[str, str] | None) -> str:
    """Too large for a column, as a .NET client may give them, they are in the history alone."""
    text = "null" if tags is None else json_values.dumps(json_values.write(Kind.TAGS, tags, typed=False))
    return text if utf16_bytes(text) <= MAX_PROPERTY_BYTES else "null"


def _row(instance_id: str, properties: Mapping[str, Property | None]) -> Entity:
    kept = {name: value for name, value in properties.items() if value is not None}
    return Entity(partition_key=escape(instance_id), row_key="", properties=kept)


def repair_row(
    events: Sequence[HistoryEvent],
    row: InstanceState | None,
    *,
    names: HubNames,
    now: Timestamp,
    container_url: str,
    custom_status: str | None = None,
    replayed: bool = False,
) -> tuple[Entity, tuple[PutBlob, ...]] | None:
    """What to merge into a row that lags behind its committed history; None when it does not.

    No history holds the custom status: unless it is known from a replay, it is left as it is. A row of a newer
    start is left alone. A rewound instance stays Pending until it ends, as .NET leaves it.

    :param events: all of the current generation. :param row: as read; None when there is none.
    :param custom_status: as a replay of the events sets it; only if ``replayed``.
    :returns: the row, and blobs to write before it.
    """
    started = _started(events)
    if started is None or (row is not None and is_newer(row, started)):
        return None
    entity, blobs = merged(
        events,
        instance_id=started.instance.instance_id,
        execution_id=started.instance.execution_id,
        custom_status=custom_status,
        names=names,
        now=now,
        container_url=container_url,
    )
    if row is not None and not lags(row, events):
        same = row.execution_id == started.instance.execution_id and row.custom_status == custom_status
        if not replayed or same or row.status is Status.PENDING:
            return None
    if replayed or row is None:
        return entity, blobs
    kept = {name: value for name, value in entity.properties.items() if name != "CustomStatus"}
    return replace(entity, properties=kept), blobs


def _started(events: Sequence[HistoryEvent]) -> ExecutionStarted | None:
    return next((event for event in events if isinstance(event, ExecutionStarted)), None)


def lags(row: InstanceState | None, events: Sequence[HistoryEvent]) -> bool:
    """Whether a row tells less than its committed history, but for the custom status, which no history holds.

    :param row: as read; None when there is none. :param events: all of the current generation.
    """
    started = _started(events)
    if started is None or row is None:
        return started is not None
    if is_newer(row, started):
        return False
    status = [told for event in events if (told := _told(event)) is not None][-1]
    if row.status is Status.PENDING:
        rewound = any(isinstance(event, GenericEvent) for event in events)
        return status.is_final or not rewound
    if row.status.is_final and not status.is_final and same_start(row.execution_id, started.instance.execution_id):
        return False  # a rewind is under way
    return row.execution_id != started.instance.execution_id or row.status is not status


def is_newer(row: InstanceState, started: ExecutionStarted) -> bool:
    """Whether a row is of a start that comes after the history's: it waits, or .NET has ended it before it began.

    What no parent started has had a row before its history; a child's row may be of the child before it.
    """
    if same_start(row.execution_id, started.instance.execution_id):
        return False
    return row.status is Status.PENDING or (row.status.is_final and started.parent is None)


def order_row(
    event: ExecutionSuspended | ExecutionResumed,
    *,
    instance_id: str,
    names: HubNames,
    now: Timestamp,
    container_url: str,
) -> tuple[Entity, tuple[PutBlob, ...]]:
    """What to merge into the row of an instance that is suspended or resumed before it begins: it stays Pending.

    :returns: the row, and blobs to write before it.
    """
    texts = LargeTexts(names, container_url, instance_id, ())
    held = f"{event.timestamp.ticks}:{event.taskhub_by or ''}" if isinstance(event, ExecutionSuspended) else ""
    output = texts.place(event.reason or "", "Output", _NEVER)
    return _row(instance_id, {"LastUpdatedTime": now, "Output": output, SUSPENDED: held}), tuple(texts.blobs)


def rewound_row(instance_id: str, now: Timestamp) -> Entity:
    """What a rewind merges into the row: nothing else, so output and end of the failed run stay till the next."""
    return _row(instance_id, {"RuntimeStatus": Status.PENDING.value, "LastUpdatedTime": now})


# --- reading ------------------------------------------------------------------------------------------------------


def decode_instance(entity: Entity, *, container_url: str) -> InstanceState:
    """An instance's state from its row, whoever wrote it; what cannot be understood reads as absent.

    A listing must never break on one row, so nothing is raised. Texts that lie in blobs are None: see
    :func:`large_texts`.
    """
    columns = _Columns(entity)
    ticks, _, by = (columns.text(SUSPENDED) or "").partition(":")
    state = InstanceState(
        instance_id=unescape(entity.partition_key),
        execution_id=columns.text("ExecutionId"),
        name=columns.text("Name") or "",
        status=_status(columns.text("RuntimeStatus")),
        version=columns.text("Version") or "",
        input=columns.text("Input"),
        output=columns.text("Output") or None,
        custom_status=None if (status := columns.text("CustomStatus")) == "null" else status,
        created=columns.time("CreatedTime"),
        updated=columns.time("LastUpdatedTime"),
        completed=columns.time("CompletedTime"),
        scheduled_start=columns.time("ScheduledStartTime"),
        generation=columns.number("Generation"),
        tags=columns.object("Tags", Kind.TAGS),
        suspended_by=by or None,
        suspended_at=Timestamp(int(ticks)) if ticks.isdecimal() and len(ticks) < 20 else None,
        etag=entity.etag,
    )
    failure = columns.object(FAILURE, Kind.FAILURE) if state.status is Status.FAILED else None
    if failure is not None and _is_current(failure, state, entity, container_url):
        state = replace(state, failure=failure)
    large = large_texts(entity, container_url=container_url)
    return fill(state, dict.fromkeys(large)) if large else state


def _is_current(failure: FailureDetails, state: InstanceState, entity: Entity, container_url: str) -> bool:
    """Whether our column belongs to this end: a .NET worker that ended a rewound instance has left it as it was."""
    if "output" in large_texts(entity, container_url=container_url):
        return True
    # .NET, and earlier versions of this package, write the second form.
    return (state.output or "").startswith((headline(failure), f"{failure.error_type}: {failure.error_message}"))


def large_texts(entity: Entity, *, container_url: str) -> dict[str, str]:
    """Texts of a row that lie in blobs: field of :class:`InstanceState` → name of the blob, to fetch and :func:`fill`.

    Addresses outside the hub's own container are texts like any other. A blob that does not exist means that the
    text only looks like an address of ours: :func:`fill` it with :func:`inline_text`.
    """
    found: dict[str, str] = {}
    for field, column in _ADDRESSED:
        text = entity.properties.get(column)
        if not isinstance(text, str):
            continue
        blob = entity.properties.get(f"{column}BlobName") if text == "" else blob_at(container_url, text)
        if isinstance(blob, str) and blob:
            found[field] = blob
    status = entity.properties.get("CustomStatus")
    if isinstance(status, str) and (blob := status_blob(status, container_url)) is not None:
        found["custom_status"] = blob
    return found


def inline_text(entity: Entity, field: str) -> str | None:
    """The text that the row itself has for a field of :func:`large_texts`."""
    text = entity.properties.get(_LARGE[field])
    return text if isinstance(text, str) else None


def fill(state: InstanceState, texts: Mapping[str, str | None]) -> InstanceState:
    """A state with its large texts put in. :param texts: field → text."""
    values: dict[str, Any] = dict(texts)
    return replace(state, **values)


class _Columns:
    """Columns of a row by kind; one of another kind reads as absent."""

    def __init__(self, entity: Entity) -> None:
        self._values = entity.properties

    def text(self, name: str) -> str | None:
        value = self._values.get(name)
        return value if isinstance(value, str) else None

    def time(self, name: str) -> Timestamp | None:
        value = self._values.get(name)
        return value if isinstance(value, Timestamp) else None

    def number(self, name: str) -> int | None:
        value = self._values.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def object(self, name: str, kind: Kind) -> Any:
        text = self.text(name)
        try:
            return None if not text else json_values.read(kind, json.loads(text), name)
        except (InputError, ValueError, RecursionError):
            return None


def _status(name: str | None) -> Status:
    """An unknown or missing status reads as Pending: nothing is known to have run, nothing to have ended."""
    return Status(name) if name in tuple(Status) else Status.PENDING
