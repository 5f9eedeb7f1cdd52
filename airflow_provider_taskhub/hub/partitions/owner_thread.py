"""Run a :class:`PartitionOwner` on a thread, so that a blocked main loop of the worker does not stop its renewals.

An orchestrator may block the worker's event loop, and a store may hang. A blocked event loop must not cost the worker
its leases, and neither of the two must make the worker use a lease that is too old. Therefore one thread renews leases
with an event loop and a store of its own, and a second thread, which does no I/O, watches the age of the leases.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta

import structlog

from airflow_provider_taskhub.clock import SYSTEM_CLOCK
from airflow_provider_taskhub.hub.model import HubNames
from airflow_provider_taskhub.hub.partitions.hosting import PartitionHost
from airflow_provider_taskhub.hub.partitions.metrics import LeaseMetrics
from airflow_provider_taskhub.hub.partitions.owner import PartitionOwner
from airflow_provider_taskhub.hub.partitions.tenure import LeaseTenure
from airflow_provider_taskhub.settings import LeaseTimes
from airflow_provider_taskhub.storage.primitives import Store
from airflow_provider_taskhub.supervision import Supervisor

log = structlog.get_logger("taskhub.partitions")

_STOP_RESERVE = 15.0
"""Seconds that a stop may take for its last storage calls, in addition to its timeout."""


class OwnerThread:
    """Run a :class:`PartitionOwner` on a thread with an event loop and a store of its own, next to a watchdog thread.

    The other parameters are those of :class:`PartitionOwner`. Both threads call the listener of ``host``, and it must
    return at once.

    :param open_store: function that makes a new store. The first thread opens and closes this store.
    """

    def __init__(
        self,
        *,
        open_store: Callable[[], Store],
        names: HubNames,
        host: PartitionHost,
        times: LeaseTimes,
        app_name: str,
    ) -> None:
        self._open_store = open_store

        def make(store: Store) -> PartitionOwner:
            return PartitionOwner(
                store,
                names,
                host,
                times=times,
                clock=SYSTEM_CLOCK,
                app_name=app_name,
                alarm=self._alarm.set,
            )

        self._make = make
        self._owner: PartitionOwner | None = None
        self._store: Store | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready: Future[None] = Future()
        self._ended: Future[None] = Future()
        self._over = False
        self._alarm = threading.Event()
        self._thread = threading.Thread(target=self._work, name="taskhub-partitions", daemon=True)
        self._watchdog = threading.Thread(target=self._watch, name="taskhub-watchdog", daemon=True)

    @property
    def tenures(self) -> tuple[LeaseTenure, ...]:
        """The tenures of the partitions that this worker owns now."""
        return () if self._owner is None else self._owner.tenures

    @property
    def metrics(self) -> LeaseMetrics:
        """Counts of what has happened to this worker's partitions so far."""
        return LeaseMetrics() if self._owner is None else self._owner.metrics

    @property
    def supervisor(self) -> Supervisor | None:
        """The supervisor of the loops of the partition owner. None before the start."""
        return None if self._owner is None else self._owner.supervisor

    @property
    def outage(self) -> str:
        """The last error if the store refuses this worker's member row. Otherwise ""."""
        return "" if self._owner is None else self._owner.outage

    @property
    def requests(self) -> Counter[str]:
        """A copy of the number of requests that this thread has sent to the store so far, by kind of request."""
        return Counter() if self._store is None else self._store.requests.copy()

    async def start(self) -> None:
        """Start the threads. Return when this worker has its member row and may take partitions.

        :raises HubError: the hub does not exist, is not ready, needs a newer package, or is served by another app.
        :raises StorageError: the store does not answer.
        :raises RuntimeError: the threads were already started.
        """
        self._thread.start()
        await asyncio.wrap_future(self._ready)
        self._watchdog.start()

    async def wait(self) -> None:
        """Wait until the thread has ended.

        :raises Exception: the error that ended the thread. If :meth:`stop` ended the thread, there is none.
        """
        await asyncio.shield(asyncio.wrap_future(self._ended))

    def hurry(self) -> None:
        """Make the owner scan now, because another worker is proven dead. Any thread may call this."""
        if self._owner is not None and self._loop is not None:
            with suppress(RuntimeError):  # call_soon_threadsafe raises this error if the loop is closed
                self._loop.call_soon_threadsafe(self._owner.hurry)

    async def stop(self, timeout: timedelta) -> None:
        """Hand over all partitions. Return after ``timeout`` plus :data:`_STOP_RESERVE` at the latest, even if the
        thread still runs then.
        """
        if self._owner is None or self._loop is None or self._ended.done():
            return
        with suppress(RuntimeError, TimeoutError):  # RuntimeError: the loop is closed, so nothing must be stopped
            stopped = asyncio.run_coroutine_threadsafe(self._owner.stop(timeout), self._loop)
            async with asyncio.timeout(timeout.total_seconds() + _STOP_RESERVE):
                await asyncio.wrap_future(stopped)
                await asyncio.wrap_future(self._ended)
        if not self._ended.done():
            log.error("partitions_not_stopped", seconds=timeout.total_seconds() + _STOP_RESERVE)

    def _work(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
            else:
                log.error("partitions_ended", error=repr(error))
            self._finish()
            self._ended.set_exception(error)
        else:
            self._finish()
            self._ended.set_result(None)

    def _finish(self) -> None:
        self._over = True
        self._alarm.set()

    async def _main(self) -> None:
        async with self._open_store() as store:
            self._store = store
            owner = self._make(store)
            self._loop = asyncio.get_running_loop()
            await owner.start()
            self._owner = owner
            self._ready.set_result(None)
            await owner.run()

    def _watch(self) -> None:
        """End tenures that are too old, even if the other thread is blocked."""
        assert self._owner is not None
        while True:
            self._alarm.clear()  # before the check, so that an alarm during the check causes another check
            if self._over:
                return
            self._alarm.wait(self._owner.expire())
