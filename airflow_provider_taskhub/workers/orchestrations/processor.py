"""The processor of orchestrations: turns a batch of messages into an episode and commits the episode.

An episode is one run of an orchestrator over new messages.

For each batch the processor loads the instance (``loading``) and applies admission, which decides what becomes of each
message (``triage``). It settles the messages that no episode takes (``settling``), runs the orchestrator (the engine),
and commits the checkpoint (``commit``). The decisions are pure functions of other modules: admission, the engine and
the checkpoint.

This is one module of more than 400 lines because each step of an episode continues with the result of the step before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import structlog

from airflow_provider_taskhub import tracing
from airflow_provider_taskhub.engine.episode import Episode
from airflow_provider_taskhub.engine.events import (
    ExecutionStarted,
    ExecutionSuspended,
    ExecutionTerminated,
    FailureDetails,
    HistoryEvent,
    OrchestrationInstance,
    Status,
)
from airflow_provider_taskhub.engine.failures import headline, message_of, place_of
from airflow_provider_taskhub.engine.identity import next_execution_id, same_start
from airflow_provider_taskhub.engine.parent_response import start_of_cancelled
from airflow_provider_taskhub.engine.registry import Registry
from airflow_provider_taskhub.engine.trace_context import begun
from airflow_provider_taskhub.errors import (
    InputError,
    LeaseLost,
    PayloadTooLarge,
    StorageError,
    TaskHubError,
    UnknownOrchestrator,
)
from airflow_provider_taskhub.hub.admission.facts import SUSPENSIONS, Facts, RowFacts, newest, scheduling_id
from airflow_provider_taskhub.hub.formats.history_rows import MAX_CONSUMED
from airflow_provider_taskhub.hub.formats.instance_rows import last_cancel
from airflow_provider_taskhub.hub.history.load import HistoryUnreadable, Loaded
from airflow_provider_taskhub.hub.history.trimming import is_due, trim
from airflow_provider_taskhub.hub.hub import Hub, brought
from airflow_provider_taskhub.hub.model import Need, Suspension
from airflow_provider_taskhub.hub.queues import quarantine
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.workers.activities.cancellation import ActivityCancellation
from airflow_provider_taskhub.workers.activities.local_queues import LocalQueues
from airflow_provider_taskhub.workers.demand import Demand
from airflow_provider_taskhub.workers.missing_functions import MissingFunctions
from airflow_provider_taskhub.workers.orchestrations.call_lanes import CallLanes
from airflow_provider_taskhub.workers.orchestrations.commit import Aborted, Committer
from airflow_provider_taskhub.workers.orchestrations.instance_limits import InstanceLimits
from airflow_provider_taskhub.workers.orchestrations.loading import LoadedInstance, Loader, current_execution_id
from airflow_provider_taskhub.workers.orchestrations.missing_code import MissingCode
from airflow_provider_taskhub.workers.orchestrations.sessions import Session, Sessions
from airflow_provider_taskhub.workers.orchestrations.settling import Settler
from airflow_provider_taskhub.workers.orchestrations.stuck_instances import terminates_if_stuck
from airflow_provider_taskhub.workers.orchestrations.triage import Triage, TriagedBatch
from airflow_provider_taskhub.workers.orchestrations.watchdog import Episodes

log = structlog.get_logger(__name__)

SHOWN_ERROR = 500
"""Longest error text in the log line ``instance_ended``, in characters."""


class Orchestrations:
    """The processor of orchestrations.

    :param sessions: the instances that this worker has in memory; their messages arrive there.
    :param queues: takes messages for queues that this worker itself reads.
    :param absences: the functions that this worker does not have.
    :param demand: remembers which functions the instances of each partition need.
    :param limits: the limits of instances.
    :param calls: decides in which queue each call of an activity waits.
    :param kept_generations: how many earlier generations of an instance keep their activity records; 0: all.
    :ivar stopping: whether the worker stops, and cancels episodes that do not end in time.
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
        limits: InstanceLimits,
        kept_generations: int,
        calls: CallLanes,
    ) -> None:
        self._hub, self._sessions, self._queues = hub, sessions, queues
        self._demand, self._limits = demand, limits
        self._kept_generations = kept_generations
        self._calls = calls
        self.stopping = False
        self._committer = Committer(hub)
        self._loader, self._triage = Loader(hub, registry), Triage(hub, limits)
        self.episodes, self._cancelling = Episodes(), ActivityCancellation(hub, registry)
        self._settler = Settler(hub, self.episodes, self._cancelling, limits)
        self._missing_code = MissingCode(
            sessions=sessions,
            loader=self._loader,
            triage=self._triage,
            settler=self._settler,
            absences=absences,
            demand=demand,
        )

    async def next(self) -> tuple[Session[LoadedInstance], list[Delivery]]:
        return await self._sessions.next()

    async def process(self, item: tuple[Session[LoadedInstance], list[Delivery]]) -> None:
        session, batch = item
        session.waiting_since = self._hub.clock.monotonic()
        try:
            held = await self._process(session, batch)
            left = self._sessions.hold(session, held, batch, now=self._hub.clock.monotonic())
            await session.reader.give_back(left, begun=False)
            self._sessions.progressed(session)
        except (LeaseLost, Aborted) as error:
            log.info("session_aborted", instance_id=session.instance_id, reason=str(error))
            self._sessions.keep(session, None)
            await session.reader.give_back(batch)
        except StorageError as error:
            log.warning("episode_failed", instance_id=session.instance_id, error=str(error))
            self._failed(session, error)
            await self._settler.give_back(session, batch, error, failed=False)
        except asyncio.CancelledError:
            cause = TaskHubError("the episode of the instance was cancelled")
            self._failed(session, cause)
            if not self.stopping:  # a reader that stops gives back the messages that it still has
                log.error("episode_cancelled", instance_id=session.instance_id)
                await self._settler.give_back(session, batch, cause)
            raise
        except Exception as error:
            log.exception("episode_defect", instance_id=session.instance_id)
            self._failed(session, error)
            await self._settler.give_back(session, batch, error)
        finally:
            self._sessions.done(session, now=self._hub.clock.monotonic())

    def _failed(self, session: Session[LoadedInstance], error: Exception) -> None:
        self._sessions.keep(session, None)
        cause = f"{type(error).__name__}: {message_of(error)}"
        self._sessions.failed(session, cause, now=self._hub.clock.monotonic())

    async def _process(self, session: Session[LoadedInstance], batch: list[Delivery]) -> list[Delivery]:
        """Process a batch of messages. Return those that wait in memory for another message of the instance."""
        session.reader.tenure.check()
        live, loaded = session.state, None
        if live is None or isinstance(batch[0].message.event, ExecutionStarted):
            try:
                live, loaded = await self._loader.open(session.instance_id, batch[0])
                if loaded is not None and await self._switch_completed(session, loaded, batch):
                    live, loaded = await self._loader.load(session.instance_id)
            except HistoryUnreadable as error:
                return await self._process_unreadable(session, batch, error)
        ends = await terminates_if_stuck(session, batch, live) if session.reader.stuck else None
        live.stuck = ends is not None
        if ends is not None:
            batch = ends
            if not batch:
                return []
        try:
            facts = await self._facts(session, live, loaded, batch)
        except UnknownOrchestrator as error:
            batch = await self._missing_code.terminates_or_wait(session, live, batch, error)
            if not batch:
                return []
            facts = live.facts()
        found = await self._triage.judge_batch(session, live, batch, facts)
        suspension = found.suspension(live.stored.suspension)
        live = await self._state_to_continue(session, live, found)
        await self._settler.settle(session, live, found)
        if found.process:
            await self._run(session, live, found.process, made=found.made, suspension=suspension)
        elif live.execution_id is not None and live.ended is None and not live.stuck:
            self._keep(session, live)
        else:
            self._sessions.keep(session, None)
        return found.hold

    async def _state_to_continue(
        self, session: Session[LoadedInstance], live: LoadedInstance, found: TriagedBatch
    ) -> LoadedInstance:
        """Put the instance that the batch continues into the session, and return it.

        :param live: the instance as loaded.
        :returns: ``live``; or a new value with an empty history if the batch starts the ended instance again.
        """
        if found.start is not None and live.execution_id is not None:
            # Cancel activities of the ended run that still run: the new history will not name them.
            if self._cancelling.concerns(live.open_tasks, None):
                await self._cancelling.cancel(session.instance_id, live.execution_id)
            live = self._loader.restarted(session.instance_id, live)
        if live.stored.suspension_stamp != found.facts.suspension_stamp:
            live.stored = replace(live.stored, suspension_stamp=found.facts.suspension_stamp)
        live.has_place = live.has_place or found.has_place
        if live.stored.arrived != found.arrived:
            live.stored = replace(live.stored, arrived=found.arrived)
        self._put_into_session(session, live)
        return live

    async def _process_unreadable(
        self, session: Session[LoadedInstance], batch: list[Delivery], error: HistoryUnreadable
    ) -> list[Delivery]:
        """Process a batch of an instance whose history cannot be read.

        Such an instance can only be terminated or started again. All other messages are given back.

        :returns: the same as :meth:`_process`.
        :raises HistoryUnreadable: if the batch has neither a terminate nor a start.
        """
        starts = isinstance(batch[0].message.event, ExecutionStarted)
        able = [held for held in batch if starts or isinstance(held.message.event, ExecutionTerminated)]
        if not able:
            await self._settler.mark_unreadable(session.instance_id, error)
            raise error
        live, facts, start, readable = await self._loader.salvage(session.instance_id)
        found = await self._triage.judge_batch(session, live, able, facts)
        if found.start is None:
            found.process = [held for held in found.process if isinstance(held.message.event, ExecutionTerminated)]
        await self._settler.settle(session, live, found)
        settled = [held for held, *_ in (*found.discard, *found.later, *found.refuse)]
        kept = (*settled, *found.stored, *found.hold)
        left = [held for held in batch if held not in found.process and held not in kept]
        await self._settler.give_back(session, left, error, failed=False)
        if not found.process:
            return found.hold
        suspension = found.suspension(live.stored.suspension)
        live = await self._state_to_continue(session, live, found)
        if found.start is not None:
            await self._run(session, live, found.process, made=found.made, suspension=suspension)
            return found.hold
        log.warning("instance_ended_unread", instance_id=session.instance_id, error=str(error))
        events = [_with_parent(start, found.process), *map(brought, found.process)]
        episode = live.execution.terminate(events, now=self._hub.clock.utc_now(), also=readable)
        await self._commit(session, live, episode, found.process)
        return found.hold

    async def _facts(
        self, session: Session[LoadedInstance], live: LoadedInstance, loaded: Loaded | None, batch: Sequence[Delivery]
    ) -> Facts:
        """Return the facts that admission needs for a batch.

        If an older version has cut off a commit of a new generation (``continue_as_new``) between two transactions, so
        that no blob has the rest, the rest is made again and committed first.

        :param loaded: the history and sentinel that were just read; None if nothing was read for this batch.
        :raises UnknownOrchestrator: if that rest needs code that this worker does not have and another may have.
        """
        if loaded is None:
            if live is session.state:
                return live.facts()
            named = batch[0].message.instance.execution_id
            return Facts(row=RowFacts(execution_id=named, status=Status.PENDING))
        sentinel = loaded.sentinel
        cut_off = loaded.begun and sentinel is not None and not sentinel.complete and sentinel.commit_id is not None
        if cut_off and not live.stuck:
            await self._complete_switch(session, live, batch)
        return replace(live.facts(), checkpointed=sentinel.timestamp if sentinel else None)

    async def _switch_completed(
        self, session: Session[LoadedInstance], loaded: Loaded, batch: Sequence[Delivery]
    ) -> bool:
        """Write the rest of a new generation (``continue_as_new``) whose commit was cut off between two transactions.
        No code of the orchestrator runs.

        :returns: True if there was a rest, so that the instance must be loaded again.
        :raises Aborted: if the store refuses the rest as too large or invalid, or another worker has written it.
        :raises HistoryUnreadable: if the blob with the rest is missing or damaged.
        """
        sentinel = loaded.sentinel
        if not loaded.begun or sentinel is None or sentinel.complete or sentinel.unwritten is None:
            return False
        log.info("switch_resumed", instance_id=session.instance_id, rows=len(loaded.past))
        try:
            tenure = session.reader.tenure
            await self._committer.complete_switch(session.instance_id, sentinel, sentinel.unwritten, tenure)
        except (PayloadTooLarge, InputError) as error:
            await self._fail_too_large(session, batch, error, admitted=False)
            raise Aborted("the store refused the next generation of the instance") from error
        return True

    async def _complete_switch(
        self, session: Session[LoadedInstance], live: LoadedInstance, batch: Sequence[Delivery]
    ) -> None:
        """Make the rest of a new generation again and commit it. An older version has cut off its commit.

        :raises UnknownOrchestrator: if this worker does not have the code, and another worker may have it.
        :raises Aborted: if the store refuses the rest as too large or invalid.
        """
        self._put_into_session(session, live)
        try:
            with self.episodes.computing(session.instance_id, live.execution_id, batch):
                episode = live.execution.resume()
        except UnknownOrchestrator as error:
            episode = live.execution.fail(
                [], self._missing_code.failure(session, batch, error), now=self._hub.clock.utc_now()
            )
        if episode.history:
            log.info("switch_resumed", instance_id=session.instance_id, rows=len(episode.history))
            try:
                await self._commit(session, live, episode, [])
            except (PayloadTooLarge, InputError) as error:
                await self._fail_too_large(session, batch, error, admitted=False)
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
        """Run one episode over a batch, and commit it.

        :param batch: the messages that admission has let into the episode.
        :param made: a start that is not a message of the batch but was built from the instance row or from the
            terminate, because the run is terminated before its first checkpoint; None otherwise.
        :param suspension: a suspension that was stored before the run's first checkpoint, so that the run begins
            suspended; None: there is no such suspension.
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
            with self.episodes.computing(session.instance_id, execution_id, batch, live.execution.ends):
                if live.stuck or made is not None:
                    episode = live.execution.terminate(events, now=now)
                else:
                    episode = live.execution.advance(events, now=now, new_execution_id=next_execution_id)
                    ran = True
        except UnknownOrchestrator as error:
            try:
                at_once = self._missing_code.ends(session, live, batch)
                failure = None if at_once else self._missing_code.failure(session, batch, error)
                if failure is None or any(map(live.execution.ends, events)):
                    episode = live.execution.terminate(events, now=now)
                else:
                    episode = live.execution.fail(events, failure, now=now)
            except UnknownOrchestrator:
                await self._missing_code.wait(session, batch, error)
                return
        for event, reason in episode.stale:
            log.info(
                "event_discarded", instance_id=session.instance_id, event_type=event.event_type.name, reason=reason
            )
        try:
            await self._commit(session, live, episode, batch)
        except (PayloadTooLarge, InputError) as error:
            await self._fail_too_large(session, batch, error, made=made)
            return
        if ran and live.started is not None:
            need = Need("orchestrator", live.started.name, live.started.version or "")
            self._demand.ran(session.reader.tenure.partition, need)
        if traced and episode.history:
            stale = [event for event, _ in episode.stale]
            tracing.record(started, asked, [event for event in events if event not in stale], episode.history)

    async def _fail_too_large(
        self,
        session: Session[LoadedInstance],
        batch: Sequence[Delivery],
        error: Exception,
        *,
        admitted: bool = True,
        made: ExecutionStarted | None = None,
    ) -> None:
        """Fail an instance because the store refuses its checkpoint as too large or invalid.

        Running the episode again was rejected: the orchestrator would decide the same again.

        The failure is committed with all events of the batch, so that a rewind finds the events. If the store refuses
        this too, the failure is committed with the start alone. If the store refuses that as well, the batch goes to
        quarantine.

        :param error: why the store refuses the checkpoint.
        :param admitted: False if admission has not judged the batch yet; the failure then takes no event of the batch.
        :param made: the same as in :meth:`_run`.
        """
        hub, instance_id = self._hub, session.instance_id
        log.warning("checkpoint_refused", instance_id=instance_id, error=str(error))
        text = f"the store refuses the checkpoint of the orchestration: {message_of(error)}"
        failure = FailureDetails(error_type=type(error).__name__, error_message=text, is_non_retriable=True)
        taken = list(batch) if admitted else []
        starts = [held for held in taken if isinstance(held.message.event, ExecutionStarted)]
        suspension_stamp = session.state.stored.suspension_stamp if session.state is not None else None
        for kept in (taken, starts):
            live, _ = await self._loader.load(instance_id)
            live.stored = replace(live.stored, suspension_stamp=newest(live.stored.suspension_stamp, suspension_stamp))
            known = live.execution_id
            begins = made.instance if made is not None else starts[0].message.instance if starts else None
            if begins is not None and known and not same_start(known, begins.execution_id):
                live = self._loader.restarted(instance_id, live)
            facts = live.facts()
            events = [brought(held) for held in kept if not facts.processed(held.identity)]
            if made is not None:
                events.insert(0, made)
            try:
                await self._commit(session, live, live.execution.fail(events, failure, now=hub.clock.utc_now()), taken)
                return
            except (PayloadTooLarge, InputError) as again:
                text = f"{text}; the store refuses to record this failure too: {message_of(again)}"
        self._sessions.keep(session, None)
        for held in batch:
            await session.reader.move_to_quarantine(held, quarantine.of_held(held, text))

    async def _commit(
        self, session: Session[LoadedInstance], live: LoadedInstance, episode: Episode, batch: list[Delivery]
    ) -> None:
        if not episode.history:  # the engine dropped all events as stale
            if live.past:  # an event that comes twice can mean that the last checkpoint was cut off
                await self._settler.repair(session, live, batch)
                live.past = ()
            if any(isinstance(held.message.event, SUSPENSIONS) for held in batch):
                await self._settler.steer(session, live)
            await self._settler.delete(session, batch)
            self._keep(session, live)
            return
        loaded, live.past = live.past, ()
        # A new generation deletes the history rows that name the consumed messages. The sentinel must list these
        # messages, because each of them can be delivered again.
        if episode.switched:
            live.stored = replace(live.stored, consumed=live.consumed())
            if len(live.stored.consumed) + len(batch) > MAX_CONSUMED and not live.forgetful:
                live.forgetful = True
                log.info("oldest_events_forgotten", instance_id=session.instance_id, remembered=MAX_CONSUMED)
        live.absorb(episode.history, switched=episode.switched)
        live.execution_id = episode.current.execution_id
        ends = episode.completed is not None and self._cancelling.concerns(live.open_tasks, episode.status)
        # Also those of the loaded history: the worker that stored them may have died before it marked the attempts.
        history = episode.history if episode.switched else (*loaded, *episode.history)
        calls = set() if ends else self._cancelling.calls(history, live.open_tasks)
        # A terminate in the batch that makes the instance fail also ends its activities and children that still run.
        fails = episode.completed is not None and episode.status is Status.FAILED
        late = [held for held in batch if fails and isinstance(held.message.event, ExecutionTerminated)]
        batch = [held for held in batch if held not in late]
        queues_of = partial(self._calls.place, live, session.reader.tenure.partition)
        outgoing = self._hub.outbound(episode, self._queues.claimable, queues_of)
        with self._queues.reserved(outgoing):
            done = await self._committer.commit(
                episode,
                live.stored,
                outgoing,
                batch,
                tenure=session.reader.tenure,
                tags=live.tags,
                leave=ends or bool(calls),
            )
        live.remember(done.stored)
        live.forget(done.deleted)
        if not (ends or calls):
            session.reader.release(batch)
        if live.cancels:
            new = last_cancel(episode.history, session.instance_id) is not None
            self._hub.cancelled_calls.note(session.instance_id, new=new)
        self._queues.hand_over(done.claimed)
        if calls:
            await self._settler.cancel_calls(session, live, calls)
            await self._settler.delete(session, batch)
        if episode.completed is None:
            if episode.switched and is_due(episode.current, self._kept_generations):
                await self._trim(episode.current)
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
        self._calls.ended(session.instance_id)
        if ends:
            await self._cancelling.cancel(session.instance_id, live.execution_id)
            await self._settler.delete(session, batch)
        if late:
            await self._settler.end_left_over(session, live, late)
            await self._settler.delete(session, late)
        await self._limits.ended(live, episode.current)

    async def _trim(self, instance: OrchestrationInstance) -> None:
        """Delete the activity records of old generations. If the store fails, a later generation tries again."""
        try:
            deleted = await trim(self._hub.store, self._hub.names, instance, kept=self._kept_generations)
        except StorageError as error:
            log.info("trimming_failed", instance_id=instance.instance_id, error=str(error))
        else:
            log.debug("records_trimmed", instance_id=instance.instance_id, records=deleted)

    def _put_into_session(self, session: Session[LoadedInstance], live: LoadedInstance) -> None:
        """Put the instance into its session before its code runs. The session closes the orchestrator later."""
        if session.state is not live:
            self._sessions.keep(session, live)

    def _keep(self, session: Session[LoadedInstance], live: LoadedInstance) -> None:
        self._sessions.keep(session, live, live.execution.size)


def _with_parent(start: ExecutionStarted, terminates: Sequence[Delivery]) -> ExecutionStarted:
    """Return a start with the parent that has cancelled the instance, if the damaged history names no parent."""
    for held in terminates:
        event = held.message.event
        if start.parent is None and isinstance(event, ExecutionTerminated):
            made = start_of_cancelled(event, start.instance, held.envelope.sender, start.timestamp)
            start = replace(start, parent=made.parent)
    return start
