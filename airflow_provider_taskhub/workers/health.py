"""Serves /live, /ready and /metrics of a worker over HTTP (``--health-port``), for probes and Prometheus.

A request changes nothing. By default the port listens on loopback; in a pod it can listen on the pod's address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import structlog
from prometheus_client import Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from airflow_provider_taskhub.errors import ConfigurationError
from airflow_provider_taskhub.hub.partitions.metrics import LeaseMetrics
from airflow_provider_taskhub.hub.partitions.owner_thread import OwnerThread
from airflow_provider_taskhub.masking import masked
from airflow_provider_taskhub.supervision import Supervisor
from airflow_provider_taskhub.workers.backend import Backend
from airflow_provider_taskhub.workers.executors.pool import ExecutorPool
from airflow_provider_taskhub.workers.waiting_metrics import WaitingFigures

log = structlog.get_logger(__name__)

REQUEST_LIMIT = 5.0
"""Longest time for one request, in seconds."""
HEAD_BYTES = 8192
"""Largest request line and headers of a request, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The health of a worker, as probes and Prometheus see it.

    :param backend: the backend of the worker.
    :param owner: the thread that owns the partitions.
    :param started: the monotonic second when the worker started.
    :param pool: the pool of executors; None if this worker runs no activities.
    :param waiting: counts the waiting instances of the hub; None if they are not counted.
    """

    backend: Backend
    owner: OwnerThread
    started: float
    pool: ExecutorPool | None = None
    waiting: WaitingFigures | None = None

    @property
    def _supervisors(self) -> tuple[Supervisor, ...]:
        found = self.backend.supervisor, self.owner.supervisor, self.pool.supervisor if self.pool else None
        return tuple(supervisor for supervisor in found if supervisor is not None)

    def failing(self) -> tuple[str, ...]:
        """Return the names of the background loops that fail repeatedly."""
        return tuple(name for supervisor in self._supervisors for name in supervisor.failing)

    def unready(self) -> str:
        """Return the reason why the worker takes no work; "" if it takes work."""
        if failing := self.failing():
            return _failing(failing)
        if self.backend.draining:
            return "draining"
        outage = self.owner.outage
        return f"the store refuses this worker or does not answer: {masked(outage)}" if outage else ""

    def metrics(self) -> Iterator[Metric]:
        """Return the metrics of this worker for Prometheus."""
        backend, metrics, tenures = self.backend, self.owner.metrics, self.owner.tenures
        age = max((tenure.age for tenure in tenures), default=0.0)
        yield GaugeMetricFamily("taskhub_partitions_owned", "Partitions that this worker serves.", len(tenures))
        yield GaugeMetricFamily(
            "taskhub_lease_age_seconds_max", "Age of the oldest lease of this worker's partitions.", age
        )
        yield from _leases(metrics)
        yield GaugeMetricFamily("taskhub_activities_running", "Activities that run in this worker.", backend.running)
        slots = GaugeMetricFamily(
            "taskhub_activity_slots", "Activities of a kind that this worker can run at once.", labels=("kind",)
        )
        taken = GaugeMetricFamily(
            "taskhub_activity_slots_taken", "Activities of a kind that run in this worker.", labels=("kind",)
        )
        for kind, (its_taken, its_slots) in backend.slots.items():
            slots.add_metric((kind,), its_slots)
            taken.add_metric((kind,), its_taken)
        yield from (slots, taken)
        yield GaugeMetricFamily(
            "taskhub_memory_bytes",
            "Memory that this worker has for activities that say what they need.",
            backend.memory,
        )
        yield GaugeMetricFamily(
            "taskhub_memory_needed_bytes",
            "Memory that the activities need that run in this worker and say what they need.",
            backend.memory_used,
        )
        yield GaugeMetricFamily(
            "taskhub_episodes_running", "Episodes that run in this worker.", backend.orchestrations.running
        )
        yield GaugeMetricFamily("taskhub_sessions", "Instances that this worker has in memory.", len(backend.sessions))
        yield GaugeMetricFamily(
            "taskhub_messages_buffered", "Messages that are prefetched and not yet processed.", backend.queues.buffered
        )
        yield CounterMetricFamily(
            "taskhub_messages_quarantined_total",
            "Messages that this worker moved to quarantine.",
            backend.quarantined,
        )
        yield GaugeMetricFamily(
            "taskhub_oldest_poll_seconds",
            "Seconds since the last poll of the queue that was polled least recently.",
            backend.queues.oldest_poll,
        )
        uptime = backend.hub.clock.monotonic() - self.started
        yield GaugeMetricFamily("taskhub_uptime_seconds", "Seconds since the worker started.", uptime)
        yield self._restarts()
        yield self._requests()

    def _restarts(self) -> Metric:
        found = CounterMetricFamily(
            "taskhub_loop_restarts_total",
            "Background loops that failed and were started again, by loop.",
            labels=("loop",),
        )
        for name, count in sorted(item for each in self._supervisors for item in tuple(each.restarts.items())):
            found.add_metric((name,), count)
        return found

    def _requests(self) -> Metric:
        """Return the number of storage requests: for work, and for leases.

        The two are counted apart: the requests for leases grow with time, the requests for work grow with the work.
        """
        found = CounterMetricFamily(
            "taskhub_storage_requests_total",
            "Storage requests by kind: for work, and for leases.",
            labels=("kind", "part"),
        )
        for part, requests in (("work", self.backend.hub.store.requests), ("partitions", self.owner.requests)):
            for kind, count in sorted(requests.items()):
                found.add_metric((kind, part), count)
        return found


def _failing(loops: Iterable[str]) -> str:
    return f"background loops that fail repeatedly: {', '.join(loops)}"


def _leases(metrics: LeaseMetrics) -> Iterator[Metric]:
    takes = CounterMetricFamily(
        "taskhub_partitions_taken_total",
        "Partitions that this worker has taken, by what had happened to their former owner.",
        labels=("change",),
    )
    for change, count in sorted(metrics.takes.items()):
        takes.add_metric((change,), count)
    yield takes
    yield CounterMetricFamily(
        "taskhub_partitions_lost_total", "Partitions that this worker has given up or lost.", metrics.lost
    )
    yield CounterMetricFamily(
        "taskhub_partitions_not_polled_total",
        "Partitions that this worker has given up because their queues were not polled.",
        metrics.not_polled,
    )
    yield CounterMetricFamily(
        "taskhub_lease_renewals_total", "Renewals of leases that the storage has confirmed.", metrics.renewals
    )
    yield CounterMetricFamily(
        "taskhub_lease_renewal_seconds_total", "Seconds that all renewals of leases have taken.", metrics.renewing
    )
    yield GaugeMetricFamily(
        "taskhub_lease_renewal_seconds_max", "Seconds of the slowest renewal of a lease.", metrics.slowest_renewal
    )
    yield GaugeMetricFamily(
        "taskhub_partition_free_seconds_max",
        "Longest time that a partition was without a live owner before this worker took it.",
        metrics.longest_free,
    )


@dataclass(frozen=True, slots=True)
class _Collected:
    """The metrics of one answer, in the form that ``generate_latest`` takes.

    A registry of ``prometheus_client`` was rejected: the metrics are read anew for each request.
    """

    families: Sequence[Metric]

    def collect(self) -> Sequence[Metric]:
        return self.families


LOOPBACK = ("127.0.0.1", "::1")
"""The loopback addresses of IPv4 and IPv6."""


@dataclass(slots=True, kw_only=True)
class HealthPort:
    """The open health port.

    :param port: the number of the port.
    :param host: the address that the port listens on; "" stands for loopback.
    :param servers: the listening servers, one for each address.
    :param health: the health of the worker; None while the worker starts. Then /live answers 200 and /ready answers
        503.
    """

    port: int
    host: str
    servers: list[asyncio.Server]
    health: Health | None = None

    def serve(self, health: Health) -> None:
        """From now on, answer requests with the health of the worker. Call this method when the worker has started."""
        self.health = health
        log.info("health_port", port=self.port, host=self.host or "localhost")

    def close(self) -> None:
        """Close the port."""
        for server in self.servers:
            server.close()


async def listen(stack: AsyncExitStack, port: int, host: str = "") -> HealthPort:
    """Open the health port. It listens until ``stack`` is closed.

    :param port: the number of the port; 0 lets the system choose.
    :param host: the address to listen on. "" stands for loopback, so that other machines cannot read the metrics.
    :raises ConfigurationError: if the port cannot be opened.
    """
    opened = HealthPort(port=port, host=host, servers=[])

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_LIMIT):
                head = await reader.readuntil(b"\r\n\r\n")
                status, body = await respond(opened.health, head.split(b"\r\n", 1)[0].decode("latin-1"))
                data = body.encode()
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                    f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode()
                    + data
                )
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            pass  # the probe has sent no whole request in time, or has closed the connection
        finally:
            writer.close()

    try:
        server = await asyncio.start_server(answer, host=host or LOOPBACK[0], port=port, limit=HEAD_BYTES)
    except OSError as error:
        where = f" --health-host {host}" if host else ""
        raise ConfigurationError(
            f"--health-port {port}{where} cannot be opened: {error.strerror or error}. Give another port, or an "
            "address of this machine"
        ) from error
    opened.servers.append(await stack.enter_async_context(server))
    opened.port = server.sockets[0].getsockname()[1]
    if not host:
        try:  # with port 0 the second address would get another number, so use the number of the first
            second = await asyncio.start_server(answer, host=LOOPBACK[1], port=opened.port, limit=HEAD_BYTES)
            opened.servers.append(await stack.enter_async_context(second))
        except OSError as error:
            log.debug("health_port_without_ipv6", port=opened.port, reason=error.strerror or str(error))
    return opened


async def respond(health: Health | None, request_line: str) -> tuple[str, str]:
    """Return the HTTP status and the body for a request.

    ``/metrics?waiting=no`` omits the counts of waiting instances, because counting takes about ten requests to the
    store.

    :param health: the health of the worker; None while the worker starts.
    :param request_line: the first line of the request.
    """
    parts = request_line.split(" ")
    if len(parts) != 3 or parts[0] not in ("GET", "HEAD"):
        return "405 Method Not Allowed", "GET /live, /ready or /metrics\n"
    path, _, query = parts[1].partition("?")
    if path not in ("/live", "/ready", "/metrics"):
        return "404 Not Found", "GET /live, /ready or /metrics\n"
    if health is None:
        return ("200 OK", "live\n") if path == "/live" else ("503 Service Unavailable", "starting\n")
    match path:
        case "/live":
            failing = health.failing()
            return ("503 Service Unavailable", f"{_failing(failing)}\n") if failing else ("200 OK", "live\n")
        case "/ready":
            why = health.unready()
            return ("503 Service Unavailable", f"{why}\n") if why else ("200 OK", "ready\n")
        case _:
            families = [*health.metrics()]
            if health.waiting is not None and query != "waiting=no":
                families += await health.waiting.metrics()
            return "200 OK", generate_latest(_Collected(families)).decode()
