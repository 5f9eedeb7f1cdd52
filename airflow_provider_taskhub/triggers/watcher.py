"""All waits of one hub in one event loop: a constant number of requests per interval, however many wait.

Per interval: the whole (small) table of completions, :data:`IN_TURN` of the waiting instances with their activities in
turn, and now and then the members. An instance's row is read once when its wait begins, and once when it has ended.

Owns polling, back-off and the client; knows nothing of Airflow. Never ends a wait by an error: it reports trouble and
goes on. Watchers are kept per running loop, since ``dag.test()`` and tests run every trigger in a fresh one.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.concurrency import gather_bounded
from airflow_provider_taskhub.errors import StorageError
from airflow_provider_taskhub.hub.waiting.reasons import AWAITED
from airflow_provider_taskhub.retries import Retries
from airflow_provider_taskhub.supervision import Supervisor, first, owned

if TYPE_CHECKING:
    from airflow_provider_taskhub.client import Client
    from airflow_provider_taskhub.hub.model import ActivityRecord, InstanceState, Member
    from airflow_provider_taskhub.hub.waiting.reasons import Why
    from airflow_provider_taskhub.triggers.sweep import Sweep

Connect = Callable[[], "AbstractAsyncContextManager[Client]"]

IN_TURN = 4
"""Waiting instances read again per interval, so that ends without a hint (.NET workers, lost hints) are seen too."""
AT_ONCE = 100
"""New waits read per interval, and hints served per interval: bounds a tick."""
_PARALLEL = 8
MEMBERS_EVERY = timedelta(seconds=5)
IDLE = timedelta(seconds=10)
"""A watcher without waits closes its client after this, unless its sweep has rows left."""
MOST_FAILURES = 100
"""A watcher without waits gives up after so many failures in a row, about 50 minutes: its hub may be gone for good."""
_RECONNECT = Retries(after=(Exception,), first=1.0, longest=30.0)
"""Pauses of the loop that reads the hub. The loop is not ``retries.retry``: a read that works begins the count anew."""


@dataclass(slots=True, eq=False)
class WatchedInstance:
    """What a waiter knows so far; the newest replaces what was not looked at, so nothing piles up.

    :param looked: whether the instance row was read at least once; ``state`` None then means that there is none.
    :param whys: why the instance does not go on, the strongest reason first.
    :param trouble: why the hub, or this instance in it, cannot be read now; None when it can.
    :param alone: the trouble is this instance's: the hub can be read.
    """

    instance_id: str
    looked: bool = False
    state: InstanceState | None = None
    records: tuple[ActivityRecord, ...] = ()
    members: tuple[Member, ...] | None = None
    whys: tuple[Why, ...] = ()
    trouble: Exception | None = None
    alone: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Watcher:
    """Polls one hub for everyone who waits for it in this loop.

    :param connect: opens a client; called again after trouble. :param interval: between two polls.
    :param sweep: runs beside the polls; None outside a triggerer, where Airflow cannot be asked for tasks.
    """

    def __init__(self, connect: Connect, *, interval: timedelta, clock: Clock, sweep: Sweep | None = None) -> None:
        self._connect = connect
        self._sweep = sweep
        self._interval = interval.total_seconds()
        self._clock = clock
        self._waits: dict[str, list[WatchedInstance]] = {}
        self._turn: deque[str] = deque()
        self._new: deque[str] = deque()
        self._members: tuple[Member, ...] | None = None
        self._members_read = float("-inf")
        self._wake = asyncio.Event()
        self._client: Client | None = None
        self._supervisor = Supervisor(clock)
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def waiting(self, instance_id: str) -> Iterator[WatchedInstance]:
        """Wait for an instance for the length of the block."""
        wait = WatchedInstance(instance_id=instance_id, members=self._members)
        if instance_id not in self._waits:
            self._turn.append(instance_id)
        self._waits.setdefault(instance_id, []).append(wait)
        self._new.append(instance_id)
        self._wake.set()
        if self._task is None or self._task.done():
            # an empty context: the watcher's logs and portals must not belong to the task that starts it
            self._task = self._supervisor.keep("watch", self._run, context=contextvars.Context())
        try:
            yield wait
        finally:
            self._leave(wait)

    async def ended(self, instance_id: str) -> InstanceState | None:
        """An instance that has ended, with its output; None when it has not, or cannot be read now.

        To be called inside the block of :meth:`waiting`, which keeps the client open.
        """
        try:
            state = await self._client.get(instance_id) if self._client is not None else None
        except Exception:  # no error ends a wait, a closed client neither: the caller has another way
            return None
        return state if state is not None and state.status.is_final else None

    @property
    def waits(self) -> int:
        return len(self._waits)

    def _leave(self, wait: WatchedInstance) -> None:
        others = self._waits[wait.instance_id]
        others.remove(wait)
        if not others:
            del self._waits[wait.instance_id]
            self._turn.remove(wait.instance_id)

    async def _run(self) -> None:
        failures = 0
        while self._needed(failures):  # with no await before the end, so a new wait finds either this task or none
            try:
                async with self._connect() as client, client.watches.attending("triggerer"), self._sweeping(client):
                    self._client = client
                    while await self._poll(client):
                        failures = 0
                    self._client = None
            except Exception as error:  # whatever it is, waits go on
                failures += 1
                self._report(error, self._everyone())
                await self._clock.sleep(_RECONNECT.pause(failures, error))

    def _needed(self, failures: int) -> bool:
        """Somebody waits, or the sweep has rows left: a task that has waited here may have been deleted since."""
        return bool(self._waits) or (self._sweep is not None and self._sweep.left and failures < MOST_FAILURES)

    @asynccontextmanager
    async def _sweeping(self, client: Client) -> AsyncIterator[None]:
        """The sweep runs for the length of the block: it may wait for Airflow, which must not hold up the polls."""
        if self._sweep is None:
            yield
            return
        async with owned() as start:
            start(self._sweep.run(client), name="sweep")
            yield

    async def _poll(self, client: Client) -> bool:
        """One interval; False when nobody has waited for a while and the sweep has no rows left."""
        self._wake.clear()
        await self._read(client)
        await self._pause(self._interval)
        while not self._waits:
            with suppress(TimeoutError):
                async with asyncio.timeout(IDLE.total_seconds()):
                    await self._wake.wait()
            self._wake.clear()  # it may be of a wait that has ended since
            if not self._needed(failures=0):
                return False
        return True

    async def _pause(self, seconds: float) -> None:
        """Until the next poll; a new wait cuts it short, so that a task already done is not kept waiting."""
        await first(self._clock.sleep(seconds), self._wake.wait())

    async def _read(self, client: Client) -> None:
        hinted = [instance for instance in await client.watches.completions() if instance in self._waits][:AT_ONCE]
        await self._read_members(client)
        fresh = [self._new.popleft() for _ in range(min(len(self._new), AT_ONCE))]
        if self._new:
            self._wake.set()  # the rest of the new ones: at once, too
        try:
            await self._look(client, dict.fromkeys([*hinted, *fresh, *self._next_in_turn()]))
        except BaseException:
            self._new.extend(fresh)
            raise
        if hinted:
            await client.watches.forget(hinted)

    def _next_in_turn(self) -> list[str]:
        turn = [self._turn[index] for index in range(min(IN_TURN, len(self._turn)))]
        self._turn.rotate(-len(turn))
        return turn

    async def _look(self, client: Client, instances: dict[str, None]) -> None:
        async def one(instance_id: str) -> None:
            try:
                state = await client.get(instance_id, payloads=False)
                records = await client.instance(instance_id).activities() if state is not None else ()
            except StorageError:
                raise  # the hub cannot be read
            except Exception as error:  # only this instance cannot be read
                self._report(error, self._waits.get(instance_id, ()), alone=True)
            else:
                self._tell(instance_id, state, records)

        await gather_bounded(one, [instance for instance in instances if instance in self._waits], limit=_PARALLEL)
        looked = self._open([instance_id for instance_id in instances if instance_id in self._waits])
        if looked:
            whys = await client.admin.waiting_of(looked, members=self._members, sentinels=len(looked))
            for state in looked:
                self._explain(state.instance_id, whys.get(state.instance_id, ()))

    async def _read_members(self, client: Client) -> None:
        now = self._clock.monotonic()
        if now - self._members_read < MEMBERS_EVERY.total_seconds():
            return
        self._members = await client.admin.workers()
        self._members_read = now
        for wait in self._everyone():
            wait.members = self._members
            wait.changed.set()
        await self._explain_all(client)

    async def _explain_all(self, client: Client) -> None:
        """What workers, partitions and quarantine tell of every wait, without a request for each.

        What an instance awaits is asked when its turn comes, and is believed until then.
        """
        states = self._open(self._waits)
        if not states:
            return
        whys = await client.admin.waiting_of(states, members=self._members, sentinels=0)
        for state in states:
            found = whys.get(state.instance_id, ())
            kept = [why for wait in self._waits[state.instance_id][:1] for why in wait.whys if why.reason in AWAITED]
            if found or not kept:
                self._explain(state.instance_id, found)

    def _open(self, instances: Iterable[str]) -> list[InstanceState]:
        """Rows of waiting instances, as last read, that have not ended."""
        found = [wait.state for instance_id in instances for wait in self._waits[instance_id][:1]]
        return [state for state in found if state is not None and not state.status.is_final]

    def _explain(self, instance_id: str, whys: tuple[Why, ...]) -> None:
        for wait in self._waits.get(instance_id, ()):
            if wait.whys != whys:
                wait.whys = whys
                wait.changed.set()

    def _tell(self, instance_id: str, state: InstanceState | None, records: tuple[ActivityRecord, ...]) -> None:
        over = state is None or state.status.is_final
        for wait in self._waits.get(instance_id, ()):
            wait.whys = () if over else wait.whys
            wait.looked, wait.state, wait.records, wait.trouble = True, state, records, None
            wait.changed.set()

    def _report(self, error: Exception, waits: Iterable[WatchedInstance], *, alone: bool = False) -> None:
        for wait in waits:
            wait.trouble, wait.alone = error, alone
            wait.changed.set()

    def _everyone(self) -> Iterator[WatchedInstance]:
        for waits in self._waits.values():
            yield from waits


_WATCHERS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[object, Watcher]] = WeakKeyDictionary()


def watcher_of(
    key: object, connect: Connect, *, interval: timedelta, clock: Clock, sweep: Callable[[], Sweep | None]
) -> Watcher:
    """The running loop's watcher of a hub.

    :param key: what makes two hubs the same; may hold secrets, it is kept in memory only and never shown.
    :param sweep: makes the sweep of a new watcher.
    """
    watchers = _WATCHERS.setdefault(asyncio.get_running_loop(), {})
    if key not in watchers:
        watchers[key] = Watcher(connect, interval=interval, clock=clock, sweep=sweep())
    return watchers[key]


async def news(wait: WatchedInstance, *, patience: float) -> None:
    """Return when something about the wait is new, at the latest after ``patience`` seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(patience):
            await wait.changed.wait()
    wait.changed.clear()
