"""An executor: a process that runs activities, and the attempts that are in its hands.

An executor ends as a whole: only when nothing of its process and of the process's children runs any more do its
attempts end.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.workers.executors.attempt_log import LogSink, OutputLog
from airflow_provider_taskhub.workers.executors.attempt_values import ActivityOutcome, ActivityProgress, ActivityRequest
from airflow_provider_taskhub.workers.executors.process import ExecutorProcess, ExecutorTimes, within
from airflow_provider_taskhub.workers.executors.protocol import (
    Cancel,
    Configure,
    Done,
    Dying,
    Failed,
    Log,
    Message,
    Pong,
    Progress,
    Ready,
    StartFailed,
)
from airflow_provider_taskhub.workers.executors.reaper import Reaper
from airflow_provider_taskhub.workers.executors.remote_attempt import ProgressListener, RemoteAttempt

_LOG_SLACK = 1024
"""Bytes that the line "log truncated" may add to an attempt's limit."""


class ExecutorError(Exception):
    """An executor that did not get ready. The text says why, in full.

    :param stack_trace: of the import or start that failed, if there is one.
    """

    def __init__(self, message: str, stack_trace: str | None = None) -> None:
        super().__init__(message)
        self.stack_trace = stack_trace


class Executor:
    """One executor and its attempts.

    :param configure: the first message to the process.
    :param logs: takes the attempts' output, and the executor's own under the name ``log``.
    :ivar ready: what the process has said when it was ready.
    :ivar ended: set when nothing of it runs any more.
    :ivar load: attempts that are assigned to it; counted by who assigns them.
    :ivar alone: whether the newest of them runs without others beside it; set by who assigns it.
    """

    def __init__(
        self,
        configure: Configure,
        *,
        reaper: Reaper,
        logs: LogSink,
        log: str,
        clock: Clock,
        times: ExecutorTimes,
    ) -> None:
        self.name = configure.name
        self.ready: Ready | None = None
        self.ended = asyncio.Event()
        self.load = 0
        self.alone = False
        self._configure, self._logs, self._clock, self._times = configure, logs, clock, times
        self._process = ExecutorProcess(configure.name, self, reaper=reaper, times=times, clock=clock)
        self._output = OutputLog(log, logs, clock, limit=configure.max_log)
        self._numbers = itertools.count(1)
        self._attempts: dict[int, RemoteAttempt] = {}
        self._stopping = 0
        self._failed: StartFailed | None = None
        self._started: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def eligible(self) -> bool:
        """Takes new attempts: ready, alive, and not about to be killed because an attempt does not stop."""
        process = self._process
        return self.ready is not None and process.alive and not self._stopping and process.reason is None

    async def start(self, environment: Mapping[str, str] | None = None) -> Ready:
        """Start the process and wait until it is ready.

        :param environment: variables of the process; None for those of this one.
        :raises ExecutorError: saying why it is not ready; nothing of it runs then.
        :raises OSError: when the machine has no room for it.
        """
        try:
            await self._process.start(lock_fd=self._configure.lock_fd, environment=environment)
            await self._process.send(self._configure)
            if not await within(self._started, self._times.start):
                seconds = self._times.start.total_seconds()
                await self.kill(f"was not ready within {seconds:g} s")
                self._started.cancel()
                raise ExecutorError(f"executor {self.name} was not ready within {seconds:g} s{self._last_words()}")
            self.ready, self._process.answers_pings = self._started.result(), True
            return self.ready
        except BaseException:
            await self.kill("was killed because its start was given up")
            raise

    async def run(self, request: ActivityRequest, listener: ProgressListener | None) -> ActivityOutcome:
        """Run an attempt to its end. Cancelling this asks it to stop and ends only when nothing of it runs; a second
        cancellation kills at once."""
        attempt = self._take(request, listener)
        try:
            await self._process.send(attempt.order())
            in_time = await within(attempt.ended, request.timeout)
            if not in_time:
                await self._stop(attempt, "ran out of its time")
            await attempt.output.close()
            return attempt.outcome(self._process.reason) if in_time else attempt.timed_out()
        except asyncio.CancelledError:
            await self._stop(attempt, "was cancelled")
            await attempt.output.close()
            raise
        finally:
            self._attempts.pop(attempt.number, None)

    async def kill(self, reason: str) -> None:
        """Kill the executor with everything in its session, and wait until that is done.

        :param reason: continues "executor X …" in the failures of its attempts.
        """
        await self._process.kill(reason)

    def _take(self, request: ActivityRequest, listener: ProgressListener | None) -> RemoteAttempt:
        ready = self.ready
        assert ready is not None, "an executor runs nothing before it is ready"
        number = next(self._numbers)
        # The number too: Spark refuses all jobs of a cancelled group, and the same attempt may be run here again.
        group = f"taskhub-{request.action_id}-{request.attempt}-{number}"
        state = ActivityProgress(
            executor=self.name,
            application_id=ready.application_id,
            job_group=group if self._configure.spark else None,
            spark_ui=ready.spark_ui,
        )
        output = OutputLog(request.log, self._logs, self._clock, limit=self._configure.max_log + _LOG_SLACK)
        attempt = self._attempts[number] = RemoteAttempt(number, request, output, state, listener)
        if self.ended.is_set():
            attempt.end(None)
        attempt.announce()
        return attempt

    async def _stop(self, attempt: RemoteAttempt, why: str) -> None:
        """Ask an attempt to stop; after the grace kill the executor. Meanwhile it gets no new attempts, which would die
        with it.
        """
        self._stopping += 1
        try:
            if attempt.ended.done():
                return
            await self._process.send(Cancel(number=attempt.number))
            if not await within(attempt.ended, self._times.grace):
                await self._kill_for(attempt, f"{why} and did not stop in {self._times.grace.total_seconds():g} s")
        except asyncio.CancelledError:
            await self._kill_for(attempt, f"{why} at once")
            raise
        finally:
            self._stopping -= 1

    async def _kill_for(self, attempt: RemoteAttempt, why: str) -> None:
        await self.kill(f"was killed because activity {attempt.request.name!r} {why}")
        await asyncio.shield(attempt.ended)

    # Observer of its process

    def received(self, message: Message) -> None:
        match message:
            case Ready():
                if not self._started.done():
                    self._started.set_result(message)
            case StartFailed():
                self._failed = message
                self._process.blame(f"could not start: {message.reason}")
            case Dying(reason=reason):
                self._process.blame(f"ended: {reason}")
            case Log(number=number, body=body) if number in self._attempts:
                self._attempts[number].output.add(body)
            case Progress(number=number) if number in self._attempts:
                self._attempts[number].report(message.fraction, message.message)
            case Done(number=number) | Failed(number=number) if number in self._attempts:
                self._attempts[number].end(message)
            case Pong() | Log() | Progress() | Done() | Failed():
                pass  # the last four: of an attempt for which nobody waits any more
            case _:
                raise InputError(f"a host takes no {type(message).__name__} message")

    def wrote(self, data: bytes) -> None:
        """Java and other children write here, and Python code below ``sys.stdout``.

        It goes to the executor's own log, and to the attempt's while only one attempt can have written it.
        """
        self._output.add(data)
        if len(self._attempts) == 1:
            next(iter(self._attempts.values())).output.add(data)

    def exited(self) -> None:
        aboard = [attempt for attempt in self._attempts.values() if not attempt.ended.done()]
        for attempt in aboard:
            attempt.shared = len(aboard) > 1

    async def gone(self) -> None:
        self.ended.set()
        if not self._started.done():
            self._started.set_exception(self._start_error())
            self._started.exception()  # start() raises it, or nobody waits for it
        for attempt in tuple(self._attempts.values()):
            attempt.end(None)
        await self._output.close()

    def _start_error(self) -> ExecutorError:
        """Why it never got ready, made when it is dead and all of its output is here."""
        if self._failed is None:
            return ExecutorError(f"executor {self.name} {self._process.reason}{self._last_words()}")
        words = self._last_words() if self._failed.see_output else ""
        return ExecutorError(f"{self._failed.reason}{words}", self._failed.stack_trace)

    def _last_words(self) -> str:
        """Raw output (of Java, of an interpreter that did not get far) explains most failures to start."""
        tail = self._output.tail[-10:]
        return "; its last output was:\n" + "\n".join(tail) if tail else ""
