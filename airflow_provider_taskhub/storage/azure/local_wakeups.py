"""Who put something into a queue wakes who waits for it, within this process.

Stores of several threads and event loops share one bell per account, so that a client in one thread wakes the worker of
another. Only a hint: whoever misses a ring polls.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections.abc import Sequence

MAX_PENDING = 1024
"""Delayed rings remembered per queue. Beyond it further ones are left to polling."""


class LocalWakeups:
    """Counts of rings per queue, rings to come, and those who wait. Safe to use from every thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rings: dict[str, int] = {}
        self._pending: dict[str, list[float]] = {}
        self._waiting: dict[str, set[Waiter]] = {}

    def ring(self, queue: str, *, now: float, delay: float = 0.0) -> None:
        """Something can be received from the queue now, or after a delay in seconds."""
        with self._lock:
            if delay > 0:
                pending = self._pending.setdefault(queue, [])
                if len(pending) < MAX_PENDING:
                    heapq.heappush(pending, now + delay)
                if pending[0] < now + delay:
                    return  # an earlier ring is due: who waits knows of that one already
            else:
                self._rings[queue] = self._rings.get(queue, 0) + 1
            waiters = tuple(self._waiting.get(queue, ()))
        for waiter in waiters:
            waiter.wake()

    def announce(self, name: str) -> None:
        """There is news under this name. Nothing is kept of it for those who do not wait yet."""
        with self._lock:
            waiters = tuple(self._waiting.get(name, ()))
        for waiter in waiters:
            waiter.wake()

    def count(self, queue: str, *, now: float) -> int:
        """Rings so far, those included whose delay is over."""
        with self._lock:
            pending = self._pending.get(queue)
            while pending and pending[0] <= now:
                heapq.heappop(pending)
                self._rings[queue] = self._rings.get(queue, 0) + 1
            return self._rings.get(queue, 0)

    def due(self, queues: Sequence[str]) -> float | None:
        """When the next delayed ring comes."""
        with self._lock:
            return min((self._pending[queue][0] for queue in queues if self._pending.get(queue)), default=None)

    def enter(self, queues: Sequence[str], waiter: Waiter) -> None:
        with self._lock:
            for queue in queues:
                self._waiting.setdefault(queue, set()).add(waiter)

    def leave(self, queues: Sequence[str], waiter: Waiter) -> None:
        with self._lock:
            for queue in queues:
                waiting = self._waiting.get(queue)
                if waiting is not None:
                    waiting.discard(waiter)
                    if not waiting:
                        del self._waiting[queue]


class Waiter:
    """One task that waits, woken from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:
            return  # its loop has ended: nobody waits

    async def wait(self, seconds: float) -> None:
        """Until woken, at most so long."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._event.wait()
        except TimeoutError:
            return
        self._event.clear()


_BELLS: dict[str, LocalWakeups] = {}
_BELLS_LOCK = threading.Lock()


def bell_of(account: str) -> LocalWakeups:
    """The process's one bell of an account."""
    with _BELLS_LOCK:
        return _BELLS.setdefault(account, LocalWakeups())


class Listener:
    """One store's ear: it remembers what it has heard, so that no ring falls between a receive and a wait."""

    def __init__(self, bell: LocalWakeups) -> None:
        self._bell = bell
        self._heard: dict[str, int] = {}

    def receiving(self, queue: str) -> None:
        """To be called before a receive: what rang before, it will find."""
        self._heard[queue] = self._bell.count(queue, now=_now())

    async def arrival(self, queues: Sequence[str], timeout: float) -> bool:
        """Whether one of the queues rings within ``timeout`` seconds, or rang since its last receive."""
        deadline = _now() + timeout
        waiter = Waiter()
        self._bell.enter(queues, waiter)
        try:
            while True:
                now = _now()
                if self._rang(queues, now):
                    return True
                if now >= deadline:
                    return False
                due = self._bell.due(queues)
                await waiter.wait(min(deadline, deadline if due is None else due) - now)
        finally:
            self._bell.leave(queues, waiter)

    def _rang(self, queues: Sequence[str], now: float) -> bool:
        found = False
        for queue in queues:
            count = self._bell.count(queue, now=now)
            found = found or count > self._heard.get(queue, 0)
            self._heard[queue] = count
        return found


def _now() -> float:
    """Of the event loop's clock, which all loops of a process share (and a jumping one replaces)."""
    return asyncio.get_running_loop().time()
