"""The places of a limit of activities, as one worker sees them.

A worker counts the free places when it looks at their rows, and takes one before an attempt begins. While none is free,
or while other workers hold some, it looks again: they may have freed theirs, or have died.
"""

from __future__ import annotations

import asyncio
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

from airflow_provider_taskhub.errors import Conflict, NotFound, StorageError
from airflow_provider_taskhub.hub.history import places as rows
from airflow_provider_taskhub.hub.history.places import Limit, LimitState, Place
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import BEGINS_WITHIN, ActivityRecord, WorkerIdentity
from airflow_provider_taskhub.settings import LeaseTimes
from airflow_provider_taskhub.workers.activities.begins import Unasked

SELDOM = 60.0
"""Seconds between two looks while a place is free, and other workers hold others. A dead worker may be among them."""
FULL = 15.0
"""Seconds between two looks while this worker itself holds all places. An administrator may order more of them."""
LOST = (Conflict, NotFound)
"""Errors of a write of a place that was changed or freed meanwhile. The row of a free place may not exist."""
FIRST_LOOK, LONGEST_LOOK = 0.5, 5.0
"""Shortest and longest pause between two looks at the places that other workers hold, in seconds. It is at most the
renewal interval of records, because :class:`.Silence` counts no more than this from one look to the next."""


class HubPlaces(ABC):
    """The places of one limit, as this worker sees them.

    :param limit: the limit, and how many places it has.
    :param me: the identity of this worker.
    :ivar begins_within: seconds within which an attempt begins after :meth:`confirm`.
    :ivar free: free places when they were last read, less those that this worker has taken since.
    """

    begins_within = BEGINS_WITHIN.total_seconds()
    longest_look = LONGEST_LOOK
    """Longest pause between two looks while none is free, in seconds."""

    def __init__(self, hub: Hub, limit: Limit, *, me: WorkerIdentity, times: LeaseTimes) -> None:
        self.limit, self.free = limit, 0
        self._hub, self._me, self._times = hub, str(me), times
        self._changed, self._one = asyncio.Event(), asyncio.Lock()
        self._first = zlib.crc32(self._me.encode())
        """Where this worker begins to try, so that two workers seldom try the same place."""
        self._change = 0
        """How many places this worker has taken, less those that it has freed."""

    async def take(self, record: ActivityRecord, *, others_first: bool = False) -> bool:
        """Take a place for an attempt whose record this worker claims next.

        :param others_first: True: take only a place that the call has already, because others come before it.
        :returns: False if there is no such place.
        :raises Unasked: if the store does not answer, or refuses the request.
        """
        try:
            async with self._one:  # otherwise those that ask at the same moment would all try the same place
                return await self._take(record, others_first)
        except StorageError as error:
            raise Unasked(str(error)) from error

    async def _take(self, record: ActivityRecord, others_first: bool) -> bool:
        before, found = self._change, await self._state()
        for place in self._own(record, found) or ([] if others_first else found.free(self._first)):
            try:
                await self._hub.store.execute(rows.taken(self._hub.names, place, record))
            except LOST:  # another worker was faster
                continue
            self._took(record, place)
            self._change += not place.held
            self._count(found, before)
            self._changed.set()  # if it was the last one, this worker looks from now on
            return True
        if not others_first:
            self.free = 0
        self._changed.set()
        return False

    async def read_free(self) -> int:
        """Read how many places are free."""
        before, found = self._change, await self._state()
        self._count(found, before)
        return self.free

    @abstractmethod
    async def undo(self, record: ActivityRecord) -> None:
        """Take back a :meth:`take` of an attempt that does not begin."""

    async def confirm(self, record: ActivityRecord) -> bool:
        """Return True if the attempt still has a place. Call this after its record was claimed, before it runs.

        :raises Unasked: if the store does not answer, or refuses the request.
        """
        try:
            for place in (await self._state()).holders:
                if await self._confirms(record, place):
                    return True
        except StorageError as error:
            raise Unasked(str(error)) from error
        return False

    @abstractmethod
    async def run(self, freed: Callable[[], None]) -> None:
        """Look at the places, and free those that are over. Runs until cancelled.

        :param freed: called when a place may have become free.
        """

    @abstractmethod
    async def leave(self, record: ActivityRecord) -> None:
        """Note that an attempt for which this worker has taken a place has ended, or does not begin."""

    @abstractmethod
    def forget(self, record: ActivityRecord) -> None:
        """Note that this worker has not claimed the record of an attempt for which it has taken a place."""

    @abstractmethod
    async def look(self) -> bool:
        """Free the places that are over, and count the free ones.

        :returns: True if other workers have places.
        """

    @abstractmethod
    def next_look(self) -> float | None:
        """Return the seconds until the next look; None: as far as this worker knows, nobody has a place."""

    @abstractmethod
    def _own(self, record: ActivityRecord, found: LimitState) -> Sequence[Place]:
        """Return the places that an attempt takes before all others: those that its call has."""

    @abstractmethod
    def _took(self, record: ActivityRecord, place: Place) -> None:
        """Note that an attempt has a place."""

    @abstractmethod
    async def _confirms(self, record: ActivityRecord, place: Place) -> bool:
        """Return True if a place is that of an attempt which begins now."""

    def _count(self, found: LimitState, before: int) -> None:
        """Count the free places.

        :param found: the places as this worker has read them.
        :param before: what this worker had changed when it began to read.
        """
        self.free = max(0, found.limit - len(found.holders) - (self._change - before))

    async def _changed_within(self, seconds: float | None) -> bool:
        """Wait until this worker takes or frees a place.

        :param seconds: how long to wait; None: without a limit.
        :returns: False if the time is over.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return True

    async def _state(self) -> LimitState:
        found = await rows.state_of(self._hub.store, self._hub.names, self.limit)
        return found if found.declared else replace(found, declared=self.limit.places)
