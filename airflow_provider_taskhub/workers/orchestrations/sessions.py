"""Sessions: the instances that a worker has in memory, their waiting messages, and their live orchestrators.

An instance has at most one open session in a worker and at most one running episode (one run of its orchestrator). Each
message for an instance is added to the waiting messages of its open session. A session belongs to one tenure (the time
in which this worker serves the partition) and is closed at the end of that tenure. A closed session exists until its
running episode has ended.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Generic, TypeVar

from airflow_provider_taskhub.engine.events import ExecutionStarted
from airflow_provider_taskhub.hub.model import Backlog, HeldInstance
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.hub.queues.reader import ControlReader

State = TypeVar("State")


@dataclass(slots=True, eq=False)
class Session(Generic[State]):
    """One instance in memory.

    :param reader: the queue reader of the partition, which has received the messages.
    :param messages: messages that wait for the next episode.
    :param waiting: messages that wait for another message of the instance. The next episode judges them again. They do
        not count in the reader's buffer, so there is room for the message that they wait for.
    :param active: True while an episode of the instance runs.
    :param queued: True while the session waits for its turn to run an episode.
    :param closed: True after this worker has stopped serving the partition; no new episode starts.
    :param state: the loaded instance that the worker keeps between episodes; None if nothing is loaded.
    :param size: the bytes that count for ``state`` against the memory limit.
    :param last_used: the monotonic second when its last episode ended.
    :param waiting_since: the monotonic second since which its messages wait for their turn or, while an episode runs,
        since which it runs; None: there is no message.
    """

    instance_id: str
    reader: ControlReader
    messages: list[Delivery] = field(default_factory=list)
    waiting: list[Delivery] = field(default_factory=list)
    active: bool = False
    queued: bool = False
    closed: bool = False
    state: State | None = None
    size: int = 0
    last_used: float = 0.0
    waiting_since: float | None = None


PASSED_OVER = 3
"""After this many turns of sessions with a loaded instance, a session without a loaded instance gets a turn."""
LONGEST_WAIT = 120.0
"""How long a message waits in memory for another message, in seconds. It is longer than the time after which a message
that a dead worker has received becomes visible again."""
MAX_BATCH = 400
"""The largest number of messages of one episode. A sentinel can list twice as many consumed messages."""


LONG = 30.0
"""An instance without progress for this many seconds is one that its worker has held for long."""
FORGET_FAILING = 600.0
"""After this many seconds without a further failure, the failure of an instance is forgotten: its messages are in
quarantine, or another worker has them."""
MOST_FAILING = 1000
"""Most instances whose failures are remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failing:
    """An instance whose episodes fail.

    :param since: the monotonic second since which it makes no progress.
    :param last: the monotonic second of its last failure.
    """

    reader: ControlReader
    since: float
    last: float
    cause: str


def _since(session: Session[State], now: float) -> float:
    return now if session.waiting_since is None else session.waiting_since


def next_batch(messages: Iterable[Delivery]) -> tuple[list[Delivery], list[Delivery]]:
    """Split waiting messages into the batch of the next episode and the rest.

    A start begins a new batch, which takes the messages behind the start too, up to the next start. Messages in front
    of the start join the batch if they name this start or no generation, because an event can overtake the start of its
    instance. If a message in front of the start names another generation, the messages in front of the start are a
    batch of their own. A batch has at most :data:`MAX_BATCH` messages.

    :param messages: the waiting messages. Those that are gone (``Delivery.gone``) are left out.
    :returns: the batch, and the messages that go on waiting.
    """
    ordered = _ordered([held for held in messages if not held.gone])
    starts = [index for index, held in enumerate(ordered) if isinstance(held.message.event, ExecutionStarted)]
    if not starts:
        return ordered[:MAX_BATCH], ordered[MAX_BATCH:]
    first = starts[0]
    before = ordered[:first]
    joining = {None, ordered[first].message.instance.execution_id}
    if any(held.message.instance.execution_id not in joining for held in before):
        return before[:MAX_BATCH], [*before[MAX_BATCH:], *ordered[first:]]
    end = starts[1] if len(starts) > 1 else len(ordered)
    batch = [ordered[first], *before, *ordered[first + 1 : end]]
    return batch[:MAX_BATCH], [*batch[MAX_BATCH:], *ordered[end:]]


def _ordered(messages: Sequence[Delivery]) -> list[Delivery]:
    """Return messages in the order in which they are processed.

    That is the order of the queue, except that the messages of one sender take their places among themselves in the
    order of their sequence numbers. Each process counts its own messages, so numbers of two processes say nothing about
    each other. A message that names no process, such as that of a .NET client, keeps its place in the queue.
    """
    ordered = sorted(messages, key=lambda held: (held.inserted, held.place))
    senders: dict[str, list[int]] = {}
    for index, held in enumerate(ordered):
        if process := held.process:
            senders.setdefault(process, []).append(index)
    for places in senders.values():
        sent = sorted((ordered[index] for index in places), key=lambda held: held.envelope.sequence_number)
        for index, held in zip(places, sent, strict=True):
            ordered[index] = held
    return ordered


class Sessions(Generic[State]):
    """All sessions of a worker.

    :param limit_bytes: the memory limit of all loaded instances, in bytes. Above the limit, idle instances are dropped,
        the least recently used first.
    :param extended: True if an orchestrator stays alive between its episodes.
    :param rested: called with a loaded instance whose orchestrator must be closed now while its history stays in
        memory. The next episode uses this history and does not read the stored one again: if another worker has changed
        the stored history, the commit fails.
    :param dropped: called with a loaded instance that is removed from memory.
    """

    def __init__(
        self,
        *,
        limit_bytes: int = 256 * 1024 * 1024,
        extended: bool = True,
        rested: Callable[[State], None] = lambda state: None,
        dropped: Callable[[State], None] = lambda state: None,
    ) -> None:
        self._extended, self._rested, self._dropped = extended, rested, dropped
        self._active: dict[str, Session[State]] = {}
        self._sessions: dict[str, Session[State]] = {}
        self._resting: OrderedDict[str, Session[State]] = OrderedDict()
        # The sessions in _histories were last used before all sessions in _resting.
        self._histories: OrderedDict[str, Session[State]] = OrderedDict()
        self._live: deque[Session[State]] = deque()
        self._new: deque[Session[State]] = deque()
        self._passed_over = 0
        self._ready = asyncio.Event()
        self._limit = limit_bytes
        self._bytes = 0
        self._forgotten, self._occupied, self._holds = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._failing: dict[str, _Failing] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, instance_id: str) -> Session[State] | None:
        return self._sessions.get(instance_id)

    def of(self, reader: ControlReader) -> list[Session[State]]:
        return [session for session in self._sessions.values() if session.reader is reader]

    def deliver(self, reader: ControlReader, held: Delivery, *, now: float) -> None:
        """Add a received message to the waiting messages of its instance.

        :param now: the current monotonic second.
        """
        instance_id = held.message.instance.instance_id
        session = self._sessions.get(instance_id)
        if session is None or session.reader is not reader:
            session = self._sessions[instance_id] = Session(instance_id=instance_id, reader=reader)
        session.messages.append(held)
        if session.waiting_since is None:
            session.waiting_since = now
        self._occupied.set()
        self._offer(session)

    def _offer(self, session: Session[State]) -> None:
        if session.instance_id in self._active:
            return  # an instance runs one episode at a time: done() offers the session again
        if session.messages and not session.queued and not session.closed:
            session.queued = True
            self._wake(session)
            (self._new if session.state is None else self._live).append(session)
            self._ready.set()

    async def next(self) -> tuple[Session[State], list[Delivery]]:
        """Wait for the next session with messages; mark it active, and return it with the batch for its episode."""
        while True:
            session = await self._next()
            session.queued = False
            if session.closed or session.instance_id in self._active:
                continue
            # Half of the batch is left to what has not waited, so the episode judges some of it.
            self._end_waits(session, _ordered(session.waiting)[: MAX_BATCH // 2])
            taken = session.messages
            batch, session.messages = next_batch(taken)
            session.reader.taken(held for held in taken if held.gone)
            session.reader.release(held for held in taken if held.gone)
            if not batch:
                session.waiting_since = None
                self._rest(session)
                continue
            session.active = True
            self._active[session.instance_id] = session
            session.reader.taken(batch)
            return session, batch

    async def _next(self) -> Session[State]:
        """Wait for the next session; sessions with a loaded instance come first, but not always (:data:`PASSED_OVER`).

        Instances that have begun are finished before others begin, so the store has fewer messages. With many messages,
        every operation of a storage emulator is slow.
        """
        while not self._live and not self._new:
            self._ready.clear()
            await self._ready.wait()
        if self._live and (not self._new or self._passed_over < PASSED_OVER):
            self._passed_over += bool(self._new)
            return self._live.popleft()
        self._passed_over = 0
        return self._new.popleft()

    def done(self, session: Session[State], *, now: float) -> None:
        """Note that the episode of a session has ended.

        If messages wait, the session gets another turn. If there are neither messages nor a loaded instance, the
        session is forgotten.

        :param now: the current monotonic second.
        """
        session.active = False
        session.last_used = now
        session.waiting_since = now if session.messages else None
        del self._active[session.instance_id]
        if session.closed:
            self._forget(session)
            successor = self._sessions.get(session.instance_id)
            if successor is not None:
                self._offer(successor)
            return
        if session.state is not None and not self._extended:
            self._rested(session.state)
        self._offer(session)
        if not session.queued:
            self._rest(session)
        self._evict_over_limit()

    def hold(
        self, session: Session[State], messages: Sequence[Delivery], batch: Sequence[Delivery], *, now: float
    ) -> Sequence[Delivery]:
        """Let messages wait in memory for another message of their instance. Call it at the end of their episode.

        :param batch: all messages of the episode. If it had others too, what has waited before is judged again.
        :param now: the current monotonic second.
        :returns: the messages that cannot wait, because the session is closed.
        """
        if session.closed:
            return messages
        if len(messages) < len(batch):
            self._end_waits(session, session.waiting)
        for held in messages:
            held.held_since = now if held.held_since is None else held.held_since
        session.waiting.extend(messages)
        self._holds.set()
        return ()

    async def until_held(self) -> None:
        """Return as soon as a message waits for another message of its instance."""
        while not any(session.waiting for session in self._sessions.values()):
            self._holds.clear()
            await self._holds.wait()

    def end_waits(self, *, now: float) -> None:
        """Let the next episodes judge again the messages that have waited for :data:`LONGEST_WAIT` seconds.

        :param now: the current monotonic second.
        """
        for session in [session for session in self._sessions.values() if session.waiting]:
            over = [
                held
                for held in session.waiting
                if held.held_since is not None and now - held.held_since >= LONGEST_WAIT
            ]
            for held in over:
                held.waited = True
            self._end_waits(session, over)
            self._offer(session)

    def _end_waits(self, session: Session[State], messages: Sequence[Delivery]) -> None:
        if messages:
            ended = set(messages)
            session.waiting = [held for held in session.waiting if held not in ended]
            session.reader.untaken(messages)
            session.messages = [*messages, *session.messages]

    def _rest(self, session: Session[State]) -> None:
        """Keep a session that has no messages but a loaded instance; forget the session if no instance is loaded."""
        if session.waiting:
            return  # it is kept, and not dropped to free memory: it has messages
        if session.state is None:
            self._forget(session)
        elif self._extended:
            self._resting[session.instance_id] = session
        else:
            self._histories[session.instance_id] = session

    def _wake(self, session: Session[State]) -> None:
        self._resting.pop(session.instance_id, None)
        self._histories.pop(session.instance_id, None)

    def keep(self, session: Session[State], state: State | None, size: int = 0) -> None:
        """Set the loaded instance of a session; None removes the loaded instance from memory.

        :param size: the bytes that count against the memory limit.
        """
        self._bytes += size - session.size
        before, session.state, session.size = session.state, state, size
        if before is not None and before is not state:
            self._dropped(before)

    def close(self, reader: ControlReader) -> list[Delivery]:
        """Forget the sessions of a queue reader whose partition this worker no longer serves.

        A session with a running episode is forgotten when that episode ends (:meth:`settled`).

        :returns: the messages that no episode has taken.
        """
        left: list[Delivery] = []
        self._failing = {key: one for key, one in self._failing.items() if one.reader is not reader}
        for session in self.of(reader):
            session.closed = True
            self._end_waits(session, session.waiting)
            left.extend(session.messages)
            session.messages = []
            if not session.active:
                self._forget(session)
        reader.taken(left)
        return left

    def failed(self, session: Session[State], cause: str, *, now: float) -> None:
        """Note that the episode of a session has failed, and that its messages go back into the queue.

        :param cause: why the episode has failed.
        :param now: the current monotonic second.
        """
        before = self._failing.pop(session.instance_id, None)
        since = before.since if before is not None else _since(session, now)
        self._failing[session.instance_id] = _Failing(reader=session.reader, since=since, last=now, cause=cause)
        if len(self._failing) > MOST_FAILING:
            del self._failing[next(iter(self._failing))]
        self._occupied.set()

    def progressed(self, session: Session[State]) -> None:
        """Note that the episode of a session has not failed."""
        self._failing.pop(session.instance_id, None)

    async def until_occupied(self) -> None:
        """Return as soon as there is an instance with a message, or with episodes that fail."""
        while not (self._active or self._live or self._new or self._failing):
            self._occupied.clear()
            await self._occupied.wait()

    def backlog(self, now: float) -> Backlog:
        """Return the instances that have made no progress for :data:`LONG` seconds.

        :param now: the current monotonic second.
        """
        self._failing = {key: one for key, one in self._failing.items() if now - one.last < FORGET_FAILING}
        running = {key: (now - _since(session, now), "") for key, session in self._active.items()}
        failing = {key: (now - one.since, one.cause) for key, one in self._failing.items()}
        held = [
            HeldInstance(instance_id=key, seconds=seconds, cause=cause)
            for key, (seconds, cause) in (running | failing).items()
            if seconds >= LONG
        ]
        waits = [now - _since(session, now) for session in (*self._live, *self._new)]
        queued = [seconds for seconds in waits if seconds >= LONG]
        return Backlog(
            held=tuple(sorted(held, key=lambda one: -one.seconds)),
            queued=len(queued),
            longest=max(queued, default=0.0),
        )

    async def settled(self, reader: ControlReader) -> None:
        """Wait until no episode with messages of this queue reader runs any more. Call it after :meth:`close`."""
        while any(session.reader is reader for session in self._active.values()):
            self._forgotten.clear()
            await self._forgotten.wait()

    def evict_idle(self, *, before: float) -> int:
        """Close the orchestrators of idle sessions; their histories stay in memory.

        :param before: sessions that were last used before this monotonic second are idle.
        :returns: the number of orchestrators that were closed.
        """
        idle = list(takewhile(lambda session: session.last_used < before, self._resting.values()))
        for session in idle:
            assert session.state is not None
            self._rested(session.state)
            self._histories[session.instance_id] = self._resting.pop(session.instance_id)
        return len(idle)

    def _evict_over_limit(self) -> None:
        """Drop idle instances while the memory limit is exceeded.

        Only idle sessions are visited, never all sessions, because near the limit every episode calls this method.
        """
        while self._bytes > self._limit and (resting := self._histories or self._resting):
            self._forget(next(iter(resting.values())))

    def _forget(self, session: Session[State]) -> None:
        self.keep(session, None)
        if self._sessions.get(session.instance_id) is session:
            del self._sessions[session.instance_id]
            self._wake(session)
        self._forgotten.set()
