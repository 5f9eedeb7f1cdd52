"""Reads which calls of activities a history has, without reading the history itself.

A worker reads this before it begins an activity whose call may not be needed any more: a rewind may have undone the
call, or the history may have its answer already.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import EventType
from airflow_provider_taskhub.hub.formats.history_rows import SENTINEL
from airflow_provider_taskhub.hub.formats.keys import escape
from airflow_provider_taskhub.hub.model import HubNames
from airflow_provider_taskhub.storage.primitives import And, Compare, Or, Property, Store

_COLUMNS = ("EventType", "EventId", "ExecutionId", "TaskScheduledId", "TaskHubActionId")
_CALL = EventType.TaskScheduled.name
_ANSWERS = (EventType.TaskCompleted.name, EventType.TaskFailed.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """The calls of activities in the history of one generation.

    :param execution_id: the execution id of the generation.
    :param written: when the history was last written, by the clock of the store.
    :param actions: the identity of the action, by the number of each call; None if .NET wrote the call.
    :param answered: numbers of the calls that have an answer.
    """

    execution_id: str | None
    written: Timestamp | None
    actions: Mapping[int, str | None]
    answered: frozenset[int]


async def calls_of(store: Store, names: HubNames, instance_id: str) -> Calls | None:
    """Read the calls of an instance. The cost grows with the number of its calls.

    :returns: None if there is no history, if it was written during the reading, or if a checkpoint is under way or was
        cut off: some of its rows may be missing, and the others do not count yet.
    """
    key = escape(instance_id)
    kinds = Or(tuple(Compare("EventType", "eq", name) for name in (_CALL, *_ANSWERS)))
    sentinel = await store.get(names.history, key, SENTINEL)
    if sentinel is None or sentinel.properties.get("IsCheckpointComplete") is not True:
        return None
    execution_id = _text(sentinel.properties.get("ExecutionId"))
    actions: dict[int, str | None] = {}
    answered: set[int] = set()
    async for row in store.rows(names.history, And((Compare("PartitionKey", "eq", key), kinds)), select=_COLUMNS):
        columns = row.properties
        if columns.get("ExecutionId") != execution_id:
            continue  # an earlier, longer generation has left this row
        if columns.get("EventType") == _CALL:
            number = columns.get("EventId")
            if isinstance(number, int):
                actions[number] = _text(columns.get("TaskHubActionId"))
                answered.discard(number)
        elif isinstance(number := columns.get("TaskScheduledId"), int):
            answered.add(number)
    again = await store.get(names.history, key, SENTINEL)
    if again is None or again.etag != sentinel.etag:
        return None
    return Calls(
        execution_id=execution_id,
        written=sentinel.timestamp,
        actions=actions,
        answered=frozenset(answered),
    )


def _text(value: Property | None) -> str | None:
    return value if isinstance(value, str) else None
