"""Encode and decode rows of the table ``{Hub}Instances``. Clients read these rows.

The module encodes the columns that a start, a checkpoint or a repair writes, and decodes a row for readers. It does not
decide when a row is written. It is longer than others because writing and reading must agree on every column.
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
    EventSent,
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
from airflow_provider_taskhub.hub.model import Cancel, HubNames, InstanceState
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
"""Largest value of the column :data:`FAILURE`, in bytes of UTF-16. Longer stack traces and messages are cut."""
FAILURE = "TaskHubFailure"
"""Column that DurableTask does not have: the FailureDetails of a failed instance as JSON. DurableTask stores only a
text about the failure."""
SUSPENDED = "TaskHubSuspended"
"""Column that DurableTask does not have: time and user of the present suspension, as ``ticks:user``; "" after a
resume."""
PARENT, ROOT = "TaskHubParent", "TaskHubRoot"
"""Columns that DurableTask does not have: the instance ids of a child's parent and of its oldest ancestor. The rows of
other instances do not have them."""
CANCELS = "TaskHubCancels"
"""Column that DurableTask does not have: the last cancel of an activity, as ``number:identity:execution id``, with the
number and the identity of its action. It tells workers to look in the history before they begin an activity."""
RELEASED = "TaskHubReleased"
"""Column that DurableTask does not have: True after a rewind of an instance that an Airflow task has started, if no
task waited for the instance then. The next try of the task that waits for it sets False."""
SLIM_COLUMNS = ("ExecutionId", "Name", "RuntimeStatus", "Version", "CreatedTime", "LastUpdatedTime", "CompletedTime",
                "ScheduledStartTime", "Generation", "Tags", SUSPENDED, PARENT, ROOT, CANCELS,
                RELEASED)  # fmt: skip
"""All columns of an instance row that are always short."""
ERROR_COLUMNS = ("Output", "OutputBlobName", FAILURE)
"""The columns with the error of a failed instance, or with the reason of a terminated one."""
_MESSAGE_SPILL = re.compile(r"/message-[0-9a-f]{32}-ExecutionStarted\.json\.gz$")


def _history_spill(event: str, column: str) -> re.Pattern[str]:
    return re.compile(rf"/history-[0-9A-F]{{16}}-{event}-[0-9A-F]{{8}}-{column}\.json\.gz$")


_STARTED_INPUT = _history_spill("ExecutionStarted", "Input")
_COMPLETED_RESULT = _history_spill("ExecutionCompleted", "Result")
_FINAL = frozenset(status.value for status in Status if status.is_final)
_NEVER = re.compile(r"(?!)")
_LARGE = {"input": "Input", "output": "Output", "custom_status": "CustomStatus"}
_ADDRESSED = (("input", "Input"), ("output", "Output"))
"""Fields of :class:`InstanceState` whose column may have the address of a blob, and these columns."""


# --- writing ------------------------------------------------------------------------------------------------------


def created_row(
    event: ExecutionStarted,
    *,
    names: HubNames,
    now: Timestamp,
    container_url: str,
    message_blob: PutBlob | None = None,
) -> tuple[Entity, tuple[PutBlob, ...]]:
    """Encode the row of an instance that a client starts, with the status Pending. The caller inserts the row, or
    replaces the row of an ended instance.

    :param event: the event that starts the instance.
    :param now: present time.
    :param container_url: address of the hub's container of large payloads.
    :param message_blob: the blob of a start message that is too large for a queue. The row then names this blob and not
        a copy. None: the message is small.
    :returns: the row, and new blobs with its large texts. Write these blobs before the row.
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
    """Return the write of changed columns. If the instance has ended, the write also wakes the processes that wait for
    this end (:func:`ended`).

    :param merge: the row with the changed columns.
    :param etag: ETag of the row as it was read; None: there was no row. If another process has written the row since,
        the write fails, because the columns may be older than that row.
    """
    verb = RowVerb.INSERT if etag is None else RowVerb.MERGE
    row = RowOperation(verb=verb, entity=merge, etag=etag)
    over = merge.properties.get("RuntimeStatus") in _FINAL
    return Transact(table=names.instances, rows=(row,), topic=ended(names, merge.partition_key) if over else "")


def ended(names: HubNames, key: str) -> str:
    """Return the topic of the wake-up that is sent when an instance ends. Processes wait for a wake-up under its topic.

    Other topics are names of queues. No queue has a name that begins with "=", as this topic does.

    :param key: PartitionKey of the instance row.
    """
    return f"={zlib.crc32(f'{names.instances}/{key}'.encode()):08x}"


def merge_row(
    episode: Episode,
    *,
    names: HubNames,
    now: Timestamp,
    container_url: str,
    history_blobs: Sequence[PutBlob],
    unprojected_events: Sequence[HistoryEvent] = (),
    row_custom_status: str | None = None,
) -> tuple[Entity, tuple[PutBlob, ...]]:
    """Encode the columns of the instance row that a checkpoint writes. Parameters and result: see :func:`merged`.

    :param unprojected_events: events of the history that the row does not show yet. They are ignored if the episode
        began a new generation.
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
        row_custom_status=row_custom_status,
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
    row_custom_status: str | None = None,
) -> tuple[Entity, tuple[PutBlob, ...]]:
    """Encode those columns of the instance row that change because of new events. Only a start, an end, a suspension or
    a resume changes ``RuntimeStatus``.

    :param events: the new events of the history.
    :param now: present time. It becomes the ``CompletedTime`` of an instance that ends.
    :param history_blobs: blobs that the caller writes for large columns of the history. If the row has the same text,
        it names the same blob, so that no text is stored twice.
    :param row_custom_status: custom status that the row has already. If the custom status has not changed, its blob is
        not written again.
    :returns: the row, and new blobs with its large texts, without ``history_blobs``. Write the blobs before the row.
    """
    texts = LargeTexts(names, container_url, instance_id, history_blobs)
    properties: dict[str, Property | None] = {
        "CustomStatus": texts.status(custom_status, row_value=row_custom_status),
        "ExecutionId": execution_id,
        "TaskHubName": names.hub,
    }
    for event in events:
        properties["LastUpdatedTime"] = event.timestamp
        properties |= _changes(event, texts, now)
    if (cancel := last_cancel(events, instance_id)) is not None:
        properties[CANCELS] = f"{cancel.number}:{cancel.identity}:{execution_id}"
    return _row(instance_id, properties), tuple(texts.blobs)


def last_cancel(events: Sequence[HistoryEvent], instance_id: str) -> Cancel | None:
    """Return the last cancel of an activity among the events; None: there is none.

    :param events: events of one generation of an instance.
    """
    for event in reversed(events):
        if isinstance(event, EventSent) and event.taskhub_cancels is not None and event.instance_id == instance_id:
            return Cancel(number=event.event_id, identity=event.taskhub_action_id or "")
    return None


def _misses_cancel(row: InstanceState, events: Sequence[HistoryEvent]) -> bool:
    """Return whether an instance row does not show the last cancel of the committed history."""
    cancel = last_cancel(events, row.instance_id)
    if cancel is None or cancel == row.cancel:
        return False
    # A rewind may have undone the cancel that the row shows.
    return row.cancel is None or cancel.number >= row.cancel.number


def _status_after(event: HistoryEvent) -> Status | None:
    """Return the status of an instance after an event; None: the event does not change the status."""
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
    status = _status_after(event)
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
                PARENT: event.parent.instance.instance_id if event.parent is not None else None,
                ROOT: event.root,
            }
        case ExecutionCompleted():
            return _completion(event, texts, now)
        case ExecutionTerminated():
            return {"CompletedTime": now, "Output": texts.place(event.input, "Output", _NEVER)}
        case ExecutionSuspended() | ExecutionResumed():
            return {"Output": texts.place(event.reason, "Output", _NEVER), SUSPENDED: _suspended(event)}
    return {}


def _suspended(event: ExecutionSuspended | ExecutionResumed) -> str | None:
    """Return the value of the column :data:`SUSPENDED`. None keeps the column: if an instance begins suspended, the
    column was written before its start."""
    if isinstance(event, ExecutionResumed):
        return ""
    return None if event.taskhub_by is None else f"{event.timestamp.ticks}:{event.taskhub_by}"


def _completion(event: ExecutionCompleted, texts: LargeTexts, now: Timestamp) -> dict[str, Property | None]:
    failed = event.failure is not None
    output = event.result if event.failure is None else headline(event.failure)
    changes: dict[str, Property | None] = {
        "CompletedTime": now,
        # Write "" if there is no output. Else the merge would keep the text of a suspension or of an earlier failure.
        "Output": texts.place(output or "", "Output", _NEVER if failed else _COMPLETED_RESULT),
    }
    if event.failure is not None:
        changes[FAILURE] = _failure(event.failure)
    return changes


def _failure(failure: FailureDetails) -> str:
    """Encode a failure as JSON. If the JSON is too large for its column, texts are cut, and inner failures and
    properties are omitted."""
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
    """Encode tags. A .NET client may give tags that are too large for the column. Then only the history has these tags,
    and the column is ``null``."""
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
    """Encode the columns that bring an instance row up to date with the committed history.

    The history does not contain the custom status, so an existing row keeps its custom status unless the events were
    replayed. The row of a newer start (the id was started again, and the row has another execution id) is not changed.
    A rewound instance stays Pending until it ends, as in .NET.

    :param events: all events of the current generation (a generation begins at the start and at each
        ``continue_as_new``).
    :param row: the row as it was read; None: there is no row.
    :param custom_status: custom status that a replay of the events has set; None if the events were not replayed.
    :param replayed: True if the events were replayed.
    :returns: the row, and its blobs, which must be written first. None: the row is up to date or must not be changed,
        or the events have no start event.
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
    if row is not None and row.status is Status.PENDING and not lags(row, events) and _misses_cancel(row, events):
        hint = {CANCELS: entity.properties[CANCELS]}  # a rewound instance: the rest of its row stays
        return _row(started.instance.instance_id, hint), ()
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
    """Return True if an instance row does not show all of the committed history. The custom status is not compared,
    because the history does not contain it.

    :param row: the row as it was read; None: there is no row.
    :param events: all events of the current generation.
    """
    started = _started(events)
    if started is None or row is None:
        return started is not None
    if is_newer(row, started):
        return False
    status = [changed_to for event in events if (changed_to := _status_after(event)) is not None][-1]
    if row.status is Status.PENDING:
        rewound = any(isinstance(event, GenericEvent) for event in events)
        return status.is_final or not rewound
    if row.status.is_final and not status.is_final and same_start(row.execution_id, started.instance.execution_id):
        return False  # A rewind has rewritten the history and will change the row next. Do not repair the row here.
    if _misses_cancel(row, events):
        return True
    return row.execution_id != started.instance.execution_id or row.status is not status


def is_newer(row: InstanceState, started: ExecutionStarted) -> bool:
    """Return True if an instance row belongs to a newer start than the history.

    The new start still waits, or .NET has ended it before it began. A client writes the row before the history, so an
    ended row of another run is newer. A child has its history first, so such a row may belong to an earlier child.

    :param started: the start in the history.
    """
    if same_start(row.execution_id, started.instance.execution_id):
        return False
    return row.status is Status.PENDING or (row.status.is_final and started.parent is None)


def suspension_row(
    event: ExecutionSuspended | ExecutionResumed,
    *,
    instance_id: str,
    names: HubNames,
    now: Timestamp,
    container_url: str,
) -> tuple[Entity, tuple[PutBlob, ...]]:
    """Encode the columns of an instance that is suspended or resumed before it begins. The row stays Pending.

    :returns: the row, and its blobs. Write the blobs before the row.
    """
    texts = LargeTexts(names, container_url, instance_id, ())
    held = f"{event.timestamp.ticks}:{event.taskhub_by or ''}" if isinstance(event, ExecutionSuspended) else ""
    output = texts.place(event.reason or "", "Output", _NEVER)
    return _row(instance_id, {"LastUpdatedTime": now, "Output": output, SUSPENDED: held}), tuple(texts.blobs)


def rewound_row(instance_id: str, now: Timestamp, *, released: bool | None) -> Entity:
    """Encode the columns that a rewind writes. The output and the time of the failure stay in the row until the next
    end of the instance.

    :param released: the column :data:`RELEASED`; None: no Airflow task has started the instance.
    """
    return _row(instance_id, {"RuntimeStatus": Status.PENDING.value, "LastUpdatedTime": now, RELEASED: released})


def released_row(instance_id: str, *, released: bool) -> Entity:
    """Encode the column :data:`RELEASED` alone."""
    return _row(instance_id, {RELEASED: released})


# --- reading ------------------------------------------------------------------------------------------------------


def decode_instance(entity: Entity, *, container_url: str) -> InstanceState:
    """Decode an instance row that TaskHub or .NET wrote.

    The function raises no error, because one damaged row must not break a listing: a damaged column counts as missing.
    Texts that are stored in blobs are None (see :func:`large_texts`).
    """
    columns = _Columns(entity)
    ticks, _, by = (columns.text(SUSPENDED) or "").partition(":")
    number, _, rest = (columns.text(CANCELS) or "").partition(":")
    identity, _, generation = rest.partition(":")
    is_cancel = number.isdecimal() and generation == columns.text("ExecutionId")
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
        restarts=columns.number("Generation"),
        tags=columns.object("Tags", Kind.TAGS),
        parent=columns.text(PARENT),
        root=columns.text(ROOT),
        cancel=Cancel(number=int(number), identity=identity) if is_cancel else None,
        released=entity.properties.get(RELEASED) is True,
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
    """Return True if the column :data:`FAILURE` belongs to the present end of the instance. If a .NET worker has ended
    a rewound instance, the column still has the earlier failure."""
    if "output" in large_texts(entity, container_url=container_url):
        return True
    # TaskHub writes the first form. .NET and earlier versions of TaskHub write the second form.
    return (state.output or "").startswith((headline(failure), f"{failure.error_type}: {failure.error_message}"))


def large_texts(entity: Entity, *, container_url: str) -> dict[str, str]:
    """Return the texts of a row that are stored in blobs: field of :class:`InstanceState` → name of the blob.

    Read these blobs, then call :func:`fill`. An address outside the hub's own container is an ordinary text. If the
    blob does not exist, the text only looks like an address; then use :func:`inline_text`.
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
    """Return the text that the column of a field itself contains, even if it is the address of a blob.

    :param field: ``input``, ``output`` or ``custom_status``.
    :returns: None if the column is missing or contains no text.
    """
    text = entity.properties.get(_LARGE[field])
    return text if isinstance(text, str) else None


def fill(state: InstanceState, texts: Mapping[str, str | None]) -> InstanceState:
    """Return the state of an instance, with its large texts filled in.

    :param texts: field of :class:`InstanceState` → text.
    """
    values: dict[str, Any] = dict(texts)
    return replace(state, **values)


class _Columns:
    """Reads the columns of a row. A column whose value has an unexpected type counts as missing."""

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
    """Decode a status. An unknown or missing status becomes Pending, because nothing proves that the instance has run
    or ended."""
    return Status(name) if name in tuple(Status) else Status.PENDING
