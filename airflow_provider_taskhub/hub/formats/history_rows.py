"""Rows of the history table: one per event, and the sentinel whose ETag is the instance's lock.

Owns columns, Edm types and keys, both ways. Never reads or writes a table; spilled columns are ``payloads``' work.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
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
from airflow_provider_taskhub.hub.model import Stamp, Suspension
from airflow_provider_taskhub.storage.primitives import MAX_PROPERTY_BYTES, Entity, Property

SENTINEL = "sentinel"
"""Row key of the sentinel; sorts after every event's."""
INPUT_BYTES = 1024
"""UTF-8 bytes up to which a scheduling event keeps its input in the history, for the monitors."""
MAX_CONSUMED = 800
"""Message ids that one commit can remember: a String property holds 32,768 characters. Those that are deleted need not
be, but for actions', which may be sent twice."""

_RENAMED = {"Timestamp": "_Timestamp"}
"""Columns that are not called as their member is: a row has a Timestamp of its own."""
_KEEPING = (TaskScheduled, SubOrchestrationInstanceCreated)
_GENERIC = frozenset({"Data", "EventId", "IsPlayed", "_Timestamp", "EventType", "ExecutionId", "TaskHubMessageId"})

MAX_ENDED = 100
"""Earlier runs of an id that its sentinel lists."""


class RecordError(InputError):
    """A row that cannot be decoded; the text names the row and what is wrong with it."""


def row_key(ordinal: int) -> str:
    """Row key of an event by its place in the generation."""
    return f"{ordinal:016X}"


# --- events -------------------------------------------------------------------------------------------------------


def encode_event(event: HistoryEvent, *, instance_id: str, execution_id: str, ordinal: int) -> Entity:
    """The row of an event, before any column is spilled: null texts and numbers left out, null objects as ``null``.

    :param ordinal: place in the generation, from 0.
    """
    properties: dict[str, Property | None] = {}
    kind, columns = _COLUMNS[type(event)]
    for name, field, write in columns:
        value = getattr(event, field)
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
    if member.kind in json_values.OBJECTS and not member.ours:
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
"""Of each class of events: ``EventType``, and of each column its name, the event's field, and how it is written if not
as it is."""


def _rewound(event: GenericEvent) -> Mapping[str, Property | None]:
    columns: dict[str, Any] = {**(event.original or {}), "Reason": event.reason, "Name": event.name}
    return {name: value for name, value in columns.items() if value is not None}


def decode_event(entity: Entity) -> HistoryEvent:
    """The event of a row whose spilled columns have been restored.

    :raises RecordError: naming the row, when it is not one that DurableTask or TaskHub wrote.
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
            fields["instance"] = _own_instance(entity)  # a .NET row always has it, ours of old need not
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
    """What a rewind left of the event that it rewrote: every column but those that every row has."""
    rest = {name: value for name, value in columns.items() if name not in _GENERIC and value is not None}
    reason, name = rest.pop("Reason", None), rest.pop("Name", None)
    return {"reason": reason, "name": name, "original": rest or None}


# --- the sentinel -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentinel:
    """The row whose ETag is the instance's lock.

    :param execution_id: of the current generation.
    :param complete: the last transaction of its checkpoint was this one.
    :param checkpoint_completed: when the last complete checkpoint was written; for an incomplete commit the one that
        was loaded, so that a reader can tell ours from one of .NET's on top of it.
    :param commit_id, committed_rows, consumed: of our last commit: its id, the rows of the generation that count, the
        message ids consumed across a generation switch. When read from a sentinel that .NET has moved on
        since, they say nothing and are None and empty.
    :param steered: of the newest suspension or resume taken in any generation. None in writes: as it was.
    :param ended: names of earlier runs under this id, the newest last. They stay true whoever commits after us. In
        writes, none: the column keeps its value.
    :param suspension: with which a run begins that has no checkpoint yet. None in writes: the column keeps its value.
    :param clears: in writes, the column of that suspension is emptied.
    :param custom_status: the custom status that the generation's first checkpoint left, as the instance row's column
        has it. Until a checkpoint writes that column, nothing else tells what an earlier generation has set. None in
        writes: the column keeps its value.
    :param awaits: what the instance waited for after the last commit of TaskHub, as ``awaits_column`` writes it; "":
        nothing. None in writes: the column keeps its value.
    :param timestamp: the storage service's time of the last change; None in writes.
    """

    execution_id: str
    complete: bool
    checkpoint_completed: Timestamp | None = None
    etag: str = ""
    commit_id: str | None = None
    committed_rows: int | None = None
    consumed: tuple[str, ...] = ()
    steered: Stamp | None = None
    ended: tuple[str, ...] = ()
    suspension: Suspension | None = None
    clears: bool = False
    custom_status: str | None = None
    awaits: str | None = None
    timestamp: Timestamp | None = None

    def committed(self, found: int) -> int:
        """How many of the generation's rows count: as many as we committed; all of them if .NET was the last to commit.

        Rows behind them are of a half commit. :param found: rows of the generation in the table.
        """
        return found if self.committed_rows is None else self.committed_rows


def encode_sentinel(sentinel: Sentinel, *, instance_id: str) -> Entity:
    """The sentinel's row, for an insert or a merge; ``CheckpointCompletedTimestamp`` only when complete.

    :raises InputError: when more than 800 message ids are to be remembered.
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
            "TaskHubConsumed": ",".join(sentinel.consumed),  # "" too: a merge would keep the former ones
        }
    if sentinel.steered is not None:
        properties["TaskHubSteered"] = sentinel.steered.text()
    if sentinel.ended:
        properties["TaskHubEnded"] = ",".join(sentinel.ended[-MAX_ENDED:])
    if sentinel.clears or sentinel.suspension is not None:
        properties["TaskHubSuspension"] = _suspension_text(sentinel.suspension)
    if sentinel.custom_status is not None:
        properties["TaskHubCustomStatus"] = sentinel.custom_status
    if sentinel.awaits is not None:
        properties["TaskHubAwaits"] = sentinel.awaits
    return Entity(partition_key=escape(instance_id), row_key=SENTINEL, properties=properties)


_OURS = (
    "TaskHubCommit",
    "TaskHubRows",
    "TaskHubConsumed",
    "TaskHubSteered",
    "TaskHubSuspension",
    "TaskHubCustomStatus",
    "TaskHubAwaits",
)
"""Our columns that are out of date once .NET has committed after us."""


def decode_sentinel(entity: Entity) -> Sentinel:
    """The sentinel of a row of either side.

    :raises RecordError: naming the instance, when it is none.
    """
    columns = entity.properties
    execution_id, completed = columns.get("ExecutionId"), columns.get("CheckpointCompletedTimestamp")
    if not isinstance(execution_id, str) or not (completed is None or isinstance(completed, Timestamp)):
        raise RecordError(
            f"sentinel of {entity.partition_key!r}: ExecutionId is {json_values.shown(execution_id)}, "
            f"CheckpointCompletedTimestamp is {json_values.shown(completed)}"
        )
    ours = columns.get("TaskHubBasis") == _basis(execution_id, completed)
    values = (columns.get(name) if ours else None for name in _OURS)
    commit_id, rows, consumed, steered, suspension, status, awaits = values
    ended = columns.get("TaskHubEnded")
    return Sentinel(
        execution_id=execution_id,
        complete=columns.get("IsCheckpointComplete") is True,
        checkpoint_completed=completed,
        etag=entity.etag,
        commit_id=commit_id if isinstance(commit_id, str) else None,
        committed_rows=rows if isinstance(rows, int) and rows >= 0 else None,
        consumed=tuple(consumed.split(",")) if isinstance(consumed, str) and consumed else (),
        steered=Stamp.parse(steered),
        ended=tuple(ended.split(",")) if isinstance(ended, str) and ended else (),
        suspension=_suspension(suspension),
        custom_status=status if isinstance(status, str) else None,
        awaits=awaits if isinstance(awaits, str) else None,
        timestamp=entity.timestamp,
    )


def _suspension_text(suspension: Suspension | None) -> str:
    """JSON, with a reason that fits the column; "" for none."""
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
    """None when there is none, or it is damaged."""
    if not isinstance(text, str) or not text:
        return None
    try:
        run, reason, by, ticks = json.loads(text)
        return Suspension(run=str(run), reason=str(reason), by=str(by), at=Timestamp(int(ticks)))
    except (ValueError, TypeError, RecursionError):
        return None


def _basis(execution_id: str, completed: Timestamp | None) -> str:
    """What DurableTask's own columns say when we commit: .NET, which keeps ours as they are, changes it."""
    return f"{execution_id}@{'' if completed is None else completed}"
