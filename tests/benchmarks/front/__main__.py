"""``make bench-airflow``: run each workload in one Airflow, in turn, and print medians beside their goals."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from tests.benchmarks.figures import machine
from tests.benchmarks.front.figures import WORKLOADS, Run, Workload, parse_line, table
from tests.benchmarks.front.parse import parse_times
from tests.benchmarks.front.stage import Stage
from tests.benchmarks.stage import ROOT

OUTPUT = ROOT / ".bench" / "airflow.jsonl"
WIDTH = 160
"""Columns of the table where there is no terminal."""
DEADLINE = 300.0
PARSES = 7
WARM = ("zero-1", "task-1", "worker-1")
"""Workloads that run once, unmeasured, after each start of a scheduler: code is loaded, Airflow's caches are full."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.front", description=__doc__)
    parser.add_argument("--sqlite", action="store_true", help="Airflow's database is SQLite instead of PostgreSQL")
    names = ",".join(WORKLOADS)
    parser.add_argument("--workloads", type=_workloads, default=tuple(WORKLOADS.values()), help=f"such as {names}")
    parser.add_argument("--repeat", type=_positive, default=3, help="runs of each; the figure is their median")
    parser.add_argument(
        "--heartbeats",
        type=lambda text: tuple(map(_positive, text.split(","))),
        default=(1, 5),
        help="Airflow's [workers] min_heartbeat_interval, whose default is 5; what needs no worker runs with the first",
    )
    parser.add_argument("--deadline", type=_positive, default=DEADLINE, help="seconds after which a run has failed")
    parser.add_argument("--parses", type=int, default=PARSES, help="pairs of DAG files that are read; 0: none")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="file of the JSON lines, written anew")
    return parser


def _workloads(text: str) -> tuple[Workload, ...]:
    unknown = [name for name in text.split(",") if name not in WORKLOADS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(WORKLOADS)}")
    return tuple(WORKLOADS[name] for name in text.split(","))


def _positive(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def plan(workloads: Sequence[Workload], heartbeats: Sequence[int], repeat: int) -> Iterator[tuple[int, int, Workload]]:
    """Yield repetition, heartbeat interval and workload of each run.

    Each repetition begins with another workload and goes through the intervals in the other direction, so that a
    machine that is slow for a while is not slow for one workload only.
    """
    for repetition in range(repeat):
        turned = [*workloads[repetition % len(workloads) :], *workloads[: repetition % len(workloads)]]
        for heartbeat in heartbeats if repetition % 2 == 0 else tuple(reversed(heartbeats)):
            for workload in turned:
                if workload.slots or heartbeat == heartbeats[0]:
                    yield repetition + 1, heartbeat, workload


def _runs(screen: Console, stage: Stage, options: argparse.Namespace, runs: list[Run]) -> None:
    warm: int | None = None
    for repetition, heartbeat, workload in plan(options.workloads, options.heartbeats, options.repeat):
        if warm != heartbeat:
            for name in WARM:
                stage.measure(WORKLOADS[name], heartbeat=heartbeat, repetition=0, deadline=options.deadline)
            warm = heartbeat
        run = stage.measure(workload, heartbeat=heartbeat, repetition=repetition, deadline=options.deadline)
        runs.append(run)
        what = f"{repetition}. {workload.text}, heartbeat {heartbeat} s"
        failed = f", {run.failed} FAILED" if run.failed else ""
        screen.print(f"{what}: {run.seconds:.1f} s, slots {run.most_slots}{failed}", highlight=False)
        if run.failed:
            kept = stage.keep_logs(options.output.with_suffix(f".{workload.name}.{repetition}"))
            screen.print(f"   logs: {kept}; ended: {', '.join(stage.ended()) or 'no process'}", highlight=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the status to exit with: 0, 1 if a task failed, 130 for Ctrl-C. What was measured is kept."""
    options = _parser().parse_args(arguments)
    screen = Console()
    if not screen.is_terminal:
        screen.width = WIDTH
    database = "SQLite" if options.sqlite else "PostgreSQL"
    here = f"{machine()}, Airflow {version('apache-airflow')}, LocalExecutor, {database}"
    screen.print(here, highlight=False)
    runs: list[Run] = []
    interrupted = False
    try:
        if options.parses > 0:
            screen.print(parse_line(parse_times(options.parses)))
        with tempfile.TemporaryDirectory(prefix="taskhub-bench-", ignore_cleanup_errors=True) as home:
            stage = Stage(Path(home), postgres=not options.sqlite)
            try:
                stage.start()
                _runs(screen, stage, options, runs)
            finally:
                stage.stop()
    except KeyboardInterrupt:
        interrupted = True
    finally:
        if runs:
            screen.print(table(runs))
            options.output.parent.mkdir(parents=True, exist_ok=True)
            options.output.write_text("".join(f"{run.line(here)}\n" for run in runs))
            screen.print(f"JSON lines: {options.output}", highlight=False)
    return 130 if interrupted else int(any(run.failed for run in runs))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as on Ctrl-C: nothing stays behind
    sys.exit(main())
