"""Runs an attempt with an activity record (a row in the store), and writes its heartbeats into the record.

The ETag of the row says which worker has the attempt, and not how long the store was silent. So a worker that cannot
renew the record does not end the attempt: it lets the attempt stand still before another worker may take it over. When
the store answers again, a renewal with the known ETag succeeds if nobody has taken the attempt over, and the attempt
goes on. Otherwise it ends. Ending the attempt after some time was rejected: an outage of the store hits all workers
alike, so all of them would lose their work.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import structlog

from airflow_provider_taskhub.engine.lifecycle import ActivityHappening
from airflow_provider_taskhub.errors import Conflict, NotFound, StorageError, Unavailable
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
from airflow_provider_taskhub.workers.executors.attempt_values import (
    LOST,
    ActivityOutcome,
    ActivityProgress,
    ActivityRequest,
)
from airflow_provider_taskhub.workers.executors.pause import Pause

T = TypeVar("T")

log = structlog.get_logger(__name__)


_ANSWER = 5.0
"""Seconds. A request about the record that has no answer after this time is sent again, because its connection may be
dead. So a worker renews its records soon after an outage, before others may take them over."""
_WATCH = 0.75
"""Seconds between two looks at the record, where its renewals are rarer. So a cancel is seen within about this time."""


class Superseded(Exception):
    """The attempt must end: its record belongs to another worker, says ``cancelling``, or could not be renewed."""


class CutOff(Superseded):
    """The attempt must end, because its record could not be renewed and the attempt cannot stand still any longer."""


class RecordedAttempt:
    """An attempt whose activity record this worker has claimed, with the newest ETag of the record's row.

    Heartbeats and progress change the record, one write at a time.

    :param held: the work item of the activity.
    :param record: the record as claimed.
    :param etag: the ETag of the row of the record.
    :param renewed: monotonic time, in seconds, just before the request that claimed the record.
    :param longest_pause: seconds for which the attempt can stand still while its record cannot be renewed. 0: it ends.
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
        renewed: float,
        longest_pause: float,
        left_sessions: tuple[str, ...] = (),
    ) -> None:
        self.record, self.left_sessions, self._held = record, left_sessions, held
        self._hub, self._times, self._etag = hub, times, etag
        self._give_up = times.give_up.total_seconds()
        self._changed, self._answered = asyncio.Event(), asyncio.Event()
        self._ended = False
        self._gone = False
        self._longest_pause = longest_pause
        spare = (times.take - times.give_up).total_seconds()
        # The reaper kills later than this worker ends the attempt, because this worker knows and tells the reason.
        self._pause = Pause(kill_after=None if longest_pause > 0 else min(1.0, spare / 2))
        self._pause.put_off(renewed + self._give_up)
        self._since = 0.0
        self._unconfirmed: list[Callable[[], None]] = []
        self.has_begun = self.was_killed = False

    async def run(self, runner: Runner, request: ActivityRequest) -> ActivityOutcome:
        """Run the attempt and renew its record meanwhile; return the outcome.

        If the outcome is ``too_late``, the attempt has not begun, and this method may be called again.

        :raises Superseded: if the attempt must end because another worker has it, or it is cancelled.
        :raises CutOff: if the record could not be renewed, and the attempt cannot stand still any longer.
        """

        def progress(news: ActivityProgress) -> None:
            self.record = news.onto(self.record)
            self.has_begun = True
            self.was_killed = news.killed
            if news.confirm is not None:
                self._unconfirmed.append(news.confirm)
            if not news.observed:
                self._changed.set()

        self._ended = False
        async with owned() as start:
            running = start(runner.run(request, progress=progress, pause=self._pause))
            beating, guarding = start(self._beat()), start(self._guard(request))
            try:
                await asyncio.wait((running, beating, guarding), return_when=asyncio.FIRST_COMPLETED)
                if running.done():
                    return running.result()
                (beating if beating.done() else guarding).result()
                raise AssertionError("the heartbeats ended without an error while the attempt was running")
            finally:
                guarding.cancel()
                unwanted = self._gone or self.record.state is RecordState.CANCELLING
                running.cancel(None if unwanted else LOST)
                self._ended = True  # lets a running heartbeat finish: without its answer the new ETag would be unknown
                self._changed.set()
                await asyncio.gather(beating, guarding, return_exceptions=True)
                await self._renew_until(running)
                await asyncio.gather(running, return_exceptions=True)

    async def _renew_until(self, running: asyncio.Future[Any]) -> None:
        """Renew the record of an attempt that is being ended until its code has ended.

        The executor gives the code a grace time for its clean-up. If nobody renewed the record meanwhile, other workers
        would take the attempt for lost, and give its places of limits to other attempts.
        """
        while True:
            soon = self._left / 2 if self._left > 0 else 1.0
            await asyncio.wait((running,), timeout=min(self._times.renew.total_seconds(), soon))
            if running.done():
                return
            try:
                await self._renew()
                self._go_on()  # nobody else does it now
            except NotFound:  # its instance was purged, so no other worker can take the attempt over
                self._pause.put_off(math.inf)
                return
            except Conflict:
                if self.record.state is not RecordState.CANCELLING:
                    running.cancel()  # another worker has the attempt: no time for a clean-up
                    return
            except StorageError as error:
                log.info("heartbeat_failed", error=str(error), **self._names())

    async def lose(self, why: str) -> bool:
        """Record that the attempt ended without an outcome, so that the next attempt starts at once.

        :param why: the reason, which the record keeps.
        :returns: False if the record could not be written: it was cancelled or taken over, or the store did not answer.
        """
        if self.record.state is RecordState.CANCELLING:
            return False
        lost = records.moved(self.record, ActivityHappening.CRASHED)
        self.record = replace(lost, ended=self._hub.clock.utc_now(), message=why[:500])
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
        it. If the attempt was cancelled, the record of this object says so afterwards.

        :raises Conflict: if the record no longer says that this worker runs the attempt.
        """
        record = self.record
        found = await records.newest(self._hub.store, self._hub.names, record)
        mine = found is not None and found[0].worker == record.worker
        # It was purged, or another worker has closed it: no attempt follows.
        self._gone = found is None or found[0].state is RecordState.CANCELLED
        if found is None or not mine or found[0].state not in (RecordState.RUNNING, RecordState.CANCELLING):
            raise Conflict(f"attempt {record.attempt} of {record.name!r} was taken over, or has ended")
        self._etag = found[1].etag
        if found[0].state is RecordState.CANCELLING and record.state is not RecordState.CANCELLING:
            self.record = records.moved(record, ActivityHappening.CANCEL)
            with suppress(StorageError):
                await self._renew()  # no other worker runs the attempt, so its code may go on and see the cancel
                self._go_on()
            raise Conflict(f"attempt {record.attempt} of {record.name!r} was cancelled")

    async def _beat(self) -> None:
        """Renew the record until the attempt has ended.

        After the first renewal this method checks once whether the instance has ended or has cancelled the call. If
        that was before the record existed, nothing could mark the record as ``cancelling``.

        :raises Superseded: if the attempt must end.
        """
        fate_checked = False
        outage = Outage(log.bind(activity=self.record.name), "heartbeat_failed", self._hub.clock.monotonic)
        hub, every = self._hub, self._times.renew.total_seconds()
        while True:
            if self._left > 0:  # otherwise the answer to the last renewal came too late, and the next one is due
                await self._until_due(every)
            if self._ended:
                return
            try:
                await self._renew()
                self._answered.set()
                outage.over()
                if not fate_checked and await _in_time(fate_of(hub, self._held)) in (Fate.ENDED, Fate.CANCELLED):
                    self.record = records.moved(self.record, ActivityHappening.CANCEL)
                    await self._write()
                    raise Superseded("the instance of the activity has ended, or has cancelled the call")
                fate_checked = True
            except (Conflict, NotFound) as error:
                self._gone = self._gone or isinstance(error, NotFound)
                raise Superseded("the attempt was cancelled, or another worker has taken it over") from error
            except StorageError as error:
                outage.failed(error)
                await hub.clock.sleep(min(1.0, every / 4))

    @property
    def _left(self) -> float:
        """Seconds for which no other worker can have taken the attempt over; 0 or less: another one may have."""
        return self._pause.due - self._hub.clock.monotonic()

    async def _guard(self, request: ActivityRequest) -> None:
        """Let the attempt stand still while another worker may have taken it over. It goes on after a renewal.

        The loop of the renewals cannot do this, because one of them may wait long for its answer.

        :raises CutOff: if the attempt cannot stand still any longer.
        """
        clock = self._hub.clock
        while True:
            if (left := self._left) > 0:
                self._go_on()
                await clock.sleep(left)
                continue
            # Spark has counted the time for which this worker itself was stopped. Other code may still need the pause.
            began = self._pause.due if request.spark else clock.monotonic()
            self._stand_still()
            while self._left <= 0:
                self._answered.clear()
                rest = began + self._longest_pause - clock.monotonic()
                try:
                    async with asyncio.timeout(None if rest == math.inf else max(0.0, rest)):
                        await self._answered.wait()
                except TimeoutError:
                    silent = self._give_up - self._left
                    raise CutOff(f"its record could not be renewed for {silent:.0f} s") from None

    def _stand_still(self) -> None:
        if self._longest_pause > 0 and not self._pause.on:
            log.warning("activity_paused", **self._names())
            self._since = self._pause.due
            self._pause.set(True)

    def _go_on(self) -> None:
        if self._pause.on:
            self._pause.set(False)
            stood = self._hub.clock.monotonic() - self._since
            log.info("activity_resumed", seconds=round(stood, 1), **self._names())

    def _names(self) -> dict[str, object]:
        record = self.record
        return {
            "activity": record.name,
            "instance_id": record.instance.instance_id,
            "task_id": record.task_id,
            "attempt": record.attempt,
        }

    async def _until_due(self, every: float) -> None:
        """Wait until the record must be written: its progress or another worker has changed it, or the time is over.

        :param every: seconds between two renewals.
        """
        looks, until = max(1, round(every / _WATCH)), self._hub.clock.monotonic() + every
        for look in range(1, looks + 1):
            try:
                await asyncio.wait_for(self._changed.wait(), every / looks)
            except TimeoutError:
                if self._hub.clock.monotonic() >= until:  # this worker may have been blocked for long
                    return
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
            return await _in_time(records.unchanged(self._hub.store, self._hub.names, self.record, self._etag))
        return True

    async def _renew(self) -> None:
        sent = self._hub.clock.monotonic()
        await _in_time(self._write())
        if self._left <= 0:
            self._stand_still()  # the reaper has done it, while this worker was stopped or blocked
        self._pause.put_off(sent + self._give_up)

    async def _write(self) -> None:
        self.record = replace(self.record, renewed=self._hub.clock.utc_now())
        written = len(self._unconfirmed)  # what comes during the write may not be in it
        await self._replace_row()
        confirmed, self._unconfirmed = self._unconfirmed[:written], self._unconfirmed[written:]
        for confirm in confirmed:
            confirm()

    async def _replace_row(self) -> None:
        try:
            etags = await self._hub.store.execute(self.becomes(self.record))
        except Conflict:
            await self.reclaim()
            etags = await self._hub.store.execute(self.becomes(self.record))
        assert isinstance(etags, tuple)
        self._etag = etags[0]


async def _in_time(asked: Awaitable[T]) -> T:
    """Return the answer of the store to a request about a record.

    A request that is cut off may have been carried out. Then the next renewal finds a newer ETag of its own record.

    :raises Unavailable: if there is no answer in :data:`_ANSWER` seconds.
    """
    try:
        async with asyncio.timeout(_ANSWER):
            return await asked
    except TimeoutError:
        raise Unavailable(f"no answer within {_ANSWER:g} s") from None
