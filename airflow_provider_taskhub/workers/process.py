"""The life of one executor process, seen from its host: start, talk, watch, kill, bury.

An executor ends as a whole: when its process ends, for whatever reason, everything in its session is killed, and only
when nothing of it runs any more do its attempts end.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import structlog

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.engine.events import FailureDetails
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.supervision import Supervisor, owned
from airflow_provider_taskhub.workers import groups
from airflow_provider_taskhub.workers.lanes import ActivityOutcome, ActivityProgress, ActivityRequest
from airflow_provider_taskhub.workers.launch import ChildProcess, describe, launch
from airflow_provider_taskhub.workers.output import LogSink, OutputLog
from airflow_provider_taskhub.workers.protocol import (
    Cancel,
    Configure,
    Decoder,
    Done,
    Dying,
    Failed,
    Log,
    Message,
    Ping,
    Pong,
    Progress,
    Ready,
    Run,
    StartFailed,
    encode,
)
from airflow_provider_taskhub.workers.warden import Warden

_log = structlog.get_logger()
_LOG_SLACK = 1024
"""Bytes that the line "log truncated" may add to an attempt's limit."""
ProgressListener = Callable[[ActivityProgress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorTimes:
    """How patient a host is with its executors.

    :param start: until an executor is ready; Spark takes 5 s alone and half a minute in a crowd (spec/spark.md).
    :param ping: between two pings. :param silence: without any sign of life until it is killed. User code that holds
        the GIL looks like a hung process, hence a minute.
    :param grace: from asking an attempt to stop to killing its executor.
    :param patience: how long an activity waits for an executor whose starts fail; they are repeated ever more slowly.
    """

    start: timedelta = timedelta(seconds=120)
    ping: timedelta = timedelta(seconds=5)
    silence: timedelta = timedelta(seconds=60)
    grace: timedelta = timedelta(seconds=10)
    patience: timedelta = timedelta(minutes=5)


class ExecutorError(Exception):
    """An executor that did not get ready. The text says why, in full.

    :param stack_trace: of the import or start that failed, if it told.
    """

    def __init__(self, message: str, stack_trace: str | None = None) -> None:
        super().__init__(message)
        self.stack_trace = stack_trace


class _Attempt:
    """An activity in the executor's hands."""

    def __init__(
        self,
        number: int,
        request: ActivityRequest,
        output: OutputLog,
        state: ActivityProgress,
        listener: ProgressListener | None,
    ) -> None:
        self.number = number
        self.request = request
        self.output = output
        self.state = state
        self.ended: asyncio.Future[Done | Failed | None] = asyncio.get_running_loop().create_future()
        """None: the executor died."""
        self.company = True
        """Whether the executor may have died for somebody else's doing."""
        self._listener = listener

    def report(self, fraction: float | None, message: str | None) -> None:
        self.state = ActivityProgress(
            executor=self.state.executor,
            fraction=self.state.fraction if fraction is None else fraction,
            message=self.state.message if message is None else message,
            application_id=self.state.application_id,
            job_group=self.state.job_group,
            spark_ui=self.state.spark_ui,
        )
        self.announce()

    def announce(self) -> None:
        if self._listener is None:
            return
        try:
            self._listener(self.state)
        except Exception as error:
            _log.warning(
                "progress_listener_failed", activity=self.request.name, error=f"{type(error).__name__}: {error}"
            )

    def end(self, answer: Done | Failed | None) -> None:
        if not self.ended.done():
            self.ended.set_result(answer)


class Executor:
    """One executor process and the attempts that it carries.

    :param configure: what it is told first. :param warden: told when there is something to kill, and when not any more.
    :param logs: takes its attempts' output, and its own under ``log``.
    :param environment: variables of the process; None for those of this one.
    """

    def __init__(
        self,
        configure: Configure,
        *,
        warden: Warden,
        logs: LogSink,
        log: str,
        clock: Clock,
        times: ExecutorTimes,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = configure.name
        self.ended = asyncio.Event()
        self.load = 0
        """Attempts assigned; counted by who assigns them."""
        self.alone = False
        """Whether the newest of them has no company; set by who assigns it."""
        self.ready: Ready | None = None
        self._configure = configure
        self._environment = environment
        self._warden = warden
        self._logs = logs
        self._clock = clock
        self._times = times
        self._output = OutputLog(log, logs, clock, limit=configure.max_log)
        self._numbers = itertools.count(1)
        self._attempts: dict[int, _Attempt] = {}
        self._stopping = 0
        self._unanswered = 0
        self._frames: list[bytes] = []
        self._reason: str | None = None
        self._failed: StartFailed | None = None
        self._process: ChildProcess | None = None
        self._started: asyncio.Future[Ready] | None = None
        self._supervisor = Supervisor(clock)
        self._life: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def eligible(self) -> bool:
        """Takes new attempts: ready, alive, and not about to be killed because an attempt does not stop."""
        alive = self._process is not None and self._process.alive
        return self.ready is not None and alive and not self._stopping and self._reason is None

    async def start(self) -> Ready:
        """Start the process and wait until it is ready.

        :raises ExecutorError: saying why it is not; nothing of it runs then.
        """
        try:
            await self._spawn()
            return await self._get_ready()
        except BaseException:
            await self.kill("was killed because its start was given up")
            raise

    async def _spawn(self) -> None:
        self._process = await launch(lock_fd=self._configure.lock_fd, environment=self._environment)
        self._warden.watch(self._process.pid)
        self._started = asyncio.get_running_loop().create_future()
        self._life = self._supervisor.spawn(self._live(self._process), name=f"executor {self.name}")

    async def _get_ready(self) -> Ready:
        assert self._started is not None
        await self._send(self._configure)
        if not await within(self._clock, self._started, self._times.start):
            seconds = self._times.start.total_seconds()
            await self.kill(f"was not ready within {seconds:g} s")
            self._started.cancel()
            raise ExecutorError(f"executor {self.name} was not ready within {seconds:g} s{self._last_words()}")
        self.ready = self._started.result()
        return self.ready

    async def run(self, request: ActivityRequest, listener: ProgressListener | None) -> ActivityOutcome:
        """Run an attempt to its end. Cancelling this asks it to stop and ends only when nothing of it runs; a second
        cancellation kills at once."""
        attempt = self._take(request, listener)
        try:
            await self._send(self._order(attempt))
            if await within(self._clock, attempt.ended, request.timeout):
                return await self._outcome(attempt)
            await self._stop(attempt, "ran out of its time")
            return await self._timed_out(attempt)
        except asyncio.CancelledError:
            await self._stop(attempt, "was cancelled")
            await attempt.output.close()
            raise
        finally:
            self._attempts.pop(attempt.number, None)

    async def kill(self, reason: str) -> None:
        """Kill the executor with everything in its session, and wait until that is done.

        :param reason: continues "executor X …" in what its attempts are told.
        """
        self._condemn(reason)
        if self._life is not None:
            await asyncio.shield(self._life)

    # attempts

    def _take(self, request: ActivityRequest, listener: ProgressListener | None) -> _Attempt:
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
        attempt = _Attempt(number, request, output, state, listener)
        self._attempts[attempt.number] = attempt
        if self.ended.is_set():
            attempt.end(None)
        attempt.announce()
        return attempt

    def _order(self, attempt: _Attempt) -> Run:
        request = attempt.request
        return Run(
            number=attempt.number,
            name=request.name,
            instance_id=request.instance.instance_id,
            execution_id=request.instance.execution_id,
            task_id=request.task_id,
            action_id=request.action_id,
            attempt=request.attempt,
            tags=dict(request.tags or {}),
            job_group=attempt.state.job_group or "",
            has_input=request.input is not None,
            trace_parent=request.trace.trace_parent if request.trace else None,
            trace_state=request.trace.trace_state if request.trace else None,
            body=(request.input or "").encode(),
        )

    async def _stop(self, attempt: _Attempt, why: str) -> None:
        """Ask an attempt to stop; after the grace kill the executor. Meanwhile it gets no new ones, which would die
        with it.
        """
        self._stopping += 1
        try:
            if attempt.ended.done():
                return
            await self._send(Cancel(number=attempt.number))
            if not await within(self._clock, attempt.ended, self._times.grace):
                await self._kill_for(attempt, f"{why} and did not stop in {self._times.grace.total_seconds():g} s")
        except asyncio.CancelledError:
            await self._kill_for(attempt, f"{why} at once")
            raise
        finally:
            self._stopping -= 1

    async def _kill_for(self, attempt: _Attempt, why: str) -> None:
        await self.kill(f"was killed because activity {attempt.request.name!r} {why}")
        await asyncio.shield(attempt.ended)

    async def _outcome(self, attempt: _Attempt) -> ActivityOutcome:
        await attempt.output.close()
        match attempt.ended.result():
            case Done(body=body):
                return self._end(attempt, result=body.decode())
            case Failed(failure=failure):
                return self._end(attempt, failure=failure)
            case None:
                failure = FailureDetails(
                    error_type="ExecutorCrashed",
                    error_message=f"executor {self.name}, running activity {attempt.request.name!r}, {self._reason}",
                )
                return self._end(attempt, failure=failure, crashed=True, shared=attempt.company)

    async def _timed_out(self, attempt: _Attempt) -> ActivityOutcome:
        await attempt.output.close()
        timeout = attempt.request.timeout or timedelta()
        killed = attempt.ended.result() is None
        text = (
            f"activity {attempt.request.name!r} ran longer than its timeout of {timeout.total_seconds():g} s and was "
            + ("killed with its executor" if killed else "stopped")
        )
        return self._end(attempt, failure=FailureDetails(error_type="TimeoutError", error_message=text))

    def _end(
        self,
        attempt: _Attempt,
        *,
        result: str | None = None,
        failure: FailureDetails | None = None,
        crashed: bool = False,
        shared: bool = False,
    ) -> ActivityOutcome:
        return ActivityOutcome(
            result=result,
            failure=failure,
            crashed=crashed,
            shared=shared,
            log_tail=attempt.output.tail,
            executor=self.name,
            application_id=attempt.state.application_id,
            job_group=attempt.state.job_group,
            spark_ui=attempt.state.spark_ui,
        )

    # the process

    async def _send(self, message: Message) -> None:
        """Errors of a socket whose process is gone are not told here: its end is, to all attempts.

        A process that does not read keeps the next sender waiting: what this one sends is written after its turn.
        """
        assert self._process is not None
        frame = encode(message)
        if not self._frames:
            asyncio.get_running_loop().call_soon(self._flush, self._process)
        self._frames.append(frame)
        with contextlib.suppress(ConnectionError):
            await self._process.writer.drain()

    def _flush(self, process: ChildProcess) -> None:
        """What was sent in one turn of the loop goes in one piece: each piece wakes the process."""
        frames, self._frames = self._frames, []
        if not process.writer.is_closing():
            process.writer.write(b"".join(frames))

    async def _live(self, process: ChildProcess) -> None:
        """From the start of the process to its end. Even after a defect here, its attempts learn that it has ended."""
        code = -signal.SIGKILL
        try:
            code = await self._serve(process)
        except Exception:  # whatever it is: the attempts of this executor must end
            _log.exception("executor_defect", executor=self.name)
            self._condemn("was killed because its worker met a defect")
        await self._finish(code)

    async def _serve(self, process: ChildProcess) -> int:
        """:returns: the exit status of the process, once it and its children have ended."""
        reading = self._supervisor.spawn(self._read(process.reader), name=f"read {self.name}")
        output = self._supervisor.keep(f"output {self.name}", lambda: self._read_output(process.output))
        watch = self._supervisor.keep(f"watch {self.name}", lambda: self._watch(process))
        try:
            code = await self._exit_code(process, reading)
            aboard = [attempt for attempt in self._attempts.values() if not attempt.ended.done()]
            for attempt in aboard:
                attempt.company = len(aboard) > 1
            watch.cancel()
            await self._bury(process.pid)
            # What it said before it died is still in the pipes; only a process that escaped the session could keep
            # them open.
            await asyncio.wait({reading, output}, timeout=2)
        finally:
            for task in (watch, reading, output):
                task.cancel()
            await asyncio.gather(watch, reading, output, return_exceptions=True)
            process.close()
        return code

    async def _exit_code(self, process: ChildProcess, reading: asyncio.Task[None]) -> int:
        either: set[asyncio.Future[Any]] = {process.ended, reading}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        # A dying process closes its socket first, and its exit status says more than that; a living one is deaf.
        if not await within(self._clock, process.ended, timedelta(seconds=1) if reading.done() else None):
            self._condemn("was killed because it closed its socket")
        return await process.ended

    async def _bury(self, session: int) -> None:
        """Kill what the dead process left behind, until nothing is left or five seconds have passed."""
        for _ in range(250):
            if not groups.kill(session, leader=False):
                self._warden.forget(session)
                return
            await self._clock.sleep(0.02)
        _log.error("executor_unkillable", executor=self.name, session=session, pids=groups.members(session))

    async def _finish(self, code: int) -> None:
        if self._reason is None:
            self._reason = describe(code) if self._failed is None else f"could not start: {self._failed.reason}"
        self.ended.set()
        if self._started is not None and not self._started.done():
            self._started.set_exception(self._start_error())
            self._started.exception()  # told by start(), or nobody waits for it
        for attempt in tuple(self._attempts.values()):
            attempt.end(None)
        await self._output.close()
        _log.info("executor_ended", executor=self.name, reason=self._reason)

    def _start_error(self) -> ExecutorError:
        """Why it never got ready, told when it is dead and all of its output is here."""
        if self._failed is None:
            return ExecutorError(f"executor {self.name} {self._reason}{self._last_words()}")
        words = self._last_words() if self._failed.see_output else ""
        return ExecutorError(f"{self._failed.reason}{words}", self._failed.stack_trace)

    def _last_words(self) -> str:
        """Raw output (of Java, of an interpreter that did not get far) explains most failures to start."""
        tail = self._output.tail[-10:]
        return "; its last output was:\n" + "\n".join(tail) if tail else ""

    @property
    def reason(self) -> str:
        """Why it ended."""
        return self._reason or "runs"

    async def _read(self, reader: asyncio.StreamReader) -> None:
        decoder = Decoder()
        try:
            while data := await reader.read(256 * 1024):
                self._unanswered = 0
                for message in decoder.feed(data):
                    self._handle(message)
        except InputError as error:
            self._condemn(f"spoke garbage ({error})")
        except ConnectionError:
            pass

    def _condemn(self, reason: str) -> None:
        """Kill a process that is of no use, if it still runs; :meth:`_live` does the rest."""
        if self._process is not None and self._process.alive:
            self._reason = self._reason or reason
            groups.kill(self._process.pid)

    async def _read_output(self, stream: asyncio.StreamReader) -> None:
        """What the process's children and Java write, and Python below ``sys.stdout``: the executor's own log, and the
        attempt's while there is only one that can have written it."""
        while data := await stream.read(64 * 1024):
            self._output.add(data)
            if len(self._attempts) == 1:
                next(iter(self._attempts.values())).output.add(data)

    def _handle(self, message: Message) -> None:
        match message:
            case Ready():
                self._set_ready(message)
            case StartFailed():
                self._failed = message
            case Dying(reason=reason):
                self._reason = self._reason or f"ended: {reason}"
            case Log(number=number, body=body) if number in self._attempts:
                self._attempts[number].output.add(body)
            case Progress(number=number) if number in self._attempts:
                self._attempts[number].report(message.fraction, message.message)
            case Done(number=number) | Failed(number=number) if number in self._attempts:
                self._attempts[number].end(message)
            case Pong() | Log() | Progress() | Done() | Failed():
                pass  # the last three: of an attempt that nobody waits for any more
            case _:
                raise InputError(f"a host takes no {type(message).__name__} message")

    def _set_ready(self, ready: Ready) -> None:
        if self._started is not None and not self._started.done():
            self._started.set_result(ready)

    async def _watch(self, process: ChildProcess) -> None:
        """Ping; kill after too many pings without a sign of life. Counted in pings, not in time: a host that was
        stopped itself (a laptop's lid) must not blame its executors."""
        allowed = max(1, round(self._times.silence / self._times.ping))
        while True:
            await self._clock.sleep(self._times.ping.total_seconds())
            if self.ready is None:
                continue
            if self._unanswered >= allowed:
                self._condemn(
                    f"was killed because it gave no sign of life for {self._times.silence.total_seconds():g} s"
                )
                return
            self._unanswered += 1
            # Without waiting for room: a process that does not read must not stop its own watch.
            if not process.writer.is_closing():
                process.writer.write(encode(Ping()))


async def within(clock: Clock, future: asyncio.Future[Any], timeout: timedelta | None) -> bool:
    """Wait for a future, which is left alone.

    :returns: whether it was done in time.
    """
    if timeout is None:
        await asyncio.shield(future)
        return True
    async with owned() as start:
        alarm = start(clock.sleep(timeout.total_seconds()))
        await asyncio.wait({future, alarm}, return_when=asyncio.FIRST_COMPLETED)
    return future.done()
