"""One executor process and the connection to it, seen from the host: start, send, receive, watch, kill.

Knows messages as frames, not what they are for: an :class:`Observer` takes them. When the process ends, for whatever
reason, everything in its session is killed, and only then the observer learns that it is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
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
from airflow_provider_taskhub.workers.executors.protocol import Decoder, Message, Ping, encode, joined
from airflow_provider_taskhub.workers.executors.reaper import Reaper
from airflow_provider_taskhub.workers.executors.spawn import ChildProcess, describe, launch

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorTimes:
    """How patient a host is with its executors.

    :param start: until an executor is ready; Spark takes 5 s alone, and half a minute on a machine that is busy.
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


class Observer(Protocol):
    """Who uses an executor process."""

    def received(self, message: Message) -> None:
        """A message of the process. :raises InputError: for one that a host does not take; the process is killed."""

    def wrote(self, data: bytes) -> None:
        """Raw output of the process and its children, beside its messages."""

    def exited(self) -> None:
        """The process has just ended; its children and its last output may not have."""

    async def gone(self) -> None:
        """Nothing of the process runs any more."""


class ExecutorProcess:
    """A process with everything in its session.

    :param name: of the executor, for logs. :param reaper: kills the session if the host dies.
    :ivar answers_pings: set once the process is ready: silence kills it from then on.
    :ivar reason: why it ends or has ended, as far as the host knows; continues "executor X …".
    """

    def __init__(self, name: str, observer: Observer, *, reaper: Reaper, times: ExecutorTimes, clock: Clock) -> None:
        self.answers_pings = False
        self.reason: str | None = None
        self._name, self._observer = name, observer
        self._reaper, self._times, self._clock = reaper, times, clock
        self._frames: list[bytes] = []
        self._unanswered = 0
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
        """:raises OSError: when the machine has no room for it."""
        self._child = await launch(lock_fd=lock_fd, environment=environment)
        self._reaper.watch(self._child.pid)
        self._life = self._supervisor.spawn(self._live(self._child), name=f"executor {self._name}")

    async def send(self, message: Message) -> None:
        """Errors of a socket whose process is gone are not raised here: the observer learns that it is gone.

        If a process does not read, its next sender waits; what this one sends is written after its turn.
        """
        assert self._child is not None
        frame = encode(message)
        if not self._frames:
            asyncio.get_running_loop().call_soon(self._flush, self._child)
        self._frames.extend(frame)
        with contextlib.suppress(ConnectionError):
            await self._child.writer.drain()

    def _flush(self, child: ChildProcess) -> None:
        """Write what was sent in one turn of the loop in one piece: each piece wakes the process."""
        frames, self._frames = self._frames, []
        if not child.writer.is_closing():
            for piece in joined(frames):
                child.writer.write(piece)

    def blame(self, reason: str) -> None:
        """Remember why it ends; the first reason counts."""
        self.reason = self.reason or reason

    def condemn(self, reason: str) -> None:
        """Kill the process with everything in its session, if it still runs. Does not wait for its end."""
        if self._child is not None and self._child.alive:
            self.blame(reason)
            process_session.kill(self._child.pid)

    async def kill(self, reason: str) -> None:
        """As :meth:`condemn`, and wait until nothing of it runs."""
        self.condemn(reason)
        if self._life is not None:
            await asyncio.shield(self._life)

    # its life

    async def _live(self, child: ChildProcess) -> None:
        """From the start of the process to its end. Even after a defect here, the observer learns that it has ended."""
        code = -signal.SIGKILL
        try:
            code = await self._serve(child)
        except Exception:  # whatever it is: the attempts of this executor must end
            _log.exception("executor_defect", executor=self._name)
            self.condemn("was killed because its worker met a defect")
        self.blame(describe(code))
        await self._observer.gone()
        _log.info("executor_ended", executor=self._name, reason=self.reason)

    async def _serve(self, child: ChildProcess) -> int:
        """:returns: the exit status of the process, once it and its children have ended."""
        reading = self._supervisor.spawn(self._read(child.reader), name=f"read {self._name}")
        output = self._supervisor.keep(f"output {self._name}", lambda: self._read_output(child.output))
        watch = self._supervisor.keep(f"watch {self._name}", lambda: self._watch(child))
        try:
            code = await self._exit_code(child, reading)
            self._observer.exited()
            watch.cancel()
            await self._bury(child.pid)
            # What it said before it died is still in the pipes. Only a process that left the session could keep them
            # open.
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
        # A dying process closes its socket first, and its exit status says more than that; a living one is deaf.
        if not await within(child.ended, timedelta(seconds=1) if reading.done() else None):
            self.condemn("was killed because it closed its socket")
        return await child.ended

    async def _bury(self, session: int) -> None:
        """Kill what the dead process left behind, until nothing is left or five seconds have passed."""
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
            self.condemn(f"spoke garbage ({error})")
        except ConnectionError:
            pass

    async def _read_output(self, stream: asyncio.StreamReader) -> None:
        while data := await stream.read(64 * 1024):
            self._observer.wrote(data)

    async def _watch(self, child: ChildProcess) -> None:
        """Ping; kill after too many pings without a sign of life. Counted in pings, not in time: a host that was
        stopped itself (a laptop's lid) must not blame its executors."""
        allowed = max(1, round(self._times.silence / self._times.ping))
        while True:
            await self._clock.sleep(self._times.ping.total_seconds())
            if not self.answers_pings:
                continue
            if self._unanswered >= allowed:
                self.condemn(
                    f"was killed because it gave no sign of life for {self._times.silence.total_seconds():g} s"
                )
                return
            self._unanswered += 1
            # Without waiting for room: a process that does not read must not stop its own watch.
            if not child.writer.is_closing():
                child.writer.writelines(encode(Ping()))


async def within(future: asyncio.Future[Any], timeout: timedelta | None) -> bool:
    """Wait for a future, without cancelling it and without raising its error.

    :returns: whether it was done in time.
    """
    done, _ = await asyncio.wait({future}, timeout=None if timeout is None else timeout.total_seconds())
    return bool(done)
