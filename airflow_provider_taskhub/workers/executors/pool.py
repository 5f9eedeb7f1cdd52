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
from pathlib import Path
from tempfile import gettempdir

import structlog

from airflow_provider_taskhub.clock import SYSTEM_CLOCK, Clock
from airflow_provider_taskhub.engine.events import FailureDetails
from airflow_provider_taskhub.engine.failures import storable
from airflow_provider_taskhub.errors import ConfigurationError
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.settings import MAX_RESULT, SparkSettings
from airflow_provider_taskhub.spark_connect import connect_server
from airflow_provider_taskhub.supervision import Supervisor, first, owned
from airflow_provider_taskhub.workers.executors import process_session
from airflow_provider_taskhub.workers.executors.assignment import MAKES_PLACE, Assignment, Seat, Ticket
from airflow_provider_taskhub.workers.executors.attempt_log import LogSink
from airflow_provider_taskhub.workers.executors.attempt_values import (
    NO_EXECUTOR,
    ActivityOutcome,
    ActivityProgress,
    ActivityRequest,
)
from airflow_provider_taskhub.workers.executors.executor import Executor, ExecutorError
from airflow_provider_taskhub.workers.executors.left_sessions import LeftSessions
from airflow_provider_taskhub.workers.executors.pause import Pause
from airflow_provider_taskhub.workers.executors.process import UNLIMITED, ExecutorLimits, ExecutorTimes
from airflow_provider_taskhub.workers.executors.protocol import Configure
from airflow_provider_taskhub.workers.executors.reaper import Reaper
from airflow_provider_taskhub.workers.executors.remote_attempt import ProgressListener
from airflow_provider_taskhub.workers.executors.scheduling import PLAIN, SPARK, ExecutorKind, Need
from airflow_provider_taskhub.workers.executors.scratch import Scratch, remove_left

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

MAX_LOG = 10 * 1024 * 1024
"""Largest size, in bytes, of the log of one attempt and of the log of one executor."""
OWN_IDLE = 600.0
"""Seconds without an attempt after which a Spark executor that has settings of its own ends."""
_ARRANGED_EVERY = 1.0
"""Seconds between two decisions which Spark applications there are, while attempts wait for one."""
_MEASURED_EVERY = 2.0
"""Seconds between two looks at the memory of an executor, if it has a limit."""
_LOCAL_DIR = "spark.local.dir"
_MAX_SHOWN = 4000
"""Largest number of characters of an error, and of a stack trace, in one log line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorConfig:
    """The configuration that all executors of a pool share.

    :param apps: the apps to load, each written as ``module:attribute``; the same that the host has loaded.
    :param spark: Spark's master and configuration.
    :param lock_fd: descriptor of the worker's lock file, which every process of the pool keeps open; None: the worker
        has no lock file.
    :param max_result: largest size of one result, in bytes.
    :param max_log: largest size of one attempt's log, in bytes.
    :param kept_results: the folder for results that are too large.
    :param environment: environment variables of the executors; None: those of the current process.
    """

    apps: tuple[str, ...]
    spark: SparkSettings
    lock_fd: int | None = None
    max_result: int = MAX_RESULT
    max_log: int = MAX_LOG
    kept_results: Path = Path(gettempdir(), "taskhub-results")
    environment: Mapping[str, str] | None = None


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
        self._config, self._logs, self._clock, self._limits = config, logs, clock, limits
        self._retiring: set[Executor] = set()
        self._name, self._warm, self._times = name, warm, times or ExecutorTimes()
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
        self._left = (
            LeftSessions(
                config.spark.master,
                config.environment,
                clock,
                patience=self._times.patience.total_seconds(),
            )
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
            self.supervisor.keep(f"executor {seat.kind} {number}", partial(self._keep, seat))
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
        seated = [executor for seat in self._seats if (executor := seat.executor) is not None]
        alive = [*self._retiring, *seated, *(seat.leaving[0] for seat in self._seats if seat.leaving is not None)]
        await asyncio.gather(*(executor.kill(_stopped(executor)) for executor in alive))
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
            self._reset_failures(executor)
            self._count(executor)
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

    def _reset_failures(self, executor: Executor) -> None:
        """Set the failure count of the executor's seat to 0: an activity has ended in this executor without a crash.

        A seat is the place of one executor in the pool. If the executor dies, a new executor takes the same seat.
        """
        for seat in self._seats:
            if seat.executor is executor:
                seat.failures = 0

    def _count(self, executor: Executor) -> None:
        """Let another executor take the place of one that has begun enough attempts."""
        seat = next((seat for seat in self._seats if seat.executor is executor), None)
        if seat is not None and 0 < self._limits.activities <= executor.begun:
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
            await self._clock.sleep(max(rest, _ARRANGED_EVERY))
        await executor.ended.wait()

    def _end_idle(self, seat: Seat, executor: Executor) -> None:
        """End an executor that has no attempt. The next attempt starts another one in its seat."""
        if executor.load or self._assignment.waits(seat.need):
            return  # it has just got one, or cannot take one that waits
        _log.info("executor_idle", executor=executor.name, activities=executor.begun)
        seat.vacate("it had no activity for a long time")

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

    async def _end_leaving(self, seat: Seat) -> None:
        """End the executor that has left a seat."""
        if seat.leaving is not None:
            old, why = seat.leaving
            if why == MAKES_PLACE:
                _log.info("executor_makes_place", executor=old.name, activities=old.begun)
            await self._retire(old, why)
            seat.leaving = None

    def _is_needed(self, seat: Seat) -> bool:
        """Return whether an executor is to be started in a seat. One with settings of its own is not kept warm."""
        if seat.need is None or seat.next is not None:
            return False
        return not seat.need.application or self._assignment.waits(seat.need)

    async def _keep(self, seat: Seat) -> None:
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
                    seat.vacate("nobody needs it")
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
                seat.vacate("nobody needs it")
                self._let_go(old, "it has reached a limit, and nobody needs another one")
            return
        try:
            await self._start_executor(seat)
        except ExecutorError as error:
            _log.warning("executor_not_replaced", executor=old.name, error=str(error)[:_MAX_SHOWN])
        else:
            self._let_go(old, "another executor has taken its place")
        finally:
            seat.worn.clear()

    def _let_go(self, old: Executor, why: str) -> None:
        """End an executor that has lost its seat, in the background. :param why: as :meth:`_retire` has it."""
        self._retiring.add(old)
        self.supervisor.spawn(self._retire(old, why), name=f"end {old.name}")

    async def _retire(self, old: Executor, why: str) -> None:
        """End an executor that has lost its seat, after its last attempt. :param why: for the log."""
        if old.load:
            await first(old.unloaded.wait(), old.ended.wait())
        await old.kill(f"ended, because {why}")
        self._retiring.discard(old)

    async def _fill(self, seat: Seat) -> None:
        try:
            await self._start_executor(seat)
        except ExecutorError as error:
            seat.failures += 1
            seat.broken = True
            assert seat.need is not None
            if not any(other.open for other in self._seats if other.need == seat.need):
                patience = self._times.patience.total_seconds()
                self._assignment.give_up(seat.need, error, patience=patience, worker=self._name)
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

    async def _start_executor(self, seat: Seat) -> Executor:
        seat.starts += 1
        seat.starting = True
        try:
            return await self._started(seat)
        finally:
            seat.starting = False

    async def _started(self, seat: Seat) -> Executor:
        number = self._seats.index(seat) + 1
        name = f"{seat.kind}-{number}.{seat.starts}"
        began = self._clock.monotonic()
        scratch = await asyncio.to_thread(self._new_scratch, seat.kind)
        executor = Executor(
            self._configure(seat, name, scratch),
            reaper=self._reaper,
            logs=self._logs,
            log=f"executors/{self._name}/{name}.log",
            clock=self._clock,
            times=self._times,
            resumed=self._assignment.settle,
            scratch=scratch,
        )
        environment = self._config.environment
        if seat.kind is ExecutorKind.SPARK:
            # PySpark converts timestamps to the time zone of its process, and the result does not name the zone. A
            # reader takes such a time for UTC.
            environment = {"TZ": _zone(environment), **(os.environ if environment is None else environment)}
        try:
            await executor.start(environment)
        except BaseException as error:
            if scratch is not None and executor.pid is None:  # else the executor removes it at its end
                scratch.remove()
            if isinstance(error, OSError):
                raise ExecutorError(f"executor {name} could not be started: {error}") from error
            raise
        seat.filled(executor, self._clock.monotonic())
        seconds = round(self._clock.monotonic() - began, 1)
        _log.info("executor_ready", executor=name, pid=executor.pid, seconds=seconds)
        return executor

    def _new_scratch(self, kind: ExecutorKind) -> Scratch | None:
        """Make a folder for the temporary files of a local Spark. None: somebody else says where they are, or the
        folder cannot be made.
        """
        environment = os.environ if self._config.environment is None else self._config.environment
        local = self._config.spark.master.startswith("local")
        if kind is not ExecutorKind.SPARK or not local or _names_place(self._config.spark.conf, environment):
            return None
        try:
            remove_left()
            return Scratch()
        except OSError as error:
            _log.warning("no_scratch_folder", error=str(error))
            return None

    def _configure(self, seat: Seat, name: str, scratch: Scratch | None) -> Configure:
        places = {} if scratch is None else {_LOCAL_DIR: str(scratch.path)}
        if not self._config.spark.master.startswith("sc://"):
            places["spark.app.name"] = f"taskhub {self._name} {name}"  # tells the workers of a cluster apart
        if not self._config.spark.master.startswith(("local", "sc://")):
            places["spark.executorEnv.TZ"] = _zone(self._config.environment)  # as the driver has it
        return Configure(
            name=name,
            apps=self._config.apps,
            spark=seat.kind is ExecutorKind.SPARK,
            master=self._config.spark.master,
            conf={**places, **self._config.spark.conf, **dict(seat.need.application if seat.need else ())},
            lock_fd=self._config.lock_fd,
            max_result=self._config.max_result,
            max_log=self._config.max_log,
            kept_results=str(self._config.kept_results),
        )


def _names_place(conf: Mapping[str, str], environment: Mapping[str, str]) -> bool:
    """Return whether the user says where Spark's temporary files are: in a setting, a variable or Spark's own file."""
    home = environment.get("SPARK_HOME")
    folder = environment.get("SPARK_CONF_DIR") or (home and os.path.join(home, "conf"))
    file = Path(folder, "spark-defaults.conf") if folder else None
    try:
        lines = file.read_text().splitlines() if file is not None else []
    except OSError:
        lines = []
    named = any(line.split("=")[0].split()[:1] == [_LOCAL_DIR] for line in lines)
    return named or _LOCAL_DIR in conf or "SPARK_LOCAL_DIRS" in environment


def _zone(environment: Mapping[str, str] | None) -> str:
    """Return the time zone of Spark's processes. :param environment: as :class:`ExecutorConfig` has it."""
    return (os.environ if environment is None else environment).get("TZ", "UTC")


def _stopped(executor: Executor) -> str:
    """Return the reason for the end of an executor whose worker stops."""
    return f"{'was killed' if executor.load else 'ended'} because its worker stopped"
