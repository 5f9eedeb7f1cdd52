"""Cancels running activities whose instance has ended, or whose call the orchestrator has cancelled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum

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
from airflow_provider_taskhub.engine.registry import ActivityDefinition, Registry
from airflow_provider_taskhub.errors import Conflict, TaskCancelledError
from airflow_provider_taskhub.hub.admission.facts import SECOND
from airflow_provider_taskhub.hub.history import activity_records as records
from airflow_provider_taskhub.hub.history.load import sentinel_of
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import ActivityRecord, InstanceState, RecordState
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.storage.primitives import MAX_TRANSACTION_OPERATIONS, Entity, Transact

CALLS_AT_ONCE = 16
"""The largest number of cancelled calls of one instance for which this worker sends requests at the same time."""


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
        self, instance: OrchestrationInstance, calls: Mapping[int, TaskScheduled], *, withdraw: bool
    ) -> list[TaskScheduled]:
        """Mark the running attempts of cancelled calls as ``cancelling``. Their workers then end them.

        A call without a running attempt waits in a queue, perhaps for hours. If this worker knows that its activity has
        records, the record of its next attempt is written here, as cancelled. So no worker begins this attempt.

        :param instance: the generation that has made the calls.
        :param calls: the calls, by their numbers.
        :param withdraw: False: write no such records, because the instance has ended.
        :returns: the calls that have such a record. They can be answered.
        :raises StorageError: as for :meth:`cancel`.
        """
        hub = self._hub
        within = await records.of_calls(hub.store, hub.names, instance, min(calls), max(calls))
        attempts: defaultdict[int, list[tuple[ActivityRecord, Entity]]] = defaultdict(list)
        for one in within:
            attempts[one[0].task_id].append(one)
        waiting = [number for number, call in calls.items() if withdraw and self._waits(call, attempts[number])]
        withdrawn = set[int]()
        for at in range(0, len(waiting), MAX_TRANSACTION_OPERATIONS):
            some = waiting[at : at + MAX_TRANSACTION_OPERATIONS]
            rows = [row for number in some for row in self._withdrawal(instance, calls[number], attempts[number]).rows]
            with suppress(Conflict):  # a worker has begun one of them meanwhile: each is tried by itself
                await hub.store.execute(Transact(table=hub.names.activities, rows=tuple(rows)))
                withdrawn.update(some)

        async def cancel(number: int) -> bool:
            call, known = calls[number], attempts[number]
            for _ in range(records.TRIES):
                if not withdraw or not self._waits(call, known):
                    for one in known:
                        await records.ask_to_stop(hub.store, hub.names, one)
                    return withdraw and _is_withdrawn(call, known)
                with suppress(Conflict):
                    await hub.store.execute(self._withdrawal(instance, call, known))
                    return True
                known = await records.attempts(hub.store, hub.names, instance, number)
            raise Conflict(f"the attempts of call {number} were changed by others in each of {records.TRIES} tries")

        left = [number for number in calls if number not in withdrawn]
        ended = await gather_bounded(cancel, left, limit=CALLS_AT_ONCE)
        withdrawn.update(number for number, over in zip(left, ended, strict=True) if over)
        return [call for number, call in calls.items() if number in withdrawn]

    def _waits(self, call: TaskScheduled, attempts: Sequence[tuple[ActivityRecord, Entity]]) -> bool:
        """Return True if no attempt of a call runs, and it has no outcome, so that the call waits for its next attempt.

        Return False if this worker does not know that the activity has records, or if a lost attempt may have left
        something that still runs.
        """
        definition = self._activities.get(call.name)
        if definition is None or not definition.record:
            return False
        if any(one.runs or _left_work(one, definition) for one, _ in attempts):
            return False
        last = attempts[-1][0] if attempts else None
        undone = last is not None and last.state is not RecordState.UNKNOWN and not is_of(last, call)
        return last is None or last.state is RecordState.LOST or undone

    def _withdrawal(
        self,
        instance: OrchestrationInstance,
        call: TaskScheduled,
        attempts: Sequence[tuple[ActivityRecord, Entity]],
    ) -> Transact:
        """Return the write of the record of the next attempt, as cancelled."""
        now = self._hub.clock.utc_now()
        record = ActivityRecord(
            instance=instance,
            task_id=call.event_id,
            action_id=call.taskhub_action_id or "",
            attempt=attempts[-1][0].attempt + 1 if attempts else 1,
            name=call.name,
            state=RecordState(react_activity(ActivityState.QUEUED, ActivityHappening.CANCEL).state),
            worker="",
            executor="",
            claimed=now,
            ended=now,
        )
        return records.claim(self._hub.names, record, supersede=None)


def is_of(record: ActivityRecord, call: TaskScheduled) -> bool:
    """Return True if the attempt of a record belongs to a call.

    Equal numbers are not enough: after a rewind another call may have the same number.
    """
    return call.taskhub_action_id is None or record.action_id == call.taskhub_action_id


def _left_work(record: ActivityRecord, definition: ActivityDefinition) -> bool:
    """Return True if an attempt was lost, and a Spark Connect session or what it has begun elsewhere may still run."""
    begun = record.spark_session is not None or (definition.clean_up and record.saved is not None)
    return record.state is RecordState.LOST and begun


def _is_withdrawn(call: TaskScheduled, attempts: Sequence[tuple[ActivityRecord, Entity]]) -> bool:
    """Return True if an earlier try has written the record of the next attempt of a call, as cancelled."""
    last = attempts[-1][0] if attempts else None
    return last is not None and last.state is RecordState.CANCELLED and not last.worker and is_of(last, call)


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
