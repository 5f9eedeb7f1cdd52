"""Waiting until a terminated instance is really over: it, its activities, its children and theirs."""

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
"""Seconds between two looks of a wait, which grow from one to the other."""
CHILD_APPEARS = 30.0
"""Seconds within which a child whose parent was terminated has a row: it has started, or was ended before that."""


async def activities_end(instance: InstanceHandle, deadline: Deadline) -> None:
    """Wait until no recorded activity of an ended instance runs. :raises TimeoutError: at ``deadline``."""
    clock, pause = instance.hub.clock, FIRST_PAUSE
    while any(record.state in (RecordState.RUNNING, RecordState.CANCELLING) for record in await instance.activities()):
        deadline.check(f"instance {instance.id!r} has ended, but one of its activities still runs")
        await clock.sleep(deadline.shorten(pause))
        pause = min(LONGEST_PAUSE, pause * 2)


async def families_end(instance: InstanceHandle, deadline: Deadline, progress: Callable[[str], None]) -> None:
    """Wait until the children of a terminated instance have ended, and theirs.

    :param progress: called with the id of each child when its turn comes.
    :raises TimeoutError: when they have not by ``deadline``.
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
    """The row of a child that may be about to start; None: purged, no row came in :data:`CHILD_APPEARS`."""
    clock = child.hub.clock
    until = clock.monotonic() + CHILD_APPEARS
    while (row := await child.get(payloads=False)) is None and clock.monotonic() < until:
        deadline.check(f"child {child.id!r} has neither started nor ended")
        await clock.sleep(LONGEST_PAUSE)
    return row
