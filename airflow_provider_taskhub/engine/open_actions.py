"""The actions of an orchestrator that are not in the history yet, and the actions that wait for their answer."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.actions import CANCEL, Action, Decided, Scope, decide
from airflow_provider_taskhub.engine.awaitables import Answerable, Timer
from airflow_provider_taskhub.engine.comparison import difference
from airflow_provider_taskhub.engine.driver import Driver
from airflow_provider_taskhub.engine.events import (
    EventSent,
    EventType,
    HistoryEvent,
    OrchestrationInstance,
    SubOrchestrationInstanceCompleted,
    SubOrchestrationInstanceCreated,
    SubOrchestrationInstanceFailed,
    TaskCompleted,
    TaskFailed,
    TaskScheduled,
    TimerCreated,
    TimerFired,
)
from airflow_provider_taskhub.engine.identity import child_execution_id, run_name, same_start
from airflow_provider_taskhub.engine.pending_waits import MAX_EXAMINED
from airflow_provider_taskhub.engine.tasks import Task
from airflow_provider_taskhub.errors import NonDeterminismError

Answer = TaskCompleted | TaskFailed | SubOrchestrationInstanceCompleted | SubOrchestrationInstanceFailed | TimerFired
Scheduling = TaskScheduled | SubOrchestrationInstanceCreated | TimerCreated | EventSent

ADVICE = (
    "Orchestrator code must make the same decisions each time it is replayed. It must not use clocks, random values or "
    "I/O of its own. Run changed code only for new instances, or under a new name."
)
_QUESTION = {
    EventType.TaskCompleted: EventType.TaskScheduled,
    EventType.TaskFailed: EventType.TaskScheduled,
    EventType.SubOrchestrationInstanceCompleted: EventType.SubOrchestrationInstanceCreated,
    EventType.SubOrchestrationInstanceFailed: EventType.SubOrchestrationInstanceCreated,
    EventType.TimerFired: EventType.TimerCreated,
}


class OpenAction:
    """An action that waits for its answer.

    :ivar action: the decision.
    :ivar waiter: the task that gets the answer.
    :ivar identity: identity of the action; None until the history has the event that schedules the action.
    :ivar child_id: instance id of the child that the action starts; None for other actions.
    """

    __slots__ = ("action", "child_id", "identity", "waiter")

    def __init__(self, action: Action, waiter: Answerable) -> None:
        self.action = action
        self.waiter = waiter
        self.identity: str | None = None
        self.child_id: str | None = None

    def recorded(self, event: HistoryEvent, identity: str | None) -> None:
        """Take over the action's identity and child id from the history.

        :param event: the event that schedules the action, such as TaskScheduled.
        :param identity: identity of the action; None if a .NET worker wrote the event.
        """
        self.identity = identity
        if isinstance(event, SubOrchestrationInstanceCreated):
            self.child_id = event.instance_id


class OpenActions:
    """The actions of one generation that wait for an answer, or that the history does not have yet.

    A generation is the part of an instance's run between two calls of ``continue_as_new``. It gives the actions their
    numbers.

    :ivar unrecorded: actions that the history does not have yet, by number.
    """

    __slots__ = ("_allowed_again", "_changed", "_open", "unrecorded")

    def __init__(self) -> None:
        self.unrecorded: dict[int, Action] = {}
        self._open: dict[int, OpenAction] = {}
        self._allowed_again: set[int] = set()
        self._changed: dict[tuple[str, ...], tuple[set[str], set[str]]] = {}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def waits(self) -> bool:
        """Whether a task waits for an answer. A cancelled timer does not."""
        return any(not (isinstance(entry.waiter, Task) and entry.waiter._done) for entry in self._open.values())

    def run_of(self, number: int) -> str | None:
        """Return the execution id with which a child starts; None: its start is not in the history yet.

        :param number: number of the action that starts the child.
        """
        entry = self._open.get(number)
        return None if entry is None or entry.identity is None else child_execution_id(entry.identity)

    def add(self, action: Action, waiter: Answerable | None) -> None:
        """Add an action.

        :param action: the action, with its number.
        :param waiter: the task that gets the answer; None: no task waits for an answer.
        """
        self.unrecorded[action.number] = action
        if waiter is not None:
            self._open[action.number] = OpenAction(action, waiter)

    def confirm(
        self, event: Scheduling, numbers: int, driver: Driver, instance: OrchestrationInstance, rewinds: int
    ) -> None:
        """Check that the replayed code has made a decision that is in the history.

        :param event: the event of the decision in the history, such as TaskScheduled.
        :param numbers: how many actions the code has decided so far.
        :param driver: driver of the orchestrator function, for the text of an error.
        :param instance: the instance, with its current execution id.
        :param rewinds: number of rewinds in the history.
        :raises NonDeterminismError: the code has not made this decision, or has made another one.
        """
        action = self.unrecorded.pop(event.event_id, None)
        if action is None:
            raise NonDeterminismError(
                f"the history has {_named(event)} here, but the code {driver.main.doing()} "
                f"and had decided {numbers} actions by then. {ADVICE}"
            )
        name = getattr(event, "name", "")
        if action.kind is not event.event_type or action.name.casefold() != name.casefold():
            raise NonDeterminismError(
                f"the history has {_named(event)}, but the code decided {action} at {action.where}. {ADVICE}"
            )
        different = difference(event, action, instance, rewinds, self._changed)
        if different is not None:
            recorded, decided = different
            raise NonDeterminismError(
                f"the history has {_named(event)} with {recorded}, but the code decided it with {decided} "
                f"at {action.where}. {ADVICE}"
            )
        entry = self._open.get(event.event_id)
        if entry is not None:
            entry.recorded(event, event.taskhub_action_id)
            if isinstance(event, TimerCreated) and isinstance(entry.waiter, Timer):
                entry.waiter.recorded(event)

    def check_recorded(self) -> None:
        """Check that all actions of the code are in the history.

        :raises NonDeterminismError: the code has decided an action that the history does not have.
        """
        for number, action in self.unrecorded.items():
            if number not in self._allowed_again:
                raise NonDeterminismError(
                    f"the code decided {action} at {action.where}, but the history goes on without it. {ADVICE}"
                )

    def allow_again(self, number: int) -> None:
        """Allow that the history does not have the event of an action, because a rewind has removed the event.

        :param number: number of the action.
        """
        self._allowed_again.add(number)

    def allow_all_again(self) -> None:
        """Do what :meth:`allow_again` does, for all actions that the history does not have now."""
        self._allowed_again.update(self.unrecorded)

    def flush(self, scope: Scope, dropped: Collection[EventType] = ()) -> list[Decided]:
        """Make events and messages for the actions that the history does not have, sorted by their numbers.

        :param scope: the situation in which the actions were decided.
        :param dropped: the types of the events, such as TimerCreated, of the actions that are dropped.
        """
        decided = []
        runs = self._runs() if any(one.kind is EventType.EventSent for one in self.unrecorded.values()) else {}
        for number in sorted(self.unrecorded):
            action = self.unrecorded[number]
            if action.kind in dropped:
                continue
            if action.role == CANCEL:
                action.run = action.run or self.run_of(int(action.input or 0))
            else:
                action.run = runs.get(action.instance_id or "")
            pair = decide(action, scope)
            decided.append(pair)
            entry = self._open.get(number)
            if entry is not None:
                identity = None if pair[1] is None else pair[1].action_id
                entry.recorded(pair[0], identity)
                if entry.child_id is not None and identity is not None:
                    runs[entry.child_id] = child_execution_id(identity)
        self.unrecorded.clear()
        return decided

    def _runs(self) -> dict[str, str]:
        """Return the execution ids of the awaited children, by instance id of the child.

        If two children have the same instance id, the result has the newer child, because an event is sent after that
        child's start. Children with the fire-and-forget tag are not in the result, because the sender does not learn
        when they end. An event for such a child goes to the run that is current when the event arrives.
        """
        runs: dict[str, str] = {}
        for entry in self._open.values():
            if entry.child_id is not None and entry.identity is not None:
                runs[entry.child_id] = child_execution_id(entry.identity)
        return runs

    def mismatch(self, event: Answer, numbers: int) -> str | None:
        """Return the reason why an answer fits no open action; None if it fits one.

        :param event: the answer.
        :param numbers: how many actions the code has decided so far.
        """
        number = _number(event)
        entry = self._open.get(number)
        if entry is None:
            known = "answered before" if 0 <= number < numbers else "never scheduled in this generation"
            return f"duplicate or stray {event.event_type.name}: action {number} was {known}"
        if number in self.unrecorded:
            return f"{event.event_type.name} for action {number}, which was decided in this episode and not sent yet"
        if entry.action.kind is not _QUESTION[event.event_type]:
            return f"{event.event_type.name} for action {number}, which is {entry.action}"
        echo = event.taskhub_action_id
        if echo is None or entry.identity is None or echo == entry.identity:
            return None
        # A child answers with its execution id. If the child continues as new, only the first half of this id stays.
        if entry.action.kind is EventType.SubOrchestrationInstanceCreated and same_start(echo, entry.identity):
            return None
        return f"{event.event_type.name} answers another decision ({echo}) than action {number} ({entry.identity})"

    def take(self, event: HistoryEvent) -> OpenAction | None:
        """Remove and return the action that an event answers. Another answer to this action is then a duplicate.

        :param event: any event.
        :returns: None if the event is not an answer.
        """
        return self._open.pop(_number(event)) if isinstance(event, Answer) else None

    def awaited(self) -> tuple[dict[EventType, dict[str, None]], list[str], Timestamp | None]:
        """Return what the open actions wait for. It examines at most :data:`.pending_waits.MAX_EXAMINED` actions.

        :returns: the names of the awaited activities and children by type of the event that schedules them (such
            as TaskScheduled), the ids of the children, and the time of the next timer (None: there is no timer).
        """
        named: dict[EventType, dict[str, None]] = {kind: {} for kind in (*_QUESTION.values(),)}
        timer: Timestamp | None = None
        child_ids: list[str] = []
        open_ones = (one for one in self._open.values() if not (isinstance(one.waiter, Task) and one.waiter._done))
        for entry in islice(open_ones, MAX_EXAMINED):
            if isinstance(entry.waiter, Timer):
                timer = min(timer or entry.waiter.fire_at, entry.waiter.fire_at)
            else:
                named[entry.action.kind][entry.action.name] = None
                child_ids += [entry.child_id] if entry.child_id else []
        return named, child_ids, timer

    def needed(self, main: Task[Any]) -> Iterator[tuple[str, str]]:
        """Yield the instance id and the name of the run of each open child without which the code cannot go on.

        :param main: the orchestrator function itself.
        """
        for entry in self._open.values():
            if entry.child_id is None or entry.identity is None or not isinstance(entry.waiter, Task):
                continue
            if entry.waiter.is_needed_by(main):
                yield entry.child_id, run_name(child_execution_id(entry.identity))


def _number(event: Answer) -> int:
    return event.timer_id if isinstance(event, TimerFired) else event.task_scheduled_id


def _named(event: Scheduling) -> str:
    name = getattr(event, "name", "")
    detail = f" {name!r}" if name else ""
    return f"{event.event_type.name}{detail} as action {event.event_id}"
