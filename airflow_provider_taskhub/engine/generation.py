"""One generation of an instance: its orchestrator as a live coroutine, what it waits for, what it has decided.

The coroutine is driven by ``send`` and ``throw``, on no event loop: every turn happens while an event is delivered, so
the order of the history is the order of everything. The same code runs while the past is replayed and while new events
are taken; the only difference is that scheduling events of the past *confirm* decisions, and new decisions are
*flushed* at the end of an episode.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any

from airflow_provider_taskhub.codec import Timestamp, dumps, loads
from airflow_provider_taskhub.engine.attempts import Answerable, Timer, Wait
from airflow_provider_taskhub.engine.awaits import CHILD_IDS, LOOKED_AT, NAMED, AwaitedEvent, Awaits
from airflow_provider_taskhub.engine.context import Log, OrchestrationContext
from airflow_provider_taskhub.engine.decisions import Action, Decided, Scope, decide
from airflow_provider_taskhub.engine.driver import Driver, Returned
from airflow_provider_taskhub.engine.events import (
    EventRaised,
    EventSent,
    EventType,
    ExecutionStarted,
    ExecutionTerminated,
    FailureDetails,
    GenericEvent,
    HistoryEvent,
    OrchestrationInstance,
    Status,
    SubOrchestrationInstanceCompleted,
    SubOrchestrationInstanceCreated,
    SubOrchestrationInstanceFailed,
    TaskCompleted,
    TaskFailed,
    TaskScheduled,
    TimerCreated,
    TimerFired,
)
from airflow_provider_taskhub.engine.failures import error_of, failure_of, message_of
from airflow_provider_taskhub.engine.identity import child_execution_id, same_start
from airflow_provider_taskhub.engine.lifecycle import HAPPENINGS, Happening, Reaction, react_instance
from airflow_provider_taskhub.engine.recorded import Recorded
from airflow_provider_taskhub.engine.registry import OrchestratorDefinition, Registry
from airflow_provider_taskhub.engine.retry import Verdict
from airflow_provider_taskhub.engine.waits import Notes
from airflow_provider_taskhub.errors import NonDeterminismError, OrchestrationError

MAX_ACTIONS = 100_000
"""Decisions in one turn: more is a loop that never awaits."""

Answer = TaskCompleted | TaskFailed | SubOrchestrationInstanceCompleted | SubOrchestrationInstanceFailed | TimerFired
Scheduling = TaskScheduled | SubOrchestrationInstanceCreated | TimerCreated | EventSent
_FAILURES = (TaskFailed, SubOrchestrationInstanceFailed)

_QUESTION = {
    EventType.TaskCompleted: EventType.TaskScheduled,
    EventType.TaskFailed: EventType.TaskScheduled,
    EventType.SubOrchestrationInstanceCompleted: EventType.SubOrchestrationInstanceCreated,
    EventType.SubOrchestrationInstanceFailed: EventType.SubOrchestrationInstanceCreated,
    EventType.TimerFired: EventType.TimerCreated,
}


class _Open:
    """An action that waits for its answer."""

    __slots__ = ("action", "child_id", "identity", "waiter")

    def __init__(self, action: Action, waiter: Answerable) -> None:
        self.action = action
        self.waiter = waiter
        self.identity: str | None = None
        self.child_id: str | None = None

    def recorded(self, event: HistoryEvent, identity: str | None) -> None:
        """The action has become this event."""
        self.identity = identity
        if isinstance(event, SubOrchestrationInstanceCreated):
            self.child_id = event.instance_id


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
        self._undecided: dict[int, Action] = {}
        self._forgets = False  # all of that: it was terminated while a suspend held it back
        self._open: dict[int, _Open] = {}
        self._excused: set[int] = set()
        self._waits: dict[str, deque[Wait]] = {}
        self._unclaimed: dict[int, EventRaised] = {}
        self._unclaimed_by_name: dict[str, deque[int]] = {}
        self._raised = 0
        self._held: list[tuple[_Open | None, HistoryEvent]] = []
        self.notes = Notes()
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
            return f"{event.event_type.name} is no event that arrives"
        reaction, status = react_instance(self.status, happening)
        if reaction is Reaction.SET_ASIDE:
            return self._why_not(happening)
        if isinstance(event, Answer) and (reason := self._unfit(event)):
            return reason
        self._forgets = reaction is Reaction.TERMINATE and self.status is Status.SUSPENDED
        self.status = status
        self._limit = self.numbers + MAX_ACTIONS
        _REACT[reaction](self, event)
        return None

    def confirm(self, event: Scheduling) -> None:
        """A scheduling event of the past: the code must have decided it by now.

        :raises NonDeterminismError: when it has not, or something else instead.
        """
        action = self._undecided.pop(event.event_id, None)
        if action is None:
            raise NonDeterminismError(
                f"the history has {_named(event)} here, but the code {self._driver.doing()} "
                f"and had decided {self.numbers} actions by then. {_ADVICE}"
            )
        name = getattr(event, "name", "")
        if action.kind is not event.event_type or action.name.casefold() != name.casefold():
            raise NonDeterminismError(
                f"the history has {_named(event)}, but the code decided {action} at {action.where}. {_ADVICE}"
            )
        entry = self._open.get(event.event_id)
        if entry is not None:
            entry.recorded(event, event.taskhub_action_id)
            if isinstance(event, TimerCreated) and isinstance(entry.waiter, Timer):
                entry.waiter.recorded(event.fire_at)

    def episode(self, time: Timestamp) -> None:
        """An OrchestratorStarted event: everything decided before must have been recorded.

        :raises NonDeterminismError: when the code decides more than the history has.
        """
        self.notes.clear()
        # Before the end that was taken back the code may decide what it had not come to for its failure.
        live = self.rewinds >= self._past.rewound and self.status is not Status.SUSPENDED
        if self._undecided and live and not self.is_decided:
            extra = [action for number, action in self._undecided.items() if number not in self._excused]
            if extra:
                raise NonDeterminismError(
                    f"the code decided {extra[0]} at {extra[0].where}, but the history goes on without it. {_ADVICE}"
                )
        self.time = time

    def answers(self, event: HistoryEvent) -> bool:
        """Whether an answer fits an open action."""
        return isinstance(event, Answer) and self._unfit(event) is None

    def overrule(self, error: NonDeterminismError, last: int) -> None:
        """The past does not fit the code: the instance fails, whatever the code has come to meanwhile.

        :param last: the highest action number of the past; the completion comes after it.
        """
        self.close()
        self._undecided.clear()
        self.numbers = max(self.numbers, last + 1)
        self._wants_generation = False
        self.result, self.failure = message_of(error), failure_of(error)
        self.status = Status.FAILED

    def give_up(self, error: OrchestrationError) -> None:
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
        if self._forgets:
            self._undecided.clear()
        if self.status is Status.SUSPENDED or not self._undecided:
            return []
        scope = Scope(instance=self.instance, started=self.started, time=time, rewinds=self.rewinds)
        decided = []
        runs = self._runs() if any(one.kind is EventType.EventSent for one in self._undecided.values()) else {}
        for number in sorted(self._undecided):
            action = self._undecided[number]
            if self.is_decided and action.kind in (EventType.TaskScheduled, EventType.TimerCreated):
                continue
            action.run = runs.get(action.instance_id or "")
            pair = decide(action, scope)
            decided.append(pair)
            entry = self._open.get(number)
            if entry is not None:
                entry.recorded(pair[0], pair[1].action_id)
                if entry.child_id is not None and pair[1].action_id is not None:
                    runs.setdefault(entry.child_id, child_execution_id(pair[1].action_id))
        self._undecided.clear()
        return decided

    def _runs(self) -> dict[str, str]:
        """The runs of the awaited children by instance id.

        Of two under one id it is the older: the later one starts only when that has ended. A child that nobody awaits
        (fire and forget) is not among them, since nobody here learns when it ends: an event for its id goes to the run
        that is current when the event arrives.
        """
        runs: dict[str, str] = {}
        for entry in self._open.values():
            if entry.child_id is not None and entry.identity is not None:
                runs.setdefault(entry.child_id, child_execution_id(entry.identity))
        return runs

    def awaits(self) -> Awaits:
        """What it waits for now."""
        named: dict[EventType, dict[str, None]] = {kind: {} for kind in (*_QUESTION.values(),)}
        timer: Timestamp | None = None
        child_ids: list[str] = []
        for entry in islice(self._open.values(), LOOKED_AT):
            if isinstance(entry.waiter, Timer):
                if not entry.waiter.is_complete:
                    timer = min(timer or entry.waiter.fire_at, entry.waiter.fire_at)
            else:
                named[entry.action.kind][entry.action.name] = None
                child_ids += [entry.child_id] if entry.child_id else []
        events = [
            AwaitedEvent(name=task.name, since=task.since)
            for waits in islice(self._waits.values(), LOOKED_AT)
            if (task := next((one for one in islice(waits, LOOKED_AT) if not one.is_complete), None))
        ]
        activities, children = named[EventType.TaskScheduled], named[EventType.SubOrchestrationInstanceCreated]
        return Awaits(
            activities=tuple(islice(activities, NAMED)),
            children=tuple(islice(children, NAMED)),
            child_ids=tuple(child_ids[:CHILD_IDS]),
            child_count=len(child_ids),
            events=tuple(events[:NAMED]),
            timer=timer,
            complete=max(len(activities), len(children), len(events)) <= NAMED
            and max(len(self._open), len(self._waits)) <= LOOKED_AT,
        )

    def carried(self) -> list[HistoryEvent]:
        """What the next generation begins with."""
        kept: list[HistoryEvent] = list(self._unclaimed.values()) if self._keep_events else []
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
        self._undecided[action.number] = action
        if waiter is not None:
            self._open[action.number] = _Open(action, waiter)

    def recorded_verdict(self, number: int) -> tuple[Verdict, Timestamp]:
        """What followed the failure of attempt ``number``. If a timer of its policy did, that timer is next."""
        return self._past.verdict(self.numbers, number, self.instance) or (Verdict.STOP, self.time)

    def wait(self, name: str, annotation: Any) -> Wait:
        """A wait for an event, complete at once if one was raised before. Names are matched without their case."""
        task = Wait(name, annotation, self.time, self.notes)
        self.notes.begin(task)
        key = name.casefold()
        numbers = self._unclaimed_by_name.get(key)
        if numbers:
            event = self._unclaimed.pop(numbers.popleft())
            task.raised(event.input)
        else:
            self._waits.setdefault(key, deque()).append(task)
        return task

    def continue_as_new(self, input: str | None, *, keep_events: bool) -> None:
        """When the orchestrator returns, begin anew instead of completing."""
        self._wants_generation = True
        self.continue_input = input
        self._keep_events = keep_events

    # ---- events

    def _unfit(self, event: Answer) -> str | None:
        number = _number(event)
        entry = self._open.get(number)
        if entry is None:
            known = "answered before" if 0 <= number < self.numbers else "never scheduled in this generation"
            return f"duplicate or stray {event.event_type.name}: action {number} was {known}"
        if number in self._undecided:
            return f"{event.event_type.name} for action {number}, which is only decided in this episode"
        if entry.action.kind is not _QUESTION[event.event_type]:
            return f"{event.event_type.name} for action {number}, which is {entry.action}"
        echo = event.taskhub_action_id
        if echo is None or entry.identity is None or echo == entry.identity:
            return None
        # Children echo their execution id, of which later generations keep the first half.
        if entry.action.kind is EventType.SubOrchestrationInstanceCreated and same_start(echo, entry.identity):
            return None
        return f"{event.event_type.name} answers another decision ({echo}) than action {number} ({entry.identity})"

    def _why_not(self, happening: Happening) -> str:
        if happening is Happening.STARTED:
            return "duplicate start"
        return f"the orchestration is {self.status} already"

    def _take(self, event: HistoryEvent) -> _Open | None:
        """Whom an event is for; from now on another answer is a duplicate."""
        return self._open.pop(_number(event)) if isinstance(event, Answer) else None

    def _deliver(self, event: HistoryEvent) -> None:
        self._give(self._take(event), event)

    def _give(self, entry: _Open | None, event: HistoryEvent) -> None:
        if isinstance(event, EventRaised):
            self._offer(event)
        elif isinstance(event, _FAILURES) and entry:
            recorded = self.recorded and entry.identity is not None
            entry.waiter.refused(error_of(event, entry.action.name), recorded=recorded)
        elif entry:
            entry.waiter.answered(getattr(event, "result", None))
        self._turn()

    def _offer(self, event: EventRaised) -> None:
        if self._wants_generation:
            self._carried.append(event)
            return
        key = event.name.casefold()
        waits = self._waits.get(key)
        while waits:
            task = waits.popleft()
            if not task.is_complete:  # else cancelled
                task.raised(event.input)
                return
        self._waits.pop(key, None)
        self._unclaimed[self._raised] = event
        self._unclaimed_by_name.setdefault(key, deque()).append(self._raised)
        self._raised += 1

    def _hold(self, event: HistoryEvent) -> None:
        self._held.append((self._take(event), event))

    def _resume(self, event: HistoryEvent) -> None:
        held, self._held = self._held, []
        for entry, kept in held:
            if self.is_decided:
                self._carry(kept)
            else:
                self._give(entry, kept)

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
                self._excused.add(event.event_id)
            # the row, not the message: that may come after an answer or a timer that wakes the instance, or never
            if event.is_rewind:
                self.rewinds += 1
                self._excused.update(self._undecided)

    def _nothing(self, event: HistoryEvent) -> None:
        """Being recorded is all that happens to it."""

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

    def _turn(self) -> None:
        self._run(self._driver.turn)

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


def _number(event: Answer) -> int:
    return event.timer_id if isinstance(event, TimerFired) else event.task_scheduled_id


def _named(event: Scheduling) -> str:
    name = getattr(event, "name", "")
    detail = f" {name!r}" if name else ""
    return f"{event.event_type.name}{detail} as action {event.event_id}"


_ADVICE = (
    "Orchestrator code must decide the same each time it is replayed: no clocks, random values or I/O of its own, "
    "and changed code only for new instances (or under a new name)."
)

_REACT: dict[Reaction, Callable[[Generation, HistoryEvent], None]] = {
    Reaction.DELIVER: Generation._deliver,
    Reaction.HOLD: Generation._hold,
    Reaction.SUSPEND: Generation._nothing,
    Reaction.RESUME: Generation._resume,
    Reaction.TERMINATE: Generation._terminate,
    Reaction.NOTE: Generation.note,
    Reaction.CARRY: Generation._carry,
}
