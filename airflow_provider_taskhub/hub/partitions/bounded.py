"""Trying and waiting within bounds, and tasks that die with their owner: for the loops that hold partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.errors import StorageError

log = structlog.get_logger("taskhub.partitions")


async def attempt(event: str, call: Callable[[], Awaitable[None]], deadline: float, **where: object) -> bool:
    """One try, of ``deadline`` seconds at most. A failure is logged as ``event``, with ``where``, and ends nothing."""
    try:
        async with asyncio.timeout(deadline):
            await call()
    except (StorageError, TimeoutError) as error:
        log.warning(event, error=str(error) or type(error).__name__, **where)
        return False
    except Exception:
        log.exception(event)
        return False
    return True


async def within(clock: Clock, event: asyncio.Event, seconds: float) -> bool:
    """Whether the event came within ``seconds`` by this clock."""
    waits = {asyncio.ensure_future(event.wait()), asyncio.ensure_future(clock.sleep(seconds))}
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    return event.is_set()


class Tasks:
    """Tasks of one event loop, and a way into it from other threads."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def post(self, callback: Callable[[], object]) -> None:
        """Call it on the loop; from any thread."""
        with suppress(RuntimeError):  # the loop has ended, and everything with it
            self._loop.call_soon_threadsafe(callback)

    def spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def end(self) -> None:
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
