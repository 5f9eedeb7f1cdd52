"""Clients that the page keeps open between requests: one per hub and event loop, closed when nobody asks for a while.

A client that stays sees who renews, so ``Member.alive`` means something; and a page that refreshes every two seconds
does not make a TLS connection every two seconds.

Answers are deleted when they are no longer fresh: histories and logs may hold payloads, and are large.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from airflow_provider_taskhub.hooks.taskhub import open_client
from airflow_provider_taskhub.plugins import json_views
from airflow_provider_taskhub.supervision import Supervisor
from airflow_provider_taskhub.triggers.task_log import of_execution

if TYPE_CHECKING:
    from airflow_provider_taskhub.client import Client
    from airflow_provider_taskhub.hub.model import InstanceState
    from airflow_provider_taskhub.settings import Settings

T = TypeVar("T")

IDLE = 60.0
"""Seconds after the last request."""
FRESH = 1.5
"""Seconds for which an answer serves everyone who asks the same: many open pages cost one. An answer that took long to
get serves for as long again, so that a large hub is not scanned without a pause."""
MAX_FRESH = 30.0
"""Seconds for which an answer serves after its arrival, at most: a user waits for news no longer."""
MOST_BYTES = 64 * 1024 * 1024
"""Size of all kept answers, about. Beyond it the oldest are deleted early."""
MOST_TALLIES = 2_000
"""Counts of ended instances that are kept; the least recently used are deleted first."""
_VALUE = 100
"""Bytes that a value takes in memory besides its texts, about."""


class ClientCache:
    """One hub's open client and its recent answers."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client: asyncio.Future[Client] | None = None
        self._supervisor = Supervisor()
        self._asked = asyncio.Event()
        self._answers: dict[object, _Answer] = {}
        self._tallies: OrderedDict[object, Mapping[str, int]] = OrderedDict()

    async def client(self) -> Client:
        """The open client; opened when there is none.

        :raises TaskHubError: why it cannot be opened; asked for again by the next call.
        """
        self._asked.set()
        if self._client is None:
            loop = asyncio.get_running_loop()
            self._client = loop.create_future()
            # of no request's context: it outlives them
            self._supervisor.spawn(self._keep(self._client), name="desk", context=contextvars.Context())
        return await asyncio.shield(self._client)

    async def once(self, key: object, ask: Callable[[Client], Awaitable[T]]) -> T:
        """The answer to a question that many ask at the same time; no older than :class:`_Answer` allows."""
        answer = self._answers.get(key)
        if answer is None or not answer.serves():
            answer = self._answers[key] = _Answer(self._supervisor.spawn(self._ask(ask), name="ask", awaited=True))
            answer.future.add_done_callback(partial(self._answered, key, answer))
        found: T = await asyncio.shield(answer.future)
        return found

    async def tally(self, state: InstanceState) -> Mapping[str, int]:
        """Counts of an instance's activities; read once for an instance that has ended, since they do not change."""
        key = state.instance_id, state.execution_id, state.etag
        if key in self._tallies:
            self._tallies.move_to_end(key)
            return self._tallies[key]
        every = await self.once(
            ("activities", state.instance_id), lambda client: client.instance(state.instance_id).activities()
        )
        records = of_execution(state, every)
        tally = json_views.tally(records)
        if state.status.is_final and all(record.ended is not None for record in records):
            self._tallies[key] = tally
            while len(self._tallies) > MOST_TALLIES:
                self._tallies.popitem(last=False)
        return tally

    @property
    def kept(self) -> int:
        """Bytes of the answers in memory, about."""
        return sum(answer.size for answer in self._answers.values())

    def _answered(self, key: object, answer: _Answer, _: object) -> None:
        """Delete the answer when it is no longer fresh, and the oldest answers now if all together are too large."""
        answer.arrived()
        answer.loop.call_later(answer.left(), self._forget, key, answer)
        if answer.failed():
            return
        answer.size = size_of(answer.future.result())
        kept = self.kept
        for old_key, old in sorted(self._answers.items(), key=lambda item: item[1].asked):
            if kept <= MOST_BYTES:
                return
            if old.future.done():
                kept -= old.size
                self._forget(old_key, old)

    def _forget(self, key: object, answer: _Answer) -> None:
        if self._answers.get(key) is answer:
            del self._answers[key]

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
            if opened.done():
                raise
            opened.set_exception(error)
        finally:  # however it ended: the next request opens another one
            if self._client is opened:
                self._client = None
            opened.cancel()


_DESKS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[object, ClientCache]] = WeakKeyDictionary()


def client_cache_of(settings: Settings) -> ClientCache:
    """The running loop's desk for a hub."""
    desks = _DESKS.setdefault(asyncio.get_running_loop(), {})
    key = settings.hub, settings.connection.get_secret_value() if settings.connection else None
    return desks.setdefault(key, ClientCache(settings))


class _Answer:
    """A request to the hub, and its answer once there is one. :ivar size: bytes, about."""

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self.future = future
        self.loop = asyncio.get_running_loop()
        self.asked = self.loop.time()
        self.size = 0
        self._until = self.asked + FRESH

    def arrived(self) -> None:
        """From now on the answer is fresh for as long as it took to get, within its bounds."""
        now = self.loop.time()
        self._until = max(self._until, now + min(now - self.asked, MAX_FRESH))

    def left(self) -> float:
        """Seconds for which the answer is still fresh."""
        return max(0.0, self._until - self.loop.time())

    def serves(self) -> bool:
        return not self.future.done() or (self.left() > 0 and not self.failed())

    def failed(self) -> bool:
        return self.future.cancelled() or self.future.exception() is not None


def size_of(value: Any) -> int:
    """Bytes that an answer of the client takes, about: its texts, and a little for every value."""
    if isinstance(value, str):
        return len(value) + _VALUE
    if isinstance(value, Mapping):
        return _VALUE + sum(size_of(one) for pair in value.items() for one in pair)
    if isinstance(value, (tuple, list)):
        return _VALUE + sum(map(size_of, value))
    if value is None or isinstance(value, (int, float)):
        return 0
    kind = type(value)
    if kind not in _NAMES:
        _NAMES[kind] = tuple(part.name for part in fields(value)) if is_dataclass(value) else ()
    return _VALUE + sum(size_of(getattr(value, name)) for name in _NAMES[kind])


_NAMES: dict[type, tuple[str, ...]] = {}
"""Fields by class, which are looked up for every value."""
