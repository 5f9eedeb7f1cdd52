"""The places of activities with a limit: rows of the hub's table of controls, one for each activity that may run.

``@app.activity(limit=2)`` lets two attempts run at once in the whole hub, so the activity has two places. An attempt
runs only while a place names it. Workers take, change and free a place under the ETag of its row. A place is held as
long as the activity record of its attempt says that the attempt runs. So a place does not outlive its attempt, whoever
dies, and it needs no renewal of its own.

The calls that wait are messages in a queue of this activity. A worker receives from this queue only while it sees a
free place. So the cost does not grow with the number of calls that wait.
"""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_taskhub.engine.events import OrchestrationInstance
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub.formats.keys import escape, unescape
from airflow_provider_taskhub.hub.history.activity_records import NO_ROW
from airflow_provider_taskhub.hub.model import ActivityRecord, HubNames
from airflow_provider_taskhub.storage.primitives import (
    And,
    Compare,
    Entity,
    Property,
    RowOperation,
    RowVerb,
    Store,
    Transact,
)

_PREFIX, _AFTER = "limit:", "limit;"
"""The partition keys of all places sort between these two texts."""
_DECLARED = "declared"
"""Row key of the row that says that the activity has a limit. The row keys of places are numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One of the places of an activity with a limit.

    :param activity: name of the activity.
    :param number: number of the place, from 0.
    :param held: whether an attempt has the place. The record of the attempt may say that the attempt has ended.
    :param instance: the instance of this attempt, with the execution id of its generation.
    :param task_id: number of the call.
    :param attempt: number of the attempt.
    :param worker: full name of the worker of the attempt.
    :param row: the row as it was read; None: there is no row yet.
    """

    activity: str
    number: int
    held: bool = False
    instance: OrchestrationInstance = OrchestrationInstance(instance_id="")
    task_id: int = 0
    attempt: int = 0
    worker: str = ""
    row: Entity | None = None

    def is_of_call(self, record: ActivityRecord) -> bool:
        """Return True if an attempt of the call of this record has the place."""
        mine, others = self.instance, record.instance
        same = (mine.instance_id, mine.execution_id or "") == (others.instance_id, others.execution_id or "")
        return self.held and same and self.task_id == record.task_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """An activity with a limit, as a worker has declared it.

    :param activity: name of the activity.
    :param places: how many attempts may run at once.
    """

    activity: str
    places: int


def _key(activity: str) -> str:
    return _PREFIX + escape(activity)


async def places_of(store: Store, names: HubNames, limit: Limit) -> list[Place]:
    """Read the places of an activity, in the order of their numbers. The cost is one query."""
    found = store.rows(names.controls, Compare("PartitionKey", "eq", _key(limit.activity)))
    rows = {row.row_key: row async for row in found}
    return [_decoded(limit.activity, number, rows.get(_row_key(number))) for number in range(limit.places)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitState:
    """An activity with a limit, and who has its places.

    :param activity: name of the activity.
    :param limit: how many attempts may run at once in the whole hub.
    :param holders: the places that attempts have.
    :param waiting: about how many calls wait for a place; None: it was not asked.
    """

    activity: str
    limit: int
    holders: tuple[Place, ...] = ()
    waiting: int | None = None

    @property
    def is_full(self) -> bool:
        """Whether no place is free. After the limit was lowered, places with higher numbers may still be held."""
        return sum(place.number < self.limit for place in self.holders) >= self.limit


async def states(store: Store, names: HubNames) -> dict[str, LimitState]:
    """Read all activities with a limit, and who has their places, by the names of the activities. Cost: one query."""
    within = And((Compare("PartitionKey", "ge", _PREFIX), Compare("PartitionKey", "lt", _AFTER)))
    found: dict[str, tuple[int, list[Place]]] = {}
    async for row in store.rows(names.controls, within):
        activity = unescape(row.partition_key.removeprefix(_PREFIX))
        limit, holders = found.get(activity, (0, []))
        if row.row_key == _DECLARED:
            count = row.properties.get("Limit")
            limit = count if isinstance(count, int) else 0
        elif row.row_key.isdecimal() and (place := _decoded(activity, int(row.row_key), row)).held:
            holders.append(place)
        found[activity] = limit, holders
    return {
        name: LimitState(activity=name, limit=limit, holders=tuple(holders)) for name, (limit, holders) in found.items()
    }


def declared(names: HubNames, limit: Limit) -> Transact:
    """Return the write that says that an activity has a limit."""
    row = Entity(partition_key=_key(limit.activity), row_key=_DECLARED, properties={"Limit": limit.places})
    return Transact(table=names.controls, rows=(RowOperation(verb=RowVerb.UPSERT_REPLACE, entity=row),))


def taken(names: HubNames, place: Place, record: ActivityRecord) -> Transact:
    """Return the write with which an attempt takes a place. The store refuses it with Conflict if another worker has
    changed the place.

    :param record: the record of the attempt, which may not be stored yet.
    """
    named = replace(
        place,
        held=True,
        instance=record.instance,
        task_id=record.task_id,
        attempt=record.attempt,
        worker=record.worker,
    )
    return written(names, named, place.row)


def freed(names: HubNames, place: Place) -> Transact:
    """Return the write that frees a place. The store refuses it with Conflict if the row has changed since the read."""
    return written(names, replace(place, held=False), place.row)


def refused(names: HubNames, place: Place) -> Transact:
    """Return a write of a place that the store refuses, and that shows whether the store takes writes."""
    return written(names, place, replace(place.row or Entity(partition_key="", row_key=""), etag=NO_ROW))


def _row_key(number: int) -> str:
    return f"{number:06d}"


def written(names: HubNames, place: Place, before: Entity | None) -> Transact:
    """Return the write of a place. The store refuses it with Conflict if the place was changed.

    :param before: the row as it was read; None: there is no row.
    """
    columns: dict[str, Property | None] = {
        "Held": place.held,
        "InstanceId": place.instance.instance_id,
        "ExecutionId": place.instance.execution_id or "",
        "TaskId": place.task_id,
        "Attempt": place.attempt,
        "Worker": place.worker,
    }
    row = Entity(partition_key=_key(place.activity), row_key=_row_key(place.number), properties=columns)
    if before is None:
        operation = RowOperation(verb=RowVerb.INSERT, entity=row)
    else:
        operation = RowOperation(verb=RowVerb.REPLACE, entity=row, etag=before.etag)
    return Transact(table=names.controls, rows=(operation,))


def _decoded(activity: str, number: int, row: Entity | None) -> Place:
    if row is None:
        return Place(activity=activity, number=number)
    columns = row.properties
    instance_id, execution_id = columns.get("InstanceId"), columns.get("ExecutionId")
    task_id, attempt, worker = columns.get("TaskId"), columns.get("Attempt"), columns.get("Worker")
    return Place(
        activity=activity,
        number=number,
        held=columns.get("Held") is True,
        instance=OrchestrationInstance(
            instance_id=instance_id if isinstance(instance_id, str) else "",
            execution_id=execution_id if isinstance(execution_id, str) else None,
        ),
        task_id=task_id if isinstance(task_id, int) else 0,
        attempt=attempt if isinstance(attempt, int) else 0,
        worker=worker if isinstance(worker, str) else "",
        row=row,
    )
