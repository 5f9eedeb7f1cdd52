"""``make bench-peers``: TaskHub on its embedded store beside DBOS on SQLite and durabletask-python, one table.

The same for all: the machine, the sizes, one worker, orchestrations around one activity that does nothing, each run in
a fresh process on a fresh store after a few to warm up, systems in turn, medians of the runs; each system as its own
documentation sets it up. Times end when the caller knows the result. Not the same:

- TaskHub is a worker process with activities in executor processes, driven by a client in another process; the others
  are client, worker and activities in one process, and hand results over in its memory.
- TaskHub commits with FULL sync, and so does DBOS by SQLite's default; durabletask-python keeps everything in memory.
- TaskHub keeps start, every message and every event of the history; DBOS a row a workflow and a row a step.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from airflow_provider_taskhub.errors import TaskHubError
from tests.benchmarks.figures import Figure, machine, number
from tests.benchmarks.stage import EMBEDDED, ROOT, BenchError, Stage
from tests.benchmarks.workloads import WORKLOADS, measure

HERE = Path(__file__).parent
PYTHON = ROOT / ".bench" / "peers" / "bin" / "python"
OUTPUT = ROOT / ".bench" / "peers.jsonl"
OURS = "TaskHub, embedded"
LIMIT = 900.0
WIDTH = 120
COLUMNS: Mapping[str, tuple[str, str]] = {
    "single p50, ms": ("a0", "p50"),
    "burst, per s": ("a", "finished"),
    "fan-out, s": ("b", "whole"),
    "chain, ms/step": ("c", "step"),
    "long chain, first": ("d", "first"),
    "last": ("d", "last"),
}
"""Heading → workload and figure."""

Runs = dict[tuple[str, str, str], list[float]]
"""System, workload, figure → a value a run."""


def ours(figures: Sequence[Figure]) -> dict[str, float]:
    """The figures of TaskHub's own benchmark that the others have too."""
    found = {figure.name: figure.value for figure in figures if figure.name in ("p50", "finished", "whole", "step")}
    parts = [figure for figure in figures if figure.name.startswith("step, ")]
    return found | {"first" if "first" in figure.name else "last": figure.value for figure in parts}


def _ours(letter: str, size: int) -> dict[str, float]:
    with Stage(EMBEDDED) as stage:
        return ours(asyncio.run(measure(WORKLOADS[letter], stage, size)))


def _theirs(program: str, letter: str, size: int) -> dict[str, float]:
    command = [str(PYTHON), str(HERE / f"{program}.py"), letter, str(size)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, cwd=PYTHON.parent)
    if done.returncode:
        raise BenchError(f"{program} {letter} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _versions() -> dict[str, str]:
    """Program → its name in the table."""
    if not PYTHON.is_file():
        raise BenchError(f"there is no {PYTHON}: `make bench-peers` installs it")
    code = "from importlib.metadata import version as v; print(v('dbos'), v('durabletask'))"
    dbos, durabletask = subprocess.run(
        [PYTHON, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    return {"on_dbos": f"DBOS {dbos}, SQLite", "on_durabletask": f"durabletask {durabletask}, no store"}


def table(runs: Runs, sizes: Mapping[str, int]) -> Table:
    """A row a system, medians. :param sizes: of the workloads."""
    count = max((len(values) for values in runs.values()), default=0)
    text = ", ".join(f"{letter} {size}" for letter, size in sizes.items())
    shown = Table(title=f"Medians of {count} ({text})", title_justify="left")
    shown.add_column("system")
    for heading in COLUMNS:
        shown.add_column(heading, justify="right")
    for system in dict.fromkeys(system for system, _, _ in runs):
        cells = [runs.get((system, letter, figure), []) for letter, figure in COLUMNS.values()]
        shown.add_row(system, *(number(median(values)) if values else "" for values in cells))
    return shown


def _write(runs: Runs, here: str) -> None:
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    lines = (
        {
            "system": system,
            "workload": letter,
            "figure": figure,
            "value": median(values),
            "runs": values,
            "machine": here,
        }
        for (system, letter, figure), values in runs.items()
    )
    OUTPUT.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def main(arguments: Sequence[str] | None = None) -> int:
    """The status to exit with. What was measured until an error or Ctrl-C is shown and kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.peers")
    parser.add_argument("--workloads", default="a0,a,b,c,d", help="of a0,a,b,c,d")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="0.1: a tenth of every size")
    options = parser.parse_args(arguments)
    screen = Console()
    if not screen.is_terminal:
        screen.width = WIDTH
    here = machine()
    screen.print(here, highlight=False)
    sizes = {letter: WORKLOADS[letter].sized(options.scale) for letter in options.workloads.split(",")}
    runs: Runs = defaultdict(list)
    status = 0
    try:
        theirs = _versions()
        for run in range(1, options.repeat + 1):
            for letter, size in sizes.items():
                screen.print(f"{letter}: {size} {WORKLOADS[letter].text}, run {run} of {options.repeat}", style="dim")
                found = {OURS: _ours(letter, size)}
                found |= {name: _theirs(program, letter, size) for program, name in theirs.items()}
                for system, figures in found.items():
                    for figure, value in figures.items():
                        runs[system, letter, figure].append(value)
    except (BenchError, TaskHubError, subprocess.TimeoutExpired) as error:
        screen.print(str(error), style="red", markup=False)
        status = 1
    except KeyboardInterrupt:
        status = 130
    if runs:
        screen.print(table(runs, sizes))
        _write(runs, here)
        screen.print(f"JSON lines: {OUTPUT}", highlight=False, soft_wrap=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
