"""A worker process: one backend, its partitions' thread, its executors, and the way in and out of them.

One exit stack holds the lifetimes, so that stopping is starting in reverse. A stop has two phases: drain, then cancel
after a limit. All work is in :class:`Backend`.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import timedelta

import structlog

from airflow_provider_taskhub.app import App, load_app
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.clock import SYSTEM_CLOCK
from airflow_provider_taskhub.engine.registry import Registry
from airflow_provider_taskhub.errors import ConfigurationError, WorkerFailed
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import ACTIVITY, ORCHESTRATOR, HubNames, Member, Tenure
from airflow_provider_taskhub.hub.partitions import administration
from airflow_provider_taskhub.hub.partitions.capabilities import refusal
from airflow_provider_taskhub.hub.partitions.hosting import PartitionHost
from airflow_provider_taskhub.hub.partitions.members import Members
from airflow_provider_taskhub.hub.partitions.owner_thread import OwnerThread
from airflow_provider_taskhub.settings import Settings
from airflow_provider_taskhub.storage.connect import open_store
from airflow_provider_taskhub.supervision import Supervisor
from airflow_provider_taskhub.workers.backend import POLLS_MISSED, Backend
from airflow_provider_taskhub.workers.executors.environment import child_environment
from airflow_provider_taskhub.workers.executors.pool import ExecutorConfig, ExecutorPool, ExecutorTimes
from airflow_provider_taskhub.workers.health import Health, listen
from airflow_provider_taskhub.workers.incarnation import Incarnation
from airflow_provider_taskhub.workers.orchestrations.coroutine_closer import CoroutineCloser
from airflow_provider_taskhub.workers.orchestrations.stuck_instances import quarantine_stuck
from airflow_provider_taskhub.workers.orchestrations.watchdog import EpisodeWatchdog, Running
from airflow_provider_taskhub.workers.peers import Peers
from airflow_provider_taskhub.workers.waiting_metrics import WaitingFigures

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a worker is started.

    :param apps: ``module:attribute`` each. :param name: for people; never needs to be unique.
    :param health_port: serves /live, /ready and /metrics; None: nothing.
    :param health_host: the address that it listens on; "": loopback, IPv4 and IPv6. :param warm: start Spark at once.
    :param strict: refuse to start beside live workers whose apps differ.
    """

    apps: tuple[str, ...]
    name: str = ""
    roles: tuple[str, ...] = (ORCHESTRATOR, ACTIVITY)
    health_port: int | None = None
    health_host: str = ""
    warm: bool = True
    strict: bool = False


class LeaseEventBridge:
    """Carries lease events from the owner's thread to the backend's loop (a :class:`TenureListener`)."""

    def __init__(self, loop: asyncio.AbstractEventLoop, backend: Backend) -> None:
        self._loop, self._backend = loop, backend

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop is closed: the worker has stopped
            log.debug("lease_event_after_stop", event_name=function.__name__)

    def taken(self, tenure: Tenure) -> None:
        self._call(self._backend.taken, tenure)

    def asked(self, tenure: Tenure) -> None:
        self._call(self._backend.asked, tenure)

    def lost(self, tenure: Tenure, reason: str) -> None:
        self._call(self._backend.lost, tenure, reason)


class Host:
    """A worker, from start to stop.

    :raises ConfigurationError: from :meth:`run`, for an app that does not load, a hub that is missing or another's …
    """

    def __init__(self, settings: Settings, options: Options) -> None:
        self._settings, self._options = settings, options
        self._stopping = asyncio.Event()
        self._failure: str | None = None

    def stop(self) -> None:
        """Drain and end; from a signal handler of the loop."""
        self._stopping.set()

    async def run(self) -> None:
        """Work until :meth:`stop`.

        :raises WorkerFailed: when the worker cannot go on; it has been stopped in order.
        """
        apps = [load_app(name) for name in self._options.apps]
        registry = Registry.of(apps)
        async with AsyncExitStack() as stack:
            await self._start(stack, registry, apps)
            await self._stopping.wait()
            log.info("worker_stopping")
        if self._failure is not None:
            raise WorkerFailed(self._failure)

    async def _start(self, stack: AsyncExitStack, registry: Registry, apps: Sequence[App]) -> None:
        settings, options = self._settings, self._options
        # before anything is taken: a port that cannot be opened ends a worker that has done nothing yet
        port = None if options.health_port is None else await listen(stack, options.health_port, options.health_host)
        incarnation = Incarnation.claim(options.name)
        stack.callback(incarnation.release)
        me = incarnation.identity
        hub = await self._open_hub(stack, holder=str(me))
        member = self._member(str(me), registry, apps)
        members = Members(hub.store, hub.names, times=settings.lease_times)
        if options.strict:
            await self._refuse_different_apps(member, members, incarnation)
        pool = await self._start_pool(stack, hub, incarnation)
        closer = CoroutineCloser()
        stack.callback(closer.stop)
        backend = Backend(
            hub=hub,
            registry=registry,
            runner=pool,
            me=me,
            settings=settings,
            roles=options.roles,
            peers=Peers(live=members.live, dead=incarnation.predecessors, partitions_free=lambda: owner.hurry()),
            closes=closer,
        )
        owner = OwnerThread(
            open_store=lambda: open_store(settings),
            names=hub.names,
            host=PartitionHost(
                me=me,
                listener=LeaseEventBridge(asyncio.get_running_loop(), backend),
                predecessors=incarnation.predecessors,
                member=lambda: replace(member, running=backend.work_items.slots.busy),
                services=backend.services,
                stuck=POLLS_MISSED * settings.max_polling + settings.request_timeout,
            ),
            times=settings.lease_times,
            app_name=settings.app_name,
        )
        self._watch_episodes(stack, backend, closer)
        backend.start()
        stack.push_async_callback(backend.stop)
        await owner.start()
        stack.push_async_callback(owner.stop, settings.drain_timeout)
        stack.push_async_callback(backend.drain, settings.drain_timeout.total_seconds())
        self._watch(stack, owner)
        if port is not None:
            port.serve(self._health(backend, owner, pool))
            stack.callback(port.close)  # it tells nothing of a worker that stops
        log.info(
            "worker_ready",
            worker=str(me),
            pid=os.getpid(),
            hub=settings.hub,
            place=hub.store.describe(),
            apps=", ".join(f"{app.name} {app.version}".strip() for app in apps),
        )

    async def _open_hub(self, stack: AsyncExitStack, *, holder: str) -> Hub:
        settings, names = self._settings, HubNames(self._settings.hub)
        store = await stack.enter_async_context(open_store(settings, holder=holder))
        info = await administration.ensure_hub(
            store, names, settings.asked_partitions, default=settings.partitions, lease_store=settings.lease_store
        )
        return Hub(store=store, names=names, info=info, clock=SYSTEM_CLOCK)

    def _member(self, worker: str, registry: Registry, apps: Sequence[App]) -> Member:
        """What other workers and people see of this worker in the hub."""
        roles = self._options.roles
        return Member(
            worker=worker,
            started=SYSTEM_CLOCK.utc_now(),
            roles=roles,
            apps={app.name: app.version for app in apps},
            orchestrators=tuple(registry.orchestrators) if ORCHESTRATOR in roles else (),
            activities=tuple(registry.activities) if ACTIVITY in roles else (),
            weight=self._settings.weight,
            accepts=registry.accepts if ORCHESTRATOR in roles else {},
        )

    async def _refuse_different_apps(self, member: Member, members: Members, incarnation: Incarnation) -> None:
        """:raises ConfigurationError: when the apps of a live worker differ from this worker's."""
        dead = incarnation.predecessors()
        others = [other for other in await members.prove() if other.worker not in dead]
        if (text := refusal(member, others)) is not None:
            raise ConfigurationError(text)

    async def _start_pool(self, stack: AsyncExitStack, hub: Hub, incarnation: Incarnation) -> ExecutorPool:
        """The pool of executors; a worker without the role of activities does not start it."""
        settings, options = self._settings, self._options

        async def append(name: str, data: bytes) -> None:
            await hub.store.append_blob(hub.names.logs, name, data)

        config = ExecutorConfig(
            apps=options.apps,
            spark=settings.spark,
            lock_fd=incarnation.lock_fd,
            max_result=settings.max_result,
            environment=child_environment(
                os.environ,
                connection=settings.connection.get_secret_value() if settings.connection else None,
                withheld=settings.withheld_names,
            ),
        )
        pool = ExecutorPool(
            config,
            size=settings.activities,
            logs=append,
            name=incarnation.identity.name,
            warm=options.warm,
            times=ExecutorTimes(patience=settings.executor_timeout),
        )
        if ACTIVITY in options.roles:
            await pool.start()
            stack.push_async_callback(pool.stop, timedelta(seconds=5))
        return pool

    def _health(self, backend: Backend, owner: OwnerThread, pool: ExecutorPool) -> Health:
        times = self._settings.lease_times
        return Health(
            backend=backend,
            owner=owner,
            pool=pool,
            started=SYSTEM_CLOCK.monotonic(),
            waiting=WaitingFigures(
                Client(backend.hub, times).admin.waiting_instances,
                believed=times.scan.total_seconds(),
                clock=SYSTEM_CLOCK,
            ),
        )

    def _watch(self, stack: AsyncExitStack, owner: OwnerThread) -> None:
        """A partitions thread that ends by itself ends the worker: it could never serve again."""
        supervisor = Supervisor()

        async def watch() -> None:
            try:
                await owner.wait()
                reason = "the thread that holds its partitions ended"
            except Exception as error:
                reason = f"the thread that holds its partitions ended: {type(error).__name__}: {error}"
            if not self._stopping.is_set():
                self._failure = reason
                log.error("worker_failed", reason=reason)
                self._stopping.set()

        supervisor.keep("watch partitions", watch)
        stack.push_async_callback(supervisor.close)

    def _watch_episodes(self, stack: AsyncExitStack, backend: Backend, closer: CoroutineCloser) -> None:
        processor = backend.processor

        async def keep(running: Running, cause: str) -> None:
            async with open_store(self._settings) as store:
                await quarantine_stuck(running, cause, store, backend.hub.names)

        watch = EpisodeWatchdog(processor.episodes, thread=threading.get_ident(), keep=keep, also=closer.look)
        watch.start()
        stack.callback(watch.stop)
