"""One generation of an instance: its live orchestrator function, its open actions and waits, and its state.

A *generation* is the part of an instance's run between two calls of ``continue_as_new``. The function runs without an
event loop, with ``send`` and ``throw``. It runs only while an event is delivered, so the order of events in the history
decides the order of everything. Replayed events and new events take the same path. There is one difference. In a
replay, each decision must have an event in the history, which *confirms* the decision. At the end of a new episode, the
decisions are *flushed*: they become events and messages.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from itertools import islice
from typing import Any

from airflow_provider_taskhub.codec import Timestamp, dumps, loads
from airflow_provider_taskhub.engine import cancel_scope, grace
from airflow_provider_taskhub.engine.actions import CANCEL, Action, CallSite, Decided, Scope, default_child_id
from airflow_provider_taskhub.engine.async_generators import is_collecting
from airflow_provider_taskhub.engine.awaitables import Answerable, Attempts, EventWait, Timer
from airflow_provider_taskhub.engine.context import OrchestrationContext
from airflow_provider_taskhub.engine.driver import Body, Branch, Driver
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
    TimerFired,
)
from airflow_provider_taskhub.engine.external_events import ExternalEvents
from airflow_provider_taskhub.engine.failures import error_of, failure_of, message_of
from airflow_provider_taskhub.engine.forgotten import Forgotten, Kind
from airflow_provider_taskhub.engine.lifecycle import HAPPENINGS, Happening, Reaction, react_instance
from airflow_provider_taskhub.engine.no_event_loop import (
    CancelledError,
    is_code_of_others,
    noted,
    reworded,
    user_line,
)
from airflow_provider_taskhub.engine.open_actions import Answer, OpenAction, OpenActions, Scheduling
from airflow_provider_taskhub.engine.pending_waits import CHILD_IDS, MAX_EXAMINED, MAX_NAMES, NEEDED_CHARACTERS, Awaits
from airflow_provider_taskhub.engine.recorded import Recorded
from airflow_provider_taskhub.engine.registry import OrchestratorDefinition, Registry
from airflow_provider_taskhub.engine.replay_safe_logger import Log
from airflow_provider_taskhub.engine.retry import RetryDecision
from airflow_provider_taskhub.engine.tasks import Task
from airflow_provider_taskhub.engine.timeouts import Timeout
from airflow_provider_taskhub.engine.wait_changes import WaitRecorder
from airflow_provider_taskhub.errors import NonDeterminismError, OrchestrationError, TerminationRequested
from airflow_provider_taskhub.no_input import NO_INPUT

MAX_ACTIONS = 100_000
"""Maximum number of actions that the code can decide after one event. Code with more is in an endless loop without an
await."""

_FAILURES = (TaskFailed, SubOrchestrationInstanceFailed)
_KINDS = {
    EventType.TaskScheduled: Kind.ACTIVITY,
    EventType.SubOrchestrationInstanceCreated: Kind.CHILD,
    EventType.TimerCreated: Kind.TIMER,
}
_DROPPED: Mapping[Status, tuple[EventType, ...]] = {
    Status.COMPLETED: (EventType.TimerCreated,),
    Status.FAILED: (EventType.TimerCreated,),
    Status.CONTINUED_AS_NEW: (EventType.TimerCreated,),
    Status.TERMINATED: (EventType.TimerCreated, EventType.TaskScheduled),
}
"""The types of the new decisions that are dropped after the end of the code, by the status of the instance."""


class Generation:
    """One generation of an instance: the part of its run between two calls of ``continue_as_new``.

    User code gets only the :class:`.context.OrchestrationContext` of the generation.

    :param registry: the declared orchestrators and activities.
    :param definition: the declared orchestrator.
    :param started: start event of the generation.
    :param instance: instance and execution id of the generation.
    :param time: the orchestrator's time at the beginning.
    :param past: retry decisions and rewinds of the history; None: there is no history yet.
    :param custom_status: custom status at the beginning, as JSON text; None: no custom status.
    :param log: function that gets the lines of ``ctx.logger``; None: the lines are dropped.
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
        self.recorded = False  # True in a replay, up to the last event whose decisions the history has
        self.custom_status = custom_status
        self.result: str | None = None
        self.failure: FailureDetails | None = None
        self.continue_input: str | None = None
        self.input_is_read = definition.takes_input
        self.rewinds = 0
        self.rewound_at = time
        self._rewinds_seen = 0
        self.numbers = 0
        self._dropped = 0  # so many of the first external events do not go to the next generation
        self._wants_generation = False
        self._past = past or Recorded()
        self._actions = OpenActions()
        self._drops_unrecorded = False  # True if a suspended instance was terminated: its unsent actions are dropped
        self._floods = False  # True if the code has decided more than MAX_ACTIONS actions without awaiting
        self._events = ExternalEvents()
        self._held: list[tuple[OpenAction | None, HistoryEvent]] = []
        self._forgotten = Forgotten()
        self.wait_changes = WaitRecorder()
        self._carried: list[HistoryEvent] = []
        self._driver = Driver(definition.name, self.wait_changes)
        self._request: grace.Request | None = None  # of somebody who terminates the instance and leaves it time
        self._deadline = -1  # number of the timer that ends this time
        self._is_ending = False  # True while the request cancels what is open
        self._unconfirmed: list[Attempts] | None = None  # what the code has cancelled before continue_as_new
        self._closed = False
        self._limit = MAX_ACTIONS
        self._context = OrchestrationContext(self, log)

    # ---- methods for the class Execution in replay.py

    @property
    def is_muted(self) -> bool:
        """Whether the code that runs must have no effect: it is replayed, or only its ``finally`` blocks run.

        They run when the instance is terminated, each time when the worker removes the orchestrator from memory, and
        when Python collects it.
        """
        return self.replaying or self._closed or is_collecting()

    @property
    def is_decided(self) -> bool:
        """Whether the generation has ended: with the instance, or by ``continue_as_new``."""
        return self.status.is_final or self.status is Status.CONTINUED_AS_NEW

    def begin(self) -> None:
        """Run the orchestrator for the first time."""
        self._move(Happening.STARTED)
        self._run(lambda: self._driver.start(self._call()))

    def receive(self, event: HistoryEvent) -> str | None:
        """Take an event that arrived as a message.

        :param event: the event.
        :returns: None if the event belongs in the history; else the reason why the event is not used and not stored.
        """
        happening = self._meaning(event)
        if happening is None:
            return f"{event.event_type.name} is not an event that a message brings"
        if happening is Happening.ASKED_TO_END and self._request is not None:
            return "the orchestration was asked to end before, and the first request counts"
        if happening is Happening.SUSPENDED and self._request is not None:
            return "the orchestration cleans up after a terminate, and cannot be suspended"
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

    def _meaning(self, event: HistoryEvent) -> Happening | None:
        if isinstance(event, TimerFired) and event.timer_id == self._deadline:
            return Happening.OVERDUE
        if grace.request_of(event) is not None:
            return Happening.ASKED_TO_END
        return HAPPENINGS.get(event.event_type)

    def confirm(self, event: Scheduling) -> None:
        """Check that the replayed code has made a decision that is in the history.

        :param event: the event of the decision in the history, such as TaskScheduled.
        :raises NonDeterminismError: the code has not made this decision, or has made another one.
        """
        self._actions.confirm(event, self.numbers, self._driver, self.instance, self._past.rewinds)

    def episode(self, time: Timestamp) -> None:
        """Begin an episode. The history must have all decisions that the code made in earlier episodes.

        :param time: the orchestrator's time in this episode.
        :raises NonDeterminismError: the code has decided an action that the history does not have.
        """
        self.wait_changes.clear()
        # A rewind removes failures, so the replayed code can get further than it got before its failure. Up to the
        # rewritten completion it can therefore decide actions that the history does not have: no check is made there.
        live = self.rewinds >= self._past.rewound and self.status is not Status.SUSPENDED
        if self._actions.unrecorded and live and not self.is_decided:
            self._actions.check_recorded()
        self.time = time
        if self._rewinds_seen != self.rewinds:
            self._rewinds_seen, self.rewound_at = self.rewinds, time

    def answers(self, event: HistoryEvent) -> bool:
        """Return whether an event is an answer that fits one of the actions without an answer."""
        return isinstance(event, Answer) and self._actions.mismatch(event, self.numbers) is None

    def fail_nondeterministic(self, error: NonDeterminismError, last: int) -> None:
        """Fail the instance because its code does not fit its history, even if the code has returned a result.

        :param error: the error that describes the mismatch.
        :param last: the highest action number in the history. The completion event gets a higher number.
        """
        self.close()
        self._actions.unrecorded.clear()
        self.numbers = max(self.numbers, last + 1)
        self._wants_generation = False
        self.result, self.failure = message_of(error), failure_of(error)
        self.status = Status.FAILED

    def fail_with(self, error: OrchestrationError) -> None:
        """Fail the instance with an error of the engine itself.

        :param error: the error.
        """
        self._move(Happening.FAILED)
        self.close()
        self.result, self.failure = message_of(error), failure_of(error)

    def flush(self, time: Timestamp) -> list[Decided]:
        """Return the new decisions in the order of their numbers; an empty list while the instance is suspended.

        What the code has started is sent, also if the code has ended, failed or continues as new since. Only its new
        timers are then dropped: nothing is done when they fire. If the instance was terminated, its new activities are
        dropped too; if it was suspended before, all its new decisions are dropped, as in DurableTask. All new decisions
        of an endless loop without an await are dropped.

        :param time: the orchestrator's time.
        """
        if self._drops_unrecorded or (self._floods and self.is_decided):
            self._actions.unrecorded.clear()
        if self.status is Status.SUSPENDED or not self._actions.unrecorded:
            return []
        scope = Scope(instance=self.instance, started=self.started, time=time, rewinds=self.rewinds)
        return self._actions.flush(scope, _DROPPED.get(self.status, ()))

    def awaits(self) -> Awaits:
        """Return what the orchestrator waits for now."""
        named, child_ids, timer = self._actions.awaited()
        events = self._events.awaited()
        activities, children = named[EventType.TaskScheduled], named[EventType.SubOrchestrationInstanceCreated]
        return Awaits(
            activities=tuple(islice(activities, MAX_NAMES)),
            children=tuple(islice(children, MAX_NAMES)),
            child_ids=tuple(child_ids[:CHILD_IDS]),
            child_count=len(child_ids),
            needed=tuple(_fitting(self._actions.needed(self._driver.main))) if child_ids else (),
            events=tuple(events[:MAX_NAMES]),
            timer=timer,
            complete=max(len(activities), len(children), len(events)) <= MAX_NAMES
            and max(len(self._actions), len(self._events)) <= MAX_EXAMINED,
        )

    def fail_if_stuck(self) -> None:
        """Fail the orchestrator if nothing can ever let its code go on, because its branches wait for each other."""
        if self.status is not Status.RUNNING or self._closed or self._held or self._actions.waits or len(self._events):
            return
        lines = "; ".join(map(str, self._driver.lines()))
        why = "its code waits for itself, or branches wait for each other"
        self._raise(self._driver.error(f"waits for nothing that can come, at {lines}: {why}"))

    def carried(self) -> list[HistoryEvent]:
        """Return the events to pass on at ``continue_as_new``: unused external events, suspends and resumes."""
        return [*self._events.unclaimed(self._dropped), *self._carried]

    def close(self) -> None:
        """Close the orchestrator function. Its ``finally`` blocks run, but have no effect: :attr:`is_muted`."""
        self._closed = True
        self._driver.close()

    # ---- methods for the tasks and the context

    def check_own(self) -> None:
        """Check that no orchestrator uses the context of another one, for example from a global variable.

        :raises OrchestrationError: the code that calls is that of another instance, or of an earlier run of this code.
        """
        if is_code_of_others(self._driver.refused) and not is_collecting():
            raise noted(
                OrchestrationError(
                    f"the context of a run of instance {self.instance.instance_id!r} was used outside of this run (at "
                    f"{user_line() or 'an unknown line'}): its calls would go to the wrong instance. A context in a "
                    "global variable is that of the orchestrator which has set the variable last. Give `ctx` to your "
                    "functions as an argument",
                    retryable=False,
                )
            )

    def schedule(self, action: Action, waiter: Answerable | None) -> None:
        """Give an action its number and add it to the open actions.

        :param action: the decision.
        :param waiter: the task that gets the answer; None: no task waits for an answer.
        :raises OrchestrationError: the code has decided more than :data:`MAX_ACTIONS` actions without an await.
        """
        if self._closed:
            return
        if self.numbers >= self._limit:
            self._floods = True
            raise OrchestrationError(
                f"more than {MAX_ACTIONS} actions without awaiting, last {action.name!r} at {action.where}: "
                "await tasks, or split the work into child orchestrations",
                retryable=False,
            )
        action.number = self.numbers
        self.numbers += 1
        self._actions.add(action, waiter)
        if isinstance(waiter, Task):
            cancel_scope.started(waiter)
            self._forgotten.watch(waiter, _KINDS[action.kind], action.name, action.where)

    def cancel(self, action: Action, where: CallSite) -> bool:
        """Ask that an activity ends, or does not begin, or that a child ends.

        :param action: the call, which has no answer yet.
        :param where: line of user code that cancels it.
        :returns: whether an answer says that the call has ended.
        """
        is_child = action.kind is EventType.SubOrchestrationInstanceCreated
        child = action.instance_id or default_child_id(self.instance, action.number)
        self.schedule(
            Action(
                kind=EventType.EventSent,
                role=CANCEL,
                where=where,
                name=f"{CANCEL} {action.name}",
                input=str(action.number),
                instance_id=child if is_child else self.instance.instance_id,
                run=self._actions.run_of(action.number) if is_child else None,
                request=self._request if self._is_ending else None,
            ),
            None,
        )
        return not (is_child and self._is_ending)

    def recorded_decision(self, number: int) -> tuple[RetryDecision, Timestamp]:
        """Return the decision about a retry as the history has it, and when the timer of this decision fires.

        :param number: action number of the attempt that failed.
        :returns: STOP if the next action in the history is not a timer of this attempt's retry policy.
        """
        return self._past.decision(self.numbers, number, self.instance) or (RetryDecision.STOP, self.time)

    def wait(self, name: str, annotation: Any, where: CallSite) -> EventWait:
        """Return a wait for an external event. It is complete at once if an unused event of this name came before.

        :param name: name of the event; upper and lower case are the same.
        :param annotation: type to which the event's data are decoded; None: plain JSON.
        :param where: line of user code that waits.
        """
        task = EventWait(name, annotation, self.time, self.wait_changes, self._events)
        if self._closed:
            return task
        cancel_scope.started(task)
        self.wait_changes.begin(task)
        self._events.wait(task)
        self._forgotten.watch(task, Kind.EVENT, name, where)
        return task

    def set_custom_status(self, text: str | None) -> None:
        """Set the custom status, unless the code is only closed. :param text: JSON text; None: no custom status."""
        if not self._closed:
            self.custom_status = text

    def branch(self, body: Body, name: str, where: CallSite) -> Branch[Any]:
        """Start a branch. Its code runs at once, until it waits or ends.

        :param body: the coroutine, which has not begun.
        :param name: name of the coroutine's function.
        :param where: line of user code that starts the branch.
        """
        branch = self._driver.branch(body)
        if not self._closed:
            cancel_scope.started(branch)
            self._forgotten.watch(branch, Kind.BRANCH, name, where)
        return branch

    def limit(self, fire_at: Timestamp | None, shown: str, where: CallSite) -> Timeout:
        """Return a limit for the waits of a block, which the code has not entered yet.

        :param fire_at: when the limit is over; None: never.
        :param shown: the limit as the code gave it, for errors.
        :param where: line of user code that makes the limit.
        """
        timeout = Timeout(self, lambda: self._driver.current, fire_at, shown, where)
        if not self._closed:
            self._forgotten.watch(timeout.expiry, Kind.LIMIT, "", where)
        return timeout

    def scope(self, where: CallSite) -> cancel_scope.CancelScope:
        """Return a block of ``ctx.cancel_scope``, which the code has not entered yet.

        :param where: line of user code that makes the block.
        """
        scope = cancel_scope.CancelScope(where)
        if not self._closed:
            self._forgotten.watch(scope.entry, Kind.SCOPE, "", where)
        return scope

    def continue_as_new(self, input: str | None, *, keep_events: bool) -> None:
        """Start a new generation when the orchestrator returns, instead of completing the instance.

        :param input: input of the new generation, as JSON text; None: no input.
        :param keep_events: whether external events that came before this call, and that no wait has taken, go to the
            new generation. Those that come later go to it in any case.
        :raises OrchestrationError: a branch calls it. The code of the other branches would go on and lose its events.
        """
        if self._closed:
            return
        if not self._driver.current.is_main:
            raise OrchestrationError(
                "ctx.continue_as_new cannot be called in a branch: return from the branch, and call it in the "
                "orchestrator function itself when its branches have ended",
                retryable=False,
            )
        self._wants_generation = True
        self.continue_input = input
        self._dropped = 0 if keep_events else self._events.count

    # ---- reactions to events

    def _deliver(self, event: HistoryEvent) -> None:
        self._dispatch(self._actions.take(event), event)

    def _dispatch(self, entry: OpenAction | None, event: HistoryEvent) -> None:
        if isinstance(event, EventRaised):
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
        if self._driver.is_held or self._driver.is_over:  # it was asked to end while it was suspended
            self._run(self._cancel_all)

    def _carry(self, event: HistoryEvent) -> None:
        if not isinstance(event, Answer):
            self._carried.append(event)

    def _terminate(self, event: HistoryEvent) -> None:
        if isinstance(event, ExecutionTerminated):
            self.result = event.input
        elif self._request is not None:
            lines = "; ".join(map(str, self._driver.lines()))
            told, left = "ended its clean-up within %s s, at %s", self._cancelled()
            if left and self._driver.has_not_begun_to_end:
                more = f" and {len(left) - 1} more" if len(left) > 1 else ""
                lines = f"{left[0].named()}{more}"
                told = "begun its clean-up within %s s: it waited for the end of the cancelled %s"
            self._context.logger.warning(
                f"orchestrator %r has not {told}", self.definition.name, self._request.grace, lines
            )
            self.result = self._request.reason
        self.close()
        self._wants_generation = False
        self.failure = None

    def _ask(self, event: HistoryEvent) -> None:
        """Let the code wait until what it has started is cancelled, and then clean up until the deadline."""
        request = self._request = grace.request_of(event)
        assert request is not None
        end = Timer(self, self.time + timedelta(seconds=request.grace), CallSite.of(sys._getframe(0)), role=grace.ROLE)
        end.use()
        self._deadline, deadline = end.number, end.fire_at.datetime()
        self._driver.hold(lambda: TerminationRequested(request.reason or "", deadline))
        if self.status is not Status.SUSPENDED:
            self._run(self._cancel_all)

    def _cancel_all(self) -> None:
        """Cancel what the code has started and has not finished, as ``ctx.cancel_scope`` does."""
        if not self._driver.is_held:
            return
        cancelled = list[Task[Any]]()
        self._is_ending = True
        kept = self._driver.awaited_by_cleanups()
        for task in self._forgotten.unfinished():
            match task:
                case _ if id(task) in kept:
                    pass
                case Attempts():
                    if not task.is_child or (self._request is not None and self._request.recurse):
                        task.cancel()
                    if task.is_cancelled:  # a child that is to clean up, too, is not awaited: it is done
                        cancelled.append(task)
                case Timer() if task.is_of_code:
                    task.cancel()
                case EventWait():
                    task.cancel()
        self._is_ending = False
        self._driver.end(cancelled)
        self._driver.turn()

    def note(self, event: HistoryEvent) -> None:
        """Take a row that a rewind has rewritten: allow the code to decide its action again. Ignore other events."""
        if isinstance(event, GenericEvent):
            if event.event_id >= 0:
                self._actions.allow_again(event.event_id)
            # The rewritten rows of completions count the rewinds. The messages of rewinds are not counted: such a
            # message perhaps never comes, or comes after another event has already woken the instance.
            if event.is_rewind:
                self.rewinds += 1
                self._actions.allow_all_again()

    # ---- calls of the orchestrator function

    def _move(self, happening: Happening) -> None:
        self.status = react_instance(self.status, happening).state

    def _call(self) -> Any:
        definition = self.definition
        if not definition.takes_input:
            return self._driver.call(definition.function, self._context)
        what = f"input of orchestrator {definition.name!r}"
        text = self.started.input
        value = NO_INPUT if text is None else loads(text, what=what)
        arguments = definition.arguments(value, what=what, recorded=self.replaying)
        return self._driver.call(definition.function, self._context, *arguments)

    def _run(self, step: Callable[[], None]) -> None:
        if self._closed:
            return
        try:
            step()
            main = self._driver.main
            if not self._driver.is_over:
                self._tell_refused()
                return
            if (error := main._error or self._driver.cleanup_error) is not None:
                self._raise(error)
            elif self._may_return():
                self._return(main._result)
        except BaseException as error:  # also SystemExit: an orchestrator must not end its worker
            self._raise(reworded(error))

    def _cancelled(self) -> list[Attempts]:
        """Return the calls that the code or a terminate has cancelled, and whose end is not confirmed."""
        return [task for task in self._forgotten.unfinished() if isinstance(task, Attempts) and task.is_cancelled]

    def _may_return(self) -> bool:
        """Return False while ``continue_as_new`` waits until cancelled activities have ended.

        The next generation has an empty history. Nobody would find a cancel there, and the activity would go on.
        """
        if self._request is not None or not self._wants_generation:
            return True
        if self._unconfirmed is None:
            self._unconfirmed = [call for call in self._cancelled() if not call.is_child]
        while self._unconfirmed and self._unconfirmed[-1]._done:
            self._unconfirmed.pop()
        return not self._unconfirmed

    def _return(self, value: Any) -> None:
        ends = Happening.CONTINUED if self._wants_generation else Happening.RETURNED
        status = react_instance(self.status, ends if self._request is None else Happening.CLEANED_UP).state
        self._tell_refused()
        self._tell_forgotten()
        if not self.input_is_read and self.started.input not in (None, "null"):
            self._context.logger.warning(
                "orchestrator %r was started with an input, but its function has no parameter for the input and never "
                "called ctx.get_input(): the input had no effect",
                self.definition.name,
            )
        self._closed = True
        if self._request is not None:
            self._wants_generation, self.result = False, self._request.reason
        elif not self._wants_generation:
            what = f"result of orchestrator {self.definition.name!r}"
            self.result = dumps(value, self.definition.result_annotation, what=what)
        self.status = status

    def _raise(self, error: BaseException) -> None:
        request = self._request
        self._move(Happening.FAILED if request is None else Happening.CLEANED_UP)
        self._tell_forgotten()
        if request is not None and not isinstance(error, CancelledError):
            told = "orchestrator %r failed in its clean-up: %s"
            self._context.logger.warning(told, self.definition.name, message_of(error), exc_info=error)
        self._closed = True
        self._wants_generation = False
        if request is None:
            self.result, self.failure = message_of(error), failure_of(error)
        else:
            self.result = request.reason

    def _tell_refused(self) -> None:
        for error in self._driver.refused if not self.replaying else ():
            told = "orchestrator %r went on after an error that its code must not catch: %s"
            self._context.logger.warning(told, self.definition.name, error)
        self._driver.refused.clear()

    def _tell_forgotten(self) -> None:
        if not self.replaying:
            for text in self._forgotten.texts():
                self._context.logger.warning("orchestrator %r %s", self.definition.name, text)


def _fitting(children: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the first children, with their ids and runs, that have at most :data:`NEEDED_CHARACTERS` characters."""
    room = NEEDED_CHARACTERS
    for child_id, run in children:
        room -= len(child_id) + len(run)
        if room < 0:
            return
        yield child_id, run


_REACT: dict[Reaction, Callable[[Generation, HistoryEvent], None]] = {
    Reaction.DELIVER: Generation._deliver,
    Reaction.HOLD: Generation._hold,
    Reaction.SUSPEND: lambda generation, event: None,  # the event is only stored
    Reaction.RESUME: Generation._resume,
    Reaction.TERMINATE: Generation._terminate,
    Reaction.INTERRUPT: Generation._ask,
    Reaction.INTERRUPT_AFTER: Generation._ask,
    Reaction.NOTE: Generation.note,
    Reaction.CARRY: Generation._carry,
}
