"""The tenure: the time in which a worker owns a partition, from taking it to losing it.

Before a worker changes anything in the store, it checks its tenure: whether the tenure goes on and the lease is not too
old. Any thread may read or end a tenure: the host checks it, the owner's loop renews it, and a watchdog ends it. No
I/O.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.errors import LeaseLost
from airflow_provider_taskhub.hub.partitions.lease import Lease


class LeaseTenure:
    """A ``Tenure`` of ``hub.model``: the time from taking a partition to losing it.

    :param lease: the lease as the worker wrote it to take the partition.
    :param sent: monotonic time at which the worker *sent* this write.
    :param give_up: seconds without a confirmed renewal after which the worker stops serving the partition.
    :param on_drained: called once when the partition is drained, from any thread.
    """

    __slots__ = (
        "_clock",
        "_drained",
        "_give_up",
        "_lock",
        "_on_drained",
        "_reason",
        "_sent",
        "draining",
        "failover",
        "lease",
    )

    def __init__(
        self, *, lease: Lease, sent: float, give_up: float, clock: Clock, on_drained: Callable[[], None]
    ) -> None:
        self.lease = lease
        lost = lease.failover
        self.failover = lost if lost is not None and lost.at == lease.owned_since else None
        self.draining = False
        self._sent = sent
        self._give_up = give_up
        self._clock = clock
        self._on_drained = on_drained
        self._drained = False
        self._reason: str | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<tenure of {self.queue}, epoch {self.epoch}, {self._reason or 'held'}>"

    @property
    def partition(self) -> int:
        return self.lease.partition

    @property
    def queue(self) -> str:
        return self.lease.queue

    @property
    def epoch(self) -> int:
        return self.lease.epoch or 0

    @property
    def ended(self) -> bool:
        """Whether the tenure has ended."""
        return self._reason is not None

    @property
    def age(self) -> float:
        """Seconds since the last confirmed renewal was sent."""
        return self._clock.monotonic() - self._sent

    def left(self) -> float:
        """Return the seconds until this worker must have stopped serving the partition. Negative if that time has
        passed.

        The seconds are measured by the worker's own monotonic clock.
        """
        return self._give_up - self.age

    def check(self) -> None:
        """Check that this worker may still serve the partition.

        :raises LeaseLost: the tenure has ended, or its last confirmed renewal is too old.
        """
        if self._reason is not None:
            raise LeaseLost(f"partition {self.partition} ({self.queue}) is no longer served here: {self._reason}")
        left = self.left()
        if left <= 0:
            raise LeaseLost(
                f"partition {self.partition} ({self.queue}): no renewal sent within the last {self._give_up:g} s has "
                f"been confirmed; {-left:.1f} s too late"
            )

    def drained(self) -> None:
        """Note that the host has drained the partition. Calls after the first one do nothing."""
        with self._lock:
            first, self._drained = not self._drained, True
        if first:
            self._on_drained()

    # methods for the loops that own partitions

    def renewed(self, lease: Lease, sent: float) -> None:
        """Note that the store confirmed a renewal. A tenure that has ended stays ended.

        :param lease: the lease as it was written.
        :param sent: monotonic time at which the renewal was sent.
        """
        self.lease = lease
        self._sent = max(self._sent, sent)

    def ask(self) -> bool:
        """Note that the worker begins to drain the partition.

        :returns: True only for the first call in a tenure that has not ended.
        """
        with self._lock:
            first, self.draining = not self.draining and self._reason is None, True
        return first

    def end(self, reason: str) -> bool:
        """End the tenure.

        :returns: True for exactly one call, whichever thread makes it.
        """
        with self._lock:
            if self._reason is not None:
                return False
            self._reason = reason
        return True
