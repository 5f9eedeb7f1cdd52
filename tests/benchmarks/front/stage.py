"""One running Airflow with a hub and its worker, and the measurement of one run of a DAG in it."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil

from tests.airflow.real import START, RealAirflow
from tests.benchmarks.front.figures import WORKLOADS, Run, Workload, changes, slot_seconds
from tests.waiting import until

HERE = Path(__file__).parent
PARALLEL = 32
"""Airflow's ``[core] parallelism``: its worker slots."""
_SAMPLE = 0.2
"""Seconds between two looks at the slots in use."""
_LINGER = 20.0
"""Seconds after a run in which its last worker slots must be free."""
_EXECUTOR = "airflow worker -- LocalExecutor"
_IDLE = "<idle>"
_DEFAULTS = (
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME",
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD",
)
"""Settings of the tests' Airflow that are Airflow's defaults here."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Seconds of CPU since the start of the processes, and requests to the hub."""

    cpu: Mapping[str, float]
    requests: Mapping[str, int]

    def since(self, before: Usage) -> Usage:
        """Return what was used after an earlier reading."""
        cpu = {role: now - before.cpu.get(role, 0.0) for role, now in self.cpu.items()}
        return Usage(cpu, {role: now - before.requests.get(role, 0) for role, now in self.requests.items()})


class Stage(RealAirflow):
    """Airflow with its default settings as far as they decide about speed. All apps and DAGs are the benchmark's."""

    apps = ("tests.benchmarks.app:app",)
    dag_count = len(WORKLOADS)

    def __init__(self, home: Path, *, postgres: bool, dags: Path = HERE / "dags") -> None:
        self._dags, self._counts = dags, home / "requests"
        self._counts.mkdir()
        super().__init__(home, postgres=postgres)

    def _environment(self) -> dict[str, str]:
        found = {name: value for name, value in super()._environment().items() if name not in _DEFAULTS}
        bundle = "airflow.dag_processing.bundles.local.LocalDagBundle"
        bundles = [{"name": "dags", "classpath": bundle, "kwargs": {"path": str(self._dags)}}]
        return found | {
            "AIRFLOW__CORE__PARALLELISM": str(PARALLEL),
            "AIRFLOW__CORE__MAX_ACTIVE_TASKS_PER_DAG": str(PARALLEL),
            "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles),
            # One API server answers 32 tasks at once in up to 40 threads, and some requests need two connections.
            # With Airflow's default of 15 connections, all of them may wait for each other, for 30 s.
            "AIRFLOW__DATABASE__SQL_ALCHEMY_POOL_SIZE": "45",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.home}/airflow.db?timeout=60",
            "PYTHONPATH": f"{HERE / 'counting'}:{HERE / 'floor'}",
            "BENCH_REQUESTS": str(self._counts),
        }

    def set_heartbeat(self, seconds: int) -> None:
        """Restart the scheduler with another ``[workers] min_heartbeat_interval``, if it is another."""
        name = "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL"
        if self.env[name] == str(seconds):
            return
        scheduler = self.processes["scheduler"]
        scheduler.stop()
        self.env[name] = scheduler.env[name] = str(seconds)
        scheduler.start()
        until("a healthy Airflow", self.healthy, seconds=START)

    def measure(self, workload: Workload, *, heartbeat: int, repetition: int, deadline: float) -> Run:
        """Run a workload once. A run that has not ended at the deadline is marked failed, and so are its open tasks.

        :param deadline: seconds from the trigger of the run.
        """
        self.set_heartbeat(heartbeat)
        before = self.usage()
        with self._sampling() as samples:
            run_id = self.trigger(workload.dag)
            path = f"/api/v2/dags/{workload.dag}/dagRuns/{quote(run_id)}"
            ended = self._ended(path, time.monotonic() + deadline)
            self._wait_for_free_slots()
        used = self.usage().since(before)
        tasks = self._tasks(path, workload.tasks)
        return Run(
            workload=workload.name,
            heartbeat=heartbeat,
            repetition=repetition,
            seconds=_between(ended["queued_at"], ended["end_date"]) if ended else deadline,
            tasks=workload.tasks,
            succeeded=sum(task["state"] == "success" for task in tasks),
            in_workers=sum(task["pid"] is not None for task in tasks),
            most_slots=max((slots for _, slots in samples), default=0),
            slot_seconds=slot_seconds(samples),
            slots=changes(samples),
            requests=used.requests,
            cpu=used.cpu,
        )

    def keep_logs(self, folder: Path) -> Path:
        """Copy the logs of all processes of this Airflow, so that a failed run can be explained later."""
        folder.mkdir(parents=True, exist_ok=True)
        for log in self.home.glob("*.out"):
            shutil.copy(log, folder)
        return folder

    def ended(self) -> list[str]:
        """Return the names of the processes that have ended, though nobody has stopped them."""
        return [name for name, one in self.processes.items() if one.process.poll() is not None]

    def _ended(self, path: str, deadline: float) -> dict[str, Any] | None:
        """Return the run once it has ended; None: it has not ended at the deadline, and is marked failed now."""
        while time.monotonic() < deadline:
            time.sleep(0.5)
            answer = self.request("GET", path)
            found = answer.json() if answer.status_code == 200 else {}  # 500: SQLite is locked, ask again
            if found.get("state") in ("success", "failed"):
                return dict(found)
        self.request("PATCH", path, json={"state": "failed"})
        return None

    def _tasks(self, path: str, count: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for offset in range(0, count, 100):
            page = until("the tasks", lambda offset=offset: self._page(path, offset))  # type: ignore[misc]  # bound now
            found += page["task_instances"]
        return found

    def _page(self, path: str, offset: int) -> Any:
        answer = self.request("GET", f"{path}/taskInstances", params={"limit": 100, "offset": offset})
        return answer.json() if answer.status_code == 200 else None

    # looking at processes

    def usage(self) -> Usage:
        """Read the CPU of all processes, and the counts of requests to the hub."""
        cpu = {
            {"worker": "hub worker", "postgres": "database"}.get(name, name): tree_cpu(psutil.Process(each.process.pid))
            for name, each in self.processes.items()
        }
        cpu["tasks"] = sum(map(tree_cpu, self.executors()))
        cpu["scheduler"] -= cpu["tasks"]
        return Usage(cpu, {file.name: file.stat().st_size for file in self._counts.iterdir()})

    def executors(self) -> list[psutil.Process]:
        """Return the processes of Airflow's ``LocalExecutor``. Each runs one task at a time."""
        scheduler = psutil.Process(self.processes["scheduler"].process.pid)
        return [child for child in scheduler.children() if _EXECUTOR in title(child)]

    def slots(self) -> int:
        """Return the number of worker slots in use."""
        return sum(_IDLE not in title(one) for one in self.executors())

    @contextmanager
    def _sampling(self) -> Iterator[list[tuple[float, int]]]:
        """Look at the slots in use until the end of the block."""
        samples: list[tuple[float, int]] = []
        with repeating(lambda: samples.append((time.monotonic(), self.slots())), _SAMPLE):
            yield samples

    def _wait_for_free_slots(self) -> None:
        """Airflow's supervisors linger after their tasks: these are slots in use, too."""
        until("free slots", lambda: not self.slots(), seconds=_LINGER)


@contextmanager
def repeating(look: Callable[[], None], pause: float) -> Iterator[None]:
    """Call a function again and again in a thread until the end of the block. Its error ends the block.

    :param pause: seconds between two calls.
    """
    over, errors = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            look()
            while not over.wait(pause):
                look()
            look()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="sampling")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if errors:
        raise errors[0]


def title(process: psutil.Process) -> str:
    """Return the title that a process gave itself; "" if it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def tree_cpu(process: psutil.Process) -> float:
    """Return the seconds of CPU of a process and of all its descendants, also of those that have ended."""
    total = 0.0
    for one in [process, *process.children(recursive=True)]:
        try:
            times = one.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def _between(began: str, ended: str) -> float:
    return (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds()
