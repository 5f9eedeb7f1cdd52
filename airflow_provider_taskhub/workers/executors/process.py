"""Starts one executor process, exchanges messages with it, watches it, and kills it. It runs in the worker's host.

This module does not know what the messages mean: it passes them to an :class:`Observer`. When the process ends, for
any reason, all other processes of its session are killed. Only then :meth:`Observer.gone` is called.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import structlog

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.supervision import Supervisor
from airflow_provider_taskhub.workers.executors import process_session
from airflow_provider_taskhub.workers.executors.protocol import Decoder, ExecutorMessage, Ping, encode, joined
from airflow_provider_taskhub.workers.executors.reaper import Reaper
from airflow_provider_taskhub.workers.executors.spawn import ChildProcess, describe, launch

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorLimits:
    """When an executor that still works is ended, for example because its libraries lose memory.

    After too many activities, or with too much memory, another one takes its place. The new one is ready before the old
    one gets no more attempts, and the attempts of the old one run to their end.

    :param activities: number of attempts that one executor may begin; 0: any number.
    :param memory: resident memory of all processes of an executor, in bytes, above which it is replaced; None: any
        size.
    :param idle: how long a Spark executor may have no attempt before it is ended; the next attempt starts another one.
        None: any time.
    """

    activities: int = 0
    memory: int | None = None
    idle: timedelta | None = None


UNLIMITED = ExecutorLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorTimes:
    """Time limits of a host for its executors.

    :param start: an executor that is not ready after this time is killed. Spark needs 5 s on an idle machine and half
        a minute on a busy one.
    :param ping: time between two pings.
    :param silence: an executor that has sent nothing for this time is killed. User code that holds the GIL looks like
        a hung process, so the default is a minute.
    :param grace: time between the request to stop an attempt and the kill of its executor.
    :param patience: how long an activity waits for an executor while all starts fail; then the activity fails. The
        starts are repeated meanwhile, with growing pauses.
    """

    start: timedelta = timedelta(seconds=120)
    ping: timedelta = timedelta(seconds=5)
    silence: timedelta = timedelta(seconds=60)
    grace: timedelta = timedelta(seconds=10)
    patience: timedelta = timedelta(minutes=5)


class Observer(Protocol):
    """The user of an executor process: :class:`ExecutorProcess` calls these methods."""

    def received(self, message: ExecutorMessage) -> None:
        """Handle a message that the process has sent.

        :raises InputError: if an executor must not send this kind of message; the process is killed then.
        """

    def wrote(self, data: bytes) -> None:
        """Handle raw output that the process or its children wrote to stdout or stderr."""

    def exited(self) -> None:
        """Note that the process has ended. Its children may still run, and its last output may not have arrived."""

    async def gone(self) -> None:
        """Note that the process and its children have ended."""


class ExecutorProcess:
    """An executor process with all processes in its session.

    :param name: name of the executor, for logs.
    :param observer: gets the messages and the output of the process, and learns of its end.
    :param reaper: kills the session if the host dies, and stops it if the host is blocked.
    :ivar answers_pings: set to True when the process is ready. From then on the process is killed if it is silent.
    :ivar reason: why the process ends or has ended, as far as the host knows: the rest of a sentence that begins with
        "executor X". None while the host knows no reason.
    """

    def __init__(self, name: str, observer: Observer, *, reaper: Reaper, times: ExecutorTimes, clock: Clock) -> None:
        self.answers_pings = False
        self.reason: str | None = None
        self._name, self._observer = name, observer
        self._reaper, self._times, self._clock = reaper, times, clock
        self._frames: list[bytes] = []
        self._unanswered = 0
        self._paused_since: float | None = None
        self._paused_before = 0.0
        self._due = math.inf, False
        self._child: ChildProcess | None = None
        self._supervisor = Supervisor(clock)
        self._life: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.alive

    async def start(self, *, lock_fd: int | None, environment: Mapping[str, str] | None) -> None:
        """Start the process.

        :param lock_fd: descriptor of the worker's lock file, which the process keeps open; None: the worker has no lock
            file.
        :param environment: environment variables of the process; None: those of the current process.
        :raises OSError: if the machine cannot start another process.
        """
        self._child = await launch(lock_fd=lock_fd, environment=environment)
        self._reaper.watch(self._child.pid)
        self._life = self._supervisor.spawn(self._live(self._child), name=f"executor {self._name}")

    async def send(self, message: ExecutorMessage) -> None:
        """Send a message to the process.

        No error is raised if the process has ended: :meth:`Observer.gone` reports that. If the process does not read,
        this call or the next one waits for room in the socket's buffer.
        """
        self.post(message)
        assert self._child is not None
        with contextlib.suppress(ConnectionError):
            await self._child.writer.drain()

    def post(self, message: ExecutorMessage) -> None:
        """Do the same as :meth:`send` for a small message, but do not wait for room in the socket's buffer."""
        assert self._child is not None
        frame = encode(message)
        if not self._frames:
            asyncio.get_running_loop().call_soon(self._flush, self._child)
        self._frames.extend(frame)

    def _flush(self, child: ChildProcess) -> None:
        """Write all frames of one turn of the event loop together, because each separate write wakes the process."""
        frames, self._frames = self._frames, []
        if not child.writer.is_closing():
            for piece in joined(frames):
                child.writer.write(piece)

    def note_reason(self, reason: str) -> None:
        """Remember why the process ends. Only the first reason is kept."""
        self.reason = self.reason or reason

    @property
    def paused(self) -> bool:
        """Whether the process and all processes in its session stand still."""
        return self._paused_since is not None

    @property
    def paused_for(self) -> float:
        """Seconds for which the process has stood still, in all pauses together."""
        now = 0.0 if self._paused_since is None else self._clock.monotonic() - self._paused_since
        return self._paused_before + now

    def pause(self, on: bool) -> None:
        """Let the process and all processes in its session stand still, or go on. A paused process needs no pong."""
        if self._child is None or not self._child.alive or on == self.paused:
            return
        if on:
            self._paused_since = min(self._clock.monotonic(), self._due[0])  # at that time the reaper stops it
            process_session.stop(self._child.pid)
        else:
            self._paused_before, self._paused_since, self._unanswered = self.paused_for, None, 0
            process_session.resume(self._child.pid)

    def stop_at(self, due: float, *, kills: bool) -> None:
        """Let the process and all processes in its session stand still from a time on, unless a later call changes it.

        The reaper does it, because the host may be stopped or blocked then.

        :param due: time of ``SYSTEM_CLOCK.monotonic``, in seconds; inf: the process does not stand still; -inf: it does
            already.
        :param kills: True: the processes are killed at ``due``. False: they stand still.
        """
        if self._child is not None and self._child.alive and (due, kills) != self._due:
            self._due = due, kills
            self._reaper.stop_at(self._child.pid, due, kills=kills)

    def begin_kill(self, reason: str) -> None:
        """Kill the process and all processes in its session, if the process still runs. Do not wait for their end."""
        if self._child is not None and self._child.alive:
            self.note_reason(reason)
            process_session.kill(self._child.pid)

    async def kill(self, reason: str) -> None:
        """Kill the process and all processes in its session, and wait until they have ended.

        :param reason: the rest of a sentence that begins with "executor X". It is kept if no reason was known before.
        """
        self.begin_kill(reason)
        if self._life is not None:
            await asyncio.shield(self._life)

    async def _live(self, child: ChildProcess) -> None:
        """Serve the process until its end, then call :meth:`Observer.gone`, also after an error of our own code.

        Without this call the attempts of the executor would never end.
        """
        code = -signal.SIGKILL
        try:
            code = await self._serve(child)
        except Exception:  # whatever the error is, the attempts of this executor must end
            _log.exception("executor_defect", executor=self._name)
            self.begin_kill("was killed because of an internal error in its worker")
        due, kills = self._due
        if kills and due <= self._clock.monotonic():
            self.note_reason("was killed because the records of its attempts were not renewed in time")
        self.note_reason(describe(code))
        await self._observer.gone()
        _log.info("executor_ended", executor=self._name, reason=self.reason)

    async def _serve(self, child: ChildProcess) -> int:
        """Read from the process and watch it until it ends, then kill what is left of its session.

        :returns: the exit status of the process.
        """
        reading = self._supervisor.spawn(self._read(child.reader), name=f"read {self._name}")
        output = self._supervisor.keep(f"output {self._name}", lambda: self._read_output(child.output))
        watch = self._supervisor.keep(f"watch {self._name}", lambda: self._watch(child))
        try:
            code = await self._exit_code(child, reading)
            self._observer.exited()
            watch.cancel()
            await self._kill_leftovers(child.pid)
            # The last output and messages may still be on their way. A process that has left the session could keep the
            # pipe open for ever, so the wait has a limit.
            await asyncio.wait({reading, output}, timeout=2)
        finally:
            for task in (watch, reading, output):
                task.cancel()
            await asyncio.gather(watch, reading, output, return_exceptions=True)
            child.close()
        return code

    async def _exit_code(self, child: ChildProcess, reading: asyncio.Task[None]) -> int:
        either: set[asyncio.Future[Any]] = {child.ended, reading}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        # A dying process closes its socket before its exit status is known, and the exit status is the better reason.
        # A process that lives on without its socket can get no messages any more, so it is killed.
        if not await within(child.ended, timedelta(seconds=1) if reading.done() else None):
            self.begin_kill("was killed because it closed its socket")
        return await child.ended

    async def _kill_leftovers(self, session: int) -> None:
        """Kill the processes that the dead process has left in its session. Repeat it for five seconds at most."""
        for _ in range(250):
            if not process_session.kill(session, leader=False):
                self._reaper.forget(session)
                return
            await self._clock.sleep(0.02)
        _log.error("executor_unkillable", executor=self._name, session=session, pids=process_session.members(session))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        decoder = Decoder()
        try:
            while data := await reader.read(256 * 1024):
                self._unanswered = 0
                for message in decoder.feed(data):
                    self._observer.received(message)
        except InputError as error:
            self.begin_kill(f"was killed because it sent an invalid message ({error})")
        except ConnectionError:
            pass

    async def _read_output(self, stream: asyncio.StreamReader) -> None:
        while data := await stream.read(64 * 1024):
            self._observer.wrote(data)

    async def _watch(self, child: ChildProcess) -> None:
        """Ping the executor process regularly, and kill it after too many pings in a row without any data from it.

        The limit is a number of pings and not a time. If the whole machine was suspended (a closed laptop), much time
        has passed, but the executor process is not at fault.
        """
        allowed = max(1, round(self._times.silence / self._times.ping))
        while True:
            await self._clock.sleep(self._times.ping.total_seconds())
            if not self.answers_pings or self.paused:
                continue
            if self._unanswered >= allowed:
                self.begin_kill(
                    f"was killed because it gave no sign of life for {self._times.silence.total_seconds():g} s"
                )
                return
            self._unanswered += 1
            # Do not wait for room in the socket's buffer: if the process does not read, this loop must go on and kill
            # the process.
            if not child.writer.is_closing():
                child.writer.writelines(encode(Ping()))


async def within(future: asyncio.Future[Any], timeout: timedelta | None) -> bool:
    """Wait for a future that never has an error. The future is not cancelled.

    :param timeout: longest wait; None: no limit.
    :returns: True if the future was done in time.
    """
    if timeout is None:  # the wait for almost every activity: a shield costs a third of asyncio.wait
        await asyncio.shield(future)
        return True
    done, _ = await asyncio.wait({future}, timeout=timeout.total_seconds())
    return bool(done)
