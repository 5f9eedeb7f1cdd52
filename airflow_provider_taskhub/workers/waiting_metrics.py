"""Provides the metric ``taskhub_instances_waiting``: how many instances of the hub wait, by reason.

The instances are counted on request, and the counts are reused for some time, so a worker without requests counts
nothing. Every worker counts the whole hub: to combine workers, take the maximum and not the sum.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.errors import StorageError
from airflow_provider_taskhub.hub.waiting.reasons import Reason
from airflow_provider_taskhub.hub.waiting.snapshot import WaitingInstances

log = structlog.get_logger(__name__)

DEADLINE = 3.0
"""Longest time that counting may take, in seconds, because Prometheus waits for the answer."""


class WaitingFigures:
    """Counts the waiting instances of the hub, and keeps the counts for some time.

    :param read: reads the counts from the store.
    :param believed: the seconds for which the counts are reused.
    """

    def __init__(self, read: Callable[[], Awaitable[WaitingInstances]], *, believed: float, clock: Clock) -> None:
        self._read, self._believed, self._clock = read, believed, clock
        self._found: WaitingInstances | None = None
        self._at = float("-inf")
        self._one = asyncio.Lock()

    async def metrics(self) -> list[Metric]:
        """Return the metrics for Prometheus.

        If the store does not answer in time, the old counts are returned, with their age as a metric. Before the first
        count the list is empty.
        """
        async with self._one:
            if self._clock.monotonic() - self._at >= self._believed:
                try:
                    async with asyncio.timeout(DEADLINE):
                        self._found = await self._read()
                    self._at = self._clock.monotonic()
                except (StorageError, TimeoutError) as error:
                    log.info("waiting_unreadable", error=f"{type(error).__name__}: {error}")
            return self._metrics()

    def _metrics(self) -> list[Metric]:
        found = self._found
        if found is None:
            return []
        waiting = GaugeMetricFamily(
            "taskhub_instances_waiting",
            "Instances of the hub that wait for something, by reason. There may be more.",
            labels=("reason", "fault"),
        )
        for reason in Reason:
            if reason is not Reason.ACTIVITIES:
                waiting.add_metric((reason, str(reason.is_fault).lower()), found.counts.get(reason, 0))
        complete = "1 if every open instance was looked at for the count of waiting instances, else 0."
        age = self._clock.monotonic() - self._at
        return [
            waiting,
            GaugeMetricFamily("taskhub_instances_waiting_complete", complete, int(found.complete)),
            GaugeMetricFamily(
                "taskhub_instances_waiting_age_seconds", "Seconds since the waiting instances were counted.", age
            ),
        ]
