"""An event loop whose time jumps to the next deadline when nothing is ready: hours of waiting run in milliseconds.

Tests, the simulation and ``testing.run`` use it. While a thread of the loop's executor works, time stands still, so
that the jump never overtakes real work. A loop in which nothing is ready and no timer is set can never go on: that
is an error here, not a hang.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar, TypeVarTuple, Unpack

from airflow_provider_taskhub.codec import Timestamp, ticks_of

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

START = Timestamp.parse("2026-01-01T00:00:00Z")
"""What the wall clock says when a jumping loop begins."""
YEAR = timedelta(days=365)


class Deadlock(RuntimeError):
    """Nothing is ready, no timer is set: the program waits for something that can no longer happen."""


class TimeLimit(RuntimeError):
    """The program went on beyond the virtual time that it was given."""


_GLANCE = 32
"""Jumps per look at what is outside, while nothing there is waited for: a system call costs more than a jump."""


class _JumpingSelector(selectors.BaseSelector):
    """Polls the real selector; where that has nothing, moves the loop's time by what it would have waited."""

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self._jumps = 0
        self.now = 0.0
        self.limit = YEAR.total_seconds()
        self.threads = 0

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if not self.threads and timeout is not None:
            if timeout == 0:
                return []
            self._jumps += 1
            if self._jumps % _GLANCE:
                return self._jump(timeout)
        ready = self._real.select(None if self.threads and timeout != 0 else 0)
        if ready or timeout == 0 or self.threads:
            return ready
        if timeout is None:
            raise Deadlock(
                f"nothing is ready and no timer is set at {self.now:g} s of virtual time: every task waits for another"
            )
        return self._jump(timeout)

    def _jump(self, timeout: float) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += max(0.0, timeout)
        if self.now > self.limit:
            raise TimeLimit(f"still running after {timedelta(seconds=self.limit)} of virtual time")
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop with virtual time: ``time()`` starts at 0 and moves only when nothing is ready.

    :param limit: virtual time after which :class:`TimeLimit` is raised: a program that only ticks never ends else.
    """

    def __init__(self, *, limit: timedelta = YEAR) -> None:
        self._jumping = _JumpingSelector()
        self._jumping.limit = limit.total_seconds()
        super().__init__(self._jumping)
        # float sums of many jumps may fall short of a deadline by an ulp: that is still the deadline
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._jumping.now

    @contextmanager
    def still(self) -> Iterator[None]:
        """Time stands still meanwhile: something outside is waited for, which works in real time."""
        self._jumping.threads += 1
        try:
            yield
        finally:
            self._jumping.threads -= 1

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self._jumping.threads += 1
        future.add_done_callback(self._thread_ended)
        return future

    async def shutdown_default_executor(self, *args: float | None) -> None:
        self._jumping.threads += 1  # asyncio joins the executor in a thread of its own
        try:
            await super().shutdown_default_executor(*args)
        finally:
            self._jumping.threads -= 1

    def _thread_ended(self, _: object) -> None:
        self._jumping.threads -= 1


class VirtualClock:
    """The clocks of one simulated machine on a :class:`VirtualTimeLoop`; a ``Clock``.

    :param loop: None: the loop that runs when the clock is read.
    :param skew: how far this machine's wall clock is off. :param rate: its monotonic seconds per loop second (drift).
    """

    def __init__(
        self, loop: VirtualTimeLoop | None = None, *, skew: timedelta = timedelta(0), rate: float = 1.0
    ) -> None:
        self._loop = loop
        self._start = START + skew
        self._rate = rate

    def _time(self) -> float:
        return (self._loop or asyncio.get_running_loop()).time()

    def utc_now(self) -> Timestamp:
        return Timestamp(self._start.ticks + ticks_of(timedelta(seconds=self._time())))

    def monotonic(self) -> float:
        return self._time() * self._rate

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds) / self._rate)


def run(coro: Coroutine[Any, Any, T], *, limit: timedelta = YEAR) -> T:
    """Run a coroutine to its end in a new :class:`VirtualTimeLoop`; what it leaves running is cancelled.

    :raises Deadlock: when it can never end. :raises TimeLimit: when it takes more than ``limit`` of virtual time.
    """
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(limit=limit)) as runner:
        return runner.run(coro)
