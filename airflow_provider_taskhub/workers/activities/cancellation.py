"""Cancels running activities whose instance has ended, or whose call the orchestrator has cancelled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import StrEnum

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.concurrency import gather_bounded
from airflow_provider_taskhub.engine.events import (
    EventSent,
    FailureDetails,
    HistoryEvent,
    OrchestrationInstance,
    Status,
    TaskScheduled,
)
from airflow_provider_taskhub.engine.identity import run_name, same_start
from airflow_provider_taskhub.engine.lifecycle import ActivityHappening, ActivityState, react_activity
from airflow_provider_taskhub.engine.registry import Registry
from airflow_provider_taskhub.errors import Conflict, TaskCancelledError
from airflow_provider_taskhub.hub.admission.facts import SECOND
from airflow_provider_taskhub.hub.history import activity_records as records
from airflow_provider_taskhub.hub.history.load import sentinel_of
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import ActivityRecord, InstanceState, RecordState
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.storage.primitives import Entity

CALLS_AT_ONCE = 16
"""The largest number of calls of one instance that are cancelled at the same time."""


class ActivityCancellation:
    """Asks workers to cancel activities that still run for an instance that has ended, but not if it has failed: a
    rewind of the failed instance takes their results, so they go on. Also those whose calls a live instance has
    cancelled.

    The request is a mark in the activity record, a row in the store for each attempt; activities without a record are
    cancelled by ``processor``. Records are marked before the messages that ended the instance are deleted. If this
    worker dies in between, the messages are delivered again, and the next worker marks the records. An attempt that is
    claimed later checks by itself whether it is still wanted (:func:`fate_of`).

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

    def calls(self, history: Iterable[HistoryEvent], open_tasks: Mapping[int, str]) -> set[int]:
        """Return the numbers of the cancelled calls without an answer whose activities have, or perhaps have, records.

        :param history: the events with the cancels, such as those of one episode.
        :param open_tasks: as for :meth:`concerns`.
        """
        calls = {
            event.taskhub_cancels or 0
            for event in history
            if isinstance(event, EventSent) and event.taskhub_cancels is not None
        }
        names = {number: open_tasks[number] for number in calls if number in open_tasks}
        return {number for number, name in names.items() if self.concerns({number: name}, None)}

    async def cancel(self, instance_id: str, execution_id: str | None) -> None:
        """Mark the running attempts of one run of the instance as ``cancelling``. Their workers then end them.

        Attempts of a later run of the same instance id go on.

        :param execution_id: the execution id of any generation of the run (``continue_as_new`` begins a generation).
            None: no attempt is marked.
        :raises StorageError: if the store fails, or if a record changes during each try. It is then unknown whether all
            attempts are marked.
        """
        for one in await records.of_instance(self._hub.store, self._hub.names, instance_id):
            if same_start(one[0].instance.execution_id, execution_id):
                await records.ask_to_stop(self._hub.store, self._hub.names, one)

    async def cancel_calls(
        self, instance: OrchestrationInstance, calls: Mapping[int, TaskScheduled]
    ) -> list[TaskScheduled]:
        """Mark the running attempts of cancelled calls as ``cancelling``. Their workers then end them.

        A call without an attempt waits in a queue, perhaps for hours. If this worker knows that its activity has
        records, the first record is written here, as cancelled. So no worker begins it.

        :param instance: the generation that has made the calls.
        :param calls: the calls, by their numbers.
        :returns: the calls that do not begin. They can be answered.
        :raises StorageError: as for :meth:`cancel`.
        """
        hub = self._hub
        within = await records.of_calls(hub.store, hub.names, instance, min(calls), max(calls))
        found: defaultdict[int, list[tuple[ActivityRecord, Entity]]] = defaultdict(list)
        for one in within:
            found[one[0].task_id].append(one)

        async def cancel(number: int) -> bool:
            call = calls[number]
            definition = self._activities.get(call.name)
            if not found[number] and definition is not None and definition.record:
                withdrawn = _withdrawn(instance, call, hub.clock.utc_now())
                with suppress(Conflict):  # a worker has begun an attempt meanwhile
                    await hub.store.execute(records.claim(hub.names, withdrawn, supersede=None))
                    return True
                found[number] = await records.attempts(hub.store, hub.names, instance, number)
            for one in found[number]:
                await records.ask_to_stop(hub.store, hub.names, one)
            return any(record.state is RecordState.CANCELLED and not record.worker for record, _ in found[number])

        ended = await gather_bounded(cancel, calls, limit=CALLS_AT_ONCE)
        return [call for call, over in zip(calls.values(), ended, strict=True) if over]


def _withdrawn(instance: OrchestrationInstance, call: TaskScheduled, now: Timestamp) -> ActivityRecord:
    """Return the record of a call that was cancelled before a worker began it."""
    return ActivityRecord(
        instance=instance,
        task_id=call.event_id,
        action_id=call.taskhub_action_id or "",
        attempt=1,
        name=call.name,
        state=RecordState(react_activity(ActivityState.QUEUED, ActivityHappening.CANCEL).state),
        worker="",
        executor="",
        claimed=now,
        ended=now,
    )


def failure_of_cancelled(call: TaskScheduled) -> FailureDetails:
    """Return the failure that tells an orchestrator that a call which it has cancelled has ended or does not begin."""
    text = f"activity {call.name!r} was cancelled by the orchestrator"
    return FailureDetails(error_type=TaskCancelledError.__name__, error_message=text, is_non_retriable=True)


class Fate(StrEnum):
    """Whether the run that has scheduled an activity has ended, and whether it needs the activity."""

    OPEN = "open"
    SUSPENDED = "suspended"
    ANSWERED = "answered"
    """The history has the answer to the call of the activity. Only :mod:`begins` asks for this, and for UNDONE."""
    UNDONE = "undone"
    """A rewind has undone the call of the activity."""
    CANCELLED = "cancelled"
    """The orchestrator has cancelled the call of the activity, and waits for the answer that says so."""
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
    row = await hub.instance(held.message.instance.instance_id)
    fate = fate_by_row(row, held)
    if fate in (Fate.OPEN, Fate.SUSPENDED) and await is_cancelled(hub, row, held):
        return Fate.CANCELLED
    return fate or await fate_by_history(hub, held)


async def is_cancelled(hub: Hub, row: InstanceState | None, held: Delivery) -> bool:
    """Return whether the orchestrator has cancelled the call of a work item.

    :param row: the instance row, newly read.
    """
    calls = await hub.cancelled_calls.of(row, held.message.instance.execution_id)
    return held.message.event.event_id in calls


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
