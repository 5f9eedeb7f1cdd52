"""Encode and decode messages in queues: DurableTask's class MessageData.

Messages are written exactly as DurableTask writes them, and are read with the same tolerance. A message over 45 KiB is
stored in a blob; the queue then has a short message with the name of the blob, called the wrapper. This module never
reads or writes a queue. It is longer than others because writing and reading must agree on every member.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from secrets import token_hex
from typing import Any, NoReturn, TypeAlias
from uuid import UUID

from pydantic_core import from_json

from airflow_provider_taskhub.codec import Packed, Timestamp
from airflow_provider_taskhub.engine.events import EventType, HistoryEvent, OrchestrationInstance
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub.formats import json_values
from airflow_provider_taskhub.hub.formats.event_fields import (
    EVENT_ID,
    HISTORY,
    LAYOUT_OF,
    LAYOUTS,
    EventField,
    EventLayout,
)
from airflow_provider_taskhub.hub.formats.json_values import JsonObject, Kind
from airflow_provider_taskhub.hub.formats.keys import message_folder
from airflow_provider_taskhub.storage.primitives import PutBlob
from airflow_provider_taskhub.storage.rules import check_blob_name

SPILL_BYTES = 45 * 1024
"""Largest message that stays in a queue, in bytes of its JSON in UTF-8. A larger message is stored in a blob."""
NO_ACTIVITY = UUID(int=0)
ACTION_UUID = 5
"""Version of a UUID that identifies an action. All other messages have random UUIDs (version 4)."""
FAILURES = "TaskHubFailures"
"""Member that DurableTask does not have: how often processing the message has failed."""
DELIVERIES = "TaskHubDeliveries"
"""Member that DurableTask does not have: see ``Envelope.deliveries``."""
WAITING_SINCE = "TaskHubWaitingSince"
"""Member that DurableTask does not have: see ``Envelope.waiting_since``."""
AFTER = "TaskHubAfter"
"""Member that DurableTask does not have: see ``Envelope.after``."""
PLACE = "TaskHubPlace"
"""Member that DurableTask does not have: see ``Envelope.place``."""
MORE = "TaskHubMore"
"""Member that DurableTask does not have: see ``Envelope.more``."""

_DATA = "DurableTask.AzureStorage.MessageData"
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_EVENT_NAMES = {event_type.name.lower(): event_type for event_type in EventType}
_CLASSES = {layout.name.lower(): event_type for event_type, layout in LAYOUTS.items()}
_SCHEDULING = frozenset(
    {
        EventType.TaskScheduled,
        EventType.SubOrchestrationInstanceCreated,
        EventType.TimerCreated,
        EventType.EventSent,
    }
)


class MessageError(InputError):
    """A message cannot be decoded. The error text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMessage:
    """DurableTask's class TaskMessage: an event on its way to an instance.

    :param event: the event.
    :param instance: instance that receives the event. If its execution id is None, the event is for the current
        generation.
    :param context_tags: tags of the sending orchestration. Only starts of activities and children have them.
    :param sequence_number: always 0 in DurableTask.AzureStorage.
    """

    event: HistoryEvent
    instance: OrchestrationInstance
    context_tags: Mapping[str, str] | None = None
    sequence_number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """A message as it stands in a queue: DurableTask's class MessageData. DurableTask does not have the last six
    fields.

    :param activity_id: a random id, or the identity of the action that the message carries out.
    :param message: the message; None in a wrapper, whose message is stored in a blob.
    :param blob_name: name of the blob in the container of large payloads; None: the message is not in a blob.
    :param sequence_number: number of the message among the messages of the sending process.
    :param episode: number of OrchestratorStarted events in the sender's history when the sender was loaded; None if a
        client sent the message.
    :param sender: orchestration that sent the message. None in a wrapper. Both ids are "" if a client sent the message.
    :param trace_context: DurableTask's SerializableTraceContext, as text; None: the message has none.
    :param failures: how often processing the message has failed.
    :param deliveries: number that is added to the queue's dequeue count. It is 1 higher if the sending worker handed
        the message over in memory, and 1 lower each time a worker returned the message before it began any work.
    :param waiting_since: when a worker first received the message and did not have the function that it needs, by the
        storage service. The next worker uses this time, so that the wait does not begin again. For a work item of a
        suspended instance: when it becomes visible again, because the wait for a slot begins after the suspension.
    :param after: number of the event that a client sent to the same run before this event, or that the same checkpoint
        sends before it. The receiver takes that one first. None: there is no such event.
    :param place: place of the message in its queue, as the worker saw it that first received the message
        (``Delivery.place``). None: no worker has given the message back to the queue.
    :param more: of a call of an activity: the lane into which the same checkpoint has put further calls; None: no lane.
    """

    activity_id: UUID
    message: TaskMessage | None
    blob_name: str | None = None
    sequence_number: int = 0
    episode: int | None = None
    sender: OrchestrationInstance | None = None
    trace_context: str | None = None
    failures: int = 0
    deliveries: int = 0
    waiting_since: Timestamp | None = None
    after: int | None = None
    place: int | None = None
    more: str | None = None


# --- writing ------------------------------------------------------------------------------------------------------


def encode(envelope: Envelope) -> str:
    """Encode a message as JSON in ASCII. If the message has a blob name, the result is its wrapper.

    :raises MessageError: a text has an unpaired surrogate. No table could store this text.
    """
    data = _wrapper(envelope) if envelope.blob_name else _data(envelope)
    text = json_values.dumps(data)
    _check_surrogates(text, data)
    return text


def _data(envelope: Envelope) -> dict[str, Any]:
    data: dict[str, Any] = {
        "$type": _DATA,
        "ActivityId": str(envelope.activity_id),
        "TaskMessage": None if envelope.message is None else _message(envelope.message),
        "CompressedBlobName": envelope.blob_name,
        "SequenceNumber": envelope.sequence_number,
    }
    if envelope.episode is not None:
        data["Episode"] = envelope.episode
    data["Sender"] = json_values.write(Kind.INSTANCE, envelope.sender, typed=False)
    data["SerializableTraceContext"] = envelope.trace_context
    if envelope.failures:
        data[FAILURES] = envelope.failures
    if envelope.deliveries:
        data[DELIVERIES] = envelope.deliveries
    if envelope.waiting_since is not None:
        data[WAITING_SINCE] = json_values.write(Kind.TIME, envelope.waiting_since, typed=False)
    if envelope.after is not None:
        data[AFTER] = envelope.after
    if envelope.place is not None:
        data[PLACE] = envelope.place
    if envelope.more is not None:
        data[MORE] = envelope.more
    return data


def _wrapper(envelope: Envelope) -> dict[str, Any]:
    """Return the wrapper: the name of the blob, and the members that DurableTask does not have."""
    bare = Envelope(
        activity_id=NO_ACTIVITY,
        message=None,
        blob_name=envelope.blob_name,
        failures=envelope.failures,
        deliveries=envelope.deliveries,
        waiting_since=envelope.waiting_since,
        place=envelope.place,
    )
    return _data(bare)


def _message(message: TaskMessage) -> dict[str, Any]:
    tags = json_values.write(Kind.TAGS, message.context_tags, typed=True)
    context = {"$type": json_values.CORE + "OrchestrationExecutionContext", "OrchestrationTags": tags}
    return {
        "$type": json_values.CORE + "TaskMessage",
        "Event": _event(message.event),
        "SequenceNumber": message.sequence_number,
        "OrchestrationInstance": json_values.write(Kind.INSTANCE, message.instance, typed=True),
        "OrchestrationExecutionContext": None if tags is None else context,
    }


def _event(event: HistoryEvent) -> dict[str, Any]:
    name, before, after = _WRITTEN[type(event)]
    data: dict[str, Any] = {"$type": name}
    _write_members(data, event, before)
    data["EventType"] = int(event.event_type)
    _write_members(data, event, after)
    return data


def _write_members(data: dict[str, Any], event: HistoryEvent, members: tuple[_Written, ...]) -> None:
    for name, field, kind, always in members:
        value = getattr(event, field)
        if value is not None:
            data[name] = value if kind is None else json_values.write(kind, value, typed=True)
        elif always:
            data[name] = None


_Written: TypeAlias = tuple[str, str, Kind | None, bool]
"""Name of a member, its Python field, its kind (None: the value needs no conversion), and True if the member is written
as null when it has no value."""


def _written(members: tuple[EventField, ...]) -> tuple[_Written, ...]:
    return tuple(
        (member.name, member.field, None if member.kind in json_values.PLAIN else member.kind, not member.taskhub_only)
        for member in members
    )


_WRITTEN = {
    cls: (HISTORY + layout.name, _written(layout.message[0]), _written(layout.message[1]))
    for cls, layout in LAYOUT_OF.items()
}
"""For each class of events: its ``$type``, and its members before and after ``EventType``."""


def spill(envelope: Envelope, container: str) -> tuple[str, PutBlob | None]:
    """Encode a message for a queue.

    :param container: name of the hub's container of large payloads.
    :returns: the text for the queue, and the blob of a message over 45 KiB. Write the blob before the text. None: the
        message needs no new blob.
    """
    text = encode(envelope)
    # The text is ASCII, so each character is one byte.
    if len(text) <= SPILL_BYTES or envelope.message is None or envelope.blob_name:
        return text, None
    name = _blob_name(envelope.activity_id, envelope.message)
    return encode(replace(envelope, blob_name=name, deliveries=0)), PutBlob(
        container=container, name=name, data=Packed(text)
    )


def _blob_name(activity_id: UUID, message: TaskMessage) -> str:
    """Return the name of the blob of a message.

    An action's message may be made again, for example after a rewind. Each time its blob gets a new name, because the
    blob of the one before is deleted some time after its message.
    """
    name = token_hex(16) if activity_id.version == ACTION_UUID else activity_id.hex
    return f"{message_folder(message.instance.instance_id)}/message-{name}-{message.event.event_type.name}.json.gz"


def is_blob_of(name: str, message: TaskMessage) -> bool:
    """Return whether a blob has the name of a blob of this message, so that it can be deleted with the message.

    :param name: name of the blob that the message in the queue names. Anybody who can write to the queue can give any
        name, such as that of another instance's message or of an input.
    """
    folder, _, file = name.rpartition("/")
    instance_id = message.instance.instance_id
    return (
        folder in (message_folder(instance_id), instance_id)
        and file.startswith("message-")
        and file.endswith(f"-{message.event.event_type.name}.json.gz")
    )


# --- reading ------------------------------------------------------------------------------------------------------


def decode(text: str) -> Envelope:
    """Decode a message.

    :param text: text of a queue message or of a blob: JSON, or JSON in Base64.
    :raises MessageError: the text is not a message. The error says why.
    """
    try:
        return _read_data(JsonObject(_parse(text), "MessageData"))
    except MessageError:
        raise
    except InputError as error:
        raise MessageError(str(error)) from error


def blob_of(envelope: Envelope) -> str | None:
    """Return the name of the blob that holds the message, if the envelope is a wrapper (an envelope without a message).

    None: the envelope itself has the message.
    """
    return envelope.blob_name if envelope.message is None else None


def unspill(wrapper: Envelope, text: str) -> Envelope:
    """Return the message that belongs to a wrapper.

    The message gets the wrapper's blob name, and its members that DurableTask does not have. So :func:`encode` writes
    the same wrapper again.

    :param text: content of the blob, decompressed.
    :raises MessageError: the blob holds no message.
    """
    inner = decode(text)
    if inner.message is None:
        raise MessageError(f"blob {wrapper.blob_name!r} holds no message")
    return replace(
        inner,
        blob_name=wrapper.blob_name,
        failures=wrapper.failures,
        deliveries=wrapper.deliveries,
        waiting_since=wrapper.waiting_since,
        place=wrapper.place,
    )


def _parse(text: str) -> Any:
    plain = text.lstrip("\ufeff \t\r\n")
    if not plain.startswith("{"):
        plain = _unbase64(plain)
    try:
        return from_json(plain, allow_inf_nan=False)
    except (ValueError, TypeError):
        pass  # The parser below is slower, but the text of its error says what is wrong.
    try:
        value = _DECODER.decode(plain)
        _check_surrogates(plain, value)
    except MessageError:
        raise
    except (ValueError, RecursionError) as error:
        raise MessageError(f"the message is not JSON: {error}: {json_values.shown(plain)}") from error
    return value


def _check_surrogates(text: str, value: Any) -> None:
    """Raise an error if a value has an unpaired surrogate, which JSON can escape, but UTF-8 cannot encode.

    :param text: the JSON text of the value.
    """
    if _SURROGATE_ESCAPE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise MessageError("the message contains an unpaired surrogate, which no table can store") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _unbase64(text: str) -> str:
    try:
        return base64.b64decode(text.strip(), validate=True).decode("utf-8-sig").lstrip()
    except (binascii.Error, ValueError) as error:
        raise MessageError(f"the message is neither JSON nor Base64 of JSON: {json_values.shown(text)}") from error


def _read_data(data: JsonObject) -> Envelope:
    failures, deliveries = data.get(FAILURES, Kind.INT) or 0, data.get(DELIVERIES, Kind.INT) or 0
    waiting_since, place = data.get(WAITING_SINCE, Kind.TIME), _read_count(data, PLACE) or None
    blob_name = data.get("CompressedBlobName", Kind.TEXT)
    if blob_name:  # The blob holds the whole message. Of this wrapper, only TaskHub's own members count too.
        check_blob_name(blob_name)
        return Envelope(
            activity_id=NO_ACTIVITY,
            message=None,
            blob_name=blob_name,
            failures=failures,
            deliveries=deliveries,
            waiting_since=waiting_since,
            place=place,
        )
    if not data.has("TaskMessage"):
        raise MessageError("MessageData has neither a TaskMessage nor a CompressedBlobName")
    return Envelope(
        activity_id=_read_guid(data.get("ActivityId", Kind.TEXT)),
        message=_read_message(data.raw("TaskMessage")),
        sequence_number=_read_count(data, "SequenceNumber"),
        episode=data.get("Episode", Kind.INT),
        sender=_read_sender(data.raw("Sender")),
        trace_context=_as_text(data.raw("SerializableTraceContext")),
        failures=failures,
        deliveries=deliveries,
        waiting_since=waiting_since,
        after=_read_count(data, AFTER) or None,
        place=place,
        more=data.get(MORE, Kind.TEXT),
    )


def _read_guid(text: str | None) -> UUID:
    try:
        return NO_ACTIVITY if text is None else UUID(text)
    except ValueError as error:
        raise MessageError(f"MessageData.ActivityId is {json_values.shown(text)}, not a GUID") from error


def _read_count(members: JsonObject, name: str) -> int:
    value = members.raw(name)
    if value is None:
        return 0
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise MessageError(f"{members.where}.{name} is {json_values.shown(value)}, not an integer")


def _read_sender(value: Any) -> OrchestrationInstance | None:
    if value is None:
        return None
    members = JsonObject(value, "MessageData.Sender")
    return OrchestrationInstance(
        instance_id=members.get("InstanceId", Kind.TEXT) or "", execution_id=members.get("ExecutionId", Kind.TEXT)
    )


def _as_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json_values.dumps(value)


def _read_message(value: Any) -> TaskMessage:
    message = JsonObject(value, "TaskMessage")
    instance = message.need("OrchestrationInstance", Kind.INSTANCE)
    tags: Mapping[str, str] | None = None
    if message.has("OrchestrationExecutionContext"):
        context = JsonObject(message.raw("OrchestrationExecutionContext"), "TaskMessage.OrchestrationExecutionContext")
        tags = context.get("OrchestrationTags", Kind.TAGS) or {}
    if not message.has("Event"):
        raise MessageError("TaskMessage has no Event")
    return TaskMessage(
        event=_read_event(JsonObject(message.raw("Event"), "TaskMessage.Event")),
        instance=instance,
        context_tags=tags,
        sequence_number=_read_count(message, "SequenceNumber"),
    )


def _read_event(event: JsonObject) -> HistoryEvent:
    event_type = _event_type(event)
    layout = LAYOUTS.get(event_type)
    if layout is None:
        raise MessageError(f"TaskMessage.Event is a {event_type.name}, which no message carries")
    values: dict[str, Any] = {}
    for member in chain(*layout.message):
        required = member.required or (member is EVENT_ID and event_type in _SCHEDULING)
        value = event.need(member.name, member.kind) if required else event.get(member.name, member.kind)
        if value is not None:
            values[member.field] = value
    return layout.cls(**_with_nulls(event, layout, values))


def _with_nulls(event: JsonObject, layout: EventLayout, values: dict[str, Any]) -> dict[str, Any]:
    """Set ``version`` to None if the JSON has null, so that a later encoding writes null again. If the JSON has no
    version, the Python field has its default ""."""
    for member in layout.after:
        if member.field == "version" and event.is_null(member.name):
            values["version"] = None
    return values


def _event_type(event: JsonObject) -> EventType:
    """Return the type of an event from ``$type``, whose .NET assembly is ignored. If there is no ``$type``, use
    ``EventType``, which is a number or a name."""
    name = event.raw("$type")
    if isinstance(name, str):
        bare = name.partition(",")[0].strip()
        found = _CLASSES.get(bare.removeprefix(HISTORY).lower()) if bare.startswith(HISTORY) else None
        if found is None:
            raise MessageError(f"TaskMessage.Event is of the unknown type {json_values.shown(name)}")
        return found
    value = event.raw("EventType")
    if isinstance(value, int) and not isinstance(value, bool) and value in EventType.__members__.values():
        return EventType(value)
    if isinstance(value, str) and value.lower() in _EVENT_NAMES:
        return _EVENT_NAMES[value.lower()]
    raise MessageError(f"TaskMessage.Event has no $type and its EventType is {json_values.shown(value)}")
