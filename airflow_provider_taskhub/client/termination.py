"""Terminates an instance, and waits until nothing of it runs any more: no activity, no child, no child of a child."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_provider_taskhub.clock import Deadline
from airflow_provider_taskhub.concurrency import gather_bounded
from airflow_provider_taskhub.engine import children, grace
from airflow_provider_taskhub.engine.events import (
    ExecutionStarted,
    ExecutionTerminated,
    HistoryEvent,
    OrchestrationInstance,
    OrchestratorStarted,
    Status,
    SubOrchestrationInstanceCreated,
    TaskCompleted,
    TaskFailed,
    TaskScheduled,
)
from airflow_provider_taskhub.engine.identity import generation_of, same_start
from airflow_provider_taskhub.engine.validation import grace_seconds
from airflow_provider_taskhub.errors import InstanceNotFound
from airflow_provider_taskhub.hub.formats.instance_rows import ended
from airflow_provider_taskhub.hub.formats.keys import escape
from airflow_provider_taskhub.hub.model import BEGINS_WITHIN, InstanceState, RecordState
from airflow_provider_taskhub.tags import FIRE_AND_FORGET

if TYPE_CHECKING:
    from airflow_provider_taskhub.client.handle import InstanceHandle

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
"""Shortest and longest pause between two readings of a row, in seconds. The pause grows during a wait."""
LONGEST_CLEAN_UP_PAUSE = 10.0
"""The longest pause, in seconds, while an instance may clean up. Airflow may wait for hundreds of instances at once."""
CHILDREN_AT_ONCE = 16
"""The largest number of children whose rows are read at the same time."""
CHILD_APPEARS = 30.0
"""Seconds to wait for the row of a child whose parent was terminated. After this time the child counts as ended."""


async def terminate(
    instance: InstanceHandle,
    row: InstanceState,
    reason: str,
    *,
    wait: bool,
    recurse: bool,
    grace: timedelta | None,
    timeout: timedelta | None,
    progress: Callable[[str], None] | None,
) -> InstanceState:
    """Terminate the run that ``row`` shows. If it has failed, end its activities and children that still run.

    Other parameters: ``InstanceHandle.terminate``.
    """
    failed = row.status is Status.FAILED
    stopped = failed or row.status is Status.TERMINATED
    left = await children_left(instance) if stopped and recurse else []
    if not row.status.is_final or (failed and await _has_running_activities(instance)):
        event = ExecutionTerminated(
            timestamp=instance.hub.clock.utc_now(),
            input=reason,
            taskhub_execution_id=row.execution_id,
            taskhub_recurse=(recurse and not failed) or None,
            taskhub_grace=None if failed else grace_seconds(grace),
            taskhub_left_over=failed or None,
        )
        await instance.hub.send(instance.hub.message_to(event, OrchestrationInstance(instance_id=instance.id)))
    deadline = Deadline(instance.hub.clock, timeout)
    for child in left:
        with suppress(InstanceNotFound):  # it was purged meanwhile
            await child.terminate(reason, wait=wait, grace=grace, timeout=deadline.left(), progress=progress)
    if not wait:
        return row
    longest = LONGEST_PAUSE if grace is None else LONGEST_CLEAN_UP_PAUSE
    if row.status.is_final:
        last = await instance.get() or row
    else:
        last = await end_of(instance, row.execution_id, deadline.left(), longest)
        if last.status is Status.FAILED and same_start(last.execution_id, row.execution_id):
            rest = deadline.left()  # it failed before a worker read the message
            return await terminate(
                instance, last, reason, wait=True, recurse=recurse, grace=grace, timeout=rest, progress=progress
            )
    family = recurse and last.status is Status.TERMINATED
    await nothing_runs(instance, deadline, progress or (lambda child: None), recurse=family, longest=longest)
    return last


async def end_of(
    instance: InstanceHandle, run: str | None, timeout: timedelta | None, longest: float = LONGEST_PAUSE
) -> InstanceState:
    """Wait until an instance has ended. Other parameters and errors: ``InstanceHandle.wait``.

    :param run: the execution id of the run to wait for. The wait also ends when another run has the same instance id.
        None: wait for the run that the instance has.
    """
    hub = instance.hub
    deadline = Deadline(hub.clock, timeout)
    waited = "" if timeout is None else f" after {round(timeout.total_seconds(), 1):g} s"
    pause = FIRST_PAUSE
    async with hub.store.subscribe(ended(hub.names, escape(instance.id))) as changed:
        while True:
            row = await instance._existing()
            if row.status.is_final or (run is not None and not same_start(row.execution_id, run)):
                return await instance.get() or row
            deadline.check(f"instance {instance.id!r} is {row.status}{waited}")
            await changed(deadline.shorten(pause))
            pause = min(longest, pause * 1.5)


async def children_left(instance: InstanceHandle) -> list[InstanceHandle]:
    """Return those children of a failed or terminated instance that run or have failed."""
    history, _ = await instance.readable_history()
    return await _children(instance, history, lambda status: status is Status.FAILED or not status.is_final)


async def something_runs(instance: InstanceHandle, status: Status) -> bool:
    """Return True if an activity or a child of a failed or terminated instance still runs.

    After a failure, activities and children go on. After a termination with children, the children and their children
    may still clean up.

    :param status: the instance's status.
    """
    if status is Status.FAILED:
        if await _has_running_activities(instance):
            return True
        left = await children_left(instance)
    else:
        history, _ = await instance.readable_history()
        if not _ends_children(history):
            return False
        left = await _children(instance, history, lambda status: status is not Status.COMPLETED)
    for child in left:
        with suppress(InstanceNotFound):
            if await child.runs_on():
                return True
    return False


async def _has_running_activities(instance: InstanceHandle) -> bool:
    return any(record.runs for record in await instance.activities())


async def was_asked_to_clean_up(instance: InstanceHandle) -> bool:
    """Return whether somebody has asked the instance to end and has given time for a clean-up."""
    history, _ = await instance.readable_history()
    return grace.found(history) is not None


def _ends_children(history: Sequence[HistoryEvent]) -> bool:
    """Return whether the instance of this history was terminated with its children."""
    request = grace.found(history)
    terminated = any(event.taskhub_recurse for event in history if isinstance(event, ExecutionTerminated))
    return terminated or (request is not None and request.recurse)


async def _children(
    instance: InstanceHandle, events: Sequence[HistoryEvent], wanted: Callable[[Status], bool]
) -> list[InstanceHandle]:
    """Return the children of an instance whose status is wanted, without those for fire and forget.

    :param events: the events that created the children. Others are ignored.
    """
    created = [
        event
        for event in events
        if isinstance(event, SubOrchestrationInstanceCreated) and FIRE_AND_FORGET not in (event.tags or {})
    ]
    hub = instance.hub
    rows = await gather_bounded(lambda event: hub.instance(event.instance_id), created, limit=CHILDREN_AT_ONCE)
    return [
        instance.other(row.instance_id)
        for event, row in zip(created, rows, strict=True)
        if row is not None and same_start(row.execution_id, event.taskhub_action_id) and wanted(row.status)
    ]


async def nothing_runs(
    instance: InstanceHandle,
    deadline: Deadline,
    progress: Callable[[str], None],
    *,
    recurse: bool,
    longest: float = LONGEST_PAUSE,
) -> None:
    """Wait until nothing of an ended instance runs any more, and no activity of it can begin.

    An activity begins at most :data:`BEGINS_WITHIN` after its worker has seen the instance open. So no activity begins
    later than this time after the end of the instance. Then the records show all activities with a record that still
    run.

    :param instance: the instance that has ended.
    :param deadline: the time until which to wait.
    :param progress: called with the id of each child before the wait for that child begins.
    :param recurse: True: if the instance was terminated, wait for its children too, and for the children of these.
    :param longest: the longest pause between two readings of a child's row, in seconds.
    :raises TimeoutError: if something still runs at the deadline.
    """
    ended = [one async for one in _family(instance, deadline, progress, longest, recurse=recurse)]
    if any(open_calls for _, open_calls in ended):
        await instance.hub.clock.sleep(deadline.shorten(BEGINS_WITHIN.total_seconds()))
        deadline.check(f"instance {instance.id!r} has ended, but one of its activities may still begin")
    for one, _ in ended:
        await _activities_end(one, deadline)


async def _activities_end(instance: InstanceHandle, deadline: Deadline) -> None:
    """Wait until no activity with an activity record runs for an ended instance."""
    clock, pause = instance.hub.clock, FIRST_PAUSE
    while any(record.state in (RecordState.RUNNING, RecordState.CANCELLING) for record in await instance.activities()):
        deadline.check(f"instance {instance.id!r} has ended, but one of its activities still runs")
        await clock.sleep(deadline.shorten(pause))
        pause = min(LONGEST_PAUSE, pause * 2)


async def _family(
    instance: InstanceHandle,
    deadline: Deadline,
    progress: Callable[[str], None],
    longest: float,
    *,
    recurse: bool,
    failed: bool = False,
) -> AsyncIterator[tuple[InstanceHandle, bool]]:
    """Yield an ended instance, and all its children as they end, and also the children of these children.

    If the termination was only for the instance itself, its children are not waited for.

    :param failed: True if the instance is a failed child, and its parent or an instance above that was terminated.
    :returns: each instance, and True if it has, or perhaps has, an activity without an answer.
    """
    history, unreadable = await instance.readable_history()
    yield instance, bool(unreadable) or _may_have_open_calls(history)
    if not (recurse and (failed or _ends_children(history))):
        return
    for event in children.unfinished(history, cancelled=True):
        progress(event.instance_id)
        child = instance.other(event.instance_id)
        row = await _child_row(child, deadline)
        if row is None or not (event.execution_id is None or same_start(row.execution_id, event.execution_id)):
            continue
        row = await child.wait(timeout=deadline.left(), longest=longest)
        fails = row.status is Status.FAILED
        recurse = fails or row.status is Status.TERMINATED
        async for one in _family(child, deadline, progress, longest, recurse=recurse, failed=fails):
            yield one
    for child in await _children(instance, children.failed(history), lambda status: status is Status.FAILED):
        async for one in _family(child, deadline, progress, longest, recurse=True, failed=True):
            yield one


def _may_have_open_calls(history: Sequence[HistoryEvent]) -> bool:
    """Return False if each call of an activity has an answer. The calls of earlier generations are not in the history.

    If an instance was terminated and its history could not be read, its new history has only the episode of the
    termination, and the calls are not known.
    """
    started = next((event for event in history if isinstance(event, ExecutionStarted)), None)
    terminated = any(isinstance(event, ExecutionTerminated) for event in history)
    episodes = sum(isinstance(event, OrchestratorStarted) for event in history)
    first = started is not None and generation_of(started.instance.execution_id or "") == 0
    whole = first and episodes > terminated
    calls = {event.event_id for event in history if isinstance(event, TaskScheduled)}
    answers = {event.task_scheduled_id for event in history if isinstance(event, TaskCompleted | TaskFailed)}
    return not whole or bool(calls - answers)


async def _child_row(child: InstanceHandle, deadline: Deadline) -> InstanceState | None:
    """Return the row of a child that may not have started yet.

    :returns: None if no row appeared within :data:`CHILD_APPEARS` seconds. The child was purged, or never started.
    :raises TimeoutError: if the row is missing at the deadline.
    """
    clock = child.hub.clock
    until = clock.monotonic() + CHILD_APPEARS
    while (row := await child.get(payloads=False)) is None and clock.monotonic() < until:
        deadline.check(f"child {child.id!r} has neither started nor ended")
        await clock.sleep(LONGEST_PAUSE)
    return row
