"""Real worker processes and the real command line over one hub."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.settings import EMBEDDED_LEASE, LeaseTimes, Settings
from tests.e2e.forked import Commands
from tests.waiting import PATIENCE, until

TASKHUB = [str(Path(sys.executable).with_name("taskhub"))]
APP = "house_app:app"


@dataclass(slots=True)
class Worker:
    """A worker process."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def ready(self) -> Worker:
        until(f"{self.name} ready", lambda: "worker_ready" in self.text() or self.process.poll() is not None)
        assert self.process.poll() is None, self.text()
        return self

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)

    def end(self) -> int:
        """SIGTERM; returns its exit status."""
        self.send(signal.SIGTERM)
        return self.process.wait(PATIENCE)


@dataclass(slots=True)
class House:
    """A hub of its own, and the processes that serve it."""

    folder: Path
    connection: str
    hub: str
    workers: list[Worker] = field(default_factory=list)
    lease: LeaseTimes = EMBEDDED_LEASE
    partitions: int = 4
    lease_store: Literal["table", "blob"] | None = None
    """Of the hub that the client makes; workers find it as it is."""
    commands: Commands | None = None
    """Runs commands without a start of Python for each; None: each is started as a user starts it."""

    @property
    def settings(self) -> Settings:
        return Settings(
            hub=self.hub,
            connection=self.connection,
            lease=self.lease,
            partitions=self.partitions,
            lease_store=self.lease_store,
            max_polling=timedelta(seconds=0.5),
        )

    @property
    def environment(self) -> dict[str, str]:
        lease = {f"TASKHUB_LEASE__{name.upper()}": f"PT{value.total_seconds():g}S" for name, value in self.lease}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TASKHUB_")}
        return (
            kept
            | lease
            | {
                "PYTHONPATH": os.pathsep.join(filter(None, (str(Path(__file__).parent), kept.get("PYTHONPATH")))),
                "TASKHUB_HOME": str(self.folder),
                "TASKHUB_HUB": self.hub,
                "TASKHUB_CONNECTION": self.connection,
                "TASKHUB_MAX_POLLING": "PT0.5S",
                "EFFECTS": str(self.folder / "effects"),
            }
        )

    def worker(self, name: str, *options: str, app: str = APP, **environment: str) -> Worker:
        log = self.folder / f"{name}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*TASKHUB, "worker", "--app", app, "--name", name, *options],
                env=self.environment | {"WORKER": name} | environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
        worker = Worker(name, process, log)
        self.workers.append(worker)
        return worker

    def command(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """One command of the CLI, to its end."""
        env = self.environment | {"COLUMNS": "200", "NO_COLOR": "1"} | environment
        if self.commands is not None and arguments[0] != "worker":
            return self.commands.run(arguments, env)
        return subprocess.run([*TASKHUB, *arguments], env=env, capture_output=True, text=True, timeout=PATIENCE)

    def json(self, *arguments: str, status: int = 0) -> Any:
        """What a command prints with ``--json``."""
        done = self.command(*arguments, "--json")
        assert done.returncode == status, done.stdout + done.stderr
        return json.loads(done.stdout)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with Client.open(self.settings, create=True) as client:
            yield client

    def effects(self) -> list[str]:
        path = self.folder / "effects"
        return path.read_text().splitlines() if path.exists() else []

    def let_go(self, number: int) -> None:
        """Let the activity ``held`` with this number end."""
        self.folder.joinpath(f"effects.go-{number}").touch()

    def port(self, worker: Worker) -> int:
        found = until("a health port", lambda: re.search(r"health_port\b.*?port=(\d+)", worker.text()))
        return int(found[1])


@contextmanager
def housed(folder: Path, connection: str, hub: str, commands: Commands | None = None) -> Iterator[House]:
    house = House(folder, connection, hub, commands=commands)
    try:
        yield house
    finally:
        for worker in house.workers:
            if worker.process.poll() is None:
                worker.send(signal.SIGCONT)
                worker.kill()
