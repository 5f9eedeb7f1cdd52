"""Quarantine of stuck instances: an instance whose episode does not end goes to quarantine as a whole.

An episode is one run of an orchestrator. Quarantine is the table of messages that cannot be processed. The
code of such an instance does not run again until a person puts its messages back (``taskhub quarantine put-back``). The
instance can still be terminated.
"""

from __future__ import annotations

from airflow_provider_taskhub.hub.model import HubNames
from airflow_provider_taskhub.hub.queues import quarantine
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.storage.primitives import Store
from airflow_provider_taskhub.workers.orchestrations.loading import LoadedInstance, current_execution_id
from airflow_provider_taskhub.workers.orchestrations.sessions import Session
from airflow_provider_taskhub.workers.orchestrations.watchdog import Running


async def quarantine_stuck(running: Running, cause: str, store: Store, names: HubNames) -> None:
    """Put the messages of an episode that does not end into quarantine. The whole instance is then in quarantine.

    Call it on another thread than the worker's event loop, because the episode blocks that loop.

    A terminate, or the end of the time for a clean-up, stays in its queue. The worker that reads it next sees that the
    instance is in quarantine and terminates the instance without its code. If the batch has such messages only, a copy
    of the first one goes to quarantine, because without any message there the instance would not be in quarantine.

    :param running: the episode that does not end.
    :param cause: the text that quarantine keeps with each message.
    :param store: a store that the calling thread has opened for itself.
    :param names: the names of the hub's queues and tables.
    """
    ends = [held for held in running.batch if running.ends(held.message.event)]
    for held in [held for held in running.batch if held not in ends] or ends[:1]:
        item = quarantine.of_held(held, cause, stuck=running.execution_id)
        await quarantine.keep(store, names, item, None if held in ends else held.deletion_by_receipt())


async def terminates_if_stuck(
    session: Session[LoadedInstance], batch: list[Delivery], live: LoadedInstance
) -> list[Delivery] | None:
    """Return the terminates of a batch if its instance is in quarantine; move all its other messages to quarantine.

    A terminate, or the end of the time for a clean-up, is the only message that an instance in quarantine processes,
    because it runs none of the instance's code.

    :param live: the instance as it is stored.
    :returns: the terminates; None if the instance is not in quarantine. Nothing is moved then.
    """
    generation = current_execution_id(live.execution_id, batch)
    if generation is None or not await session.reader.is_quarantined(session.instance_id, generation):
        return None
    ends = [held for held in batch if live.execution.ends(held.message.event)]
    for held in batch:
        if held not in ends:
            item = quarantine.of_held(held, "its instance is in quarantine", stuck=generation)
            await session.reader.move_to_quarantine(held, item)
    return ends
