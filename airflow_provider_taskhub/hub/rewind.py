"""Carry out a rewind of a failed instance: take back the failure, so that the instance goes on from before it. With
``terminated=True``, an instance that was terminated goes on too.

A rewind has six steps: rewrite rows of the history, rewind the failed children, send the messages of timers again,
change the instance row to Pending, answer the calls of activities that have ended since the failure, and send the
message that wakes the instance. This message is not sent if the instance must only wait for a rewound child, whose end
wakes it. If a rewind is interrupted, a second rewind finishes the work. The row of the completion is rewritten last,
and until then the history counts as failed. After that, the second rewind sees from the instance row and the history
that no episode (one run of the orchestrator) has run since the first rewind.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from secrets import token_hex

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine import grace
from airflow_provider_taskhub.engine.children import awaited
from airflow_provider_taskhub.engine.events import (
    ExecutionCompleted,
    ExecutionStarted,
    ExecutionTerminated,
    GenericEvent,
    HistoryEvent,
    OrchestrationInstance,
    Status,
    SubOrchestrationInstanceCreated,
    SubOrchestrationInstanceFailed,
    TimerCreated,
    TimerFired,
)
from airflow_provider_taskhub.engine.identity import child_execution_id, same_start
from airflow_provider_taskhub.engine.parent_response import response, start_of_cancelled
from airflow_provider_taskhub.errors import Conflict, InstanceNotFound, InvalidStateError, NotFound
from airflow_provider_taskhub.hub import rewound_calls
from airflow_provider_taskhub.hub.formats.instance_rows import released_row, rewound_row
from airflow_provider_taskhub.hub.history import rewind_plan as rules
from airflow_provider_taskhub.hub.history.load import HistoryRows, decoded, load, load_rows, sentinel_of
from airflow_provider_taskhub.hub.history.rewind_plan import Rewinding
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import BEGINS_WITHIN, InstanceState
from airflow_provider_taskhub.hub.refusals import refused
from airflow_provider_taskhub.storage.primitives import RowOperation, RowVerb, Transact
from airflow_provider_taskhub.tags import OWNER_TAG

TRIES = 5
CHECKPOINT = 3.0
"""Seconds after which the checkpoint of a child that has just ended should be complete."""
CHILDREN_END = 30.0
"""Seconds that a rewind waits in all for the last checkpoints of children which have ended."""
POLL = 0.5
"""Seconds between two looks at such a child."""
RunningChild = tuple[OrchestrationInstance, SubOrchestrationInstanceCreated]
"""A child that still runs: its parent, and the event of the parent's history that created the child."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """What is to be rewound.

    :param reason: this text is stored in the histories.
    :param statuses: statuses with which an instance or a child is rewound.
    :param until: how long to wait for the last checkpoints of children, as a time of the clock's ``monotonic``.
    :param released: True: no Airflow task waits for the instance.
    """

    reason: str
    statuses: Collection[Status]
    until: float
    released: bool


class _StillEnding(Conflict):
    """A child has answered, and its last checkpoint is not complete within the time to wait."""


async def rewind(hub: Hub, instance_id: str, reason: str, *, terminated: bool = False, released: bool = False) -> None:
    """Remove the failure of a failed instance from its history, so that the instance continues from before the failure.

    :param terminated: True: an instance that was terminated continues too, and so do its terminated children.
    :param released: True: no Airflow task waits for the instance.
    :raises InstanceNotFound: there is no such instance.
    :raises InvalidStateError: the instance has not ended in such a way, or was started again since.
    :raises Conflict: another process changed the instance during each try. Or the last checkpoint of a child that has
        failed is still under way after 30 seconds. The rewind can be called again.
    """
    statuses = (Status.FAILED, Status.TERMINATED) if terminated else (Status.FAILED,)
    until = hub.clock.monotonic() + CHILDREN_END
    order = _Order(reason=reason, statuses=statuses, until=until, released=released)
    running = await _rewind(hub, instance_id, order)
    if running:
        await hub.clock.sleep(CHECKPOINT)
    for parent, created in running:
        child = await _child(hub, created, parent)
        if child is not None and child.status.is_final:
            await _answer_again(hub, child.instance_id)


async def _rewind(hub: Hub, instance_id: str, order: _Order) -> list[RunningChild]:
    """Rewind an instance and its failed children.

    :returns: children that still run: children of the instance, and of the children that are rewound. The caller must
        read the rows of these children again. A child may have sent its answer before the parent's history was
        rewritten, so that the answer was lost, while the child's row did not say yet that the child has ended.
    """
    last: Conflict | None = None
    for _ in range(TRIES):
        try:
            return await _once(hub, instance_id, order)
        except _StillEnding:
            raise
        except Conflict as error:
            # An episode, a purge, a restart or another rewind changed the instance: read it again, and try again.
            last = error
    assert last is not None
    raise last


async def _once(hub: Hub, instance_id: str, order: _Order) -> list[RunningChild]:
    row = await hub.instance(instance_id)
    if row is None:
        raise InstanceNotFound(f"no instance {instance_id!r} in hub {hub.names.hub} at {hub.store.describe()}")
    rows = await load_rows(hub.store, hub.names, instance_id)
    past = await decoded(hub.store, hub.names, rows.committed)
    terminated = Status.TERMINATED in order.statuses
    if row.status is Status.TERMINATED and (request := grace.found(past)) is not None:
        why = (
            "its parent has cancelled it"
            if request.call is not None
            else "it was asked to end with time for a clean-up"
        )
        raise refused(row, f"{why}, so it cannot be rewound")
    sentinel, rewinding = rows.sentinel, rules.plan(past, terminated=terminated)
    rewindable = rewinding is not None or rules.is_rewound(past, row.status, statuses=order.statuses)
    if sentinel is None or not same_start(sentinel.execution_id, row.execution_id) or not rewindable:
        # If the history belongs to another run than the row, an earlier start of this id has failed, and a new start
        # has replaced it. The new start must not be rewound.
        also = " or terminated" if terminated else ""
        raise refused(row, f"only a failed{also} instance can be rewound")
    target = OrchestrationInstance(instance_id=instance_id, execution_id=sentinel.execution_id)
    calls = rules.open_calls(past)
    attempts = await rewound_calls.last_attempts(hub, target, calls.values())
    if rewinding is not None:
        rewinding = rules.plan(past, kept=rules.calls_to_keep(calls, attempts), terminated=terminated)
    pairs = zip(past, rows.committed, strict=True)
    written = {event.event_id: row.timestamp for event, row in pairs if isinstance(event, TimerCreated)}
    again: set[int] = set()
    if rewinding is not None:
        if rules.undoes_calls(past, rewinding):
            # An activity that has seen the instance before its failure begins within this time. All others that wait
            # for a slot see the failure or the rewind, and do not begin. So no undone call begins beside its successor.
            await hub.clock.sleep(BEGINS_WITHIN.total_seconds())
        for at in rewinding.children:
            await _has_ended(hub, past, rows, at, target, order.until)
        again = {at for at in rewinding.children if await _is_asked_again(hub, past[at], target)}
        left = _open_children(past, rewinding)
        again |= {at for at in left if await _was_terminated(hub, past[at], target, rewinds=terminated)}
        # Before the history says so: a second rewind, after this one is cut off, would not know them any more.
        await rewound_calls.stop_undone(hub, past, rewinding.taken, attempts)
        await _rewrite(hub, rows, rewinding, again)
        taken = rewinding.taken | again
        past = tuple(event for at, event in enumerate(past) if at not in taken)
    waits, running = await _children(hub, past, target, order)
    await _timers(hub, past, target, written)
    await _mark(hub, row, order)
    await rewound_calls.answer_kept(hub, past, target)
    if not waits or again or rewinding is None or _asks_again(rewinding):
        event = GenericEvent(
            timestamp=hub.clock.utc_now(), data=order.reason, taskhub_execution_id=sentinel.execution_id
        )
        await hub.send(hub.message_to(event, OrchestrationInstance(instance_id=instance_id)))
    return running


def _asks_again(rewinding: Rewinding) -> bool:
    """Return True if the rewind removes more events than the failures of children and the completion.

    Then the instance must run at once, to make the removed decisions again. Else the end of a child wakes the instance.
    """
    return len(rewinding.taken) > 1 + len(rewinding.children)


async def _rewrite(hub: Hub, rows: HistoryRows, rewinding: Rewinding, again: Collection[int]) -> None:
    sentinel = rows.sentinel
    assert sentinel is not None
    etag = sentinel.etag
    for group in rules.transactions(rules.rewritten(rows.committed, rewinding, again)):
        commit_id = token_hex(16) if sentinel.commit_id is not None else None
        change = rules.locked(hub.names, group, sentinel.execution_id, etag, commit_id=commit_id)
        etags = await hub.store.execute(change)
        assert isinstance(etags, tuple)
        etag = etags[-1]


async def _mark(hub: Hub, row: InstanceState, order: _Order) -> None:
    """Set the instance row to Pending. If the instance already runs or has ended again, only mark it as released.

    :raises Conflict: the instance was purged or started again during the rewind.
    """
    current: InstanceState | None = row
    released = order.released if OWNER_TAG in (row.tags or {}) else None
    for _ in range(TRIES):
        if current is None or not same_start(current.execution_id, row.execution_id):
            raise Conflict(f"instance {row.instance_id!r} was purged or started again during the rewind")
        goes_on = current.status not in order.statuses or current.execution_id != row.execution_id
        if current is not row and not goes_on:
            # A timer or a child may have woken the instance, and the instance failed again: the row stays Failed.
            history = (await load(hub.store, hub.names, row.instance_id)).past
            goes_on = any(isinstance(event, ExecutionCompleted) for event in history)
        if goes_on and not released:
            return
        if goes_on:
            merge = released_row(row.instance_id, released=True)
        else:
            merge = rewound_row(row.instance_id, hub.clock.utc_now(), released=released)
        operation = RowOperation(verb=RowVerb.MERGE, entity=merge, etag=current.etag)
        try:
            await hub.store.execute(Transact(table=hub.names.instances, rows=(operation,)))
            return
        except (Conflict, NotFound):
            current = await hub.instance(row.instance_id)


# --- the children and timers that the rewound instance waits for -----------------------------------------------------


async def _child(
    hub: Hub, created: SubOrchestrationInstanceCreated, parent: OrchestrationInstance
) -> InstanceState | None:
    """Read the instance row of a child, and check that the child belongs to this parent.

    The check compares the child's execution id with the identity of the parent's action. A .NET parent stores no such
    identity: then the check compares the parent that the start event in the child's history names.

    :returns: None if the child was deleted, or if its id was started again by another client or parent.
    """
    child = await hub.instance(created.instance_id)
    if child is None:
        return None
    if created.taskhub_action_id is not None:
        return child if same_start(child.execution_id, created.taskhub_action_id) else None
    history = (await load(hub.store, hub.names, child.instance_id)).past
    started = next((event for event in history if isinstance(event, ExecutionStarted)), None)
    if started is None or started.parent is None or not same_start(started.instance.execution_id, child.execution_id):
        return None
    return child if (started.parent.instance, started.parent.task_schedule_id) == (parent, created.event_id) else None


async def _has_ended(
    hub: Hub, past: Sequence[HistoryEvent], rows: HistoryRows, at: int, parent: OrchestrationInstance, until: float
) -> None:
    """Wait until the last checkpoint of a child that has failed is complete.

    The failure in the parent's history proves that the child has ended. The child's row may say that it still runs: the
    checkpoint sends the answer first, and writes the row last. If the rewind believed the row, it would remove the
    answer, and would not rewind the child, so the parent would wait forever. Nothing of the parent is rewritten before
    this wait, so the rewind can be called again.

    :param at: index of the event that created the child.
    :raises _StillEnding: if the time is over.
    """
    created = past[at]
    assert isinstance(created, SubOrchestrationInstanceCreated)
    answers = (
        row.timestamp
        for event, row in zip(past, rows.committed, strict=True)
        if isinstance(event, SubOrchestrationInstanceFailed) and event.task_scheduled_id == created.event_id
    )
    answered = max((time for time in answers if time is not None), default=None)
    while await _is_ending(hub, created, parent, answered):
        if hub.clock.monotonic() >= until:
            raise _StillEnding(
                f"child {created.instance_id!r} of {parent.instance_id!r} has failed, and its last checkpoint is not "
                "complete: rewind the instance again later"
            )
        await hub.clock.sleep(POLL)


async def _is_ending(
    hub: Hub, created: SubOrchestrationInstanceCreated, parent: OrchestrationInstance, answered: Timestamp | None
) -> bool:
    """Return whether the last checkpoint of a child that has answered is under way.

    A child that somebody has rewound since runs again. Its history has the mark of the rewind. After
    ``continue_as_new`` the mark is gone, but then the sentinel was changed after the parent stored the answer.

    :param answered: when the parent's history got the answer, by the clock of the store.
    """
    child = await _child(hub, created, parent)
    if child is None or child.status.is_final or child.status is Status.PENDING:
        return False
    rows = await load_rows(hub.store, hub.names, child.instance_id)
    history = await decoded(hub.store, hub.names, rows.committed)
    if any(isinstance(event, ExecutionCompleted) for event in history):
        return True
    if any(isinstance(event, GenericEvent) and event.is_rewind for event in history):
        return False
    changed = rows.sentinel.timestamp if rows.sentinel is not None else None
    return changed is None or answered is None or changed <= answered


async def _is_asked_again(hub: Hub, event: HistoryEvent, parent: OrchestrationInstance) -> bool:
    """Return True if the parent must start a failed child again: the child was deleted, terminated or cancelled.

    A child that failed is rewound instead. A child that was already rewound runs or has completed, so it answers.
    """
    assert isinstance(event, SubOrchestrationInstanceCreated)
    return await _child(hub, event, parent) is None or await _was_terminated(hub, event, parent)


def _open_children(past: Sequence[HistoryEvent], rewinding: Rewinding) -> list[int]:
    """Return where a history creates the children whose answers it does not have, because the parent failed first."""
    waiting = {id(created) for created in awaited(past)}
    return [at for at, event in enumerate(past) if id(event) in waiting and at not in rewinding.taken]


async def _was_terminated(
    hub: Hub, event: HistoryEvent, parent: OrchestrationInstance, *, rewinds: bool = False
) -> bool:
    """Return True if a child was terminated or cancelled, and does not go on.

    :param rewinds: whether this rewind lets terminated children go on: those that were not asked to clean up.
    """
    assert isinstance(event, SubOrchestrationInstanceCreated)
    child = await _child(hub, event, parent)
    if child is None or child.status not in (Status.TERMINATED, Status.CANCELED):
        return False
    if not rewinds or child.status is Status.CANCELED:
        return True
    return grace.found((await load(hub.store, hub.names, child.instance_id)).past) is not None


async def _children(
    hub: Hub, past: Sequence[HistoryEvent], parent: OrchestrationInstance, order: _Order
) -> tuple[bool, list[RunningChild]]:
    """Rewind the failed children. Send the answer of each ended child again, as the failed parent did not take it.

    :returns: True if a child was rewound, whose end then wakes the parent; and the children that run.
    """
    waits = False
    running: list[RunningChild] = []
    wanted = awaited(past)
    for created in awaited(past, cancelled=True):
        child = await _child(hub, created, parent)
        if child is None:
            if created not in wanted:
                await _answer_for_cancelled(hub, created, parent)
            continue
        if created in wanted and child.status in (*order.statuses, Status.PENDING):
            with suppress(InvalidStateError):  # the child cannot be rewound: it has just been started, or runs again
                running += await _rewind(hub, child.instance_id, order)
                waits = True
                continue
        elif child.status.is_final:
            await _answer_again(hub, child.instance_id)
            continue
        running.append((parent, created))
    return waits, running


async def _answer_for_cancelled(
    hub: Hub, created: SubOrchestrationInstanceCreated, parent: OrchestrationInstance
) -> None:
    """Send the answer of a child that its parent has cancelled and of which nothing is left: it was purged since, or
    never began, because another run has its id. A second answer has no effect."""
    now, action = hub.clock.utc_now(), created.taskhub_action_id
    run = None if action is None else child_execution_id(action)
    child = OrchestrationInstance(instance_id=created.instance_id, execution_id=run)
    asked = ExecutionTerminated(timestamp=now, taskhub_child=created.name, taskhub_cancels=created.event_id)
    completed = ExecutionCompleted(timestamp=now, status=Status.TERMINATED, result=f"{created.instance_id!r} is gone")
    answer = response(start_of_cancelled(asked, child, parent, now), child, completed)
    assert answer is not None
    await hub.send(hub.message_to(answer.event, answer.target, sender=child))


async def _answer_again(hub: Hub, instance_id: str) -> None:
    history = (await load(hub.store, hub.names, instance_id)).past
    started = next((event for event in history if isinstance(event, ExecutionStarted)), None)
    completed = next((event for event in history if isinstance(event, ExecutionCompleted)), None)
    if started is None or completed is None:
        return
    answer = response(started, started.instance, completed)
    if answer is not None:
        await hub.send(hub.message_to(answer.event, answer.target, sender=started.instance))


async def _timers(
    hub: Hub, past: Sequence[HistoryEvent], target: OrchestrationInstance, written: Mapping[int, Timestamp | None]
) -> None:
    """For each timer that has not fired, send its message once more.

    The message of such a timer may have been discarded while the instance was failed. If the first message still
    exists, the instance recognizes the second one by the identity of its action. The time that the timer has waited is
    measured by the clock of the store, from the write of the timer's history row to the writes of the rewind. This
    machine's clock is not used: if it is ahead of the clock that set the timer, the timer would fire too early.

    :param written: the store's time of each timer's history row, by the event id of the timer.
    """
    timers = rules.open_timers(past)
    lock = await sentinel_of(hub.store, hub.names, target.instance_id) if timers else None
    for timer in timers:
        fired = TimerFired(
            timestamp=timer.timestamp,
            timer_id=timer.event_id,
            fire_at=timer.fire_at,
            taskhub_action_id=timer.taskhub_action_id,
        )
        since, until = written[timer.event_id], lock.timestamp if lock else None
        now = timer.timestamp + (until - since) if since and until else None
        await hub.send(hub.message_to(fired, target, sender=target, action_id=timer.taskhub_action_id, now=now))
