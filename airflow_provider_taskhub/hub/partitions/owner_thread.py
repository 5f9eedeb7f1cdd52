"""Partitions on a thread of their own: renewals and the watchdog share nothing with the worker's main loop.

An orchestrator that blocks the worker's loop, or a store that hangs, must not cost a lease, nor keep one that is too
old: renewals run on this thread's event loop and store, ages are watched by a second thread that does no I/O.
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

_COURTESY = 15.0
"""Seconds beyond its limit that a stop may need for its last storage calls."""


class OwnerThread:
    """A :class:`PartitionOwner` on a thread, an event loop and a store of its own, beside a watchdog thread.

    Parameters as there; the listener is called from these threads and must return at once.

    :param open_store: makes the store that this thread opens and closes.
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
        """What is held now."""
        return () if self._owner is None else self._owner.tenures

    @property
    def metrics(self) -> LeaseMetrics:
        """What has happened to its partitions so far."""
        return LeaseMetrics() if self._owner is None else self._owner.metrics

    @property
    def supervisor(self) -> Supervisor | None:
        """Of the loops that hold partitions; None before they began."""
        return None if self._owner is None else self._owner.supervisor

    @property
    def outage(self) -> str:
        """Why the store does not take this worker's row; "" while it does."""
        return "" if self._owner is None else self._owner.outage

    @property
    def requests(self) -> Counter[str]:
        """Requests of this thread's store so far, by kind: a copy, since it goes on counting."""
        return Counter() if self._store is None else self._store.requests.copy()

    async def start(self) -> None:
        """Start; returns when this worker is listed and may take partitions.

        :raises HubError: the hub is missing, not ready or newer, or another app holds it.
        :raises StorageError: the store does not answer. :raises RuntimeError: when started twice.
        """
        self._thread.start()
        await asyncio.wrap_future(self._ready)
        self._watchdog.start()

    async def wait(self) -> None:
        """Until the thread has ended. :raises Exception: what ended it, if it was not :meth:`stop`."""
        await asyncio.shield(asyncio.wrap_future(self._ended))

    def hurry(self) -> None:
        """Scan now, since another worker is proven dead; from any thread."""
        if self._owner is not None and self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._owner.hurry)

    async def stop(self, timeout: timedelta) -> None:
        """Hand everything over within ``timeout``, plus the last storage calls; never waits much longer than that."""
        if self._owner is None or self._loop is None or self._ended.done():
            return
        with suppress(RuntimeError, TimeoutError):  # a loop that ended meanwhile has nothing left to stop
            stopped = asyncio.run_coroutine_threadsafe(self._owner.stop(timeout), self._loop)
            async with asyncio.timeout(timeout.total_seconds() + _COURTESY):
                await asyncio.wrap_future(stopped)
                await asyncio.wrap_future(self._ended)
        if not self._ended.done():
            log.error("partitions_not_stopped", seconds=timeout.total_seconds() + _COURTESY)

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
        """Ends tenures by age, whatever the other thread is stuck in."""
        assert self._owner is not None
        while True:
            self._alarm.clear()  # before it is looked at what there is: whatever comes then is looked at once more
            if self._over:
                return
            self._alarm.wait(self._owner.expire())
