"""Terminates the instance of a task that waits for it no longer: the time limit is over, or no worker could run it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_taskhub.tags import OWNER_TAG
from airflow_provider_taskhub.triggers.grace import Confirmation
from airflow_provider_taskhub.triggers.outcome import EXECUTION_TIMEOUT, OVERDUE, terminate_owned
from airflow_provider_taskhub.triggers.reactions import FoundInstance, found

if TYPE_CHECKING:
    from datetime import timedelta

    from airflow_provider_taskhub.client import Client
    from airflow_provider_taskhub.hooks.taskhub import TaskHubHook
    from airflow_provider_taskhub.triggers.start_or_attach import StartRequest

_CONFIRM = 10.0
"""Seconds for which the Airflow worker waits until a terminated instance has ended, beside the time for its clean-up.
The time is short, because the task holds a worker slot in it."""


def named(orchestrator: str, instance_id: str | None) -> str:
    """Return how the errors of a task name its instance."""
    return f"orchestration {orchestrator!r} (instance {instance_id})"


def end_overdue(hook: TaskHubHook, request: StartRequest, generation: int | None) -> str:
    """Terminate the instance of a try whose time limit was over before the task could defer.

    :param hook: opens the client of the hub.
    :param request: what the try wanted to start.
    :param generation: the generation of the instance; None: the try has started nothing.
    :returns: the text of the task's error.
    """
    if generation is None:
        return f"orchestration {request.orchestrator!r}: {OVERDUE}; nothing was started"
    instance_id = request.instance_id or request.task.instance_id(generation)

    async def use(client: Client) -> str:
        state = await client.get(instance_id, payloads=False)
        mine = state is not None and found(state, request.task, generation) is FoundInstance.LIVE
        owner = (state.tags or {}).get(OWNER_TAG) if state is not None and mine else request.task.owner
        async with within:
            return await terminate_owned(client, instance_id, owner, EXECUTION_TIMEOUT, within=within)

    within = Confirmation(_CONFIRM)
    try:
        result = hook.run(use)
    except TimeoutError:
        result = str(within)
    except Exception as error:  # an error of the hub; if no try follows, the sweep terminates the instance
        result = f"cannot terminate: {type(error).__name__}: {error}"
    return f"{named(request.orchestrator, instance_id)}: {OVERDUE}; {result}"


def terminate(
    hook: TaskHubHook, instance_id: str, owner: str, why: str, log: Any, *, wait: bool = False, clean_up: bool = True
) -> timedelta | None:
    """Terminate the instance if it has not ended and has this owner tag.

    :param hook: opens the client of the hub.
    :param instance_id: the instance.
    :param owner: the owner tag that the instance must have.
    :param why: the reason of the termination.
    :param log: the task's logger. An error of the hub is written there.
    :param wait: True: wait for its end, but not longer than :data:`_CONFIRM` seconds and the time for its clean-up.
    :param clean_up: False: do not wait if the instance may clean up.
    :returns: the time for its clean-up; None: it has none, or it was not terminated.
    """

    async def use(client: Client) -> str:
        async with within:
            return await terminate_owned(client, instance_id, owner, why, within=within, wait=wait, clean_up=clean_up)

    within = Confirmation(_CONFIRM if wait else None)
    try:
        log.warning("instance %s: %s", instance_id, hook.run(use))
    except TimeoutError:
        log.warning("instance %s: %s", instance_id, within)
    except Exception as error:
        log.error("instance %s could not be terminated: %s", instance_id, error)
    return within.grace
