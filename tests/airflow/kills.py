"""``make kills`` and ``make mapped``: what a real Airflow leaves running, and what its own races fail.

Kills: tasks are marked failed, marked success, cleared, and their runs deleted, some seconds after their deferral, with
the triggerer running and stopped. Every instance must be Terminated within a minute; an Airflow that is down ends none.

Mapped: a task is mapped 100 times over orchestrations of 0 to 7 s, several times in a row; none may fail. The triggerer
starts the tasks in one half of the runs, workers in the other half.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import quote

import httpx

from tests.airflow.real import RealAirflow, started
from tests.waiting import until

KINDS = ("failed", "success", "cleared", "run deleted")
DELAYS = (0.0, 1.0, 3.0, 10.0)
LIMIT = 60.0
"""Seconds in which an instance that nobody waits for must be Terminated."""
DOWN = 60.0
"""Seconds for which Airflow is down."""
_PATIENCE = 240.0
_MAPPED_ON_SQLITE = {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "sqlite:///{home}/airflow.db?timeout=60"}
"""A longer timeout than in the other tests: the load of 100 mapped tasks holds the database for longer, and the
triggerer would end with "database is locked"."""


@dataclass
class Kill:
    """One task that is killed. Times are of this process's monotonic clock."""

    kind: str
    delay: float
    triggerer: bool
    run: str
    deferred: float | None = None
    done: float | None = None
    seconds: float | None = None
    status: str = ""

    @property
    def instance(self) -> str:
        return f"open:hub:{self.run}:g1"

    @property
    def held(self) -> bool:
        return self.seconds is not None and self.seconds <= LIMIT

    def __str__(self) -> str:
        return f"{self.seconds:.1f}" if self.seconds is not None else f"! {self.status or 'unknown'}"


def kills(real: RealAirflow, *, kinds: Sequence[str], delays: Sequence[float], triggerer: bool) -> list[Kill]:
    """Start a task for each kind and delay, kill it that long after its deferral, and time the end of its instance."""
    cases = [
        Kill(kind=kind, delay=delay, triggerer=triggerer, run=real.trigger("open"))
        for delay, kind in itertools.product(delays, kinds)
    ]
    deadline = time.monotonic() + _PATIENCE
    while any(case.seconds is None for case in cases) and time.monotonic() < deadline:
        states = _states(real)
        for case in cases:
            _step(real, case, states)
        time.sleep(0.1)
    for case in cases:
        if case.kind == "cleared":
            newer = case.instance[:-1] + "2"
            until(
                "the newer generation runs",
                lambda newer=newer: _status(real, newer) == "Running",  # type: ignore[misc]  # bound now
                seconds=LIMIT,
            )
            real.taskhub("instances", "raise-event", newer, "go", "--data", "1")  # nothing is left for other tests
    return cases


def _step(real: RealAirflow, case: Kill, states: dict[str, str]) -> None:
    now = time.monotonic()
    if case.deferred is None:
        case.deferred = now if states.get(case.run) == "deferred" else None
    if case.done is None and case.deferred is not None and now >= case.deferred + case.delay:
        _kill(real, case)
        case.done = time.monotonic()
    if case.done is not None and case.seconds is None:
        case.status = _status(real, case.instance)
        if case.status == "Terminated":
            case.seconds = time.monotonic() - case.done
            up = "up" if case.triggerer else "down"
            print(f"{case.kind}, {case.delay:g} s, triggerer {up}: {case.seconds:.1f} s", flush=True)


def _kill(real: RealAirflow, case: Kill) -> None:
    """Kill the task, again and again until Airflow takes it.

    Airflow's API server on SQLite may lock itself up until the database's timeout, and then answers 500. The reason
    is in :mod:`tests.airflow.real`.
    """

    def taken() -> bool:
        with suppress(httpx.TimeoutException, AssertionError):
            if case.kind == "cleared":
                real.clear("open", case.run)
                return True
            if case.kind != "run deleted":
                real.mark("open", case.run, case.kind)
                return True
            return real.delete_run("open", case.run)
        return False

    until(f"Airflow takes the kill ({case.kind})", taken, seconds=_PATIENCE)


def _states(real: RealAirflow) -> dict[str, str]:
    found = real.get("/api/v2/dags/open/dagRuns/~/taskInstances", limit=100)
    return {one["dag_run_id"]: str(one["state"]) for one in found["task_instances"]}


def _status(real: RealAirflow, instance: str) -> str:
    answer = real.request("GET", "/taskhub/api/instance", params={"id": instance})
    return str(answer.json()["instance"]["status"]) if answer.status_code == 200 else ""


def down(real: RealAirflow, *, seconds: float) -> str:
    """Airflow is stopped for some seconds; the status of an instance that a task waits for, before Airflow is back."""
    run = real.trigger("open")
    real.reaches("open", run, "deferred")
    instance = f"open:hub:{run}:g1"
    airflow = [process for name, process in real.processes.items() if name != "worker"]
    for process in airflow:
        process.stop()
    time.sleep(seconds)
    found = real.taskhub("instances", "show", instance)
    status = str(found["status"] if "status" in found else found["instance"]["status"])
    for process in airflow:
        process.start()
    until("a healthy Airflow", real.healthy, seconds=_PATIENCE)
    real.taskhub("instances", "raise-event", instance, "go", "--data", "1")
    real.reaches("open", run, "success")
    return status


def mapped(real: RealAirflow, dag_id: str) -> tuple[float, Counter[str]]:
    """Run a wide DAG once: seconds, and how many of its tasks ended in which state."""
    began = time.monotonic()
    run = real.trigger(dag_id)

    def ended() -> bool:
        time.sleep(1.0)
        answer = real.request("GET", f"/api/v2/dags/{dag_id}/dagRuns/{quote(run)}")  # 500: SQLite is locked, ask again
        return answer.status_code == 200 and answer.json()["state"] in ("success", "failed")

    until("the run has ended", ended, seconds=900)
    seconds = time.monotonic() - began
    states: Counter[str] = Counter()
    for offset in (0, 50, 100):
        found = real.get(f"/api/v2/dags/{dag_id}/dagRuns/{quote(run)}/taskInstances", limit=50, offset=offset)
        for one in found["task_instances"]:
            states[str(one["state"])] += 1
            if one["state"] != "success":
                print(f"  {one['task_id']}[{one['map_index']}] is {one['state']}", flush=True)
    return seconds, states


def table(cases: Sequence[Kill]) -> Iterator[str]:
    """Seconds from each kill to the end of its instance."""
    yield f"{'seconds to Terminated':34}" + "".join(f"{delay:>7g} s" for delay in DELAYS)
    for triggerer, kind in itertools.product((True, False), KINDS):
        row = {case.delay: case for case in cases if (case.triggerer, case.kind) == (triggerer, kind)}
        if row:
            cells = [
                "-"
                if delay not in row
                else f"{row[delay].seconds:.1f}"
                if row[delay].held
                else f"! {row[delay].status}"
                for delay in DELAYS
            ]
            yield f"{kind + ', triggerer ' + ('up' if triggerer else 'down'):34}" + "".join(f"{c:>9}" for c in cells)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("kills", "mapped"))
    parser.add_argument("--times", type=int, default=5, help="runs of the wide DAG")
    parser.add_argument(
        "--sqlite",
        action="store_true",
        help="Airflow's database is SQLite instead of PostgreSQL: mapped tasks may fail, because Airflow's API server "
        "does not answer",
    )
    asked = parser.parse_args()
    if asked.what == "mapped":
        real = started(
            postgres=not asked.sqlite,
            AIRFLOW__CORE__PARALLELISM="32",
            AIRFLOW__CORE__MAX_ACTIVE_TASKS_PER_DAG="32",
            AIRFLOW__DATABASE__SQL_ALCHEMY_POOL_SIZE="45",  # as how-to/production.md says
            **(_MAPPED_ON_SQLITE if asked.sqlite else {}),
        )
        failed = 0
        for number in range(asked.times):
            dag_id = ("wide", "wide_by_workers")[number % 2]
            seconds, states = mapped(real, dag_id)
            failed += 100 - states["success"]
            print(f"run {number + 1}, {dag_id}: {seconds:6.1f} s  {dict(states)}", flush=True)
        print(f"failed: {failed} of {100 * asked.times}")
        return int(failed > 0)
    real = started(postgres=not asked.sqlite)
    cases = kills(real, kinds=KINDS, delays=DELAYS, triggerer=True)
    status = down(real, seconds=DOWN)
    real.processes["triggerer"].stop()
    cases += kills(real, kinds=KINDS, delays=DELAYS, triggerer=False)
    print("\n".join(table(cases)))
    print(f"an instance after {DOWN:g} s without Airflow: {status}")
    return int(status != "Running" or not all(case.held for case in cases))


if __name__ == "__main__":
    sys.exit(main())
