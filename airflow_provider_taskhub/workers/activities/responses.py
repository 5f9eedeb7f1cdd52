"""Ends a work item: sends the response to the instance of the activity, or deletes the work item without a response.

The response is a message in a control queue, or a value that is handed to the instance in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import (
    FailureDetails,
    GenericEvent,
    HistoryEvent,
    OrchestrationInstance,
    TaskScheduled,
)
from airflow_provider_taskhub.engine.failures import message_of
from airflow_provider_taskhub.errors import InputError, PayloadTooLarge, Throttled, Unavailable
from airflow_provider_taskhub.hub.formats.message_envelope import NO_ACTIVITY, Envelope, TaskMessage
from airflow_provider_taskhub.hub.history.activity_records import answer
from airflow_provider_taskhub.hub.history.purge import purge_activities
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.queues.delivery import LATEST, Delivery, LocalResponse
from airflow_provider_taskhub.hub.queues.outgoing import claimed
from airflow_provider_taskhub.retries import Retries, retry
from airflow_provider_taskhub.storage.primitives import Results, Step, Unit
from airflow_provider_taskhub.telemetry import Outage
from airflow_provider_taskhub.workers.activities.local_queues import LocalQueues
from airflow_provider_taskhub.workers.activities.work_items import WorkItems
from airflow_provider_taskhub.workers.executors.attempt_values import ActivityOutcome

log = structlog.get_logger(__name__)

T = TypeVar("T")
OUTCOMES = Retries(after=(Unavailable, Throttled), within=3600.0, first=0.2, longest=5.0)
"""How writing the outcome of an activity is repeated while the store does not answer: for up to one hour. Then the
work item is given back."""


class Responses:
    """Sends the response of an activity, and settles its work item.

    :param work_items: the work items that this worker has claimed, and their slots.
    :param queues: takes responses for instances of the partitions that this worker itself serves.
    """

    def __init__(self, hub: Hub, work_items: WorkItems, queues: LocalQueues) -> None:
        self._hub, self._work_items, self._queues = hub, work_items, queues

    async def respond_or_fail(
        self, held: Delivery, event: TaskScheduled, outcome: ActivityOutcome, *, cheap: bool = True
    ) -> None:
        """Send the response. If the store refuses it as too large or invalid, send a failure with that error instead.

        The parameters are those of :meth:`respond`.
        """
        try:
            await self.respond(held, event, outcome, cheap=cheap)
        except (PayloadTooLarge, InputError) as error:
            await self.respond(held, event, refused(event, error))

    async def respond(
        self, held: Delivery, event: TaskScheduled, outcome: ActivityOutcome, *, cheap: bool = True
    ) -> None:
        """Send the response of an activity, and delete its work item.

        If ``cheap`` is True and this worker serves the instance, the instance gets the response in memory, and its next
        checkpoint deletes the work item. In all other cases this method puts a response message and then deletes the
        work item. Azure does this in two steps: a crash between them leaves both, and the instance counts two responses
        as one.

        :param held: the work item of the activity.
        :param event: the event that scheduled the activity.
        :param outcome: the result or the failure of the activity.
        :param cheap: True if running the activity again costs little. False: the response is always stored as a
            message, because a response in memory is lost if this worker dies.
        """
        self._work_items.leave(held)
        answer, target = answer_of(event, outcome, self._hub.clock.utc_now()), held.message.instance
        queue = self._hub.queue_of(target.instance_id)
        if cheap and await self._offered(held, answer, queue):
            self._work_items.reader.release([held])
            return
        room, claim = self._queues.claimable(queue)
        response = self._hub.message_to(
            answer,
            target,
            sender=target,
            episode=-1 if held.envelope.episode is None else held.envelope.episode,
            claim=claim if room > 0 else None,
        )
        blobs = (response.blob,) if response.blob is not None else ()
        steps = (
            Step(name="payloads", operations=blobs),
            Step(name="response", operations=(response.put(),)),
            Step(name="delete", operations=(held.deletion(),)),
        )
        sent, results = await self._put(event, Unit(steps=steps))
        self._work_items.reader.release([held])
        self._queues.hand_over(claimed([response], results[-2], sent=sent))

    async def _put(self, event: TaskScheduled, unit: Unit) -> tuple[float, Results]:
        """Commit the response, and repeat the commit while the store does not answer, because the activity has run.

        The commit is repeated even if another worker has received the work item meanwhile: the instance counts two
        responses to one action as one.

        :returns: the monotonic second before the last try, and the results of the storage operations.
        """
        sent = 0.0

        async def once() -> Results:
            nonlocal sent
            sent = self._hub.clock.monotonic()
            return await self._hub.store.commit(unit)

        results = await write_outcome(once, hub=self._hub, activity=event.name)
        return sent, results

    async def _offered(self, held: Delivery, answer: HistoryEvent, queue: str) -> bool:
        """Hand the response to the instance in memory, and wait for the checkpoint that stores the response.

        :param queue: the control queue of the instance.
        :returns: True if that checkpoint has deleted the work item; False if the response must be sent as a message.
        """
        offered = LocalResponse(
            queue=queue,
            envelope=Envelope(
                activity_id=NO_ACTIVITY,
                message=TaskMessage(event=answer, instance=held.message.instance),
                sequence_number=self._hub.sequence(),
            ),
            receipt=held.receipt,
            inserted=LATEST,
            dequeue_count=1,
            size=held.size + len(getattr(answer, "result", None) or ""),
            claimed=held.claimed,
            origin=held,
            fate=asyncio.get_running_loop().create_future(),
        )
        if not self._queues.offer(offered):
            return False
        try:
            return await offered.fate
        except asyncio.CancelledError:
            offered.gone = True
            raise

    async def wake(self, held: Delivery, why: str) -> None:
        """Wake the instance, and delete the work item. The instance gets no answer to the call.

        A message is sent although nobody waits for it: if the last checkpoint was cut off, the message makes a worker
        repair this checkpoint. It is no answer, because a rewind may open the call again before it comes.

        :param why: the text of the message.
        """
        self._work_items.leave(held)
        target = held.message.instance
        event = GenericEvent(timestamp=self._hub.clock.utc_now(), data=why, taskhub_execution_id=target.execution_id)
        sent = self._hub.message_to(event, OrchestrationInstance(instance_id=target.instance_id), sender=target)
        steps = (
            Step(name="response", operations=(sent.put(),)),
            Step(name="delete", operations=(held.deletion(),)),
        )
        await self._hub.store.commit(Unit(steps=steps))
        self._work_items.reader.release([held])

    async def drop(self, held: Delivery, why: str) -> None:
        """Delete a work item without a response, because no instance waits for the response.

        :param why: the reason for the log.
        """
        log.info("work_item_discarded", message_id=held.message_id, reason=why)
        await self._hub.store.execute(held.deletion())
        self._work_items.reader.release([held])

    async def drop_purged(self, held: Delivery) -> None:
        """Delete a work item whose instance was purged, and the activity records that were written after the purge."""
        await purge_activities(self._hub.store, self._hub.names, held.message.instance)
        if held.gone:
            self._work_items.reader.release([held])
        else:
            await self.drop(held, "its instance was purged")


async def write_outcome(write: Callable[[], Awaitable[T]], *, hub: Hub, activity: str) -> T:
    """Write the outcome of an activity, and repeat the write while the store does not answer (:data:`OUTCOMES`).

    Without the repetition an outage of the store would lose the work of every activity that ends during the outage.
    The dispatcher of activities limits how many outcomes wait in memory.

    :param write: writes the outcome once.
    :param activity: the name of the activity, for the log.
    :returns: what ``write`` returned.
    :raises StorageError: if the store has not answered within the limit of :data:`OUTCOMES`.
    """
    outage = Outage(log.bind(activity=activity), "outcome_unsettled", hub.clock.monotonic)
    done = await retry(write, OUTCOMES, hub.clock, failed=lambda error, _: outage.failed(error))
    outage.over()
    return done


def answer_of(event: TaskScheduled, outcome: ActivityOutcome, now: Timestamp) -> HistoryEvent:
    """Return the history event that tells the instance the outcome of the activity that ``event`` scheduled."""
    return answer(event, now, result=outcome.result, failure=outcome.failure)


def refused(event: TaskScheduled, error: Exception) -> ActivityOutcome:
    """Return the failure of an activity whose outcome the store refuses as too large or invalid.

    The failure is not retriable, because the store would refuse the same outcome after the next run too.
    """
    log.warning("outcome_refused", activity=event.name, error=str(error))
    text = f"the store refuses the result of activity {event.name!r}: {message_of(error)}"
    failure = FailureDetails(error_type=type(error).__name__, error_message=text, is_non_retriable=True)
    return ActivityOutcome(failure=failure)
