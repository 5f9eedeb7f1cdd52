"""How the executors of a pool are started: what all of them share, and what each one gets."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import gettempdir

import structlog

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.settings import MAX_RESULT, SparkSettings
from airflow_provider_taskhub.workers.executors.assignment import Seat
from airflow_provider_taskhub.workers.executors.attempt_log import LogSink
from airflow_provider_taskhub.workers.executors.executor import Executor, ExecutorError
from airflow_provider_taskhub.workers.executors.process import ExecutorTimes
from airflow_provider_taskhub.workers.executors.protocol import Configure
from airflow_provider_taskhub.workers.executors.reaper import Reaper
from airflow_provider_taskhub.workers.executors.scheduling import ExecutorKind
from airflow_provider_taskhub.workers.executors.scratch import SparkScratch

_log = structlog.get_logger()

MAX_LOG = 10 * 1024 * 1024
"""Largest size, in bytes, of the log of one attempt and of the log of one executor."""


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


class ExecutorStarter:
    """Starts the executors of a pool.

    :param config: the configuration that all executors share.
    :param name: name of the worker.
    :param logs: function that appends bytes to a named log.
    :param reaper: the process that kills the executors if the worker dies.
    :param times: time limits of executors.
    :param resumed: called when an executor takes attempts again.
    """

    def __init__(
        self,
        config: ExecutorConfig,
        *,
        name: str,
        logs: LogSink,
        reaper: Reaper,
        times: ExecutorTimes,
        resumed: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._config, self._name, self._logs, self._reaper = config, name, logs, reaper
        self._times, self._resumed, self._clock = times, resumed, clock

    async def start(self, seat: Seat, name: str) -> Executor:
        """Start an executor in a seat, and return it when it is ready.

        :param name: its name.
        :raises ExecutorError: if it did not become ready.
        """
        began = self._clock.monotonic()
        environment = dict(os.environ if self._config.environment is None else self._config.environment)
        scratch = None
        if seat.kind is ExecutorKind.SPARK and not self._config.spark.master.startswith("sc://"):
            scratch = await asyncio.to_thread(self._new_scratch, seat, environment)
        executor = Executor(
            self.configure(seat, name, scratch),
            reaper=self._reaper,
            logs=self._logs,
            log=f"executors/{self._name}/{name}.log",
            clock=self._clock,
            times=self._times,
            resumed=self._resumed,
            scratch=scratch,
        )
        if seat.kind is ExecutorKind.SPARK:
            # PySpark converts timestamps to the time zone of its process, and the result does not name the zone. A
            # reader takes such a time for UTC.
            environment["TZ"] = _zone(environment)
        if scratch is not None:
            environment |= scratch.variables
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

    def _new_scratch(self, seat: Seat, environment: Mapping[str, str]) -> SparkScratch | None:
        """Make the folders for the temporary files of a Spark driver. None: they cannot be made."""
        try:
            return SparkScratch(self._config.spark.master, self._conf(seat), environment)
        except OSError as error:
            _log.warning("no_scratch_folder", error=str(error))
            return None

    def _conf(self, seat: Seat) -> dict[str, str]:
        return {**self._config.spark.conf, **dict(seat.need.application if seat.need else ())}

    def configure(self, seat: Seat, name: str, scratch: SparkScratch | None) -> Configure:
        """Return the first message to the executor of a seat. :param scratch: its folders for temporary files."""
        places = dict[str, str]()
        if not self._config.spark.master.startswith("sc://"):
            places["spark.app.name"] = f"taskhub {self._name} {name}"  # tells the workers of a cluster apart
        if not self._config.spark.master.startswith(("local", "sc://")):
            places["spark.executorEnv.TZ"] = _zone(self._config.environment)  # as the driver has it
        return Configure(
            name=name,
            apps=self._config.apps,
            spark=seat.kind is ExecutorKind.SPARK,
            master=self._config.spark.master,
            conf={**places, **self._conf(seat), **({} if scratch is None else scratch.conf)},
            lock_fd=self._config.lock_fd,
            max_result=self._config.max_result,
            max_log=self._config.max_log,
            kept_results=str(self._config.kept_results),
        )


def _zone(environment: Mapping[str, str] | None) -> str:
    """Return the time zone of Spark's processes. :param environment: as :class:`ExecutorConfig` has it."""
    return (os.environ if environment is None else environment).get("TZ", "UTC")
