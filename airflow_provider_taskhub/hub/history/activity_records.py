"""Activity records: one row of ``{Hub}Activities`` per attempt decides who runs a recorded activity.

Rows of an instance lie in one partition, ordered by generation, task and attempt, so that superseding an attempt and
claiming the next is one transaction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from airflow_provider_taskhub import codec
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import FailureDetails, OrchestrationInstance
from airflow_provider_taskhub.errors import InputError, NotFound, StorageError
from airflow_provider_taskhub.hub.formats.json_values import JsonObject, Kind
from airflow_provider_taskhub.hub.formats.keys import escape, history_folder, unescape
from airflow_provider_taskhub.hub.model import ActivityRecord, HubNames, RecordState
from airflow_provider_taskhub.hub.unreadable_rows import unreadable
from airflow_provider_taskhub.storage.primitives import (
    And,
    Compare,
    Entity,
    Property,
    PutBlob,
    RowOperation,
    RowVerb,
    Store,
    Transact,
)

INLINE_CHARACTERS = 30_000
UNREADABLE = "Unreadable"
"""Error type of a failure whose column cannot be read."""


class RecordUnreadable(StorageError):
    """A row of an attempt, or its result, is damaged or was written by a newer version: this worker cannot use it."""


def row_key(execution_id: str, task_id: int, attempt: int) -> str:
    return f"{escape(execution_id)}:{task_id:010d}:{attempt:06d}"


def results_of(instance: OrchestrationInstance) -> str:
    """What the names of all large results of one generation begin with."""
    return f"{history_folder(instance.instance_id)}/activity-{escape(instance.execution_id or '')}-"


def _blob_name(record: ActivityRecord) -> str:
    return f"{results_of(record.instance)}{record.task_id:010d}-{record.attempt:06d}-Result.json.gz"


def result_blob(names: HubNames, record: ActivityRecord) -> PutBlob | None:
    """A result too large for its row, to be written before the row is."""
    if record.result is None or len(record.result) <= INLINE_CHARACTERS:
        return None
    return PutBlob(container=names.large_messages, name=_blob_name(record), data=codec.Packed(record.result))


async def result_of(store: Store, names: HubNames, entity: Entity) -> str | None:
    """The result that an attempt recorded, fetched if it is a blob.

    :raises NotFound: when the blob is gone. :raises RecordUnreadable: when it is damaged.
    """
    name = entity.properties.get("ResultBlobName")
    if not isinstance(name, str):
        return decode(entity).result
    try:
        result = await store.get_text(names.large_messages, name)
    except InputError as error:
        raise RecordUnreadable(f"result of activity row {entity.row_key}: blob {name!r}: {error}") from error
    if result is None:
        raise NotFound(f"result of activity row {entity.row_key}: blob {name!r} is gone")
    return result


def encode(record: ActivityRecord) -> Entity:
    """The row of an attempt; a result too large for a row is a blob (:func:`result_blob`)."""
    fits = record.result is None or len(record.result) <= INLINE_CHARACTERS
    columns: dict[str, Property | None] = {
        "ExecutionId": record.instance.execution_id or "",
        "TaskId": record.task_id,
        "ActionId": record.action_id,
        "Attempt": record.attempt,
        "Name": record.name,
        "State": str(record.state),
        "Worker": record.worker,
        "Executor": record.executor,
        "Claimed": record.claimed,
        "Ended": record.ended,
        "Progress": None if record.progress is None else float(record.progress),
        "Message": None if record.message is None else record.message[:2000],
        "ApplicationId": record.application_id,
        "JobGroup": record.job_group,
        "SparkUi": record.spark_ui,
        "Log": record.log,
        "Result": record.result if fits else None,
        "ResultBlobName": None if fits else _blob_name(record),
        "Failure": None if record.failure is None else _failure(record.failure),
    }
    return Entity(
        partition_key=escape(record.instance.instance_id),
        row_key=row_key(record.instance.execution_id or "", record.task_id, record.attempt),
        properties={name: value for name, value in columns.items() if value is not None},
    )


def _failure(failure: FailureDetails) -> str:
    """JSON that fits its column: a character of another alphabet takes six there."""
    message, stack = 8_000, 16_000
    while True:
        text = codec.dumps(
            {
                "type": failure.error_type[:1000],
                "message": failure.error_message[:message],
                "stack": (failure.stack_trace or "")[:stack],
                "final": failure.is_non_retriable,
            }
        )
        if len(text) <= INLINE_CHARACTERS:
            return text
        message, stack = message // 2, stack // 2


def decode(entity: Entity) -> ActivityRecord:
    """An attempt from its row. Never raises: one damaged row must not break a listing.

    A column that cannot be read counts as absent. A state that cannot be read is UNKNOWN, and a failure that cannot be
    read becomes a failure that says so.
    """
    columns = entity.properties
    state = _state(columns)
    claimed, ended, progress = columns.get("Claimed"), columns.get("Ended"), columns.get("Progress")
    return ActivityRecord(
        instance=OrchestrationInstance(
            instance_id=unescape(entity.partition_key), execution_id=_text(columns, "ExecutionId") or ""
        ),
        task_id=_number(columns, "TaskId"),
        action_id=_text(columns, "ActionId") or "",
        attempt=_number(columns, "Attempt"),
        name=_text(columns, "Name") or "",
        state=state,
        worker=_text(columns, "Worker") or "",
        executor=_text(columns, "Executor") or "",
        claimed=claimed if isinstance(claimed, Timestamp) else Timestamp(0),
        ended=ended if isinstance(ended, Timestamp) else None,
        progress=float(progress) if isinstance(progress, int | float) and math.isfinite(progress) else None,
        message=_text(columns, "Message"),
        application_id=_text(columns, "ApplicationId"),
        job_group=_text(columns, "JobGroup"),
        spark_ui=_text(columns, "SparkUi"),
        log=_text(columns, "Log"),
        result=_text(columns, "Result"),
        failure=_failure_of(entity) if state is RecordState.FAILED or "Failure" in columns else None,
    )


def _state(columns: Mapping[str, Property | None]) -> RecordState:
    text = _text(columns, "State")
    return RecordState(text) if text in tuple(RecordState) else RecordState.UNKNOWN


def _failure_of(entity: Entity) -> FailureDetails:
    try:
        kept = JsonObject(codec.loads(_text(entity.properties, "Failure") or "", what="Failure"), "Failure")
        return FailureDetails(
            error_type=kept.need("type", Kind.TEXT),
            error_message=kept.get("message", Kind.TEXT) or "",
            stack_trace=kept.get("stack", Kind.TEXT),
            is_non_retriable=kept.get("final", Kind.BOOL) or False,
        )
    except InputError as error:
        text = f"what it failed with cannot be read, activity row {entity.row_key}: {error}"
        return FailureDetails(error_type=UNREADABLE, error_message=text)


def _record(names: HubNames, entity: Entity) -> tuple[ActivityRecord, Entity]:
    """Decode a row; warn once if something in it cannot be read."""
    record, row = decode(entity), f"{entity.partition_key} {entity.row_key}"
    if record.state is RecordState.UNKNOWN:
        unreadable(
            names.activities, row, f"State is {entity.properties.get('State')!r}: of a newer version, or damaged"
        )
    elif record.failure is not None and record.failure.error_type == UNREADABLE:
        unreadable(names.activities, row, record.failure.error_message)
    return record, entity


def claim(names: HubNames, record: ActivityRecord, *, supersede: Entity | None, now: Timestamp) -> Transact:
    """Insert an attempt; the silent one before it is marked lost in the same transaction, if it is still as seen."""
    rows = [RowOperation(verb=RowVerb.INSERT, entity=encode(record))]
    if supersede is not None:
        lost = encode(replace(decode(supersede), state=RecordState.LOST, ended=now))
        rows.append(RowOperation(verb=RowVerb.REPLACE, entity=lost, etag=supersede.etag))
    return Transact(table=names.activities, rows=tuple(rows))


def update(names: HubNames, record: ActivityRecord, etag: str) -> Transact:
    """A heartbeat, progress or the outcome: refused (Conflict) once somebody cancelled or superseded the attempt."""
    row = RowOperation(verb=RowVerb.REPLACE, entity=encode(record), etag=etag)
    return Transact(table=names.activities, rows=(row,))


async def attempts(
    store: Store, names: HubNames, instance: OrchestrationInstance, task_id: int
) -> list[tuple[ActivityRecord, Entity]]:
    """All attempts of one activity, first to last."""
    key, execution_id = escape(instance.instance_id), instance.execution_id or ""
    within = And(
        (
            Compare("PartitionKey", "eq", key),
            Compare("RowKey", "ge", row_key(execution_id, task_id, 0)),
            Compare("RowKey", "le", row_key(execution_id, task_id, 999_999)),
        )
    )
    return [_record(names, entity) async for entity in store.rows(names.activities, within)]


async def newest(store: Store, names: HubNames, record: ActivityRecord) -> tuple[ActivityRecord, Entity] | None:
    """An attempt as its row says it now."""
    for found in await attempts(store, names, record.instance, record.task_id):
        if found[0].attempt == record.attempt:
            return found
    return None


async def of_instance(store: Store, names: HubNames, instance_id: str) -> list[tuple[ActivityRecord, Entity]]:
    """All attempts of an instance's recorded activities, every generation."""
    found = store.rows(names.activities, Compare("PartitionKey", "eq", escape(instance_id)))
    return [_record(names, entity) async for entity in found]


def _text(columns: Mapping[str, Property | None], name: str) -> str | None:
    value = columns.get(name)
    return value if isinstance(value, str) else None


def _number(columns: Mapping[str, Property | None], name: str) -> int:
    value = columns.get(name)
    return value if isinstance(value, int) else 0
