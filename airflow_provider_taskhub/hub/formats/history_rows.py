"""Encode and decode rows of the history table: one row for each event, and the sentinel.

The ETag of the sentinel is the lock of the instance. This module never reads or writes a table. The module
``payload_spill`` moves large columns to blobs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import (
    EventType,
    GenericEvent,
    HistoryEvent,
    OrchestrationInstance,
    SubOrchestrationInstanceCreated,
    TaskScheduled,
)
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub.formats import json_values
from airflow_provider_taskhub.hub.formats.event_fields import LAYOUT_OF, LAYOUTS, EventField, EventLayout
from airflow_provider_taskhub.hub.formats.json_values import Kind
from airflow_provider_taskhub.hub.formats.keys import escape, unescape
from airflow_provider_taskhub.hub.formats.payload_spill import utf16_bytes
from airflow_provider_taskhub.hub.formats.unwritten_rows import is_of_commit
from airflow_provider_taskhub.hub.model import Stamp, Suspension
from airflow_provider_taskhub.storage.primitives import MAX_PROPERTY_BYTES, Entity, Property

SENTINEL = "sentinel"
"""RowKey of the sentinel. It sorts after the RowKeys of all events."""
INPUT_BYTES = 1024
"""The row of an event that schedules an activity or child has the input only if the input is not larger than this, in
bytes of UTF-8. Monitors show the input, and a replay compares it. Of a longer input, a replay compares the hash that is
a part of the action's identity."""
_ARRIVED = re.compile(r"([^:,]+):(\d{1,18})")
MAX_CONSUMED = 800
"""How many identities of messages a sentinel can store. A String column of Azure holds 32,768 characters. The identity
of a deleted message is only needed if an action sent the message, because a copy of such a message may still come."""

_RENAMED = {"Timestamp": "_Timestamp"}
"""The name of the column for each member whose column has another name. Azure itself writes a column Timestamp into
each row."""
_KEEPING = (TaskScheduled, SubOrchestrationInstanceCreated)
_GENERIC = frozenset({"Data", "EventId", "IsPlayed", "_Timestamp", "EventType", "ExecutionId", "TaskHubMessageId"})

MAX_ENDED = 100
"""How many earlier runs of the instance id the sentinel lists."""


class RecordError(InputError):
    """A row cannot be decoded. The error text names the row and the damage."""


def row_key(ordinal: int) -> str:
    """Return the RowKey of an event.

    :param ordinal: position of the event in the history of its generation, from 0.
    """
    return f"{ordinal:016X}"


# --- events -------------------------------------------------------------------------------------------------------


def encode_event(event: HistoryEvent, *, instance_id: str, execution_id: str, ordinal: int) -> Entity:
    """Encode an event as a row. The caller must still move large columns to blobs.

    As in DurableTask, a text or number that is None is omitted, and an object that is None becomes the text ``null``.

    :param ordinal: position of the event in the history of its generation, from 0.
    """
    properties: dict[str, Property | None] = {}
    kind, columns = _COLUMNS[type(event)]
    for name, member, write in columns:
        value = getattr(event, member)
        if write is not None:
            properties[name] = write(value)
        elif value is not None:
            properties[name] = value
    if isinstance(event, _KEEPING) and event.input is not None and len(event.input.encode()) > INPUT_BYTES:
        del properties["Input"]
    if isinstance(event, GenericEvent):
        properties.update(_rewound(event))
    properties["EventType"] = kind
    properties["ExecutionId"] = execution_id
    return Entity(partition_key=escape(instance_id), row_key=row_key(ordinal), properties=properties)


def _column(member: EventField) -> Callable[[Any], str] | None:
    if member.kind in json_values.OBJECTS and not member.taskhub_only:
        kind = member.kind
        return lambda value: "null" if value is None else json_values.dumps(json_values.write(kind, value, typed=False))
    return str if member.kind is Kind.STATUS else None


_COLUMNS = {
    cls: (
        cls.event_type.name,
        tuple((_RENAMED.get(member.name, member.name), member.field, _column(member)) for member in layout.row),
    )
    for cls, layout in LAYOUT_OF.items()
}
"""For each class of events: the value of the column ``EventType``, and for each other column its name, the field of the
event, and the function that converts the value (None: the value is stored unchanged)."""


def _rewound(event: GenericEvent) -> Mapping[str, Property | None]:
    columns: dict[str, Any] = {**(event.original or {}), "Reason": event.reason, "Name": event.name}
    return {name: value for name, value in columns.items() if value is not None}


def decode_event(entity: Entity) -> HistoryEvent:
    """Decode the event of a row. The caller must first put large columns back into the row.

    :raises RecordError: neither DurableTask nor TaskHub writes such a row. The error text names the row.
    """
    try:
        return _decode(entity)
    except InputError as error:
        raise RecordError(f"history row {entity.row_key} of {entity.partition_key!r}: {error}") from error


def _decode(entity: Entity) -> HistoryEvent:
    columns = entity.properties
    name = columns.get("EventType")
    if not isinstance(name, str) or name not in EventType.__members__:
        raise InputError(f"EventType is {json_values.shown(name)}, which no version writes")
    layout = LAYOUTS.get(EventType[name])
    if layout is None:
        raise InputError(f"a {name} is never stored in a history")
    return layout.cls(**_fields(layout, columns, entity))


def _fields(layout: EventLayout, columns: Mapping[str, Property | None], entity: Entity) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for member in layout.row:
        column = columns.get(_RENAMED.get(member.name, member.name))
        if column is not None and (value := _value(member, column)) is not None:
            fields[member.field] = value
        elif member.field == "version":
            fields["version"] = None
        elif member.kind is Kind.INSTANCE:
            fields["instance"] = _own_instance(entity)  # rows of early TaskHub versions lack this column
        elif member.required:
            raise InputError(f"it has no {member.name}")
    if layout.cls is GenericEvent:
        fields.update(_original(columns))
    return fields


def _value(member: EventField, column: Property) -> Any:
    if member.kind in json_values.OBJECTS:
        return _object(member, column)
    if member.kind is Kind.TIME and isinstance(column, Timestamp):
        return column
    return json_values.read(member.kind, column, member.name)


def _object(member: EventField, column: Property) -> Any:
    if not isinstance(column, str):
        raise InputError(f"{member.name} is {json_values.shown(column)}, not JSON")
    if column in ("null", ""):
        return None
    try:
        value = json.loads(column)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{member.name} is not JSON: {error}: {json_values.shown(column)}") from error
    return json_values.read(member.kind, value, member.name)


def _own_instance(entity: Entity) -> OrchestrationInstance:
    execution_id = entity.properties.get("ExecutionId")
    return OrchestrationInstance(
        instance_id=unescape(entity.partition_key),
        execution_id=execution_id if isinstance(execution_id, str) else None,
    )


def _original(columns: Mapping[str, Property | None]) -> dict[str, Any]:
    """Return the columns that a GenericEvent has kept of the event that a rewind turned into it. Columns that every
    GenericEvent has are omitted."""
    rest = {name: value for name, value in columns.items() if name not in _GENERIC and value is not None}
    reason, name = rest.pop("Reason", None), rest.pop("Name", None)
    return {"reason": reason, "name": name, "original": rest or None}


# --- the sentinel -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentinel:
    """The last row of an instance's history. Its ETag is the lock of the instance.

    When a sentinel is written, None or an empty value in an optional field keeps the stored value of its column. If
    .NET has committed after TaskHub, the columns of TaskHub are out of date. Then these fields are read as None or
    empty, except ``ended``, which stays true.

    :param execution_id: execution id of the current generation.
    :param complete: True if this write is the last transaction of its checkpoint.
    :param checkpoint_completed: time of the last complete checkpoint. In an unfinished checkpoint, this is the time
        that was loaded, so that a reader sees whether .NET has committed since.
    :param etag: ETag of the row; "" in writes.
    :param commit_id: id of TaskHub's last commit.
    :param committed_rows: number of rows of the generation that count, after TaskHub's last commit; None: .NET has
        committed last.
    :param consumed: identities of messages that were consumed by ``continue_as_new``.
    :param suspension_stamp: stamp (time and sender) of the newest suspension or resume that was processed, in any
        generation.
    :param arrived: for each process that sent events, the number of the last one that has arrived. The process that
        sent an event last stands last.
    :param ended: names of earlier runs under this id, the newest last.
    :param suspension: the suspension of a run that has no checkpoint yet. The run begins suspended.
    :param clears: in writes only: empty the column of ``suspension``.
    :param custom_status: custom status after the first checkpoint of the generation, as the column of the instance row
        has it. It is the only copy of an earlier generation's custom status until the instance row is written.
    :param awaits: what the instance waits for, as ``waits_column`` encodes it; "": nothing.
    :param unwritten: name of the blob with the rows that the last commit, a generation switch of several transactions,
        had not written at first (``unwritten_rows``). If ``complete`` is True, nothing reads the blob any more.
    :param timestamp: time of the last change, by the storage service; None in writes.
    """

    execution_id: str
    complete: bool
    checkpoint_completed: Timestamp | None = None
    etag: str = ""
    commit_id: str | None = None
    committed_rows: int | None = None
    consumed: tuple[str, ...] = ()
    suspension_stamp: Stamp | None = None
    arrived: Mapping[str, int] = field(default_factory=dict)
    ended: tuple[str, ...] = ()
    suspension: Suspension | None = None
    clears: bool = False
    custom_status: str | None = None
    awaits: str | None = None
    unwritten: str | None = None
    timestamp: Timestamp | None = None

    def committed(self, found: int) -> int:
        """Return the number of committed rows of the generation.

        The rows behind them come from an interrupted checkpoint. If .NET made the last commit, all rows count.

        :param found: number of rows of the generation in the table.
        """
        return found if self.committed_rows is None else self.committed_rows


def encode_sentinel(sentinel: Sentinel, *, instance_id: str) -> Entity:
    """Encode the row of the sentinel (the last row of a history), for an insert or a merge.

    The row has the column ``CheckpointCompletedTimestamp`` only if this write completes the checkpoint. Without the
    column, a merge keeps the stored time.

    :raises InputError: the sentinel has a ``commit_id``, and ``consumed`` names more than 800 messages.
    """
    properties: dict[str, Property | None] = {
        "ExecutionId": sentinel.execution_id,
        "IsCheckpointComplete": sentinel.complete,
    }
    if sentinel.complete:
        properties["CheckpointCompletedTimestamp"] = sentinel.checkpoint_completed
    if sentinel.commit_id is not None:
        if len(sentinel.consumed) > MAX_CONSUMED:
            raise InputError(
                f"{len(sentinel.consumed)} messages consumed across a generation switch: at most {MAX_CONSUMED}"
            )
        properties |= {
            "TaskHubCommit": sentinel.commit_id,
            "TaskHubBasis": _basis(sentinel.execution_id, sentinel.checkpoint_completed),
            "TaskHubRows": sentinel.committed_rows,
            "TaskHubConsumed": ",".join(sentinel.consumed),  # write "" too: a merge without it would keep the old list
        }
    if sentinel.suspension_stamp is not None:
        properties["TaskHubSteered"] = sentinel.suspension_stamp.text()
    if sentinel.arrived:
        properties["TaskHubArrived"] = ",".join(f"{process}:{last}" for process, last in sentinel.arrived.items())
    if sentinel.ended:
        properties["TaskHubEnded"] = ",".join(sentinel.ended[-MAX_ENDED:])
    if sentinel.clears or sentinel.suspension is not None:
        properties["TaskHubSuspension"] = _suspension_text(sentinel.suspension)
    if sentinel.custom_status is not None:
        properties["TaskHubCustomStatus"] = sentinel.custom_status
    if sentinel.awaits is not None:
        properties["TaskHubAwaits"] = sentinel.awaits
    if sentinel.unwritten is not None:
        properties["TaskHubUnwritten"] = sentinel.unwritten
    return Entity(partition_key=escape(instance_id), row_key=SENTINEL, properties=properties)


_TASKHUB_COLUMNS = (
    "TaskHubCommit",
    "TaskHubRows",
    "TaskHubConsumed",
    "TaskHubSteered",
    "TaskHubSuspension",
    "TaskHubCustomStatus",
    "TaskHubAwaits",
    "TaskHubUnwritten",
    "TaskHubArrived",
)
"""Columns of TaskHub that are out of date if .NET has committed after TaskHub."""


def decode_sentinel(entity: Entity) -> Sentinel:
    """Decode a sentinel that TaskHub or .NET wrote.

    :raises RecordError: the row is damaged. The error text names the instance.
    """
    columns = entity.properties
    execution_id, completed = columns.get("ExecutionId"), columns.get("CheckpointCompletedTimestamp")
    if not isinstance(execution_id, str) or not (completed is None or isinstance(completed, Timestamp)):
        raise RecordError(
            f"sentinel of {entity.partition_key!r}: ExecutionId is {json_values.shown(execution_id)}, "
            f"CheckpointCompletedTimestamp is {json_values.shown(completed)}"
        )
    current = columns.get("TaskHubBasis") == _basis(execution_id, completed)
    values = (columns.get(name) if current else None for name in _TASKHUB_COLUMNS)
    commit_id, rows, consumed, suspension_stamp, suspension, status, awaits, unwritten, arrived = values
    # A commit does not clear the column. Each commit has another id, so the blob of an earlier commit does not count.
    of_commit = isinstance(unwritten, str) and isinstance(commit_id, str) and is_of_commit(unwritten, commit_id)
    ended = columns.get("TaskHubEnded")
    return Sentinel(
        execution_id=execution_id,
        complete=columns.get("IsCheckpointComplete") is True,
        checkpoint_completed=completed,
        etag=entity.etag,
        commit_id=commit_id if isinstance(commit_id, str) else None,
        committed_rows=rows if isinstance(rows, int) and rows >= 0 else None,
        consumed=tuple(consumed.split(",")) if isinstance(consumed, str) and consumed else (),
        suspension_stamp=Stamp.parse(suspension_stamp),
        arrived=_arrived(arrived),
        ended=tuple(ended.split(",")) if isinstance(ended, str) and ended else (),
        suspension=_suspension(suspension),
        custom_status=status if isinstance(status, str) else None,
        awaits=awaits if isinstance(awaits, str) else None,
        unwritten=unwritten if isinstance(unwritten, str) and of_commit else None,
        timestamp=entity.timestamp,
    )


def _arrived(text: object) -> Mapping[str, int]:
    """Decode the column ``TaskHubArrived``. What is damaged counts as forgotten."""
    found = (_ARRIVED.fullmatch(part) for part in text.split(",")) if isinstance(text, str) else ()
    return {part[1]: int(part[2]) for part in found if part is not None}


def _suspension_text(suspension: Suspension | None) -> str:
    """Encode a suspension as JSON; None becomes "". The reason is cut until the JSON fits the column."""
    if suspension is None:
        return ""
    reason = suspension.reason
    while True:
        text = json_values.dumps([suspension.run, reason, suspension.by, suspension.at.ticks])
        over = utf16_bytes(text) - MAX_PROPERTY_BYTES
        if over <= 0 or not reason:
            return text
        reason = reason[: max(0, len(reason) - max(1, over // 2))]


def _suspension(text: object) -> Suspension | None:
    """Decode a suspension; None: the column is empty or damaged."""
    if not isinstance(text, str) or not text:
        return None
    try:
        run, reason, by, ticks = json.loads(text)
        return Suspension(run=str(run), reason=str(reason), by=str(by), at=Timestamp(int(ticks)))
    except (ValueError, TypeError, RecursionError):
        return None


def _basis(execution_id: str, completed: Timestamp | None) -> str:
    """Return the values of DurableTask's columns as one text. TaskHub stores this text with each commit. A commit of
    .NET changes DurableTask's columns, but not this text, so a difference shows that .NET committed later."""
    return f"{execution_id}@{'' if completed is None else completed}"
