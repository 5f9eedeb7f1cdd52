"""Says in log hints how far the logs of running attempts have grown, so that the logs of Airflow tasks can follow them.

Only the attempts of instances that an Airflow task waits for are announced. An attempt that ends before its first
announcement is due costs no request, and neither does a log that does not grow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from airflow_provider_taskhub.errors import StorageError
from airflow_provider_taskhub.hub import log_hints
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.log_hints import LogHint
from airflow_provider_taskhub.supervision import owned
from airflow_provider_taskhub.workers.activities.runner import Runner
from airflow_provider_taskhub.workers.executors.attempt_values import ActivityOutcome, ActivityProgress, ActivityRequest
from airflow_provider_taskhub.workers.executors.pause import Pause

log = structlog.get_logger(__name__)

EVERY = 5.0
"""Seconds between two announcements of a log, and before the first one."""
_MAX_ENDING = 2.0
"""Longest time, in seconds, for which the outcome of an attempt waits for the last announcement of its log."""


@dataclass(slots=True)
class _Growth:
    """The size of a log in bytes, the size that was announced last, and whether an announcement was ever begun."""

    size: int = 0
    announced: int = 0
    begun: bool = False


class LogGrowth:
    """Appends output to logs, and announces the growth of the logs of watched attempts.

    :param hub: the hub with the logs and the log hints.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._running: dict[str, _Growth] = {}

    async def append(self, name: str, data: bytes) -> None:
        """Append output to a log, and remember its size if it is the log of a watched attempt. A ``LogSink``."""
        size = await self._hub.store.append_blob(self._hub.names.logs, name, data)
        if (growth := self._running.get(name)) is not None:
            growth.size = size

    async def run(
        self,
        runner: Runner,
        request: ActivityRequest,
        *,
        progress: Callable[[ActivityProgress], None] | None = None,
        pause: Pause | None = None,
    ) -> ActivityOutcome:
        """Run an attempt, and announce the growth of its log meanwhile if the request is watched.

        The last announcement comes before the outcome is returned, so that it precedes the end of the instance.

        :param runner: runs the attempt, and appends its output with :meth:`append`.
        """
        if not request.watched:
            return await runner.run(request, progress=progress, pause=pause)
        growth = self._running[request.log] = _Growth()
        try:
            async with owned() as start:
                start(self._keep_announcing(request, growth), name=f"announce log {request.log}")
                outcome = await runner.run(request, progress=progress, pause=pause)
            if growth.begun:
                await self._announce_end(request, growth)
            return outcome
        finally:
            if self._running.get(request.log) is growth:
                del self._running[request.log]

    async def _keep_announcing(self, request: ActivityRequest, growth: _Growth) -> None:
        while True:
            await self._hub.clock.sleep(EVERY)
            await self._announce(request, growth)

    async def _announce_end(self, request: ActivityRequest, growth: _Growth) -> None:
        try:
            async with asyncio.timeout(_MAX_ENDING):
                await self._announce(request, growth)
        except TimeoutError:
            log.debug("log_not_announced", log=request.log, error="the store did not answer in time")

    async def _announce(self, request: ActivityRequest, growth: _Growth) -> None:
        """Write the hint if the log has grown. A lost hint only delays lines, so an error never fails the activity."""
        size = growth.size
        if size == growth.announced:
            return
        growth.begun = True
        hint = LogHint(instance_id=request.instance.instance_id, log=request.log, activity=request.name, size=size)
        try:
            await log_hints.write(self._hub.store, self._hub.names, hint)
        except StorageError as error:
            log.debug("log_not_announced", log=request.log, error=str(error))
        else:
            growth.announced = size


class AnnouncingRunner:
    """A :class:`.Runner` that announces the growth of the logs of the attempts that another runner runs.

    :param runner: runs the attempts.
    :param growth: appends the output of these attempts to their logs.
    """

    def __init__(self, runner: Runner, growth: LogGrowth) -> None:
        self._runner, self._growth = runner, growth

    async def run(
        self,
        request: ActivityRequest,
        *,
        progress: Callable[[ActivityProgress], None] | None = None,
        pause: Pause | None = None,
    ) -> ActivityOutcome:
        return await self._growth.run(self._runner, request, progress=progress, pause=pause)

    async def end_sessions(self, sessions: Sequence[str]) -> None:
        await self._runner.end_sessions(sessions)
