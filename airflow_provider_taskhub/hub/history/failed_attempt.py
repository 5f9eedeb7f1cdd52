"""Find the attempt of an activity that made an instance fail, so that a user can read the log of this attempt."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from airflow_provider_taskhub.engine.events import EventType, FailureDetails, OrchestrationInstance
from airflow_provider_taskhub.engine.failures import TASK_FAILED, chain
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub.formats.keys import escape, log_prefix, parts_of_log
from airflow_provider_taskhub.hub.model import HubNames, InstanceState
from airflow_provider_taskhub.storage.primitives import And, Compare, Entity, Filter, Or, Store

MAX_DEPTH = 10
"""How many levels of failed children are searched at most."""
_TASK_FAILED = (*TASK_FAILED, "TaskFailedException", "SubOrchestrationFailedException")  # the last two are .NET classes


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAttempt:
    """A failed attempt of an activity.

    :param name: name of the activity.
    :param task_id: number of the event TaskScheduled of the call.
    :param attempt: number of the attempt, from 1.
    :param log: name of the attempt's log, for ``InstanceHandle.log``.
    """

    name: str
    task_id: int
    attempt: int
    log: str


async def failed_attempt(
    store: Store, names: HubNames, instance_id: str, get: Callable[[str], Awaitable[InstanceState | None]]
) -> FailedAttempt | None:
    """Find the last attempt of the activity that made an instance fail. The activity may belong to a child.

    The function reads only some columns of the history of the current generation.

    :param get: reads the row of an instance.
    :returns: None if the orchestrator itself raised the error, if the attempt has no log, or if the search finds no
        failed activity.
    """
    for _ in range(MAX_DEPTH):
        state = await get(instance_id)
        if state is None:
            return None
        text = None
        if state.failure is not None:
            cause = _of_task(state.failure)
            if cause is None:
                return None
            text = cause.inner_failure.error_message if cause.inner_failure is not None else None
        row = await _failed(store, names, state, text)
        task_id = row.properties.get("TaskScheduledId") if row is not None else None
        if row is None or not isinstance(task_id, int):
            return None
        if row.properties.get("EventType") == EventType.TaskFailed.name:
            return await _logged(store, names, state, task_id)
        child = await _scheduled(store, names, state, task_id, EventType.SubOrchestrationInstanceCreated, "InstanceId")
        instance_id = child or ""
    return None


def _of_task(failure: FailureDetails | None) -> FailureDetails | None:
    """Return the first failure of an activity or child in a chain of inner failures; None: there is none."""
    return next((each for each in chain(failure) if each.error_type.rpartition(".")[2] in _TASK_FAILED), None)


async def _failed(store: Store, names: HubNames, state: InstanceState, text: str | None) -> Entity | None:
    """Return the newest history row of a failed activity or child whose column Reason is ``text``.

    If no row has this text, return the newest row of all failures, because the text may be stored in a blob.

    :param text: error message of the failure; None: not known.
    :returns: None if no activity or child has failed.
    """
    newest = matching = None
    kinds = (EventType.TaskFailed, EventType.SubOrchestrationInstanceFailed)
    columns = ("EventType", "TaskScheduledId", "Reason")
    async for row in _rows(store, names, state, Or(tuple(map(_kind, kinds))), columns):
        newest = row
        if text is not None and row.properties.get("Reason") == text:
            matching = row
    return matching or newest


async def _logged(store: Store, names: HubNames, state: InstanceState, task_id: int) -> FailedAttempt | None:
    instance = OrchestrationInstance(instance_id=state.instance_id, execution_id=state.execution_id)
    logs = await store.list_blobs(names.logs, log_prefix(instance, task_id))
    attempts = {parts_of_log(log.name)[2]: log.name for log in logs}
    if not attempts:
        return None
    name = await _scheduled(store, names, state, task_id, EventType.TaskScheduled, "Name")
    newest = max(attempts)
    return FailedAttempt(name=name or "", task_id=task_id, attempt=newest, log=attempts[newest])


async def _scheduled(
    store: Store, names: HubNames, state: InstanceState, task_id: int, kind: EventType, column: str
) -> str | None:
    """Read one column of the event that scheduled an activity or child; None: there is no such text."""
    found: str | None = None
    asked = And((_kind(kind), Compare("EventId", "eq", task_id)))
    async for row in _rows(store, names, state, asked, (column,)):
        value = row.properties.get(column)
        found = value if isinstance(value, str) else None
    return found


def _kind(kind: EventType) -> Filter:
    return Compare("EventType", "eq", kind.name)


def _rows(
    store: Store, names: HubNames, state: InstanceState, where: Filter, columns: tuple[str, ...]
) -> AsyncIterator[Entity]:
    within = And(
        (
            Compare("PartitionKey", "eq", escape(state.instance_id)),
            Compare("ExecutionId", "eq", state.execution_id or ""),
            where,
        )
    )
    return store.rows(names.history, within, select=columns)
