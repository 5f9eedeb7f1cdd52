"""Episodes: from a batch of messages to a committed checkpoint.

Loads what is not in memory, judges messages by their history, runs the engine, commits, and hands over what the commit
claimed. Everything that decides is elsewhere and pure (``races``, the engine, ``checkpoint``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import field, replace
from datetime import timedelta

import structlog

from airflow_provider_taskhub import tracing
from airflow_provider_taskhub.codec import Timestamp, ticks_of
from airflow_provider_taskhub.engine.actions import Episode
from airflow_provider_taskhub.engine.events import (
    EventRaised,
    ExecutionCompleted,
    ExecutionResumed,
    ExecutionStarted,
    ExecutionSuspended,
    ExecutionTerminated,
    FailureDetails,
    HistoryEvent,
    OrchestrationInstance,
    Status,
    SubOrchestrationInstanceCreated,
    TaskCompleted,
    TaskFailed,
    TaskScheduled,
    TimerCreated,
)
from airflow_provider_taskhub.engine.failures import message_of
from airflow_provider_taskhub.engine.identity import next_execution_id, same_start
from airflow_provider_taskhub.engine.lifecycle import (
    ActivityHappening,
    ActivityReaction,
    ActivityState,
    react_activity,
)
from airflow_provider_taskhub.engine.registry import Registry
from airflow_provider_taskhub.engine.replay import Execution
from airflow_provider_taskhub.engine.traces import begun
from airflow_provider_taskhub.errors import (
    Conflict,
    InputError,
    LeaseLost,
    NotFound,
    PayloadTooLarge,
    StorageError,
    UnknownOrchestrator,
)
from airflow_provider_taskhub.hub.contract import ActivityRecord, InstanceState, RecordState
from airflow_provider_taskhub.hub.history import activities as records
from airflow_provider_taskhub.hub.history.checkpoint import Stored, completion
from airflow_provider_taskhub.hub.history.instances import changed, repair_row, terminate_row
from airflow_provider_taskhub.hub.history.load import Loaded, load, sentinel_of
from airflow_provider_taskhub.hub.hub import Hub, brought
from airflow_provider_taskhub.hub.messages import quarantine
from airflow_provider_taskhub.hub.messages.held import Held
from airflow_provider_taskhub.hub.messages.outbound import Letter
from airflow_provider_taskhub.hub.messages.races import (
    Facts,
    Judged,
    Verdict,
    delay,
    judge,
    scheduling_id,
    unknown_delay,
)
from airflow_provider_taskhub.hub.messages.sessions import Session, Sessions
from airflow_provider_taskhub.storage.primitives import (
    MAX_VISIBILITY,
    Entity,
    PutBlob,
    Step,
    Store,
    Unit,
)
from airflow_provider_taskhub.values import dataclass
from airflow_provider_taskhub.workers.commit import Aborted, Committer
from airflow_provider_taskhub.workers.episodes import Episodes, Running

log = structlog.get_logger(__name__)

LOOK_TIMES = 10
LOOK_PAUSE = 0.1
"""A start whose row is not there is looked for again for a second (DESIGN §6)."""
SHOWN_ERROR = 500
"""Characters of a failure in the worker's log."""
_FOR_WHOEVER_IS_CURRENT = (EventRaised, ExecutionSuspended, ExecutionResumed)
"""Messages for the current generation; responses name theirs, and are nothing to another."""
CANCEL_AFTER = 6
"""Turns, of 6 s together, that a terminate waits for the start of its instance (K41)."""
CANCEL_TRIES = 6
"""Tries to ask the holder of an attempt to end it, against its heartbeats."""


@dataclass(slots=True, eq=False)
class Live:
    """An instance in memory: the live orchestrator and what is stored of it.

    :ivar past: the history as loaded, until the first episode over it.
    :ivar seen: identities of messages that were taken; whether a later generation would take them once more.
    :ivar stuck: it is in quarantine: none of its code may run.
    :ivar ending: its row was terminated in front of its first checkpoint, which came late (K41): it ends first of all.
    """

    execution: Execution
    stored: Stored
    execution_id: str | None
    name: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    scheduled: set[int] = field(default_factory=set)
    open_tasks: set[int] = field(default_factory=set)
    seen: dict[str, bool] = field(default_factory=dict)
    past: tuple[HistoryEvent, ...] = ()
    ended: Status | None = None
    stuck: bool = False
    ending: ExecutionTerminated | None = None

    def absorb(self, events: Sequence[HistoryEvent], *, switched: bool) -> None:
        """Keep the facts that later messages are judged by.

        :param switched: the events are a new generation: what was known of the one before says nothing any more, but
            for the messages that its switch consumed (:meth:`remember`).
        """
        if switched:
            self.scheduled.clear()
            self.open_tasks.clear()
            self.seen.clear()
        for event in events:
            if event.taskhub_message_id is not None:
                self.seen[event.taskhub_message_id] = isinstance(event, _FOR_WHOEVER_IS_CURRENT)
            match event:
                case TaskScheduled():
                    self.scheduled.add(event.event_id)
                    self.open_tasks.add(event.event_id)
                case TimerCreated() | SubOrchestrationInstanceCreated():
                    self.scheduled.add(event.event_id)
                case TaskCompleted() | TaskFailed():
                    self.open_tasks.discard(event.task_scheduled_id)
                case ExecutionStarted():
                    self.name, self.tags = event.name, dict(event.tags or {})
                case ExecutionCompleted():
                    self.ended = event.status

    def remember(self, stored: Stored) -> None:
        """What is stored now."""
        self.stored = stored
        self.seen.update(dict.fromkeys(stored.consumed, True))

    def facts(self) -> Facts:
        final = self.ended is not None
        return Facts(execution_id=self.execution_id, scheduled=self.scheduled, final=final, seen=self.seen.keys())


@dataclass(slots=True, kw_only=True)
class Sorted:
    """A batch, judged.

    :param facts: what the last of it was judged by.
    """

    facts: Facts
    process: list[Held] = field(default_factory=list)
    stale: list[tuple[Held, str]] = field(default_factory=list)
    later: list[tuple[Held, Judged]] = field(default_factory=list)
    cancel: list[Held] = field(default_factory=list)


class Orchestrations:
    """The processor of orchestrations.

    :param claims: queue name → how many messages of an episode this worker may claim there, and for how long.
    :param promise: keeps the room that messages claim until their history is committed.
    :param adopt: takes the claimed messages then.
    :param unknown: orchestrator name → a text, once no live worker has had it for too long (K43); else None.
    """

    def __init__(
        self,
        *,
        hub: Hub,
        registry: Registry,
        sessions: Sessions[Live],
        claims: Callable[[str], tuple[int, timedelta]],
        promise: Callable[[Sequence[Letter]], AbstractContextManager[None]],
        adopt: Callable[[Sequence[Held]], None],
        unknown: Callable[[str], str | None],
    ) -> None:
        self._hub, self._registry, self._sessions = hub, registry, sessions
        self._claims, self._promise, self._adopt, self._unknown = claims, promise, adopt, unknown
        self._committer = Committer(hub)
        self.episodes = Episodes()

    async def next(self) -> tuple[Session[Live], list[Held]]:
        return await self._sessions.next()

    async def process(self, item: tuple[Session[Live], list[Held]]) -> None:
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
            await self._failed(session, batch, error, failed=False)
        except asyncio.CancelledError:  # what was in hand stays renewed until its reader gives it back, or ends
            self._sessions.keep(session, None)
            raise
        except Exception as error:
            log.exception("episode_defect", instance_id=session.instance_id)
            self._sessions.keep(session, None)
            await self._failed(session, batch, error)
        finally:
            self._sessions.done(session, now=self._hub.clock.monotonic())

    async def _process(self, session: Session[Live], batch: list[Held]) -> None:
        session.reader.tenure.check()
        live, loaded = session.state, None
        if live is None or isinstance(batch[0].message.event, ExecutionStarted):
            live, loaded = await self._open(session, batch[0])
        ends = await self._ends(session, batch, live.execution_id) if session.reader.stuck else None
        live.stuck = ends is not None
        if ends is not None:
            batch = ends
            if not batch:
                return
        facts = await self._facts(session, live, loaded, batch)
        found = await self._judge(session, batch, facts, live.stored.sentinel_etag)
        if found.process and isinstance(found.process[0].message.event, ExecutionStarted) and facts.execution_id:
            live = self._restarted(session.instance_id, live)
        self._take_in(session, live)
        if live.ending is not None:  # what is stale is all that tells of it: the checkpoint of its end deletes it
            found.process += [held for held, _ in found.stale]
            found.stale = []
        await self._set_aside(session, live, found)
        if not found.process and live.ending is None:
            if live.execution_id is not None and live.ended is None and not live.stuck:
                self._keep(session, live)
            else:
                self._sessions.keep(session, None)
            return
        await self._run(session, live, found.process)

    # opening

    async def _open(self, session: Session[Live], first: Held) -> tuple[Live, Loaded | None]:
        """:returns: with what is stored of it; None: nothing was read, since nothing can be."""
        event = first.message.event
        if isinstance(event, ExecutionStarted) and _runs_unread(event, first):
            # our client inserted the row: nothing is stored, and the sentinel's insert refuses if that is wrong
            stored = Stored(row_etag=event.taskhub_row_etag, status=Status.PENDING)
            return Live(self._execution(session.instance_id, (), None, None), stored, None), None
        return await self._load(session.instance_id)

    async def _facts(self, session: Session[Live], live: Live, loaded: Loaded | None, batch: Sequence[Held]) -> Facts:
        """What a batch is judged by, once a switch that was cut off is whole.

        :param loaded: of an instance that was just opened.
        """
        if loaded is None:
            if live is session.state:
                return live.facts()
            return Facts(row_read=True, row_execution_id=batch[0].message.instance.execution_id)
        sentinel = loaded.sentinel
        cut_off = loaded.begun and sentinel is not None and not sentinel.complete and sentinel.commit_id is not None
        if cut_off and not (live.stuck or live.ending):
            await self._resume(session, live, batch)
        return replace(live.facts(), checkpointed=sentinel.timestamp if sentinel else None)

    async def _resume(self, session: Session[Live], live: Live, batch: Sequence[Held]) -> None:
        """Commit the rest of a generation switch that was cut off between two transactions."""
        self._take_in(session, live)
        with self.episodes.computing(session.instance_id, live.execution_id, batch):
            episode = live.execution.resume()
        if episode.history:
            log.info("switch_resumed", instance_id=session.instance_id, rows=len(episode.history))
            try:
                await self._commit(session, live, episode, [])
            except (PayloadTooLarge, InputError) as error:
                await self._refused(session, batch, error, judged=False)
                raise Aborted("no store takes what its generation switch came to") from error

    async def _load(self, instance_id: str) -> tuple[Live, Loaded]:
        """History and row; the row tells the custom status, which an earlier generation may have set."""
        hub = self._hub
        loaded, row = await asyncio.gather(
            load(hub.store, hub.names, instance_id), hub.instance(instance_id, payloads=True)
        )
        sentinel = loaded.sentinel
        if sentinel is None or not loaded.begun:
            stored = Stored(
                sentinel_etag=sentinel.etag if sentinel else None,
                surplus=loaded.surplus,
                row_etag=row.etag if row else None,
                status=row.status if row else None,
            )
            return Live(self._execution(instance_id, (), None, None), stored, None), loaded
        stored = Stored(
            sentinel_etag=sentinel.etag,
            rows=len(loaded.past),
            surplus=loaded.surplus,
            tails=loaded.tails,
            completed=sentinel.checkpoint_completed,
            consumed=sentinel.consumed,
            blobs=loaded.blobs,
            row_etag=row.etag if row else None,
            status=row.status if row else None,
            custom_status=row.custom_status if row else None,
        )
        # a row that lags behind a generation switch still has what the next generation inherits
        inherits = row is not None and same_start(row.execution_id or "", sentinel.execution_id)
        status = row.custom_status if row is not None and inherits else None
        execution = self._execution(instance_id, loaded.past, sentinel.execution_id, status)
        live = Live(execution, stored, sentinel.execution_id, past=loaded.past)
        live.absorb(loaded.past, switched=False)
        live.remember(stored)
        if row is not None and inherits and row.status is Status.TERMINATED and live.ended is None:
            live.ending = ExecutionTerminated(timestamp=self._hub.clock.utc_now(), input=row.output)
        return live, loaded

    def _execution(
        self, instance_id: str, past: Sequence[HistoryEvent], execution_id: str | None, custom_status: str | None
    ) -> Execution:
        instance = OrchestrationInstance(instance_id=instance_id, execution_id=execution_id)
        return Execution(self._registry, past, instance=instance, custom_status=custom_status)

    def _restarted(self, instance_id: str, old: Live) -> Live:
        """A new start over an ended history: it is written from ordinal 0 under the same sentinel.

        Its blobs stay, as in DurableTask: a child's row keeps the output of the run before until it ends again.
        """
        stored = replace(old.stored, rows=0, surplus=0, tails=True, consumed=(), blobs=(), status=None)
        return Live(self._execution(instance_id, (), None, None), stored, None)

    # judging

    async def _judge(self, session: Session[Live], batch: Sequence[Held], facts: Facts, etag: str | None) -> Sorted:
        hidden = ticks_of(session.reader.visibility)
        found = Sorted(facts=facts)
        taken: set[str] = set()
        for held in batch:
            if held.identity in taken:  # put twice, since an answer was lost: one of the two is enough
                found.stale.append((held, "its double is in the same batch"))
                continue
            judged = _judged(held, found.facts, hidden)
            if judged.verdict is Verdict.LOOK:
                found.facts = await self._look(session.instance_id, held.message.event, found.facts, etag)
                judged = _judged(held, found.facts, hidden)
            match judged.verdict:
                case Verdict.PROCESS:
                    found.process.append(held)
                    taken.add(held.identity)
                    if isinstance(held.message.event, ExecutionStarted):
                        found.facts = Facts(execution_id=held.message.event.instance.execution_id)
                case Verdict.STALE:
                    found.stale.append((held, judged.reason))
                case Verdict.CANCEL_START:
                    found.cancel.append(held)
                case _:
                    found.later.append((held, judged))
        return found

    async def _look(self, instance_id: str, event: HistoryEvent, facts: Facts, etag: str | None) -> Facts:
        """Read what a live session does not keep: the instance row, and when the last checkpoint was.

        :param etag: of the sentinel, as the session has it.
        :raises Aborted: when the partition's former owner has committed since: what the session holds is old.
        """
        if isinstance(event, ExecutionStarted):
            row = await self._row_of_start(instance_id, event.instance.execution_id)
        else:
            row = await self._hub.instance(instance_id)
            sentinel = await sentinel_of(self._hub.store, self._hub.names, instance_id)
            if (sentinel.etag if sentinel else None) != etag:
                raise Aborted("another owner has committed since the history was loaded")
            facts = replace(facts, checkpointed=sentinel.timestamp if sentinel else None)
        return replace(
            facts,
            row_read=True,
            row_execution_id=row.execution_id if row else None,
            row_generation=row.generation if row else None,
            row_terminated=row is not None and row.status is Status.TERMINATED,
            row_due=row.scheduled_start if row is not None and row.status is Status.PENDING else None,
        )

    async def _row_of_start(self, instance_id: str, wanted: str | None) -> InstanceState | None:
        """A .NET client puts the start first and writes the row after it: look again for a second (DESIGN §6)."""
        row = None
        for turn in range(LOOK_TIMES):
            row = await self._hub.instance(instance_id)
            if row is not None and row.execution_id == wanted:
                break
            if turn + 1 < LOOK_TIMES:
                await self._hub.clock.sleep(LOOK_PAUSE)
        return row

    # setting aside

    async def _set_aside(self, session: Session[Live], live: Live, found: Sorted) -> None:
        for held, reason in found.stale:
            log.info(
                "message_set_aside",
                instance_id=session.instance_id,
                event_type=held.message.event.event_type.name,
                message_id=held.message_id,
                reason=reason,
            )
        if found.stale and live.past:
            await self._repair(session, live, [held for held, _ in found.stale])
        for held in found.cancel:
            judged = await self._cancel_start(session, held)
            if judged.verdict is Verdict.STALE:
                found.stale.append((held, judged.reason))
            else:
                found.later.append((held, judged))
        await self._delete(session, [held for held, _ in found.stale])
        for held, judged in found.later:
            await self._abandon(session, found.facts, held, judged)

    async def _repair(self, session: Session[Live], live: Live, batch: Sequence[Held]) -> None:
        """A redelivered message says that a checkpoint may have been cut off behind its history: do the rest (K29)."""
        hub = self._hub
        row = await hub.instance(session.instance_id, payloads=True)
        with self.episodes.computing(session.instance_id, live.execution_id, batch):
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
            live.stored = replace(live.stored, row_etag=etag)
            log.info("instance_row_repaired", instance_id=session.instance_id)
        if live.ended is not None:
            for hint in completion(hub.names, live.execution.instance, live.ended, live.tags):
                await hub.store.execute(hint)
            if live.open_tasks:
                await self._cancel_activities(session.instance_id)

    async def _merge(
        self, session: Session[Live], entity: Entity, blobs: Sequence[PutBlob], *, etag: str | None
    ) -> str:
        row = changed(self._hub.names, entity, etag)
        steps = (Step(name="payloads", operations=tuple(blobs)), Step(name="instance", operations=(row,)))
        etags = (await self._hub.store.commit(Unit(steps=steps, check=session.reader.tenure.check)))[1][0]
        assert isinstance(etags, tuple)
        return etags[0]

    async def _cancel_start(self, session: Session[Live], held: Held) -> Judged:
        """Terminate an instance without a history (K41): its row says it, once its start cannot be under way.

        A scheduled start is found terminated when its time comes. Any other follows its row at once: it is let pass,
        since its first delivery runs without a look at the row (DESIGN §6).
        """
        hub, event = self._hub, held.message.event
        row = await hub.instance(session.instance_id)
        if row is None:
            return Judged(verdict=Verdict.WAIT, reason="its instance is not there yet")
        if row.status is not Status.PENDING or not isinstance(event, ExecutionTerminated):
            return Judged(verdict=Verdict.STALE, reason=f"the instance is {row.status} and has no history")
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

    async def _delete(self, session: Session[Live], messages: Sequence[Held]) -> None:
        for held in messages:
            await self._hub.store.execute(held.deletion())
        session.reader.release(messages)

    async def _abandon(self, session: Session[Live], facts: Facts, held: Held, judged: Judged) -> None:
        if judged.verdict is Verdict.EARLY:
            await session.reader.give_back([held], delay=min(judged.pause, MAX_VISIBILITY))
            return
        if held.envelope.failures >= quarantine.MAX_FAILURES:
            if await self._is_purged(session, facts, held):
                await self._set_aside_late(session, held)
            else:
                await session.reader.keep_aside(held, quarantine.of_held(held, judged.reason))
            return
        pause = delay(judged.verdict, held.envelope.failures)
        log.log(
            logging.WARNING if judged.verdict is Verdict.RACE else logging.INFO,
            "AbandoningMessage",
            instance_id=session.instance_id,
            event_type=held.message.event.event_type.name,
            enqueued=str(held.inserted),
            checkpoint=str(facts.checkpointed) if facts.checkpointed else None,
            reason=judged.reason,
            retry_in=pause.total_seconds(),
        )
        await session.reader.give_back([held], delay=pause, failed=True)

    async def _is_purged(self, session: Session[Live], facts: Facts, held: Held) -> bool:
        """Whether an answer has come for an instance of which nothing is left (K46)."""
        if scheduling_id(held.message.event) is None or facts.execution_id is not None:
            return False
        return await self._hub.instance(session.instance_id) is None

    async def _set_aside_late(self, session: Session[Live], held: Held) -> None:
        log.info(
            "message_set_aside",
            instance_id=session.instance_id,
            event_type=held.message.event.event_type.name,
            message_id=held.message_id,
            reason="its instance was purged",
        )
        await self._delete(session, [held])

    async def _failed(
        self, session: Session[Live], batch: Sequence[Held], error: Exception, *, failed: bool = True
    ) -> None:
        """Give the messages back; what is at its limit is kept aside with the error (DESIGN §6).

        :param failed: count one more failure in each; False: the store did not answer.
        """
        poison = [held for held in batch if quarantine.is_spent(held, failed=failed)]
        rest = [held for held in batch if held not in poison]
        failures = max((held.envelope.failures for held in rest), default=0)
        pause = delay(Verdict.WAIT, failures) if failed else timedelta(seconds=1)
        await session.reader.give_back(rest, delay=pause, failed=failed)
        for held in poison:
            await session.reader.keep_aside(held, quarantine.spent(held, error))

    async def _ends(self, session: Session[Live], batch: list[Held], execution_id: str | None) -> list[Held] | None:
        """What an instance in quarantine is given nevertheless: its end. All else joins what is kept of it.

        :returns: None: it is not in quarantine.
        """
        generation = _generation(execution_id, batch)
        if generation is None or not await session.reader.shuns(session.instance_id, generation):
            return None
        ends = [held for held in batch if isinstance(held.message.event, ExecutionTerminated)]
        for held in batch:
            if held not in ends:
                item = quarantine.of_held(held, "its instance is in quarantine", stuck=generation)
                await session.reader.keep_aside(held, item)
        return ends

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

    # running

    async def _run(self, session: Session[Live], live: Live, batch: list[Held]) -> None:
        hub, reader = self._hub, session.reader
        events, now = [brought(held) for held in batch], hub.clock.utc_now()
        past: tuple[HistoryEvent, ...] = ()
        traced = tracing.on()
        if traced:
            events = [begun(one, one.instance, now) if isinstance(one, ExecutionStarted) else one for one in events]
            past = live.execution.history
        try:
            with self.episodes.computing(session.instance_id, _generation(live.execution_id, batch), batch):
                if live.ending is not None:
                    episode = live.execution.terminate([live.ending], now=now)
                elif live.stuck:
                    episode = live.execution.terminate(events, now=now)
                else:
                    episode = live.execution.advance(events, now=now, new_execution_id=next_execution_id)
        except UnknownOrchestrator as error:
            gave_up = self._unknown(error.name)
            if gave_up is None:
                log.warning("orchestrator_unknown", instance_id=session.instance_id, error=str(error))
                await reader.give_back(batch, delay=unknown_delay(batch[0].deliveries))
                self._sessions.keep(session, None)
                return
            failure = FailureDetails(error_type="UnknownOrchestrator", error_message=gave_up, is_non_retriable=True)
            episode = live.execution.fail(events, failure, now=now)
        for event, reason in episode.stale:
            log.info(
                "event_set_aside", instance_id=session.instance_id, event_type=event.event_type.name, reason=reason
            )
        try:
            await self._commit(session, live, episode, batch)
        except (PayloadTooLarge, InputError) as error:
            await self._refused(session, batch, error)
            return
        if traced and episode.history:
            stale = [event for event, _ in episode.stale]
            tracing.record(past, [event for event in events if event not in stale], episode.history)

    async def _refused(
        self, session: Session[Live], batch: Sequence[Held], error: Exception, *, judged: bool = True
    ) -> None:
        """No store takes what an episode decided: the instance fails with it, for it would decide the same again.

        With all that came, so that a rewind finds it; else with its start alone; else it is kept aside.

        :param judged: False: nobody knows yet what the batch is to the instance, which fails without it.
        """
        hub, instance_id = self._hub, session.instance_id
        log.warning("checkpoint_refused", instance_id=instance_id, error=str(error))
        text = f"the store does not take what it decided: {message_of(error)}"
        failure = FailureDetails(error_type=type(error).__name__, error_message=text, is_non_retriable=True)
        taken = list(batch) if judged else []
        starts = [held for held in taken if isinstance(held.message.event, ExecutionStarted)]
        for kept in (taken, starts):
            live, _ = await self._load(instance_id)
            known = live.execution_id
            if starts and known and not same_start(known, starts[0].message.instance.execution_id):
                live = self._restarted(instance_id, live)
            events = [brought(held) for held in kept if held.identity not in live.seen]
            try:
                await self._commit(session, live, live.execution.fail(events, failure, now=hub.clock.utc_now()), taken)
                return
            except (PayloadTooLarge, InputError) as again:
                text = f"{text}; and its failure neither: {message_of(again)}"
        self._sessions.keep(session, None)
        for held in batch:
            await session.reader.keep_aside(held, quarantine.of_held(held, text))

    async def _commit(self, session: Session[Live], live: Live, episode: Episode, batch: list[Held]) -> None:
        live.past = ()
        if not episode.history:
            await self._delete(session, batch)  # every event of it was set aside
            self._keep(session, live)
            return
        if episode.switched:  # the rows that name these messages go, and any of them may come again
            consumed = tuple(message_id for message_id, kept in live.seen.items() if kept)
            live.stored = replace(live.stored, consumed=consumed)
        live.absorb(episode.history, switched=episode.switched)
        live.execution_id = episode.current.execution_id
        mail = self._hub.outbound(episode, self._claims)
        with self._promise(mail):
            done = await self._committer.commit(
                episode, live.stored, mail, batch, tenure=session.reader.tenure, tags=live.tags
            )
        live.remember(done.stored)
        session.reader.release(batch)
        self._adopt(done.claimed)
        if episode.completed is None:
            self._keep(session, live)
            return
        failure = episode.completed.failure
        log.log(
            logging.WARNING if episode.status is Status.FAILED else logging.INFO,
            "instance_ended",
            instance_id=session.instance_id,
            orchestrator=live.name,
            status=str(episode.status),
            **({"error": f"{failure.error_type}: {failure.error_message}"[:SHOWN_ERROR]} if failure else {}),
        )
        self._sessions.keep(session, None)
        if live.open_tasks:
            await self._cancel_activities(session.instance_id)

    def _take_in(self, session: Session[Live], live: Live) -> None:
        """Its code may run from now on: it is the session's, which puts it aside whatever happens."""
        if session.state is not live:
            self._sessions.keep(session, live)

    def _keep(self, session: Session[Live], live: Live) -> None:
        self._sessions.keep(session, live, live.execution.size)

    async def _cancel_activities(self, instance_id: str) -> None:
        """Ask the holders of running attempts to end them (DESIGN §9)."""
        for found in await records.of_instance(self._hub.store, self._hub.names, instance_id):
            await self._cancel_activity(found)

    async def _cancel_activity(self, found: tuple[ActivityRecord, Entity] | None) -> None:
        hub = self._hub
        for _ in range(CANCEL_TRIES):
            if found is None:
                return
            record, entity = found
            move = react_activity(ActivityState(record.state), ActivityHappening.CANCEL)
            if move.reaction is not ActivityReaction.ASK:
                return
            asked = replace(record, state=RecordState.CANCELLING)
            try:
                await hub.store.execute(records.update(hub.names, asked, entity.etag))
                return
            except (Conflict, NotFound):  # a heartbeat came between: once more, from what it wrote
                found = await records.newest(hub.store, hub.names, record)


def _recalled(live: Live) -> tuple[bool, str | None]:
    """Whether the custom status can be known, and what it is."""
    try:
        return True, live.execution.recall()
    except UnknownOrchestrator:
        return False, None


def _generation(execution_id: str | None, batch: Sequence[Held]) -> str | None:
    """The execution id that a batch is for. :param execution_id: of what is stored."""
    event = batch[0].message.event if batch else None
    return event.instance.execution_id if isinstance(event, ExecutionStarted) else execution_id


def _judged(held: Held, facts: Facts, hidden: int) -> Judged:
    """:param hidden: ticks for which a message is claimed: so long before the end of its receipt that was asked for."""
    message = held.message
    return judge(
        message.event,
        execution_id=message.instance.execution_id,
        message_id=held.identity,
        inserted=held.inserted,
        facts=facts,
        now=Timestamp(held.receipt.next_visible.ticks - hidden),
    )


def _runs_unread(event: ExecutionStarted, held: Held) -> bool:
    """A start whose client inserted the row has nothing stored yet, unless it had to wait: then anything may be."""
    return event.taskhub_row_etag is not None and event.scheduled_start_time is None and held.deliveries == 1
