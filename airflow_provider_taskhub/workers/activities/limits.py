"""Keeps the limit of an activity: at most so many of its attempts run at once in the whole hub.

An attempt runs only while one of the activity's places (:mod:`.places`) names it. This worker takes a place just before
it claims the activity record of the attempt, and frees it after the outcome is stored.

A worker that dies frees nothing. So while no place is free, each worker looks at the places that others hold. It frees
a place if the record of its attempt says that the attempt has ended. If the record does not change any more, or if its
worker is proven dead, it first marks the attempt as lost, as a takeover does.

A place may name an attempt whose record is not there yet. If it stays so, its worker counts as silent, and the place is
freed. A slow worker may write the record at the same moment. So each side writes first and reads after that: the slow
worker reads the place again after its claim, and this worker reads the record again after it has freed the place. At
least one of them sees the other, and no more attempts run than the limit says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

import structlog

from airflow_provider_taskhub.engine.events import OrchestrationInstance
from airflow_provider_taskhub.errors import Conflict, NotFound, StorageError
from airflow_provider_taskhub.hub.history import activity_records as records
from airflow_provider_taskhub.hub.history import places as rows
from airflow_provider_taskhub.hub.history.places import Limit, LimitState, Place
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import ActivityRecord, RecordState, WorkerIdentity
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.hub.queues.reader import Reader
from airflow_provider_taskhub.settings import LeaseTimes
from airflow_provider_taskhub.storage.primitives import Entity
from airflow_provider_taskhub.telemetry import Outage
from airflow_provider_taskhub.workers.activities.begins import Unasked
from airflow_provider_taskhub.workers.activities.silence import Silence
from airflow_provider_taskhub.workers.executors.executor import ExecutorError
from airflow_provider_taskhub.workers.peers import Peers

log = structlog.get_logger(__name__)

SELDOM = 60.0
"""Seconds between two looks while a place is free, and other workers hold others. A dead worker may be among them."""
FIRST_LOOK, LONGEST_LOOK = 0.5, 5.0
"""Shortest and longest pause between two looks at the places that other workers hold, in seconds. It is at most the
renewal interval of records, because :class:`.Silence` counts no more than this from one look to the next."""


class ActivityLimit:
    """The places of one activity, as this worker sees them.

    :param limit: the activity, and how many places it has.
    :param me: the identity of this worker.
    :param peers: tells which other workers are proven dead.
    :param end_sessions: ends Spark Connect sessions that lost attempts have left running.
    """

    def __init__(
        self,
        hub: Hub,
        limit: Limit,
        *,
        me: WorkerIdentity,
        peers: Peers,
        times: LeaseTimes,
        end_sessions: Callable[[tuple[str, ...]], Awaitable[None]],
    ) -> None:
        self.limit, self._end_sessions = limit, end_sessions
        self._hub, self._me, self._peers, self._times = hub, str(me), peers, times
        self._free = 0
        """Free places at the last look, less those that this worker has taken since."""
        self._mine: dict[tuple[OrchestrationInstance, int], int] = {}
        """The numbers of the places that attempts of this worker have, by the instance and number of the call."""
        self._silences: dict[int, Silence] = {}
        """For each place that another worker holds, how long its attempt has been silent."""
        self._undecided: set[Delivery] = set()
        """The calls that this worker has received, and for which it has not taken a place yet."""
        self._changed, self._open = asyncio.Event(), asyncio.Event()
        self._freed: Callable[[], None] = lambda: None

    def open(self) -> None:
        """Begin to look for free places: the queue of the activity exists."""
        self._open.set()

    def room(self, reader: Reader) -> int:
        """Return how many calls this worker may receive now. :param reader: reads the queue of the activity."""
        self._undecided.intersection_update(reader.held())
        return max(0, self._free - len(self._undecided))

    def expect(self, held: Delivery) -> None:
        """Note that a call was received, which may need a place."""
        self._undecided.add(held)

    def decided(self, held: Delivery) -> None:
        """Note that a received call has a place, or does not ask for one any more."""
        self._undecided.discard(held)

    async def take(self, record: ActivityRecord, held: Delivery | None = None) -> bool:
        """Take a place for an attempt whose record this worker claims next. If an earlier attempt of the same call has
        a place, the attempt takes over this place.

        :param held: the work item of the call; None: it was not received.
        :returns: False if no place is free.
        :raises Unasked: if the store does not answer, or refuses the request.
        """
        try:
            return await self._take(record)
        except StorageError as error:
            raise Unasked(str(error)) from error
        finally:
            if held is not None:
                self.decided(held)

    async def _take(self, record: ActivityRecord) -> bool:
        found = await self._state()
        own = [place for place in found.holders if place.is_of_call(record)]
        for place in own or found.free:
            try:
                await self._hub.store.execute(rows.taken(self._hub.names, place, record))
            except Conflict:  # another worker was faster
                continue
            self._mine[record.instance, record.task_id] = place.number
            self._free = max(0, len(found.free) - (not place.held))
            self._changed.set()  # if it was the last one, this worker looks from now on
            return True
        self._free = 0
        self._changed.set()
        return False

    async def confirm(self, record: ActivityRecord) -> bool:
        """Return True if its call still has a place. Call this after the record was claimed, before the attempt runs.

        :raises Unasked: if the store does not answer, or refuses the request.
        """
        try:
            return any(place.is_of_call(record) for place in (await self._state()).holders)
        except StorageError as error:
            raise Unasked(str(error)) from error

    def forget(self, record: ActivityRecord) -> None:
        """Note that this worker has not claimed the record of an attempt for which it has taken a place."""
        self._mine.pop((record.instance, record.task_id), None)
        self._changed.set()

    async def leave(self, record: ActivityRecord) -> None:
        """Free the place of an attempt that has ended. Do nothing if the attempt has none.

        If the store does not answer, the place stays held, and a later look finds that the attempt has ended.
        """
        self.forget(record)
        try:
            found = await self._state()
            for place in found.holders:
                if place.is_of_call(record) and place.attempt <= record.attempt:
                    await self._hub.store.execute(rows.freed(self._hub.names, place))
                    self._free = max(0, found.limit - len(found.holders) + 1)
        except Conflict:
            pass
        except StorageError as error:
            log.info("place_not_freed", activity=record.name, error=str(error))
        self._changed.set()
        self._freed()

    async def run(self, freed: Callable[[], None]) -> None:
        """Look at the places while none is free. Runs until cancelled.

        :param freed: called when a place may have become free.
        """
        self._freed = freed
        await self._open.wait()
        outage = Outage(log.bind(activity=self.limit.name), "places_unreadable", self._hub.clock.monotonic)
        pause = FIRST_LOOK
        while True:
            try:
                others = await self._look()
                outage.over()
            except StorageError as error:
                outage.failed(error)
                others = True
            if self._free:
                pause = FIRST_LOOK
                freed()
            self._changed.clear()
            while self._free or not others:
                if not await self._changed_within(SELDOM if others else None):
                    break
                others = True
            await self._hub.clock.sleep(pause)
            pause = min(LONGEST_LOOK, self._times.renew.total_seconds(), pause * 1.5)

    async def _changed_within(self, seconds: float | None) -> bool:
        """Wait until this worker takes or frees a place.

        :param seconds: how long to wait; None: without a limit.
        :returns: False if the time is over.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return True

    async def _look(self) -> bool:
        """Count the free places, and free those whose attempts have ended.

        :returns: True if other workers hold places.
        """
        found, freed = await self._state(), 0
        others = [place for place in found.holders if place.number not in self._mine.values()]
        for place in others:
            if await self._is_over(place):
                freed += await self._take_away(place)
        for number in self._silences.keys() - {place.number for place in others}:
            del self._silences[number]
        self._free = max(0, found.limit - len(found.holders) + freed)
        return bool(others)

    async def _is_over(self, place: Place) -> bool:
        """Return True if the attempt that has a place does not run any more, or never began."""
        found = await self._record_of(place)
        if found is not None and found[0].state is RecordState.UNKNOWN:
            return False  # a newer version of the package wrote the record
        if found is not None and not found[0].runs:
            return await self._nothing_is_left_of(found[0])
        hub, last = self._hub, place.row if found is None else found[1]
        assert last is not None
        silence = self._silences.setdefault(place.number, Silence(hub.clock, self._times.take, self._times.renew))
        silent = silence.lasts(last) or self._peers.is_dead(place.worker if found is None else found[0].worker)
        if silence.needs_proof and await records.takes_writes(hub.store, rows.refused(hub.names, place)):
            silence.proven()
        if not silent or found is None:
            return silent
        lost = found[0].lost()
        with suppress(Conflict, NotFound):
            await hub.store.execute(records.update(hub.names, lost, last.etag))
            about = {"activity": self.limit.name, "instance_id": place.instance.instance_id}
            log.warning("limited_attempt_lost", worker=lost.worker, **about)
            return await self._nothing_is_left_of(lost)
        return False  # its worker has changed the record, so it is alive

    async def _nothing_is_left_of(self, record: ActivityRecord) -> bool:
        """End what a lost attempt has left running on a Spark Connect server. :returns: False if that is not known."""
        if record.state is not RecordState.LOST or record.spark_session is None:
            return True
        try:
            await self._end_sessions((record.spark_session,))
        except ExecutorError as error:
            log.warning("place_not_freed", activity=record.name, error=str(error))
            return False
        return True

    async def _take_away(self, place: Place) -> bool:
        """Free a place.

        The place first names nobody. Then the record is read once more: if its worker was only slow, it gets the place
        back. No third worker can take the place in between.

        :returns: False if the place was changed meanwhile, or if its attempt runs after all.
        """
        hub, reserved = self._hub, Place(key=place.key, number=place.number, held=True, worker=self._me)
        with suppress(Conflict):
            await hub.store.execute(rows.written(hub.names, reserved, place.row))
            found = await self._record_of(place)
            mine = (await self._state()).places[place.number]
            if mine.worker != self._me or mine.instance.instance_id:
                return False
            runs = found is not None and found[0].runs
            change = (
                rows.taken(hub.names, mine, found[0]) if found is not None and runs else rows.freed(hub.names, mine)
            )
            await hub.store.execute(change)
            self._silences.pop(place.number, None)
            return not runs
        return False

    async def _state(self) -> LimitState:
        found = await rows.state_of(self._hub.store, self._hub.names, self.limit)
        return found if found.declared else replace(found, declared=self.limit.places)

    async def _record_of(self, place: Place) -> tuple[ActivityRecord, Entity] | None:
        """Read the last attempt of the call that has a place. None: the attempt that the place names has no record yet.

        The place may name an earlier attempt, because a work item can come twice.
        """
        hub = self._hub
        found = await records.attempts(hub.store, hub.names, place.instance, place.task_id)
        last = found[-1] if found else None
        return last if last is not None and (last[0].runs or last[0].attempt >= place.attempt) else None
