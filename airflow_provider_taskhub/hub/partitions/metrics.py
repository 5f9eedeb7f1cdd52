"""Counts what happens to a worker's partitions, for ``/metrics`` and for people. Any thread may read the counters."""

from __future__ import annotations

from collections import Counter


class LeaseMetrics:
    """The counters of one worker since its start."""

    __slots__ = ("longest_free", "lost", "not_polled", "renewals", "renewing", "slowest_renewal", "takes")

    def __init__(self) -> None:
        self.takes: Counter[str] = Counter()
        """Number of partitions that this worker took, by the reason: new, handed over, released, expired, taken over,
        resumed."""
        self.lost = 0
        """How often this worker has stopped serving a partition, for whatever reason."""
        self.not_polled = 0
        """Number of partitions that this worker gave up because their queues were not polled."""
        self.renewals = 0
        """Number of confirmed renewals."""
        self.renewing = 0.0
        """Sum of the seconds that confirmed renewals took."""
        self.slowest_renewal = 0.0
        """Seconds that the slowest confirmed renewal took."""
        self.longest_free = 0.0
        """The longest time, in seconds, for which this worker has seen a partition without a live owner."""

    def taken(self, change: str) -> None:
        """Count a partition that this worker took.

        :param change: why the partition was free: a key of :attr:`takes`.
        """
        self.takes[change] += 1

    def renewed(self, seconds: float) -> None:
        """Count a confirmed renewal.

        :param seconds: how long the renewal took.
        """
        self.renewals += 1
        self.renewing += seconds
        self.slowest_renewal = max(self.slowest_renewal, seconds)

    def seen(self, free: float) -> None:
        """Note for how long a partition was seen without a live owner.

        :param free: the seconds.
        """
        self.longest_free = max(self.longest_free, free)
