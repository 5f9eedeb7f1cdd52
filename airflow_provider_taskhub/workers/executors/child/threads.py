"""Runs plain (not ``async``) functions of users in threads, and keeps the threads for later calls."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextvars import Context
from typing import NoReturn


class Threads:
    """Threads for user code. A thread is kept for later jobs, because a new thread costs as much as a small activity.

    Each job has new context variables, as it has in a new thread. But a later job sees the thread-local variables that
    an earlier job has set in the same thread, as in any thread pool.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[str, Callable[[], None]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        """Number of threads that wait for a job, minus the number of jobs that are queued for these threads."""

    def run(self, name: str, job: Callable[[], None]) -> None:
        """Run a job in an idle thread, or in a new thread if none is idle. The job starts at once.

        :param name: name of the thread while it runs the job.
        """
        with self._lock:
            idle = self._idle > 0
            self._idle -= idle
        if idle:
            self._jobs.put((name, job))
        else:
            threading.Thread(target=self._serve, args=(name, job), daemon=True).start()

    def _serve(self, name: str, job: Callable[[], None]) -> NoReturn:
        while True:
            threading.current_thread().name = name
            Context().run(job)
            del job  # otherwise the objects of the job would stay in memory while this thread waits for the next job
            with self._lock:
                self._idle += 1
            name, job = self._jobs.get()
