"""Decides when calls of activities with a divided limit begin: each value of a tag has places of its own.

``@app.activity(limit=2, limit_key="tenant")`` lets two attempts run at once for each value of the tag ``tenant`` of the
calls. The calls of an activity share a queue. If a worker receives a call and finds no free place for its value, it
stores the call in a row (:mod:`.waiting_calls`) and takes it out of the queue, so that it holds up no other value. Who
frees a place reserves it for the first call of the value that waits, and puts this call into the queue again.

A worker may die in between. Its places are freed as those of other limits. If it had reserved a place, the call still
waits or is in the queue, and a place that is reserved in vain is freed as that of a silent worker. From time to time
each worker searches for values of which calls wait.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal

import structlog

from airflow_provider_taskhub.concurrency import gather_bounded
from airflow_provider_taskhub.engine.events import OrchestrationInstance, TaskScheduled
from airflow_provider_taskhub.errors import StorageError
from airflow_provider_taskhub.hub.formats.message_envelope import encode
from airflow_provider_taskhub.hub.history import places as rows
from airflow_provider_taskhub.hub.history import waiting_calls
from airflow_provider_taskhub.hub.history.places import Limit
from airflow_provider_taskhub.hub.history.waiting_calls import WaitingCall
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import ActivityRecord
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.hub.queues.reader import Reader
from airflow_provider_taskhub.storage.primitives import MAX_RECEIVE, DeleteMessage, Step, Unit
from airflow_provider_taskhub.supervision import Supervisor
from airflow_provider_taskhub.telemetry import Outage
from airflow_provider_taskhub.workers.activities.begins import Unasked
from airflow_provider_taskhub.workers.activities.hub_places import FIRST_LOOK, FULL, SELDOM, HubPlaces

log = structlog.get_logger(__name__)

AT_ONCE = 8
"""How many values this worker looks at in parallel."""
LONGEST_VALUE = 200
"""Most characters of a value that count."""


@dataclass(slots=True)
class _Value:
    """A value of which this worker runs calls, or of which calls wait.

    :ivar places: the places of the limit, then those of the rate.
    :ivar calls: the calls of this worker that ask for places, or have them.
    :ivar waiting: whether calls waited when this worker looked last.
    :ivar looked: monotonic time of the last look.
    """

    places: Sequence[HubPlaces]
    calls: set[tuple[OrchestrationInstance, int]] = field(default_factory=set)
    waiting: bool = False
    looked: float = float("-inf")


class DividedLimits:
    """The limit and the rate that some activities share, divided by the values of a tag.

    :param name: name of the limit.
    :param tag: the tag of the calls.
    :param limits: the limit and the rate, as the code declares them.
    :param places_of: makes the places of a limit.
    """

    def __init__(
        self, hub: Hub, name: str, tag: str, limits: Sequence[Limit], places_of: Callable[[Limit], HubPlaces]
    ) -> None:
        self.name, self._tag, self._hub = name, tag, hub
        self._limits, self._places_of = tuple(limits), places_of
        self._values: dict[str, _Value] = {}
        self._called: dict[tuple[OrchestrationInstance, int], str] = {}
        """The values of the calls of this worker that ask for places, or have them."""
        self._readers: dict[str, Reader] = {}
        """By queue, the readers of this worker."""
        self._stored: set[Delivery] = set()
        """The work items whose calls wait in rows now, until :meth:`dropped`."""
        self._numbers_read = float("-inf")
        self._open, self._soon = asyncio.Event(), asyncio.Event()

    def open(self) -> None:
        """Begin to look after the places: a queue exists."""
        self._open.set()

    def start(self, supervisor: Supervisor) -> None:
        """Keep looking after the places."""
        supervisor.keep(f"limit {self.name} for each {self._tag}", self._run)

    @property
    def begins_within(self) -> float:
        """Seconds within which an attempt must begin after :meth:`confirm`."""
        return min(self._places_of(limit).begins_within for limit in self._limits)

    # receiving: the value of a call is not known before, so no place keeps a reader from receiving

    def join(self, reader: Reader, may: Callable[[], bool]) -> None:
        """Let a reader share the places. :param may: tells whether it may read; it does not matter here."""
        self._readers[reader.queue] = reader

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
        of.calls.add(call := (record.instance, record.task_id))
        self._called[call] = mine.value
        try:
            others_first = await self._come_first(mine)
            for places in of.places:
                if not await places.take(record, others_first=others_first):
                    return False
                taken.append(places)
            done = True
            self._soon.set()  # the next look may be due earlier now
            return True
        finally:
            if not done:
                for places in taken:
                    await places.undo(record)
                self.forget(record)

    async def _come_first(self, mine: WaitingCall) -> bool:
        """Return True if other calls of the same value wait that come before this one."""
        try:
            found = await waiting_calls.first(self._hub.store, self._hub.names, self.name, mine.value, 1)
        except StorageError as error:
            raise Unasked(str(error)) from error
        return bool(found) and found[0].row_key < mine.row_key

    async def turn_away(self, held: Delivery, reader: Reader, *, begun: bool) -> None:
        """Let a call wait for which no place is free.

        :param begun: whether an attempt has begun since the work item was received.
        :raises Unasked: if the store does not answer, or refuses the request.
        """
        mine, hub = self._waiting(held), self._hub
        deliveries = held.deliveries if begun else held.deliveries - 1
        text = encode(replace(held.envelope, deliveries=deliveries, waiting_since=mine.since))
        steps = (
            Step(name="waiting call", operations=(waiting_calls.stored(hub.names, replace(mine, text=text)),)),
            Step(name="delete", operations=(DeleteMessage(queue=held.queue, message=held.receipt, quiet=True),)),
        )
        try:
            async with held.changing:
                await hub.store.commit(Unit(steps=steps))
        except StorageError as error:
            raise Unasked(str(error)) from error
        self._stored.add(held)
        reader.release([held])
        await self._advance_safely(mine.value)  # a place may have become free meanwhile

    async def confirm(self, record: ActivityRecord) -> bool:
        """Return True if the attempt still has its places. Call this after its record was claimed, before it runs.

        :raises Unasked: if the store does not answer, or refuses the request.
        """
        for places in self._of(self._called[record.instance, record.task_id]).places:
            if not await places.confirm(record):
                return False
        return True

    def forget(self, record: ActivityRecord) -> None:
        """Note that this worker has not claimed the record of an attempt for which it has taken places."""
        call = record.instance, record.task_id
        of = self._of(self._called.pop(call, ""))
        of.calls.discard(call)
        for places in of.places:
            places.forget(record)

    async def leave(self, record: ActivityRecord) -> None:
        """Note that an attempt has ended. The next call of its value may begin."""
        value = self._called.get((record.instance, record.task_id), "")
        for places in self._of(value).places:
            await places.leave(record)
        self.forget(record)
        await self._advance_safely(value)

    async def dropped(self, held: Delivery) -> None:
        """Note that a call does not begin, because its instance has ended. Another call gets the place that is reserved
        for it."""
        if held in self._stored or held.envelope.waiting_since is None:
            self._stored.discard(held)
            return
        mine = self._waiting(held)
        with suppress(StorageError):  # else the place is freed as that of a silent worker
            for places in self._of(mine.value).places:
                await places.give_up(mine.instance, mine.task_id)
        await self._advance_safely(mine.value)

    # calls that wait

    async def _advance_safely(self, value: str) -> None:
        """Let calls of a value begin. If the store does not answer, a later look does it."""
        try:
            await self._advance(value)
        except StorageError as error:
            log.info("waiting_calls_unread", limit=self.name, error=str(error))

    async def _advance(self, value: str) -> None:
        """Reserve the free places of a value for the calls that wait, and put these calls into their queues."""
        of, hub = self._of(value), self._hub
        while True:
            found = await waiting_calls.first(hub.store, hub.names, self.name, value, AT_ONCE)
            of.waiting, sent = bool(found), 0
            for call in found:
                reserved = await self._reserve(of, call)
                if reserved == "full":
                    return
                if reserved != "has one" and await self._send(of, call, reserved):
                    sent += 1
                    if (reader := self._readers.get(call.queue)) is not None:
                        reader.wake()  # the worker that has freed a place often has a free slot
            if not sent:
                return

    async def _reserve(self, of: _Value, call: WaitingCall) -> list[int] | Literal["full", "has one"]:
        """Reserve a place of each for a call.

        :returns: the numbers of the places; or that no place is free, or that the call has one.
        """
        numbers: list[int] = []
        for places in of.places:
            reserved = await places.reserve(call.instance, call.task_id)
            if isinstance(reserved, str):
                await self._give_up(of, call, numbers)
                return reserved
            numbers.append(reserved)
        return numbers

    async def _give_up(self, of: _Value, call: WaitingCall, numbers: Sequence[int]) -> None:
        for places, number in zip(of.places, numbers, strict=False):
            await places.give_up(call.instance, call.task_id, number)

    async def _send(self, of: _Value, call: WaitingCall, reserved: Sequence[int]) -> bool:
        """Put a call into its queue.

        :param reserved: the numbers of the places that are reserved for it.
        :returns: False if another worker does it, or has done it. Then these places are free again.
        """
        if await waiting_calls.send(self._hub.store, self._hub.names, call):
            return True
        await self._give_up(of, call, reserved)
        return False

    # looks

    async def _run(self) -> None:
        """Look after the places and the calls that wait. Runs until cancelled."""
        await self._open.wait()
        clock = self._hub.clock
        outage, search = Outage(log.bind(limit=self.name), "places_unreadable", clock.monotonic), clock.monotonic()
        while True:
            self._soon.clear()
            pause = FIRST_LOOK
            try:
                if clock.monotonic() >= search:
                    async for value in waiting_calls.values(self._hub.store, self._hub.names, self.name):
                        self._of(value).waiting = True
                    search = clock.monotonic() + SELDOM
                if self._values:
                    await self._read_numbers()
                due = [value for value, of in self._values.items() if self._next(of) <= 0]
                await gather_bounded(self._look_at, due, limit=AT_ONCE)
                outage.over()
                pause = max(0.0, min([search - clock.monotonic(), FULL, *map(self._next, self._values.values())]))
            except StorageError as error:
                outage.failed(error)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._soon.wait()

    async def _read_numbers(self) -> None:
        """Read how many places each value has, unless they were read lately."""
        now = self._hub.clock.monotonic()
        if now < self._numbers_read + FULL:
            return
        self._numbers_read = now
        for number, limit in enumerate(self._limits):
            found = await rows.state_of(self._hub.store, self._hub.names, limit)
            wanted = replace(limit, places=found.limit or limit.places, seconds=found.seconds or limit.seconds)
            if wanted != limit:
                self._limits = (*self._limits[:number], wanted, *self._limits[number + 1 :])
                for value, of in self._values.items():
                    of.places[number].limit = replace(wanted, value=value)
                    of.looked = float("-inf")

    def _next(self, of: _Value) -> float:
        """Return the seconds until the next look at a value."""
        waits = [wait for places in of.places if (wait := places.next_look()) is not None]
        if of.waiting or not waits:
            waits.append(max(0.0, of.looked + FULL - self._hub.clock.monotonic()))
        return min(waits)

    async def _look_at(self, value: str) -> None:
        """Free the places of a value that are over, and let calls begin. Forget the value if nothing is left of it."""
        of = self._of(value)
        of.looked = self._hub.clock.monotonic()
        for places in of.places:
            await places.look()
        if of.waiting:
            await self._advance(value)
        if not of.waiting and not of.calls and all(places.next_look() is None for places in of.places):
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
        value = (event.tags or {}).get(self._tag, "")
        return WaitingCall(
            limit=self.name,
            value=value if len(value) <= LONGEST_VALUE else hashlib.sha256(value.encode()).hexdigest(),
            instance=held.message.instance,
            task_id=event.event_id,
            since=held.envelope.waiting_since or held.inserted,
            activity=event.name,
            queue=held.queue,
            text="",
        )
