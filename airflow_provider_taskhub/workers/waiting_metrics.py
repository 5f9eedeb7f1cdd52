"""Provides the metrics of the whole hub: how many instances wait, by reason, and how many use and wait for each limit.

The numbers are counted on request, and reused for some time, so a worker without requests counts
nothing. Every worker counts the whole hub: to combine workers, take the maximum and not the sum.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import structlog
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.errors import StorageError
from airflow_provider_taskhub.hub.history.places import LimitState
from airflow_provider_taskhub.hub.waiting.reasons import Reason
from airflow_provider_taskhub.hub.waiting.snapshot import WaitingInstances

T = TypeVar("T")

log = structlog.get_logger(__name__)

MOST_LIMITS = 200
"""Largest number of limits with metrics: those for which most wait. A monitoring system keeps each of them for long."""
DEADLINE = 3.0
"""Longest time that counting may take, in seconds, because Prometheus waits for the answer."""


class WaitingFigures:
    """Counts the waiting instances of the hub, and keeps the counts for some time.

    :param read: reads the counts from the store.
    :param limits: reads the limits of the hub.
    :param believed: the seconds for which the counts are reused.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[WaitingInstances]],
        limits: Callable[[], Awaitable[Sequence[LimitState]]],
        *,
        believed: float,
        clock: Clock,
    ) -> None:
        self._read, self._read_limits, self._believed, self._clock = read, limits, believed, clock
        self._found: WaitingInstances | None = None
        self._limits: Sequence[LimitState] = ()
        self._at = float("-inf")
        self._one = asyncio.Lock()

    async def metrics(self) -> list[Metric]:
        """Return the metrics for Prometheus.

        If the store does not answer in time, the old counts are returned, with their age as a metric. Before the first
        count the list is empty.
        """
        async with self._one:
            if self._clock.monotonic() - self._at >= self._believed:
                found, limits = await asyncio.gather(self._answer(self._read), self._answer(self._read_limits))
                if found is not None:
                    self._found, self._at = found, self._clock.monotonic()
                if limits is not None:
                    self._limits = limits
            return self._metrics()

    async def _answer(self, read: Callable[[], Awaitable[T]]) -> T | None:
        """Return what a function reads. None: the store does not answer in time."""
        try:
            async with asyncio.timeout(DEADLINE):
                return await read()
        except (StorageError, TimeoutError) as error:
            log.info("waiting_unreadable", error=f"{type(error).__name__}: {error}")
            return None

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
            *self._limit_metrics(),
        ]

    def _limit_metrics(self) -> list[Metric]:
        labels = ("limit", "of")
        places = GaugeMetricFamily(
            "taskhub_limit_places",
            "How many may run at once in the hub, or begin in the time of a rate.",
            labels=labels,
        )
        running = GaugeMetricFamily(
            "taskhub_limit_running",
            "How many run in the hub under a limit, or have begun in the time of a rate.",
            labels=labels,
        )
        waiting = GaugeMetricFamily(
            "taskhub_limit_waiting",
            "About how many wait for a place of a limit. 1,000 instances can be more.",
            labels=labels,
        )
        shown = sorted(self._limits, key=lambda state: -(state.waiting or 0))[:MOST_LIMITS]
        for state in shown:
            values = (state.name, str(state.kind))
            places.add_metric(values, state.limit)
            running.add_metric(values, len(state.holders))
            waiting.add_metric(values, state.waiting or 0)
        return [places, running, waiting]
