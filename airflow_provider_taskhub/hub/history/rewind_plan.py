"""Plan a rewind: decide which rows of a failed history are rewritten, so that the instance goes on from before the
failure. All functions are pure.

To *remove* an event means to rewrite its row as a GenericEvent, which replay ignores. DurableTask removes every failure
of the generation (the part of a run since its start or its last ``continue_as_new``). If it removes a failure that the
orchestrator has handled, the replay is non-deterministic and fails. TaskHub removes the failure that ended the
orchestration, and all decisions after it. A decision is a call of an activity, a child, a timer, or an event that the
orchestrator sends. TaskHub also removes each failure after the last decision, because the history does not show whether
the orchestrator has handled it. Earlier failures that the orchestrator has handled stay. A DurableTask orchestration
fails only after all its activities have ended. A TaskHub orchestration fails at once, and then none of its activities
begins. So this plan also removes the calls without an answer, and the orchestrator calls these activities again. Calls
whose activities still run, or have succeeded since, stay (``kept``).

DurableTask rewinds only what has failed. TaskHub can also rewind a terminated instance: its termination, an
open suspension, its calls of activities without an answer, and what failed in its last episode are removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import (
    REWOUND,
    EventSent,
    EventType,
    ExecutionCompleted,
    ExecutionResumed,
    ExecutionStarted,
    ExecutionSuspended,
    ExecutionTerminated,
    GenericEvent,
    HistoryEvent,
    OrchestratorStarted,
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
from airflow_provider_taskhub.engine.failures import chain, is_terminated
from airflow_provider_taskhub.engine.recorded import verdict_of
from airflow_provider_taskhub.engine.retry import RetryDecision
from airflow_provider_taskhub.hub.formats.history_rows import SENTINEL
from airflow_provider_taskhub.hub.formats.payload_spill import batches
from airflow_provider_taskhub.hub.model import ActivityRecord, HubNames, RecordState
from airflow_provider_taskhub.storage.primitives import Entity, Property, RowOperation, RowVerb, Transact

_Scheduling = TaskScheduled | SubOrchestrationInstanceCreated | TimerCreated | EventSent
_Answer = TaskCompleted | TaskFailed | SubOrchestrationInstanceCompleted | SubOrchestrationInstanceFailed | TimerFired
_Failure = TaskFailed | SubOrchestrationInstanceFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewinding:
    """What a rewind changes in a history.

    :param taken: indexes of events that are removed, that is, become :class:`GenericEvent`. One of them is the event
        :class:`ExecutionCompleted` with the failure.
    :param children: indexes of events that created a child whose failure is removed. The child itself must be rewound.
        If that is not possible, the caller removes this event too, so that the orchestrator starts the child again.
    """

    taken: frozenset[int]
    children: tuple[int, ...] = ()


def is_rewound(past: Sequence[HistoryEvent], status: Status, *, statuses: Collection[Status]) -> bool:
    """Return True if a rewind has rewritten the history, and no episode has run since. It is then possible that the
    rewind was interrupted before it changed the instance row.

    :param past: events of the history.
    :param status: status in the instance row.
    :param statuses: statuses with which an instance can be rewound.
    """
    if not past or any(isinstance(event, ExecutionCompleted) for event in past):
        return False
    if status in statuses:
        return True
    for event in reversed(past):
        if isinstance(event, OrchestratorStarted):
            return False
        if isinstance(event, GenericEvent) and event.is_rewind:
            return True
    return False


def plan(past: Sequence[HistoryEvent], *, kept: Collection[int] = (), terminated: bool = False) -> Rewinding | None:
    """Plan which events a rewind must remove, so that the orchestrator goes on as if it had not failed.

    :param past: events of the history.
    :param kept: indexes of calls without an answer that need not be made again (:func:`calls_to_keep`).
    :param terminated: True: also plan the rewind of an instance that was terminated.
    :returns: the plan; None if the orchestration has not failed.
    """
    made = _Plan(past, kept)
    return made.made() or (made.of_terminated() if terminated else None)


def open_calls(past: Sequence[HistoryEvent]) -> dict[int, TaskScheduled]:
    """Return the calls of activities without an answer, by their indexes."""
    calls: dict[int, tuple[int, TaskScheduled]] = {}
    for at, event in enumerate(past):
        if isinstance(event, TaskScheduled):
            calls[event.event_id] = at, event
        elif isinstance(event, TaskCompleted | TaskFailed):
            calls.pop(event.task_scheduled_id, None)
    return dict(calls.values())


def calls_to_keep(calls: Mapping[int, TaskScheduled], attempts: Mapping[int, ActivityRecord]) -> set[int]:
    """Return the indexes of the calls that a rewind keeps, because their activities need not run again.

    That is a call whose activity has succeeded after the end of the instance, or still runs.

    :param calls: the calls without an answer, by their indexes.
    :param attempts: the last attempt of each call, by the number of the call.
    """
    wanted = (RecordState.RUNNING, RecordState.COMPLETED)
    return {
        at
        for at, call in calls.items()
        if (attempt := attempts.get(call.event_id)) is not None
        and attempt.state in wanted
        and call.taskhub_action_id == attempt.action_id
    }


def undoes_calls(past: Sequence[HistoryEvent], rewinding: Rewinding) -> bool:
    """Return True if a rewind removes a call of an activity that has no answer. Such an activity may not have begun.

    :param past: events of the history.
    """
    answered = {event.task_scheduled_id for event in past if isinstance(event, TaskCompleted | TaskFailed)}
    calls = (past[at] for at in rewinding.taken)
    return any(isinstance(event, TaskScheduled) and event.event_id not in answered for event in calls)


class _Plan:
    """Makes the plan of a rewind.

    Two tables give, for the number of an action, the index of an event in the history: ``_asked`` of the event that
    scheduled the action, ``_answered`` of the answer. If two events have the same number, the later event counts,
    because an earlier rewind has removed the first one.
    """

    def __init__(self, past: Sequence[HistoryEvent], kept: Collection[int]) -> None:
        self._past, self._kept = past, kept
        self._asked: dict[int, int] = {}
        self._answered: dict[int, int] = {}
        self._completed: int | None = None
        self._terminated: int | None = None
        self._started: ExecutionStarted | None = None
        for at, event in enumerate(past):
            if isinstance(event, _Scheduling):
                self._asked[event.event_id] = at
                self._answered.pop(event.event_id, None)
            elif isinstance(event, _Answer):
                self._answered[_number(event)] = at
            elif isinstance(event, ExecutionCompleted):
                self._completed = at if event.status is Status.FAILED else None
                self._terminated = at if event.status is Status.TERMINATED else None
            elif isinstance(event, ExecutionStarted):
                self._started = event

    def made(self) -> Rewinding | None:
        if self._completed is None:
            return None
        owners, retried, neutral = self._retries()
        failures = [at for number, at in self._answered.items() if self._is_to_undo(number) and number not in retried]
        end = self._end(failures)
        decisions = [at for at in self._asked.values() if at not in neutral and at < end]
        # A failure that came after the last decision was either handled by the orchestrator, or not awaited yet. The
        # history does not show which. If a failure that was not awaited stayed, the instance would fail again at once.
        # So both kinds are removed.
        last = max(decisions, default=-1)
        causes = {at for at in failures if at > last}
        lasts = [at for at, number in owners.items() if self._answered.get(number) in causes]
        taken: set[int] = set()
        # The decisions after the failure, such as calls that clean up, are removed together with the failure. Numbers
        # of actions are consecutive, so all later decisions are removed, also the retries of other actions.
        first = min([*lasts, *(at for at in self._asked.values() if at > end)], default=len(self._past))
        for at in self._asked.values():
            if at >= first:
                taken.update(self._with_answer(at))
                failed = owners.get(at, -1)
                if failed in self._asked and failed in self._answered:
                    causes.add(self._answered[failed])
        children: list[int] = []
        for at in causes:
            taken.add(at)
            self._undo(self._asked[_number(self._past[at])], taken, children)
        # A child whose cancel is undone was terminated all the same: the code starts it again.
        cancels = [event.taskhub_cancels for at in taken if isinstance(event := self._past[at], EventSent)]
        for number in cancels:
            asked = -1 if number is None else self._asked.get(number, -1)
            if asked >= 0 and isinstance(self._past[asked], SubOrchestrationInstanceCreated):
                taken.update(self._with_answer(asked))
        taken.update(self._unanswered())
        return Rewinding(
            taken=frozenset({*taken, self._completed}), children=tuple(at for at in children if at not in taken)
        )

    def of_terminated(self) -> Rewinding | None:
        """Return the plan for an instance that was terminated; None: it was not."""
        if self._terminated is None:
            return None
        taken, children, suspended, turn = {self._terminated, *self._unanswered()}, list[int](), -1, 0
        for at, event in enumerate(self._past):
            match event:
                case OrchestratorStarted():
                    turn = at
                case ExecutionTerminated():
                    taken.add(at)
                case ExecutionSuspended():
                    suspended = at
                case ExecutionResumed():
                    suspended = -1
        if suspended >= 0:  # else it would stay suspended, and its row would not say so
            taken.add(suspended)
        # What failed in the last episode was not handled: the retry that the code had decided was dropped.
        for number, at in self._answered.items():
            if at > turn and self._is_to_undo(number):
                taken.add(at)
                self._undo(self._asked[number], taken, children)
        return Rewinding(taken=frozenset(taken), children=tuple(children))

    def _unanswered(self) -> Iterator[int]:
        """Return the calls of activities without an answer that must be made again."""
        for number, at in self._asked.items():
            if isinstance(self._past[at], TaskScheduled) and number not in self._answered and at not in self._kept:
                yield at

    def _is_to_undo(self, number: int) -> bool:
        """Return whether an answer is a failure, and not the end of a child that the code has cancelled."""
        answer, asked = self._past[self._answered[number]], self._asked.get(number)
        if asked is None or not isinstance(answer, _Failure):
            return False
        if not isinstance(answer, SubOrchestrationInstanceFailed) or not is_terminated(answer):
            return True
        return next(self._cancels_of(asked), None) is None

    def _undo(self, asked: int, taken: set[int], children: list[int]) -> None:
        """Let a call that has failed be made again. A child is rewound, if the code has not cancelled it.

        :param asked: index of the call; added to ``taken`` or to ``children``.
        """
        is_child = isinstance(self._past[asked], SubOrchestrationInstanceCreated)
        cancels = [*self._cancels_of(asked)] if is_child else []
        if is_child and not cancels:
            children.append(asked)
        else:
            taken.update((asked, *cancels))  # the code makes the call again, and cancels it again

    def _cancels_of(self, at: int) -> Iterator[int]:
        """Return the cancel of a call, if the code has cancelled it."""
        number = self._past[at].event_id
        for other in self._asked.values():
            if isinstance(event := self._past[other], EventSent) and event.taskhub_cancels == number:
                yield other

    def _with_answer(self, at: int) -> Iterator[int]:
        yield at
        answer = self._answered.get(self._past[at].event_id)
        if answer is not None:
            yield answer

    def _end(self, failures: Sequence[int]) -> int:
        """Return the index of the failure that ended the orchestration.

        This failure has the same type and message as a failure in the completion. If several failures fit, the last one
        is taken if it came in the last episode. If it came earlier, the orchestrator kept the error and raised it
        later. Then, of the fitting failures whose actions were open at the same time, the earliest is taken.

        :param failures: indexes of the failures in the history.
        :returns: the length of the history if no failure fits.
        """
        assert self._completed is not None
        completed = self._past[self._completed]
        assert isinstance(completed, ExecutionCompleted)
        known = {(failure.error_type, failure.error_message) for failure in chain(completed.failure)}
        end = len(self._past)
        turns = (at for at, event in enumerate(self._past[: self._completed]) if isinstance(event, OrchestratorStarted))
        turn = max(turns, default=-1)
        for at in sorted(failures, reverse=True):
            event = self._past[at]
            assert isinstance(event, _Failure)
            failure = event.failure
            if failure is None or (failure.error_type, failure.error_message) not in known:
                continue
            if end == len(self._past) or self._asked[_number(self._past[end])] < at:
                end = at
            if end > turn:
                break
        return end

    def _retries(self) -> tuple[dict[int, int], set[int], set[int]]:
        """Find the decisions of retry policies. A policy makes a timer after each failed attempt: before another
        attempt, or, like DurableTask, a dummy timer after the last attempt.

        :returns: three values. First: by the index of such a timer, the number of the failed action. Second: the
            numbers of failed actions that were tried again. Third: the indexes of all such timers and further attempts,
            which the orchestrator's code did not decide itself.
        """
        owners: dict[int, int] = {}
        retried: set[int] = set()
        neutral: set[int] = set()
        failed: list[int] = []  # numbers of the actions that failed in the episode that the loop has reached
        again: dict[int, str] = {}  # by the event id of a retry timer, the name of the function that is tried again
        due: list[str] = []  # names of the functions whose retry timers fired in this episode
        rewinds = 0
        time = Timestamp(0)
        for at, event in enumerate(self._past):
            match event:
                case OrchestratorStarted():
                    failed, due, time = [], [], event.timestamp
                case GenericEvent():
                    rewinds += event.is_rewind or event.is_message
                case TaskFailed() | SubOrchestrationInstanceFailed():
                    failed.append(event.task_scheduled_id)
                case TimerCreated():
                    owner = self._owner(event, failed, rewinds, time)
                    if owner is None:
                        continue
                    verdict, number = owner
                    neutral.add(at)
                    owners[at] = number
                    if verdict is RetryDecision.AGAIN:
                        retried.add(number)
                        again[event.event_id] = self._name(number)
                case TimerFired() if event.timer_id in again:
                    due.append(again[event.timer_id])
                case TaskScheduled() | SubOrchestrationInstanceCreated() if event.name in due:
                    due.remove(event.name)
                    neutral.add(at)
        return owners, retried, neutral

    def _owner(
        self, timer: TimerCreated, failed: Sequence[int], rewinds: int, time: Timestamp
    ) -> tuple[RetryDecision, int] | None:
        """Return the retry decision that made a timer, and the number of the failed action. In a .NET history, only the
        dummy timers are recognized, because they fire at once.

        :param timer: the event that created the timer.
        :param failed: numbers of the actions that failed in the episode.
        :param rewinds: how many rewinds the history has had until this event.
        :param time: the orchestrator's time in the episode.
        :returns: None if no retry policy made the timer.
        """
        if timer.taskhub_action_id is None:
            return (RetryDecision.LAST, failed[-1]) if failed and timer.fire_at <= time else None
        assert self._started is not None
        for number in failed:
            verdict = verdict_of(timer, number, self._started.instance, rewinds=rewinds)
            if verdict is not None:
                return verdict, number
        return None

    def _name(self, number: int) -> str:
        at = self._asked.get(number)
        return "" if at is None else str(getattr(self._past[at], "name", ""))


def rewritten(rows: Sequence[Entity], rewinding: Rewinding, again: Collection[int]) -> list[Entity]:
    """Return the rows that a rewind writes. Each row has the ETag with which it was read. The row of the completion is
    the last one.

    :param rows: rows of the history, in the order of their events.
    :param again: indexes of the events of children that are started again, because they cannot be rewound.
    """
    marked = [at for at in rewinding.children if at not in again]
    generic = sorted({*rewinding.taken, *again})
    return [_marked(rows[at], keep=True) for at in marked] + [_marked(rows[at], keep=False) for at in generic]


def _marked(row: Entity, *, keep: bool) -> Entity:
    columns = {name: value for name, value in row.properties.items() if name != "ReasonBlobName"}
    columns["Reason"] = REWOUND + str(columns["EventType"])
    if not keep:
        columns["EventType"] = EventType.GenericEvent.name
    return replace(row, properties=columns)


def transactions(rows: Sequence[Entity]) -> Iterator[tuple[RowOperation, ...]]:
    """Group the rewritten rows, so that each group fits into one transaction. :func:`locked` makes the transaction."""
    for group in batches(rows):
        yield tuple(RowOperation(verb=RowVerb.REPLACE, entity=row, etag=row.etag) for row in group)


def locked(
    names: HubNames, group: Sequence[RowOperation], execution_id: str, etag: str, *, commit_id: str | None
) -> Transact:
    """Return a transaction that writes a group of history rows and the sentinel (the last row of the history, whose
    ETag is the lock of the instance). The transaction fails if an episode (one run of the orchestrator), a purge or
    another rewind has changed the sentinel.

    The transaction replaces the commit id in the sentinel. If the old id stayed, a worker that has no answer to its
    failing checkpoint would believe that nothing has happened since, and would write the failure into the instance row.

    :param execution_id: execution id in the sentinel.
    :param etag: ETag of the sentinel.
    :param commit_id: a new id of the rewind; None: the sentinel has no commit id, because a .NET worker wrote it.
    """
    key = group[0].entity.partition_key
    columns: dict[str, Property | None] = {"ExecutionId": execution_id}
    if commit_id is not None:
        columns["TaskHubCommit"] = commit_id
    lock = Entity(partition_key=key, row_key=SENTINEL, properties=columns)
    return Transact(table=names.history, rows=(*group, RowOperation(verb=RowVerb.MERGE, entity=lock, etag=etag)))


def open_timers(past: Sequence[HistoryEvent]) -> list[TimerCreated]:
    """Return the timers that have not fired. If a timer was due after the orchestration failed, its message was
    discarded, so the rewind must send a new message."""
    fired = {event.timer_id for event in past if isinstance(event, TimerFired)}
    return [event for event in past if isinstance(event, TimerCreated) and event.event_id not in fired]


def _number(event: HistoryEvent) -> int:
    if isinstance(event, TimerFired):
        return event.timer_id
    number: int = event.task_scheduled_id  # type: ignore[attr-defined]
    return number
