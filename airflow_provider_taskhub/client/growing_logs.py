"""Finds the logs of running attempts that have grown, and reads parts of them, for the tasks that wait for them."""

from __future__ import annotations

from collections.abc import Collection

from airflow_provider_taskhub.client.connection import Connection
from airflow_provider_taskhub.hub import log_hints, logs
from airflow_provider_taskhub.hub.log_hints import LogHint


class GrowingLogs:
    """Reads and deletes the log hints of a hub, and reads logs by offset.

    A log hint says how far the log of an attempt has grown. Workers write log hints only for instances that an Airflow
    task waits for.
    """

    def __init__(self, connection: Connection) -> None:
        self._hub = connection.hub

    async def hints(self) -> tuple[LogHint, ...]:
        """Return the log hints of all instances: one query."""
        return await log_hints.read(self._hub.store, self._hub.names)

    async def part(self, name: str, *, offset: int, length: int) -> bytes | None:
        """Return a part of a log; None if there is no such log. It is shorter than ``length`` if the log ends earlier.

        :param name: ``LogHint.log``.
        :param offset: number of the first byte, from 0.
        :param length: most bytes to return.
        """
        return await logs.read_part(self._hub.store, self._hub.names, name, offset=offset, length=length)

    async def forget(self, hints: Collection[LogHint]) -> None:
        """Delete hints that are no longer needed. A hint that was written again meanwhile stays.

        :param hints: hints from :meth:`hints`.
        """
        await log_hints.delete(self._hub.store, self._hub.names, hints)
