"""``taskhub_instances_waiting`` of /metrics: how many instances of the hub wait, by reason.

Counted on request, and kept for a while: without requests it costs nothing. Every worker counts the whole hub: take the
maximum over workers, not the sum.
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
"""Seconds that counting may take: the scraper waits for it."""


class WaitingFigures:
    """Counts as last read.

    :param read: counts the instances. :param believed: seconds until they are counted again.
    """

    def __init__(self, read: Callable[[], Awaitable[WaitingInstances]], *, believed: float, clock: Clock) -> None:
        self._read, self._believed, self._clock = read, believed, clock
        self._found: WaitingInstances | None = None
        self._at = float("-inf")
        self._one = asyncio.Lock()

    async def metrics(self) -> list[Metric]:
        """Figures for Prometheus. If the store does not answer in time, the old counts stay; their age is a metric."""
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
