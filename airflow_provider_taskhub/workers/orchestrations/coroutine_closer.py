"""Closes evicted orchestrators on a thread of its own.

When a worker lets go of a live orchestrator, its ``finally`` and ``except`` blocks run. They are user code outside of
an episode, and may block or loop for ever. On the worker's event loop they would stop everything that the worker does.
To end the process, as for an episode that does not end, would be wrong: the instance has nothing to do here any more.
Python must not close the orchestrator either: it would do so on any thread, and at any time.

So one daemon thread closes orchestrators one after another. While one of them blocks, the thread keeps the others
alive. Rejected: more threads and exceptions raised in them from outside. They close the others earlier, but nothing
depends on that, and Python gives no safe way to interrupt a thread.
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
"""Seconds that a stopping worker waits until its orchestrators are closed."""
BACKLOG = 1000
"""Orchestrators that wait to be closed before it is logged; again at twice as many, and so on."""


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    instance_id: str
    close: Callable[[], None]


class _Thread(threading.Thread):
    """Closes orchestrators for ever.

    Its frame keeps the queue. A daemon thread is frozen when the process ends, so what waits is never closed then.

    :ivar job: what it closes at the moment.
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
    """Closes orchestrators in turn, and logs what does not go well with the id of the instance.

    An orchestrator that swallows ``GeneratorExit`` cannot be closed. Python prints a raw message about it; until
    :meth:`stop` that message is a warning in the log.
    """

    def __init__(self) -> None:
        self._hook, self._hook_before = self._unraisable, sys.unraisablehook
        sys.unraisablehook = self._hook
        self._thread = _Thread()
        self._thread.start()
        self._seen: _Job | None = None
        self._looks = 0
        self._backlog = BACKLOG

    def __call__(self, instance_id: str, close: Callable[[], None]) -> None:
        self._thread.jobs.put(_Job(instance_id, close))

    def _unraisable(self, unraisable: sys.UnraisableHookArgs) -> None:
        job = self._thread.job if threading.current_thread() is self._thread else None
        if job is None:  # not an orchestrator's
            self._hook_before(unraisable)
            return
        log.warning(
            "orchestrator_goes_on",
            instance_id=job.instance_id,
            error=repr(unraisable.exc_value),
            hint="evicted orchestrators must let GeneratorExit pass: use `except Exception`, not a bare `except`",
        )

    def look(self) -> None:
        """Call it each :data:`TICK`: logs an orchestrator that takes long, and a long queue behind it."""
        job = self._thread.job
        if job is None or job is not self._seen:
            self._seen, self._looks = job, 0
            return
        self._looks += 1
        if self._looks == round(SLOW / TICK):
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
        """Wait a little until everything is closed; what is not stays as it is until the process ends."""
        done = threading.Event()
        self("", done.set)
        done.wait(STOP_PATIENCE)
        if sys.unraisablehook == self._hook:
            sys.unraisablehook = self._hook_before
