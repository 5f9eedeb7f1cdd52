"""Tells when the worker of an activity record counts as silent, so that another worker may take its attempt over."""

from __future__ import annotations

from datetime import timedelta

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.storage.primitives import Entity


class Silence:
    """Tells whether an activity record has stayed unchanged for too long, although the store has answered this worker.

    It uses the clock of this worker only, because the times in the record come from another machine's clock.

    While the store answers no worker, the worker of the record cannot renew it. So only time counts in which the reads
    of this worker were answered: the time from one read to the next counts up to ``longest``. And the record counts as
    silent only if it has stayed unchanged for ``longest`` after the store has taken a write of this worker, because a
    locked SQLite file can be read, but not written.

    :param limit: the time without a change after which the worker of the record counts as silent.
    :param longest: the renewal interval of records.
    """

    def __init__(self, clock: Clock, limit: timedelta, longest: timedelta) -> None:
        self._clock, self._limit, self._longest = clock, limit.total_seconds(), longest.total_seconds()
        self._etag, self._read, self._silent, self._proven = "", 0.0, 0.0, False

    def lasts(self, entity: Entity) -> bool:
        """Return True if the record has not changed for the limit.

        :param entity: the row of the record, as just read.
        """
        now = self._clock.monotonic()
        if entity.etag != self._etag:
            self._etag, self._silent, self._proven = entity.etag, 0.0, False
        else:
            self._silent += min(now - self._read, self._longest)
        self._read = now
        return self._proven and self._silent >= self._limit

    @property
    def counts(self) -> bool:
        """Whether the record had not changed at the last read."""
        return self._silent > 0

    @property
    def needs_proof(self) -> bool:
        """Whether the limit is so near that this worker must see the store take a write, and call :meth:`proven`."""
        return not self._proven and self._silent >= self._limit - self._longest

    def proven(self) -> None:
        """Note that the store has just taken a write of this worker. The time of the write itself does not count."""
        self._proven, self._read = True, self._clock.monotonic()
        self._silent = self._limit - self._longest
