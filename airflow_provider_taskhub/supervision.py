"""Owners of background work: every task is waited for, and a loop that fails is started again.

:class:`Supervisor` owns what lives longer than the block that starts it, :func:`owned` what lives as long as a block.
Every task of the package is started here; ``asyncio.create_task`` and ``asyncio.ensure_future`` are banned elsewhere
(pyproject.toml), since a task that nobody waits for fails unseen.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

import structlog

from airflow_provider_taskhub.clock import SYSTEM_CLOCK, Clock
from airflow_provider_taskhub.retries import Retries

log = structlog.get_logger("taskhub.supervision")

T = TypeVar("T")

RESTARTS = Retries(after=(Exception,), first=0.1, longest=30.0)
"""Pauses before a loop that failed is started again. Not ``retries.retry``: a loop that ran well begins the count anew.
"""
SETTLED = 60.0
"""A loop that ran so many seconds is healthy: its failures are counted from 0 again."""
FAILING = 5
"""Failures in a row after which a loop counts as one that cannot be kept running."""


class Supervisor:
    """Owns loops, which are started again when they fail, and single tasks. All methods run on the event loop.

    :param clock: measures the pauses between restarts.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._loops: dict[str, asyncio.Task[None]] = {}
        self._works: set[asyncio.Task[Any]] = set()
        self._ending: set[asyncio.Task[Any]] = set()
        self._failures: Counter[str] = Counter()
        self._began: dict[str, float] = {}
        self.restarts: Counter[str] = Counter()
        """How often each loop was started again, by name."""

    @property
    def loops(self) -> Collection[str]:
        """Names of the loops that are kept running."""
        return tuple(self._loops)

    @property
    def failing(self) -> tuple[str, ...]:
        """Names of the loops that fail again and again (:data:`FAILING` times in a row)."""
        now = self._clock.monotonic()
        often = [name for name, count in tuple(self._failures.items()) if count >= FAILING]
        return tuple(sorted(name for name in often if now - self._began.get(name, now) < SETTLED))

    def keep(
        self, name: str, loop: Callable[[], Awaitable[None]], *, context: contextvars.Context | None = None
    ) -> asyncio.Task[None]:
        """Run a loop until it returns, :meth:`end` or :meth:`close`. If it raises, it is started again after a pause.

        :param name: of the loop, in logs, metrics and /live. A loop that is kept under the same name is ended.
        :param loop: called for each start; it must be able to go on where an earlier start has failed.
        :param context: that it runs in; None: a copy of the caller's.
        """
        self.end(name)
        task = asyncio.get_running_loop().create_task(self._keep(name, loop), name=name, context=context)
        self._loops[name] = task
        task.add_done_callback(lambda done: self._left(name, done))
        return task

    def spawn(
        self,
        work: Coroutine[Any, Any, T],
        *,
        name: str = "",
        told: bool = False,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        """Run something once.

        :param told: True: the caller awaits the task and handles its error. False: an error is logged here.
        :param context: that it runs in; None: a copy of the caller's.
        """
        task = asyncio.get_running_loop().create_task(work, name=name or None, context=context)
        self._works.add(task)
        task.add_done_callback(self._works.discard)
        if not told:
            task.add_done_callback(_report)
        return task

    def end(self, name: str) -> None:
        """End a loop, if there is one of that name."""
        task = self._loops.pop(name, None)
        if task is not None:
            self._forget(name)
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            task.cancel()

    async def close(self, patience: float = 0.0) -> None:
        """End every loop; returns when nothing runs any more.

        :param patience: seconds that single works may still take before they are cancelled.
        """
        for name in tuple(self._loops):
            self.end(name)
        if patience > 0 and self._works:
            await asyncio.wait(tuple(self._works), timeout=patience)
        for work in tuple(self._works):
            work.cancel()
        left = (*self._works, *self._ending)
        if left:
            await asyncio.wait(left)

    async def _keep(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        task = asyncio.current_task()
        while True:
            self._began[name] = began = self._clock.monotonic()
            try:
                await loop()
                return
            except asyncio.CancelledError:
                if task is None or task.cancelling():
                    raise
                await asyncio.sleep(0)  # a cancellation of this task that is on its way arrives here
                error: BaseException = RuntimeError("a task that the loop awaited was cancelled")
            except Exception as raised:
                error = raised
            failures = self._failures[name] if self._clock.monotonic() - began < SETTLED else 0
            self._failures[name] = failures + 1
            pause = RESTARTS.pause(failures + 1)
            log.error("loop_failed", loop=name, next_in=pause, failures=failures + 1, exc_info=error)
            await self._clock.sleep(pause)
            self.restarts[name] += 1

    def _left(self, name: str, task: asyncio.Task[None]) -> None:
        if self._loops.get(name) is task:
            del self._loops[name]
            self._forget(name)

    def _forget(self, name: str) -> None:
        self._failures.pop(name, None)
        self._began.pop(name, None)


def _report(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("task_failed", task=task.get_name(), exc_info=error)


class Start(Protocol):
    """Starts a task that ends with the block (:func:`owned`)."""

    def __call__(self, work: Coroutine[Any, Any, T], *, name: str = "") -> asyncio.Task[T]: ...


@asynccontextmanager
async def owned() -> AsyncIterator[Start]:
    """Tasks that end with the block: at its end those that still run are cancelled and waited for.

    The block gets a function that starts a task. The block learns of errors by awaiting the tasks it started; errors
    that come after the block's end are logged.
    """
    tasks: list[asyncio.Task[Any]] = []

    def start(work: Coroutine[Any, Any, T], *, name: str = "") -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work, name=name or None)
        tasks.append(task)
        return task

    try:
        yield start
    finally:
        left = [task for task in tasks if not task.done()]
        for task in left:
            task.add_done_callback(_report)
            task.cancel()
        if left:
            await asyncio.wait(left)


async def first(*works: Coroutine[Any, Any, Any]) -> None:
    """Wait until one of them is done; cancel the others. Results are dropped, errors are logged."""
    async with owned() as start:
        done, _ = await asyncio.wait([start(work) for work in works], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            _report(task)
