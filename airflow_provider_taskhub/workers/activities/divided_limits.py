"""Decides when calls of activities with a divided limit begin: each value of a tag has places of its own.

``@app.activity(limit=2, limit_key="tenant")`` lets two attempts run at once for each value of the tag ``tenant`` of the
calls. The calls of an activity share its queues. If a worker receives a call and finds no free place for its value, it
stores the call in a row (:mod:`.waiting_calls`) and takes it out of the queue, so that it holds up no other value. Who
frees a place puts the first calls of the value into their queues again. If more come back than there are places, or if
others were faster, they wait in their rows again, in the same order.

A worker may die in between. Then its places are freed as those of other limits. From time to time, each worker searches
for values of which calls wait, and looks after its share of them.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import structlog

from airflow_provider_taskhub.concurrency import gather_bounded
from airflow_provider_taskhub.engine.events import TaskScheduled
from airflow_provider_taskhub.errors import StorageError
from airflow_provider_taskhub.hub.formats.message_envelope import encode
from airflow_provider_taskhub.hub.history import places as rows
from airflow_provider_taskhub.hub.history import waiting_calls
from airflow_provider_taskhub.hub.history.places import Limit
from airflow_provider_taskhub.hub.history.waiting_calls import WaitingCall
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import ACTIVITY, ActivityRecord, Need, WorkerIdentity
from airflow_provider_taskhub.hub.partitions.capabilities import able
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.hub.queues.lane_reader import LaneReader
from airflow_provider_taskhub.hub.queues.reader import Reader
from airflow_provider_taskhub.storage.primitives import MAX_RECEIVE, DeleteMessage, Step, Unit
from airflow_provider_taskhub.supervision import Supervisor
from airflow_provider_taskhub.telemetry import Outage
from airflow_provider_taskhub.workers.activities.begins import Unasked
from airflow_provider_taskhub.workers.activities.hub_places import FIRST_LOOK, FULL, SELDOM, HubPlaces
from airflow_provider_taskhub.workers.peers import Peers

log = structlog.get_logger(__name__)

AT_ONCE = 8
"""How many values this worker looks at in parallel."""


@dataclass(slots=True)
class _Value:
    """A value of which this worker has calls, or looks after those that wait.

    :ivar places: the places of the limit, then those of the rate.
    :ivar calls: the work items of this worker that ask for places, or have them.
    :ivar waiting: whether calls may wait.
    :ivar looked: monotonic time of the last look.
    """

    places: Sequence[HubPlaces]
    calls: set[Delivery] = field(default_factory=set)
    waiting: bool = False
    looked: float = float("-inf")


class DividedLimits:
    """The limit and the rate that some activities share, divided by the values of a tag.

    :param name: name of the limit.
    :param tag: the tag of the calls.
    :param activities: the activities that share it.
    :param limits: the limit and the rate, as the code declares them.
    :param places_of: makes the places of a limit.
    :param me: the identity of this worker.
    """

    def __init__(
        self,
        hub: Hub,
        name: str,
        tag: str,
        activities: Collection[str],
        limits: Sequence[Limit],
        places_of: Callable[[Limit], HubPlaces],
        *,
        me: WorkerIdentity,
        peers: Peers,
    ) -> None:
        self.name, self._tag, self._activities, self._hub = name, tag, activities, hub
        self._limits, self._places_of, self._me, self._peers = tuple(limits), places_of, str(me), peers
        self.begins_within = min(places_of(limit).begins_within for limit in limits)
        """Seconds within which an attempt must begin after :meth:`confirm`."""
        self._values: dict[str, _Value] = {}
        self._may_read: dict[LaneReader, Callable[[], bool]] = {}
        self._numbers_read, self._numbers = float("-inf"), asyncio.Lock()
        self._open, self._soon = asyncio.Event(), asyncio.Event()

    def open(self) -> None:
        """Begin to look after the places: a queue exists."""
        self._open.set()

    def start(self, supervisor: Supervisor) -> None:
        """Keep looking after the places."""
        supervisor.keep(f"limit {self.name} for each {self._tag}", self._run)
        supervisor.keep(f"calls that wait for {self.name}", self._keep_searching)

    # receiving: the value of a call is not known before, so no place keeps a reader from receiving

    def join(self, reader: LaneReader, may: Callable[[], bool]) -> None:
        """Let a reader share the places. :param may: tells whether it may read."""
        self._may_read[reader] = may

    def room(self, reader: Reader) -> int:
        return MAX_RECEIVE

    def freed(self) -> None: ...

    def expect(self, held: Delivery, reader: Reader) -> None: ...

    def decided(self, held: Delivery) -> None: ...

    # attempts

    async def take(self, record: ActivityRecord, held: Delivery) -> bool:
        """Take a place of each for an attempt whose record this worker claims next, unless others come before it.

        :param held: the work item of the call.
        :returns: False if no place is free.
        :raises Unasked: if the store does not answer, or refuses the request.
        """
        mine, taken, done = self._waiting(held), list[HubPlaces](), False
        of = self._of(mine.value)
        of.calls.add(held)
        try:
            await self._read_numbers()
            found = await waiting_calls.first(self._hub.store, self._hub.names, self.name, mine.value, 1)
            others_first = bool(found) and found[0].row_key < mine.row_key
            for places in of.places:
                if not await places.take(record, others_first=others_first):
                    return False
                taken.append(places)
            done = True
            self._soon.set()  # the next look may be due earlier now
            return True
        except StorageError as error:
            raise Unasked(str(error)) from error
        finally:
            if not done:
                for places in taken:
                    await places.undo(record)

    async def turn_away(self, held: Delivery, reader: Reader) -> None:
        """Let a call wait for which no place is free.

        :raises Unasked: if the store does not answer, or refuses the request.
        """
        mine, hub = self._waiting(held), self._hub
        # This delivery has begun nothing, so it does not count, as in a move to another queue.
        text = encode(replace(held.envelope, deliveries=held.deliveries - 1, waiting_since=mine.since, more=None))
        steps = (
            Step(name="waiting call", operations=(waiting_calls.stored(hub.names, replace(mine, text=text)),)),
            Step(name="delete", operations=(DeleteMessage(queue=held.queue, message=held.receipt, quiet=True),)),
        )
        try:
            async with held.changing:
                await hub.store.commit(Unit(steps=steps))
        except StorageError as error:
            raise Unasked(str(error)) from error
        reader.release([held])
        of = self._of(mine.value)
        of.waiting = True
        self._soon.set()

    async def confirm(self, record: ActivityRecord, held: Delivery) -> bool:
        """Return True if the attempt still has its places. Call this after its record was claimed, before it runs.

        :raises Unasked: if the store does not answer, or refuses the request.
        """
        for places in self._of(self._waiting(held).value).places:
            if not await places.confirm(record):
                return False
        return True

    def forget(self, record: ActivityRecord, held: Delivery) -> None:
        """Note that this worker has not claimed the record of an attempt for which it has taken places."""
        for places in self._of(self._waiting(held).value).places:
            places.forget(record)

    async def leave(self, record: ActivityRecord, held: Delivery) -> None:
        """Note that an attempt has ended. The next calls of its value may begin."""
        for places in self._of(self._waiting(held).value).places:
            await places.leave(record)
        await self.dropped(held)

    async def dropped(self, held: Delivery) -> None:
        """Note that this worker is done with a call. The next calls of its value may begin."""
        value = self._waiting(held).value
        self._of(value).calls.discard(held)
        try:
            await self._advance(value)
        except StorageError as error:  # a later look does it
            log.info("waiting_calls_unread", limit=self.name, error=str(error))

    # calls that wait

    async def _advance(self, value: str) -> None:
        """Put as many of the calls that wait into their queues as places are free."""
        of, hub = self._of(value), self._hub
        await self._read_numbers()
        free = min([await places.read_free() for places in of.places])
        found = await waiting_calls.first(hub.store, hub.names, self.name, value, max(1, min(free, MAX_RECEIVE)))
        if found:
            self._of(value).waiting = True  # a look may have forgotten the value meanwhile
        else:
            of.waiting = False
        for call in found[:free]:
            await waiting_calls.send(hub.store, hub.names, call)
            queue = waiting_calls.queue_of(hub.names, call)
            for reader in self._may_read:
                reader.look(queue)  # the worker that has freed a place often has a free slot

    # looks

    async def _run(self) -> None:
        """Look after the places and the calls that wait. Runs until cancelled."""
        await self._open.wait()
        outage = Outage(log.bind(limit=self.name), "places_unreadable", self._hub.clock.monotonic)
        while True:
            self._soon.clear()
            pause: float | None = FIRST_LOOK
            try:
                due = [value for value, of in self._values.items() if self._next(of) <= 0]
                await gather_bounded(self._look_at, due, limit=AT_ONCE)
                outage.over()
                pause = min(map(self._next, self._values.values()), default=None)
            except StorageError as error:
                outage.failed(error)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._soon.wait()

    async def _keep_searching(self) -> None:
        """Search for values that nobody may look after, because their workers have died. Runs until cancelled."""
        await self._open.wait()
        outage = Outage(log.bind(limit=self.name), "places_unreadable", self._hub.clock.monotonic)
        while True:
            try:
                await self._search()
                outage.over()
            except StorageError as error:
                outage.failed(error)
            self._soon.set()
            await self._hub.clock.sleep(SELDOM)

    async def _search(self) -> None:
        """Find the values of which calls wait or somebody has a place, and look after this worker's share of them. A
        worker with a free slot looks after all of which calls wait: those whose share they are may have none."""
        store, names = self._hub.store, self._hub.names
        members = await self._peers.live()
        workers = {one.worker for name in self._activities for one in able(members, Need(ACTIVITY, name))} | {self._me}

        def is_mine(value: str) -> bool:
            return max(workers, key=lambda worker: zlib.crc32(f"{worker} {value}".encode())) == self._me

        has_slot = any(may() for may in self._may_read.values())
        async for value in waiting_calls.values(store, names, self.name):
            if has_slot or is_mine(value):
                self._of(value).waiting = True
        for limit in self._limits:
            for value in await rows.values_of(store, names, limit):
                if is_mine(value):
                    self._of(value)

    async def _read_numbers(self) -> None:
        """Read how many places each value has, unless they were read lately."""
        async with self._numbers:
            if self._hub.clock.monotonic() < self._numbers_read + FULL:
                return
            for number, limit in enumerate(self._limits):
                found = await rows.state_of(self._hub.store, self._hub.names, limit)
                wanted = replace(limit, places=found.limit or limit.places, seconds=found.seconds or limit.seconds)
                self._limits = (*self._limits[:number], wanted, *self._limits[number + 1 :])
                for value, of in self._values.items():
                    of.places[number].limit = replace(wanted, value=value)
            self._numbers_read = self._hub.clock.monotonic()

    def _next(self, of: _Value) -> float:
        """Return the seconds until the next look at a value."""
        waits = [wait for places in of.places if (wait := places.next_look()) is not None]
        return max(0.0, min([of.looked + FULL - self._hub.clock.monotonic(), *waits]))

    async def _look_at(self, value: str) -> None:
        """Free the places of a value that are over, and let calls begin. Forget the value if nothing is left of it."""
        of = self._of(value)
        of.looked, ends = self._hub.clock.monotonic(), [places.next_look() for places in of.places]
        others = [await places.look() for places in of.places]
        if (of.waiting or 0.0 in ends) and any(may() for may in self._may_read.values()):
            await self._advance(value)
        if not (of.waiting or of.calls or any(others) or any(places.next_look() is not None for places in of.places)):
            self._values.pop(value, None)

    def _of(self, value: str) -> _Value:
        found = self._values.get(value)
        if found is None:
            places = [self._places_of(replace(limit, value=value)) for limit in self._limits]
            found = self._values[value] = _Value(places=places)
        return found

    def _waiting(self, held: Delivery) -> WaitingCall:
        """Return the call of a work item as one that waits, without its message."""
        event = held.message.event
        assert isinstance(event, TaskScheduled)  # the reader delivers nothing else
        return WaitingCall(
            limit=self.name,
            tag=self._tag,
            value=rows.value_of(event.tags, self._tag),
            instance=held.message.instance,
            task_id=event.event_id,
            since=held.envelope.waiting_since or held.inserted,
            low=held.queue == self._hub.names.limited_lanes(event.name)[-1],
            activity=event.name,
            text="",
        )
