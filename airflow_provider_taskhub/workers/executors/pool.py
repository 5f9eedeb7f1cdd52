"""The pool of executors of a worker: how many there are, and what happens when one dies.

Plain activities share a few processes, Spark activities share one with a warm Spark context. A dead executor is
replaced; one that keeps dying is replaced ever more slowly, and the activities that wait for it fail with the reason.
An activity that is suspected of a crash gets an executor without company (:func:`scheduling.choose`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from datetime import timedelta
from functools import partial

import structlog

from airflow_provider_taskhub.clock import SYSTEM_CLOCK, Clock
from airflow_provider_taskhub.engine.events import FailureDetails
from airflow_provider_taskhub.engine.failures import storable
from airflow_provider_taskhub.errors import ConfigurationError
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.settings import MAX_RESULT, SparkSettings
from airflow_provider_taskhub.supervision import Supervisor, first, owned
from airflow_provider_taskhub.workers.executors.assignment import Assignment, Seat, Ticket
from airflow_provider_taskhub.workers.executors.attempt_log import LogSink
from airflow_provider_taskhub.workers.executors.attempt_values import ActivityOutcome, ActivityProgress, ActivityRequest
from airflow_provider_taskhub.workers.executors.executor import Executor, ExecutorError
from airflow_provider_taskhub.workers.executors.process import ExecutorTimes
from airflow_provider_taskhub.workers.executors.protocol import Configure
from airflow_provider_taskhub.workers.executors.reaper import Reaper
from airflow_provider_taskhub.workers.executors.remote_attempt import ProgressListener
from airflow_provider_taskhub.workers.executors.scheduling import Lane

__all__ = [
    "MAX_LOG",
    "ActivityOutcome",
    "ActivityProgress",
    "ActivityRequest",
    "ExecutorConfig",
    "ExecutorPool",
    "ExecutorTimes",
]

_log = structlog.get_logger()

MAX_LOG = 10 * 1024 * 1024
"""Bytes of one attempt's log, and of one executor's own."""
_MAX_SHOWN = 4000
"""Characters of an error and of its stack trace that a log line has at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorConfig:
    """What all executors of a pool have in common.

    :param apps: ``module:attribute`` each, as the host loaded them.
    :param lock_fd: the incarnation's lock, held open by every process of the pool.
    :param max_result, max_log: bytes of one result and of one attempt's log.
    :param environment: variables of the executors; None for those of this process.
    """

    apps: tuple[str, ...]
    spark: SparkSettings
    lock_fd: int | None = None
    max_result: int = MAX_RESULT
    max_log: int = MAX_LOG
    environment: Mapping[str, str] | None = None


class ExecutorPool:
    """Runs activities in child processes. Use it in one event loop.

    :param size: activities at once. :param logs: appends bytes to a log.
    :param name: of the worker; names the executors' own logs, ``executors/NAME/EXECUTOR.log``.
    :param warm: start the Spark executor at once, if any activity needs it, instead of with the first Spark activity.
    :param processes: plain executors; by default one per core, and no more than there are activities at once.
    """

    def __init__(
        self,
        config: ExecutorConfig,
        *,
        size: int,
        logs: LogSink,
        name: str = "worker",
        warm: bool = False,
        processes: int | None = None,
        times: ExecutorTimes | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._config, self._logs, self._clock = config, logs, clock
        self._name, self._warm, self._times = name, warm, times or ExecutorTimes()
        plain = processes or max(1, min(size, os.cpu_count() or 1))
        self._seats = [*(Seat(Lane.PLAIN) for _ in range(plain)), Seat(Lane.SPARK)]
        self._assignment = Assignment(self._seats, size, clock)
        self._activities: Mapping[str, bool] = {}
        self.supervisor = Supervisor(clock)
        self._stopped = False
        self._reaper = Reaper(lock_fd=config.lock_fd)

    @property
    def free(self) -> int:
        """Requests that would not have to wait for others."""
        return self._assignment.free

    @property
    def activities(self) -> Mapping[str, bool]:
        """Name → whether it is a Spark activity; as the executors loaded them."""
        return self._activities

    async def start(self) -> None:
        """Start the plain executors; returns when they are ready.

        :raises ConfigurationError: when one cannot load the apps, with the error of the import; nothing runs then.
        """
        self._reaper.start()
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
        await self._reaper.close()

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
        self._assignment.refuse(ExecutorError("the worker is stopping"))
        await first(self._assignment.idle.wait(), self._clock.sleep(timeout.total_seconds()))
        if not self._assignment.idle.is_set():
            _log.warning("executors_killed_busy", running=self._assignment.busy)
        await self.supervisor.close()
        alive = [seat.executor for seat in self._seats if seat.executor is not None]
        await asyncio.gather(*(executor.kill("was ended with its worker") for executor in alive))
        await self._reaper.close()

    async def run(self, request: ActivityRequest, *, progress: ProgressListener | None = None) -> ActivityOutcome:
        """Run one attempt of an activity, waiting for an executor if need be.

        Cancelling the awaiting task asks the activity to stop, gives it ``times.grace``, then kills its executor
        (activities beside it end as crashed; from the request on, no new ones are put there). Only when nothing of it
        runs any more does the cancellation go on. A second cancellation kills at once.

        :param progress: called with the executor that runs it, and with everything that it reports; called in this
            loop, must return at once.
        """
        lane = Lane.SPARK if request.spark else Lane.PLAIN
        ticket = Ticket(lane, request.instance.instance_id, alone=request.alone)
        try:
            if self._stopped:
                raise ExecutorError("the worker is stopping")
            executor = await self._assignment.executor_for(ticket)
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
            self._assignment.release(executor)
        if not outcome.crashed:
            self._trust(executor)
        return outcome

    def _trust(self, executor: Executor) -> None:
        """It has ended an activity in an orderly way: whatever kills it later is a new story."""
        for seat in self._seats:
            if seat.executor is executor:
                seat.failures = 0

    # seats

    async def _keep(self, seat: Seat) -> None:
        """Keep a seat taken while it is wanted."""
        while True:
            await seat.wanted.wait()
            if seat.executor is None:
                await self._clock.sleep(seat.backoff)
                await self._fill(seat)
            if seat.executor is not None:
                self._assignment.assign()
                await seat.executor.ended.wait()
                if not seat.executor.alone:  # else it is clear what killed it, and that has its own limit
                    seat.failures += 1
                seat.executor = None

    async def _fill(self, seat: Seat) -> None:
        try:
            await self._start_executor(seat)
        except ExecutorError as error:
            seat.failures += 1
            seat.broken = True
            if not any(other.open for other in self._seats if other.lane is seat.lane):
                patience = self._times.patience.total_seconds()
                self._assignment.give_up(seat.lane, error, patience=patience, worker=self._name)
            waiting = self._assignment.waits(seat.lane)
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
            self._assignment.settle()

    async def _start_executor(self, seat: Seat) -> Executor:
        seat.starts += 1
        number = self._seats.index(seat) + 1
        name = f"{seat.lane}-{number}.{seat.starts}"
        began = self._clock.monotonic()
        executor = Executor(
            self._configure(seat.lane, name),
            reaper=self._reaper,
            logs=self._logs,
            log=f"executors/{self._name}/{name}.log",
            clock=self._clock,
            times=self._times,
        )
        try:
            await executor.start(self._config.environment)
        except OSError as error:
            raise ExecutorError(f"executor {name} could not be started: {error}") from error
        seat.executor, seat.broken = executor, False
        seconds = round(self._clock.monotonic() - began, 1)
        _log.info("executor_ready", executor=name, pid=executor.pid, seconds=seconds)
        return executor

    def _configure(self, lane: Lane, name: str) -> Configure:
        return Configure(
            name=name,
            apps=self._config.apps,
            spark=lane is Lane.SPARK,
            master=self._config.spark.master,
            conf=dict(self._config.spark.conf),
            lock_fd=self._config.lock_fd,
            max_result=self._config.max_result,
            max_log=self._config.max_log,
        )
