"""A fresh hub with a worker process on it, or several, started as users start them; gone without a trace at the end."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.request import urlopen

import psutil

from airflow_provider_taskhub.demo.azurite import Azurite
from airflow_provider_taskhub.demo.processes import DemoProcess, Processes
from airflow_provider_taskhub.settings import load_settings
from tests.benchmarks.cpu import CLIENT, EXECUTORS, HOST, SERVICE, Usage, usage

ROOT = Path(__file__).parents[2]
AZURITE = ROOT / ".azurite"
EMBEDDED, EMULATOR = "embedded", "azurite"
READY = 120.0
"""Seconds that a worker may take until it serves all partitions."""
SETTLED = 10.0
"""Seconds that deletes behind the last checkpoint may take."""
PREFIX = "TASKHUB_"


class BenchError(Exception):
    """A workload did not come to its end; the text ends with the worker's last lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Counters at one moment.

    :param requests: by kind, as /metrics has them, but for leases. :param cpu: seconds of a worker and its executors.
    :param memory: bytes of a worker that are in memory. :param sessions: instances that it keeps in memory.
    """

    requests: Counter[str]
    cpu: float
    memory: int
    sessions: int
    at: float


class Stage:
    """A context manager. :param store: ``embedded`` or ``azurite``. :param workers: processes.

    Settings are the defaults: whatever the environment says of TaskHub is left out.

    :param app: what the workers serve. :param options: of their command. :param env: variables of theirs.
    """

    def __init__(
        self,
        store: str,
        *,
        workers: int = 1,
        app: str = "tests.benchmarks.app:app",
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.store = store
        self._command = ("worker", "--app", app, *options)
        self._env = dict(env or {})
        self._count = workers
        self._workers: list[DemoProcess] = []
        self._ports: list[int] = []
        self._stack = ExitStack()
        self._service: list[psutil.Process] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.home = Path(tempfile.mkdtemp(prefix="taskhub-bench-"))
            stack.callback(shutil.rmtree, self.home, ignore_errors=True)
            stack.enter_context(_without_settings({f"{PREFIX}HOME": str(self.home)}))
            if self.store == EMULATOR:
                azurite = stack.enter_context(Azurite(AZURITE))
                os.environ[f"{PREFIX}CONNECTION"] = azurite.connection
                self._service = [psutil.Process(azurite.pid)]
            self.settings = load_settings()
            processes = stack.enter_context(Processes(self.home / "logs"))
            self._workers = [self._start(processes, f"worker{number or ''}") for number in range(self._count)]
            self._ports = self._wait_until_ready()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _start(self, processes: Processes, name: str) -> DemoProcess:
        command = [str(Path(sys.executable).with_name("taskhub")), *self._command]
        # port 0: the worker's log says which one it got, so that no other process can take it between
        return processes.start(name, [*command, "--health-port", "0", "--log-json"], env=self._env, cwd=ROOT)

    def _wait_until_ready(self) -> list[int]:
        """The ports of the workers, once all of them serve partitions and every partition is served."""
        deadline = time.monotonic() + READY
        while time.monotonic() < deadline:
            self.check()
            ports = [port for child in self._workers if (port := _port(child))]
            owned = [_gauge(_fetch(port), "taskhub_partitions_owned") for port in ports]
            if len(ports) == self._count and min(owned) > 0 and sum(owned) == self.settings.partitions:
                return ports
            time.sleep(0.1)
        raise BenchError(f"the workers were not ready within {READY:g} s\n{self.tail()}")

    def check(self) -> None:
        """:raises BenchError: when a worker has ended."""
        for child in self._workers:
            if not child.alive:
                raise BenchError(f"the {child.name} ended with {child.process.returncode}\n{child.tail()}")

    # looking

    def tail(self) -> str:
        """The last lines of the workers' logs."""
        return "\n".join(child.tail() for child in self._workers)

    def has_executor(self, kind: str) -> bool:
        """Whether a worker has an executor of a kind, such as ``spark``, that is ready."""
        self.check()
        lines = (line for child in self._workers for line in _log(child))
        return any(line.get("event") == "executor_ready" and line["executor"].startswith(kind) for line in lines)

    def complaints(self) -> list[str]:
        """Warnings and errors of the workers: a benchmark over failures measures failures."""
        lines = (line for child in self._workers for line in _log(child))
        return [json.dumps(line) for line in lines if line.get("level") not in ("info", "debug")]

    @property
    def hosts(self) -> list[int]:
        """Process ids of the workers' hosts."""
        return [child.pid for child in self._workers]

    def usage(self) -> Usage:
        """CPU by process, of the service and of this process too."""
        hosts = [psutil.Process(pid) for pid in self.hosts]
        executors = [child for host in hosts for child in host.children(recursive=True)]
        return usage({HOST: hosts, EXECUTORS: executors, CLIENT: [psutil.Process()], SERVICE: self._service})

    async def reading(self) -> Reading:
        """The counters now, of all workers together."""
        found = await self.readings()
        return Reading(
            requests=sum((each.requests for each in found), Counter()),
            cpu=sum(each.cpu for each in found),
            memory=sum(each.memory for each in found),
            sessions=sum(each.sessions for each in found),
            at=found[-1].at,
        )

    async def readings(self) -> list[Reading]:
        """The counters now, worker by worker."""
        self.check()
        texts = [await asyncio.to_thread(_fetch, port) for port in self._ports]
        return [
            Reading(
                requests=_requests(text),
                cpu=_cpu(child.pid),
                memory=psutil.Process(child.pid).memory_info().rss,
                sessions=int(_gauge(text, "taskhub_sessions")),
                at=time.monotonic(),
            )
            for child, text in zip(self._workers, texts, strict=True)
        ]

    async def settled(self) -> Reading:
        """The counters once nothing is written any more: a client sees an end before its messages are deleted."""
        deadline = time.monotonic() + SETTLED
        before = await self.reading()
        while True:
            await asyncio.sleep(0.3)
            after = await self.reading()
            if _writes(after.requests) == _writes(before.requests) or time.monotonic() > deadline:
                return after
            before = after


def _cpu(pid: int) -> float:
    """Seconds of a worker and its executors so far."""
    worker = psutil.Process(pid)
    total = 0.0
    for process in (worker, *worker.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def _log(child: DemoProcess) -> Iterator[Mapping[str, Any]]:
    """A worker's log; a line that is no JSON (of a library, of Python) counts as a warning."""
    for line in child.log.read_text(errors="replace").splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        yield found if isinstance(found, dict) else {"level": "warning", "event": line}


def _port(child: DemoProcess) -> int:
    """The port of a worker's metrics; 0 until its log says it."""
    return next((line["port"] for line in _log(child) if line.get("event") == "health_port"), 0)


def _writes(requests: Counter[str]) -> int:
    return sum(count for kind, count in requests.items() if kind in ("queue.put", "queue.delete", "table.batch"))


def _fetch(port: int) -> str:
    with urlopen(f"http://127.0.0.1:{port}/metrics?waiting=no", timeout=10) as response:  # loopback, ours
        return str(response.read().decode())


def _gauge(text: str, name: str) -> float:
    line = next(line for line in text.splitlines() if line.startswith(f"{name} "))
    return float(line.removeprefix(f"{name} "))


def _requests(text: str) -> Counter[str]:
    """``taskhub_storage_requests_total{kind="queue.put",part="work"} 12`` → queue.put: 12. Without those for leases."""
    head, tail = 'taskhub_storage_requests_total{kind="', '",part="work"} '
    mine = (line.removeprefix(head) for line in text.splitlines() if line.startswith(head) and tail in line)
    pairs = (line.split(tail) for line in mine)
    return Counter({kind: int(float(count)) for kind, count in pairs})


@contextmanager
def _without_settings(instead: Mapping[str, str]) -> Iterator[None]:
    """The environment without TaskHub's variables but these, until the end of the block."""

    def clear() -> None:
        for name in [name for name in os.environ if name.startswith(PREFIX)]:
            del os.environ[name]

    before = {name: value for name, value in os.environ.items() if name.startswith(PREFIX)}
    clear()
    os.environ.update(instead)
    try:
        yield
    finally:
        clear()
        os.environ.update(before)
