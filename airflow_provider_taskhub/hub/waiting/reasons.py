"""Explain why an instance does not continue. The functions are pure.

The command line, the page, Airflow's log and the metrics show these reasons. No worker acts on them. The module
``snapshot`` reads the facts from the store.

This module has more than 400 lines because it has all reasons with their texts in one list. The order of the list is
the order of their strength, and a reader must see all reasons to judge this order.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from enum import StrEnum

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import OrchestrationInstance, Status
from airflow_provider_taskhub.engine.identity import same_start
from airflow_provider_taskhub.engine.pending_waits import LONGEST_NAME, NOTHING, Awaits
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub.history.places import LimitKind, LimitState, shown_value
from airflow_provider_taskhub.hub.model import (
    ACTIVITY,
    ORCHESTRATOR,
    FunctionKind,
    InstanceState,
    Member,
    Ownership,
    OwnerState,
)
from airflow_provider_taskhub.hub.partitions.capabilities import (
    Need,
    able,
    described,
    lack_of_memory,
    listed,
    too_small,
)
from airflow_provider_taskhub.instance_limit import InstanceLimit
from airflow_provider_taskhub.memory import memory_text
from airflow_provider_taskhub.near_names import did_you_mean
from airflow_provider_taskhub.tags import WATCH_TAG

_MOST_NAMES = 5
_WORKER = "taskhub worker --app MODULE:APP"
START_WORKER = f"Start one: {_WORKER}"


class Reason(StrEnum):
    """Kinds of reasons why an instance does not continue."""

    OFFLINE = "partition_offline"
    QUARANTINE = "quarantine"
    UNREADABLE = "history_unreadable"
    SUSPENDED = "suspended"
    STARTS_LATER = "starts_later"
    LIMIT = "limit"
    NO_ORCHESTRATOR = "no_worker_knows_orchestrator"
    VERSION = "no_worker_has_version"
    NOT_OWNER = "owner_does_not_know_orchestrator"
    UNSERVED = "partition_unserved"
    HELD = "held_without_progress"
    NO_ACTIVITY = "no_worker_knows_activity"
    NO_POOL = "no_worker_of_pool"
    NO_MEMORY = "no_worker_with_memory"
    NO_CHILD = "no_worker_knows_child"
    CHILD_HELD = "child_held"
    EVENTS = "event"
    TIMER = "timer"
    CHILDREN = "child"
    ACTIVITIES = "activity"
    QUEUED = "owner_is_busy"
    NO_TRIGGERER = "no_triggerer"

    @property
    def is_fault(self) -> bool:
        """True if a person must repair something before the instance can continue. Else the instance waits because its
        code says so."""
        return self in _FAULTS


_FAULTS = frozenset(
    {
        Reason.OFFLINE,
        Reason.QUARANTINE,
        Reason.UNREADABLE,
        Reason.NO_ORCHESTRATOR,
        Reason.VERSION,
        Reason.NOT_OWNER,
        Reason.UNSERVED,
        Reason.HELD,
        Reason.NO_ACTIVITY,
        Reason.NO_POOL,
        Reason.NO_MEMORY,
        Reason.NO_CHILD,
        Reason.CHILD_HELD,
    }
)


AWAITED = frozenset(
    {
        Reason.UNREADABLE,
        Reason.NO_ACTIVITY,
        Reason.NO_POOL,
        Reason.NO_MEMORY,
        Reason.NO_CHILD,
        Reason.CHILD_HELD,
        Reason.EVENTS,
        Reason.TIMER,
        Reason.CHILDREN,
        Reason.ACTIVITIES,
    }
)
"""Reasons that can be found only if the sentinel was read: this row of the history says what the instance awaits."""
LACKING = frozenset(
    {
        Reason.NO_ORCHESTRATOR,
        Reason.VERSION,
        Reason.NOT_OWNER,
        Reason.NO_ACTIVITY,
        Reason.NO_POOL,
        Reason.NO_MEMORY,
        Reason.NO_CHILD,
    }
)
"""Reasons that say that all workers, or the owner of the partition, lack a function. If they last longer than the
no-worker timeout, the Airflow task fails, and sooner while the apps of all workers agree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """One reason why an instance does not continue.

    :param reason: kind of the reason.
    :param text: what the instance waits for. The text is shown after "waits: ".
    :param more: what is shown after it and may change at each look, such as numbers. Two reasons that differ only in
        this are equal.
    :param remedy: what a person can do; "" if nothing has to be done.
    :param turn: for the reason ``LIMIT`` how many instances come before it; None: not known.
    :param events: for the reason ``EVENTS`` the names of the awaited events, the first 200 characters of each.
    """

    reason: Reason
    text: str
    remedy: str = ""
    events: tuple[str, ...] = ()
    turn: int | None = None
    more: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.line}. {self.remedy}" if self.remedy else self.line

    @property
    def line(self) -> str:
        """The text with what may change at each look, and how many instances come before it if that is known."""
        turn = "" if self.turn is None else f"; {f'{self.turn} before it' if self.turn else 'it is the next'}"
        return f"{self.text}; {self.more}{turn}" if self.more else self.text + turn


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedMessage:
    """A message in quarantine.

    :param message_id: id of the message; the commands of ``taskhub quarantine`` take this id.
    :param cause: why the message is in quarantine.
    :param stuck: True if the whole instance is in quarantine, so that no episode of the instance runs.
    """

    message_id: str
    cause: str
    stuck: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The facts about an instance and its hub from which the reasons are found.

    :param state: the instance.
    :param members: workers of the hub. Workers that are not alive are ignored.
    :param served: owner of the instance's partition; None: not known.
    :param offline_by: administrator who took the partition offline; "" if not known.
    :param offline_reason: why the partition was taken offline; "" if not known.
    :param quarantined: messages for the instance that are in quarantine.
    :param awaits: what the instance awaits since its last checkpoint; None: not known.
    :param children: awaited children whose ids are known. Of their ``state``, only the instance id is valid, because a
        child may have no instance row yet.
    :param child_rows: instance rows of the awaited children whose ids are known, by instance id.
    :param limits: the limits of the hub by kind and name, who has their places, and who waits, as far as asked.
    :param calls: by activity for which no worker has enough memory or a slot free, about how many calls wait in the
        queues in which its calls wait.
    :param now: present time, by this machine's clock.
    """

    state: InstanceState
    members: Sequence[Member]
    served: Ownership | None = None
    offline_by: str = ""
    offline_reason: str = ""
    quarantined: Sequence[QuarantinedMessage] = ()
    awaits: Awaits | None = None
    children: Sequence[Snapshot] = ()
    child_rows: Mapping[str, InstanceState] = field(default_factory=dict)
    limits: Mapping[tuple[LimitKind, str], LimitState] = field(default_factory=dict)
    calls: Mapping[str, int] = field(default_factory=dict)
    now: Timestamp


def why(found: Snapshot) -> tuple[Why, ...]:
    """Return all reasons why an instance does not continue, the strongest first.

    If live workers have the awaited activities, the reason is :attr:`Reason.ACTIVITIES`: the instance is working.

    :returns: empty if the instance has ended, or if no reason is known.
    """
    state = found.state
    if state.status.is_final:
        return ()
    reasons = [
        *_partition_or_quarantine(found),
        *_damaged(found),
        *_suspended_or_later(found),
        *_unable(found),
    ]
    # The worker holds an instance without progress also for one of the reasons before, which say more.
    reasons = [*(reasons or _held(found)), *_blocked_children(found)]
    reasons = reasons or [*_without_place(found)]
    if not reasons:
        reasons = [*_awaited(found.awaits or NOTHING, found)]
    if not reasons:
        reasons = [*_queued(found)]
    return tuple(reasons)


def _partition_or_quarantine(found: Snapshot) -> Iterable[Why]:
    served = found.served
    if served is not None and (served.offline or served.state is OwnerState.OFFLINE):
        by = f" by {found.offline_by}" if found.offline_by else ""
        reason = f" ({found.offline_reason})" if found.offline_reason else ""
        yield Why(
            reason=Reason.OFFLINE,
            text=f"partition {served.partition} was taken offline{by}{reason}",
            remedy=f"To bring it back: {_command('partitions online', str(served.partition))}",
        )
    stuck = [kept for kept in found.quarantined if kept.stuck]
    kept = (stuck or [*found.quarantined])[:1]
    if kept:
        what = "it is in quarantine" if stuck else "a message for it is in quarantine"
        yield Why(
            reason=Reason.QUARANTINE,
            text=f"{what}: {_short(kept[0].cause)}",
            remedy=f"Fix the cause, then: {_command('quarantine put-back', kept[0].message_id)}",
        )


def _blocked_children(found: Snapshot) -> Iterable[Why]:
    for child in found.children:
        for one in _partition_or_quarantine(child):
            text = f"its child {child.state.instance_id!r}: {one.text}"
            yield Why(reason=Reason.CHILD_HELD, text=text, remedy=one.remedy)


def _owner(found: Snapshot) -> Member | None:
    """Return the live owner of the instance's partition; None: there is none, or it is not known."""
    owner = found.served.owner if found.served is not None else None
    return next((member for member in found.members if member.alive and member.worker == owner), None)


def _held(found: Snapshot) -> Iterable[Why]:
    """Return a reason if the owner of the partition says that the instance makes no progress."""
    owner, served = _owner(found), found.served
    if owner is None or served is None:
        return
    for one in owner.backlog.held:
        if one.instance_id == found.state.instance_id:
            cause = f"its last episode failed: {_short(one.cause)}" if one.cause else "its episode has not ended"
            yield Why(
                reason=Reason.HELD,
                text=f"worker {owner.worker} has held it for {one.seconds:.0f} s without progress: {cause}",
                remedy="The log of that worker says more. To let it begin again: "
                f"{_command('partitions kick', str(served.partition))}",
            )


def _queued(found: Snapshot) -> Iterable[Why]:
    """Return a reason if the instance probably waits for its turn at a busy worker."""
    owner = _owner(found)
    if owner is not None and owner.backlog.queued and _later_start(found) is None:
        backlog = owner.backlog
        yield Why(
            reason=Reason.QUEUED,
            text=f"a turn at worker {owner.worker}, where {backlog.queued} "
            f"{'instances wait' if backlog.queued > 1 else 'instance waits'} for up to {backlog.longest:.0f} s",
        )


def _damaged(found: Snapshot) -> Iterable[Why]:
    cause = (found.awaits or NOTHING).unreadable
    if cause:
        yield unreadable_history(found.state.instance_id, cause)


def _suspended_or_later(found: Snapshot) -> Iterable[Why]:
    """Return a reason if the instance is suspended, or if its start is scheduled for later."""
    state = found.state
    if state.is_held:
        reason = state.output or ""
        by = f" by {state.suspended_by}" if state.suspended_by else ""
        since = f" since {clock(state.suspended_at)}" if state.suspended_at is not None else ""
        said = f": {_short(reason)}" if reason else ""
        yield Why(
            reason=Reason.SUSPENDED,
            text=f"suspended{by}{since}{said}",
            remedy=f"To resume it: {_command('instances resume', state.instance_id)}",
        )
    elif (start := _later_start(found)) is not None:
        yield Why(reason=Reason.STARTS_LATER, text=f"its start is scheduled for {clock(start)}")


def _later_start(found: Snapshot) -> Timestamp | None:
    """Return the time of a scheduled start; None: the instance has started, or its start is due."""
    start = found.state.scheduled_start
    ahead = found.state.status is Status.PENDING and start is not None and start > found.now
    return start if ahead else None


def _unable(found: Snapshot) -> Iterable[Why]:
    """Return a reason for each lack: live workers, or the owner of the partition, do not have a function."""
    state = found.state
    if _later_start(found) is not None:
        return  # no worker needs the orchestrator before the scheduled start
    if is_foreign(found.served):
        return  # workers of .NET do not list what they can run
    live = [member for member in found.members if member.alive and ORCHESTRATOR in member.roles]
    need = Need("orchestrator", state.name, state.version)
    fit, known = able(live, need), able(live, Need("orchestrator", state.name))
    if not known:
        yield _unknown(Reason.NO_ORCHESTRATOR, ORCHESTRATOR, [state.name], live)
    elif not fit:
        there = listed(map(described, known), _MOST_NAMES)
        yield Why(
            reason=Reason.VERSION,
            text=f"no live worker accepts version {state.version!r} of orchestrator {state.name!r}. Alive: {there}",
            remedy="Start a worker whose app has that version, or declares it compatible",
        )
    elif (served := found.served) is not None and not served.offline:
        misplaced = tuple(_misplaced(need, served, live, fit))
        lacking = tuple(_without_code(found, live))
        if lacking and any(one.reason is Reason.NOT_OWNER for one in misplaced):
            # Another owner could not continue the instance either, and the owner of the partition may change soon.
            # So the missing activities and children are the stronger reason.
            yield from lacking
            yield from () if _only_unknown(found, live) else misplaced
        else:
            yield from (*misplaced, *lacking)
        return
    if live or any(member.alive and ACTIVITY in member.roles for member in found.members):
        yield from _without_code(found, live)


def is_foreign(served: Ownership | None) -> bool:
    """Return True if the owner of a partition is a .NET worker. TaskHub workers have names like
    ``name@host/incarnation``."""
    return served is not None and served.owner is not None and "/" not in served.owner.rpartition("@")[2]


def _misplaced(need: Need, served: Ownership, live: Sequence[Member], fit: Sequence[Member]) -> Iterable[Why]:
    owner = next((member for member in live if member.worker == served.owner), None)
    if owner is None:
        last = f": its last owner {served.owner} is not alive" if served.owner else ""
        yield Why(
            reason=Reason.UNSERVED,
            text=f"no worker serves partition {served.partition}{last}",
            remedy="A live worker takes it within a scan, unless an order forbids it. "
            "To see the orders: taskhub partitions check",
        )
    elif owner not in fit:
        others = listed([member.worker for member in fit], _MOST_NAMES)
        yield Why(
            reason=Reason.NOT_OWNER,
            text=f"partition {served.partition} is owned by {owner.worker}, which cannot run {need}; "
            f"{others} can run it, but does not own the partition",
            remedy="Load the same apps in all workers of the hub",
        )


def _without_code(found: Snapshot, live: Sequence[Member]) -> Iterable[Why]:
    """Return a reason if no live worker has an awaited activity, one if none belongs to the pool of one that workers
    have, one if none of those has the memory for it, and one if none can run an awaited child.

    :param live: live workers that run orchestrators.
    """
    workers = _activity_workers(found)
    activities = _unknown_activities(found, workers)
    small = {name: members[0] for name in activities if (members := too_small(workers, name))}
    activities = [name for name in activities if name not in small]
    others = {name: pool for name in activities if (pool := _pool_of(name, workers)) is not None}
    if activities := [name for name in activities if name not in others]:
        yield _unknown(Reason.NO_ACTIVITY, ACTIVITY, activities, workers)
    for pool in sorted({*others.values()}):
        yield _no_pool(pool, sorted(name for name, one in others.items() if one == pool), workers)
    for name, largest in sorted(small.items()):
        text, remedy = lack_of_memory(largest, name)
        yield Why(reason=Reason.NO_MEMORY, text=text, remedy=remedy[0].upper() + remedy[1:])
    if live and (children := _unknown_children(found, live)):  # such a child has no instance row that could show this
        unknown = _unknown(Reason.NO_CHILD, ORCHESTRATOR, children, live)
        yield replace(unknown, text=f"it awaits {_plural('child', children)}, and {unknown.text}")


def _activity_workers(found: Snapshot) -> Sequence[Member]:
    return [member for member in found.members if member.alive and ACTIVITY in member.roles]


def _unknown_activities(found: Snapshot, workers: Sequence[Member]) -> Sequence[str]:
    return [name for name in (found.awaits or NOTHING).activities if not able(workers, Need(ACTIVITY, name))]


def _pool_of(activity: str, workers: Iterable[Member]) -> str | None:
    """Return the pool of an activity, as a live worker that has its code says. None: no live worker has it."""
    return next((one.pool(activity) for one in workers if activity in one.functions(ACTIVITY)), None)


def _no_pool(pool: str, activities: Sequence[str], workers: Sequence[Member]) -> Why:
    """Return the reason that some activities wait for a worker of their pool that has them.

    :param pool: the pool of these activities.
    :param workers: live workers that run activities.
    """
    what = _plural(ACTIVITY, activities)
    inside = [member for member in workers if pool in member.pools]
    alive = listed((f"{described(member)} of pool {', '.join(member.pools)}" for member in workers), _MOST_NAMES)
    head = f"no live worker belongs to the pool {pool!r} of {what}"
    return Why(
        reason=Reason.NO_POOL,
        text=f"{f'no live worker of the pool {pool!r} knows {what}' if inside else head}. Alive: {alive}",
        remedy=f"Start a worker of this pool{' with the app' if inside else ''}: {_WORKER} --pools {pool}",
    )


def _unknown_children(found: Snapshot, live: Sequence[Member]) -> Sequence[str]:
    return [name for name in (found.awaits or NOTHING).children if not able(live, Need(ORCHESTRATOR, name))]


def _only_unknown(found: Snapshot, live: Sequence[Member]) -> bool:
    """Return True if the instance awaits only activities and children that no live worker can run."""
    awaits = found.awaits or NOTHING
    if awaits.events or awaits.timer is not None or not awaits.complete:
        return False
    activities, children = _unknown_activities(found, _activity_workers(found)), _unknown_children(found, live)
    return (len(activities), len(children)) == (len(awaits.activities), len(awaits.children))


def _awaited(awaits: Awaits, found: Snapshot) -> Iterable[Why]:
    more = "" if awaits.complete else " and more"
    if awaits.events:
        named = listed([f"{event.name!r} since {clock(event.since)}" for event in awaits.events], _MOST_NAMES)
        first = awaits.events[0].name
        send = f"To send it: {_command('instances raise-event', found.state.instance_id, first)}"
        yield Why(
            reason=Reason.EVENTS,
            text=f"event{'s' if len(awaits.events) > 1 else ''} {named}{more}",
            # The sentinel stores a longer name without its end, so the command would name a wrong event.
            remedy=send if len(first) < LONGEST_NAME else "",
            events=tuple(event.name for event in awaits.events),
        )
    if awaits.activities:
        text = f"{_plural('activity', awaits.activities)}{more}"
        full = (*_full_limits(awaits, found), *_full_memory(awaits, found), *_full_slots(awaits, found))
        yield Why(reason=Reason.ACTIVITIES, text=text, more="; ".join(full))
    if awaits.children:
        yield Why(
            reason=Reason.CHILDREN,
            text=f"{_plural('child', awaits.children)}{_ids(awaits)}{more}{_held_up(awaits, found)}",
        )
    if awaits.timer is not None:
        yield Why(reason=Reason.TIMER, text=f"a timer until {clock(awaits.timer)}")


def _full_limits(awaits: Awaits, found: Snapshot) -> Iterable[str]:
    """Return a text about each limit that an awaited activity has and that is reached, with how many calls wait for it.

    If nobody waits for the limit, or no call of the instance waits for its value of the tag, there is no text.
    """
    run = OrchestrationInstance(instance_id=found.state.instance_id, execution_id=found.state.execution_id)
    for limit in found.limits.values():
        if not limit.is_full or not {*awaits.activities} & {*limit.activities} or limit.waiting == 0:
            continue
        behind = "" if limit.waiting is None else f", and {_calls(limit.waiting)}"
        if limit.key_tag:
            full = _full_values(limit, run)
            if full:
                yield f"at most {limit.limit} of {limit.name!r} {'begin' if limit.seconds else 'run'} for each " + (
                    f"{limit.key_tag} {'in the time of the rate' if limit.seconds else 'at once'}; full: {full}"
                )
        elif limit.kind is LimitKind.RATE:
            yield f"{limit.name!r} has reached its rate of {limit.shown}{behind}"
        else:
            holders = listed([f"{place.instance.instance_id} #{place.task_id}" for place in limit.holders], _MOST_NAMES)
            yield f"at most {limit.limit} of {limit.name!r} run in the hub, now {holders}{behind}"


def _full_values(limit: LimitState, run: OrchestrationInstance) -> str:
    """Return the values of a divided limit for which calls of an instance wait, and how many calls wait for each.

    :returns: "": no call of the instance waits. All full values if it is not known for which it waits.
    """
    full, mine = limit.full_values, limit.values_of(run)
    if limit.waiting is not None and (mine or limit.knows_all_waiters):
        values = [f"{shown_value(one)} ({_calls(len(limit.waiters[one]))})" for one in mine if one in full]
    else:
        values = [*map(shown_value, full)]
    return listed(values, _MOST_NAMES)


def _calls(count: int) -> str:
    return "1 call waits" if count == 1 else f"{count} calls wait"


def _full_memory(awaits: Awaits, found: Snapshot) -> Iterable[str]:
    """Return a text about each awaited activity for which no worker has enough memory free."""
    for name in awaits.activities:
        workers = without_memory(name, found.members)
        if not workers or found.calls.get(name) == 0:
            continue
        need = memory_text(workers[0].memory_of[name], at_least=True)
        used = (f"{memory_text(one.memory_used)} of {memory_text(one.memory or 0)} on {one.worker}" for one in workers)
        behind = f"; {_calls(found.calls[name])}" if name in found.calls else ""
        in_use = listed(used, _MOST_NAMES)
        yield f"{name!r} needs {need} of memory, and no worker has so much free (in use: {in_use}){behind}"


def _full_slots(awaits: Awaits, found: Snapshot) -> Iterable[str]:
    """Return a text about the awaited activities for which every slot of every worker is taken, if calls wait. Those of
    this instance may run or wait. If they wait for a limit or for memory too, other texts say how many wait."""
    full = {name for limit in found.limits.values() if limit.is_full for name in limit.activities}
    texts = defaultdict[str, list[str]](list)
    for name in awaits.activities:
        workers = without_slot(name, found.members)
        if workers and found.calls.get(name) != 0 and name not in full and not without_memory(name, found.members):
            taken = (f"{'{} of {}'.format(*_slots_for(name, one))} on {one.worker}" for one in workers)
            behind = f", and {_calls(found.calls[name])} in its queues" if name in found.calls else ""
            texts[f"all are taken ({listed(taken, _MOST_NAMES)}){behind}"].append(name)
    for text, names in texts.items():
        yield f"further calls of {listed(map(repr, names), _MOST_NAMES)} wait for a slot: {text}"


def _slots_for(activity: str, member: Member) -> tuple[int, int]:
    return member.slots_for(spark=activity in member.spark_activities)


def without_memory(activity: str, members: Iterable[Member]) -> Sequence[Member]:
    """Return the live workers that have an activity, if none of them has enough memory free for it.

    :param activity: name of the activity.
    :param members: workers of the hub.
    """
    workers = workers_of(activity, members)
    return [] if any(member.has_free_memory_for(activity) for member in workers) else workers


def without_slot(activity: str, members: Iterable[Member]) -> Sequence[Member]:
    """Return the live workers that have an activity, if none of them has a slot free for it.

    :param activity: name of the activity.
    :param members: workers of the hub.
    """
    workers = workers_of(activity, members)
    return [] if any(one.has_free_slot(spark=activity in one.spark_activities) for one in workers) else workers


def workers_of(activity: str, members: Iterable[Member]) -> Sequence[Member]:
    """Return the live workers that can run an activity.

    :param activity: name of the activity.
    :param members: workers of the hub.
    """
    live = [member for member in members if member.alive and ACTIVITY in member.roles]
    return able(live, Need(ACTIVITY, activity))


def _without_place(found: Snapshot) -> Iterable[Why]:
    """Return a reason if the instance has a limit, has not begun or was rewound, and has no place."""
    state = found.state
    limit = InstanceLimit.of(state.tags) if state.parent is None else None
    if limit is None or state.status is not Status.PENDING or _later_start(found) is not None:
        return
    places = found.limits.get((LimitKind.INSTANCES, limit.name))
    run = OrchestrationInstance(instance_id=state.instance_id, execution_id=state.execution_id)
    if places is None or not places.holders or any(place.is_of_run(run) for place in places.holders):
        return
    holders = listed([place.instance.instance_id for place in places.holders], _MOST_NAMES)
    most = f"{places.limit} instance{'' if places.limit == 1 else 's'}"
    text = f"its turn: at most {most} with the limit {limit.name!r} run at once, now {holders}"
    yield Why(reason=Reason.LIMIT, text=text, turn=places.turn_of(run))


def _ids(awaits: Awaits) -> str:
    """Return the ids of the children in brackets; "" if they are not known."""
    others = awaits.child_count - len(awaits.child_ids)
    shown = ", ".join(awaits.child_ids) + (f" and {others} more" if others > 0 else "")
    return f" ({shown})" if awaits.child_ids else ""


def _held_up(awaits: Awaits, found: Snapshot) -> str:
    """Return a text about the children that cannot begin yet, because a run of somebody else uses their id."""
    texts = []
    for child_id in awaits.child_ids:
        row = found.child_rows.get(child_id)
        if row is None or row.status not in (Status.RUNNING, Status.SUSPENDED) or row.parent == found.state.instance_id:
            continue
        if any(one == child_id and same_start(run, row.execution_id) for one, run in awaits.needed):
            continue
        whose = f"another parent, {row.parent!r}," if row.parent is not None else "a client"
        texts.append(f"; {child_id!r} is now a run that {whose} has started, and the child begins after its end")
    return "".join(texts)


def unreadable_history(instance_id: str, cause: str) -> Why:
    """Return the reason that no worker can continue an instance because its stored history is damaged.

    :param cause: what cannot be read.
    """
    return Why(
        reason=Reason.UNREADABLE,
        text=f"its history cannot be read: {_short(cause)}",
        remedy=f"To end it: {_command('instances terminate', instance_id)}",
    )


def unwatched(state: InstanceState, watching: Sequence[Member] | None) -> Why | None:
    """Return the reason that a deferred Airflow task waits for an instance and no live triggerer watches this hub.

    This is not always a fault: a triggerer that waits for no instance leaves the list of members. The triggerer comes
    back seconds after a task is deferred.

    :param watching: live triggerers that watch the hub; None: not known.
    :returns: None if a triggerer watches the hub, if that is not known, or if no Airflow task needs a triggerer now.
    """
    if watching is None or watching or WATCH_TAG not in (state.tags or {}):
        return None
    if state.status is Status.PENDING or state.status.is_final:
        return None  # perhaps the Airflow task is not deferred yet, or it needs no triggerer any more
    return Why(
        reason=Reason.NO_TRIGGERER,
        text="no triggerer of Airflow watches this hub now: a deferred task stays deferred until one does",
        remedy="If none runs, start one: airflow triggerer",
    )


def unstopped(members: Iterable[Member]) -> tuple[Why, ...]:
    """Return the reason that running activities of an ended instance are not stopped: no worker that runs activities is
    alive. If such a worker is alive, the result is empty."""
    if any(member.alive and ACTIVITY in member.roles for member in members):
        return ()
    return (Why(reason=Reason.NO_ACTIVITY, text=_nobody(ACTIVITY), remedy=START_WORKER),)


def _nobody(kind: FunctionKind) -> str:
    return f"no worker that runs {_PLURAL[kind]} is alive"


def _unknown(reason: Reason, kind: FunctionKind, names: Sequence[str], workers: Sequence[Member]) -> Why:
    """Return the reason that no live worker has some functions. The text names the live workers and their functions.

    :param kind: kind of the functions.
    :param names: names of the missing functions.
    :param workers: live workers that run functions of this kind.
    """
    head = f"no live worker knows {_plural(kind, names)}"
    if not workers:
        return Why(
            reason=reason,
            text=f"{head}: {_nobody(kind)}",
            remedy=START_WORKER,
        )
    known = {one for member in workers for one in member.functions(kind)}
    alive = listed(map(described, workers), _MOST_NAMES)
    return Why(
        reason=reason,
        text=f"{head}. Alive: {alive}; they know: {listed(sorted(known), _MOST_NAMES) or 'none'}",
        remedy=way_out(names, known),
    )


def way_out(names: Sequence[str], known: Collection[str]) -> str:
    """Return what a person can do about functions that no live worker has: correct their names, or start a worker.

    :param names: names of the missing functions.
    :param known: names of the functions of the live workers.
    """
    questions = {name: did_you_mean(name, known) for name in names}
    asked = [f"For {name!r}, {question}" for name, question in questions.items() if question]
    one = len(names) == 1
    worker = f"start a worker with the {'app that declares it' if one else 'apps that declare them'}: {_WORKER}"
    if not asked:
        return f"Correct the {'name' if one else 'names'}, or {worker}"
    return f"{' '.join(asked[:_MOST_NAMES])} If not, {worker}"


def _command(name: str, *arguments: str) -> str:
    """Return a command line for a shell. Each argument is quoted where necessary."""
    options_end = ("--",) if any(argument.startswith("-") for argument in arguments) else ()
    return f"taskhub {name} {shlex.join((*options_end, *arguments))}"


def clock(moment: Timestamp) -> str:
    """Return a time as text: ``2026-11-23 03:40:12 UTC``."""
    return f"{moment.text()[:19].replace('T', ' ')} UTC"


_PLURAL = {ORCHESTRATOR: "orchestrators", ACTIVITY: "activities", "child": "children"}


def _plural(what: str, names: Sequence[str]) -> str:
    return f"{what if len(names) == 1 else _PLURAL[what]} {listed(map(repr, names), _MOST_NAMES)}"


def _short(text: str, limit: int = 300) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"
