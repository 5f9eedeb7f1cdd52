"""For the loops that own partitions: attempts and waits with a time limit, and tasks that end with their owner."""

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
    """Await ``call()`` once, for at most ``deadline`` seconds.

    A failure is logged. If further attempts fail too, this is logged once a minute for each partition.

    :param outages: remembers which attempts have failed so far.

    :param event: name of the log event of a failure.
    :param where: fields of this log event.
    :returns: False if the attempt failed. No error is raised.
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
    """Wait for an event, at most ``seconds`` by this clock. Return whether the event is set."""
    await first(event.wait(), clock.sleep(seconds))
    return event.is_set()


class Tasks(Supervisor):
    """The tasks of one event loop, and a way to call functions on this loop from other threads."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._loop = asyncio.get_running_loop()

    def post(self, callback: Callable[[], object]) -> None:
        """Call a function on the event loop. May be called from any thread."""
        with suppress(RuntimeError):  # call_soon_threadsafe raises this error if the loop is closed
            self._loop.call_soon_threadsafe(callback)
