"""Gives all triggers of one event loop the same client of a hub, so that many triggers cost one connection.

Some hundred tasks may start at the same moment. If each of them opened a client, the triggerer would make as many TLS
connections, and would block its event loop meanwhile. The client closes when nobody has used it for :data:`IDLE`.

Rejected: the client of the watcher. The watcher opens its client when the first wait begins, so after the first start,
and a task that does not wait for its instance needs no watcher.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from airflow_provider_taskhub.errors import StorageError, TaskHubError
from airflow_provider_taskhub.hooks.taskhub import open_client
from airflow_provider_taskhub.supervision import Supervisor

if TYPE_CHECKING:
    from airflow_provider_taskhub.client import Client
    from airflow_provider_taskhub.settings import Settings

IDLE = timedelta(seconds=3)
"""Time after the last use after which the client is closed."""
LEFT = timedelta(seconds=5)
"""Time that the users of the client get to finish when the process ends."""
STARTS_AT_ONCE = 16
"""The largest number of instances of one hub that are started at the same time. The other starts wait for their turn,
so that a thousand starts neither delay the waits of the same triggerer nor reach the request limits of the storage."""


@asynccontextmanager
async def shared_client(settings: Settings, *, create: bool = False) -> AsyncIterator[Client]:
    """Use the open client of a hub during the ``async with`` block, and open it first if there is none.

    If the block raises an error that is not about the request itself, the next user gets a new client. The client then
    stays open until its other users have ended.

    :param settings: the hub's name and storage.
    :param create: for a client that must be opened: see :func:`.open_client`.
    :raises TaskHubError: if no client can be opened. The next use tries again.
    """
    async with _hub(settings).client(settings, create=create).use() as client:
        yield client


@asynccontextmanager
async def starting_client(settings: Settings, *, create: bool = False) -> AsyncIterator[Client]:
    """Do the same as :func:`shared_client`, in not more than :data:`STARTS_AT_ONCE` blocks at the same time."""
    async with _hub(settings).turns, shared_client(settings, create=create) as client:
        yield client


class _Hub:
    """The triggers' access to one hub. :ivar turns: limits the starts."""

    def __init__(self) -> None:
        self.turns = asyncio.Semaphore(STARTS_AT_ONCE)
        self._client: _SharedClient | None = None

    def client(self, settings: Settings, *, create: bool) -> _SharedClient:
        """Return the client to use now. Begin to use it without an ``await`` in between, or it may close."""
        if self._client is None or self._client.over:
            self._client = _SharedClient(settings, create=create)
        return self._client


class _SharedClient:
    """One client of a hub, from its opening to its end.

    :ivar over: True: the client is broken or closed, so the next user needs another.
    """

    def __init__(self, settings: Settings, *, create: bool) -> None:
        self.over = False
        self._settings, self._create = settings, create
        self._users = 0
        self._changed = asyncio.Event()
        self._opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        # an empty context: the client must not inherit context variables (such as the log) of one Airflow task
        _KEEPERS.spawn(self._keep(), name="client of the triggers", context=contextvars.Context())

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Client]:
        self._users += 1
        try:
            yield await asyncio.shield(self._opened)
        except Exception as error:
            if isinstance(error, StorageError) or not isinstance(error, TaskHubError):
                self.over = True
            raise
        finally:
            self._users -= 1
            self._changed.set()

    async def _keep(self) -> None:
        """Open the client, and close it after its last use. The same task does both, as some libraries require."""
        try:
            async with open_client(self._settings, create=self._create) as client:
                self._opened.set_result(client)
                try:
                    await self._unused()
                finally:
                    self.over = True
                    await self._left()
        except Exception as error:
            if self._opened.done():
                raise
            self._opened.set_exception(error)
            self._opened.exception()  # nobody may wait for it any more, and Python would log that
        finally:
            self.over = True
            self._opened.cancel()

    async def _unused(self) -> None:
        """Wait until nobody needs the client."""
        while self._users or not self.over:
            self._changed.clear()
            try:
                async with asyncio.timeout(None if self._users else IDLE.total_seconds()):
                    await self._changed.wait()
            except TimeoutError:
                if not self._users:  # somebody may have begun to use it at the same moment
                    return

    async def _left(self) -> None:
        """Wait for the last users. There are some only if this task is cancelled, when the process ends."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LEFT.total_seconds()):
                while self._users:
                    self._changed.clear()
                    await self._changed.wait()


_KEEPERS = Supervisor()
_HUBS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[object, _Hub]] = WeakKeyDictionary()


def _hub(settings: Settings) -> _Hub:
    hubs = _HUBS.setdefault(asyncio.get_running_loop(), {})
    return hubs.setdefault((settings.hub, settings.secret), _Hub())
