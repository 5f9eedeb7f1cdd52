"""Keeps executors running in the seats of a pool. Each runs until it dies, is worn or idle, or makes place."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.supervision import Supervisor, first
from airflow_provider_taskhub.workers.executors import process_session
from airflow_provider_taskhub.workers.executors.assignment import Assignment, Leave, Seat
from airflow_provider_taskhub.workers.executors.executor import Executor, ExecutorError
from airflow_provider_taskhub.workers.executors.process import ExecutorLimits
from airflow_provider_taskhub.workers.executors.scheduling import ExecutorKind
from airflow_provider_taskhub.workers.executors.starting import ExecutorStarter

_log = structlog.get_logger()

OWN_IDLE = 600.0
"""Seconds without an attempt after which a Spark executor that has settings of its own ends."""
_LOOKED_EVERY = 1.0
"""Shortest time, in seconds, between two looks whether an executor is idle."""
_MEASURED_EVERY = 2.0
"""Seconds between two looks at the memory of an executor, if it has a limit."""
_MAX_SHOWN = 4000
"""Largest number of characters of an error, and of a stack trace, in one log line."""


class SeatKeeper:
    """Keeps executors running in the seats of a pool.

    :param seats: the seats of the pool.
    :param assignment: gives the attempts to the executors.
    :param starter: starts executors.
    :param limits: when an executor is replaced.
    :param patience: seconds after which an attempt fails for which no executor could be started.
    :param name: name of the worker.
    :param supervisor: runs the ends of executors that have lost their seats.
    """

    def __init__(
        self,
        seats: Sequence[Seat],
        assignment: Assignment,
        starter: ExecutorStarter,
        *,
        limits: ExecutorLimits,
        patience: float,
        name: str,
        supervisor: Supervisor,
        clock: Clock,
    ) -> None:
        self._seats, self._assignment, self._starter = seats, assignment, starter
        self._limits, self._patience, self._name = limits, patience, name
        self._supervisor, self._clock = supervisor, clock
        self._retiring: set[Executor] = set()

    @property
    def alive(self) -> list[Executor]:
        """The executors in the seats, and those that have lost their seat and have not ended yet."""
        seated = [seat.executor for seat in self._seats if seat.executor is not None]
        return [*self._retiring, *seated, *(seat.leaving.executor for seat in self._seats if seat.leaving is not None)]

    def count(self, executor: Executor) -> None:
        """Note that an attempt has ended in an executor without a crash. Another executor takes the place of one that
        has begun enough attempts.
        """
        seat = next((seat for seat in self._seats if seat.executor is executor), None)
        if seat is not None:
            seat.failures = 0
            if 0 < self._limits.activities <= executor.begun:
                self._worn(seat, executor)

    def _worn(self, seat: Seat, executor: Executor, memory: int | None = None) -> None:
        if seat.executor is executor:
            _log.info("executor_worn", executor=executor.name, activities=executor.begun, memory=memory)
            seat.worn.set()

    async def _watch_memory(self, seat: Seat, executor: Executor) -> None:
        """Let another executor take the place of one that has too much memory. Runs until cancelled.

        An executor that has run nothing yet stays: with a limit that is too low, each new one would be replaced too.
        """
        limit, pid = self._limits.memory, executor.pid
        while limit is not None and pid is not None:
            await self._clock.sleep(_MEASURED_EVERY)
            used = await asyncio.to_thread(process_session.memory, pid)
            if executor.begun and used > limit and not seat.worn.is_set():
                self._worn(seat, executor, used)
        await executor.ended.wait()

    async def _watch_idle(self, seat: Seat, executor: Executor, idle: asyncio.Event) -> None:
        """Set ``idle`` and return when a Spark executor has had no attempt for too long. Else run until cancelled."""
        own = seat.need is not None and bool(seat.need.application)
        limit = OWN_IDLE if own else None
        if self._limits.idle is not None and seat.kind is ExecutorKind.SPARK:
            limit = self._limits.idle.total_seconds()
        while limit is not None:
            if executor.load:
                await executor.unloaded.wait()
            rest = seat.used + limit - self._clock.monotonic()
            if rest <= 0 and not self._assignment.waits(seat.need):
                idle.set()
                return
            await self._clock.sleep(max(rest, _LOOKED_EVERY))
        await executor.ended.wait()

    def _end_idle(self, seat: Seat, executor: Executor) -> None:
        """End an executor that has no attempt. The next attempt starts another one in its seat."""
        if executor.load or self._assignment.waits(seat.need):
            return  # it has just got one, or cannot take one that waits
        _log.info("executor_idle", executor=executor.name, activities=executor.begun)
        seat.vacate(Leave.IDLE)

    async def _end_leaving(self, seat: Seat) -> None:
        """End the executor that has left a seat."""
        if seat.leaving is not None:
            old, why = seat.leaving
            if why is Leave.MAKES_PLACE:
                _log.info("executor_makes_place", executor=old.name, activities=old.begun)
            await self._retire(old, why)
            seat.leaving = None

    def _is_needed(self, seat: Seat) -> bool:
        """Return whether an executor is to be started in a seat. One with settings of its own is not kept warm."""
        if seat.need is None or seat.next is not None:
            return False
        return not seat.need.application or self._assignment.waits(seat.need)

    async def keep(self, seat: Seat) -> None:
        """Keep an executor running in a seat (the place of one executor) while ``seat.wanted`` is set.

        The method returns only when it is cancelled.
        """
        while True:
            await self._end_leaving(seat)
            await seat.wanted.wait()
            seat.changed.clear()
            if seat.executor is None:
                await first(self._clock.sleep(seat.backoff), seat.changed.wait())
                if not self._is_needed(seat):
                    seat.rest()
                    continue
                await self._fill(seat)
            if seat.executor is not None:
                self._assignment.assign()
                executor = seat.executor
                await first(
                    executor.ended.wait(),
                    seat.worn.wait(),
                    seat.changed.wait(),
                    self._watch_memory(seat, executor),
                    self._watch_idle(seat, executor, idle := asyncio.Event()),
                )
                if seat.changed.is_set():
                    continue
                if idle.is_set() and not executor.ended.is_set() and not seat.worn.is_set():
                    self._end_idle(seat, executor)
                    continue
                if seat.worn.is_set() and not seat.executor.ended.is_set():
                    await self._replace(seat, seat.executor)
                    continue
                seat.worn.clear()
                # If an activity ran alone (a suspect), that activity has ended the executor. Its crashes have their own
                # limit (attempt_values.Crashes), so they do not make the pauses before new starts longer.
                if not seat.executor.alone:
                    seat.failures += 1
                seat.executor = None

    async def _replace(self, seat: Seat, old: Executor) -> None:
        """Start another executor in a seat. The old one stays if the start fails; its next attempts try again. It also
        stays, or ends, if its application makes place for another one, or nobody waits for it.
        """
        if not self._is_needed(seat):
            seat.worn.clear()
            if seat.next is None:
                seat.executor = None
                seat.rest()
                self._let_go(old, "it has reached a limit, and nobody needs another one")
            return
        try:
            await self.start(seat)
        except ExecutorError as error:
            _log.warning("executor_not_replaced", executor=old.name, error=str(error)[:_MAX_SHOWN])
        else:
            self._let_go(old, "another executor has taken its place")
        finally:
            seat.worn.clear()

    def _let_go(self, old: Executor, why: str) -> None:
        """End an executor that has lost its seat, in the background. :param why: as :meth:`_retire` has it."""
        self._retiring.add(old)
        self._supervisor.spawn(self._retire(old, why), name=f"end {old.name}")

    async def _retire(self, old: Executor, why: str) -> None:
        """End an executor that has lost its seat, after its last attempt. :param why: for the log."""
        if old.load:
            await first(old.unloaded.wait(), old.ended.wait())
        await old.kill(f"ended, because {why}")
        self._retiring.discard(old)

    async def _fill(self, seat: Seat) -> None:
        try:
            await self.start(seat)
        except ExecutorError as error:
            seat.failures += 1
            seat.broken = True
            assert seat.need is not None
            if not any(other.open for other in self._seats if other.need == seat.need):
                self._assignment.give_up(seat.need, error, patience=self._patience, worker=self._name)
            waiting = self._assignment.waits(seat.need)
            if not waiting:
                # No request waits, so further tries to start an executor would only fill the log. The next request sets
                # the event again.
                seat.wanted.clear()
            _log.error(
                "executor_failed_to_start",
                kind=str(seat.kind),
                attempt=seat.failures,
                again_in=seat.backoff if waiting else None,
                error=str(error)[:_MAX_SHOWN],
                stack_trace=(error.stack_trace or "")[-_MAX_SHOWN:] or None,
            )
            self._assignment.settle()

    async def start(self, seat: Seat) -> Executor:
        """Start an executor in a seat. :raises ExecutorError: if it did not become ready."""
        seat.starts += 1
        seat.starting = True
        try:
            return await self._starter.start(seat, f"{seat.kind}-{self._seats.index(seat) + 1}.{seat.starts}")
        finally:
            seat.starting = False
