"""Keeps the limit of an activity: at most so many of its attempts run at once in the whole hub.

An attempt runs only while one of the activity's places (:mod:`.places`) names it. This worker takes a place just before
it claims the activity record of the attempt, and frees it after the outcome is stored.

A worker that dies frees nothing. So while no place is free, each worker looks at the places that others hold. It frees
a place if the record of its attempt says that the attempt has ended. If the record does not change any more, or if its
worker is proven dead, it first marks the attempt as lost, as a takeover does.

A place may name an attempt that has no record yet. If no record appears, the worker of the attempt counts as silent,
and the place is freed. A slow worker may write the record at the same moment. So each side writes first and reads after
that: the slow worker reads the place again after its claim, and this worker reads the record again after it has freed
the place. At least one of them sees the other, and no more attempts run than the limit says.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import structlog

from airflow_provider_taskhub.engine.events import OrchestrationInstance
from airflow_provider_taskhub.errors import Conflict, NotFound, StorageError
from airflow_provider_taskhub.hub.history import activity_records as records
from airflow_provider_taskhub.hub.history import places as rows
from airflow_provider_taskhub.hub.history.places import Limit, LimitState, Place
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import ActivityRecord, RecordState, WorkerIdentity
from airflow_provider_taskhub.settings import LeaseTimes
from airflow_provider_taskhub.storage.primitives import Entity
from airflow_provider_taskhub.telemetry import Outage
from airflow_provider_taskhub.workers.activities.hub_places import (
    FIRST_LOOK,
    FULL,
    LONGEST_LOOK,
    LOST,
    SELDOM,
    HubPlaces,
)
from airflow_provider_taskhub.workers.activities.silence import Silence
from airflow_provider_taskhub.workers.executors.executor import ExecutorError
from airflow_provider_taskhub.workers.peers import Peers

log = structlog.get_logger(__name__)


class ActivityLimit(HubPlaces):
    """The places of a limit whose attempts keep them until they end.

    :param peers: tells which other workers are proven dead.
    :param end_sessions: ends Spark Connect sessions that lost attempts have left running.
    :param taken_over: called when this worker has marked an attempt as lost. The argument is the name of the worker
        that ran the attempt.
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
        taken_over: Callable[[str], None] = lambda worker: None,
    ) -> None:
        super().__init__(hub, limit, me=me, times=times)
        self._note_taken_over = taken_over
        self._peers, self._end_sessions = peers, end_sessions
        self._mine: dict[tuple[OrchestrationInstance, int], int] = {}
        """The numbers of the places that attempts of this worker have, by the instance and number of the call."""
        self._taken_over: set[tuple[OrchestrationInstance, int]] = set()
        """The calls in ``_mine`` whose place was taken over from an earlier attempt."""
        self._looked = 0.0
        """Monotonic time of the last look."""
        self._silences: dict[int, Silence] = {}
        """For each place that another worker holds, how long its attempt has been silent."""

    def _own(self, record: ActivityRecord, found: LimitState) -> Sequence[Place]:
        """If an earlier attempt of the same call has a place, the attempt takes over this place."""
        return [place for place in found.holders if place.is_of_call(record)]

    def next_look(self) -> float | None:
        if any(silence.counts for silence in self._silences.values()):
            pause = min(LONGEST_LOOK, self._times.renew.total_seconds())
        elif self._mine:
            pause = FULL
        else:
            return None
        return max(0.0, self._looked + pause - self._hub.clock.monotonic())

    def _took(self, record: ActivityRecord, place: Place) -> None:
        self._mine[record.instance, record.task_id] = place.number
        if place.held:
            self._taken_over.add((record.instance, record.task_id))

    async def _confirms(self, record: ActivityRecord, place: Place) -> bool:
        return place.is_of_call(record)

    def forget(self, record: ActivityRecord) -> None:
        self._mine.pop((record.instance, record.task_id), None)
        self._taken_over.discard((record.instance, record.task_id))
        self._changed.set()

    async def undo(self, record: ActivityRecord) -> None:
        """Keep a place that was taken over from an earlier attempt, because that attempt may still run. A later look
        checks this."""
        if (record.instance, record.task_id) in self._taken_over:
            self.forget(record)
        else:
            await self.leave(record)

    async def leave(self, record: ActivityRecord) -> None:
        """Free the place of the attempt. Do nothing if it has none.

        If the store does not answer, the place stays held, and a later look finds that the attempt has ended.
        """
        self.forget(record)
        try:
            before, found = self._change, await self._state()
            for place in found.holders:
                if place.is_of_call(record) and place.attempt <= record.attempt:
                    await self._hub.store.execute(rows.freed(self._hub.names, place))
                    self._change -= 1
                    self._count(found, before)
        except LOST:
            pass
        except StorageError as error:
            log.info("place_not_freed", activity=record.name, error=str(error))
        self._changed.set()

    async def run(self, freed: Callable[[], None]) -> None:
        """Look at the places while none is free, or others hold some."""
        outage = Outage(log.bind(limit=self.limit.name), "places_unreadable", self._hub.clock.monotonic)
        pause = FIRST_LOOK
        while True:
            try:
                others = await self.look()
                outage.over()
            except StorageError as error:
                outage.failed(error)
                others = True
            if self.free:
                pause = FIRST_LOOK
                freed()
            self._changed.clear()
            while self.free or not others:
                longest = (SELDOM if others else None) if self.free else FULL
                if not await self._changed_within(longest):
                    break
                others = True
            await self._hub.clock.sleep(pause)
            pause = min(self.longest_look, self._times.renew.total_seconds(), pause * 1.5)

    async def look(self) -> bool:
        """Count the free places, and free those whose attempts have ended."""
        before, found = self._change, await self._state()
        others = [place for place in found.holders if place.number not in self._mine.values()]
        for place in others:
            if await self._is_over(place):
                self._change -= await self._take_away(place)
        for number in self._silences.keys() - {place.number for place in others}:
            del self._silences[number]
        self._count(found, before)
        self._looked = self._hub.clock.monotonic()
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
            about = {"limit": self.limit.name, "instance_id": place.instance.instance_id}
            log.warning("limited_attempt_lost", worker=lost.worker, **about)
            self._note_taken_over(lost.worker)
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

        This worker first reserves the place for itself, so that no third worker can take it. Then it reads the record
        again. If an attempt of the call runs after all, that attempt gets the place.

        :returns: False if the place was changed meanwhile, or if its attempt runs after all.
        """
        hub, reserved = self._hub, Place(key=place.key, number=place.number, held=True, worker=self._me)
        with suppress(*LOST):
            await hub.store.execute(rows.written(hub.names, reserved, place.row))
            found = await self._record_of(place)
            mine = (await self._state()).places.get(place.number)
            if mine is None or mine.worker != self._me or mine.instance.instance_id:
                return False
            runs = found is not None and found[0].runs
            change = (
                rows.taken(hub.names, mine, found[0]) if found is not None and runs else rows.freed(hub.names, mine)
            )
            await hub.store.execute(change)
            self._silences.pop(place.number, None)
            return not runs
        return False

    async def _record_of(self, place: Place) -> tuple[ActivityRecord, Entity] | None:
        """Read the last attempt of the call that has a place. None: the attempt that the place names has no record yet.

        The place may name an earlier attempt, because a work item can come twice.
        """
        hub = self._hub
        found = await records.attempts(hub.store, hub.names, place.instance, place.task_id)
        last = found[-1] if found else None
        if last is None or last[0].runs:
            return last
        return last if last[0].attempt >= place.attempt else None
