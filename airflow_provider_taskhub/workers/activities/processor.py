"""Processes work items: gives each work item a slot, runs its activity, and settles the work item.

Every work item is settled, also after an error: the instance gets a response, or the work item is given back, deleted
or moved to quarantine. This module itself runs activities without an activity record (a row in the store for each
attempt). Such an activity runs at least once: the worker runs the activity, sends the response, and then deletes the
work item. :mod:`recorded` runs activities with a record.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import structlog

from airflow_provider_taskhub.engine.events import FailureDetails, TaskScheduled
from airflow_provider_taskhub.engine.registry import ActivityDefinition, Registry
from airflow_provider_taskhub.errors import StorageError, Unavailable
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import Need
from airflow_provider_taskhub.hub.partitions.bounded import within
from airflow_provider_taskhub.hub.queues import quarantine
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.settings import LeaseTimes
from airflow_provider_taskhub.telemetry import Outage
from airflow_provider_taskhub.workers.activities.begins import Begins, Unasked
from airflow_provider_taskhub.workers.activities.cancellation import Fate, fate_of
from airflow_provider_taskhub.workers.activities.recorded import RecordedActivities
from airflow_provider_taskhub.workers.activities.responses import Responses
from airflow_provider_taskhub.workers.activities.runner import Runner, request_of, traced, warn_of_crash
from airflow_provider_taskhub.workers.activities.work_items import WorkItems
from airflow_provider_taskhub.workers.activities.work_queues import move
from airflow_provider_taskhub.workers.executors.attempt_values import ActivityOutcome, Crashes
from airflow_provider_taskhub.workers.missing_functions import MissingFunctions

log = structlog.get_logger(__name__)

QUICK = 1.0
"""Seconds. If an activity without a record runs longer, its result is stored in a message at once and is not handed to
the instance in memory. A result in memory is lost if this worker dies, and the activity would run again."""


@dataclass(slots=True, eq=False)
class _Unrecorded:
    """A running activity that has no activity record in the store.

    :ivar life: the timeout around the run; the watch loop lets this timeout expire to cancel the activity.
    :ivar asked: monotonic seconds of this worker when the watch loop last asked for the instance, or of the beginning.
    :ivar known: True once the instance was found in the store. If it is not found later, it was purged.
    :ivar purged: True if the instance was purged while the activity ran.
    :ivar asked_to_end: True once the watch loop has let ``life`` expire, so that it does so only once.
    """

    life: asyncio.Timeout
    asked: float
    known: bool = False
    purged: bool = False
    asked_to_end: bool = False
    cancelled: bool = False


class Activities:
    """Processes work items.

    :param registry: the activities of this worker.
    :param runner: runs the user's functions.
    :param times: the renewal interval and the other times of leases.
    :param work_items: the work items that this worker has claimed.
    :param begins: tells whether an activity may begin.
    :param responses: sends the response of a work item and deletes the work item.
    :param recorded: processes activities with an activity record.
    :param absences: the functions that this worker does not have.
    :param runnable: the activities that this worker runs.
    :param spark: whether the work items come from a queue of Spark activities.
    :param limited: the first queue of each activity that has queues of its own, once they exist. The work items of
        these activities are moved there. None: the work items come from such a queue.
    """

    def __init__(
        self,
        *,
        hub: Hub,
        registry: Registry,
        runner: Runner,
        times: LeaseTimes,
        work_items: WorkItems,
        begins: Begins,
        responses: Responses,
        recorded: RecordedActivities,
        absences: MissingFunctions,
        limited: Mapping[str, str] | None,
        runnable: Collection[str],
        spark: bool,
    ) -> None:
        self._limited, self._runnable, self._spark = limited, runnable, spark
        self._hub, self._registry, self._runner, self._times, self._absences = hub, registry, runner, times, absences
        self._unrecorded_running: dict[Delivery, _Unrecorded] = {}
        self._watch, self._hurry = asyncio.Event(), asyncio.Event()
        self._hurried: set[str] = set()
        """The instances of which this worker has stored a cancel, so that :meth:`watch` asks for them."""
        hub.cancelled_calls.listeners.append(self._cancel_stored)
        self._work_items, self._reader = work_items, work_items.reader
        self._begins, self._responses, self._recorded = begins, responses, recorded

    async def next(self) -> Delivery:
        return await self._work_items.next()

    async def process(self, item: Delivery) -> None:
        try:
            await self._process(item)
        except asyncio.CancelledError:
            await self._reader.give_back([item])
            raise
        except Unasked as error:  # nothing has begun, so an outage brings no work item closer to the quarantine
            log.warning("activity_unsettled", message_id=item.message_id, error=str(error))
            await self._reader.give_back([item], delay=timedelta(seconds=1), begun=False)
        except StorageError as error:
            log.warning("activity_unsettled", message_id=item.message_id, error=str(error))
            await self._failed(item, error, delay=timedelta(seconds=1), failed=False)
        except Exception as error:
            log.exception("activity_defect", message_id=item.message_id)
            await self._failed(item, error, delay=timedelta(seconds=5), failed=True)
        finally:
            self._work_items.leave(item)

    async def _failed(self, held: Delivery, error: Exception, *, delay: timedelta, failed: bool) -> None:
        """Give a work item back, or move it to quarantine if it has failed or was delivered too often.

        :param error: the error that quarantine shows as the cause.
        :param delay: the time until the work item is delivered again.
        :param failed: True counts one more failure of the work item.
        """
        if not quarantine.is_spent(held, failed=failed):
            await self._reader.give_back([held], delay=delay, failed=failed)
            return
        await self._reader.move_to_quarantine(held, quarantine.spent(held, error))

    async def _process(self, held: Delivery) -> None:
        event = held.message.event
        assert isinstance(event, TaskScheduled)  # the reader delivers nothing else
        definition = self._registry.activities.get(event.name)
        if definition is None or event.name not in self._runnable:
            await self._leave_to_others(held, event, spark=self._spark if definition is None else definition.spark)
        elif definition.has_queue and self._limited is not None:
            await self._move_to_own(held, event.name if event.name in self._limited else None)
        elif (overdue := self._overdue(held, definition)) is not None:
            fate = (await self._begins.permit(held)).fate
            if fate in (Fate.SUSPENDED, Fate.NOTHING, Fate.CANCELLED):  # it has not waited for its turn
                await self._begins.refuse(held, event, fate)
            else:
                await self._responses.respond(held, event, ActivityOutcome(failure=overdue))
            await self._recorded.dropped(held)
        elif definition.record:
            await self._recorded.process(held, event, definition)
        else:
            await self._unrecorded(held, event, definition)

    async def _move_to_own(self, held: Delivery, activity: str | None) -> None:
        """Move a work item to a queue of its activity.

        :param activity: the name of the activity; None: the queues do not exist yet.
        """
        if activity is None:
            await self._reader.give_back([held], delay=timedelta(seconds=1), begun=False)
            return
        await self._move(held, self._hub.names.limited_queues(activity))

    async def _leave_to_others(self, held: Delivery, event: TaskScheduled, *, spark: bool) -> None:
        """Move a work item that this worker cannot run to the queue of the pool of a live worker that can.

        The member row of this worker decides, because the code of this one may have another pool for the activity, or
        none. If the work item is in this queue already, or if no live worker can run it, it waits there.
        """
        other = self._absences.elsewhere(Need("activity", event.name))
        pool = other.pool(event.name) if other is not None else None
        if pool is None or held.queue in self._hub.names.pool_queues(pool):
            await self._wait_for_function(held, event)
            return
        await self._move(held, self._hub.names.work_queues(pool, spark=spark))

    async def _move(self, held: Delivery, queues: Sequence[str]) -> None:
        """Move a work item.

        :param queues: a first queue and its lanes. What comes from a lane goes to the same lane.
        """
        mine = self._reader.queues  # a first queue, or all lanes
        lane = 1 + mine.index(held.queue) if len(mine) > 1 else 0
        try:
            await move(self._hub, held, queues[lane])
        except StorageError as error:  # nothing has begun
            raise Unasked(str(error)) from error
        self._reader.release([held])

    def _overdue(self, held: Delivery, definition: ActivityDefinition) -> FailureDetails | None:
        """Return a failure if an activity waited to begin longer than its ``queue_timeout``; None otherwise.

        This is asked when the turn of the activity has come: nothing ends a wait earlier.

        The times of insertion and of receipt are the storage service's own, so no clocks of two machines are compared.
        Only the first delivery is checked, because a later delivery may follow an attempt that was lost.
        """
        limit = definition.queue_timeout
        if limit is None or held.deliveries > 1:
            return None
        waited = held.received(self._times.visibility) - (held.envelope.waiting_since or held.inserted)
        if waited <= limit:
            return None
        return expired(definition, waited)

    async def _wait_for_function(self, held: Delivery, event: TaskScheduled) -> None:
        """Give back a work item whose activity this worker does not have.

        If no live worker has had the activity for the no-worker timeout, the activity fails.
        """
        need = Need("activity", event.name)
        waited = held.received(self._times.visibility) - held.first_put
        gave_up = self._absences.gave_up(need, waited)
        if gave_up is None:
            level = logging.WARNING if self._absences.is_log_due(need) else logging.DEBUG
            log.log(level, "activity_unknown", name=event.name, instance_id=held.message.instance.instance_id)
            delay = self._absences.delay(need, held.dequeue_count)
            await self._reader.give_back([held], delay=delay, begun=False, waiting_since=held.first_put, signal=False)
            return
        failure = FailureDetails(error_type="UnknownActivity", error_message=gave_up)
        await self._responses.respond(held, event, ActivityOutcome(failure=failure))

    async def _unrecorded(self, held: Delivery, event: TaskScheduled, definition: ActivityDefinition) -> None:
        try:
            async with asyncio.timeout(None) as life:
                begun = self._hub.clock.monotonic()
                self._unrecorded_running[held] = plain = _Unrecorded(life, begun)
                self._watch.set()
                outcome = await self._run(held, event, definition)
                cheap = self._hub.clock.monotonic() - begun < QUICK
        except TimeoutError:
            if not life.expired():
                raise
            if plain.cancelled:
                await self._begins.confirm_cancel(held, event)
            elif plain.purged:
                await self._responses.drop_purged(held)
            else:
                await self._responses.drop(held, "its instance was ended")
            return
        finally:
            self._unrecorded_running.pop(held, None)
        if isinstance(outcome, Fate):
            await self._begins.refuse(held, event, outcome)
        else:
            await self._responses.respond_or_fail(held, event, outcome, cheap=cheap)

    def _cancel_stored(self, instance_id: str) -> None:
        if any(held.message.instance.instance_id == instance_id for held in self._unrecorded_running):
            self._hurried.add(instance_id)
            self._hurry.set()

    async def watch(self) -> None:
        """Cancel running activities without an activity record whose instance has ended, or has cancelled the call.

        Runs until cancelled.

        It asks for the instance of each activity about once in every renewal interval, counted from the activity's
        beginning. What is due soon after is asked with it, so that the loop wakes at most ten times in an interval. If
        this worker itself has stored a cancel, it asks at once.

        This loop does not watch activities with a record: their heartbeats find in the record that they are cancelled.
        """
        clock, interval = self._hub.clock, self._times.renew.total_seconds()
        outage = Outage(log, "instance_unreadable", clock.monotonic)
        while True:
            while not self._unrecorded_running:
                self._watch.clear()
                await self._watch.wait()
            first = min(plain.asked for plain in self._unrecorded_running.values())
            await within(clock, self._hurry, max(0.1 * interval, first + interval - clock.monotonic()))
            hurried, self._hurried = self._hurried, set()
            self._hurry.clear()
            now = clock.monotonic()
            due = [
                (held, plain)
                for held, plain in self._unrecorded_running.items()
                if now - plain.asked >= 0.9 * interval or held.message.instance.instance_id in hurried
            ]
            for held, plain in due:
                plain.asked = now
                if held not in self._unrecorded_running or plain.asked_to_end:
                    continue
                try:
                    fate = await fate_of(self._hub, held)
                    outage.over()
                except StorageError as error:
                    outage.failed(error, message_id=held.message_id)
                    continue
                except Exception:  # a defect in one instance must not keep the activities of the others running
                    log.exception("activity_defect", message_id=held.message_id)
                    continue
                plain.purged = fate is Fate.NOTHING and plain.known
                plain.known |= fate is not Fate.NOTHING
                plain.cancelled = fate is Fate.CANCELLED
                ends = plain.cancelled or plain.purged or fate in (Fate.ENDED, Fate.FAILED)
                if held in self._unrecorded_running and ends:
                    plain.asked_to_end = True
                    plain.life.reschedule(asyncio.get_running_loop().time())

    async def _run(
        self, held: Delivery, event: TaskScheduled, definition: ActivityDefinition
    ) -> ActivityOutcome | Fate:
        """Run an activity without an activity record. If the executor dies, run the activity again, up to a limit.

        :returns: the outcome of the last run; or why the activity, or its next run, may not begin.
        """
        crashes, attempt = Crashes(), max(1, held.deliveries)
        while True:
            try:
                permit = await self._begins.permit(held)
            except Unasked as error:
                if crashes == Crashes():
                    raise
                raise Unavailable(str(error), maybe_done=False) from error  # a run has begun: this delivery counts
            if permit.fate is not Fate.OPEN:
                return permit.fate
            request = request_of(held, event, definition, attempt=attempt, crashes=crashes, begin_by=permit.begin_by)
            outcome = await traced(event, request, self._runner.run)
            if outcome.too_late:
                continue
            crashes = crashes.after(outcome)
            if not outcome.crashed or crashes.too_many:
                return outcome
            warn_of_crash(request, outcome)
            attempt += 1


def expired(definition: ActivityDefinition, waited: timedelta) -> FailureDetails:
    """Return the failure of an activity that waited to begin longer than its ``queue_timeout``.

    :param waited: how long it waited.
    """
    of = "limit" if definition.limit is not None else "rate"
    needs = [f"a place of its {of} {definition.limit_name!r}"] if definition.limited else []
    needs += [] if definition.memory is None else ["memory"]
    return FailureDetails(
        error_type="QueueTimeout",
        error_message=f"activity {definition.name!r} waited {waited} for {' or '.join([*needs, 'a free slot'])}, "
        f"longer than its queue_timeout of {definition.queue_timeout}",
    )
