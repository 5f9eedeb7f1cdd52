"""Trying and waiting within bounds, and tasks that die with their owner: for the loops that hold partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.errors import StorageError
from airflow_provider_taskhub.supervision import Supervisor, first
from airflow_provider_taskhub.telemetry import Outages

log = structlog.get_logger("taskhub.partitions")


async def attempt(
    event: str, call: Callable[[], Awaitable[None]], deadline: float, outages: Outages, **where: object
) -> bool:
    """One try, of ``deadline`` seconds at most. A failure ends nothing.

    It is logged as ``event``, with ``where``: the first one at once, then once a minute for each partition.
    """
    outage = outages.of(event, where.get("partition"))
    try:
        async with asyncio.timeout(deadline):
            await call()
    except (StorageError, TimeoutError) as error:
        outage.failed(error, **where)
        return False
    except Exception:
        log.exception(event)
        return False
    outage.over(**where)
    return True


async def within(clock: Clock, event: asyncio.Event, seconds: float) -> bool:
    """Whether the event came within ``seconds`` by this clock."""
    await first(event.wait(), clock.sleep(seconds))
    return event.is_set()


class Tasks(Supervisor):
    """Tasks of one event loop, and a way into it from other threads."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._loop = asyncio.get_running_loop()

    def post(self, callback: Callable[[], object]) -> None:
        """Call it on the loop; from any thread."""
        with suppress(RuntimeError):  # the loop has ended, and everything with it
            self._loop.call_soon_threadsafe(callback)
