"""Asks for the place of an instance with a limit before its code runs, and frees the place when it has ended.

The module :mod:`airflow_provider_taskhub.hub.instance_places` has the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import structlog

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import ExecutionStarted, GenericEvent, OrchestrationInstance
from airflow_provider_taskhub.errors import StorageError
from airflow_provider_taskhub.hub.formats.message_envelope import encode
from airflow_provider_taskhub.hub.history.places import LimitKind, LimitState
from airflow_provider_taskhub.hub.history.waiting_instances import REWOUND, WaitingInstance
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.instance_places import InstancePlaces
from airflow_provider_taskhub.hub.partitions.hashing import partition_of
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.instance_limit import InstanceLimit, priority_of, turn
from airflow_provider_taskhub.workers.orchestrations.loading import LoadedInstance

log = structlog.get_logger(__name__)

OFTEN, SELDOM = 10.0, 60.0
"""Seconds between two looks for places that dead workers have left: while instances wait, and while none waits."""


class InstanceLimits:
    """The limits of instances, as this worker keeps them.

    :param serves: returns the partitions that this worker serves. It looks after the limits whose names belong to them.
    :param advanced: called after messages may have been put into control queues.
    :param met: called when an instance with a limit is met, and the last look has found no limit of instances.
    """

    def __init__(
        self,
        hub: Hub,
        *,
        serves: Callable[[], Collection[int]],
        advanced: Callable[[], None],
        met: Callable[[], None],
    ) -> None:
        self._hub, self._places, self._serves, self._advanced = hub, InstancePlaces(hub), serves, advanced
        self._met, self._known = met, False

    async def admit(self, live: LoadedInstance, held: Delivery) -> bool:
        """Return True if the instance of a message may run: it has no limit, or has a place.

        Else the instance waits, and a message puts it on when its turn comes: the start or the message of a rewind if
        ``held`` is one, so that it can be deleted.

        :param live: the instance as loaded.
        :param held: a message that admission has let into the next episode.
        :raises StorageError: if the store does not answer, or refuses the request.
        """
        event = held.message.event
        if isinstance(event, ExecutionStarted):
            limit = InstanceLimit.of(event.tags) if event.parent is None else None
            instance, due = event.instance, event.scheduled_start_time
            since, again = held.inserted if due is None else max(held.inserted, due), False
            tags: Mapping[str, str] | None = event.tags
            made: Timestamp | None = min(event.timestamp, held.inserted)  # a client's clock may be fast
        else:
            limit = InstanceLimit.of(live.tags) if live.parent is None and not live.has_place else None
            name = held.message.instance.instance_id
            instance, since, again = (
                OrchestrationInstance(instance_id=name, execution_id=live.execution_id),
                held.inserted,
                True,
            )
            tags, made = live.tags, None
        if limit is None:
            return True
        its_turn = REWOUND if again and priority_of(tags) >= 0 else turn(tags, since)
        if is_stored_whole(held):
            # This delivery has begun nothing, so it does not count.
            text = encode(replace(held.envelope, deliveries=held.deliveries - 1, waiting_since=None))
        else:
            text = self._wake(instance)
        waiting = WaitingInstance(instance=instance, text=text, since=since, turn=its_turn, again=again)
        admitted = await self._places.admit(limit, waiting, made)
        if not admitted:
            self._advanced()
        if not self._known:
            self._known = True
            self._met()
        return admitted

    def _wake(self, instance: OrchestrationInstance) -> str:
        """Return the text of a message that lets an instance go on."""
        event = GenericEvent(
            timestamp=self._hub.clock.utc_now(),
            data="a place of its limit is free",
            taskhub_execution_id=instance.execution_id,
        )
        return self._hub.message_to(event, OrchestrationInstance(instance_id=instance.instance_id)).text

    async def ended(self, live: LoadedInstance, instance: OrchestrationInstance) -> None:
        """Free the place of an instance that has ended. If the store does not answer, a later look frees it.

        :param instance: the instance, with the execution id of its generation.
        """
        limit = InstanceLimit.of(live.tags) if live.parent is None else None
        if limit is None:
            return
        try:
            await self._places.leave(limit, instance)
        except StorageError as error:
            log.info("place_not_freed", limit=limit.name, instance_id=instance.instance_id, error=str(error))
        self._advanced()

    async def look(self, found: Mapping[tuple[LimitKind, str], LimitState]) -> float | None:
        """Free the places that dead workers have left, and let the instances that wait for them begin.

        :param found: all limits of the hub.
        :returns: the seconds until the next look; None: no limit of instances has ever been used in this hub.
        :raises StorageError: if the store does not answer, or refuses the request.
        """
        limits = [state for (kind, _), state in found.items() if kind is LimitKind.INSTANCES]
        self._known = bool(limits)
        if not limits:
            return None
        served, waits = {*self._serves()}, False
        for state in limits:
            if partition_of(state.name, self._hub.info.partitions) in served:
                waits |= await self._places.look(state)
        self._advanced()
        return OFTEN if waits else SELDOM


def is_stored_whole(held: Delivery) -> bool:
    """Return True if an instance that waits keeps this message itself, so that it can be deleted from its queue: a
    start, or the message of a rewind. Other messages stay in the queue until the instance goes on."""
    event = held.message.event
    return isinstance(event, ExecutionStarted) or (isinstance(event, GenericEvent) and event.is_message)
