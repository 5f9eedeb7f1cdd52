"""Processes activities that have an activity record: a row in the store for each attempt.

For each attempt the worker claims (inserts) the record, runs the activity, writes the outcome into the record, and
sends the response to the instance.

If a work item is delivered again and the record has an outcome, the worker only sends the response again. If the record
belongs to a worker that no longer renews it, this worker runs the next attempt.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial

import structlog

from airflow_provider_taskhub.engine.events import TaskScheduled
from airflow_provider_taskhub.engine.lifecycle import (
    ActivityHappening,
    ActivityReaction,
    ActivityState,
    react_activity,
)
from airflow_provider_taskhub.engine.registry import ActivityDefinition
from airflow_provider_taskhub.errors import Conflict, InputError, NotFound, PayloadTooLarge, Unavailable
from airflow_provider_taskhub.hub.formats.keys import log_name
from airflow_provider_taskhub.hub.history import activity_records as records
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import ActivityRecord, RecordState, WorkerIdentity
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.settings import LeaseTimes
from airflow_provider_taskhub.spark_connect import connect_server
from airflow_provider_taskhub.storage.primitives import Entity, PutBlob, Step, Unit
from airflow_provider_taskhub.workers.activities.activity_limits import Admission
from airflow_provider_taskhub.workers.activities.begins import Begins, Unasked
from airflow_provider_taskhub.workers.activities.cancellation import Fate, is_of
from airflow_provider_taskhub.workers.activities.heartbeat import CutOff, RecordedAttempt, Superseded
from airflow_provider_taskhub.workers.activities.left_work import LeftWork, sessions_of
from airflow_provider_taskhub.workers.activities.responses import Responses, refused, write_outcome
from airflow_provider_taskhub.workers.activities.runner import (
    Runner,
    action_of,
    request_of,
    traced,
    warn_of_crash,
)
from airflow_provider_taskhub.workers.activities.silence import Silence
from airflow_provider_taskhub.workers.activities.work_items import WorkItems
from airflow_provider_taskhub.workers.executors.attempt_values import ActivityOutcome, ActivityRequest, Crashes, tag_of
from airflow_provider_taskhub.workers.peers import Peers

log = structlog.get_logger(__name__)


LOCKED_FILE_PAUSE = 300.0
"""Seconds for which an executor of an embedded hub can stand still. The attempt itself may have locked the hub's file,
for example with the command line, and its end frees the file."""
PLACE_AGAIN = 5.0
"""Seconds after which the next attempt of a call whose attempt has crashed asks again for a place."""
LOCAL_SPARK_PAUSE = 60.0
"""Seconds for which an executor with a local Spark can stand still. Spark fails the jobs of an executor that has sent
no heartbeat for two minutes."""


class RecordedActivities:
    """Processes work items of activities with an activity record.

    :param me: the identity of this worker, which it writes into the records that it claims.
    :param peers: tells which other workers are proven dead.
    :param work_items: frees the slot of a work item that waits until another worker counts as silent.
    :param begins: tells whether an activity may begin.
    :param responses: sends the responses and deletes the work items.
    :param spark_master: the setting ``spark.master`` of this worker.
    :param embedded: whether the hub is a SQLite file.
    :param taken_over: called with the name of the lost worker when this worker has taken over one of its attempts.
    :param limits: the limit of the activity that this object processes; None: its activities have no limit.
    """

    def __init__(
        self,
        *,
        hub: Hub,
        runner: Runner,
        me: WorkerIdentity,
        times: LeaseTimes,
        peers: Peers,
        work_items: WorkItems,
        begins: Begins,
        responses: Responses,
        spark_master: str,
        embedded: bool,
        taken_over: Callable[[str], None],
        limits: Admission | None = None,
    ) -> None:
        self._limits = limits
        self._hub, self._runner, self._me, self._times = hub, runner, me, times
        self._peers, self._work_items, self._begins, self._responses = peers, work_items, begins, responses
        self._spark_master, self._spark_server = spark_master, connect_server(spark_master)
        self._embedded, self._taken_over = embedded, taken_over
        self._left_work = LeftWork(runner, begins)
        self._live: Counter[tuple[str, str]] = Counter()
        """How often this worker runs, or tries to claim, the attempt of a record, by the record's key. A message that
        comes twice makes two tries for one record."""

    async def process(self, held: Delivery, event: TaskScheduled, definition: ActivityDefinition) -> None:
        crashes: Crashes | None = Crashes()
        last: ActivityRecord | None = None
        try:
            while crashes is not None:
                try:
                    claimed = await self._claim(held, event, definition, begun=last is not None)
                except Unasked as error:
                    if crashes == Crashes():
                        raise
                    raise Unavailable(str(error), maybe_done=False) from error  # an attempt has begun
                if claimed is None:
                    return
                attempt, begin_by = claimed
                last = record = attempt.record
                request = replace(
                    request_of(held, event, definition, attempt=record.attempt, crashes=crashes, begin_by=begin_by),
                    spark_session=record.spark_session,
                    left_sessions=attempt.left_sessions,
                    saved=record.saved,
                )
                try:
                    crashes = await self._run(held, event, definition, attempt, request, crashes)
                finally:
                    self._live -= Counter([_key(record)])
        finally:
            if self._limits is not None:
                if last is not None:
                    await self._limits.leave(last, held)
                else:
                    await self._limits.dropped(held)

    async def dropped(self, held: Delivery) -> None:
        """Note that a call of an activity with a limit does not begin."""
        if self._limits is not None:
            await self._limits.dropped(held)

    async def _run(
        self,
        held: Delivery,
        event: TaskScheduled,
        definition: ActivityDefinition,
        attempt: RecordedAttempt,
        request: ActivityRequest,
        crashes: Crashes,
    ) -> Crashes | None:
        """Run an attempt and settle its work item.

        :returns: the crashes so far if the attempt was lost and the next one must follow; None if it is settled.
        """
        record = attempt.record
        try:
            request = await self._with_place(request, record, held)
            outcome = await traced(event, request, partial(attempt.run, self._runner))
            fate = Fate.OPEN
            while outcome.too_late and fate is Fate.OPEN:
                permit = await self._begins.permit(held)
                request, fate = replace(request, begin_by=permit.begin_by), permit.fate
                attempt.has_begun = False
                if fate is Fate.OPEN:
                    request = await self._with_place(request, record, held)
                    outcome = await traced(event, request, partial(attempt.run, self._runner))
        except Superseded as reason:
            log.info("activity_superseded", activity=event.name, attempt=record.attempt, reason=str(reason))
            if isinstance(reason, CutOff):
                await attempt.lose(str(reason))
            await self._left_work.end_sessions(held, attempt.left_sessions)  # the cancel may have come before their end
            await self._cancelled(held, event, definition, attempt)
            return None
        except asyncio.CancelledError:
            await attempt.lose("its worker stopped")
            raise
        except Unasked:
            await attempt.lose("it did not begin")
            raise
        if fate is not Fate.OPEN:
            if await attempt.lose("it did not begin"):
                if fate is not Fate.SUSPENDED:  # no next attempt ends what dead workers have left
                    await self._left_work.end_sessions(held, attempt.left_sessions)
                    cleaned = await self._left_work.clean_up(held, event, definition, record)
                    await self._forget_state(record, cleaned)
                await self._begins.refuse(held, event, fate)
            else:  # the end of the instance has marked the record as cancelling
                await self._left_work.end_sessions(held, attempt.left_sessions)
                await self._cancelled(held, event, definition, attempt)
            return None
        crashes = crashes.after(outcome)
        if outcome.crashed and not crashes.too_many:
            warn_of_crash(request, outcome)
            await attempt.lose(outcome.failure.error_message if outcome.failure else "executor crashed")
            return crashes
        if outcome.crashed and record.spark_session is not None:  # no attempt follows that would end its session
            await self._left_work.end_sessions(held, (record.spark_session,))
        killed = outcome.crashed or outcome.killed
        attempt.was_killed = attempt.was_killed or killed
        try:
            failed = await self._record_outcome(held, event, definition, attempt, outcome)
        except (PayloadTooLarge, InputError) as error:
            failed = await self._record_outcome(held, event, definition, attempt, refused(event, error))
        if killed and failed:
            with suppress(Unavailable):  # the call is answered already
                await self._left_work.clean_up(held, event, definition, attempt.record, crashes)
        return None

    async def _with_place(self, request: ActivityRequest, record: ActivityRecord, held: Delivery) -> ActivityRequest:
        """Check that an attempt of an activity with a limit has its places, right before it begins.

        :returns: the request, with the time by which the attempt must begin.
        :raises Unasked: if it has lost a place, or the store does not answer.
        """
        limits = self._limits
        if limits is None:
            return request
        sent = self._hub.clock.monotonic()
        if not await limits.confirm(record, held):
            raise Unasked("its place was given to another attempt")
        by = sent + limits.begins_within
        return replace(request, begin_by=by if request.begin_by is None else min(by, request.begin_by))

    async def _claim(
        self, held: Delivery, event: TaskScheduled, definition: ActivityDefinition, *, begun: bool
    ) -> tuple[RecordedAttempt, float] | None:
        """Claim the record of the next attempt.

        While another worker renews the record of the last attempt, this method waits. Right before the claim it asks
        whether the activity may begin.

        :param begun: True if this worker has run an attempt for this delivery of the work item.
        :returns: the attempt, and the time by which it must begin. None if there is no next attempt: the activity may
            not begin, or an earlier attempt has an outcome and its response was sent again.
        """
        hub, instance = self._hub, held.message.instance
        silence = Silence(hub.clock, self._times.take, self._times.renew)
        # The first delivery saves the read: if a record exists nevertheless, the claim below fails, and the record is
        # read then.
        read = held.deliveries > 1 or (self._limits is not None and held.envelope.waiting_since is not None)
        paused = False
        while True:
            found = await records.attempts(hub.store, hub.names, instance, event.event_id) if read else []
            known, read, last = read, True, found[-1] if found else None
            reaction, silent = self._reaction(event, last, silence)
            match reaction:
                case ActivityReaction.REPEAT if last is not None:
                    await self._respond_again(held, event, *last)
                    return None
                case ActivityReaction.DROP:
                    await self._left_work.end_sessions(held, sessions_of(found))
                    await self._settle_cancelled(held, event, "its instance was ended")
                    return None
                case ActivityReaction.CLOSE if last is not None:
                    if await self._begins.is_needed(held):
                        await self._left_work.end_sessions(held, sessions_of(found))
                        await self._take_back_cancel(*last)
                        continue
                    cleaned = await self._left_work.end(held, event, definition, found)
                    with suppress(Conflict):  # if the record has changed, its worker is alive: read again
                        await self._close(held, event, *last, ActivityHappening.SILENT, cleaned=cleaned)
                        return None
                    await self._forget_state(last[0], cleaned)
                    continue
                case ActivityReaction.WAIT:
                    if not paused:
                        paused = True
                        self._work_items.pause(held)
                        if self._limits is not None:
                            self._limits.decided(held)
                    if (
                        silence.needs_proof
                        and last is not None
                        and await records.is_writable(hub.store, hub.names, last[0])
                    ):
                        silence.proven()
                    await hub.clock.sleep(min(1.0, self._times.scan.total_seconds()))
                    if held.gone:
                        self._work_items.reader.release([held])
                        return None
                    continue
            if paused:
                await self._work_items.slots.resume(held)
                paused = False
                continue  # the wait for a slot took time: read the record again
            permit = await self._begins.permit(held)
            if permit.older and not known:
                continue  # its record may say that it was cancelled: then it needs no place of a limit
            if permit.fate is not Fate.OPEN:
                if not known:
                    continue  # there may be a record nevertheless, which must be closed
                cleaned = permit.fate is not Fate.SUSPENDED and await self._left_work.end(
                    held, event, definition, found
                )
                if last is not None and silent is not None and permit.fate is not Fate.SUSPENDED:
                    # No next attempt marks the record of the dead worker.
                    with suppress(Conflict):
                        await self._close(held, event, *last, ActivityHappening.UNWANTED, cleaned=cleaned)
                        return None
                    await self._forget_state(last[0], cleaned)
                    continue
                if permit.fate is Fate.CANCELLED and not await self._take_away(held, event, definition, last):
                    continue  # another worker has claimed this attempt first: read its record
                await self._begins.refuse(held, event, permit.fate)
                return None
            claim = self._new_record(held, event, definition, last[0] if last else None)
            if self._limits is not None and not await self._limits.take(claim, held):
                if not begun:
                    await self._limits.turn_away(held, self._work_items.reader)
                    return None
                # It waits here: with the next delivery, the count of its crashes would begin anew.
                paused = True
                self._work_items.pause(held)
                await hub.clock.sleep(PLACE_AGAIN)
                if held.gone:
                    self._work_items.reader.release([held])
                    return None
                continue
            asked, etag = hub.clock.monotonic(), None
            self._live[_key(claim)] += 1
            try:
                etag = await self._write_claim(claim, silent)
            finally:
                if etag is None:
                    self._live -= Counter([_key(claim)])
                    if self._limits is not None:
                        self._limits.forget(claim, held)
            if etag is None:
                continue  # another worker has claimed this attempt first: read its record
            if silent is not None:
                before = records.decode(silent).worker
                if before != str(self._me):  # it had lost the attempt, and is not lost itself
                    self._taken_over(before)
                log.warning(
                    "activity_taken_over",
                    activity=event.name,
                    instance_id=instance.instance_id,
                    task_id=event.event_id,
                    attempt=claim.attempt,
                    before=before,
                )
            attempt = RecordedAttempt(
                hub,
                self._times,
                held,
                claim,
                etag,
                renewed=asked,
                longest_pause=self._longest_pause(definition),
                left_sessions=sessions_of(found),
            )
            return attempt, permit.begin_by

    async def _take_away(
        self,
        held: Delivery,
        event: TaskScheduled,
        definition: ActivityDefinition,
        last: tuple[ActivityRecord, Entity] | None,
    ) -> bool:
        """Write the record of the next attempt of a cancelled call as cancelled, so that no worker begins it. A copy of
        the work item may be elsewhere, and the permit there may be older than the cancel.

        :returns: False if another worker has claimed the attempt first.
        """
        claim = self._new_record(held, event, definition, last[0] if last else None)
        now = self._hub.clock.utc_now()
        taken = react_activity(ActivityState.QUEUED, ActivityHappening.CANCEL).state
        return await self._write_claim(replace(claim, state=RecordState(taken), ended=now), None) is not None

    def _reaction(
        self, event: TaskScheduled, last: tuple[ActivityRecord, Entity] | None, silence: Silence
    ) -> tuple[ActivityReaction, Entity | None]:
        """Decide what to do after reading the record of the last attempt.

        :param last: the record and its row; None if there is no record.
        :returns: the reaction, and the row of the record if its worker is dead or silent: the claim of the next attempt
            then also changes this row.
        """
        if last is None:
            return ActivityReaction.RUN, None
        record, entity = last
        state, silent = _known(record), None
        reaction = react_activity(state, ActivityHappening.CLAIMED).reaction
        late = silence.lasts(entity)
        if record.worker == str(self._me):  # this worker knows whether the attempt runs, however old the record is
            late = _key(record) not in self._live
        if reaction is ActivityReaction.WAIT and (late or self._peers.is_dead(record.worker)):
            reaction, silent = react_activity(state, ActivityHappening.SILENT).reaction, entity
        if reaction is not ActivityReaction.WAIT and not is_of(record, event):
            reaction = ActivityReaction.RUN_NEXT  # the record belongs to an action that a rewind has undone
        return reaction, silent

    async def _write_claim(self, claim: ActivityRecord, silent: Entity | None) -> str | None:
        """Write the record of a new attempt.

        :param silent: the row of the last attempt, whose worker is dead or silent; None if no attempt is taken over.
        :returns: the ETag of the new record; None if another worker has claimed the attempt first.
        :raises Unavailable: if the store did not answer, and the new record cannot be found.
        """
        hub = self._hub
        try:
            etags = await hub.store.execute(records.claim(hub.names, claim, supersede=silent))
        except Conflict:
            return None
        # the write may have succeeded: a second write would be refused, as if another worker had claimed the attempt
        except Unavailable:
            found = await records.newest(hub.store, hub.names, claim)
            # Two copies of a work item that this worker claims at the same moment make equal records.
            if found is None or found[0] != claim or self._live[_key(claim)] > 1:
                raise
            return found[1].etag
        assert isinstance(etags, tuple)
        return etags[0]

    def _longest_pause(self, definition: ActivityDefinition) -> float:
        """Return the seconds for which an attempt can stand still while its record cannot be renewed.

        A Spark driver that stands still does not stop the tasks that it has started on the machines of a cluster. With
        Spark Connect the worker of the next attempt ends the session on the server first, so the driver can wait.
        """
        if not definition.spark or self._spark_server is not None:
            return LOCKED_FILE_PAUSE if self._embedded else math.inf
        return LOCAL_SPARK_PAUSE if self._spark_master.startswith("local") else 0.0

    def _new_record(
        self, held: Delivery, event: TaskScheduled, definition: ActivityDefinition, last: ActivityRecord | None
    ) -> ActivityRecord:
        instance, number = held.message.instance, last.attempt + 1 if last else 1
        action = action_of(held, event)
        server = self._spark_server if definition.spark else None
        return ActivityRecord(
            instance=instance,
            task_id=event.event_id,
            action_id=action,
            attempt=number,
            name=event.name,
            state=RecordState(react_activity(ActivityState.QUEUED, ActivityHappening.CLAIMED).state),
            worker=str(self._me),
            executor="",
            claimed=self._hub.clock.utc_now(),
            job_group=tag_of(action, number) if server else None,
            # The session's name is stored before the attempt runs: if this worker is killed, the session runs on in the
            # Spark Connect server, and the worker of the next attempt finds and ends it by this name.
            spark_session=server.new_session() if server else None,
            log=log_name(instance, event.event_id, number),
            saved=last.saved if last is not None and is_of(last, event) else None,
        )

    async def _cancelled(
        self, held: Delivery, event: TaskScheduled, definition: ActivityDefinition, attempt: RecordedAttempt
    ) -> None:
        """Change the record of an attempt that this worker has ended from ``cancelling`` to ``cancelled``.

        If the record says something else, for example that another worker has taken over, the work item is given back.
        If the record is missing, the instance was purged, and the work item is deleted.
        """
        found = await records.newest(self._hub.store, self._hub.names, attempt.record)
        if found is None:
            await self._responses.drop_purged(held)
            return
        reaction = react_activity(_known(found[0]), ActivityHappening.CONFIRMED).reaction
        if reaction is ActivityReaction.CLOSE and await self._begins.is_needed(held):
            await self._take_back_cancel(*found)
            reaction = ActivityReaction.REQUEUE
        if reaction is ActivityReaction.CLOSE:
            cleaned = False
            if not attempt.has_begun or attempt.was_killed:  # it has not ended what is left
                cleaned = await self._left_work.clean_up(held, event, definition, attempt.record)
            try:
                await self._close(held, event, *found, ActivityHappening.CONFIRMED, cleaned=cleaned)
            except Conflict:
                await self._forget_state(attempt.record, cleaned)
                raise
        elif held.gone:
            self._work_items.reader.release([held])
        else:
            await self._work_items.reader.give_back([held], delay=timedelta(seconds=1))

    async def _forget_state(self, record: ActivityRecord, cleaned: bool) -> None:
        """Remove a state from the newest record, because what it names has ended: a rewind may have come meanwhile, and
        its attempt must not go on with it.

        :param cleaned: False: nothing has ended, and nothing is removed.
        """
        for _ in range(records.TRIES if cleaned else 0):
            found = await records.newest(self._hub.store, self._hub.names, record)
            if found is None or found[0].saved != record.saved:
                return
            with suppress(Conflict):
                await self._hub.store.execute(
                    records.update(self._hub.names, replace(found[0], saved=None), found[1].etag)
                )
                return

    async def _take_back_cancel(self, record: ActivityRecord, entity: Entity) -> None:
        """Record that a cancelled attempt is lost: a rewind has opened its instance again, so the next attempt follows.

        If another worker or client has changed the record, nothing is written.
        """
        ended = replace(records.moved(record, ActivityHappening.WANTED), ended=self._hub.clock.utc_now())
        with suppress(Conflict):
            await self._hub.store.execute(records.update(self._hub.names, ended, entity.etag))

    async def _close(
        self,
        held: Delivery,
        event: TaskScheduled,
        record: ActivityRecord,
        entity: Entity,
        happening: ActivityHappening,
        *,
        cleaned: bool = False,
    ) -> None:
        """Record that an attempt is cancelled, and settle its work item.

        :param happening: why nothing of the attempt runs any more.
        :param cleaned: True: a clean-up has succeeded. The saved state is removed, because no later attempt may use it.
        :raises Conflict: if another worker or client has changed the record.
        """
        ended = replace(records.moved(record, happening), ended=self._hub.clock.utc_now())
        ended = replace(ended, saved=None) if cleaned else ended
        await self._hub.store.execute(records.update(self._hub.names, ended, entity.etag))
        await self._settle_cancelled(held, event, "cancelled")

    async def _settle_cancelled(self, held: Delivery, event: TaskScheduled, why: str) -> None:
        """Answer the call of an attempt that was cancelled, if its orchestrator has cancelled it; else delete the work
        item, because the instance has ended.

        :param why: the reason for the log, if the work item is deleted.
        """
        if await self._begins.is_cancelled(held):
            await self._begins.confirm_cancel(held, event)
        else:
            await self._responses.drop(held, why)

    async def _record_outcome(
        self,
        held: Delivery,
        event: TaskScheduled,
        definition: ActivityDefinition,
        attempt: RecordedAttempt,
        outcome: ActivityOutcome,
    ) -> bool:
        """Record the outcome of an attempt, and send the response.

        :returns: whether this outcome counts; False: the attempt was cancelled, or another worker has it.
        """
        if attempt.record.state is RecordState.CANCELLING:  # the cancel came first
            await self._cancelled(held, event, definition, attempt)
            return False
        ok = outcome.failure is None
        ended = replace(
            records.moved(attempt.record, ActivityHappening.SUCCEEDED if ok else ActivityHappening.FAILED),
            ended=self._hub.clock.utc_now(),
            progress=1.0 if ok and attempt.record.progress is not None else attempt.record.progress,
            result=outcome.result,
            failure=outcome.failure,
            lineage=outcome.lineage,
        )
        large = records.result_blob(self._hub.names, ended)  # made once for all tries, because compressing is slow
        try:
            await self._settle(held, event, attempt, ended, outcome, large)
        except (Conflict, NotFound):
            found = await records.newest(self._hub.store, self._hub.names, ended)
            if found is not None and (found[0].worker, found[0].state) == (ended.worker, ended.state):
                # An earlier try has written the outcome, but the store's answer was lost.
                await self._respond_again(held, event, *found)
                return True
            try:
                await attempt.reclaim()
                await self._settle(held, event, attempt, ended, outcome, large)
            except Conflict:
                log.info(
                    "activity_superseded",
                    activity=event.name,
                    attempt=ended.attempt,
                    reason="the record was changed by another worker or client before the outcome was written",
                )
                await self._cancelled(held, event, definition, attempt)
                return False
        return True

    async def _settle(
        self,
        held: Delivery,
        event: TaskScheduled,
        attempt: RecordedAttempt,
        ended: ActivityRecord,
        outcome: ActivityOutcome,
        large: PutBlob | None,
    ) -> None:
        """Write the outcome, then send the response. Each is repeated while the store does not answer.

        :param ended: the record with the outcome.
        :param large: the blob for a result that is too large for the record; None if the record has room.
        :raises Conflict: if the record was changed, perhaps by a write of this worker whose answer was lost.
        :raises NotFound: if the record was purged.
        """
        self._work_items.leave(held)  # the activity has ended: its slot must not wait for the store
        steps = (
            Step(name="result", operations=() if large is None else (large,)),
            Step(name="outcome", operations=(attempt.becomes(ended),)),
        )
        await write_outcome(lambda: self._hub.store.commit(Unit(steps=steps)), hub=self._hub, activity=event.name)
        await self._responses.respond(held, event, outcome)

    async def _respond_again(
        self, held: Delivery, event: TaskScheduled, record: ActivityRecord, entity: Entity
    ) -> None:
        """Send the response again, with the outcome that the record contains."""
        result = await records.result_of(self._hub.store, self._hub.names, entity)
        await self._responses.respond_or_fail(held, event, ActivityOutcome(result=result, failure=record.failure))


def _known(record: ActivityRecord) -> ActivityState:
    """Return the state of a record.

    :raises RecordUnreadable: for a state that this version does not know. Running the activity again could be wrong.
    """
    if record.state is RecordState.UNKNOWN:
        raise records.RecordUnreadable(
            f"attempt {record.attempt} of activity {record.name!r} #{record.task_id} of instance "
            f"{record.instance.instance_id!r} is in a state that this version does not know: upgrade this worker"
        )
    return ActivityState(record.state)


def _key(record: ActivityRecord) -> tuple[str, str]:
    """Return the identity of the record of an attempt."""
    instance = record.instance
    return instance.instance_id, records.row_key(instance.execution_id or "", record.task_id, record.attempt)
