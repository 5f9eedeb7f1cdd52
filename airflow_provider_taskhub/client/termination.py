"""Waits until nothing of a terminated instance runs any more: no activity, no child, and no child of a child."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_provider_taskhub.clock import Deadline
from airflow_provider_taskhub.engine import children
from airflow_provider_taskhub.engine.events import ExecutionTerminated, Status
from airflow_provider_taskhub.engine.identity import same_start
from airflow_provider_taskhub.hub.model import InstanceState, RecordState

if TYPE_CHECKING:
    from airflow_provider_taskhub.client.handle import InstanceHandle

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
"""Shortest and longest pause between two readings of a row, in seconds. The pause grows during a wait."""
CHILD_APPEARS = 30.0
"""Seconds to wait for the row of a child whose parent was terminated. After this time the child counts as ended."""


async def activities_end(instance: InstanceHandle, deadline: Deadline) -> None:
    """Wait until no activity with an activity record runs for an ended instance.

    :param instance: the instance that has ended.
    :param deadline: the time until which to wait.
    :raises TimeoutError: if an activity still runs at the deadline.
    """
    clock, pause = instance.hub.clock, FIRST_PAUSE
    while any(record.state in (RecordState.RUNNING, RecordState.CANCELLING) for record in await instance.activities()):
        deadline.check(f"instance {instance.id!r} has ended, but one of its activities still runs")
        await clock.sleep(deadline.shorten(pause))
        pause = min(LONGEST_PAUSE, pause * 2)


async def families_end(instance: InstanceHandle, deadline: Deadline, progress: Callable[[str], None]) -> None:
    """Wait until all children of a terminated instance have ended, and also the children of these children.

    If the termination was only for the instance itself, return at once.

    :param instance: the instance that was terminated.
    :param deadline: the time until which to wait.
    :param progress: called with the id of each child before the wait for that child begins.
    :raises TimeoutError: if a child has not ended at the deadline.
    """
    history, _ = await instance.readable_history()
    terminated = [event for event in history if isinstance(event, ExecutionTerminated)]
    if not any(event.taskhub_recurse for event in terminated):
        return
    for event in children.unfinished(history):
        progress(event.instance_id)
        child = instance.other(event.instance_id)
        row = await _child_row(child, deadline)
        if row is None or not (event.execution_id is None or same_start(row.execution_id, event.execution_id)):
            continue
        row = await child.wait(timeout=deadline.left())
        await activities_end(child, deadline)
        if row.status is Status.TERMINATED:
            await families_end(child, deadline, progress)


async def _child_row(child: InstanceHandle, deadline: Deadline) -> InstanceState | None:
    """Return the row of a child that may not have started yet.

    None: no row appeared within :data:`CHILD_APPEARS` seconds. The child was purged, or never started.
    """
    clock = child.hub.clock
    until = clock.monotonic() + CHILD_APPEARS
    while (row := await child.get(payloads=False)) is None and clock.monotonic() < until:
        deadline.check(f"child {child.id!r} has neither started nor ended")
        await clock.sleep(LONGEST_PAUSE)
    return row
