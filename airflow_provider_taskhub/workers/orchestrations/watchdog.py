"""The watchdog of episodes: an orchestrator that never returns to the event loop must not keep its partition for ever.

Orchestrator code runs on the worker's event loop. While it runs, nothing else of the worker runs, except for the thread
that renews the leases. So an endless loop in one orchestrator would stop all instances of its worker for good. A thread
looks at the running episode, several times a second. After one second it logs a warning with the source line. After ten
seconds it puts the episode's messages into quarantine and ends the process. The next worker of the partition does not
run the instance until its messages are put back (``taskhub quarantine put-back``).

Time is counted in looks and not read from a clock: a machine that slept for an hour has not computed for an hour.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import structlog

import airflow_provider_taskhub
from airflow_provider_taskhub.engine.actions import CallSite
from airflow_provider_taskhub.hub.queues.delivery import Delivery

log = structlog.get_logger(__name__)

TICK = 0.25
"""Seconds between two looks."""
SLOW = 1.0
"""Seconds after which an episode is reported."""
STUCK = 10.0
"""Seconds after which the watchdog ends the process."""
QUARANTINE_PATIENCE = 15.0
"""Seconds that it may take to put the messages into quarantine."""
STATUS = os.EX_SOFTWARE
"""The exit status of the process."""
_OURS = str(Path(airflow_provider_taskhub.__file__).resolve().parent) + os.sep


@dataclass(frozen=True, slots=True, eq=False)
class Running:
    """An episode that is being computed.

    :param execution_id: the generation that it is, or begins. :param batch: the messages that it is for.
    """

    instance_id: str
    execution_id: str | None
    batch: Sequence[Delivery]


class Episodes:
    """The episode that the event loop computes: written by the loop's thread, read by the watchdog."""

    __slots__ = ("running",)

    def __init__(self) -> None:
        self.running: Running | None = None

    @contextmanager
    def computing(self, instance_id: str, execution_id: str | None, batch: Sequence[Delivery]) -> Iterator[None]:
        """Inside the block, user code runs for these messages."""
        self.running = Running(instance_id, execution_id, batch)
        try:
            yield
        finally:
            self.running = None


class EpisodeWatchdog:
    """The thread that looks at the running episode.

    :param thread: identifies the thread that computes. :param keep: puts the messages of a stuck episode into
        quarantine, with a cause; runs on an event loop of its own. :param end: ends the process with a status.
    :param also: called at every look.
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
        self._episodes, self._target, self._keep, self._exit, self._also = episodes, thread, keep, end, also
        self._seen: Running | None = None
        self._looks = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="taskhub-episodes", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()

    def _work(self) -> None:
        while not self._over.wait(TICK):
            self.look()
            try:
                self._also()
            except Exception:  # who looks at episodes goes on
                log.exception("look_failed")

    def look(self) -> None:
        """One look."""
        running = self._episodes.running
        if running is None or running is not self._seen:
            self._seen, self._looks = running, 0
            return
        self._looks += 1
        if self._looks == round(SLOW / TICK):
            log.warning("episode_slow", instance_id=running.instance_id, seconds=SLOW, where=where(self._target))
        elif self._looks >= round(STUCK / TICK):
            self._end(running)

    def _end(self, running: Running) -> None:
        cause = f"its episode did not end within {STUCK:g} s, at {where(self._target)}"
        # whatever hangs from here on, a process that computes nothing any more must not keep its partitions
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


def where(thread: int | None) -> str:
    """The line of user code that a thread executes, and the innermost line below it if that is another one."""
    frame = sys._current_frames().get(thread or 0)
    while frame is not None and _is_ours(frame):  # in the middle of a call of the context
        frame = frame.f_back
    if frame is None:
        return "an unknown line"
    outer = inner = frame
    while outer.f_back is not None and not _is_ours(outer.f_back):
        outer = outer.f_back
    return str(CallSite.of(inner)) if outer is inner else f"{CallSite.of(outer)}, in {CallSite.of(inner)}"


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_OURS)
