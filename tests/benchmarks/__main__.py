"""``make bench``: run workloads, each in turn with its ceiling; print tables and JSON lines.

``make profile`` is ``--profile``: flame graphs instead."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from airflow_provider_taskhub.demo.azurite import install
from airflow_provider_taskhub.errors import TaskHubError
from tests.benchmarks.figures import Figure, Summary, machine, summarise, tables
from tests.benchmarks.flames import flames
from tests.benchmarks.stage import AZURITE, EMBEDDED, EMULATOR, ROOT, BenchError, Stage
from tests.benchmarks.workloads import WORKLOADS, Workload, measure, measure_ceiling

STORES = {"embedded": (EMBEDDED,), "azurite": (EMULATOR,), "both": (EMBEDDED, EMULATOR)}
OUTPUT = ROOT / ".bench" / "figures.jsonl"
COMPLAINTS = 10
"""Lines of a worker's log shown for one run."""

WIDTH = 120
"""Columns of the table where there is no terminal: a log, a file."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--store", choices=tuple(STORES), default="both")
    parser.add_argument("--workloads", type=_workloads, default=tuple(WORKLOADS.values()), help="such as a0,a,b,c,d,i")
    parser.add_argument("--repeat", type=_positive(int), help="runs of each; the figure is their median")
    parser.add_argument("--scale", type=_positive(float), default=1.0, help="0.1: a tenth of every size")
    parser.add_argument("--profile", action="store_true", help="one run of each under py-spy: flame graphs, no figures")
    parser.add_argument("--json", action="store_true", help="the JSON lines to stdout, everything else to stderr")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="file of the JSON lines, written anew")
    return parser


def _workloads(text: str) -> tuple[Workload, ...]:
    unknown = [letter for letter in text.split(",") if letter not in WORKLOADS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(WORKLOADS)}")
    return tuple(WORKLOADS[letter] for letter in text.split(","))


def _positive(kind: Callable[[str], float]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = kind(text)
        if value <= 0:
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value

    return parse


def _runs(screen: Console, store: str, workload: Workload, repeat: int, scale: float) -> tuple[list[Figure], list[str]]:
    """All runs of a workload: the figures, and what the workers complained of."""
    found: list[Figure] = []
    complaints: list[str] = []
    size = workload.sized(scale)
    for run in range(1, repeat + 1):
        screen.print(f"{store} {workload.letter}: {size} {workload.text}, run {run} of {repeat}", style="dim")
        with Stage(store) as stage:
            found += asyncio.run(measure(workload, stage, size))
            complaints += stage.complaints()
        found += asyncio.run(measure_ceiling(workload, store, size))
    return found, complaints


def _profile(screen: Console, store: str, workload: Workload, scale: float) -> list[str]:
    """One run under a profiler: what the workers complained of."""
    graph = OUTPUT.with_name(f"profile-{store}-{workload.letter}.svg")
    with Stage(store) as stage, flames(stage.hosts[0], graph):
        asyncio.run(measure(workload, stage, workload.sized(scale)))
        complaints = stage.complaints()
    screen.print(f"flame graph of worker and executors: {graph}", highlight=False, soft_wrap=True)
    return complaints


def _show(screen: Console, complaints: Sequence[str]) -> None:
    for line in complaints[:COMPLAINTS]:
        screen.print(f"worker: {line}", style="yellow", markup=False)
    if len(complaints) > COMPLAINTS:
        screen.print(f"worker: {len(complaints) - COMPLAINTS} more such lines", style="yellow")


def _write(path: Path, summaries: Sequence[Summary], here: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{each.line(here)}\n" for each in summaries))


def main(arguments: Sequence[str] | None = None) -> int:
    """The status to exit with: 0, 1 for a workload that failed, 130 for Ctrl-C. What was measured is kept."""
    options = _parser().parse_args(arguments)
    screen = Console(stderr=options.json)
    if not screen.is_terminal:
        screen.width = WIDTH
    here = machine()
    screen.print(here, highlight=False)
    figures: list[Figure] = []
    status = 0
    try:
        if EMULATOR in STORES[options.store]:
            install(AZURITE)
        for store in STORES[options.store]:
            for workload in options.workloads:
                if options.profile:
                    _show(screen, _profile(screen, store, workload, options.scale))
                    continue
                found, complaints = _runs(screen, store, workload, options.repeat or workload.repeats, options.scale)
                figures += found
                _show(screen, complaints)
    except (BenchError, TaskHubError) as error:
        screen.print(str(error), style="red", markup=False)
        status = 1
    except KeyboardInterrupt:
        status = 130
    summaries = summarise(figures)
    if summaries:
        for table in tables(summaries):
            screen.print(table)
        _write(options.output, summaries, here)
        screen.print(f"JSON lines: {options.output}", highlight=False)
    if options.json:
        for each in summaries:
            print(each.line(here))
    return status


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as on Ctrl-C: nothing stays behind
    sys.exit(main())
