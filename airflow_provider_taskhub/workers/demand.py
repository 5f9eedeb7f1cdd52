"""Which orchestrators the instances of this worker's partitions need: recently used ones, and missing ones.

If the apps of workers differ, the thread of the partitions publishes this, so that a partition goes to a worker that
can run what waits there. It is written on the worker's event loop and read from any thread.
"""

from __future__ import annotations

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.hub.model import Need

RECENT = 60.0
"""Seconds after which an observation no longer counts. Waiting messages are delivered again sooner."""
MOST = 200
"""Functions that are remembered for one partition, at most."""


class Demand:
    """The functions that are needed, by partition."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ran: dict[int, dict[Need, float]] = {}
        self._lacks: dict[int, dict[Need, tuple[Timestamp, float]]] = {}

    def begin(self, partition: int) -> None:
        """This worker serves a partition from now on; observations from before do not count."""
        self._ran[partition], self._lacks[partition] = {}, {}

    def end(self, partition: int) -> None:
        """This worker no longer serves the partition."""
        self._ran.pop(partition, None)
        self._lacks.pop(partition, None)

    def ran(self, partition: int, need: Need) -> None:
        """An episode ran that needs this function."""
        found = self._ran.setdefault(partition, {})
        if need in found or len(found) < MOST:
            found[need] = self._clock.monotonic()

    def lacks(self, partition: int, need: Need, since: Timestamp) -> None:
        """A message waits for a function that this worker does not have.

        :param since: when it was enqueued, by the storage service.
        """
        now = self._clock.monotonic()
        found = self._lacks.setdefault(partition, {})
        oldest, seen = found.get(need, (since, float("-inf")))
        if now - seen >= RECENT:  # what waited before was run by another worker, or is gone
            oldest = since
        if need in found or len(found) < MOST:
            found[need] = min(oldest, since, key=lambda time: time.ticks), now

    def of(self, partition: int) -> tuple[tuple[Need, ...], tuple[Need, ...]]:
        """The functions that ran in a partition lately, and the missing ones, the longest missing first."""
        since = self._clock.monotonic() - RECENT
        ran = tuple(need for need, seen in tuple(self._ran.get(partition, {}).items()) if seen >= since)
        waiting = [
            (oldest.ticks, need)
            for need, (oldest, seen) in tuple(self._lacks.get(partition, {}).items())
            if seen >= since
        ]
        return ran, tuple(need for _, need in sorted(waiting))
