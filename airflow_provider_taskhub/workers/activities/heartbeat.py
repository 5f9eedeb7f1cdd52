"""Runs an attempt with an activity record (a row in the store), and writes its heartbeats into the record."""

from __future__ import annotations

import asyncio
from contextlib import suppress
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


_WATCH = 0.75
"""Seconds between two looks at the record, where its renewals are rarer. So a cancel is seen within about this time."""


class Superseded(Exception):
    """The attempt must end: its record belongs to another worker, says ``cancelling``, or could not be renewed."""


class RecordedAttempt:
    """An attempt whose activity record this worker has claimed, with the newest ETag of the record's row.

    Heartbeats and progress change the record, one write at a time.

    :param held: the work item of the activity.
    :param record: the record as claimed.
    :param etag: the ETag of the row of the record.
    :param left_sessions: names of Spark Connect sessions that earlier attempts may have left running.
    """

    def __init__(
        self,
        hub: Hub,
        times: LeaseTimes,
        held: Delivery,
        record: ActivityRecord,
        etag: str,
        *,
        left_sessions: tuple[str, ...] = (),
    ) -> None:
        self.record, self.left_sessions, self._held = record, left_sessions, held
        self._hub, self._times, self._etag = hub, times, etag
        self._changed = asyncio.Event()
        self._ended = False

    async def run(self, runner: Runner, request: ActivityRequest) -> ActivityOutcome:
        """Run the attempt and renew its record meanwhile; return the outcome.

        If the outcome is ``too_late``, the attempt has not begun, and this method may be called again.

        :raises Superseded: if the attempt must end because another worker has it, it is cancelled, or no renewal of the
            record succeeded for the give-up time.
        """

        def progress(news: ActivityProgress) -> None:
            self.record = news.onto(self.record)
            if not news.observed:
                self._changed.set()

        self._ended = False
        async with owned() as start:
            running = start(runner.run(request, progress=progress))
            beating = start(self._beat())
            try:
                await asyncio.wait((running, beating), return_when=asyncio.FIRST_COMPLETED)
                if running.done():
                    return running.result()
                beating.result()
                raise AssertionError("the heartbeats ended without an error while the attempt was running")
            finally:
                running.cancel()
                self._ended = True  # lets a running heartbeat finish: without its answer the new ETag would be unknown
                self._changed.set()
                await asyncio.gather(running, beating, return_exceptions=True)

    async def lose(self, why: str) -> bool:
        """Record that the attempt ended without an outcome, so that the next attempt starts at once.

        :param why: the reason, which the record keeps.
        :returns: False if the record could not be written: it was cancelled or taken over, or the store did not answer.
        """
        self.record = replace(self.record, state=RecordState.LOST, ended=self._hub.clock.utc_now(), message=why[:500])
        try:
            await self._write()
            return True
        except StorageError as error:
            log.info("record_not_closed", activity=self.record.name, error=str(error))
            return False

    def becomes(self, record: ActivityRecord) -> Transact:
        """Return the operation that writes ``record``. It raises ``Conflict`` if another worker has changed the row."""
        return records.update(self._hub.names, record, self._etag)

    async def reclaim(self) -> None:
        """Read the ETag again after a conflict, because a write of this worker whose answer was lost may have changed
        it.

        :raises Conflict: if the record no longer says that this worker runs the attempt.
        """
        record = self.record
        found = await records.newest(self._hub.store, self._hub.names, record)
        if found is None or (found[0].worker, found[0].state) != (record.worker, RecordState.RUNNING):
            raise Conflict(f"attempt {record.attempt} of {record.name!r} was cancelled or taken over")
        self._etag = found[1].etag

    async def _beat(self) -> None:
        """Renew the record until the attempt has ended.

        After the first renewal this method checks once whether the instance has ended. If the instance was terminated
        before the record existed, nothing could mark the record as ``cancelling``.

        :raises Superseded: if the attempt must end.
        """
        fate_checked = False
        outage = Outage(log.bind(activity=self.record.name), "heartbeat_failed", self._hub.clock.monotonic)
        hub, renewed = self._hub, self._hub.clock.monotonic()
        every, give_up = self._times.renew.total_seconds(), self._times.give_up.total_seconds()
        while True:
            await self._until_due(every)
            if self._ended:
                return
            sent = hub.clock.monotonic()
            try:
                await self._write()
                renewed = sent
                outage.over()
                if not fate_checked and await fate_of(hub, self._held) is Fate.ENDED:
                    self.record = replace(self.record, state=RecordState.CANCELLING)
                    await self._write()
                    raise Superseded("the instance of the activity has ended")
                fate_checked = True
            except (Conflict, NotFound) as error:
                raise Superseded("the attempt was cancelled, or another worker has taken it over") from error
            except StorageError as error:
                outage.failed(error)
                if hub.clock.monotonic() - renewed > give_up:
                    raise Superseded("the activity record could not be renewed for the give-up time") from error
                await hub.clock.sleep(min(1.0, every / 4))

    async def _until_due(self, every: float) -> None:
        """Wait until the record must be written: its progress or another worker has changed it, or the time is over.

        :param every: seconds between two renewals.
        """
        looks = max(1, round(every / _WATCH))
        for look in range(1, looks + 1):
            try:
                await asyncio.wait_for(self._changed.wait(), every / looks)
            except TimeoutError:
                if look < looks and not await self._unchanged():
                    return
                continue
            self._changed.clear()
            if not self._ended:
                # This pause lets one write store several changes of the progress.
                await self._hub.clock.sleep(min(0.2, every))
            return

    async def _unchanged(self) -> bool:
        """Return whether nobody has changed the record. True also if it cannot be read: the next renewal shows it."""
        with suppress(StorageError):
            return await records.unchanged(self._hub.store, self._hub.names, self.record, self._etag)
        return True

    async def _write(self) -> None:
        self.record = replace(self.record, renewed=self._hub.clock.utc_now())
        try:
            etags = await self._hub.store.execute(self.becomes(self.record))
        except Conflict:
            await self.reclaim()
            etags = await self._hub.store.execute(self.becomes(self.record))
        assert isinstance(etags, tuple)
        self._etag = etags[0]
