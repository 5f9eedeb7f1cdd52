"""Tells when an application waits in vain for executors of its cluster."""

from __future__ import annotations

LOST_AFTER = 180.0
"""Seconds without an executor after which an application that had one counts as lost to its cluster.

Spark's own reconnection to a standalone master that was started again takes up to a minute, and it may find a master
that does not know the application: then no executor comes ever again, and Spark says nothing."""


class ClusterExecutors:
    """How long the jobs of one application have waited without any executor.

    :ivar waiting: seconds since a job was first seen without an executor; None: no job waits for one.
    """

    def __init__(self) -> None:
        self.waiting: float | None = None
        self._had_one = False
        self._since: float | None = None

    def seen(self, *, executors: int, jobs: int, now: float) -> None:
        """Take the result of a look at the application.

        :param executors: number of executors, without the driver.
        :param jobs: number of jobs that run.
        :param now: monotonic time in seconds.
        """
        self._had_one |= executors > 0
        if executors or not jobs:
            self._since = self.waiting = None
            return
        self._since = now if self._since is None else self._since
        self.waiting = now - self._since

    @property
    def lost(self) -> bool:
        """Whether the executors that the application had seem not to come back. An application that never had one only
        waits: a new one would have to wait as well, at the end of the line."""
        return self._had_one and self.waiting is not None and self.waiting >= LOST_AFTER
