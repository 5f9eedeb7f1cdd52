"""Figures: what a workload measured, as JSON lines and as a table."""

from __future__ import annotations

import json
import os
import platform
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, repeat
from pathlib import Path
from statistics import median

import psutil
from rich.table import Table

REQUESTS = "requests "
"""Begins the name of a figure that counts storage requests of one kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One thing measured in one run. :param name: ``p50``, ``requests.queue.put`` … :param size: of the workload."""

    store: str
    workload: str
    name: str
    unit: str
    value: float
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A figure over all its runs; ``value`` is their median."""

    store: str
    workload: str
    name: str
    unit: str
    value: float
    runs: tuple[float, ...]
    size: int

    def line(self, machine: str) -> str:
        """One JSON object."""
        return json.dumps(
            {
                "store": self.store,
                "workload": self.workload,
                "size": self.size,
                "figure": self.name,
                "unit": self.unit,
                "value": round(self.value, 4),
                "runs": [round(run, 4) for run in self.runs],
                "machine": machine,
            }
        )


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * round(share * 1000) // 1000) - 1)]


def summarise(figures: Iterable[Figure]) -> list[Summary]:
    """Medians over the runs, in the order of first appearance."""
    runs: dict[tuple[str, str, str, str, int], list[float]] = defaultdict(list)
    for figure in figures:
        runs[figure.store, figure.workload, figure.name, figure.unit, figure.size].append(figure.value)
    return [
        Summary(
            store=store, workload=workload, name=name, unit=unit, size=size, value=median(values), runs=tuple(values)
        )
        for (store, workload, name, unit, size), values in runs.items()
    ]


def table(summaries: Iterable[Summary]) -> Table:
    """Rows for people: one a figure with the spread of its runs; requests of all kinds in one row."""
    shown = Table(title="TaskHub", title_justify="left")
    for column in ("store", "workload", "size", "figure"):
        shown.add_column(column)
    shown.add_column("median", justify="right")
    shown.add_column("unit")
    shown.add_column("runs")
    for (store, workload, size), group in groupby(summaries, key=lambda each: (each.store, each.workload, each.size)):
        found = list(group)
        shown.add_section()
        heads = chain([(store, workload, str(size))], repeat(("", "", "")))
        for each in (each for each in found if not each.name.startswith(REQUESTS)):
            spread = f"{min(each.runs):.4g} … {max(each.runs):.4g}" if len(each.runs) > 1 else ""
            shown.add_row(*next(heads), each.name, f"{each.value:.4g}", each.unit, spread)
        kinds = [each for each in found if each.name.startswith(REQUESTS)]
        if kinds:
            text = ", ".join(f"{each.value:.3g} {each.name.removeprefix(REQUESTS)}" for each in kinds)
            shown.add_row(*next(heads), "requests", f"{sum(each.value for each in kinds):.4g}", kinds[0].unit, text)
    return shown


def machine() -> str:
    """Processor, cores, memory and Python, in a line."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = psutil.virtual_memory().total / 2**30
    return f"{_processor()}, {cores} cores, {memory:.0f} GiB, Python {platform.python_version()}"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
