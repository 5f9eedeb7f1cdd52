"""The tasks that an orchestrator awaits: activities and children with their retries, timers, external events.

A *generation* is the part of an instance's run between two calls of ``continue_as_new``. Its object gives each answer
to the task that waits for the answer. The task decides what follows: the task completes, or it schedules another
attempt or the next part of a long timer. A task uses its generation only through the ``Engine`` protocol.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any, Protocol

from airflow_provider_taskhub.codec import Timestamp, decode, loads
from airflow_provider_taskhub.engine.actions import TIMER, Action, CallSite
from airflow_provider_taskhub.engine.events import EventType, FailureDetails, TimerCreated
from airflow_provider_taskhub.engine.failures import TERMINATED
from airflow_provider_taskhub.engine.no_event_loop import user_line
from airflow_provider_taskhub.engine.recorded import retry_role
from airflow_provider_taskhub.engine.retry import RetryDecision, RetryPolicy, decide_retry
from airflow_provider_taskhub.engine.tasks import CancellableTask, Group, Revocable, Task
from airflow_provider_taskhub.engine.wait_changes import WaitRecorder
from airflow_provider_taskhub.errors import InputError, TaskCancelledError, TaskFailedError

LONGEST_TIMER = timedelta(days=6)
"""A longer timer is made of several TimerCreated events, because Azure queues hide a message for at most 7 days. Stored
histories depend on this value: never change it."""


class Answerable(Protocol):
    """A task that waits for the answer to an action."""

    def answered(self, result: str | None) -> None:
        """Take the answer of an action that succeeded.

        :param result: the result of the action as JSON text; None: the action has no result, for example a timer.
        """

    def failed(self, error: TaskFailedError, *, recorded: bool) -> None:
        """Take the answer of an action that failed.

        :param error: the failure of the activity or child.
        :param recorded: whether this failure is replayed and the history already holds the decision about a retry.
        """


class Engine(Protocol):
    """The interface through which tasks use their :class:`.generation.Generation`."""

    @property
    def time(self) -> Timestamp: ...

    def schedule(self, action: Action, waiter: Answerable | None) -> None:
        """Give an action its number and add it to the open actions.

        :param action: the decision.
        :param waiter: the task that gets the answer; None: no task waits for an answer.
        """

    def cancel(self, action: Action, where: CallSite) -> bool:
        """Ask that an activity ends, or does not begin, or that a child ends.

        :param action: the call, which has no answer yet.
        :param where: line of user code that cancels it.
        :returns: whether an answer says that the call has ended. No answer comes from a child that cleans up because
            its parent is to end.
        """

    def recorded_decision(self, number: int) -> tuple[RetryDecision, Timestamp]:
        """Return the decision about a retry as the history has it, and when the timer of this decision fires.

        :param number: action number of the attempt that failed.
        """

    @property
    def rewinds(self) -> int:
        """Number of rewinds in the history so far."""

    @property
    def rewound_at(self) -> Timestamp:
        """The orchestrator's time in the first episode after the last rewind."""

    @property
    def wait_changes(self) -> WaitRecorder:
        """The recorder of waits that begin or end and of timers that are cancelled."""


class Attempts(Group[Any], CancellableTask[Any]):
    """The task of an activity or child orchestration. After a failure it schedules a retry as the policy says.

    :param engine: the generation.
    :param action: the call.
    :param policy: when a failed call is repeated; None: never.
    :param result_type: type to which the result is decoded; None: plain JSON.
    """

    __slots__ = (
        "_action",
        "_attempt",
        "_cancelled",
        "_engine",
        "_failure",
        "_first",
        "_pause",
        "_policy",
        "_result_type",
        "_rewinds",
    )

    def __init__(self, engine: Engine, action: Action, policy: RetryPolicy | None, result_type: Any) -> None:
        super().__init__()
        self._engine = engine
        self._action = action
        self._policy = policy
        self._result_type = result_type
        self._attempt = 0
        self._first = engine.time
        self._rewinds = engine.rewinds
        self._failure: TaskFailedError | None = None
        self._cancelled = False
        self._pause: Timer | None = None  # the timer before the next attempt
        engine.schedule(action, self)

    @property
    def owner(self) -> object | None:
        return self._engine.wait_changes

    def named(self) -> str:
        kind = "activity" if self._action.role == "activity" else "child"
        return f"{kind} {self._action.name!r} at {self._action.where}"

    def __bool__(self) -> bool:
        if self._result_type is bool:  # `if ctx.call_activity(is_ready):` is always true
            raise TypeError(f"{self.named()} is always true: write `await` before it, or compare it with None")
        return super().__bool__()

    @property
    def is_child(self) -> bool:
        """Whether the call is that of a child."""
        return self._action.kind is EventType.SubOrchestrationInstanceCreated

    @property
    def is_cancelled(self) -> bool:
        """Whether the code, or the end of the instance, has cancelled the call."""
        return self._cancelled

    def cancel(self) -> None:
        """Ask that the activity ends, or does not begin; or that the child ends, and the children of the child.

        What has failed and waits for its retry is not tried again. Awaiting the task then waits until the end is
        confirmed: no attempt of the activity runs or begins any more, on any worker. Of a child, no code runs any more,
        and the end of each of its activities and children is confirmed. The await raises :class:`TaskCancelledError`;
        or it gives the result, if the activity or child has finished first. Code that does not need to know this goes
        on without awaiting the task.
        """
        self.use()
        if self._done or self._cancelled:
            return
        self._cancelled = True
        if self._pause is not None:
            super().cancel()
            self._pause.cancel()
            return
        if not self._engine.cancel(self._action, user_line() or CallSite.of(sys._getframe(1))):
            super().cancel()

    def answered(self, result: str | None) -> None:
        what = f"result of {'activity' if self._action.role == 'activity' else 'orchestrator'} {self._action.name!r}"
        try:
            found = None if result is None else loads(result, what=what)
        except InputError as error:
            self.fail(error)
            return
        annotation = self._result_type if result is not None else None
        self.complete(found, None if annotation is None else lambda value: decode(value, annotation, what=what))

    def failed(self, error: TaskFailedError, *, recorded: bool) -> None:
        if self._cancelled:
            self._seen = True
            ended = self.is_child and error.details is not None and error.details.error_type == TERMINATED
            self.fail(TaskCancelledError("the task was cancelled by the orchestrator") if ended else error)
            return
        if self._rewinds != self._engine.rewinds:  # somebody has rewound the instance: the retry policy begins anew
            self._rewinds, self._attempt, self._first = self._engine.rewinds, 0, self._engine.rewound_at
        failure = error.details or FailureDetails(error_type="Exception", error_message=str(error))
        try:
            number = self._action.number
            decision, at = self._engine.recorded_decision(number) if recorded else self._apply_policy(failure)
        except BaseException as broken:  # the policy's `handle` is user code and can raise any error
            self.fail(broken)
            return
        if decision is RetryDecision.STOP:
            self.fail(error)
            return
        self._failure = error if decision is RetryDecision.LAST else None
        self._pause = Timer(self._engine, at, self._action.where, role=retry_role(decision, number))
        self._pause.join(self)

    def _apply_policy(self, failure: FailureDetails) -> tuple[RetryDecision, Timestamp]:
        now = self._engine.time
        decision, delay = decide_retry(self._policy, attempt=self._attempt, first=self._first, now=now, failure=failure)
        return decision, now + delay

    def settled(self, child: Task[Any]) -> None:
        """Schedule the next attempt when the timer after an attempt has fired. Fail the task if no attempt follows.

        A timer also follows the last attempt, as in DurableTask.

        :param child: the timer.
        """
        self._pause = None
        if self._done:  # it was cancelled
            return
        if self._failure is not None:
            self.fail(self._failure)
            return
        self._attempt += 1
        self._action = replace(self._action)
        self._engine.schedule(self._action, self)


class Started(CancellableTask[None]):
    """The task of a child for which its parent does not wait: complete at once, with the result None."""

    __slots__ = ("_owner",)

    def __init__(self, owner: WaitRecorder) -> None:
        super().__init__()
        self._owner = owner
        self.complete(None)

    @property
    def owner(self) -> object | None:
        return self._owner


class Timer(CancellableTask[None]):
    """The task of a timer. A timer longer than :data:`LONGEST_TIMER` is made of parts, one TimerCreated event each."""

    __slots__ = ("_engine", "_fire_at", "_number", "_role", "_until", "_where")

    def __init__(self, engine: Engine, fire_at: Timestamp, where: CallSite, *, role: str = TIMER) -> None:
        super().__init__()
        self._engine = engine
        self._fire_at = fire_at
        self._where = where
        self._role = role
        self._schedule_part()

    @property
    def owner(self) -> object | None:
        return self._engine.wait_changes

    def named(self) -> str:
        return f"the timer at {self._where}"

    def _schedule_part(self) -> None:
        self._until = min(self._fire_at, self._engine.time + LONGEST_TIMER)
        action = Action(kind=EventType.TimerCreated, role=self._role, where=self._where, fire_at=self._until)
        self._engine.schedule(action, self)
        self._number = action.number

    @property
    def number(self) -> int:
        """Number of the action that has made the current part of the timer."""
        return self._number

    @property
    def is_of_code(self) -> bool:
        """True if the orchestrator code has made the timer. The engine makes those of limits, retries and deadlines."""
        return self._role == TIMER and not any(group.is_limit for group in self._groups or ())

    @property
    def fire_at(self) -> Timestamp:
        """When the whole timer fires: the end of its last part."""
        return self._fire_at

    def cancel(self) -> None:
        if not self._done:
            self._engine.wait_changes.cancel(self._number)
        super().cancel()

    def recorded(self, event: TimerCreated) -> None:
        """Correct the end of the timer's current part to the end that the history has.

        A .NET worker divides timers in another way, so a part in the history can be longer than a part of TaskHub. If
        a part of TaskHub ends before the part that the code has decided now, the code sets a longer timer than before.
        The timer then ends where the history says.

        :param event: the event of the part.
        """
        if event.taskhub_action_id is not None and event.fire_at < self._until:
            self._fire_at = event.fire_at
        self._until = event.fire_at

    def answered(self, result: str | None) -> None:
        if self._done:  # the timer was cancelled before it fired
            return
        if self._until < self._fire_at:
            self._schedule_part()
        else:
            self.complete(None)

    def failed(self, error: TaskFailedError, *, recorded: bool) -> None:
        self.fail(error)


class Events(Protocol):
    """What gives external events to waits."""

    def claim(self, task: EventWait, *, joins: bool) -> None: ...

    def release(self, task: EventWait) -> None: ...


class EventWait(Revocable[Any], CancellableTask[Any]):
    """The task of a wait for an external event.

    :param name: name of the event.
    :param annotation: type to which the event's data are decoded; None: plain JSON.
    :param since: the orchestrator's time when the wait began.
    :param wait_changes: recorder that is notified when the wait ends.
    :param events: gives events to waits.
    :ivar place: place among the waits.
    :ivar left_place: the same place, if an event has come and gone by because the wait was left behind; else
        None.
    """

    __slots__ = ("_annotation", "_events", "_told", "_wait_changes", "left_place", "name", "place", "since")

    claims = True

    def __init__(
        self,
        name: str,
        annotation: Any,
        since: Timestamp,
        wait_changes: WaitRecorder,
        events: Events,
    ) -> None:
        super().__init__()
        self._wait_changes = wait_changes
        self._events = events
        self._told = []
        self.place = 0
        self.left_place: int | None = None
        self.name = name
        self.since = since
        self._annotation = annotation

    @property
    def owner(self) -> object | None:
        return self._wait_changes

    def named(self) -> str:
        return f"the wait for event {self.name!r}"

    def _notify_groups(self) -> None:
        self._wait_changes.end(self)
        super()._notify_groups()

    def claim(self, *, joins: bool) -> None:
        self._events.claim(self, joins=joins)

    def cancel(self) -> None:
        self._events.release(self)
        super().cancel()

    @property
    def is_known(self) -> bool:
        """Whether the code has learned that the event has come."""
        return self._seen or self._taken

    @property
    def is_left_unfinished(self) -> bool:
        """Whether only groups that the code has left behind know of the event, because they need other tasks too."""
        return not self.is_known and self.is_told_in_vain

    def give_back(self, place: int) -> None:
        """Wait again, because the event is for another wait. :param place: the place among the waits."""
        self.wait_again()
        self.left_place = place

    def raised(self, input: str | None) -> None:
        what = f"data of event {self.name!r}"
        try:
            self.complete(decode(None if input is None else loads(input, what=what), self._annotation, what=what))
        except BaseException as error:  # a pydantic validator of the user can raise any error
            self.fail(error)
