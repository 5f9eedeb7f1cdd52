"""The pool of a worker's executors: how many executors there are, and what happens when an executor dies.

An executor is a child process of the worker that runs activities. Plain activities (without Spark) share a few
executors. Spark activities share one executor with a warm Spark context: it is started once and kept. Those with
settings that a running Spark cannot take have an executor of their own. A dead executor is replaced. The more often
executors fail in a row, the longer is the pause before the next start. If no executor can be started for some minutes,
the activities that wait fail with the reason. An activity that is suspected of causing crashes runs alone in an
executor (:func:`scheduling.choose`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial

import structlog

from airflow_provider_taskhub.clock import SYSTEM_CLOCK, Clock
from airflow_provider_taskhub.engine.events import FailureDetails
from airflow_provider_taskhub.engine.failures import storable
from airflow_provider_taskhub.errors import ConfigurationError
from airflow_provider_taskhub.spark_connect import connect_server
from airflow_provider_taskhub.supervision import Supervisor, first, owned
from airflow_provider_taskhub.workers.executors.assignment import Assignment, Seat, Ticket
from airflow_provider_taskhub.workers.executors.attempt_log import LogSink
from airflow_provider_taskhub.workers.executors.attempt_values import (
    NO_EXECUTOR,
    ActivityOutcome,
    ActivityProgress,
    ActivityRequest,
)
from airflow_provider_taskhub.workers.executors.executor import Executor, ExecutorError
from airflow_provider_taskhub.workers.executors.keeping import SeatKeeper
from airflow_provider_taskhub.workers.executors.left_sessions import LeftSessions
from airflow_provider_taskhub.workers.executors.pause import Pause
from airflow_provider_taskhub.workers.executors.process import UNLIMITED, ExecutorLimits, ExecutorTimes
from airflow_provider_taskhub.workers.executors.reaper import Reaper
from airflow_provider_taskhub.workers.executors.remote_attempt import ProgressListener
from airflow_provider_taskhub.workers.executors.scheduling import PLAIN, SPARK, ExecutorKind, Need
from airflow_provider_taskhub.workers.executors.starting import MAX_LOG, ExecutorConfig, ExecutorStarter

__all__ = [
    "MAX_LOG",
    "ActivityOutcome",
    "ActivityProgress",
    "ActivityRequest",
    "ExecutorConfig",
    "ExecutorLimits",
    "ExecutorPool",
    "ExecutorTimes",
]

_log = structlog.get_logger()

_ARRANGED_EVERY = 1.0
"""Seconds between two decisions which Spark applications there are, while attempts wait for one."""


class ExecutorPool:
    """Runs activities in child processes. All calls must come from the same event loop.

    :param config: the configuration that all executors share.
    :param size: largest number of plain activities that run at the same time.
    :param spark_size: largest number of Spark activities that run at the same time; None: as ``size``.
    :param applications: largest number of Spark executors, which differ by the settings of their application.
    :param logs: function that appends bytes to a named log.
    :param name: name of the worker. The log of an executor itself is named ``executors/NAME/EXECUTOR.log``.
    :param warm: True: :meth:`start` also starts the Spark executor, if any activity needs it. False: the first Spark
        activity starts it.
    :param processes: number of plain executors. None: one for each core, but not more than ``size``.
    :param times: time limits of executors; None: the defaults.
    :param limits: when an executor is replaced.
    """

    def __init__(
        self,
        config: ExecutorConfig,
        *,
        size: int,
        spark_size: int | None = None,
        applications: int = 1,
        logs: LogSink,
        name: str = "worker",
        warm: bool = False,
        processes: int | None = None,
        times: ExecutorTimes | None = None,
        limits: ExecutorLimits = UNLIMITED,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._config, self._clock, self._warm = config, clock, warm
        times = times or ExecutorTimes()
        plain = processes or max(1, min(size, os.cpu_count() or 1))
        self._seats = [
            *(Seat(ExecutorKind.PLAIN, PLAIN, clock.monotonic()) for _ in range(plain)),
            *(Seat(ExecutorKind.SPARK, None if number else SPARK, clock.monotonic()) for number in range(applications)),
        ]
        sizes = {ExecutorKind.PLAIN: size, ExecutorKind.SPARK: size if spark_size is None else spark_size}
        self._assignment = Assignment(self._seats, sizes, clock)
        self._activities: Mapping[str, bool] = {}
        self.supervisor = Supervisor(clock)
        self._stopped = False
        self._reaper = Reaper(lock_fd=config.lock_fd)
        patience = times.patience.total_seconds()
        starter = ExecutorStarter(
            config,
            name=name,
            logs=logs,
            reaper=self._reaper,
            times=times,
            resumed=self._assignment.settle,
            clock=clock,
        )
        self._keeper = SeatKeeper(
            self._seats,
            self._assignment,
            starter,
            limits=limits,
            patience=patience,
            name=name,
            supervisor=self.supervisor,
            clock=clock,
        )
        self._left = (
            LeftSessions(config.spark.master, config.environment, clock, patience=patience)
            if connect_server(config.spark.master)
            else None
        )

    @property
    def free(self) -> int:
        """Number of further plain activities that could start now, without waiting for another activity to end."""
        return self._assignment.free

    async def start(self) -> None:
        """Start the plain executors, and return when all of them are ready.

        :raises ConfigurationError: if an executor did not become ready, for example because it cannot load an app. The
            text has the error. No process of the pool runs then.
        """
        self._reaper.start()
        plain = [seat for seat in self._seats if seat.kind is ExecutorKind.PLAIN]
        try:
            async with owned() as start:
                executors = await asyncio.gather(*(start(self._keeper.start(seat)) for seat in plain))
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
            self.supervisor.keep(f"executor {seat.kind} {number}", partial(self._keeper.keep, seat))
        self.supervisor.keep("places of Spark applications", self._arrange)

    async def _give_up(self) -> None:
        """Kill all executors and end the reaper process, because the start of the pool failed or was cancelled."""
        ready = [seat.executor for seat in self._seats if seat.executor is not None]
        await asyncio.gather(
            *(executor.kill("was killed because another executor did not start") for executor in ready)
        )
        await self._reaper.close()

    def warm(self) -> None:
        """Start the Spark executor now, if any activity needs it, so that the first Spark activity finds it ready."""
        if any(self._activities.values()):
            for seat in self._seats:
                if seat.need == SPARK:
                    seat.wanted.set()

    async def stop(self, timeout: timedelta) -> None:
        """Refuse new and waiting requests, wait for running attempts, then kill the executors.

        Attempts that are killed, and requests that still wait for an executor, end with an outcome whose ``crashed`` is
        True: they are lost, and another worker can run them again.

        :param timeout: longest wait for the running attempts.
        """
        self._stopped = True
        self._assignment.refuse(ExecutorError("the worker is stopping"))
        await first(self._assignment.idle.wait(), self._clock.sleep(timeout.total_seconds()))
        if not self._assignment.idle.is_set():
            _log.warning("executors_killed_busy", running=self._assignment.busy)
        await self.supervisor.close()
        await asyncio.gather(*(executor.kill(_stopped(executor)) for executor in self._keeper.alive))
        await self._reaper.close()

    async def run(
        self, request: ActivityRequest, *, progress: ProgressListener | None = None, pause: Pause | None = None
    ) -> ActivityOutcome:
        """Wait for an executor, run one attempt of an activity in it, and return the outcome.

        If the task that awaits this call is cancelled, the activity is asked to stop. If the activity still runs after
        ``times.grace``, its executor is killed; other activities in this executor end as crashed. An executor with a
        stopping activity gets no new activities. ``CancelledError`` is raised only when no code of the activity runs
        any more. A second cancellation kills the executor at once.

        With Spark Connect the server would go on with the session of a dead executor. So ``request.left_sessions`` are
        ended before the attempt runs, and the session of the attempt is ended if its executor has died. If the server
        does not confirm the end of ``left_sessions`` within ``times.patience``, the attempt fails. If it does not
        confirm the end of the attempt's own session, only the log says so.

        :param request: the attempt to run.
        :param progress: called in the event loop, first with the name of the executor and then with each report of the
            activity. It must return quickly. None: nothing is reported.
        :param pause: while it is on or overdue, the executor of the attempt stands still. None: the attempt is never
            paused.
        """
        need = self._need(request)
        ticket = Ticket(need, request.instance.instance_id, alone=request.alone)
        try:
            if self._stopped:
                raise ExecutorError("the worker is stopping")
            await self.end_sessions(request.left_sessions)
            if self._left is not None and request.application and not request.clean_up:
                raise ExecutorError(
                    f"its conf has {', '.join(request.application)}, which a Spark Connect server can only get at its "
                    "start: remove it from conf, and start the server with it"
                )
            executor = await self._assignment.executor_for(ticket)
        except ExecutorError as error:
            failure = FailureDetails(
                error_type=NO_EXECUTOR,
                error_message=storable(f"activity {request.name!r} got no executor: {error}"),
                stack_trace=error.stack_trace and storable(error.stack_trace),
            )
            return ActivityOutcome(failure=failure, crashed=self._stopped)
        if self._left is not None and request.spark and request.spark_session is None:
            request = replace(request, spark_session=self._left.new())
        lost = False
        try:
            outcome = await executor.run(request, progress, pause)
            lost = outcome.crashed
        finally:
            self._assignment.release(executor, need.kind)
            if self._left is not None and request.spark_session is not None and executor.ended.is_set():
                await self._left.end_own(request.spark_session, once=lost)
        if not outcome.crashed and not outcome.too_late:
            self._keeper.count(executor)
        return outcome

    def _need(self, request: ActivityRequest) -> Need:
        """Return what an attempt needs of an executor."""
        if not request.spark:
            return PLAIN
        if self._left is not None:
            return SPARK  # all applications are the server's
        own = self._config.spark.conf
        application = {name: value for name, value in (request.application or {}).items() if own.get(name) != value}
        return Need(ExecutorKind.SPARK, tuple(sorted(application.items())))

    async def end_sessions(self, sessions: Sequence[str]) -> None:
        """End Spark Connect sessions that dead workers or executors have left, and wait for the server's answer.

        :raises ExecutorError: if the server has not confirmed the end within ``times.patience``, or if this worker does
            not use the server of the sessions.
        """
        if not sessions:
            return
        if self._left is None:
            raise ExecutorError(
                f"an earlier attempt ran on {sessions[-1]}, and this worker does not use Spark Connect: give all "
                "workers of a hub the same TASKHUB_SPARK__MASTER, or connection"
            )
        await self._left.end(sessions)

    async def _arrange(self) -> None:
        """Give the seats of Spark executors to the applications that attempts wait for. Runs until cancelled."""
        told: set[Need] = set()
        while True:
            await self._assignment.unplaced.wait()
            without = set(self._assignment.arrange())
            for need in without - told:
                _log.info("spark_application_waits", settings=[name for name, _ in need.application])
            told = without
            await self._clock.sleep(_ARRANGED_EVERY)


def _stopped(executor: Executor) -> str:
    """Return the reason for the end of an executor whose worker stops."""
    return f"{'was killed' if executor.load else 'ended'} because its worker stopped"
