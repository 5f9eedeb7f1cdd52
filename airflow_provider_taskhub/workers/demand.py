"""Remembers which orchestrators the instances of each partition of this worker have used or lacked in the last minute.

The thread that owns the partitions publishes these functions in the hub. If the apps of workers differ, a partition
then goes to a worker that has the functions. Only the event loop of the worker changes a :class:`Demand`; any thread
may read it.
"""

from __future__ import annotations

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.hub.model import Need

RECENT = 60.0
"""Seconds after which the use or lack of a function no longer counts. A message that waits for a function is delivered
again sooner, and the lack is then remembered again."""
MOST = 200
"""The largest number of functions that are remembered for one partition."""


class Demand:
    """Remembers the functions that the instances of each partition have used or lacked lately."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ran: dict[int, dict[Need, float]] = {}
        self._lacks: dict[int, dict[Need, tuple[Timestamp, float]]] = {}

    def begin(self, partition: int) -> None:
        """Begin to remember functions of a partition that this worker serves from now on. Forget earlier ones."""
        self._ran[partition], self._lacks[partition] = {}, {}

    def end(self, partition: int) -> None:
        """Forget the functions of a partition that this worker no longer serves."""
        self._ran.pop(partition, None)
        self._lacks.pop(partition, None)

    def ran(self, partition: int, need: Need) -> None:
        """Remember that an episode in the partition has used the function ``need``."""
        found = self._ran.setdefault(partition, {})
        if need in found or len(found) < MOST:
            found[need] = self._clock.monotonic()

    def lacks(self, partition: int, need: Need, since: Timestamp) -> None:
        """Remember that a message in the partition waits for a function that this worker does not have.

        :param since: the time when the message was enqueued, by the clock of the storage service.
        """
        now = self._clock.monotonic()
        found = self._lacks.setdefault(partition, {})
        oldest, seen = found.get(need, (since, float("-inf")))
        if now - seen >= RECENT:  # no message has lacked the function for RECENT seconds: the wait begins anew
            oldest = since
        if need in found or len(found) < MOST:
            found[need] = min(oldest, since, key=lambda time: time.ticks), now

    def of(self, partition: int) -> tuple[tuple[Need, ...], tuple[Need, ...]]:
        """Return the functions used lately in a partition, and the missing ones, the longest missing first."""
        since = self._clock.monotonic() - RECENT
        ran = tuple(need for need, seen in tuple(self._ran.get(partition, {}).items()) if seen >= since)
        waiting = [
            (oldest.ticks, need)
            for need, (oldest, seen) in tuple(self._lacks.get(partition, {}).items())
            if seen >= since
        ]
        return ran, tuple(need for _, need in sorted(waiting))
