"""Closes evicted orchestrators on a separate thread.

When a worker removes a live orchestrator from memory, it closes the coroutine, and the ``finally`` and ``except``
blocks of the coroutine run. These blocks are user code, and may block or loop without end. On the worker's event loop
they would stop everything that the worker does. Ending the process, as for an episode that does not end, was rejected:
the instance needs nothing more from the removed coroutine. Leaving the close to Python's garbage collection was
rejected too: it may run the blocks on any thread at any time.

So one daemon thread closes orchestrators one after another. While one of them blocks, the others wait in memory. More
threads, and exceptions raised in them from outside, were rejected. They would close the waiting orchestrators earlier,
but nothing depends on that, and Python has no safe way to interrupt a thread.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

import structlog

from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.workers.orchestrations.watchdog import SLOW, TICK, where

log = structlog.get_logger(__name__)

STOP_PATIENCE = 2.0
"""Longest time that a stopping worker waits until its orchestrators are closed, in seconds."""
BACKLOG = 1000
"""Number of waiting orchestrators at which a warning is logged, if one orchestrator is being closed since the last
check. The number doubles after each warning."""


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    instance_id: str
    close: Callable[[], None]


class _Thread(threading.Thread):
    """Closes orchestrators one after another until the process ends.

    The running ``run`` method holds a reference to the queue. When the process ends, Python freezes a daemon thread, so
    the waiting orchestrators are never garbage-collected, and their ``finally`` and ``except`` blocks do not run then.

    :ivar jobs: the orchestrators that wait to be closed.
    :ivar job: the orchestrator that the thread closes now; None if it closes none.
    """

    def __init__(self) -> None:
        super().__init__(name="taskhub-closing", daemon=True)
        self.jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self.job: _Job | None = None

    def run(self) -> None:
        jobs = self.jobs
        while True:
            self.job = jobs.get()
            with suppress(BaseException):
                self.job.close()
            self.job = None


class CoroutineCloser:
    """Closes orchestrators one after another, and logs those that cannot be closed with the id of their instance.

    An orchestrator that catches ``GeneratorExit`` and goes on cannot be closed. Python would print a raw message about
    it; until :meth:`stop`, this class logs a warning with the instance id instead.
    """

    def __init__(self) -> None:
        self._hook, self._hook_before = self._unraisable, sys.unraisablehook
        sys.unraisablehook = self._hook
        self._thread = _Thread()
        self._thread.start()
        self._seen: _Job | None = None
        self._checks = 0
        self._backlog = BACKLOG

    def __call__(self, instance_id: str, close: Callable[[], None]) -> None:
        """Close an orchestrator soon, on the separate thread.

        :param close: the function that closes the orchestrator.
        """
        self._thread.jobs.put(_Job(instance_id, close))

    def _unraisable(self, unraisable: sys.UnraisableHookArgs) -> None:
        job = self._thread.job if threading.current_thread() is self._thread else None
        if job is None:  # the exception does not come from an orchestrator: pass it to the hook that was set before
            self._hook_before(unraisable)
            return
        log.warning(
            "orchestrator_goes_on",
            instance_id=job.instance_id,
            error=repr(unraisable.exc_value),
            hint="evicted orchestrators must let GeneratorExit pass: use `except Exception`, not a bare `except`",
        )

    def look(self) -> None:
        """Log a warning if closing an orchestrator takes long, or if many orchestrators wait to be closed.

        The watchdog calls this method every :data:`TICK` seconds.
        """
        job = self._thread.job
        if job is None or job is not self._seen:
            self._seen, self._checks = job, 0
            return
        self._checks += 1
        if self._checks == round(SLOW / TICK):
            log.warning(
                "orchestrator_not_closed",
                instance_id=job.instance_id,
                seconds=SLOW,
                where=where(self._thread.ident),
                hint="`finally` and `except` blocks of evicted orchestrators must end at once and wait for nothing",
            )
        waiting = self._thread.jobs.qsize()
        if waiting >= self._backlog:
            self._backlog *= 2
            log.warning(
                "orchestrators_not_closed",
                waiting=waiting,
                instance_id=job.instance_id,
                hint="they stay in memory until the orchestrator of this instance ends: restart the worker with an "
                "orchestrator whose `finally` and `except` blocks end at once",
            )

    def stop(self) -> None:
        """Wait up to :data:`STOP_PATIENCE` until all orchestrators are closed, and restore ``sys.unraisablehook``.

        Orchestrators that are not closed by then stay open until the process ends.
        """
        done = threading.Event()
        self("", done.set)
        done.wait(STOP_PATIENCE)
        if sys.unraisablehook == self._hook:
            sys.unraisablehook = self._hook_before
