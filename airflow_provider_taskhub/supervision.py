"""Starts background tasks, waits for their end, and starts a loop again after it has failed.

A :class:`Supervisor` owns tasks that outlive the block of code that starts them. :func:`owned` owns tasks that end with
a ``with`` block. Other modules must not use ``asyncio.create_task`` and ``asyncio.ensure_future`` (pyproject.toml
forbids it): if no code awaits a task, nobody sees its error. They may use ``asyncio.gather``, whose caller awaits the
tasks, and ``asyncio.run_coroutine_threadsafe``, with which another thread starts a coroutine.
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
"""Pauses before a failed loop is started again.

Rejected: to call ``retries.retry``. It cannot set the count of failures to 0 after the loop has run well for a time."""
SETTLED = 60.0
"""Seconds after which a running loop counts as healthy, so that its failures are counted from 0 again."""
FAILING = 5
"""Number of failures in a row after which :attr:`Supervisor.failing` lists a loop."""


class Supervisor:
    """Owns single tasks, and loops, which are started again after they fail. Call all methods in the event loop.

    :param clock: measures the pauses between restarts, and how long a loop has run.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._loops: dict[str, asyncio.Task[None]] = {}
        self._works: set[asyncio.Task[Any]] = set()
        self._ending: set[asyncio.Task[Any]] = set()
        self._failures: Counter[str] = Counter()
        self._began: dict[str, float] = {}
        self.restarts: Counter[str] = Counter()
        """For each name of a loop: how often the loop was started again."""

    @property
    def loops(self) -> Collection[str]:
        """Names of the loops that are kept running."""
        return tuple(self._loops)

    @property
    def failing(self) -> tuple[str, ...]:
        """Names of the loops that have failed :data:`FAILING` times in a row and have not run for a minute since."""
        now = self._clock.monotonic()
        often = [name for name, count in tuple(self._failures.items()) if count >= FAILING]
        return tuple(sorted(name for name in often if now - self._began.get(name, now) < SETTLED))

    def keep(
        self, name: str, loop: Callable[[], Awaitable[None]], *, context: contextvars.Context | None = None
    ) -> asyncio.Task[None]:
        """Run a loop in a task until it returns, or until :meth:`end` or :meth:`close` is called.

        If the loop raises an error, or a task that it awaits was cancelled, the loop is started again after a pause.

        :param name: name of the loop in logs, metrics and /live. If another loop has this name, that loop is ended.
        :param loop: called for each start of the loop. It must be able to continue after an earlier call has failed.
        :param context: context variables of the task; None: a copy of the caller's context.
        :returns: the task.
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
        awaited: bool = False,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        """Run a coroutine once, in a task.

        :param work: the coroutine.
        :param name: name of the task in logs.
        :param awaited: True: the caller awaits the task and handles its error. False: an error is logged here.
        :param context: context variables of the task; None: a copy of the caller's context.
        :returns: the task.
        """
        task = asyncio.get_running_loop().create_task(work, name=name or None, context=context)
        self._works.add(task)
        task.add_done_callback(self._works.discard)
        if not awaited:
            task.add_done_callback(_report)
        return task

    def end(self, name: str) -> None:
        """Cancel the loop of this name. Do nothing if there is no such loop."""
        task = self._loops.pop(name, None)
        if task is not None:
            self._forget(name)
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            task.cancel()

    async def close(self, patience: float = 0.0) -> None:
        """End all loops and tasks, and return when all of them have ended.

        :param patience: seconds to wait for tasks of :meth:`spawn` before they are cancelled. Loops are cancelled at
            once.
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
                await asyncio.sleep(0)  # if this task itself is being cancelled too, the cancellation is raised here
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
    """The type of the function that :func:`owned` gives its block: it starts a task that ends with the block."""

    def __call__(self, work: Coroutine[Any, Any, T], *, name: str = "") -> asyncio.Task[T]: ...


@asynccontextmanager
async def owned() -> AsyncIterator[Start]:
    """Give the ``async with`` block a function that starts tasks, and end these tasks with the block.

    At the end of the block, tasks that still run are cancelled and awaited. The block itself must await a task to get
    the task's error. An error that a task raises after its cancellation is logged.
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
    """Run coroutines concurrently until one of them is done, then cancel the others.

    The results of the coroutines are dropped. Their errors are logged.
    """
    async with owned() as start:
        done, _ = await asyncio.wait([start(work) for work in works], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            _report(task)
