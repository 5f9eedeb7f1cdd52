"""The watchdog of episodes: ends a worker whose orchestrator code never returns to the event loop.

Orchestrator code runs on the worker's event loop. While orchestrator code runs, no other code runs on this loop. Only
other threads go on, such as the thread that renews the leases. So an endless loop in one orchestrator would stop all
instances of its worker. The watchdog is a thread that checks the running episode (one run of an orchestrator) several
times a second. After one second it logs a warning with the source line. After ten seconds it puts the messages of the
episode into quarantine (the table of messages that cannot be processed) and ends the process. The next worker of the
partition does not run the instance until its messages are put back (``taskhub quarantine put-back``).

The watchdog counts its checks and does not read a clock: on a machine that slept for an hour, a clock would say that
the episode has run for an hour.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import structlog

import airflow_provider_taskhub
from airflow_provider_taskhub.engine.actions import CallSite
from airflow_provider_taskhub.engine.events import ExecutionTerminated, HistoryEvent
from airflow_provider_taskhub.hub.queues.delivery import Delivery

log = structlog.get_logger(__name__)

TICK = 0.25
"""Seconds between two checks of the running episode."""
SLOW = 1.0
"""Seconds after which a running episode is logged as slow."""
STUCK = 10.0
"""Seconds after which the watchdog ends a process whose episode still runs."""
QUARANTINE_PATIENCE = 15.0
"""Longest time for putting the messages of a stuck episode into quarantine, in seconds."""
_DEBUGGERS = frozenset({"bdb", "pdb", "_pydevd_bundle.pydevd", "pydevd"})
"""Modules of debuggers that wait for a person."""
STATUS = os.EX_SOFTWARE
"""The exit status of a process that the watchdog ends."""
_OURS = str(Path(airflow_provider_taskhub.__file__).resolve().parent) + os.sep


@dataclass(frozen=True, slots=True, eq=False)
class Running:
    """An episode whose orchestrator code runs now.

    :param execution_id: execution id of the generation that the episode continues or begins; None if it is unknown.
    :param batch: the messages that the episode processes.
    :param ends: tells which events end the instance without its code.
    """

    instance_id: str
    execution_id: str | None
    batch: Sequence[Delivery]
    ends: Callable[[HistoryEvent], bool] = lambda event: isinstance(event, ExecutionTerminated)


class Episodes:
    """Holds the episode that runs now. The thread of the event loop writes it, the watchdog reads it."""

    __slots__ = ("running",)

    def __init__(self) -> None:
        self.running: Running | None = None

    @contextmanager
    def computing(
        self,
        instance_id: str,
        execution_id: str | None,
        batch: Sequence[Delivery],
        ends: Callable[[HistoryEvent], bool] | None = None,
    ) -> Iterator[None]:
        """Tell the watchdog that orchestrator code runs for these messages until the end of the ``with`` block."""
        running = Running(instance_id, execution_id, batch)
        self.running = running if ends is None else replace(running, ends=ends)
        try:
            yield
        finally:
            self.running = None


class EpisodeThread(ABC):
    """A thread that checks the running episode.

    :param thread: the identifier of the thread that runs orchestrator code.
    """

    def __init__(self, episodes: Episodes, *, thread: int) -> None:
        self._episodes, self._target = episodes, thread
        self._seen: Running | None = None
        self._checks = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="taskhub-episodes", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()

    def _work(self) -> None:
        while not self._over.wait(TICK):
            self.look()

    def look(self) -> None:
        """Check the running episode once: log it if it is slow, call :meth:`stuck` if it is stuck."""
        running = self._episodes.running
        if running is None or running is not self._seen:
            self._seen, self._checks = running, 0
            return
        self._checks += 1
        if self._checks == round(SLOW / TICK):
            log.warning("episode_slow", instance_id=running.instance_id, seconds=SLOW, where=where(self._target))
        elif self._checks >= round(STUCK / TICK):
            self.stuck(running)

    @abstractmethod
    def stuck(self, running: Running) -> None:
        """An episode runs for :data:`STUCK`. Called at each further check."""

    def cause(self) -> str:
        """Return why the episode is stuck, with the line of the user's code."""
        return f"the episode did not end within {STUCK:g} s, at {where(self._target)}"


class EpisodeWatchdog(EpisodeThread):
    """The thread of a worker that checks the running episode.

    :param thread: the identifier of the thread that runs orchestrator code.
    :param keep: puts the messages of a stuck episode into quarantine, with a cause. The watchdog runs it on a new event
        loop.
    :param end: ends the process with an exit status.
    :param also: a function that is called at every check too.
    """

    def __init__(
        self,
        episodes: Episodes,
        *,
        thread: int,
        keep: Callable[[Running, str], Coroutine[Any, Any, None]],
        end: Callable[[int], object] = os._exit,
        also: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(episodes, thread=thread)
        self._keep, self._exit, self._also = keep, end, also

    def look(self) -> None:
        super().look()
        try:
            self._also()
        except Exception:  # an error of the extra check must not end the watchdog
            log.exception("look_failed")

    def stuck(self, running: Running) -> None:
        """Put the messages of a stuck episode into quarantine, and end the process."""
        cause = self.cause()
        # This timer ends the process even if the code below blocks, because a stuck process must not keep its
        # partitions.
        final = threading.Timer(QUARANTINE_PATIENCE + 5.0, self._exit, (STATUS,))
        final.daemon = True
        final.start()
        try:
            asyncio.run(asyncio.wait_for(self._keep(running, cause), QUARANTINE_PATIENCE))
        except Exception as error:
            log.error("quarantine_failed", instance_id=running.instance_id, error=repr(error))
        log.critical(
            "episode_stuck",
            instance_id=running.instance_id,
            cause=cause,
            messages=len(running.batch),
            hint="this worker ends; fix the orchestrator, then `taskhub quarantine put-back`",
        )
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        final.cancel()
        self._exit(STATUS)


class EpisodeInterrupter(EpisodeThread):
    """The thread of a test that checks the running episode: it raises an error in the code of a stuck one, which fails.

    It waits while a debugger has stopped the code.

    """

    def stuck(self, running: Running) -> None:
        frames = _frames(self._target)
        if any(frame.f_globals.get("__name__") in _DEBUGGERS for frame in frames):
            return
        cause = self.cause()
        error = type("EndlessOrchestrator", (BaseException,), {"__str__": lambda _: cause})
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._target), ctypes.py_object(error))
        if self._checks == 2 * round(STUCK / TICK):
            print(f"{cause}: it catches every error, so this test does not end", file=sys.stderr, flush=True)


def _frames(thread: int) -> Iterator[FrameType]:
    frame = sys._current_frames().get(thread)
    while frame is not None:
        yield frame
        frame = frame.f_back


def where(thread: int | None) -> str:
    """Return the line of user code that a thread executes, as text.

    If that line calls other code, the innermost line of that code is returned too.

    :param thread: the identifier of the thread; None: the thread has not started.
    :returns: the text; "an unknown line" if the thread runs no user code.
    """
    frame = sys._current_frames().get(thread or 0)
    while frame is not None and _is_ours(frame):  # skip TaskHub's code that the user's code has called
        frame = frame.f_back
    if frame is None:
        return "an unknown line"
    outer = inner = frame
    while outer.f_back is not None and not _is_ours(outer.f_back):
        outer = outer.f_back
    return str(CallSite.of(inner)) if outer is inner else f"{CallSite.of(outer)}, in {CallSite.of(inner)}"


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_OURS)
