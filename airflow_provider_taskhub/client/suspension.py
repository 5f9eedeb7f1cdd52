"""Finds the children of an instance that is to be suspended or resumed with its children."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_provider_taskhub.client.termination import (
    CHILDREN_AT_ONCE,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    child_row,
)
from airflow_provider_taskhub.clock import Deadline
from airflow_provider_taskhub.concurrency import gather_bounded
from airflow_provider_taskhub.engine import children
from airflow_provider_taskhub.engine.identity import same_start

if TYPE_CHECKING:
    from airflow_provider_taskhub.client.handle import InstanceHandle

SUSPENDED_WITHIN = timedelta(minutes=1)
"""How long a suspend with ``recurse`` waits by default until the instance and its children are suspended."""


async def until_suspended(instance: InstanceHandle, deadline: Deadline) -> None:
    """Wait until the row of an instance says that it is suspended or has ended. Then it starts no more children.

    :raises TimeoutError: if this is not so at the deadline.
    """
    pause = FIRST_PAUSE
    while (row := await instance.get(payloads=False)) is not None and not row.is_held and not row.status.is_final:
        deadline.check(
            f"instance {instance.id!r} is {row.status} and not suspended yet, so it may still start children, and its "
            "children are not all suspended. Its suspension is stored, and a worker carries it out: see what the "
            f"instance waits for with `taskhub instances show {instance.id}`, then suspend it again"
        )
        await instance.hub.clock.sleep(deadline.shorten(pause))
        pause = min(LONGEST_PAUSE, pause * 2)


async def open_children(instance: InstanceHandle, deadline: Deadline | None = None) -> list[InstanceHandle]:
    """Return the children of an instance that have not ended, but those with the tag for fire and forget.

    :param deadline: until when to wait for the row of a child that has not started yet; None: such a child is left out.
    :raises TimeoutError: if the row of a child is missing at the deadline.
    """
    hub = instance.hub
    history, _ = await instance.readable_history()

    async def found(child: children.Child) -> InstanceHandle | None:
        handle = instance.other(child.instance_id)
        row = await (hub.instance(handle.id) if deadline is None else child_row(handle, deadline))
        if row is None or row.status.is_final:
            return None
        if child.execution_id is not None and not same_start(row.execution_id, child.execution_id):
            return None
        return handle

    handles = await gather_bounded(found, children.unfinished(history), limit=CHILDREN_AT_ONCE)
    return [handle for handle in handles if handle is not None]
