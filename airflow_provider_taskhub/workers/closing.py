"""Orchestrators that are put aside, closed on a thread of their own.

When a worker lets go of a live orchestrator, its ``finally`` and ``except`` blocks run: users' code, in no episode,
which may block or loop for ever. On the worker's loop it would hold up all that is served there, and to end the process
for it, as for an episode that is stuck, would be wrong: the instance has nothing to do here. Not to close it is no way
out either: Python closes what nobody refers to any more, whenever it likes and on whichever thread.
"""

from __future__ import annotations

import ctypes
import queue
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

import structlog

from airflow_provider_taskhub.values import dataclass
from airflow_provider_taskhub.workers.episodes import SLOW, STUCK, TICK, where

log = structlog.get_logger(__name__)

LAST_CALLS = 2.0
"""Seconds that a worker that stops waits for what it has put aside."""
MOST = 32
"""Threads that may be left to what they close. What is put aside beyond waits, and is kept, until one of them ends."""


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    instance_id: str
    close: Callable[[], None]


class _Thread(threading.Thread):
    """Closes one orchestrator after the other, until it is left alone with one."""

    def __init__(self, jobs: queue.SimpleQueue[_Job]) -> None:
        super().__init__(name="taskhub-closing", daemon=True)
        self._jobs = jobs
        self.job: _Job | None = None
        self.left = False
        self.looks = 0

    def run(self) -> None:
        while not self.left:
            self.job = self._jobs.get()
            with suppress(BaseException):
                self.job.close()
            self.job = None


class Closer:
    """Closes what it is given, in turn. Whatever takes a second is left to its thread, and another thread goes on.

    An orchestrator that swallows even its end is told of by Python, as raw text, when it is let go of: until
    :meth:`stop` that is a record with the instance's name.
    """

    def __init__(self) -> None:
        self._unraisable, self._said_before = self._say, sys.unraisablehook
        sys.unraisablehook = self._unraisable
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._thread: _Thread | None = None
        self._seen: _Job | None = None
        self._left: list[_Thread] = []

    def __call__(self, instance_id: str, close: Callable[[], None]) -> None:
        self._jobs.put(_Job(instance_id, close))
        if self._thread is None:
            self._begin()

    def _say(self, unraisable: sys.UnraisableHookArgs) -> None:
        thread = threading.current_thread()
        job = thread.job if isinstance(thread, _Thread) else None
        if job is None:  # not of an orchestrator: as ever
            self._said_before(unraisable)
            return
        log.warning(
            "orchestrator_goes_on",
            instance_id=job.instance_id,
            error=repr(unraisable.exc_value),
            hint="it was put aside: let GeneratorExit pass, e.g. by `except Exception` instead of a bare `except`",
        )

    def _begin(self) -> None:
        thread = _Thread(self._jobs)
        thread.start()
        self._thread = thread

    def look(self) -> None:
        """One look, each :data:`TICK`: at what takes long, and at what was left."""
        thread = self._thread
        if thread is None:
            return
        job = thread.job
        if job is None or job is not self._seen:
            self._seen, thread.looks = job, 0
        elif thread.looks < round(SLOW / TICK):
            thread.looks += 1
        elif len(self._left) < MOST:
            self._begin()  # first: where no thread can be started, this one is looked at again
            log.warning(
                "orchestrator_not_closed",
                instance_id=job.instance_id,
                seconds=SLOW,
                where=where(thread.ident),
                hint="it was put aside: its `finally` and `except` blocks must end at once, and wait for nothing",
            )
            thread.left = True
            self._left.append(thread)
        self._interrupt()

    def _interrupt(self) -> None:
        """A loop would compute beside the worker's for as long as it lives."""
        self._left = [thread for thread in self._left if thread.is_alive()]
        for thread in self._left:
            thread.looks += 1
            if thread.looks >= round(STUCK / TICK) and thread.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))

    def stop(self) -> None:
        """Wait a little for what is to be closed. What is not begun by then is kept for ever: Python would close it on
        the thread that ends the process."""
        done = threading.Event()
        self("", done.set)
        ended = done.wait(LAST_CALLS)
        if sys.unraisablehook == self._unraisable:
            sys.unraisablehook = self._said_before
        if ended:
            return
        with suppress(queue.Empty):
            while True:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._jobs.get_nowait()))
