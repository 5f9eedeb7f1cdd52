"""An attempt that has a row in the store (a *record*) while it runs: its heartbeats and other changes of the row."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import structlog

from airflow_provider_taskhub.errors import Conflict, NotFound, StorageError
from airflow_provider_taskhub.hub.history import activity_records as records
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import ActivityRecord, RecordState
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.settings import LeaseTimes
from airflow_provider_taskhub.storage.primitives import Transact
from airflow_provider_taskhub.supervision import owned
from airflow_provider_taskhub.telemetry import Outage
from airflow_provider_taskhub.workers.activities.cancellation import Fate, fate_of
from airflow_provider_taskhub.workers.activities.runner import Runner
from airflow_provider_taskhub.workers.executors.attempt_values import ActivityOutcome, ActivityProgress, ActivityRequest

log = structlog.get_logger(__name__)


class Superseded(Exception):
    """The record belongs to another worker by now, or says that the attempt is to be cancelled."""


class RecordedAttempt:
    """A claimed record and its newest ETag. Heartbeats and progress write it, one at a time.

    :param held: its work item.
    """

    def __init__(self, hub: Hub, times: LeaseTimes, held: Delivery, record: ActivityRecord, etag: str) -> None:
        self.record, self._held = record, held
        self._hub, self._times, self._etag = hub, times, etag
        self._changed = asyncio.Event()
        self._ended = False

    async def run(self, runner: Runner, request: ActivityRequest) -> ActivityOutcome:
        """Run with heartbeats. :raises Superseded: when another worker or client has changed the record."""

        def progress(news: ActivityProgress) -> None:
            self.record = news.onto(self.record)
            self._changed.set()

        async with owned() as start:
            running = start(runner.run(request, progress=progress))
            beating = start(self._beat())
            try:
                await asyncio.wait((running, beating), return_when=asyncio.FIRST_COMPLETED)
                if running.done():
                    return running.result()
                beating.result()
                raise AssertionError("a heartbeat ends by raising while its attempt runs")
            finally:
                running.cancel()
                self._ended = True  # wait for a running heartbeat: if it were cut off, our ETag would be old
                self._changed.set()
                await asyncio.gather(running, beating, return_exceptions=True)

    async def lose(self, why: str) -> None:
        """Record that the attempt ended without an outcome, so that the next attempt need not wait."""
        self.record = replace(self.record, state=RecordState.LOST, ended=self._hub.clock.utc_now(), message=why[:500])
        try:
            await self._write()
        except StorageError as error:
            log.info("record_not_closed", activity=self.record.name, error=str(error))

    def becomes(self, record: ActivityRecord) -> Transact:
        """The operation that writes this record, if nobody else has changed the row."""
        return records.update(self._hub.names, record, self._etag)

    async def reclaim(self) -> None:
        """Read the ETag again after a conflict: an own write whose answer was lost may have changed it.

        :raises Conflict: when the record is no longer running in this worker's name.
        """
        record = self.record
        found = await records.newest(self._hub.store, self._hub.names, record)
        if found is None or (found[0].worker, found[0].state) != (record.worker, RecordState.RUNNING):
            raise Conflict(f"attempt {record.attempt} of {record.name!r} was cancelled or taken over")
        self._etag = found[1].etag

    async def _beat(self) -> None:
        """Renew the record until the attempt has ended. If no renewal succeeds for the give-up time, end the run.

        After the first renewal it checks once whether the instance has ended: a terminate that came before this record
        was written could not mark it as cancelled.
        """
        looked = False
        outage = Outage(log.bind(activity=self.record.name), "heartbeat_failed", self._hub.clock.monotonic)
        hub, renewed = self._hub, self._hub.clock.monotonic()
        every, give_up = self._times.renew.total_seconds(), self._times.give_up.total_seconds()
        while True:
            try:
                await asyncio.wait_for(self._changed.wait(), every)
                self._changed.clear()
                if not self._ended:
                    await hub.clock.sleep(min(0.2, every))  # several changes, one write
            except TimeoutError:
                pass
            if self._ended:
                return
            sent = hub.clock.monotonic()
            try:
                await self._write()
                renewed = sent
                outage.over()
                if not looked and await fate_of(hub, self._held) is Fate.ENDED:
                    self.record = replace(self.record, state=RecordState.CANCELLING)
                    await self._write()
                    raise Superseded("its instance has ended")
                looked = True
            except (Conflict, NotFound) as error:
                raise Superseded("cancelled or taken over") from error
            except StorageError as error:
                outage.failed(error)
                if hub.clock.monotonic() - renewed > give_up:
                    raise Superseded("no heartbeat could be written") from error
                await hub.clock.sleep(min(1.0, every / 4))

    async def _write(self) -> None:
        try:
            etags = await self._hub.store.execute(self.becomes(self.record))
        except Conflict:
            await self.reclaim()
            etags = await self._hub.store.execute(self.becomes(self.record))
        assert isinstance(etags, tuple)
        self._etag = etags[0]
