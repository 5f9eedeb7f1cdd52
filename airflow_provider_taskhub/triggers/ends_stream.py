"""Reads which instances of a hub have ended, once for all asset watchers of a triggerer that watch the same hub.

Airflow's shared streams do the sharing (``BaseEventTrigger.create_shared_stream_producer``). They also say when Airflow
has stored everything that the watchers made of a batch. Only then may a watcher remember that it has delivered it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import structlog
from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.hooks.taskhub import served_at
from airflow_provider_taskhub.retries import Retries
from airflow_provider_taskhub.triggers.shared_client import shared_client
from airflow_provider_taskhub.triggers.shared_requests import shared_settings

if TYPE_CHECKING:
    from airflow_provider_taskhub.client import Client
    from airflow_provider_taskhub.client.ends import End
    from airflow_provider_taskhub.settings import Settings

log = structlog.get_logger(__name__)

OVERLAP = timedelta(minutes=2)
"""How far each listing looks back before the last one. Rows of one table may be written by several servers of the
store, whose clocks may differ by less than this time."""
MOST_REMEMBERED = 1_000
"""The most ends of the last :data:`OVERLAP` that are stored for the next start. Of more ends the newest are stored, and
a restart of the triggerer delivers the others again."""
SETTLED_WITHIN = 900.0
"""Seconds after which the next batch is read although Airflow has not said what became of the last one. Airflow itself
gives up after ``[triggerer] shared_stream_ack_timeout``, 300 s by default."""
_RECONNECT = Retries(after=(Exception,), first=1.0, longest=30.0)
"""Pauses after failures to read the hub. A listing that succeeds begins again with the first pause."""


@dataclass(slots=True, eq=False, kw_only=True)
class EndsBatch:
    """A page of a listing of ended instances.

    :param hub: name of the hub.
    :param place: the hub and where it is stored, to compare with an earlier start. It contains no secret.
    :param until: everything that the store has written before this time, by its own clock, is in this listing or in an
        earlier one.
    :param ends: the ends. Some of them were in earlier listings too.
    :param last: True: this is the last page of the listing.
    :param settled: set when Airflow has stored the events that the watchers have made of this page.
    """

    hub: str
    place: str
    until: Timestamp
    ends: tuple[End, ...]
    last: bool
    settled: asyncio.Event = field(default_factory=asyncio.Event)


class HubEnds(SharedStreamProducer):  # type: ignore[misc]  # Airflow is not followed by mypy
    """Lists the ended instances of one hub again and again, from the time of its first listing.

    :param taskhub_conn_id: the Airflow connection that names the hub.
    :param interval: the pause between two listings, in seconds.
    :param clock: the source of the time for pauses.
    """

    def __init__(self, *, taskhub_conn_id: str, interval: float, clock: Clock) -> None:
        self._taskhub_conn_id = taskhub_conn_id
        self._interval = interval
        self._clock = clock
        self._since: tuple[str, Timestamp] | None = None

    async def open_stream(self) -> AsyncIterator[tuple[EndsBatch, EndsBatch]]:
        """Yield each batch twice: for the watchers, and for :meth:`advance`. An error of the hub does not end it."""
        failures = 0
        while True:
            try:
                settings = await shared_settings(self._taskhub_conn_id)
                async with shared_client(settings) as client:
                    while True:
                        async for batch in self._listed(client, settings):
                            yield batch, batch
                            await self._settled(batch)
                        failures = 0
                        await self._clock.sleep(self._interval)
            except Exception as error:  # it would end all watchers of the hub: try again
                failures += 1
                log.warning("hub_ends_unreadable", conn_id=self._taskhub_conn_id, error=f"{error!r}")
                await self._clock.sleep(_RECONNECT.pause(failures, error))

    async def _listed(self, client: Client, settings: Settings) -> AsyncIterator[EndsBatch]:
        """Yield one listing. If it is interrupted, the next one begins at the same time."""
        place = f"{settings.hub} ({served_at(settings)})"
        until = await client.ends.now()
        if self._since is None or self._since[0] != place:
            self._since = (place, until)
        held: tuple[End, ...] | None = None
        async for page in client.ends.since(self._since[1] + -OVERLAP):
            if held:
                yield EndsBatch(hub=settings.hub, place=place, until=until, ends=held, last=False)
            held = page
        yield EndsBatch(hub=settings.hub, place=place, until=until, ends=held or (), last=True)
        self._since = (place, until)

    async def _settled(self, batch: EndsBatch) -> None:
        """Wait until the watchers are ready for the next batch, so that no queue of Airflow overflows."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLED_WITHIN):
                await batch.settled.wait()

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Note that Airflow has stored the events of these batches. Airflow calls this method.

        A watcher that Airflow has ended meanwhile counts as settled too: it remembers nothing any more.
        """
        for item in batch:
            item.broker_payload.settled.set()


class Delivered:
    """What one asset watcher has delivered: the time up to which it knows all ends, and the ends shortly before it.

    :param place: the hub and where it is stored.
    :param begin: the watcher delivers only ends that the store has written after this time.
    """

    def __init__(self, place: str, begin: Timestamp) -> None:
        self.place, self.since = place, begin
        self._begin = begin
        self._known: dict[str, Timestamp] = {}

    def new(self, ends: Sequence[End]) -> list[End]:
        """Return those ends that were not delivered yet, and count them as delivered."""
        fresh: list[End] = []
        for end in ends:
            if end.written > self._begin and (key := _key(end)) not in self._known:
                fresh.append(end)
                self._known[key] = end.written
        return fresh

    def advance(self, until: Timestamp) -> None:
        """Note that all ends before this time are known, and forget the ends that no later listing has."""
        self.since = until
        oldest = until + -OVERLAP
        self._known = {key: written for key, written in self._known.items() if written > oldest}

    def stored(self) -> dict[str, Any]:
        """Return this object as a JSON value."""
        newest = sorted(self._known.items(), key=lambda item: item[1], reverse=True)[:MOST_REMEMBERED]
        return {
            "place": self.place,
            "begin": self._begin.text(),
            "since": self.since.text(),
            "delivered": [[key, written.text()] for key, written in newest],
        }

    @classmethod
    def of(cls, stored: Any, place: str) -> Delivered | None:
        """Return the object that :meth:`stored` has returned; None: it is of another hub, or is no such value.

        :param stored: the JSON value.
        :param place: the hub and where it is stored now.
        """
        try:
            if stored["place"] != place:
                return None
            delivered = cls(place, Timestamp.parse(stored["begin"]))
            delivered.since = Timestamp.parse(stored["since"])
            delivered._known = {key: Timestamp.parse(written) for key, written in stored["delivered"]}
        except (KeyError, TypeError, ValueError):
            return None
        return delivered


def _key(end: End) -> str:
    """Return a text that identifies one end. A rewound instance has the same ids, and ends at another time."""
    parts = (end.instance_id, end.execution_id or "", end.completed.text() if end.completed else "")
    return blake2b("\0".join(parts).encode(), digest_size=8).hexdigest()
