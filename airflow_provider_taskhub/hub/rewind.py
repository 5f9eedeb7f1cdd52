"""Carrying out a rewind: rows of the history, the children's, the instance row, the message that wakes it.

In this order, so that what is cut off anywhere is finished by a second rewind: the history is failed until the last of
its rows is rewritten, and from then on the row says Failed, or Pending with nothing run since.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import (
    ExecutionCompleted,
    ExecutionStarted,
    GenericEvent,
    HistoryEvent,
    OrchestrationInstance,
    Status,
    SubOrchestrationInstanceCreated,
    TimerCreated,
    TimerFired,
)
from airflow_provider_taskhub.engine.identity import same_start
from airflow_provider_taskhub.engine.parent_response import response
from airflow_provider_taskhub.errors import Conflict, InstanceNotFound, InvalidStateError, NotFound
from airflow_provider_taskhub.hub.formats.instance_rows import rewound_row
from airflow_provider_taskhub.hub.history import rewind_plan as rules
from airflow_provider_taskhub.hub.history.load import HistoryRows, decoded, load, load_rows, sentinel_of
from airflow_provider_taskhub.hub.history.rewind_plan import Rewinding
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import InstanceState
from airflow_provider_taskhub.storage.primitives import RowOperation, RowVerb, Transact

TRIES = 5
CHECKPOINT = 3.0
"""Seconds after which the checkpoint of a child that has answered is expected to stand."""
Going = tuple[OrchestrationInstance, SubOrchestrationInstanceCreated]
"""A parent, and what created a child of it."""


async def rewind(hub: Hub, instance_id: str, reason: str) -> None:
    """Take back what a failed instance failed with, and let it go on.

    :raises InstanceNotFound: when there is none.
    :raises InvalidStateError: when it has not failed, or was started anew since.
    :raises Conflict: when others keep changing it.
    """
    going = await _rewind(hub, instance_id, reason)
    if going:
        await hub.clock.sleep(CHECKPOINT)
    for parent, created in going:
        child = await _child(hub, created, parent)
        if child is not None and child.status.is_final:
            await _answer_again(hub, child.instance_id)


async def _rewind(hub: Hub, instance_id: str, reason: str) -> list[Going]:
    """:returns: children, of it and of those that are rewound with it, that run.

    One of them may have put its answer before its parent's history was rewritten, for nobody, and its own row says that
    it has ended only after that.
    """
    last: Conflict | None = None
    for _ in range(TRIES):
        try:
            return await _once(hub, instance_id, reason)
        except Conflict as error:  # a purge, a restart or another rewind came between: look again
            last = error
    assert last is not None
    raise last


async def _once(hub: Hub, instance_id: str, reason: str) -> list[Going]:
    row = await hub.instance(instance_id)
    if row is None:
        raise InstanceNotFound(f"no instance {instance_id!r} in hub {hub.names.hub} at {hub.store.describe()}")
    rows = await load_rows(hub.store, hub.names, instance_id)
    past = await decoded(hub.store, hub.names, rows.committed)
    sentinel, rewinding = rows.sentinel, rules.plan(past)
    rewindable = rewinding is not None or rules.is_rewound(past, row.status)
    if sentinel is None or not same_start(sentinel.execution_id, row.execution_id) or not rewindable:
        # a history of another start is what failed before the id was started anew
        raise InvalidStateError(f"instance {instance_id!r} is {row.status}: only a failed instance can be rewound")
    target = OrchestrationInstance(instance_id=instance_id, execution_id=sentinel.execution_id)
    pairs = zip(past, rows.committed, strict=True)
    written = {event.event_id: row.timestamp for event, row in pairs if isinstance(event, TimerCreated)}
    again: set[int] = set()
    if rewinding is not None:
        again = {at for at in rewinding.children if await _is_asked_again(hub, past[at], target)}
        await _rewrite(hub, rows, rewinding, again)
        taken = rewinding.taken | again
        past = tuple(event for at, event in enumerate(past) if at not in taken)
    waits, going = await _children(hub, past, target, reason)
    await _timers(hub, past, target, written)
    await _mark(hub, row)
    if not waits or again or rewinding is None or _asks_again(rewinding):
        event = GenericEvent(timestamp=hub.clock.utc_now(), data=reason, taskhub_execution_id=sentinel.execution_id)
        await hub.send(hub.mail(event, OrchestrationInstance(instance_id=instance_id)))
    return going


def _asks_again(rewinding: Rewinding) -> bool:
    """Whether more is taken back than the failures of children and the completion: then it must decide itself."""
    return len(rewinding.taken) > 1 + len(rewinding.children)


async def _rewrite(hub: Hub, rows: HistoryRows, rewinding: Rewinding, again: Collection[int]) -> None:
    sentinel = rows.sentinel
    assert sentinel is not None
    etag = sentinel.etag
    for group in rules.transactions(rules.rewritten(rows.committed, rewinding, again)):
        etags = await hub.store.execute(rules.locked(hub.names, group, sentinel.execution_id, etag))
        assert isinstance(etags, tuple)
        etag = etags[-1]


async def _mark(hub: Hub, row: InstanceState) -> None:
    """The row says Pending, unless it says by now that the instance runs or has ended again."""
    current: InstanceState | None = row
    for _ in range(TRIES):
        if current is None or not same_start(current.execution_id, row.execution_id):
            raise Conflict(f"instance {row.instance_id!r} was purged or started anew meanwhile")
        if current.status is not Status.FAILED or current.execution_id != row.execution_id:
            return
        if current is not row:
            history = (await load(hub.store, hub.names, row.instance_id)).past
            if any(isinstance(event, ExecutionCompleted) for event in history):
                return  # woken by a timer or a child it has failed once more, and the row says that
        merge = rewound_row(row.instance_id, hub.clock.utc_now())
        operation = RowOperation(verb=RowVerb.MERGE, entity=merge, etag=current.etag)
        try:
            await hub.store.execute(Transact(table=hub.names.instances, rows=(operation,)))
            return
        except (Conflict, NotFound):
            current = await hub.instance(row.instance_id)


# --- what it waits for --------------------------------------------------------------------------------------------


async def _child(
    hub: Hub, created: SubOrchestrationInstanceCreated, parent: OrchestrationInstance
) -> InstanceState | None:
    """The child's row; None: it is gone, or of another start. .NET's actions have no identity: its start tells."""
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


async def _is_asked_again(hub: Hub, event: HistoryEvent, parent: OrchestrationInstance) -> bool:
    """Whether a child whose failure is taken back starts anew: it is gone, or has ended otherwise for good.

    One that was rewound by itself meanwhile, and runs or has completed, answers.
    """
    assert isinstance(event, SubOrchestrationInstanceCreated)
    child = await _child(hub, event, parent)
    return child is None or child.status in (Status.TERMINATED, Status.CANCELED)


async def _children(
    hub: Hub, past: Sequence[HistoryEvent], parent: OrchestrationInstance, reason: str
) -> tuple[bool, list[Going]]:
    """Children that failed are rewound; of those that ended while nobody listened the answer is put again.

    :returns: whether one was rewound: its end wakes the parent; and those that run.
    """
    waits = False
    going: list[Going] = []
    for created in rules.open_children(past):
        child = await _child(hub, created, parent)
        if child is None:
            continue
        if child.status in (Status.FAILED, Status.PENDING):
            with suppress(InvalidStateError):  # it has only just been started, or goes on by itself
                going += await _rewind(hub, child.instance_id, reason)
                waits = True
                continue
        elif child.status.is_final:
            await _answer_again(hub, child.instance_id)
            continue
        going.append((parent, created))
    return waits, going


async def _answer_again(hub: Hub, instance_id: str) -> None:
    history = (await load(hub.store, hub.names, instance_id)).past
    started = next((event for event in history if isinstance(event, ExecutionStarted)), None)
    completed = next((event for event in history if isinstance(event, ExecutionCompleted)), None)
    if started is None or completed is None:
        return
    answer = response(started, started.instance, completed)
    if answer is not None:
        await hub.send(hub.mail(answer.event, answer.target, sender=started.instance))


async def _timers(
    hub: Hub, past: Sequence[HistoryEvent], target: OrchestrationInstance, written: Mapping[int, Timestamp | None]
) -> None:
    """A timer that was due while nobody listened fires again; one that is not gone is known by its action.

    What is left of it is counted by the store, from its row to the rewind's rows: this machine's clock may be ahead of
    the one that set it, and it would fire early. One that is gone was due before those rows were written.

    :param written: the store's time of a timer's row, by its number.
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
        await hub.send(hub.mail(fired, target, sender=target, action_id=timer.taskhub_action_id, now=now))
