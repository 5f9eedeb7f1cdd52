"""What ends a work item: a response to its instance, as a stored message or in memory; or its deletion."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import (
    FailureDetails,
    HistoryEvent,
    TaskCompleted,
    TaskFailed,
    TaskScheduled,
)
from airflow_provider_taskhub.engine.failures import message_of
from airflow_provider_taskhub.errors import InputError, PayloadTooLarge, Throttled, Unavailable
from airflow_provider_taskhub.hub.formats.message_envelope import NO_ACTIVITY, Envelope, TaskMessage
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
"""The outcome of an activity is kept in memory for so long while the store does not answer."""


class Responses:
    """Sends the response of an activity, and settles its work item.

    :param queues: takes responses to partitions that this worker serves itself.
    """

    def __init__(self, hub: Hub, work_items: WorkItems, queues: LocalQueues) -> None:
        self._hub, self._work_items, self._queues = hub, work_items, queues

    async def respond_or_fail(
        self, held: Delivery, event: TaskScheduled, outcome: ActivityOutcome, *, cheap: bool = True
    ) -> None:
        """Respond. If the store does not take the response, the activity fails with that error."""
        try:
            await self.respond(held, event, outcome, cheap=cheap)
        except (PayloadTooLarge, InputError) as error:
            await self.respond(held, event, refused(event, error))

    async def respond(
        self,
        held: Delivery,
        event: TaskScheduled,
        outcome: ActivityOutcome,
        *,
        before: tuple[Step, ...] = (),
        cheap: bool = True,
    ) -> None:
        """Hand the response to the instance if this worker serves it; else put a message and delete the work item.

        :param before: steps that record the outcome. :param cheap: the activity may run again without much loss.
        """
        self._work_items.leave(held)
        answer, target = answer_of(event, outcome, self._hub.clock.utc_now()), held.message.instance
        queue = self._hub.queue_of(target.instance_id)
        if cheap:
            if before:
                await self._hub.store.commit(Unit(steps=before))
                before = ()
            if await self._offered(held, answer, queue):
                self._work_items.reader.release([held])
                return
        room, claim = self._queues.claimable(queue)
        response = self._hub.mail(
            answer,
            target,
            sender=target,
            episode=-1 if held.envelope.episode is None else held.envelope.episode,
            claim=claim if room > 0 else None,
        )
        blobs = (response.blob,) if response.blob is not None else ()
        steps = (
            *before,
            Step(name="payloads", operations=blobs),
            Step(name="response", operations=(response.put(),)),
            Step(name="delete", operations=(held.deletion(),)),
        )
        unit = Unit(steps=steps)
        if before:  # these steps are conditional: their caller repeats them
            sent, results = self._hub.clock.monotonic(), await self._hub.store.commit(unit)
        else:
            sent, results = await self._put(event, unit)
        self._work_items.reader.release([held])
        self._queues.hand_over(claimed([response], results[-2], sent=sent))

    async def _put(self, event: TaskScheduled, unit: Unit) -> tuple[float, Results]:
        """Commit; repeat it while the store does not answer, since the activity has run.

        It is repeated even if another worker has the work item by then: two responses to one action count once.
        """
        sent = 0.0

        async def once() -> Results:
            nonlocal sent
            sent = self._hub.clock.monotonic()
            return await self._hub.store.commit(unit)

        results = await write_outcome(once, hub=self._hub, activity=event.name)
        return sent, results

    async def _offered(self, held: Delivery, answer: HistoryEvent, queue: str) -> bool:
        """Whether an episode has taken the response and deleted the work item with its checkpoint."""
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

    async def drop(self, held: Delivery, why: str) -> None:
        """Delete a work item whose response nobody needs."""
        log.info("work_item_set_aside", message_id=held.message_id, reason=why)
        await self._hub.store.execute(held.deletion())
        self._work_items.reader.release([held])

    async def drop_purged(self, held: Delivery) -> None:
        """Delete a work item whose instance was purged while it ran, and what it has written since."""
        await purge_activities(self._hub.store, self._hub.names, held.message.instance)
        if held.gone:
            self._work_items.reader.release([held])
        else:
            await self.drop(held, "its instance was purged")


async def write_outcome(write: Callable[[], Awaitable[T]], *, hub: Hub, activity: str) -> T:
    """Write the outcome of an activity, again while the store does not answer, as :data:`OUTCOMES` says.

    Otherwise an outage would lose the work of every activity that ends in it. The dispatcher of activities bounds how
    many wait.

    :param activity: its name, for the log.
    :raises StorageError: when the store has not answered for too long.
    """
    outage = Outage(log.bind(activity=activity), "outcome_unsettled", hub.clock.monotonic)
    done = await retry(write, OUTCOMES, hub.clock, failed=lambda error, _: outage.failed(error))
    outage.over()
    return done


def answer_of(event: TaskScheduled, outcome: ActivityOutcome, now: Timestamp) -> HistoryEvent:
    if outcome.failure is None:
        return TaskCompleted(
            timestamp=now,
            task_scheduled_id=event.event_id,
            result=outcome.result,
            taskhub_action_id=event.taskhub_action_id,
        )
    return TaskFailed(
        timestamp=now,
        task_scheduled_id=event.event_id,
        reason=outcome.failure.error_message,
        failure=outcome.failure,
        taskhub_action_id=event.taskhub_action_id,
    )


def refused(event: TaskScheduled, error: Exception) -> ActivityOutcome:
    """The failure of an activity whose outcome the store does not take, now or at the next delivery."""
    log.warning("outcome_refused", activity=event.name, error=str(error))
    text = f"the store does not take what activity {event.name!r} came to: {message_of(error)}"
    failure = FailureDetails(error_type=type(error).__name__, error_message=text, is_non_retriable=True)
    return ActivityOutcome(failure=failure)
