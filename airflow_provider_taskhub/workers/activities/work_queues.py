"""Makes the queues of work items that only some activities use, and empties those that nobody reads.

The calls of an activity with a limit wait in a queue of this activity (:mod:`.places`). The calls of the activities of
a pool of workers wait in two queues of this pool: one for Spark activities and one for the others. A worker sends calls
there once it has made the queue. A call that lies in another queue, because its sender did not know the limit or the
pool, is moved there.

If a limit or pool is taken out of the code, or no live worker has the activity or belongs to the pool any more, nobody
reads the queue. Then this module moves the calls to the queue of all activities, where what always applies to them
applies. If no live worker belongs to the pool ``default``, the workers of other pools read the queue of all activities,
too, so that a call for which there is no worker does not wait without an end.

The limits of instances have no queues. They are read together with the others, and handed over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import structlog

from airflow_provider_taskhub.engine.registry import ActivityDefinition
from airflow_provider_taskhub.errors import InputError, NotFound, StorageError
from airflow_provider_taskhub.hub.formats.message_envelope import encode
from airflow_provider_taskhub.hub.history import places, pools
from airflow_provider_taskhub.hub.history.places import Limit, LimitKind, LimitState
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import ACTIVITY, Member, Need
from airflow_provider_taskhub.hub.partitions.capabilities import able
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.hub.queues.reader import decode_message
from airflow_provider_taskhub.storage.primitives import MAX_RECEIVE, DeleteMessage, PutMessage, Step, Unit
from airflow_provider_taskhub.telemetry import Outage
from airflow_provider_taskhub.worker_pools import DEFAULT_POOL

log = structlog.get_logger(__name__)

AGAIN = 5.0
"""Seconds until a queue is made again whose creation the store has refused."""
CHECK, SELDOM = 60.0, 600.0
"""Seconds between two looks for queues that no worker reads any more: while there are some, and while there are none. A
worker with other code may declare a limit, send calls to its queue, and end for good."""


States = Mapping[tuple[LimitKind, str], LimitState]
"""All limits of a hub, by kind and name."""


def limits_of(activities: Mapping[str, ActivityDefinition], pools: Collection[str]) -> dict[str, Limit]:
    """Return the limits that the code declares, by the names of the activities.

    :param pools: the pools of workers to which this worker belongs. Activities of other pools are left out.
    """
    return {
        name: Limit(name=name, places=activity.limit)
        for name, activity in activities.items()
        if activity.limit is not None and activity.pool in pools
    }


async def move(hub: Hub, held: Delivery, queue: str) -> None:
    """Move a work item to another queue. If it is cut off, two work items remain, of which only one runs.

    Its payload stays in the same blob, so the deletion is not that of a message whose work is done.
    """
    since = held.envelope.waiting_since or held.inserted  # the wait for a slot goes on
    # This delivery has begun nothing, so it does not count. The earlier ones do: an attempt may have begun.
    text = encode(replace(held.envelope, deliveries=held.deliveries - 1, waiting_since=since))
    steps = (
        Step(name="moved", operations=(PutMessage(queue=queue, text=text),)),
        Step(name="delete", operations=(DeleteMessage(queue=held.queue, message=held.receipt, quiet=True),)),
    )
    await hub.store.commit(Unit(steps=steps))


class WorkQueues:
    """Makes the queues of the limits and pools of a worker's activities, and empties the queues that no worker reads.

    :param activities: the activities of this worker.
    :param pools: the pools of workers to which this worker belongs.
    :param live: reads the live members of the hub.
    :param limit_made: called with the name of an activity with a limit, and its queue, once the queue exists.
    :param pool_made: called with the name of a pool of this worker's activities, once its queues exist.
    :param default_served: called after each look; False: no live worker belongs to the pool ``default``.
    :param look: looks after the limits of instances, and returns the seconds until the next look; None: there are none.
    :param visibility: how long a received message is hidden from other workers.
    """

    def __init__(
        self,
        hub: Hub,
        activities: Mapping[str, ActivityDefinition],
        pools: Collection[str],
        live: Callable[[], Coroutine[Any, Any, Sequence[Member]]],
        *,
        limit_made: Callable[[str, str], None],
        pool_made: Callable[[str], None],
        default_served: Callable[[bool], None],
        look: Callable[[States], Coroutine[Any, Any, float | None]],
        visibility: timedelta,
    ) -> None:
        self._visibility, self._look, self._soon = visibility, look, asyncio.Event()
        self._hub, self._activities, self._pools, self._live = hub, activities, pools, live
        self._limits, self._limit_made, self._pool_made = limits_of(activities, pools), limit_made, pool_made
        self._default_served = default_served

    def look_soon(self) -> None:
        """Look at the limits now: this worker has met the first limit of instances since it looked last."""
        self._soon.set()

    async def run(self) -> None:
        """Make the queues, then look after the limits and pools of the hub. Runs until cancelled."""
        hub, outage = self._hub, Outage(log, "limits_unreadable", self._hub.clock.monotonic)
        left = dict(self._limits)
        unmade = {one.pool for one in self._activities.values()} - {DEFAULT_POOL}
        while True:
            try:
                for pool in sorted(unmade):
                    await self._make_pool(pool)
                    unmade.remove(pool)
                for name, limit in list(left.items()):
                    await self._make(limit)
                    del left[name]
                rows = await places.read(hub.store, hub.names)
                found = places.states_in(rows)
                unread = await self._empty_unread(found, pools.known(rows))
                pauses = [CHECK if unread else SELDOM, await self._look(found) or SELDOM]
                outage.over()
            except StorageError as error:
                outage.failed(error)
                pauses = [AGAIN if left or unmade else CHECK]
            with suppress(TimeoutError):
                async with asyncio.timeout(min(pauses)):
                    await self._soon.wait()
            self._soon.clear()

    async def _make_pool(self, pool: str) -> None:
        hub = self._hub
        for spark in (False, True):
            await hub.store.create_queue(hub.names.pool(pool, spark=spark))
        await hub.store.execute(pools.declared(hub.names, pool))
        self._pool_made(pool)

    async def _make(self, limit: Limit) -> None:
        hub, queue = self._hub, self._hub.names.limited(limit.name)
        known = await places.state_of(hub.store, hub.names, limit)
        if known.declared not in (0, limit.places):
            log.warning("limit_changed", kind=limit.kind, limit=limit.name, before=known.declared, now=limit.places)
        await hub.store.create_queue(queue)
        await hub.store.execute(places.declared(hub.names, limit))
        self._limit_made(limit.name, queue)

    async def _empty_unread(self, found: States, known_pools: Sequence[str]) -> bool:
        """Move the calls of all queues that nobody reads. :returns: True if there are such queues."""
        hub = self._hub
        limits = [name for kind, name in found if kind is LimitKind.ACTIVITY and name not in self._limits]
        others = [name for name in known_pools if name not in self._pools]
        strange = DEFAULT_POOL not in self._pools
        members = await self._live() if limits or others or strange else ()
        workers = [member for member in members if member.alive and ACTIVITY in member.roles]
        served = {pool for member in workers for pool in member.pools}
        self._default_served(not strange or DEFAULT_POOL in served)
        for name in limits:
            known = self._activities.get(name)
            if (known is None or known.pool not in self._pools) and able(members, Need(ACTIVITY, name)):
                continue  # a worker that has the activity reads the queue, or empties it
            await self._empty(hub.names.limited(name), spark=known is not None and known.spark)
        for name in others:
            for spark in (False, True):
                if name not in served:
                    await self._empty(hub.names.pool(name, spark=spark), spark=spark)
        return bool(limits or others or strange)

    async def _empty(self, queue: str, *, spark: bool) -> None:
        """Move the calls of a queue to that of all Spark activities, or of all others."""
        hub, moved = self._hub, 0
        into = hub.names.spark_work_items if spark else hub.names.work_items
        while True:
            try:
                found = await hub.store.receive(queue, limit=MAX_RECEIVE, visibility=self._visibility)
            except NotFound:
                return
            for message in found:
                sent = hub.clock.monotonic()
                try:
                    held = await decode_message(hub.store, hub.names, queue, message, sent)
                except InputError as error:
                    name = message.receipt.message_id
                    log.warning("work_item_not_moved", queue=queue, message_id=name, error=str(error))
                    continue
                await move(hub, held, into)
                moved += 1
            if len(found) < MAX_RECEIVE:
                break
        if moved:
            log.info("unread_queue_emptied", queue=queue, into=into, messages=moved)
