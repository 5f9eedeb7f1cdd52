"""Counts the calls and the instances that wait for a limit, and the calls that wait for memory or a slot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.concurrency import gather_bounded
from airflow_provider_taskhub.engine.events import OrchestrationInstance
from airflow_provider_taskhub.errors import NotFound
from airflow_provider_taskhub.hub.history import waiting_calls, waiting_instances
from airflow_provider_taskhub.hub.history.places import LimitKind, LimitState
from airflow_provider_taskhub.hub.model import HubNames, Member
from airflow_provider_taskhub.storage.primitives import MAX_RECEIVE, Message, Store

AT_ONCE = 6
"""The most requests of a count at the same time."""


async def counted(
    store: Store, names: HubNames, limits: Mapping[tuple[LimitKind, str], LimitState], state: LimitState
) -> LimitState:
    """Return a limit with about how many wait for it. Cost: one query for instances, six to twelve for each activity.

    :param limits: all limits of the hub.
    :param state: one of them.
    """
    waiters = defaultdict[str, list[OrchestrationInstance]](list)
    if state.kind is LimitKind.INSTANCES:
        instances = await waiting_instances.in_order(store, names, state.name)
        oldest = min((one.since for one in instances), default=None)
        waiters[""] = [one.instance for one in instances]
        return replace(state, waiting=len(instances), oldest=oldest, waiters={"": tuple(waiters[""])})
    running = limits.get((LimitKind.ACTIVITY, state.name))
    in_queues, first = await queued(
        store,
        [queue for activity in state.activities for queue in names.limited_queues(activity)],
        running=len(running.holders) if running is not None else 0,
    )
    times = [] if first is None else [first]
    in_rows = await waiting_calls.in_order(store, names, state.name) if state.key_tag else []
    for call in in_rows:
        waiters[call.value].append(call.instance)
        times.append(call.since)
    return replace(
        state,
        waiting=in_queues + len(in_rows),
        oldest=min(times, default=None),
        waiters={value: tuple(instances) for value, instances in waiters.items()},
    )


async def waiting_calls_of(
    store: Store,
    names: HubNames,
    activities: Iterable[str],
    members: Sequence[Member],
    limits: Mapping[tuple[LimitKind, str], LimitState],
    lacking: Callable[[str, Iterable[Member]], Sequence[Member]],
) -> dict[tuple[str, ...], int]:
    """Count about how many calls wait in the queues of activities for which all workers lack something.

    Cost: one or two requests for each queue: an activity with a limit or a need of memory has six of its own, and the
    others of a pool share six for each kind.

    :param activities: which activities.
    :param members: the workers of the hub.
    :param limits: the limits of the hub.
    :param lacking: returns the live workers of an activity if all of them lack it; else nothing.
    :returns: the number for the activities that wait in the same queues.
    """
    found = dict[tuple[str, ...], tuple[list[str], int]]()
    for name in sorted(activities):
        if not (workers := lacking(name, members)):
            continue
        kinds = {(one.pool(name), name in one.spark_activities) for one in workers}
        if any(name in one.memory_of for one in workers) or any(name in one.activities for one in limits.values()):
            queues = names.limited_queues(name)
        else:
            queues = tuple(queue for pool, spark in sorted(kinds) for queue in names.work_queues(pool, spark=spark))
        running = sum(one.slots_for(spark=spark)[0] for _, spark in kinds for one in workers)
        found.setdefault(queues, ([], running))[0].append(name)

    async def one(queues: tuple[str, ...]) -> int:
        return (await queued(store, queues, running=found[queues][1]))[0]

    counts = await gather_bounded(one, [*found], limit=AT_ONCE)
    return {tuple(names): count for (names, _), count in zip(found.values(), counts, strict=True)}


async def queued(store: Store, queues: Iterable[str], *, running: int = 0) -> tuple[int, Timestamp | None]:
    """Count about how many calls wait in queues of activities.

    A call that runs is an invisible message. So the visible ones are counted. If a queue has more of them than can be
    read at once, all messages count, but for those of calls that are known to run.

    :param running: how many calls of these queues are known to run, at most.
    :returns: how many wait, and since when that one has been in its queue that has been there longest.
    """

    async def one(queue: str) -> tuple[int, Sequence[Message]]:
        with suppress(NotFound):
            in_queue = await store.count(queue)
            return in_queue, await store.peek(queue, limit=MAX_RECEIVE) if in_queue else ()
        return 0, ()

    found = await gather_bounded(one, [*queues], limit=AT_ONCE)
    messages, visible = sum(count for count, _ in found), sum(len(peeked) for _, peeked in found)
    times = [peeked[0].inserted for _, peeked in found if peeked]
    more = any(len(peeked) == MAX_RECEIVE for _, peeked in found)
    return max(visible, messages - running) if more else visible, min(times, default=None)
