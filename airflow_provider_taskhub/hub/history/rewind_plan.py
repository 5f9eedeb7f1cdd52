"""Rewinding a failed history: which of its rows are rewritten, and as what. Pure.

DurableTask rewrites every failure of the generation, those too that the orchestrator has handled, and its replay then
fails as non-deterministic; ours takes back only what the failure came from. DurableTask's orchestrations end when
nothing is open any more; ours end at once, so here what was open is asked for again as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.actions import FIRE_AND_FORGET
from airflow_provider_taskhub.engine.events import (
    REWOUND,
    EventSent,
    EventType,
    ExecutionCompleted,
    ExecutionStarted,
    FailureDetails,
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
from airflow_provider_taskhub.engine.recorded import verdict_of
from airflow_provider_taskhub.engine.retry import RetryDecision
from airflow_provider_taskhub.hub.formats.history_rows import SENTINEL
from airflow_provider_taskhub.hub.formats.payload_spill import batches
from airflow_provider_taskhub.hub.model import HubNames
from airflow_provider_taskhub.storage.primitives import Entity, RowOperation, RowVerb, Transact

_Scheduling = TaskScheduled | SubOrchestrationInstanceCreated | TimerCreated | EventSent
_Answer = TaskCompleted | TaskFailed | SubOrchestrationInstanceCompleted | SubOrchestrationInstanceFailed | TimerFired
_Failure = TaskFailed | SubOrchestrationInstanceFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewinding:
    """What a rewind does to a history.

    :param taken: indexes of events that become :class:`GenericEvent`; the completion is one of them.
    :param children: indexes of events that created the children whose failure is taken back, to be rewound themselves.
        A child that cannot be is asked for again: its index is added to ``taken``.
    """

    taken: frozenset[int]
    children: tuple[int, ...] = ()


def is_rewound(past: Sequence[HistoryEvent], status: Status) -> bool:
    """Whether a rewind was cut off behind its history: the row still says Failed, or nothing has run since.

    :param status: as the instance row has it.
    """
    if not past or any(isinstance(event, ExecutionCompleted) for event in past):
        return False
    if status is Status.FAILED:
        return True
    for event in reversed(past):
        if isinstance(event, OrchestratorStarted):
            return False
        if isinstance(event, GenericEvent) and event.is_rewind:
            return True
    return False


def plan(past: Sequence[HistoryEvent]) -> Rewinding | None:
    """What must be taken back so that the orchestrator goes on from before its failure; None: it has not failed."""
    return _Plan(past).made()


class _Plan:
    """The history by numbers of actions. Of two events of one number the later counts: the first was rewound."""

    def __init__(self, past: Sequence[HistoryEvent]) -> None:
        self._past = past
        self._asked: dict[int, int] = {}
        self._answered: dict[int, int] = {}
        self._completed: int | None = None
        self._started: ExecutionStarted | None = None
        for at, event in enumerate(past):
            if isinstance(event, _Scheduling):
                self._asked[event.event_id] = at
                self._answered.pop(event.event_id, None)
            elif isinstance(event, _Answer):
                self._answered[_number(event)] = at
            elif isinstance(event, ExecutionCompleted):
                self._completed = at if event.status is Status.FAILED else None
            elif isinstance(event, ExecutionStarted):
                self._started = event

    def made(self) -> Rewinding | None:
        if self._completed is None:
            return None
        owners, retried, neutral = self._retries()
        failures = [
            at
            for number, at in self._answered.items()
            if isinstance(self._past[at], _Failure) and number in self._asked and number not in retried
        ]
        end = self._end(failures)
        decisions = [at for at in self._asked.values() if at not in neutral and at < end]
        # One before the end that nothing was decided after may be handled, or still to be awaited: the history does not
        # tell. Left standing, the second kind fails the instance again at once; so either is done again.
        last = max(decisions, default=-1)
        causes = {at for at in failures if at > last}
        lasts = [at for at, number in owners.items() if self._answered.get(number) in causes]
        taken: set[int] = set()
        # What was done about a failure before it was passed on, such as cleaning up, is taken back with it; and as
        # numbers are given one after the other, so is whatever was decided since, retries of others too.
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
            asked = self._asked[_number(self._past[at])]
            if isinstance(self._past[asked], SubOrchestrationInstanceCreated):
                children.append(asked)
            else:
                taken.add(asked)
        # an orchestration of ours ends with its first failure, and cancels what it had not waited for
        taken.update(
            at
            for number, at in self._asked.items()
            if isinstance(self._past[at], TaskScheduled) and number not in self._answered
        )
        return Rewinding(
            taken=frozenset({*taken, self._completed}), children=tuple(at for at in children if at not in taken)
        )

    def _with_answer(self, at: int) -> Iterator[int]:
        yield at
        answer = self._answered.get(self._past[at].event_id)
        if answer is not None:
            yield answer

    def _end(self, failures: Sequence[int]) -> int:
        """The failure that the orchestration failed with; behind the history when its completion names none of these.

        Of several with the same text it is the last, if that came when the orchestration ended. Else one was passed on
        later: the first of those that were open together.
        """
        assert self._completed is not None
        completed = self._past[self._completed]
        assert isinstance(completed, ExecutionCompleted)
        known = {(failure.error_type, failure.error_message) for failure in _chain(completed.failure)}
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
        """What retry policies have decided.

        :returns: timers behind failed attempts, those before another attempt and the dummies behind last ones: the
            number of the action by the timer's index; numbers of failed actions that were tried again; indexes of all
            timers and further attempts, which are no decisions of the user's.
        """
        owners: dict[int, int] = {}
        retried: set[int] = set()
        neutral: set[int] = set()
        failed: list[int] = []  # of the episode
        again: dict[int, str] = {}
        due: list[str] = []  # names of what the timers that fired in the episode try again
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
        """Whose retry a timer is. Of .NET's only the dummy ones can be told, which fire at once."""
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
    """The rows to write, each with the ETag that it was read with; the completion is the last of them.

    :param rows: of the history, event by event. :param again: children that are asked for again instead of rewound.
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
    """Rows in groups for one transaction each, to be sent :func:`locked`."""
    for group in batches(rows):
        yield tuple(RowOperation(verb=RowVerb.REPLACE, entity=row, etag=row.etag) for row in group)


def locked(names: HubNames, group: Sequence[RowOperation], execution_id: str, etag: str) -> Transact:
    """A group under the instance's lock: no episode, purge or other rewind comes between.

    :param execution_id: as the sentinel has it. :param etag: of the sentinel.
    """
    key = group[0].entity.partition_key
    lock = Entity(partition_key=key, row_key=SENTINEL, properties={"ExecutionId": execution_id})
    return Transact(table=names.history, rows=(*group, RowOperation(verb=RowVerb.MERGE, entity=lock, etag=etag)))


def open_timers(past: Sequence[HistoryEvent]) -> list[TimerCreated]:
    """Timers that have not fired: the message of one that was due after the end was set aside."""
    fired = {event.timer_id for event in past if isinstance(event, TimerFired)}
    return [event for event in past if isinstance(event, TimerCreated) and event.event_id not in fired]


def open_children(past: Sequence[HistoryEvent]) -> list[SubOrchestrationInstanceCreated]:
    """Children whose end the orchestrator waits for."""
    answered = {
        event.task_scheduled_id
        for event in past
        if isinstance(event, SubOrchestrationInstanceCompleted | SubOrchestrationInstanceFailed)
    }
    return [
        event
        for event in past
        if isinstance(event, SubOrchestrationInstanceCreated)
        and event.event_id not in answered
        and FIRE_AND_FORGET not in (event.tags or {})
    ]


def _number(event: HistoryEvent) -> int:
    if isinstance(event, TimerFired):
        return event.timer_id
    number: int = event.task_scheduled_id  # type: ignore[attr-defined]
    return number


def _chain(failure: FailureDetails | None) -> Iterator[FailureDetails]:
    while failure is not None:
        yield failure
        failure = failure.inner_failure
