"""An event loop with virtual time: if no task is ready, the time jumps to the next timer.

So hours of waiting take milliseconds. Tests, the simulation and ``testing.run`` use the loop. While a thread of the
loop's executor works, the time does not jump, because the work takes real time. If no task is ready and no timer is
set, the loop can never go on; it then raises an error and does not hang.
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
"""Time of the wall clock at the start of a loop with virtual time."""
YEAR = timedelta(days=365)


class Deadlock(RuntimeError):
    """No task is ready and no timer is set, so the program would wait for ever."""


class TimeLimit(RuntimeError):
    """The program has run longer than its limit of virtual time."""


_JUMPS_PER_POLL = 32
"""Number of jumps of the virtual time to the next timer before the real selector is polled once. A poll takes longer
than a jump. While a thread runs a function, the time does not jump, and the real selector is polled each time."""


class _JumpingSelector(selectors.BaseSelector):
    """A selector for virtual time.

    Instead of waiting, it adds the timeout of ``select`` to the virtual time and returns no event. It asks the real
    selector only at every :data:`_JUMPS_PER_POLL`-th jump, while ``threads`` is above 0, and when no timer is set. If
    no timer is set and the real selector has no event, it raises :class:`Deadlock`.

    :ivar now: the virtual time in seconds.
    :ivar limit: virtual time in seconds after which :class:`TimeLimit` is raised.
    :ivar threads: number of threads and other real-time work to wait for; while it is above 0, no virtual time
        passes.
    """

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
            if self._jumps % _JUMPS_PER_POLL:
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
    """An event loop with virtual time: ``time()`` starts at 0 and moves only when no task is ready.

    :param limit: virtual time after which :class:`TimeLimit` is raised. Without it, a program that sets a new timer
        again and again would never end.
    """

    def __init__(self, *, limit: timedelta = YEAR) -> None:
        self._jumping = _JumpingSelector()
        self._jumping.limit = limit.total_seconds()
        super().__init__(self._jumping)
        # By a rounding error, the sum of many jumps can be smaller than a deadline. The deadline must count as reached.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._jumping.now

    @contextmanager
    def still(self) -> Iterator[None]:
        """Stop the virtual time in the ``with`` block, which waits for work that takes real time."""
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
        self._jumping.threads += 1  # asyncio waits for the executor in a thread, which takes real time
        try:
            await super().shutdown_default_executor(*args)
        finally:
            self._jumping.threads -= 1

    def _thread_ended(self, _: object) -> None:
        self._jumping.threads -= 1


class VirtualClock:
    """The clocks of one simulated machine on a :class:`VirtualTimeLoop`. It is a :class:`clock.Clock`.

    :param loop: the loop that gives the time; None: the loop that runs when the clock is read.
    :param skew: time by which the wall clock of the machine is ahead; negative: behind.
    :param rate: seconds of the machine's monotonic clock for each second of the loop. Other values than 1 simulate
        drift.
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
    """Run a coroutine to its end in a new :class:`VirtualTimeLoop`. Tasks that still run then are cancelled.

    :raises Deadlock: if no task is ready and no timer is set, so that the coroutine can never end.
    :raises TimeLimit: if the coroutine takes more virtual time than ``limit``.
    """
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(limit=limit)) as runner:
        return runner.run(coro)
