"""Which attempt of which activity made an orchestration fail, so that a user finds its log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from airflow_provider_taskhub.engine.events import EventType, FailureDetails
from airflow_provider_taskhub.engine.failures import TASK_FAILED
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub.formats.keys import escape, history_folder
from airflow_provider_taskhub.hub.model import HubNames, InstanceState
from airflow_provider_taskhub.storage.primitives import And, Compare, Entity, Filter, Or, Store

MAX_DEPTH = 10
"""Levels of children that are followed, at most."""
_TASK_FAILED = (*TASK_FAILED, "TaskFailedException", "SubOrchestrationFailedException")  # the last two: .NET's


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAttempt:
    """An attempt that failed.

    :param name: of the activity. :param task_id: number of its TaskScheduled event. :param attempt: from 1.
    :param log: name of its log, for ``InstanceHandle.log``.
    """

    name: str
    task_id: int
    attempt: int
    log: str


async def failed_attempt(
    store: Store, names: HubNames, instance_id: str, get: Callable[[str], Awaitable[InstanceState | None]]
) -> FailedAttempt | None:
    """The last attempt of the activity that made an instance fail, or that made its child fail.

    None when no activity made it fail (the orchestrator raised an error of its own), or when the attempt has no log.

    :param get: reads an instance's row. Of a history only some columns of the current execution are read.
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
    """The failure of an activity or a child in a chain of causes."""
    while failure is not None and failure.error_type.rpartition(".")[2] not in _TASK_FAILED:
        failure = failure.inner_failure
    return failure


async def _failed(store: Store, names: HubNames, state: InstanceState, text: str | None) -> Entity | None:
    """The newest failure of a task with this text; the newest of all if no row has the text: it may lie in a blob."""
    newest = matching = None
    kinds = (EventType.TaskFailed, EventType.SubOrchestrationInstanceFailed)
    columns = ("EventType", "TaskScheduledId", "Reason")
    async for row in _rows(store, names, state, Or(tuple(map(_kind, kinds))), columns):
        newest = row
        if text is not None and row.properties.get("Reason") == text:
            matching = row
    return matching or newest


async def _logged(store: Store, names: HubNames, state: InstanceState, task_id: int) -> FailedAttempt | None:
    # the name that a worker gives to its log
    folder = f"{history_folder(state.instance_id)}/{state.execution_id or ''}/{task_id:06d}-"
    logs = await store.list_blobs(names.logs, folder)
    attempts = {int(log.name.removeprefix(folder).removesuffix(".log")): log.name for log in logs}
    if not attempts:
        return None
    name = await _scheduled(store, names, state, task_id, EventType.TaskScheduled, "Name")
    newest = max(attempts)
    return FailedAttempt(name=name or "", task_id=task_id, attempt=newest, log=attempts[newest])


async def _scheduled(
    store: Store, names: HubNames, state: InstanceState, task_id: int, kind: EventType, column: str
) -> str | None:
    """A column of the event that scheduled a task."""
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
