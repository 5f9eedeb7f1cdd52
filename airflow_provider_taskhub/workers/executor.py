"""The pool of executors of a worker: who runs an activity, how many at once, and what happens when an executor dies.

Plain activities share a few processes, Spark activities share one with a warm Spark context. A dead executor is
replaced; one that keeps dying is replaced ever more slowly, and whoever waits for it is told why. Who is suspected of
a crash gets an executor without company (:func:`lanes.choose`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial

import structlog

from airflow_provider_taskhub.clock import SYSTEM_CLOCK, Clock
from airflow_provider_taskhub.engine.events import FailureDetails
from airflow_provider_taskhub.engine.failures import storable
from airflow_provider_taskhub.errors import ConfigurationError
from airflow_provider_taskhub.retries import Retries
from airflow_provider_taskhub.settings import MAX_RESULT, SparkSettings
from airflow_provider_taskhub.supervision import Supervisor, first, owned
from airflow_provider_taskhub.workers.executor_process import ExecutorTimes
from airflow_provider_taskhub.workers.lanes import (
    ActivityOutcome,
    ActivityProgress,
    ActivityRequest,
    FairQueue,
    Lane,
    choose,
)
from airflow_provider_taskhub.workers.output import LogSink
from airflow_provider_taskhub.workers.process import Executor, ExecutorError
from airflow_provider_taskhub.workers.protocol import Configure
from airflow_provider_taskhub.workers.remote_attempt import ProgressListener
from airflow_provider_taskhub.workers.warden import Warden

__all__ = [
    "MAX_LOG",
    "ActivityOutcome",
    "ActivityProgress",
    "ActivityRequest",
    "ExecutorPool",
    "ExecutorTimes",
]

_log = structlog.get_logger()

MAX_LOG = 10 * 1024 * 1024
"""Bytes of one attempt's log, and of one executor's own."""
_STARTS = Retries(after=(ExecutorError,), first=1.0, longest=30.0)
"""Pauses before an executor is started again: none after the first death, then these."""
_MAX_SHOWN = 4000
"""Characters of an error and of its stack trace that a log line has at most."""


class _Ticket:
    """A request on its way to an executor."""

    def __init__(self, lane: Lane, key: str, *, alone: bool) -> None:
        self.lane = lane
        self.key = key
        self.alone = alone
        self.failed_starts = 0
        """Starts of executors that failed while it waited, and the time of the first failure."""
        self.failing_since = 0.0
        self.executor: asyncio.Future[Executor] = asyncio.get_running_loop().create_future()


class _Seat:
    """Place of one executor, taken by one process after another.

    :param wanted: set while there shall be one. :ivar broken: its last start failed.
    """

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.wanted = asyncio.Event()
        self.broken = False
        self.starts = 0
        self.failures = 0
        """Deaths and failed starts in a row; an activity that ends in an executor of this seat resets it."""
        self.executor: Executor | None = None

    @property
    def load(self) -> int:
        return self.executor.load if self.executor is not None else 0

    @property
    def open(self) -> bool:
        return self.executor is not None and self.executor.eligible

    @property
    def alone(self) -> bool:
        return self.executor is not None and self.executor.alone and self.executor.load > 0

    @property
    def backoff(self) -> float:
        """Seconds before the next start: none after the first death, then 1, 2, 4 … 30."""
        return 0.0 if self.failures < 2 else _STARTS.pause(self.failures - 1)


class ExecutorPool:
    """Runs activities in child processes. Use it in one event loop.

    :param apps: ``module:attribute`` each, as the host loaded them. :param size: activities at once.
    :param logs: appends bytes to a log. :param lock_fd: the incarnation's lock, held open by every process of the pool.
    :param name: of the worker; names the executors' own logs, ``executors/NAME/EXECUTOR.log``.
    :param warm: start the Spark executor at once, if any activity needs it, instead of with the first Spark activity.
    :param environment: variables of the executors; None for those of this process.
    :param processes: plain executors; by default one per core, and no more than there are activities at once.
    """

    def __init__(
        self,
        *,
        apps: Sequence[str],
        size: int,
        spark: SparkSettings,
        logs: LogSink,
        lock_fd: int | None = None,
        clock: Clock = SYSTEM_CLOCK,
        name: str = "worker",
        warm: bool = False,
        processes: int | None = None,
        times: ExecutorTimes | None = None,
        max_result: int = MAX_RESULT,
        max_log: int = MAX_LOG,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._apps = tuple(apps)
        self._size = size
        self._spark = spark
        self._logs = logs
        self._lock_fd = lock_fd
        self._clock = clock
        self._name = name
        self._warm = warm
        self._times = times or ExecutorTimes()
        self._max_result = max_result
        self._max_log = max_log
        self._environment = environment
        plain = processes or max(1, min(size, os.cpu_count() or 1))
        self._seats = [*(_Seat(Lane.PLAIN) for _ in range(plain)), _Seat(Lane.SPARK)]
        self._queues: dict[bool, FairQueue[_Ticket]] = {True: FairQueue(), False: FairQueue()}
        """By whether it is of suspects, who run alone."""
        self._busy = 0
        self._activities: Mapping[str, bool] = {}
        self.supervisor = Supervisor(clock)
        self._stopped = False
        self._warden = Warden(lock_fd=lock_fd)
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def free(self) -> int:
        """Requests that would not have to wait for others."""
        return max(0, self._size - self._busy - self._waiting)

    @property
    def activities(self) -> Mapping[str, bool]:
        """Name → whether it is a Spark activity; as the executors loaded them."""
        return self._activities

    async def start(self) -> None:
        """Start the plain executors; returns when they are ready.

        :raises ConfigurationError: when one cannot load the apps, with the error of the import; nothing runs then.
        """
        self._warden.start()
        plain = [seat for seat in self._seats if seat.lane is Lane.PLAIN]
        try:
            async with owned() as start:
                executors = await asyncio.gather(*(start(self._start_executor(seat)) for seat in plain))
        except BaseException as error:
            await self._give_up()
            if isinstance(error, ExecutorError):
                raise ConfigurationError(f"activities cannot run: {error}") from error
            raise
        assert executors[0].ready is not None
        self._activities = dict(executors[0].ready.activities)
        for seat in plain:
            seat.wanted.set()
        if self._warm:
            self.warm()
        for number, seat in enumerate(self._seats):
            self.supervisor.keep(f"executor {seat.lane} {number}", partial(self._keep, seat))

    async def _give_up(self) -> None:
        """Leave nothing behind of a start that failed or was cancelled."""
        ready = [seat.executor for seat in self._seats if seat.executor is not None]
        await asyncio.gather(*(executor.kill("was ended because another did not start") for executor in ready))
        await self._warden.close()

    def warm(self) -> None:
        """Start Spark now, if any activity needs it, so that the first does not wait for it."""
        if any(self._activities.values()):
            for seat in self._seats:
                if seat.lane is Lane.SPARK:
                    seat.wanted.set()

    async def stop(self, timeout: timedelta) -> None:
        """Take no more requests, wait for running ones, then kill the executors.

        What still runs then ends as crashed; what waits for an executor, too.
        """
        self._stopped = True
        self._refuse(tuple(Lane), ExecutorError("the worker is stopping"))
        await first(self._idle.wait(), self._clock.sleep(timeout.total_seconds()))
        if not self._idle.is_set():
            _log.warning("executors_killed_busy", running=self._busy)
        await self.supervisor.close()
        alive = [seat.executor for seat in self._seats if seat.executor is not None]
        await asyncio.gather(*(executor.kill("was ended with its worker") for executor in alive))
        await self._warden.close()

    async def run(self, request: ActivityRequest, *, progress: ProgressListener | None = None) -> ActivityOutcome:
        """Run one attempt of an activity, waiting for an executor if need be.

        Cancelling the awaiting task asks the activity to stop, gives it ``times.grace``, then kills its executor
        (activities beside it end as crashed; from the request on, no new ones are put there). Only when nothing of it
        runs any more does the cancellation go on. A second cancellation kills at once.

        :param progress: told by whom it is run, and everything that it reports; called in this loop, must return at
            once.
        """
        lane = Lane.SPARK if request.spark else Lane.PLAIN
        ticket = _Ticket(lane, request.instance.instance_id, alone=request.alone)
        try:
            executor = await self._assigned(ticket)
        except ExecutorError as error:
            failure = FailureDetails(
                error_type="ExecutorUnavailable",
                error_message=storable(f"activity {request.name!r} got no executor: {error}"),
                stack_trace=error.stack_trace and storable(error.stack_trace),
            )
            return ActivityOutcome(failure=failure, crashed=self._stopped)
        try:
            outcome = await executor.run(request, progress)
        finally:
            self._release(executor)
        if not outcome.crashed:
            self._trust(executor)
        return outcome

    # assignment

    async def _assigned(self, ticket: _Ticket) -> Executor:
        if self._stopped:
            raise ExecutorError("the worker is stopping")
        self._queues[ticket.alone].put(ticket.lane, ticket.key, ticket)
        self._idle.clear()
        for seat in self._seats:
            if seat.lane is ticket.lane:
                seat.wanted.set()
        self._assign()
        try:
            return await ticket.executor
        except BaseException:
            self._queues[ticket.alone].discard(ticket.lane, ticket.key, ticket)
            if ticket.executor.done() and not ticket.executor.cancelled() and ticket.executor.exception() is None:
                self._release(ticket.executor.result())  # cancelled in the very turn in which it got one
            else:
                self._settle()
            raise

    @property
    def _waiting(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    def _assign(self) -> None:
        """Give waiting requests to executors, as long as there is room."""
        self._serve(alone=True)
        self._serve(alone=False)

    def _serve(self, *, alone: bool) -> None:
        queue = self._queues[alone]
        while self._busy < self._size and (
            ticket := queue.take(lambda lane: self._place(lane, alone=alone) is not None)
        ):
            executor = self._place(ticket.lane, alone=alone)
            if ticket.executor.done() or executor is None:
                continue  # its task was cancelled a moment ago
            self._busy += 1
            executor.load += 1
            executor.alone = alone
            ticket.executor.set_result(executor)

    def _place(self, lane: Lane, *, alone: bool) -> Executor | None:
        """The executor that takes the next attempt, if any does now."""
        coming = [seat for seat in self._seats if seat.executor or (seat.wanted.is_set() and not seat.broken)]
        seats = [seat for seat in coming if seat.lane is lane]
        seat = choose(seats, alone=alone, suspects=alone or self._queues[True].has(lane))
        return seat.executor if seat is not None else None

    def _release(self, executor: Executor) -> None:
        self._busy -= 1
        executor.load -= 1
        self._settle()

    def _settle(self) -> None:
        self._assign()
        if not self._busy and not self._waiting:
            self._idle.set()

    def _refuse(self, lanes: Sequence[Lane], error: ExecutorError) -> None:
        for lane in lanes:
            for ticket in (*self._queues[True].drain(lane), *self._queues[False].drain(lane)):
                if not ticket.executor.done():
                    ticket.executor.set_exception(error)

    def _despair(self, lane: Lane, error: ExecutorError) -> None:
        """Fail the waiting activities for which no executor could be started for too long; the others wait on.

        If an executor does not start, the cause is its app, Spark or the machine, never the activity that waits for it.
        So no attempt of the activity is used up.
        """
        now, patience = self._clock.monotonic(), self._times.patience.total_seconds()
        for queue in self._queues.values():
            for ticket in queue.drain(lane):
                ticket.failing_since = ticket.failing_since if ticket.failed_starts else now
                ticket.failed_starts += 1
                if ticket.executor.done():
                    continue
                if now - ticket.failing_since < patience:
                    queue.put(lane, ticket.key, ticket)
                    continue
                ticket.executor.set_exception(
                    ExecutorError(
                        f"its worker could start none for {now - ticket.failing_since:.0f} s ({ticket.failed_starts} "
                        f"tries; see executor_failed_to_start in the log of worker {self._name}): {error}",
                        error.stack_trace,
                    )
                )

    def _trust(self, executor: Executor) -> None:
        """It has ended an activity in an orderly way: whatever kills it later is a new story."""
        for seat in self._seats:
            if seat.executor is executor:
                seat.failures = 0

    # seats

    async def _keep(self, seat: _Seat) -> None:
        """Keep a seat taken while it is wanted."""
        while True:
            await seat.wanted.wait()
            if seat.executor is None:
                await self._clock.sleep(seat.backoff)
                await self._fill(seat)
            if seat.executor is not None:
                self._assign()
                await seat.executor.ended.wait()
                if not seat.executor.alone:  # else it is clear what killed it, and that has its own limit
                    seat.failures += 1
                seat.executor = None

    async def _fill(self, seat: _Seat) -> None:
        try:
            await self._start_executor(seat)
        except ExecutorError as error:
            seat.failures += 1
            seat.broken = True
            if not any(other.open for other in self._seats if other.lane is seat.lane):
                self._despair(seat.lane, error)
            waiting = sum(queue.has(seat.lane) for queue in self._queues.values())
            if not waiting:
                # The next request starts one again. Until then further tries would only fill the log.
                seat.wanted.clear()
            _log.error(
                "executor_failed_to_start",
                lane=str(seat.lane),
                attempt=seat.failures,
                again_in=seat.backoff if waiting else None,
                error=str(error)[:_MAX_SHOWN],
                stack_trace=(error.stack_trace or "")[-_MAX_SHOWN:] or None,
            )
            self._settle()

    async def _start_executor(self, seat: _Seat) -> Executor:
        seat.starts += 1
        number = self._seats.index(seat) + 1
        name = f"{seat.lane}-{number}.{seat.starts}"
        began = self._clock.monotonic()
        executor = Executor(
            self._configure(seat.lane, name),
            warden=self._warden,
            logs=self._logs,
            log=f"executors/{self._name}/{name}.log",
            clock=self._clock,
            times=self._times,
        )
        try:
            await executor.start(self._environment)
        except OSError as error:
            raise ExecutorError(f"executor {name} could not be started: {error}") from error
        seat.executor, seat.broken = executor, False
        seconds = round(self._clock.monotonic() - began, 1)
        _log.info("executor_ready", executor=name, pid=executor.pid, seconds=seconds)
        return executor

    def _configure(self, lane: Lane, name: str) -> Configure:
        return Configure(
            name=name,
            apps=self._apps,
            spark=lane is Lane.SPARK,
            master=self._spark.master,
            conf=dict(self._spark.conf),
            lock_fd=self._lock_fd,
            max_result=self._max_result,
            max_log=self._max_log,
        )
