"""A fresh hub with one worker process on it, started as users start it; gone without a trace at the end."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.request import urlopen

import psutil

from airflow_provider_taskhub.cli.azurite import Azurite
from airflow_provider_taskhub.cli.processes import Child, Processes
from airflow_provider_taskhub.settings import Settings, load_settings

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
    """The worker's counters at one moment. :param requests: by kind, as /metrics has them. :param cpu: seconds."""

    requests: Counter[str]
    cpu: float
    at: float


class Stage:
    """A context manager. :param store: ``embedded`` or ``azurite``.

    Settings are the defaults: whatever the environment says of TaskHub is left out.
    """

    def __init__(self, store: str) -> None:
        self.store = store
        self._stack = ExitStack()
        self._connection: str | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.home = Path(tempfile.mkdtemp(prefix="taskhub-bench-"))
            stack.callback(shutil.rmtree, self.home, ignore_errors=True)
            stack.enter_context(_without_settings({f"{PREFIX}HOME": str(self.home)}))
            if self.store == EMULATOR:
                self._connection = stack.enter_context(Azurite(AZURITE)).connection
                os.environ[f"{PREFIX}CONNECTION"] = self._connection
            processes = stack.enter_context(Processes(self.home / "logs"))
            self._worker = self._start(processes)
            self._port = self._wait_until_ready()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def settings(self) -> Settings:
        return load_settings()

    def _start(self, processes: Processes) -> Child:
        command = [str(Path(sys.executable).with_name("taskhub")), "worker", "--app", "tests.benchmarks.app:app"]
        # port 0: the worker's log says which one it got, so that no other process can take it between
        return processes.start("worker", [*command, "--health-port", "0", "--log-json"], env={}, cwd=ROOT)

    def _wait_until_ready(self) -> int:
        deadline = time.monotonic() + READY
        port = 0
        while time.monotonic() < deadline:
            self.check()
            port = port or next((line["port"] for line in self.log() if line.get("event") == "health_port"), 0)
            if port and f"taskhub_partitions_owned {self.settings.partitions}\n" in _fetch(port):
                return port
            time.sleep(0.1)
        raise BenchError(f"the worker was not ready within {READY:g} s\n{self._worker.tail()}")

    def check(self) -> None:
        """:raises BenchError: when the worker has ended."""
        if not self._worker.alive:
            raise BenchError(f"the worker ended with {self._worker.process.returncode}\n{self._worker.tail()}")

    # looking

    def tail(self) -> str:
        """The last lines of the worker's log."""
        return self._worker.tail()

    def log(self) -> Iterator[Mapping[str, Any]]:
        """The worker's log; a line that is no JSON (of a library, of Python) counts as a warning."""
        for line in self._worker.log.read_text(errors="replace").splitlines():
            try:
                found = json.loads(line)
            except ValueError:
                found = None
            yield found if isinstance(found, dict) else {"level": "warning", "event": line}

    def complaints(self) -> list[str]:
        """Warnings and errors of the worker: a benchmark over failures measures failures."""
        return [json.dumps(line) for line in self.log() if line.get("level") not in ("info", "debug")]

    async def reading(self) -> Reading:
        """The counters now."""
        self.check()
        text = await asyncio.to_thread(_fetch, self._port)
        return Reading(requests=_requests(text), cpu=self._cpu(), at=time.monotonic())

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

    def _cpu(self) -> float:
        """Seconds of the worker and its executors so far."""
        worker = psutil.Process(self._worker.pid)
        total = 0.0
        for process in (worker, *worker.children(recursive=True)):
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system
        return total


def _writes(requests: Counter[str]) -> int:
    return sum(count for kind, count in requests.items() if kind in ("queue.put", "queue.delete", "table.batch"))


def _fetch(port: int) -> str:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:  # loopback, ours
        return str(response.read().decode())


def _requests(text: str) -> Counter[str]:
    """``taskhub_storage_requests_total{kind="queue.put"} 12`` → queue.put: 12."""
    head = 'taskhub_storage_requests_total{kind="'
    pairs = (line.removeprefix(head).split('"} ') for line in text.splitlines() if line.startswith(head))
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
