"""Reads the output of running attempts for the tasks whose triggers share one watcher.

One query finds all logs that have grown. Only these logs are read, each from where the last reading ended. So tasks
whose logs do not grow cost nothing beyond the query, and without a task that follows its attempts there is no query.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.concurrency import gather_bounded

if TYPE_CHECKING:
    from airflow_provider_taskhub.client import Client
    from airflow_provider_taskhub.hub.log_hints import LogHint
    from airflow_provider_taskhub.triggers.attempt_output import Part, TaskOutput
    from airflow_provider_taskhub.triggers.watcher import WatchedInstance

EVERY = 5.0
"""Seconds between two readings. The end of an instance is a reason for one more."""
MOST_PARTS = 64
"""The largest number of parts that one reading reads. The tasks that were read least recently come first."""
_PARALLEL = 8
DEADLINE = 10.0
"""Seconds after which a reading stops, because the watcher's other readings wait for it."""
QUIET = 60.0
"""Seconds without a change after which a hint is deleted. Until then, each triggerer of the hub has read it."""
_MOST_FORGOTTEN = 100
"""The largest number of hints that one reading deletes."""


class OutputReader:
    """Reads the grown logs of one hub for the waits of a watcher.

    :param clock: the source of the time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due = float("-inf")
        self._readings = 0
        self._unchanged: dict[tuple[str, str], float] = {}

    async def read(self, client: Client, waits: Iterable[WatchedInstance], *, ended: Collection[str]) -> None:
        """Read once, if it is time or an instance has ended. An error becomes a line in the logs of the tasks.

        :param waits: the waits of the watcher.
        :param ended: the ids of instances whose end was just announced. Their output is read first, because it must
            come before the end.
        """
        followed = [(wait, wait.output) for wait in waits if wait.output is not None]
        now = self._clock.monotonic()
        if not followed or (now < self._due and not any(wait.instance_id in ended for wait, _ in followed)):
            return
        self._due = now + EVERY
        try:
            async with asyncio.timeout(DEADLINE):
                await self._read(client, followed, ended)
        except Exception as error:  # output helps people, and its absence must not disturb the waits
            for _, output in followed:
                output.failed(error)
        finally:
            for wait, output in followed:
                if output.lines:
                    wait.changed.set()

    async def _read(
        self, client: Client, followed: Sequence[tuple[WatchedInstance, TaskOutput]], ended: Collection[str]
    ) -> None:
        self._readings += 1
        hints: dict[str, list[LogHint]] = {}
        for hint in await client.growing_logs.hints():
            hints.setdefault(hint.instance_id, []).append(hint)
        parts: list[tuple[TaskOutput, Part]] = []
        for wait, output in sorted(followed, key=lambda one: (one[0].instance_id not in ended, one[1].read_last)):
            output.hinted(hints.get(wait.instance_id, ()))
            parts += [(output, part) for part in output.parts(self._readings)]

        async def one(asked: tuple[TaskOutput, Part]) -> None:
            output, part = asked
            output.read(part, await client.growing_logs.part(part.log, offset=part.offset, length=part.length))

        await gather_bounded(one, parts[:MOST_PARTS], limit=_PARALLEL)
        over = {wait.instance_id for wait, _ in followed if wait.instance_id in ended}
        if useless := self._useless([hint for found in hints.values() for hint in found], over):
            await client.growing_logs.forget(useless[:_MOST_FORGOTTEN])

    def _useless(self, hints: Sequence[LogHint], over: Collection[str]) -> list[LogHint]:
        """Return the hints of instances that are over, and those that have not changed for :data:`QUIET`.

        Any watcher deletes quiet hints, whoever waits for their instance: otherwise the hints of killed tasks would
        stay for ever, and each query would read them. A log that grows again gets a new hint.
        """
        now = self._clock.monotonic()
        self._unchanged = {key: self._unchanged.get(key, now) for hint in hints for key in ((hint.log, hint.etag),)}
        return [
            hint for hint in hints if hint.instance_id in over or now - self._unchanged[hint.log, hint.etag] >= QUIET
        ]
