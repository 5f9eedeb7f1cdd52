"""``make bench-spark``: 100 small Spark jobs as a bare program, through the hub, and in a run of a real Airflow.

The bare program and a worker take turns on the same machine. Each has four jobs at once. The first round of each is the
first after its start. In Airflow, 20 mapped tasks of ``SparkSubmitOperator`` show what an application a job costs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median

from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.clock import SYSTEM_CLOCK
from airflow_provider_taskhub.demo import spark_servers
from airflow_provider_taskhub.engine.events import Status
from tests.benchmarks.figures import machine
from tests.benchmarks.front import stage as front
from tests.benchmarks.front.figures import Workload
from tests.benchmarks.spark_app import COUNT, THREADS
from tests.benchmarks.stage import EMBEDDED, ROOT, BenchError, Stage
from tests.spark.servers import Servers
from tests.waiting import until

KINDS = {"local": (1.2, 1.1), "connect": (1.5, 1.5)}
"""The largest ratios to the bare program: of the first round after a start, and of the median of the later ones."""
APP = "tests.benchmarks.spark_app:app"
IN_AIRFLOW = (
    Workload(name="spark-100", tasks=1, text=f"one task, an orchestration of {COUNT} jobs", slots=False, seconds=12),
    Workload(name="submit-20", tasks=20, text=f"20 tasks of SparkSubmitOperator, {THREADS} at once"),
)
DEADLINE = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Seconds of rounds, in the order in which they ran; the first one came right after the start."""

    bare: list[float]
    hub: list[float]

    @property
    def first(self) -> float:
        """What the first round of the hub took, as a multiple of the bare program's."""
        return self.hub[0] / self.bare[0]

    @property
    def later(self) -> float:
        """The median of the later rounds, as a multiple of the bare program's."""
        return median(self.hub[1:]) / median(self.bare[1:])


class Bare:
    """The bare program in a process of its own."""

    def __init__(self, master: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.spark_bare", master],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise BenchError(f"the bare program ended with {self._process.wait()}")
        return line

    def round(self) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._line())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


async def through_hub(client: Client, stage: Stage) -> float:
    """Return the seconds from the start of an orchestration of all jobs until a client has its result."""
    began = SYSTEM_CLOCK.monotonic()
    instance = await client.start("many", COUNT)
    ended = await client.wait(instance.instance_id)
    if ended.status is not Status.COMPLETED:
        raise BenchError(f"the orchestration is {ended.status}: {ended.output}\n{stage.tail()}")
    return SYSTEM_CLOCK.monotonic() - began


@contextmanager
def place(kind: str) -> Iterator[str]:
    """The master of a kind; its servers run until the end of the block."""
    if kind == "local":
        yield "local[2]"
        return
    with tempfile.TemporaryDirectory(prefix="taskhub-bench-", ignore_cleanup_errors=True) as folder:
        servers = Servers(spark_servers.connect(Path(folder)), Path(folder))
        try:
            yield servers.master
        finally:
            servers.stop()


async def compare(kind: str, rounds: int) -> Rounds:
    """Let the bare program and a worker run the jobs in turn, so that a machine that is slow for a while is slow for
    both. :param rounds: after the first one of each.
    """
    found = Rounds(bare=[], hub=[])
    options = ("--spark-activities", str(THREADS))
    with (
        place(kind) as master,
        Stage(EMBEDDED, app=APP, options=options, env={"TASKHUB_SPARK__MASTER": master}) as stage,
    ):
        until("the worker's Spark", lambda: stage.has_executor("spark"))
        bare = Bare(master)
        try:
            async with Client.open(stage.settings) as client:
                for number in range(rounds + 1):
                    found.bare.append(await asyncio.to_thread(bare.round))
                    found.hub.append(await through_hub(client, stage))
                    print(f"{kind}, round {number}: bare {found.bare[-1]:.2f} s, hub {found.hub[-1]:.2f} s", flush=True)
        finally:
            bare.close()
    return found


class SparkStage(front.Stage):
    """An Airflow with a worker that has four Spark jobs at once, and with PySpark's own operator."""

    apps = (APP,)
    dag_count = len(IN_AIRFLOW)

    def _environment(self) -> dict[str, str]:
        connection = {"conn_type": "spark", "host": "local[1]", "extra": {"deploy-mode": "client"}}
        return super()._environment() | {
            "TASKHUB_SPARK__MASTER": "local[2]",
            "TASKHUB_SPARK_ACTIVITIES": str(THREADS),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(connection),
            "BENCH_SPARK_JOB": str(ROOT / "tests/benchmarks/spark_submitted.py"),
            "PYTHONPATH": f"{super()._environment()['PYTHONPATH']}:{ROOT}",
        }


def in_airflow(repeat: int) -> Mapping[str, list[float]]:
    """Return the seconds of each run in Airflow, by workload. The first run of each only warms up."""
    found: dict[str, list[float]] = {each.name: [] for each in IN_AIRFLOW}
    with tempfile.TemporaryDirectory(prefix="taskhub-bench-", ignore_cleanup_errors=True) as home:
        stage = SparkStage(Path(home), postgres=True, dags=Path(front.__file__).with_name("spark_dags"))
        try:
            stage.start()
            for repetition in range(repeat + 1):
                for each in IN_AIRFLOW:
                    run = stage.measure(each, heartbeat=1, repetition=repetition, deadline=DEADLINE)
                    if run.failed:
                        raise BenchError(
                            f"{each.text}: {run.failed} tasks failed; {stage.keep_logs(ROOT / '.bench/spark')}"
                        )
                    print(f"{each.text}, run {repetition}: {run.seconds:.1f} s", flush=True)
                    if repetition:
                        found[each.name].append(run.seconds)
        finally:
            stage.stop()
    return found


def line(what: str, value: float, goal: float | None, unit: str) -> str:
    verdict = "" if goal is None else f"goal {goal:g}{unit} {'✓' if value <= goal else '✗'}"
    return f"{what:<64}{value:>8.2f}{unit:<4}{verdict}".rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.spark", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="of 100 jobs each, after the first ones; at least 1")
    parser.add_argument("--kinds", default=",".join(KINDS), help="local and connect, separated by commas")
    parser.add_argument("--repeat", type=int, default=3, help="runs in Airflow; 0: no Airflow is started")
    options = parser.parse_args()
    kinds = [kind for kind in options.kinds.split(",") if kind]
    if options.rounds < 1 or not set(kinds) <= KINDS.keys():
        parser.error(f"give at least one round, and kinds of {', '.join(KINDS)}")
    lines = [f"{machine()}, PySpark {version('pyspark')}; {COUNT} small Spark jobs, {THREADS} at once"]
    for kind in kinds:
        found = asyncio.run(compare(kind, options.rounds))
        first, later = KINDS[kind]
        lines += [
            line(f"{kind}: the bare program, median", median(found.bare[1:]), None, " s"),
            line(f"{kind}: through the hub, median", median(found.hub[1:]), None, " s"),
            line(f"{kind}: through the hub, beside the bare program", found.later, later, " x"),
            line(f"{kind}: the first {COUNT} after a start, beside the bare program's", found.first, first, " x"),
        ]
    if options.repeat:
        seconds = in_airflow(options.repeat)
        lines += [line(f"Airflow: {each.text}", median(seconds[each.name]), each.seconds, " s") for each in IN_AIRFLOW]
    print("\n" + "\n".join(lines))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
