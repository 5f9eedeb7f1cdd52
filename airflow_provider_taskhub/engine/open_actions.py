"""The actions of a generation: which are not in the history yet, and which wait for their answer."""

from __future__ import annotations

from itertools import islice

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.actions import Action, Decided, Scope, decide
from airflow_provider_taskhub.engine.awaitables import Answerable, Timer
from airflow_provider_taskhub.engine.driver import Driver
from airflow_provider_taskhub.engine.events import (
    EventSent,
    EventType,
    HistoryEvent,
    SubOrchestrationInstanceCompleted,
    SubOrchestrationInstanceCreated,
    SubOrchestrationInstanceFailed,
    TaskCompleted,
    TaskFailed,
    TaskScheduled,
    TimerCreated,
    TimerFired,
)
from airflow_provider_taskhub.engine.identity import child_execution_id, same_start
from airflow_provider_taskhub.engine.pending_waits import MAX_EXAMINED
from airflow_provider_taskhub.errors import NonDeterminismError

Answer = TaskCompleted | TaskFailed | SubOrchestrationInstanceCompleted | SubOrchestrationInstanceFailed | TimerFired
Scheduling = TaskScheduled | SubOrchestrationInstanceCreated | TimerCreated | EventSent

ADVICE = (
    "Orchestrator code must decide the same each time it is replayed: no clocks, random values or I/O of its own, "
    "and changed code only for new instances (or under a new name)."
)
_QUESTION = {
    EventType.TaskCompleted: EventType.TaskScheduled,
    EventType.TaskFailed: EventType.TaskScheduled,
    EventType.SubOrchestrationInstanceCompleted: EventType.SubOrchestrationInstanceCreated,
    EventType.SubOrchestrationInstanceFailed: EventType.SubOrchestrationInstanceCreated,
    EventType.TimerFired: EventType.TimerCreated,
}


class OpenAction:
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


class OpenActions:
    """See the module. The generation numbers the actions.

    :ivar unrecorded: actions that the history does not have yet, by number.
    """

    __slots__ = ("_allowed_again", "_open", "unrecorded")

    def __init__(self) -> None:
        self.unrecorded: dict[int, Action] = {}
        self._open: dict[int, OpenAction] = {}
        self._allowed_again: set[int] = set()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, action: Action, waiter: Answerable | None) -> None:
        """:param action: with its number. :param waiter: gets the answer; None: there is none."""
        self.unrecorded[action.number] = action
        if waiter is not None:
            self._open[action.number] = OpenAction(action, waiter)

    def confirm(self, event: Scheduling, numbers: int, driver: Driver) -> None:
        """A scheduling event of the past: the code must have decided it by now.

        :param numbers: how many actions the code has decided. :param driver: says what the code does.
        :raises NonDeterminismError: when the code has not decided it, or decided something else.
        """
        action = self.unrecorded.pop(event.event_id, None)
        if action is None:
            raise NonDeterminismError(
                f"the history has {_named(event)} here, but the code {driver.doing()} "
                f"and had decided {numbers} actions by then. {ADVICE}"
            )
        name = getattr(event, "name", "")
        if action.kind is not event.event_type or action.name.casefold() != name.casefold():
            raise NonDeterminismError(
                f"the history has {_named(event)}, but the code decided {action} at {action.where}. {ADVICE}"
            )
        entry = self._open.get(event.event_id)
        if entry is not None:
            entry.recorded(event, event.taskhub_action_id)
            if isinstance(event, TimerCreated) and isinstance(entry.waiter, Timer):
                entry.waiter.recorded(event.fire_at)

    def check_recorded(self) -> None:
        """:raises NonDeterminismError: when the code has decided more than the history has."""
        for number, action in self.unrecorded.items():
            if number not in self._allowed_again:
                raise NonDeterminismError(
                    f"the code decided {action} at {action.where}, but the history goes on without it. {ADVICE}"
                )

    def allow_again(self, number: int) -> None:
        """A rewind took the scheduling event of this action back: the code decides it again."""
        self._allowed_again.add(number)

    def allow_all_again(self) -> None:
        """The history of everything that is unrecorded now was taken back."""
        self._allowed_again.update(self.unrecorded)

    def flush(self, scope: Scope, *, ended: bool) -> list[Decided]:
        """What is unrecorded as events and messages, in the order of the numbers.

        :param ended: only children and sent events are kept, which live on without the instance.
        """
        decided = []
        runs = self._runs() if any(one.kind is EventType.EventSent for one in self.unrecorded.values()) else {}
        for number in sorted(self.unrecorded):
            action = self.unrecorded[number]
            if ended and action.kind in (EventType.TaskScheduled, EventType.TimerCreated):
                continue
            action.run = runs.get(action.instance_id or "")
            pair = decide(action, scope)
            decided.append(pair)
            entry = self._open.get(number)
            if entry is not None:
                entry.recorded(pair[0], pair[1].action_id)
                if entry.child_id is not None and pair[1].action_id is not None:
                    runs[entry.child_id] = child_execution_id(pair[1].action_id)
        self.unrecorded.clear()
        return decided

    def _runs(self) -> dict[str, str]:
        """The runs of the awaited children by instance id.

        Of two children under one id it is the newer one: the event was sent after its start. A child that nobody awaits
        (fire and forget) is not among them, because the sender does not learn when it ends. An event for its id goes to
        the run that is current when the event arrives.
        """
        runs: dict[str, str] = {}
        for entry in self._open.values():
            if entry.child_id is not None and entry.identity is not None:
                runs[entry.child_id] = child_execution_id(entry.identity)
        return runs

    def mismatch(self, event: Answer, numbers: int) -> str | None:
        """Why an answer does not fit an open action; None: it does. :param numbers: as for :meth:`confirm`."""
        number = _number(event)
        entry = self._open.get(number)
        if entry is None:
            known = "answered before" if 0 <= number < numbers else "never scheduled in this generation"
            return f"duplicate or stray {event.event_type.name}: action {number} was {known}"
        if number in self.unrecorded:
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

    def take(self, event: HistoryEvent) -> OpenAction | None:
        """The action that an event answers. From now on another answer to it is a duplicate."""
        return self._open.pop(_number(event)) if isinstance(event, Answer) else None

    def awaited(self) -> tuple[dict[EventType, dict[str, None]], list[str], Timestamp | None]:
        """Names by kind of action, ids of children, and the time of the next timer: of ``MAX_EXAMINED`` actions."""
        named: dict[EventType, dict[str, None]] = {kind: {} for kind in (*_QUESTION.values(),)}
        timer: Timestamp | None = None
        child_ids: list[str] = []
        for entry in islice(self._open.values(), MAX_EXAMINED):
            if isinstance(entry.waiter, Timer):
                if not entry.waiter.is_complete:
                    timer = min(timer or entry.waiter.fire_at, entry.waiter.fire_at)
            else:
                named[entry.action.kind][entry.action.name] = None
                child_ids += [entry.child_id] if entry.child_id else []
        return named, child_ids, timer


def _number(event: Answer) -> int:
    return event.timer_id if isinstance(event, TimerFired) else event.task_scheduled_id


def _named(event: Scheduling) -> str:
    name = getattr(event, "name", "")
    detail = f" {name!r}" if name else ""
    return f"{event.event_type.name}{detail} as action {event.event_id}"
