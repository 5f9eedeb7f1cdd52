"""Reads one hub for all triggers of one event loop, with a fixed number of requests per interval for many waits.

In each interval the watcher reads the few completion hints (rows that say "this instance may have ended"), if sensors
wait also the change hints ("this instance may have changed"), and :data:`IN_TURN` of the awaited instances with their
activities, in rotation. Every few seconds it reads the list of workers. It also reads an instance's row when the wait
begins and when there is a hint for it. For the tasks that follow the output of running activities, it reads which logs
have grown (:mod:`.output_reader`).

The watcher holds the hub's client, polls, and reconnects after errors. It contains no Airflow code. An error does not
stop the watcher while a trigger waits: the watcher passes the error to the waiting triggers and tries again. Each
trigger decides for itself how long it accepts an error (``unusable_time``). Each event loop has its own watchers,
because ``dag.test()`` and tests run every trigger in a new loop.

Beside its polls a watcher runs the sweep, which terminates instances that no Airflow task waits for any more. The sweep
is needed as long as the hub has watch rows; each says which Airflow task waits for which instance.
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
from airflow_provider_taskhub.triggers.awaited_changes import AwaitedChanges
from airflow_provider_taskhub.triggers.output_reader import OutputReader

if TYPE_CHECKING:
    from airflow_provider_taskhub.client import Client
    from airflow_provider_taskhub.hub.model import ActivityRecord, InstanceState, Member
    from airflow_provider_taskhub.hub.waiting.reasons import Why
    from airflow_provider_taskhub.triggers.attempt_output import TaskOutput
    from airflow_provider_taskhub.triggers.sweep import Sweep

Connect = Callable[[], "AbstractAsyncContextManager[Client]"]

IN_TURN = 4
"""The number of awaited instances that are read in each interval even without a hint. Thus the watcher also finds
instances that ended or changed without a hint, because a .NET worker ran them or because the hint was lost."""
AT_ONCE = 100
"""The largest number of new waits, and of hints of each kind, that one poll handles. If there are more, the next poll
follows at once. This limits the time until a waiting trigger learns about an error."""
_PARALLEL = 8
SOON = 0.3
"""Seconds after which the watcher polls again when a wait has begun. A short instance ends in this time, and Airflow's
triggerer passes on what its triggers have found once a second."""
MEMBERS_EVERY = timedelta(seconds=5)
LATELY = timedelta(minutes=10)
"""For how long the watcher remembers a worker that is not alive any more: it may be restarting."""
IDLE = timedelta(seconds=10)
"""Time after which a watcher without waits closes its client, unless its sweep has watch rows left."""
MOST_FAILURES = 100
"""After this many failed readings in a row, which take about 50 minutes, a watcher stops if no trigger waits for one of
its instances: the hub may be gone."""
_RECONNECT = Retries(after=(Exception,), first=1.0, longest=30.0)
"""Pauses after failures of the loop that reads the hub. The loop does not use ``retries.retry``, because a successful
reading must reset the number of failures."""


@dataclass(slots=True, eq=False)
class WatchedInstance:
    """The newest information about an instance for one trigger that waits for it. Newer values replace older ones.

    :param instance_id: the id of the awaited instance.
    :param looked: True: the instance row was read at least once. A ``state`` of None then means that there is no row.
    :param state: the instance's state; None: no row, or not read yet.
    :param records: the instance's activity records.
    :param members: the hub's workers; None: not read yet.
    :param gone: workers that were alive less than :data:`LATELY` ago, and are not alive any more.
    :param whys: why the instance makes no progress, the most important reason first.
    :param trouble: the error of the last reading of the hub or of this instance. It stays until this instance was read
        again. None: there was no error, or a later reading of this instance succeeded.
    :param alone: True: only this instance cannot be read. False: the error concerns the hub.
    :param output: the output of the instance's running attempts; None: the task does not follow it.
    :param changed: set when one of the other fields has changed.
    """

    instance_id: str
    looked: bool = False
    state: InstanceState | None = None
    records: tuple[ActivityRecord, ...] = ()
    members: tuple[Member, ...] | None = None
    gone: tuple[Member, ...] = ()
    whys: tuple[Why, ...] = ()
    trouble: Exception | None = None
    alone: bool = False
    output: TaskOutput | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Watcher:
    """Polls one hub for all triggers of one event loop that wait for an instance of this hub.

    :param connect: opens a client. It is called again after an error, and for a new wait after the client was closed.
    :param interval: the pause between two polls. A new wait ends the pause early.
    :param clock: the source of the time.
    :param sweep: the sweep, which runs at the same time as the polls; None outside a triggerer, where Airflow does not
        answer requests about tasks.
    """

    def __init__(self, connect: Connect, *, interval: timedelta, clock: Clock, sweep: Sweep | None = None) -> None:
        self._connect = connect
        self._sweep = sweep
        self._interval = interval.total_seconds()
        self._clock = clock
        self._waits: dict[str, list[WatchedInstance]] = {}
        self._turn: deque[str] = deque()
        self._new: deque[str] = deque()
        self._changes = AwaitedChanges(clock)
        self._members: tuple[Member, ...] | None = None
        self._alive: dict[str, tuple[float, Member]] = {}  # when each worker was last alive
        self._gone: tuple[Member, ...] = ()
        self._members_read = float("-inf")
        self._wake = asyncio.Event()
        self._client: Client | None = None
        self._output = OutputReader(clock)
        self._supervisor = Supervisor(clock)
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def waiting(
        self, instance_id: str, *, changes: bool = False, output: TaskOutput | None = None
    ) -> Iterator[WatchedInstance]:
        """Read an instance regularly while the caller's ``with`` block runs.

        Yields an object that always has the newest information about the instance. :func:`change` waits for changes.

        :param instance_id: the id of the instance.
        :param changes: True: the caller waits for more than the end of an instance that it has started itself, so the
            workers must write change hints. False: the completion hint is enough.
        :param output: gets the output of the instance's running attempts; None: the output is not read.
        """
        wait = WatchedInstance(instance_id=instance_id, members=self._members, gone=self._gone, output=output)
        if instance_id not in self._waits:
            self._turn.append(instance_id)
        self._waits.setdefault(instance_id, []).append(wait)
        self._new.append(instance_id)
        if changes:
            self._changes.add(instance_id)
        self._wake.set()
        if self._task is None or self._task.done():
            # an empty context: the watcher must not inherit context variables (such as the log) of one Airflow task
            self._task = self._supervisor.keep("watch", self._run, context=contextvars.Context())
        try:
            yield wait
        finally:
            self._leave(wait)
            if changes:
                self._changes.remove(instance_id)

    async def ended(self, instance_id: str) -> InstanceState | None:
        """Return the state of an instance that has ended, with its output.

        None: the instance has not ended, or cannot be read now. Call this method inside the block of :meth:`waiting`,
        which keeps the client open.
        """
        try:
            state = await self._client.get(instance_id) if self._client is not None else None
        except Exception:  # an error must not end the wait: a worker can end the task instead
            return None
        return state if state is not None and state.status.is_final else None

    async def absent(self, instance_id: str) -> bool:
        """Return whether the hub has no such instance. False also if the hub cannot be read now.

        Call this method inside the block of :meth:`waiting`, which keeps the client open.
        """
        try:
            return self._client is not None and await self._client.get(instance_id, payloads=False) is None
        except Exception:  # an error must not end the wait: a worker can end the task instead
            return False

    async def failed_log(self, instance_id: str) -> tuple[str, list[str]] | None:
        """Return the log of the failed attempt as :func:`.outcome.failed_log` does; None also if it cannot be read.

        Call this method inside the block of :meth:`waiting`, which keeps the client open.
        """
        from airflow_provider_taskhub.triggers.outcome import failed_log

        try:
            return await failed_log(self._client, instance_id) if self._client is not None else None
        except Exception:  # the log helps people, and its absence must not change how the task ends
            return None

    def _leave(self, wait: WatchedInstance) -> None:
        others = self._waits[wait.instance_id]
        others.remove(wait)
        if not others:
            del self._waits[wait.instance_id]
            self._turn.remove(wait.instance_id)

    async def _run(self) -> None:
        failures = 0
        # There must be no await between this check and the end of this task, so that a new wait finds either a task
        # that continues or a task that has ended.
        while self._needed(failures):
            try:
                async with self._connect() as client, client.watches.attending("triggerer"), self._sweeping(client):
                    self._client = client
                    self._changes.forget_published()
                    while await self._poll(client):
                        failures = 0
                    self._client = None
            except Exception as error:  # an error must not end the waits: connect again
                failures += 1
                self._report(error, self._everyone())
                await self._clock.sleep(_RECONNECT.pause(failures, error))

    def _needed(self, failures: int) -> bool:
        """Return whether a trigger waits, or the sweep has watch rows left.

        The task of a watch row may have been deleted after its wait in this process, so the sweep must continue.
        """
        return bool(self._waits) or (self._sweep is not None and self._sweep.left and failures < MOST_FAILURES)

    @asynccontextmanager
    async def _sweeping(self, client: Client) -> AsyncIterator[None]:
        """Run the sweep as a separate task during the ``with`` block, so that a slow Airflow does not delay polls."""
        if self._sweep is None:
            yield
            return
        async with owned() as start:
            start(self._sweep.run(client), name="sweep")
            yield

    async def _poll(self, client: Client) -> bool:
        """Poll once and pause. Return False if no trigger has waited for :data:`IDLE` and no watch row is left."""
        self._wake.clear()
        new = await self._read(client)
        await self._pause(min(SOON, self._interval) if new else self._interval)
        while not self._waits:
            with suppress(TimeoutError):
                async with asyncio.timeout(IDLE.total_seconds()):
                    await self._wake.wait()
            self._wake.clear()  # the wait that set the event may have ended already
            if not self._needed(failures=0):
                return False
        return True

    async def _pause(self, seconds: float) -> None:
        """Pause until the next poll. A new wait ends the pause, so that an ended instance is reported at once."""
        await first(self._clock.sleep(seconds), self._wake.wait())

    async def _read(self, client: Client) -> bool:
        """Read the hub once, and return whether a wait was new."""
        hinted = [instance for instance in await client.watches.completions() if instance in self._waits]
        hints = await self._changes.read(client)
        await self._read_members(client)
        self._new.extend(self._changes.unsure())
        fresh = [self._new.popleft() for _ in range(min(len(self._new), AT_ONCE))]
        if self._new or max(len(hinted), len(hints)) > AT_ONCE:
            self._wake.set()  # read the others without a pause
        hinted, hints = hinted[:AT_ONCE], dict(list(hints.items())[:AT_ONCE])
        try:
            await self._output.read(client, list(self._everyone()), ended=hinted)
            await self._read_instances(client, dict.fromkeys([*hinted, *hints, *fresh, *self._next_in_turn()]))
        except BaseException:
            self._new.extend(fresh)
            raise
        if hinted:
            await client.watches.forget(hinted)
        if hints:
            await client.watches.forget_changes(hints)
        return bool(fresh)

    def _next_in_turn(self) -> list[str]:
        turn = [self._turn[index] for index in range(min(IN_TURN, len(self._turn)))]
        self._turn.rotate(-len(turn))
        return turn

    async def _read_instances(self, client: Client, instances: dict[str, None]) -> None:
        async def one(instance_id: str) -> None:
            try:
                state = await client.get(instance_id, payloads=False)
                records = await client.instance(instance_id).shown_activities() if state is not None else ()
            except StorageError:
                raise  # the whole hub cannot be read, not only this instance
            except Exception as error:  # only this instance cannot be read
                self._report(error, self._waits.get(instance_id, ()), alone=True)
            else:
                self._update(instance_id, state, records)

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
        self._alive |= {member.worker: (now, member) for member in self._members if member.alive}
        self._alive = {name: one for name, one in self._alive.items() if now - one[0] < LATELY.total_seconds()}
        self._gone = tuple(member for last, member in self._alive.values() if last < now)
        for wait in self._everyone():
            wait.members, wait.gone = self._members, self._gone
            wait.changed.set()
        await self._explain_all(client)

    async def _explain_all(self, client: Client) -> None:
        """Find out why the instances make no progress, without a request for each instance.

        The sources are the rows that were already read, the workers, the partitions and the quarantine (the table of
        messages that could not be processed). What an instance awaits, for example an activity, is not in these
        sources: :meth:`_read_instances` reads it for a few instances in each poll. It stays until this method finds
        another reason, or until the instance is read again.
        """
        states = self._open(self._waits)
        if not states:
            return
        whys = await client.admin.waiting_of(states, members=self._members, sentinels=0)
        for state in states:
            found = whys.get(state.instance_id, ())
            kept = [
                why for wait in self._waits.get(state.instance_id, ())[:1] for why in wait.whys if why.reason in AWAITED
            ]
            if found or not kept:
                self._explain(state.instance_id, found)

    def _open(self, instances: Iterable[str]) -> list[InstanceState]:
        """Return the last read states of those instances that had not ended."""
        found = [wait.state for instance_id in instances for wait in self._waits[instance_id][:1]]
        return [state for state in found if state is not None and not state.status.is_final]

    def _explain(self, instance_id: str, whys: tuple[Why, ...]) -> None:
        for wait in self._waits.get(instance_id, ()):
            before, wait.whys = wait.whys, whys
            if before != whys:
                wait.changed.set()

    def _update(self, instance_id: str, state: InstanceState | None, records: tuple[ActivityRecord, ...]) -> None:
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
    """Return the watcher of a hub for the running event loop, or create it.

    :param key: identifies the hub. The key may contain secrets: it stays in memory and is never shown.
    :param connect: opens a client for the hub.
    :param interval: the pause between two polls.
    :param clock: the source of the time.
    :param sweep: creates the sweep for a new watcher.
    """
    watchers = _WATCHERS.setdefault(asyncio.get_running_loop(), {})
    if key not in watchers:
        watchers[key] = Watcher(connect, interval=interval, clock=clock, sweep=sweep())
    return watchers[key]


async def change(wait: WatchedInstance, *, longest: float) -> None:
    """Wait until the information about an instance changes, but not longer than ``longest`` seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(longest):
            await wait.changed.wait()
    wait.changed.clear()
