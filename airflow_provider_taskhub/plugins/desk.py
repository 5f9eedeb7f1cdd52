"""Clients that the page keeps open between requests: one per hub and event loop, closed when nobody asks for a while.

A client that stays sees who renews, so ``Member.alive`` means something; and a page that refreshes every two seconds
does not make a TLS connection every two seconds.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from airflow_provider_taskhub.hooks.taskhub import open_client

if TYPE_CHECKING:
    from airflow_provider_taskhub.client import Client
    from airflow_provider_taskhub.hub.contract import ActivityRecord, InstanceState
    from airflow_provider_taskhub.settings import Settings

T = TypeVar("T")

IDLE = 60.0
"""Seconds after the last request."""
FRESH = 1.5
"""Seconds for which an answer serves everyone who asks the same: many open pages cost one."""
_MOST_ANSWERS = 500
_MOST_ENDED = 2_000


class Desk:
    """One hub's open client and its recent answers."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client: asyncio.Future[Client] | None = None
        self._asked = asyncio.Event()
        self._answers: dict[object, tuple[float, asyncio.Future[Any]]] = {}
        self._ended: dict[object, tuple[ActivityRecord, ...]] = {}

    async def client(self) -> Client:
        """The open client; opened when there is none.

        :raises TaskHubError: why it cannot be opened; asked for again by the next call.
        """
        self._asked.set()
        if self._client is None:
            loop = asyncio.get_running_loop()
            self._client = loop.create_future()
            # of no request's context: it outlives them
            self._task = loop.create_task(self._keep(self._client), context=contextvars.Context())
        return await asyncio.shield(self._client)

    async def once(self, key: object, ask: Callable[[Client], Awaitable[T]]) -> T:
        """The answer to a question that many ask at the same time; at most :data:`FRESH` seconds old."""
        loop = asyncio.get_running_loop()
        found = self._answers.get(key)
        if found is None or (found[1].done() and (loop.time() - found[0] > FRESH or _failed(found[1]))):
            if len(self._answers) >= _MOST_ANSWERS:
                self._answers.clear()
            found = loop.time(), asyncio.ensure_future(self._ask(ask))
            self._answers[key] = found
        answer: T = await asyncio.shield(found[1])
        return answer

    async def of_instance(self, state: InstanceState) -> tuple[ActivityRecord, ...]:
        """Activity records of an instance; those of one that has ended do not change, and are asked for once."""
        key = state.instance_id, state.execution_id, state.etag
        if key in self._ended:
            return self._ended[key]
        records = await self.once(
            ("activities", state.instance_id), lambda client: client.activities(state.instance_id)
        )
        if state.status.is_final and all(record.ended is not None for record in records):
            if len(self._ended) >= _MOST_ENDED:
                self._ended.clear()
            self._ended[key] = records
        return records

    async def _ask(self, ask: Callable[[Client], Awaitable[T]]) -> T:
        return await ask(await self.client())

    async def _keep(self, opened: asyncio.Future[Client]) -> None:
        try:
            async with open_client(self._settings) as client:
                opened.set_result(client)
                while self._asked.is_set():
                    self._asked.clear()
                    await asyncio.sleep(IDLE)
                self._client = None
        except Exception as error:
            self._client = None
            if not opened.done():
                opened.set_exception(error)


_DESKS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[object, Desk]] = WeakKeyDictionary()


def desk_of(settings: Settings) -> Desk:
    """The running loop's desk for a hub."""
    desks = _DESKS.setdefault(asyncio.get_running_loop(), {})
    key = settings.hub, settings.connection.get_secret_value() if settings.connection else None
    return desks.setdefault(key, Desk(settings))


def _failed(answer: asyncio.Future[Any]) -> bool:
    return answer.cancelled() or answer.exception() is not None
