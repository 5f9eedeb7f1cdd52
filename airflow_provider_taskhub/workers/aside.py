"""What becomes of messages that no episode takes: deleted, given back, or kept aside in quarantine.

Before that, what they tell of is done: the rest of a checkpoint that was cut off behind its history, or a terminate in
front of its instance's start.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import structlog

from airflow_provider_taskhub.engine.events import ExecutionResumed, ExecutionSuspended, ExecutionTerminated, Status
from airflow_provider_taskhub.errors import Conflict, UnknownOrchestrator
from airflow_provider_taskhub.hub.history.checkpoint import completion
from airflow_provider_taskhub.hub.history.instances import (
    cancelled_child_row,
    changed,
    repair_row,
    steered_row,
    terminate_row,
)
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.messages import quarantine
from airflow_provider_taskhub.hub.messages.held import Held
from airflow_provider_taskhub.hub.messages.races import (
    LATE_TURNS,
    Facts,
    Judged,
    Verdict,
    delay,
    is_meant,
    precedes,
    scheduling_id,
)
from airflow_provider_taskhub.hub.messages.sessions import Session
from airflow_provider_taskhub.storage.primitives import (
    MAX_VISIBILITY,
    DeleteBlob,
    Entity,
    PutBlob,
    RowOperation,
    RowVerb,
    Step,
    Transact,
    Unit,
)
from airflow_provider_taskhub.workers.cancelling import Cancelling
from airflow_provider_taskhub.workers.episodes import Episodes
from airflow_provider_taskhub.workers.live import Live, current_execution_id
from airflow_provider_taskhub.workers.sorting import Sorted, unchanged

log = structlog.get_logger(__name__)

CANCEL_AFTER = 6
"""Turns, of 6 s together, that a terminate waits for the start of its instance."""
MAX_KNOWN = 100
"""Suspensions and resumes of one second that are known again."""


class Aside:
    """Settles messages.

    :param episodes: is told while a repair runs user code.
    """

    def __init__(self, hub: Hub, episodes: Episodes, cancelling: Cancelling) -> None:
        self._hub, self._episodes, self._cancelling = hub, episodes, cancelling

    async def settle(self, session: Session[Live], live: Live, found: Sorted) -> None:
        """Settle all of a batch that is not to be processed."""
        for held, reason in found.stale:
            log.info(
                "message_set_aside",
                instance_id=session.instance_id,
                event_type=held.message.event.event_type.name,
                message_id=held.message_id,
                reason=reason,
            )
        if found.stale and live.past:
            await self.repair(session, live, [held for held, _ in found.stale])
        for held in found.cancel:
            judged = await self._cancel_start(session, held)
            if judged.verdict is Verdict.STALE:
                found.stale.append((held, judged.reason))
            else:
                found.later.append((held, judged))
        for held in found.steer:
            if await self._steer(session, held):
                found.stale.append((held, "its row says it until it starts"))
            else:
                found.later.append((held, Judged(verdict=Verdict.WAIT, reason="its instance is not there yet")))
        await self.delete(session, [held for held, _ in found.stale])
        for held, judged in found.later:
            await self._abandon(session, found.facts, held, judged)

    async def delete(self, session: Session[Live], messages: Sequence[Held]) -> None:
        if messages:
            step = Step(name="discard", operations=tuple([held.deletion() for held in messages]))
            await self._hub.store.commit(Unit(steps=(step,)))
        session.reader.release(messages)

    async def give_back(
        self, session: Session[Live], batch: Sequence[Held], error: Exception, *, failed: bool = True
    ) -> None:
        """Give the messages back; what is at its limit is kept aside with the error.

        :param failed: count one more failure in each; False: the store did not answer.
        """
        poison = [held for held in batch if quarantine.is_spent(held, failed=failed)]
        rest = [held for held in batch if held not in poison]
        failures = max((held.envelope.failures for held in rest), default=0)
        pause = delay(Verdict.WAIT, failures) if failed else timedelta(seconds=1)
        await session.reader.give_back(rest, delay=pause, failed=failed)
        for held in poison:
            await session.reader.keep_aside(held, quarantine.spent(held, error))

    async def ends(self, session: Session[Live], batch: list[Held], execution_id: str | None) -> list[Held] | None:
        """What an instance in quarantine is given nevertheless: its end. All else joins what is kept of it.

        :returns: None: it is not in quarantine.
        """
        generation = current_execution_id(execution_id, batch)
        if generation is None or not await session.reader.shuns(session.instance_id, generation):
            return None
        ends = [held for held in batch if isinstance(held.message.event, ExecutionTerminated)]
        for held in batch:
            if held not in ends:
                item = quarantine.of_held(held, "its instance is in quarantine", stuck=generation)
                await session.reader.keep_aside(held, item)
        return ends

    async def repair(self, session: Session[Live], live: Live, batch: Sequence[Held]) -> None:
        """A redelivered message says that a checkpoint may have been cut off behind its history: do the rest.

        :raises Aborted: when another owner has committed since: its row, read after that, would become what it was.
        """
        hub = self._hub
        row = await hub.instance(session.instance_id, payloads=("custom_status",))
        await unchanged(hub, session.instance_id, live.stored.sentinel_etag)
        with self._episodes.computing(session.instance_id, live.execution_id, batch):
            replayed, custom_status = (False, None) if live.stuck else _recalled(live)
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
        live.past = ()
        if live.ended is not None:
            for hint in completion(hub.names, live.execution.instance, live.ended, live.tags):
                await hub.store.execute(hint)
            if self._cancelling.concerns(live):
                await self._cancelling.cancel(session.instance_id, live.execution_id)

    async def _cancel_start(self, session: Session[Live], held: Held) -> Judged:
        """Terminate an instance without a history: its row says it, once its start cannot be under way.

        A scheduled start is found terminated when its time comes. Any other follows its row at once: it is let pass,
        since its first delivery runs without a look at the row.
        """
        hub, event = self._hub, held.message.event
        row = await hub.instance(session.instance_id)
        assert isinstance(event, ExecutionTerminated)
        if row is None and event.taskhub_child is not None:
            return await self._cancel_child(session, held, event)
        if row is None:
            return Judged(verdict=Verdict.WAIT, reason="its instance is not there yet")
        if row.status is not Status.PENDING:
            return Judged(verdict=Verdict.STALE, reason=f"the instance is {row.status} and has no history")
        if not is_meant(event, row.execution_id):
            return Judged(verdict=Verdict.STALE, reason=f"it was to end {event.taskhub_execution_id}")
        if row.scheduled_start is None and held.envelope.failures < CANCEL_AFTER:
            return Judged(verdict=Verdict.RACE, reason="its instance is about to start")
        entity, blobs = terminate_row(
            event,
            instance_id=session.instance_id,
            names=hub.names,
            now=hub.clock.utc_now(),
            container_url=hub.container_url,
        )
        await self._merge(session, entity, blobs, etag=row.etag)
        return Judged(verdict=Verdict.STALE, reason="the instance was terminated before it started")

    async def _cancel_child(self, session: Session[Live], held: Held, event: ExecutionTerminated) -> Judged:
        """Terminate a child that has no row, by inserting a row that says so.

        Not before its start has had time to come. A start that comes later, as no worker had its code, finds the row.
        """
        if held.envelope.failures < CANCEL_AFTER:
            return Judged(verdict=Verdict.RACE, reason="its instance is about to start")
        entity, blobs = cancelled_child_row(
            event,
            instance_id=session.instance_id,
            names=self._hub.names,
            now=self._hub.clock.utc_now(),
            container_url=self._hub.container_url,
        )
        row = Transact(table=self._hub.names.instances, rows=(RowOperation(verb=RowVerb.INSERT, entity=entity),))
        steps = (Step(name="payloads", operations=tuple(blobs)), Step(name="instance", operations=(row,)))
        try:
            await self._hub.store.commit(Unit(steps=steps, check=session.reader.tenure.check))
        except Conflict:
            return Judged(verdict=Verdict.RACE, reason="its instance has just started")
        return Judged(verdict=Verdict.STALE, reason="the instance was terminated before it started")

    async def _steer(self, session: Session[Live], held: Held) -> bool:
        """Suspend or resume an instance before its start: its row says it, since chance would decide which of the two
        messages is delivered first, when the time comes or when a worker has the code.

        :returns: False: it is not Pending any more, or its row has no room for the reason.
        """
        hub, event = self._hub, held.message.event
        row = await hub.instance(session.instance_id)
        assert isinstance(event, ExecutionSuspended | ExecutionResumed)
        if row is None or row.status is not Status.PENDING:
            return False
        known: tuple[str, ...] = ()
        if row.steered is not None:
            if precedes(held.stamp, row.steered.stamp) or held.identity in row.steered.known:
                return True  # it comes again, or was overtaken
            if held.inserted == row.steered.stamp.inserted:
                known = row.steered.known
        entity = steered_row(
            event,
            instance_id=session.instance_id,
            stamp=held.stamp,
            known=(*known, held.identity)[-MAX_KNOWN:],
            now=hub.clock.utc_now(),
        )
        if entity is not None:
            await self._merge(session, entity, (), etag=row.etag)
        return entity is not None

    async def _merge(
        self, session: Session[Live], entity: Entity, blobs: Sequence[PutBlob], *, etag: str | None
    ) -> str:
        row = changed(self._hub.names, entity, etag)
        steps = (Step(name="payloads", operations=tuple(blobs)), Step(name="instance", operations=(row,)))
        etags = (await self._hub.store.commit(Unit(steps=steps, check=session.reader.tenure.check)))[1][0]
        assert isinstance(etags, tuple)
        return etags[0]

    async def _abandon(self, session: Session[Live], facts: Facts, held: Held, judged: Judged) -> None:
        if judged.verdict is Verdict.EARLY:
            await session.reader.give_back([held], delay=min(judged.pause, MAX_VISIBILITY), begun=False)
            return
        if judged.verdict is Verdict.LATE and held.envelope.failures >= LATE_TURNS:
            await self._set_aside_late(session, held, judged.reason)
            return
        if held.envelope.failures >= quarantine.MAX_FAILURES:
            if await self._is_purged(session, facts, held):
                await self._set_aside_late(session, held, "its instance was purged")
            else:
                await session.reader.keep_aside(held, quarantine.of_held(held, judged.reason))
            return
        pause = delay(judged.verdict, held.envelope.failures)
        log.log(
            logging.WARNING if judged.verdict is Verdict.RACE else logging.INFO,
            "AbandoningMessage",
            instance_id=session.instance_id,
            event_type=held.message.event.event_type.name,
            enqueued=str(held.inserted) if held.in_queue else None,
            checkpoint=str(facts.checkpointed) if facts.checkpointed else None,
            reason=judged.reason,
            retry_in=pause.total_seconds(),
        )
        await session.reader.give_back([held], delay=pause, failed=True)

    async def _is_purged(self, session: Session[Live], facts: Facts, held: Held) -> bool:
        """Whether an answer has come for an instance of which nothing is left."""
        if scheduling_id(held.message.event) is None or facts.execution_id is not None:
            return False
        return await self._hub.instance(session.instance_id) is None

    async def _set_aside_late(self, session: Session[Live], held: Held, reason: str) -> None:
        log.info(
            "message_set_aside",
            instance_id=session.instance_id,
            event_type=held.message.event.event_type.name,
            message_id=held.message_id,
            reason=reason,
        )
        await self.delete(session, [held])
        if held.envelope.blob_name:  # a purge came before it was written, or comes later and finds it gone
            blob = DeleteBlob(container=self._hub.names.large_messages, name=held.envelope.blob_name)
            await self._hub.store.execute(blob)


def _recalled(live: Live) -> tuple[bool, str | None]:
    """Whether the custom status can be known, and what it is."""
    try:
        return True, live.execution.recall()
    except UnknownOrchestrator:
        return False, None
