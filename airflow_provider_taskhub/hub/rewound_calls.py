"""The activities of an instance that is rewound: which of them have succeeded since it failed, or still run.

A failure of an instance does not stop its activities that run. Each writes its outcome into its activity record (the
row of an attempt), but the failed instance takes no answer. So a rewind keeps the calls of these activities. It sends
the answers of those that have ended, and the others answer when they end.

A worker may settle a work item at the same time, because it has just read that the instance has failed. It marks the
record as cancelled, or leaves it as lost, and nothing would answer the call. So the rewind changes each record after it
has opened the instance. Then either the worker finds the record changed, and reads the instance again; or the rewind
finds what the worker has written, and sends the work item again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from airflow_provider_taskhub.engine.events import (
    HistoryEvent,
    OrchestrationInstance,
    TaskScheduled,
)
from airflow_provider_taskhub.engine.lifecycle import ActivityHappening
from airflow_provider_taskhub.errors import Conflict, NotFound
from airflow_provider_taskhub.hub.history import activity_records as records
from airflow_provider_taskhub.hub.history.rewind_plan import open_calls
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import ActivityRecord, RecordState
from airflow_provider_taskhub.hub.queues.outgoing import outbound_message
from airflow_provider_taskhub.storage.primitives import Entity

Found = tuple[ActivityRecord, Entity]


async def last_attempts(
    hub: Hub, instance: OrchestrationInstance, calls: Iterable[TaskScheduled]
) -> dict[int, ActivityRecord]:
    """Read the last attempt of each call, by the number of the call. A call without an attempt is not in the result.

    :param instance: the instance, with the execution id of its generation.
    """
    return {number: record for number, (record, _) in (await _last(hub, instance, calls)).items()}


async def _last(hub: Hub, instance: OrchestrationInstance, calls: Iterable[TaskScheduled]) -> dict[int, Found]:
    numbers = {call.event_id for call in calls}
    if not numbers:
        return {}
    found = await records.of_calls(hub.store, hub.names, instance, min(numbers), max(numbers))
    return {record.task_id: (record, row) for record, row in found if record.task_id in numbers}


async def stop_undone(
    hub: Hub, past: Sequence[HistoryEvent], taken: Iterable[int], attempts: Mapping[int, ActivityRecord]
) -> None:
    """Ask the workers to stop the activities that run for calls that the rewind undoes.

    :param past: the history before the rewind.
    :param taken: the indexes of the events that the rewind undoes.
    :param attempts: the last attempt of each call without an answer.
    """
    undone = {event.taskhub_action_id for at in taken if isinstance(event := past[at], TaskScheduled)}
    for attempt in attempts.values():
        if attempt.state is RecordState.RUNNING and attempt.action_id in undone:
            await records.ask_to_stop(hub.store, hub.names, await records.newest(hub.store, hub.names, attempt))


async def answer_kept(hub: Hub, past: Sequence[HistoryEvent], instance: OrchestrationInstance) -> None:
    """Make sure that each call without an answer gets one. The instance must be open already.

    :param past: the history after the rewind: each of its calls without an answer was kept.
    :param instance: the instance, with the execution id of its generation.
    """
    calls = open_calls(past)
    found = await _last(hub, instance, calls.values())
    for call in calls.values():
        attempt = found.get(call.event_id)
        if attempt is not None and attempt[0].action_id == call.taskhub_action_id:
            await _answer(hub, call, attempt)


async def _answer(hub: Hub, call: TaskScheduled, attempt: Found) -> None:
    last: Found | None = attempt
    for _ in range(records.TRIES):
        if last is None:
            return  # the instance was purged
        record, row = last
        match record.state:
            case RecordState.COMPLETED | RecordState.FAILED:
                result = await records.result_of(hub.store, hub.names, row)
                event = records.answer(call, hub.clock.utc_now(), result=result, failure=record.failure)
                await hub.send(hub.message_to(event, record.instance, sender=record.instance))
                return
            case RecordState.UNKNOWN:
                return  # a newer version of the package wrote the record
        ended = record.state in (RecordState.LOST, RecordState.CANCELLED)
        changed = records.moved(record, ActivityHappening.WANTED) if ended else record
        try:
            await hub.store.execute(records.update(hub.names, changed, row.etag))
        except (Conflict, NotFound):  # its worker has changed the record: read it again
            last = await records.newest(hub.store, hub.names, record)
            continue
        if ended:
            await _send_again(hub, call, record)
        return
    what = f"activity {call.name!r} #{call.event_id}"
    raise Conflict(f"the record of {what} was changed by its worker in each of {records.TRIES} tries")


async def _send_again(hub: Hub, call: TaskScheduled, record: ActivityRecord) -> None:
    """Send the work item of a call again. If the first one still exists, the activity record lets only one run."""
    made = outbound_message(
        call,
        record.instance,
        names=hub.names,
        queue=hub.names.work_items,
        process=hub.process,
        sequence=hub.sequence(),
        sender=record.instance,
        now=hub.clock.utc_now(),
        activity_id=call.taskhub_action_id,
    )
    await hub.send(made)
