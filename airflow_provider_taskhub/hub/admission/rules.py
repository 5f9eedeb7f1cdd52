"""The rules of admission: what becomes of a message of one kind that has one relation to what is stored.

A rule that cannot decide without the instance row says so, and is asked again. Only the sentinel is evidence of what
has happened. The instance row tells what was asked for, and when.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.actions import FIRE_AND_FORGET
from airflow_provider_taskhub.engine.events import (
    EventRaised,
    ExecutionStarted,
    ExecutionTerminated,
    OrchestrationInstance,
)
from airflow_provider_taskhub.engine.identity import generation_of, same_start
from airflow_provider_taskhub.hub.admission.facts import (
    SECOND,
    Facts,
    Incoming,
    Judged,
    Row,
    Verdict,
    precedes,
    scheduling_id,
)

SHORTEST, LONGEST_START, LONGEST = timedelta(seconds=2), timedelta(minutes=1), timedelta(seconds=15)
"""A deferred message comes again after a quarter of its age, at least and at most so long. A start may wait longer than
the messages behind it: nothing is late when the start waits, since nothing has begun."""
START_APPEARS = timedelta(minutes=2)
"""How long a message is deferred although nothing tells of its start. A start may be hidden for half of that by a
worker that died."""

Rule = Callable[[Incoming, Facts], Judged]

PROCESS = Judged(verdict=Verdict.PROCESS)
NEEDS_ROW = Judged(verdict=Verdict.NEEDS_ROW)


def discard(reason: str, *, forgotten: bool = False) -> Judged:
    return Judged(verdict=Verdict.DISCARD, reason=reason, forgotten=forgotten)


def _soon(reason: str) -> Judged:
    return Judged(verdict=Verdict.RETRY_SOON, reason=reason)


def _later(reason: str) -> Judged:
    return Judged(verdict=Verdict.RETRY_LATER, reason=reason)


def _defer(message: Incoming, reason: str, longest: timedelta = LONGEST) -> Judged:
    return Judged(verdict=Verdict.DEFER, reason=reason, pause=min(max(message.age / 4, SHORTEST), longest))


def _until(due: Timestamp | None, now: Timestamp) -> Judged | None:
    """Deferred until its start is due. Times of receipts are in seconds."""
    if due is None or due.ticks - now.ticks < SECOND:
        return None
    return Judged(verdict=Verdict.DEFER, reason=f"its instance is to start at {due}", pause=due - now)


def process(message: Incoming, facts: Facts) -> Judged:
    return PROCESS


def already_run(message: Incoming, facts: Facts) -> Judged:
    return discard("this start has already run")


def ended(message: Incoming, facts: Facts) -> Judged:
    return discard("its instance has ended")


def over(message: Incoming, facts: Facts) -> Judged:
    return discard(f"it is for run {message.run}, which has ended")


def older(message: Incoming, facts: Facts) -> Judged:
    return discard(f"it is for generation {message.run}, and the instance is at {facts.execution_id}")


def client_start(message: Incoming, facts: Facts) -> Judged:
    """A client writes the row before the start. A .NET client puts the start first."""
    event, row = message.event, facts.row
    assert isinstance(event, ExecutionStarted)
    if row is None:
        return NEEDS_ROW
    if (wait := _until(event.scheduled_start_time, message.now)) is not None:
        return wait
    if row.execution_id is None:
        if event.taskhub_row_etag is not None:
            return discard("its instance was purged")
        return _soon("its instance row is not there yet")
    if row.execution_id != message.run:
        older = event.generation is not None and row.generation is not None
        if older and (event.generation or 0) < (row.generation or 0):
            return discard(f"the instance was started again as {row.execution_id}")
        return _soon(f"the instance row still belongs to {row.execution_id}")
    if row.ended:  # TaskHub writes that only behind the sentinel; .NET ends a Pending instance by its row alone
        return discard("the instance has ended before it started")
    if facts.live and facts.parent is not None:
        return _defer(message, f"child {facts.execution_id} has not ended", LONGEST_START)
    return PROCESS  # a client replaces the row of an ended run only: one that is live again was rewound since


def child_start(message: Incoming, facts: Facts) -> Judged:
    """A child needs no row, but an id that is free."""
    if _has_gone_on(message, facts):
        return discard("a later generation of its parent has started it again")
    return _defer(message, "another instance of this id is running", LONGEST_START) if facts.live else PROCESS


def _has_gone_on(message: Incoming, facts: Facts) -> bool:
    """Whether an earlier generation of the same parent asked for the child, to which that has answered.

    Its worker may have died between the answer and the history, so the sentinel does not list the run. Within one
    generation a parent may wait for both runs. A generation that ends without an answer it asked for cannot be told
    from one that has it, so a child without the tag for fire and forget counts as awaited.
    """
    event, since = message.event, facts.parent
    assert isinstance(event, ExecutionStarted)
    asked = event.parent
    if message.deliveries < 2 or asked is None or since is None or FIRE_AND_FORGET in (event.tags or {}):
        return False
    return _is_earlier(asked.instance, since.instance)


def _is_earlier(one: OrchestrationInstance, other: OrchestrationInstance) -> bool:
    """Whether the first is an earlier generation of the second."""
    same = one.instance_id == other.instance_id and same_start(one.execution_id, other.execution_id)
    return same and generation_of(one.execution_id or "") < generation_of(other.execution_id or "")


def _both_awaited(message: Incoming, facts: Facts) -> bool:
    """Whether the sender awaits the live run too, and has done so for two minutes: that run may wait for this event."""
    if facts.parent is None or message.sender is None:
        return False
    awaits = facts.parent.instance.instance_id == message.sender.instance_id
    return awaits and isinstance(message.event, EventRaised) and message.age > START_APPEARS


def if_asked(message: Incoming, facts: Facts) -> Judged:
    """The history decides whether an answer is processed. The times only tell what one that nobody asked for is."""
    if scheduling_id(message.event) in facts.scheduled:
        return PROCESS
    if facts.checkpointed is None and facts.row is None:
        return NEEDS_ROW
    if _is_newer(message, facts):
        return _soon("its scheduling event is not in the history yet: a checkpoint is under way")
    return _later("its scheduling event is not in the history, and there is no recent checkpoint")


def uncommitted(message: Incoming, facts: Facts) -> Judged:
    """The messages of a checkpoint are sent before its history is written, so an answer may come before that.

    Then the row names its run, or a child is just beginning, which no row tells. All other answers are for runs and
    generations of .NET that are over.
    """
    current = facts.execution_id
    if current is None:
        return _soon("its instance has no history yet")
    known = same_start(message.run, current)
    if facts.row is None and (facts.checkpointed is None or not known):
        return NEEDS_ROW  # it may be committed by now, by the partition's former owner
    if known or _is_named(facts.row, message.run):
        return _soon(f"generation {message.run} is not committed yet")
    if facts.final and _is_newer(message, facts):
        return Judged(
            verdict=Verdict.ORPHAN, reason=f"it is for generation {message.run}, and generation {current} has ended"
        )
    return older(message, facts)


def unnamed_answer(message: Incoming, facts: Facts) -> Judged:
    return uncommitted(message, facts) if facts.execution_id is None else ended(message, facts)


def after_the_live_run(otherwise: Rule) -> Rule:
    """For a message whose run has not begun, while another one is live. It waits for as long as that lives, as the
    start in front of it does.

    A client has read the name in the row. If the row names another run by now, the run is over, or it was an earlier
    generation of .NET's, whose generations share no name.

    :param otherwise: the rule then.
    """

    def rule(message: Incoming, facts: Facts) -> Judged:
        row = facts.row
        if row is None and message.sender is None:
            return NEEDS_ROW
        if _both_awaited(message, facts):
            return PROCESS
        named = row is None or row.execution_id is None or same_start(row.execution_id, message.run)
        if message.sender is not None or named:
            return _defer(message, f"its run {message.run} waits for the end of {facts.execution_id}")
        return otherwise(message, facts)

    return rule


def order(message: Incoming, facts: Facts) -> Judged:
    """A suspension or resume whose worker died may come back after a newer one was taken: the newer one counts."""
    if facts.steered is not None and precedes(message.stamp, facts.steered):
        return discard("a newer suspension or resume was processed before it")
    return PROCESS


def before_the_start(pending: Rule) -> Rule:
    """For a message that names its run, when nothing is stored of that.

    :param pending: the rule while the row tells that the run waits for its start.
    """

    def rule(message: Incoming, facts: Facts) -> Judged:
        row = facts.row
        if row is None:
            return NEEDS_ROW
        if not same_start(row.execution_id, message.run):
            return _not_in_row(message, facts)
        return discard("its instance has ended") if row.ended else pending(message, facts)

    return rule


def without_name(pending: Rule, ended: Rule) -> Rule:
    """For a message that names no run, when none is live: it is for the run that the row tells of, if that waits.

    :param pending: the rule then. :param ended: the rule when no start is known to come.
    """

    def rule(message: Incoming, facts: Facts) -> Judged:
        row = facts.row
        if row is None:
            return NEEDS_ROW
        if row.pending and not same_start(row.execution_id, facts.execution_id):
            return pending(message, facts)
        if facts.execution_id is not None:
            return ended(message, facts)
        return discard("its instance has ended") if row.ended else _later("its instance is not there yet")

    return rule


def with_its_start(message: Incoming, facts: Facts) -> Judged:
    """No failure, and no end of it: the start may wait for a worker that has the code."""
    assert facts.row is not None
    return _until(facts.row.due, message.now) or _defer(message, "its instance has not started yet")


def _not_in_row(message: Incoming, facts: Facts) -> Judged:
    """A client has read the name in the row, which says another one by now; a child has no row yet."""
    assert facts.row is not None
    if message.sender is not None or facts.row.execution_id is None:
        return _start_missing(message, facts)
    return over(message, facts)


def _start_missing(message: Incoming, facts: Facts) -> Judged:
    """No row tells of its start, as of a child's: it should appear within two minutes, or after the end before it."""
    since = message.stamp.inserted
    if facts.final and facts.checkpointed is not None:
        since = max(since, facts.checkpointed)
    if message.now - since < START_APPEARS:
        return _defer(message, f"its run {message.run} has not started yet")
    if facts.parent is not None and message.sender is not None and _is_earlier(message.sender, facts.parent.instance):
        return discard("a later generation of its sender has started the instance again")
    return _later(f"its run {message.run} has not started")


def record(message: Incoming, facts: Facts) -> Judged:
    judged = order(message, facts)
    return judged if judged.verdict is Verdict.DISCARD else Judged(verdict=Verdict.RECORD)


def end(message: Incoming, facts: Facts) -> Judged:
    return Judged(verdict=Verdict.END)


def end_unstarted(message: Incoming, facts: Facts) -> Judged:
    """A row, or for a child the terminate, has what is needed to make the start."""
    event, row = message.event, facts.row
    assert isinstance(event, ExecutionTerminated)
    if row is None:
        return NEEDS_ROW
    if same_start(row.execution_id, message.run):
        return discard("its instance has ended") if row.ended else Judged(verdict=Verdict.END)
    if event.taskhub_child is not None:
        return Judged(verdict=Verdict.END)
    return _not_in_row(message, facts)


def orphan(message: Incoming, facts: Facts) -> Judged:
    """A child's start has no row that tells of it, and what comes behind it may have waited with it."""
    if message.sender is not None or _is_newer(message, facts):
        return Judged(verdict=Verdict.ORPHAN, reason="its instance has ended")
    return ended(message, facts)


def _is_named(row: Row | None, run: str | None) -> bool:
    return row is not None and same_start(row.execution_id, run)


def _is_newer(message: Incoming, facts: Facts) -> bool:
    """Whether a message came after the last checkpoint. Times of queues are in seconds."""
    last = facts.checkpointed
    return last is None or message.stamp.inserted.ticks >= last.ticks // SECOND * SECOND
