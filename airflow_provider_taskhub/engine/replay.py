"""``run(past, new) → actions``: an instance's history and new events in, an episode out.

Owns the shape of histories as DurableTask.Core makes them: which events an episode appends and in which order, how
generations follow each other within one, what leaves as a message. Reads no clock and does no I/O.

This module is longer than others. All of it is one state machine over one live generation, and every way in which an
episode can be made (new events, a resumed commit, a failure, a termination) must keep the same order of events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine import children as family
from airflow_provider_taskhub.engine.context import Log
from airflow_provider_taskhub.engine.episode import Episode, Outbound
from airflow_provider_taskhub.engine.events import (
    EventSent,
    ExecutionCompleted,
    ExecutionStarted,
    ExecutionTerminated,
    FailureDetails,
    GenericEvent,
    HistoryEvent,
    OrchestrationInstance,
    OrchestratorCompleted,
    OrchestratorStarted,
    Status,
    SubOrchestrationInstanceCreated,
    TaskScheduled,
    TimerCreated,
    TimerFired,
)
from airflow_provider_taskhub.engine.generation import Generation
from airflow_provider_taskhub.engine.identity import next_execution_id
from airflow_provider_taskhub.engine.parent_response import response as response_of
from airflow_provider_taskhub.engine.past import Past
from airflow_provider_taskhub.engine.pending_waits import NOTHING
from airflow_provider_taskhub.engine.recorded import Recorded
from airflow_provider_taskhub.engine.registry import Registry
from airflow_provider_taskhub.errors import InputError, NonDeterminismError, OrchestrationError

MAX_GENERATIONS = 10_000
"""Generations within one episode, beyond one for each new event."""
_DECISIONS = (TaskScheduled, SubOrchestrationInstanceCreated, TimerCreated, EventSent)


class Execution:
    """A live orchestrator. A session keeps it, and each batch of new events is taken without replay.

    :param past: the current generation's history, from its beginning; empty for an instance that starts.
    :param instance: with the execution id, where it is known.
    :param max_generations: bound of generations within one episode. :param custom_status: as the instance row has it:
        a status set by an earlier generation is not in the history. :param log: where ``ctx.logger`` writes.
    """

    def __init__(
        self,
        registry: Registry,
        past: Sequence[HistoryEvent],
        *,
        instance: OrchestrationInstance,
        max_generations: int = MAX_GENERATIONS,
        custom_status: str | None = None,
        log: Log | None = None,
    ) -> None:
        self._registry = registry
        self._past = Past(past)
        self._instance = instance
        self._max_generations = max_generations
        self._custom_status = custom_status
        self._log = log
        self._generation: Generation | None = None

    @property
    def history(self) -> tuple[HistoryEvent, ...]:
        """The current generation's history, the episodes made here included."""
        return tuple(self._past.events)

    @property
    def is_finished(self) -> bool:
        """Its history has its completion: nothing further is accepted."""
        return self._past.completed

    @property
    def size(self) -> int:
        """Estimate of the memory it holds, in bytes: what its history says, a few times over at most."""
        return self._past.size

    @property
    def instance(self) -> OrchestrationInstance:
        """The instance and its current generation."""
        return self._instance

    def close(self) -> None:
        """Let go of the coroutine, and close it here and now."""
        if (close := self.rest()) is not None:
            close()

    def rest(self) -> Callable[[], None] | None:
        """Let go of the coroutine and keep the history: the next events replay it.

        :returns: closes the coroutine: its ``finally`` blocks run, which may take as long as they like.
        """
        generation, self._generation = self._generation, None
        if generation is None:
            return None
        self._custom_status = generation.custom_status
        return generation.close

    def advance(
        self,
        new: Sequence[HistoryEvent],
        *,
        now: Timestamp,
        new_execution_id: Callable[[str], str] = next_execution_id,
    ) -> Episode:
        """Take new events, in the order in which they arrived, and say what follows.

        An episode with an empty history has nothing to be made durable: all its events were set aside.

        :param now: this machine's clock; the orchestrator's time is never before it, nor before the last time in the
            history, nor before the FireAt of a timer in ``new``.
        :param new_execution_id: execution id of the next generation by that of the one before.
        :raises UnknownOrchestrator: no loaded app declares it; nothing has changed then.
        :raises InputError: neither the history nor ``new`` has a start.
        """
        if self._past.completed:
            return self._unchanged([(event, f"the orchestration is {self._past.status} already") for event in new])
        new = _start_first(new)
        generation = self._load(new)
        loaded = self._instance
        times = [event.fire_at for event in new if isinstance(event, TimerFired) and generation.answers(event)]
        time = max([now, self._past.time, *times])
        history: list[HistoryEvent] = [OrchestratorStarted(timestamp=time)]
        stale = self._receive(generation, new, time, history)
        if len(history) == 1 and not generation.is_decided:
            return self._unchanged(stale)
        self._past.episodes += 1
        number = self._past.episodes
        outbound: list[Outbound] = []
        switched = False
        generations = 0
        while generation.status is Status.CONTINUED_AS_NEW:
            generations += 1
            if generations > self._max_generations + len(new):
                generation = self._fail_endless(generation)
                break
            decided = generation.flush(time)
            outbound += [message for _, message in decided]
            past = [*(() if switched else self._past.events), *history, *(event for event, _ in decided)]
            generation, history = self._next(generation, time, new_execution_id, family.carried(past))
            switched = True
        self._generation = generation
        for event, message in generation.flush(time):
            history.append(event)
            outbound.append(message)
        completed = self._complete(generation, time, history, outbound)
        outbound += self._child_terminations(completed, history, switched=switched)
        history.append(OrchestratorCompleted(timestamp=time, taskhub_waits=generation.wait_changes.text()))
        first = 0 if switched else len(self._past.events)
        self._commit(generation, history, switched=switched)
        return Episode(
            loaded=loaded,
            current=generation.instance,
            switched=switched,
            history=tuple(history),
            first_ordinal=first,
            outbound=tuple(outbound),
            number=number,
            status=generation.status,
            custom_status=generation.custom_status,
            completed=completed,
            awaits=NOTHING if completed is not None else generation.awaits(),
            stale=tuple(stale),
        )

    def recall(self) -> str | None:
        """The custom status as the code sets it when it is replayed: a history does not hold it.

        :raises UnknownOrchestrator: no loaded app declares it.
        """
        return self._load(()).custom_status

    def resume(self) -> Episode:
        """The rest of an episode of which the history has only the beginning: a generation switch too big for one
        transaction, cut off between two of them.

        :returns: an episode with an empty history when nothing is missing.
        :raises UnknownOrchestrator: no loaded app declares it.
        """
        generation = self._load(())
        history: list[HistoryEvent] = []
        outbound: list[Outbound] = []
        for event, message in generation.flush(self._past.time):
            history.append(event)
            outbound.append(message)
        completed = None if self._past.completed else self._complete(generation, self._past.time, history, outbound)
        outbound += self._child_terminations(completed, history)
        if not history:
            return self._unchanged([])
        history.append(OrchestratorCompleted(timestamp=self._past.time))
        first, number = len(self._past.events), self._past.episodes
        self._past.extend(history)
        return Episode(
            loaded=self._instance,
            current=self._instance,
            switched=False,
            history=tuple(history),
            first_ordinal=first,
            outbound=tuple(outbound),
            number=number,
            status=generation.status,
            custom_status=generation.custom_status,
            completed=completed,
            awaits=NOTHING if completed is not None else generation.awaits(),
        )

    def fail(self, new: Sequence[HistoryEvent], failure: FailureDetails, *, now: Timestamp) -> Episode:
        """Fail the instance without running any code: nobody can, or no store takes what it decides.

        :param new: recorded as they are. :param now: as in :meth:`advance`.
        :raises InputError: neither the history nor ``new`` has a start.
        """
        return self._end(new, Status.FAILED, failure.error_message, failure, now=now)

    def terminate(self, new: Sequence[HistoryEvent], *, now: Timestamp, also: Sequence[HistoryEvent] = ()) -> Episode:
        """Terminate the instance without running any code: none may run. It does not come to an end, or the
        instance was reported as terminated already.

        :param new: with the ExecutionTerminated; recorded as they are. :param now: as in :meth:`advance`.
        :param also: the readable events of a damaged history: the children that they name end too.
        :raises InputError: neither the history nor ``new`` has a start.
        """
        reason = next((event.input for event in new if isinstance(event, ExecutionTerminated)), None)
        return self._end(new, Status.TERMINATED, reason, None, now=now, also=also)

    def _end(
        self,
        new: Sequence[HistoryEvent],
        status: Status,
        result: str | None,
        failure: FailureDetails | None,
        *,
        now: Timestamp,
        also: Sequence[HistoryEvent] = (),
    ) -> Episode:
        if self._past.completed:
            return self._unchanged([(event, f"the orchestration is {self._past.status} already") for event in new])
        new = _start_first(new)
        loaded = self._instance
        started, self._instance = self._start(new)
        self._past.status = status
        time = max(now, self._past.time)
        completed = ExecutionCompleted(
            timestamp=time, event_id=self._past.last_number + 1, status=status, result=result, failure=failure
        )
        history: list[HistoryEvent] = [
            OrchestratorStarted(timestamp=time),
            *(replace(event, is_played=True) for event in new),
            completed,
            OrchestratorCompleted(timestamp=time),
        ]
        response = response_of(started, self._instance, completed) if family.reports_end(new) else None
        outbound = [*([response] if response else []), *self._child_terminations(completed, [*also, *history])]
        first, number = len(self._past.events), self._past.episodes + 1
        self._past.extend(history)
        return Episode(
            loaded=loaded if loaded.execution_id else self._instance,
            current=self._instance,
            switched=False,
            history=tuple(history),
            first_ordinal=first,
            outbound=tuple(outbound),
            number=number,
            status=status,
            custom_status=self._custom_status,
            completed=completed,
        )

    def _child_terminations(
        self, completed: ExecutionCompleted | None, new: Sequence[HistoryEvent], *, switched: bool = False
    ) -> list[Outbound]:
        """The messages that end the children of an instance that is terminated. :param new: what its history gets."""
        if completed is None or completed.status is not Status.TERMINATED:
            return []
        past = [*(() if switched else self._past.events), *new]
        return family.terminations(past, self._instance.instance_id, completed.timestamp)

    # ---- the past

    def _load(self, new: Sequence[HistoryEvent]) -> Generation:
        """The live generation: the one in memory, or replayed from the past, or begun by the start in ``new``."""
        if self._generation is not None:
            return self._generation
        started, instance = self._start(new)
        definition = self._registry.orchestrator(started.name, started.version)
        generation = Generation(
            self._registry,
            definition,
            started,
            instance,
            time=self._past.time,
            past=Recorded(self._past.events),
            custom_status=self._custom_status,
            log=self._log,
        )
        self._instance = instance
        self._generation = generation
        if self._past.events:
            self._replay(generation)
        return generation

    def _start(self, new: Sequence[HistoryEvent]) -> tuple[ExecutionStarted, OrchestrationInstance]:
        """The start of this generation, in its history or in ``new``, and the instance with its execution id."""
        started = next((event for event in (*self._past.events, *new) if isinstance(event, ExecutionStarted)), None)
        if started is None:
            raise InputError(f"instance {self._instance.instance_id!r} has no ExecutionStarted in its history")
        execution_id = self._instance.execution_id or started.instance.execution_id
        return started, OrchestrationInstance(instance_id=self._instance.instance_id, execution_id=execution_id)

    def _replay(self, generation: Generation) -> None:
        flushed = self._past.flushed()
        generation.replaying = True
        try:
            for at, event in enumerate(self._past.events):
                generation.recorded = at < flushed
                if isinstance(event, _DECISIONS):
                    generation.confirm(event)
                elif isinstance(event, OrchestratorStarted):
                    generation.episode(event.timestamp)
                elif isinstance(event, ExecutionStarted):
                    if generation.status is Status.PENDING:
                        generation.begin()
                elif isinstance(event, GenericEvent):
                    generation.note(event)
                elif not isinstance(event, OrchestratorCompleted):
                    generation.receive(event)
        except NonDeterminismError as error:
            generation.fail_nondeterministic(error, self._past.last_number)
        finally:
            generation.replaying = generation.recorded = False

    # ---- the new

    def _receive(
        self, generation: Generation, new: Sequence[HistoryEvent], time: Timestamp, history: list[HistoryEvent]
    ) -> list[tuple[HistoryEvent, str]]:
        """Give the events to the generation; those that it takes go into the history."""
        stale: list[tuple[HistoryEvent, str]] = []
        try:
            generation.episode(time)
        except NonDeterminismError as error:
            generation.fail_nondeterministic(error, self._past.last_number)
        for event in new:
            if generation.status is Status.PENDING and isinstance(event, ExecutionStarted):
                history.append(replace(event, is_played=True))
                generation.begin()
            elif reason := generation.receive(event):
                stale.append((event, reason))
            else:
                history.append(replace(event, is_played=True))
        return stale

    def _next(
        self, before: Generation, time: Timestamp, new_execution_id: Callable[[str], str], children: str | None
    ) -> tuple[Generation, list[HistoryEvent]]:
        """The next generation, run over what is carried into it, and its history so far."""
        before.close()
        instance = OrchestrationInstance(
            instance_id=before.instance.instance_id,
            execution_id=new_execution_id(before.instance.execution_id or ""),
        )
        started = replace(
            before.started,
            timestamp=time,
            instance=instance,
            input=before.continue_input,
            is_played=True,
            scheduled_start_time=None,
            generation=None,
            generate_new_trace=False,
            taskhub_row_etag=None,
            taskhub_children=children,
            taskhub_message_id=None,
        )
        generation = Generation(
            self._registry,
            before.definition,
            started,
            instance,
            time=time,
            custom_status=before.custom_status,
            log=self._log,
        )
        carried = before.carried()
        history: list[HistoryEvent] = [
            OrchestratorStarted(timestamp=time),
            started,
            *(replace(event, is_played=True) for event in carried),
            OrchestratorCompleted(timestamp=time, is_played=True),
        ]
        generation.begin()
        for event in carried:
            generation.receive(event)
        return generation, history

    def _fail_endless(self, generation: Generation) -> Generation:
        error = OrchestrationError(
            f"orchestrator {generation.definition.name!r} continued as new {self._max_generations} times "
            "in one episode without waiting for anything: await an activity, a timer or an event in each generation",
            retryable=False,
        )
        generation.fail_with(error)
        return generation

    def _complete(
        self, generation: Generation, time: Timestamp, history: list[HistoryEvent], outbound: list[Outbound]
    ) -> ExecutionCompleted | None:
        if not generation.status.is_final:
            return None
        generation.close()
        completed = ExecutionCompleted(
            timestamp=time,
            event_id=generation.numbers,
            status=generation.status,
            result=generation.result,
            failure=generation.failure,
        )
        history.append(completed)
        response = response_of(generation.started, generation.instance, completed)
        if response is not None and family.reports_end([*self._past.events, *history]):
            outbound.append(response)
        return completed

    def _commit(self, generation: Generation, history: Sequence[HistoryEvent], *, switched: bool) -> None:
        """The episode counts as made; a session whose checkpoint fails drops the whole execution."""
        self._instance = generation.instance
        if switched:
            self._past.clear()
        else:
            self._past.episodes -= 1  # its OrchestratorStarted is counted below
        self._past.extend(history)

    def _unchanged(self, stale: Sequence[tuple[HistoryEvent, str]]) -> Episode:
        generation = self._generation
        return Episode(
            loaded=self._instance,
            current=self._instance,
            switched=False,
            history=(),
            first_ordinal=len(self._past.events),
            outbound=(),
            number=self._past.episodes,
            status=generation.status if generation is not None else self._past.status,
            custom_status=generation.custom_status if generation is not None else self._custom_status,
            stale=tuple(stale),
        )


def run(
    registry: Registry,
    past: Sequence[HistoryEvent],
    new: Sequence[HistoryEvent],
    *,
    instance: OrchestrationInstance,
    now: Timestamp,
    new_execution_id: Callable[[str], str] = next_execution_id,
    custom_status: str | None = None,
) -> Episode:
    """One episode as a pure function. Parameters and errors as in :class:`Execution`."""
    execution = Execution(registry, past, instance=instance, custom_status=custom_status)
    try:
        return execution.advance(new, now=now, new_execution_id=new_execution_id)
    finally:
        execution.close()


def _start_first(new: Sequence[HistoryEvent]) -> Sequence[HistoryEvent]:
    """Events raised right after a start may overtake it in the queue."""
    if len(new) < 2 or isinstance(new[0], ExecutionStarted):
        return new
    starts = [event for event in new if isinstance(event, ExecutionStarted)]
    return [*starts, *(event for event in new if not isinstance(event, ExecutionStarted))] if starts else new
