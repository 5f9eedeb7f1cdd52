"""Cancels running activities whose instance has ended."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.engine.identity import run_name, same_start
from airflow_provider_taskhub.engine.registry import Registry
from airflow_provider_taskhub.hub.admission.facts import SECOND
from airflow_provider_taskhub.hub.history import activity_records as records
from airflow_provider_taskhub.hub.history.load import sentinel_of
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import InstanceState
from airflow_provider_taskhub.hub.queues.delivery import Delivery


class ActivityCancellation:
    """Asks workers to cancel activities that still run for an instance that has ended, but not if it has failed: a
    rewind of the failed instance takes their results, so they go on.

    The request is a mark in the activity record, a row in the store for each attempt; activities without a record are
    cancelled by ``processor``. Records are marked before the messages that ended the instance are deleted. If this
    worker dies in between, the messages are delivered again, and the next worker marks the records. An attempt that is
    claimed later checks by itself whether its instance has ended (:func:`fate_of`).

    :param registry: the activities of this worker.
    """

    def __init__(self, hub: Hub, registry: Registry) -> None:
        self._hub, self._activities = hub, registry.activities

    def concerns(self, open_tasks: Mapping[int, str], status: Status | None) -> bool:
        """Return True if an open activity has, or perhaps has, an activity record, so that :meth:`cancel` is needed.

        Of an activity that this worker does not have, it is unknown whether it has a record.

        :param open_tasks: names of the scheduled activities without a response, by the number of their action.
        :param status: with which status the run has ended; None: it has not ended, or that does not matter.
        """
        if status is Status.FAILED:
            return False
        found = (self._activities.get(name) for name in open_tasks.values())
        return any(definition is None or definition.record for definition in found)

    async def cancel(self, instance_id: str, execution_id: str | None) -> None:
        """Mark the running attempts of one run of the instance as ``cancelling``. Their workers then end them.

        Attempts of a later run of the same instance id go on.

        :param execution_id: the execution id of any generation of the run (``continue_as_new`` begins a generation).
            None: no attempt is marked.
        :raises StorageError: if the store fails, or if a record changes during each try. It is then unknown whether all
            attempts are marked.
        """
        for record, entity in await records.of_instance(self._hub.store, self._hub.names, instance_id):
            if same_start(record.instance.execution_id, execution_id):
                await records.ask_to_stop(self._hub.store, self._hub.names, (record, entity))


class Fate(StrEnum):
    """Whether the run that has scheduled an activity has ended, and whether it needs the activity."""

    OPEN = "open"
    SUSPENDED = "suspended"
    ANSWERED = "answered"
    """The history has the answer to the call of the activity. Only :mod:`begins` asks for this, and for UNDONE."""
    UNDONE = "undone"
    """A rewind has undone the call of the activity."""
    ENDED = "ended"
    FAILED = "failed"
    """The run has failed, so a rewind may open it again. Activities with a record that run go on; none begins."""
    NOTHING = "nothing"
    """Nothing is stored of the run: it was purged, or its first checkpoint was cut off."""


def fate_by_row(row: InstanceState | None, held: Delivery) -> Fate | None:
    """Return what the instance row says about the run that has scheduled an activity.

    :param held: the work item of the activity.
    :returns: None if the row is missing or belongs to another run. That proves nothing, because a checkpoint writes the
        row last.
    """
    if row is None or not same_start(row.execution_id, held.message.instance.execution_id):
        return None
    if row.status.is_final:
        return Fate.FAILED if row.status is Status.FAILED else Fate.ENDED
    return Fate.SUSPENDED if row.is_held else Fate.OPEN


async def fate_of(hub: Hub, held: Delivery) -> Fate:
    """Read from the store whether the run that has scheduled an activity has ended. The instance row decides if it
    belongs to this run, else the history.

    :param held: the work item of the activity.
    """
    fate = fate_by_row(await hub.instance(held.message.instance.instance_id), held)
    return fate or await fate_by_history(hub, held)


async def fate_by_history(hub: Hub, held: Delivery) -> Fate:
    """Read from the sentinel, the last row of the history, whether the run that has scheduled an activity has ended.

    The sentinel lists the ended runs.

    Runs that a .NET worker stored are not in the sentinel's list. Such a run has ended if the sentinel belongs to
    another run and was written after the work item was put into its queue. Both times are the storage service's own; a
    queue gives its time in whole seconds, so the time of the sentinel is cut to seconds too.

    :param held: the work item of the activity.
    """
    instance = held.message.instance
    sentinel = await sentinel_of(hub.store, hub.names, instance.instance_id)
    if sentinel is None:
        return Fate.NOTHING
    if run_name(instance.execution_id or "") in sentinel.ended:
        return Fate.ENDED
    if sentinel.timestamp is None or same_start(sentinel.execution_id, instance.execution_id):
        return Fate.OPEN
    return Fate.ENDED if held.first_put.ticks < sentinel.timestamp.ticks // SECOND * SECOND else Fate.OPEN
