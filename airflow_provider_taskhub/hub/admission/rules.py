"""The rules of admission. Each rule decides about a message of one kind that has one relation to the stored run.

The stored run is the run that the sentinel names. A rule that needs the instance row returns NEEDS_ROW; the worker then
reads the row and calls the rule again. Only the sentinel, the last row of the history, proves what has happened. The
instance row only tells which start a client asked for, and when.

A run is one start of an instance id. A generation is the part of a run between two calls of ``continue_as_new``. An
answer is the result of an activity, a child or a timer.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import (
    EventRaised,
    ExecutionStarted,
    ExecutionTerminated,
    OrchestrationInstance,
    SubOrchestrationInstanceCompleted,
    SubOrchestrationInstanceFailed,
)
from airflow_provider_taskhub.engine.identity import generation_of, same_start
from airflow_provider_taskhub.hub.admission.facts import (
    SECOND,
    Facts,
    Incoming,
    Judged,
    RowFacts,
    Verdict,
    precedes,
    scheduling_id,
)
from airflow_provider_taskhub.tags import FIRE_AND_FORGET

SHORTEST, LONGEST_START, LONGEST = timedelta(seconds=2), timedelta(minutes=1), timedelta(seconds=15)
"""Shortest and longest pause of a deferred message. The pause is a quarter of the message's age, within these limits.
The pause of a start may be longer than the pause of the messages behind the start, because no run has begun that
could be delayed."""
BEFORE_START = timedelta(seconds=3)
"""Messages for a scheduled start come back from the queue this long before it, and are held in memory until it comes.
So the first episode has all of them, in their order. Azure hides messages for whole seconds."""
START_LATE = timedelta(seconds=10)
"""How long after its time a scheduled start is expected. Later, it waits for something else, such as its code."""
START_APPEARS = timedelta(minutes=2)
"""How long a message waits for the start of its run if no instance row announces this start. If the worker that has
received the start message dies, the start message stays hidden for up to half of this time."""
PARENT_STARTS = timedelta(hours=1)
"""How long the answer of a child waits for its parent's run if nothing that is stored tells of this run. The parent may
itself be a child, whose start no instance row announces. This time is longer than the default of the no-worker
timeout, after which the parent fails and so has a history."""

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
    """Defer a message until the scheduled start of its run.

    :returns: None if the start is due, or due within a second: the queue's times have whole seconds.
    """
    if due is None or due.ticks - now.ticks < SECOND:
        return None
    return Judged(verdict=Verdict.DEFER, reason=f"its instance has a scheduled start at {due}", pause=due - now)


def without_place(message: Incoming) -> Judged:
    """Defer a message of an instance that was rewound and waits for a place of its limit."""
    return _defer(message, "its instance waits for a place of its limit")


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
    """Decide about the start message of a client. A TaskHub client writes the instance row before it sends the message.
    A .NET client sends the message first."""
    event, row = message.event, facts.row
    assert isinstance(event, ExecutionStarted)
    if row is None:
        return NEEDS_ROW
    if row.execution_id is None and event.taskhub_row_etag is not None:
        return discard("its instance was purged")
    if (wait := _until(event.scheduled_start_time, message.now)) is not None:
        return wait
    if row.execution_id is None:
        return _soon("its instance row is not there yet")
    if row.execution_id != message.run:
        older = event.generation is not None and row.restarts is not None
        if older and (event.generation or 0) < (row.restarts or 0):
            return discard(f"the instance was started again as {row.execution_id}")
        return _soon(f"the instance row still belongs to {row.execution_id}")
    # The row has ended, and the sentinel does not name its run. Only .NET does this: it ends a Pending instance in the
    # row alone. TaskHub writes the sentinel before a final status.
    if row.ended:
        return discard("the instance has ended before it started")
    if facts.live and facts.parent is not None:
        return _defer(message, f"child {facts.execution_id} has not ended", LONGEST_START)
    # A client replaces an instance row only if its run has ended. So if a run is live here, it was rewound after the
    # client had replaced the row. The client's start wins.
    return PROCESS


def child_start(message: Incoming, facts: Facts) -> Judged:
    """Decide about the start message of a child. A child needs no instance row. Its start waits until no other run uses
    the same id."""
    if _has_gone_on(message, facts):
        return discard("a later generation of its parent has started it again")
    return _defer(message, "another instance of this id is running", LONGEST_START) if facts.live else PROCESS


def _has_gone_on(message: Incoming, facts: Facts) -> bool:
    """Return True if an earlier generation of the same parent started this child, and a later generation has started
    the stored run.

    A generation ends only after all children that it awaits have answered, so the child of the earlier generation has
    answered. The sentinel does not list the run of this child if a worker died after it sent the child's answer and
    before it wrote the child's history.

    The result is False if both starts come from one generation, because the parent may wait for both runs. The result
    is also False for a child with the tag for fire and forget, because no generation waits for such a child, and at the
    first delivery of the start, because then no worker has run this child.
    """
    event, since = message.event, facts.parent
    assert isinstance(event, ExecutionStarted)
    asked = event.parent
    if message.deliveries < 2 or asked is None or since is None or FIRE_AND_FORGET in (event.tags or {}):
        return False
    return _is_earlier(asked.instance, since.instance)


def _is_earlier(one: OrchestrationInstance, other: OrchestrationInstance) -> bool:
    """Return True if the first instance is an earlier generation of the second instance."""
    same = one.instance_id == other.instance_id and same_start(one.execution_id, other.execution_id)
    return same and generation_of(one.execution_id or "") < generation_of(other.execution_id or "")


def _both_awaited(message: Incoming, facts: Facts) -> bool:
    """Return True if the sender awaits the live run too, and the event is older than two minutes.

    The live run may then wait for this very event. A generation of a parent awaits only the children that it has
    started itself, and of these only the children without the tag for fire and forget.
    """
    parent, sender = facts.parent, message.sender
    if parent is None or sender is None or facts.fire_and_forget:
        return False
    return parent.instance == sender and isinstance(message.event, EventRaised) and message.age > START_APPEARS


def if_asked(message: Incoming, facts: Facts) -> Judged:
    """Process the answer of an activity, child or timer if the history contains the event that scheduled it. If not,
    the time of the last checkpoint tells whether a checkpoint with this event is perhaps still under way."""
    if scheduling_id(message.event) in facts.scheduled:
        return PROCESS
    if facts.checkpointed is None and facts.row is None:
        return NEEDS_ROW
    if _is_newer(message, facts):
        return _soon("its scheduling event is not in the history yet: a checkpoint is under way")
    return _later("its scheduling event is not in the history, and there is no recent checkpoint")


def uncommitted(message: Incoming, facts: Facts) -> Judged:
    """Decide about an answer for a run or generation that is not stored.

    A checkpoint sends its messages before it writes its history, so the answer to a message may arrive before the
    history. In this case the instance row names the run, or the run is a new child, which has no row yet. All other
    answers are for ended runs and generations of .NET, which the sentinel does not list.
    """
    current = facts.execution_id
    if current is None:
        return _soon("its instance has no history yet")
    known = same_start(message.run, current)
    if facts.row is None and (facts.checkpointed is None or not known):
        return NEEDS_ROW  # the partition's former owner may have committed the run meanwhile: read again
    if known or _is_named(facts.row, message.run):
        return _soon(f"generation {message.run} is not committed yet")
    if facts.final and _is_newer(message, facts):
        return Judged(
            verdict=Verdict.ORPHAN, reason=f"it is for generation {message.run}, and generation {current} has ended"
        )
    return older(message, facts)


def waits_for_its_event(message: Incoming, facts: Facts, judged: Judged) -> Judged | None:
    """Defer the answer of a child whose scheduling event may still come, instead of counting one more failure.

    The worker that sent the scheduling message may have died before it wrote the history, and the next worker may have
    to wait for the code of the orchestrator. No time limit ends this wait. The next checkpoint of the instance ends it,
    or the end of the run. A child answers only once, so its parent would wait forever if the answer went to quarantine.
    Activities and timers answer again when their message is sent again.

    :param judged: the verdict without this rule.
    :returns: None if the message is not the answer of a child, if the event cannot come any more, or if the verdict has
        another reason.
    """
    if not _of_a_child(message) or judged.verdict is not Verdict.RETRY_SOON:
        return None
    row = facts.row
    never = not facts.live and (same_start(message.run, facts.execution_id) or (row is not None and row.ended))
    return None if never else _defer(message, judged.reason)


def waits_for_a_parent(message: Incoming, judged: Judged) -> Judged | None:
    """Defer the answer of a child for an hour after it was sent if nothing that is stored tells of its question.

    Either the parent was purged, or the parent is itself a child whose first checkpoint was cut off. Or the parent was
    suspended before it could make its cut-off checkpoint again.

    :param judged: the verdict without this rule.
    :returns: None if the message is not the answer of a child, or after this hour.
    """
    if not _of_a_child(message) or message.age >= PARENT_STARTS:
        return None
    return _defer(message, judged.reason, LONGEST_START)


def _of_a_child(message: Incoming) -> bool:
    return isinstance(message.event, SubOrchestrationInstanceCompleted | SubOrchestrationInstanceFailed)


def unnamed_answer(message: Incoming, facts: Facts) -> Judged:
    return uncommitted(message, facts) if facts.execution_id is None else ended(message, facts)


def after_the_live_run(otherwise: Rule) -> Rule:
    """Return the rule for a message whose run has not begun while another run of the id is live.

    The message waits until the live run ends, like the start message of its own run. Exception: a client takes the name
    of the run from the instance row. If the row names another run now, the run of the message has ended, or a .NET
    worker has begun a new generation: generations of .NET share no run name.

    :param otherwise: the rule for this exception.
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


def newest_only(message: Incoming, facts: Facts) -> Judged:
    """Process a suspension or resume, unless a newer suspension or resume was processed already. An older message can
    come after a newer one: if the worker that received it has died, the queue delivers it again."""
    if facts.suspension_stamp is not None and precedes(message.stamp, facts.suspension_stamp):
        return discard("a newer suspension or resume was processed before it")
    return PROCESS


def before_the_start(pending: Rule) -> Rule:
    """Return the rule for a message that names its run when that run is not stored and no other run is live.

    :param pending: the rule if the instance row says that the run waits for its start.
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
    """Return the rule for a message that names no run when no run is live. If the instance row tells of a run that
    waits for its start, the message is for this run.

    :param pending: the rule if the row tells of such a run.
    :param ended: the rule if the stored run has ended and the row tells of no other start.
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
    """Defer the message until shortly before its run starts, and hold it then.

    No failure is counted and there is no time limit, because the start may wait for a worker that has the
    orchestrator's code.
    """
    assert facts.row is not None
    due = facts.row.due
    if due is not None and due - message.now > -START_LATE and not message.waited:
        reason = f"its instance has a scheduled start at {due}"
        left = due - message.now - BEFORE_START
        if left <= timedelta(0):
            return Judged(verdict=Verdict.HOLD, reason=reason)
        return Judged(verdict=Verdict.DEFER, reason=reason, pause=left)
    return _defer(message, "its instance has not started yet")


def _not_in_row(message: Incoming, facts: Facts) -> Judged:
    """Decide about a message whose run is neither stored nor named by the instance row.

    A client takes the run's name from the row, so for a client's message the run is over. A child has no row yet.
    """
    assert facts.row is not None
    if message.sender is not None or facts.row.execution_id is None:
        return _start_missing(message, facts)
    return over(message, facts)


def _start_missing(message: Incoming, facts: Facts) -> Judged:
    """Defer a message whose run has no instance row, such as the run of a child. Its start should appear within two
    minutes after the message was sent, or after the previous run of the id ended."""
    since = message.stamp.inserted
    if facts.final and facts.checkpointed is not None:
        since = max(since, facts.checkpointed)
    if message.now - since < START_APPEARS:
        return _defer(message, f"its run {message.run} has not started yet")
    if facts.parent is not None and message.sender is not None and _is_earlier(message.sender, facts.parent.instance):
        return discard("a later generation of its sender has started the instance again")
    return _later(f"its run {message.run} has not started")


def record(message: Incoming, facts: Facts) -> Judged:
    judged = newest_only(message, facts)
    return judged if judged.verdict is Verdict.DISCARD else Judged(verdict=Verdict.RECORD)


def end(message: Incoming, facts: Facts) -> Judged:
    return Judged(verdict=Verdict.END)


def end_unstarted(message: Incoming, facts: Facts) -> Judged:
    """Decide about a terminate for a run that has not begun: end this run. The worker makes the start event from the
    instance row; for a child, from the terminate message. If another run has used the id of a child, the run of the
    child never begins, so that the instance row keeps the result of the other run."""
    event, row = message.event, facts.row
    assert isinstance(event, ExecutionTerminated)
    if row is None:
        return NEEDS_ROW
    if same_start(row.execution_id, message.run):
        return discard("its instance has ended") if row.ended else Judged(verdict=Verdict.END)
    if event.taskhub_child is not None:
        return Judged(verdict=Verdict.END) if facts.execution_id is None else _refuse_terminated(message)
    return _not_in_row(message, facts)


def end_behind_live_run(message: Incoming, facts: Facts) -> Judged:
    """Decide about a terminate whose run has not begun while another run of the id is live. A child then never begins.
    Nothing is written into the instance row, because the row shows the live run."""
    event = message.event
    assert isinstance(event, ExecutionTerminated)
    return _refuse_terminated(message) if event.taskhub_child is not None else _over_after_live_run(message, facts)


def _refuse_terminated(message: Incoming) -> Judged:
    return Judged(verdict=Verdict.REFUSE, reason=f"its run {message.run} was terminated before it began")


_over_after_live_run = after_the_live_run(over)


def orphan(message: Incoming, facts: Facts) -> Judged:
    """Decide about an event that names no run and comes after the stored run has ended. The event may be for a later
    start of the id. No row announces the start of a child, so the event waits for a start for a while."""
    if message.sender is not None or _is_newer(message, facts):
        return Judged(verdict=Verdict.ORPHAN, reason="its instance has ended")
    return ended(message, facts)


def _is_named(row: RowFacts | None, run: str | None) -> bool:
    return row is not None and same_start(row.execution_id, run)


def _is_newer(message: Incoming, facts: Facts) -> bool:
    """Return True if the message was enqueued after the last checkpoint, or in the same second: the times of the queue
    have whole seconds."""
    last = facts.checkpointed
    return last is None or message.stamp.inserted.ticks >= last.ticks // SECOND * SECOND
