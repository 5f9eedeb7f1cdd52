"""Looks after the limits of a hub: makes the queues of activities with a limit, and empties those that nobody reads.

The calls of an activity with a limit wait in a queue of this activity (:mod:`.places`). A worker sends them there once
it has made the queue. A call that lies in another queue, because its sender did not know the limit, is moved there.

If the limit is taken out of the code, or no live worker has the activity any more, nobody reads its queue. Then this
module moves the calls to the queue of all activities, where what always applies to them applies.

The limits of instances have no queues. They are read together with the others, and handed over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import structlog

from airflow_provider_taskhub.engine.registry import ActivityDefinition
from airflow_provider_taskhub.errors import InputError, NotFound, StorageError
from airflow_provider_taskhub.hub.formats.message_envelope import encode
from airflow_provider_taskhub.hub.history import places
from airflow_provider_taskhub.hub.history.places import Limit, LimitKind, LimitState
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import ACTIVITY, Member, Need
from airflow_provider_taskhub.hub.partitions.capabilities import able
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.hub.queues.reader import decode_message
from airflow_provider_taskhub.storage.primitives import MAX_RECEIVE, DeleteMessage, PutMessage, Step, Unit
from airflow_provider_taskhub.telemetry import Outage

log = structlog.get_logger(__name__)

AGAIN = 5.0
"""Seconds until a queue is made again whose creation the store has refused."""
CHECK, SELDOM = 60.0, 600.0
"""Seconds between two looks for queues that no worker reads any more: while there are some, and while there are none. A
worker with other code may declare a limit, send calls to its queue, and end for good."""


States = Mapping[tuple[LimitKind, str], LimitState]
"""All limits of a hub, by kind and name."""


def limits_of(activities: Mapping[str, ActivityDefinition]) -> dict[str, Limit]:
    """Return the limits that the code declares, by the names of the activities."""
    return {
        name: Limit(name=name, places=activity.limit)
        for name, activity in activities.items()
        if activity.limit is not None
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


class LimitedQueues:
    """Makes a queue for each activity of a worker that has a limit, and empties the queues that no worker reads.

    :param activities: the activities of this worker.
    :param live: reads the live members of the hub.
    :param made: called with the name of each activity with a limit, and the name of its queue, once the queue exists.
    :param look: looks after the limits of instances, and returns the seconds until the next look; None: there are none.
    :param visibility: how long a received message is hidden from other workers.
    """

    def __init__(
        self,
        hub: Hub,
        activities: Mapping[str, ActivityDefinition],
        live: Callable[[], Coroutine[Any, Any, Sequence[Member]]],
        *,
        made: Callable[[str, str], None],
        look: Callable[[States], Coroutine[Any, Any, float | None]],
        visibility: timedelta,
    ) -> None:
        self._visibility, self._look, self._soon = visibility, look, asyncio.Event()
        self._hub, self._activities, self._live, self._made = hub, activities, live, made
        self._limits = limits_of(activities)

    def look_soon(self) -> None:
        """Look at the limits now: this worker has met the first limit of instances since it looked last."""
        self._soon.set()

    async def run(self) -> None:
        """Make the queues, then look after the limits of the hub. Runs until cancelled."""
        hub, outage = self._hub, Outage(log, "limits_unreadable", self._hub.clock.monotonic)
        left = dict(self._limits)
        while True:
            try:
                for name, limit in list(left.items()):
                    await self._make(limit)
                    del left[name]
                found = await places.states(hub.store, hub.names)
                pauses = [CHECK if await self._empty_unread(found) else SELDOM, await self._look(found) or SELDOM]
                outage.over()
            except StorageError as error:
                outage.failed(error)
                pauses = [AGAIN if left else CHECK]
            with suppress(TimeoutError):
                async with asyncio.timeout(min(pauses)):
                    await self._soon.wait()
            self._soon.clear()

    async def _make(self, limit: Limit) -> None:
        hub, queue = self._hub, self._hub.names.limited(limit.name)
        known = await places.state_of(hub.store, hub.names, limit)
        if known.declared not in (0, limit.places):
            log.warning("limit_changed", kind=limit.kind, limit=limit.name, before=known.declared, now=limit.places)
        await hub.store.create_queue(queue)
        await hub.store.execute(places.declared(hub.names, limit))
        self._made(limit.name, queue)

    async def _empty_unread(self, found: States) -> bool:
        """Move the calls of all queues that nobody reads. :returns: True if there are such queues."""
        hub = self._hub
        unread = [name for kind, name in found if kind is LimitKind.ACTIVITY and name not in self._limits]
        members = await self._live() if unread else ()
        for name in unread:
            known = self._activities.get(name)
            if known is None and able(members, Need(ACTIVITY, name)):
                continue  # a worker that has the activity reads the queue, or empties it
            spark = known is not None and known.spark
            into = hub.names.spark_work_items if spark else hub.names.work_items
            await self._empty(hub.names.limited(name), into)
        return bool(unread)

    async def _empty(self, queue: str, into: str) -> None:
        hub, moved = self._hub, 0
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
            log.info("limited_queue_emptied", queue=queue, into=into, messages=moved)
