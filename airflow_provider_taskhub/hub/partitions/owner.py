"""The loops by which a worker owns partitions: start, renew, scan, watch the age of leases, and stop.

:class:`PartitionOwner` runs on the event loop of its caller, which may be that of a simulation.
``owner_thread.OwnerThread`` runs it on a thread of its own. ``held_partitions`` renews and hands over what the worker
owns, and ``scan`` reads the leases and takes partitions. This module decides when they do it. No error of the store
ends a loop.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import timedelta

import structlog

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.errors import AccessDenied, HubError, StorageError, StoreReplaced, Throttled, Unavailable
from airflow_provider_taskhub.hub.model import HubNames, Member, Service
from airflow_provider_taskhub.hub.partitions.administration import read_hub
from airflow_provider_taskhub.hub.partitions.app_lease import RENEW, AppLease, HeldApp
from airflow_provider_taskhub.hub.partitions.bounded import attempt, within
from airflow_provider_taskhub.hub.partitions.dotnet_workers import served_by_taskhub
from airflow_provider_taskhub.hub.partitions.held_partitions import DRAIN, HeldPartitions
from airflow_provider_taskhub.hub.partitions.hosting import PartitionHost, ScanningWorker
from airflow_provider_taskhub.hub.partitions.lease_stores import leases_of
from airflow_provider_taskhub.hub.partitions.liveness import NOTHING, Advertisement
from airflow_provider_taskhub.hub.partitions.members import Members
from airflow_provider_taskhub.hub.partitions.metrics import LeaseMetrics
from airflow_provider_taskhub.hub.partitions.orders import Controls
from airflow_provider_taskhub.hub.partitions.placement import Wanted
from airflow_provider_taskhub.hub.partitions.scan import ScannedHub, Scanner
from airflow_provider_taskhub.hub.partitions.tenure import LeaseTenure
from airflow_provider_taskhub.retries import Retries, retry
from airflow_provider_taskhub.settings import LeaseTimes
from airflow_provider_taskhub.storage.primitives import Store
from airflow_provider_taskhub.supervision import Supervisor
from airflow_provider_taskhub.telemetry import Outages

log = structlog.get_logger("taskhub.partitions")

_NOT_RENEWED = "member_not_renewed"
_STARTS = Retries(
    after=(Throttled, Unavailable), unless=lambda error: isinstance(error, AccessDenied), tries=5, first=1.0, factor=1.0
)
"""If the store throttles or does not answer, the start of a worker is tried 5 times: 1 s apart, or as long as the store
asks for."""
_SLOWEST = 8.0
"""While the store throttles, the pause between two scans grows to at most this many times its normal length."""


class PartitionOwner:
    """Own partitions for one worker. Call the methods only on the event loop that runs :meth:`run`, except
    :meth:`expire`.

    :param host: what the owner needs to know about its worker.
    :param times: times of leases, measured by the monotonic ``clock``.
    :param app_name: the AppName, which all workers of a hub must have in common (the app lease).
    :param rng: random numbers that vary the pauses, so that workers do not all act at the same time. None: a new
        source.
    :param alarm: called when the worker has taken a partition. Another thread then calls :meth:`expire`. None:
        :meth:`run` calls :meth:`expire` itself.
    """

    def __init__(
        self,
        store: Store,
        names: HubNames,
        host: PartitionHost,
        *,
        times: LeaseTimes,
        clock: Clock,
        app_name: str,
        rng: random.Random | None = None,
        alarm: Callable[[], None] | None = None,
    ) -> None:
        self._store = store
        self._names = names
        self._host = host
        self._me = host.name
        self._times = times
        self._renew_every = times.renew.total_seconds()
        self._scan_every = times.scan.total_seconds()
        # an attempt to renew a lease may take half of the time between the due renewal and the give-up time, so that
        # there is time for a second attempt
        self._deadline = (times.give_up.total_seconds() - self._renew_every) / 2
        self._clock = clock
        self._member = Member(
            worker=self._me, started=clock.utc_now(), roles=("orchestrator",), apps={}, orchestrators=(), activities=()
        )
        self._describe = host.member or (lambda: self._member)
        self._services: Mapping[int, Service] = {}
        self._wanted: Mapping[int, Wanted] = {}
        self._rng = rng or random.Random()
        self._began = asyncio.Event()
        self._watchdog = alarm is None
        self._alarm = alarm or self._began.set
        self._members = Members(store, names, times=times, clock=clock)
        self._app = HeldApp(AppLease(store, names, app_name, with_older=self._with_older), clock, lost=self._shed_all)
        self._refused: HubError | StoreReplaced | None = None
        self._holding: HeldPartitions | None = None
        self._scanner: Scanner | None = None
        self.metrics = LeaseMetrics()
        self.supervisor = Supervisor(clock)
        self._outages = Outages(log, clock.monotonic)
        self._slowness = 1.0
        self._due = 0.0
        self._stopping = asyncio.Event()
        self._hurried = asyncio.Event()
        self._ended = asyncio.Event()
        self._begun = False
        self._stop_limit = DRAIN

    @property
    def tenures(self) -> tuple[LeaseTenure, ...]:
        """The tenures of the partitions that this worker owns now. May be read from any thread."""
        return () if self._holding is None else self._holding.tenures

    @property
    def outage(self) -> str:
        """The last error if the store refused this worker's member row twice or more in a row. Otherwise "". May be
        read from any thread.
        """
        outage = self._outages.of(_NOT_RENEWED)
        return outage.last_error if outage.failures > 1 else ""

    def expire(self) -> float:
        """End each tenure whose last confirmed renewal is too old. May be called from any thread. Does no I/O.

        :returns: seconds after which this method must be called again. Call it earlier if the worker takes a partition:
            if the answer to this taking was slow, the new lease is perhaps the first that becomes too old.
        """
        return self._holds.expire()

    @property
    def _holds(self) -> HeldPartitions:
        assert self._holding is not None
        return self._holding

    @property
    def _scans(self) -> Scanner:
        assert self._scanner is not None
        return self._scanner

    # --- start and stop ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Prepare to take partitions: check the hub, take the app lease, and write this worker's member row.

        :raises HubError: the hub is not ready, needs a newer package, or is served by another app.
        :raises StorageError: the store does not answer.
        """

        def failed(error: Exception, failures: int) -> None:
            log.warning("partitions_not_started", error=str(error), failures=failures)

        await retry(self._prepare, _STARTS, self._clock, failed=failed)

    async def _prepare(self) -> None:
        info = await read_hub(self._store, self._names)
        leases = leases_of(self._store, self._names, info, self._times.take)
        await self._app.acquire()
        self._ask_host()
        await self._members.announce(self._member)
        # A deletion of the hub that did not see the row may have released the app lease: see dead_workers.
        await self._app.acquire()
        self._holding = HeldPartitions(
            leases,
            self._host,
            times=self._times,
            deadline=self._deadline,
            clock=self._clock,
            metrics=self.metrics,
            began=self._alarm,
        )
        controls = Controls(self._store, self._names)
        self._scanner = Scanner(
            ScannedHub(leases=leases, partitions=info.partitions, members=self._members, controls=controls),
            ScanningWorker(me=self._me, dead=self._host.dead, may_take=self._app.held, services=lambda: self._services),
            self._holding,
            times=self._times,
            clock=self._clock,
            stopping=self._stopping,
            metrics=self.metrics,
        )

    async def run(self) -> None:
        """Own partitions until :meth:`stop` is called. A cancelled run reports its partitions as lost and writes no
        more.

        :raises HubError: :meth:`start` has failed (this method calls it if needed), or workers of DurableTask for .NET
            serve the hub. In the second case all partitions were handed over first.
        :raises StoreReplaced: the file of the hub was replaced or restored.
        :raises StorageError: the store does not answer at the start.
        """
        self._begun = True
        try:
            if self._holding is None:
                await self.start()
            await self._own()
            if self._refused is not None:
                raise self._refused
        finally:
            self._ended.set()

    async def _with_older(self) -> bool:
        """Return whether only TaskHub workers of an older version can hold the app lease under DurableTask's id."""
        info = await read_hub(self._store, self._names)
        leases = await leases_of(self._store, self._names, info, self._times.take).scan()
        return served_by_taskhub(leases, await self._members.live())

    async def _own(self) -> None:
        scanning = self.supervisor.keep("partitions: scan", self._scanning)
        self.supervisor.keep("partitions: renew", self._renewing)
        self.supervisor.keep("partitions: announce", self._publishing)
        self.supervisor.keep("partitions: app lease", self._holding_app)
        if self._watchdog:
            self.supervisor.keep("partitions: watchdog", self._watching)
        try:
            await self._stopping.wait()
            await scanning  # the scan loop first ends the taking of partitions that it has begun
            await self._leave()
        finally:
            await self.supervisor.close()
            await self._holds.end()

    async def stop(self, timeout: timedelta) -> None:
        """Hand over all partitions within ``timeout`` plus a few storage calls. Return when :meth:`run` has ended."""
        self._stop_limit = timeout
        self._hurried.set()
        self._stopping.set()  # if run() is still starting, it stops right after the start
        if self._begun:
            await self._ended.wait()

    def hurry(self) -> None:
        """Make the scan loop scan now, because another worker is proven dead, so that its partitions are free."""
        self._hurried.set()

    async def _leave(self) -> None:
        """Drain and release all partitions, so that other workers take them at their next scan."""
        await self._best_effort(self._members.renew(self._member, leaving=True))
        drains = self._holds.shed_all("the worker stops", self._stop_limit)
        if drains:
            await asyncio.wait(drains)
        await self._best_effort(self._release_app())
        await self._best_effort(self._members.withdraw(self._me))

    async def _release_app(self) -> None:
        """Release the app lease if no other worker of the app is live: all workers of an app hold it together."""
        roster = await self._members.watch()
        if all(member.worker == self._me for member in roster.live):
            await self._app.release()

    async def _best_effort(self, call: Awaitable[None]) -> None:
        """Await a storage call that belongs to the stop of this worker. Ignore its failure, which only makes other
        workers wait longer for the partitions.
        """
        with suppress(StorageError, TimeoutError):
            async with asyncio.timeout(max(1.0, self._deadline)):
                await call

    def _shed_all(self) -> None:
        """Hand over all partitions, because another app holds the app lease."""
        if self._holding is not None:
            self._holding.shed_all("another app holds the hub")

    # --- loops: the watchdog for too old leases, and the renewal of the app lease ------------------------------------

    async def _watching(self) -> None:
        while True:
            self._began.clear()
            await within(self._clock, self._began, self.expire())

    async def _holding_app(self) -> None:
        while True:
            await self._clock.sleep(RENEW)
            await self._attempt("app_lease_not_renewed", self._app.renew)

    async def _attempt(self, event: str, call: Callable[[], Awaitable[None]]) -> bool:
        return await attempt(event, call, self._deadline, self._outages)

    # --- loops: renewals of leases and of the member row -------------------------------------------------------------

    async def _renewing(self) -> None:
        retry = min(self._renew_every, self._deadline / 2)
        while True:
            began = self._clock.monotonic()
            self._ask_host()
            pause = self._renew_every * self._rng.uniform(0.85, 1.0)
            self._due = began + pause
            # the leases come first, because the member row must not advertise a renewal that was not sent yet
            done = await asyncio.gather(*self._holds.attempts(self._services), self._attempt_to_publish())
            await self._clock.sleep(began + (pause if all(done) else retry) - self._clock.monotonic())

    async def _attempt_to_publish(self) -> bool:
        return await self._attempt(_NOT_RENEWED, self._write_member)

    async def _publishing(self) -> None:
        """Write the member row as soon as a partition was taken or released, without waiting for the next renewal."""
        while True:
            await self._holds.changed.wait()
            self._holds.changed.clear()
            await self._attempt_to_publish()

    async def _write_member(self) -> None:
        leaving, holding = self._stopping.is_set(), self._holds
        moving = holding.draining or self._scans.waiting
        due = max(0.0, self._due - self._clock.monotonic())
        self._wanted = {} if leaving else self._scans.wanted(self._member)
        advertised = (
            NOTHING if leaving else Advertisement(signs=holding.signs(), moving=moving, due=due, wanted=self._wanted)
        )
        try:
            await self._members.renew(self._member, leaving=leaving, advertised=advertised)
        except StoreReplaced as error:
            self._abandon(error)
            raise
        self._scans.answered()

    def _abandon(self, error: StoreReplaced) -> None:
        """End :meth:`run` without draining: the leases and messages of this worker are of a file that is gone."""
        self._refused = self._refused or error
        self._stop_limit = timedelta()
        self._hurried.set()
        self._stopping.set()

    def _ask_host(self) -> None:
        """Ask the host for its member row and for the state of its partitions. If that fails, the last answer stays
        valid.
        """
        try:
            self._member = self._describe()
            self._services = self._host.services()
        except Exception:
            log.exception("member_unknown")

    # --- loop: scans of the hub --------------------------------------------------------------------------------------

    async def _scanning(self) -> None:
        while not self._stopping.is_set():
            began, least = self._clock.monotonic(), 0.0
            self._hurried.clear()
            jitter = self._rng.uniform(0.9, 1.1)
            self._ask_host()
            try:
                async with asyncio.timeout(max(self._deadline, self._renew_every)):
                    await self._scans.scan(self._member)
                if self._host.watchers is not None:
                    self._host.watchers(self._members.watching or ())
                self._slowness = 1.0
                self._outages.of("scan_failed").over()
                # other workers plan by the member row, so a change of this worker's needs is published at once
                if self._scans.wanted(self._member) != self._wanted:
                    self._holds.changed.set()
                pause = self._scans.pace(self._scan_every * jitter)
            except HubError as error:
                log.error("hub_served_by_another", error=str(error))
                self._refused = error
                self._stopping.set()
                return
            except Throttled as error:  # only scans become less frequent, not renewals
                least, self._slowness = 1.0, min(_SLOWEST, self._slowness * 2)
                pause = max(self._scan_every * self._slowness, error.retry_after) * jitter
                log.warning("scan_throttled", next_in=round(pause, 1))
            except (StorageError, TimeoutError) as error:
                least, pause = 1.0, self._scan_every * jitter
                self._outages.of("scan_failed").failed(error)
            except Exception:
                least, pause = 1.0, self._scan_every * jitter
                log.exception("scan_failed")
            await self._collect(began + pause)
            if not self._stopping.is_set():
                await within(self._clock, self._hurried, max(least, began + pause - self._clock.monotonic()))

    async def _collect(self, until: float) -> None:
        """Read only the leases of partitions that other workers hand over to this worker, ten times as often as scans,
        until ``until``.

        Without these reads a partition that was released for this worker would have no owner until the next scan.

        :param until: monotonic time of the next scan.
        """
        step = max(0.1, self._scan_every / 10)
        while self._scans.waiting and not self._hurried.is_set() and until - self._clock.monotonic() > step:
            await within(self._clock, self._hurried, step * self._rng.uniform(0.9, 1.1))
            if not await self._attempt("handover_not_seen", self._scans.collect):
                return
