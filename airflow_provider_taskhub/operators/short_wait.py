"""Waits a moment in the Airflow worker for the end of an instance, before the task defers.

A short instance ends sooner than a deferral and a resume of the task would take.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_taskhub.errors import TaskHubError
from airflow_provider_taskhub.triggers.worker_wait import short_wait

if TYPE_CHECKING:
    from airflow_provider_taskhub.client import Client
    from airflow_provider_taskhub.codec import Timestamp

SHORT_WAIT = timedelta(seconds=1.5)
"""How long the Airflow worker waits before it defers a task that the triggerer can end, unless the user says it."""
_SLACK = 1.5
"""Seconds that the short wait is allowed to take longer if the hub answers slowly."""
_LOOK = 0.5
"""The longest pause between two readings of the instance in the short wait, in seconds."""


async def ends_soon(
    client: Client, instance_id: str, deadline: Timestamp | None, *, orchestrator: str, longest: timedelta, log: Any
) -> bool:
    """Wait a moment for the end of an instance.

    A wait of more than :data:`SHORT_WAIT` goes on only if a live worker of the hub knows the orchestrator. If none
    does, the trigger says so in the task's log, and ends the wait in time.

    :param client: a client of the hub.
    :param instance_id: the instance.
    :param deadline: the time by which the task must end; None: there is no time limit.
    :param orchestrator: the name of the instance's orchestrator.
    :param longest: how long to wait.
    :param log: the task's logger.
    :returns: True if the instance has ended. False also after an error of the hub: the trigger tries again, for a
        longer time.
    """
    from airflow_provider_taskhub.triggers.task_log import known

    try:
        if await _ends_within(client, instance_id, deadline, min(longest, SHORT_WAIT)):
            return True
        if longest <= SHORT_WAIT or not known(await client.admin.workers(), orchestrator):
            return False
        log.info("this Airflow worker waits up to %g s for the end of the instance", longest.total_seconds())
        return await _ends_within(client, instance_id, deadline, longest - SHORT_WAIT)
    except TaskHubError:
        return False


async def _ends_within(client: Client, instance_id: str, deadline: Timestamp | None, longest: timedelta) -> bool:
    """Wait for the end of an instance. :returns: False: it has not ended. :raises TaskHubError: as the client."""
    from airflow_provider_taskhub.clock import SYSTEM_CLOCK

    limit = short_wait(deadline - SYSTEM_CLOCK.utc_now() if deadline else None, longest)
    if not limit:
        return False
    try:
        async with asyncio.timeout(limit.total_seconds() + (0 if limit < longest else _SLACK)):
            await client.wait(instance_id, timeout=limit, longest=_LOOK)
    except TimeoutError:
        return False
    return True


async def log_progress(client: Client, instance_id: str, orchestrator: str, log: Any) -> None:
    """Write the lines about an instance into the task's log that the trigger writes after a deferral.

    :param client: a client of the hub.
    :param instance_id: the instance.
    :param orchestrator: the name of its orchestrator.
    :param log: the task's logger.
    """
    from airflow_provider_taskhub.triggers.task_log import TaskLog, served_by

    try:
        state = await client.get(instance_id, payloads=False)
        members, records = await client.admin.workers(), await client.instance(instance_id).shown_activities()
    except TaskHubError as error:
        log.warning("the progress of the instance cannot be read: %s", error)
        return
    log.info(served_by(members, orchestrator))
    if state is not None:
        for line in TaskLog().lines(state, records):
            log.info(line)
