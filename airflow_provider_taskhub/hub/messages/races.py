"""What becomes of a message for an instance that is not in memory: pure rules over plain facts.

History decides whether a response is processed; storage timestamps only tell what a response without its scheduling
event is. Both times come from the storage service, so no clock of a worker matters.
"""

from __future__ import annotations

from collections.abc import Set
from datetime import timedelta
from enum import StrEnum

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.decisions import FIRE_AND_FORGET
from airflow_provider_taskhub.engine.events import (
    EventRaised,
    ExecutionResumed,
    ExecutionStarted,
    ExecutionSuspended,
    ExecutionTerminated,
    HistoryEvent,
    ParentInstance,
    SubOrchestrationInstanceCompleted,
    SubOrchestrationInstanceFailed,
    TaskCompleted,
    TaskFailed,
    TimerFired,
)
from airflow_provider_taskhub.engine.identity import generation_of, same_start
from airflow_provider_taskhub.hub.contract import Stamp
from airflow_provider_taskhub.values import dataclass

SECOND = 10_000_000
STEERING = (ExecutionSuspended, ExecutionResumed)
RACE_CEILING = 4.0
LONG_CEILING = 600.0
SOON, TURN = timedelta(seconds=2), timedelta(minutes=1)
"""A start looks again for the end of a run of its id after a quarter of its age, at least and at most so long: sooner
than what has come for it after that end is set aside (:data:`LATE_TURNS`)."""
UNSTARTED = timedelta(seconds=15)
"""An event for an instance that has not started comes back after a quarter of its age, at most so long."""
LATE_TURNS = 6
"""Turns, of 0.1, 0.4, 1.6 … s, two minutes together, that what has come after an end waits for another start: twice as
long as a start may be hidden by an owner that died."""


class Verdict(StrEnum):
    PROCESS = "process"
    STALE = "stale"  # set aside: deleted, with a record of why
    RACE = "race"  # a checkpoint is under way: short back-off, AbandoningMessage
    LATE = "late"  # its instance has ended: set aside, unless another start of it turns out to be under way
    WAIT = "wait"  # its episode never committed, or its instance is not there yet: long back-off, then quarantine
    CANCEL_START = "cancel_start"  # terminate before the start ran: the row says it
    STEER = "steer"  # suspend or resume before the start ran: the row says it
    EARLY = "early"  # its instance starts later, or is started again: kept until then, which is no failure
    LOOK = "look"  # what decides, the instance row or the time of the last checkpoint, was not read yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is stored of an instance.

    :param execution_id: of the sentinel; None when there is no history.
    :param checkpointed: the storage service's time of the sentinel's last change; None: not read, or no sentinel.
    :param scheduled: event ids of the scheduling events in the history.
    :param final: the history ends in a completion. :param parent: who has started what is in it.
    :param seen: identities of messages whose events are in the history, or were consumed by a generation switch.
    :param steered: stamp of the newest suspension or resume that was processed, in this run or an earlier one.
    :param row_execution_id: ExecutionId of the instance row; None: no row, or it was not read.
    :param row_generation: the row's count of starts.
    :param row_due: when an instance that is Pending is scheduled to start; None: at once, or it is not Pending.
    :param row_steered: stamp of the newest suspension or resume in the row of an instance that is Pending.
    :param row_suspended: why it is suspended as soon as it begins (``InstanceState.steered``).
    """

    execution_id: str | None = None
    checkpointed: Timestamp | None = None
    scheduled: Set[int] = frozenset()
    final: bool = False
    parent: ParentInstance | None = None
    seen: Set[str] = frozenset()
    steered: Stamp | None = None
    row_read: bool = False
    row_execution_id: str | None = None
    row_generation: int | None = None
    row_pending: bool = False
    row_terminated: bool = False
    row_due: Timestamp | None = None
    row_steered: Stamp | None = None
    row_suspended: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """:param pause: of an early message, until it may be processed or has to be judged again."""

    verdict: Verdict
    reason: str = ""
    pause: timedelta = timedelta(0)


PROCESS = Judged(verdict=Verdict.PROCESS)


def scheduling_id(event: HistoryEvent) -> int | None:
    """The action number that a response answers; None for everything else."""
    match event:
        case TaskCompleted() | TaskFailed() | SubOrchestrationInstanceCompleted() | SubOrchestrationInstanceFailed():
            return event.task_scheduled_id
        case TimerFired():
            return event.timer_id
        case _:
            return None


def judge(
    event: HistoryEvent,
    *,
    execution_id: str | None,
    message_id: str,
    stamp: Stamp,
    facts: Facts,
    now: Timestamp,
    deliveries: int = 1,
    sent: bool = False,
    again: bool = False,
) -> Judged:
    """What to do with a message.

    :param execution_id: the generation that the message is addressed to; None: whatever is current.
    :param message_id: by what a redelivery is known (``Held.identity``).
    :param stamp: when it was enqueued, and by whom.
    :param now: the storage service's time, or one shortly before.
    :param deliveries: how often somebody has begun to process it, or may have; this time included.
    :param sent: by an orchestration, not by a client. :param again: the queue has delivered it before.
    """
    if message_id in facts.seen:
        return Judged(verdict=Verdict.STALE, reason="already in the history")
    if isinstance(event, ExecutionStarted):
        return _start(event, stamp.inserted, facts, now, deliveries, again)
    if scheduling_id(event) is not None:
        return _response(event, execution_id, stamp.inserted, facts)
    return _control(event, stamp, facts, now, sent)


def _start(
    event: ExecutionStarted, inserted: Timestamp, facts: Facts, now: Timestamp, deliveries: int, again: bool
) -> Judged:
    wanted = event.instance.execution_id or ""
    if facts.execution_id is not None and same_start(facts.execution_id, wanted):
        return Judged(verdict=Verdict.STALE, reason="this start has already run")
    if event.parent is not None:
        asked = waits_for(event)
        if asked is not None and deliveries > 1 and facts.parent is not None and _has_gone_on(asked, facts.parent):
            return Judged(verdict=Verdict.STALE, reason="a later generation of its parent has started it again")
        if facts.execution_id is not None and not facts.final:
            pause = min(max((now - inserted) / 4, SOON), TURN)
            return Judged(verdict=Verdict.EARLY, reason="another instance of this id is running", pause=pause)
        if again and not facts.row_read:
            return Judged(verdict=Verdict.LOOK)  # the message has waited: the parent may have been terminated meanwhile
        if facts.row_terminated and facts.row_execution_id == wanted:
            return Judged(verdict=Verdict.STALE, reason="terminated with its parent before it started")
        return PROCESS
    if not facts.row_read:
        return Judged(verdict=Verdict.LOOK)
    if (wait := _early(event.scheduled_start_time, now)) is not None:
        return wait
    if facts.row_execution_id is None:
        if event.taskhub_row_etag is not None:
            return Judged(verdict=Verdict.STALE, reason="its instance, whose row came before it, was purged")
        return Judged(verdict=Verdict.RACE, reason="its instance row is not there yet")
    if facts.row_execution_id != wanted:
        older = event.generation is not None and facts.row_generation is not None
        if older and (event.generation or 0) < (facts.row_generation or 0):
            return Judged(verdict=Verdict.STALE, reason=f"the instance was started again as {facts.row_execution_id}")
        return Judged(verdict=Verdict.RACE, reason=f"the instance row still belongs to {facts.row_execution_id}")
    if facts.row_terminated:
        return Judged(verdict=Verdict.STALE, reason="terminated before it started")
    return PROCESS


def waits_for(event: HistoryEvent) -> ParentInstance | None:
    """Who waits for the child that a start is of; None for everything else."""
    if not isinstance(event, ExecutionStarted) or FIRE_AND_FORGET in (event.tags or {}):
        return None
    return event.parent


def _has_gone_on(parent: ParentInstance, since: ParentInstance) -> bool:
    """Whether an earlier generation of the same parent asked, to which its child has answered.

    Within one generation a parent may wait for both. One that goes on without an answer it asked for cannot be told
    from one that has it.
    """
    one, other = parent.instance, since.instance
    same = one.instance_id == other.instance_id and same_start(one.execution_id, other.execution_id)
    return same and generation_of(one.execution_id or "") < generation_of(other.execution_id or "")


def _response(event: HistoryEvent, execution_id: str | None, inserted: Timestamp, facts: Facts) -> Judged:
    if facts.execution_id is None:
        return Judged(verdict=Verdict.RACE, reason="its instance has no history yet")
    if execution_id is not None and execution_id != facts.execution_id:
        return _other_generation(execution_id, inserted, facts)
    if facts.final:
        return Judged(verdict=Verdict.STALE, reason="its instance has ended")
    if scheduling_id(event) in facts.scheduled:
        return PROCESS
    if facts.checkpointed is None and not facts.row_read:
        return Judged(verdict=Verdict.LOOK)
    if _is_newer(inserted, facts):
        return Judged(verdict=Verdict.RACE, reason="its scheduling event is not in the history: checkpoint under way")
    return Judged(verdict=Verdict.WAIT, reason="its scheduling event is not in the history and no checkpoint is near")


def _is_newer(inserted: Timestamp, facts: Facts) -> bool:
    """Whether a message came after the last checkpoint. Times of queues are in seconds."""
    return facts.checkpointed is None or inserted.ticks >= facts.checkpointed.ticks // SECOND * SECOND


def _other_generation(execution_id: str, inserted: Timestamp, facts: Facts) -> Judged:
    """A response of an older generation is set aside; one of a generation still being committed waits for it.

    Generations of one start are counted in their ids. Of two starts the newer is the one that the row names; a child's
    is named there only once it is committed.
    """
    current = facts.execution_id or ""
    if same_start(execution_id, current):
        newer = generation_of(execution_id) > generation_of(current)
        if newer and facts.checkpointed is None and not facts.row_read:
            return Judged(verdict=Verdict.LOOK)  # it may be committed by now, by the partition's former owner
    elif not facts.row_read:
        return Judged(verdict=Verdict.LOOK)
    else:
        newer = facts.row_execution_id is not None and same_start(facts.row_execution_id, execution_id)
    if newer:
        return Judged(verdict=Verdict.RACE, reason=f"generation {execution_id} is not committed yet")
    if facts.final and not same_start(execution_id, current) and _is_newer(inserted, facts):
        return Judged(verdict=Verdict.LATE, reason=f"of generation {execution_id}, and {current} has ended")
    return Judged(verdict=Verdict.STALE, reason=f"of generation {execution_id}, now {current}")


def _early(due: Timestamp | None, now: Timestamp) -> Judged | None:
    """A message hides 7 days at most, so it is put back until its start is due. Times of receipts are in seconds."""
    if due is None or due.ticks - now.ticks < SECOND:
        return None
    return Judged(verdict=Verdict.EARLY, reason=f"its instance is to start at {due}", pause=due - now)


def precedes(one: Stamp, other: Stamp) -> bool:
    """Whether a suspension or resume was sent before another one, or is the same one again.

    One process numbers what it sends. Of two processes the queue's time tells the order; within one second of Azure's
    clock nothing does, and neither precedes the other: the one that is processed later then counts.
    """
    if one.process and one.process == other.process:
        return one.number <= other.number
    return one.inserted < other.inserted


def newest(one: Stamp | None, other: Stamp | None) -> Stamp | None:
    """The stamp that was sent last."""
    if one is None or other is None:
        return one or other
    return other if precedes(one, other) else one


def _control(event: HistoryEvent, stamp: Stamp, facts: Facts, now: Timestamp, sent: bool) -> Judged:
    if isinstance(event, ExecutionTerminated) and facts.execution_id is not None:
        if not is_meant(event, facts.execution_id) and not facts.row_read:
            return Judged(verdict=Verdict.LOOK)
        if not is_meant(event, facts.execution_id):
            if facts.row_pending and is_meant(event, facts.row_execution_id):
                return Judged(verdict=Verdict.CANCEL_START)
            if event.taskhub_child is not None and not is_meant(event, facts.row_execution_id):
                return Judged(verdict=Verdict.LATE, reason=f"{event.taskhub_execution_id} may be under way")
            if not is_meant(event, facts.row_execution_id):
                return Judged(verdict=Verdict.STALE, reason=f"it was to end {event.taskhub_execution_id}")
    if facts.execution_id is not None and not facts.final:
        if isinstance(event, STEERING) and facts.steered is not None and precedes(stamp, facts.steered):
            # its worker died, and a newer one was processed before this one came back: the newer one counts
            return Judged(verdict=Verdict.STALE, reason="a newer suspension or resume was taken before it")
        return PROCESS
    if not facts.row_read and not (facts.execution_id is None and isinstance(event, ExecutionTerminated)):
        return Judged(verdict=Verdict.LOOK)
    if facts.execution_id is None or _is_started_again(facts):
        if isinstance(event, ExecutionTerminated):
            return Judged(verdict=Verdict.CANCEL_START)
        if isinstance(event, STEERING) and facts.row_pending:
            return Judged(verdict=Verdict.STEER, reason="its instance has not started yet")
        if (wait := _early(facts.row_due, now)) is not None:
            return wait
        if facts.row_pending:  # no failure: its start may wait for a worker that has the code
            pause = min(max((now - stamp.inserted) / 4, SOON), UNSTARTED)
            return Judged(verdict=Verdict.EARLY, reason="its instance has not started yet", pause=pause)
        if facts.row_terminated:
            return Judged(verdict=Verdict.STALE, reason="its instance was terminated before it started")
        return Judged(verdict=Verdict.WAIT, reason="its instance is not there yet")
    # a child's start has no row that tells of it, and what its parent sends behind it may have waited with it
    if isinstance(event, EventRaised) and (sent or _is_newer(stamp.inserted, facts)):
        return Judged(verdict=Verdict.LATE, reason="its instance has ended")
    return Judged(verdict=Verdict.STALE, reason="its instance has ended")


def is_meant(terminate: ExecutionTerminated, execution_id: str | None) -> bool:
    """Whether a terminate is to end this start: of another client it ends whichever it meets."""
    meant = terminate.taskhub_execution_id
    return meant is None or same_start(meant, execution_id)


def _is_started_again(facts: Facts) -> bool:
    """Whether the row tells of a start that has not run yet."""
    return facts.row_pending and not same_start(facts.row_execution_id, facts.execution_id)


def delay(verdict: Verdict, failures: int) -> timedelta:
    """Back-off of an abandoned message: races 0.1, 0.2 … 4 s; late ones 0.1, 0.4 … 102 s; others 2, 4 … 600 s."""
    if verdict is Verdict.LATE:
        return timedelta(seconds=0.1 * 4**failures)
    if verdict is Verdict.RACE:
        return timedelta(seconds=min(RACE_CEILING, 0.1 * 2 ** min(failures, 10)))
    return timedelta(seconds=min(LONG_CEILING, 2.0 ** min(failures + 1, 10)))


def unknown_delay(dequeue_count: int) -> timedelta:
    """Back-off of a message whose orchestrator or activity this worker has not: 2, 4 … 15 s."""
    return timedelta(seconds=min(15.0, 2.0 * max(1, dequeue_count)))
