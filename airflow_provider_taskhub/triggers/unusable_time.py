"""Measures how long no live worker could run an instance, or the hub could not be used.

If one of these times is too long, the task gives up its wait.
"""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.errors import ConfigurationError
from airflow_provider_taskhub.hub.model import ORCHESTRATOR, Need
from airflow_provider_taskhub.hub.partitions.capabilities import able
from airflow_provider_taskhub.triggers.task_log import lacking, no_worker, served_by
from airflow_provider_taskhub.triggers.watcher import WatchedInstance


class UnusableTime:
    """Measures how long no live worker could run the instance, and how long the hub could not be used at all.

    The hub cannot be used if reading it raises a ConfigurationError, for example because the hub does not exist. If the
    store does not answer, this time does not count, because the store may answer later. While the hub or the instance
    cannot be read, the time without a worker begins again.

    No worker can run the instance if no live worker knows its orchestrator or an activity that it awaits, if no live
    worker has its version, or if the worker that owns its partition cannot run it. Times come from this process's
    monotonic clock and count from the beginning of the wait in this process.

    :param orchestrator: the name of the instance's orchestrator; "": do not check the workers.
    :param limit: seconds after which the wait ends with an error.
    :param clock: the clock of this process.
    """

    def __init__(self, orchestrator: str, limit: float, clock: Clock) -> None:
        self._clock = clock
        self._orchestrator = orchestrator
        self._limit = limit
        self._last_usable = self._last_known = clock.monotonic()
        self._workers_text: str | None = None
        self._trouble, self._what = "", "the hub"

    def lines(self, seen: WatchedInstance) -> Iterator[str]:
        """Yield a line if the list of workers has changed, if the hub cannot be read, or if it can be read again."""
        trouble = f"{type(seen.trouble).__name__}: {seen.trouble}" if seen.trouble else ""
        if trouble != self._trouble:
            self._trouble = trouble
            if trouble:
                self._what = f"instance {seen.instance_id}" if seen.alone else "the hub"
                yield f"{self._what} cannot be read, trying again: {trouble}"
            else:
                yield f"{self._what} can be read again"
        if seen.members is None or not self._orchestrator:
            return
        text = served_by(seen.members, self._orchestrator)
        if text != self._workers_text:
            self._workers_text = text
            yield text

    def error(self, seen: WatchedInstance) -> str | None:
        """Return the error text with which the wait ends if one of the times is over its limit; else None."""
        now = self._clock.monotonic()
        if not isinstance(seen.trouble, ConfigurationError):
            self._last_usable = now
        elif now - self._last_usable >= self._limit:
            return f"the hub cannot be used: {seen.trouble}"
        if seen.members is None or seen.trouble or not self._orchestrator:
            self._last_known = now
            return None
        lacks = lacking(seen.whys, self._limit)
        known = able(seen.members, Need(ORCHESTRATOR, self._orchestrator))
        if known and lacks is None:
            self._last_known = now
        elif now - self._last_known >= self._limit:
            if known and lacks is not None:
                return lacks
            return no_worker(seen.members, self._orchestrator, self._limit)
        return None
