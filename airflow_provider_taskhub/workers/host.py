"""Starts and stops the parts of a worker process: the backend, the thread that owns the partitions, and the executors.

One exit stack holds all lifetimes, so that the parts stop in the reverse order of their start. A stop has two phases:
the worker takes no new work and finishes what runs; after a time limit it cancels the rest. This module runs no
orchestration and no activity: the :class:`Backend` and the executors do.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta

import structlog

from airflow_provider_taskhub.app import App, load_app
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.clock import SYSTEM_CLOCK
from airflow_provider_taskhub.engine.registry import (
    ActivityDefinition,
    OrchestratorDefinition,
    Registry,
    result_problem,
)
from airflow_provider_taskhub.errors import ConfigurationError, StorageError, StoreReplaced, WorkerFailed
from airflow_provider_taskhub.hub.model import ACTIVITY, ORCHESTRATOR, Member, Tenure
from airflow_provider_taskhub.hub.partitions.capabilities import refusal
from airflow_provider_taskhub.hub.partitions.hosting import PartitionHost
from airflow_provider_taskhub.hub.partitions.incarnation import Incarnation
from airflow_provider_taskhub.hub.partitions.members import Members
from airflow_provider_taskhub.hub.partitions.owner_thread import OwnerThread
from airflow_provider_taskhub.settings import Settings, home
from airflow_provider_taskhub.storage.connect import open_store
from airflow_provider_taskhub.supervision import Supervisor
from airflow_provider_taskhub.workers.activities.log_growth import AnnouncingRunner, LogGrowth
from airflow_provider_taskhub.workers.backend import POLLS_MISSED, Backend, member_of
from airflow_provider_taskhub.workers.executors.environment import child_environment
from airflow_provider_taskhub.workers.executors.pool import ExecutorConfig, ExecutorLimits, ExecutorPool, ExecutorTimes
from airflow_provider_taskhub.workers.health import Health, listen
from airflow_provider_taskhub.workers.orchestrations.coroutine_closer import CoroutineCloser
from airflow_provider_taskhub.workers.orchestrations.stuck_instances import quarantine_stuck
from airflow_provider_taskhub.workers.orchestrations.watchdog import EpisodeWatchdog, Running
from airflow_provider_taskhub.workers.peers import Peers
from airflow_provider_taskhub.workers.waiting_metrics import WaitingFigures

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a worker process.

    :param apps: the apps of the worker, each as ``module:attribute``.
    :param name: the name of the worker, for people; several workers can have the same name. "": the host name.
    :param roles: whether the worker runs orchestrations, activities, or both.
    :param health_port: the port that serves /live, /ready and /metrics; None: no port.
    :param health_host: the address that the health port listens on; "" stands for loopback, IPv4 and IPv6.
    :param warm: True: Spark starts together with the worker. False: Spark starts with the first Spark activity.
    :param strict: True: the worker refuses to start while live workers of the hub have other apps.
    """

    apps: tuple[str, ...]
    name: str = ""
    roles: tuple[str, ...] = (ORCHESTRATOR, ACTIVITY)
    health_port: int | None = None
    health_host: str = ""
    warm: bool = True
    strict: bool = False


class LeaseEventBridge:
    """Passes lease events from the thread that owns the partitions to the event loop of the backend.

    It implements :class:`TenureListener`: each call becomes the same call of the backend on the event loop.
    """

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
    """A worker process, from its start to its stop.

    :meth:`run` raises ``ConfigurationError`` if the worker cannot start, for example because an app does not load.
    """

    def __init__(self, settings: Settings, options: Options) -> None:
        self._settings, self._options = settings, options
        self._stopping = asyncio.Event()
        self._failure: str | None = None
        self._drain_timeout = settings.drain_timeout

    def stop(self) -> None:
        """Make :meth:`run` drain the worker and return. A signal handler of the event loop may call it."""
        self._stopping.set()

    async def run(self) -> None:
        """Run the worker until :meth:`stop` is called.

        :raises ConfigurationError: if the worker cannot start.
        :raises WorkerFailed: if the worker cannot go on. All its parts have been stopped.
        """
        apps = [load_app(name) for name in self._options.apps]
        registry = Registry.of(apps)
        tell_unknown_results(registry)
        self._refuse_unknown_pools(registry)
        try:
            async with AsyncExitStack() as stack:
                await self._start(stack, registry, apps)
                await self._stopping.wait()
                log.info("worker_stopping")
        except StorageError as error:
            if self._failure is not None:
                raise WorkerFailed(self._failure) from error
            raise
        if self._failure is not None:
            raise WorkerFailed(self._failure)

    async def _start(self, stack: AsyncExitStack, registry: Registry, apps: Sequence[App]) -> None:
        settings, options = self._settings, self._options
        # The port is opened first: if it cannot be opened, the worker must end before it has taken any work.
        port = None if options.health_port is None else await listen(stack, options.health_port, options.health_host)
        incarnation = Incarnation.claim(options.name)
        stack.callback(incarnation.release)
        me = incarnation.identity
        store = await stack.enter_async_context(open_store(settings, holder=str(me)))
        client = await Client.over(store, settings, create=True)
        hub = client.hub
        member = member_of(registry, settings, me, options.roles, SYSTEM_CLOCK.utc_now())
        members = Members(hub.store, hub.names, times=settings.lease_times)
        if options.strict:
            await self._refuse_different_apps(member, members, incarnation)
        growth = LogGrowth(hub)
        spark = any(one.spark and one.pool in settings.pool_names for one in registry.activities.values())
        pool = await self._start_pool(stack, growth, incarnation, warm=options.warm and spark)
        closer = CoroutineCloser()
        stack.callback(closer.stop)
        backend = Backend(
            hub=hub,
            registry=registry,
            runner=AnnouncingRunner(pool, growth),
            me=me,
            settings=settings,
            roles=options.roles,
            peers=Peers(
                live=members.live,
                dead=incarnation.predecessors,
                alone=incarnation.is_alone,
                partitions_free=lambda: owner.hurry(),
            ),
            closes=closer,
        )
        owner = OwnerThread(
            open_store=lambda: open_store(settings),
            names=hub.names,
            host=PartitionHost(
                me=me,
                listener=LeaseEventBridge(asyncio.get_running_loop(), backend),
                predecessors=incarnation.predecessors,
                member=lambda: backend.current_row(member),
                services=backend.services,
                longest_unpolled=POLLS_MISSED * settings.max_polling + settings.request_timeout,
                watchers=hub.awaited.update,
            ),
            times=settings.lease_times,
            app_name=settings.app_name,
        )
        self._watch_episodes(stack, backend, closer)
        backend.start()
        stack.push_async_callback(backend.stop)
        await owner.start()
        stack.push_async_callback(lambda: owner.stop(self._drain_timeout))
        stack.push_async_callback(lambda: backend.drain(self._drain_timeout.total_seconds()))
        self._watch(stack, owner)
        if port is not None:
            port.serve(self._health(backend, owner, pool, client))
            stack.callback(port.close)  # a stopping worker answers no probes
        log.info(
            "worker_ready",
            worker=str(me),
            pid=os.getpid(),
            hub=settings.hub,
            place=hub.store.describe(),
            apps=", ".join(f"{app.name} {app.version}".strip() for app in apps),
        )

    async def _refuse_different_apps(self, member: Member, members: Members, incarnation: Incarnation) -> None:
        """Check that the live workers of the hub have the same apps as this worker.

        :raises ConfigurationError: if the apps of a live worker differ.
        """
        dead = incarnation.predecessors()
        others = [other for other in await members.prove() if other.worker not in dead]
        if (text := refusal(member, others)) is not None:
            raise ConfigurationError(text)

    def _refuse_unknown_pools(self, registry: Registry) -> None:
        """Check the pools of this worker.

        :raises ConfigurationError: if no activity of the worker's apps belongs to one of them.
        """
        unknown = [name for name in self._settings.pool_names if name not in registry.pools]
        if unknown and ACTIVITY in self._options.roles:
            raise ConfigurationError(
                f"no activity of this worker's apps belongs to the pool {unknown[0]!r}. They have the pools "
                f"{', '.join(map(repr, registry.pools))}. Correct --pools or TASKHUB_POOLS, or declare an activity "
                f"with pool={unknown[0]!r}"
            )

    async def _start_pool(
        self, stack: AsyncExitStack, growth: LogGrowth, incarnation: Incarnation, *, warm: bool
    ) -> ExecutorPool:
        """Return the pool of executors, which is started only if this worker runs activities."""
        settings, options = self._settings, self._options
        config = ExecutorConfig(
            apps=options.apps,
            spark=settings.spark,
            lock_fd=incarnation.lock_fd,
            max_result=settings.max_result,
            kept_results=(settings.kept_results or home() / "results").absolute(),
            environment=child_environment(
                os.environ,
                connection=settings.secret,
                withheld=settings.withheld_names,
            ),
        )
        pool = ExecutorPool(
            config,
            size=settings.slots,
            spark_size=settings.spark_slots,
            applications=settings.spark_executors,
            logs=growth.append,
            name=incarnation.identity.name,
            warm=warm,
            times=ExecutorTimes(patience=settings.executor_timeout),
            limits=ExecutorLimits(
                activities=settings.executor_max_activities,
                memory=settings.executor_max_memory,
                idle=settings.spark_idle_timeout,
            ),
        )
        if ACTIVITY in options.roles:
            await pool.start()
            stack.push_async_callback(pool.stop, timedelta(seconds=5))
        return pool

    def _health(self, backend: Backend, owner: OwnerThread, pool: ExecutorPool, client: Client) -> Health:
        return Health(
            backend=backend,
            owner=owner,
            pool=pool,
            started=SYSTEM_CLOCK.monotonic(),
            waiting=WaitingFigures(
                client.admin.waiting_instances,
                client.admin.limits,
                believed=self._settings.lease_times.scan.total_seconds(),
                clock=SYSTEM_CLOCK,
            ),
        )

    def _watch(self, stack: AsyncExitStack, owner: OwnerThread) -> None:
        """Stop the worker if the thread that owns the partitions ends by itself.

        Without this thread the worker could never serve a partition again.
        """
        supervisor = Supervisor()

        async def watch() -> None:
            try:
                await owner.wait()
                reason = "the thread that owns the partitions of this worker ended"
            except StoreReplaced as error:
                reason, self._drain_timeout = str(error), timedelta()  # nothing that still runs could be stored
            except Exception as error:
                reason = f"the thread that owns the partitions of this worker ended: {type(error).__name__}: {error}"
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


def tell_unknown_results(registry: Registry) -> None:
    """Log each function whose results are not decoded to the type that it declares for them."""
    declared: tuple[OrchestratorDefinition | ActivityDefinition, ...] = (
        *registry.orchestrators.values(),
        *registry.activities.values(),
    )
    for one in declared:
        if (problem := result_problem(one.function)) is not None:
            log.warning("result_type_unknown", function=one.name, app=one.app, problem=problem)
