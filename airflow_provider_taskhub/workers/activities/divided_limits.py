"""Decides when calls of activities with a divided limit begin: each value of a tag has places of its own.

``@app.activity(limit=2, limit_key="tenant")`` lets two attempts run at once for each value of the tag ``tenant`` of the
calls. The calls of an activity share a queue. A worker that receives a call and finds no free place for its value stores
the call in a row (:mod:`.waiting_calls`) and takes it out of the queue, so that it holds up no other value. Whoever frees
a place reserves it for the first call that waits, and puts this call into the queue again.

A worker may die in between. Its places are freed as those of other limits. If it had reserved a place, the call still
waits or is in the queue, and a place that is reserved in vain is freed as that of a silent worker. From time to time each
worker looks for values of which calls wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import structlog

from airflow_provider_taskhub.concurrency import gather_bounded
from airflow_provider_taskhub.engine.events import OrchestrationInstance
from airflow_provider_taskhub.errors import Conflict, NotFound, StorageError
from airflow_provider_taskhub.hub.formats.message_envelope import encode
from airflow_provider_taskhub.hub.history import places as rows
from airflow_provider_taskhub.hub.history import waiting_calls
from airflow_provider_taskhub.hub.history.places import Limit
from airflow_provider_taskhub.hub.history.waiting_calls import WaitingCall
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import ActivityRecord
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.hub.queues.reader import Reader
from airflow_provider_taskhub.storage.primitives import DeleteMessage, PutMessage, Step, Unit
from airflow_provider_taskhub.supervision import Supervisor
from airflow_provider_taskhub.telemetry import Outage
from airflow_provider_taskhub.workers.activities.begins import Unasked
from airflow_provider_taskhub.workers.activities.hub_places import FULL, SELDOM, HubPlaces

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
    :ivar due: monotonic time of the next look.
    """

    places: Sequence[HubPlaces]
    calls: set[tuple[OrchestrationInstance, int]] = field(default_factory=set)
    waiting: bool = False
    due: float = 0.0


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
        self._open, self._soon = asyncio.Event(), asyncio.Event()

    def open(self) -> None:
        """Begin to look after the places: a queue exists."""
        self._open.set()

    def start(self, supervisor: Supervisor) -> None:
        """Keep looking after the places."""
        supervisor.keep(f"limit {self.name} for each {self._tag}", self._run)

    # receiving: the value of a call is not known before, so no place keeps a reader from receiving

    def join(self, reader: Reader, may: Callable[[], bool]) -> None: ...

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
                    await places.leave(record)
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
        if held.envelope.waiting_since is None:
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
                if reserved is False:
                    return
                if reserved:
                    await self._send(call)
                    sent += 1
            if not sent:
                return

    async def _reserve(self, of: _Value, call: WaitingCall) -> bool | None:
        """Reserve a place of each for a call. :returns: False if none is free; None if the call has a place."""
        before: list[HubPlaces] = []
        for places in of.places:
            reserved = await places.reserve(call.instance, call.task_id)
            if not reserved:
                for other in before:
                    await other.give_up(call.instance, call.task_id)
                return reserved
            before.append(places)
        return True

    async def _send(self, call: WaitingCall) -> None:
        """Put a call into its queue, then delete its row."""
        hub = self._hub
        steps = (Step(name="outbound", operations=(PutMessage(queue=call.queue, text=call.text),)),)
        await hub.store.commit(Unit(steps=steps))
        with suppress(Conflict, NotFound):  # it was stored once more: then it comes twice, and runs once
            await hub.store.execute(waiting_calls.removed(hub.names, call))

    async def _run(self) -> None:
        """Look after the places and the calls that wait. Runs until cancelled."""
        await self._open.wait()
        clock = self._hub.clock
        outage, search = Outage(log.bind(limit=self.name), "places_unreadable", clock.monotonic), clock.monotonic()
        while True:
            self._soon.clear()
            now = clock.monotonic()
            try:
                if now >= search:
                    async for value in waiting_calls.values(self._hub.store, self._hub.names, self.name):
                        self._of(value).waiting = True
                    search = now + SELDOM
                if self._values:
                    await self._read_numbers()
                due = [value for value, of in self._values.items() if of.due <= now or of.is_due]
                await gather_bounded(self._look_at, due, limit=AT_ONCE)
                outage.over()
            except StorageError as error:
                outage.failed(error)
                await clock.sleep(FIRST_LOOK)
                continue
            now = clock.monotonic()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(FIRST_LOOK, min([search, *(of.next() for of in self._values.values())]) - now)):
                    await self._soon.wait()
