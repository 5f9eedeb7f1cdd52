"""Counts the calls and the instances that wait for a limit, and the calls that wait for memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import OrchestrationInstance
from airflow_provider_taskhub.errors import NotFound
from airflow_provider_taskhub.hub.history import waiting_calls, waiting_instances
from airflow_provider_taskhub.hub.history.places import LimitKind, LimitState
from airflow_provider_taskhub.hub.model import HubNames, Member
from airflow_provider_taskhub.storage.primitives import MAX_RECEIVE, Store


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


def queues_of(
    names: HubNames, activity: str, members: Iterable[Member], limits: Mapping[tuple[LimitKind, str], LimitState]
) -> tuple[str, ...]:
    """Return the queues in which the calls of an activity wait: its own, or those of its pool.

    :param members: the live workers that have the activity.
    :param limits: the limits of the hub.
    """
    members = [*members]
    if any(activity in one.memory_of for one in members) or any(activity in one.activities for one in limits.values()):
        return names.limited_queues(activity)
    pools = {(one.pool(activity), activity in one.spark_activities) for one in members}
    return tuple(queue for pool, spark in sorted(pools) for queue in names.work_queues(pool, spark=spark))


async def queued(store: Store, queues: Iterable[str], *, running: int = 0) -> tuple[int, Timestamp | None]:
    """Count about how many calls wait in queues of activities.

    A call that runs is an invisible message. So the visible ones are counted. If a queue has more of them than can be
    read at once, all messages count, but for those of calls that are known to run.

    :param running: how many calls of these queues are known to run.
    :returns: how many wait, and since when that one has been in its queue that has been there longest.
    """
    messages, visible, more, times = 0, 0, False, list[Timestamp]()
    for queue in queues:
        with suppress(NotFound):
            in_queue = await store.count(queue)
            found = await store.peek(queue, limit=MAX_RECEIVE) if in_queue else []
            messages, visible, more = messages + in_queue, visible + len(found), more or len(found) == MAX_RECEIVE
            times += [one.inserted for one in found[:1]]
    return max(visible, messages - running) if more else visible, min(times, default=None)
