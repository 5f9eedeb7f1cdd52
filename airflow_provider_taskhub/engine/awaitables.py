"""Tasks that wait for answers: activities and children with their retries, timers, external events.

An answer is delivered by the generation; what follows from it (another attempt, another stretch of a long timer) is
decided here, through the narrow ``Engine`` protocol.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, Protocol

from airflow_provider_taskhub.codec import Timestamp, decode, loads
from airflow_provider_taskhub.engine.actions import TIMER, Action, CallSite
from airflow_provider_taskhub.engine.events import EventType, FailureDetails
from airflow_provider_taskhub.engine.recorded import retry_role
from airflow_provider_taskhub.engine.retry import RetryDecision, RetryPolicy, decide_retry
from airflow_provider_taskhub.engine.tasks import CancellableTask, Group, Task
from airflow_provider_taskhub.engine.wait_changes import Notes
from airflow_provider_taskhub.errors import InputError, TaskFailedError

LONGEST_TIMER = timedelta(days=6)
"""A longer timer is several TimerCreated: queues hide a message for at most 7 days. Histories depend on this
value: never change it."""


class Answerable(Protocol):
    """What stands in the map of open actions."""

    def answered(self, result: str | None) -> None:
        """:param result: JSON text."""

    def refused(self, error: TaskFailedError, *, recorded: bool) -> None:
        """:param recorded: the history already says what follows from this failure (it is ours, and being replayed)."""


class Engine(Protocol):
    """What these tasks need of their generation."""

    @property
    def time(self) -> Timestamp: ...

    def schedule(self, action: Action, waiter: Answerable | None) -> None:
        """Number an action and note it as decided."""

    def recorded_verdict(self, number: int) -> tuple[RetryDecision, Timestamp]:
        """What the history says followed the failure of an attempt, and when its timer fires."""

    @property
    def notes(self) -> Notes:
        """Collects the waits that begin and end, and the timers that are cancelled."""


class Attempts(Group[Any]):
    """An activity or a child orchestration, tried again as its policy says."""

    __slots__ = ("_action", "_attempt", "_engine", "_failure", "_first", "_policy")

    def __init__(self, engine: Engine, action: Action, policy: RetryPolicy | None) -> None:
        super().__init__()
        self._engine = engine
        self._action = action
        self._policy = policy
        self._attempt = 0
        self._first = engine.time
        self._failure: TaskFailedError | None = None
        engine.schedule(action, self)

    def answered(self, result: str | None) -> None:
        try:
            self.complete(None if result is None else loads(result, what=f"result of {self._action.name!r}"))
        except InputError as error:
            self.fail(error)

    def refused(self, error: TaskFailedError, *, recorded: bool) -> None:
        failure = error.details or FailureDetails(error_type="Exception", error_message=str(error))
        try:
            verdict, at = self._engine.recorded_verdict(self._action.number) if recorded else self._judged(failure)
        except BaseException as broken:  # the user's `handle` raised
            self.fail(broken)
            return
        if verdict is RetryDecision.STOP:
            self.fail(error)
            return
        self._failure = error if verdict is RetryDecision.LAST else None
        Timer(self._engine, at, self._action.where, role=retry_role(verdict, self._action.number)).join(self)

    def _judged(self, failure: FailureDetails) -> tuple[RetryDecision, Timestamp]:
        now = self._engine.time
        verdict, delay = decide_retry(self._policy, attempt=self._attempt, first=self._first, now=now, failure=failure)
        return verdict, now + delay

    def settled(self, child: Task[Any]) -> None:
        """The timer between two attempts fired."""
        if self._failure is not None:
            self.fail(self._failure)
            return
        self._attempt += 1
        self._action = replace(self._action)
        self._engine.schedule(self._action, self)


class Timer(CancellableTask[None]):
    """Fires at a time; a distant one in stretches."""

    __slots__ = ("_engine", "_fire_at", "_number", "_role", "_until", "_where")

    def __init__(self, engine: Engine, fire_at: Timestamp, where: CallSite, *, role: str = TIMER) -> None:
        super().__init__()
        self._engine = engine
        self._fire_at = fire_at
        self._where = where
        self._role = role
        self._stretch()

    def _stretch(self) -> None:
        self._until = min(self._fire_at, self._engine.time + LONGEST_TIMER)
        action = Action(kind=EventType.TimerCreated, role=self._role, where=self._where, fire_at=self._until)
        self._engine.schedule(action, self)
        self._number = action.number

    @property
    def fire_at(self) -> Timestamp:
        """The end of its last stretch."""
        return self._fire_at

    def cancel(self) -> None:
        if not self._done:
            self._engine.notes.cancel(self._number)
        super().cancel()

    def recorded(self, fire_at: Timestamp) -> None:
        """The history says how far this stretch goes; .NET's are longer, and fire early."""
        self._until = fire_at

    def answered(self, result: str | None) -> None:
        if self._done:  # cancelled
            return
        if self._until < self._fire_at:
            self._stretch()
        else:
            self.complete(None)

    def refused(self, error: TaskFailedError, *, recorded: bool) -> None:
        self.fail(error)


class EventWait(CancellableTask[Any]):
    """An external event by name.

    :param since: the orchestration's time when the wait began. :param notes: is told when the wait ends.
    """

    __slots__ = ("_annotation", "_notes", "name", "since")

    def __init__(self, name: str, annotation: Any, since: Timestamp, notes: Notes) -> None:
        super().__init__()
        self._notes = notes
        self.name = name
        self.since = since
        self._annotation = annotation

    def _tell(self) -> None:
        self._notes.end(self)
        super()._tell()

    def raised(self, input: str | None) -> None:
        what = f"data of event {self.name!r}"
        try:
            self.complete(decode(None if input is None else loads(input, what=what), self._annotation, what=what))
        except BaseException as error:  # a validator of the user's own may raise anything
            self.fail(error)
