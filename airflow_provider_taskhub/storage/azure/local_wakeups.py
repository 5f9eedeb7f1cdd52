"""Sends wake-ups inside one process: a store that puts a message into a queue wakes the tasks that wait for the queue.

All stores of a process on one account share one :class:`LocalWakeups`, even in several threads and event loops. So a
client in one thread wakes a worker in another thread. A wake-up is a hint: a task that misses a wake-up finds the
message at its next poll.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections.abc import Sequence

MAX_PENDING = 1024
"""Largest number of delayed wake-ups (each for the time when a message becomes visible) that are remembered for each
queue. A message without a wake-up is found by polling."""


class LocalWakeups:
    """Knows for each queue the number of wake-ups so far, the delayed wake-ups, and the tasks that wait.

    All methods are thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._pending: dict[str, list[float]] = {}
        self._waiting: dict[str, set[Waiter]] = {}

    def notify(self, queue: str, *, now: float, delay: float = 0.0) -> None:
        """Send a wake-up: a message of the queue is visible now, or becomes visible after a delay.

        :param now: current time of the event loop, in seconds.
        :param delay: seconds until the message becomes visible.
        """
        with self._lock:
            if delay > 0:
                pending = self._pending.setdefault(queue, [])
                if len(pending) < MAX_PENDING:
                    heapq.heappush(pending, now + delay)
                if pending[0] < now + delay:
                    return  # the waiting tasks wake up earlier anyway, for another message
            else:
                self._counts[queue] = self._counts.get(queue, 0) + 1
            waiters = tuple(self._waiting.get(queue, ()))
        for waiter in waiters:
            waiter.wake()

    def notify_topic(self, name: str) -> None:
        """Wake the tasks that wait for a topic now. A task that begins to wait later does not get this wake-up."""
        with self._lock:
            waiters = tuple(self._waiting.get(name, ()))
        for waiter in waiters:
            waiter.wake()

    def count(self, queue: str, *, now: float) -> int:
        """Return the number of the queue's wake-ups so far. A delayed wake-up counts after its delay is over."""
        with self._lock:
            pending = self._pending.get(queue)
            while pending and pending[0] <= now:
                heapq.heappop(pending)
                self._counts[queue] = self._counts.get(queue, 0) + 1
            return self._counts.get(queue, 0)

    def due(self, queues: Sequence[str]) -> float | None:
        """Return the time of the next delayed wake-up, on the clock of the event loop; None if there is none."""
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
    """One task that waits. Any thread can wake the task."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:
            return  # the task's event loop is closed, so the task does not wait any more

    async def wait(self, seconds: float) -> None:
        """Wait until another task or thread calls :meth:`wake`, at most ``seconds`` seconds."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._event.wait()
        except TimeoutError:
            return
        self._event.clear()


_SHARED: dict[str, LocalWakeups] = {}
_SHARED_LOCK = threading.Lock()


def wakeups_of(account: str) -> LocalWakeups:
    """Return the :class:`LocalWakeups` of an account. All stores of this process on this account share it."""
    with _SHARED_LOCK:
        return _SHARED.setdefault(account, LocalWakeups())


class Listener:
    """Waits for wake-ups on behalf of one store.

    The listener remembers for each queue the number of wake-ups before the store's last receive. So a wake-up between
    the receive and the wait is not lost.
    """

    def __init__(self, wakeups: LocalWakeups) -> None:
        self._wakeups = wakeups
        self._seen: dict[str, int] = {}

    def receiving(self, queue: str) -> None:
        """Note that the store receives from a queue now. This receive finds the messages of all wake-ups so far, so
        :meth:`arrival` waits for a later wake-up.
        """
        self._seen[queue] = self._wakeups.count(queue, now=_now())

    async def arrival(self, queues: Sequence[str], timeout: float) -> Sequence[str]:
        """Wait for a wake-up for one of the queues, at most ``timeout`` seconds.

        :returns: the queues for which there was a wake-up since the last receive; empty: the time is over.
        """
        deadline = _now() + timeout
        waiter = Waiter()
        self._wakeups.enter(queues, waiter)
        try:
            while True:
                now = _now()
                if (woken := self._with_new_wakeup(queues, now)) or now >= deadline:
                    return woken
                due = self._wakeups.due(queues)
                await waiter.wait(min(deadline, deadline if due is None else due) - now)
        finally:
            self._wakeups.leave(queues, waiter)

    def _with_new_wakeup(self, queues: Sequence[str], now: float) -> list[str]:
        found = []
        for queue in queues:
            count = self._wakeups.count(queue, now=now)
            if count > self._seen.get(queue, 0):
                found.append(queue)
            self._seen[queue] = count
        return found


def _now() -> float:
    """Return the time of the event loop's clock. All event loops of a process share this clock, except in tests with
    virtual time."""
    return asyncio.get_running_loop().time()
