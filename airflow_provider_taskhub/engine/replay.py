"""Runs episodes: takes the history of an instance and new events, and returns an :class:`.episode.Episode`.

This module decides the form of a history, which is that of DurableTask.Core: the events that an episode appends, their
order, and the messages. It also decides how ``continue_as_new`` begins a new *generation*, with an empty history,
within an episode. It reads no clock and does no I/O.

This module is longer than others, because it is one state machine over one live generation. An episode is made for new
events, for an interrupted commit, for a failure or for a termination, and each must keep the same order of events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine import children as family
from airflow_provider_taskhub.engine import grace, stopping
from airflow_provider_taskhub.engine.actions import Scope
from airflow_provider_taskhub.engine.episode import Episode, Outbound
from airflow_provider_taskhub.engine.events import (
    EventSent,
    ExecutionCompleted,
    ExecutionResumed,
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
from airflow_provider_taskhub.engine.no_event_loop import without_event_loop
from airflow_provider_taskhub.engine.parent_response import response as response_of
from airflow_provider_taskhub.engine.past import Past
from airflow_provider_taskhub.engine.pending_waits import NOTHING, Awaits
from airflow_provider_taskhub.engine.recorded import Recorded
from airflow_provider_taskhub.engine.registry import Registry
from airflow_provider_taskhub.engine.replay_safe_logger import Log
from airflow_provider_taskhub.errors import InputError, NonDeterminismError, OrchestrationError

MAX_GENERATIONS = 10_000
"""Maximum number of calls of ``continue_as_new`` in one episode. Each new event allows one more."""
_DECISIONS = (TaskScheduled, SubOrchestrationInstanceCreated, TimerCreated, EventSent)


class Execution:
    """An instance in memory, with its history and its live orchestrator.

    A session keeps the execution, so that further events are taken without a replay. A *generation* is the part of the
    instance's run between two calls of ``continue_as_new``.

    :param registry: the declared orchestrators and activities.
    :param past: history of the current generation, from its beginning; empty for an instance that starts.
    :param instance: id of the instance, with the execution id if the execution id is known.
    :param max_generations: maximum number of generations in one episode; each new event allows one more.
    :param custom_status: custom status in the instance row. It is needed because a status that an earlier generation
        set is not in the history. None: no custom status.
    :param log: function that gets the lines of ``ctx.logger``; None: the lines are dropped.
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
        """The history since the last ``continue_as_new``, with the episodes that this execution has made."""
        return tuple(self._past.events)

    @property
    def is_finished(self) -> bool:
        """Whether the history has a completion event. New events then have no effect."""
        return self._past.completed

    @property
    def size(self) -> int:
        """Estimate of the memory that this execution uses, in bytes, computed from the size of its history."""
        return self._past.size

    @property
    def instance(self) -> OrchestrationInstance:
        """The instance id and the current execution id, which changes with each ``continue_as_new``."""
        return self._instance

    def close(self) -> None:
        """Close the orchestrator function now; its ``finally`` blocks run. The history is kept."""
        if (close := self.release()) is not None:
            close()

    def release(self) -> Callable[[], None] | None:
        """Drop the live orchestrator and keep the history. The next episode begins with a replay.

        :returns: a function that closes the orchestrator function. The caller chooses when to call it, because the
            ``finally`` blocks that it runs are user code and can take long. None if there is no live orchestrator.
        """
        generation, self._generation = self._generation, None
        if generation is None:
            return None
        self._custom_status = generation.custom_status
        return without_event_loop(generation.close)

    @without_event_loop
    def advance(
        self,
        new: Sequence[HistoryEvent],
        *,
        now: Timestamp,
        new_execution_id: Callable[[str], str] = next_execution_id,
    ) -> Episode:
        """Run the orchestrator over new events, and return the episode.

        If the ``history`` of the episode is empty, all new events are stale and nothing is to be stored.

        :param new: the new events, in the order in which they arrived.
        :param now: time of this machine's clock. The orchestrator's time is the latest of ``now``, the last time in the
            history and the times of the timers that fire in ``new``.
        :param new_execution_id: function that makes the execution id after ``continue_as_new`` from the current one.
        :raises UnknownOrchestrator: no loaded app has code for the instance. Nothing has changed then.
        :raises InputError: neither the history nor ``new`` has an ExecutionStarted event.
        """
        if self._past.completed:
            return self._unchanged([(event, f"the orchestration is {self._past.status} already") for event in new])
        new = _start_first([*map(grace.as_stored, new)])
        request = grace.which_counts(self._past.request, grace.found(new))
        if request is not None and request.call is not None:
            return self._stop(new, request, now=now)
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
                outbound.clear()  # the loop has decided the same again and again
                break
            decided = generation.flush(time)
            outbound += [message for _, message in decided if message is not None]
            past = [*(() if switched else self._past.events), *history, *(event for event, _ in decided)]
            generation, history = self._next(generation, time, new_execution_id, family.carried(past))
            switched = True
        self._generation = generation
        generation.fail_if_stuck()
        for event, message in generation.flush(time):
            history.append(event)
            if message is not None:
                outbound.append(message)
        if grace.found(history) is not None:
            past = [*(() if switched else self._past.events), *history]
            outbound += family.requests(past, generation.instance.instance_id, time)
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

    @without_event_loop
    def recall(self) -> str | None:
        """Replay the history and return the custom status that the code sets. A history does not hold custom statuses.

        :returns: the custom status as JSON text; None: no custom status.
        :raises UnknownOrchestrator: no loaded app has code for the instance.
        """
        return self._load(()).custom_status

    @without_event_loop
    def resume(self) -> Episode:
        """Return the missing rest of the last episode in the history.

        The history rows that an episode writes after ``continue_as_new`` can need several transactions. If a worker of
        an older version died between two of them, the history has only the beginning of the episode, and no blob has
        the rest. Only decisions of the code are made again; events that were carried over are lost.

        :returns: an episode with an empty ``history`` if nothing is missing.
        :raises UnknownOrchestrator: no loaded app has code for the instance.
        """
        generation = self._load(())
        history: list[HistoryEvent] = []
        outbound: list[Outbound] = []
        for event, message in generation.flush(self._past.time):
            history.append(event)
            if message is not None:
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

    def _stop(self, new: Sequence[HistoryEvent], request: grace.Request, *, now: Timestamp) -> Episode:
        """Go on with the end of the instance, because the code of its parent has cancelled it.

        :param new: new events.
        :param request: the request of the parent, in the history or in ``new``.
        """
        if any(isinstance(event, ExecutionTerminated) for event in new):
            return self.terminate(new, now=now)
        self.close()
        events, stale = stopping.taken(self._past.events, new, request)
        if not events:
            return self._unchanged(stale)
        loaded = self._instance
        started, self._instance = self._start(new)
        scope = Scope(instance=self._instance, started=started, time=max(now, self._past.time))
        scope = replace(scope, rewinds=Recorded(self._past.events).rewinds)
        history: list[HistoryEvent] = [OrchestratorStarted(timestamp=scope.time)]
        history += [replace(event, is_played=True) for event in events]
        whole = [*self._past.events, *history]
        decided = stopping.cancels(whole, scope, request, self._past.last_number + 1)
        history += [event for event, _ in decided]
        outbound = [message for _, message in decided if message is not None]
        if self._past.request != request:  # the request comes now
            outbound += family.requests(whole, self._instance.instance_id, scope.time)
        left = stopping.open_calls(whole)
        completed = None
        if not left:
            number = max(self._past.last_number, *(event.event_id for event in history)) + 1
            completed = ExecutionCompleted(
                timestamp=scope.time, event_id=number, status=Status.TERMINATED, result=request.reason
            )
            response = response_of(started, self._instance, completed)
            history.append(completed)
            outbound += [response] if response is not None else []
        history.append(OrchestratorCompleted(timestamp=scope.time))
        return self._without_code(
            loaded, history, outbound, completed=completed, awaits=stopping.awaits(left.values()), stale=stale
        )

    def ends(self, event: HistoryEvent) -> bool:
        """Return whether an event ends the instance without its code: a terminate, or the end of the time for clean-up.

        :param event: a new event.
        """
        if isinstance(event, TimerFired):
            timers = (one for one in self._past.events if isinstance(one, TimerCreated))
            return any(one.event_id == event.timer_id and one.taskhub_role == grace.ROLE for one in timers)
        return isinstance(event, ExecutionTerminated)

    def fail(self, new: Sequence[HistoryEvent], failure: FailureDetails, *, now: Timestamp) -> Episode:
        """Fail the instance without running its code.

        A worker calls this method if no worker can run the code, or if the store refuses the code's decisions.

        :param new: new events, which are appended to the history unchanged.
        :param failure: the error of the instance.
        :param now: time of this machine's clock.
        :raises InputError: neither the history nor ``new`` has an ExecutionStarted event.
        """
        return self._end(new, Status.FAILED, failure.error_message, failure, now=now)

    def terminate(self, new: Sequence[HistoryEvent], *, now: Timestamp, also: Sequence[HistoryEvent] = ()) -> Episode:
        """Terminate the instance without running its code.

        A worker calls this method if an episode of the code does not end, or if the instance was already reported as
        terminated.

        :param new: new events of which one :meth:`ends` the instance. They are appended to the history unchanged.
        :param now: time of this machine's clock.
        :param also: readable events of a damaged history. The children in these events are terminated too.
        :raises InputError: neither the history nor ``new`` has an ExecutionStarted event.
        """
        told = next((event.input for event in new if isinstance(event, ExecutionTerminated)), None)
        request = self._past.request or grace.found(also)
        reason = told if told is not None or request is None else request.reason
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
        response = (
            response_of(started, self._instance, completed) if family.reports_end([*self._past.events, *new]) else None
        )
        outbound = [*([response] if response else []), *self._child_terminations(completed, [*also, *history])]
        return self._without_code(loaded, history, outbound, completed=completed)

    def _without_code(
        self,
        loaded: OrchestrationInstance,
        history: Sequence[HistoryEvent],
        outbound: Sequence[Outbound],
        *,
        completed: ExecutionCompleted | None,
        awaits: Awaits = NOTHING,
        stale: Sequence[tuple[HistoryEvent, str]] = (),
    ) -> Episode:
        """Return an episode in which no code ran, and append it to the history in memory."""
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
            status=completed.status if completed is not None else Status.RUNNING,
            custom_status=self._custom_status,
            completed=completed,
            awaits=awaits,
            stale=tuple(stale),
        )

    def _child_terminations(
        self, completed: ExecutionCompleted | None, new: Sequence[HistoryEvent], *, switched: bool = False
    ) -> list[Outbound]:
        """Return the messages that terminate the children, if the instance was terminated; else an empty list.

        :param completed: completion event of the instance; None if it has not ended.
        :param new: the new events of the instance's history.
        :param switched: whether the instance continued as new in this episode, so that ``new`` is the whole history.
        """
        if completed is None or completed.status is not Status.TERMINATED:
            return []
        past = [*(() if switched else self._past.events), *new]
        return family.terminations(past, self._instance.instance_id, completed.timestamp)

    # ---- replay of the stored history

    def _load(self, new: Sequence[HistoryEvent]) -> Generation:
        """Return the live generation (its orchestrator). If none is in memory, make it and replay the stored history.

        :param new: new events. For an instance without a history they have the ExecutionStarted event.
        """
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
        """Return the start event, from the history or from ``new``, and the instance id with the execution id."""
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
                elif (request := grace.request_of(event)) is not None and request.call is not None:
                    break  # no code runs after that
                elif not isinstance(event, OrchestratorCompleted):
                    generation.receive(event)
        except NonDeterminismError as error:
            generation.fail_nondeterministic(error, self._past.last_number)
        finally:
            generation.replaying = generation.recorded = False

    # ---- new events

    def _receive(
        self, generation: Generation, new: Sequence[HistoryEvent], time: Timestamp, history: list[HistoryEvent]
    ) -> list[tuple[HistoryEvent, str]]:
        """Give the new events to the generation, and append to ``history`` the events that the generation takes.

        :returns: the events that the generation does not take, each with its reason.
        """
        stale: list[tuple[HistoryEvent, str]] = []
        try:
            generation.episode(time)
        except NonDeterminismError as error:
            generation.fail_nondeterministic(error, self._past.last_number)
        for event in new:
            if generation.status is Status.PENDING and isinstance(event, ExecutionStarted):
                history.append(replace(event, is_played=True))
                generation.begin()
            elif reason := self._take(generation, event, history):
                stale.append((event, reason))
        return stale

    def _take(self, generation: Generation, event: HistoryEvent, history: list[HistoryEvent]) -> str | None:
        """Give an event to the generation, and append it to ``history`` if the generation takes it.

        :returns: the reason if the generation does not take it.
        """
        suspended = generation.status is Status.SUSPENDED
        if reason := generation.receive(event):
            return reason
        history.append(replace(event, is_played=True))
        if suspended and (request := grace.request_of(event)) is not None:  # it must run to clean up
            resumed = ExecutionResumed(timestamp=event.timestamp, reason=request.reason, is_played=True)
            history.append(resumed)
            generation.receive(resumed)
        return None

    def _next(
        self, before: Generation, time: Timestamp, new_execution_id: Callable[[str], str], children: str | None
    ) -> tuple[Generation, list[HistoryEvent]]:
        """Make the generation that follows ``continue_as_new``, and run it over the events that it takes over.

        :param before: the generation that continued as new.
        :param time: the orchestrator's time.
        :param new_execution_id: function that makes the execution id of the next generation from the current one.
        :param children: the open children as text, for the start event; None if there are none.
        :returns: the next generation, and its history so far.
        """
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
        history: list[HistoryEvent] = [OrchestratorStarted(timestamp=time), started]
        carried = before.carried()
        generation.begin()
        for event in carried:
            if self._take(generation, event, history) is not None:
                history.append(replace(event, is_played=True))  # as DurableTask does it
        history.append(OrchestratorCompleted(timestamp=time, is_played=True))
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
        """Append the episode to the history in memory. If the checkpoint fails, the session drops this execution."""
        self._instance = generation.instance
        if switched:
            self._past.clear()
        else:
            self._past.episodes -= 1  # `extend` below counts this episode again, by its OrchestratorStarted event
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
    """Make one episode, as a pure function, with the parameters of :class:`Execution` and :meth:`Execution.advance`."""
    execution = Execution(registry, past, instance=instance, custom_status=custom_status)
    try:
        return execution.advance(new, now=now, new_execution_id=new_execution_id)
    finally:
        execution.close()


def _start_first(new: Sequence[HistoryEvent]) -> Sequence[HistoryEvent]:
    """Move the ExecutionStarted event to the front: a later event of the instance can arrive before its start."""
    if len(new) < 2 or isinstance(new[0], ExecutionStarted):
        return new
    starts = [event for event in new if isinstance(event, ExecutionStarted)]
    return [*starts, *(event for event in new if not isinstance(event, ExecutionStarted))] if starts else new
