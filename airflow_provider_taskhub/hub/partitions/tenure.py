"""One stay of a partition with this worker: the age that every state-changing operation checks.

Read and ended from any thread: the host checks it, the owner loop renews it, a watchdog ends it. No I/O.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.errors import LeaseLost
from airflow_provider_taskhub.hub.partitions.lease import Lease


class LeaseTenure:
    """A ``Tenure`` (hub.contract), from taken to lost.

    :param lease: as claimed. :param sent: monotonic time at which the claim was *sent*.
    :param give_up: seconds after which the worker stops by itself. :param on_drained: called once, from any thread.
    """

    __slots__ = ("_clock", "_drained", "_give_up", "_lock", "_on_drained", "_reason", "_sent", "draining", "lease")

    def __init__(
        self, *, lease: Lease, sent: float, give_up: float, clock: Clock, on_drained: Callable[[], None]
    ) -> None:
        self.lease = lease
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
        """Whether it is over and its listener has been told."""
        return self._reason is not None

    @property
    def age(self) -> float:
        """Seconds since the last confirmed renewal was sent."""
        return self._clock.monotonic() - self._sent

    def left(self) -> float:
        """Seconds until this worker must have stopped, by its own monotonic clock; negative when too late."""
        return self._give_up - self.age

    def check(self) -> None:
        if self._reason is not None:
            raise LeaseLost(f"partition {self.partition} ({self.queue}) is no longer served here: {self._reason}")
        left = self.left()
        if left <= 0:
            raise LeaseLost(
                f"partition {self.partition} ({self.queue}): no renewal sent within the last {self._give_up:g} s has "
                f"been confirmed; {-left:.1f} s too late"
            )

    def drained(self) -> None:
        with self._lock:
            first, self._drained = not self._drained, True
        if first:
            self._on_drained()

    # for the owner

    def renewed(self, lease: Lease, sent: float) -> None:
        """A renewal sent at ``sent`` was confirmed. A tenure that has ended stays ended."""
        self.lease = lease
        self._sent = max(self._sent, sent)

    def ask(self) -> bool:
        """Begin to drain. True for the call that began it."""
        with self._lock:
            first, self.draining = not self.draining and self._reason is None, True
        return first

    def end(self, reason: str) -> bool:
        """End it. True for exactly one call, whichever thread makes it."""
        with self._lock:
            if self._reason is not None:
                return False
            self._reason = reason
        return True
