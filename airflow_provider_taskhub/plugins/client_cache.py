"""Keeps the page's hub clients open between requests: one for each hub and event loop.

A client is closed after some time without requests. A client that stays open can compare several readings of the
hub's list of workers, so it knows which workers are alive (``Member.alive``). Also, a page that refreshes every two
seconds does not make a new TLS connection each time.

The cache also keeps answers for a short time. Old answers are deleted, because histories and logs may contain payloads
and are large.

The cache keeps the index of the hub's instances (:mod:`.index`) much longer than the client. So a user who comes back
does not wait until a large hub is read again.
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
from airflow_provider_taskhub.plugins.index import InstanceIndex, row_of
from airflow_provider_taskhub.supervision import Supervisor
from airflow_provider_taskhub.triggers.task_log import of_execution

if TYPE_CHECKING:
    from airflow_provider_taskhub.client import Client
    from airflow_provider_taskhub.hub.model import InstanceState
    from airflow_provider_taskhub.settings import Settings

T = TypeVar("T")

IDLE = 60.0
"""Seconds after the last request after which a client is closed."""
KEPT = 3600.0
"""Seconds after the last client was closed after which the index is forgotten, so that it does not take memory."""
FRESH = 1.5
"""Seconds for which an answer is used for all requests with the same key, so that many open pages cost no more than
one. An answer that took longer to get is used for as long as it took, so that a large hub is not scanned without a
pause."""
MAX_FRESH = 30.0
"""The longest time, in seconds, for which an answer is used after its arrival, so that the page is not too old."""
MOST_BYTES = 64 * 1024 * 1024
"""The largest estimated size of all kept answers together, in bytes. If they are larger, the oldest answers are deleted
before their time."""
MOST_TALLIES = 2_000
"""The largest number of ended instances whose activity counts are kept. The counts that were used least recently are
deleted first."""
PATIENCE = 0.15
"""Seconds for which the list waits for the newest changes. If they take longer, the list shows what is known. The
instances on the page are read each time by their ids, so they are up to date."""
LATER = 0.5
"""Seconds after which the changes of a large hub are asked for, so that the question does not slow down the request for
the list."""
_VALUE = 100
"""Estimated bytes that a text, a list, a mapping or an object takes in memory, in addition to its content."""


class ClientCache:
    """Keeps one client of a hub open while requests come.

    It also keeps the hub's answers for a short time, and the activity counts of ended instances for longer.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client: asyncio.Future[Client] | None = None
        self._supervisor = Supervisor()
        self._asked = asyncio.Event()
        self._answers: dict[object, _Answer] = {}
        self._tallies: OrderedDict[object, Mapping[str, int]] = OrderedDict()
        self.index = InstanceIndex()
        self._forgetting: asyncio.TimerHandle | None = None

    async def client(self) -> Client:
        """Return the open client; open a client if there is none.

        :raises TaskHubError: if no client can be opened. The next call tries again.
        """
        self._asked.set()
        if self._client is None:
            loop = asyncio.get_running_loop()
            self._client = loop.create_future()
            self.index.open()
            if self._forgetting is not None:
                self._forgetting.cancel()
            # an empty context, because the client stays open longer than the request whose context this would be
            self._supervisor.spawn(self._keep(self._client), name="client", context=contextvars.Context())
        return await asyncio.shield(self._client)

    async def once(self, key: object, ask: Callable[[Client], Awaitable[T]]) -> T:
        """Return a recent answer with this key, or call ``ask`` to get a new one.

        Callers that need the same answer at the same time share one call.

        :param key: identifies the request.
        :param ask: sends the request with the open client.
        """
        found: T = await asyncio.shield(self._asked_once(key, ask))
        return found

    async def instances(self, *, patience: float = PATIENCE) -> InstanceIndex:
        """Return the index of the hub's instances, with at least its first page, and with changes that come in time.

        If the last question for changes took longer than the patience, this call does not wait. The next question then
        begins :data:`LATER` seconds after this call.

        :param patience: the longest time to wait for the newest changes, in seconds. They are read in any case.
        :raises TaskHubError: if the hub does not answer.
        """
        index = self.index
        if index.took > patience:
            asyncio.get_running_loop().call_later(LATER, self._asked_once, "index", index.follow)
            return index
        question = self._asked_once("index", index.follow)
        first = self._supervisor.spawn(index.begun.wait(), name="first page", awaited=True)
        try:
            await asyncio.wait((question, first), return_when=asyncio.FIRST_COMPLETED)
        finally:
            first.cancel()
        if index.filled and not question.done():
            await asyncio.wait((question,), timeout=patience)
        if question.done():
            question.result()
        return index

    async def row(self, instance_id: str) -> InstanceState | None:
        """Return an instance without its large payloads, and tell the index; None: there is no such instance.

        :param instance_id: the instance's id.
        """

        async def read(client: Client) -> InstanceState | None:
            state = await client.get(instance_id, payloads=False)
            if state is None:
                self.index.drop(instance_id)
            else:
                self.index.put((row_of(state),))
            return state

        return await self.once(("listed", instance_id), read)

    async def tally(self, state: InstanceState) -> Mapping[str, int]:
        """Return how many activities of an instance's current generation are in each state.

        The numbers of an ended instance are read only once, because they do not change any more.
        """
        key = state.instance_id, state.execution_id, state.etag
        if key in self._tallies:
            self._tallies.move_to_end(key)
            return self._tallies[key]
        every = await self.once(
            ("activities", state.instance_id),
            lambda client: client.instance(state.instance_id).shown_activities(),
        )
        records = of_execution(state, every)
        tally = json_views.tally(records)
        if state.status.is_final and all(record.ended is not None for record in records):
            self._tallies[key] = tally
            while len(self._tallies) > MOST_TALLIES:
                self._tallies.popitem(last=False)
        return tally

    def _asked_once(self, key: object, ask: Callable[[Client], Awaitable[T]]) -> asyncio.Future[T]:
        answer = self._answers.get(key)
        if answer is None or not answer.serves():
            answer = self._answers[key] = _Answer(self._supervisor.spawn(self._ask(ask), name="ask", awaited=True))
            answer.future.add_done_callback(partial(self._answered, key, answer))
        return answer.future

    def changed(self) -> None:
        """Forget all answers, because a user has just changed something in the hub and wants to see it."""
        self._answers.clear()

    @property
    def kept(self) -> int:
        """The estimated size of all answers in memory, in bytes."""
        return sum(answer.size for answer in self._answers.values())

    def _answered(self, key: object, answer: _Answer, _: object) -> None:
        """Schedule the deletion of the new answer. If all answers together are too large, delete the oldest now."""
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
                self._left()
        except Exception as error:
            if opened.done():
                raise
            opened.set_exception(error)
        finally:  # forget the closed client in every case, so that the next request opens a new one
            if self._client is opened:
                self._left()
            opened.cancel()

    def _left(self) -> None:
        self._client = None
        self.index.close()
        self._forgetting = asyncio.get_running_loop().call_later(KEPT, self._forget_index)

    def _forget_index(self) -> None:
        self.index = InstanceIndex()


_CACHES: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[object, ClientCache]] = WeakKeyDictionary()


def client_cache_of(settings: Settings) -> ClientCache:
    """Return the cache of a hub for the running event loop. :param settings: the hub's name and storage."""
    caches = _CACHES.setdefault(asyncio.get_running_loop(), {})
    key = settings.hub, settings.secret
    return caches.setdefault(key, ClientCache(settings))


class _Answer:
    """A request to the hub, and its answer after the answer has arrived.

    :ivar future: the answer.
    :ivar asked: the loop's time of the request, in seconds.
    :ivar size: the estimated size of the answer, in bytes.
    """

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self.future = future
        self.loop = asyncio.get_running_loop()
        self.asked = self.loop.time()
        self.size = 0
        self._until = self.asked + FRESH

    def arrived(self) -> None:
        """Set how long the answer may be used: as long as it took to get, but at most :data:`MAX_FRESH` seconds."""
        now = self.loop.time()
        self._until = max(self._until, now + min(now - self.asked, MAX_FRESH))

    def left(self) -> float:
        """Return for how many seconds the answer may still be used."""
        return max(0.0, self._until - self.loop.time())

    def serves(self) -> bool:
        """Return whether a new request may use this answer, or wait for it."""
        return not self.future.done() or (self.left() > 0 and not self.failed())

    def failed(self) -> bool:
        return self.future.cancelled() or self.future.exception() is not None


def size_of(value: Any) -> int:
    """Return the estimated size of an answer in bytes: the length of its texts, and :data:`_VALUE` for each value.

    Numbers, booleans and None count 0. One character counts as one byte.
    """
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
"""Field names by class, so that the fields of a class are looked up only once."""
