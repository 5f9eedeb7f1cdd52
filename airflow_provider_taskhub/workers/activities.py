"""Work items: from a TaskScheduled message to a durable response.

Without a record: run, put the response, delete the work item; at least once. With one (DESIGN §9): claim the record,
run, record the outcome, put the response, delete the work item; a delivery that finds an outcome only puts the
response again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field, replace
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

import structlog

from airflow_provider_taskhub import tracing
from airflow_provider_taskhub.engine.events import (
    FailureDetails,
    HistoryEvent,
    OrchestrationInstance,
    TaskCompleted,
    TaskFailed,
    TaskScheduled,
)
from airflow_provider_taskhub.engine.failures import message_of
from airflow_provider_taskhub.engine.identity import same_start
from airflow_provider_taskhub.engine.lifecycle import (
    ActivityHappening,
    ActivityReaction,
    ActivityState,
    react_activity,
)
from airflow_provider_taskhub.engine.registry import ActivityDefinition, Registry
from airflow_provider_taskhub.errors import (
    Conflict,
    InputError,
    NotFound,
    PayloadTooLarge,
    StorageError,
    Throttled,
    Unavailable,
)
from airflow_provider_taskhub.hub.contract import ActivityRecord, RecordState, WorkerIdentity
from airflow_provider_taskhub.hub.history import activities as records
from airflow_provider_taskhub.hub.history.load import sentinel_of
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.keys import history_folder
from airflow_provider_taskhub.hub.messages import quarantine
from airflow_provider_taskhub.hub.messages.control import Reader
from airflow_provider_taskhub.hub.messages.envelope import NO_ACTIVITY, Envelope, TaskMessage
from airflow_provider_taskhub.hub.messages.held import LATEST, Held, Offered
from airflow_provider_taskhub.hub.messages.outbound import claimed
from airflow_provider_taskhub.hub.messages.races import SECOND, unknown_delay
from airflow_provider_taskhub.settings import LeaseTimes
from airflow_provider_taskhub.storage.primitives import Entity, Step, Unit
from airflow_provider_taskhub.values import dataclass
from airflow_provider_taskhub.workers.lanes import ActivityOutcome, ActivityProgress, ActivityRequest, Crashes
from airflow_provider_taskhub.workers.slots import Slots

log = structlog.get_logger(__name__)

QUICK = 1.0
"""Seconds: a result without a record that took longer to find is put into a message at once, whoever waits for it."""
SETTLE_PAUSE = 0.2
"""Seconds between tries to write an outcome."""


class Runner(Protocol):
    """What runs user activities: the executor pool, or a test's function."""

    async def run(
        self, request: ActivityRequest, *, progress: Callable[[ActivityProgress], None] | None = None
    ) -> ActivityOutcome: ...


class Superseded(Exception):
    """The record says that this attempt is not ours any more, or is to be cancelled."""


@dataclass(slots=True, eq=False)
class Attempt:
    """A claimed record and its newest ETag; heartbeats and progress write it, one at a time."""

    record: ActivityRecord
    etag: str
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    ended: bool = False


class Activities:
    """The processor of work items.

    :param reader: makes the reader of the work-item queue for a room and a delivery function.
    :param dead: whether a worker is proven dead (its incarnation's lock could be taken).
    :param unknown: activity name → text, once no live worker has had it for too long.
    :param claims, adopt: claims and hands over responses to partitions that this worker serves.
    :param offer: gives a response to its session; False: this worker does not serve it.
    """

    def __init__(
        self,
        *,
        hub: Hub,
        registry: Registry,
        runner: Runner,
        me: WorkerIdentity,
        times: LeaseTimes,
        limit: int,
        reader: Callable[[Callable[[], int], Callable[[Held], None]], Reader],
        dead: Callable[[str], bool],
        unknown: Callable[[str], str | None],
        claims: Callable[[str], tuple[int, timedelta]],
        adopt: Callable[[Sequence[Held]], None],
        offer: Callable[[Offered], bool],
    ) -> None:
        self._hub, self._registry, self._runner, self._me = hub, registry, runner, me
        self._times = times
        self._dead, self._unknown, self._claims, self._adopt, self._offer = dead, unknown, claims, adopt, offer
        self.slots = Slots(limit, hub.clock)
        self._plain: dict[Held, asyncio.Timeout] = {}
        self._watch = asyncio.Event()
        self.reader = reader(lambda: 0 if self.reader.stopping else self.slots.room, self.slots.put)

    async def next(self) -> Held:
        held = await self.slots.take()
        self.reader.freed()  # what made it wait for a slot may have kept the reader from asking for more
        return held

    async def relieve(self) -> None:
        """Give back, for ever, what waits too long for a slot here."""
        while True:
            await self.reader.give_back(await self.slots.overdue(), begun=False)

    async def process(self, item: Held) -> None:
        try:
            await self._process(item)
        except asyncio.CancelledError:
            await self.reader.give_back([item])
            raise
        except StorageError as error:
            log.warning("activity_unsettled", message_id=item.message_id, error=str(error))
            await self._failed(item, error, delay=timedelta(seconds=1), failed=False)
        except Exception as error:
            log.exception("activity_defect", message_id=item.message_id)
            await self._failed(item, error, delay=timedelta(seconds=5), failed=True)
        finally:
            self._leave(item)

    async def _failed(self, held: Held, error: Exception, *, delay: timedelta, failed: bool) -> None:
        """Give it back; at its limit it is kept aside with the error (DESIGN §6). :param failed: count a failure."""
        if not quarantine.is_spent(held, failed=failed):
            await self.reader.give_back([held], delay=delay, failed=failed)
            return
        await self.reader.keep_aside(held, quarantine.spent(held, error))

    @contextmanager
    def promised(self, count: int) -> Iterator[None]:
        """Keep room for so many work items until the end of the block; they may have come to nothing."""
        try:
            with self.slots.promised(count):
                yield
        finally:
            if count:
                self.reader.freed()

    def _leave(self, held: Held) -> None:
        """Make room: what is left to do for a work item is the store's work."""
        self.slots.leave(held)
        self.reader.freed()

    async def _process(self, held: Held) -> None:
        event = held.message.event
        if not isinstance(event, TaskScheduled):
            cause = f"a {event.event_type.name} in the work-item queue, which is for TaskScheduled alone"
            await self.reader.keep_aside(held, quarantine.of_held(held, cause))
            return
        definition = self._registry.activities.get(event.name)
        if definition is None:
            await self._nobody(held, event)
        elif (overdue := self._overdue(held, definition)) is not None:
            await self._respond(held, event, ActivityOutcome(failure=overdue))
        elif definition.record:
            await self._recorded(held, event, definition)
        else:
            await self._unrecorded(held, event, definition)

    def _overdue(self, held: Held, definition: ActivityDefinition) -> FailureDetails | None:
        """Whether the first delivery came too late; both times are the storage service's own."""
        limit = definition.queue_timeout
        if limit is None or held.deliveries > 1:
            return None
        waited = held.receipt.next_visible - held.inserted - self._times.visibility
        if waited <= limit:
            return None
        return FailureDetails(
            error_type="QueueTimeout",
            error_message=f"activity {definition.name!r} waited {waited} for a free slot: its queue_timeout is {limit}",
        )

    async def _nobody(self, held: Held, event: TaskScheduled) -> None:
        gave_up = self._unknown(event.name)
        if gave_up is None:
            log.warning("activity_unknown", name=event.name, instance_id=held.message.instance.instance_id)
            await self.reader.give_back([held], delay=unknown_delay(held.deliveries))
            return
        failure = FailureDetails(error_type="UnknownActivity", error_message=gave_up, is_non_retriable=True)
        await self._respond(held, event, ActivityOutcome(failure=failure))

    # running

    def _request(
        self, held: Held, event: TaskScheduled, definition: ActivityDefinition, *, attempt: int, crashes: Crashes
    ) -> ActivityRequest:
        instance = held.message.instance
        return ActivityRequest(
            name=event.name,
            version=event.version or "",
            input=event.input,
            instance=instance,
            task_id=event.event_id,
            action_id=action_of(held, event),
            attempt=attempt,
            tags=held.message.context_tags or {},
            timeout=definition.timeout,
            spark=definition.spark,
            alone=crashes.suspect,
            log=log_name(instance, event.event_id, attempt),
        )

    async def _unrecorded(self, held: Held, event: TaskScheduled, definition: ActivityDefinition) -> None:
        if held.deliveries > 1 and await self._has_ended(held):
            # not dropped: the last checkpoint may have been cut off behind its history, and a response repairs that
            ended = FailureDetails(error_type="InstanceEnded", error_message="its instance has ended")
            await self._respond(held, event, ActivityOutcome(failure=ended))
            return
        try:
            async with asyncio.timeout(None) as life:
                self._plain[held] = life
                self._watch.set()
                begun = self._hub.clock.monotonic()
                outcome = await self._run(held, event, definition)
                cheap = self._hub.clock.monotonic() - begun < QUICK
        except TimeoutError:
            if not life.expired():
                raise
            await self._drop(held, "its instance was ended")
            return
        finally:
            self._plain.pop(held, None)
        await self._respond_or_fail(held, event, outcome, cheap=cheap)

    async def watch(self) -> None:
        """End activities without a record whose instance has ended, for ever; the others are told by their record."""
        while True:
            if not self._plain:
                self._watch.clear()
                await self._watch.wait()
            before = tuple(self._plain)
            await self._hub.clock.sleep(self._times.renew.total_seconds())
            for held in before:
                try:
                    if held in self._plain and await self._has_ended(held) and held in self._plain:
                        self._plain[held].reschedule(asyncio.get_running_loop().time())
                except StorageError as error:
                    log.info("instance_unreadable", message_id=held.message_id, error=str(error))

    async def _has_ended(self, held: Held) -> bool:
        """Whether it is certain that nobody waits for this activity any more.

        A row that is missing, or is of another start, says nothing: a checkpoint writes it last, and of one that was
        cut off there are only work items, or they and the history. Another start's history says so if it was committed
        after the work item had been put, by the storage service's times, of which a queue tells the second.
        """
        hub, instance = self._hub, held.message.instance
        row = await hub.instance(instance.instance_id)
        if row is not None and same_start(row.execution_id, instance.execution_id):
            return row.status.is_final
        sentinel = await sentinel_of(hub.store, hub.names, instance.instance_id)
        if sentinel is None or sentinel.timestamp is None or same_start(sentinel.execution_id, instance.execution_id):
            return False
        return held.inserted.ticks < sentinel.timestamp.ticks // SECOND * SECOND

    async def _run(self, held: Held, event: TaskScheduled, definition: ActivityDefinition) -> ActivityOutcome:
        """Run; an executor that dies costs one more try here, a few times."""
        crashes, attempt = Crashes(), max(1, held.deliveries)
        while True:
            request = self._request(held, event, definition, attempt=attempt, crashes=crashes)
            outcome = await self._traced(event, request, self._runner.run)
            crashes = crashes.after(outcome)
            if not outcome.crashed or crashes.too_many:
                return outcome
            _warn_of_crash(request, outcome)
            attempt += 1

    async def _traced(
        self,
        event: TaskScheduled,
        request: ActivityRequest,
        run: Callable[[ActivityRequest], Coroutine[Any, Any, ActivityOutcome]],
    ) -> ActivityOutcome:
        """Run an attempt within its span (K51); what is carried goes on also where nothing is recorded."""
        if event.parent_trace_context is None:
            return await run(request)
        span = tracing.ActivitySpan(event, request.instance)
        failure: FailureDetails | str | None = "it was cut off"
        try:
            outcome = await run(replace(request, trace=span.context))
            failure = outcome.failure
            return outcome
        finally:
            span.end(failure)

    # recorded

    async def _recorded(self, held: Held, event: TaskScheduled, definition: ActivityDefinition) -> None:
        crashes = Crashes()
        while True:
            attempt = await self._claim(held, event)
            if attempt is None:
                return
            record = attempt.record
            request = self._request(held, event, definition, attempt=record.attempt, crashes=crashes)
            try:
                outcome = await self._traced(event, request, partial(self._attend, attempt))
            except Superseded as reason:
                log.info("activity_superseded", activity=event.name, attempt=record.attempt, reason=str(reason))
                await self._cancelled(held, attempt)
                return
            except asyncio.CancelledError:
                await self._lost(attempt, "its worker stopped")
                raise
            crashes = crashes.after(outcome)
            if outcome.crashed and not crashes.too_many:
                _warn_of_crash(request, outcome)
                await self._lost(attempt, outcome.failure.error_message if outcome.failure else "executor crashed")
                continue
            try:
                await self._record_outcome(held, event, attempt, outcome)
            except (PayloadTooLarge, InputError) as error:
                await self._record_outcome(held, event, attempt, _refused(event, error))
            return

    async def _claim(self, held: Held, event: TaskScheduled) -> Attempt | None:
        """Claim the next attempt's record; None when there is to be none: an earlier one had an outcome, whose response
        is put again, or the instance was ended."""
        hub, instance = self._hub, held.message.instance
        watched: tuple[str, float] | None = None
        known = held.deliveries > 1  # else the first attempt's claim tells whether there is one
        while True:
            found = await records.attempts(hub.store, hub.names, instance, event.event_id) if known else []
            known = True
            last = found[-1] if found else None
            reaction, silent = ActivityReaction.RUN, None
            if last is not None:
                record, entity = last
                state, now = ActivityState(record.state), hub.clock.monotonic()
                reaction = react_activity(state, ActivityHappening.CLAIMED).reaction
                if watched is None or watched[0] != entity.etag:
                    watched = (entity.etag, now)
                late = now - watched[1] >= self._times.take.total_seconds()
                if reaction is ActivityReaction.WAIT and (late or self._dead(record.worker)):
                    reaction, silent = react_activity(state, ActivityHappening.SILENT).reaction, entity
                if reaction is not ActivityReaction.WAIT and not _is_of(record, event):
                    reaction = ActivityReaction.RUN_NEXT  # it was of an action that is rewound
            match reaction:
                case ActivityReaction.REPEAT if last is not None:
                    await self._again(held, event, *last)
                    return None
                case ActivityReaction.DROP:
                    await self._drop(held, "its instance was ended")
                    return None
                case ActivityReaction.CLOSE if last is not None:
                    with suppress(Conflict):  # its holder is alive after all: look again
                        await self._close(held, *last)
                        return None
                    continue
                case ActivityReaction.WAIT:
                    await hub.clock.sleep(min(1.0, self._times.scan.total_seconds()))
                    if held.gone:
                        return None
                    continue
            number = last[0].attempt + 1 if last else 1
            claim = self._new_record(held, event, number)
            etag = await self._write_claim(claim, silent)
            if etag is None:
                continue  # somebody else claimed it: look again
            if silent is not None:
                log.warning(
                    "activity_taken_over",
                    activity=event.name,
                    instance_id=instance.instance_id,
                    task_id=event.event_id,
                    attempt=number,
                    before=records.decode(silent).worker,
                )
            return Attempt(claim, etag)

    async def _write_claim(self, claim: ActivityRecord, silent: Entity | None) -> str | None:
        """The claim's ETag; None when somebody else was first.

        :raises Unavailable: when nobody knows whether it was written, and it is not there now.
        """
        hub = self._hub
        try:
            etags = await hub.store.execute(records.claim(hub.names, claim, supersede=silent, now=hub.clock.utc_now()))
        except Conflict:
            return None
        except Unavailable:  # read back, never blindly repeated: else we would wait for ourselves to fall silent
            found = await records.newest(hub.store, hub.names, claim)
            if found is None or found[0] != claim:
                raise
            return found[1].etag
        assert isinstance(etags, tuple)
        return etags[0]

    def _new_record(self, held: Held, event: TaskScheduled, number: int) -> ActivityRecord:
        instance = held.message.instance
        return ActivityRecord(
            instance=instance,
            task_id=event.event_id,
            action_id=action_of(held, event),
            attempt=number,
            name=event.name,
            state=RecordState.RUNNING,
            worker=str(self._me),
            executor="",
            claimed=self._hub.clock.utc_now(),
            log=log_name(instance, event.event_id, number),
        )

    async def _attend(self, attempt: Attempt, request: ActivityRequest) -> ActivityOutcome:
        """Run with heartbeats. :raises Superseded: when the record was changed by somebody else."""

        def progress(news: ActivityProgress) -> None:
            attempt.record = news.onto(attempt.record)
            attempt.changed.set()

        running = asyncio.create_task(self._runner.run(request, progress=progress))
        beating = asyncio.create_task(self._beat(attempt))
        try:
            await asyncio.wait((running, beating), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                return running.result()
            beating.result()
            raise AssertionError("a heartbeat ends by raising while its attempt runs")
        finally:
            running.cancel()
            attempt.ended = True  # a heartbeat under way is waited for: cut off, it would leave us with an old ETag
            attempt.changed.set()
            await asyncio.gather(running, beating, return_exceptions=True)

    async def _beat(self, attempt: Attempt) -> None:
        """Renew the record until the attempt has ended; past the give-up age without an answer the run is ended."""
        hub, renewed = self._hub, self._hub.clock.monotonic()
        every, give_up = self._times.renew.total_seconds(), self._times.give_up.total_seconds()
        while True:
            try:
                await asyncio.wait_for(attempt.changed.wait(), every)
                attempt.changed.clear()
                if not attempt.ended:
                    await hub.clock.sleep(min(0.2, every))  # several changes, one write
            except TimeoutError:
                pass
            if attempt.ended:
                return
            sent = hub.clock.monotonic()
            try:
                await self._write(attempt)
                renewed = sent
            except (Conflict, NotFound) as error:
                raise Superseded("cancelled or taken over") from error
            except StorageError as error:
                log.warning("heartbeat_failed", activity=attempt.record.name, error=str(error))
                if hub.clock.monotonic() - renewed > give_up:
                    raise Superseded("no heartbeat could be written") from error
                await hub.clock.sleep(min(1.0, every / 4))

    async def _write(self, attempt: Attempt) -> None:
        try:
            etags = await self._hub.store.execute(records.update(self._hub.names, attempt.record, attempt.etag))
        except Conflict:
            await self._adopt_own(attempt)
            etags = await self._hub.store.execute(records.update(self._hub.names, attempt.record, attempt.etag))
        assert isinstance(etags, tuple)
        attempt.etag = etags[0]

    async def _adopt_own(self, attempt: Attempt) -> None:
        """After a refusal: a write of ours whose answer was lost has changed the ETag, or somebody else has.

        :raises Conflict: when the attempt is no longer running in our name.
        """
        record = attempt.record
        found = await records.newest(self._hub.store, self._hub.names, record)
        if found is None or (found[0].worker, found[0].state) != (record.worker, RecordState.RUNNING):
            raise Conflict(f"attempt {record.attempt} of {record.name!r} was cancelled or taken over")
        attempt.etag = found[1].etag

    async def _lost(self, attempt: Attempt, why: str) -> None:
        """Say that the attempt ended without an outcome, so that the next one need not wait."""
        attempt.record = replace(
            attempt.record, state=RecordState.LOST, ended=self._hub.clock.utc_now(), message=why[:500]
        )
        try:
            await self._write(attempt)
        except StorageError as error:
            log.info("record_not_closed", activity=attempt.record.name, error=str(error))

    async def _cancelled(self, held: Held, attempt: Attempt) -> None:
        """The executor confirmed that nothing runs: ``cancelling`` becomes ``cancelled``."""
        found = await records.newest(self._hub.store, self._hub.names, attempt.record)
        state = ActivityState(found[0].state) if found is not None else ActivityState.QUEUED
        reaction = react_activity(state, ActivityHappening.CONFIRMED).reaction
        if found is not None and reaction is ActivityReaction.CLOSE:
            await self._close(held, *found)
        elif held.gone:
            self.reader.release([held])
        else:
            await self.reader.give_back([held], delay=timedelta(seconds=1))

    async def _close(self, held: Held, record: ActivityRecord, entity: Entity) -> None:
        """Nothing of a cancelled attempt runs any more. :raises Conflict: when somebody else has written its record."""
        ended = replace(record, state=RecordState.CANCELLED, ended=self._hub.clock.utc_now())
        await self._hub.store.execute(records.update(self._hub.names, ended, entity.etag))
        await self._drop(held, "cancelled")

    async def _record_outcome(
        self, held: Held, event: TaskScheduled, attempt: Attempt, outcome: ActivityOutcome
    ) -> None:
        ok = outcome.failure is None
        ended = replace(
            attempt.record,
            state=RecordState.COMPLETED if ok else RecordState.FAILED,
            ended=self._hub.clock.utc_now(),
            progress=1.0 if ok and attempt.record.progress is not None else attempt.record.progress,
            result=outcome.result,
            failure=outcome.failure,
        )
        try:
            await self._insist(held, event, attempt, ended, outcome)
        except Conflict:
            found = await records.newest(self._hub.store, self._hub.names, ended)
            if found is not None and (found[0].worker, found[0].state) == (ended.worker, ended.state):
                await self._again(held, event, *found)  # written by a try whose answer was lost
                return
            try:
                await self._adopt_own(attempt)
                await self._insist(held, event, attempt, ended, outcome)
            except Conflict:
                log.info("activity_superseded", activity=event.name, attempt=ended.attempt, reason="at its end")
                await self._cancelled(held, attempt)

    async def _insist(
        self, held: Held, event: TaskScheduled, attempt: Attempt, ended: ActivityRecord, outcome: ActivityOutcome
    ) -> None:
        """Settle, again while the store does not answer and nobody may take the attempt over: the activity has run.

        :raises Conflict: when the record was changed, be it by a try of ours whose answer was lost.
        """
        until = self._hub.clock.monotonic() + (self._times.give_up - self._times.renew).total_seconds()
        while True:
            try:
                await self._settle(held, event, attempt, ended, outcome)
                return
            except (Unavailable, Throttled) as error:
                pause = max(SETTLE_PAUSE, getattr(error, "retry_after", 0.0))
                if self._hub.clock.monotonic() + pause > until:
                    raise
                log.info("outcome_unsettled", activity=event.name, attempt=ended.attempt, error=str(error))
            await self._hub.clock.sleep(pause)

    async def _settle(
        self, held: Held, event: TaskScheduled, attempt: Attempt, ended: ActivityRecord, outcome: ActivityOutcome
    ) -> None:
        blob = records.result_blob(self._hub.names, ended)
        before = (
            Step(name="result", operations=(blob,) if blob else ()),
            Step(name="outcome", operations=(records.update(self._hub.names, ended, attempt.etag),)),
        )
        await self._respond(held, event, outcome, before=before)

    async def _again(self, held: Held, event: TaskScheduled, record: ActivityRecord, entity: Entity) -> None:
        """An outcome is recorded: only the response is put again."""
        result = await records.result_of(self._hub.store, self._hub.names, entity)
        await self._respond_or_fail(held, event, ActivityOutcome(result=result, failure=record.failure))

    async def _drop(self, held: Held, why: str) -> None:
        log.info("work_item_set_aside", message_id=held.message_id, reason=why)
        await self._hub.store.execute(held.deletion())
        self.reader.release([held])

    # responding

    async def _respond_or_fail(
        self, held: Held, event: TaskScheduled, outcome: ActivityOutcome, *, cheap: bool = True
    ) -> None:
        """Respond; where no store takes the response, respond with that."""
        try:
            await self._respond(held, event, outcome, cheap=cheap)
        except (PayloadTooLarge, InputError) as error:
            await self._respond(held, event, _refused(event, error))

    async def _respond(
        self,
        held: Held,
        event: TaskScheduled,
        outcome: ActivityOutcome,
        *,
        before: tuple[Step, ...] = (),
        cheap: bool = True,
    ) -> None:
        """Give the response to the session of the instance, if it is ours; else put it, and delete the work item.

        :param before: what records the outcome. :param cheap: nothing much is lost if it must be found again.
        """
        self._leave(held)
        answer, target = self._response(event, outcome), held.message.instance
        queue = self._hub.queue_of(target.instance_id)
        if cheap:
            if before:
                await self._hub.store.commit(Unit(steps=before))
                before = ()
            if await self._offered(held, answer, queue):
                self.reader.release([held])
                return
        room, claim = self._claims(queue)
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
        sent = self._hub.clock.monotonic()
        results = await self._hub.store.commit(Unit(steps=steps))
        self.reader.release([held])
        self._adopt(claimed([response], results[-2], sent=sent))

    async def _offered(self, held: Held, answer: HistoryEvent, queue: str) -> bool:
        """Whether an episode has taken the response, and settled the work item with its checkpoint."""
        offered = Offered(
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
        if not self._offer(offered):
            return False
        try:
            return await offered.fate
        except asyncio.CancelledError:
            offered.gone = True
            raise

    def _response(self, event: TaskScheduled, outcome: ActivityOutcome) -> HistoryEvent:
        now = self._hub.clock.utc_now()
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


def _refused(event: TaskScheduled, error: Exception) -> ActivityOutcome:
    """What no store takes is not taken at the next delivery either: the activity fails with it."""
    log.warning("outcome_refused", activity=event.name, error=str(error))
    text = f"the store does not take what activity {event.name!r} came to: {message_of(error)}"
    failure = FailureDetails(error_type=type(error).__name__, error_message=text, is_non_retriable=True)
    return ActivityOutcome(failure=failure)


def _is_of(record: ActivityRecord, event: TaskScheduled) -> bool:
    """Whether an attempt is of this decision: after a rewind the same number is decided anew (K46)."""
    return event.taskhub_action_id is None or record.action_id == event.taskhub_action_id


def action_of(held: Held, event: TaskScheduled) -> str:
    """Identity of the action, else of the message that brings it (.NET)."""
    return event.taskhub_action_id or str(held.envelope.activity_id)


def _warn_of_crash(request: ActivityRequest, outcome: ActivityOutcome) -> None:
    """The attempt is lost, and another one follows."""
    log.warning(
        "executor_crashed",
        activity=request.name,
        instance_id=request.instance.instance_id,
        task_id=request.task_id,
        attempt=request.attempt,
        error=outcome.failure.error_message if outcome.failure else "",
    )


def log_name(instance: OrchestrationInstance, task_id: int, attempt: int) -> str:
    """Name of an attempt's log in the log container (DESIGN §9)."""
    return f"{history_folder(instance.instance_id)}/{instance.execution_id or ''}/{task_id:06d}-{attempt:03d}.log"
