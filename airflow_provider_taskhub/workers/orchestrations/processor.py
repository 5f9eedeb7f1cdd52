"""Episodes: from a batch of messages to a committed checkpoint.

Has an instance loaded (``live``), its messages judged (``sorting``) and what no episode takes settled (``aside``); runs
the engine, commits, and hands over what the commit claimed. Everything that decides is elsewhere and pure
(``admission``, the engine, ``checkpoint``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import structlog

from airflow_provider_taskhub import tracing
from airflow_provider_taskhub.engine.episode import Episode
from airflow_provider_taskhub.engine.events import (
    ExecutionStarted,
    ExecutionSuspended,
    ExecutionTerminated,
    FailureDetails,
    HistoryEvent,
    Status,
)
from airflow_provider_taskhub.engine.failures import headline, message_of, place_of
from airflow_provider_taskhub.engine.identity import next_execution_id, same_start
from airflow_provider_taskhub.engine.registry import Registry
from airflow_provider_taskhub.engine.trace_context import begun
from airflow_provider_taskhub.errors import InputError, LeaseLost, PayloadTooLarge, StorageError, UnknownOrchestrator
from airflow_provider_taskhub.hub.admission.facts import STEERING, Facts, Row, newest, scheduling_id
from airflow_provider_taskhub.hub.formats.history_rows import MAX_CONSUMED
from airflow_provider_taskhub.hub.history.load import HistoryUnreadable, Loaded, mark_unreadable
from airflow_provider_taskhub.hub.hub import Hub, brought
from airflow_provider_taskhub.hub.model import Need, Suspension
from airflow_provider_taskhub.hub.queues import quarantine
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.storage.primitives import Store
from airflow_provider_taskhub.workers.activities.cancellation import ActivityCancellation
from airflow_provider_taskhub.workers.activities.local_queues import LocalQueues
from airflow_provider_taskhub.workers.demand import Demand
from airflow_provider_taskhub.workers.missing_functions import MissingFunctions, wait_of
from airflow_provider_taskhub.workers.orchestrations.commit import Aborted, Committer
from airflow_provider_taskhub.workers.orchestrations.loading import LoadedInstance, Loader, current_execution_id
from airflow_provider_taskhub.workers.orchestrations.sessions import Session, Sessions
from airflow_provider_taskhub.workers.orchestrations.settling import Settler
from airflow_provider_taskhub.workers.orchestrations.triage import Triage, TriagedBatch
from airflow_provider_taskhub.workers.orchestrations.watchdog import Episodes, Running

log = structlog.get_logger(__name__)

AGAIN = timedelta(seconds=1)
"""Until what came with a terminate is delivered again."""
SHOWN_ERROR = 500
"""Characters of a failure in the worker's log."""


class Orchestrations:
    """The processor of orchestrations.

    :param queues: takes messages for queues that this worker reads itself.
    :param absences: functions that this worker does not have.
    :param demand: remembers what the instances of each partition need.
    """

    def __init__(
        self,
        *,
        hub: Hub,
        registry: Registry,
        sessions: Sessions[LoadedInstance],
        queues: LocalQueues,
        absences: MissingFunctions,
        demand: Demand,
    ) -> None:
        self._hub, self._sessions, self._queues = hub, sessions, queues
        self._absences, self._demand = absences, demand
        self._committer = Committer(hub)
        self._loader, self._sorter = Loader(hub, registry), Triage(hub)
        self.episodes, self._cancelling = Episodes(), ActivityCancellation(hub, registry)
        self._aside = Settler(hub, self.episodes, self._cancelling)

    async def next(self) -> tuple[Session[LoadedInstance], list[Delivery]]:
        return await self._sessions.next()

    async def process(self, item: tuple[Session[LoadedInstance], list[Delivery]]) -> None:
        session, batch = item
        try:
            await self._process(session, batch)
        except (LeaseLost, Aborted) as error:
            log.info("session_aborted", instance_id=session.instance_id, reason=str(error))
            self._sessions.keep(session, None)
            await session.reader.give_back(batch)
        except StorageError as error:
            log.warning("episode_failed", instance_id=session.instance_id, error=str(error))
            self._sessions.keep(session, None)
            await self._aside.give_back(session, batch, error, failed=False)
        except asyncio.CancelledError:  # what was in hand stays renewed until its reader gives it back, or ends
            self._sessions.keep(session, None)
            raise
        except Exception as error:
            log.exception("episode_defect", instance_id=session.instance_id)
            self._sessions.keep(session, None)
            await self._aside.give_back(session, batch, error)
        finally:
            self._sessions.done(session, now=self._hub.clock.monotonic())

    async def keep_stuck(self, running: Running, cause: str, store: Store) -> None:
        """Bring an instance whose episode does not end into quarantine.

        From another thread, which has a store of its own: this one's loop is what does not come to an end. A terminate
        stays in its queue: who reads that next finds the instance in quarantine, and ends it without its code. One that
        is all there is leaves its copy in quarantine, to say so.
        """
        ends = [held for held in running.batch if isinstance(held.message.event, ExecutionTerminated)]
        for held in [held for held in running.batch if held not in ends] or ends[:1]:
            item = quarantine.of_held(held, cause, stuck=running.execution_id)
            await quarantine.keep(store, self._hub.names, item, None if held in ends else held.deletion())

    async def _process(self, session: Session[LoadedInstance], batch: list[Delivery]) -> None:
        session.reader.tenure.check()
        live, loaded = session.state, None
        if live is None or isinstance(batch[0].message.event, ExecutionStarted):
            try:
                live, loaded = await self._loader.open(session.instance_id, batch[0])
            except HistoryUnreadable as error:
                await self._unread(session, batch, error)
                return
        ends = await self._aside.ends(session, batch, live.execution_id) if session.reader.stuck else None
        live.stuck = ends is not None
        if ends is not None:
            batch = ends
            if not batch:
                return
        try:
            facts = await self._facts(session, live, loaded, batch)
        except UnknownOrchestrator as error:
            batch = await self._without_code(session, live, batch, error)
            if not batch:
                return
            facts = live.facts()
        found = await self._sorter.sort(session, live, batch, facts)
        suspension = found.suspension(live.stored.suspension)
        live = await self._begun(session, live, found)
        await self._aside.settle(session, live, found)
        if not found.process:
            if live.execution_id is not None and live.ended is None and not live.stuck:
                self._keep(session, live)
            else:
                self._sessions.keep(session, None)
            return
        await self._run(session, live, found.process, made=found.made, suspension=suspension)

    async def _without_code(
        self, session: Session[LoadedInstance], live: LoadedInstance, batch: list[Delivery], error: UnknownOrchestrator
    ) -> list[Delivery]:
        """The rest of a generation switch needs code that this worker does not have. A terminate needs none.

        :returns: what can be processed nevertheless.
        """
        ends = [held for held in batch if isinstance(held.message.event, ExecutionTerminated)]
        if not ends:
            await self._wait_for_code(session, batch, error)
            return []
        live.stuck = True
        await session.reader.give_back([held for held in batch if held not in ends], delay=AGAIN, begun=False)
        return ends

    async def _begun(
        self, session: Session[LoadedInstance], live: LoadedInstance, found: TriagedBatch
    ) -> LoadedInstance:
        """The state that the batch continues, set in the session; a new one if the batch starts the instance again."""
        if found.start is not None and live.execution_id is not None:
            if self._cancelling.concerns(
                live.open_tasks
            ):  # its activities may still run, and only the old history names them
                await self._cancelling.cancel(session.instance_id, live.execution_id)
            live = self._loader.restarted(session.instance_id, live)
        live.stored = replace(live.stored, steered=found.facts.steered)
        self._take_in(session, live)
        return live

    async def _unread(self, session: Session[LoadedInstance], batch: list[Delivery], error: HistoryUnreadable) -> None:
        """Process a batch of an instance with a damaged history: it can be terminated or started again, nothing else.

        :raises HistoryUnreadable: when no message of the batch does that.
        """
        starts = isinstance(batch[0].message.event, ExecutionStarted)
        able = [held for held in batch if starts or isinstance(held.message.event, ExecutionTerminated)]
        if not able:
            await self._mark_unreadable(session.instance_id, error)
            raise error
        live, facts, start, readable = await self._loader.salvage(session.instance_id)
        found = await self._sorter.sort(session, live, able, facts)
        if found.start is None:
            found.process = [held for held in found.process if isinstance(held.message.event, ExecutionTerminated)]
        await self._aside.settle(session, live, found)
        settled = [held for held, _ in (*found.discard, *found.later)]
        left = [held for held in batch if held not in found.process and held not in settled]
        await self._aside.give_back(session, left, error, failed=False)
        if not found.process:
            return
        suspension = found.suspension(live.stored.suspension)
        live = await self._begun(session, live, found)
        if found.start is not None:
            await self._run(session, live, found.process, made=found.made, suspension=suspension)
            return
        log.warning("instance_ended_unread", instance_id=session.instance_id, error=str(error))
        events = [start, *map(brought, found.process)]
        episode = live.execution.terminate(events, now=self._hub.clock.utc_now(), also=readable)
        await self._commit(session, live, episode, found.process)

    async def _mark_unreadable(self, instance_id: str, error: HistoryUnreadable) -> None:
        """Let every reader of the hub see why the instance does not go on."""
        try:
            await mark_unreadable(self._hub.store, self._hub.names, instance_id, str(error))
        except StorageError as failed:  # the next delivery tries again
            log.warning("mark_failed", instance_id=instance_id, error=str(failed))

    async def _facts(
        self, session: Session[LoadedInstance], live: LoadedInstance, loaded: Loaded | None, batch: Sequence[Delivery]
    ) -> Facts:
        """What a batch is judged by, once a switch that was cut off is whole.

        :param loaded: of an instance that was just opened.
        :raises UnknownOrchestrator: when it cannot be made whole here, and may elsewhere.
        """
        if loaded is None:
            if live is session.state:
                return live.facts()
            named = batch[0].message.instance.execution_id
            return Facts(row=Row(execution_id=named, status=Status.PENDING))
        sentinel = loaded.sentinel
        cut_off = loaded.begun and sentinel is not None and not sentinel.complete and sentinel.commit_id is not None
        if cut_off and not live.stuck:
            await self._resume(session, live, batch)
        return replace(live.facts(), checkpointed=sentinel.timestamp if sentinel else None)

    async def _resume(self, session: Session[LoadedInstance], live: LoadedInstance, batch: Sequence[Delivery]) -> None:
        """Commit the rest of a generation switch that was cut off between two transactions."""
        self._take_in(session, live)
        try:
            with self.episodes.computing(session.instance_id, live.execution_id, batch):
                episode = live.execution.resume()
        except UnknownOrchestrator as error:
            episode = live.execution.fail([], self._gave_up(session, batch, error), now=self._hub.clock.utc_now())
        if episode.history:
            log.info("switch_resumed", instance_id=session.instance_id, rows=len(episode.history))
            try:
                await self._commit(session, live, episode, [])
            except (PayloadTooLarge, InputError) as error:
                await self._refused(session, batch, error, judged=False)
                raise Aborted("the store refused the next generation of the instance") from error

    async def _run(
        self,
        session: Session[LoadedInstance],
        live: LoadedInstance,
        batch: list[Delivery],
        *,
        made: ExecutionStarted | None,
        suspension: Suspension | None,
    ) -> None:
        """
        :param made: the start of a run that is terminated before it began; the batch has none.
        :param suspension: with which a run begins.
        """
        hub = self._hub
        events, now = [brought(held) for held in batch], hub.clock.utc_now()
        execution_id = current_execution_id(live.execution_id, batch)
        if made is not None:
            events.insert(0, made)
            execution_id = made.instance.execution_id
        if suspension is not None:
            by, reason = suspension.by or None, suspension.reason
            events.insert(1, ExecutionSuspended(timestamp=suspension.at, reason=reason, taskhub_by=by))
        traced, started, asked, ran = tracing.on(), live.started, dict[int, HistoryEvent](), False
        if traced:
            events = [begun(one, one.instance, now) if isinstance(one, ExecutionStarted) else one for one in events]
            numbers = {scheduling_id(event) for event in events}
            asked = {number: live.scheduled[number] for number in numbers if number in live.scheduled}
        try:
            with self.episodes.computing(session.instance_id, execution_id, batch):
                if live.stuck or made is not None:
                    episode = live.execution.terminate(events, now=now)
                else:
                    episode = live.execution.advance(events, now=now, new_execution_id=next_execution_id)
                    ran = True
        except UnknownOrchestrator as error:
            try:
                if any(isinstance(event, ExecutionTerminated) for event in events):  # that needs no code
                    episode = live.execution.terminate(events, now=now)
                else:
                    episode = live.execution.fail(events, self._gave_up(session, batch, error), now=now)
            except UnknownOrchestrator:
                await self._wait_for_code(session, batch, error)
                return
        for event, reason in episode.stale:
            log.info(
                "event_set_aside", instance_id=session.instance_id, event_type=event.event_type.name, reason=reason
            )
        try:
            await self._commit(session, live, episode, batch)
        except (PayloadTooLarge, InputError) as error:
            await self._refused(session, batch, error, made=made)
            return
        if ran and live.started is not None:
            need = Need("orchestrator", live.started.name, live.started.version or "")
            self._demand.ran(session.reader.tenure.partition, need)
        if traced and episode.history:
            stale = [event for event, _ in episode.stale]
            tracing.record(started, asked, [event for event in events if event not in stale], episode.history)

    def _gave_up(
        self, session: Session[LoadedInstance], batch: Sequence[Delivery], error: UnknownOrchestrator
    ) -> FailureDetails:
        """Why an instance fails. :raises UnknownOrchestrator: while a worker that has its code may be there."""
        _, waited = wait_of(batch, session.reader.visibility)
        text = self._absences.gave_up(_need(error), waited)
        if text is None:
            raise error
        return FailureDetails(error_type="UnknownOrchestrator", error_message=text)

    async def _wait_for_code(
        self, session: Session[LoadedInstance], batch: Sequence[Delivery], error: UnknownOrchestrator
    ) -> None:
        need = _need(error)
        since = min((held.inserted for held in batch), key=lambda time: time.ticks)
        self._demand.lacks(session.reader.tenure.partition, need, since)
        level = logging.WARNING if self._absences.tell(need) else logging.DEBUG
        log.log(level, "orchestrator_unknown", instance_id=session.instance_id, error=str(error))
        delay = self._absences.delay(need, batch[0].dequeue_count)
        waiting_since, _ = wait_of(batch, session.reader.visibility)
        self._sessions.keep(session, None)
        batch = await self._orders_settled(session, batch)
        await session.reader.give_back(batch, delay=delay, begun=False, waiting_since=waiting_since)

    async def _orders_settled(self, session: Session[LoadedInstance], batch: Sequence[Delivery]) -> list[Delivery]:
        """Suspensions and resumes that came with a start do not wait for its code: they are recorded, and shown.

        :returns: the rest of the batch.
        """
        orders = [held for held in batch if isinstance(held.message.event, STEERING)]
        if not (orders and isinstance(batch[0].message.event, ExecutionStarted)):
            return list(batch)
        live, loaded = await self._loader.load(session.instance_id)
        checkpointed = loaded.sentinel.timestamp if loaded.sentinel else None
        found = await self._sorter.sort(session, live, orders, replace(live.facts(), checkpointed=checkpointed))
        await self._aside.settle(session, live, found)
        return [held for held in batch if held not in orders or held in found.process]

    async def _refused(
        self,
        session: Session[LoadedInstance],
        batch: Sequence[Delivery],
        error: Exception,
        *,
        judged: bool = True,
        made: ExecutionStarted | None = None,
    ) -> None:
        """No store takes what an episode decided: the instance fails with it, for it would decide the same again.

        With all that came, so that a rewind finds it; else with its start alone; else it is kept aside.

        :param judged: False: nobody knows yet what the batch is to the instance, which fails without it.
        :param made: as in :meth:`_run`.
        """
        hub, instance_id = self._hub, session.instance_id
        log.warning("checkpoint_refused", instance_id=instance_id, error=str(error))
        text = f"the store does not take what it decided: {message_of(error)}"
        failure = FailureDetails(error_type=type(error).__name__, error_message=text, is_non_retriable=True)
        taken = list(batch) if judged else []
        starts = [held for held in taken if isinstance(held.message.event, ExecutionStarted)]
        steered = session.state.stored.steered if session.state is not None else None
        for kept in (taken, starts):
            live, _ = await self._loader.load(instance_id)
            live.stored = replace(live.stored, steered=newest(live.stored.steered, steered))
            known = live.execution_id
            begins = made.instance if made is not None else starts[0].message.instance if starts else None
            if begins is not None and known and not same_start(known, begins.execution_id):
                live = self._loader.restarted(instance_id, live)
            events = [brought(held) for held in kept if held.identity not in live.seen]
            if made is not None:
                events.insert(0, made)
            try:
                await self._commit(session, live, live.execution.fail(events, failure, now=hub.clock.utc_now()), taken)
                return
            except (PayloadTooLarge, InputError) as again:
                text = f"{text}; and its failure neither: {message_of(again)}"
        self._sessions.keep(session, None)
        for held in batch:
            await session.reader.keep_aside(held, quarantine.of_held(held, text))

    async def _commit(
        self, session: Session[LoadedInstance], live: LoadedInstance, episode: Episode, batch: list[Delivery]
    ) -> None:
        if not episode.history:  # every event of it was set aside, but may tell of a checkpoint that was cut off
            if live.past:
                await self._aside.repair(session, live, batch)
                live.past = ()
            await self._aside.delete(session, batch)
            self._keep(session, live)
            return
        live.past = ()
        if episode.switched:  # the rows that name these messages go, and any of them may come again
            live.stored = replace(live.stored, consumed=live.consumed())
            if len(live.stored.consumed) + len(batch) > MAX_CONSUMED and not live.forgetful:
                live.forgetful = True
                log.info("oldest_events_forgotten", instance_id=session.instance_id, remembered=MAX_CONSUMED)
        live.absorb(episode.history, switched=episode.switched)
        live.execution_id = episode.current.execution_id
        cancels = episode.completed is not None and self._cancelling.concerns(live.open_tasks)
        mail = self._hub.outbound(episode, self._queues.claimable)
        with self._queues.reserved(mail):
            done = await self._committer.commit(
                episode, live.stored, mail, batch, tenure=session.reader.tenure, tags=live.tags, leave=cancels
            )
        live.remember(done.stored)
        live.forget(done.deleted)
        if not cancels:
            session.reader.release(batch)
        self._queues.hand_over(done.claimed)
        if episode.completed is None:
            self._keep(session, live)
            return
        failure = episode.completed.failure
        place = place_of(failure)
        log.log(
            logging.WARNING if episode.status is Status.FAILED else logging.INFO,
            "instance_ended",
            instance_id=session.instance_id,
            orchestrator=live.name,
            status=str(episode.status),
            **({"error": headline(failure)[:SHOWN_ERROR]} if failure else {}),
            **({"at": place} if place else {}),
        )
        self._sessions.keep(session, None)
        if cancels:
            await self._cancelling.cancel(session.instance_id, live.execution_id)
            await self._aside.delete(session, batch)

    def _take_in(self, session: Session[LoadedInstance], live: LoadedInstance) -> None:
        """Its code may run from now on: it is the session's, which puts it aside whatever happens."""
        if session.state is not live:
            self._sessions.keep(session, live)

    def _keep(self, session: Session[LoadedInstance], live: LoadedInstance) -> None:
        self._sessions.keep(session, live, live.execution.size)


def _need(error: UnknownOrchestrator) -> Need:
    return Need("orchestrator", error.name, error.version)
