"""Makes the queues of work items that only some activities use, and empties those that nobody reads.

The calls of an activity with a limit (:mod:`.places`) or a need for memory wait in queues of this activity. The calls
of the activities of a pool of workers wait in queues of this pool, some for Spark activities and some for the others. A
worker sends calls there once it has made the queues. A call that lies in another queue, because its sender did not know
the limit, the need or the pool, is moved there.

What waits in a queue stays there, also while no live worker reads it: workers may come. Only these things are done with
such a queue. If no live worker declares the limit, need or pool any more, its calls are moved to the queue of all
activities, where what always applies to them applies. If no live worker has the memory for an activity, its calls are
moved to the queue of its pool, where they wait for one that has it. If a worker of another pool can run them, because
its code is newer or older, a worker that declares the pool moves them to that pool. If they have waited in vain for the
no-worker timeout, it moves them to the queue of all activities, where they fail. The queues of the pool ``default`` are
read by workers of other pools if it has no live worker.

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

from airflow_provider_taskhub.concurrency import gather_bounded
from airflow_provider_taskhub.engine.registry import ActivityDefinition
from airflow_provider_taskhub.errors import InputError, NotFound, StorageError
from airflow_provider_taskhub.hub.formats.message_envelope import encode
from airflow_provider_taskhub.hub.history import own_queues, places, pools, waiting_calls
from airflow_provider_taskhub.hub.history.places import Limit, LimitKind, LimitState
from airflow_provider_taskhub.hub.history.waiting_calls import WaitingCall
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import ACTIVITY, Member, Need
from airflow_provider_taskhub.hub.partitions.capabilities import able
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.hub.queues.reader import decode_message
from airflow_provider_taskhub.storage.primitives import MAX_RECEIVE, DeleteMessage, PutMessage, Step, Unit
from airflow_provider_taskhub.telemetry import Outage
from airflow_provider_taskhub.worker_pools import DEFAULT_POOL
from airflow_provider_taskhub.workers.activities.activity_limits import limits_of
from airflow_provider_taskhub.workers.missing_functions import MissingFunctions

log = structlog.get_logger(__name__)

AGAIN = 5.0
"""Seconds until a queue is made again whose creation the store has refused."""
CHECK, SELDOM = 60.0, 600.0
"""Seconds between two looks for queues that no worker reads any more: while there are some, and while there are none. A
worker with other code may declare a limit, send calls to its queue, and end for good."""


States = Mapping[tuple[LimitKind, str], LimitState]
"""All limits of a hub, by kind and name."""


async def move(hub: Hub, held: Delivery, queue: str) -> None:
    """Move a work item to another queue.

    If it is cut off, two work items remain. Of an activity with a record only one runs. An activity without a record
    may run twice, as after the death of a worker.

    The payload stays in the same blob, so the deletion is not that of a message whose work is done.
    """
    # This delivery has begun nothing, so it does not count. The earlier ones do: an attempt may have begun.
    since = held.envelope.waiting_since or held.inserted  # the wait for a slot goes on
    text = encode(replace(held.envelope, deliveries=held.deliveries - 1, waiting_since=since))
    async with held.changing:
        steps = (
            Step(name="moved", operations=(PutMessage(queue=queue, text=text),)),
            Step(name="delete", operations=(DeleteMessage(queue=held.queue, message=held.receipt, quiet=True),)),
        )
        await hub.store.commit(Unit(steps=steps))


class WorkQueues:
    """Makes the queues of the limits and pools of a worker's activities, and empties the queues that no worker reads.

    :param activities: the activities of this worker.
    :param pools: the pools of workers to which this worker belongs.
    :param runnable: those of the activities that this worker runs.
    :param live: reads the live members of the hub.
    :param absences: tracks for how long no live worker could run an activity.
    :param queue_made: called with the name of an activity that has a queue of its own, and this queue, once it exists.
    :param pool_made: called with the name of a pool of this worker's activities, once its queues exist.
    :param default_served: called after each look of a worker that does not belong to the pool ``default``, with whether
        a live worker does.
    :param look: looks after the limits of instances, and returns the seconds until the next look; None: there are none.
    :param visibility: how long a received message is hidden from other workers.
    """

    def __init__(
        self,
        hub: Hub,
        activities: Mapping[str, ActivityDefinition],
        pools: Collection[str],
        runnable: Collection[str],
        live: Callable[[], Coroutine[Any, Any, Sequence[Member]]],
        absences: MissingFunctions,
        *,
        queue_made: Callable[[str, str], None],
        pool_made: Callable[[str], None],
        default_served: Callable[[bool], None],
        look: Callable[[States], Coroutine[Any, Any, float | None]],
        visibility: timedelta,
    ) -> None:
        self._visibility, self._look, self._soon = visibility, look, asyncio.Event()
        self._hub, self._activities, self._pools, self._live = hub, activities, pools, live
        self._absences, self._default_served = absences, default_served
        self._queue_made, self._pool_made, self._runnable = queue_made, pool_made, runnable
        self.tried = asyncio.Event()
        """Set once the queues of the pool ``default`` exist, or the store has refused to make them."""

    def look_soon(self) -> None:
        """Look at the limits now: this worker has met the first limit of instances since it looked last."""
        self._soon.set()

    async def run(self) -> None:
        """Make the queues, then look after the limits and pools of the hub. Runs until cancelled."""
        hub = self._hub
        unmade = Outage(log, "queues_not_made", hub.clock.monotonic)
        unread = Outage(log, "limits_unreadable", hub.clock.monotonic)
        queues = [name for name, one in self._activities.items() if one.has_queue]
        others = {one.pool for one in self._activities.values()} - {DEFAULT_POOL}
        left = [DEFAULT_POOL, *sorted(others)]
        while True:
            pauses = []
            try:
                await self._make_missing(queues, left)
                unmade.over()
            except StorageError as error:
                unmade.failed(error)
                # Calls wait for the queues of the others, and only overflow from those of the default pool.
                pauses.append(AGAIN if queues or left != [DEFAULT_POOL] else CHECK)
            try:
                rows = await places.read(hub.store, hub.names)
                found = places.states_in(rows)
                pauses.append(await self._look(found) or SELDOM)
                if places.were_divided(rows):
                    pauses.append(await self._look_at_rows(own_queues.known(rows), found))
                pauses.append(await self._look_at_unread(own_queues.known(rows), pools.known(rows)))
                unread.over()
            except StorageError as error:
                unread.failed(error)
                pauses.append(CHECK)
            with suppress(TimeoutError):
                async with asyncio.timeout(min(pauses)):
                    await self._soon.wait()
            self._soon.clear()

    async def _make_missing(self, activities: list[str], left: list[str]) -> None:
        """Make queues, and take from the lists what was made.

        :param activities: the activities whose queues are missing.
        :param left: the pools whose queues are missing.
        :raises StorageError: if the store has refused one. The others were made as far as possible.
        """
        refused: StorageError | None = None
        if DEFAULT_POOL in left:
            try:
                await self._make_pool(DEFAULT_POOL)
                left.remove(DEFAULT_POOL)
            except StorageError as error:
                refused = error
            self.tried.set()
        while activities:
            await self._make(activities[0])
            activities.pop(0)
        for pool in [one for one in left if one != DEFAULT_POOL]:
            await self._make_pool(pool)
            left.remove(pool)
        if refused is not None:
            raise refused

    async def _make_pool(self, pool: str) -> None:
        hub, queues = self._hub, self._hub.names.pool_queues(pool)
        await gather_bounded(hub.store.create_queue, queues, limit=len(queues))
        if pool != DEFAULT_POOL:
            await hub.store.execute(pools.declared(hub.names, pool))
        self._pool_made(pool)

    async def _make(self, activity: str) -> None:
        hub, queues, definition = self._hub, self._hub.names.limited_queues(activity), self._activities[activity]
        name = definition.limit_name
        declared = {limit.kind: limit for limit in limits_of(definition)}
        others = any(one.limited and one.limit_name == name for one in self._activities.values())
        for kind in () if others and not definition.limited else (LimitKind.ACTIVITY, LimitKind.RATE):
            limit = declared.get(kind)
            if limit is None:
                await self._retire(Limit(name=name, places=0, kind=kind))
                continue
            known = await places.state_of(hub.store, hub.names, limit)
            before, now = replace(known, ordered=None).shown, limit.shown
            if known.declared and before != now:
                log.warning("limit_changed", kind=limit.kind, limit=limit.name, before=before, now=now)
            await hub.store.execute(places.declared(hub.names, limit))
        await gather_bounded(hub.store.create_queue, queues, limit=len(queues))
        await hub.store.execute(own_queues.declared(hub.names, activity, name if definition.limited else ""))
        self._queue_made(activity, queues[0])

    async def _retire(self, limit: Limit) -> None:
        """Note that the code does not declare a limit any more, if the hub has it."""
        hub = self._hub
        if (await places.state_of(hub.store, hub.names, limit)).declared:
            await hub.store.execute(places.declared(hub.names, limit))

    async def _look_at_unread(self, own: Mapping[str, str], known_pools: Sequence[str]) -> float:
        """Look after the queues that this worker does not read.

        :param own: the activities with queues of their own, and the names of their limits.
        :returns: the seconds until the next look.
        """
        activities = [name for name in own if not self._reads_queue_of(name)]
        others = [name for name in (DEFAULT_POOL, *known_pools) if name not in self._pools]
        if not activities and not others:
            return SELDOM
        members = await self._live()
        workers = [member for member in members if member.alive and ACTIVITY in member.roles]
        unread = [await self._look_at_queue_of(name, own[name], workers) for name in activities]
        unread += [await self._look_at_pool(name, workers) for name in others]
        return CHECK if any(unread) else SELDOM

    async def _look_at_rows(self, own: Mapping[str, str], limits: States) -> float:
        """Put calls that wait in rows for a divided limit into their queues if no worker looks after the rows.

        :param own: the activities with queues of their own, and the names of their limits.
        :param limits: the limits of the hub, as the code of the newest workers has them.
        :returns: the seconds until the next look.
        """
        hub, workers = self._hub, [one for one in await self._live() if one.alive]

        def is_left(call: WaitingCall) -> bool:
            if own.get(call.activity) != call.limit or not able(workers, Need(ACTIVITY, call.activity)):
                return True
            states = (limits.get((kind, call.limit)) for kind in (LimitKind.ACTIVITY, LimitKind.RATE))
            return not any(state is not None and state.key_tag == call.tag for state in states)

        async for limit, value in waiting_calls.everything(hub.store, hub.names):
            while found := await waiting_calls.first(hub.store, hub.names, limit, value, 1):
                if not is_left(found[0]):
                    break
                await waiting_calls.send(hub.store, hub.names, found[0])
        return CHECK

    def _reads_queue_of(self, activity: str) -> bool:
        return activity in self._runnable and self._activities[activity].has_queue

    async def _look_at_queue_of(self, activity: str, limit_name: str, workers: Sequence[Member]) -> bool:
        """Move the calls in the queues of an activity to the queue of its pool if no worker reads them.

        :param limit_name: name of the limit; "": the code of the newest worker has none.
        :returns: True: look again soon.
        """
        known = self._activities.get(activity)
        if limit_name and known is not None and not known.limited:  # the code of the newest worker counts
            await self._hub.store.execute(own_queues.declared(self._hub.names, activity, ""))
        if (known is None or known.has_queue) and able(workers, Need(ACTIVITY, activity)):
            return True  # a worker that has the activity reads the queues, or empties them
        pool, spark = (DEFAULT_POOL, False) if known is None else (known.pool, known.spark)
        names = self._hub.names
        for queue, into in zip(names.limited_queues(activity), names.work_queues(pool, spark=spark), strict=True):
            await self._empty(queue, into)
        return True

    async def _look_at_pool(self, pool: str, workers: Sequence[Member]) -> bool:
        """Look after the queues of a pool to which this worker does not belong.

        :returns: True: look again soon.
        """
        names, served = self._hub.names, any(pool in member.pools for member in workers)
        mine = [name for name, one in self._activities.items() if one.pool == pool]
        if pool == DEFAULT_POOL:
            self._default_served(served)
        elif mine and not served:
            needs = [Need(ACTIVITY, name) for name in mine]
            for spark in (False, True):
                for lane, queue in enumerate(names.work_queues(pool, spark=spark)):
                    if await self._hub.store.count(queue):
                        await self._pass_on(queue, lane, workers, needs, spark=spark)
        elif not served and not any(pool in member.pool_of.values() for member in workers):
            for spark in (False, True):
                into = names.work_queues(DEFAULT_POOL, spark=spark)
                for queue, other in zip(names.work_queues(pool, spark=spark), into, strict=True):
                    await self._empty(queue, other)
        return True

    async def _pass_on(
        self, queue: str, lane: int, workers: Sequence[Member], needs: Sequence[Need], *, spark: bool
    ) -> None:
        """Move the calls of a pool that a worker of another pool can run, and those that have waited too long.

        :param queue: a queue of the pool.
        :param lane: its place among them. The calls are moved to the same one of another pool.
        :param needs: the activities of this pool that this worker's code has.
        :param spark: whether the queue is for Spark activities.
        """
        names, lasts = self._hub.names, [self._absences.lasts(need) for need in needs]  # asking begins the absence
        while any(lasts) or any(able(workers, need) for need in needs):
            stays, found = [], await self._receive(queue)
            for held in found:
                need = Need(ACTIVITY, getattr(held.message.event, "name", ""))
                waited = held.received(self._visibility) - held.first_put
                if others := able(workers, need):
                    await move(self._hub, held, names.work_queues(others[0].pool(need.name), spark=spark)[lane])
                elif self._absences.gave_up(need, waited) is not None:
                    await move(self._hub, held, names.work_queues(DEFAULT_POOL, spark=spark)[lane])
                else:
                    stays.append(held)
            for held in stays:
                if (back := held.returning(delay=timedelta(0), begun=False)) is not None:
                    await self._hub.store.execute(back)
            if stays or not found:  # those behind them are younger
                return

    async def _receive(self, queue: str) -> list[Delivery]:
        """Receive and decode work items. Those that cannot be decoded come again, and a reader of the queue moves them
        to quarantine."""
        hub, found = self._hub, []
        sent = hub.clock.monotonic()
        for message in await hub.store.receive(queue, limit=MAX_RECEIVE, visibility=self._visibility):
            try:
                found.append(await decode_message(hub.store, hub.names, queue, message, sent))
            except InputError as error:
                name = message.receipt.message_id
                log.warning("work_item_not_moved", queue=queue, message_id=name, error=str(error))
        return found

    async def _empty(self, queue: str, into: str) -> None:
        hub, moved = self._hub, 0
        with suppress(NotFound):
            left = await hub.store.count(queue)  # a worker with other code may move calls back
            while moved < left and (found := await self._receive(queue)):
                for held in found:
                    await move(hub, held, into)
                moved += len(found)
        if moved:
            log.info("unread_queue_emptied", queue=queue, into=into, messages=moved)
