"""Ending activities that nobody waits for any more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum

from airflow_provider_taskhub.engine.identity import run_name, same_start
from airflow_provider_taskhub.engine.lifecycle import ActivityHappening, ActivityReaction, ActivityState, react_activity
from airflow_provider_taskhub.engine.registry import Registry
from airflow_provider_taskhub.errors import Conflict, NotFound
from airflow_provider_taskhub.hub.admission.facts import SECOND
from airflow_provider_taskhub.hub.history import activity_records as records
from airflow_provider_taskhub.hub.history.load import sentinel_of
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import ActivityRecord, RecordState
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.storage.primitives import Entity

CANCEL_TRIES = 6
"""Tries to ask the holder of an attempt to end it, against its heartbeats."""


class ActivityCancellation:
    """Asks the holders of running attempts of an instance that has ended to end them.

    Before the messages that ended it are deleted: whoever receives one again does it again. An attempt that is claimed
    after that looks for itself what became of its instance (:func:`fate_of`).
    """

    def __init__(self, hub: Hub, registry: Registry) -> None:
        self._hub, self._activities = hub, registry.activities

    def concerns(self, open_tasks: Mapping[int, str]) -> bool:
        """Whether an open activity has a record, or this worker does not have the activity.

        :param open_tasks: names of the scheduled activities without an answer, by the number of their action.
        """
        found = (self._activities.get(name) for name in open_tasks.values())
        return any(definition is None or definition.record for definition in found)

    async def cancel(self, instance_id: str, execution_id: str | None) -> None:
        """Ask it of every attempt of this start that still runs: the next one's are not to end.

        :param execution_id: of any of its generations. :raises StorageError: when some may not have been asked.
        """
        for record, entity in await records.of_instance(self._hub.store, self._hub.names, instance_id):
            if same_start(record.instance.execution_id, execution_id):
                await self._ask((record, entity))

    async def _ask(self, found: tuple[ActivityRecord, Entity] | None) -> None:
        hub = self._hub
        for _ in range(CANCEL_TRIES):
            if found is None:
                return
            record, entity = found
            if record.state is RecordState.UNKNOWN:
                return  # a newer version wrote it: only that version knows how to end it
            move = react_activity(ActivityState(record.state), ActivityHappening.CANCEL)
            if move.reaction is not ActivityReaction.ASK:
                return
            asked = replace(record, state=RecordState.CANCELLING)
            try:
                await hub.store.execute(records.update(hub.names, asked, entity.etag))
                return
            except (Conflict, NotFound):  # a heartbeat came between: once more, from what it wrote
                found = await records.newest(hub.store, hub.names, record)
        raise Conflict("the record of an attempt that is to be cancelled keeps changing")


class Fate(StrEnum):
    """What became of the instance that an activity is of."""

    OPEN = "open"
    ENDED = "ended"
    NOTHING = "nothing"  # is stored of this start of it: it was purged, or its first checkpoint was cut off


async def fate_of(hub: Hub, held: Delivery) -> Fate:
    """What is certain of the instance that an activity is of.

    A row that is missing, or is of another start, says little: a checkpoint writes it last, and of one that was cut
    off there are only work items, or they and the history. The sentinel lists the runs that have ended. It does not
    list those that .NET stored: another start's history says that this one has ended if it was committed after the work
    item had been put, by the storage service's times, of which a queue tells the second.

    :param held: its work item.
    """
    instance = held.message.instance
    row = await hub.instance(instance.instance_id)
    if row is not None and same_start(row.execution_id, instance.execution_id):
        return Fate.ENDED if row.status.is_final else Fate.OPEN
    sentinel = await sentinel_of(hub.store, hub.names, instance.instance_id)
    if sentinel is None:
        return Fate.NOTHING
    if run_name(instance.execution_id or "") in sentinel.ended:
        return Fate.ENDED
    if sentinel.timestamp is None or same_start(sentinel.execution_id, instance.execution_id):
        return Fate.OPEN
    return Fate.ENDED if held.inserted.ticks < sentinel.timestamp.ticks // SECOND * SECOND else Fate.OPEN
