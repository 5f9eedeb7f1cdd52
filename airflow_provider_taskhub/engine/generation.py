"""One generation of an instance: its orchestrator as a live coroutine, what it waits for, what it has decided.

The coroutine is driven by ``send`` and ``throw``, on no event loop: every turn happens while an event is delivered, so
the order of the history is the order of everything. The same code runs while the past is replayed and while new events
are taken; the only difference is that scheduling events of the past *confirm* decisions, and new decisions are
*flushed* at the end of an episode.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from airflow_provider_taskhub.codec import Timestamp, dumps, loads
from airflow_provider_taskhub.engine.actions import Action, Decided, Scope
from airflow_provider_taskhub.engine.awaitables import Answerable, EventWait
from airflow_provider_taskhub.engine.context import Log, OrchestrationContext
from airflow_provider_taskhub.engine.driver import Driver, Returned
from airflow_provider_taskhub.engine.events import (
    EventRaised,
    EventType,
    ExecutionStarted,
    ExecutionTerminated,
    FailureDetails,
    GenericEvent,
    HistoryEvent,
    OrchestrationInstance,
    Status,
    SubOrchestrationInstanceFailed,
    TaskFailed,
)
from airflow_provider_taskhub.engine.external_events import ExternalEvents
from airflow_provider_taskhub.engine.failures import error_of, failure_of, message_of
from airflow_provider_taskhub.engine.lifecycle import HAPPENINGS, Happening, Reaction, react_instance
from airflow_provider_taskhub.engine.open_actions import Answer, OpenAction, OpenActions, Scheduling
from airflow_provider_taskhub.engine.pending_waits import CHILD_IDS, MAX_EXAMINED, MAX_NAMES, Awaits
from airflow_provider_taskhub.engine.recorded import Recorded
from airflow_provider_taskhub.engine.registry import OrchestratorDefinition, Registry
from airflow_provider_taskhub.engine.retry import RetryDecision
from airflow_provider_taskhub.engine.wait_changes import WaitRecorder
from airflow_provider_taskhub.errors import NonDeterminismError, OrchestrationError

MAX_ACTIONS = 100_000
"""Decisions in one turn: more is a loop that never awaits."""

_FAILURES = (TaskFailed, SubOrchestrationInstanceFailed)


class Generation:
    """See the module. Not for users: they have the context.

    :param definition: the orchestrator. :param started: its start.
    :param instance: with this generation's execution id.
    :param past: what the history says about retries and rewinds.
    """

    def __init__(
        self,
        registry: Registry,
        definition: OrchestratorDefinition,
        started: ExecutionStarted,
        instance: OrchestrationInstance,
        *,
        time: Timestamp,
        past: Recorded | None = None,
        custom_status: str | None = None,
        log: Log | None = None,
    ) -> None:
        self.registry = registry
        self.definition = definition
        self.started = started
        self.instance = instance
        self.time = time
        self.status = Status.PENDING
        self.replaying = False
        self.recorded = False  # the history has what was decided at this point
        self.custom_status = custom_status
        self.result: str | None = None
        self.failure: FailureDetails | None = None
        self.continue_input: str | None = None
        self.input_is_read = definition.takes_input
        self.rewinds = 0
        self.numbers = 0
        self._keep_events = True
        self._wants_generation = False
        self._past = past or Recorded()
        self._actions = OpenActions()
        self._drops_unrecorded = False  # what is unrecorded: the instance was terminated while a suspend held it back
        self._events = ExternalEvents()
        self._held: list[tuple[OpenAction | None, HistoryEvent]] = []
        self.wait_changes = WaitRecorder()
        self._carried: list[HistoryEvent] = []
        self._driver = Driver(definition.name)
        self._closed = False
        self._limit = MAX_ACTIONS
        self._context = OrchestrationContext(self, log)

    # ---- what the execution asks and tells

    @property
    def is_decided(self) -> bool:
        """It has ended, or asks for the next generation."""
        return self.status.is_final or self.status is Status.CONTINUED_AS_NEW

    def begin(self) -> None:
        """Run the orchestrator for the first time."""
        self._move(Happening.STARTED)
        self._run(lambda: self._driver.start(self._call()))

    def receive(self, event: HistoryEvent) -> str | None:
        """Take an event that arrived.

        :returns: why it is set aside; None when it belongs into the history.
        """
        happening = HAPPENINGS.get(event.event_type)
        if happening is None:
            return f"{event.event_type.name} is not an event that a message brings"
        reaction, status = react_instance(self.status, happening)
        if reaction is Reaction.DISCARD:
            is_start = happening is Happening.STARTED
            return "duplicate start" if is_start else f"the orchestration is {self.status} already"
        if isinstance(event, Answer) and (reason := self._actions.mismatch(event, self.numbers)):
            return reason
        self._drops_unrecorded = reaction is Reaction.TERMINATE and self.status is Status.SUSPENDED
        self.status = status
        self._limit = self.numbers + MAX_ACTIONS
        _REACT[reaction](self, event)
        return None

    def confirm(self, event: Scheduling) -> None:
        """A scheduling event of the past: the code must have decided it by now.

        :raises NonDeterminismError: when it has not, or something else instead.
        """
        self._actions.confirm(event, self.numbers, self._driver)

    def episode(self, time: Timestamp) -> None:
        """An OrchestratorStarted event: everything decided before must have been recorded.

        :raises NonDeterminismError: when the code decides more than the history has.
        """
        self.wait_changes.clear()
        # Before the end that was taken back the code may decide what it had not come to for its failure.
        live = self.rewinds >= self._past.rewound and self.status is not Status.SUSPENDED
        if self._actions.unrecorded and live and not self.is_decided:
            self._actions.check_recorded()
        self.time = time

    def answers(self, event: HistoryEvent) -> bool:
        """Whether an answer fits an open action."""
        return isinstance(event, Answer) and self._actions.mismatch(event, self.numbers) is None

    def fail_nondeterministic(self, error: NonDeterminismError, last: int) -> None:
        """The past does not fit the code: the instance fails, whatever the code has come to meanwhile.

        :param last: the highest action number of the past; the completion comes after it.
        """
        self.close()
        self._actions.unrecorded.clear()
        self.numbers = max(self.numbers, last + 1)
        self._wants_generation = False
        self.result, self.failure = message_of(error), failure_of(error)
        self.status = Status.FAILED

    def fail_with(self, error: OrchestrationError) -> None:
        """The engine ends it with an error of its own."""
        self.close()
        self.result, self.failure = message_of(error), failure_of(error)
        self._move(Happening.FAILED)

    def flush(self, time: Timestamp) -> list[Decided]:
        """New decisions in the order of their numbers; none while suspended.

        An instance that has ended keeps only what lives on without it: children and sent events. Timers and activities
        that were decided in the same breath are cancelled before they ever were. Of what a suspend held
        back nothing is kept when a terminate ends it (as in DurableTask).
        """
        if self._drops_unrecorded:
            self._actions.unrecorded.clear()
        if self.status is Status.SUSPENDED or not self._actions.unrecorded:
            return []
        scope = Scope(instance=self.instance, started=self.started, time=time, rewinds=self.rewinds)
        return self._actions.flush(scope, ended=self.is_decided)

    def awaits(self) -> Awaits:
        """What it waits for now."""
        named, child_ids, timer = self._actions.awaited()
        events = self._events.awaited()
        activities, children = named[EventType.TaskScheduled], named[EventType.SubOrchestrationInstanceCreated]
        return Awaits(
            activities=tuple(islice(activities, MAX_NAMES)),
            children=tuple(islice(children, MAX_NAMES)),
            child_ids=tuple(child_ids[:CHILD_IDS]),
            child_count=len(child_ids),
            events=tuple(events[:MAX_NAMES]),
            timer=timer,
            complete=max(len(activities), len(children), len(events)) <= MAX_NAMES
            and max(len(self._actions), len(self._events)) <= MAX_EXAMINED,
        )

    def carried(self) -> list[HistoryEvent]:
        """What the next generation begins with."""
        kept: list[HistoryEvent] = [*self._events.unclaimed] if self._keep_events else []
        return kept + self._carried

    def close(self) -> None:
        """Let go of the coroutine; its ``finally`` blocks run, but decide nothing."""
        self._closed = True
        self._driver.close()

    # ---- what tasks and the context ask

    def schedule(self, action: Action, waiter: Answerable | None) -> None:
        """Number an action and note it as decided; ``waiter`` gets its answer."""
        if self._closed:
            return
        if self.numbers >= self._limit:
            raise OrchestrationError(
                f"more than {MAX_ACTIONS} actions without awaiting, last {action.name!r} at {action.where}: "
                "await tasks, or split the work into child orchestrations",
                retryable=False,
            )
        action.number = self.numbers
        self.numbers += 1
        self._actions.add(action, waiter)

    def recorded_decision(self, number: int) -> tuple[RetryDecision, Timestamp]:
        """What followed the failure of attempt ``number``. If a timer of its policy did, that timer is next."""
        return self._past.verdict(self.numbers, number, self.instance) or (RetryDecision.STOP, self.time)

    def wait(self, name: str, annotation: Any) -> EventWait:
        """A wait for an event, complete at once if one was raised before. Names are matched without their case."""
        task = EventWait(name, annotation, self.time, self.wait_changes)
        self.wait_changes.begin(task)
        self._events.wait(task)
        return task

    def continue_as_new(self, input: str | None, *, keep_events: bool) -> None:
        """When the orchestrator returns, begin anew instead of completing."""
        self._wants_generation = True
        self.continue_input = input
        self._keep_events = keep_events

    # ---- events

    def _deliver(self, event: HistoryEvent) -> None:
        self._dispatch(self._actions.take(event), event)

    def _dispatch(self, entry: OpenAction | None, event: HistoryEvent) -> None:
        if isinstance(event, EventRaised):
            if self._wants_generation:
                self._carried.append(event)
            else:
                self._events.offer(event)
        elif isinstance(event, _FAILURES) and entry:
            recorded = self.recorded and entry.identity is not None
            entry.waiter.failed(error_of(event, entry.action.name), recorded=recorded)
        elif entry:
            entry.waiter.answered(getattr(event, "result", None))
        self._run(self._driver.turn)

    def _hold(self, event: HistoryEvent) -> None:
        self._held.append((self._actions.take(event), event))

    def _resume(self, event: HistoryEvent) -> None:
        held, self._held = self._held, []
        for entry, kept in held:
            if self.is_decided:
                self._carry(kept)
            else:
                self._dispatch(entry, kept)

    def _carry(self, event: HistoryEvent) -> None:
        if not isinstance(event, Answer):
            self._carried.append(event)

    def _terminate(self, event: HistoryEvent) -> None:
        assert isinstance(event, ExecutionTerminated)
        self.close()
        self._wants_generation = False
        self.result, self.failure = event.input, None

    def note(self, event: HistoryEvent) -> None:
        """A rewind's message, or a row that a rewind rewrote: that action is decided again."""
        if isinstance(event, GenericEvent):
            if event.event_id >= 0:
                self._actions.allow_again(event.event_id)
            # the row, not the message: that may come after an answer or a timer that wakes the instance, or never
            if event.is_rewind:
                self.rewinds += 1
                self._actions.allow_all_again()

    # ---- the coroutine

    def _move(self, happening: Happening) -> None:
        self.status = react_instance(self.status, happening).state

    def _call(self) -> Any:
        definition = self.definition
        if not definition.takes_input:
            return definition.function(self._context)
        what = f"input of orchestrator {definition.name!r}"
        text = self.started.input
        value = None if text is None else loads(text, what=what)
        return definition.function(self._context, *definition.arguments(value, what=what, recorded=self.replaying))

    def _run(self, step: Callable[[], Returned | None]) -> None:
        if self._closed:
            return
        try:
            returned = step()
            if returned is not None:
                self._return(returned.value)
        except BaseException as error:  # SystemExit too: no orchestrator ends its worker, a signal is the loop's
            self._raise(error)

    def _return(self, value: Any) -> None:
        self._closed = True
        if not self.input_is_read and self.started.input not in (None, "null"):
            self._context.logger.warning(
                "orchestrator %r was started with an input, but its function has no parameter for it and never called "
                "ctx.get_input(): the input had no effect",
                self.definition.name,
            )
        if self._wants_generation:
            self._move(Happening.CONTINUED)
            return
        self.result = dumps(value, what=f"result of orchestrator {self.definition.name!r}")
        self._move(Happening.RETURNED)

    def _raise(self, error: BaseException) -> None:
        self._closed = True
        self._wants_generation = False
        self.result, self.failure = message_of(error), failure_of(error)
        self._move(Happening.FAILED)


_REACT: dict[Reaction, Callable[[Generation, HistoryEvent], None]] = {
    Reaction.DELIVER: Generation._deliver,
    Reaction.HOLD: Generation._hold,
    Reaction.SUSPEND: lambda generation, event: None,  # it is only recorded
    Reaction.RESUME: Generation._resume,
    Reaction.TERMINATE: Generation._terminate,
    Reaction.NOTE: Generation.note,
    Reaction.CARRY: Generation._carry,
}
