"""The worker's side of one executor: its child process, and the attempts that this process runs.

If the process dies, the worker first kills all processes in its session. Only then do its attempts end. A child that
has left the session may still run, and so may a process that could not be killed within five seconds.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.workers.executors.attempt_log import LogSink, OutputLog
from airflow_provider_taskhub.workers.executors.attempt_values import (
    LOST,
    ActivityOutcome,
    ActivityProgress,
    ActivityRequest,
    tag_of,
)
from airflow_provider_taskhub.workers.executors.pause import Pause
from airflow_provider_taskhub.workers.executors.process import ExecutorProcess, ExecutorTimes, within
from airflow_provider_taskhub.workers.executors.protocol import (
    Cancel,
    Configure,
    Done,
    Dying,
    ExecutorMessage,
    Failed,
    Log,
    Pong,
    Progress,
    Ready,
    Save,
    Saved,
    StartFailed,
)
from airflow_provider_taskhub.workers.executors.reaper import Reaper
from airflow_provider_taskhub.workers.executors.remote_attempt import ProgressListener, RemoteAttempt
from airflow_provider_taskhub.workers.executors.scratch import SparkScratch

_LOG_SLACK = 1024
"""Room above the limit of an attempt's log, in bytes, for the line "log truncated" that the child process adds."""
_LEAST_WAIT = 1.0
"""Seconds. After a pause, an attempt may overrun its timeout by this time at most, so that its watch is not a busy
loop while the pause lasts."""
_OVER = 0.001
"""Seconds. If less than this is left of a timeout, the timeout is over."""
_NO_PAUSE = Pause()


class ExecutorError(Exception):
    """An executor did not become ready.

    :param message: the whole reason, for people.
    :param stack_trace: stack trace of the import or start that failed; None if there is none.
    """

    def __init__(self, message: str, stack_trace: str | None = None) -> None:
        super().__init__(message)
        self.stack_trace = stack_trace


class Executor:
    """One executor and its attempts.

    :param configure: the first message to the process.
    :param reaper: kills the process if the host dies, and stops it if the host is blocked.
    :param logs: function that appends bytes to a named log: the output of the attempts and of the executor itself.
    :param log: name of the log for the output of the executor itself.
    :param resumed: called when the executor may get attempts again after a pause.
    :param scratch: is removed when the process and all its children have ended; None: the executor has none.
    :ivar ready: the message by which the process said that it was ready; None before.
    :ivar ended: set when the process and all its children have ended.
    :ivar load: number of attempts that are assigned to this executor. ``Assignment`` counts them.
    :ivar unloaded: set when the last assigned attempt has ended, by ``Assignment`` too.
    :ivar begun: number of attempts that this executor has begun.
    :ivar alone: True if the newest attempt must run without other attempts. ``Assignment`` sets the value.
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
        resumed: Callable[[], None] = lambda: None,
        scratch: SparkScratch | None = None,
    ) -> None:
        self.name = configure.name
        self._resumed = resumed
        self._scratch = scratch
        self.ready: Ready | None = None
        self.ended = asyncio.Event()
        self.load = 0
        self.unloaded = asyncio.Event()
        self.begun = 0
        self.alone = False
        self._configure, self._logs, self._clock, self._times = configure, logs, clock, times
        self._process = ExecutorProcess(configure.name, self, reaper=reaper, times=times, clock=clock)
        self._output = OutputLog(log, logs, clock, limit=configure.max_log)
        self._numbers = itertools.count(1)
        self._attempts: dict[int, RemoteAttempt] = {}
        self._stopping = 0
        self._pauses: dict[int, Pause] = {}
        self._failed: StartFailed | None = None
        self._started: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def eligible(self) -> bool:
        """Whether this executor may get new attempts.

        It gets new attempts only while it is ready and alive, and while none of its attempts is asked to stop or to
        stand still. If an attempt does not stop in time, the executor is killed with all its attempts.
        """
        process = self._process
        busy = self._stopping or process.paused
        return self.ready is not None and process.alive and not busy and process.reason is None

    async def start(self, environment: Mapping[str, str] | None = None) -> Ready:
        """Start the process and wait until it is ready. If the start fails, the process is killed.

        :param environment: environment variables of the process; None: those of the current process.
        :returns: the message by which the process said that it is ready.
        :raises ExecutorError: if the process did not become ready; the text says why.
        :raises OSError: if the machine cannot start another process.
        """
        try:
            await self._process.start(lock_fd=self._configure.lock_fd, environment=environment)
            await self._process.send(self._configure)
            if not await within(self._started, self._times.start):
                seconds = self._times.start.total_seconds()
                await self.kill(f"was not ready within {seconds:g} s")
                self._started.cancel()
                raise ExecutorError(f"executor {self.name} was not ready within {seconds:g} s{self._last_output()}")
            self.ready, self._process.answers_pings = self._started.result(), True
            return self.ready
        except BaseException:
            await self.kill("was killed because its start failed or was cancelled")
            raise

    async def run(
        self, request: ActivityRequest, listener: ProgressListener | None, pause: Pause | None = None
    ) -> ActivityOutcome:
        """Run an attempt to its end.

        If the task that awaits this call is cancelled, the attempt is asked to stop, and ``CancelledError`` is raised
        only when the attempt has ended. A second cancellation kills the executor at once.

        :param request: the attempt to run.
        :param listener: called with each change of the attempt's progress; None: nothing is reported.
        :param pause: while it is on or overdue, all processes of the executor stand still, so its other attempts do
            too. The time of the attempt's timeout stands still as well. None: the attempt is never paused.
        :returns: the outcome; a failure of the attempt is an outcome too.
        """
        attempt = self._take(request, listener)
        if pause is not None:
            self._pauses[attempt.number] = pause
        try:
            if pause is not None:
                pause.follow(self._carry_out_pauses)
            await self._process.send(attempt.run_message())
            in_time = await self._ends_within(attempt, request.timeout)
            if not in_time:
                await self._stop(attempt, "exceeded its timeout")
            await attempt.output.close()
            return attempt.outcome(self._process.reason) if in_time else attempt.timed_out()
        except asyncio.CancelledError as error:
            await self._stop(attempt, "was cancelled", lost=LOST in error.args)
            answer = attempt.ended.result() if attempt.ended.done() else None
            if answer is None or (isinstance(answer, Failed) and answer.too_late):
                attempt.was_killed()
            await attempt.output.close()
            raise
        finally:
            if pause is not None:
                pause.follow(None)
                del self._pauses[attempt.number]
                self._carry_out_pauses()
            self._attempts.pop(attempt.number, None)

    def _carry_out_pauses(self) -> None:
        """Let the executor stand still while at least one of its attempts must stand still."""
        first = min(self._pauses.values(), key=lambda pause: pause.due, default=_NO_PAUSE)
        on, before = any(pause.on for pause in self._pauses.values()), self._process.paused
        if on != before:
            self._process.pause(on)
        # The reaper hears of a pause too. Otherwise it would end the pause when the time of another attempt is put off.
        due = -math.inf if on and first.kill_after is None else first.due + (first.kill_after or 0.0)
        self._process.stop_at(due, kills=first.kill_after is not None)
        if before and not on:
            self._resumed()

    def _stands_still(self, number: int) -> bool:
        pause = self._pauses.get(number, _NO_PAUSE)
        return pause.on or pause.due <= self._clock.monotonic()

    async def _ends_within(self, attempt: RemoteAttempt, timeout: timedelta | None) -> bool:
        """Wait for the end of an attempt. The time of pauses does not count.

        :returns: False if the attempt still runs after ``timeout``.
        """
        if timeout is None:
            return await within(attempt.ended, None)
        began, paused_before = self._clock.monotonic(), self._process.paused_for
        left = timeout.total_seconds()
        while not await within(attempt.ended, timedelta(seconds=left)):
            paused = self._process.paused_for - paused_before
            # The wait may have lasted much longer than it should, because this worker itself was stopped or blocked.
            left = timeout.total_seconds() - (self._clock.monotonic() - began - paused)
            if paused <= 0 or left <= _OVER:
                return False
            left = max(left, _LEAST_WAIT)
        return True

    async def kill(self, reason: str) -> None:
        """Kill the executor and every process in its session, and wait until all of them have ended.

        :param reason: the rest of a sentence that begins with "executor X", for the failures of its attempts.
        """
        await self._process.kill(reason)

    def _take(self, request: ActivityRequest, listener: ProgressListener | None) -> RemoteAttempt:
        ready = self.ready
        assert ready is not None, "an executor runs nothing before it is ready"
        number = self.begun = next(self._numbers)
        # The name of Spark's job group contains `number`, so that it is new each time: Spark refuses all later jobs of
        # a cancelled group, and the same attempt can run in this executor a second time.
        # A tag needs no number, because each run has its own Spark Connect session.
        group = tag_of(request.action_id, request.attempt)
        if request.spark_session is None:
            group = f"{group}-{number}"
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

    async def _stop(self, attempt: RemoteAttempt, why: str, *, lost: bool = False) -> None:
        """Ask an attempt to stop. Kill the executor if the attempt still runs after the grace period, or at once if the
        task that waits here is cancelled.

        Meanwhile the executor gets no new attempts, because a kill would end them too.

        :param why: the rest of a sentence that begins with "activity X".
        :param lost: True: the next attempt goes on.
        """
        self._stopping += 1
        try:
            if attempt.ended.done():
                return
            if self._stands_still(attempt.number):
                # it cannot hear the request, and another worker may run the next attempt
                await self._kill_for(attempt, f"{why} while it stood still")
                return
            await self._process.send(Cancel(number=attempt.number, lost=lost))
            if not await self._ends_within(attempt, self._times.grace):
                await self._kill_for(attempt, f"{why} and did not stop within {self._times.grace.total_seconds():g} s")
        except asyncio.CancelledError:
            await self._kill_for(attempt, f"{why} and must end at once")
            raise
        finally:
            self._stopping -= 1

    async def _kill_for(self, attempt: RemoteAttempt, why: str) -> None:
        await self.kill(f"was killed because activity {attempt.request.name!r} {why}")
        await asyncio.shield(attempt.ended)

    # The methods of an Observer: ExecutorProcess calls them.

    def received(self, message: ExecutorMessage) -> None:
        match message:
            case Ready():
                if not self._started.done():
                    self._started.set_result(message)
            case StartFailed():
                self._failed = message
                self._process.note_reason(f"could not start: {message.reason}")
            case Dying(reason=reason):
                self._process.note_reason(f"ended: {reason}")
            case Log(number=number, body=body) if number in self._attempts:
                self._attempts[number].output.add(body)
            case Progress(number=number) if number in self._attempts:
                self._attempts[number].report(message.fraction, message.message, observed=message.observed)
            case Save(number=number, save=save, body=body) if number in self._attempts:
                confirm = partial(self._process.post, Saved(number=number, save=save))
                self._attempts[number].save(body.decode(), confirm)
            case Done(number=number) | Failed(number=number) if number in self._attempts:
                self._attempts[number].end(message)
            case Pong() | Log() | Progress() | Save() | Done() | Failed():
                pass  # all but Pong arrive here if nobody waits for their attempt any more
            case _:
                raise InputError(f"an executor must not send a {type(message).__name__} message to its host")

    def wrote(self, data: bytes) -> None:
        """Log raw output: of Java, of other child processes, and of code that bypasses ``sys.stdout``.

        The output goes to the executor's own log. If exactly one attempt runs, the output goes to that attempt's log
        too, because only this attempt can have written it.
        """
        self._output.add(data)
        if len(self._attempts) == 1:
            next(iter(self._attempts.values())).output.add(data)

    def exited(self) -> None:
        running = [attempt for attempt in self._attempts.values() if not attempt.ended.done()]
        for attempt in running:
            attempt.shared = len(running) > 1

    async def gone(self) -> None:
        self.ended.set()
        if not self._started.done():
            self._started.set_exception(self._start_error())
            self._started.exception()  # otherwise asyncio logs the error as "never retrieved" if start() has gone
        for attempt in tuple(self._attempts.values()):
            attempt.end(None)
        if self._scratch is not None:
            await asyncio.to_thread(self._scratch.remove)
        await self._output.close()

    def _start_error(self) -> ExecutorError:
        """Return why the executor did not become ready.

        Call it when the executor has ended and all its output has arrived.
        """
        if self._failed is None:
            return ExecutorError(f"executor {self.name} {self._process.reason}{self._last_output()}")
        output = self._last_output() if self._failed.see_output else ""
        return ExecutorError(f"{self._failed.reason}{output}", self._failed.stack_trace)

    def _last_output(self) -> str:
        """Return the last lines of raw output (of Java or Python), which explain most failures to start.

        :returns: the end of an error text; "" if there is no output.
        """
        tail = self._output.tail[-10:]
        return "; its last output was:\n" + "\n".join(tail) if tail else ""
