"""Figures: what a workload measured beside its goal and its ceiling, as JSON lines and as tables."""

from __future__ import annotations

import json
import os
import platform
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, repeat
from pathlib import Path
from statistics import median

import psutil
from rich.table import Table
from rich.text import Text

from tests.benchmarks.cpu import ROLES
from tests.benchmarks.goals import GOALS, Goal, share

REQUESTS = "requests "
"""Begins the name of a figure that counts storage requests of one kind."""
CPU = "cpu "
"""Begins the name of a figure of one role's CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One thing measured in one run.

    :param name: ``p50``, ``requests queue.put``, ``cpu host`` … :param size: of the workload.
    :param ceiling: measured on the bare store.
    """

    store: str
    workload: str
    name: str
    unit: str
    value: float
    size: int
    ceiling: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A figure over all its runs; ``value`` is their median.

    :param ceilings: the same figure of the bare store, run by run.
    """

    store: str
    workload: str
    name: str
    unit: str
    value: float
    runs: tuple[float, ...]
    size: int
    ceilings: tuple[float, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.store} {self.workload} × {self.size}"

    @property
    def goal(self) -> Goal | None:
        found = GOALS.get((self.store, self.workload, self.name))
        return found if found is not None and found.size == self.size else None

    @property
    def ceiling(self) -> float | None:
        return median(self.ceilings) if self.ceilings else None

    @property
    def reached(self) -> float | None:
        """The share of the ceiling."""
        return None if self.ceiling is None else share(self.value, self.ceiling, self.unit)

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
                "goal": None if self.goal is None else str(self.goal),
                "ceilings": [round(run, 4) for run in self.ceilings],
                "reached": None if self.reached is None else round(self.reached, 4),
                "machine": machine,
            }
        )


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * round(share * 1000) // 1000) - 1)]


def summarise(figures: Iterable[Figure]) -> list[Summary]:
    """Medians over the runs, in the order of first appearance, each with its ceiling."""
    runs: dict[tuple[str, str, str, str, int], tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for figure in figures:
        found = runs[figure.store, figure.workload, figure.name, figure.unit, figure.size]
        found[figure.ceiling].append(figure.value)
    return [
        Summary(
            store=store,
            workload=workload,
            name=name,
            unit=unit,
            size=size,
            value=median(ours),
            runs=tuple(ours),
            ceilings=tuple(bare),
        )
        for (store, workload, name, unit, size), (ours, bare) in runs.items()
        if ours
    ]


def tables(summaries: Sequence[Summary]) -> list[Table]:
    """For people: the figures beside goals and ceilings, and what they cost."""
    found = [figures_table([each for each in summaries if not each.name.startswith((REQUESTS, CPU))])]
    costs = [each for each in summaries if each.name.startswith((REQUESTS, CPU))]
    return [*found, costs_table(costs)] if costs else found


def figures_table(summaries: Iterable[Summary]) -> Table:
    """A row a figure. The ceiling is the bare store's in the same run, 100 % is as fast."""
    shown = Table(title="TaskHub, medians", title_justify="left")
    shown.add_column("workload")
    shown.add_column("figure")
    for column in ("median", "goal", "ceiling", "of it"):
        shown.add_column(column, justify="right", no_wrap=True)
    shown.add_column("runs", no_wrap=True)
    for title, group in groupby(summaries, key=lambda each: each.title):
        shown.add_section()
        for head, each in zip(chain([title], repeat("")), group, strict=False):
            shown.add_row(
                head,
                f"{each.name}, {each.unit}" if each.unit else each.name,
                number(each.value),
                _verdict(each),
                "" if each.ceiling is None else number(each.ceiling),
                "" if each.reached is None else f"{each.reached:.0%}",
                f"{number(min(each.runs))} … {number(max(each.runs))}" if len(each.runs) > 1 else "",
            )
    return shown


def number(value: float) -> str:
    """Three digits that count."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _verdict(each: Summary) -> Text:
    if each.goal is None:
        return Text("")
    met = each.goal.met(each.value, each.reached)
    return Text(f"{each.goal} {'✓' if met else '✗'}", style="green" if met else "red")


def costs_table(summaries: Sequence[Summary]) -> Table:
    """CPU by process and requests; below each workload what its ceiling used, whose host is the client too."""
    roles = [role for role in ROLES if any(each.name == f"{CPU}{role}" for each in summaries)]
    shown = Table(title="What one costs: ms of CPU by process, and requests", title_justify="left")
    shown.add_column("workload", no_wrap=True)
    for role in (*roles, "all"):
        shown.add_column(role, justify="right", no_wrap=True)
    shown.add_column("requests")
    for (store, workload), group in groupby(summaries, key=lambda each: (each.store, each.workload)):
        found = list(group)
        cpu = {each.name.removeprefix(CPU): each for each in found if each.name.startswith(CPU)}
        ours = {role: each.value for role, each in cpu.items()}
        bare = {role: median(each.ceilings) for role, each in cpu.items() if each.ceilings}
        kinds = {each.name.removeprefix(REQUESTS): each.value for each in found if each.name.startswith(REQUESTS)}
        shown.add_section()
        unit = found[0].unit.removeprefix("ms ")
        shown.add_row(f"{store} {workload}, {unit}", *_cpu(roles, ours), _requests(kinds))
        if bare:
            shown.add_row(Text("  its ceiling", style="dim"), *_cpu(roles, bare), "")
    return shown


def _cpu(roles: Sequence[str], values: Mapping[str, float]) -> list[str]:
    """Cells of the roles and their sum; nothing for a role that there was not."""
    total = f"{sum(values.values()):.2f}" if values else ""
    return [*(f"{values[role]:.2f}" if role in values else "" for role in roles), total]


def _requests(kinds: Mapping[str, float]) -> str:
    if not kinds:
        return ""
    each = ", ".join(f"{number(value)} {kind}" for kind, value in kinds.items())
    return f"{number(sum(kinds.values()))}: {each}"


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
