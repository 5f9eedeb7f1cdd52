"""Lets instances with a limit begin: at most so many of them run at once in the hub (:class:`.InstanceLimit`).

The owner of a partition asks for a place before it runs the first episode of an instance, and before the first episode
after a rewind. A place (:mod:`.history.places`) names the instance, and is held until the instance has ended. If no
place is free, the owner stores the message in a row (:mod:`.history.waiting_instances`), and deletes it from the queue.

The worker that ends an instance frees its place, gives it to the instance that waits longest, and puts the message of
this instance back into its queue. The one that waits first stores its row and then looks for a free place. The one that
frees a place first frees it and then looks for rows. So one of them sees the other, and no free place is left unused.
If a worker dies in between, a later look (:meth:`InstancePlaces.look`) does the rest.

Each step can be repeated. The message is put again before its row is deleted, and a worker ignores a start that has
already run.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice

import structlog

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.concurrency import gather_bounded
from airflow_provider_taskhub.engine.events import OrchestrationInstance
from airflow_provider_taskhub.engine.identity import same_start
from airflow_provider_taskhub.errors import Conflict, NotFound
from airflow_provider_taskhub.hub.history import places, waiting_instances
from airflow_provider_taskhub.hub.history.places import Limit, LimitKind, LimitState, Place
from airflow_provider_taskhub.hub.history.waiting_instances import WaitingInstance
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.instance_limit import InstanceLimit
from airflow_provider_taskhub.storage.primitives import PutMessage, Step, Unit

log = structlog.get_logger(__name__)

TRIES = 5
"""How often a place is tried that another worker takes at the same moment."""
AT_ONCE = 16
"""How many waiting instances are read at once."""


def limit_of(limit: InstanceLimit) -> Limit:
    """Return the limit as the rows of the hub know it."""
    return Limit(name=limit.name, places=limit.instances, kind=LimitKind.INSTANCES)


_Seen = tuple[int, str | None]
"""The number of a place and the ETag of its row."""


class InstancePlaces:
    """The places of the limits of instances in a hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub, self._noting = hub, asyncio.Lock()
        self._said = defaultdict[str, set[tuple[Timestamp, int]]](set)
        """By limit, the starts that are not noted yet: when they were made, and their numbers."""
        self._final: dict[str, Collection[_Seen]] = {}
        """By limit, the places whose instances had ended at the last look, each with the ETag of its row."""

    async def admit(self, limit: InstanceLimit, waiting: WaitingInstance, made: Timestamp | None = None) -> bool:
        """Take a place for an instance. If none is free, let the instance wait.

        :param waiting: the instance, and the message that lets it begin or go on.
        :param made: when its start was made. The number of the start that was made last counts, as far as the clocks of
            those who start agree. None: its number counts only if the hub does not know the limit, as after a rewind.
        :returns: False: the instance waits. Its message is stored, so it can be deleted from the queue.
        """
        hub, wanted = self._hub, limit_of(limit)
        for _ in range(TRIES):
            found = await places.state_of(hub.store, hub.names, wanted)
            own = _place_of(found, waiting.instance)
            if own is not None and not waiting.again:
                return True
            if own is not None:  # it was rewound or read again: a late end of its run must not free the place any more
                if await self._give(own, waiting):
                    return True
                continue
            if made is not None and found.after_start(limit.instances, made) is not found:
                await self._note(wanted, made)
                found = await places.state_of(hub.store, hub.names, wanted)
            elif not found.declared:
                await hub.store.execute(places.declared(hub.names, wanted))
                found = replace(found, declared=wanted.places)
            free = next(found.free(), None)
            if free is None or await waiting_instances.first(hub.store, hub.names, limit.name, 1):
                break
            if await self._give(free, waiting):
                return True
        await self._store(limit.name, waiting)
        log.info("instance_waits_for_place", instance_id=waiting.instance.instance_id, limit=limit.name)
        await self.advance(limit.name)
        return False

    async def _note(self, wanted: Limit, made: Timestamp) -> None:
        """Note the number that a start gives. Starts that come at the same moment are noted in one write."""
        said = self._said[wanted.name]
        said.add((made, wanted.places))
        async with self._noting:
            for _ in range(TRIES):
                if (made, wanted.places) not in said:
                    return
                found = after = await places.state_of(self._hub.store, self._hub.names, wanted)
                noted = sorted(said)
                for when, number in noted:
                    after = after.after_start(number, when)
                if after is found or await self._noted(found, after):
                    said.difference_update(noted)

    async def _noted(self, found: LimitState, after: LimitState) -> bool:
        """Store what starts say about a limit. :returns: False if another worker has changed the row."""
        try:
            await self._hub.store.execute(places.started(self._hub.names, found, after))
        except (Conflict, NotFound):
            return False
        if found.declared not in (0, after.declared):
            log.warning("limit_changed", kind=found.kind, limit=found.name, before=found.declared, now=after.declared)
        return True

    async def leave(self, limit: InstanceLimit, instance: OrchestrationInstance) -> None:
        """Free the place of an instance that has ended, and let the next instance begin. If the instance was rewound
        since, it keeps the place.

        :param instance: the instance, with the execution id of any of its generations.
        """
        found = await places.state_of(self._hub.store, self._hub.names, limit_of(limit))
        for place in found.holders:
            if place.is_of_run(instance) and await self._has_ended(place):
                await self._free(place)
        if _place_of(found, instance) is None:  # it has ended while it waited; if it was rewound since, it waits again
            for waiting in await waiting_instances.of_instance(self._hub.store, self._hub.names, limit.name, instance):
                if not await self._still_waits(waiting):
                    await self._remove(limit.name, waiting)
        await self.advance(limit.name)

    async def advance(self, name: str) -> bool:
        """Give the free places of a limit to the instances that wait, in their order.

        :param name: name of the limit.
        :returns: True if instances still wait.
        """
        hub, wanted = self._hub, Limit(name=name, places=1, kind=LimitKind.INSTANCES)
        conflicts = 0
        while conflicts < TRIES:
            waiting = await waiting_instances.first(hub.store, hub.names, name, AT_ONCE)
            if not waiting:
                return False
            found = await places.state_of(hub.store, hub.names, wanted)
            free = [*islice(found.free(), len(waiting))]
            progress = False
            for one in waiting:
                if _place_of(found, one.instance) is None:  # it has one if a worker died before it deleted the row
                    if not free:
                        continue
                    if not await self._still_waits(one):
                        await self._remove(name, one)
                        progress = True
                        continue
                    if not await self._give(free.pop(0), one):  # another worker does the same: read again
                        conflicts += 1
                        progress = True
                        break
                await self._send(name, one)
                progress = True
            if not progress:
                return True
        return True

    async def look(self, state: LimitState) -> bool:
        """Free the places of a limit whose instances have ended, and let others begin: what a dead worker has left.

        A place is freed if its instance had ended at two looks. In between, an instance that is just being rewound has
        become Pending.

        :param state: the limit, as it was just read.
        :returns: True if instances wait.
        """
        before = self._final.pop(state.name, set())
        looked = await gather_bounded(partial(self._look_at, state.name, before), state.holders, limit=AT_ONCE)
        now = {seen for seen in looked if seen is not None}
        if now:
            self._final[state.name] = now
        return await self.advance(state.name)

    async def _look_at(self, name: str, before: Collection[_Seen], place: Place) -> _Seen | None:
        """Free a place, or send the message of its instance, if a dead worker has left that undone.

        :param before: the places whose instances had ended at the last look.
        :returns: the place if its instance has ended and it is not free yet.
        """
        if await self._has_ended(place):
            seen = (place.number, place.row.etag if place.row is not None else None)
            if seen not in before:
                return seen
            await self._free(place)
        elif place.waiting:
            hub = self._hub
            left = await waiting_instances.get(hub.store, hub.names, name, place.waiting)
            if left is not None and place.is_of_run(left.instance):
                await self._send(name, left)
        return None

    async def _has_ended(self, place: Place) -> bool:
        row = await self._hub.instance(place.instance.instance_id)
        if row is None or not same_start(row.execution_id, place.instance.execution_id):
            return True
        return row.status.is_final

    async def _still_waits(self, waiting: WaitingInstance) -> bool:
        """Return False if the instance was terminated, purged or started anew since it began to wait."""
        row = await self._hub.instance(waiting.instance.instance_id)
        if row is None or not same_start(row.execution_id, waiting.instance.execution_id):
            return False
        return not row.status.is_final

    async def _give(self, place: Place, waiting: WaitingInstance) -> bool:
        """Give a place to an instance. :returns: False if another worker has changed the place."""
        row_key = waiting.row_key if waiting.etag is not None else ""
        try:
            await self._hub.store.execute(places.given(self._hub.names, place, waiting.instance, row_key))
        except (Conflict, NotFound):
            return False
        return True

    async def _free(self, place: Place) -> None:
        with suppress(Conflict, NotFound):
            await self._hub.store.execute(places.freed(self._hub.names, place))

    async def _store(self, limit: str, waiting: WaitingInstance) -> None:
        """Let an instance wait. The message of a rewind stays if it is stored already."""
        hub = self._hub
        if waiting.again and await waiting_instances.of_instance(hub.store, hub.names, limit, waiting.instance):
            return
        await hub.store.execute(waiting_instances.stored(hub.names, limit, waiting))

    async def _send(self, limit: str, waiting: WaitingInstance) -> None:
        """Put the message of an instance that has a place into its queue again, then delete the row."""
        hub = self._hub
        put = PutMessage(queue=hub.queue_of(waiting.instance.instance_id), text=waiting.text)
        await hub.store.commit(Unit(steps=(Step(name="outbound", operations=(put,)),)))
        await self._remove(limit, waiting)

    async def _remove(self, limit: str, waiting: WaitingInstance) -> None:
        with suppress(Conflict, NotFound):  # another worker was faster
            await self._hub.store.execute(waiting_instances.removed(self._hub.names, limit, waiting))


def _place_of(state: LimitState, instance: OrchestrationInstance) -> Place | None:
    return next((place for place in state.holders if place.is_of_run(instance)), None)
