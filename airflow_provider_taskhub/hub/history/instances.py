"""Rows of the instances table: what readers see of an instance (spec §2.5).

Owns the columns of a start, of a checkpoint and of a reader's query. Never decides when a row is written, nor whether.

Texts of ``Input`` and ``Output`` that are too large for a column, or that a .NET reader would take for the address of a
blob (a terminate reason, a failure's text or a foreign input may look like one, K60), are kept in a blob of ours, and
the row holds its address: .NET readers follow it and find the text unchanged. A prefix would have changed the text.
A large ``CustomStatus``, with which DurableTask fails for ever, goes to a blob too; .NET shows its address as a string.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote, unquote

from airflow_provider_taskhub.codec import Timestamp, compress
from airflow_provider_taskhub.engine.actions import Episode
from airflow_provider_taskhub.engine.events import (
    ExecutionCompleted,
    ExecutionResumed,
    ExecutionStarted,
    ExecutionSuspended,
    ExecutionTerminated,
    FailureDetails,
    HistoryEvent,
    Status,
)
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.hub import wire
from airflow_provider_taskhub.hub.contract import HubNames, InstanceState
from airflow_provider_taskhub.hub.history.payloads import utf16_bytes
from airflow_provider_taskhub.hub.keys import escape, history_folder, unescape
from airflow_provider_taskhub.hub.wire import Kind, Members
from airflow_provider_taskhub.storage.primitives import And, Compare, Entity, Filter, Or, Property, PutBlob

INLINE_BYTES = 60 * 1024
"""UTF-16 bytes of a text that a column may keep, as in the history."""
FAILURE_BYTES = 30 * 1024
"""UTF-16 bytes of our own failure column; longer stack traces and messages are cut."""
FAILURE = "TaskHubFailure"
"""Our own column: FailureDetails of a failed instance as JSON; DurableTask keeps only their text."""
START_BLOB = "ExecutionStarted.json.gz"
"""End of the name of a spilled start message: a text kept there is the ``Input`` of its event (spec §2.5)."""

_LIKE_A_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S*|[/\\]\S*")
"""Wider than what .NET takes for a well-formed absolute URI; no JSON text matches."""
_MESSAGE_SPILL = re.compile(r"/message-[0-9a-f]{32}-ExecutionStarted\.json\.gz$")


# --- large values -------------------------------------------------------------------------------------------------


def address_of(container_url: str, blob: str) -> str:
    """Address of a blob, each part of its name percent-encoded.

    :param container_url: of the hub's large-message container, without a slash at its end.
    """
    return f"{container_url}/{'/'.join(quote(part, safe='') for part in blob.split('/'))}"


def blob_at(container_url: str, text: str) -> str | None:
    """Name of the blob of the hub's own container that a text is the address of; None for every other text (K60)."""
    base = f"{container_url}/"
    return unquote(text[len(base) :]) if text.startswith(base) and len(text) > len(base) else None


def _must_spill(text: str) -> bool:
    return _LIKE_A_URI.fullmatch(text) is not None or utf16_bytes(text) > INLINE_BYTES


class _Texts:
    """Where a row's texts go: into the row, to a blob that history or message has already, or to one of the row's own.

    A blob of the row's own is named by its text, so that a repeated write of the row makes no second one.
    """

    def __init__(self, names: HubNames, container_url: str, instance_id: str, written: Sequence[PutBlob]) -> None:
        self.blobs: list[PutBlob] = []
        self._container = names.large_messages
        self._url = container_url
        self._folder = history_folder(instance_id)
        self._written = [blob.name for blob in written]

    def place(self, text: str | None, column: str, spilled: re.Pattern[str]) -> str | None:
        """The column's value for a text. :param spilled: of the names of blobs that hold this very text."""
        if text is None or not _must_spill(text):
            return text
        found = next((name for name in self._written if spilled.search(name)), None)
        return address_of(self._url, self._own(text, column) if found is None else found)

    def status(self, text: str | None) -> str:
        """The ``CustomStatus`` column: JSON; of a large one, the JSON string of its blob's address."""
        if text is None:
            return "null"
        if utf16_bytes(text) <= INLINE_BYTES and _status_blob(text, self._url) is None:
            return text
        return wire.dumps(address_of(self._url, self._own(text, "CustomStatus")))

    def _own(self, text: str, column: str) -> str:
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        name = f"{self._folder}/instance-{digest}-{column}.json.gz"
        if name not in self._written:
            self._written.append(name)
            self.blobs.append(PutBlob(container=self._container, name=name, data=compress(text)))
        return name


def _status_blob(text: str, container_url: str) -> str | None:
    """The blob whose address a custom status is, when it is one that :class:`_Texts` has written."""
    if not text.endswith('-CustomStatus.json.gz"'):
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return blob_at(container_url, value) if isinstance(value, str) else None


def _history_spill(event: str, column: str) -> re.Pattern[str]:
    return re.compile(rf"/history-[0-9A-F]{{16}}-{event}-[0-9A-F]{{8}}-{column}\.json\.gz$")


_STARTED_INPUT = _history_spill("ExecutionStarted", "Input")
_COMPLETED_RESULT = _history_spill("ExecutionCompleted", "Result")
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
    """A Pending row for a start, to be inserted, or to replace that of a finished instance (spec §2.5).

    :param container_url: of the hub's large-message container.
    :param message_blob: what the start message was spilled to, if it was; the row then points there.
    :returns: the row, and blobs to write before it.
    """
    instance_id = event.instance.instance_id
    texts = _Texts(names, container_url, instance_id, () if message_blob is None else (message_blob,))
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


def merge_row(
    episode: Episode,
    *,
    names: HubNames,
    now: Timestamp,
    container_url: str,
    history_blobs: Sequence[PutBlob],
) -> tuple[Entity, tuple[PutBlob, ...]]:
    """What a checkpoint merges into the row: :func:`merged` of the events that it stores."""
    return merged(
        episode.history,
        instance_id=episode.current.instance_id,
        execution_id=episode.current.execution_id,
        custom_status=episode.custom_status,
        names=names,
        now=now,
        container_url=container_url,
        history_blobs=history_blobs,
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
) -> tuple[Entity, tuple[PutBlob, ...]]:
    """The columns that new events change, to be merged: ``RuntimeStatus`` by a start, an end, suspend and resume alone.

    :param events: as stored in the history by this checkpoint. :param now: becomes ``CompletedTime``.
    :param history_blobs: what the history's rows have spilled; the row points there instead of keeping a second copy.
    :returns: the row, and blobs to write before it.
    """
    texts = _Texts(names, container_url, instance_id, history_blobs)
    properties: dict[str, Property | None] = {
        "CustomStatus": texts.status(custom_status),
        "ExecutionId": execution_id,
        "TaskHubName": names.hub,
    }
    for event in events:
        properties["LastUpdatedTime"] = event.timestamp
        properties |= _changes(event, texts, now)
    return _row(instance_id, properties), tuple(texts.blobs)


def _changes(event: HistoryEvent, texts: _Texts, now: Timestamp) -> dict[str, Property | None]:
    match event:
        case ExecutionStarted():
            return {
                "Name": event.name,
                "Version": event.version,
                "CreatedTime": event.timestamp,
                "RuntimeStatus": Status.RUNNING.value,
                "Tags": _tags(event.tags),
                "Generation": event.generation,
                "ScheduledStartTime": event.scheduled_start_time,
                "Input": texts.place(event.input, "Input", _STARTED_INPUT),
            }
        case ExecutionCompleted():
            return _completion(event, texts, now)
        case ExecutionTerminated():
            return {
                "RuntimeStatus": Status.TERMINATED.value,
                "CompletedTime": now,
                "Output": texts.place(event.input, "Output", _NEVER),
            }
        case ExecutionSuspended():
            return {
                "RuntimeStatus": Status.SUSPENDED.value,
                "Output": texts.place(event.reason, "Output", _NEVER),
            }
        case ExecutionResumed():
            return {
                "RuntimeStatus": Status.RUNNING.value,
                "Output": texts.place(event.reason, "Output", _NEVER),
            }
    return {}


def _completion(event: ExecutionCompleted, texts: _Texts, now: Timestamp) -> dict[str, Property | None]:
    failed = event.failure is not None
    output = event.result if event.failure is None else failure_text(event.failure)
    changes: dict[str, Property | None] = {
        "RuntimeStatus": event.status.value,
        "CompletedTime": now,
        # "" for none: a merge would keep what a suspension or an earlier failure left there
        "Output": texts.place(output or "", "Output", _NEVER if failed else _COMPLETED_RESULT),
    }
    if event.failure is not None:
        changes[FAILURE] = _failure(event.failure)
    return changes


def failure_text(failure: FailureDetails) -> str:
    """``Output`` of a failed instance (spec §2.5)."""
    return f"{failure.error_type}: {failure.error_message}"


def _failure(failure: FailureDetails) -> str:
    """JSON of a failure that fits its column: first the causes lose their stack traces, then texts are cut."""
    text = wire.dumps(wire.write(Kind.FAILURE, failure, typed=False))
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
    return wire.dumps(wire.write(Kind.FAILURE, short, typed=False))


def _tags(tags: Mapping[str, str] | None) -> str:
    return "null" if tags is None else wire.dumps(wire.write(Kind.TAGS, tags, typed=False))


def _row(instance_id: str, properties: Mapping[str, Property | None]) -> Entity:
    kept = {name: value for name, value in properties.items() if value is not None}
    return Entity(partition_key=escape(instance_id), row_key="", properties=kept)


# --- reading ------------------------------------------------------------------------------------------------------


def decode_instance(entity: Entity, *, container_url: str) -> InstanceState:
    """An instance's state from its row, whoever wrote it; what cannot be understood reads as absent.

    A listing must never break on one row, so nothing is raised. Texts that lie in blobs are None: see
    :func:`large_texts`.
    """
    columns = _Columns(entity)
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
        etag=entity.etag,
    )
    failure = columns.object(FAILURE, Kind.FAILURE) if state.status is Status.FAILED else None
    if failure is not None and _is_current(failure, state, entity, container_url):
        state = replace(state, failure=failure)
    return fill(state, dict.fromkeys(large_texts(entity, container_url=container_url)))


def _is_current(failure: FailureDetails, state: InstanceState, entity: Entity, container_url: str) -> bool:
    """Whether our column belongs to this end: a .NET worker that ended a rewound instance has left it as it was."""
    if "output" in large_texts(entity, container_url=container_url):
        return True
    return (state.output or "").startswith(failure_text(failure))


def large_texts(entity: Entity, *, container_url: str) -> dict[str, str]:
    """Texts of a row that lie in blobs: field of :class:`InstanceState` → name of the blob, to fetch and :func:`fill`.

    Addresses outside the hub's own container are texts like any other (K60). A blob that does not exist means that the
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
    if isinstance(status, str) and (blob := _status_blob(status, container_url)) is not None:
        found["custom_status"] = blob
    return found


def inline_text(entity: Entity, field: str) -> str | None:
    """The text that the row itself has for a field of :func:`large_texts`."""
    text = entity.properties.get(_LARGE[field])
    return text if isinstance(text, str) else None


def text_of_blob(blob: str, text: str) -> str | None:
    """The value that a blob holds: of a start message the input of its event, else the text itself (spec §2.5).

    :param text: of the blob, decompressed. :raises InputError: when a start message is none.
    """
    if not blob.endswith(START_BLOB):
        return text
    try:
        message = Members(json.loads(text), blob)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{blob!r} is not JSON: {error}") from error
    event = Members(Members(message.raw("TaskMessage"), "TaskMessage").raw("Event"), "TaskMessage.Event")
    value: str | None = event.get("Input", Kind.TEXT)
    return value


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
            return None if not text else wire.read(kind, json.loads(text), name)
        except (InputError, ValueError, RecursionError):
            return None


def _status(name: str | None) -> Status:
    """An unknown or missing status reads as Pending: nothing is known to have run, nothing to have ended."""
    return Status(name) if name in tuple(Status) else Status.PENDING


# --- queries ------------------------------------------------------------------------------------------------------


def query_filter(
    *,
    statuses: Sequence[Status] = (),
    created_from: Timestamp | None = None,
    created_to: Timestamp | None = None,
    prefix: str = "",
) -> Filter | None:
    """What a listing asks the table for; None: everything. :func:`matches` does what a table cannot.

    :param created_from, created_to: both inclusive. :param prefix: of the raw instance id.
    """
    parts: list[Filter] = []
    if prefix:
        key = escape(prefix)
        parts.append(Compare("PartitionKey", "ge", key))
        if (end := _successor(key)) is not None:
            parts.append(Compare("PartitionKey", "lt", end))
    if statuses:
        wanted = tuple(Compare("RuntimeStatus", "eq", status.value) for status in dict.fromkeys(statuses))
        parts.append(wanted[0] if len(wanted) == 1 else Or(wanted))
    if created_from is not None:
        parts.append(Compare("CreatedTime", "ge", created_from))
    if created_to is not None:
        parts.append(Compare("CreatedTime", "le", created_to))
    if len(parts) < 2:
        return parts[0] if parts else None
    return And(tuple(parts))


def matches(state: InstanceState, *, prefix: str = "", tags: Mapping[str, str] | None = None) -> bool:
    """Whether an instance has the prefix exactly and all of the tags; to be applied to what the table returns."""
    own = state.tags or {}
    return state.instance_id.startswith(prefix) and all(own.get(name) == value for name, value in (tags or {}).items())


def _successor(key: str) -> str | None:
    """The least text above all that start with a key; None when there is none.

    Stepped over the surrogates, which no text may hold alone; where a table sorts by UTF-16 units this lets through a
    few keys more, never fewer.
    """
    for end in range(len(key) - 1, -1, -1):
        following = ord(key[end]) + 1
        if following == 0xD800:
            following = 0xE000
        if following <= 0x10FFFF:
            return key[:end] + chr(following)
    return None
