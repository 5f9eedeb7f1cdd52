"""Suspends and resumes the children of an instance, the children of these, and so on, one level after the other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_provider_taskhub.client.termination import CHILDREN_AT_ONCE, FIRST_PAUSE, LONGEST_PAUSE
from airflow_provider_taskhub.clock import Deadline
from airflow_provider_taskhub.concurrency import gather_bounded
from airflow_provider_taskhub.engine import children
from airflow_provider_taskhub.engine.events import OrchestrationInstance, Status
from airflow_provider_taskhub.engine.identity import same_start
from airflow_provider_taskhub.hub.history.load import request_to_end
from airflow_provider_taskhub.hub.model import InstanceState

if TYPE_CHECKING:
    from airflow_provider_taskhub.client.handle import InstanceHandle

SUSPENDED_WITHIN = timedelta(minutes=1)
"""How long a suspend with ``recurse`` takes at most, unless its caller says otherwise."""


async def suspend_children(
    instance: InstanceHandle, suspend: Callable[[InstanceHandle], Awaitable[None]], timeout: timedelta | None
) -> None:
    """Suspend the descendants of an instance for which a suspension is stored, and wait until all are suspended.

    An instance that is suspended starts no more children. So its children are looked for after that. What cleans up
    after a terminate, or was cancelled by its parent, cannot be suspended, and is not waited for.

    :param suspend: stores the suspension of one instance; does nothing if the instance has ended.
    :param timeout: the longest time that this may take; None: no limit.
    :raises TimeoutError: if one of the instances is not suspended after ``timeout``.
    """
    deadline = Deadline(instance.hub.clock, timeout)

    async def suspended(one: InstanceHandle) -> None:
        async def reached(row: InstanceState | None) -> bool:
            return row is None or row.is_held or row.status.is_final or await _ends(one, row)

        await _until(one, reached, deadline)

    async def started(one: tuple[InstanceHandle, children.Child]) -> InstanceHandle:
        handle, child = one

        async def reached(row: InstanceState | None) -> bool:
            return row is not None and _is_run_of(row, child)

        await _until(handle, reached, deadline)
        await suspend(handle)
        return handle

    level: Sequence[InstanceHandle] = (instance,)
    while level:
        await gather_bounded(suspended, level, limit=CHILDREN_AT_ONCE)
        level = await gather_bounded(started, await _children(level), limit=CHILDREN_AT_ONCE)


async def resume_children(instance: InstanceHandle, resume: Callable[[InstanceHandle], Awaitable[None]]) -> None:
    """Resume the descendants of an instance that have begun and not ended.

    :param resume: stores the resumption of one instance; does nothing if the instance has ended.
    """

    async def resumed(one: tuple[InstanceHandle, children.Child]) -> InstanceHandle | None:
        handle, child = one
        row = await handle.get(payloads=False)
        if row is None or row.status.is_final or not _is_run_of(row, child):
            return None
        await resume(handle)
        return handle

    level: Sequence[InstanceHandle] = (instance,)
    while level:
        found = await gather_bounded(resumed, await _children(level), limit=CHILDREN_AT_ONCE)
        level = [handle for handle in found if handle is not None]


async def _children(level: Sequence[InstanceHandle]) -> list[tuple[InstanceHandle, children.Child]]:
    """Return the children that have not answered their parents, except those with the tag for fire and forget."""
    histories = await gather_bounded(lambda one: one.readable_history(), level, limit=CHILDREN_AT_ONCE)
    return [
        (parent.other(child.instance_id), child)
        for parent, (history, _) in zip(level, histories, strict=True)
        for child in children.unfinished(history)
    ]


def _is_run_of(row: InstanceState, child: children.Child) -> bool:
    return child.execution_id is None or same_start(row.execution_id, child.execution_id)


async def _ends(instance: InstanceHandle, row: InstanceState) -> bool:
    """Return whether an instance runs only to end, so that no suspension is stored for it."""
    if row.status is not Status.RUNNING:
        return False
    run = OrchestrationInstance(instance_id=instance.id, execution_id=row.execution_id)
    return await request_to_end(instance.hub.store, instance.hub.names, run) is not None


async def _until(
    instance: InstanceHandle, reached: Callable[[InstanceState | None], Awaitable[bool]], deadline: Deadline
) -> None:
    pause = FIRST_PAUSE
    while not await reached(row := await instance.get(payloads=False)):
        state = "has not begun" if row is None else f"is {row.status}"
        deadline.check(
            f"instance {instance.id!r} {state} and is not suspended yet, so not all children are suspended. What was "
            f"requested stays requested. See what it waits for with `taskhub instances show {instance.id}`, then "
            "suspend the instance with its children again"
        )
        await instance.hub.clock.sleep(deadline.shorten(pause))
        pause = min(LONGEST_PAUSE, pause * 2)
