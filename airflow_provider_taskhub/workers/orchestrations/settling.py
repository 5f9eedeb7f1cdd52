"""Settles the messages that no episode takes: deletes them, gives them back, or moves them to quarantine.

An episode is one run of an orchestrator. Quarantine is the table of messages that cannot be processed.

Three cases need work before a message is deleted. A repeated message shows that the last checkpoint may have been cut
off after its history was written; then the missing writes of that checkpoint are done. A suspension or resume that
comes before the first checkpoint of its run is stored in the sentinel, the last row of the history. The name of a
child's run that never begins is stored there too.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from secrets import token_hex

import structlog

from airflow_provider_taskhub.engine.children import left_over
from airflow_provider_taskhub.engine.events import (
    ExecutionCompleted,
    ExecutionResumed,
    ExecutionStarted,
    ExecutionSuspended,
    ExecutionTerminated,
    OrchestrationInstance,
    Status,
    TaskScheduled,
)
from airflow_provider_taskhub.engine.identity import same_start
from airflow_provider_taskhub.engine.parent_response import refusal, response, start_of_cancelled
from airflow_provider_taskhub.errors import Conflict, NotFound, StorageError, UnknownOrchestrator
from airflow_provider_taskhub.hub.admission.facts import Facts, Judged, Verdict, delay
from airflow_provider_taskhub.hub.formats.instance_rows import changed, repair_row, suspension_row
from airflow_provider_taskhub.hub.history import activity_records as records
from airflow_provider_taskhub.hub.history import checkpoint
from airflow_provider_taskhub.hub.history.checkpoint import completion
from airflow_provider_taskhub.hub.history.load import HistoryUnreadable, mark_unreadable, sentinel_of
from airflow_provider_taskhub.hub.history.salvage import salvage
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import Suspension
from airflow_provider_taskhub.hub.queues import quarantine
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.hub.queues.outgoing import OutboundMessage, sending
from airflow_provider_taskhub.storage.primitives import (
    MAX_VISIBILITY,
    DeleteBlob,
    DeleteMessage,
    Entity,
    PutBlob,
    Step,
    Unit,
)
from airflow_provider_taskhub.workers.activities.cancellation import ActivityCancellation, failure_of_cancelled
from airflow_provider_taskhub.workers.orchestrations.commit import Aborted
from airflow_provider_taskhub.workers.orchestrations.instance_limits import InstanceLimits
from airflow_provider_taskhub.workers.orchestrations.loading import LoadedInstance
from airflow_provider_taskhub.workers.orchestrations.sessions import Session
from airflow_provider_taskhub.workers.orchestrations.triage import TriagedBatch, unchanged
from airflow_provider_taskhub.workers.orchestrations.watchdog import Episodes

log = structlog.get_logger(__name__)


class Settler:
    """Settles the messages that no episode takes.

    :param episodes: tells the watchdog which episode runs. A repair uses it too, because it may run orchestrator code.
    :param cancelling: cancels running activities of an instance that has ended.
    :param limits: the limits of instances.
    """

    def __init__(self, hub: Hub, episodes: Episodes, cancelling: ActivityCancellation, limits: InstanceLimits) -> None:
        self._hub, self._episodes, self._cancelling, self._limits = hub, episodes, cancelling, limits

    async def settle(self, session: Session[LoadedInstance], live: LoadedInstance, found: TriagedBatch) -> None:
        """Settle all messages of a batch that the next episode does not take.

        :param found: the messages of the batch, sorted by the verdict of admission.
        """
        for held, judged in found.discard:
            self._log_discarded(session, held, judged.reason)
        discarded = [held for held, _ in found.discard]
        if discarded and live.past:
            await self.repair(session, live, discarded)
        await self.end_left_over(session, live, discarded)
        for held, run in found.record:
            await self._record(session, live, held, run)
        for held in discarded:
            if live.stored.suspension_stamp == held.stamp and held.identity in live.stored.consumed:
                # The worker that stored the message in the sentinel may have died before it wrote the row.
                await self._show_in_row(session, held)
        await self._refuse(session, live, found)
        refused = [held for held, _, _ in found.refuse]
        await self.delete(session, [*discarded, *refused, *(held for held, _ in found.record)])
        for held, judged in found.discard:
            if judged.forgotten and held.envelope.blob_name:
                blob = DeleteBlob(container=self._hub.names.large_messages, name=held.envelope.blob_name)
                await self._hub.store.execute(blob)
        await self._delete_stored(session, found.stored)
        await self._give_back_later(session, found)

    async def _delete_stored(self, session: Session[LoadedInstance], messages: Sequence[Delivery]) -> None:
        """Delete messages that were copied into a row of the hub. The row still uses their payload blobs."""
        for held in messages:
            async with held.changing:  # a renewal under way would make the receipt of the deletion stale
                deletion = DeleteMessage(queue=held.queue, message=held.receipt, quiet=True)
                await self._hub.store.commit(Unit(steps=(Step(name="stored", operations=(deletion,)),)))
            session.reader.release([held])

    async def end_left_over(
        self, session: Session[LoadedInstance], live: LoadedInstance, messages: Sequence[Delivery]
    ) -> None:
        """If one of the messages is a terminate for a failed instance, end its activities that still run.

        If the message is for its children too, end these.
        """
        hub, instance_id = self._hub, session.instance_id
        ends = [
            event
            for event in (held.message.event for held in messages)
            if isinstance(event, ExecutionTerminated)
            and event.taskhub_execution_id is not None
            and same_start(event.taskhub_execution_id, live.execution_id)
        ]
        if live.ended is not Status.FAILED or not ends:
            return
        if self._cancelling.concerns(live.open_tasks, None):
            await self._cancelling.cancel(instance_id, live.execution_id)
        recursive = [event for event in ends if event.taskhub_recurse]
        if not recursive:
            return
        found = await salvage(hub.store, hub.names, instance_id)
        if found.lock is None or found.lock.etag != live.stored.sentinel_etag:
            return  # it was rewound, started again or purged meanwhile
        children = left_over(found.events, recursive[-1], instance_id, hub.clock.utc_now())
        made = [hub.message_to(one.event, one.target, sender=live.execution.instance) for one in children]
        if made:
            await hub.store.commit(Unit(steps=sending(made), check=session.reader.tenure.check))

    async def cancel_calls(
        self, session: Session[LoadedInstance], live: LoadedInstance, numbers: Collection[int]
    ) -> None:
        """End the activities of calls that the orchestrator has cancelled. Answer the calls that no worker has begun.

        :param numbers: the numbers of the calls. Their activities have records, or this worker does not know whether
            they have.
        """
        calls = {number: call for number in numbers if isinstance(call := live.scheduled.get(number), TaskScheduled)}
        if not calls:
            return
        hub = self._hub
        instance = OrchestrationInstance(instance_id=session.instance_id, execution_id=live.execution_id)
        ended = await self._cancelling.cancel_calls(instance, calls, withdraw=live.ended is None)
        now = hub.clock.utc_now()
        answers = [records.answer(call, now, result=None, failure=failure_of_cancelled(call)) for call in ended]
        if answers:
            made = [hub.message_to(one, instance, sender=instance) for one in answers]
            await hub.store.commit(Unit(steps=sending(made), check=session.reader.tenure.check))

    async def delete(self, session: Session[LoadedInstance], messages: Sequence[Delivery]) -> None:
        """Delete messages from their queue."""
        if messages:
            step = Step(name="discard", operations=tuple([held.deletion() for held in messages]))
            await self._hub.store.commit(Unit(steps=(step,)))
        session.reader.release(messages)

    async def give_back(
        self, session: Session[LoadedInstance], batch: Sequence[Delivery], error: Exception, *, failed: bool = True
    ) -> None:
        """Give messages back after an error; move a message that was tried too often (``is_spent``) to quarantine.

        :param error: the error that quarantine shows as the cause.
        :param failed: True counts one more failure for each message. False if the messages are not to blame, for
            example because the store did not answer.
        """
        spent = [held for held in batch if quarantine.is_spent(held, failed=failed)]
        rest = [held for held in batch if held not in spent]
        failures = max((held.envelope.failures for held in rest), default=0)
        pause = delay(Verdict.RETRY_LATER, failures) if failed else timedelta(seconds=1)
        await session.reader.give_back(rest, delay=pause, failed=failed)
        for held in spent:
            await session.reader.move_to_quarantine(held, quarantine.spent(held, error))

    async def mark_unreadable(self, instance_id: str, error: HistoryUnreadable) -> None:
        """Write into the instance row that the history cannot be read, so that clients see why the instance waits."""
        try:
            await mark_unreadable(self._hub.store, self._hub.names, instance_id, str(error))
        except StorageError as failed:  # a worker tries again at the next delivery of the messages
            log.warning("mark_failed", instance_id=instance_id, error=str(failed))

    async def repair(self, session: Session[LoadedInstance], live: LoadedInstance, batch: Sequence[Delivery]) -> None:
        """Complete the last checkpoint of an instance if it was cut off after its history was written.

        A message that is delivered again shows that this may have happened. The repair writes the instance row and the
        completion hint, and cancels activities whose instance has ended or whose calls were cancelled.

        :param batch: the messages to be settled. The watchdog puts them into quarantine if the replay does not end.
        :raises Aborted: if another owner has committed since the history was loaded, so that its newer instance row
            must not be overwritten.
        """
        hub, instance_id = self._hub, session.instance_id
        row = await hub.instance(instance_id, payloads=("custom_status",))
        await unchanged(hub, session.instance_id, live.stored.sentinel_etag)
        with self._episodes.computing(session.instance_id, live.execution_id, batch):
            replayed, custom_status = (False, None) if live.stuck else _custom_status(live)
        repaired = repair_row(
            live.past,
            row,
            names=hub.names,
            now=hub.clock.utc_now(),
            container_url=hub.container_url,
            custom_status=custom_status,
            replayed=replayed,
        )
        if repaired is not None:
            etag = await self._merge(session, *repaired, etag=row.etag if row is not None else None)
            live.stored = replace(live.stored, row_etag=etag, unprojected_events=())
            log.info("instance_row_repaired", instance_id=session.instance_id)
        calls = self._cancelling.calls(live.past, live.open_tasks)
        live.past = ()
        if live.ended in (None, Status.FAILED):
            await self.cancel_calls(session, live, calls)
        if live.ended is not None:
            hints = completion(hub.names, live.execution.instance, live.ended, live.tags)
            for hint in (*hints, *hub.awaited.hints(hub.names, instance_id)):
                await hub.store.execute(hint)
            if self._cancelling.concerns(live.open_tasks, live.ended):
                await self._cancelling.cancel(session.instance_id, live.execution_id)
            await self._limits.ended(live, live.execution.instance)

    async def _record(self, session: Session[LoadedInstance], live: LoadedInstance, held: Delivery, run: str) -> None:
        """Store a suspension or resume in the sentinel, because it came before the first checkpoint of its run.

        The sentinel is the last row of the history. The first episode of the run reads it and begins suspended or not.

        :param run: the execution id of the run.
        :raises Aborted: if another worker has written the sentinel since the history was loaded.
        """
        hub, event, before = self._hub, held.message.event, None
        assert isinstance(event, ExecutionSuspended | ExecutionResumed)
        if live.stored.sentinel_etag is not None:
            before = await sentinel_of(hub.store, hub.names, session.instance_id)
            if before is None or before.etag != live.stored.sentinel_etag:
                raise Aborted("another owner has committed since the history was loaded")
        suspension = None
        known = live.stored.suspension
        if isinstance(event, ExecutionSuspended) and known is not None and same_start(known.run, run):
            suspension = known  # the first one counts
        elif isinstance(event, ExecutionSuspended):
            suspension = Suspension(run=run, reason=event.reason or "", by=event.taskhub_by or "", at=event.timestamp)
        write, stored = checkpoint.recorded(
            hub.names,
            session.instance_id,
            before,
            live.stored,
            run=run,
            stamp=held.stamp,
            suspension=suspension,
            identity=held.identity,
            commit_id=token_hex(16),
        )
        await self._write_sentinel(session, live, stored, Step(name="sentinel", operations=(write,)))
        await self._show_in_row(session, held)

    async def _refuse(self, session: Session[LoadedInstance], live: LoadedInstance, found: TriagedBatch) -> None:
        """Store in the sentinel the names of the runs that never begin, and answer their parents.

        A start of such a run that comes later, or comes again, is then discarded, as if the run had ended. No history
        and no instance row is written, because both belong to another run of the same instance id. The answers are sent
        first. If the worker dies before it stores the names, the starts come again.

        :raises Aborted: if another worker has written the sentinel since the history was loaded.
        """
        if not found.refuse:
            return
        hub, answers = self._hub, list[OutboundMessage]()
        for held, judged, run in found.refuse:
            event, now = held.message.event, hub.clock.utc_now()
            answer = None
            instance = OrchestrationInstance(instance_id=session.instance_id, execution_id=run)
            if isinstance(event, ExecutionTerminated):
                instance = replace(instance, execution_id=event.taskhub_execution_id or run)
                start = start_of_cancelled(event, instance, held.envelope.sender, now)
                ended = ExecutionCompleted(timestamp=now, status=Status.TERMINATED, result=event.input)
                answer = response(start, instance, ended)
            elif isinstance(event, ExecutionStarted) and event.parent is not None:
                instance, answer = event.instance, refusal(event, event.parent, judged.reason, now)
            if answer is not None:
                answers.append(hub.message_to(answer.event, answer.target, sender=instance))
            level = logging.WARNING if isinstance(event, ExecutionStarted) else logging.INFO
            log.log(level, "child_refused", instance_id=session.instance_id, reason=judged.reason)
        write, stored = checkpoint.refused(
            hub.names, session.instance_id, live.stored, [name for _, _, name in found.refuse]
        )
        await self._write_sentinel(session, live, stored, *sending(answers), Step(name="sentinel", operations=(write,)))

    async def steer(self, session: Session[LoadedInstance], live: LoadedInstance) -> None:
        """Store the stamp of a suspension that the engine has dropped, before its message is deleted.

        :raises Aborted: if another worker has written the sentinel since the history was loaded.
        """
        write = checkpoint.steered(self._hub.names, session.instance_id, live.stored)
        await self._write_sentinel(session, live, live.stored, Step(name="sentinel", operations=(write,)))

    async def _write_sentinel(
        self, session: Session[LoadedInstance], live: LoadedInstance, stored: checkpoint.Stored, *steps: Step
    ) -> None:
        """Commit steps, of which the last one writes the sentinel.

        :param stored: what is stored after the commit, still with the old ETag of the sentinel.
        :raises Aborted: if another worker has written the sentinel since the history was loaded.
        """
        try:
            *_, (etags,) = await self._hub.store.commit(Unit(steps=steps, check=session.reader.tenure.check))
        except (Conflict, NotFound) as error:
            raise Aborted("another worker has written the sentinel") from error
        assert isinstance(etags, tuple)
        live.remember(replace(stored, sentinel_etag=etags[-1]))

    async def _show_in_row(self, session: Session[LoadedInstance], held: Delivery) -> None:
        """Show a suspension or resume that is stored in the sentinel also in the instance row.

        Nothing is written if the row is missing or not Pending. If others change the row at the same time, nothing is
        written either: the first checkpoint of the run writes the row.
        """
        hub, event = self._hub, held.message.event
        assert isinstance(event, ExecutionSuspended | ExecutionResumed)
        row = await hub.instance(session.instance_id)
        if row is None or row.status is not Status.PENDING:
            return
        if row.is_held and isinstance(event, ExecutionSuspended):
            return
        entity, blobs = suspension_row(
            event,
            instance_id=session.instance_id,
            names=hub.names,
            now=hub.clock.utc_now(),
            container_url=hub.container_url,
        )
        with suppress(Conflict, NotFound):
            await self._merge(session, entity, blobs, etag=row.etag)

    async def _merge(
        self, session: Session[LoadedInstance], entity: Entity, blobs: Sequence[PutBlob], *, etag: str | None
    ) -> str:
        row = changed(self._hub.names, entity, etag)
        hints = self._hub.awaited.hints(self._hub.names, session.instance_id)
        steps = (
            Step(name="payloads", operations=tuple(blobs)),
            Step(name="instance", operations=(row,)),
            Step(name="completion", operations=hints),
        )
        etags = (await self._hub.store.commit(Unit(steps=steps, check=session.reader.tenure.check)))[1][0]
        assert isinstance(etags, tuple)
        return etags[0]

    async def _give_back_later(self, session: Session[LoadedInstance], found: TriagedBatch) -> None:
        """Give back the messages that must wait, and move those with too many failures to quarantine."""
        groups: dict[tuple[timedelta, bool], list[Delivery]] = {}
        for held, judged in found.later:
            if judged.verdict is Verdict.DEFER:
                groups.setdefault((min(judged.pause, MAX_VISIBILITY), False), []).append(held)
            elif held.envelope.failures >= quarantine.MAX_FAILURES:
                await session.reader.move_to_quarantine(held, quarantine.of_held(held, judged.reason))
            else:
                pause = delay(judged.verdict, held.envelope.failures)
                groups.setdefault((pause, True), []).append(held)
                self._log_abandoned(session, found.facts, held, judged, pause)
        for (pause, failed), messages in groups.items():
            await session.reader.give_back(messages, delay=pause, failed=failed, begun=failed)

    def _log_abandoned(
        self, session: Session[LoadedInstance], facts: Facts, held: Delivery, judged: Judged, pause: timedelta
    ) -> None:
        log.log(
            logging.WARNING if judged.verdict is Verdict.RETRY_SOON else logging.INFO,
            "AbandoningMessage",
            instance_id=session.instance_id,
            event_type=held.message.event.event_type.name,
            enqueued=str(held.inserted) if held.in_queue else None,
            checkpoint=str(facts.checkpointed) if facts.checkpointed else None,
            reason=judged.reason,
            retry_in=pause.total_seconds(),
        )

    def _log_discarded(self, session: Session[LoadedInstance], held: Delivery, reason: str) -> None:
        log.info(
            "message_discarded",
            instance_id=session.instance_id,
            event_type=held.message.event.event_type.name,
            message_id=held.message_id,
            reason=reason,
        )


def _custom_status(live: LoadedInstance) -> tuple[bool, str | None]:
    """Replay the history, and return True and the custom status; False and None if this worker lacks the code."""
    try:
        return True, live.execution.recall()
    except UnknownOrchestrator:
        return False, None
