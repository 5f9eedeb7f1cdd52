"""What has happened to a worker's partitions, counted: for ``/metrics`` and for people. Read from any thread."""

from __future__ import annotations

from collections import Counter


class LeaseMetrics:
    """Totals since the worker's start; a reader takes rates of them."""

    __slots__ = ("longest_free", "lost", "renewals", "renewing", "slowest_renewal", "stuck", "takes")

    def __init__(self) -> None:
        self.takes: Counter[str] = Counter()
        """By what had become of the partition: new, handed over, released, expired, taken over, resumed."""
        self.lost = 0
        self.stuck = 0
        """Partitions given up because their queues were not polled."""
        self.renewals = 0
        self.renewing = 0.0
        """Seconds that confirmed renewals took, together."""
        self.slowest_renewal = 0.0
        self.longest_free = 0.0
        """Seconds for which this worker has seen a partition without a live owner, at most."""

    def taken(self, change: str) -> None:
        self.takes[change] += 1

    def renewed(self, seconds: float) -> None:
        self.renewals += 1
        self.renewing += seconds
        self.slowest_renewal = max(self.slowest_renewal, seconds)

    def seen(self, free: float) -> None:
        self.longest_free = max(self.longest_free, free)
