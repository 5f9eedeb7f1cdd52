"""Read and write activity records: rows of the table ``{Hub}Activities``, one for each attempt of an activity.

A worker *claims* an attempt when it inserts the row. Only one worker can insert the row, and this worker runs the
attempt. A row that is inserted as cancelled keeps all workers from the attempt. All rows of an instance have one
PartitionKey, so one transaction can mark a lost attempt and claim the next one. The RowKeys sort by the execution id of
the generation (one begins at the start, and one at each ``continue_as_new``), then by the call of the activity, then by
the attempt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from airflow_provider_taskhub import codec
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import (
    FailureDetails,
    OrchestrationInstance,
    TaskCompleted,
    TaskFailed,
    TaskScheduled,
)
from airflow_provider_taskhub.engine.lifecycle import ActivityHappening, ActivityReaction, ActivityState, react_activity
from airflow_provider_taskhub.errors import Conflict, InputError, NotFound, StorageError
from airflow_provider_taskhub.hub.formats.json_values import JsonObject, Kind
from airflow_provider_taskhub.hub.formats.keys import escape, history_folder, unescape
from airflow_provider_taskhub.hub.model import ActivityRecord, HubNames, RecordState
from airflow_provider_taskhub.hub.unreadable_rows import unreadable
from airflow_provider_taskhub.lineage import Lineage
from airflow_provider_taskhub.storage.primitives import (
    And,
    Compare,
    Entity,
    Or,
    Property,
    PutBlob,
    RowOperation,
    RowVerb,
    Store,
    Transact,
)

INLINE_CHARACTERS = 30_000
"""A longer result is stored in a blob. A String column of Azure holds 32,768 characters."""
TRIES = 6
"""How often a record is read and changed again at most, if its worker has changed it at the same time."""
NO_ROW = "W/\"datetime'2000-01-01T00%3A00%3A00.0000000Z'\""
"""An ETag that no row has, in the form that Azure takes."""
UNREADABLE = "Unreadable"
"""Error type of a failure whose column cannot be read."""


class RecordUnreadable(StorageError):
    """The row of an attempt, or its result, is damaged, or a newer version of TaskHub wrote it."""


def row_key(execution_id: str, task_id: int, attempt: int) -> str:
    return f"{escape(execution_id)}:{task_id:010d}:{attempt:06d}"


def results_of(instance: OrchestrationInstance) -> str:
    """Return the prefix of the names of the blobs with large results of all activities that one generation of an
    instance called."""
    return f"{history_folder(instance.instance_id)}/activity-{escape(instance.execution_id or '')}-"


def _blob_name(record: ActivityRecord) -> str:
    return f"{results_of(record.instance)}{record.task_id:010d}-{record.attempt:06d}-Result.json.gz"


def result_blob(names: HubNames, record: ActivityRecord) -> PutBlob | None:
    """Return the blob of a result that is too large for its row, else None. Write the blob before the row."""
    if record.result is None or len(record.result) <= INLINE_CHARACTERS:
        return None
    return PutBlob(container=names.large_messages, name=_blob_name(record), data=codec.Packed(record.result))


async def result_of(store: Store, names: HubNames, entity: Entity) -> str | None:
    """Read the result of an attempt, from its row or its blob.

    :param entity: the row of the attempt.
    :returns: JSON text; None if the attempt has no result.
    :raises NotFound: the blob does not exist.
    :raises RecordUnreadable: the blob is damaged.
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
    """Encode the row of an attempt. For a large result, the row has only the blob's name (:func:`result_blob`)."""
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
        "Renewed": record.renewed,
        "Ended": record.ended,
        "Progress": None if record.progress is None else float(record.progress),
        "Message": None if record.message is None else record.message[:2000],
        "ApplicationId": record.application_id,
        "JobGroup": record.job_group,
        "SparkSession": record.spark_session,
        "SparkUi": record.spark_ui,
        "Log": record.log,
        "Saved": record.saved,
        "Result": record.result if fits else None,
        "ResultBlobName": None if fits else _blob_name(record),
        "Failure": None if record.failure is None else _failure(record.failure),
        "Inlets": codec.dumps(record.lineage.inlets) if record.lineage.inlets else None,
        "Outlets": codec.dumps(record.lineage.outlets) if record.lineage.outlets else None,
    }
    return Entity(
        partition_key=escape(record.instance.instance_id),
        row_key=row_key(record.instance.execution_id or "", record.task_id, record.attempt),
        properties={name: value for name, value in columns.items() if value is not None},
    )


def _failure(failure: FailureDetails) -> str:
    """Encode a failure as JSON. Message and stack trace are cut until the JSON fits its column, because a non-ASCII
    character takes six characters in JSON."""
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
    """Decode the row of an attempt. The function never raises an error, so that a damaged row does not break a listing.

    A damaged column counts as missing. A damaged state becomes UNKNOWN. A damaged failure becomes a failure of the type
    :data:`UNREADABLE`.
    """
    columns = entity.properties
    state = _state(columns)
    claimed, ended, progress = columns.get("Claimed"), columns.get("Ended"), columns.get("Progress")
    renewed = columns.get("Renewed")
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
        renewed=renewed if isinstance(renewed, Timestamp) else None,
        ended=ended if isinstance(ended, Timestamp) else None,
        progress=float(progress) if isinstance(progress, int | float) and math.isfinite(progress) else None,
        message=_text(columns, "Message"),
        application_id=_text(columns, "ApplicationId"),
        job_group=_text(columns, "JobGroup"),
        spark_session=_text(columns, "SparkSession"),
        spark_ui=_text(columns, "SparkUi"),
        log=_text(columns, "Log"),
        saved=_text(columns, "Saved"),
        result=_text(columns, "Result"),
        failure=_failure_of(entity) if state is RecordState.FAILED or "Failure" in columns else None,
        lineage=Lineage(inlets=_uris(columns, "Inlets"), outlets=_uris(columns, "Outlets")),
    )


def _uris(columns: Mapping[str, Property | None], name: str) -> tuple[str, ...]:
    try:
        values = codec.loads(_text(columns, name) or "[]", what=name)
    except InputError:
        return ()
    return tuple(value for value in values if isinstance(value, str)) if isinstance(values, list) else ()


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
        text = f"the failure in activity row {entity.row_key} cannot be read: {error}"
        return FailureDetails(error_type=UNREADABLE, error_message=text)


def _record(names: HubNames, entity: Entity) -> tuple[ActivityRecord, Entity]:
    """Decode a row. Log a warning, once for each row, if its state or failure cannot be read."""
    record, row = decode(entity), f"{entity.partition_key} {entity.row_key}"
    if record.state is RecordState.UNKNOWN:
        unreadable(
            names.activities, row, f"State is {entity.properties.get('State')!r}: of a newer version, or damaged"
        )
    elif record.failure is not None and record.failure.error_type == UNREADABLE:
        unreadable(names.activities, row, record.failure.error_message)
    return record, entity


def moved(record: ActivityRecord, happening: ActivityHappening) -> ActivityRecord:
    """Return the record of an attempt to which something has happened, in the state that the table of
    :mod:`~airflow_provider_taskhub.engine.lifecycle` gives."""
    return replace(record, state=RecordState(react_activity(ActivityState(record.state), happening).state))


def claim(names: HubNames, record: ActivityRecord, *, supersede: Entity | None) -> Transact:
    """Return the transaction that inserts the row of an attempt, and so claims the attempt for a worker.

    :param supersede: row of the attempt before, whose worker sends no heartbeats any more. The same transaction marks
        the attempt before as lost, and fails if its row has changed since it was read. None: there is no such attempt.
    """
    rows = [RowOperation(verb=RowVerb.INSERT, entity=encode(record))]
    if supersede is not None:
        lost = encode(decode(supersede).lost())
        rows.append(RowOperation(verb=RowVerb.REPLACE, entity=lost, etag=supersede.etag))
    return Transact(table=names.activities, rows=tuple(rows))


def update(names: HubNames, record: ActivityRecord, etag: str) -> Transact:
    """Return the transaction that writes a heartbeat, progress or the outcome into the row of an attempt. The store
    refuses the transaction with Conflict if the attempt was cancelled, or if another worker claimed the next attempt.

    :param etag: ETag of the row after this worker's last write.
    """
    row = RowOperation(verb=RowVerb.REPLACE, entity=encode(record), etag=etag)
    return Transact(table=names.activities, rows=(row,))


async def attempts(
    store: Store, names: HubNames, instance: OrchestrationInstance, task_id: int
) -> list[tuple[ActivityRecord, Entity]]:
    """Read all attempts of one call of an activity, the first attempt first."""
    return await of_calls(store, names, instance, task_id, task_id)


async def of_calls(
    store: Store, names: HubNames, instance: OrchestrationInstance, first: int, last: int
) -> list[tuple[ActivityRecord, Entity]]:
    """Read all attempts of the calls of one generation with numbers from ``first`` to ``last``, both included."""
    execution_id = instance.execution_id or ""
    within = And(
        (
            Compare("PartitionKey", "eq", escape(instance.instance_id)),
            Compare("RowKey", "ge", row_key(execution_id, first, 0)),
            Compare("RowKey", "le", row_key(execution_id, last, 999_999)),
        )
    )
    return [_record(names, entity) async for entity in store.rows(names.activities, within)]


async def unchanged(store: Store, names: HubNames, record: ActivityRecord, etag: str) -> bool:
    """Return whether the row of an attempt still has this ETag. The read costs one request for one row."""
    key = row_key(record.instance.execution_id or "", record.task_id, record.attempt)
    found = await store.get(names.activities, escape(record.instance.instance_id), key)
    return found is not None and found.etag == etag


async def is_writable(store: Store, names: HubNames, record: ActivityRecord) -> bool:
    """Return True if the store takes writes to the row of an attempt now. The row is not changed.

    The write has an ETag that no row has, so a store that takes writes refuses it with Conflict.

    :raises Unavailable: if the store does not answer, or its file is locked.
    """
    return await takes_writes(store, update(names, record, NO_ROW))


async def takes_writes(store: Store, refused: Transact) -> bool:
    """Return True if the store takes writes now.

    :param refused: a write with :data:`NO_ROW`, which changes nothing.
    :raises Unavailable: if the store does not answer, or its file is locked.
    """
    try:
        await store.execute(refused)
    except (Conflict, NotFound):
        return True
    return False


async def newest(store: Store, names: HubNames, record: ActivityRecord) -> tuple[ActivityRecord, Entity] | None:
    """Read the row of an attempt again; None: the row does not exist."""
    for found in await attempts(store, names, record.instance, record.task_id):
        if found[0].attempt == record.attempt:
            return found
    return None


async def ask_to_stop(store: Store, names: HubNames, found: tuple[ActivityRecord, Entity] | None) -> None:
    """Mark an attempt that runs as ``cancelling``. Its worker then ends it. Do nothing if the attempt has ended.

    :param found: the record of the attempt and its row; None: the attempt has no record, and nothing is done.
    :raises Conflict: if the worker of the attempt changes the record during each of :data:`TRIES` tries. It is then
        unknown whether the attempt is marked.
    """
    for _ in range(TRIES):
        if found is None:
            return
        record, entity = found
        if record.state is RecordState.UNKNOWN:
            return  # a newer version of the package wrote the record, and only that version can end the attempt
        if react_activity(ActivityState(record.state), ActivityHappening.CANCEL).reaction is not ActivityReaction.ASK:
            return
        try:
            await store.execute(update(names, moved(record, ActivityHappening.CANCEL), entity.etag))
            return
        except (Conflict, NotFound):  # a heartbeat has changed the record meanwhile: read it and try again
            found = await newest(store, names, record)
    raise Conflict(f"the activity record was changed by others in each of {TRIES} tries to cancel the attempt")


def answer(
    call: TaskScheduled, now: Timestamp, *, result: str | None, failure: FailureDetails | None
) -> TaskCompleted | TaskFailed:
    """Return the event that tells an instance the outcome of an activity.

    :param call: the event that scheduled the activity.
    :param now: the time of the event.
    :param result: the result as JSON text.
    :param failure: why the activity has failed; None: it has succeeded.
    """
    number, action = call.event_id, call.taskhub_action_id
    if failure is None:
        return TaskCompleted(timestamp=now, task_scheduled_id=number, result=result, taskhub_action_id=action)
    return TaskFailed(
        timestamp=now,
        task_scheduled_id=number,
        reason=failure.error_message,
        failure=failure,
        taskhub_action_id=action,
    )


async def lineage(store: Store, names: HubNames, instance_id: str) -> Lineage:
    """Read the data that the completed activities of an instance have declared, of all its generations.

    The store sends only rows with a declaration, and only their columns about it.
    """
    declared = Or((Compare("Inlets", "gt", ""), Compare("Outlets", "gt", "")))
    within = And((Compare("PartitionKey", "eq", escape(instance_id)), declared))
    inlets: set[str] = set()
    outlets: set[str] = set()
    async for entity in store.rows(names.activities, within, select=("State", "Inlets", "Outlets")):
        if _state(entity.properties) is RecordState.COMPLETED:
            inlets.update(_uris(entity.properties, "Inlets"))
            outlets.update(_uris(entity.properties, "Outlets"))
    return Lineage(inlets=tuple(sorted(inlets)), outlets=tuple(sorted(outlets)))


async def of_instance(store: Store, names: HubNames, instance_id: str) -> list[tuple[ActivityRecord, Entity]]:
    """Read the attempts of all activities of an instance, in all its generations."""
    found = store.rows(names.activities, Compare("PartitionKey", "eq", escape(instance_id)))
    return [_record(names, entity) async for entity in found]


def _text(columns: Mapping[str, Property | None], name: str) -> str | None:
    value = columns.get(name)
    return value if isinstance(value, str) else None


def _number(columns: Mapping[str, Property | None], name: str) -> int:
    value = columns.get(name)
    return value if isinstance(value, int) else 0
