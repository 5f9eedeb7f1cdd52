"""Instances in memory: their mail, who may work on them, and which live orchestrators are kept.

An instance has at most one session in a worker and at most one episode under way. Messages for an instance in
memory join its session's mail. A session belongs to one tenure of its partition and ends with it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Generic, TypeVar

from airflow_provider_taskhub.engine.events import ExecutionStarted
from airflow_provider_taskhub.hub.admission.facts import STEERING
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.hub.queues.reader import ControlReader

State = TypeVar("State")


@dataclass(slots=True, eq=False)
class Session(Generic[State]):
    """One instance in memory.

    :param state: what the worker keeps of it between episodes (a live orchestrator); None: nothing is loaded.
    :param size: bytes that ``state`` is accounted for.
    """

    instance_id: str
    reader: ControlReader
    mail: list[Delivery] = field(default_factory=list)
    active: bool = False
    queued: bool = False
    closed: bool = False
    state: State | None = None
    size: int = 0
    last_used: float = 0.0


PASSED_OVER = 3
"""Live sessions in turn for which a new one waits."""
MAX_BATCH = 400
"""Messages of one episode: a sentinel remembers twice as many across a generation switch."""


def next_batch(mail: Iterable[Delivery]) -> tuple[list[Delivery], list[Delivery]]:
    """The messages of the next episode, and the rest.

    A start opens a batch of its own with what follows it; what came before an instance's start and is addressed to no
    generation, or to this very start, joins it: an event may overtake the start of its instance.
    """
    ordered = _ordered([held for held in mail if not held.gone])
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


def _ordered(mail: Sequence[Delivery]) -> list[Delivery]:
    """The order of processing: by time, then by the sender's count.

    Suspensions and resumes of the same time stay as they arrived. The counts of two processes tell no order, and which
    of one process's own is older is judged later (``facts.precedes``).
    """
    ordered = sorted(mail, key=lambda held: held.order)
    steering = [held for held in mail if isinstance(held.message.event, STEERING)]
    if len(steering) > 1:
        places = [place for place, held in enumerate(ordered) if isinstance(held.message.event, STEERING)]
        for place, held in zip(places, sorted(steering, key=lambda held: held.inserted), strict=True):
            ordered[place] = held
    return ordered


class Sessions(Generic[State]):
    """All sessions of a worker.

    :param limit_bytes: idle state beyond this is dropped, oldest first.
    :param extended: whether an orchestrator stays alive between its episodes.
    :param rested: told of state of which only the history is kept from now on: it holds for as long as nobody else
        commits over the sentinel's ETag, so it is not read again.
    :param dropped: told of state that is not kept any more.
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
        self._histories: OrderedDict[str, Session[State]] = OrderedDict()  # used before all that rest
        self._live: deque[Session[State]] = deque()
        self._new: deque[Session[State]] = deque()
        self._passed_over = 0
        self._ready = asyncio.Event()
        self._limit = limit_bytes
        self._bytes = 0
        self._forgotten = asyncio.Event()

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, instance_id: str) -> Session[State] | None:
        return self._sessions.get(instance_id)

    def of(self, reader: ControlReader) -> list[Session[State]]:
        return [session for session in self._sessions.values() if session.reader is reader]

    def deliver(self, reader: ControlReader, held: Delivery) -> None:
        """Add a message to its instance's mail."""
        instance_id = held.message.instance.instance_id
        session = self._sessions.get(instance_id)
        if session is None or session.reader is not reader:
            session = self._sessions[instance_id] = Session(instance_id=instance_id, reader=reader)
        session.mail.append(held)
        self._offer(session)

    def _offer(self, session: Session[State]) -> None:
        if session.instance_id in self._active:
            return  # one episode at a time: offered again when that one ends, also if it is of an earlier tenure
        if session.mail and not session.queued and not session.closed:
            session.queued = True
            self._wake(session)
            (self._new if session.state is None else self._live).append(session)
            self._ready.set()

    async def next(self) -> tuple[Session[State], list[Delivery]]:
        """The next session with mail, marked active, and the batch for its episode."""
        while True:
            session = await self._next()
            session.queued = False
            if session.closed or session.instance_id in self._active:
                continue
            taken = session.mail
            batch, session.mail = next_batch(taken)
            session.reader.taken(held for held in taken if held.gone)
            session.reader.release(held for held in taken if held.gone)
            if not batch:
                self._rest(session)
                continue
            session.active = True
            self._active[session.instance_id] = session
            session.reader.taken(batch)
            return session, batch

    async def _next(self) -> Session[State]:
        """Who has begun goes on before others begin, but not for ever.

        What is under way has messages in the store, and each of them costs an emulator time in every operation.
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
        """An episode ended: more mail makes the session ready again; one without state or mail is forgotten."""
        session.active = False
        session.last_used = now
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

    def _rest(self, session: Session[State]) -> None:
        """Without mail: kept only for its state."""
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
        """Set what is kept of the instance; None drops it."""
        self._bytes += size - session.size
        before, session.state, session.size = session.state, state, size
        if before is not None and before is not state:
            self._dropped(before)

    def close(self, reader: ControlReader) -> list[Delivery]:
        """The tenure is over: forget its sessions. Returns mail that no episode has taken."""
        left: list[Delivery] = []
        for session in self.of(reader):
            session.closed = True
            left.extend(session.mail)
            session.mail = []
            if not session.active:
                self._forget(session)
        reader.taken(left)
        return left

    async def settled(self, reader: ControlReader) -> None:
        """Wait until no episode of the tenure is under way (after :meth:`close`)."""
        while any(session.reader is reader for session in self._active.values()):
            self._forgotten.clear()
            await self._forgotten.wait()

    def evict_idle(self, *, before: float) -> int:
        """End what was last used before a monotonic second, and keep its history; returns how many."""
        idle = list(takewhile(lambda session: session.last_used < before, self._resting.values()))
        for session in idle:
            assert session.state is not None
            self._rested(session.state)
            self._histories[session.instance_id] = self._resting.pop(session.instance_id)
        return len(idle)

    def _evict_over_limit(self) -> None:
        """Only what rests is looked at: at the limit every episode comes here, however many instances are in memory."""
        while self._bytes > self._limit and (resting := self._histories or self._resting):
            self._forget(next(iter(resting.values())))

    def _forget(self, session: Session[State]) -> None:
        self.keep(session, None)
        if self._sessions.get(session.instance_id) is session:
            del self._sessions[session.instance_id]
            self._wake(session)
        self._forgotten.set()
